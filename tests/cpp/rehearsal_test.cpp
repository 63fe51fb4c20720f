// The simulated vendor is what it says: device memory that the host cannot touch, one queue, locks, loud misuse, faults on demand, and a
// collective library whose results are those of plain arithmetic. Every test runs in a process of its own, since the environment is read
// once.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "rehearsal_support.hpp"

namespace {

using namespace rehearsed;
using Address = unsigned long long;

template <class... A>
int cu(const char *name, A... a) {
  return call("nvidia/libcuda.so.1", (std::string("cu") + name).c_str(), a...);
}
template <class... A>
int nc(const char *name, A... a) {
  return call("nvidia/libnccl.so.2", (std::string("nccl") + name).c_str(), a...);
}

void use(int device) {
  IS(cu("Init", 0u), 0);
  Handle context = nullptr;
  IS(cu("DevicePrimaryCtxRetain", &context, device), 0);
  IS(cu("CtxSetCurrent", context), 0);
}
Address allocate(size_t bytes) {
  Address a = 0;
  IS(cu("MemAlloc_v2", &a, bytes), 0);
  return a;
}
void release(Address a) { IS(cu("MemFree_v2", a), 0); }
Handle new_stream() {
  Handle s = nullptr;
  IS(cu("StreamCreate", &s, 1u), 0);
  return s;
}
Handle new_event() {
  Handle e = nullptr;
  IS(cu("EventCreate", &e, 2u), 0);
  return e;
}
void to_device(Address a, const void *from, size_t bytes) { IS(cu("MemcpyHtoD_v2", a, from, bytes), 0); }
void from_device(void *to, Address a, size_t bytes) { IS(cu("MemcpyDtoH_v2", to, a, bytes), 0); }

// Host memory that the device knows, and a word in it that queues wait for.
struct Pinned {
  explicit Pinned(size_t bytes = 4096) {
    IS(cu("MemHostAlloc", &host, bytes, 0u), 0);
    IS(cu("MemHostGetDevicePointer_v2", &device, host, 0u), 0);
  }
  void free() { IS(cu("MemFreeHost", host), 0); }
  template <class T = uint32_t>
  void set(T value) {
    std::atomic_ref<T>(*static_cast<T *>(host)).store(value, std::memory_order_release);
  }
  void *host = nullptr;
  Address device = 0;
};
void stand(Handle stream, const Pinned &gate, uint32_t value = 1) {
  IS(cu("StreamWaitValue32_v2", stream, gate.device, value, 0u), 0);
}

// ---- memory, order, waits -------------------------------------------------------------------------------------------------

TEST(Rehearsal, TheHostCannotTouchDeviceMemory) {
  const End end = run({}, [] {
    use(0);
    const Address a = allocate(100);
    *reinterpret_cast<volatile char *>(a) = 1;
  });
  EXPECT_FALSE(end.clean());
  EXPECT_TRUE((WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGSEGV) || end.has("SEGV")) << end.said;
}

TEST(Rehearsal, SaysThatItIsOne) {
  const End end = run({{"REHEARSAL_QUIET", "0"}, {"REHEARSAL_DEVICES", "2"}}, [] {
    use(1);
    use(0);
    char name[100];
    IS(cu("DeviceGetName", name, 100, 1), 0);
    CHECK(std::strstr(name, "Simulated"));
  });
  EXPECT_TRUE(end.clean()) << end.said;
  EXPECT_EQ(end.said, "rehearsal: simulated NVIDIA driver, 2 device(s); no figure of this process is a measurement\n");
}

void copies() {
  use(0);
  const size_t n = 100'000;
  Pinned there(n), back(n);
  for (size_t i = 0; i < n; ++i) static_cast<unsigned char *>(there.host)[i] = static_cast<unsigned char>(i * 31);
  const Address a = allocate(n), b = allocate(n);
  const Handle s = new_stream();
  IS(cu("MemcpyHtoDAsync_v2", a, static_cast<const void *>(there.host), n, s), 0);
  IS(cu("MemcpyDtoDAsync_v2", b, a, n, s), 0);
  IS(cu("MemsetD8Async", b + 10, static_cast<unsigned char>(7), size_t{5}, s), 0);
  IS(cu("MemcpyAsync", back.device + 1, b + 1, n - 1, s), 0);
  IS(cu("StreamSynchronize", s), 0);
  for (size_t i = 1; i < n; ++i) {
    const unsigned char expected = i >= 10 && i < 15 ? 7 : static_cast<unsigned char>(i * 31);
    CHECK(static_cast<unsigned char *>(back.host)[i] == expected);
  }
  std::vector<char> plain(n);
  from_device(plain.data(), a, n);
  CHECK(std::memcmp(plain.data(), there.host, n) == 0);
  unsigned type = 0;
  IS(cu("PointerGetAttribute", static_cast<void *>(&type), 2, a + 5), 0);
  IS(type, 2u);
  IS(cu("PointerGetAttribute", static_cast<void *>(&type), 2, there.device + 5), 0);
  IS(type, 1u);
  IS(cu("PointerGetAttribute", static_cast<void *>(&type), 2, reinterpret_cast<Address>(plain.data())), 1);
  IS(cu("MemHostRegister_v2", static_cast<void *>(plain.data() + 3), size_t{5000}, 0u), 0);
  IS(cu("MemHostRegister_v2", static_cast<void *>(plain.data() + 5002), size_t{10}, 0u), 712);
  IS(cu("MemHostUnregister", static_cast<void *>(plain.data())), 713);
  IS(cu("MemcpyDtoHAsync_v2", static_cast<void *>(plain.data() + 4), a, size_t{4999}, s), 0);
  IS(cu("StreamSynchronize", s), 0);
  IS(cu("MemHostUnregister", static_cast<void *>(plain.data() + 3)), 0);
  Address out = 0;
  IS(cu("MemAlloc_v2", &out, size_t{2} << 30), 2);
  release(a);
  release(b);
  there.free();
  back.free();
  IS(cu("StreamDestroy_v2", s), 0);
  for (const char *what : {"allocation", "registration", "stream", "event"}) IS(live(what), 0u);
  IS(number_of("rehearsal_misuses"), 0u);
  IS(number_of("rehearsal_calls", "cuMemcpyAsync"), 1u);
}
TEST(Rehearsal, Copies) { expect_clean({}, copies); }
TEST(Rehearsal, CopiesWithEqualAddresses) { expect_clean({{"REHEARSAL_SAME_ADDRESS", "1"}}, copies); }
TEST(Rehearsal, CopiesOnManySlowQueues) {
  expect_clean({{"REHEARSAL_QUEUES", "4"}, {"REHEARSAL_COPY_GBPS", "1"}, {"REHEARSAL_LATENCY_US", "50"}}, copies);
}

TEST(Rehearsal, RegisteredMemoryHasAnotherAddressOnTheDevice) {
  expect_clean({}, [] {
    use(0);
    Pinned p;
    CHECK(p.device != reinterpret_cast<Address>(p.host));
  });
}

// One stream stands at a gate; whether another goes on depends on the number of queues.
void two_streams(bool goes_on) {
  use(0);
  Pinned gate;
  const Handle a = new_stream(), b = new_stream(), done = new_event();
  stand(a, gate);
  IS(cu("EventRecord", done, b), 0);
  if (goes_on) {
    CHECK(comes([&] { return cu("EventQuery", done) == 0; }));
  } else {
    sleep_ms(50);
    IS(cu("EventQuery", done), 600);
  }
  gate.set(1u);
  IS(cu("EventSynchronize", done), 0);
  IS(cu("StreamSynchronize", a), 0);
}
TEST(Rehearsal, OneQueueHoldsBackOtherStreams) {
  expect_clean({}, [] { two_streams(false); });
}
TEST(Rehearsal, TwoQueuesDoNot) {
  expect_clean({{"REHEARSAL_QUEUES", "2"}}, [] { two_streams(true); });
}

TEST(Rehearsal, AnEventOrdersTwoQueues) {
  expect_clean({{"REHEARSAL_QUEUES", "2"}}, [] {
    use(0);
    Pinned gate;
    const Handle a = new_stream(), b = new_stream(), first = new_event(), second = new_event();
    stand(a, gate);
    IS(cu("EventRecord", first, a), 0);
    IS(cu("StreamWaitEvent", b, first, 0u), 0);
    IS(cu("EventRecord", second, b), 0);
    sleep_ms(30);
    IS(cu("EventQuery", second), 600);
    gate.set(1u);
    IS(cu("CtxSynchronize"), 0);
    IS(cu("EventQuery", second), 0);
  });
}

TEST(Rehearsal, ValuesCompareAsTheVendorSays) {
  expect_clean({{"REHEARSAL_JITTER_US", "0"}}, [] {
    use(0);
    Pinned word;
    const Handle s = new_stream();
    const auto wait_for = [&](uint32_t now, uint32_t value, unsigned how) {
      word.set(now);
      IS(cu("StreamWaitValue32_v2", s, word.device, value, how), 0);
    };
    const auto passes = [&](uint32_t now, uint32_t value, unsigned how) {
      wait_for(now, value, how);
      return comes([&] { return cu("StreamQuery", s) == 0; });
    };
    const auto stands = [&](uint32_t now, uint32_t value, unsigned how, uint32_t opens) {
      wait_for(now, value, how);
      sleep_ms(5);
      const int r = cu("StreamQuery", s);
      word.set(opens);
      IS(cu("StreamSynchronize", s), 0);
      return r == 600;
    };
    CHECK(passes(5, 5, 0));
    CHECK(stands(4, 5, 0, 5));
    CHECK(passes(2, 0xfffffffeu, 0));     // behind the wrap
    CHECK(stands(0xfffffffeu, 2, 0, 2));  // before it
    CHECK(stands(6, 5, 1, 5));            // equal
    CHECK(passes(6, 4, 2));               // and
    CHECK(stands(6, 1, 2, 1));            //
    CHECK(passes(6, 1, 3));               // nor
    CHECK(stands(0xf0f0f0f0u, 0x0f0f0f0fu, 3, 0));
    word.set<uint64_t>(3);
    IS(cu("StreamWaitValue64_v2", s, word.device, ~uint64_t{0}, 0u), 0);
    IS(cu("StreamWriteValue64_v2", s, word.device, uint64_t{1} << 40, 0u), 0);
    IS(cu("StreamWaitValue64_v2", s, word.device, (uint64_t{1} << 40) - 1, 0u), 0);
    IS(cu("StreamSynchronize", s), 0);
    CHECK(*static_cast<uint64_t *>(word.host) == uint64_t{1} << 40);
  });
}

TEST(Rehearsal, FreeHoldsTheLockUntilTheDeviceIsIdle) {
  expect_clean({}, [] {
    use(0);
    Pinned gate;
    const Handle s = new_stream(), e = new_event();
    const Address a = allocate(100);
    stand(s, gate);
    std::atomic<int> done{0};
    std::thread frees([&] {
      use(0);
      release(a);
      ++done;
    });
    CHECK(comes([] { return number_of("rehearsal_calls", "cuMemFree") == 1; }));
    sleep_ms(30);  // from the count to the lock
    std::thread asks([&] {
      use(0);
      IS(cu("EventQuery", e), 0);
      ++done;
    });
    sleep_ms(30);
    IS(done.load(), 0);
    gate.set(1u);
    frees.join();
    asks.join();
    IS(done.load(), 2);
  });
}

TEST(Rehearsal, AFullQueueBlocks) {
  expect_clean({{"REHEARSAL_QUEUE_DEPTH", "4"}}, [] {
    use(0);
    Pinned gate;
    const Handle s = new_stream(), e = new_event();
    stand(s, gate);
    std::atomic<int> submitted{0};
    std::thread submits([&] {
      use(0);
      for (int i = 0; i < 10; ++i) {
        IS(cu("EventRecord", e, s), 0);
        ++submitted;
      }
    });
    CHECK(comes([&] { return submitted.load() == 3; }));
    sleep_ms(50);
    IS(submitted.load(), 3);
    gate.set(1u);
    submits.join();
    IS(cu("StreamSynchronize", s), 0);
  });
}

TEST(Rehearsal, HostFunctionsRunInOrder) {
  expect_clean({}, [] {
    use(0);
    Pinned gate;
    const Handle s = new_stream();
    std::atomic<int> seen{0};
    stand(s, gate);
    IS(cu(
           "LaunchHostFunc", s, +[](void *p) { static_cast<std::atomic<int> *>(p)->store(1); }, static_cast<void *>(&seen)),
       0);
    sleep_ms(20);
    IS(seen.load(), 0);
    gate.set(1u);
    IS(cu("StreamSynchronize", s), 0);
    IS(seen.load(), 1);
  });
}

TEST(Rehearsal, CaptureRecordsAndRunsNothing) {
  expect_clean({}, [] {
    use(0);
    Pinned from;
    from.set(17u);
    const Address a = allocate(4);
    IS(cu("MemsetD8_v2", a, static_cast<unsigned char>(0), size_t{4}), 0);
    const Handle s = new_stream();
    int capturing = 9;
    IS(cu("StreamBeginCapture_v2", s, 2), 0);
    IS(cu("StreamIsCapturing", s, &capturing), 0);
    IS(capturing, 1);
    IS(cu("MemcpyAsync", a, from.device, size_t{4}, s), 0);
    Handle graph = nullptr;
    IS(cu("StreamEndCapture", s, &graph), 0);
    CHECK(graph);
    IS(cu("GraphDestroy", graph), 0);
    uint32_t value = 9;
    from_device(&value, a, 4);
    IS(value, 0u);
    const Handle other = new_stream();
    IS(cu("StreamBeginCapture_v2", s, 0), 0);
    IS(cu("StreamQuery", other), 900);  // a capture for all threads forbids it, but not to one that says it stands aside
    int mode = 2;
    IS(cu("ThreadExchangeStreamCaptureMode", &mode), 0);
    IS(mode, 0);
    IS(cu("StreamQuery", other), 0);
    IS(cu("ThreadExchangeStreamCaptureMode", &mode), 0);
    IS(mode, 2);
    IS(cu("StreamQuery", other), 900);
    Address b = 0;
    IS(cu("MemAlloc_v2", &b, size_t{4}), 900);
    IS(cu("StreamQuery", s), 900);
    IS(cu("StreamIsCapturing", s, &capturing), 0);
    IS(capturing, 2);
    IS(cu("StreamEndCapture", s, &graph), 901);
    IS(cu("StreamQuery", s), 0);
  });
}

// ---- misuse and faults ----------------------------------------------------------------------------------------------------

TEST(Rehearsal, MisuseIsLoud) {
  struct Case {
    const char *says;
    std::function<void()> does;
  };
  static int plain[4];
  const auto on = [](void *p) { return reinterpret_cast<Address>(p); };
  const std::vector<Case> cases = {
      {"cuMemAlloc: no context",
       [] {
         IS(cu("Init", 0u), 0);
         Address a = 0;
         cu("MemAlloc_v2", &a, size_t{4});
       }},
      {"cuMemcpyAsync: source", [&] { cu("MemcpyAsync", allocate(16), on(plain), size_t{16}, Handle{}); }},
      {"neither memory of a device nor registered",
       [&] { cu("MemcpyDtoHAsync_v2", static_cast<void *>(plain), allocate(16), size_t{16}, new_stream()); }},
      {"memory that was freed",
       [] {
         const Address a = allocate(16);
         release(a);
         cu("MemsetD8_v2", a + 2, static_cast<unsigned char>(1), size_t{1});
       }},
      {"that was freed already",
       [] {
         const Address a = allocate(16);
         release(a);
         cu("MemFree_v2", a);
       }},
      {"17 bytes, but 16 are left", [] { cu("MemsetD8_v2", allocate(16), static_cast<unsigned char>(1), size_t{17}); }},
      {"stream of device 1 with device 0 current",
       [] {
         use(1);
         const Handle s = new_stream();
         use(0);
         cu("MemsetD8Async", allocate(16), static_cast<unsigned char>(1), size_t{1}, s);
       }},
      {"cuStreamDestroy: stream",
       [] {
         const Handle s = new_stream();
         IS(cu("StreamDestroy_v2", s), 0);
         cu("StreamDestroy_v2", s);
       }},
      {"was destroyed",
       [] {
         const Handle e = new_event();
         IS(cu("EventDestroy_v2", e), 0);
         cu("EventDestroy_v2", e);
       }},
      {"never existed", [] { cu("EventQuery", reinterpret_cast<Handle>(0x1234)); }},
      {"called by a host function",
       [] {
         const auto f = +[](void *) { cu("StreamQuery", Handle{}); };
         cu("LaunchHostFunc", Handle{}, f, Handle{});
         cu("CtxSynchronize");
       }},
      {"is not aligned",
       [] {
         Pinned p;
         cu("StreamWaitValue32_v2", Handle{}, p.device + 2, 0u, 0u);
       }},
      {"a pointer of the host where an address of the device belongs",
       [&] {
         Pinned p;
         cu("StreamWaitValue32_v2", Handle{}, on(p.host), 0u, 0u);
       }},
      {"1 group(s) of calls left open", [] { IS(nc("GroupStart"), 0); }},
      {"no group is open", [] { nc("GroupEnd"); }},
      {"not all of it is mapped",
       [] {  // a page that no thread can get by chance
         cu("MemHostRegister_v2", reinterpret_cast<void *>(uintptr_t{4096}), size_t{100}, 0u);
       }},
  };
  for (const Case &c : cases) {
    const auto body = [&] {
      if (std::strcmp(c.says, "cuMemAlloc: no context") != 0) use(0);
      c.does();
    };
    const End end = run({{"REHEARSAL_DEVICES", "2"}}, body);
    EXPECT_TRUE(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT) << c.says << ": " << end.status << end.said;
    EXPECT_TRUE(end.has("rehearsal: misuse: ") && end.has(c.says)) << c.says << ": " << end.said;
    const End lenient = run({{"REHEARSAL_DEVICES", "2"}, {"REHEARSAL_ABORT_ON_MISUSE", "0"}}, body);
    EXPECT_TRUE(lenient.clean() && lenient.has(c.says)) << lenient.status << lenient.said;
  }
}

TEST(Rehearsal, MemoryFreedBeforeTheWorkThatUsesItIsFound) {
  const End end = run({{"REHEARSAL_LOCKING", "0"}}, [] {
    use(0);
    Pinned gate;
    const Handle s = new_stream();
    const Address a = allocate(16);
    stand(s, gate);
    IS(cu("MemsetD8Async", a, static_cast<unsigned char>(1), size_t{16}, s), 0);
    release(a);
    gate.set(1u);
    cu("StreamSynchronize", s);
  });
  EXPECT_TRUE(end.has("was freed before the work")) << end.said;
}

TEST(Rehearsal, FaultsOnDemand) {
  expect_clean(
      {{"REHEARSAL_FAIL", "cuMemcpyAsync:2:719,cuEventCreate:1:2"}, {"REHEARSAL_FAIL_LATE", "cuMemsetD8Async:2:700"}}, [] {
        use(0);
        Pinned p;
        Handle e = nullptr;
        IS(cu("EventCreate", &e, 0u), 2);
        e = new_event();
        const Handle s = new_stream();
        const Address a = allocate(16);
        IS(cu("MemcpyAsync", a, p.device, size_t{4}, s), 0);
        IS(cu("MemcpyAsync", a, p.device, size_t{4}, s), 719);
        IS(cu("MemcpyAsync", a, p.device, size_t{4}, s), 0);
        IS(cu("StreamSynchronize", s), 0);
        IS(cu("MemsetD8Async", a, static_cast<unsigned char>(1), size_t{4}, s), 0);
        IS(cu("MemsetD8Async", a, static_cast<unsigned char>(1), size_t{4}, s), 0);
        IS(cu("StreamSynchronize", s), 700);
        IS(cu("StreamQuery", s), 700);
        IS(cu("MemcpyAsync", a, p.device, size_t{4}, s), 700);
        IS(number_of("rehearsal_misuses"), 0u);
      });
}

TEST(Rehearsal, WorkThatHangsOrIsSlow) {
  const End end = run({{"REHEARSAL_HANG", "cuMemsetD8Async:2"}, {"REHEARSAL_SLOW", "cuMemsetD8Async:1:100"}}, [] {
    use(0);
    const Handle s = new_stream();
    const Address a = allocate(16);
    const auto begin = std::chrono::steady_clock::now();
    IS(cu("MemsetD8Async", a, static_cast<unsigned char>(1), size_t{4}, s), 0);
    IS(cu("StreamSynchronize", s), 0);
    CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(100));
    IS(cu("MemsetD8Async", a, static_cast<unsigned char>(1), size_t{4}, s), 0);
    sleep_ms(30);
    IS(cu("StreamQuery", s), 600);
    std::exit(7);  // with work pending
  });
  EXPECT_TRUE(WIFEXITED(end.status) && WEXITSTATUS(end.status) == 7) << end.status << end.said;
}

