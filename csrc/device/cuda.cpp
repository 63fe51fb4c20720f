#include "device/cuda.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/log.hpp"
#include "device/cuda_abi.hpp"

namespace isthmus::device {
namespace {

using namespace cuda_abi;

constexpr uint64_t kOpen = uint64_t{1} << 62;  // the comparison is signed: above every value, and not below any
constexpr size_t kWord = 64;                   // bytes between two counters: a cache line each

Functions the_functions;

std::string code_text(Result r) {
  const char *name = nullptr, *text = nullptr;
  the_functions.cuGetErrorName(r, &name);
  the_functions.cuGetErrorString(r, &text);
  return fmt::format("{} ({}{}{})", name ? name : "an unknown error", r, text ? ": " : "", text ? text : "");
}

[[noreturn]] void fail_call(const char *call, Result r) {
  fail(r == kOutOfMemory ? Code::Resource : Code::System, "NVIDIA driver: {} failed with {}", call, code_text(r));
}

#define ISTHMUS_CUDA(name, ...)                                                                    \
  do {                                                                                             \
    if (const Result isthmus_result = the_functions.name(__VA_ARGS__); isthmus_result != kSuccess) \
      fail_call(#name, isthmus_result);                                                            \
  } while (false)

// A device's context is current while this lives; what was current before is so again.
class Current {
 public:
  explicit Current(Handle context) { ISTHMUS_CUDA(cuCtxPushCurrent_v2, context); }
  ~Current() {
    Handle popped = nullptr;
    the_functions.cuCtxPopCurrent_v2(&popped);
  }
  Current(const Current &) = delete;
  Current &operator=(const Current &) = delete;
};

Pointer number(const void *p) { return static_cast<Pointer>(reinterpret_cast<uintptr_t>(p)); }
void *address(Pointer p) { return reinterpret_cast<void *>(static_cast<uintptr_t>(p)); }

class CudaRuntime;

class CudaStream final : public Stream {
 public:
  CudaStream(CudaRuntime &runtime, int device, Handle stream, bool own)
      : runtime_(runtime), device_(device), stream_(stream), own_(own) {}
  ~CudaStream() override;
  int device() const noexcept override { return device_; }
  void *handle() const noexcept override { return stream_; }
  Status status() const override;
  bool capturing() const override;
  void enter() const override;
  void exit() const noexcept override {
    Handle popped = nullptr;
    the_functions.cuCtxPopCurrent_v2(&popped);
  }

 private:
  CudaRuntime &runtime_;
  const int device_;
  const Handle stream_;
  const bool own_;
};

// 64-bit words in pinned memory that host and device both see. Never given back to the system: there are as many as gates and signals
// were alive at once.
class Words {
 public:
  struct Word {
    std::atomic<uint64_t> *host = nullptr;
    Pointer device = 0;
  };
  template <class Register>
  Word take(Register register_page) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
      void *memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) fail_system("mmap", errno);
      const Pointer there = register_page(memory, page);
      for (size_t at = 0; at + kWord <= page; at += kWord)
        free_.push_back({new (static_cast<std::byte *>(memory) + at) std::atomic<uint64_t>(0), there + at});
    }
    const Word w = free_.back();
    free_.pop_back();
    w.host->store(0, std::memory_order_relaxed);
    return w;
  }
  void give(Word w) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(w);
  }

 private:
  std::mutex mutex_;
  std::vector<Word> free_;
};

class CudaRuntime final : public Runtime {
 public:
  CudaRuntime(int version, int count) : version_(version), devices_(static_cast<size_t>(count)) {}

