// The simulated runtime of AMD, in its three versions, is what it says, and what AMD says of the real one: pointers that mean another number
// in another version, devices without contexts, waits that want signal memory. What the engine does is rehearsal_test.cpp's subject.
#include <atomic>
#include <cstdint>
#include <cstring>

#include "rehearsal_support.hpp"

namespace {

using namespace rehearsed;

int major_version = 7;
std::string runtime() { return "amd/libamdhip64.so." + std::to_string(major_version); }

template <class... A>
int hip(const char *name, A... a) {
  return call(runtime().c_str(), (std::string("hip") + name).c_str(), a...);
}
template <class... A>
int nc(const char *name, A... a) {
  return call("amd/librccl.so.1", (std::string("nccl") + name).c_str(), a...);
}
bool has(const char *name) { return ::dlsym(library(runtime().c_str()), name) != nullptr; }

enum : int { kToDevice = 1, kFromDevice = 2, kDefault = 4 };
enum : unsigned { kSignal = 2 };

char *allocate(size_t bytes) {
  void *p = nullptr;
  IS(hip("Malloc", &p, bytes), 0);
  return static_cast<char *>(p);
}
void release(void *p) { IS(hip("Free", p), 0); }
Handle new_stream() {
  Handle s = nullptr;
  IS(hip("StreamCreateWithFlags", &s, 1u), 0);
  return s;
}
Handle new_event(unsigned flags = 2) {
  Handle e = nullptr;
  IS(hip("EventCreateWithFlags", &e, flags), 0);
  return e;
}
void use(int device) { IS(hip("SetDevice", device), 0); }
void copy(void *to, const void *from, size_t bytes, int kind) { IS(hip("Memcpy", to, from, bytes, kind), 0); }

// A word that host and streams see.
struct Signal {
  Signal() { IS(hip("ExtMallocWithFlags", &at, size_t{8}, kSignal), 0); }
  std::atomic_ref<uint64_t> word() const { return std::atomic_ref(*static_cast<uint64_t *>(at)); }
  void *at = nullptr;
};
int wait(Handle stream, void *at, uint64_t value, unsigned how = 0) {
  return hip("StreamWaitValue64", stream, at, value, how, ~uint64_t{0});
}
int write(Handle stream, void *at, uint64_t value) { return hip("StreamWriteValue64", stream, at, value, 0u); }

class Hip : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { major_version = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Versions, Hip, testing::Values(5, 6, 7),
                         [](const auto &version) { return "HIP" + std::to_string(version.param); });

TEST_P(Hip, SaysWhatItIs) {
  const End end = run({{"REHEARSAL_QUIET", "0"}, {"REHEARSAL_DEVICES", "2"}}, [] {
    int value = 0;
    IS(hip("RuntimeGetVersion", &value), 0);
    IS(value / 10'000'000, major_version);
    IS(hip("GetDeviceCount", &value), 0);
    IS(value, 2);
    IS(hip("Init", 0u), 0);
    IS(hip("GetDevice", &value), 0);
    IS(value, 0);  // nobody has chosen one
    IS(hip("SetDevice", 2), 101);
    use(1);
    IS(hip("GetDevice", &value), 0);
    IS(value, 1);
    std::thread([] {
      int other = -1;
      IS(hip("GetDevice", &other), 0);
      IS(other, 0);
    }).join();
    char name[100], place[2][20];
    IS(hip("DeviceGetName", name, 100, 1), 0);
    CHECK(std::strstr(name, "Simulated AMD"));
    for (int i = 0; i < 2; ++i) IS(hip("DeviceGetPCIBusId", place[i], 20, i), 0);
    CHECK(std::strcmp(place[0], place[1]) != 0);
    const auto attribute = [](int which, int expected) {
      int got = -1;
      IS(hip("DeviceGetAttribute", &got, which, 0), 0);
      IS(got, expected);
    };
    attribute(23, 9);
    attribute(61, 4);
    attribute(10013, 1);
    IS(hip("DeviceGetAttribute", &value, 90, 0), major_version >= 6 ? 0 : 1);  // later versions know more
    IS(hip("DeviceGetAttribute", &value, 92, 0), major_version >= 7 ? 0 : 1);
    CHECK(has("hipStreamGetDevice") == (major_version >= 6) && !has("hipPointerGetAttribute"));
    size_t left = 0, all = 0;
    IS(hip("MemGetInfo", &left, &all), 0);
    CHECK(left == all && all == size_t{1} << 30);
  });
  EXPECT_TRUE(end.clean()) << end.said;
  EXPECT_EQ(end.said, "rehearsal: simulated AMD runtime (HIP " + std::to_string(GetParam()) +
                          "), 2 device(s); no figure of this process is a measurement\n");
}

TEST_P(Hip, PointersMeanTheVersionsNumbers) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    struct {
      int type = -1, device = -1;
      void *there = nullptr, *host = nullptr;
      int managed = -1;
      unsigned flags = 9;
      uint64_t behind = 77;
    } a;
    const auto ask = [&](const void *p) { return hip("PointerGetAttributes", static_cast<void *>(&a), p); };
    const int host = major_version == 5 ? 0 : 1, device = major_version == 5 ? 1 : 2;
    use(1);
    char *memory = allocate(100);
    IS(ask(memory + 7), 0);
    CHECK(a.type == device && a.device == 1 && a.there == memory + 7 && !a.host && !a.managed);
    static char plain[8192];
    IS(ask(plain), major_version == 5 ? 1 : 0);
    if (major_version >= 6) CHECK(a.type == 0 && !a.there);
    IS(hip("HostRegister", static_cast<void *>(plain), sizeof plain, 3u), 0);
    IS(hip("HostRegister", static_cast<void *>(plain + 8000), size_t{10}, 3u), 712);
    IS(ask(plain + 5), 0);
    CHECK(a.type == host && a.device == 1 && a.host == plain + 5 && a.there && a.there != a.host);
    void *there = nullptr;
    IS(hip("HostGetDevicePointer", &there, static_cast<void *>(plain), 0u), 0);
    CHECK(static_cast<char *>(there) + 5 == a.there && a.behind == 77);
    IS(hip("HostUnregister", static_cast<void *>(plain)), 0);
    IS(hip("HostUnregister", static_cast<void *>(plain)), 713);
    use(0);
    release(memory);  // of the other device
    IS(ask(memory), major_version == 5 ? 1 : 0);
    for (const char *what : {"allocation", "registration"}) IS(live(what), 0u);
  });
}

