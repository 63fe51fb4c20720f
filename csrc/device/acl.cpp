#include "device/acl.hpp"

#include <dlfcn.h>

#include <chrono>

#include "base/clock.hpp"
#include "base/lock.hpp"
#include "device/calling.hpp"
#include "device/acl_abi.hpp"
#include "device/acl_reports.hpp"
#include "device/vendor_runtime.hpp"

namespace isthmus::device {
namespace {

using namespace acl_abi;

constexpr const char *kLibrary = "libascendcl.so";
// The text names a version that is known to have all functions.
constexpr const char *kNeeded =
    "install CANN 8.3 or newer and source its set_env.sh, or set ISTHMUS_DEVICE=host on this rank to go on without";

Functions the_functions;

// The library's own words on this thread's last failure, in one line.
std::string last_words() {
  const char *said = the_functions.aclGetRecentErrMsg ? the_functions.aclGetRecentErrMsg() : nullptr;
  std::string text = said ? said : "";
  constexpr size_t kMost = 400;
  if (text.size() > kMost) text.resize(kMost);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::string code_text(Result r) {
  const std::string said = last_words();
  return said.empty() ? formatted("error {}", r) : formatted("error {}: {}", r, said);
}

Status status_of(const char *call, Result r) {
  if (r == kSuccess) return {};
  return {Code::Device, formatted("Ascend ACL: {} failed with {}", call, code_text(r))};
}

[[noreturn]] void fail_call(const char *call, Result r) {
  const Status s = status_of(call, r);
  throw Error(s.code, s.text);
}

#define ISTHMUS_ACL(name, ...)                                                                                  \
  do {                                                                                                          \
    const Result isthmus_result = called("Ascend ACL", #name, [&] { return the_functions.name(__VA_ARGS__); }); \
    if (isthmus_result != kSuccess) fail_call(#name, isthmus_result);                                           \
  } while (false)

// The context in which the thread works, or null: most threads of a program have none.
Handle current_context() {
  Handle context = nullptr;
  const Result r = the_functions.aclrtGetCurrentContext(&context);
  if (r == kNoContext) return nullptr;
  if (r != kSuccess) fail_call("aclrtGetCurrentContext", r);
  return context;
}

class AclCalls {
 public:
  static constexpr const char *kVendor = "acl", *kMaker = "ascend", *kName = "Ascend ACL";
  static constexpr bool kValues = false, kWays = true, kTrailing = false;
  static constexpr Dlpack kDlpack{12, 0};  // kDLExtDev, as PyTorch has it for devices outside of its own list
  static constexpr Ends kEnds{"aclrtDestroyStream", "aclrtDestroyEvent", "aclrtFree", "aclrtHostUnregister"};
  using Handle = acl_abi::Handle;

  AclCalls(std::string version, int count)
      : version_(std::move(version)), state_(std::make_unique<State>(static_cast<size_t>(count))) {}

  int devices() const { return static_cast<int>(state_->devices.size()); }
  std::string version() const { return version_; }
  std::string describe(int device) const {
    const char *name = the_functions.aclrtGetSocName();
    return formatted("{} number {}", name && *name ? name : "Ascend device", device);
  }
  int numa(int) const { return -1; }  // the library does not say where on the bus a device is
  Float8 float8(int) const { return Float8::Ocp; }
  int64_t dlpack_stream(const void *) const { return -1; }

  // Enters the device's default context, in which programs and the vendor's other libraries work too. A thread that had a context gets it back.
  // A thread that had none keeps the default context, since the library has no call that takes a context away.
  intptr_t enter(int device) const {
    const Handle before = current_context(), ours = context(device);
    if (before == ours) return 0;
    ISTHMUS_ACL(aclrtSetCurrentContext, ours);
    return reinterpret_cast<intptr_t>(before);
  }
  void exit(intptr_t before) const noexcept {
    if (before != 0) the_functions.aclrtSetCurrentContext(reinterpret_cast<Handle>(before));
  }

  // The program may have reset the device, whoever else had set it. Then the context is gone.
  bool begin(int device, void *) const {
    PerDevice &d = at(device);
    const Lock lock(d.mutex);
    const Handle known = d.context.load(std::memory_order_relaxed), before = current_context();
    if (!known) return false;
    const bool gone = the_functions.aclrtSetCurrentContext(known) != kSuccess;
    if (before) the_functions.aclrtSetCurrentContext(before);
    if (gone) make_context(d, device);
    return gone;
  }

  Handle make_stream() const {
    Handle stream = nullptr;
    ISTHMUS_ACL(aclrtCreateStreamWithConfig, &stream, 0, kStreamFastLaunch | kStreamFastSync);
    // Without this mode a signal behind a failed copy would say that the bytes have come.
    if (the_functions.aclrtSetStreamFailureMode)
      if (const Result r = the_functions.aclrtSetStreamFailureMode(stream, kStopOnFailure); r != kSuccess) {
        the_functions.aclrtDestroyStream(stream);
        fail_call("aclrtSetStreamFailureMode", r);
      }
    return stream;
  }
  // The library's call that ends a stream waits for all that the stream holds, perhaps for ever. So the stream is asked first.
  Status try_destroy_stream(Handle stream) const {
    const Deadline deadline(kPatience);
    int state = kStreamBusy;
    while (the_functions.aclrtStreamQuery(stream, &state) == kSuccess && state != kStreamComplete && !deadline.passed())
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    for (PerDevice &d : state_->devices) d.reports.forget(stream, deadline);
    if (state == kStreamComplete) return status_of("aclrtDestroyStream", the_functions.aclrtDestroyStream(stream));
    if (the_functions.aclrtDestroyStreamForce)
      return status_of("aclrtDestroyStreamForce", the_functions.aclrtDestroyStreamForce(stream));
    return {Code::Device, "Ascend ACL: a stream that does not come to its end is left behind"};
  }
  Status try_cut_stream(Handle stream) const {
    if (the_functions.aclrtStreamAbort) return status_of("aclrtStreamAbort", the_functions.aclrtStreamAbort(stream));
    return {Code::Unsupported, "Ascend ACL: this version has no aclrtStreamAbort, so what a stream waits for stays"};
  }
  Status try_stream(Handle stream, int device) const {
    int state = kStreamComplete;
    const Result r = the_functions.aclrtStreamQuery(stream, &state);
    if (r == kSuccess) return {};
    return {Code::Device, formatted("Ascend ACL: device {} failed with {}, says aclrtStreamQuery", device, code_text(r))};
  }
  bool capturing(Handle stream) const {
    if (!stream || !the_functions.aclmdlRICaptureGetInfo) return false;  // nobody records on the default stream
    int capture = kCaptureNone;
    Handle graph = nullptr;
    const Result r = called(kName, "aclmdlRICaptureGetInfo",
                            [&] { return the_functions.aclmdlRICaptureGetInfo(stream, &capture, &graph); });
    if (r == kNotSupported) return false;
    if (r != kSuccess) fail_call("aclmdlRICaptureGetInfo", r);
    return capture != kCaptureNone;
  }

  Handle make_event() const {
    Handle event = nullptr;
    ISTHMUS_ACL(aclrtCreateEventExWithFlag, &event, kEventSync);
    return event;
  }
  Status try_destroy_event(Handle event) const {
    return status_of("aclrtDestroyEvent", the_functions.aclrtDestroyEvent(event));
  }
  void record(Handle event, Handle stream) const { ISTHMUS_ACL(aclrtRecordEvent, event, stream); }
  void hold(Handle stream, Handle event) const { ISTHMUS_ACL(aclrtStreamWaitEvent, stream, event); }
  bool reached(Handle event) const {
    int state = kEventPending;
    ISTHMUS_ACL(aclrtQueryEventStatus, event, &state);
    return state == kEventComplete;
  }

  void call_host(int device, Handle stream, Marks::Mark &mark) const {
    if (!state_->reports.load(std::memory_order_relaxed)) {
      const Result r = called(kName, "aclrtLaunchHostFunc",
                              [&] { return the_functions.aclrtLaunchHostFunc(stream, Marks::reached, &mark); });
      if (r == kSuccess) return;
      if (r != kNotSupported || !the_functions.aclrtLaunchCallback) fail_call("aclrtLaunchHostFunc", r);
      state_->reports.store(true, std::memory_order_relaxed);
    }
    AclReports::Subscribed *subscribed = nullptr;
    if (const Result r = at(device).reports.subscribe(context(device), stream, subscribed); r != kSuccess)
      fail_call("aclrtSubscribeReport", r);
    mark.counter = &subscribed->called;
    ISTHMUS_ACL(aclrtLaunchCallback, Marks::reached, &mark, kCallbackNoBlock, stream);
    subscribed->launched.fetch_add(1, std::memory_order_relaxed);
  }

  void copy(void *to, const void *from, size_t bytes, Way way, Handle stream) const {
    constexpr int kinds[] = {kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice};
    ISTHMUS_ACL(aclrtMemcpyAsync, to, bytes, from, bytes, kinds[static_cast<size_t>(way)], stream);
  }
  void *allocate(size_t bytes) const {
    if (bytes > SIZE_MAX / 2)  // the library adds to the number
      fail(Code::Device, "Ascend ACL: no device has {} bytes", bytes);
    void *memory = nullptr;
    ISTHMUS_ACL(aclrtMalloc, &memory, bytes, kMallocHugeFirst);
    return memory;
  }
  Status try_release(void *memory) const { return status_of("aclrtFree", the_functions.aclrtFree(memory)); }

  void pin(void *memory, size_t bytes) const {
    Result r = kNotSupported;
    const char *call = "aclrtHostRegisterV2";
    if (the_functions.aclrtHostRegisterV2)
      r = called(kName, call,
                 [&] { return the_functions.aclrtHostRegisterV2(memory, bytes, kRegisterV2Mapped | kRegisterV2Pinned); });
    if (r == kNotSupported && the_functions.aclrtHostRegister) {
      void *there = nullptr;  // where kernels find the memory
      call = "aclrtHostRegister";
      r = called(kName, call, [&] { return the_functions.aclrtHostRegister(memory, bytes, kRegisterMapped, &there); });
    }
    if (r == kAlreadyRegistered) fail(Code::Argument, "Ascend ACL: the range is registered already: {}", code_text(r));
    // What is short is the memory of the host that may be locked.
    if (r == kOutOfMemory || r == kNoMemory) fail(Code::Resource, "Ascend ACL: {} failed with {}", call, code_text(r));
    if (r != kSuccess) fail_call(call, r);
  }
  Status try_unpin(void *memory) const {
    return status_of("aclrtHostUnregister", the_functions.aclrtHostUnregister(memory));
  }
  void *device_pointer(void *memory) const { return memory; }  // copies take the host's own address

  PointerInfo find(const void *memory) const {
    if (!memory) return {};
    // The library tells a thread without a context nothing. Any context will do.
    if (!current_context() && !enter_any()) enter(0);
    PointerAttributes a;
    const Result r =
        called(kName, "aclrtPointerGetAttributes", [&] { return the_functions.aclrtPointerGetAttributes(memory, &a); });
    if (r == kParameter || r == kInvalidParameter) return {};
    if (r != kSuccess) fail_call("aclrtPointerGetAttributes", r);
    if (a.type == kAtDevice) return {Where::Device, static_cast<int>(a.device)};
    if (a.type == kAtHost || a.type == kAtHostNode) return {Where::Registered, -1};
    return {};
  }

 private:
  static constexpr double kPatience = 1;  // seconds, less than whoever ends a stream has
  struct PerDevice {
    Mutex mutex;  // held over the vendor's calls that make the context: one thread makes it
    std::atomic<Handle> context{nullptr};
    AclReports reports{the_functions};
  };
  struct State {
    explicit State(size_t count) : devices(count), reports(!the_functions.aclrtLaunchHostFunc) {}
    std::vector<PerDevice> devices;
    std::atomic<bool> reports;  // a thread of ours runs the functions that streams call
  };
  PerDevice &at(int device) const { return state_->devices[static_cast<size_t>(device)]; }
  // The context is made when the device is first used, and kept. Nothing that the program may be using is ever reset or finalised.
  Handle context(int device) const {
    PerDevice &d = at(device);
    if (const Handle known = d.context.load(std::memory_order_acquire)) return known;
    const Lock lock(d.mutex);
    if (!d.context.load(std::memory_order_relaxed)) make_context(d, device);
    return d.context.load(std::memory_order_relaxed);
  }
  // Gives a thread that has no context, and so none to get back, one of a device that is in use. The program may have reset some of these
  // devices. False: there is none.
  bool enter_any() const {
    for (const PerDevice &d : state_->devices)
      if (const Handle known = d.context.load(std::memory_order_acquire))
        if (called(kName, "aclrtSetCurrentContext", [&] { return the_functions.aclrtSetCurrentContext(known); }) == kSuccess)
          return true;
    return false;
  }
  static void make_context(PerDevice &d, int device) ISTHMUS_REQUIRES(d.mutex) {
    const Handle before = current_context();
    ISTHMUS_ACL(aclrtSetDevice, device);
    d.context.store(current_context(), std::memory_order_release);
    if (before) ISTHMUS_ACL(aclrtSetCurrentContext, before);
  }

  std::string version_;
  std::unique_ptr<State> state_;
};

void load() {
  // A library that the process has already comes first. The library is never closed.
  void *library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (!library) library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fail(Code::Unsupported, "Ascend's runtime library ({}) was not found ({}): {}", kLibrary, ::dlerror(), kNeeded);
#define ISTHMUS_LOAD(name, arguments) the_functions.name = reinterpret_cast<Result(*) arguments>(::dlsym(library, #name));
  ISTHMUS_ACL_FUNCTIONS(ISTHMUS_LOAD)
  ISTHMUS_ACL_OPTIONAL(ISTHMUS_LOAD)
#undef ISTHMUS_LOAD
  the_functions.aclrtGetSocName = reinterpret_cast<const char *(*)()>(::dlsym(library, "aclrtGetSocName"));
  the_functions.aclGetRecentErrMsg = reinterpret_cast<const char *(*)()>(::dlsym(library, "aclGetRecentErrMsg"));
}

// The version of the whole package, where the library says so, else the version of the library's interface.
std::string version_text() {
  PackageVersion package;
  if (the_functions.aclsysGetCANNVersion && the_functions.aclsysGetCANNVersion(kPackageCann, &package) == kSuccess &&
      package.version[0] != 0) {
    package.version[sizeof package.version - 1] = 0;
    return formatted("CANN {}", package.version);
  }
  int major = 0, minor = 0, patch = 0;
  if (!the_functions.aclrtGetVersion || the_functions.aclrtGetVersion(&major, &minor, &patch) != kSuccess) return "unknown";
  return formatted("ACL {}.{}.{}", major, minor, patch);
}

// The first function that the library must have and has not, or null.
const char *missing() {
#define ISTHMUS_LOOK(name, arguments) \
  if (!the_functions.name) return #name;
  ISTHMUS_ACL_FUNCTIONS(ISTHMUS_LOOK)
#undef ISTHMUS_LOOK
  const Functions &f = the_functions;
  if (!f.aclrtGetSocName) return "aclrtGetSocName";
  if (!f.aclrtHostRegisterV2 && !f.aclrtHostRegister) return "aclrtHostRegister";
  if (!f.aclrtSubscribeReport || !f.aclrtProcessReport || !f.aclrtUnSubscribeReport)
    the_functions.aclrtLaunchCallback = nullptr;
  if (!f.aclrtLaunchHostFunc && !f.aclrtLaunchCallback) return "aclrtLaunchHostFunc and no aclrtLaunchCallback";
  return nullptr;
}

AclCalls open() {
  load();
  const std::string version = version_text();
  if (const char *name = missing())
    fail(Code::Unsupported, "Ascend's runtime library ({}, version {}) has no {}: {}", kLibrary, version, name, kNeeded);
  const Result r = the_functions.aclInit(nullptr);
  unsigned count = 0;
  Result counted = kSuccess;
  if (r == kSuccess || r == kInitialised) counted = the_functions.aclrtGetDeviceCount(&count);
  if (r == kNoDevice || counted == kNoDevice || (counted == kSuccess && count == 0 && (r == kSuccess || r == kInitialised)))
    fail(Code::Unsupported,
         "Ascend's runtime library is here but finds no device (is one visible to this process? ASCEND_RT_VISIBLE_DEVICES): "
         "set ISTHMUS_DEVICE=host on this rank to go on without");
  if (r != kSuccess && r != kInitialised)
    fail(Code::Unsupported,
         "Ascend's runtime library (version {}) does not start, aclInit failed with {}: is the device's driver installed? "
         "Set ISTHMUS_DEVICE=host on this rank to go on without",
         version, code_text(r));
  if (counted != kSuccess)
    fail(Code::Unsupported,
         "Ascend's runtime library (version {}) finds no device, aclrtGetDeviceCount failed with {}: is the device's driver "
         "installed? Set ISTHMUS_DEVICE=host on this rank to go on without",
         version, code_text(counted));
  return {version, static_cast<int>(count)};
}

}  // namespace

Runtime &acl_runtime() { return Opened<AclCalls>::once(open); }

}  // namespace isthmus::device
