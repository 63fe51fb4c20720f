// What a communicator borrows of the process's staging memory for its plans: slots (a ring of them, through which operations take turns) and
// scratch, which its device copies through. Kept from one operation to the next, and given back while no operation has it, for another
// communicator that finds no room. Knows no device and no peer: who may still read what, the owner says.
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
  // `read(sequence)`: whether all ranks that share memory with this one have ended that operation. Called under the lock here; any thread.
  Rings(link::Arena &arena, std::function<bool(uint64_t)> read) : arena_(arena), read_(std::move(read)) {}
  ~Rings();
  Rings(const Rings &) = delete;
  Rings &operator=(const Rings &) = delete;

  struct Room {  // offsets in the arena; 0: none
    uint64_t slots = 0, scratch = 0;
  };
  // For one operation, so many bytes of each; it stays where it is until end(). Throws Error(Resource), having lent nothing, where there is no
  // room. Any thread.
  Room take(uint64_t slots, uint64_t scratch);
  // The same of slots that no device uses, beyond the staging memory: for one that would wait for ever, for operations that wait for it.
  Room take_beyond(uint64_t slots);
  // An operation that has taken some is over. One with device work, only once the device has done with it.
  void end(uint64_t sequence) noexcept;
  // Gives all of it back, unless an operation has some of it or a peer may still read it, or somebody is at it just now.
  bool give_idle() noexcept;
  bool lent() const noexcept;  // an operation has some, or a peer may still read it
  // At the end of the communicator: what the arena is still to get back, now the caller's affair.
  std::vector<uint64_t> take_all() noexcept;

 private:
  struct Place {
    uint64_t offset = 0, bytes = 0;  // 0: none
  };
  void give(Place &place) noexcept ISTHMUS_REQUIRES(mutex_);
  void outgrow(Place &place, bool idle) ISTHMUS_REQUIRES(mutex_);
  Place grow(uint64_t need, uint64_t before) const;
  void grow_slots(uint64_t need, bool idle) ISTHMUS_REQUIRES(mutex_);
  void grow_scratch(uint64_t need, bool idle) ISTHMUS_REQUIRES(mutex_);
  void give_all() noexcept ISTHMUS_REQUIRES(mutex_);

  link::Arena &arena_;
  const std::function<bool(uint64_t)> read_;
  mutable Mutex mutex_;
  Place ring_ ISTHMUS_GUARDED_BY(mutex_), scratch_ ISTHMUS_GUARDED_BY(mutex_);
  uint64_t turn_ ISTHMUS_GUARDED_BY(mutex_) = 0;          // where in the ring the next operation's slots are
  uint32_t lent_ ISTHMUS_GUARDED_BY(mutex_) = 0;          // operations that have some of it
  uint64_t last_ ISTHMUS_GUARDED_BY(mutex_) = 0;          // the latest of those that have ended
  std::vector<uint64_t> old_ ISTHMUS_GUARDED_BY(mutex_);  // outgrown while they were in use
};

}  // namespace isthmus::collective
