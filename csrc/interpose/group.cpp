// Groups of NCCL's and RCCL's calls: the real library's own group, and behind that group the calls that the bridge has put
// off.
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
  const int known = t.joined < ThreadState::kMostJoined ? t.joined : ThreadState::kMostJoined;
  for (int i = known; i-- > 0;)
    if (t.comms[i] == comm) return;
  if (known < ThreadState::kMostJoined) t.comms[known] = comm;
  t.joined = known + 1;
}

Result own_ncclGroupEnd() noexcept {
  static constinit std::atomic<Function *> slot{nullptr};
  Function *f = find(slot, "ncclGroupEnd");
  if (!f) return refuse("ncclGroupEnd");
  ThreadState &t = thread();
  if (t.inside > 0) return f();
  if (t.depth > 0) --t.depth;
  if (t.depth > 0 || !t.pending) return f();
  const Inside inside;
  return the_bridge()->group_end();
}

// Ends a group, too, but makes no call of the group. The real library says how long its part of the group would take.
Result own_ncclGroupSimulateEnd(void *info) noexcept {
  static constinit std::atomic<Simulate *> slot{nullptr};
  Simulate *f = find(slot, "ncclGroupSimulateEnd");
  if (!f) return refuse("ncclGroupSimulateEnd");
  ThreadState &t = thread();
  if (t.inside == 0 && t.depth > 0) --t.depth;
  const bool spans = t.inside == 0 && t.depth == 0 && t.pending;
  const Result r = f(info);
  if (!spans) return r;
  the_bridge()->group_forget();
  return refuse("ncclGroupSimulateEnd", true);
}

}  // namespace isthmus::interpose
