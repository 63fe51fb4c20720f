// PlanInbox has the plan data that comes to one rank over links. A plan's frames from each peer have numbers, in the order in which the plan
// takes them.
//
//   the executor: take(peer, bytes, ...)         the link: accept(header), then the payload, then received(header)
//   - the frame is here: it is copied              - a frame for which the executor waits goes straight to its place
//   - else the frame's place is noted, and the     - a frame for which the executor does not wait yet is put aside; a large frame is put
//     executor comes again                           aside after a moment, because the place may be noted meanwhile
//
// Flow credit bounds what may be put aside (p2p/flow_credit.hpp). PlanInbox knows no communicator.
//
// Thread rules: one thread at a time calls take(), with the right to execute. accept() and received() are called by a thread that holds a link's
// turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/lock.hpp"
#include "link/frame.hpp"

namespace isthmus::collective {

class PlanInbox {
 public:
  explicit PlanInbox(int ranks) : from_(static_cast<size_t>(ranks)) {}

  enum class Taken : uint8_t { Yes, Later, Wrong };
  // Takes the next frame from `peer`, of so many bytes, of the plan with that digest, to `to`. Later: the memory at `to` belongs to the link
  // until a later call with the same arguments says Yes. Wrong: another frame came; wrong() says so as well.
  // `sequence`: of the operation.
  Taken take(int peer, uint64_t bytes, uint64_t digest, std::byte *to, uint64_t sequence) noexcept;
  // The rank whose frame is not the frame for which operation `sequence` waits, as the last that has called take(); -1: none.
  int wrong(uint64_t sequence) const noexcept { return sequence == sequence_ ? wrong_.load(std::memory_order_acquire) : -1; }
  // As in link::FrameSink, for plan data from a rank of the communicator. `now_ns`: the time. `most`: bytes of the largest frame.
  link::Accept accept(const link::FrameHeader &h, int64_t since_ns, int64_t now_ns, uint64_t most, std::byte *&to);
  void received(const link::FrameHeader &h) noexcept;
  void forget() noexcept;  // after a failure, behind the links' cancel(): no place is noted any more

 private:
  struct Aside {
    uint64_t id, total, received, digest;
    std::unique_ptr<std::byte[]> data;
  };
  struct FramesFrom {
    uint64_t next = 0;  // number of the frame that the plan takes next
    std::deque<Aside> aside;
  };
  struct WantedFrame {
    int peer = -1;  // -1: none
    uint64_t id = 0, total = 0, digest = 0, received = 0;
    std::byte *to = nullptr;
    bool done = false;  // the whole frame has come
    bool is(const link::FrameHeader &h) const noexcept { return peer == static_cast<int>(h.source) && id == h.id; }
  };

  SpinLock lock_;
  std::vector<FramesFrom> from_ ISTHMUS_GUARDED_BY(lock_);
  WantedFrame wanted_ ISTHMUS_GUARDED_BY(lock_);
  std::atomic<int> wrong_{-1};
  uint64_t sequence_ = 0;  // of take(). By the executor
};

}  // namespace isthmus::collective
