// Sends and receives. They are always asynchronous here: c10d waits on the Work.
#include "backend.hpp"
#include "coalescing.hpp"
#include "errors.hpp"

namespace isthmus::torch_face {

namespace {

const at::Tensor &single(const std::vector<at::Tensor> &tensors, const char *what, int tag) {
  if (tensors.size() != 1) bad_argument(c10::str(what, ": expected one tensor and got ", tensors.size()));
  if (tag < 0) bad_argument(c10::str(what, ": tag ", tag, " is negative"));
  return tensors.front();
}

}  // namespace

Backend::WorkPtr Backend::send(Tensors &tensors, int peer, int tag) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &tensor = single(tensors, "send", tag);
  check_peer(peer, "send to");
  BackendRequest request{c10d::OpType::SEND, "isthmus:send", c10d::kUnsetTimeout, true, tensors, {}};
  const Buffer buffer = request.staging.in(tensor, Use::move);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_send(comm_, buffer.data, buffer.count, buffer.dtype, peer, tag, call, work);
  });
}

Backend::WorkPtr Backend::recv(Tensors &tensors, int peer, int tag) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &tensor = single(tensors, "recv", tag);
  check_peer(peer, "recv from");
  BackendRequest request{c10d::OpType::RECV, "isthmus:recv", c10d::kUnsetTimeout, true, {}, tensors};
  request.waits_for_peer = true;
  const Buffer buffer = request.staging.out(tensor, Use::move);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_recv(comm_, buffer.data, buffer.count, buffer.dtype, peer, tag, nullptr, call, work);
  });
}

Backend::WorkPtr Backend::recvAnysource(Tensors &tensors, int tag) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &tensor = single(tensors, "recv from any rank", tag);
  BackendRequest request{c10d::OpType::RECVANYSOURCE, "isthmus:recv_any_source", c10d::kUnsetTimeout, true, {}, tensors};
  request.waits_for_peer = true;
  const Buffer buffer = request.staging.out(tensor, Use::move);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_recv(comm_, buffer.data, buffer.count, buffer.dtype, ISTHMUS_ANY_SOURCE, tag, nullptr, call, work);
  });
}

}  // namespace isthmus::torch_face
