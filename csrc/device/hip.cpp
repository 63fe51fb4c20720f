#include "device/hip.hpp"

#include <dlfcn.h>

#include <cctype>
#include <fstream>

#include "device/calling.hpp"
#include "device/hip_abi.hpp"
#include "device/vendor_runtime.hpp"

namespace isthmus::device {
namespace {

using namespace hip_abi;

constexpr const char *kLibraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};

Functions the_functions;

std::string version_text(int version) { return formatted("{}.{}", version / 10'000'000, version / 100'000 % 100); }
std::string needed() {
  return formatted("install ROCm {} or newer, or set ISTHMUS_DEVICE=host on this rank to go on without",
                   version_text(kLeastVersion));
}

std::string code_text(Result r) {
  const char *name = the_functions.hipGetErrorName(r), *text = the_functions.hipGetErrorString(r);
  return formatted("{} ({}{}{})", name ? name : "an unknown error", r, text ? ": " : "", text ? text : "");
}

// Takes an error out of the runtime. Newer runtimes keep an error until somebody asks, and the program would take it for its own.
Result absorbed(Result r) {
  if (r != kSuccess) the_functions.hipGetLastError();
  return r;
}

Status status_of(const char *call, Result r) {
  if (absorbed(r) == kSuccess) return {};
  return {Code::Device, formatted("AMD runtime: {} failed with {}", call, code_text(r))};
}

[[noreturn]] void fail_call(const char *call, Result r) {
  const Status s = status_of(call, r);
  throw Error(s.code, s.text);
}

#define ISTHMUS_HIP(name, ...)                                                                                   \
  do {                                                                                                           \
    const Result isthmus_result = called("AMD runtime", #name, [&] { return the_functions.name(__VA_ARGS__); }); \
    if (isthmus_result != kSuccess) fail_call(#name, isthmus_result);                                            \
  } while (false)

// While a program records a graph in the mode for all threads, a question to the driver would end the recording, and no memory is allocated, pinned
// or released. The calling thread says while this object lives that it has nothing to do with the recording.
class HipAside {
 public:
  HipAside() noexcept { the_functions.hipThreadExchangeStreamCaptureMode(&mode_); }
  ~HipAside() { the_functions.hipThreadExchangeStreamCaptureMode(&mode_); }
  HipAside(const HipAside &) = delete;
  HipAside &operator=(const HipAside &) = delete;

 private:
  int mode_ = kCaptureRelaxed;
};

class HipCalls {
 public:
  static constexpr const char *kVendor = "hip", *kMaker = "amd", *kName = "AMD runtime";
  static constexpr bool kValues = true, kWays = false, kTrailing = true;
  static constexpr Dlpack kDlpack{10, 0};  // kDLROCM
  static constexpr Ends kEnds{"hipStreamDestroy", "hipEventDestroy", "hipFree", "hipHostUnregister"};
  using Handle = hip_abi::Handle;

  HipCalls(int version, int count) : version_(version), count_(count) {}

  int devices() const { return count_; }
  std::string version() const { return version_text(version_); }
  std::string describe(int device) const {
    char name[256] = {};
    ISTHMUS_HIP(hipDeviceGetName, name, sizeof name - 1, device);
    return formatted("{} at {}", name, bus(device));
  }
  // The node is read from the file system: only the newest versions have an attribute for it.
  int numa(int device) const {
    std::string at = bus(device);
    std::transform(at.begin(), at.end(), at.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    int node = -1;
    std::ifstream("/sys/bus/pci/devices/" + at + "/numa_node") >> node;
    return std::max(node, -1);
  }
  bool waits(int device) const { return attribute(kAttributeWaits, device) != 0; }
  // Of all architectures with 8-bit arithmetic only 9.4 has the other kind (gfx940 to gfx942).
  Float8 float8(int device) const {
    return attribute(kAttributeMajor, device) == 9 && attribute(kAttributeMinor, device) == 4 ? Float8::Fnuz : Float8::Ocp;
  }

  // 0: the default stream, whose handle is 0 or 1. The default stream of the thread, whose handle is 2, has no number.
  int64_t dlpack_stream(const void *handle) const {
    const auto number = reinterpret_cast<intptr_t>(handle);
    if (number == 2)
      fail(Code::Unsupported, "DLPack has no number for the default stream of a thread (hipStreamPerThread): give another");
    return number == 1 ? 0 : number;
  }

  // No call tells of a reset, but after one the registered page is registered no more.
  bool begin(int device, void *page) const {
    if (!page) return false;
    const intptr_t before = enter(device);
    void *there = nullptr;
    const Result r = absorbed(the_functions.hipHostGetDevicePointer(&there, page, 0));
    exit(before);
    return r != kSuccess;
  }
  // exit() puts the thread's device back as it was. -1: nothing is to be put back.
  intptr_t enter(int device) const {
    int before = -1;
    ISTHMUS_HIP(hipGetDevice, &before);
    if (before != device) ISTHMUS_HIP(hipSetDevice, device);
    return before == device ? -1 : before;
  }
  void exit(intptr_t before) const noexcept {
    if (before >= 0) the_functions.hipSetDevice(static_cast<int>(before));
  }

  Handle make_stream() const {
    Handle stream = nullptr;
    ISTHMUS_HIP(hipStreamCreateWithFlags, &stream, kStreamNonBlocking);
    return stream;
  }
  Status try_destroy_stream(Handle stream) const {
    return status_of("hipStreamDestroy", the_functions.hipStreamDestroy(stream));
  }
  Status try_stream(Handle stream, int device) const {
    const HipAside aside;
    const Result r = absorbed(the_functions.hipStreamQuery(stream));
    if (r == kSuccess || r == kNotReady) return {};
    return {Code::Device, formatted("AMD runtime: device {} failed with {}, says hipStreamQuery", device, code_text(r))};
  }
  bool capturing(Handle stream) const {
    int capture = 0;
    ISTHMUS_HIP(hipStreamIsCapturing, stream, &capture);
    return capture != 0;
  }
  bool default_free() const {  // as that of CudaCalls
    int capture = 0;
    const auto asked = [&] { return absorbed(the_functions.hipStreamIsCapturing(nullptr, &capture)); };
    return called(kName, "hipStreamIsCapturing", asked) == kSuccess && capture == 0;
  }

  Handle make_event() const {
    Handle event = nullptr;
    ISTHMUS_HIP(hipEventCreateWithFlags, &event, kEventDisableTiming);
    return event;
  }
  Status try_destroy_event(Handle event) const { return status_of("hipEventDestroy", the_functions.hipEventDestroy(event)); }
  void record(Handle event, Handle stream) const { ISTHMUS_HIP(hipEventRecord, event, stream); }
  void hold(Handle stream, Handle event) const { ISTHMUS_HIP(hipStreamWaitEvent, stream, event, 0); }
  bool reached(Handle event) const {
    const HipAside aside;
    const Result r = absorbed(the_functions.hipEventQuery(event));
    if (r != kSuccess && r != kNotReady) fail_call("hipEventQuery", r);
    return r == kSuccess;
  }

  void wait_value(Handle stream, void *word, uint64_t value) const {
    ISTHMUS_HIP(hipStreamWaitValue64, stream, word, value, kWaitGreaterOrEqual, ~uint64_t{0});
  }
  void write_value(Handle stream, void *word, uint64_t value) const {
    ISTHMUS_HIP(hipStreamWriteValue64, stream, word, value, 0);
  }
  void call_host(int device, Handle stream, Marks::Mark &mark) const {
    if (!the_functions.hipLaunchHostFunc)
      fail(Code::Unsupported, "AMD runtime: streams of device {} write no values, and ROCm {} calls no function of the host",
           device, version());
    ISTHMUS_HIP(hipLaunchHostFunc, stream, Marks::reached, &mark);
  }
  // Streams that wait in hardware wait for such words only. Where there are no such words, streams wait for any registered memory.
  void *make_gate_word() const {
    const HipAside aside;
    void *word = nullptr;
    const Result r = absorbed(called(kName, "hipExtMallocWithFlags", [&] {
      return the_functions.hipExtMallocWithFlags(&word, sizeof(uint64_t), kMallocSignalMemory);
    }));
    if (r == kInvalidValue || r == kNotSupported) return nullptr;
    if (r != kSuccess) fail_call("hipExtMallocWithFlags", r);
    return word;
  }

  void copy(void *to, const void *from, size_t bytes, Handle stream) const {
    ISTHMUS_HIP(hipMemcpyAsync, to, from, bytes, kCopyDefault, stream);
  }
  void *allocate(size_t bytes) const {
    const HipAside aside;
    void *memory = nullptr;
    ISTHMUS_HIP(hipMalloc, &memory, bytes);
    return memory;
  }
  Status try_release(void *memory) const {
    const HipAside aside;
    return status_of("hipFree", the_functions.hipFree(memory));
  }
  void pin(void *memory, size_t bytes) const {
    const HipAside aside;
    const Result r = called(kName, "hipHostRegister", [&] {
      return the_functions.hipHostRegister(memory, bytes, kRegisterPortable | kRegisterMapped);
    });
    absorbed(r);
    // The range is whole pages and mapped. So kInvalidValue, the answer of newer versions too, says that the range cannot be pinned.
    if (r == kInvalidValue || r == kOutOfMemory)
      fail(Code::Resource, "AMD runtime: hipHostRegister failed with {}", code_text(r));
    if (r == kAlreadyRegistered) fail(Code::Argument, "AMD runtime: the range is registered already: {}", code_text(r));
    if (r != kSuccess) fail_call("hipHostRegister", r);
  }
  Status try_unpin(void *memory) const {
    const HipAside aside;
    return status_of("hipHostUnregister", the_functions.hipHostUnregister(memory));
  }
  void *device_pointer(void *memory) const {
    void *there = nullptr;
    ISTHMUS_HIP(hipHostGetDevicePointer, &there, memory, 0);
    return there;
  }
  PointerInfo find(const void *memory) const {
    PointerAttributes a;
    Result r = absorbed(the_functions.hipPointerGetAttributes(&a, memory));
    // Old versions look on the thread's device, and fail where that device cannot reach the one that has the memory.
    for (int device = 0; device < count_ && r != kSuccess && r != kInvalidValue; ++device) {
      const intptr_t before = enter(device);
      r = absorbed(the_functions.hipPointerGetAttributes(&a, memory));
      exit(before);
    }
    if (r == kInvalidValue) return {};
    if (r != kSuccess) fail_call("hipPointerGetAttributes", r);
    const bool old = version_ < version_code(6, 0);
    if (a.managed != 0 || a.type == (old ? kDevice5 : kDevice6) || (!old && a.type == kManaged6))
      return {Where::Device, a.device};
    if (a.type == (old ? kHost5 : kHost6)) return {Where::Registered, a.device, a.there};
    return {};
  }

 private:
  static std::string bus(int device) {
    char text[32] = {};
    ISTHMUS_HIP(hipDeviceGetPCIBusId, text, sizeof text - 1, device);
    return text;
  }
  static int attribute(int number, int device) {
    int value = 0;
    ISTHMUS_HIP(hipDeviceGetAttribute, &value, number, device);
    return value;
  }

  int version_, count_;
};

void load() {
  void *library = nullptr;
  const char *name = nullptr;
  std::string why;
  // A library that the process has already comes first. The library is never closed.
  for (const int how : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL})
    for (const char *candidate : kLibraries) {
      if (library) break;
      name = candidate;
      if (library = ::dlopen(candidate, how); library) break;
      const char *said = ::dlerror();
      // A file that is there and cannot be opened says more than a file that is not there.
      if (!(how & RTLD_NOLOAD) && said &&
          (why.empty() || std::string_view(said).find("No such file") == std::string_view::npos))
        why = said;
    }
  if (!library) fail(Code::Unsupported, "AMD's runtime library (libamdhip64.so) was not found ({}): {}", why, needed());
  const char *missing = nullptr;
#define ISTHMUS_FIND(function)                                                                              \
  the_functions.function = reinterpret_cast<decltype(the_functions.function)>(::dlsym(library, #function)); \
  if (!the_functions.function && !missing) missing = #function;
#define ISTHMUS_LOAD(function, arguments) ISTHMUS_FIND(function)
  ISTHMUS_HIP_FUNCTIONS(ISTHMUS_LOAD)
  ISTHMUS_FIND(hipGetErrorName)
  ISTHMUS_FIND(hipGetErrorString)
#undef ISTHMUS_LOAD
#undef ISTHMUS_FIND
  if (missing) {
    int version = 0;
    const bool told = the_functions.hipRuntimeGetVersion && the_functions.hipRuntimeGetVersion(&version) == kSuccess;
    fail(Code::Unsupported, "AMD's runtime library ({}, {}) has no {}: {}", name,
         told ? "version " + version_text(version) : "which tells no version", missing, needed());
  }
  the_functions.hipLaunchHostFunc =
      reinterpret_cast<decltype(the_functions.hipLaunchHostFunc)>(::dlsym(library, "hipLaunchHostFunc"));
}

HipCalls open() {
  load();
  const Result r = absorbed(the_functions.hipInit(0));
  int version = 0, count = 0;
  Result counted = kSuccess;
  if (r == kSuccess) {
    ISTHMUS_HIP(hipRuntimeGetVersion, &version);
    counted = absorbed(the_functions.hipGetDeviceCount(&count));
  }
  if (r == kNoDevice || r == kInvalidDevice || counted == kNoDevice || (r == kSuccess && counted == kSuccess && count == 0))
    fail(Code::Unsupported,
         "AMD's runtime library is here but finds no device (is one visible to this process? HIP_VISIBLE_DEVICES): set "
         "ISTHMUS_DEVICE=host on this rank to go on without");
  if (r != kSuccess || counted != kSuccess)
    fail(Code::Unsupported, "AMD's runtime library (libamdhip64.so) does not start, {} failed with {}: {}",
         r != kSuccess ? "hipInit" : "hipGetDeviceCount", code_text(r != kSuccess ? r : counted), needed());
  if (version < kLeastVersion)
    fail(Code::Unsupported, "AMD's runtime library (libamdhip64.so) is version {}: {}", version_text(version), needed());
  return {version, count};
}

}  // namespace

Runtime &hip_runtime() { return Opened<HipCalls>::once(open); }

}  // namespace isthmus::device