TEST_P(Hip, CopiesGoThroughRegisteredMemory) {
  expect_clean({{"REHEARSAL_QUEUES", "2"}}, [] {
    const size_t n = 100'000;
    void *pinned = nullptr, *there = nullptr;
    IS(hip("HostMalloc", &pinned, 2 * n, 0u), 0);
    IS(hip("HostGetDevicePointer", &there, pinned, 0u), 0);
    auto *bytes = static_cast<unsigned char *>(pinned);
    for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<unsigned char>(i * 31);
    char *a = allocate(n), *b = allocate(n);
    const Handle s = new_stream();
    IS(hip("MemcpyAsync", a, pinned, n, kToDevice, s), 0);
    IS(hip("MemcpyAsync", b, a, n, 3, s), 0);
    IS(hip("MemsetAsync", b + 10, 7, size_t{5}, s), 0);
    IS(hip("MemcpyAsync", static_cast<char *>(there) + n, b, n, kDefault, s), 0);
    IS(hip("StreamSynchronize", s), 0);
    for (size_t i = 0; i < n; ++i) CHECK(bytes[n + i] == (i >= 10 && i < 15 ? 7 : static_cast<unsigned char>(i * 31)));
    std::vector<unsigned char> plain(n);
    copy(plain.data(), a, n, kFromDevice);
    CHECK(std::memcmp(plain.data(), bytes, n) == 0);
    IS(hip("HostFree", pinned), 0);
    release(a);
    release(b);
    IS(hip("StreamDestroy", s), 0);
    for (const char *what : {"allocation", "stream"}) IS(live(what), 0u);
    IS(number_of("rehearsal_calls", "hipMemcpyAsync"), 3u);
  });
}

