// Rendezvous: processes that know nothing of each other exchange their first blobs. An Exchange all-gathers opaque blobs among the ranks of
// one init. There are several kinds of exchange. Parsers are bounded. Every wait has the deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/settings.hpp"
#include "bootstrap/mesh.hpp"

namespace isthmus::bootstrap {

using Blob = std::vector<std::byte>;

// How long a round waits for ranks that may never come. Where all blobs that came begin with the same `alike` bytes, and no other blob came for
// `ns`, the round ends in Error(Timeout). alike 0: the round waits for all ranks.
struct Patience {
  uint32_t alike = 0;
  int64_t ns = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  // Collective. Returns the blobs of all ranks, by rank. A blob has at most 1 MiB. May be called several times. Throws
  // Error(Timeout) that names the missing ranks, Error(PeerLost), Error(Auth), Error(Mismatch): two processes with one rank, world
  // sizes that differ, or protocol versions that differ. The text names ranks and values.
  virtual std::vector<Blob> all_gather(const Blob &mine, Deadline deadline) = 0;
  // After Error(Timeout): the blobs of that round that came, by rank. An empty blob did not come. Only exchanges of tickets know.
  virtual std::vector<Blob> came() { return {}; }
  // What looks, from now on, whether a wait is in vain: not OK says why. Cheap; called in all_gather() alone. Only exchanges over a caller's
  // function ask, because the others see for themselves which rank has gone.
  virtual void watch(std::function<Status()>) {}  // NOLINT(performance-unnecessary-value-param): overriders keep it
  // Throws where a wait for another rank is in vain, because the making has failed elsewhere. For who waits outside all_gather(). Exchanges over
  // a caller's function do not know.
  virtual void look() {}
  // What the others hear where this rank gives up the next round: what has failed here before that round. False: they do not hear it, for this
  // exchange is not over TCP.
  virtual bool give_reason(const Status &) { return false; }
  // The patience of the next round. Where ranks differ, the longest holds. Only exchanges of tickets have one.
  virtual void be_patient(Patience) {}
};

// Rank 0 listens at `address` ("host:port") and serves inside its own calls of all_gather(). The other ranks connect, with retries. `key`
// authenticates. `job` names the job beside its key (job_name()); zero: nothing names the job. Where two ends name one job and hold
// unlike keys, the end that connects gives up at once.
std::unique_ptr<Exchange> tcp_exchange(const std::string &address, int rank, int world, const Bytes16 &key,
                                       const Settings &settings, Deadline deadline, const Bytes16 &job = {});
// Over a caller's all-gather of a fixed size, which has the shape of isthmus_exchange_fn.
using ExchangeFn = int (*)(void *context, const void *send, void *recv, size_t bytes);
std::unique_ptr<Exchange> callback_exchange(ExchangeFn fn, void *context, int rank, int world);
// Inside an ExchangeFn, on its thread: not OK where no other rank's blob is worth waiting for, and why. OK anywhere else.
Status watched_exchange();

// A unique id is 128 bytes: the protocol version, the root's addresses and a random key. create_unique_id() listens at once, on the interface of
// `settings`, and keeps the listener until rank 0's id_exchange() takes it.
void create_unique_id(const Settings &settings, std::span<std::byte, 128> id);
std::unique_ptr<Exchange> id_exchange(std::span<const std::byte, 128> id, int rank, int world, const Settings &settings,
                                      Deadline deadline);

// A ticket is a short unique id, for one exchange. One thread of the process that made tickets serves the exchanges of all of them. So rank 0 may
// be in another process, and the number of ranks need not be known before. A ticket is valid as long as its process lives. Who comes when its
// exchange is over is told so.
inline constexpr size_t kTicketBytes = 72;
void create_ticket(const Settings &settings, std::span<std::byte, kTicketBytes> ticket);
// In the process that made the ticket. `listener`: a listening socket of somebody else, to which ranks connect that do not come to the ticket's
// exchange. Where ranks are missing and somebody connects there, the exchange ends in Error(Timeout), which says so. Throws
// Error(Argument), Error(Unsupported): the kernel cannot say who connects.
void watch_listener(std::span<const std::byte, kTicketBytes> ticket, int listener);
std::unique_ptr<Exchange> ticket_exchange(std::span<const std::byte, kTicketBytes> ticket, int rank, int world);

// The job key, derived from what the launcher gave every process: ISTHMUS_JOB_KEY if set, else a hash of `parts` (job id,
// address, attempt).
Bytes16 derive_key(const Settings &settings, std::span<const std::string> parts);
// A hash of the parts, whatever ISTHMUS_JOB_KEY is. The name is no secret.
Bytes16 job_name(std::span<const std::string> parts);

}  // namespace isthmus::bootstrap
