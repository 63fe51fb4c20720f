// The simulated runtime of Ascend devices is what it says, and what Huawei says of the real one: contexts of threads, streams that belong to
// them, events whose answers are the other way round, callbacks on the program's own threads. What the engine does is rehearsal_test.cpp's
// subject.
#include <pthread.h>

#include "asleep.hpp"
#include "rehearsal_acl_support.hpp"

namespace {

using namespace rehearsed;
using namespace rehearsed::ascend;

Pages plain;

TEST(RehearsalAcl, SaysWhatItIs) {
  const End end = run({{"REHEARSAL_QUIET", "0"}, {"REHEARSAL_DEVICES", "2"}}, [] {
    int32_t version[3] = {};
    uint32_t count = 0;
    int device = -1;
    IS(acl("rtGetVersion", &version[0], &version[1], &version[2]), 0);
    IS(version[0], 1);
    IS(acl("rtGetDeviceCount", &count), 0);
    IS(count, 2u);
    IS(acl("rtSetDevice", 0), 100001);
    IS(acl("Init", static_cast<const char *>(nullptr)), 0);
    IS(acl("Init", static_cast<const char *>(nullptr)), 100002);
    IS(acl("rtSetDevice", 2), 107001);
    IS(acl("rtGetDevice", &device), 107002);  // nobody has chosen one
    use(1);
    IS(acl("rtGetDevice", &device), 0);
    IS(device, 1);
    std::thread([] {
      int other = -1;
      void *p = nullptr;
      IS(acl("rtGetDevice", &other), 107002);
      IS(acl("rtMalloc", &p, size_t{8}, 0), 107002);
    }).join();
    const auto name = reinterpret_cast<const char *(*)()>(::dlsym(library("ascend/libascendcl.so"), "aclrtGetSocName"));
    CHECK(std::strstr(name(), "Simulated Ascend"));
    char uuid[2][16];
    for (int i = 0; i < 2; ++i) IS(acl("rtDeviceGetUuid", i, static_cast<void *>(uuid[i])), 0);
    CHECK(std::memcmp(uuid[0], uuid[1], 16) != 0);
    size_t left = 0, all = 0;
    int64_t bytes = 0;
    IS(acl("rtGetMemInfo", 1, &left, &all), 0);
    IS(acl("rtGetDeviceInfo", 0u, 301, &bytes), 0);
    CHECK(left == all && all == size_t{1} << 30 && bytes == int64_t{1} << 30);
    IS(acl("rtGetMemInfo", 0, &left, &all), 207000);
    const auto message =
        reinterpret_cast<const char *(*)()>(::dlsym(library("ascend/libascendcl.so"), "aclGetRecentErrMsg"));
    CHECK(std::strstr(message(), "207000"));
    CHECK(!message());
    IS(acl("Finalize"), 0);
    IS(acl("Finalize"), 100037);
  });
  EXPECT_TRUE(end.clean()) << end.said;
  EXPECT_EQ(end.said,
            "rehearsal: simulated Ascend runtime (ACL), 2 device(s); no figure of this process is a measurement\n");
}

TEST(RehearsalAcl, ThreadsHaveContexts) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    Handle of_device = nullptr, other = nullptr, now = nullptr;
    use(0);
    IS(acl("rtGetCurrentContext", &of_device), 0);
    const Handle s = new_stream();
    IS(acl("rtCreateContext", &other, 1), 0);  // and it is current
    IS(acl("rtGetCurrentContext", &now), 0);
    CHECK(now == other && now != of_device);
    int device = -1;
    IS(acl("rtGetDevice", &device), 0);
    IS(device, 1);
    const Handle theirs = new_stream();
    std::thread([&] {
      IS(acl("rtSetCurrentContext", of_device), 0);
      CHECK(idle(s));
      IS(acl("rtGetDevice", &device), 0);
      IS(device, 0);
    }).join();
    IS(acl("rtSetCurrentContext", Handle{}), 100000);  // no way back to none
    end_stream(theirs);
    new_stream();  // ends with the context
    IS(acl("rtDestroyContext", other), 0);
    IS(acl("rtGetCurrentContext", &now), 107002);
    use(0);
    end_stream(s);
    IS(acl("rtResetDevice", 0), 0);
    IS(acl("rtGetDevice", &device), 0);  // it was set twice
    IS(acl("rtResetDevice", 0), 0);
    IS(acl("rtGetDevice", &device), 107002);
    IS(live("stream"), 0u);
  });
}