TEST(Rehearsal, AForksChildIsTurnedAway) {
  expect_clean({}, [] {
    use(0);
    const pid_t child = ::fork();
    if (child == 0) {
      Handle s = nullptr;
      ::_exit(cu("StreamCreate", &s, 0u) == 3 && cu("Init", 0u) == 3 ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    IS(status, 0);
  });
}

// ---- collectives ----------------------------------------------------------------------------------------------------------

// One thread a rank, each with a device of its own.
void ranks(int n, const std::function<void(int rank, Handle comm, Handle stream)> &body, bool destroys = true) {
  use(0);
  UniqueId id;
  IS(nc("GetUniqueId", &id), 0);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      use(r);
      Handle comm = nullptr;
      IS(nc("CommInitRank", &comm, n, id, r), 0);
      const Handle s = new_stream();
      body(r, comm, s);
      if (destroys) IS(nc("CommDestroy", comm), 0);
      IS(cu("StreamDestroy_v2", s), 0);
    });
  for (std::thread &t : threads) t.join();
  for (const char *what : {"allocation", "registration", "stream", "event", "communicator"}) IS(live(what), 0u);
}

enum : int { kI8, kU8, kI32, kU32, kI64, kU64, kF16, kF32, kF64, kBF16, kE4M3, kE5M2, kTypes };
constexpr size_t kWidth[kTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// Bits of a number that the type holds exactly.
uint64_t bits_of(int type, double v) {
  const auto small = [&](int exponent, int mantissa) -> uint64_t {
    if (v == 0) return 0;
    int e = 0;
    const double m = std::frexp(v, &e);
    const int bias = (1 << (exponent - 1)) - 1;
    return (static_cast<uint64_t>(e - 1 + bias) << mantissa) + static_cast<uint64_t>(std::ldexp(2 * m - 1, mantissa));
  };
  uint64_t bits = 0;
  switch (type) {
    case kF16: return small(5, 10);
    case kBF16: return small(8, 7);
    case kE4M3: return small(4, 3);
    case kE5M2: return small(5, 2);
    case kF32: {
      const auto f = static_cast<float>(v);
      std::memcpy(&bits, &f, 4);
      return bits;
    }
    case kF64: std::memcpy(&bits, &v, 8); return bits;
    default: return static_cast<uint64_t>(static_cast<int64_t>(v));
  }
}
std::vector<unsigned char> packed(int type, size_t n, const std::function<double(size_t)> &value) {
  std::vector<unsigned char> out(n * kWidth[type]);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t b = bits_of(type, value(i));
    std::memcpy(out.data() + i * kWidth[type], &b, kWidth[type]);
  }
  return out;
}
double contribution(int rank, size_t i) { return (i * 5 + static_cast<size_t>(rank) * 3 + i / 7) % 2 ? 2 : 1; }
double reduced(int n, size_t i, int op) {
  double v = contribution(n - 1, i);
  for (int r = n - 2; r >= 0; --r) {
    const double w = contribution(r, i);
    v = op == 1 ? v * w : op == 2 ? std::max(v, w) : op == 3 ? std::min(v, w) : v + w;
  }
  return v;
}

