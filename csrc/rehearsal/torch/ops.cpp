// The operators of the device. The device makes, views and copies tensors. All that computes is done by the CPU:
//
//   1. The arguments are copied to the host, in the order of the stream. The calling thread waits.
//   2. The CPU computes.
//   3. The results are copied back, in the order of the stream. The calling thread does not wait.
//
// So results come late and a read waits, as on a real device.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include "device.hpp"

namespace rehearsal_torch {
namespace {

using at::IntArrayRef;
using at::Tensor;

bool on_device(const Tensor &t) { return t.device().type() == kType; }

// ---- making tensors ------------------------------------------------------------------------------------------------------

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_or_current(std::optional<c10::Device> d) {
  return d && d->has_index() ? *d : c10::Device(kType, static_cast<c10::DeviceIndex>(current_device()));
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(c10::kStrided) == c10::kStrided,
                              "rehearsal: the simulated device has strided tensors only");
  TORCH_CHECK(!pin.value_or(false), "rehearsal: only memory of the host can be pinned");
}

Tensor make(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
            std::optional<c10::Device> device, std::optional<bool> pin, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin);
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(size, &device_memory(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor make_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype,
                    std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin) {
  check_options(layout, pin);
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(size, stride, &device_memory(), kKeys, c10::dtype_or_default(dtype));
}

// ---- bytes between the host and a device, in the order of the device's current stream ------------------------------------

// A device that is current, and its current stream.
struct Here {
  int device;
  c10::Stream stream;
  On on;
  explicit Here(int d) : device(d), stream(current_stream(d)), on(d) {}
};

// Looks at the first and the last byte.
bool pinned(const void *host, size_t bytes) {
  return api().is_pinned(host) && api().is_pinned(static_cast<const std::byte *>(host) + bytes - 1);
}

// A part of a tensor's bytes. `at`: counted from the tensor's first element.
struct Run {
  size_t at, bytes;
};

// A pinned copy of host memory. The device may read the copy later, also when the tensor is gone.
c10::DataPtr stage(const void *host, size_t bytes, const c10::Stream &s) {
  c10::DataPtr copy = pinned_memory().allocate(bytes);
  std::memcpy(copy.get(), host, bytes);
  record_use(copy, s);
  return copy;
}

void copy_in(void *device, const Tensor &host, size_t bytes, const std::vector<Run> &runs, int index, bool non_blocking) {
  const Here here(index);
  const auto *from = static_cast<const std::byte *>(host.const_data_ptr());
  const bool direct = pinned(from, bytes);
  c10::DataPtr staged;
  if (direct) {
    record_use(host.storage().data_ptr(), here.stream);
  } else {
    staged = stage(from, bytes, here.stream);
    from = static_cast<const std::byte *>(staged.get());
  }
  for (const Run &r : runs)
    api().copy_in(static_cast<std::byte *>(device) + r.at, from + r.at, r.bytes, native(here.stream));
  if (direct && !non_blocking) api().synchronize(native(here.stream));  // then the caller may write to the source again
}

void copy_out(Tensor &host, const void *device, size_t bytes, int index, bool non_blocking) {
  const Here here(index);
  void *to = host.mutable_data_ptr();
  if (pinned(to, bytes)) {
    record_use(host.storage().data_ptr(), here.stream);
    api().copy_out(to, device, bytes, native(here.stream));
    if (!non_blocking) api().synchronize(native(here.stream));
    return;
  }
  const c10::DataPtr staged = pinned_memory().allocate(bytes);
  record_use(staged, here.stream);
  api().copy_out(staged.get(), device, bytes, native(here.stream));
  api().synchronize(native(here.stream));
  std::memcpy(to, staged.get(), bytes);
}

// The stream of the source's device makes the copy. Between two devices:
//
//   stream of the destination        stream of the source
//     ready: recorded       ---->      waits for ready
//                                      copies
//     waits for done        <----      done: recorded
void copy_between(void *to, int to_index, const void *from, int from_index, size_t bytes) {
  const c10::Stream source = current_stream(from_index), target = current_stream(to_index);
  if (to_index != from_index) {
    c10::Event ready(kType);
    ready.record(target);
    ready.block(source);
  }
  {
    const On on(from_index);
    api().copy_within(to, from, bytes, native(source));
  }
  if (to_index != from_index) {
    c10::Event done(kType);
    done.record(source);
    done.block(target);
  }
}

// ---- tensors between the host and a device -------------------------------------------------------------------------------

// Bytes from a tensor's first element to its last.
size_t span_of(const Tensor &t) { return at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize()); }

// A tensor of the host with the same sizes, strides, and marks for conjugate and negative. Its values are not set.
Tensor shape_of(const Tensor &t) {
  Tensor image = at::empty_strided(t.sizes(), t.strides(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  image._set_conj(t.is_conj());
  image._set_neg(t.is_neg());
  return image;
}

// A copy of a device's tensor on the host, with the same strides.
Tensor image_of(const Tensor &t) {
  Tensor image = shape_of(t);
  if (t.numel() > 0) copy_out(image, t.const_data_ptr(), span_of(t), t.device().index(), false);
  return image;
}

// The runs of bytes that a tensor's elements fill, without the gaps between them. Nothing: there are more than kMany runs.
std::optional<std::vector<Run>> runs_of(const Tensor &t) {
  constexpr size_t kMany = 256;
  if (t.is_non_overlapping_and_dense()) return std::vector<Run>{{0, span_of(t)}};
  std::vector<int64_t> order;
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.size(d) != 1) order.push_back(d);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return t.stride(a) < t.stride(b); });
  std::vector<Run> runs{{0, t.itemsize()}};
  for (const int64_t d : order) {
    const auto count = static_cast<size_t>(t.size(d)), step = static_cast<size_t>(t.stride(d)) * t.itemsize();
    if (runs.size() == 1 && step == runs[0].bytes) {
      runs[0].bytes *= count;
      continue;
    }
    if (runs.size() * count > kMany) return std::nullopt;
    const size_t before = runs.size();
    for (size_t i = 1; i < count; ++i)
      for (size_t r = 0; r < before; ++r) runs.push_back({runs[r].at + i * step, runs[r].bytes});
  }
  return runs;
}

