// Api over Huawei's runtime (ACL), whose calls are all different from CUDA's and HIP's.
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "base/lock.hpp"

#include "call.hpp"

namespace rehearsal_torch {
namespace {

using isthmus::Lock;
using isthmus::Mutex;

constexpr int kRepeated = 100002, kNoMemory = 207001, kNoContext = 107002;
constexpr uint32_t kSync = 1, kTimeline = 8, kFast = 3;

class Acl final : public Api {
  void *const library_;
  Call<uint32_t *> count_{library_, "aclrtGetDeviceCount"};
  Call<int> set_device_{library_, "aclrtSetDevice"};
  Call<int *> get_device_{library_, "aclrtGetDevice"};
  Call<void **, size_t, int> allocate_{library_, "aclrtMalloc"};
  Call<void *> release_{library_, "aclrtFree"};
  Call<void **, size_t> allocate_pinned_{library_, "aclrtMallocHost"};
  Call<void *> release_pinned_{library_, "aclrtFreeHost"};
  Call<int, size_t *, size_t *> memory_{library_, "aclrtGetMemInfo"};
  Call<const void *, void *> attributes_{library_, "aclrtPointerGetAttributes"};
  Call<void *, size_t, const void *, size_t, int, Native> copy_{library_, "aclrtMemcpyAsync"};
  Call<void *, size_t, int32_t, size_t, Native> fill_{library_, "aclrtMemsetAsync"};
  Call<Native *, uint32_t, uint32_t> new_stream_{library_, "aclrtCreateStreamWithConfig"};
  Call<Native, int *> idle_{library_, "aclrtStreamQuery"};
  Call<Native> synchronize_stream_{library_, "aclrtSynchronizeStream"};
  Call<> synchronize_{library_, "aclrtSynchronizeDevice"};
  Call<Native *, uint32_t> new_event_{library_, "aclrtCreateEventExWithFlag"};
  Call<Native> destroy_event_{library_, "aclrtDestroyEvent"};
  Call<Native, Native> record_{library_, "aclrtRecordEvent"};
  Call<Native, Native> wait_{library_, "aclrtStreamWaitEvent"};
  Call<Native, int *> done_{library_, "aclrtQueryEventStatus"};
  Call<Native> synchronize_event_{library_, "aclrtSynchronizeEvent"};
  Call<float *, Native, Native> elapsed_{library_, "aclrtEventElapsedTime"};
  Call<int, uint32_t> peers_{library_, "aclrtDeviceEnablePeerAccess"};
  Mutex mutex_;  // held over vendor's calls: questions about events, and leave to touch another device's memory
  // Events that have been recorded. ACL says the same of an event that was never recorded and of a record that no stream has reached.
  std::set<Native> recorded_ ISTHMUS_GUARDED_BY(mutex_);
  std::vector<Native> leaving_ ISTHMUS_GUARDED_BY(mutex_);  // torch has destroyed them, and their records may not be reached
  std::set<int> known_ ISTHMUS_GUARDED_BY(mutex_);          // devices that may touch the others' memory
  const char *(*chip_)() = nullptr;
  const char *(*words_)() = nullptr;

  enum Kind : int { kIn = 1, kOut = 2, kWithin = 3 };
  enum Location : int { kOnHost = 0, kOnDevice = 1 };
  struct AclAttributes {
    uint32_t device;
    int location;
    uint32_t rest[5];
  };

  template <class F, class... A>
  void run(const F &call, A... arguments) const {
    if (const int code = call(arguments...)) fail(call.name(), code, words_());
  }
  // Memory from one of the allocating calls; null: there is not enough left.
  template <class F, class... A>
  void *room(const F &call, A... arguments) const {
    void *memory = nullptr;
    const int code = call(&memory, arguments...);
    if (code && code != kNoMemory) fail(call.name(), code, words_());
    return code ? nullptr : memory;
  }
  template <class F>
  int status(const F &call, Native of) const {
    int s = -1;
    run(call, of, &s);
    return s;
  }
  template <class F>
  void find(F &function, const char *name) {
    function = reinterpret_cast<F>(::dlsym(library_, name));
    if (!function) throw std::runtime_error(std::string("rehearsal: the simulated library has no ") + name);
  }
  void copy(void *to, const void *from, size_t bytes, int kind, Native stream) {
    if (bytes) run(copy_, to, bytes, from, bytes, kind, stream);
  }