// A buffer on the device, and what it must hold in the end.
void check(Address a, const std::vector<unsigned char> &expected, const char *what, int type, int op) {
  std::vector<unsigned char> got(expected.size());
  from_device(got.data(), a, got.size());
  if (got != expected) {
    size_t i = 0;
    while (got[i] == expected[i]) ++i;
    std::fprintf(stderr, "%s: type %d, op %d: byte %zu is %d, not %d\n", what, type, op, i, got[i], expected[i]);
    ::_exit(3);
  }
}

TEST(Rehearsal, CollectivesComputeWhatTheyAreDefinedTo) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    ranks(3, [](int me, Handle comm, Handle s) {
      const int n = 3;
      const size_t un = n, ume = static_cast<size_t>(me);
      for (int type = 0; type < kTypes; ++type)
        for (int op = 0; op < 4; ++op) {
          const size_t count = type == kF32 && op == 0 ? 300'001 : 1000, bytes = count * kWidth[type];
          const Address from = allocate(bytes * un), to = allocate(bytes * un);
          const auto mine = packed(type, count * un, [&](size_t i) { return contribution(me, i); });
          const auto sum = [&](size_t i) { return reduced(n, i, op); };
          to_device(from, mine.data(), mine.size());
          IS(nc("AllReduce", from, to, count, type, op, comm, s), 0);
          IS(cu("StreamSynchronize", s), 0);
          check(to, packed(type, count, sum), "all_reduce", type, op);
          IS(nc("ReduceScatter", from, to, count, type, op, comm, s), 0);
          IS(cu("StreamSynchronize", s), 0);
          check(to, packed(type, count, [&](size_t i) { return reduced(n, i + ume * count, op); }), "reduce_scatter", type,
                op);
          if (op == 0) {
            IS(nc("AllGather", from, to, count, type, comm, s), 0);
            IS(cu("StreamSynchronize", s), 0);
            for (int r = 0; r < n; ++r)
              check(to + static_cast<size_t>(r) * bytes, packed(type, count, [&](size_t i) { return contribution(r, i); }),
                    "all_gather", type, op);
            IS(nc("Broadcast", from, to, count, type, 1, comm, s), 0);
            IS(cu("StreamSynchronize", s), 0);
            check(to, packed(type, count, [](size_t i) { return contribution(1, i); }), "broadcast", type, op);
          }
          IS(nc("Reduce", from, from, count, type, op, 2, comm, s), 0);  // in place
          IS(cu("StreamSynchronize", s), 0);
          check(from, packed(type, count, [&](size_t i) { return me == 2 ? sum(i) : contribution(me, i); }), "reduce", type,
                op);
          release(from);
          release(to);
        }
    });
  });
}

