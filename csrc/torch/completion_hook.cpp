#include "completion_hook.hpp"

#include <c10/util/Exception.h>

#include <exception>

#include "completer.hpp"

namespace isthmus::torch_face {

CompletionHook::HookReport::HookReport(std::shared_ptr<CompletionHook> hook, c10d::OpType type)
    : hook_(std::move(hook)), type_(type), begin_(Clock::now()) {
  const Lock lock(hook_->mutex_);
  ++hook_->pending_;
}

CompletionHook::HookReport::~HookReport() {
  const Lock lock(hook_->mutex_);
  if (--hook_->pending_ == 0) hook_->none_.notify_all();
}

void CompletionHook::HookReport::ended(std::uint64_t sequence, Clock::time_point end) const noexcept {
  try {
    hook_->hook_(std::make_shared<c10d::WorkInfo>(type_, sequence, begin_, end, end - begin_));
  } catch (const std::exception &e) { TORCH_WARN("isthmus: a completion hook failed: ", e.what()); }
}

void CompletionHook::tell(std::shared_ptr<HookReport> report, std::uint64_t sequence) {
  const std::shared_ptr<CompletionHook> hook = report->hook_;
  {
    const Lock lock(hook->mutex_);
    hook->ended_.push_back({std::move(report), sequence, Clock::now()});
    if (std::exchange(hook->calls_, true)) return;
  }
  static_cast<void>(Completer::get().runner().push([hook] { call_next(hook); }));
}

void CompletionHook::call_next(const std::shared_ptr<CompletionHook> &hook) {
  DueReport next;
  {
    const Lock lock(hook->mutex_);
    next = std::move(hook->ended_.front());
    hook->ended_.pop_front();
  }
  next.report->ended(next.sequence, next.end);
  next.report.reset();
  {
    const Lock lock(hook->mutex_);
    if (hook->ended_.empty()) {
      hook->calls_ = false;
      return;
    }
  }
  static_cast<void>(Completer::get().runner().push([hook] { call_next(hook); }));
}

void CompletionHook::wait(std::chrono::milliseconds most) {
  Lock lock(mutex_);
  none_.wait_for(lock, most, [this]() ISTHMUS_REQUIRES(mutex_) { return pending_ == 0; });
}

}  // namespace isthmus::torch_face
