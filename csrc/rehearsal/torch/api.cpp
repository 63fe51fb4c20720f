#include "call.hpp"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <vector>

namespace rehearsal_torch {
namespace {

std::atomic<bool> forked{false};

// Numbers that NVIDIA and AMD have in common.
constexpr int kOutOfMemory = 2, kNotReady = 600;
constexpr unsigned kNonBlocking = 1, kDisableTiming = 2;
constexpr int kMemoryType = 2, kOrdinal = 9;  // attributes of a pointer

// ---- what NVIDIA and AMD both have, under other names --------------------------------------------------------------------

struct Names {
  const char *init, *count, *name, *allocate_pinned, *release_pinned, *memory, *new_stream, *idle, *synchronize_stream,
      *synchronize, *new_event, *destroy_event, *record, *wait, *done, *synchronize_event, *elapsed;
};

class Vendor : public Api {
 protected:
  void *const library_;

 private:
  Call<int *> count_;
  Call<char *, int, int> name_;
  Call<void **, size_t, unsigned> allocate_pinned_;
  Call<void *> release_pinned_;
  Call<size_t *, size_t *> memory_;
  Call<Native *, unsigned, int> new_stream_;
  Call<Native> idle_, synchronize_stream_;
  Call<> synchronize_;
  Call<Native *, unsigned> new_event_;
  Call<Native> destroy_event_;
  Call<Native, Native> record_;
  Call<Native, Native, unsigned> wait_;
  Call<Native> done_, synchronize_event_;
  Call<float *, Native, Native> elapsed_;

 public:
  Vendor(void *library, const Names &n)
      : library_(library),
        count_(library, n.count),
        name_(library, n.name),
        allocate_pinned_(library, n.allocate_pinned),
        release_pinned_(library, n.release_pinned),
        memory_(library, n.memory),
        new_stream_(library, n.new_stream),
        idle_(library, n.idle),
        synchronize_stream_(library, n.synchronize_stream),
        synchronize_(library, n.synchronize),
        new_event_(library, n.new_event),
        destroy_event_(library, n.destroy_event),
        record_(library, n.record),
        wait_(library, n.wait),
        done_(library, n.done),
        synchronize_event_(library, n.synchronize_event),
        elapsed_(library, n.elapsed) {}

  int devices() override {
    int n = 0;
    run(count_, &n);
    return n;
  }
  std::string name(int device) override {
    std::array<char, 256> text{};
    run(name_, text.data(), static_cast<int>(text.size()), device);
    return text.data();
  }
  void *allocate_pinned(size_t bytes) override {
    void *host = nullptr;
    return room(allocate_pinned_, &host, bytes, 1u) ? host : nullptr;  // 1: pinned for all devices of the process
  }
  void release_pinned(void *host) override { run(release_pinned_, host); }
  void memory(size_t *left, size_t *all) override { run(memory_, left, all); }
  Native new_stream(bool urgent) override {
    Native stream = nullptr;
    run(new_stream_, &stream, kNonBlocking, urgent ? -1 : 0);
    return stream;
  }
  bool idle(Native stream) override { return ready(idle_, stream); }
  void synchronize(Native stream) override { run(synchronize_stream_, stream); }
  void synchronize() override { run(synchronize_); }
  Native new_event(bool timed) override {
    Native event = nullptr;
    run(new_event_, &event, timed ? 0u : kDisableTiming);
    return event;
  }
  void destroy_event(Native event) override { run(destroy_event_, event); }
  void record(Native event, Native stream) override { run(record_, event, stream); }
  void wait(Native stream, Native event) override { run(wait_, stream, event, 0u); }
  bool done(Native event) override { return ready(done_, event); }
  void synchronize_event(Native event) override { run(synchronize_event_, event); }
  float elapsed_ms(Native first, Native second) override {
    float ms = 0;
    run(elapsed_, &ms, first, second);
    return ms;
  }

 protected:
  virtual const char *words(int code) const = 0;