  const char *vendor() const noexcept override { return "cuda"; }
  std::string version() const override { return fmt::format("{}.{}", version_ / 1000, version_ % 1000 / 10); }
  int devices() const override { return static_cast<int>(devices_.size()); }
  std::string describe(int device) const override {
    PerDevice &d = at(device);
    char name[256] = {}, bus[32] = {};
    ISTHMUS_CUDA(cuDeviceGetName, name, sizeof name - 1, d.number);
    ISTHMUS_CUDA(cuDeviceGetPCIBusId, bus, sizeof bus - 1, d.number);
    return fmt::format("{} at {}", name, bus);
  }
  int numa(int device) const override {
    int node = -1;
    return the_functions.cuDeviceGetAttribute(&node, kAttributeNuma, at(device).number) == kSuccess ? node : -1;
  }
  Capabilities capabilities(int device) const override {
    int wide = 0;
    ISTHMUS_CUDA(cuDeviceGetAttribute, &wide, kAttribute64BitWaits, at(device).number);
    Capabilities c;
    c.gate = wide ? GateKind::HostStore : GateKind::None;
    c.host_access = false;
    c.asynchronous_copy = true;
    c.signals_wake = false;
    return c;
  }

  std::unique_ptr<Stream> make_stream(int device, const char *) override {
    const Current current(context(device));
    Handle stream = nullptr;
    ISTHMUS_CUDA(cuStreamCreate, &stream, kStreamNonBlocking);
    return std::make_unique<CudaStream>(*this, device, stream, true);
  }
  std::unique_ptr<Stream> adopt(int device, void *handle) override {
    context(device);
    return std::make_unique<CudaStream>(*this, device, handle, false);
  }
  std::unique_ptr<Event> make_event(int device) override;
  std::unique_ptr<Gate> make_gate(int device) override;
  std::unique_ptr<Signal> make_signal(int device, Wake wake, void *context) override;

  void copy(Stream &stream, void *to, const void *from, size_t bytes, const std::atomic<bool> *) override {
    const Current current(context(stream.device()));
    ISTHMUS_CUDA(cuMemcpyAsync, number(to), number(from), bytes, stream.handle());
  }

  void *allocate(int device, size_t bytes) override {
    const Current current(context(device));
    Pointer memory = 0;
    ISTHMUS_CUDA(cuMemAlloc_v2, &memory, std::max<size_t>(bytes, 1));
    return address(memory);
  }
  void release(int device, void *memory) noexcept override {
    try {
      const Current current(context(device));
      if (const Result r = the_functions.cuMemFree_v2(number(memory)); r != kSuccess)
        ISTHMUS_WARN("NVIDIA driver: cuMemFree failed with {}", code_text(r));
    } catch (const Error &e) { ISTHMUS_WARN("{}", e.text()); }
  }

  void register_host(int device, void *memory, size_t bytes) override {
    PerDevice &d = at(device);
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    if (!memory || bytes == 0 || reinterpret_cast<uintptr_t>(memory) % page != 0)
      fail(Code::Argument, "NVIDIA driver: {} bytes at {} are no whole pages to register", bytes, memory);
    {
      const std::shared_lock lock(d.mutex);
      auto *const begin = static_cast<std::byte *>(memory);
      const auto after = d.registered.lower_bound(begin + bytes);
      if (after != d.registered.begin() && std::prev(after)->first + std::prev(after)->second.bytes > begin)
        fail(Code::Argument, "NVIDIA driver: a part of the {} bytes at {} is registered already", bytes, memory);
    }
    const Current current(context(device));
    pin(memory, bytes);
    Pointer there = 0;
    if (const Result r = the_functions.cuMemHostGetDevicePointer_v2(&there, memory, 0); r != kSuccess) {
      unpin(memory);
      fail_call("cuMemHostGetDevicePointer", r);
    }
    const std::unique_lock lock(d.mutex);
    d.registered[static_cast<std::byte *>(memory)] = {bytes, static_cast<std::byte *>(address(there))};
  }
  void unregister_host(int device, void *memory) noexcept override {
    try {
      PerDevice &d = at(device);
      {
        const std::unique_lock lock(d.mutex);
        d.registered.erase(static_cast<std::byte *>(memory));
      }
      const Current current(context(device));
      unpin(memory);
    } catch (const Error &e) { ISTHMUS_WARN("{}", e.text()); }
  }
  void *device_address(int device, const void *memory) const override {
    PerDevice &d = at(device);
    const auto *p = static_cast<const std::byte *>(memory);
    const std::shared_lock lock(d.mutex);
    auto it = d.registered.upper_bound(const_cast<std::byte *>(p));
    if (it != d.registered.begin() && p < (--it)->first + it->second.bytes) return it->second.there + (p - it->first);
    fail(Code::Argument, "NVIDIA driver: the host memory at {} is not registered for device {}", memory, device);
  }
  PointerInfo find(const void *memory) const override {
    unsigned type = 0, managed = 0;
    int device = -1;
    // Any context will do; a thread that has never used the driver has none.
    const Handle known = any_context_.load(std::memory_order_acquire);
    const Current current(known ? known : context(0));
    if (the_functions.cuPointerGetAttribute(&type, kPointerMemoryType, number(memory)) != kSuccess) return {};
    the_functions.cuPointerGetAttribute(&device, kPointerDevice, number(memory));
    the_functions.cuPointerGetAttribute(&managed, kPointerManaged, number(memory));
    return {type == kMemoryDevice || managed != 0 ? Where::Device : Where::Registered, device};
  }