TEST(RehearsalAcl, PointersAndRegistrations) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    struct {
      uint32_t device = 9;
      int location = 9;
      uint32_t page = 9, reserved[4] = {}, behind = 77;
    } a;
    const auto ask = [&](const void *p) {
      IS(acl("rtPointerGetAttributes", p, static_cast<void *>(&a)), 0);
      return a.location;
    };
    use(1);
    char *memory = allocate(100);
    CHECK(ask(memory + 7) == 1 && a.device == 1);
    CHECK(ask(&plain) == 2);
    void *there = nullptr, *again = nullptr, *host = plain.bytes, *pinned = nullptr;
    IS(acl("rtHostRegister", host, uint64_t{4096}, 0, &there), 0);
    IS(acl("rtHostRegisterV2", host, uint64_t{4096}, kMapped), 507910);
    IS(acl("rtHostGetDevicePointer", host, &again, 0u), 0);
    CHECK(there == again && there != host && ask(host) == 0 && ask(there) == 0 && a.device == 1 && a.behind == 77);
    IS(acl("rtHostUnregister", host), 0);
    IS(acl("rtHostUnregister", host), 507911);
    IS(acl("rtHostRegisterV2", host, uint64_t{8192}, kPinned), 0);
    IS(acl("rtHostGetDevicePointer", host, &again, 0u), 507911);  // pinned only
    IS(acl("rtHostUnregister", host), 0);
    IS(acl("rtHostRegister", host, uint64_t{4096}, 4, &there), 207000);
    IS(acl("rtMallocHost", &pinned, size_t{100}), 0);
    IS(acl("rtHostGetDevicePointer", pinned, &again, 0u), 507911);  // the runtime's own
    IS(acl("rtFreeHost", pinned), 0);
    release(memory);
    CHECK(ask(memory) == 2);
    IS(acl("rtMalloc", &there, size_t{2} << 30, 0), 207001);
    IS(acl("rtMalloc", &there, size_t{0}, 0), 100000);
    for (const char *what : {"allocation", "registration"}) IS(live(what), 0u);
  });
}

TEST(RehearsalAcl, CopiesGoThroughRegisteredMemory) {
  expect_clean({{"REHEARSAL_QUEUES", "2"}}, [] {
    const size_t n = 100'000;
    use(0);
    void *pinned = nullptr;
    IS(acl("rtMallocHost", &pinned, 2 * n), 0);
    auto *bytes = static_cast<unsigned char *>(pinned);
    for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<unsigned char>(i * 31);
    char *a = allocate(n), *b = allocate(n);
    const Handle s = new_stream();
    IS(copy_on(s, a, pinned, n, kToDevice), 0);
    IS(copy_on(s, b, a, n, kWithin), 0);
    IS(acl("rtMemsetAsync", b + 10, size_t{5}, 7, size_t{5}, s), 0);
    IS(copy_on(s, bytes + n, b, n, kDefault), 0);
    IS(copy_on(s, bytes, b, 0, kFromDevice), 107000);  // nothing to copy is an error
    IS(wait_for(s), 0);
    for (size_t i = 0; i < n; ++i) CHECK(bytes[n + i] == (i >= 10 && i < 15 ? 7 : static_cast<unsigned char>(i * 31)));
    std::vector<unsigned char> out(n);
    copy(out.data(), a, n, kFromDevice);
    CHECK(std::memcmp(out.data(), bytes, n) == 0);
    IS(acl("rtMemset", a, n, 3, n), 0);
    copy(out.data(), a, n, kFromDevice);
    CHECK(out[0] == 3 && out[n - 1] == 3);
    IS(acl("rtFreeHost", pinned), 0);
    release(a);
    release(b);
    end_stream(s);
    for (const char *what : {"allocation", "stream"}) IS(live(what), 0u);
    IS(number_of("rehearsal_calls", "aclrtMemcpyAsync"), 4u);
  });
}

