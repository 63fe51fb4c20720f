// Collectives on lists of tensors.
// - Large tensors stay in place. A list is one base address with a displacement for each rank, and the collectives with
//   counts do the rest. So sizes may differ.
// - Small lists of equal sizes go through one flat copy.
// The choice must not depend on where the tensors lie: all ranks have to make the same call.
#include "backend.hpp"
#include "coalescing.hpp"
#include "errors.hpp"

#include <algorithm>

namespace isthmus::torch_face {

namespace {

const at::Tensor &one(const std::vector<at::Tensor> &tensors, const char *what) {
  if (tensors.size() != 1) bad_argument(c10::str(what, ": expected one tensor and got ", tensors.size()));
  check_tensor(tensors.front());
  return tensors.front();
}

const std::vector<at::Tensor> &list(const std::vector<std::vector<at::Tensor>> &lists, const char *what, int size) {
  if (lists.size() != 1) bad_argument(c10::str(what, ": expected one list of tensors and got ", lists.size()));
  if (lists.front().size() != static_cast<std::size_t>(size)) {
    bad_argument(c10::str(what, ": the list has ", lists.front().size(), " tensors and the group ", size, " ranks"));
  }
  return lists.front();
}

// Up to so many bytes in all, one more copy is cheaper than a collective with counts, which has no one-hop path.
constexpr std::int64_t kFlatBytes = 64 << 10;

bool goes_flat(std::int64_t numel, std::size_t element, int size) {
  return numel * static_cast<std::int64_t>(element) * size <= kFlatBytes;
}

bool equal_sizes(const std::vector<at::Tensor> &tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor &t) { return t.numel() == tensors.front().numel(); });
}

void check_same(const char *what, const at::Tensor &mine, const at::Tensor &other) {
  check_tensor(other);
  if (mine.scalar_type() != other.scalar_type() || mine.numel() != other.numel()) {
    bad_argument(c10::str(what, ": this rank's tensor has ", mine.numel(), " elements of ", mine.scalar_type(),
                          ", and its entry in the list ", other.numel(), " of ", other.scalar_type()));
  }
}

}  // namespace

Backend::ListGather Backend::prepare_gather(Staging &staging, const at::Tensor &input, const Tensors &outputs) {
  check_same("all_gather", input, outputs[static_cast<std::size_t>(rank_)]);
  ListGather gather{staging.in(input, Use::move), false, {}, {}};
  gather.flat = equal_sizes(outputs) && goes_flat(input.numel(), input.element_size(), size_);
  if (gather.flat) gather.whole = staging.out_flat(outputs, Use::move);
  else gather.out = staging.out_list(outputs, Use::move);
  return gather;
}

isthmus_result Backend::run_gather(const ListGather &gather, const isthmus_call *call, isthmus_work_t *work) {
  const Buffer &in = gather.in;
  if (gather.flat) return isthmus_all_gather(comm_, in.data, gather.whole.data, in.count, in.dtype, call, work);
  return isthmus_all_gather_v(comm_, in.data, gather.out.base, gather.out.counts.data(), gather.out.displs.data(), in.dtype,
                              call, work);
}

Backend::WorkPtr Backend::allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &input = one(inputs, "all_gather");
  const Tensors &all = list(outputs, "all_gather", size_);
  BackendRequest request{c10d::OpType::ALLGATHER, "isthmus:all_gather", opts.timeout, opts.asyncOp, inputs, all};
  const ListGather gather = prepare_gather(request.staging, input, all);
  return submit(std::move(request),
                [&](const isthmus_call *call, isthmus_work_t *work) { return run_gather(gather, call, work); });
}

Backend::WorkPtr Backend::allgather_coalesced(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) {
  const coalescing::CallInBlock in_block;
  if (outputs.size() != static_cast<std::size_t>(size_)) {
    bad_argument(c10::str("all_gather_coalesced: ", outputs.size(), " lists of outputs and ", size_, " ranks"));
  }
  BackendRequest request{
      c10d::OpType::ALLGATHER_COALESCED, "isthmus:all_gather_coalesced", opts.timeout, opts.asyncOp, inputs, {}};
  std::vector<ListGather> gathers;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors all;
    for (const Tensors &of_rank : outputs) {
      if (of_rank.size() != inputs.size()) {
        bad_argument(c10::str("all_gather_coalesced: ", inputs.size(), " inputs, and a rank's list has ", of_rank.size(),
                              " outputs"));
      }
      all.push_back(of_rank[i]);
    }
    check_tensor(inputs[i]);
    gathers.push_back(prepare_gather(request.staging, inputs[i], all));
    request.outputs.insert(request.outputs.end(), all.begin(), all.end());
  }
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return grouped(work, [&] {
      isthmus_result result = ISTHMUS_OK;
      for (const ListGather &gather : gathers) {
        if (result == ISTHMUS_OK) result = run_gather(gather, call, nullptr);
      }
      return result;
    });
  });
}