  // The primary context, which the vendor's runtime library uses too. Made when a device is first used, and kept.
  Handle context(int device) const {
    PerDevice &d = at(device);
    std::call_once(d.once, [&] {
      ISTHMUS_CUDA(cuDevicePrimaryCtxRetain, &d.context, d.number);
      any_context_.store(d.context, std::memory_order_release);
    });
    return d.context;
  }
  Words::Word take_word(int device) {
    return at(device).words.take([&](void *page, size_t bytes) {
      register_host(device, page, bytes);
      return number(device_address(device, page));
    });
  }
  void give_word(int device, Words::Word w) noexcept { devices_[static_cast<size_t>(device)].words.give(w); }
  void set_number(int device, Device number) { devices_[static_cast<size_t>(device)].number = number; }

 private:
  // The driver pins a range once, for all devices; each of them has an address of its own for it.
  void pin(void *memory, size_t bytes) {
    const std::lock_guard lock(pinned_mutex_);
    Pinned &p = pinned_[memory];
    if (p.users > 0 && p.bytes != bytes)
      fail(Code::Argument, "NVIDIA driver: {} bytes at {} are registered already, and not {}", p.bytes, memory, bytes);
    if (p.users == 0) {
      const Result r = the_functions.cuMemHostRegister_v2(memory, bytes, kRegisterPortable | kRegisterMapped);
      if (r != kSuccess) {
        pinned_.erase(memory);
        if (r == kAlreadyRegistered)
          fail(Code::Argument, "NVIDIA driver: the range is registered already: {}", code_text(r));
        fail_call("cuMemHostRegister", r);
      }
      p.bytes = bytes;
    }
    ++p.users;
  }
  void unpin(void *memory) noexcept {
    const std::lock_guard lock(pinned_mutex_);
    const auto it = pinned_.find(memory);
    if (it == pinned_.end() || --it->second.users > 0) return;
    pinned_.erase(it);
    if (const Result r = the_functions.cuMemHostUnregister(memory); r != kSuccess)
      ISTHMUS_WARN("NVIDIA driver: cuMemHostUnregister failed with {}", code_text(r));
  }

  struct Pinned {
    size_t bytes = 0;
    int users = 0;
  };
  struct Registered {
    size_t bytes = 0;
    std::byte *there = nullptr;
  };
  struct PerDevice {
    Device number = 0;
    std::once_flag once;
    Handle context = nullptr;
    std::shared_mutex mutex;
    std::map<std::byte *, Registered> registered;
    Words words;
  };
  PerDevice &at(int device) const {
    if (device < 0 || static_cast<size_t>(device) >= devices_.size())
      fail(Code::Argument, "NVIDIA driver: there is no device {}; it has {}", device, devices_.size());
    return devices_[static_cast<size_t>(device)];
  }