TEST(Rehearsal, AveragesScalesAndRoundsOnce) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    ranks(3, [](int me, Handle comm, Handle s) {
      const Address a = allocate(64);
      const auto result = [&](int type, double mine, int op) {
        const auto bits = packed(type, 1, [&](size_t) { return mine; });
        to_device(a, bits.data(), bits.size());
        IS(nc("AllReduce", a, a, size_t{1}, type, op, comm, s), 0);
        uint64_t out = 0;
        from_device(&out, a, kWidth[type]);
        return out;
      };
      CHECK(result(kF32, me + 1, 4) == bits_of(kF32, 2));
      CHECK(result(kI32, me + 2, 4) == 3);
      CHECK(result(kBF16, me == 0 ? 256 : 1, 0) == bits_of(kBF16, 258));  // two roundings would give 256
      CHECK(result(kE4M3, 448, 0) == bits_of(kE4M3, 448));                // saturates
      CHECK(result(kF16, 60000, 0) == 0x7c00);                            // does not
      int op = 0;
      float half = 0.5f;
      IS(nc("RedOpCreatePreMulSum", &op, static_cast<void *>(&half), kF32, 1, comm), 0);
      CHECK(result(kF32, me + 1, op) == bits_of(kF32, 3));
      IS(nc("AllReduce", a, a, size_t{1}, kF64, op, comm, s), 4);
      IS(nc("RedOpDestroy", op, comm), 0);
      IS(nc("AllReduce", a, a, size_t{1}, kF32, op, comm, s), 4);
      IS(nc("AllReduce", a, a, size_t{1}, 12, 0, comm, s), 4);
      IS(nc("AllReduce", a, a, size_t{1}, kF32, 0, Handle{}, s), 4);
      IS(nc("Broadcast", a, a, size_t{1}, kF32, 3, comm, s), 4);
      release(a);
    });
  });
}

