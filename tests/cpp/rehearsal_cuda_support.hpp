// How the tests of the simulated vendor call NVIDIA's driver and library.
#pragma once

#include <atomic>
#include <cstdint>

#include "rehearsal_support.hpp"

namespace rehearsed {

using Address = unsigned long long;

template <class... A>
inline int cu(const char *name, A... a) {
  return call("nvidia/libcuda.so.1", (std::string("cu") + name).c_str(), a...);
}
template <class... A>
inline int nc(const char *name, A... a) {
  return call("nvidia/libnccl.so.2", (std::string("nccl") + name).c_str(), a...);
}

inline void use(int device) {
  IS(cu("Init", 0u), 0);
  Handle context = nullptr;
  IS(cu("DevicePrimaryCtxRetain", &context, device), 0);
  IS(cu("CtxSetCurrent", context), 0);
}
inline Address allocate(size_t bytes) {
  Address a = 0;
  IS(cu("MemAlloc_v2", &a, bytes), 0);
  return a;
}
inline void release(Address a) { IS(cu("MemFree_v2", a), 0); }
inline Handle new_stream() {
  Handle s = nullptr;
  IS(cu("StreamCreate", &s, 1u), 0);
  return s;
}
inline Handle new_event() {
  Handle e = nullptr;
  IS(cu("EventCreate", &e, 2u), 0);
  return e;
}
inline void to_device(Address a, const void *from, size_t bytes) {
  IS(cu("MemcpyHtoD_v2", a, from, bytes), 0);
  IS(cu("StreamSynchronize", Handle{}), 0);  // the driver comes back before the device has it
}
inline void from_device(void *to, Address a, size_t bytes) { IS(cu("MemcpyDtoH_v2", to, a, bytes), 0); }

// Host memory that the device knows, and a word in it that queues wait for.
struct Pinned {
  explicit Pinned(size_t bytes = 4096) {
    IS(cu("MemHostAlloc", &host, bytes, 0u), 0);
    IS(cu("MemHostGetDevicePointer_v2", &device, host, 0u), 0);
  }
  void free() { IS(cu("MemFreeHost", host), 0); }
  template <class T = uint32_t>
  void set(T value) {
    std::atomic_ref<T>(*static_cast<T *>(host)).store(value, std::memory_order_release);
  }
  void *host = nullptr;
  Address device = 0;
};
inline void stand(Handle stream, const Pinned &gate, uint32_t value = 1) {
  IS(cu("StreamWaitValue32_v2", stream, gate.device, value, 0u), 0);
}

}  // namespace rehearsed