  const int version_;
  mutable std::atomic<Handle> any_context_{nullptr};
  std::mutex pinned_mutex_;
  std::map<void *, Pinned> pinned_;
  mutable std::vector<PerDevice> devices_;
};

CudaStream::~CudaStream() {
  if (!own_) return;
  try {
    const Current current(runtime_.context(device_));
    if (const Result r = the_functions.cuStreamDestroy_v2(stream_); r != kSuccess)
      ISTHMUS_WARN("NVIDIA driver: cuStreamDestroy failed with {}", code_text(r));
  } catch (const Error &e) { ISTHMUS_WARN("{}", e.text()); }
}

Status CudaStream::status() const {
  try {
    const Current current(runtime_.context(device_));
    const Result r = the_functions.cuStreamQuery(stream_);
    if (r == kSuccess || r == kNotReady) return {};
    return {Code::System, fmt::format("NVIDIA driver: device {} failed with {}", device_, code_text(r))};
  } catch (const Error &e) { return {e.code(), e.text()}; }
}

void CudaStream::enter() const { ISTHMUS_CUDA(cuCtxPushCurrent_v2, runtime_.context(device_)); }

bool CudaStream::capturing() const {
  const Current current(runtime_.context(device_));
  int capture = 0;
  ISTHMUS_CUDA(cuStreamIsCapturing, stream_, &capture);
  return capture != 0;
}

class CudaEvent final : public Event {
 public:
  CudaEvent(CudaRuntime &runtime, int device) : runtime_(runtime), device_(device) {
    const Current current(runtime_.context(device_));
    ISTHMUS_CUDA(cuEventCreate, &event_, kEventDisableTiming);
  }
  ~CudaEvent() override {
    try {
      const Current current(runtime_.context(device_));
      the_functions.cuEventDestroy_v2(event_);
    } catch (const Error &e) { ISTHMUS_WARN("{}", e.text()); }
  }
  void record(Stream &stream) override {
    const Current current(runtime_.context(device_));
    ISTHMUS_CUDA(cuEventRecord, event_, stream.handle());
  }
  void hold(Stream &stream) const override {
    const Current current(runtime_.context(device_));
    ISTHMUS_CUDA(cuStreamWaitEvent, stream.handle(), event_, 0);
  }
  bool reached() const override {
    const Current current(runtime_.context(device_));
    const Result r = the_functions.cuEventQuery(event_);
    if (r != kSuccess && r != kNotReady) fail_call("cuEventQuery", r);
    return r == kSuccess;
  }

 private:
  CudaRuntime &runtime_;
  const int device_;
  Handle event_ = nullptr;
};

class CudaCounter {
 public:
  CudaCounter(CudaRuntime &runtime, int device) : runtime_(runtime), device_(device), word_(runtime.take_word(device)) {}
  ~CudaCounter() { runtime_.give_word(device_, word_); }
  CudaCounter(const CudaCounter &) = delete;
  CudaCounter &operator=(const CudaCounter &) = delete;
  std::atomic<uint64_t> &value() const noexcept { return *word_.host; }
  Pointer there() const noexcept { return word_.device; }
  Handle context() const { return runtime_.context(device_); }

 private:
  CudaRuntime &runtime_;
  const int device_;
  const Words::Word word_;
};

class CudaGate final : public Gate {
 public:
  CudaGate(CudaRuntime &runtime, int device) : counter_(runtime, device) {}
  void arm(Stream &stream, uint64_t value) override {
    const Current current(counter_.context());
    ISTHMUS_CUDA(cuStreamWaitValue64_v2, stream.handle(), counter_.there(), value, kWaitGreaterOrEqual);
  }
  void open(uint64_t value) noexcept override { raise(value); }
  void poison() noexcept override { raise(kOpen); }

