#include "collective/slot_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"

namespace isthmus::collective {
namespace {

constexpr int64_t kAskAgainNs = 5'000'000, kPatientNs = 50'000'000;

}  // namespace

void SlotMemory::fix(uint64_t bytes) {
  fixed_bytes_ = bytes;
  // No rank was told a fixed place that can be used. But an earlier communicator may have used the place, so the place stays a ring's.
  if (bytes == 0 && fixed_ != 0) core_.context->staging().give_fixed_ring(std::exchange(fixed_, 0), allocated_);
}

void SlotMemory::let_in(SlotAccess whom) noexcept {
  for (const std::span<std::byte> slots : guarded_)
    if (::mprotect(slots.data(), slots.size(), whom == SlotAccess::Host ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
      ISTHMUS_WARN("ISTHMUS_GUARD_SLOTS: the access to slots cannot be changed ({})", std::strerror(errno));
}

// An operation that has found no room asks again when other operations have given some back, or after a while.
bool SlotMemory::ask_again(Operation &op, int64_t now) noexcept {
  const uint64_t given_back = core_.context->staging().given_back();
  if (op.run.room.lacks && std::exchange(op.run.room.given_back, given_back) == given_back && now < op.run.room.ask_again_ns)
    return false;
  op.run.room.ask_again_ns = now + kAskAgainNs;
  return true;
}

// Slots that fit into half of the fixed place lie in its halves by turns, so an operation may fill some while the one before still ends. All ranks
// know from the number which half it is: the devices of others look there.
uint64_t SlotMemory::turn(uint64_t slots, uint64_t sequence) const noexcept {
  constexpr uint64_t kPage = 4096;
  const uint64_t half = fixed_bytes_ / 2 / kPage * kPage;
  return slots <= half && sequence % 2 != 0 ? half : 0;
}

// Other ranks of the process may have all the memory for just this operation, and wait for this rank's part in it.
bool SlotMemory::wants_reserve(const Operation &op) const noexcept {
  return reserve_ == Reserve::Closed && !op.plan->device.empty() && now_ns() - op.run.room.since_ns > kPatientNs;
}

// Memory is pinned here, which takes some 100 ms, once for a device.
void SlotMemory::open_reserve(Operation &op, DeviceExecutor &executor) {
  const link::Arena &arena = core_.context->arena();
  op.run.room.ask_again_ns = 0;
  reserve_ = Reserve::Refused;
  try {
    executor.arena().reserve =
        core_.device ? core_.context->devices().reserve_on(*core_.device.runtime, core_.device.number) : arena.base();
  } catch (const Error &e) {
    ISTHMUS_WARN("{}: no staging memory is free for it, and its device cannot have the reserve: {}", core_.describe(op),
                 e.text());
    return;
  }
  executor.arena().reserve_from = arena.reserve_offset();
  reserve_ = Reserve::Open;
  rings_.open_reserve();
  if (!core_.context->staging().note_lost(process::StagingBook::kReserve))
    ISTHMUS_WARN(
        "{}: operations in flight have all of the staging memory of the process, so it takes {} bytes more of host memory, "
        "once (a larger ISTHMUS_STAGING_BYTES has room for them without a wait)",
        core_.describe(op), arena.reserve_limit());
}

bool SlotMemory::take(Operation &op, uint64_t sequence) {
  const plan::Plan &p = *op.plan;
  const uint64_t given_back = core_.context->staging().given_back();
  const int64_t now = op.run.room.lacks ? now_ns() : 0;
  if (!ask_again(op, now)) return false;
  const bool may_open = reserve_ == Reserve::Closed && !p.device.empty();
  const uint64_t slots = p.slots * p.slot_bytes;
  const bool fixed = slots <= fixed_bytes_;
  const uint64_t scratch = p.device.empty() ? 0 : std::max<uint64_t>(p.slots, 1) * p.scratch_stride;
  if (fixed) {
    op.run.fixed_turn = turn(slots, sequence);
    op.run.ring = fixed_ + op.run.fixed_turn;
  }
  if (scratch == 0 && (fixed || slots == 0)) return true;
  // Throws where there is no room and no other operation would give any back.
  const auto taken = [&](bool others) {
    try {
      const Rings::Room room = rings_.take(fixed ? 0 : slots, scratch);
      if (!fixed) op.run.ring = room.slots;
      op.run.scratch = room.scratch;
      return op.run.lent = true;
    } catch (const Error &e) {
      if (e.code() != Code::Resource || !others) throw;
      return false;
    }
  };
  if (taken(true)) return true;
  const bool others = core_.context->staging().is_lent();
  core_.context->staging().give_idle();
  if (taken(others || may_open)) return true;
  // Ranks that lend in another order may each wait for memory that the other has. So slots may lie beyond the staging memory: only a device's
  // slots have to be pinned.
  if (op.run.room.lacks && p.device.empty() && now - op.run.room.since_ns > kPatientNs) {
    op.run.ring = rings_.take_beyond(slots).slots;
    op.run.lent = true;
    if (!core_.context->staging().note_lost(StagingBook::kBeyondStaging))
      ISTHMUS_WARN(
          "{}: its slots lie beyond the staging memory of the process, all of which operations in flight have; it holds for "
          "others like it (a larger ISTHMUS_STAGING_BYTES has room for them)",
          core_.describe(op));
    return true;
  }
  if (!std::exchange(op.run.room.lacks, true)) {
    op.run.room.given_back = given_back;
    op.run.room.since_ns = others ? now_ns() : 0;
    core_.context->staging().want_room(1);
    ISTHMUS_INFO("{}: it waits for staging memory that other operations have (ISTHMUS_STAGING_BYTES)", core_.describe(op));
  }
  return false;
}

void SlotMemory::give(Operation &op) noexcept {
  if (std::exchange(op.run.lent, false)) {
    rings_.end(op.sequence);
    core_.context->staging().room_given_back();
  }
  if (std::exchange(op.run.room.lacks, false)) core_.context->staging().want_room(-1);
}

SlotMemory::Rest SlotMemory::take_all() noexcept { return {rings_.take_all(), std::exchange(fixed_, 0), allocated_}; }

void SlotMemory::lose() noexcept {
  core_.context->staging().lose_rings(static_cast<int>(rings_.take_all().size()) + (fixed_ != 0));
  fixed_ = 0;
}

}  // namespace isthmus::collective