TEST(Rehearsal, GroupedMessagesPassEachOther) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    ranks(3, [](int me, Handle comm, Handle s) {
      const size_t count = 300'000;
      const size_t n = 3;
      const Address from = allocate(count * n), to = allocate(count * n);
      const auto mine =
          packed(kU8, count * n, [&](size_t i) { return static_cast<double>((i * 7 + static_cast<size_t>(me)) % 251); });
      to_device(from, mine.data(), mine.size());
      for (int turn = 0; turn < 3; ++turn) {
        IS(nc("GroupStart"), 0);
        for (int r = 0; r < 3; ++r) {
          IS(nc("Send", from + static_cast<size_t>(r) * count, count, kU8, r, comm, s), 0);
          IS(nc("GroupStart"), 0);
          IS(nc("Recv", to + static_cast<size_t>(r) * count, count, kU8, r, comm, s), 0);
          IS(nc("GroupEnd"), 0);
        }
        IS(cu("StreamQuery", s), 0);  // nothing was submitted so far
        IS(nc("GroupEnd"), 0);
        IS(cu("StreamSynchronize", s), 0);
      }
      check(to,
            packed(kU8, count * n,
                   [&](size_t i) {
                     const size_t r = i / count, at = i % count + static_cast<size_t>(me) * count;
                     return static_cast<double>((at * 7 + r) % 251);
                   }),
            "all_to_all", kU8, 0);
      release(from);
      release(to);
    });
  });
}

