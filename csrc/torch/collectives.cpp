// Collectives on single tensors.
#include "backend.hpp"
#include "coalescing.hpp"
#include "errors.hpp"
#include "versions.hpp"

#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace isthmus::torch_face {

namespace {

at::Tensor &only(std::vector<at::Tensor> &tensors, const char *what) {
  if (tensors.size() != 1) bad_argument(c10::str(what, ": expected one tensor and got ", tensors.size()));
  check_tensor(tensors.front());
  return tensors.front();
}

void check_pair(const char *what, const at::Tensor &large, const at::Tensor &small, int size) {
  check_tensor(large);
  check_tensor(small);
  if (large.scalar_type() != small.scalar_type()) {
    bad_argument(
        c10::str(what, ": input and output have different dtypes, ", large.scalar_type(), " and ", small.scalar_type()));
  }
  if (large.numel() != small.numel() * size) {
    bad_argument(c10::str(what, ": the larger tensor has ", large.numel(), " elements and must have ", size, " times the ",
                          small.numel(), " of the smaller"));
  }
}

void check_lists(const char *what, const std::vector<at::Tensor> &outputs, const std::vector<at::Tensor> &inputs) {
  if (outputs.size() != inputs.size()) {
    bad_argument(c10::str(what, ": ", inputs.size(), " inputs and ", outputs.size(), " outputs"));
  }
}

}  // namespace

Backend::WorkPtr Backend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &tensor = only(tensors, "broadcast");
  const int root = checked_root(opts.rootRank);
  BackendRequest request{c10d::OpType::BROADCAST, "isthmus:broadcast", opts.timeout, opts.asyncOp, {}, tensors};
  const Buffer buffer = rank_ == root ? request.staging.in(tensor, Use::move) : request.staging.out(tensor, Use::move);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_broadcast(comm_, buffer.data, buffer.data, buffer.count, buffer.dtype, root, call, work);
  });
}

Backend::WorkPtr Backend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &tensor = only(tensors, "all_reduce");
  const isthmus_redop op = reduction(opts.reduceOp);
  BackendRequest request{c10d::OpType::ALLREDUCE,     "isthmus:all_reduce", opts.timeout, opts.asyncOp, {}, tensors,
                         premul_factor(opts.reduceOp)};
  const Buffer buffer = request.staging.inout(tensor, Use::reduce);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_all_reduce(comm_, buffer.data, buffer.data, buffer.count, buffer.dtype, op, call, work);
  });
}

Backend::WorkPtr Backend::allreduce_sparse(Tensors &, const c10d::AllreduceOptions &) {
  const coalescing::CallInBlock in_block;
  raise(ISTHMUS_ERR_UNSUPPORTED,
        "sparse tensors are not carried; all_reduce tensor.to_dense(), or gather indices and values");
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &opts) {
  const coalescing::CallInBlock in_block;
  const isthmus_redop op = reduction(opts.reduceOp);
  BackendRequest request{
      c10d::OpType::ALLREDUCE_COALESCED, "isthmus:all_reduce_coalesced", opts.timeout, opts.asyncOp, {}, tensors,
      premul_factor(opts.reduceOp)};
  std::vector<Buffer> buffers;
  for (const at::Tensor &tensor : tensors) buffers.push_back(request.staging.inout(tensor, Use::reduce));
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return grouped(work, [&] {
      isthmus_result result = ISTHMUS_OK;
      for (const Buffer &b : buffers) {
        if (result == ISTHMUS_OK) result = isthmus_all_reduce(comm_, b.data, b.data, b.count, b.dtype, op, call, nullptr);
      }
      return result;
    });
  });
}

