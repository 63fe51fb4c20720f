// The device "rehearsal" of torch: devices, streams, memory. Any thread may call; "current" means the calling thread's.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstddef>

#include "api.hpp"

namespace at {
struct HostAllocator;
}
namespace c10 {
struct DeviceAllocator;
}

namespace rehearsal_torch {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

int device_count() noexcept;  // 0: there is no simulated vendor
int current_device() noexcept;
void set_current_device(int device);

// Each thread has a current stream of every device. At first the current stream is the device's default stream, as with the vendors.
c10::Stream current_stream(int device);
Native native(const c10::Stream &stream);  // the vendor's stream, made at the first call

// Allocators. Both keep freed memory for reuse. Memory of a device goes to requests of the same stream. Uses by other streams have ended
// before, and so have all uses of pinned memory by streams.
c10::DeviceAllocator &device_memory();
at::HostAllocator &pinned_memory();
void record_use(const c10::DataPtr &data, const c10::Stream &stream);  // memory of other allocators is ignored

// Gives a storage of a device new memory of `bytes`. The old contents are copied, as much as fits.
void resize_storage(const c10::Storage &storage, size_t bytes);

}  // namespace rehearsal_torch
