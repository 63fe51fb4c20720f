// The copy engines of a simulated device: one each way, whatever the queues. That copies are no faster than the rate always
// holds; that they are no slower is asked of one try among as many as there is time for, on a machine with other work to do.
#include <atomic>

#include "rehearsal_support.hpp"

namespace {

using namespace rehearsed;
using Address = unsigned long long;
constexpr size_t kBytes = size_t{1} << 20;

template <class... A>
int cu(const char *name, A... a) {
  return call("nvidia/libcuda.so.1", (std::string("cu") + name).c_str(), a...);
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Two streams, which have a queue each, a buffer on the device and one of the host for either.
struct Streams {
  Streams() {
    IS(cu("Init", 0u), 0);
    Handle context = nullptr;
    IS(cu("DevicePrimaryCtxRetain", &context, 0), 0);
    IS(cu("CtxSetCurrent", context), 0);
    for (int i = 0; i < 2; ++i) {
      IS(cu("StreamCreate", &stream[i], 1u), 0);
      IS(cu("MemAlloc_v2", &device[i], kBytes), 0);
      IS(cu("MemHostAlloc", &host[i], kBytes, 0u), 0);
    }
  }
  void out(int i, size_t bytes = kBytes) { IS(cu("MemcpyDtoHAsync_v2", host[i], device[i], bytes, stream[i]), 0); }
  void in(int i, size_t bytes = kBytes) {
    IS(cu("MemcpyHtoDAsync_v2", device[i], static_cast<const void *>(host[i]), bytes, stream[i]), 0);
  }
  void inside(int i) { IS(cu("MemcpyDtoDAsync_v2", device[i], device[1 - i], kBytes / 2, stream[i]), 0); }
  void wait() {
    for (const Handle s : stream) IS(cu("StreamSynchronize", s), 0);
  }
  Handle stream[2] = {};
  Address device[2] = {};
  void *host[2] = {};
};

// Milliseconds until all of it is done, the shortest of some tries: where something is to be faster than that, one of them has to be.
template <class Submit>
double time_of(Streams &s, Submit submit, double faster_than = 1e9) {
  double least = 1e9;
  const double until = now_ms() + 1000 * isthmus_test::soon();
  for (int i = 0; i == 0 || (least >= faster_than && now_ms() < until); ++i) {
    const double begin = now_ms();
    submit();
    s.wait();
    least = std::min(least, now_ms() - begin);
  }
  return least;
}

// 1 MiB takes 105 ms at 0.01 GB/s.
const Environment kSlow = {{"REHEARSAL_QUEUES", "2"}, {"REHEARSAL_JITTER_US", "0"}, {"REHEARSAL_COPY_GBPS", "0.01"}};

Environment with(Environment more) {
  more.insert(more.begin(), kSlow.begin(), kSlow.end());
  return more;
}

TEST(RehearsalEngine, CopiesOfOneWayTakeTurnsOnTwoQueues) {
  expect_clean(kSlow, [] {
    Streams s;
    CHECK(time_of(s, [&] { s.out(0), s.out(1); }) >= 209);
    CHECK(time_of(s, [&] { s.in(0), s.in(1); }) >= 209);
  });
}

TEST(RehearsalEngine, TheTwoWaysGoOnSideBySide) {
  expect_clean(kSlow, [] {
    Streams s;
    const double both = time_of(
        s, [&] { s.out(0), s.in(1); }, 190);
    CHECK(both >= 104 && both < 190);
  });
}

// What bench/bridge.py takes for the time that a resource is at work.
TEST(RehearsalEngine, ACopyEngineIsBusyWhileItCopiesAndNotWhileACopyWaitsForItsTurn) {
  expect_clean(kSlow, [] {
    const auto busy_ms = [](bool out) {
      return static_cast<double>(
                 reinterpret_cast<unsigned long (*)(int)>(::dlsym(library("librehearsal.so"), "rehearsal_busy"))(out)) /
             1e6;
    };
    Streams s;
    number_of("rehearsal_reset_calls");
    const double took = time_of(s, [&] { s.out(0), s.out(1); });
    CHECK(busy_ms(true) >= 209 && busy_ms(true) <= took);  // two copies that take turns, and no more than there was time for
    IS(busy_ms(false) > 0, false);
    sleep_ms(30);
    CHECK(busy_ms(true) <= took);
    number_of("rehearsal_reset_calls");
    IS(busy_ms(true) > 0, false);
  });
}

TEST(RehearsalEngine, EachWayHasItsRate) {
  expect_clean(with({{"REHEARSAL_COPY_OUT_GBPS", "0.02"}, {"REHEARSAL_COPY_IN_GBPS", "0.005"}}), [] {
    Streams s;
    const double out = time_of(
                     s, [&] { s.out(0); }, 100),
                 in = time_of(s, [&] { s.in(0); });
    CHECK(out >= 52 && out < 100);
    CHECK(in >= 209);
    CHECK(time_of(s, [&] { s.inside(0), s.inside(1); }) >= 104);
  });
  expect_clean(with({{"REHEARSAL_COPY_OUT_GBPS", "0"}}), [] {
    Streams s;
    CHECK(time_of(
              s, [&] { s.out(0); }, 90) < 90);
    CHECK(time_of(s, [&] { s.in(0); }) >= 104);
  });
}

TEST(RehearsalEngine, EventsTellTheDevicesTimeHoweverLateItsThreadWakes) {
  expect_clean({{"REHEARSAL_JITTER_US", "0"}, {"REHEARSAL_COPY_GBPS", "1"}}, [] {
    Streams s;
    Handle begin = nullptr, end = nullptr;
    IS(cu("EventCreate", &begin, 0u), 0);
    IS(cu("EventCreate", &end, 0u), 0);
    for (int i = 0; i < 200; ++i) {
      s.in(0);  // the others stand behind it
      IS(cu("EventRecord", begin, s.stream[0]), 0);
      s.in(0, 200'000);
      IS(cu("EventRecord", end, s.stream[0]), 0);
      IS(cu("EventSynchronize", end), 0);
      float ms = 0;
      IS(cu("EventElapsedTime", &ms, begin, end), 0);
      CHECK(ms >= 0.2f);
    }
    IS(cu("EventDestroy_v2", begin), 0);
    IS(cu("EventDestroy_v2", end), 0);
  });
}

TEST(RehearsalEngine, AStreamGoesOnSoLongAfterTheWordThatItWaitsFor) {
  expect_clean({{"REHEARSAL_JITTER_US", "0"}, {"REHEARSAL_GATE_US", "30000"}}, [] {
    Streams s;
    auto *const word = static_cast<std::atomic<uint32_t> *>(s.host[0]);
    Address there = 0;
    IS(cu("MemHostGetDevicePointer_v2", &there, s.host[0], 0u), 0);
    word->store(0);
    IS(cu("StreamWaitValue32_v2", s.stream[0], there, 1u, 0u), 0);
    const double told = now_ms();
    word->store(1);
    IS(cu("StreamSynchronize", s.stream[0]), 0);
    CHECK(now_ms() - told >= 30);
    const double asked = now_ms();
    IS(cu("StreamWaitValue32_v2", s.stream[0], there, 1u, 0u), 0);  // it is there already: that is seen no sooner
    IS(cu("StreamSynchronize", s.stream[0]), 0);
    CHECK(now_ms() - asked >= 30);
  });
}

// A hundred copies of 50 us each, with a signal behind each: a sleep is too long by 50 us and more, which would make 10 ms of 5.
TEST(RehearsalEngine, WhatSleepsAreTooLongByDoesNotAddUp) {
  expect_clean({{"REHEARSAL_JITTER_US", "0"}, {"REHEARSAL_COPY_GBPS", "0.08"}, {"REHEARSAL_QUEUE_DEPTH", "4096"}}, [] {
    Streams s;
    Address word = 0;
    IS(cu("MemHostGetDevicePointer_v2", &word, s.host[1], 0u), 0);
    const double took = time_of(
        s,
        [&] {
          for (unsigned i = 0; i < 100; ++i) {
            s.out(0, 4000);
            IS(cu("StreamWriteValue32_v2", s.stream[0], word, i, 0u), 0);
          }
        },
        9.5);
    CHECK(took >= 5 && took < 9.5);
  });
}

}  // namespace
