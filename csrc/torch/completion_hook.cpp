#include "completion_hook.hpp"

#include <c10/util/Exception.h>

#include <exception>

namespace isthmus::torch_face {

using Clock = std::chrono::steady_clock;

CompletionHook::HookReport::HookReport(std::shared_ptr<CompletionHook> hook, c10d::OpType type)
    : hook_(std::move(hook)), type_(type), begin_(Clock::now()) {
  const Lock lock(hook_->mutex_);
  ++hook_->pending_;
}

CompletionHook::HookReport::~HookReport() {
  const Lock lock(hook_->mutex_);
  if (--hook_->pending_ == 0) hook_->none_.notify_all();
}

void CompletionHook::HookReport::ended(std::uint64_t sequence) const noexcept {
  try {
    const auto end = Clock::now();
    hook_->hook_(std::make_shared<c10d::WorkInfo>(type_, sequence, begin_, end, end - begin_));
  } catch (const std::exception &e) { TORCH_WARN("isthmus: a completion hook failed: ", e.what()); }
}

void CompletionHook::wait(std::chrono::milliseconds most) {
  Lock lock(mutex_);
  none_.wait_for(lock, most, [this]() ISTHMUS_REQUIRES(mutex_) { return pending_ == 0; });
}

}  // namespace isthmus::torch_face