TEST(RehearsalAcl, EventsSayTheOtherWayRound) {
  expect_clean({{"REHEARSAL_JITTER_US", "0"}, {"REHEARSAL_QUEUES", "2"}}, [] {
    use(0);
    const Handle first = new_stream(), second = new_stream();
    const Handle e = new_event();
    Handle old = nullptr, early = nullptr;
    IS(acl("rtCreateEvent", &old), 0);
    IS(acl("rtCreateEventWithFlag", &early, kTimeline), 0);
    CHECK(!reached(e));  // never recorded
    IS(acl("rtSynchronizeEvent", e), 0);
    Hold hold(first);
    IS(acl("rtRecordEvent", e, first), 0);
    IS(acl("rtRecordEvent", early, second), 0);
    IS(acl("rtRecordEvent", old, first), 0);
    IS(acl("rtStreamWaitEvent", second, old), 0);
    CHECK(!idle(first) && !idle(second) && !reached(e));
    int waits = 9;
    IS(acl("rtQueryEventWaitStatus", old, &waits), 0);
    IS(waits, 1);
    IS(acl("rtSynchronizeStreamWithTimeout", second, 20), 507046);
    IS(acl("rtSynchronizeEventWithTimeout", e, 20), 507047);
    hold.go_on();
    IS(acl("rtSynchronizeEvent", e), 0);
    IS(acl("rtSynchronizeStreamWithTimeout", second, 10'000), 0);
    CHECK(reached(e) && idle(second));
    float ms = 0;
    IS(acl("rtEventElapsedTime", &ms, early, old), 0);
    CHECK(ms > 10);
    IS(acl("rtEventElapsedTime", &ms, early, e), 107006);  // has no time
    IS(acl("rtQueryEventWaitStatus", old, &waits), 0);
    IS(waits, 0);
    IS(acl("rtResetEvent", old, second), 0);
    CHECK(!reached(old));
    for (const Handle event : {e, old, early}) IS(acl("rtDestroyEvent", event), 0);
    end_stream(first);
    end_stream(second);
    IS(live("event"), 0u);
  });
}

TEST(RehearsalAcl, StreamsEndInTwoWays) {
  expect_clean({{"REHEARSAL_JITTER_US", "0"}}, [] {
    use(0);
    char *a = allocate(4);
    uint32_t value = 0;
    for (const bool force : {false, true}) {
      copy(a, &value, 4, kToDevice);
      const Handle s = new_stream();
      Hold hold(s);
      IS(acl("rtMemsetAsync", a, size_t{4}, 1, size_t{4}, s), 0);
      std::thread later([&, ends = isthmus_test::this_thread()] {  // when the other is inside the call that ends the stream
        const char *const call = force ? "aclrtDestroyStreamForce" : "aclrtDestroyStream";
        CHECK(comes([&] { return number_of("rehearsal_calls", call) == 1; }) && isthmus_test::falls_asleep(ends));
        hold.go_on();
      });
      IS(acl(force ? "rtDestroyStreamForce" : "rtDestroyStream", s), 0);
      later.join();
      IS(acl("rtSynchronizeDevice"), 0);
      uint32_t got = 9;
      copy(&got, a, 4, kFromDevice);
      IS(got, force ? 0u : 0x01010101u);
    }
    IS(live("stream"), 0u);
  });
}

std::atomic<int> ran{0};
void count(void *) { ran.fetch_add(1); }

TEST(RehearsalAcl, ThreadsOfTheProgramRunCallbacks) {
  expect_clean({{"REHEARSAL_ACL_NO_HOST_FUNC", "1"}}, [] {
    use(0);
    const Handle s = new_stream();
    IS(acl("rtLaunchHostFunc", s, &count, Handle{}), 207000);
    IS(acl("rtLaunchCallback", &count, Handle{}, 1, s), 107015);
    IS(acl("rtProcessReport", 0), 107012);
    std::atomic<bool> over{false};
    std::atomic<uint64_t> id{0};
    std::atomic<int> returned{0};
    std::thread worker([&] {
      id.store(static_cast<uint64_t>(::pthread_self()));
      while (!over.load()) returned += acl("rtProcessReport", 20) == 0;
    });
    while (!id.load()) sleep_ms(1);
    IS(acl("rtSubscribeReport", id.load(), s), 0);
    IS(acl("rtSubscribeReport", id.load(), s), 107011);
    for (int i = 0; i < 10; ++i) IS(acl("rtLaunchCallback", &count, Handle{}, 1, s), 0);
    IS(wait_for(s), 0);
    IS(ran.load(), 10);  // the stream has waited for them
    IS(acl("rtLaunchCallback", &count, Handle{}, 0, s), 0);
    while (returned.load() < 11) sleep_ms(1);
    IS(ran.load(), 11);
    IS(wait_for(s), 0);
    IS(acl("rtUnSubscribeReport", uint64_t{1}, s), 107012);
    IS(acl("rtUnSubscribeReport", id.load(), s), 0);
    over.store(true);
    worker.join();
    end_stream(s);
  });
}

TEST(RehearsalAcl, ValuesOnStreamsAreASwitch) {
  const auto meet = [](int expected) {
    return [expected] {
      use(0);
      void *there = nullptr, *host = plain.bytes;
      IS(acl("rtHostRegister", host, uint64_t{4096}, 0, &there), 0);
      const std::atomic_ref word(*reinterpret_cast<uint64_t *>(host));
      const Handle s = new_stream();
      IS(acl("rtValueWait", there, uint64_t{5}, 0u, s), expected);
      IS(acl("rtValueWrite", there, uint64_t{9}, 0u, s), expected);
      if (expected) return;
      sleep_ms(20);
      CHECK(!idle(s) && word.load() == 0);
      word.store(5);
      IS(wait_for(s), 0);
      CHECK(word.load() == 9);
    };
  };
  expect_clean({}, meet(207000));
  expect_clean({{"REHEARSAL_ACL_STREAM_VALUES", "1"}}, meet(0));
}

TEST(RehearsalAcl, CaptureRecordsAndRunsNothing) {
  expect_clean({}, [] {
    use(0);
    const Handle s = new_stream();
    char *a = allocate(4);
    uint32_t value = 0;
    int status = 9;
    Handle graph = nullptr;
    copy(a, &value, 4, kToDevice);
    IS(acl("mdlRICaptureGetInfo", s, &status, &graph), 0);
    IS(status, 0);
    IS(acl("mdlRICaptureBegin", Handle{}, 0), 107030);
    IS(acl("mdlRICaptureBegin", s, 0), 0);
    IS(acl("mdlRICaptureGetInfo", s, &status, &graph), 0);
    IS(status, 1);
    IS(acl("rtMemsetAsync", a, size_t{4}, 1, size_t{4}, s), 0);
    void *p = nullptr;
    IS(acl("rtMalloc", &p, size_t{4}, 0), 107030);
    IS(acl("mdlRICaptureEnd", s, &graph), 0);
    IS(acl("mdlRIDestroy", graph), 0);
    copy(&value, a, 4, kFromDevice);
    IS(value, 0u);
  });
}

}  // namespace
