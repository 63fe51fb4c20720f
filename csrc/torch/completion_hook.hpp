// The program's function that hears of every operation of a group, one after the other, and how many operations have still to
// report to the function.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "base/lock.hpp"

namespace isthmus::torch_face {

class CompletionHook {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  using Clock = std::chrono::steady_clock;
  explicit CompletionHook(Hook hook) : hook_(std::move(hook)) {}

  // What one operation has to report. Counts as pending as long as it is there, whatever becomes of the operation.
  class HookReport {
   public:
    HookReport(std::shared_ptr<CompletionHook> hook, c10d::OpType type);  // the operation begins now
    ~HookReport();
    HookReport(const HookReport &) = delete;
    HookReport &operator=(const HookReport &) = delete;

   private:
    friend class CompletionHook;
    // Calls the hook. A hook that raises is warned about: the operation has ended as it has.
    void ended(std::uint64_t sequence, Clock::time_point end) const noexcept;
    const std::shared_ptr<CompletionHook> hook_;
    const c10d::OpType type_;
    const Clock::time_point begin_;
  };

  // The operation has ended now. A thread of the runner's calls the hook: the caller may hold a lock that the hook takes.
  static void tell(std::shared_ptr<HookReport> report, std::uint64_t sequence);
  void wait(std::chrono::milliseconds most);  // until no report is pending

 private:
  struct DueReport {
    std::shared_ptr<HookReport> report;
    std::uint64_t sequence;
    Clock::time_point end;
  };
  // Calls the hook for the one that ended first. The next one is another task: what has not begun when the runner stops is left.
  static void call_next(const std::shared_ptr<CompletionHook> &hook);

  const Hook hook_;
  Mutex mutex_;
  Condition none_;
  int pending_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  std::deque<DueReport> ended_ ISTHMUS_GUARDED_BY(mutex_);
  bool calls_ ISTHMUS_GUARDED_BY(mutex_) = false;  // a task of the runner is in call_next(), or will be
};

}  // namespace isthmus::torch_face
