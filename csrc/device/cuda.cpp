#include "device/cuda.hpp"

#include <dlfcn.h>

#include "base/lock.hpp"
#include "device/calling.hpp"
#include "device/cuda_abi.hpp"
#include "device/vendor_runtime.hpp"

namespace isthmus::device {
namespace {

using namespace cuda_abi;

Functions the_functions;

std::string version_text(int version) { return formatted("{}.{}", version / 1000, version % 1000 / 10); }
std::string needed() {
  return formatted("install a driver for CUDA {} or newer, or set ISTHMUS_DEVICE=host on this rank to go on without",
                   version_text(kLeastVersion));
}

std::string code_text(Result r) {
  const char *name = nullptr, *text = nullptr;
  the_functions.cuGetErrorName(r, &name);
  the_functions.cuGetErrorString(r, &text);
  return formatted("{} ({}{}{})", name ? name : "an unknown error", r, text ? ": " : "", text ? text : "");
}

Status status_of(const char *call, Result r) {
  if (r == kSuccess) return {};
  return {Code::Device, formatted("NVIDIA driver: {} failed with {}", call, code_text(r))};
}

[[noreturn]] void fail_call(const char *call, Result r) {
  const Status s = status_of(call, r);
  throw Error(s.code, s.text);
}

#define ISTHMUS_CUDA(name, ...)                                                                                    \
  do {                                                                                                             \
    const Result isthmus_result = called("NVIDIA driver", #name, [&] { return the_functions.name(__VA_ARGS__); }); \
    if (isthmus_result != kSuccess) fail_call(#name, isthmus_result);                                              \
  } while (false)

Pointer number(const void *p) { return static_cast<Pointer>(reinterpret_cast<uintptr_t>(p)); }
void *address(Pointer p) { return reinterpret_cast<void *>(static_cast<uintptr_t>(p)); }

// While a program records a graph in the mode for all threads, a question to the driver would end the recording, and no memory is allocated, pinned
// or released. The calling thread says while this object lives that it has nothing to do with the recording.
class CudaAside {
 public:
  CudaAside() noexcept { the_functions.cuThreadExchangeStreamCaptureMode(&mode_); }
  ~CudaAside() { the_functions.cuThreadExchangeStreamCaptureMode(&mode_); }
  CudaAside(const CudaAside &) = delete;
  CudaAside &operator=(const CudaAside &) = delete;

 private:
  int mode_ = kCaptureRelaxed;
};

class CudaCalls {
 public:
  static constexpr const char *kVendor = "cuda", *kMaker = "nvidia", *kName = "NVIDIA driver";
  static constexpr bool kValues = true, kWays = false, kTrailing = true;
  static constexpr Dlpack kDlpack{2, 13};  // kDLCUDA, kDLCUDAManaged
  static constexpr Ends kEnds{"cuStreamDestroy", "cuEventDestroy", "cuMemFree", "cuMemHostUnregister"};
  using Handle = cuda_abi::Handle;

  CudaCalls(int version, const std::vector<Device> &numbers) : version_(version), state_(std::make_unique<State>(numbers)) {}

  int devices() const { return static_cast<int>(state_->devices.size()); }
  std::string version() const { return version_text(version_); }
  std::string describe(int device) const {
    char name[256] = {}, bus[32] = {};
    ISTHMUS_CUDA(cuDeviceGetName, name, sizeof name - 1, at(device).number);
    ISTHMUS_CUDA(cuDeviceGetPCIBusId, bus, sizeof bus - 1, at(device).number);
    return formatted("{} at {}", name, bus);
  }
  int numa(int device) const {
    int node = -1;
    return the_functions.cuDeviceGetAttribute(&node, kAttributeNuma, at(device).number) == kSuccess ? node : -1;
  }
  bool waits(int device) const {
    int wide = 0;
    ISTHMUS_CUDA(cuDeviceGetAttribute, &wide, kAttribute64BitWaits, at(device).number);
    return wide != 0;
  }
  Float8 float8(int) const { return Float8::Ocp; }
  // 1: the default stream. 2: the default stream of the thread. The driver knows both streams by these numbers too.
  int64_t dlpack_stream(const void *handle) const { return handle ? reinterpret_cast<intptr_t>(handle) : 1; }

  // Enters the primary context, which the vendor's runtime library uses too. The context is made when the device is first used, and kept. The
  // program may reset the context, and a new one has the same handle. The driver must not be shown what we had in the old one. Newer
  // drivers tell the two by a number.
  intptr_t enter(int device) const {
    const PerDevice &d = in_use(device);
    ISTHMUS_CUDA(cuCtxPushCurrent_v2, d.context.load(std::memory_order_relaxed));
    if (!the_functions.cuCtxGetId) return 0;
    unsigned long long now = 0;
    const Result r = the_functions.cuCtxGetId(d.context.load(std::memory_order_relaxed), &now);
    if (r == kSuccess && now == d.id.load(std::memory_order_relaxed)) return 0;
    exit(0);
    if (r != kSuccess) fail_call("cuCtxGetId", r);
    fail(Code::Device,
         "NVIDIA driver: device {} has been reset by the program: cuCtxGetId gives another context, and what Isthmus had in "
         "the last one is gone",
         device);
  }
  bool begin(int device, void *) const {
    PerDevice &d = at(device);
    const Lock lock(d.mutex);
    const Handle known = d.context.load(std::memory_order_relaxed);
    if (!known) return false;
    unsigned flags = 0;
    int active = 0;
    ISTHMUS_CUDA(cuDevicePrimaryCtxGetState, d.number, &flags, &active);
    unsigned long long now = 0;
    const bool other =
        active && the_functions.cuCtxGetId && (the_functions.cuCtxGetId(known, &now) != kSuccess || now != d.id.load());
    if (active && !other) return false;
    retain(d);
    return true;
  }
  void exit(intptr_t) const noexcept {
    Handle popped = nullptr;
    the_functions.cuCtxPopCurrent_v2(&popped);
  }

  Handle make_stream() const {
    Handle stream = nullptr;
    ISTHMUS_CUDA(cuStreamCreate, &stream, kStreamNonBlocking);
    return stream;
  }
  Status try_destroy_stream(Handle stream) const {
    return status_of("cuStreamDestroy", the_functions.cuStreamDestroy_v2(stream));
  }
  Status try_stream(Handle stream, int device) const {
    const CudaAside aside;
    const Result r = the_functions.cuStreamQuery(stream);
    if (r == kSuccess || r == kNotReady) return {};
    return {Code::Device, formatted("NVIDIA driver: device {} failed with {}, says cuStreamQuery", device, code_text(r))};
  }
  bool capturing(Handle stream) const {
    int capture = 0;
    ISTHMUS_CUDA(cuStreamIsCapturing, stream, &capture);
    return capture != 0;
  }
  // While a stream that waits for the default stream is recorded, the driver answers with an error, and the recording goes on.
  bool default_free() const {
    int capture = 0;
    return called(kName, "cuStreamIsCapturing", [&] { return the_functions.cuStreamIsCapturing(nullptr, &capture); }) ==
               kSuccess &&
           capture == 0;
  }

  Handle make_event() const {
    Handle event = nullptr;
    ISTHMUS_CUDA(cuEventCreate, &event, kEventDisableTiming);
    return event;
  }
  Status try_destroy_event(Handle event) const {
    return status_of("cuEventDestroy", the_functions.cuEventDestroy_v2(event));
  }
  void record(Handle event, Handle stream) const { ISTHMUS_CUDA(cuEventRecord, event, stream); }
  void hold(Handle stream, Handle event) const { ISTHMUS_CUDA(cuStreamWaitEvent, stream, event, 0); }
  bool reached(Handle event) const {
    const CudaAside aside;
    const Result r = the_functions.cuEventQuery(event);
    if (r != kSuccess && r != kNotReady) fail_call("cuEventQuery", r);
    return r == kSuccess;
  }

  void wait_value(Handle stream, void *word, uint64_t value) const {
    ISTHMUS_CUDA(cuStreamWaitValue64_v2, stream, number(word), value, kWaitGreaterOrEqual);
  }
  void write_value(Handle stream, void *word, uint64_t value) const {
    ISTHMUS_CUDA(cuStreamWriteValue64_v2, stream, number(word), value, kWriteDefault);
  }
  void *make_gate_word() const { return nullptr; }  // any registered memory will do for a gate
  void call_host(int, Handle stream, Marks::Mark &mark) const {
    ISTHMUS_CUDA(cuLaunchHostFunc, stream, Marks::reached, &mark);
  }

  void copy(void *to, const void *from, size_t bytes, Handle stream) const {
    ISTHMUS_CUDA(cuMemcpyAsync, number(to), number(from), bytes, stream);
  }
  void *allocate(size_t bytes) const {
    const CudaAside aside;
    Pointer memory = 0;
    ISTHMUS_CUDA(cuMemAlloc_v2, &memory, bytes);
    return address(memory);
  }
  Status try_release(void *memory) const {
    const CudaAside aside;
    return status_of("cuMemFree", the_functions.cuMemFree_v2(number(memory)));
  }
  void pin(void *memory, size_t bytes) const {
    const CudaAside aside;
    const Result r = called(kName, "cuMemHostRegister", [&] {
      return the_functions.cuMemHostRegister_v2(memory, bytes, kRegisterPortable | kRegisterMapped);
    });
    if (r == kAlreadyRegistered) fail(Code::Argument, "NVIDIA driver: the range is registered already: {}", code_text(r));
    // What is short is the memory of the host that may be locked.
    if (r == kOutOfMemory) fail(Code::Resource, "NVIDIA driver: cuMemHostRegister failed with {}", code_text(r));
    if (r != kSuccess) fail_call("cuMemHostRegister", r);
  }
  Status try_unpin(void *memory) const {
    const CudaAside aside;
    return status_of("cuMemHostUnregister", the_functions.cuMemHostUnregister(memory));
  }
  void *device_pointer(void *memory) const {
    Pointer there = 0;
    ISTHMUS_CUDA(cuMemHostGetDevicePointer_v2, &there, memory, 0);
    return address(there);
  }
  PointerInfo find(const void *memory) const {
    unsigned type = 0, managed = 0;
    int device = -1;
    // Any context will do. A thread that has never used the driver has none.
    const Handle known = state_->any_context.load(std::memory_order_acquire);
    ISTHMUS_CUDA(cuCtxPushCurrent_v2, known ? known : in_use(0).context.load());
    struct Leave {
      const CudaCalls &calls;
      ~Leave() { calls.exit(0); }
    } leave{*this};
    // kInvalidValue is the driver's answer for memory that nobody made known to the driver. All other codes are failures.
    const Result r = called(kName, "cuPointerGetAttribute",
                            [&] { return the_functions.cuPointerGetAttribute(&type, kPointerMemoryType, number(memory)); });
    if (r == kInvalidValue) return {};
    if (r != kSuccess) fail_call("cuPointerGetAttribute", r);
    ISTHMUS_CUDA(cuPointerGetAttribute, &device, kPointerDevice, number(memory));
    ISTHMUS_CUDA(cuPointerGetAttribute, &managed, kPointerManaged, number(memory));
    if (type == kMemoryDevice || managed != 0) return {Where::Device, device};
    // All contexts have one address for the memory. A device that cannot reach the memory says so here.
    Pointer there = 0;
    const Result reached = called(kName, "cuPointerGetAttribute", [&] {
      return the_functions.cuPointerGetAttribute(&there, kPointerThere, number(memory));
    });
    return {Where::Registered, device, reached == kSuccess ? address(there) : nullptr};
  }

 private:
  struct PerDevice {
    Device number = 0;
    Mutex mutex;  // held over the vendor's calls that make the context: one thread makes it
    std::atomic<Handle> context{nullptr};
    std::atomic<unsigned long long> id{0};  // of the context; published by the store to `context`
  };
  struct State {
    explicit State(const std::vector<Device> &numbers) : devices(numbers.size()) {
      for (size_t i = 0; i < numbers.size(); ++i) devices[i].number = numbers[i];
    }
    std::vector<PerDevice> devices;
    std::atomic<Handle> any_context{nullptr};
  };
  PerDevice &at(int device) const { return state_->devices[static_cast<size_t>(device)]; }
  const PerDevice &in_use(int device) const {
    PerDevice &d = at(device);
    if (!d.context.load(std::memory_order_acquire)) {
      const Lock lock(d.mutex);
      if (!d.context.load(std::memory_order_relaxed)) retain(d);
    }
    return d;
  }
  void retain(PerDevice &d) const ISTHMUS_REQUIRES(d.mutex) {
    Handle context = nullptr;
    ISTHMUS_CUDA(cuDevicePrimaryCtxRetain, &context, d.number);
    unsigned long long id = 0;
    if (the_functions.cuCtxGetId) ISTHMUS_CUDA(cuCtxGetId, context, &id);
    d.id.store(id, std::memory_order_relaxed);
    d.context.store(context, std::memory_order_release);
    state_->any_context.store(context, std::memory_order_release);
  }

  int version_;
  std::unique_ptr<State> state_;
};

void load() {
  // A library that the process has already comes first. The library is never closed.
  void *library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (!library) library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fail(Code::Unsupported, "NVIDIA's driver library (libcuda.so.1) was not found ({}): {}", ::dlerror(), needed());
  const char *missing = nullptr;
#define ISTHMUS_LOAD(name, arguments)                                                  \
  the_functions.name = reinterpret_cast<Result(*) arguments>(::dlsym(library, #name)); \
  if (!the_functions.name && !missing) missing = #name;
  ISTHMUS_CUDA_FUNCTIONS(ISTHMUS_LOAD)
#undef ISTHMUS_LOAD
#define ISTHMUS_LOAD(name, arguments) the_functions.name = reinterpret_cast<Result(*) arguments>(::dlsym(library, #name));
  ISTHMUS_CUDA_OPTIONAL(ISTHMUS_LOAD)
#undef ISTHMUS_LOAD
  if (!missing) return;
  int version = 0;
  const bool told = the_functions.cuDriverGetVersion && the_functions.cuDriverGetVersion(&version) == kSuccess;
  fail(Code::Unsupported, "NVIDIA's driver library (libcuda.so.1, {}) has no {}: {}",
       told ? "for CUDA " + version_text(version) : "which tells no version", missing, needed());
}

CudaCalls open() {
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
  if (r != kSuccess)
    fail(Code::Unsupported, "NVIDIA's driver library (libcuda.so.1) does not start, cuInit failed with {}: {}", code_text(r),
         needed());
  if (version < kLeastVersion)
    fail(Code::Unsupported, "NVIDIA's driver library (libcuda.so.1) is for CUDA {}: {}", version_text(version), needed());
  std::vector<Device> numbers(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) ISTHMUS_CUDA(cuDeviceGet, &numbers[static_cast<size_t>(i)], i);
  return {version, numbers};
}

}  // namespace

Runtime &cuda_runtime() { return Opened<CudaCalls>::once(open); }

}  // namespace isthmus::device
