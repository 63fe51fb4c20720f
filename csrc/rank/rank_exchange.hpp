// All-gathers beside the operations, over the control connections (out_of_band.hpp). By such an all-gather the ranks that are left after a failure
// agree.
//
//   rank 3   mine ------\                           /-----> all blobs
//   rank 5   mine -------> rank 0, the lowest: all <------> all blobs
//   rank 7   mine ------/                           \-----> all blobs
//
// So n ranks send 2(n - 1) messages, and not n(n - 1). The lowest rank tells the others whom it waits for, so that their errors name that rank, and
// which rank has gone whose blob has not come.
//
// Thread rules: any thread.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "process/control_wire.hpp"
#include "rank/names.hpp"
#include "rank/out_of_band.hpp"

namespace isthmus::rank {

class RankExchange {
 public:
  using Bytes = std::vector<std::byte>;
  explicit RankExchange(RankCore &core) : core_(core), inbox_(core.id.world) {}

  // What all have contributed, in the order of `ranks`, also where the communicator has failed. Throws Error.
  //   `ranks`  take part: ascending, this rank among them, the same list on all of them
  //   `what`   names the exchange in errors: the same text on all ranks
  //   `turn`   of the exchanges of that name among these ranks: a rank meets the others in the same turn
  //   `mine`   at most OutOfBand::kMostBytes
  //   `look`   is called now and then while the exchange waits, and may throw
  // The exchange ends where this rank meanwhile aborts the communicator, again or not, or destroys the communicator. Where the exchange has failed
  // on one rank, the exchange may have succeeded on others.
  std::vector<Bytes> gather(const char *what, uint64_t turn, std::span<const int> ranks, std::span<const std::byte> mine,
                            Deadline deadline, const std::function<void()> &look = {});
  // The same, where all must contribute as many bytes. `all` gets them. Calls take the turns in their order; a rank that has given up and comes again
  // is in the turn that it has given up. The others may have ended that turn with what the rank had said then: the rank gets what they have got, also
  // in its own place, and the call returns false.
  bool all_gather(const char *what, std::span<const int> ranks, std::span<const std::byte> mine, std::byte *all,
                  Deadline deadline);
  // tell() tells those ranks, or some of them, and waits for no rank. hear() gives once what `from` has told about the same thing of the same ranks.
  void tell(const char *what, std::span<const int> ranks, std::span<const std::byte> mine) noexcept {
    tell(what, ranks, mine, ranks);
  }
  void tell(const char *what, std::span<const int> ranks, std::span<const std::byte> mine,
            std::span<const int> whom) noexcept;
  std::optional<Bytes> hear(const char *what, std::span<const int> ranks, int from);

  // A message has come for inbox(). What was said for a turn that is over here is dropped.
  void came(const process::OutOfBandHead &head, std::span<const std::byte> bytes);
  void forget(const char *what, std::span<const int> ranks);  // of what is told: nobody hears it any more

  void abort() noexcept { aborts_.fetch_add(1, std::memory_order_acq_rel); }            // the program aborts: exchanges end
  uint64_t aborts() const noexcept { return aborts_.load(std::memory_order_acquire); }  // so often it has aborted
  OutOfBand &inbox() noexcept { return inbox_; }

 private:
  struct Gather;
  // The turns of the exchanges of one subject, on this rank.
  struct ExchangeTurns {
    uint64_t next = 0;
    std::set<uint64_t> given_up, going_on;
    uint64_t take();
    uint64_t first_open() const;  // those before it are over
  };
  class ExchangeTurn;
  using About = OutOfBand::About;
  std::vector<Bytes> meet(Gather &gather, std::span<const std::byte> mine);
  void collect(Gather &gather);
  bool drop_given_up(Gather &gather);
  void receive(Gather &gather, size_t from);
  void send_all(const Gather &gather, std::span<const std::byte> mine);
  Bytes receive_all(Gather &gather);
  void say(int rank, About about, uint64_t number, process::OutOfBandHow how, std::span<const std::byte> bytes) noexcept;
  uint64_t next() noexcept { return number_.fetch_add(1, std::memory_order_relaxed) + 1; }
  void check_there(Gather &gather, int q, About about);
  void check_goes_on(const Gather &gather, int q);

  RankCore &core_;
  OutOfBand inbox_;
  std::atomic<uint64_t> number_{0}, aborts_{0};
  Guarded<std::unordered_map<uint64_t, ExchangeTurns>> turns_;  // by subject
};

}  // namespace isthmus::rank
