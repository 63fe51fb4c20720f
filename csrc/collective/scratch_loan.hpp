// The block of a device's memory that the operations of one communicator have for sums on their way. The operations use the block in the order
// of the stream, so one block serves all operations in flight. The block goes back to the device's scratch with the last of them.
//
// A block that was too small for a later operation stays lent: what was submitted before may still use the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/lock.hpp"
#include "collective/engine_names.hpp"
#include "process/device_scratch.hpp"

namespace isthmus::collective {

class ScratchLoan {
 public:
  ScratchLoan() = default;
  ~ScratchLoan();
  ScratchLoan(const ScratchLoan &) = delete;
  ScratchLoan &operator=(const ScratchLoan &) = delete;
  void set_source(std::shared_ptr<process::DeviceScratch> scratch) noexcept { scratch_ = std::move(scratch); }

  std::byte *lend(Operation &op, size_t bytes);  // null: no bytes are asked for
  void ended_well(Operation &op) noexcept;       // `op` has come to its end on the device

 private:
  void give_all() noexcept ISTHMUS_REQUIRES(mutex_);
  std::shared_ptr<process::DeviceScratch> scratch_;
  Mutex mutex_;
  process::DeviceScratch::Block lent_ ISTHMUS_GUARDED_BY(mutex_);
  std::vector<process::DeviceScratch::Block> outgrown_ ISTHMUS_GUARDED_BY(mutex_);
  uint32_t users_ ISTHMUS_GUARDED_BY(mutex_) = 0;  // operations in flight that have the block
};

}  // namespace isthmus::collective
