#include "devices.hpp"

#include <dlfcn.h>

#include <array>
#include <cstring>

namespace isthmus::bridge {
namespace {

using Files = std::array<const char *, 3>;  // names of a runtime's library, the newest first; null: no more

// The runtime's library is the program's: the program has loaded the runtime, or the collective library has.
void *find(const char *name, void *(*look_up)(const char *), const Files &files) {
  if (void *found = look_up(name)) return found;
  if (void *found = ::dlsym(RTLD_DEFAULT, name)) return found;
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW})
    for (const char *file : files)
      if (void *library = file ? ::dlopen(file, flags) : nullptr)
        if (void *found = ::dlsym(library, name)) return found;
  return nullptr;
}

Outcome failed(const char *call, int code) {
  return {ISTHMUS_ERR_DEVICE,
          std::string(call) + " gave " + std::to_string(code) + "; does this thread have a device, and does that one work?"};
}
Outcome missing(const char *library) {
  return {ISTHMUS_ERR_SYSTEM, std::string("the functions of ") + library + " are not found; is the driver installed?"};
}
Outcome captured() {
  return {ISTHMUS_ERR_UNSUPPORTED,
          "the stream is being captured into a graph, and this operation needs the host at every replay: call it outside of "
          "the capture"};
}

void *const kPerThread = reinterpret_cast<void *>(2);  // cudaStreamPerThread, hipStreamPerThread

// What NVIDIA's and AMD's runtimes have alike.
class EventDevices : public Devices {
 public:
  struct FunctionNames {
    const char *library;  // for people
    const char *is_capturing, *synchronize, *make_stream, *end_stream, *make_event, *record, *hold, *end_event;
  };
  EventDevices(const FunctionNames &names, const Files &files, void *(*look_up)(const char *))
      : names_(names), files_(files), look_up_(look_up) {
    get(is_capturing_, names.is_capturing);
    get(synchronize_, names.synchronize);
    get(make_stream_, names.make_stream);
    get(end_stream_, names.end_stream);
    get(make_event_, names.make_event);
    get(record_, names.record);
    get(hold_, names.hold);
    get(end_event_, names.end_event);
  }
  Outcome wait(void *stream) override {
    if (!complete_) return missing(names_.library);
    int capturing = 0;
    if (const int r = is_capturing_(stream, &capturing)) return failed(names_.is_capturing, r);
    if (capturing) return captured();
    const int r = synchronize_(stream);
    return r ? failed(names_.synchronize, r) : Outcome{};
  }
  bool of_thread(void *stream) const noexcept override { return stream == kPerThread; }
  Outcome make_stream(void **stream) override {
    constexpr unsigned kNonBlocking = 1;
    if (!complete_) return missing(names_.library);
    const int r = make_stream_(stream, kNonBlocking);
    return r ? failed(names_.make_stream, r) : Outcome{};
  }
  Outcome order(void *ahead, void *behind) override {
    constexpr unsigned kNoTiming = 2;
    if (!complete_) return missing(names_.library);
    void *event = nullptr;
    if (const int r = make_event_(&event, kNoTiming)) return failed(names_.make_event, r);
    int r = record_(event, ahead);
    const char *call = names_.record;
    if (!r) r = hold_(behind, event, 0), call = names_.hold;
    end_event_(event);
    return r ? failed(call, r) : Outcome{};
  }
  void end_stream(void *stream) noexcept override {
    if (complete_) end_stream_(stream);
  }

 protected:
  template <class Function>
  void get(Function *&f, const char *name) {
    f = reinterpret_cast<Function *>(find(name, look_up_, files_));
    complete_ = complete_ && f;
  }
  Outcome missing_library() const { return missing(names_.library); }
  bool complete_ = true;

 private:
  const FunctionNames names_;
  const Files files_;
  void *(*const look_up_)(const char *);
  int (*is_capturing_)(void *, int *) = nullptr;
  int (*synchronize_)(void *) = nullptr;
  int (*make_stream_)(void **, unsigned) = nullptr;
  int (*end_stream_)(void *) = nullptr;
  int (*make_event_)(void **, unsigned) = nullptr;
  int (*record_)(void *, void *) = nullptr;
  int (*hold_)(void *, void *, unsigned) = nullptr;
  int (*end_event_)(void *) = nullptr;
};

class CudaDevices final : public EventDevices {
 public:
  explicit CudaDevices(void *(*look_up)(const char *))
      : EventDevices({"libcuda.so.1", "cuStreamIsCapturing", "cuStreamSynchronize", "cuStreamCreate", "cuStreamDestroy_v2",
                      "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy_v2"},
                     kFiles, look_up) {
    get(get_current_, "cuCtxGetCurrent");
    get(set_current_, "cuCtxSetCurrent");
    get(get_device_, "cuCtxGetDevice");
    get(copy_, "cuMemcpyDtoH_v2");
  }
  Outcome current(DevicePlace &place) override {
    if (!complete_) return missing_library();
    if (const int r = get_current_(&place.context)) return failed("cuCtxGetCurrent", r);
    place.device = 0;  // a thread that has no context yet works on the first device
    if (!place.context) return {};
    const int r = get_device_(&place.device);
    return r ? failed("cuCtxGetDevice", r) : Outcome{};
  }
  void enter(const DevicePlace &place) noexcept override {
    if (complete_) set_current_(place.context);
  }
  Outcome read(void *to, const void *from, size_t bytes, void *stream) override {
    if (Outcome o = wait(stream); !o.ok()) return o;
    const int r = copy_(to, reinterpret_cast<uintptr_t>(from), bytes);
    return r ? failed("cuMemcpyDtoH", r) : Outcome{};
  }

