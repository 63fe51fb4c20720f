#include "collective/scratch_loan.hpp"

namespace isthmus::collective {

ScratchLoan::~ScratchLoan() {
  if (!scratch_) return;
  const Lock lock(mutex_);
  give_all();
}

void ScratchLoan::give_all() noexcept {
  scratch_->give(std::exchange(lent_, {}));
  for (const process::DeviceScratch::Block &b : outgrown_) scratch_->give(b);
  outgrown_.clear();
}

std::byte *ScratchLoan::lend(Operation &op, size_t bytes) {
  if (bytes == 0) return nullptr;
  {
    const Lock lock(mutex_);
    ++users_;
    op.run.on_device = true;
    if (lent_.bytes >= bytes) return static_cast<std::byte *>(lent_.memory);
  }
  try {
    {
      const Lock lock(mutex_);
      outgrown_.reserve(outgrown_.size() + 1);  // before there is a block that would be lost
    }
    const process::DeviceScratch::Block more = scratch_->take(bytes);
    const Lock lock(mutex_);
    if (lent_.memory) outgrown_.push_back(lent_);
    lent_ = more;
    return static_cast<std::byte *>(more.memory);
  } catch (...) {
    ended_well(op);
    throw;
  }
}

void ScratchLoan::ended_well(Operation &op) noexcept {
  if (!std::exchange(op.run.on_device, false)) return;
  const Lock lock(mutex_);
  if (--users_ == 0) give_all();
}

}  // namespace isthmus::collective
