#include "stream_place.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "errors.hpp"

namespace isthmus::torch_face {

bool may_go_on_beside(c10d::OpType type) noexcept {
  switch (type) {
    case c10d::OpType::BROADCAST:
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::REDUCE:
    case c10d::OpType::_ALLGATHER_BASE:
    case c10d::OpType::_REDUCE_SCATTER_BASE:
    case c10d::OpType::ALLTOALL_BASE: return true;
    default: return false;
  }
}

void StreamPlace::stands_on_host() {
  if (stream_) bad_argument("a coalescing block has operations on a device and on the host; give each a block of its own");
  on_host_ = true;
}

void StreamPlace::stands_on(c10::Stream stream) {
  if (on_host_) bad_argument("a coalescing block has operations on the host and on a device; give each a block of its own");
  if (stream_ && *stream_ != stream)
    bad_argument("the operations of one coalescing block are on different streams; give each stream a block of its own");
  stream_ = stream;
}

void StreamPlace::begins_behind(c10::Stream stream) {
  stands_on(stream);
  ordered_later_ = true;
}

void StreamPlace::submitted(const std::vector<at::Tensor> &kept, Staging &staging) {
  if (!stream_) return;
  copies_behind_ = staging.has_copies();
  for (const at::Tensor &tensor : kept)
    if (tensor.defined() && tensor.device() == stream_->device()) storages_.push_back(tensor.storage().getWeakStorageImpl());
  if (!ordered_later_) finish_on(*stream_, staging);
}

void StreamPlace::finish_on(c10::Stream stream, Staging &staging) {
  const c10::StreamGuard guard(stream);
  staging.finish();
  event_.emplace(stream.device_type());
  event_->record(stream);
}

c10::Stream StreamPlace::aside() const {
  return c10::impl::VirtualGuardImpl(stream_->device_type()).getStreamFromGlobalPool(stream_->device(), true);
}

void StreamPlace::order(c10::Stream later) const {
  if (event_ && (ordered_later_ || *stream_ != later)) event_->block(later);
}

void StreamPlace::end() {
  if (!event_) return;
  // Whichever thread this is, it must not come to know a device by ending an event.
  const c10::OptionalDeviceGuard guard(stream_->device());
  event_.reset();
}

}  // namespace isthmus::torch_face