 private:
  static constexpr Files kFiles{"libcuda.so.1"};
  int (*get_current_)(void **) = nullptr;
  int (*set_current_)(void *) = nullptr;
  int (*get_device_)(int *) = nullptr;
  int (*copy_)(void *, unsigned long long, size_t) = nullptr;
};

class HipDevices final : public EventDevices {
 public:
  explicit HipDevices(void *(*look_up)(const char *))
      : EventDevices(
            {"libamdhip64.so", "hipStreamIsCapturing", "hipStreamSynchronize", "hipStreamCreateWithFlags",
             "hipStreamDestroy", "hipEventCreateWithFlags", "hipEventRecord", "hipStreamWaitEvent", "hipEventDestroy"},
            kFiles, look_up) {
    get(get_device_, "hipGetDevice");
    get(set_device_, "hipSetDevice");
    get(copy_, "hipMemcpy");
  }
  Outcome current(DevicePlace &place) override {
    if (!complete_) return missing_library();
    const int r = get_device_(&place.device);
    return r ? failed("hipGetDevice", r) : Outcome{};
  }
  void enter(const DevicePlace &place) noexcept override {
    if (complete_) set_device_(place.device);
  }
  Outcome read(void *to, const void *from, size_t bytes, void *stream) override {
    constexpr int kDeviceToHost = 2;
    if (Outcome o = wait(stream); !o.ok()) return o;
    const int r = copy_(to, from, bytes, kDeviceToHost);
    return r ? failed("hipMemcpy", r) : Outcome{};
  }

 private:
  static constexpr Files kFiles{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
  int (*get_device_)(int *) = nullptr;
  int (*set_device_)(int) = nullptr;
  int (*copy_)(void *, const void *, size_t, int) = nullptr;
};

class AclDevices final : public Devices {
 public:
  explicit AclDevices(void *(*look_up)(const char *)) {
    const auto get = [&](auto &f, const char *name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(find(name, look_up, Files{"libascendcl.so"}));
      return f != nullptr;
    };
    complete_ = get(get_device_, "aclrtGetDevice") && get(get_current_, "aclrtGetCurrentContext") &&
                get(set_current_, "aclrtSetCurrentContext") && get(synchronize_, "aclrtSynchronizeStream") &&
                get(copy_, "aclrtMemcpy");
    get(capture_info_, "aclmdlRICaptureGetInfo");  // older versions have no capture
  }
  Outcome current(DevicePlace &place) override {
    if (!complete_) return missing("libascendcl.so");
    if (const int r = get_device_(&place.device)) return failed("aclrtGetDevice", r);
    const int r = get_current_(&place.context);
    return r ? failed("aclrtGetCurrentContext", r) : Outcome{};
  }
  void enter(const DevicePlace &place) noexcept override {
    if (complete_ && place.context) set_current_(place.context);
  }
  Outcome wait(void *stream) override {
    if (!complete_) return missing("libascendcl.so");
    int capturing = 0;
    void *graph = nullptr;
    if (const int r = capture_info_ && stream ? capture_info_(stream, &capturing, &graph) : 0)
      return failed("aclmdlRICaptureGetInfo", r);
    if (capturing) return captured();
    const int r = synchronize_(stream);
    return r ? failed("aclrtSynchronizeStream", r) : Outcome{};
  }
  Outcome read(void *to, const void *from, size_t bytes, void *stream) override {
    if (Outcome o = wait(stream); !o.ok()) return o;
    constexpr int kDeviceToHost = 2;
    const int r = copy_(to, bytes, from, bytes, kDeviceToHost);
    return r ? failed("aclrtMemcpy", r) : Outcome{};
  }

 private:
  bool complete_ = false;
  int (*get_device_)(int *) = nullptr;
  int (*get_current_)(void **) = nullptr;
  int (*set_current_)(void *) = nullptr;
  int (*capture_info_)(void *, int *, void **) = nullptr;
  int (*synchronize_)(void *) = nullptr;
  int (*copy_)(void *, size_t, const void *, size_t, int) = nullptr;
};

}  // namespace

Devices &devices(const char *kind, void *(*look_up)(const char *)) {
  if (std::strcmp(kind, "acl") == 0) {  // a process may have this door beside another
    static Devices *const ascend = new AclDevices(look_up);
    return *ascend;
  }
  static Devices *const the_devices =  // of the two other kinds a process has one, as it has one door of the two
      std::strcmp(kind, "hip") == 0 ? static_cast<Devices *>(new HipDevices(look_up)) : new CudaDevices(look_up);
  return *the_devices;
}

}  // namespace isthmus::bridge