Backend::WorkPtr Backend::gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &input = one(inputs, "gather");
  const int root = checked_root(opts.rootRank);
  BackendRequest request{c10d::OpType::GATHER, "isthmus:gather", opts.timeout, opts.asyncOp, inputs, {}};
  const Buffer in = request.staging.in(input, Use::move);
  const bool flat = goes_flat(input.numel(), input.element_size(), size_);
  Buffer whole;
  Scattered out;
  if (rank_ == root) {
    const Tensors &all = list(outputs, "gather", size_);
    for (const at::Tensor &tensor : all) check_same("gather", input, tensor);
    if (flat) whole = request.staging.out_flat(all, Use::move);
    else out = request.staging.out_list(all, Use::move);
    request.outputs = all;
  } else {
    if (!outputs.empty() && !outputs.front().empty())
      bad_argument("gather: only the destination rank may pass a list of outputs");
    out.counts = request.staging.array(std::vector<std::uint64_t>(static_cast<std::size_t>(size_), in.count));
  }
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    if (flat) return isthmus_gather(comm_, in.data, whole.data, in.count, in.dtype, root, call, work);
    return isthmus_gather_v(comm_, in.data, out.base, out.counts.data(), rank_ == root ? out.displs.data() : nullptr,
                            in.dtype, root, call, work);
  });
}

Backend::WorkPtr Backend::scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &opts) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &output = one(outputs, "scatter");
  const int root = checked_root(opts.rootRank);
  BackendRequest request{c10d::OpType::SCATTER, "isthmus:scatter", opts.timeout, opts.asyncOp, {}, outputs};
  const Buffer out = request.staging.out(output, Use::move);
  const bool flat = goes_flat(output.numel(), output.element_size(), size_);
  Buffer whole;
  Scattered in;
  if (rank_ == root) {
    const Tensors &all = list(inputs, "scatter", size_);
    for (const at::Tensor &tensor : all) check_same("scatter", output, tensor);
    if (flat) whole = request.staging.in_flat(all, Use::move);
    else in = request.staging.in_list(all, Use::move);
    request.inputs = all;
  } else {
    if (!inputs.empty() && !inputs.front().empty()) bad_argument("scatter: only the source rank may pass a list of inputs");
    in.counts = request.staging.array(std::vector<std::uint64_t>(static_cast<std::size_t>(size_), out.count));
  }
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    if (flat) return isthmus_scatter(comm_, whole.data, out.data, out.count, out.dtype, root, call, work);
    return isthmus_scatter_v(comm_, in.base, out.data, in.counts.data(), rank_ == root ? in.displs.data() : nullptr,
                             out.dtype, root, call, work);
  });
}

Backend::WorkPtr Backend::reduce_scatter(Tensors &outputs, TensorLists &inputs, const c10d::ReduceScatterOptions &opts) {
  const coalescing::CallInBlock in_block;
  const at::Tensor &output = one(outputs, "reduce_scatter");
  const Tensors &all = list(inputs, "reduce_scatter", size_);
  check_same("reduce_scatter", output, all[static_cast<std::size_t>(rank_)]);
  const isthmus_redop op = reduction(opts.reduceOp);
  BackendRequest request{c10d::OpType::REDUCE_SCATTER, "isthmus:reduce_scatter", opts.timeout, opts.asyncOp, all, outputs,
                         premul_factor(opts.reduceOp)};
  const Buffer out = request.staging.out(output, Use::reduce);
  const bool flat = equal_sizes(all) && goes_flat(output.numel(), output.element_size(), size_);
  Buffer whole;
  Scattered in;
  if (flat) whole = request.staging.in_flat(all, Use::reduce);
  else in = request.staging.in_list(all, Use::reduce);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    if (flat) return isthmus_reduce_scatter(comm_, whole.data, out.data, out.count, out.dtype, op, call, work);
    return isthmus_reduce_scatter_v(comm_, in.base, out.data, in.counts.data(), in.displs.data(), out.dtype, op, call, work);
  });
}

Backend::WorkPtr Backend::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) {
  const coalescing::CallInBlock in_block;
  const auto world = static_cast<std::size_t>(size_);
  if (inputs.size() != world || outputs.size() != world) {
    bad_argument(c10::str("all_to_all: ", inputs.size(), " inputs and ", outputs.size(), " outputs for ", size_, " ranks"));
  }
  if (inputs.front().scalar_type() != outputs.front().scalar_type()) {
    bad_argument(c10::str("all_to_all: inputs and outputs have different dtypes, ", inputs.front().scalar_type(), " and ",
                          outputs.front().scalar_type()));
  }
  BackendRequest request{c10d::OpType::ALLTOALL, "isthmus:all_to_all", opts.timeout, opts.asyncOp, inputs, outputs};
  // Only this rank's sizes are known here. So the call is always the collective with counts.
  const Scattered in = request.staging.in_list(inputs, Use::move), out = request.staging.out_list(outputs, Use::move);
  return submit(std::move(request), [&](const isthmus_call *call, isthmus_work_t *work) {
    return isthmus_all_to_all_v(comm_, in.base, in.counts.data(), in.displs.data(), out.base, out.counts.data(),
                                out.displs.data(), in.dtype, call, work);
  });
}

}  // namespace isthmus::torch_face
