// The messages of the rendezvous over TCP, behind the handshake, whose index and count are rank and world size. And the unique id.
//   client -> root   Join once, then a Contribution each round. GiveUp at the client's own deadline; it may say why the client was late.
//   root -> client   One Result for each rank each round. Or one Failure, which ends the rendezvous. Or Again: the last init still goes on,
//                    and the client is to connect again.
#pragma once

#include <optional>

#include "base/error.hpp"
#include "bootstrap/rendezvous.hpp"
#include "net/frame.hpp"

namespace isthmus::bootstrap {

inline constexpr size_t kMaxBlob = 1024 * 1024;
inline constexpr size_t kMaxRendezvousBody = kMaxBlob + 16;
inline constexpr size_t kMaxIdAddresses = 4;  // for so many a unique id has room

// Enter, Welcome, Made and Kept are of processes that join a communicator which there is already (newcomers.hpp).
enum class Meet : uint16_t { Join = 1, Contribution, GiveUp, Result, Failure, Again, Enter, Welcome, Made, Kept };

struct Join {
  int64_t pid = 0;
  std::string hostname;
};
struct Contribution {
  uint32_t round = 0;
  Patience patience;
  std::span<const std::byte> blob;  // into the message
};
struct GiveUp {
  uint32_t round = 0;
  Status why;  // OK: the client has only waited
};
struct Result {
  uint32_t round = 0, rank = 0;
  std::span<const std::byte> blob;  // into the message
};

void append_join(net::ByteVector &out, const Join &m);
void append_contribution(net::ByteVector &out, uint32_t round, std::span<const std::byte> blob, Patience patience = {});
void append_give_up(net::ByteVector &out, uint32_t round, const Status &why);
void append_result(net::ByteVector &out, uint32_t round, uint32_t rank, std::span<const std::byte> blob);
void append_failure(net::ByteVector &out, const Status &status);
std::optional<Join> parse_join(std::span<const std::byte> body);
std::optional<Contribution> parse_contribution(std::span<const std::byte> body);
std::optional<GiveUp> parse_give_up(std::span<const std::byte> body);
std::optional<Result> parse_result(std::span<const std::byte> body);
std::optional<Status> parse_failure(std::span<const std::byte> body);

struct UniqueId {
  Bytes16 key{};
  std::vector<std::string> addresses;  // "10.0.0.1:4000", "[fd00::2]:4001"; 1 to 4
};
void pack_unique_id(const UniqueId &id, std::span<std::byte, 128> out);  // throws Error(Argument)
// throws Error(Argument), Error(Mismatch) for another version
UniqueId unpack_unique_id(std::span<const std::byte, 128> bytes);

// "rank 2", "rank 2 and rank 3", "rank 1, rank 2, rank 3 and 12 more"
std::string ranks_text(const std::vector<int> &ranks);

}  // namespace isthmus::bootstrap
