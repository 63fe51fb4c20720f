// Groups of HCCL's calls: what is put off until the outermost HcclGroupEnd, and what happens there.
#include <algorithm>

#include "at_once.hpp"
#include "face_hccl.hpp"
#include "handles.hpp"

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

Outcome settle_all(const std::vector<Operations> &lines) {
  for (const Operations &line : lines)
    for (const auto &[comm, operation] : line)
      if (Outcome o = settle(*comm, operation); !o.ok()) return o;
  return {};
}

// Whether they could begin. One line that needs nothing besides is kept as it is recorded; others are recorded again where they begin.
Outcome check(const std::vector<Operations> &lines, bool keeps, OperationGroup &kept) {
  if (lines.empty()) return {};
  if (Outcome o = settle_all(lines); !o.ok()) return o;
  const Moved moved(devices());
  for (const Operations &line : lines) {
    devices().enter(line.front().first->traits().place);
    OperationGroup given_up;
    if (Outcome o = (keeps ? kept : given_up).record(line); !o.ok()) return o;
  }
  return {};
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
  const std::vector<Operations> lines = lines_of(p->operations);
  const bool keeps = lines.size() == 1 && p->inits.empty();
  OperationGroup recorded;
  if (first == kSuccess) keep_first(failed(kCall, check(lines, keeps, recorded)));
  if (first == kSuccess)
    keep_first(first_of(at_once(
        door(), p->inits.size(),
        [&](size_t n) {
          meet(p->inits[n]->arrival);
          return kSuccess;
        },
        thrown)));
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
  // HCCL's groups do not fail: what it refuses is not in them, and the rest is launched. So is its part where ours was refused.
  const auto half = [&](Result r, const std::string &why) { return refused(r, kCall, why + text_of_half(door(), lines)); };
  if (first != kSuccess) {
    const bool launched = group.end() == kSuccess;
    return launched ? half(first, "something in it was refused") : first;
  }
  // Nothing of ours begins before the real library's part is on its way, nor where that failed.
  if (keep_first(group.end()); first != kSuccess) return first;
  if (!ours.empty()) {
    const Moved moved(devices());
    const std::vector<Result> built = at_once(
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
  if (lines.empty()) return kSuccess;
  if (const Outcome o = settle_all(lines); !o.ok())
    return half(failed(kCall, o), o.text);  // the stream may have got HCCL's part
  const Moved moved(devices());
  return first_of(at_once(
      door(), lines.size(),
      [&](size_t n) {
        devices().enter(lines[n].front().first->traits().place);
        return failed(kCall, keeps ? recorded.launch() : run_group(lines[n]));
      },
      thrown));
}

}  // namespace isthmus::bridge::hccl