TEST(Rehearsal, OneThreadDrivesAllDevicesInAGroup) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    use(0);
    use(1);
    Handle comms[2];
    IS(nc("CommInitAll", static_cast<Handle *>(comms), 2, static_cast<const int *>(nullptr)), 0);
    Address a[2];
    Handle s[2];
    for (int r = 0; r < 2; ++r) {
      use(r);
      a[r] = allocate(4);
      s[r] = new_stream();
      const int value = 20 + r;
      to_device(a[r], &value, 4);
    }
    IS(nc("GroupStart"), 0);
    for (int r = 0; r < 2; ++r) IS(nc("AllReduce", a[r], a[r], size_t{1}, kI32, 0, comms[r], s[r]), 0);
    IS(nc("GroupEnd"), 0);
    for (int r = 0; r < 2; ++r) {
      use(r);
      int value = 0;
      IS(cu("StreamSynchronize", s[r]), 0);
      from_device(&value, a[r], 4);
      IS(value, 41);
      int asked = -1;
      IS(nc("CommCuDevice", comms[r], &asked), 0);
      IS(asked, r);
    }
    for (const Handle c : comms) IS(nc("CommDestroy", c), 0);
  });
}

TEST(Rehearsal, AbortEndsWorkWhosePeerIsMissing) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    ranks(
        2,
        [](int me, Handle comm, Handle s) {
          const Address a = allocate(4);
          if (me == 0) {
            IS(nc("AllReduce", a, a, size_t{1}, kF32, 0, comm, s), 0);
            sleep_ms(50);
            IS(cu("StreamQuery", s), 600);
            std::thread([&] { IS(nc("CommAbort", comm), 0); }).join();
            IS(cu("StreamSynchronize", s), 0);
            IS(cu("MemsetD8Async", a, static_cast<unsigned char>(1), size_t{4}, s), 0);
            IS(cu("StreamSynchronize", s), 0);
          } else {
            IS(nc("CommAbort", comm), 0);
          }
          release(a);
        },
        false);
  });
}

