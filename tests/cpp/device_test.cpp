// What runtime.hpp promises of a device runtime, on every runtime that finds a device here; then what the host's own streams add.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "device/cuda.hpp"
#include "device/hip.hpp"
#include "device/host.hpp"

namespace isthmus::device {
namespace {

using namespace std::chrono_literals;

bool within(double seconds, const std::function<bool()> &holds) {
  const Deadline deadline(seconds);
  while (!holds()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(200us);
  }
  return true;
}

// Memory that both sides can reach: what a slot is.
class Slot {
 public:
  Slot(Runtime &runtime, size_t bytes) : runtime_(runtime), bytes_(bytes) {
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    runtime_.register_host(0, memory_, bytes_);
  }
  ~Slot() {
    runtime_.unregister_host(0, memory_);
    ::munmap(memory_, bytes_);
  }
  uint32_t *host() const { return static_cast<uint32_t *>(memory_); }
  void *device() const { return runtime_.device_address(0, memory_); }

 private:
  Runtime &runtime_;
  size_t bytes_;
  void *memory_ = nullptr;
};

class EveryRuntime : public testing::TestWithParam<Runtime *> {
 protected:
  static constexpr size_t kBytes = 1 << 16;
  Runtime &runtime = *GetParam();
  std::unique_ptr<Stream> stream() { return runtime.make_stream(0, "test"); }
};

TEST_P(EveryRuntime, SaysWhatItIs) {
  EXPECT_STRNE(runtime.vendor(), "");
  EXPECT_FALSE(runtime.version().empty());
  EXPECT_GE(runtime.devices(), 1);
  EXPECT_THROW(runtime.make_stream(runtime.devices(), "none"), Error);
  EXPECT_THROW(runtime.make_stream(-1, "none"), Error);
}

TEST_P(EveryRuntime, CopiesOfAStreamHappenInTheirOrder) {
  const Slot from(runtime, kBytes), to(runtime, kBytes);
  void *memory = runtime.allocate(0, kBytes);
  const auto s = stream();
  const auto done = runtime.make_signal(0);
  for (uint32_t round = 1; round <= 20; ++round) {
    std::fill_n(from.host(), kBytes / 4, round);
    runtime.copy(*s, memory, from.device(), kBytes);
    runtime.copy(*s, to.device(), memory, kBytes);
    done->arm(*s, round);
    ASSERT_TRUE(within(10, [&] { return done->value() == round; }));
    ASSERT_EQ(to.host()[0], round);
    ASSERT_EQ(to.host()[kBytes / 4 - 1], round);
  }
  EXPECT_TRUE(s->status().ok());
  runtime.release(0, memory);
}

TEST_P(EveryRuntime, NothingBehindAGateRunsBeforeItIsOpen) {
  const Slot from(runtime, kBytes), to(runtime, kBytes);
  const auto s = stream();
  const auto gate = runtime.make_gate(0);
  const auto done = runtime.make_signal(0);
  gate->arm(*s, 5);
  runtime.copy(*s, to.device(), from.device(), kBytes);
  done->arm(*s, 1);
  gate->open(4);
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(done->value(), 0u);
  from.host()[7] = 77;  // before the gate opens, so behind it it is seen
  gate->open(6);
  ASSERT_TRUE(within(10, [&] { return done->value() == 1; }));
  EXPECT_EQ(to.host()[7], 77u);
  gate->arm(*s, 6);  // it has been that far already
  done->arm(*s, 2);
  EXPECT_TRUE(within(10, [&] { return done->value() == 2; }));
}

TEST_P(EveryRuntime, APoisonedGateHoldsNothingEver) {
  const auto s = stream();
  const auto gate = runtime.make_gate(0);
  const auto done = runtime.make_signal(0);
  gate->arm(*s, 1);
  done->arm(*s, 1);
  gate->poison();
  ASSERT_TRUE(within(10, [&] { return done->value() == 1; }));
  gate->arm(*s, uint64_t{1} << 60);
  done->arm(*s, 2);
  EXPECT_TRUE(within(10, [&] { return done->value() == 2; }));
}

TEST_P(EveryRuntime, ASignalWakesAndComesAfterTheBytes) {
  const Slot from(runtime, kBytes), to(runtime, kBytes);
  const auto s = stream();
  struct Seen {
    std::atomic<int> times{0};
  } seen;
  const auto done = runtime.make_signal(
      0, [](void *c) { ++static_cast<Seen *>(c)->times; }, &seen);
  for (uint32_t round = 1; round <= 200; ++round) {
    from.host()[kBytes / 4 - 1] = round;
    runtime.copy(*s, to.device(), from.device(), kBytes);
    done->arm(*s, round);
    while (done->value() < round) std::this_thread::yield();
    ASSERT_EQ(to.host()[kBytes / 4 - 1], round);
  }
  const bool wakes = runtime.capabilities(0).signals_wake;
  EXPECT_TRUE(!wakes || within(10, [&] { return seen.times == 200; }));
}

TEST_P(EveryRuntime, AnEventOrdersOneStreamBehindAnother) {
  const auto first = stream(), second = stream();
  const auto gate = runtime.make_gate(0);
  const auto event = runtime.make_event(0);
  const auto done = runtime.make_signal(0);
  EXPECT_TRUE(event->reached());
  event->hold(*second);  // never recorded: holds nothing
  done->arm(*second, 1);
  ASSERT_TRUE(within(10, [&] { return done->value() == 1; }));
  gate->arm(*first, 1);
  event->record(*first);
  event->hold(*second);
  done->arm(*second, 2);
  std::this_thread::sleep_for(30ms);
  EXPECT_FALSE(event->reached());
  EXPECT_EQ(done->value(), 1u);
  gate->open(1);
  ASSERT_TRUE(within(10, [&] { return done->value() == 2; }));
  EXPECT_TRUE(event->reached());
}

TEST_P(EveryRuntime, KnowsItsMemoryByAnyPointerIntoIt) {
  void *memory = runtime.allocate(0, 1000);
  const auto *bytes = static_cast<const std::byte *>(memory);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
  EXPECT_EQ(runtime.find(bytes).where, Where::Device);
  EXPECT_EQ(runtime.find(bytes + 999).where, Where::Device);
  EXPECT_EQ(runtime.find(bytes + 999).device, 0);
  runtime.release(0, memory);
  int local = 0;
  EXPECT_EQ(runtime.find(&local).where, Where::Unknown);
  EXPECT_EQ(runtime.find(nullptr).where, Where::Unknown);
  EXPECT_THROW(runtime.device_address(0, &local), Error);
  const Slot slot(runtime, kBytes);
  EXPECT_EQ(runtime.find(slot.host() + 100).where, Where::Registered);
  const auto *base = static_cast<const std::byte *>(slot.device());
  EXPECT_EQ(runtime.device_address(0, slot.host() + 100), base + 400);
}

TEST_P(EveryRuntime, KnowsItsMemoryOnAThreadThatNeverUsedIt) {
  void *memory = runtime.allocate(0, 1000);
  PointerInfo found;
  std::thread([&] { found = runtime.find(memory); }).join();
  EXPECT_EQ(found.where, Where::Device);
  runtime.release(0, memory);
}

TEST_P(EveryRuntime, RefusesARegistrationThatCannotBe) {
  const Slot slot(runtime, kBytes);
  EXPECT_THROW(runtime.register_host(0, slot.host(), kBytes), Error);       // twice
  EXPECT_THROW(runtime.register_host(0, slot.host() + 1024, 4096), Error);  // inside another
  EXPECT_THROW(runtime.register_host(0, slot.host() + 1, 4096), Error);     // not at a page
  EXPECT_THROW(runtime.register_host(0, nullptr, 4096), Error);
  EXPECT_THROW(runtime.register_host(0, slot.host(), 0), Error);
}

TEST_P(EveryRuntime, HasNoMemoryWithoutEnd) { EXPECT_THROW(runtime.allocate(0, SIZE_MAX - 100), Error); }

TEST_P(EveryRuntime, AStreamTakesMoreThanItsQueueHolds) {
  const auto s = stream();
  const auto done = runtime.make_signal(0);
  constexpr uint64_t kMany = 20000;
  for (uint64_t i = 1; i <= kMany; ++i) done->arm(*s, i);
  EXPECT_TRUE(within(60, [&] { return done->value() == kMany; }));
}

// Ours alone can: a vendor's stream that never ends holds its device for ever.
TEST(HostStreams, EndWithAGateThatNeverOpened) {
  Runtime &runtime = host_runtime();
  const auto gate = runtime.make_gate(0);
  const auto done = runtime.make_signal(0);
  const size_t before = abandoned_threads();
  {
    const auto s = runtime.make_stream(0, "test");
    gate->arm(*s, 1);
    done->arm(*s, 1);
  }
  EXPECT_EQ(done->value(), 0u);
  EXPECT_EQ(abandoned_threads(), before);
}

// The driver that the machine has, where it finds a device; else the simulated one.
Runtime &a_cuda_runtime() {
  static const bool opened = [] {
    try {
      cuda_runtime();
    } catch (const Error &) { ::dlopen(REHEARSAL "/nvidia/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL); }
    return true;
  }();
  (void)opened;
  return cuda_runtime();
}

Runtime &a_hip_runtime() {
  static const bool opened = [] {
    try {
      hip_runtime();
    } catch (const Error &) { ::dlopen(REHEARSAL "/amd/libamdhip64.so.7", RTLD_NOW | RTLD_GLOBAL); }
    return true;
  }();
  (void)opened;
  return hip_runtime();
}

TEST_P(EveryRuntime, TakesAStreamOfTheUsers) {
  if (&runtime == &host_runtime()) {
    EXPECT_THROW(runtime.adopt(0, nullptr), Error);
    return;
  }
  const auto theirs = stream(), ours = stream();
  const auto adopted = runtime.adopt(0, theirs->handle());
  EXPECT_EQ(adopted->handle(), theirs->handle());
  EXPECT_FALSE(adopted->capturing());
  const auto before = runtime.make_event(0);
  const auto done = runtime.make_signal(0);
  before->record(*adopted);
  before->hold(*ours);
  done->arm(*ours, 1);
  EXPECT_TRUE(within(10, [&] { return done->value() == 1; }));
  EXPECT_TRUE(theirs->status().ok());
}

TEST_P(EveryRuntime, GatesAndSignalsThatEndAreUsedAgain) {
  const auto s = stream();
  for (int i = 0; i < 300; ++i) {  // more than a page of counters
    const auto gate = runtime.make_gate(0);
    const auto done = runtime.make_signal(0);
    EXPECT_EQ(done->value(), 0u);
    gate->open(1);
    gate->arm(*s, 1);
    done->arm(*s, 7);
    ASSERT_TRUE(within(10, [&] { return done->value() == 7; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Runtimes, EveryRuntime, testing::Values(&host_runtime(), &a_cuda_runtime(), &a_hip_runtime()),
                         [](const auto &p) { return std::string(p.param->vendor()); });

// ---- the host's streams ---------------------------------------------------------------------------------------------------

std::unique_ptr<HostStream> host_stream() {
  return std::unique_ptr<HostStream>(static_cast<HostStream *>(host_runtime().make_stream(0, "calls").release()));
}

struct Add {
  std::atomic<int> *sum;
  int n;
};
Status add(const Add &a) {
  *a.sum += a.n;
  return {};
}
Status refuse(const Add &a) { return {Code::System, "refused " + std::to_string(a.n)}; }

TEST(HostStreams, RunCallsOnTheirOwnThreadInOrder) {
  const auto s = host_stream();
  std::atomic<int> sum{0};
  for (int i = 1; i <= 1000; ++i) s->call("add", add, Add{&sum, i});
  EXPECT_TRUE(s->drain(Deadline(10).ns()));
  EXPECT_EQ(sum, 500500);
  EXPECT_EQ(s->inside(), nullptr);
}

TEST(HostStreams, SkipWhatComesBehindAFailureAndStillSignal) {
  const auto s = host_stream();
  const auto done = host_runtime().make_signal(0);
  std::atomic<int> sum{0};
  s->call("add", add, Add{&sum, 1});
  s->call("refuse", refuse, Add{&sum, 7});
  s->call("add", add, Add{&sum, 10});
  s->call("refuse", refuse, Add{&sum, 8});
  done->arm(*s, 1);
  ASSERT_TRUE(within(10, [&] { return done->value() == 1; }));
  EXPECT_EQ(sum, 1);
  EXPECT_EQ(s->status().text, "refused 7") << "the first failure is the one that counts";
}

// A thread that nobody can end is left behind, once, and the process goes on.
struct Stuck {
  std::atomic<bool> *inside, *release, *left;
};
Status stay(const Stuck &a) {
  *a.inside = true;
  while (!*a.release) std::this_thread::sleep_for(1ms);
  *a.left = true;
  return {};
}

TEST(HostStreams, AThreadStuckInACallIsLeftBehindAndCounted) {
  static std::atomic<bool> inside{false}, release{false}, left{false};
  std::atomic<int> sum{0};
  const size_t before = abandoned_threads();
  {
    auto s = host_stream();
    s->call("a call that does not return", stay, Stuck{&inside, &release, &left});
    s->call("add", add, Add{&sum, 1});
    ASSERT_TRUE(within(10, [] { return inside.load(); }));
    EXPECT_STREQ(s->inside(), "a call that does not return");
    EXPECT_FALSE(s->drain(Deadline(0.05).ns()));
    s->abandon();
    const Deadline deadline(2);
    s.reset();
    EXPECT_FALSE(deadline.passed());
  }
  EXPECT_EQ(abandoned_threads(), before + 1);
  release = true;
  EXPECT_TRUE(within(10, [] { return left.load(); }));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(sum, 0) << "nothing behind the call may run any more";
}

TEST(HostStreams, AForkedChildLeavesThemAlone) {
  auto s = host_stream();
  std::atomic<int> sum{0};
  s->call("add", add, Add{&sum, 1});
  ASSERT_TRUE(s->drain(Deadline(10).ns()));
  const pid_t child = ::fork();
  if (child == 0) {
    s.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  s->call("add", add, Add{&sum, 1});
  EXPECT_TRUE(s->drain(Deadline(10).ns()));
  EXPECT_EQ(sum, 2);
}

}  // namespace
}  // namespace isthmus::device
