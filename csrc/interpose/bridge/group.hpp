// Groups of calls, for every face: what is put off until the outermost group ends, and what happens there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "init.hpp"
#include "launch_batches.hpp"

namespace isthmus::bridge {

// What a thread called between the outermost start of a group and its end.
struct Pending {
  std::vector<std::shared_ptr<Init>> inits;
  Operations operations;
  // A call that is collective over a communicator: it is made when the group ends, on a thread that works on that one's
  // device.
  struct Deferred {
    CommPtr parent;
    std::function<Result()> act;
  };
  std::vector<Deferred> deferred;
  Result failure = kOk;       // the first one
  const char *why = nullptr;  // the text of that failure; null: there is none to be asked for
};

// The real library's group. It ends in any case.
class RealGroup {
 public:
  explicit RealGroup(Result (*function)()) noexcept : end_(function) {}
  ~RealGroup() { end(); }
  RealGroup(const RealGroup &) = delete;
  RealGroup &operator=(const RealGroup &) = delete;
  bool open() const noexcept { return end_ != nullptr; }
  Result end() {
    auto *f = std::exchange(end_, nullptr);
    return f ? f() : kOk;
  }

 private:
  Result (*end_)();
};

// The end of an outermost group. The steps:
// 1. Check the operations, where nothing must be made before them (GroupCheck).
// 2. Hold the census of every communicator that the group makes, all at once: ranks of other processes wait for each.
// 3. Make the real library's communicators in the real library's group, which is still open.
// 4. End the real library's group. Where something was refused, spoil that group first, so that nothing of it is launched.
//    Vendors whose groups cannot fail launch their part.
// 5. Make Isthmus' communicators, all at once, then the parts of communicators.
// 6. Launch Isthmus' operations.
// Nothing of Isthmus' part begins before the real library's part is on its way, nor where that failed.
class GroupEnd {
 public:
  GroupEnd(Face &face, Pending &pending, Result (*real_end)())
      : face_(face), pending_(pending), real_(real_end), batches_(face), first_(pending.failure), why_(pending.why) {}
  Result run();

 private:
  Result run_steps();
  void check_early();
  void hold_census();
  void make_theirs();
  Result give_up();
  void make_ours();
  void run_deferred();
  Result launch();

  void keep_first(Result r);
  Result worst(const std::vector<Result> &results) const noexcept;
  void tell_half(const std::string &what);  // the real library's part was launched, and Isthmus' part was not: `what` is why

  Face &face_;
  Pending &pending_;
  RealGroup real_;
  LaunchBatches batches_;
  Result first_;                             // failure
  const char *why_;                          // its text
  bool alone_ = false;                       // the group has operations only
  bool real_knows_ = false;                  // the failure is of a call of the real library, inside of its group
  std::vector<std::shared_ptr<Init>> ours_;  // that Isthmus makes
};

// Ends the outermost group of this thread, in which something is pending.
Result end_group(Face &face);

}  // namespace isthmus::bridge
