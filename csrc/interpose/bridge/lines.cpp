#include "lines.hpp"

#include <algorithm>
#include <utility>

namespace isthmus::bridge {

using interpose::Result;

// Of each communicator one rank, and of one device, where all ranks have the program's order. Others would wait for each other, where calls
// wait at all.
void Lines::take(Operations operations) {
  std::vector<std::vector<CommPtr>> members;  // of each line, each once
  const auto fits = [](const CommPtr &one, const CommPtr &other) {
    const Traits &a = one->traits(), &b = other->traits();
    return (!one->blocks() && !other->blocks()) || (a.place.device == b.place.device && a.local_ranks != b.local_ranks);
  };
  for (auto &[comm, operation] : operations) {
    const auto has = [&, &mine = comm](const auto &line) { return std::find(line.begin(), line.end(), mine) != line.end(); };
    const auto takes = [&, &mine = comm](const auto &line) {
      return std::all_of(line.begin(), line.end(), [&](const CommPtr &other) { return fits(mine, other); });
    };
    auto line = std::find_if(members.begin(), members.end(), has);
    if (line == members.end()) {
      line = std::find_if(members.begin(), members.end(), takes);
      if (line == members.end()) {
        line = members.emplace(members.end());
        lines_.emplace_back();
      }
      line->push_back(comm);
    }
    lines_[static_cast<size_t>(line - members.begin())].emplace_back(std::move(comm), std::move(operation));
  }
}

Lines::~Lines() {
  if (stand_ins_.empty()) return;
  const Moved moved(devices_);
  for (const StandIn &s : stand_ins_) {
    devices_.enter(s.place);
    devices_.end_stream(s.ours);
  }
}

Outcome Lines::prepare() {
  for (Operations &line : lines_)
    for (auto &[comm, operation] : line)
      if (Outcome o = prepare_one_(*comm, operation); !o.ok()) return o;
  return {};
}

Outcome Lines::check(bool last) {
  if (Outcome o = prepare(); !o.ok()) return o;
  kept_ = last && lines_.size() == 1;
  if (lines_.empty()) return {};
  if (kept_) return recorded_.record(lines_[0]);
  const Moved moved(devices_);
  for (const Operations &line : lines_) {
    devices_.enter(line.front().first->traits().place);
    OperationGroup given_up;
    if (Outcome o = given_up.record(line); !o.ok()) return o;
  }
  return {};
}

std::vector<Result> Lines::launch(const std::function<Result(const Outcome &)> &told,
                                  Result (*thrown)(const std::exception &) noexcept) {
  if (kept_) return {told(recorded_.launch())};
  if (lines_.size() == 1) return {told(run_group(lines_[0]))};
  if (const Outcome o = stand_in(); !o.ok()) return {told(o)};
  std::vector<Result> results = at_once(
      door_, lines_.size(),
      [&](size_t n) {
        devices_.enter(lines_[n].front().first->traits().place);
        return told(run_group(lines_[n]));
      },
      thrown);
  if (const Outcome o = stand_back(); !o.ok()) results.push_back(told(o));
  return results;
}

Outcome Lines::stand_in() {
  const auto named_by_thread = [&](const auto &one) { return devices_.of_thread(one.second.stream); };
  const auto some = [&](const Operations &line) { return std::any_of(line.begin(), line.end(), named_by_thread); };
  if (std::none_of(lines_.begin(), lines_.end(), some)) return {};
  const Moved moved(devices_);
  for (Operations &line : lines_)
    for (auto &[comm, operation] : line) {
      if (!devices_.of_thread(operation.stream)) continue;
      const Place &place = comm->traits().place;
      const auto same = [&](const StandIn &s) { return s.place.device == place.device; };
      auto known = std::find_if(stand_ins_.begin(), stand_ins_.end(), same);
      if (known == stand_ins_.end()) {
        devices_.enter(place);
        StandIn made{place, operation.stream, nullptr};
        if (Outcome o = devices_.make_stream(&made.ours); !o.ok()) return o;
        known = stand_ins_.insert(known, made);
        if (Outcome o = devices_.order(made.theirs, made.ours); !o.ok()) return o;
      }
      operation.stream = known->ours;
    }
  return {};
}

Outcome Lines::stand_back() {
  if (stand_ins_.empty()) return {};
  const Moved moved(devices_);
  Outcome first;
  for (const StandIn &s : stand_ins_) {
    devices_.enter(s.place);
    if (Outcome o = devices_.order(s.ours, s.theirs); first.ok()) first = std::move(o);
  }
  return first;
}

}  // namespace isthmus::bridge
