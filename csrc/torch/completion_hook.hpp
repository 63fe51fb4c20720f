// The program's function that hears of every operation of a group, and how many operations have still to report to the
// function.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/lock.hpp"

namespace isthmus::torch_face {

class CompletionHook {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  explicit CompletionHook(Hook hook) : hook_(std::move(hook)) {}

  // What one operation has to report. Counts as pending as long as it is there, whatever becomes of the operation.
  class HookReport {
   public:
    HookReport(std::shared_ptr<CompletionHook> hook, c10d::OpType type);  // the operation begins now
    ~HookReport();
    HookReport(const HookReport &) = delete;
    HookReport &operator=(const HookReport &) = delete;
    // Calls the hook. A hook that raises is warned about: the operation has ended as it has.
    void ended(std::uint64_t sequence) const noexcept;

   private:
    const std::shared_ptr<CompletionHook> hook_;
    const c10d::OpType type_;
    const std::chrono::steady_clock::time_point begin_;
  };

  void wait(std::chrono::milliseconds most);  // until no report is pending

 private:
  const Hook hook_;
  Mutex mutex_;
  Condition none_;
  int pending_ ISTHMUS_GUARDED_BY(mutex_) = 0;
};

}  // namespace isthmus::torch_face
