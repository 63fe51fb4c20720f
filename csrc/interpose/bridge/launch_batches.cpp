#include "launch_batches.hpp"

#include <algorithm>
#include <utility>

#include "in_parallel.hpp"

namespace isthmus::bridge {

// Two communicators fit into one batch:
// 1. where neither communicator blocks, so no call waits for the exchange; or
// 2. where both communicators work on one device, and are not ranks of one communicator.
// Otherwise the first call could wait for an exchange that only the second call would begin. Within case 2 every rank keeps
// the order of the program, so the calls of one batch meet each other's.
void LaunchBatches::take(BridgedCalls &&operations) {
  std::vector<std::vector<CommPtr>> members;  // of each batch, each once
  const auto fits = [](const CommPtr &one, const CommPtr &other) {
    const Traits &a = one->traits(), &b = other->traits();
    return (!one->blocks() && !other->blocks()) || (a.place.device == b.place.device && a.local_ranks != b.local_ranks);
  };
  for (auto &[comm, operation] : operations) {
    const auto has = [&, &mine = comm](const auto &batch) {
      return std::find(batch.begin(), batch.end(), mine) != batch.end();
    };
    const auto takes = [&, &mine = comm](const auto &batch) {
      return std::all_of(batch.begin(), batch.end(), [&](const CommPtr &other) { return fits(mine, other); });
    };
    auto batch = std::find_if(members.begin(), members.end(), has);
    if (batch == members.end()) {
      batch = std::find_if(members.begin(), members.end(), takes);
      if (batch == members.end()) {
        batch = members.emplace(members.end());
        batches_.emplace_back();
      }
      batch->push_back(comm);
    }
    batches_[static_cast<size_t>(batch - members.begin())].emplace_back(std::move(comm), std::move(operation));
  }
}

LaunchBatches::~LaunchBatches() {
  if (stand_ins_.empty()) return;
  const DeviceGuard guard(devices_);
  for (const StandIn &s : stand_ins_) {
    devices_.enter(s.place);
    devices_.end_stream(s.ours);
  }
}

Outcome LaunchBatches::sound() const {
  for (const BridgedCalls &batch : batches_)
    for (const auto &one : batch)
      if (Outcome o = one.first->status(); !o.ok()) return o;
  return {};
}

Outcome LaunchBatches::prepare() {
  for (BridgedCalls &batch : batches_)
    for (auto &[comm, operation] : batch)
      if (Outcome o = face_.prepare(*comm, operation); !o.ok()) return o;
  return {};
}

Outcome LaunchBatches::check(bool last) {
  if (Outcome o = prepare(); !o.ok()) return o;
  kept_ = last && batches_.size() == 1;
  if (batches_.empty()) return {};
  if (kept_) return recorded_.record(batches_[0]);
  const DeviceGuard guard(devices_);
  for (const BridgedCalls &batch : batches_) {
    devices_.enter(batch.front().first->traits().place);
    OperationGroup given_up;
    if (Outcome o = given_up.record(batch); !o.ok()) return o;
  }
  return {};
}

std::vector<Result> LaunchBatches::launch(const std::function<Result(const Outcome &)> &told) {
  if (kept_) return {told(recorded_.launch())};
  if (batches_.size() == 1) return {told(run_group(batches_[0]))};
  if (const Outcome o = stand_in(); !o.ok()) return {told(o)};
  std::vector<Result> results = in_parallel(face_, batches_.size(), [&](size_t n) {
    devices_.enter(batches_[n].front().first->traits().place);
    return told(run_group(batches_[n]));
  });
  if (const Outcome o = stand_back(); !o.ok()) results.push_back(told(o));
  return results;
}

Outcome LaunchBatches::stand_in() {
  const auto named_by_thread = [&](const auto &one) { return devices_.of_thread(one.second.stream); };
  const auto some = [&](const BridgedCalls &batch) { return std::any_of(batch.begin(), batch.end(), named_by_thread); };
  if (std::none_of(batches_.begin(), batches_.end(), some)) return {};
  const DeviceGuard guard(devices_);
  for (BridgedCalls &batch : batches_)
    for (auto &[comm, operation] : batch) {
      if (!devices_.of_thread(operation.stream)) continue;
      const DevicePlace &place = comm->traits().place;
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

Outcome LaunchBatches::stand_back() {
  if (stand_ins_.empty()) return {};
  const DeviceGuard guard(devices_);
  Outcome first;
  for (const StandIn &s : stand_ins_) {
    devices_.enter(s.place);
    if (Outcome o = devices_.order(s.ours, s.theirs); first.ok()) first = std::move(o);
  }
  return first;
}

std::string LaunchBatches::text_of_half() const {
  std::vector<std::string> names;
  for (const BridgedCalls &batch : batches_)
    for (const auto &[comm, operation] : batch) {
      const std::string name = "'" + comm->traits().name + "'";
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  std::string text = " (of the group nothing was launched on ";
  for (const std::string &name : names) text += (&name == &names.front() ? "" : ", ") + name;
  if (names.empty()) text += "communicators that span vendors";
  return text + "; what it has on communicators of " + face_.door().name + "'s own was)";
}

}  // namespace isthmus::bridge
