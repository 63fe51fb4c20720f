// The device "rehearsal" as torch sees it: devices, streams, memory.
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

int device_count() noexcept;  // 0 where there is no simulated vendor
int current_device() noexcept;
void set_current_device(int device);

// Each thread has a current stream of every device; at first that is the device's default stream, as with the vendors.
c10::Stream current_stream(int device);
Native native(const c10::Stream &stream);

// Both keep what is freed, and give it out again in the order of the stream that it was taken for.
c10::DeviceAllocator &device_memory();
at::HostAllocator &pinned_memory();
void record_use(const c10::DataPtr &data, const c10::Stream &stream);  // of memory of either; else does nothing

// Other memory for a storage of a device, with as much of what it held as fits.
void resize_storage(const c10::Storage &storage, size_t bytes);

}  // namespace rehearsal_torch