// Copies values of a host's tensor into a tensor of the device. Only bytes of dst's elements change.
void fill_from(const Tensor &host, const Tensor &dst, bool non_blocking) {
  const std::optional<std::vector<Run>> runs = runs_of(dst);
  Tensor image = runs ? shape_of(dst) : image_of(dst);  // too many runs: the gaps are written back as they were
  image.copy_(host);
  const size_t bytes = span_of(dst);
  copy_in(dst.mutable_data_ptr(), image, bytes, runs ? *runs : std::vector<Run>{{0, bytes}}, dst.device().index(),
          non_blocking);
}

// Whether a copy from one to the other is a copy of bytes, in the same places.
bool bytewise(const Tensor &a, const Tensor &b) {
  if (a.scalar_type() != b.scalar_type() || a.is_conj() != b.is_conj() || a.is_neg() != b.is_neg()) return false;
  return (a.is_contiguous() && b.is_contiguous()) || (a.strides() == b.strides() && a.is_non_overlapping_and_dense());
}

Tensor copy_from(const Tensor &self, const Tensor &dst, bool non_blocking) {
  if (dst.is_same(self)) return dst;
  const Tensor src = self.sizes() == dst.sizes() ? self : self.expand(dst.sizes());
  if (dst.numel() == 0) return dst;
  at::assert_no_internal_overlap(dst);
  if (src.device() == dst.device()) {
    if (at::get_overlap_status(src, dst) == at::MemOverlapStatus::Full && bytewise(src, dst)) return dst;
    at::assert_no_partial_overlap(src, dst);
  }
  if (!bytewise(src, dst)) {
    const Tensor values = on_device(src) ? image_of(src) : src;
    if (on_device(dst)) fill_from(values, dst, non_blocking);
    else dst.copy_(values);
    return dst;
  }
  const size_t bytes = span_of(src);
  if (!on_device(src)) {
    copy_in(dst.mutable_data_ptr(), src, bytes, {{0, bytes}}, dst.device().index(), non_blocking);
  } else if (!on_device(dst)) {
    Tensor host = dst;
    copy_out(host, src.const_data_ptr(), bytes, src.device().index(), non_blocking);
  } else {
    copy_between(dst.mutable_data_ptr(), dst.device().index(), src.const_data_ptr(), src.device().index(), bytes);
  }
  return dst;
}

// ---- sizes and storages --------------------------------------------------------------------------------------------------

// Makes the tensor's storage large enough. at::native's own function would use the host's memcpy.
void grow_storage(const Tensor &t) {
  if (t.numel() == 0) return;
  const size_t needed =
      at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize(), static_cast<size_t>(t.storage_offset()));
  const c10::Storage &storage = t.storage();
  if (needed <= storage.nbytes()) return;
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  resize_storage(storage, needed);
}

const Tensor &resize_tensor(const Tensor &self, IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  if (self.sizes() != size) self.unsafeGetTensorImpl()->generic_set_sizes_contiguous(size);
  if (format) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  grow_storage(self);
  return self;
}

Tensor copy_from_and_resize(const Tensor &self, const Tensor &dst) {
  if (dst.sizes() != self.sizes()) resize_tensor(dst, self.sizes(), std::nullopt);
  return copy_from(self, dst, false);
}

