// Rendezvous: how processes that know nothing of each other first exchange blobs. An Exchange all-gathers opaque blobs among
// the ranks of one init; there are several kinds. Parsers are bounded; every wait has the deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/settings.hpp"
#include "bootstrap/mesh.hpp"

namespace isthmus::bootstrap {

using Blob = std::vector<std::byte>;

// How long a round waits for ranks that may never come: where all blobs that came begin with the same bytes, so many of them, and no
// other came for that time, it ends in Error(Timeout). alike 0: it waits for all.
struct Patience {
  uint32_t alike = 0;
  int64_t ns = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  // Collective. Returns all ranks' blobs by rank; a blob has at most 1 MiB. May be called several times. Throws
  // Error(Timeout) that names the missing ranks, Error(PeerLost), Error(Auth), Error(Mismatch) (two processes with one rank,
  // world sizes that differ, protocol versions that differ: the text names ranks and values).
  virtual std::vector<Blob> all_gather(const Blob &mine, Deadline deadline) = 0;
  // After Error(Timeout): what came of that round, by rank; empty blobs did not. Known of tickets alone.
  virtual std::vector<Blob> came() { return {}; }
  // Of the next round; where ranks differ, the longest holds. Known of tickets alone.
  virtual void be_patient(Patience) {}
};

// Rank 0 listens at `address` ("host:port") and serves inside its own all_gather calls; others connect, with retries. `key`
// authenticates. `job`: what names the job beside its key (job_name()); zero: nothing does. Of two ends that name one job and hold
// unlike keys, the one that connects gives up at once.
std::unique_ptr<Exchange> tcp_exchange(const std::string &address, int rank, int world, const Bytes16 &key,
                                       const Settings &settings, Deadline deadline, const Bytes16 &job = {});
// Over a caller's fixed-size all-gather (isthmus_exchange_fn's shape).
using ExchangeFn = int (*)(void *context, const void *send, void *recv, size_t bytes);
std::unique_ptr<Exchange> callback_exchange(ExchangeFn fn, void *context, int rank, int world);

// Unique ids: 128 bytes that hold the protocol version, the root's addresses and a random key. create_unique_id listens at
// once (on the interface of `settings`) and keeps the listener until rank 0's id_exchange takes it.
void create_unique_id(const Settings &settings, std::span<std::byte, 128> id);
std::unique_ptr<Exchange> id_exchange(std::span<const std::byte, 128> id, int rank, int world, const Settings &settings,
                                      Deadline deadline);

// Tickets: unique ids that are short, for an exchange that a thread of the process that made one serves until all ranks have left. So
// rank 0 may be in another process, and how many ranks there are is not known before. For one exchange each.
inline constexpr size_t kTicketBytes = 72;
void create_ticket(const Settings &settings, std::span<std::byte, kTicketBytes> ticket);
std::unique_ptr<Exchange> ticket_exchange(std::span<const std::byte, kTicketBytes> ticket, int rank, int world);

// A job key derived from what the launcher gave every process: ISTHMUS_JOB_KEY if set, else a hash of `parts` (job id,
// address, attempt).
Bytes16 derive_key(const Settings &settings, std::span<const std::string> parts);
// A hash of the parts, whatever ISTHMUS_JOB_KEY is. No secret.
Bytes16 job_name(std::span<const std::string> parts);

}  // namespace isthmus::bootstrap
