// Groups of HCCL's calls: what is put off until the outermost HcclGroupEnd, and what happens there.
#include <algorithm>

#include "at_once.hpp"
#include "face_hccl.hpp"

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

Outcome settle(const Comm &comm, const Operation &o) {
  if (o.call != Call::Barrier) return {};
  const Moved moved(devices());
  devices().enter(comm.traits().place);
  return devices().wait(o.stream);
}

namespace {

using Operations = std::vector<std::pair<CommPtr, Operation>>;
// What one thread can do one after the other, though calls wait for the exchange: of each communicator one rank, and of one device, where
// all ranks have the program's order. Others would wait for each other.
std::vector<Operations> lines_of(Operations &all) {
  std::vector<Operations> lines;
  for (auto &[comm, operation] : all) {
    const Traits &mine = comm->traits();
    const auto fits = [&, &rank = comm](const Operations &line) {
      return std::all_of(line.begin(), line.end(), [&](const auto &other) {
        const Traits &theirs = other.first->traits();
        return other.first == rank || (theirs.place.device == mine.place.device && theirs.family != mine.family);
      });
    };
    const auto line = std::find_if(lines.begin(), lines.end(), fits);
    (line == lines.end() ? lines.emplace_back() : *line).emplace_back(std::move(comm), std::move(operation));
  }
  return lines;
}

Result first_of(const std::vector<Result> &results) {
  const auto failure = std::find_if(results.begin(), results.end(), [](Result r) { return r != kSuccess; });
  return failure == results.end() ? kSuccess : *failure;
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
  const auto all_at_once = [&](size_t count, const std::function<Result(size_t)> &act) {
    keep_first(first_of(at_once(door(), count, act, thrown)));
  };
  if (first == kSuccess)
    all_at_once(p->inits.size(), [&](size_t n) {
      meet(p->inits[n]->arrival);
      return kSuccess;
    });
  std::vector<Init *> ours;
  if (first == kSuccess && !p->inits.empty()) {
    const Moved moved(devices());
    for (const auto &i : p->inits) {
      tell(*i);
      devices().enter(i->place);
      if (i->arrival.verdict == Verdict::Vendor) keep_first(i->real());  // the real library's group is still open
      else if (i->arrival.verdict == Verdict::Failed) keep_first(failed(i->call, i->arrival.outcome));
      else ours.push_back(i.get());
    }
  }
  keep_first(group.end());
  // Nothing of ours begins before the real library's part is on its way, nor where that failed.
  if (first != kSuccess || (ours.empty() && p->operations.empty())) return first;
  const Moved moved(devices());
  all_at_once(ours.size(), [&](size_t n) {
    devices().enter(ours[n]->place);
    return build(*ours[n]);
  });
  p->inits.clear();
  if (first != kSuccess) return first;
  for (const auto &[comm, operation] : p->operations)
    if (const Outcome o = settle(*comm, operation); !o.ok()) return failed(kCall, o);
  const std::vector<Operations> lines = lines_of(p->operations);
  all_at_once(lines.size(), [&](size_t n) {
    devices().enter(lines[n].front().first->traits().place);
    return failed(kCall, run_group(lines[n]));
  });
  return first;
}

}  // namespace isthmus::bridge::hccl
