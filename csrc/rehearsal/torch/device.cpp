// Current devices, streams and events: what torch asks of a device through the guard (DeviceGuardImplInterface) and the hooks.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "base/lock.hpp"

#include "device.hpp"

namespace rehearsal_torch {
namespace {

using isthmus::Lock;
using isthmus::Mutex;

constexpr int kDevices = 64;  // at most; a simulation has fewer
constexpr int kPool = 32;     // streams of each kind and device. Torch gives them out in turn, as on the vendors' devices.

thread_local int the_device = 0;
thread_local std::array<c10::StreamId, kDevices> the_streams{};

// The streams of a device, by their numbers. 0 is the default stream, 1 to 32 are ordinary streams, 33 to 64 are urgent streams. A stream
// is made when it is first used.
struct Streams {
  Mutex mutex;  // held over the vendor's call that makes a stream
  std::array<Native, 2 * kPool + 1> made ISTHMUS_GUARDED_BY(mutex){};
  std::atomic<unsigned> next[2] = {0, 0};
};
Streams &streams(int device) {
  static auto *const all = new std::array<Streams, kDevices>;
  return all->at(static_cast<size_t>(device));
}

c10::Device device(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }
c10::Stream stream(int index, c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device(index), id); }

c10::Stream pooled(int index, bool urgent) {
  const unsigned n = streams(index).next[urgent].fetch_add(1) % kPool;
  return stream(index, static_cast<c10::StreamId>(n) + 1 + (urgent ? kPool : 0));
}

int index_of(c10::Device d) {
  const int index = d.has_index() ? d.index() : the_device;
  TORCH_CHECK(index < device_count(), "rehearsal: there is no device ", index, "; this process has ", device_count());
  return index;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const int before = the_device;
    setDevice(d);
    return device(before);
  }
  c10::Device getDevice() const override { return device(the_device); }
  void setDevice(c10::Device d) const override { set_current_device(index_of(d)); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { the_device = d.has_index() ? d.index() : 0; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    const On on(index);
    api().synchronize();
  }

  c10::Stream getStream(c10::Device d) const override { return current_stream(index_of(d)); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(index_of(d), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool urgent) const override { return pooled(index_of(d), urgent); }
  c10::Stream getNewStream(c10::Device d, int priority) const override { return pooled(index_of(d), priority < 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const int index = index_of(s.device());
    return stream(index, std::exchange(the_streams[static_cast<size_t>(index)], s.id()));
  }
  void *getStreamNativeHandle(const c10::Stream s) const override { return native(s); }
  bool queryStream(const c10::Stream &s) const override {
    const On on(s.device_index());
    return api().idle(native(s));
  }
  void synchronizeStream(const c10::Stream &s) const override {
    const On on(s.device_index());
    api().synchronize(native(s));
  }
  void recordDataPtrOnStream(const c10::DataPtr &data, const c10::Stream &s) const override { record_use(data, s); }

  void record(void **event, const c10::Stream &s, const c10::DeviceIndex index, const c10::EventFlag flag) const override {
    TORCH_CHECK(index == -1 || index == s.device_index(), "rehearsal: an event of device ", index,
                " cannot be recorded on a stream of device ", s.device_index());
    const On on(s.device_index());
    if (!*event) *event = api().new_event(flag == c10::EventFlag::BACKEND_DEFAULT);
    api().record(*event, native(s));
  }
  void block(void *event, const c10::Stream &s) const override {
    if (!event) return;
    const On on(s.device_index());
    api().wait(native(s), event);
  }
  bool queryEvent(void *event) const override {
    if (!event) return true;
    const On on(the_device);
    return api().done(event);
  }
  void synchronizeEvent(void *event) const override {
    if (!event) return;
    const On on(the_device);
    api().synchronize_event(event);
  }
  void destroyEvent(void *event, const c10::DeviceIndex index) const noexcept override {
    if (!event || in_forked_child()) return;
    try {
      const On on(std::max<int>(index, 0));
      api().destroy_event(event);
    } catch (...) {  // the device has failed; the next call that can throw reports the failure
    }
  }
  double elapsedTime(void *first, void *second, const c10::DeviceIndex index) const override {
    const On on(std::max<int>(index, 0));
    return api().elapsed_ms(first, second);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// The device's random numbers are the CPU's, because the CPU computes what the device computes.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return index < device_count(); }
  void init() const override { api(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(the_device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const int before = the_device;
    if (index >= 0) set_current_device(index);
    return static_cast<c10::DeviceIndex>(before);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }

  bool isPinnedPtr(const void *host) const override { return host && api().is_pinned(host); }
  at::Allocator *getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  at::Device getDeviceFromPtr(void *memory) const override {
    const int index = api().device_of(memory);
    TORCH_CHECK(index >= 0, "rehearsal: ", memory, " is memory of no simulated device");
    return device(index);
  }
  const at::Generator &getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }

  void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override { resize_storage(storage, bytes); }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(kType, &device_memory());
  at::setHostAllocator(kType, &pinned_memory());
  return true;
}();

}  // namespace

int device_count() noexcept {
  static const int count = [] {
    try {
      return std::min(api().devices(), kDevices);
    } catch (...) { return 0; }
  }();
  return count;
}

int current_device() noexcept { return the_device; }
void set_current_device(int index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "rehearsal: there is no device ", index, "; this process has ",
              device_count());
  the_device = index;
}

c10::Stream current_stream(int index) { return stream(index, the_streams.at(static_cast<size_t>(index))); }

Native native(const c10::Stream &s) {
  if (s.id() == 0) return nullptr;
  Streams &all = streams(s.device_index());
  const Lock lock(all.mutex);
  Native &made = all.made.at(static_cast<size_t>(s.id()));
  if (!made) {
    const On on(s.device_index());
    made = api().new_stream(s.id() > kPool);
  }
  return made;
}

void resize_storage(const c10::Storage &storage, size_t bytes) {
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = device_memory().allocate(bytes);
  if (const size_t kept = std::min(bytes, storage.nbytes())) device_memory().copy_data(data.get(), storage.data(), kept);
  record_use(storage.data_ptr(), current_stream(the_device));  // the copy may still read the old memory
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

}  // namespace rehearsal_torch