Backend::WorkPtr Backend::reduce(Tensors &tensors, const c10d::ReduceOptions &opts) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &tensor = only(tensors, "reduce");
  const int root = checked_root(opts.rootRank);
  const isthmus_redop op = reduction(opts.reduceOp);
  BackendRequest request{c10d::OpType::REDUCE,        "isthmus:reduce", opts.timeout, opts.asyncOp, {}, tensors,
                         premul_factor(opts.reduceOp)};
  const Buffer buffer = rank_ == root ? request.staging.inout(tensor, Use::reduce) : request.staging.in(tensor, Use::reduce);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_reduce(comm_, buffer.data, buffer.data, buffer.count, buffer.dtype, op, root, call, work);
  });
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &opts) {
  const coalescing::CallInBlock in_block;
  check_pair("all_gather_into_tensor", output, input, size_);
  BackendRequest request{
      c10d::OpType::_ALLGATHER_BASE, "isthmus:all_gather_into_tensor", opts.timeout, opts.asyncOp, {input}, {output}};
  const Buffer in = request.staging.in(input, Use::move), out = request.staging.out(output, Use::move);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_all_gather(comm_, in.data, out.data, in.count, in.dtype, call, work);
  });
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                          const c10d::AllgatherOptions &opts) {
  const coalescing::CallInBlock in_block;
  check_lists("all_gather_into_tensor_coalesced", outputs, inputs);
  if (inputs.size() == 1) return _allgather_base(outputs.front(), inputs.front(), opts);
  BackendRequest request{
      c10d::OpType::COALESCED, "isthmus:all_gather_into_tensor_coalesced", opts.timeout, opts.asyncOp, inputs, outputs};
  std::vector<Buffer> in, out;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_pair("all_gather_into_tensor_coalesced", outputs[i], inputs[i], size_);
    in.push_back(request.staging.in(inputs[i], Use::move));
    out.push_back(request.staging.out(outputs[i], Use::move));
  }
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return grouped(work, [&] {
      isthmus_result result = ISTHMUS_OK;
      for (std::size_t i = 0; i < in.size() && result == ISTHMUS_OK; ++i) {
        result = isthmus_all_gather(comm_, in[i].data, out[i].data, in[i].count, in[i].dtype, call, nullptr);
      }
      return result;
    });
  });
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                               const c10d::ReduceScatterOptions &opts) {
  const coalescing::CallInBlock in_block;
  check_pair("reduce_scatter_tensor", input, output, size_);
  const isthmus_redop op = reduction(opts.reduceOp);
  BackendRequest request{
      c10d::OpType::_REDUCE_SCATTER_BASE, "isthmus:reduce_scatter_tensor", opts.timeout, opts.asyncOp, {input}, {output},
      premul_factor(opts.reduceOp)};
  const Buffer in = request.staging.in(input, Use::reduce), out = request.staging.out(output, Use::reduce);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_reduce_scatter(comm_, in.data, out.data, out.count, out.dtype, op, call, work);
  });
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                          const c10d::ReduceScatterOptions &opts) {
  const coalescing::CallInBlock in_block;
  check_lists("reduce_scatter_tensor_coalesced", outputs, inputs);
  if (inputs.size() == 1) return _reduce_scatter_base(outputs.front(), inputs.front(), opts);
  const isthmus_redop op = reduction(opts.reduceOp);
  BackendRequest request{
      kReduceScatterTensorCoalesced, "isthmus:reduce_scatter_tensor_coalesced", opts.timeout, opts.asyncOp, inputs, outputs,
      premul_factor(opts.reduceOp)};
  std::vector<Buffer> in, out;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_pair("reduce_scatter_tensor_coalesced", inputs[i], outputs[i], size_);
    in.push_back(request.staging.in(inputs[i], Use::reduce));
    out.push_back(request.staging.out(outputs[i], Use::reduce));
  }
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return grouped(work, [&] {
      isthmus_result result = ISTHMUS_OK;
      for (std::size_t i = 0; i < in.size() && result == ISTHMUS_OK; ++i) {
        result = isthmus_reduce_scatter(comm_, in[i].data, out[i].data, out[i].count, out[i].dtype, op, call, nullptr);
      }
      return result;
    });
  });
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                                        std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &opts) {
  const coalescing::CallInBlock in_block;
  check_tensor(input);
  check_tensor(output);
  if (input.scalar_type() != output.scalar_type()) {
    bad_argument(c10::str("all_to_all_single: input and output have different dtypes, ", input.scalar_type(), " and ",
                          output.scalar_type()));
  }
  c10d::checkSplitSizes(input_splits, input, size_);
  c10d::checkSplitSizes(output_splits, output, size_);
  BackendRequest request{
      c10d::OpType::ALLTOALL_BASE, "isthmus:all_to_all_single", opts.timeout, opts.asyncOp, {input}, {output}};
  const Buffer in = request.staging.in(input, Use::move), out = request.staging.out(output, Use::move);
  const auto world = static_cast<std::uint64_t>(size_);
  if (input_splits.empty() && output_splits.empty() && in.count != out.count) {
    bad_argument(c10::str("all_to_all_single without split sizes: input has ", input.numel(), " elements and output ",
                          output.numel()));
  }
  // All ranks have to make the same call. A rank whose own load is even, or that has written no sizes, does not know the
  // others' loads.
  const auto counts = [&](const at::Tensor &tensor, const Buffer &buffer, const std::vector<int64_t> &splits) {
    if (splits.empty()) return std::vector<std::uint64_t>(world, buffer.count / world);
    const std::uint64_t row = tensor.size(0) ? buffer.count / static_cast<std::uint64_t>(tensor.size(0)) : 0;
    std::vector<std::uint64_t> result;
    for (const int64_t split : splits) result.push_back(static_cast<std::uint64_t>(split) * row);
    return result;
  };
  const auto sent = request.staging.array(counts(input, in, input_splits));
  const auto received = request.staging.array(counts(output, out, output_splits));
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_all_to_all_v(comm_, in.data, sent.data(), nullptr, out.data, received.data(), nullptr, in.dtype, call,
                                work);
  });
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions &opts) {
  const coalescing::CallInBlock in_block;
  return submit({c10d::OpType::BARRIER, "isthmus:barrier", opts.timeout, opts.asyncOp, {}, {}},
                [&](const isthmus_call *call, isthmus_work_t *work) { return isthmus_barrier(comm_, call, work); });
}

void Backend::monitoredBarrier(const c10d::BarrierOptions &opts, bool /*wait_all_ranks*/) {
  const coalescing::CallInBlock in_block;
  // The library's own error names every rank that is missing. So the two forms of the call do the same.
  submit({c10d::OpType::BARRIER, "isthmus:monitored_barrier", opts.timeout, false, {}, {}},
         [&](const isthmus_call *call, isthmus_work_t *work) { return isthmus_barrier(comm_, call, work); });
}

}  // namespace isthmus::torch_face