 public:
  explicit Acl(void *library) : library_(library) {
    find(chip_, "aclrtGetSocName");
    find(words_, "aclGetRecentErrMsg");
    const Call<const char *> init(library, "aclInit");
    const int code = init(nullptr);
    if (code && code != kRepeated) fail(init.name(), code, words_());
  }

  const char *vendor() const override { return "npu"; }
  int devices() override {
    uint32_t n = 0;
    run(count_, &n);
    return static_cast<int>(n);
  }
  std::string name(int) override {
    const char *text = chip_();
    return text ? text : "";
  }

  // The device that was current, for leave(). A thread without a device keeps the new one: ACL cannot take it away.
  int enter(int device) override {
    int before = 0;
    const int code = get_device_(&before);
    if (code && code != kNoContext) fail(get_device_.name(), code, words_());
    if (code || before != device) run(set_device_, device);
    const Lock lock(mutex_);
    if (known_.insert(device).second)
      for (int other = 0, n = devices(); other < n; ++other)
        if (other != device) run(peers_, other, 0u);
    return code ? device : before;
  }
  void leave(int before) noexcept override {
    int now = before;
    if (get_device_(&now) == 0 && now != before) set_device_(before);
  }

  void *allocate(size_t bytes) override { return room(allocate_, bytes, 0); }
  void release(void *memory) override { run(release_, memory); }
  void *allocate_pinned(size_t bytes) override { return room(allocate_pinned_, bytes); }
  void release_pinned(void *host) override { run(release_pinned_, host); }
  void memory(size_t *left, size_t *all) override { run(memory_, 1, left, all); }
  bool is_pinned(const void *host) noexcept override {
    AclAttributes a{};
    return attributes_(host, &a) == 0 && a.location == kOnHost;
  }
  int device_of(const void *memory) noexcept override {
    AclAttributes a{};
    return attributes_(memory, &a) == 0 && a.location == kOnDevice ? static_cast<int>(a.device) : -1;
  }

  void copy_in(void *device, const void *host, size_t bytes, Native s) override { copy(device, host, bytes, kIn, s); }
  void copy_out(void *host, const void *device, size_t bytes, Native s) override { copy(host, device, bytes, kOut, s); }
  void copy_within(void *to, const void *from, size_t bytes, Native s) override { copy(to, from, bytes, kWithin, s); }
  void zero(void *memory, size_t bytes, Native stream) override {
    if (bytes) run(fill_, memory, bytes, 0, bytes, stream);
  }

  Native new_stream(bool urgent) override {
    Native stream = nullptr;
    run(new_stream_, &stream, urgent ? 0u : 1u, kFast);  // 0 is the most urgent
    return stream;
  }
  bool idle(Native stream) override { return status(idle_, stream) == 0; }
  void synchronize(Native stream) override { run(synchronize_stream_, stream); }
  void synchronize() override { run(synchronize_); }
  Native new_event(bool timed) override {
    Native event = nullptr;
    run(new_event_, &event, timed ? kSync | kTimeline : kSync);
    return event;
  }
  void destroy_event(Native event) override;
  void record(Native event, Native stream) override {
    {
      const Lock lock(mutex_);
      recorded_.insert(event);
    }
    run(record_, event, stream);
  }
  void wait(Native stream, Native event) override { run(wait_, stream, event); }
  bool done(Native event) override { return status(done_, event) == 1; }
  void synchronize_event(Native event) override { run(synchronize_event_, event); }
  float elapsed_ms(Native first, Native second) override {
    float ms = 0;
    run(elapsed_, &ms, first, second);
    return ms;
  }
};

// ACL destroys an event only when its last record has been reached. So an event that is not reached stays in leaving_, until a later call
// finds its record reached.
void Acl::destroy_event(Native event) {
  std::vector<Native> reached;
  {
    const Lock lock(mutex_);
    (recorded_.erase(event) ? leaving_ : reached).push_back(event);
    const auto first = std::partition(leaving_.begin(), leaving_.end(), [&](Native e) { return !done(e); });
    reached.insert(reached.end(), first, leaving_.end());
    leaving_.erase(first, leaving_.end());
  }
  for (const Native e : reached) run(destroy_event_, e);
}

}  // namespace

Api *open_acl(void *library) { return new Acl(library); }

}  // namespace rehearsal_torch
