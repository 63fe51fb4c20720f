// SlotMemory says where the slots and the scratch of this rank's plans lie in the arena. Slots of up to a fixed size have a fixed place, which
// devices of other ranks reach. Longer slots, and scratch, are borrowed of the staging memory (Rings).
//
// Where the staging memory has no room, an operation waits for memory that other operations have been lent and will give back. Ranks of one
// process, or operations of several communicators, may each wait for memory that the other has. So after a while an operation takes other memory:
// beyond the staging memory where only processors use it, and of the arena's reserve where a device does, once the device reaches that.
//
// Thread rules: one thread at a time calls take() and give() of one operation. fix() and guard() are called before the first operation.
// give_idle() and lent() any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "collective/device_executor.hpp"
#include "collective/engine_names.hpp"
#include "collective/rings.hpp"

namespace isthmus::collective {

enum class SlotAccess : uint8_t { Host, Nobody };

class SlotMemory {
 public:
  // `fixed`, `fixed_bytes`: from StagingBook::take_fixed_ring(); 0: none. `read`: see Rings.
  SlotMemory(RankCore &core, uint64_t fixed, uint64_t fixed_bytes, std::function<bool(uint64_t)> read)
      : core_(core), rings_(core.context->arena(), std::move(read)), fixed_(fixed), allocated_(fixed_bytes) {}

  void fix(uint64_t bytes);  // all ranks that share memory have a ring of so many bytes at a fixed place; 0: they have none
  // The fixed place, for the next epoch. After let_go_fixed() it is no more this rank's.
  uint64_t fixed() const noexcept { return fixed_; }
  uint64_t fixed_room() const noexcept { return fixed_ != 0 ? allocated_ : 0; }
  void let_go_fixed() noexcept { fixed_ = fixed_bytes_ = 0; }
  // In operations that leave slots to devices, the memory of these slots is closed to this process (the setting GuardSlots).
  void guard(std::vector<std::span<std::byte>> slots) { guarded_ = std::move(slots); }
  void let_in(SlotAccess whom) noexcept;  // to guarded slots
  bool guards() const noexcept { return !guarded_.empty(); }

  // Gives an operation slots and, where its device copies through scratch, scratch: op.run.ring, op.run.scratch. False: there is no room now, but other
  // operations have been lent memory and will give it back. Throws Error(Resource) where there would be no room even then.
  // `sequence`: the number of the operation, which it may not have yet.
  bool take(Operation &op, uint64_t sequence);
  // After take() has said false: the operation has waited so long, or there would be no room without the reserve.
  bool wants_reserve(const Operation &op) const noexcept;
  // From now on the device of this rank reaches the reserve, of which take() lends too, or the log says why it cannot. `op` may ask at once.
  void open_reserve(Operation &op, DeviceExecutor &executor);
  void give(Operation &op) noexcept;                        // the operation has ended
  bool give_idle() noexcept { return rings_.give_idle(); }  // memory that no operation has, for another communicator
  bool lent() const noexcept { return rings_.lent(); }

  // The end of the communicator: the memory that the arena is still to get back. After lose() the memory stays with the device until the context
  // ends.
  struct Rest {
    std::vector<uint64_t> rings;
    uint64_t fixed = 0, fixed_bytes = 0;
  };
  Rest take_all() noexcept;
  void lose() noexcept;  // the device may still come to any of the memory

 private:
  bool ask_again(Operation &op, int64_t now) noexcept;
  uint64_t turn(uint64_t slots, uint64_t sequence) const noexcept;
  RankCore &core_;
  Rings rings_;
  uint64_t fixed_;
  const uint64_t allocated_;
  uint64_t fixed_bytes_ = 0;  // of the fixed place, the bytes that the other ranks have as well
  std::vector<std::span<std::byte>> guarded_;
  enum class Reserve : uint8_t { Closed, Open, Refused } reserve_ = Reserve::Closed;
};

}  // namespace isthmus::collective
