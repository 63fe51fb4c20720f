#include "devices.hpp"

#include <dlfcn.h>

#include <cstring>

namespace isthmus::bridge {
namespace {

// The libraries are the program's: it has loaded them, or the collective library has.
void *find(const char *name, void *(*look_up)(const char *), std::initializer_list<const char *> files) {
  if (void *found = look_up(name)) return found;
  if (void *found = ::dlsym(RTLD_DEFAULT, name)) return found;
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW})
    for (const char *file : files)
      if (void *library = ::dlopen(file, flags))
        if (void *found = ::dlsym(library, name)) return found;
  return nullptr;
}

Outcome failed(const char *call, int code) {
  return {ISTHMUS_ERR_SYSTEM,
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

// NVIDIA's and AMD's alike.
constexpr unsigned kNonBlocking = 1, kNoTiming = 2;
void *const kOfThread = reinterpret_cast<void *>(2);

class Cuda final : public Devices {
 public:
  explicit Cuda(void *(*look_up)(const char *)) {
    const auto get = [&](auto &f, const char *name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(find(name, look_up, {"libcuda.so.1"}));
      complete_ = complete_ && f;
    };
    get(get_current_, "cuCtxGetCurrent");
    get(set_current_, "cuCtxSetCurrent");
    get(get_device_, "cuCtxGetDevice");
    get(is_capturing_, "cuStreamIsCapturing");
    get(synchronize_, "cuStreamSynchronize");
    get(copy_, "cuMemcpyDtoH_v2");
    get(make_stream_, "cuStreamCreate");
    get(end_stream_, "cuStreamDestroy_v2");
    get(make_event_, "cuEventCreate");
    get(record_, "cuEventRecord");
    get(hold_, "cuStreamWaitEvent");
    get(end_event_, "cuEventDestroy_v2");
  }
  Outcome current(Place &place) override {
    if (!complete_) return missing("libcuda.so.1");
    if (const int r = get_current_(&place.context)) return failed("cuCtxGetCurrent", r);
    place.device = 0;  // a thread that has no context yet works on the first
    if (!place.context) return {};
    const int r = get_device_(&place.device);
    return r ? failed("cuCtxGetDevice", r) : Outcome{};
  }
  void enter(const Place &place) noexcept override {
    if (complete_) set_current_(place.context);
  }
  Outcome wait(void *stream) override {
    if (!complete_) return missing("libcuda.so.1");
    int capturing = 0;
    if (const int r = is_capturing_(stream, &capturing)) return failed("cuStreamIsCapturing", r);
    if (capturing) return captured();
    const int r = synchronize_(stream);
    return r ? failed("cuStreamSynchronize", r) : Outcome{};
  }
  Outcome read(void *to, const void *from, size_t bytes, void *stream) override {
    if (Outcome o = wait(stream); !o.ok()) return o;
    const int r = copy_(to, reinterpret_cast<uintptr_t>(from), bytes);
    return r ? failed("cuMemcpyDtoH", r) : Outcome{};
  }
  bool of_thread(void *stream) const noexcept override { return stream == kOfThread; }
  Outcome make_stream(void **stream) override {
    if (!complete_) return missing("libcuda.so.1");
    const int r = make_stream_(stream, kNonBlocking);
    return r ? failed("cuStreamCreate", r) : Outcome{};
  }
  Outcome order(void *ahead, void *behind) override {
    if (!complete_) return missing("libcuda.so.1");
    void *event = nullptr;
    if (const int r = make_event_(&event, kNoTiming)) return failed("cuEventCreate", r);
    int r = record_(event, ahead);
    const char *call = "cuEventRecord";
    if (!r) r = hold_(behind, event, 0), call = "cuStreamWaitEvent";
    end_event_(event);
    return r ? failed(call, r) : Outcome{};
  }
  void end_stream(void *stream) noexcept override {
    if (complete_) end_stream_(stream);
  }

 private:
  bool complete_ = true;
  int (*get_current_)(void **) = nullptr;
  int (*set_current_)(void *) = nullptr;
  int (*get_device_)(int *) = nullptr;
  int (*is_capturing_)(void *, int *) = nullptr;
  int (*synchronize_)(void *) = nullptr;
  int (*copy_)(void *, unsigned long long, size_t) = nullptr;
  int (*make_stream_)(void **, unsigned) = nullptr;
  int (*end_stream_)(void *) = nullptr;
  int (*make_event_)(void **, unsigned) = nullptr;
  int (*record_)(void *, void *) = nullptr;
  int (*hold_)(void *, void *, unsigned) = nullptr;
  int (*end_event_)(void *) = nullptr;
};

class Hip final : public Devices {
 public:
  explicit Hip(void *(*look_up)(const char *)) {
    const auto get = [&](auto &f, const char *name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(
          find(name, look_up, {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}));
      complete_ = complete_ && f;
    };
    get(get_device_, "hipGetDevice");
    get(set_device_, "hipSetDevice");
    get(is_capturing_, "hipStreamIsCapturing");
    get(synchronize_, "hipStreamSynchronize");
    get(copy_, "hipMemcpy");
    get(make_stream_, "hipStreamCreateWithFlags");
    get(end_stream_, "hipStreamDestroy");
    get(make_event_, "hipEventCreateWithFlags");
    get(record_, "hipEventRecord");
    get(hold_, "hipStreamWaitEvent");
    get(end_event_, "hipEventDestroy");
  }
  Outcome current(Place &place) override {
    if (!complete_) return missing("libamdhip64.so");
    const int r = get_device_(&place.device);
    return r ? failed("hipGetDevice", r) : Outcome{};
  }
  void enter(const Place &place) noexcept override {
    if (complete_) set_device_(place.device);
  }
  Outcome wait(void *stream) override {
    if (!complete_) return missing("libamdhip64.so");
    int capturing = 0;
    if (const int r = is_capturing_(stream, &capturing)) return failed("hipStreamIsCapturing", r);
    if (capturing) return captured();
    const int r = synchronize_(stream);
    return r ? failed("hipStreamSynchronize", r) : Outcome{};
  }
  Outcome read(void *to, const void *from, size_t bytes, void *stream) override {
    if (Outcome o = wait(stream); !o.ok()) return o;
    constexpr int kDeviceToHost = 2;
    const int r = copy_(to, from, bytes, kDeviceToHost);
    return r ? failed("hipMemcpy", r) : Outcome{};
  }
  bool of_thread(void *stream) const noexcept override { return stream == kOfThread; }
  Outcome make_stream(void **stream) override {
    if (!complete_) return missing("libamdhip64.so");
    const int r = make_stream_(stream, kNonBlocking);
    return r ? failed("hipStreamCreateWithFlags", r) : Outcome{};
  }
  Outcome order(void *ahead, void *behind) override {
    if (!complete_) return missing("libamdhip64.so");
    void *event = nullptr;
    if (const int r = make_event_(&event, kNoTiming)) return failed("hipEventCreateWithFlags", r);
    int r = record_(event, ahead);
    const char *call = "hipEventRecord";
    if (!r) r = hold_(behind, event, 0), call = "hipStreamWaitEvent";
    end_event_(event);
    return r ? failed(call, r) : Outcome{};
  }
  void end_stream(void *stream) noexcept override {
    if (complete_) end_stream_(stream);
  }

 private:
  bool complete_ = true;
  int (*get_device_)(int *) = nullptr;
  int (*set_device_)(int) = nullptr;
  int (*is_capturing_)(void *, int *) = nullptr;
  int (*synchronize_)(void *) = nullptr;
  int (*copy_)(void *, const void *, size_t, int) = nullptr;
  int (*make_stream_)(void **, unsigned) = nullptr;
  int (*end_stream_)(void *) = nullptr;
  int (*make_event_)(void **, unsigned) = nullptr;
  int (*record_)(void *, void *) = nullptr;
  int (*hold_)(void *, void *, unsigned) = nullptr;
  int (*end_event_)(void *) = nullptr;
};

class Acl final : public Devices {
 public:
  explicit Acl(void *(*look_up)(const char *)) {
    const auto get = [&](auto &f, const char *name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(find(name, look_up, {"libascendcl.so"}));
      return f != nullptr;
    };
    complete_ = get(get_device_, "aclrtGetDevice") && get(get_current_, "aclrtGetCurrentContext") &&
                get(set_current_, "aclrtSetCurrentContext") && get(synchronize_, "aclrtSynchronizeStream") &&
                get(copy_, "aclrtMemcpy");
    get(capture_info_, "aclmdlRICaptureGetInfo");  // older versions have no capture
  }
  Outcome current(Place &place) override {
    if (!complete_) return missing("libascendcl.so");
    if (const int r = get_device_(&place.device)) return failed("aclrtGetDevice", r);
    const int r = get_current_(&place.context);
    return r ? failed("aclrtGetCurrentContext", r) : Outcome{};
  }
  void enter(const Place &place) noexcept override {
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
  if (std::strcmp(kind, "acl") == 0) {  // whose door may stand beside another
    static Devices *const ascend = new Acl(look_up);
    return *ascend;
  }
  static Devices *const the_devices =  // else a process has devices of one vendor, as it has one door
      std::strcmp(kind, "hip") == 0 ? static_cast<Devices *>(new Hip(look_up)) : new Cuda(look_up);
  return *the_devices;
}

}  // namespace isthmus::bridge