 private:
  void raise(uint64_t value) noexcept {
    std::atomic<uint64_t> &now = counter_.value();
    uint64_t seen = now.load(std::memory_order_relaxed);
    while (seen < value && !now.compare_exchange_weak(seen, value, std::memory_order_release, std::memory_order_relaxed)) {}
  }
  CudaCounter counter_;
};

class CudaSignal final : public Signal {
 public:
  CudaSignal(CudaRuntime &runtime, int device) : counter_(runtime, device) {}
  void arm(Stream &stream, uint64_t value) override {
    const Current current(counter_.context());
    ISTHMUS_CUDA(cuStreamWriteValue64_v2, stream.handle(), counter_.there(), value, kWriteDefault);
  }
  uint64_t value() const noexcept override { return counter_.value().load(std::memory_order_acquire); }

 private:
  CudaCounter counter_;
};

std::unique_ptr<Event> CudaRuntime::make_event(int device) { return std::make_unique<CudaEvent>(*this, device); }
std::unique_ptr<Gate> CudaRuntime::make_gate(int device) { return std::make_unique<CudaGate>(*this, device); }
std::unique_ptr<Signal> CudaRuntime::make_signal(int device, Wake, void *) {
  return std::make_unique<CudaSignal>(*this, device);
}

void load() {
  // What the process has already comes first; it is never closed.
  void *library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (!library) library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fail(Code::Unsupported,
         "NVIDIA's driver library was not found ({}): install the driver, or set ISTHMUS_DEVICE=host on this rank",
         ::dlerror());
#define ISTHMUS_LOAD(name, arguments)                                                                                       \
  if (void *const found = ::dlsym(library, #name)) the_functions.name = reinterpret_cast<Result(*) arguments>(found);       \
  else                                                                                                                      \
    fail(Code::Unsupported, "NVIDIA's driver library (libcuda.so.1) has no {}: a driver for CUDA {}.{} or newer is needed", \
         #name, kLeastVersion / 1000, kLeastVersion % 1000 / 10);
  ISTHMUS_CUDA_FUNCTIONS(ISTHMUS_LOAD)
#undef ISTHMUS_LOAD
}

CudaRuntime &open() {
  load();
  const Result r = the_functions.cuInit(0);
  int version = 0, count = 0;
  if (r == kSuccess) {
    ISTHMUS_CUDA(cuDriverGetVersion, &version);
    ISTHMUS_CUDA(cuDeviceGetCount, &count);
  }
  if (r == kNoDevice || (r == kSuccess && count == 0))
    fail(Code::Unsupported,
         "NVIDIA's driver library is here but finds no device (is one visible to this process? CUDA_VISIBLE_DEVICES): set "
         "ISTHMUS_DEVICE=host on this rank to go on without");
  if (r != kSuccess) fail_call("cuInit", r);
  if (version < kLeastVersion)
    fail(Code::Unsupported, "NVIDIA's driver is for CUDA {}.{}, and {}.{} or newer is needed: install a newer driver",
         version / 1000, version % 1000 / 10, kLeastVersion / 1000, kLeastVersion % 1000 / 10);
  auto runtime = std::make_unique<CudaRuntime>(version, count);
  for (int i = 0; i < count; ++i) {
    Device number = 0;
    ISTHMUS_CUDA(cuDeviceGet, &number, i);
    runtime->set_number(i, number);
  }
  return *runtime.release();
}

}  // namespace

Runtime &cuda_runtime() {
  static std::mutex mutex;
  static CudaRuntime *opened = nullptr;  // never destroyed: streams and words outlive static destructors
  const std::lock_guard lock(mutex);
  if (!opened) opened = &open();
  return *opened;
}

}  // namespace isthmus::device