  void check(const char *call, int code) const {
    if (code) fail(call, code, words(code));
  }
  template <class F, class... A>
  void run(const F &call, A... arguments) const {
    check(call.name(), call(arguments...));
  }
  // True: success. False: the call returned `fine`, which is no error here. Every other code is an error.
  template <class F, class... A>
  bool but_for(int fine, const F &call, A... arguments) const {
    const int code = call(arguments...);
    if (code != fine) check(call.name(), code);
    return code == 0;
  }
  template <class F, class... A>
  bool ready(const F &call, A... arguments) const {
    return but_for(kNotReady, call, arguments...);
  }
  template <class F, class... A>
  bool room(const F &call, A... arguments) const {
    return but_for(kOutOfMemory, call, arguments...);
  }
};

// ---- NVIDIA: the driver, with the devices' primary contexts --------------------------------------------------------------

constexpr Names kCudaNames = {.init = "cuInit",
                              .count = "cuDeviceGetCount",
                              .name = "cuDeviceGetName",
                              .allocate_pinned = "cuMemHostAlloc",
                              .release_pinned = "cuMemFreeHost",
                              .memory = "cuMemGetInfo_v2",
                              .new_stream = "cuStreamCreateWithPriority",
                              .idle = "cuStreamQuery",
                              .synchronize_stream = "cuStreamSynchronize",
                              .synchronize = "cuCtxSynchronize",
                              .new_event = "cuEventCreate",
                              .destroy_event = "cuEventDestroy_v2",
                              .record = "cuEventRecord",
                              .wait = "cuStreamWaitEvent",
                              .done = "cuEventQuery",
                              .synchronize_event = "cuEventSynchronize",
                              .elapsed = "cuEventElapsedTime"};

class Cuda final : public Vendor {
  using Address = unsigned long long;
  Call<int, const char **> words_{library_, "cuGetErrorString"};
  Call<void **, int> retain_{library_, "cuDevicePrimaryCtxRetain"};
  Call<void *> push_{library_, "cuCtxPushCurrent_v2"};
  Call<void **> pop_{library_, "cuCtxPopCurrent_v2"};
  Call<Address *, size_t> allocate_{library_, "cuMemAlloc_v2"};
  Call<Address> release_{library_, "cuMemFree_v2"};
  Call<void *, int, Address> attribute_{library_, "cuPointerGetAttribute"};
  Call<Address, const void *, size_t, Native> copy_in_{library_, "cuMemcpyHtoDAsync_v2"};
  Call<void *, Address, size_t, Native> copy_out_{library_, "cuMemcpyDtoHAsync_v2"};
  Call<Address, Address, size_t, Native> copy_within_{library_, "cuMemcpyDtoDAsync_v2"};
  Call<Address, unsigned char, size_t, Native> fill_{library_, "cuMemsetD8Async"};
  std::vector<void *> contexts_;  // of the devices; kept until the process ends

  enum { kHost = 1, kDevice = 2 };
  static Address address(const void *p) { return reinterpret_cast<Address>(p); }
  bool is(unsigned type, const void *p) const {
    unsigned found = 0;
    return attribute_(&found, kMemoryType, address(p)) == 0 && found == type;
  }
  const char *words(int code) const override {
    const char *text = nullptr;
    words_(code, &text);
    return text;
  }

 public:
  explicit Cuda(void *library) : Vendor(library, kCudaNames) {
    run(Call<unsigned>(library, kCudaNames.init), 0u);
    contexts_.resize(static_cast<size_t>(devices()));
    for (size_t i = 0; i < contexts_.size(); ++i) run(retain_, &contexts_[i], static_cast<int>(i));
  }

  const char *vendor() const override { return "cuda"; }
  int enter(int device) override {
    run(push_, contexts_.at(static_cast<size_t>(device)));
    return 0;  // not used: the driver has a stack of contexts
  }
  void leave(int) noexcept override {
    void *context = nullptr;
    pop_(&context);
  }
  void *allocate(size_t bytes) override {
    Address memory = 0;
    return room(allocate_, &memory, bytes) ? reinterpret_cast<void *>(memory) : nullptr;
  }
  void release(void *memory) override { run(release_, address(memory)); }
  bool is_pinned(const void *host) noexcept override { return is(kHost, host); }
  int device_of(const void *memory) noexcept override {
    int device = -1;
    return is(kDevice, memory) && attribute_(&device, kOrdinal, address(memory)) == 0 ? device : -1;
  }
  void copy_in(void *device, const void *host, size_t bytes, Native stream) override {
    run(copy_in_, address(device), host, bytes, stream);
  }
  void copy_out(void *host, const void *device, size_t bytes, Native stream) override {
    run(copy_out_, host, address(device), bytes, stream);
  }
  void copy_within(void *to, const void *from, size_t bytes, Native stream) override {
    run(copy_within_, address(to), address(from), bytes, stream);
  }
  void zero(void *memory, size_t bytes, Native stream) override {
    run(fill_, address(memory), static_cast<unsigned char>(0), bytes, stream);
  }
};

// ---- AMD: the HIP runtime ------------------------------------------------------------------------------------------------

constexpr Names kHipNames = {.init = "hipInit",
                             .count = "hipGetDeviceCount",
                             .name = "hipDeviceGetName",
                             .allocate_pinned = "hipHostMalloc",
                             .release_pinned = "hipHostFree",
                             .memory = "hipMemGetInfo",
                             .new_stream = "hipStreamCreateWithPriority",
                             .idle = "hipStreamQuery",
                             .synchronize_stream = "hipStreamSynchronize",
                             .synchronize = "hipDeviceSynchronize",
                             .new_event = "hipEventCreateWithFlags",
                             .destroy_event = "hipEventDestroy",
                             .record = "hipEventRecord",
                             .wait = "hipStreamWaitEvent",
                             .done = "hipEventQuery",
                             .synchronize_event = "hipEventSynchronize",
                             .elapsed = "hipEventElapsedTime"};

class Hip final : public Vendor {
  Call<int> set_device_{library_, "hipSetDevice"};
  Call<int *> get_device_{library_, "hipGetDevice"};
  Call<void **, size_t> allocate_{library_, "hipMalloc"};
  Call<void *> release_{library_, "hipFree"};
  Call<void *, const void *> attributes_{library_, "hipPointerGetAttributes"};
  Call<void *, const void *, size_t, int, Native> copy_{library_, "hipMemcpyAsync"};
  Call<void *, int, size_t, Native> fill_{library_, "hipMemsetAsync"};
  const char *(*words_)(int) = nullptr;
  int host_type_ = 1;

