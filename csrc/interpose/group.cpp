// Groups of NCCL's and RCCL's calls: the real library's own group, and behind that group the calls that the bridge has put
// off.
#include <stdlib.h>

#include "bridge.hpp"
#include "own.hpp"
#include "real.hpp"

namespace isthmus::interpose {
namespace {

using Function = Result();
using Simulate = Result(void *);
template <class F>
F *find(std::atomic<F *> &slot, const char *name) {
  if (F *f = slot.load(std::memory_order_acquire)) return f;
  auto *f = reinterpret_cast<F *>(look_up(name));
  if (f) slot.store(f, std::memory_order_release);
  return f;
}

void forget_joined(ThreadState &t) noexcept {
  if (!t.more) return;
  free(t.more);
  t.more = nullptr;
  t.joined = 0;
}

}  // namespace

Result own_ncclGroupStart() noexcept {
  static constinit std::atomic<Function *> slot{nullptr};
  Function *f = find(slot, "ncclGroupStart");
  if (!f) return refuse("ncclGroupStart");
  const Result r = f();
  if (ThreadState &t = thread(); r == kSuccess && t.inside == 0 && t.depth++ == 0) t.joined = 0;
  return r;
}

void join_group(ThreadState &t, Comm comm) noexcept {
  constexpr int kMost = ThreadState::kMostJoined, kFew = ThreadState::kFew;
  if (t.joined > kMost) return;
  for (int i = t.joined; i-- > 0;)
    if (t.comm(i) == comm) return;
  if (t.joined == kFew && !t.more) t.more = static_cast<void **>(malloc((kMost - kFew) * sizeof(void *)));
  if (t.joined == kMost || (t.joined >= kFew && !t.more)) {
    t.joined = kMost + 1;  // too many, or no memory: the bridge refuses to wait for such a group
    return;
  }
  (t.joined < kFew ? t.few[t.joined] : t.more[t.joined - kFew]) = comm;
  ++t.joined;
}

Result own_ncclGroupEnd() noexcept {
  static constinit std::atomic<Function *> slot{nullptr};
  Function *f = find(slot, "ncclGroupEnd");
  if (!f) return refuse("ncclGroupEnd");
  ThreadState &t = thread();
  if (t.inside > 0) return f();
  if (t.depth > 0) --t.depth;
  if (t.depth > 0 || !t.pending) {
    if (t.depth == 0) forget_joined(t);
    return f();
  }
  const Inside inside;
  const Result r = the_bridge()->group_end();
  forget_joined(t);
  return r;
}

// Ends a group, too, but makes no call of the group. The real library says how long its part of the group would take.
Result own_ncclGroupSimulateEnd(void *info) noexcept {
  static constinit std::atomic<Simulate *> slot{nullptr};
  Simulate *f = find(slot, "ncclGroupSimulateEnd");
  if (!f) return refuse("ncclGroupSimulateEnd");
  ThreadState &t = thread();
  if (t.inside == 0 && t.depth > 0) --t.depth;
  if (t.inside == 0 && t.depth == 0) forget_joined(t);
  const bool spans = t.inside == 0 && t.depth == 0 && t.pending;
  const Result r = f(info);
  if (!spans) return r;
  the_bridge()->group_forget();
  return refuse("ncclGroupSimulateEnd", true);
}

}  // namespace isthmus::interpose
