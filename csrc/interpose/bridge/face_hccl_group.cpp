// Groups of HCCL's calls: what is put off until the outermost HcclGroupEnd, and what happens there.
#include <algorithm>

#include "in_parallel.hpp"
#include "face_hccl.hpp"
#include "handles.hpp"
#include "launch_batches.hpp"

namespace isthmus::bridge::hccl {

using interpose::hccl::kSuccess;

bool in_group() noexcept { return door().thread()->depth > 0; }
Pending &pending() {
  interpose::Thread &t = *door().thread();
  if (!t.pending) t.pending = new Pending;
  return *static_cast<Pending *>(t.pending);
}
Result note(Result r) {
  if (r != kSuccess && in_group() && pending().failure == kSuccess) pending().failure = r;
  return r;
}

Outcome settle(const Comm &comm, Operation &o) {
  if (o.call != Call::Barrier) return {};
  const DeviceGuard guard(devices());
  devices().enter(comm.traits().place);
  return devices().wait(o.stream);
}

namespace {

Result first_of(const std::vector<Result> &results) {
  const auto failure = std::find_if(results.begin(), results.end(), [](Result r) { return r != kSuccess; });
  return failure == results.end() ? kSuccess : *failure;
}

// Of a group that failed the program gets none.
void unmake(const Init &i) {
  if (const CommPtr comm = take_back(std::exchange(*i.out, nullptr))) comm->abort();
}

}  // namespace

Result group_end() {
  constexpr const char *kCall = "HcclGroupEnd";
  const std::unique_ptr<Pending> p(static_cast<Pending *>(std::exchange(door().thread()->pending, nullptr)));
  auto *end = real<Result()>(kCall);
  if (!end) return lacks(kCall);
  RealGroup group(end);
  Result first = p->failure;
  const auto keep_first = [&](Result r) {
    if (first == kSuccess) first = r;
  };
  LaunchBatches batches(door(), devices(), settle);
  batches.take(std::move(p->operations));
  if (first == kSuccess) keep_first(failed(kCall, batches.check(p->inits.empty())));
  if (first == kSuccess)
    keep_first(first_of(in_parallel(
        door(), p->inits.size(),
        [&](size_t n) {
          arrive(*p->inits[n]);
          return kSuccess;
        },
        thrown)));
  std::vector<Init *> ours;
  if (first == kSuccess && !p->inits.empty()) {
    const DeviceGuard guard(devices());
    for (const auto &i : p->inits) {
      tell(*i);
      devices().enter(i->place);
      if (i->arrival.verdict == Verdict::Vendor) keep_first(i->real());  // the real library's group is still open
      else if (i->arrival.verdict == Verdict::Failed) keep_first(failed(i->call, i->arrival.outcome));
      else ours.push_back(i.get());
    }
  }
  // HCCL's groups do not fail: what it refuses is not in them, and the rest is launched. So is its part where ours was refused.
  const auto half = [&](Result r, const std::string &why) { return refused(r, kCall, why + batches.text_of_half()); };
  if (first != kSuccess) {
    const bool launched = group.end() == kSuccess;
    return launched ? half(first, "something in it was refused") : first;
  }
  // Nothing of ours begins before the real library's part is on its way, nor where that failed.
  if (keep_first(group.end()); first != kSuccess) return first;
  if (!ours.empty()) {
    const DeviceGuard guard(devices());
    const std::vector<Result> built = in_parallel(
        door(), ours.size(),
        [&](size_t n) {
          devices().enter(ours[n]->place);
          return build(*ours[n]);
        },
        thrown);
    if (keep_first(first_of(built)); first != kSuccess) {
      for (size_t n = 0; n < built.size(); ++n)
        if (built[n] == kSuccess) unmake(*ours[n]);
      return half(first, "a communicator in it could not be made");
    }
  }
  p->inits.clear();
  if (batches.empty()) return kSuccess;
  if (const Outcome o = batches.prepare(); !o.ok())
    return half(failed(kCall, o), o.text);  // the stream may have got HCCL's part
  return first_of(batches.launch([&](const Outcome &o) { return failed(kCall, o); }, thrown));
}

}  // namespace isthmus::bridge::hccl
