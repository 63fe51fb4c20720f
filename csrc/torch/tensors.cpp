#include "tensors.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "errors.hpp"
#include "versions.hpp"

namespace isthmus::torch_face {

namespace {

constexpr isthmus_dtype kNone = ISTHMUS_DTYPE_COUNT;

isthmus_dtype native(at::ScalarType type) noexcept {
  switch (type) {
    case at::kBool: return ISTHMUS_BOOL;
    case at::kChar: return ISTHMUS_INT8;
    case at::kByte: return ISTHMUS_UINT8;
    case at::kShort: return ISTHMUS_INT16;
    case at::ScalarType::UInt16: return ISTHMUS_UINT16;
    case at::kInt: return ISTHMUS_INT32;
    case at::ScalarType::UInt32: return ISTHMUS_UINT32;
    case at::kLong: return ISTHMUS_INT64;
    case at::ScalarType::UInt64: return ISTHMUS_UINT64;
    case at::kHalf: return ISTHMUS_FLOAT16;
    case at::kBFloat16: return ISTHMUS_BFLOAT16;
    case at::kFloat: return ISTHMUS_FLOAT32;
    case at::kDouble: return ISTHMUS_FLOAT64;
    case at::kFloat8_e4m3fn: return ISTHMUS_FLOAT8_E4M3FN;
    case at::kFloat8_e5m2: return ISTHMUS_FLOAT8_E5M2;
    case at::kComplexFloat: return ISTHMUS_COMPLEX64;
    case at::kComplexDouble: return ISTHMUS_COMPLEX128;
    default: return kNone;
  }
}

bool lies_dense(const at::Tensor &tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

Buffer buffer_of(const at::Tensor &dense, Use use, bool write) {
  const Carried carried = carried_as(dense, use);
  // A read must not turn a copy-on-write tensor into a copy.
  void *data = write ? dense.mutable_data_ptr() : const_cast<void *>(dense.const_data_ptr());
  return {data, static_cast<std::uint64_t>(dense.numel()) * carried.per_element, carried.dtype};
}

}  // namespace

void check_tensor(const at::Tensor &tensor) {
  if (!tensor.defined()) bad_argument("an undefined tensor was passed");
  if (tensor.layout() != at::kStrided) {
    raise(ISTHMUS_ERR_UNSUPPORTED,
          c10::str("a tensor of layout ", tensor.layout(), " was passed; convert it with .to_dense() first"));
  }
}

Carried carried_as(const at::Tensor &tensor, Use use) {
  const isthmus_dtype dtype = native(tensor.scalar_type());
  if (dtype != kNone) return {dtype, 1};
  if (use == Use::reduce) {
    raise(ISTHMUS_ERR_UNSUPPORTED, c10::str("no arithmetic on dtype ", tensor.scalar_type(), "; convert the tensor first"));
  }
  return {ISTHMUS_UINT8, static_cast<std::uint64_t>(tensor.element_size())};
}

static_assert(int{c10d::ReduceOp::SUM} == ISTHMUS_SUM && int{c10d::ReduceOp::AVG} == ISTHMUS_AVG &&
              int{c10d::ReduceOp::PRODUCT} == ISTHMUS_PROD && int{c10d::ReduceOp::MIN} == ISTHMUS_MIN &&
              int{c10d::ReduceOp::MAX} == ISTHMUS_MAX && int{c10d::ReduceOp::BAND} == ISTHMUS_BAND &&
              int{c10d::ReduceOp::BOR} == ISTHMUS_BOR && int{c10d::ReduceOp::BXOR} == ISTHMUS_BXOR &&
              int{c10d::ReduceOp::PREMUL_SUM} == ISTHMUS_PREMUL_SUM);

isthmus_redop reduction(const c10d::ReduceOp &op) {
  if (op.op_ >= c10d::ReduceOp::UNUSED) bad_argument("ReduceOp.UNUSED is not an operation");
  return static_cast<isthmus_redop>(op.op_);
}

double premul_factor(const c10d::ReduceOp &op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return 1;
  const auto *supplement = dynamic_cast<const PreMulSumSupplement *>(op.supplement_.get());
  if (!supplement) bad_argument("PREMUL_SUM without a factor; make it with torch.distributed._make_nccl_premul_sum(factor)");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item().toDouble() : supplement->double_factor;
}

at::Tensor Staging::dense(const at::Tensor &tensor, bool read, bool write) {
  check_tensor(tensor);
  if (!device_) device_ = tensor.device();
  if (*device_ != tensor.device()) {
    bad_argument(c10::str("tensors on ", *device_, " and on ", tensor.device(), " in one call; move them to one device"));
  }
  if (lies_dense(tensor)) return tensor;
  // Below autograd and version counting: the copies are part of the transport, not of the user's computation.
  const at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor flat = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  if (read) flat.copy_(tensor);
  if (write) copies_.push_back({flat, tensor});
  held_.push_back(flat);
  return flat;
}

Buffer Staging::in(const at::Tensor &tensor, Use use) { return buffer_of(dense(tensor, true, false), use, false); }
Buffer Staging::out(const at::Tensor &tensor, Use use) { return buffer_of(dense(tensor, false, true), use, true); }
Buffer Staging::inout(const at::Tensor &tensor, Use use) { return buffer_of(dense(tensor, true, true), use, true); }

std::vector<Staging::TensorPiece> Staging::each(std::span<const at::Tensor> tensors, Use use, Way way) {
  std::vector<TensorPiece> pieces;
  pieces.reserve(tensors.size());
  for (const at::Tensor &tensor : tensors) {
    if (tensor.defined() && tensor.scalar_type() != tensors.front().scalar_type()) {
      bad_argument(c10::str("the tensors of a list have different dtypes: ", tensors.front().scalar_type(), " and ",
                            tensor.scalar_type()));
    }
    at::Tensor lies = dense(tensor, way == Way::in, way == Way::out);
    const Buffer buffer = buffer_of(lies, use, way == Way::out);
    pieces.push_back({buffer, std::move(lies)});
  }
  return pieces;
}

Buffer Staging::flat(const std::vector<TensorPiece> &pieces, Way way) {
  Buffer whole{nullptr, 0, pieces.empty() ? ISTHMUS_UINT8 : pieces.front().dtype};
  const std::size_t size = isthmus_dtype_size(whole.dtype);
  bool adjacent = true;
  for (const TensorPiece &piece : pieces) {
    if (piece.count == 0) continue;
    if (!whole.data) whole.data = piece.data;
    adjacent = adjacent && piece.data == static_cast<char *>(whole.data) + whole.count * size;
    whole.count += piece.count;
  }
  if (adjacent) return whole;
  const at::Tensor bytes_of_all =
      at::empty({static_cast<std::int64_t>(whole.count * size)}, at::TensorOptions().dtype(at::kByte).device(*device_));
  held_.push_back(bytes_of_all);
  auto *at = static_cast<char *>(held_.back().mutable_data_ptr());
  whole.data = at;
  if (device()) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    std::int64_t begin = 0;
    for (const TensorPiece &piece : pieces) {
      const auto bytes = static_cast<std::int64_t>(piece.count * size);
      if (bytes == 0) continue;
      const at::Tensor part = bytes_of_all.narrow(0, begin, bytes), whole_piece = piece.dense.view({-1}).view(at::kByte);
      if (way == Way::in) part.copy_(whole_piece);
      else splits_.push_back({part, whole_piece});
      begin += bytes;
    }
    return whole;
  }
  for (const TensorPiece &piece : pieces) {
    const std::size_t bytes = piece.count * size;
    if (bytes && way == Way::in) std::memcpy(at, piece.data, bytes);
    if (bytes && way == Way::out) moves_.push_back({at, piece.data, bytes});
    at += bytes;
  }
  return whole;
}

Scattered Staging::scattered(std::span<const at::Tensor> tensors, Use use, Way way) {
  const std::vector<TensorPiece> pieces = each(tensors, use, way);
  Scattered result;
  result.dtype = pieces.empty() ? ISTHMUS_UINT8 : pieces.front().dtype;
  const std::uint64_t size = isthmus_dtype_size(result.dtype);
  std::uintptr_t lowest = std::numeric_limits<std::uintptr_t>::max();
  bool aligned = true;  // to each other: a displacement is a whole number of elements
  for (const TensorPiece &piece : pieces) {
    const auto address = reinterpret_cast<std::uintptr_t>(piece.data);
    if (piece.count == 0) continue;
    if (lowest != std::numeric_limits<std::uintptr_t>::max() && (address - lowest) % size != 0) aligned = false;
    lowest = std::min(lowest, address);
  }
  std::vector<std::uint64_t> counts, displs;
  if (!aligned) lowest = reinterpret_cast<std::uintptr_t>(flat(pieces, way).data);
  std::uint64_t next = 0;  // where the piece lies if the list is flat
  for (const TensorPiece &piece : pieces) {
    counts.push_back(piece.count);
    displs.push_back(!aligned ? next : piece.count ? (reinterpret_cast<std::uintptr_t>(piece.data) - lowest) / size : 0);
    next += piece.count;
  }
  if (next) result.base = reinterpret_cast<void *>(lowest);
  result.counts = array(std::move(counts));
  result.displs = array(std::move(displs));
  return result;
}

std::span<const std::uint64_t> Staging::array(std::vector<std::uint64_t> values) {
  arrays_.push_back(std::move(values));
  return arrays_.back();
}

void Staging::finish() {
  for (const Move &move : moves_) std::memcpy(move.to, move.from, move.bytes);
  moves_.clear();
  if (splits_.empty() && copies_.empty()) return;
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (const CopyBack &copy : splits_) copy.to.copy_(copy.from);
  for (const CopyBack &copy : copies_) copy.to.copy_(copy.from);
  splits_.clear();
  copies_.clear();
}

void Staging::absorb(Staging &&other) {
  if (!device_) device_ = other.device_;
  std::move(other.copies_.begin(), other.copies_.end(), std::back_inserter(copies_));
  std::move(other.splits_.begin(), other.splits_.end(), std::back_inserter(splits_));
  moves_.insert(moves_.end(), other.moves_.begin(), other.moves_.end());
  std::move(other.held_.begin(), other.held_.end(), std::back_inserter(held_));
  std::move(other.arrays_.begin(), other.arrays_.end(), std::back_inserter(arrays_));
}

}  // namespace isthmus::torch_face