TEST(Rehearsal, CollectivesFailLate) {
  expect_clean({{"REHEARSAL_DEVICES", "2"},
                {"REHEARSAL_FAIL_LATE", "ncclAllReduce:2:1,ncclBroadcast:1:6"},
                {"REHEARSAL_HANG", "ncclReduce:1"}},
               [] {
                 use(1);
                 use(0);
                 UniqueId id;
                 IS(nc("GetUniqueId", &id), 0);
                 Handle comm = nullptr;
                 IS(nc("CommInitRank", &comm, 1, id, 0), 0);
                 const Handle s = new_stream();
                 const Address a = allocate(4);
                 const auto renew = [&](int state) {
                   int error = -1;
                   for (int i = 0; i < 100 && error != state; ++i) {
                     IS(nc("CommGetAsyncError", comm, &error), 0);
                     sleep_ms(5);
                   }
                   IS(error, state);
                   IS(cu("StreamQuery", s), 600);
                   IS(nc("CommAbort", comm), 0);
                   IS(cu("StreamSynchronize", s), 0);
                   IS(nc("GetUniqueId", &id), 0);
                   IS(nc("CommInitRank", &comm, 1, id, 0), 0);
                 };
                 IS(nc("Reduce", a, a, size_t{1}, kF32, 0, 0, comm, s), 0);
                 sleep_ms(20);
                 renew(0);
                 IS(nc("Broadcast", a, a, size_t{1}, kF32, 0, comm, s), 0);  // the network: it stands until it is aborted
                 renew(6);
                 IS(nc("AllReduce", a, a, size_t{1}, kF32, 0, comm, s), 0);
                 IS(cu("StreamSynchronize", s), 0);
                 IS(nc("AllReduce", a, a, size_t{1}, kF32, 0, comm, s), 0);
                 IS(cu("StreamSynchronize", s), 700);
                 int error = 0;
                 IS(nc("CommGetAsyncError", comm, &error), 0);
                 IS(error, 1);
                 IS(nc("AllReduce", a, a, size_t{1}, kF32, 0, comm, s), 1);
                 IS(nc("CommAbort", comm), 0);
               });
}

TEST(Rehearsal, CommunicatorsThatCannotBe) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    use(0);
    UniqueId id{};
    Handle comm = nullptr;
    IS(nc("CommInitRank", &comm, 1, id, 0), 4);
    IS(nc("GetUniqueId", &id), 0);
    IS(nc("CommInitRank", &comm, 2, id, 2), 4);
    int results[2] = {-1, -1};
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        use(0);  // the same device
        Handle mine = nullptr;
        results[r] = nc("CommInitRank", &mine, 2, id, r);
      });
    for (std::thread &t : threads) t.join();
    IS(results[0], 5);
    IS(results[1], 5);
    IS(nc("CommInitRank", &comm, 2, id, 0), 2);  // nobody listens there any more
    struct {
      size_t size = 40;
      unsigned magic = 0xcafebeef, version = 22903;
      int blocking = 0, more[5] = {};
    } config;
    IS(nc("GetUniqueId", &id), 0);
    IS(nc("CommInitRankConfig", &comm, 2, id, 0, static_cast<void *>(&config)), 7);
    int state = -1;
    IS(nc("CommGetAsyncError", comm, &state), 0);
    IS(state, 7);
    IS(nc("CommAbort", comm), 0);  // the other rank never came
    IS(nc("GetUniqueId", &id), 0);
    IS(nc("CommInitRankConfig", &comm, 1, id, 0, static_cast<void *>(&config)), 7);
    for (state = 7; state == 7; sleep_ms(1)) IS(nc("CommGetAsyncError", comm, &state), 0);
    IS(state, 0);
    IS(nc("CommDestroy", comm), 0);
    config.magic = 1;
    IS(nc("CommInitRankConfig", &comm, 1, id, 0, static_cast<void *>(&config)), 4);
    CHECK(comes([] { return live("communicator") == 0 && live("allocation") == 0; }));
  });
}

