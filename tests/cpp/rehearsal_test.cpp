// The simulated vendor is what it says: device memory that the host cannot touch, one queue, locks, loud misuse, faults on demand, and a
// collective library whose results are those of plain arithmetic. Every test runs in a process of its own, since the environment is read
// once.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "asleep.hpp"
#include "rehearsal_cuda_support.hpp"

namespace {

using namespace rehearsed;
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

// What is seen of a copy before its end.
constexpr size_t kCopied = 4096;
constexpr unsigned char kBefore = 0x11, kRubbish = 0xA5, kData = 0x22;

// `to` holds kBefore, and a copy of kData from the device to it is submitted.
void begin_copy(const Pinned &to, Handle s) {
  const Address from = allocate(kCopied);
  std::memset(to.host, kBefore, kCopied);
  IS(cu("MemsetD8_v2", from, kData, kCopied), 0);
  IS(cu("MemcpyDtoHAsync_v2", to.host, from, kCopied, s), 0);
}

// Whether each byte is one of the two. It looks while the engine's thread writes, as a program that does not wait would: that is no race
// for ThreadSanitizer to report.
__attribute__((noinline, no_sanitize("thread"))) bool holds(const Pinned &memory, unsigned char one, unsigned char other) {
  const auto *const bytes = static_cast<const volatile unsigned char *>(memory.host);
  for (size_t i = 0; i < kCopied; ++i) {
    const unsigned char now = bytes[i];
    if (now != one && now != other) return false;
  }
  return true;
}

TEST(Rehearsal, ADestinationHoldsRubbishUntilTheDataComes) {
  // A byte a second: the copy outlives the process, so no look comes too late.
  expect_clean({{"REHEARSAL_COPY_OUT_GBPS", "1e-9"}}, [] {
    use(0);
    const Pinned to(kCopied);
    const Handle s = new_stream();
    begin_copy(to, s);
    CHECK(comes([&] { return holds(to, kRubbish, kRubbish); }));
    sleep_ms(20);
    CHECK(holds(to, kRubbish, kRubbish));
    IS(cu("StreamQuery", s), 600);
  });
}

TEST(Rehearsal, WithoutRubbishADestinationHoldsWhatItDidUntilTheDataComes) {
  // 256 ms, through which it looks again and again; however rarely, no look may see anything else.
  expect_clean({{"REHEARSAL_SCRIBBLE", "0"}, {"REHEARSAL_COPY_OUT_GBPS", "1.6e-5"}}, [] {
    use(0);
    const Pinned to(kCopied);
    const Handle s = new_stream();
    const auto begin = std::chrono::steady_clock::now();
    begin_copy(to, s);
    CHECK(comes([&] {
      CHECK(holds(to, kBefore, kData));
      return holds(to, kData, kData);
    }));
    CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(250));
    IS(cu("StreamSynchronize", s), 0);
  });
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

// What a program's user says to the real driver holds for the simulated one: so many queues at most.
TEST(Rehearsal, TheDriversOwnVariableTakesQueuesAway) {
  expect_clean({{"REHEARSAL_QUEUES", "2"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}, [] { two_streams(false); });
  expect_clean({{"REHEARSAL_QUEUES", "2"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "8"}}, [] { two_streams(true); });
  expect_clean({{"REHEARSAL_QUEUES", "2"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "many"}}, [] { two_streams(true); });
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
    std::atomic<pid_t> inside{0};
    std::thread frees([&] {
      use(0);
      inside = isthmus_test::this_thread();
      release(a);
      ++done;
    });
    CHECK(comes([&] { return inside != 0; }) && isthmus_test::falls_asleep(inside));
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

TEST(Rehearsal, AFaultForGoodStaysOnItsDevice) {
  expect_clean({{"REHEARSAL_FAIL_FOR_GOOD", "cuMemcpyAsync:2:719"}}, [] {
    use(0);
    Pinned p;
    const Handle s = new_stream(), e = new_event();
    const Address a = allocate(16);
    unsigned type = 0;
    IS(cu("MemcpyAsync", a, p.device, size_t{4}, s), 0);
    IS(cu("StreamSynchronize", s), 0);
    IS(cu("PointerGetAttribute", &type, 2, a), 0);
    IS(cu("MemcpyAsync", a, p.device, size_t{4}, s), 719);
    IS(cu("MemcpyAsync", a, p.device, size_t{4}, s), 719);
    IS(cu("PointerGetAttribute", &type, 2, a), 719);
    IS(cu("EventRecord", e, s), 719);
    IS(cu("StreamQuery", s), 719);
    IS(cu("EventDestroy_v2", e), 0);
    IS(cu("StreamDestroy_v2", s), 0);
    IS(cu("MemFree_v2", a), 0);
  });
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

}  // namespace
