// Rings has what a communicator borrows of the process's staging memory for its plans: slots and scratch. The slots are a ring, through which
// operations take turns. The communicator's device copies through the scratch, which has two places that operations take by turns where there is
// memory for them.
//
// The memory is kept from one operation to the next. While no operation has the memory, Rings gives it back for another communicator that finds
// no room. Rings knows no device and no peer: the owner says what a peer may still read.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/lock.hpp"
#include "link/arena.hpp"

namespace isthmus::collective {

class Rings {
 public:
  // `read(sequence)`: whether all ranks that share memory with this one have ended that operation. Any thread may call `read`, under the lock
  // here.
  Rings(link::Arena &arena, std::function<bool(uint64_t)> read) : arena_(arena), read_(std::move(read)) {}
  ~Rings();
  Rings(const Rings &) = delete;
  Rings &operator=(const Rings &) = delete;

  struct Room {  // offsets in the arena; 0: none
    uint64_t slots = 0, scratch = 0;
  };
  // Lends so many bytes of slots and of scratch to one operation. The memory stays where it is until end(). Throws Error(Resource) where there
  // is no room; nothing is lent then. Any thread.
  Room take(uint64_t slots, uint64_t scratch);
  // Lends slots beyond the staging memory, which no device uses. This is for an operation that would wait for ever, because the operations with
  // the room wait for that operation.
  Room take_beyond(uint64_t slots);
  // From now on take() lends of the arena's reserve too, where the staging memory has no room.
  void open_reserve() noexcept;
  // An operation that has taken some is over. For an operation with device work: the device has ended that work too.
  void end(uint64_t sequence) noexcept;
  // Gives all back, unless an operation has some, or a peer may still read some, or another thread uses the Rings just now.
  bool give_idle() noexcept;
  bool lent() const noexcept;  // an operation has some, or a peer may still read some
  // At the end of the communicator: the memory that the arena is still to get back. The caller sees to that from now on.
  std::vector<uint64_t> take_all() noexcept;

 private:
  struct ArenaPart {
    uint64_t offset = 0, bytes = 0;  // 0: none
    uint64_t made = 0;               // so many bytes from the begin on have pages
  };
  void give(ArenaPart &place) noexcept ISTHMUS_REQUIRES(mutex_);
  void outgrow(ArenaPart &place, bool idle) ISTHMUS_REQUIRES(mutex_);
  uint64_t allocate(uint64_t bytes) const ISTHMUS_REQUIRES(mutex_);
  ArenaPart grow(uint64_t need, uint64_t before) const ISTHMUS_REQUIRES(mutex_);
  void grow_slots(uint64_t need, bool idle) ISTHMUS_REQUIRES(mutex_);
  void grow_scratch(uint64_t need, bool idle) ISTHMUS_REQUIRES(mutex_);
  void make_pages(uint64_t upto) noexcept ISTHMUS_REQUIRES(mutex_);
  void give_all() noexcept ISTHMUS_REQUIRES(mutex_);

  link::Arena &arena_;
  const std::function<bool(uint64_t)> read_;
  mutable Mutex mutex_;
  ArenaPart ring_ ISTHMUS_GUARDED_BY(mutex_), scratch_ ISTHMUS_GUARDED_BY(mutex_);
  uint64_t turn_ ISTHMUS_GUARDED_BY(mutex_) = 0;          // where in the ring the next operation's slots are
  uint64_t scratch_turn_ ISTHMUS_GUARDED_BY(mutex_) = 0;  // where in the scratch the last operation's is
  uint32_t lent_ ISTHMUS_GUARDED_BY(mutex_) = 0;          // operations that have some of the memory
  uint64_t last_ ISTHMUS_GUARDED_BY(mutex_) = 0;          // the latest of these operations that has ended
  std::vector<uint64_t> old_ ISTHMUS_GUARDED_BY(mutex_);  // places that were outgrown while in use
  bool reserve_ ISTHMUS_GUARDED_BY(mutex_) = false;
};

}  // namespace isthmus::collective