TEST_P(Hip, HostAndStreamsMeetInSignalMemory) {
  expect_clean({{"REHEARSAL_JITTER_US", "0"}}, [] {
    const Signal gate, done;
    const Handle s = new_stream();
    IS(wait(s, gate.at, 5), 0);
    IS(write(s, done.at, 9), 0);
    sleep_ms(20);
    IS(hip("StreamQuery", s), 600);
    CHECK(done.word().load() == 0);
    gate.word().store(5);
    IS(hip("StreamSynchronize", s), 0);
    CHECK(done.word().load() == 9);
    gate.word().store(~uint64_t{0});  // -1, and that is less than 1: no circle
    IS(wait(s, gate.at, 1), 0);
    sleep_ms(5);
    IS(hip("StreamQuery", s), 600);
    gate.word().store(uint64_t{1} << 62);
    IS(hip("StreamSynchronize", s), 0);
    IS(hip("StreamWaitValue64", s, gate.at, uint64_t{1}, 0u, uint64_t{0xff}), 801);  // not all bits
    IS(hip("StreamWaitValue32", s, gate.at, 0u, 0u, ~0u), 0);
    IS(hip("StreamWriteValue32", s, gate.at, 0x8000'0000u, 0u), 0);
    IS(hip("StreamWaitValue32", s, gate.at, 0x7fff'ffffu, 0u, ~0u), 0);  // 32 bits have no sign
    IS(hip("DeviceSynchronize"), 0);
    void *p = nullptr;
    IS(hip("ExtMallocWithFlags", &p, size_t{16}, kSignal), 1);
    release(gate.at);
    release(done.at);
    IS(live("allocation"), 0u);
  });
}

TEST_P(Hip, LastErrorsAreTheVersions) {
  expect_clean({}, [] {
    int value = 0;
    IS(hip("SetDevice", 9), 101);
    IS(hip("PeekAtLastError"), 101);
    IS(hip("GetDevice", &value), 0);
    IS(hip("GetLastError"), major_version >= 7 ? 101 : 0);
    IS(hip("GetLastError"), 0);
    const auto text = reinterpret_cast<const char *(*)(int)>(::dlsym(library(runtime().c_str()), "hipGetErrorName"));
    CHECK(std::strcmp(text(101), "hipErrorInvalidDevice") == 0);
  });
}

TEST_P(Hip, RanksReduceThroughTheCollectiveLibrary) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    int version = 0;
    IS(nc("GetVersion", &version), 0);
    IS(version, 22203);
    UniqueId id;
    IS(nc("GetUniqueId", &id), 0);
    std::vector<std::thread> threads;
    for (int me = 0; me < 2; ++me)
      threads.emplace_back([me, id] {
        use(me);
        Handle comm = nullptr;
        IS(nc("CommInitRank", &comm, 2, id, me), 0);
        const Handle s = new_stream();
        const size_t n = 1000;
        std::vector<float> mine(n), sums(n);
        for (size_t i = 0; i < n; ++i) mine[i] = static_cast<float>(i) + static_cast<float>(me);
        char *a = allocate(n * 4);
        copy(a, mine.data(), n * 4, kToDevice);
        IS(nc("AllReduce", a, a, n, 7, 0, comm, s), 0);
        IS(hip("StreamSynchronize", s), 0);
        copy(sums.data(), a, n * 4, kFromDevice);
        for (size_t i = 0; i < n; ++i) CHECK(sums[i] == 2 * static_cast<float>(i) + 1);
        IS(nc("AllReduce", a, a, n, 7, 0, comm, Handle{}), 0);  // the null stream is the current device's
        IS(hip("DeviceSynchronize"), 0);
        release(a);
        IS(nc("CommDestroy", comm), 0);
        IS(hip("StreamDestroy", s), 0);
      });
    for (std::thread &t : threads) t.join();
    for (const char *what : {"allocation", "stream", "communicator"}) IS(live(what), 0u);
  });
}

// ---- what does not differ -------------------------------------------------------------------------------------------------

TEST(RehearsalHip, TheHostCannotTouchDeviceMemory) {
  const End end = run({}, [] { *static_cast<volatile char *>(allocate(100)) = 1; });
  EXPECT_TRUE((WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGSEGV) || end.has("SEGV")) << end.said;
}

TEST(RehearsalHip, WaitsOnOtherMemoryAreASwitch) {
  static uint64_t words[512];
  const auto on_registered = [] {
    void *there = nullptr;
    IS(hip("HostRegister", static_cast<void *>(words), sizeof words, 3u), 0);
    IS(hip("HostGetDevicePointer", &there, static_cast<void *>(words), 0u), 0);
    const Handle s = new_stream();
    IS(write(s, there, 3), 0);
    IS(wait(s, there, 3), 0);
    IS(hip("StreamSynchronize", s), 0);
    CHECK(words[0] == 3);
  };
  const End refused = run({}, on_registered);
  EXPECT_TRUE(refused.has("misuse: hipStreamWaitValue64: ") && refused.has("is not signal memory")) << refused.said;
  expect_clean({{"REHEARSAL_HIP_WAIT_ANYWHERE", "1"}}, on_registered);
  expect_clean({{"REHEARSAL_HIP_NO_SIGNAL_MEMORY", "1"}}, [&] {
    void *p = nullptr;
    IS(hip("ExtMallocWithFlags", &p, size_t{8}, kSignal), 1);
    on_registered();
  });
}

TEST(RehearsalHip, StreamsKnowTheirDevice) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    const Signal gate;
    const Handle first = new_stream(), at_gate = new_event();
    use(1);
    const Handle second = new_stream(), done = new_event(), early = new_event(0), late = new_event(0);
    int device = -1;
    IS(hip("StreamGetDevice", first, &device), 0);
    IS(device, 0);
    IS(hip("StreamGetDevice", Handle{}, &device), 0);
    IS(device, 1);
    IS(wait(first, gate.at, 1), 0);  // with device 1 current
    IS(hip("EventRecord", at_gate, first), 0);
    IS(hip("EventRecord", early, second), 0);
    IS(hip("StreamWaitEvent", second, at_gate, 0u), 0);
    IS(hip("EventRecord", late, second), 0);
    IS(hip("EventRecord", done, second), 0);
    CHECK(comes([&] { return hip("EventQuery", early) == 0; }));
    sleep_ms(20);
    IS(hip("EventQuery", done), 600);
    gate.word().store(1);
    IS(hip("EventSynchronize", done), 0);
    float ms = 0;
    IS(hip("EventElapsedTime", &ms, early, late), 0);
    CHECK(ms > 10);
    IS(hip("EventElapsedTime", &ms, early, done), 400);  // has no time
  });
}

