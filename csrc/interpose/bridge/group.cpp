#include "group.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "in_parallel.hpp"
#include "launch_batches.hpp"

namespace isthmus::bridge {
namespace {

// The end of an outermost group. The steps:
// 1. Check the operations, where nothing must be made before them (GroupCheck).
// 2. Hold the census of every communicator that the group makes, all at once: ranks of other processes wait for each census.
// 3. Make the real library's communicators in the real library's group, which is still open.
// 4. End the real library's group. Where something was refused, spoil that group first, so that nothing of it is launched.
//    Vendors whose groups cannot fail launch their part.
// 5. Make Isthmus' communicators, all at once, then the parts of communicators.
// 6. Wait until the real library's part is on its streams, where the library says that work is in progress.
// 7. Launch Isthmus' operations.
// Nothing of Isthmus' part begins before the real library's part is on its way, nor where the real library's part has failed.
class GroupEnd {
 public:
  GroupEnd(Face &face, PendingGroup &pending, Result (*real_end)())
      : face_(face), pending_(pending), real_end_(real_end), batches_(face), first_(pending.failure), why_(pending.why) {}
  ~GroupEnd() { end_real(); }  // the real library's group ends in any case
  GroupEnd(const GroupEnd &) = delete;
  GroupEnd &operator=(const GroupEnd &) = delete;

  Result run() {
    try {
      return run_steps();
    } catch (const std::exception &e) {
      if (real_end_) face_.spoil_group();
      const bool launched = !face_.failure(end_real());
      const Result r = face_.thrown(e);
      pending_.inits.clear();
      why_ = face_.last_told();
      if (launched) tell_half(e.what());
      return r;
    }
  }

 private:
  Result run_steps() {
    batches_.take(std::move(pending_.operations));
    alone_ = pending_.inits.empty() && pending_.deferred.empty();
    if (first_ == kOk) check_early();
    if (first_ == kOk) hold_census();
    if (first_ == kOk) make_theirs();
    if (face_.failure(first_)) return give_up();
    if (face_.rules.group_wait && !batches_.empty()) wait_ = face_.rules.group_wait();
    keep_first(ended_ = end_real());
    pending_.inits.clear();  // the vendor's communicators have their handles now
    if (face_.failure(first_)) return first_;
    make_ours();
    run_deferred();
    if (!face_.failure(first_)) return launch();
    // A last error that has nothing to add stays as it is.
    if (!face_.rules.has_last_error || !batches_.empty()) tell_half("a communicator in it could not be made");
    return first_;
  }

  void check_early() {
    if (alone_ || face_.rules.group_check == GroupCheck::EarlyAndLate)
      keep_first(face_.failed(face_.rules.group_end, batches_.check(alone_)));
  }

  void hold_census() {
    auto &inits = pending_.inits;
    keep_first(worst(in_parallel(face_, inits.size(), [&](size_t n) { return inits[n]->arrive(); })));
    for (const auto &init : inits)
      if (Outcome &o = init->arrival.outcome; !o.ok()) o.text += others_of(*init);
  }

  // Why ranks may be missing: they wait for this group elsewhere. Empty: the group makes one communicator.
  std::string others_of(const Init &missed) const {
    constexpr size_t kNamed = 8;
    std::set<std::string> others;
    for (const auto &init : pending_.inits)
      if (const CensusArrival &a = init->arrival; std::memcmp(&a.tail, &missed.arrival.tail, sizeof a.tail) != 0)
        others.insert(init->full_name());
    if (others.empty()) return {};
    std::string text;
    size_t named = 0;
    for (const std::string &other : others)
      if (named++ < kNamed) text.append(text.empty() ? "'" : ", '").append(other).append("'");
    if (others.size() > kNamed) text += " and " + std::to_string(others.size() - kNamed) + " more";
    return ". The same group makes " + text +
           ", and makes nothing before all ranks of all its communicators have come. Ranks that make these one after the "
           "other wait for the group, and the group for them: make them in one group there as well";
  }

  void make_theirs() {
    if (pending_.inits.empty()) return;
    const DeviceGuard guard(face_.devices());
    for (auto &init : pending_.inits) {
      init->tell();
      face_.devices().enter(init->place);
      if (init->arrival.verdict == Verdict::Vendor) {
        const bool given_up = init->given_up();  // then the real library is not called
        const Result r = init->make_real();
        real_knows_ = real_knows_ || (face_.failure(r) && !given_up);
        keep_first(r);
      } else if (init->arrival.verdict == Verdict::Failed) {
        keep_first(face_.failed(init->call, init->arrival.outcome));
      } else {
        ours_.push_back(std::move(init));
      }
    }
  }