TEST(Rehearsal, CommunicatorsSplit) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    ranks(3, [](int me, Handle comm, Handle s) {
      for (int turn = 0; turn < 3; ++turn) {
        Handle half = nullptr;
        IS(nc("CommSplit", comm, me == 1 ? -1 : 0, -me, &half, static_cast<void *>(nullptr)), 0);
        CHECK((half == nullptr) == (me == 1));
        if (!half) continue;
        int rank = -1;
        IS(nc("CommUserRank", half, &rank), 0);
        IS(rank, me == 2 ? 0 : 1);
        const Address a = allocate(4);
        to_device(a, &me, 4);
        IS(nc("AllReduce", a, a, size_t{1}, kI32, 0, half, s), 0);
        IS(cu("StreamSynchronize", s), 0);
        int sum = 0;
        from_device(&sum, a, 4);
        IS(sum, 2);
        release(a);
        IS(nc("CommDestroy", half), 0);
      }
    });
  });
}

TEST(Rehearsal, MisuseOfCollectivesIsLoud) {
  const Environment two = {{"REHEARSAL_DEVICES", "2"}};
  const End mismatch = run(two, [] {
    ranks(2, [](int me, Handle comm, Handle s) {
      const Address a = allocate(64);
      IS(nc("AllReduce", a, a, size_t{me ? 4u : 5u}, kF32, 0, comm, s), 0);
      cu("StreamSynchronize", s);
    });
  });
  EXPECT_TRUE(mismatch.has("misuse: ncclAllReduce: rank")) << mismatch.said;
  const auto one = [](const std::function<void(Handle)> &body) {
    use(0);
    UniqueId id;
    IS(nc("GetUniqueId", &id), 0);
    Handle comm = nullptr;
    IS(nc("CommInitRank", &comm, 1, id, 0), 0);
    body(comm);
  };
  const std::vector<std::pair<const char *, std::function<void(Handle)>>> cases = {
      {"memory of device 1, the communicator's is 0",
       [](Handle comm) {
         use(1);
         const Address a = allocate(4);
         use(0);
         nc("AllReduce", a, a, size_t{1}, kF32, 0, comm, Handle{});
       }},
      {"stream of device 1",
       [](Handle comm) {
         use(1);
         const Handle s = new_stream();
         use(0);
         const Address a = allocate(4);
         nc("AllReduce", a, a, size_t{1}, kF32, 0, comm, s);
       }},
      {"memory of the host",
       [](Handle comm) {
         Pinned p;
         nc("AllReduce", p.host, p.host, size_t{1}, kF32, 0, comm, Handle{});
       }},
      {"communicator",
       [](Handle comm) {
         IS(nc("CommDestroy", comm), 0);
         nc("CommDestroy", comm);
       }},
  };
  for (const auto &[says, does] : cases) {
    const End end = run(two, [&, does = does] { one(does); });
    EXPECT_TRUE(end.has("rehearsal: misuse: nccl") && end.has(says)) << says << ": " << end.said;
    EXPECT_TRUE(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT) << end.status;
  }
}

TEST(Rehearsal, RanksAreProcesses) {
  int ids[2];
  ASSERT_EQ(::pipe(ids), 0);
  std::vector<pid_t> children;
  for (int me = 0; me < 2; ++me) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      ::setenv("REHEARSAL_QUIET", "1", 1);
      use(0);
      UniqueId id;
      if (me == 0) {
        IS(nc("GetUniqueId", &id), 0);
        CHECK(::write(ids[1], &id, sizeof id) == sizeof id);
      } else {
        ::close(ids[1]);
        CHECK(::read(ids[0], &id, sizeof id) == sizeof id);
      }
      Handle comm = nullptr;
      IS(nc("CommInitRank", &comm, 2, id, me), 0);
      const Handle s = new_stream();
      const Address a = allocate(4);
      const int value = me + 7;
      to_device(a, &value, 4);
      for (int i = 0; i < 50; ++i) IS(nc("AllReduce", a, a, size_t{1}, kU32, 2, comm, s), 0);
      int got = 0;
      IS(cu("StreamSynchronize", s), 0);
      from_device(&got, a, 4);
      IS(got, 8);
      IS(nc("CommDestroy", comm), 0);
      ::_exit(0);
    }
    children.push_back(child);
  }
  ::close(ids[1]);
  for (const pid_t child : children) {
    int status = 1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  ::close(ids[0]);
}

}  // namespace