TEST(RehearsalHip, CaptureRecordsAndRunsNothing) {
  expect_clean({}, [] {
    const Handle s = new_stream();
    char *a = allocate(4);
    uint32_t value = 0;
    int capturing = 9;
    copy(a, &value, 4, kToDevice);
    IS(hip("StreamBeginCapture", s, 0), 0);
    IS(hip("StreamIsCapturing", s, &capturing), 0);
    IS(capturing, 1);
    IS(hip("MemsetAsync", a, 1, size_t{4}, s), 0);
    void *p = nullptr;
    IS(hip("Malloc", &p, size_t{4}), 900);
    Handle graph = nullptr;
    IS(hip("StreamEndCapture", s, &graph), 0);
    IS(hip("GraphDestroy", graph), 0);
    copy(&value, a, 4, kFromDevice);
    IS(value, 0u);
  });
}

TEST(RehearsalHip, MisuseIsLoud) {
  struct Case {
    const char *says;
    int code;
    std::function<int()> does;
  };
  static int plain[4];
  const std::vector<Case> cases = {
      {"hipMemcpyAsync: source", 1, [] { return hip("MemcpyAsync", allocate(16), plain, size_t{16}, kToDevice, Handle{}); }},
      {"a copy of kind 5", 21, [] { return hip("Memcpy", allocate(16), plain, size_t{16}, 5); }},
      {"an event of device 0 on a stream of device 1", 400,
       [] {
         const Handle e = new_event();
         use(1);
         return hip("EventRecord", e, new_stream());
       }},
      {"a stream of the device's own", 400, [] { return hip("StreamDestroy", Handle{}); }},
      {"is not signal memory", 1, [] { return wait({}, allocate(8), 1); }},
      {"is not host memory that was allocated here", 1, [] { return hip("HostFree", Signal().at); }},
      {"called by a host function", 0,
       [] {
         const auto f = +[](void *) { hip("StreamQuery", Handle{}); };
         return hip("LaunchHostFunc", Handle{}, f, Handle{}) + hip("DeviceSynchronize");
       }},
  };
  for (const Case &c : cases) {
    const End end = run({{"REHEARSAL_DEVICES", "2"}}, [&] { c.does(); });
    EXPECT_TRUE(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT) << c.says << ": " << end.status << end.said;
    EXPECT_TRUE(end.has("rehearsal: misuse: hip") && end.has(c.says)) << c.says << ": " << end.said;
    const End lenient = run({{"REHEARSAL_DEVICES", "2"}, {"REHEARSAL_ABORT_ON_MISUSE", "0"}}, [&] { IS(c.does(), c.code); });
    EXPECT_TRUE(lenient.clean() && lenient.has(c.says)) << lenient.status << lenient.said;
  }
}

