// Every connection starts with a mutual challenge and response, which proves that both ends hold the same 128-bit job key.
//
//   dialer                                                         acceptor
//   Hello    magic, version, ticket, role, index, count, nonce, process ->
//                                                               <- Challenge  magic, version, nonce, process
//   Proof    MAC(key, "D", Hello, Challenge)                    ->
//                                                               <- Verdict  status, MAC(key, "A" status, Hello, Challenge);
//                                                                  where no key fits: what names the acceptor's job, or zero
//
// The dialer proves first. So an acceptor with several keys learns which key is meant, and a client without a key learns nothing.
// These four messages are the same in all protocol versions. Two ends of different versions authenticate each other all the same, and
// then both know beyond doubt which versions met. The number of the ticket stands in two fields that the first versions sent as zero and
// nobody read.
#pragma once

#include <optional>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/handles.hpp"
#include "net/wire.hpp"

namespace isthmus::net {

enum class Role : uint8_t { Control = 1, Data = 2, Rendezvous = 3 };

struct Hello {
  uint16_t version = kProtocolVersion;
  Role role = Role::Control;
  uint32_t index = 0;   // Data: number of the stream; Rendezvous: rank
  uint32_t count = 0;   // Data: streams in all; Rendezvous: world size
  uint32_t ticket = 0;  // Rendezvous with a ticket: the ticket's number, which says what key the dialer will prove
  Bytes16 nonce{}, process{};
};
struct Challenge {
  uint16_t version = kProtocolVersion;
  Bytes16 nonce{}, process{};
};
enum class Verdict : uint16_t { Welcome = 0, OtherVersion = 1, UnknownKey = 2 };

inline constexpr size_t kHelloBytes = 52, kChallengeBytes = 40, kProofBytes = 16, kVerdictBytes = 24;
static_assert(kHelloBytes + kProofBytes <= kMaxUnauthenticatedBytes);

ByteVector encode(const Hello &m);
ByteVector encode(const Challenge &m);
std::optional<Hello> parse_hello(std::span<const std::byte> bytes, std::string &why);
std::optional<Challenge> parse_challenge(std::span<const std::byte> bytes, std::string &why);

// The accepting side, without I/O. The caller feeds exactly wants() bytes, and sends what the acceptor puts into `reply`.
class Acceptor {
 public:
  enum class State { Hello, Proof, Unproved, Done, Refused };

  explicit Acceptor(const Bytes16 &process, uint16_t version = kProtocolVersion);
  size_t wants() const noexcept;  // 0: no further bytes are expected
  // False as soon as these bytes cannot become the expected message.
  bool plausible(std::span<const std::byte> beginning) const;
  void feed(std::span<const std::byte> bytes, ByteVector &reply);  // -> Proof, Unproved or Refused
  bool try_key(const Bytes16 &key, ByteVector &reply);             // Unproved: -> Done where the proof fits
  // Unproved: -> Refused. The reply tells the dialer so, and which job this process is for.
  void refuse(ByteVector &reply, const Bytes16 &job = {});
  State state() const noexcept { return state_; }
  const Hello &hello() const noexcept { return hello_; }  // authentic once Done
  const std::string &why() const noexcept { return why_; }

 private:
  State state_ = State::Hello;
  Hello hello_;
  Challenge challenge_;
  ByteVector transcript_;
  Bytes16 proof_{};
  std::string why_;
};

// Thrown where the acceptor does not know the dialer's key. The acceptor says who it is and which job it is for, and nothing proves the claims.
class KeyError final : public Error {
 public:
  KeyError(std::string text, const Bytes16 &process, const Bytes16 &job)
      : Error(Code::Auth, std::move(text)), process_(process), job_(job) {}
  const Bytes16 &process() const noexcept { return process_; }
  const Bytes16 &job() const noexcept { return job_; }  // zero: the acceptor has not said

 private:
  Bytes16 process_, job_;
};

struct Dialed {
  Bytes16 process{};     // of the acceptor
  uint16_t version = 0;  // of the acceptor
};
// The dialing side, on a connected socket, in the caller's thread. `to` names the other end in errors. Throws KeyError, Error(Auth) (the
// other end has no proof, or another key's), Error(Mismatch) (versions), Error(Timeout), Error(PeerLost) (closed inside the handshake).
Dialed dial(int fd, Hello hello, const Bytes16 &key, const std::string &to, Deadline deadline);

}  // namespace isthmus::net
