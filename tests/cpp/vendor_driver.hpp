// The simulated vendors' drivers as a program sees them, in one form: memory of a device, a stream of the program's. Calls by name; what
// fails ends the process.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "rehearsal_file.hpp"

namespace isthmus_test {

class Driver {
 public:
  virtual ~Driver() = default;
  virtual void here(int device) = 0;  // this thread works on it
  virtual void *allocate(size_t bytes) = 0;
  virtual void release(void *memory) = 0;
  virtual void *allocate_pinned(size_t bytes) = 0;  // of the host, which the device reaches
  virtual void release_pinned(void *memory) = 0;
  virtual void put(void *to, const void *from, size_t bytes) = 0;  // from the host; done when it returns
  virtual void get(void *to, const void *from, size_t bytes) = 0;
  virtual void *stream() = 0;
  virtual void end(void *stream) = 0;
  virtual void synchronize(void *stream) = 0;

 protected:
  explicit Driver(const char *file) : file_(file), library_(::dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) stop(::dlerror(), 0);
  }
  template <class... A>
  int call(const char *name, A... a) const {
    void *const found = ::dlsym(library_, name);
    if (!found) stop(name, -1);
    return reinterpret_cast<int (*)(A...)>(found)(a...);
  }
  template <class... A>
  void must(const char *name, A... a) const {
    if (const int code = call(name, a...)) stop(name, code);
  }

 private:
  [[noreturn]] void stop(const char *what, int code) const {
    std::fprintf(stderr, "%s: %s (%d)\n", file_, what, code);
    std::abort();
  }
  const char *const file_;
  void *const library_;
};

class Cuda final : public Driver {
 public:
  Cuda() : Driver(rehearsal_file("nvidia/libcuda.so.1")) { must("cuInit", 0u); }
  void here(int device) override {
    void *context = nullptr;
    must("cuDevicePrimaryCtxRetain", &context, device);
    must("cuCtxSetCurrent", context);
  }
  void *allocate(size_t bytes) override {
    void *memory = nullptr;
    must("cuMemAlloc_v2", &memory, std::max<size_t>(bytes, 1));
    return memory;
  }
  void release(void *memory) override { must("cuMemFree_v2", memory); }
  void *allocate_pinned(size_t bytes) override {
    void *memory = nullptr;
    must("cuMemHostAlloc", &memory, std::max<size_t>(bytes, 1), 0u);
    return memory;
  }
  void release_pinned(void *memory) override { must("cuMemFreeHost", memory); }
  void put(void *to, const void *from, size_t bytes) override {
    if (!bytes) return;
    must("cuMemcpyHtoD_v2", to, from, bytes);
    must("cuStreamSynchronize", static_cast<void *>(nullptr));  // the driver comes back before the device has it
  }
  void get(void *to, const void *from, size_t bytes) override {
    if (bytes) must("cuMemcpyDtoH_v2", to, from, bytes);
  }
  void *stream() override {
    void *stream = nullptr;
    must("cuStreamCreate", &stream, 1u);
    return stream;
  }
  void end(void *stream) override { must("cuStreamDestroy_v2", stream); }
  void synchronize(void *stream) override { must("cuStreamSynchronize", stream); }
};

class Hip final : public Driver {
 public:
  Hip() : Driver(rehearsal_file("amd/libamdhip64.so.7")) { must("hipInit", 0u); }
  void here(int device) override { must("hipSetDevice", device); }
  void *allocate(size_t bytes) override {
    void *memory = nullptr;
    must("hipMalloc", &memory, std::max<size_t>(bytes, 1));
    return memory;
  }
  void release(void *memory) override { must("hipFree", memory); }
  void *allocate_pinned(size_t bytes) override {
    void *memory = nullptr;
    must("hipHostMalloc", &memory, std::max<size_t>(bytes, 1), 0u);
    return memory;
  }
  void release_pinned(void *memory) override { must("hipHostFree", memory); }
  void put(void *to, const void *from, size_t bytes) override {
    if (bytes) must("hipMemcpy", to, from, bytes, 1);
  }
  void get(void *to, const void *from, size_t bytes) override {
    if (bytes) must("hipMemcpy", to, from, bytes, 2);
  }
  void *stream() override {
    void *stream = nullptr;
    must("hipStreamCreateWithFlags", &stream, 1u);
    return stream;
  }
  void end(void *stream) override { must("hipStreamDestroy", stream); }
  void synchronize(void *stream) override { must("hipStreamSynchronize", stream); }
};

class Acl final : public Driver {
 public:
  Acl() : Driver(rehearsal_file("ascend/libascendcl.so")) {
    if (const int code = call("aclInit", nullptr); code != 0 && code != 100002)
      std::abort();  // somebody else may have done it
  }
  void here(int device) override { must("aclrtSetDevice", device); }
  void *allocate(size_t bytes) override {
    void *memory = nullptr;
    must("aclrtMalloc", &memory, std::max<size_t>(bytes, 1), 0);
    return memory;
  }
  void release(void *memory) override { must("aclrtFree", memory); }
  void *allocate_pinned(size_t bytes) override {
    void *memory = nullptr;
    must("aclrtMallocHost", &memory, std::max<size_t>(bytes, 1));
    return memory;
  }
  void release_pinned(void *memory) override { must("aclrtFreeHost", memory); }
  void put(void *to, const void *from, size_t bytes) override {
    if (bytes) must("aclrtMemcpy", to, bytes, from, bytes, 1);
  }
  void get(void *to, const void *from, size_t bytes) override {
    if (bytes) must("aclrtMemcpy", to, bytes, from, bytes, 2);
  }
  void *stream() override {
    void *stream = nullptr;
    must("aclrtCreateStreamWithConfig", &stream, 0u, 3u);
    return stream;
  }
  void end(void *stream) override { must("aclrtDestroyStream", stream); }
  void synchronize(void *stream) override { must("aclrtSynchronizeStream", stream); }
};

// Of the vendor whose ranks `isthmus rehearse --fleet` calls so; null: they work on the host. Opens the vendor's collective library too, so
// that what looks for it by its name finds it.
struct Vendor {
  const char *name, *device;     // the second as in ISTHMUS_DEVICE
  const char *family, *library;  // that serves its islands, and its file (rehearsal_file)
};
inline constexpr Vendor kVendors[] = {{"nvidia", "cuda", "nccl", "nvidia/libnccl.so.2"},
                                      {"amd", "hip", "rccl", "amd/librccl.so.1"},
                                      {"ascend", "acl", "hccl", "ascend/libhccl.so"}};
inline const Vendor *vendor_named(const std::string &name) {
  for (const Vendor &v : kVendors)
    if (name == v.name) return &v;
  return nullptr;
}
inline Driver *driver_of(const Vendor &vendor) {
  const auto opened = [&](auto make) -> Driver * {
    static Driver *const driver = [&] {
      Driver *made = make();
      if (!::dlopen(rehearsal_file(vendor.library), RTLD_NOW | RTLD_LOCAL)) {
        std::fprintf(stderr, "%s\n", ::dlerror());
        std::abort();
      }
      return made;
    }();
    return driver;
  };
  if (!std::strcmp(vendor.device, "cuda")) return opened([]() -> Driver * { return new Cuda; });
  if (!std::strcmp(vendor.device, "hip")) return opened([]() -> Driver * { return new Hip; });
  return opened([]() -> Driver * { return new Acl; });
}

}  // namespace isthmus_test
