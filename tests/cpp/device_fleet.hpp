// Fleets of ranks that are threads, some of them on simulated devices, for tests of whole communicators through the C interface: the driver
// as a program sees it, memory where a rank works, streams of the user's that can be held up.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "eventually.hpp"
#include "patience.hpp"
#include "rehearsal_file.hpp"

namespace isthmus_test {

using namespace std::chrono_literals;
using Bytes = std::vector<unsigned char>;

// A message of several chunks. ThreadSanitizer looks at every access, twenty times as slowly; small chunks have a test of their own.
#if defined(__SANITIZE_THREAD__)
inline constexpr size_t kLarge = 30'000;
#else
inline constexpr size_t kLarge = 300'000;
#endif

// ---- the driver, as a program sees it -------------------------------------------------------------------------------------

using Address = unsigned long long;
using Handle = void *;

inline void *find(const char *file, const std::string &name) {
  void *const found = ::dlsym(::dlopen(file, RTLD_NOW), name.c_str());
  if (!found) {
    std::fprintf(stderr, "no %s in %s\n", name.c_str(), file);
    std::abort();
  }
  return found;
}
// Calls by name; the types of the arguments are the caller's word.
template <class... A>
inline int cu(const char *name, A... a) {
  return reinterpret_cast<int (*)(A...)>(find(rehearsal_file("nvidia/libcuda.so.1"), std::string("cu") + name))(a...);
}
template <class... A>
inline void must_cu(const char *name, A... a) {
  if (const int r = cu(name, a...)) {
    std::fprintf(stderr, "cu%s gave %d\n", name, r);
    std::abort();
  }
}
inline unsigned long calls(const char *name) {
  return reinterpret_cast<unsigned long (*)(const char *)>(find(rehearsal_file("librehearsal.so"), "rehearsal_calls"))(name);
}
inline constexpr const char *kLive[] = {"allocation", "registration", "stream", "event", "communicator"};
inline std::map<std::string, size_t> live() {
  std::map<std::string, size_t> all;
  for (const char *what : kLive)
    all[what] = reinterpret_cast<size_t (*)(const char *)>(find(rehearsal_file("librehearsal.so"), "rehearsal_live"))(what);
  return all;
}
inline void use(int device) {  // on this thread
  must_cu("Init", 0u);
  Handle context = nullptr;
  must_cu("DevicePrimaryCtxRetain", &context, device);
  must_cu("CtxSetCurrent", context);
}
inline Address number(const void *p) { return reinterpret_cast<Address>(p); }

// What is left once the ranks of before have gone: registrations, in counts that have stood for a while. The ranks go in their own time.
inline std::map<std::string, size_t> settled() {
  std::map<std::string, size_t> all = live();
  auto since = std::chrono::steady_clock::now();
  EXPECT_TRUE(eventually([&] {
    if (auto now = live(); now != all) {
      all = std::move(now);
      since = std::chrono::steady_clock::now();
    }
    const bool gone = all["stream"] + all["event"] + all["communicator"] + all["allocation"] == 0;
    return gone && std::chrono::steady_clock::now() - since > 300ms;
  })) << testing::PrintToString(all);
  return all;
}
// Whether what is left comes to be no more than that.
inline bool is_left_again(const std::map<std::string, size_t> &before) {
  return eventually([&] {
    const auto now = live();
    return std::all_of(now.begin(), now.end(), [&](const auto &one) { return one.second <= before.at(one.first); });
  });
}
inline double seconds_of(const std::function<void()> &f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A thread that allocates and frees on the device of a rank, until it ends. Freeing waits for all that the device has to do, and whoever
// submits meanwhile waits for that.
class Frees {
 public:
  explicit Frees(int device)
      : thread_([this, device] {
          use(device);
          while (!stop_.load()) {
            Address at = 0;
            must_cu("MemAlloc_v2", &at, size_t{4096});
            must_cu("MemFree_v2", at);
          }
        }) {}
  ~Frees() {
    stop_.store(true);
    thread_.join();
  }
  Frees(const Frees &) = delete;
  Frees &operator=(const Frees &) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// ---- one rank -------------------------------------------------------------------------------------------------------------

struct Broken {};

struct Rank {
  int rank = 0, size = 1, device = -1;  // -1: the host
  isthmus_comm_t comm = nullptr;
  bool host() const { return device < 0; }
};

// In a rank: what does not hold ends the test on all of them.
#define MUST(condition)                                                                                             \
  do {                                                                                                              \
    if (!(condition)) {                                                                                             \
      ADD_FAILURE() << "rank " << r.rank << ": " << #condition << " does not hold; last: " << isthmus_last_error(); \
      throw Broken();                                                                                               \
    }                                                                                                               \
  } while (0)
#define OK(call) MUST((call) == ISTHMUS_OK)

struct Work {
  Work() = default;
  Work(Work &&other) noexcept : work(std::exchange(other.work, nullptr)) {}
  ~Work() { isthmus_work_release(work); }
  isthmus_result wait(double seconds = 3 * soon()) const { return isthmus_work_wait(work, seconds); }
  isthmus_work_t work = nullptr;
};

// Memory where the rank works, or on the host.
class Memory {
 public:
  Memory(const Rank &r, size_t bytes, bool host = false) : on_host_(host || r.host()), host_(on_host_ ? bytes : 0) {
    if (!on_host_) must_cu("MemAlloc_v2", &device_, std::max<size_t>(bytes, 1));
  }
  ~Memory() {
    if (!on_host_) must_cu("MemFree_v2", device_);
  }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  void *at(size_t offset = 0) {
    return on_host_ ? static_cast<void *>(host_.data() + offset) : reinterpret_cast<void *>(device_ + offset);
  }
  void put(const Bytes &bytes, size_t offset = 0) {
    if (bytes.empty()) return;
    if (on_host_) return void(std::memcpy(host_.data() + offset, bytes.data(), bytes.size()));
    must_cu("MemcpyHtoD_v2", device_ + offset, static_cast<const void *>(bytes.data()), bytes.size());
    must_cu("StreamSynchronize",
            Handle{});  // the driver comes back before the device has it, and another stream may come next
  }
  Bytes get(size_t bytes, size_t offset = 0) const {
    Bytes out(bytes);
    if (bytes == 0) return out;
    if (on_host_) std::memcpy(out.data(), host_.data() + offset, bytes);
    else must_cu("MemcpyDtoH_v2", static_cast<void *>(out.data()), device_ + offset, bytes);
    return out;
  }

 private:
  const bool on_host_;
  Bytes host_;
  Address device_ = 0;
};

// Host memory that the device knows.
struct Pinned {
  explicit Pinned(size_t bytes) {
    must_cu("MemHostAlloc", &host, bytes, 0u);
    must_cu("MemHostGetDevicePointer_v2", &device, host, 0u);
    std::memset(host, 0, bytes);
  }
  ~Pinned() { must_cu("MemFreeHost", host); }
  Pinned(const Pinned &) = delete;
  Pinned &operator=(const Pinned &) = delete;
  void *host = nullptr;
  Address device = 0;
};

// A stream of the user's, and a word that it can be made to wait for.
// Each kind: the device's own by both its names, the calling thread's own, one that the device's own waits for, and one that it does not.
enum class OfKind : uintptr_t { Null, Legacy, Thread, Blocking, NonBlocking };
inline constexpr OfKind kEveryKind[] = {OfKind::Null, OfKind::Legacy, OfKind::Thread, OfKind::Blocking, OfKind::NonBlocking};
struct UserStream {
  explicit UserStream(OfKind kind = OfKind::NonBlocking) : stream(reinterpret_cast<Handle>(kind)), word(8) {
    if (made()) must_cu("StreamCreate", &stream, kind == OfKind::NonBlocking ? 1u : 0u);
  }
  ~UserStream() {
    open();
    must_cu("StreamSynchronize", stream);
    if (made()) must_cu("StreamDestroy_v2", stream);
  }
  bool made() const { return reinterpret_cast<uintptr_t>(stream) > static_cast<uintptr_t>(OfKind::Thread); }
  void stand() { must_cu("StreamWaitValue32_v2", stream, word.device, 1u, 0u); }
  void open() { std::atomic_ref(*static_cast<uint32_t *>(word.host)).store(1, std::memory_order_release); }
  Handle stream = nullptr;
  Pinned word;
};
// Opens the word of a stream after a while, so that a call that waits for the stream is a failure and no deadlock.
class Watch {
 public:
  explicit Watch(UserStream &user)
      : thread_([this, &user] {
          if (eventually([this] { return over_.load(); })) return;
          late_ = true;
          user.open();
        }) {}
  ~Watch() { returned_in_time(); }
  bool returned_in_time() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    return !late_;
  }

 private:
  std::atomic<bool> over_{false}, late_{false};
  std::thread thread_;
};
struct Event {
  Event() { must_cu("EventCreate", &event, 2u); }
  ~Event() { must_cu("EventDestroy_v2", event); }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
  Handle event = nullptr;
};
inline isthmus_call on(Handle stream) {
  isthmus_call call = ISTHMUS_CALL_INIT;
  call.on_stream = ISTHMUS_STREAM_BOTH;
  call.stream = stream;
  return call;
}

// A fleet is a word a rank: the number of its device or "-" for the host, and the letter of its island.
inline std::vector<std::string> words_of(const std::string &fleet) {
  std::istringstream text(fleet);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

struct Options {
  double timeout = 2 * soon();
  std::string settings;
  const char *bridge = nullptr;
};

// Runs `body` on every rank of the fleet, and ends the communicator.
inline void fly(const std::string &fleet, const std::function<void(Rank &)> &body, const Options &options = {}) {
  SCOPED_TRACE("fleet " + fleet);
  const auto words = words_of(fleet);
  isthmus_unique_id id;
  ASSERT_EQ(isthmus_unique_id_create(&id), ISTHMUS_OK) << isthmus_last_error();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < words.size(); ++i)
    threads.emplace_back([&, i] {
      Rank r{static_cast<int>(i), static_cast<int>(words.size()), words[i][0] == '-' ? -1 : words[i][0] - '0', nullptr};
      if (!r.host()) use(r.device);
      const std::string settings =
          (r.host() ? "DEVICE=host" : "DEVICE=cuda:" + std::to_string(r.device)) + ";" + options.settings;
      isthmus_options o{};
      o.size = sizeof o;
      o.rank = r.rank;
      o.world_size = r.size;
      o.id = &id;
      o.island = words[i].c_str() + 1;
      o.timeout = options.timeout;
      o.settings = settings.c_str();
      o.bridge = options.bridge;
      if (isthmus_init(&o, &r.comm) != ISTHMUS_OK) {
        ADD_FAILURE() << fleet << ": init of rank " << i << ": " << isthmus_last_error();
        return;
      }
      try {
        body(r);
      } catch (const Broken &) { isthmus_comm_abort(r.comm, "the test has failed"); }
      isthmus_comm_destroy(r.comm);
    });
  for (std::thread &t : threads) t.join();
}

// Several fleets at once, each on devices of its own, where the time goes by in waiting.
inline void fly_at_once(const std::vector<std::string> &fleets, const std::function<void(Rank &)> &body) {
  std::vector<std::thread> threads;
  for (const std::string &fleet : fleets) threads.emplace_back([&] { fly(fleet, body); });
  for (std::thread &t : threads) t.join();
}

inline void refused(const Rank &r, isthmus_result expected, const char *text, isthmus_result got) {
  EXPECT_EQ(got, expected) << "rank " << r.rank << ": " << isthmus_last_error();
  EXPECT_NE(std::string(isthmus_last_error()).find(text), std::string::npos) << isthmus_last_error();
}

// Every kind of fleet: a device beside the host, devices apart, islands of a library alone, beside the host, two of them, interleaved.
inline constexpr const char *kFleets[] = {"0a -a", "0a 1b", "0a 1a -b", "-a 0b 1b 2c -a"};
inline std::string title(const testing::TestParamInfo<const char *> &p) {
  std::string name = "Of";
  for (const char *c = p.param; *c; ++c)
    if (*c != ' ') name += *c == '-' ? 'H' : *c;
  return name;
}

}  // namespace isthmus_test