  // Something was refused, or failed, while the real library's group is open.
  Result give_up() {
    if (!real_knows_) face_.spoil_group();
    const bool launched = !face_.failure(end_real());
    pending_.inits.clear();
    if (launched) tell_half("something in it was refused");
    else if (!real_knows_)
      face_.tell_again(why_);  // the real library's last error is that of the call that spoiled its group
    return first_;
  }

  void make_ours() {
    if (ours_.empty()) return;
    const DeviceGuard guard(face_.devices());
    std::vector<std::shared_ptr<Init>> opened;
    for (auto &init : ours_) {
      if (const Result r = init->open(); r != kOk) keep_first(r);
      else opened.push_back(std::move(init));
    }
    const std::vector<Result> results = in_parallel(face_, opened.size(), [&](size_t n) {
      opened[n]->started = true;
      face_.devices().enter(opened[n]->place);
      return opened[n]->start();
    });
    keep_first(worst(results));
    for (size_t n = 0; n < opened.size(); ++n) {
      if (!opened[n]->started) opened[n]->not_started("there are not enough for all of the group");
      else if (face_.failure(first_) && results[n] == kOk) opened[n]->unmake();
    }
  }

  // Calls over one communicator are made one after the other: in parallel, the calls could come in another order on another
  // rank.
  void run_deferred() {
    if (pending_.deferred.empty()) return;
    const DeviceGuard guard(face_.devices());
    const auto &deferred = pending_.deferred;
    std::vector<std::vector<size_t>> by_parent;
    for (size_t n = 0; n < deferred.size(); ++n) {
      const auto same = [&](const auto &one) {
        return deferred[n].parent && deferred[one.front()].parent == deferred[n].parent;
      };
      const auto known = std::find_if(by_parent.begin(), by_parent.end(), same);
      if (known == by_parent.end()) by_parent.push_back({n});
      else known->push_back(n);
    }
    keep_first(worst(in_parallel(face_, by_parent.size(), [&](size_t parent) {
      face_.devices().enter(deferred[by_parent[parent].front()].place);
      Result first = kOk;
      for (const size_t n : by_parent[parent]) try {
          first = face_.worse(first, deferred[n].act());
        } catch (const std::exception &e) {
          first = face_.worse(first, face_.thrown(e));
        }  // the other ranks go on with the next call, so this rank does
      return first;
    })));
    pending_.deferred.clear();
  }

  Result launch() {
    const auto told = [&](Outcome o) {
      if (!o.ok()) o.text += batches_.text_of_half();
      return face_.failed(face_.rules.group_end, o);
    };
    if (wait_ && ended_ != kOk) {
      const Outcome o = wait_->wait([this] { return batches_.sound(); });
      if (o.vendors) return face_.failed(face_.rules.group_end, o);  // the real library's part
      if (!o.ok()) return told(o);
    }
    Outcome ready;
    if (!alone_) ready = batches_.check(true);
    else if (face_.rules.group_check == GroupCheck::EarlyAndLate) ready = batches_.prepare();
    if (!ready.ok()) return told(std::move(ready));
    if (!batches_.empty()) keep_first(worst(batches_.launch(told)));
    return first_;
  }

  void keep_first(Result r) {
    if (const Result before = std::exchange(first_, face_.worse(first_, r)); before != first_) why_ = face_.last_told();
  }

  Result worst(const std::vector<Result> &results) const noexcept {
    Result first = kOk;
    for (const Result r : results) first = face_.worse(first, r);
    return first;
  }

  // The real library's part was launched, and Isthmus' part was not: `what` is why.
  void tell_half(const std::string &what) {
    const std::string call = face_.rules.group_end;
    const std::string text = !face_.rules.has_last_error ? call + ": " + what : why_ ? std::string(why_) : call;
    face_.tell(text + batches_.text_of_half());
  }

  Result end_real() {
    auto *end = std::exchange(real_end_, nullptr);
    return end ? end() : kOk;
  }

  Face &face_;
  PendingGroup &pending_;
  Result (*real_end_)();  // null: the real library's group has ended
  LaunchBatches batches_;
  Result first_;                             // the first failure
  Result ended_ = kOk;                       // of the real library's group
  std::unique_ptr<GroupWait> wait_;          // null: nothing of Isthmus' waits for the real library's group
  const char *why_;                          // its text
  bool alone_ = false;                       // the group has operations only
  bool real_knows_ = false;                  // the failure is of a call of the real library, inside of its group
  std::vector<std::shared_ptr<Init>> ours_;  // that Isthmus makes
};

}  // namespace

Result end_group(Face &face) {
  const std::unique_ptr<PendingGroup> pending(face.take_pending());
  const char *const call = face.rules.group_end;
  auto *end = face.real<Result()>(call);
  return end ? GroupEnd(face, *pending, end).run() : face.lacks(call);
}

}  // namespace isthmus::bridge
