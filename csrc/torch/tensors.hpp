// Translates tensors into the arguments of isthmus.h: pointer, count, dtype. Every method of the backend uses this
// translation. So only this file has to learn about a further kind of device.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <isthmus/isthmus.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace isthmus::torch_face {

struct Buffer {
  void *data = nullptr;
  std::uint64_t count = 0;
  isthmus_dtype dtype = ISTHMUS_UINT8;
};

// Move: bytes are carried as they are, so every dtype works. Reduce: the dtype must be one that isthmus.h computes with.
enum class Use { move, reduce };

// The dtype in which `tensor` is carried, and how many elements of that dtype one element of the tensor is.
struct Carried {
  isthmus_dtype dtype;
  std::uint64_t per_element;
};
Carried carried_as(const at::Tensor &tensor, Use use);

// Throws unless `tensor` is dense and defined.
void check_tensor(const at::Tensor &tensor);

isthmus_redop reduction(const c10d::ReduceOp &op);
double premul_factor(const c10d::ReduceOp &op);  // 1 unless PREMUL_SUM

// Several tensors as one base pointer and a displacement for each, in elements. So a list needs no flat copy.
struct Scattered {
  void *base = nullptr;
  std::span<const std::uint64_t> counts, displs;  // owned by the Staging that made them, also after its move
  isthmus_dtype dtype = ISTHMUS_UINT8;
};

// The memory of one operation beside the user's tensors: contiguous stand-ins, and the copies back when the operation is
// done.
class Staging {
 public:
  // Each returns a contiguous buffer for the tensor's elements: one that holds them (in), will hold them (out), or both
  // (inout). The buffer is the tensor's own memory where that is contiguous, else a copy. finish() writes a copy of out or
  // inout back.
  Buffer in(const at::Tensor &tensor, Use use);
  Buffer out(const at::Tensor &tensor, Use use);
  Buffer inout(const at::Tensor &tensor, Use use);

  // The list as one base address with displacements. All tensors must have one dtype.
  Scattered in_list(std::span<const at::Tensor> tensors, Use use) { return scattered(tensors, use, Way::in); }
  Scattered out_list(std::span<const at::Tensor> tensors, Use use) { return scattered(tensors, use, Way::out); }
  // The list back to back in one buffer: the tensors' own memory where the tensors lie back to back, else a flat copy.
  Buffer in_flat(std::span<const at::Tensor> tensors, Use use) { return flat(each(tensors, use, Way::in), Way::in); }
  Buffer out_flat(std::span<const at::Tensor> tensors, Use use) { return flat(each(tensors, use, Way::out), Way::out); }

  // Keeps an array that a call in flight may still read.
  std::span<const std::uint64_t> array(std::vector<std::uint64_t> values);

  // The one device of all the operation's tensors. None: the tensors are on the host, or there is no tensor yet.
  std::optional<c10::Device> device() const noexcept { return device_ && !device_->is_cpu() ? device_ : std::nullopt; }

  bool has_copies() const noexcept { return !copies_.empty() || !moves_.empty() || !splits_.empty(); }
  // Writes the stand-ins back, once, and drops them. Copies of stand-ins on a device are put on the current stream.
  void finish();
  void absorb(Staging &&other);

 private:
  enum class Way { in, out };
  struct CopyBack {  // into a tensor that is not contiguous, or from a flat buffer on a device into its piece
    at::Tensor from, to;
  };
  struct TensorPiece : Buffer {
    at::Tensor dense;
  };
  struct Move {  // from a flat buffer into its piece
    const void *from;
    void *to;
    std::size_t bytes;
  };
  at::Tensor dense(const at::Tensor &tensor, bool read, bool write);
  std::vector<TensorPiece> each(std::span<const at::Tensor> tensors, Use use, Way way);
  Buffer flat(const std::vector<TensorPiece> &pieces, Way way);
  Scattered scattered(std::span<const at::Tensor> tensors, Use use, Way way);

  std::optional<c10::Device> device_;
  std::vector<CopyBack> copies_;
  std::vector<Move> moves_;       // before copies_: a piece may itself be a stand-in
  std::vector<CopyBack> splits_;  // moves_ on a device
  std::vector<at::Tensor> held_;
  std::vector<std::vector<std::uint64_t>> arrays_;
};

}  // namespace isthmus::torch_face
