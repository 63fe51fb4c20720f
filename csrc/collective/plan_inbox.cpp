#include "collective/plan_inbox.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "base/copy.hpp"

namespace isthmus::collective {

PlanInbox::Taken PlanInbox::take(int peer, uint64_t bytes, uint64_t digest, std::byte *to, uint64_t sequence) noexcept {
  sequence_ = sequence;
  const Lock lock(lock_);
  FramesFrom &from = from_[static_cast<size_t>(peer)];
  if (wanted_.peer < 0) {
    const auto here = std::find_if(from.aside.begin(), from.aside.end(), [&](const Aside &a) { return a.id == from.next; });
    if (here == from.aside.end()) {
      wanted_ = {peer, from.next, bytes, digest, 0, to, false};
      return Taken::Later;
    }
    if (here->received < here->total) return Taken::Later;  // the frame still flows into memory of its own
    if (here->total != bytes || here->digest != digest) {
      wrong_.store(peer, std::memory_order_release);
      return Taken::Wrong;
    }
    copy_bytes(to, here->data.get(), bytes);
    from.aside.erase(here);
    ++from.next;
    return Taken::Yes;
  }
  ISTHMUS_ASSERT(wanted_.peer == peer && wanted_.id == from.next && wanted_.total == bytes && wanted_.to == to,
                 "the executor waits for one frame at a time, and asks for it again until it is there");
  if (!wanted_.done) return Taken::Later;
  wanted_ = {};
  ++from.next;
  return Taken::Yes;
}

link::Accept PlanInbox::accept(const link::FrameHeader &h, int64_t since_ns, int64_t now_ns, uint64_t most, std::byte *&to) {
  const Lock lock(lock_);
  if (wanted_.is(h) && !wanted_.done) {
    if (wanted_.digest != h.digest || wanted_.total != h.total) {
      wrong_.store(static_cast<int>(h.source), std::memory_order_release);
      return link::Accept::Drop;
    }
    to = wanted_.to + h.offset;
    return link::Accept::Take;
  }
  FramesFrom &from = from_[h.source];
  if (h.id < from.next) return link::Accept::Drop;  // the frame was taken already: the peer repeats itself
  for (Aside &a : from.aside)
    if (a.id == h.id) {
      if (a.total != h.total) return link::Accept::Drop;
      to = a.data.get() + h.offset;
      return link::Accept::Take;
    }
  // Small data is put aside at once. Large data stays in the link for a moment, so the data may go straight to its place. The data never stays
  // long: other communicators' frames may stand behind the data.
  constexpr uint64_t kSmall = 64 * 1024;
  constexpr int64_t kPatience = 1'000'000;
  if (h.total > kSmall && (since_ns == 0 || now_ns - since_ns < kPatience)) return link::Accept::Defer;
  if (h.total > most) return link::Accept::Drop;
  from.aside.push_back({h.id, h.total, 0, h.digest, std::make_unique_for_overwrite<std::byte[]>(h.total)});
  to = from.aside.back().data.get() + h.offset;
  return link::Accept::Take;
}

void PlanInbox::received(const link::FrameHeader &h) noexcept {
  const Lock lock(lock_);
  if (wanted_.is(h)) {
    wanted_.received += h.bytes;
    wanted_.done = wanted_.received >= wanted_.total;
    return;
  }
  for (Aside &a : from_[h.source].aside)
    if (a.id == h.id) a.received += h.bytes;
}

void PlanInbox::forget() noexcept {
  const Lock lock(lock_);
  wanted_ = {};
}

}  // namespace isthmus::collective