  enum Kind : int { kIn = 1, kOut = 2, kWithin = 3 };
  // hipPointerAttribute_t begins with these two fields. The rest differs between versions.
  struct HipAttributes {
    int type, device;
    char rest[248];
  };
  const char *words(int code) const override { return words_(code); }

 public:
  explicit Hip(void *library) : Vendor(library, kHipNames) {
    words_ = reinterpret_cast<const char *(*)(int)>(::dlsym(library, "hipGetErrorString"));
    if (!words_) throw std::runtime_error("rehearsal: the simulated library has no hipGetErrorString");
    run(Call<unsigned>(library, kHipNames.init), 0u);
    int version = 0;
    run(Call<int *>(library, "hipRuntimeGetVersion"), &version);
    if (version < 60'000'000) host_type_ = 0;  // HIP 6 numbered the kinds of memory anew
  }

  const char *vendor() const override { return "hip"; }
  int enter(int device) override {
    int before = 0;
    run(get_device_, &before);
    if (before != device) run(set_device_, device);
    return before;
  }
  void leave(int before) noexcept override { set_device_(before); }
  void *allocate(size_t bytes) override {
    void *memory = nullptr;
    return room(allocate_, &memory, bytes) ? memory : nullptr;
  }
  void release(void *memory) override { run(release_, memory); }
  bool is_pinned(const void *host) noexcept override {
    HipAttributes a{};
    return attributes_(&a, host) == 0 && a.type == host_type_;
  }
  int device_of(const void *memory) noexcept override {
    HipAttributes a{};
    return attributes_(&a, memory) == 0 && a.type == host_type_ + 1 ? a.device : -1;
  }
  void copy_in(void *device, const void *host, size_t bytes, Native stream) override {
    run(copy_, device, host, bytes, int{kIn}, stream);
  }
  void copy_out(void *host, const void *device, size_t bytes, Native stream) override {
    run(copy_, host, device, bytes, int{kOut}, stream);
  }
  void copy_within(void *to, const void *from, size_t bytes, Native stream) override {
    run(copy_, to, from, bytes, int{kWithin}, stream);
  }
  void zero(void *memory, size_t bytes, Native stream) override { run(fill_, memory, 0, bytes, stream); }
};

// The first of these libraries that the loader finds and that is simulated; null: none. `*real`: the loader found one that is not
// simulated.
void *simulated(std::initializer_list<const char *> names, bool *real) {
  for (const char *name : names) {
    void *library = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!library) continue;
    if (::dlsym(library, "rehearsal_calls")) return library;  // dlsym also looks into the libraries that this one needs
    *real = true;
    ::dlclose(library);
  }
  return nullptr;
}

Api *open() {
  bool real = false;
  if (void *library = simulated({"libcuda.so.1"}, &real)) return new Cuda(library);
  if (void *library = simulated({"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}, &real))
    return new Hip(library);
  if (void *library = simulated({"libascendcl.so"}, &real)) return open_acl(library);
  throw std::runtime_error(
      real ? "rehearsal: the driver that this process finds is a real one; the device 'rehearsal' is for simulated ones only"
           : "rehearsal: this process finds no simulated vendor; start it with 'isthmus rehearse --fleet nvidia:1 -- ...'");
}

}  // namespace

bool in_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

Api &api() {
  static Api *const the_api = [] {
    Api *opened = open();
    ::pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
    return opened;
  }();
  return *the_api;
}

}  // namespace rehearsal_torch
