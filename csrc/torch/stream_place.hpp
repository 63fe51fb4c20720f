// Where an operation stands: on host memory, or on a stream of a device. On a stream the operation begins behind the work
// that the stream holds, and later work of the stream runs behind the operation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <optional>
#include <vector>

#include "tensors.hpp"

namespace isthmus::torch_face {

// Operations that are one call of the library, and no group of calls: only those can be ordered later.
bool may_go_on_beside(c10d::OpType type) noexcept;

class StreamPlace {
 public:
  StreamPlace() = default;
  ~StreamPlace() { end(); }
  StreamPlace(const StreamPlace &) = delete;
  StreamPlace &operator=(const StreamPlace &) = delete;

  // Before submitted(). Every part of an operation stands on the same stream, or every part on the host; otherwise these
  // throw.
  void stands_on(c10::Stream stream);
  void begins_behind(
      c10::Stream stream);  // as stands_on(), but only an explicit order puts later work of a stream behind the operation
  void stands_on_host();
  const std::optional<c10::Stream> &stream() const noexcept { return stream_; }
  bool ordered_later() const noexcept { return ordered_later_; }

  // The operation was submitted: gives the stream the copies that belong to the operation, and marks the end behind them. Where
  // the order comes later, so do the copies: finish_on() a stream that is ordered behind the operation.
  void submitted(const std::vector<at::Tensor> &kept, Staging &staging);
  void finish_on(c10::Stream stream, Staging &staging);
  bool finished() const noexcept { return event_.has_value(); }
  c10::Stream aside() const;            // another stream of torch's on the device
  void order(c10::Stream later) const;  // `later` waits for that mark
  // Whether there are copies behind the operation. Its end is then the end of the copies: copied() asks, wait_for_copies()
  // waits.
  bool has_copies() const noexcept { return copies_behind_; }
  bool copied() const { return event_->query(); }
  void wait_for_copies() { event_->synchronize(); }
  const std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> &storages() const noexcept { return storages_; }

  void end();  // gives the event back

 private:
  bool on_host_ = false, ordered_later_ = false, copies_behind_ = false;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> event_;                                  // on the stream, behind the operation and its copies
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;  // of all tensors on the stream
};

}  // namespace isthmus::torch_face