Tensor &set_storage(Tensor &self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto *impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data()) impl->set_sizes_and_strides(size, stride);
  else impl->generic_set_sizes_contiguous(size);
  grow_storage(self);
  return self;
}

Tensor &set_whole_storage(Tensor &self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

Tensor &set_nothing(Tensor &self) {
  const Tensor nothing = make({0}, self.scalar_type(), std::nullopt, self.device(), std::nullopt, std::nullopt);
  return set_storage(self, nothing.storage(), 0, {0}, {});
}

// ---- values --------------------------------------------------------------------------------------------------------------

at::Scalar local_scalar_dense(const Tensor &self) { return at::_local_scalar_dense(self.cpu()); }

Tensor &fill_with(Tensor &self, const at::Scalar &value) {
  if (self.numel() == 0) return self;
  const Tensor one = at::empty({}, at::TensorOptions().dtype(self.scalar_type()).device(at::kCPU)).fill_(value);
  self.copy_(one);
  return self;
}

Tensor &fill_with_zeros(Tensor &self) {
  if (self.numel() == 0) return self;
  if (!self.is_non_overlapping_and_dense()) return fill_with(self, 0);
  const Here here(self.device().index());
  api().zero(self.mutable_data_ptr(), span_of(self), native(here.stream));
  return self;
}

void record_stream(Tensor &self, at::Stream s) { record_use(self.storage().data_ptr(), s); }

// True lets module.to() keep its parameters, and lets tensor.data move between the host and the device.
bool has_compatible_shallow_copy_type(const Tensor &self, const Tensor &from) {
  const auto fits = [](const Tensor &t) { return t.layout() == at::kStrided && (t.is_cpu() || on_device(t)); };
  return fits(self) && fits(from);
}

// ---- convolutions: torch has two operators for them that each device must implement --------------------------------------

Tensor on_host(const std::optional<Tensor> &t) { return t && t->defined() ? t->cpu() : Tensor(); }

Tensor convolution(const Tensor &input, const Tensor &weight, const std::optional<Tensor> &bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  return at::convolution(input.cpu(), weight.cpu(), on_host(bias), stride, padding, dilation, transposed, output_padding,
                         groups)
      .to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor &gradient, const Tensor &input, const Tensor &weight,
                                                        IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> mask) {
  const int64_t outputs = transposed ? weight.size(1) * groups : weight.size(0);
  auto [a, b, c] = at::convolution_backward(gradient.cpu(), input.cpu(), weight.cpu(), IntArrayRef{outputs}, stride, padding,
                                            dilation, transposed, output_padding, groups, mask);
  const auto back = [&](Tensor &t) { return t.defined() ? t.to(input.device()) : Tensor(); };
  return {back(a), back(b), back(c)};
}

// ---- batch norm: changes its running mean and variance, which its signature does not say. The fallback would lose them -----

std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor &input, const std::optional<Tensor> &weight,
                                              const std::optional<Tensor> &bias, const std::optional<Tensor> &running_mean,
                                              const std::optional<Tensor> &running_var, bool training, double momentum,
                                              double eps) {
  const Tensor mean = on_host(running_mean), var = on_host(running_var);
  const auto [y, batch_mean, batch_invstd] =
      at::native_batch_norm(input.cpu(), on_host(weight), on_host(bias), mean, var, training, momentum, eps);
  if (training && mean.defined()) running_mean->copy_(mean);
  if (training && var.defined()) running_var->copy_(var);
  return {y.to(input.device()), batch_mean.to(input.device()), batch_invstd.to(input.device())};
}

// ---- everything else -----------------------------------------------------------------------------------------------------

// Runs an operator on the CPU. An operator that returns a view and is not listed below is an error: its result would be a copy, and writes
// through it would be lost.
void on_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) { at::native::cpu_fallback(op, stack, true); }

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &make);
  m.impl("empty_strided", &make_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize_tensor);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_", &set_nothing);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);

  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<Tensor (*)(const Tensor &, IntArrayRef)>(&at::native::view));
  m.impl("unfold", &at::native::unfold);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);

  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("fill_.Scalar", &fill_with);
  m.impl("zero_", &fill_with_zeros);
  m.impl("record_stream", &record_stream);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);

  // Torch would compose these of other operators. The results would then differ from the CPU's in the last bit.
  for (const char *name : {"native_layer_norm", "native_group_norm", "addr", "linalg__powsum"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

// copy_from() looks at the marks for conjugate and negative itself. Torch's handlers of these marks would call copy_from() again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

// torch.autocast changes no types on this device.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace rehearsal_torch
