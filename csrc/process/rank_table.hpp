// The ranks of this process, by the index of their communicator. The index stands in the headers of frames and in control messages.
//
//   reserve() -> making() -> set() -> take() -> retire() -> [sweep() frees]
//
//   1. A rank that joins reserves an index. Frames for the index are dropped until the rank is set.
//   2. A rank that leaves is taken out of the table. Peers may still read its memory, so the memory is retired.
//   3. sweep() frees the memory and the index once no peer reads the memory any more.
//
// Thread rules. Any thread may call. `safe` is asked with a lock held, so `safe` must be short. `free_it` is called with
// sweeping_mutex_ alone, so that it must not sweep; it may give pages back to the kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/lock.hpp"
#include "process/local_rank.hpp"

namespace isthmus::process {

class RankTable {
 public:
  uint32_t reserve();
  void release(uint32_t index);  // of no rank
  void set(uint32_t index, std::shared_ptr<LocalRank> rank);
  std::shared_ptr<LocalRank> take(uint32_t index);  // the table has the rank no more. Null if there is none
  std::shared_ptr<LocalRank> at(uint32_t index) const;
  std::vector<std::shared_ptr<LocalRank>> all() const;
  // The rank of that communicator, or null.
  std::shared_ptr<LocalRank> at(uint32_t index, uint32_t epoch) const {
    auto rank = at(index);
    return rank && rank->epoch() == epoch ? rank : nullptr;
  }
  uint64_t next_serial() noexcept { return serial_.fetch_add(1, std::memory_order_relaxed) + 1; }  // of a communicator

  // For a rank that is still being made, until its index is released or its rank is set. The flag rises when another rank of the
  // communicator says that the communicator has failed (Control::Abort). A rank that waits inside a library does not hear of the failure
  // otherwise.
  std::shared_ptr<const std::atomic<bool>> making(uint32_t index, uint32_t epoch);
  void failed_while_making(uint32_t index, uint32_t epoch);

  // Memory of a rank that has left, which peers may still read. Once `safe` holds, sweep() calls `free_it` and releases the index. sweep()
  // runs at each tick and before a rank joins. `gone[rank]` rises when that rank says that it has left. Until the index is released,
  // messages for it are still understood. With the context the memory ends in any case.
  using Gone = std::shared_ptr<std::vector<std::atomic<bool>>>;
  void retire(uint32_t index, uint32_t epoch, Gone gone, std::function<bool()> safe, std::function<void()> free_it);
  void has_gone(uint32_t index, uint32_t epoch, uint32_t rank);
  void sweep() noexcept;
  int leaving() const;  // ranks that have left and whose memory is not free yet

 private:
  struct Joining {
    uint32_t index, epoch;
    std::shared_ptr<std::atomic<bool>> failed;
  };
  struct Retired {
    uint32_t index, epoch;
    Gone gone;
    std::function<bool()> safe;
    std::function<void()> free_it;
  };

  mutable Mutex mutex_;
  std::vector<std::shared_ptr<LocalRank>> ranks_ ISTHMUS_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_indices_ ISTHMUS_GUARDED_BY(mutex_);
  std::vector<Joining> joining_ ISTHMUS_GUARDED_BY(mutex_);
  std::atomic<uint64_t> serial_{0};

  // Taken before retired_mutex_, and held over system calls: only who makes a rank waits for it, and the control thread.
  Mutex sweeping_mutex_;
  mutable Mutex retired_mutex_;
  std::vector<Retired> retired_ ISTHMUS_GUARDED_BY(retired_mutex_);
  int freeing_ ISTHMUS_GUARDED_BY(retired_mutex_) = 0;  // taken out of retired_ by sweep(), and about to be free
};

}  // namespace isthmus::process
