#include "collective/stream_ties.hpp"

namespace isthmus::collective {

void StreamTies::make_second(device::Runtime &runtime, int device) {
  forth_ = runtime.make_event(device);
  back_ = runtime.make_event(device);
}

device::Stream &StreamTies::user(device::Runtime &runtime, int device, void *handle) {
  // The events first: where making one fails, the next call makes it.
  if (!before_) before_ = runtime.make_event(device);
  if (!after_) after_ = runtime.make_event(device);
  if (!user_ || user_->handle() != handle) user_ = runtime.adopt(device, handle);
  return *user_;
}

void StreamTies::behind_user(device::Stream &ours) {
  before_->record(*user_);
  before_->hold(ours);
}

void StreamTies::behind_default(device::Runtime &runtime, device::Stream &ours) {
  if (!before_) before_ = runtime.make_event(ours.device());
  runtime.behind_default(ours, *before_);
}

bool StreamTies::also(device::Stream &second) {
  if (before_) before_->hold(second);
  return before_ != nullptr;
}

void StreamTies::user_behind(device::Stream &ours) {
  after_->record(ours);
  after_->hold(*user_);
}

void StreamTies::fork(device::Stream &first, device::Stream &second) {
  forth_->record(first);
  forth_->hold(second);
}

void StreamTies::rejoin(device::Stream &first, device::Stream *second) {
  if (!parted_) return;
  back_->record(*second);
  back_->hold(first);
  parted_ = false;
}

}  // namespace isthmus::collective
