// What the tests of the simulated Ascend libraries call, in short.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "rehearsal_support.hpp"

namespace rehearsed::ascend {

template <class... A>
int acl(const char *name, A... a) {
  return call("ascend/libascendcl.so", (std::string("acl") + name).c_str(), a...);
}
template <class... A>
int hc(const char *name, A... a) {
  return call("ascend/libhccl.so", (std::string("Hccl") + name).c_str(), a...);
}

enum : int { kToDevice = 1, kFromDevice = 2, kWithin = 3, kDefault = 4 };
enum : uint32_t { kSync = 1, kTimeline = 8, kMapped = 2, kPinned = 0x10000000 };

inline void use(int device) {
  static std::once_flag once;
  std::call_once(once, [] {
    const int code = acl("Init", static_cast<const char *>(nullptr));
    CHECK(code == 0 || code == 100002);  // the test has made it itself
  });
  IS(acl("rtSetDevice", device), 0);
}
inline char *allocate(size_t bytes) {
  void *p = nullptr;
  IS(acl("rtMalloc", &p, bytes, 0), 0);
  return static_cast<char *>(p);
}
inline void release(void *p) { IS(acl("rtFree", p), 0); }
inline Handle new_stream() {
  Handle s = nullptr;
  IS(acl("rtCreateStreamWithConfig", &s, 0u, 3u), 0);
  return s;
}
inline void end_stream(Handle s) { IS(acl("rtDestroyStream", s), 0); }
inline Handle new_event(uint32_t flags = kSync) {
  Handle e = nullptr;
  IS(acl("rtCreateEventExWithFlag", &e, flags), 0);
  return e;
}
inline void copy(void *to, const void *from, size_t bytes, int kind) {
  IS(acl("rtMemcpy", to, bytes, from, bytes, kind), 0);
}
inline int copy_on(Handle s, void *to, const void *from, size_t bytes, int kind) {
  return acl("rtMemcpyAsync", to, bytes, from, bytes, kind, s);
}
inline int wait_for(Handle s) { return acl("rtSynchronizeStream", s); }
inline bool idle(Handle s) {
  int status = 9;
  IS(acl("rtStreamQuery", s, &status), 0);
  return status == 0;
}
inline bool reached(Handle event) {
  int status = 9;
  IS(acl("rtQueryEventStatus", event, &status), 0);
  return status == 1;
}

// Holds up a stream until it is told to go on.
class Hold {
 public:
  explicit Hold(Handle s) { IS(acl("rtLaunchHostFunc", s, &stand, static_cast<void *>(this)), 0); }
  void go_on() { open_.store(true); }

 private:
  static void stand(void *self) {
    while (!static_cast<Hold *>(self)->open_.load()) sleep_ms(1);
  }
  std::atomic<bool> open_{false};
};

struct Pages {
  alignas(4096) unsigned char bytes[8192];
};

}  // namespace rehearsed::ascend