TEST(RehearsalHip, FaultsOnDemand) {
  expect_clean({{"REHEARSAL_FAIL", "hipMalloc:2:2"}, {"REHEARSAL_FAIL_LATE", "hipMemsetAsync:2:700"}}, [] {
    char *a = allocate(16);
    void *p = nullptr;
    IS(hip("Malloc", &p, size_t{4}), 2);
    const Handle s = new_stream();
    IS(hip("MemsetAsync", a, 1, size_t{4}, s), 0);
    IS(hip("StreamSynchronize", s), 0);
    IS(hip("MemsetAsync", a, 1, size_t{4}, s), 0);
    IS(hip("StreamSynchronize", s), 700);
  });
}

TEST(RehearsalHip, DevicesThatAreOthersOrNone) {
  const auto shows = [](int major, int minor) {
    return [=] {
      int a = 0, b = 0;
      IS(hip("DeviceGetAttribute", &a, 23, 0), 0);
      IS(hip("DeviceGetAttribute", &b, 61, 0), 0);
      CHECK(a == major && b == minor);
    };
  };
  expect_clean({{"REHEARSAL_GFX", "950"}}, shows(9, 5));
  expect_clean({{"REHEARSAL_GFX", "90a"}}, shows(9, 0));
  const End wrong = run({{"REHEARSAL_GFX", "gfx942"}}, shows(9, 4));
  EXPECT_TRUE(wrong.has("REHEARSAL_GFX: cannot read \"gfx942\"")) << wrong.said;
  expect_clean({{"REHEARSAL_DEVICES", "0"}}, [] {
    int count = 9;
    void *p = nullptr;
    IS(hip("GetDeviceCount", &count), 100);
    IS(count, 0);
    IS(hip("Init", 0u), 100);
    IS(hip("Malloc", &p, size_t{4}), 100);
    IS(hip("RuntimeGetVersion", &count), 0);
  });
}

}  // namespace
