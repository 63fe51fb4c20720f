// All-gathers beside the operations, over the control connections (out_of_band.hpp). By such an all-gather the ranks that are left after a failure
// agree.
//
// Thread rules: any thread.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rank/out_of_band.hpp"
#include "rank/names.hpp"

namespace isthmus::rank {

class RankExchange {
 public:
  explicit RankExchange(RankCore &core) : core_(core), inbox_(core.id.world) {}

  // All-gather of `mine`, at most OutOfBand::kMostBytes, also where the communicator has failed. Throws Error.
  //   `ranks`  take part: ascending, this rank among them, the same list on all of them
  //   `what`   names the exchange in errors: the same text on all ranks
  //   `all`    gets the bytes, in the order of `ranks`
  //   `look`   is called now and then while the exchange waits, and may throw
  // The exchange ends where this rank meanwhile aborts the communicator, again or not, or destroys the communicator. Where the exchange has failed
  // on one rank, the exchange may have succeeded on others.
  void all_gather(const char *what, std::span<const int> ranks, std::span<const std::byte> mine, std::byte *all,
                  Deadline deadline, const std::function<void()> &look = {});
  // tell() tells those ranks, and waits for no rank. hear() gives once what `from` has told the same ranks about the same thing.
  void tell(const char *what, std::span<const int> ranks, std::span<const std::byte> mine) noexcept;
  std::optional<std::vector<std::byte>> hear(const char *what, std::span<const int> ranks, int from);

  void forget(const char *what, std::span<const int> ranks);  // of what is told: nobody hears it any more

  void abort() noexcept { aborts_.fetch_add(1, std::memory_order_acq_rel); }            // the program aborts: exchanges end
  uint64_t aborts() const noexcept { return aborts_.load(std::memory_order_acquire); }  // so often it has aborted
  OutOfBand &inbox() noexcept { return inbox_; }

 private:
  struct Gather;
  void say(int rank, uint64_t about, uint64_t number, uint32_t given_up, std::span<const std::byte> bytes) noexcept;
  OutOfBand::Message receive(Gather &gather, size_t from);
  void check_there(const Gather &gather, int q);
  void check_goes_on(const Gather &gather, int q);

  RankCore &core_;
  OutOfBand inbox_;
  std::atomic<uint64_t> number_{0}, aborts_{0};
};

}  // namespace isthmus::rank
