// EarlyCopies decides which operations copy in while the operation before still ends (plan.hpp, entry rule), and makes the second stream wait for
// what such an operation has to wait for:
//
//   stream      go(N) ... copies out of N .............................. ended(N)  go(N+1)  copies out of N+1 ...
//   second      ... copies in of N   the user's event, go(N)   first copies in of N+1
//
// go(N) opens when this rank, and all ranks that share memory with it, have ended the operations before N. One of these had the slots of N+1 before.
//
// An operation of one chunk stands on the first stream alone, without the events between the two streams. Nothing comes early before it or behind it.
//
// Thread rules: the thread that submits.
#pragma once

#include <cstdint>

#include "collective/engine_names.hpp"
#include "collective/queued_work.hpp"

namespace isthmus::collective {

class EarlyCopies {
 public:
  explicit EarlyCopies(QueuedWork &work) noexcept : work_(work) {}

  // Whether the stages that say so stand on the second stream, of an operation of so many chunks: a single chunk has nothing to run beside. Asked
  // once, before its list is given.
  bool stands_beside(uint32_t chunks) noexcept;
  // Whether `op`, of which nothing was given to our streams but what stands before its list, comes early. If so, the second stream waits now.
  bool come(const Operation &op);
  void given(const Operation &op) noexcept;       // all of the list of `op` was given
  void forget() noexcept { last_.sequence = 0; }  // until the next operation was given, none comes early

 private:
  struct MemoryPart {
    uintptr_t begin = 0, end = 0;
    bool meets(MemoryPart o) const noexcept { return begin < o.end && o.begin < end; }
  };
  struct Memories {
    MemoryPart input, output, slots, scratch;
  };
  bool may(const Operation &op) const noexcept;
  Memories memories_of(const Operation &op) const noexcept;

  QueuedWork &work_;
  bool beside_ = false;  // of the operation that is being given
  struct {
    uint64_t sequence = 0;  // 0: nothing comes early behind it
    Memories memories;
  } last_;
};

}  // namespace isthmus::collective
