// What runtime.hpp promises of a device runtime, on every runtime that finds a device here; then what the host's own streams add.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "device/abandoned.hpp"
#include "device/acl.hpp"
#include "device/cuda.hpp"
#include "device/hip.hpp"
#include "device/host.hpp"
#include "device/words.hpp"
#include "eventually.hpp"
#include "patience.hpp"
#include "rehearsal_file.hpp"
#include "vendor/skeleton.hpp"

namespace isthmus::device {
namespace {

using namespace std::chrono_literals;

using isthmus_test::eventually, isthmus_test::patient, isthmus_test::soon;

// Memory that both sides can reach: what a slot is.
class Slot {
 public:
  Slot(Runtime &runtime, size_t bytes, int device = 0) : runtime_(runtime), bytes_(bytes), device_(device) {
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    runtime_.register_host(device_, memory_, bytes_);
  }
  ~Slot() {
    runtime_.unregister_host(device_, memory_);
    ::munmap(memory_, bytes_);
  }
  uint32_t *host() const { return static_cast<uint32_t *>(memory_); }
  void *device() const { return runtime_.device_address(device_, memory_); }

 private:
  Runtime &runtime_;
  size_t bytes_;
  const int device_;
  void *memory_ = nullptr;
};

class EveryRuntime : public testing::TestWithParam<Runtime *> {
 protected:
  static constexpr size_t kBytes = 1 << 16;
  Runtime &runtime = *GetParam();
  std::unique_ptr<Stream> stream() { return runtime.make_stream(0, "test"); }
  // Whether streams wait for the host; where they do not, that is said.
  bool gates() {
    if (runtime.capabilities(0).gate != GateKind::None) return true;
    EXPECT_THROW(runtime.make_gate(0), Error);
    return false;
  }
  // Makes every call on this thread, for that device, and says which to `look` after each. What has come back of the number.
  template <class Look>
  uint32_t every_call(int device, uint32_t number, Look look) {
    const Slot from(runtime, kBytes, device), to(runtime, kBytes, device);
    look("register_host");
    from.host()[5] = number;
    const auto first = runtime.make_stream(device, "test"), second = runtime.make_stream(device, "test");
    look("make_stream");
    const auto event = runtime.make_event(device);
    look("make_event");
    const auto done = runtime.make_signal(device);
    look("make_signal");
    void *const memory = runtime.allocate(device, kBytes);
    look("allocate");
    EXPECT_EQ(runtime.find(memory).where, Where::Device);
    look("find");
    std::unique_ptr<StreamGate> gate;
    if (runtime.capabilities(device).gate != GateKind::None) {
      gate = runtime.make_gate(device);
      look("make_gate");
      gate->open(1);
      gate->arm(*first, 1);
      look("StreamGate::arm");
    }
    runtime.copy(*first, memory, from.device(), kBytes);
    look("copy");
    event->record(*first);
    look("Event::record");
    event->hold(*second);
    look("Event::hold");
    runtime.copy(*second, to.device(), memory, kBytes);
    done->arm(*second, 1);
    look("Signal::arm");
    const bool came = eventually([&] { return done->value() == 1 && event->reached(); });
    EXPECT_TRUE(came);
    look("Event::reached");
    EXPECT_TRUE(second->status().ok());
    look("Stream::status");
    EXPECT_FALSE(second->capturing());
    look("Stream::capturing");
    { const Entered inside(*second); }
    look("Stream::enter and exit");
    if (first->handle()) runtime.adopt(device, first->handle());
    look("adopt");
    runtime.begin(device);
    look("begin");
    runtime.release(device, memory);
    look("release");
    return came ? to.host()[5] : 0;
  }
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
    ASSERT_TRUE(eventually([&] { return done->value() == round; }));
    ASSERT_EQ(to.host()[0], round);
    ASSERT_EQ(to.host()[kBytes / 4 - 1], round);
  }
  EXPECT_TRUE(s->status().ok());
  runtime.release(0, memory);
}

TEST_P(EveryRuntime, CopiesFromDeviceMemoryToDeviceMemory) {
  constexpr size_t kHalf = kBytes / 2, kNumbers = kBytes / 4;
  const Slot from(runtime, kBytes), turned(runtime, kBytes), twice(runtime, kBytes);
  auto *const first = static_cast<std::byte *>(runtime.allocate(0, kBytes));
  auto *const second = static_cast<std::byte *>(runtime.allocate(0, kBytes));
  const auto s = stream();
  const auto done = runtime.make_signal(0);
  for (uint32_t round = 1; round <= 5; ++round) {
    for (uint32_t i = 0; i < kNumbers; ++i) from.host()[i] = round * 100'000 + i;
    runtime.copy(*s, first, from.device(), kBytes);
    runtime.copy(*s, second, first + kHalf, kHalf);
    runtime.copy(*s, second + kHalf, first, kHalf);
    runtime.copy(*s, first, first + kHalf, kHalf);  // inside one allocation
    runtime.copy(*s, turned.device(), second, kBytes);
    runtime.copy(*s, twice.device(), first, kBytes);
    done->arm(*s, round);
    ASSERT_TRUE(eventually([&] { return done->value() == round; }));
    for (uint32_t i = 0; i < kNumbers; ++i) {
      const uint32_t other = (i + kNumbers / 2) % kNumbers;
      ASSERT_EQ(turned.host()[i], from.host()[other]) << i;
      ASSERT_EQ(twice.host()[i], from.host()[std::max(i, other)]) << i;
    }
  }
  EXPECT_TRUE(s->status().ok());
  runtime.release(0, first);
  runtime.release(0, second);
}

TEST_P(EveryRuntime, NothingBehindAGateRunsBeforeItIsOpen) {
  if (!gates()) return;
  const Slot from(runtime, kBytes), to(runtime, kBytes);
  void *const memory = runtime.allocate(0, kBytes);
  const auto s = stream();
  const auto gate = runtime.make_gate(0);
  const auto done = runtime.make_signal(0);
  gate->arm(*s, 5);
  runtime.copy(*s, memory, from.device(), kBytes);
  runtime.copy(*s, to.device(), memory, kBytes);
  done->arm(*s, 1);
  gate->open(4);
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(done->value(), 0u);
  from.host()[7] = 77;  // before the gate opens, so behind it it is seen
  gate->open(6);
  ASSERT_TRUE(eventually([&] { return done->value() == 1; }));
  EXPECT_EQ(to.host()[7], 77u);
  gate->arm(*s, 6);  // it has been that far already
  done->arm(*s, 2);
  EXPECT_TRUE(eventually([&] { return done->value() == 2; }));
  runtime.release(0, memory);
}

TEST_P(EveryRuntime, APoisonedGateHoldsNothingEver) {
  if (!gates()) return;
  const auto s = stream();
  const auto gate = runtime.make_gate(0);
  const auto done = runtime.make_signal(0);
  gate->arm(*s, 1);
  done->arm(*s, 1);
  gate->poison();
  ASSERT_TRUE(eventually([&] { return done->value() == 1; }));
  gate->arm(*s, uint64_t{1} << 60);
  done->arm(*s, 2);
  EXPECT_TRUE(eventually([&] { return done->value() == 2; }));
}

TEST_P(EveryRuntime, ASignalWakesAndComesAfterTheBytes) {
  const Slot from(runtime, kBytes), to(runtime, kBytes);
  void *const memory = runtime.allocate(0, kBytes);
  const auto s = stream();
  struct Seen {
    std::atomic<int> times{0};
  } seen;
  const auto done = runtime.make_signal(
      0, [](void *c) { ++static_cast<Seen *>(c)->times; }, &seen);
  for (uint32_t round = 1; round <= 200; ++round) {
    from.host()[kBytes / 4 - 1] = round;
    runtime.copy(*s, memory, from.device(), kBytes);
    runtime.copy(*s, to.device(), memory, kBytes);
    done->arm(*s, round);
    while (done->value() < round) std::this_thread::yield();
    ASSERT_EQ(to.host()[kBytes / 4 - 1], round);
  }
  const bool wakes = runtime.capabilities(0).signals_wake;
  EXPECT_TRUE(!wakes || eventually([&] { return seen.times == 200; }));
  runtime.release(0, memory);
}

TEST_P(EveryRuntime, AnEventOrdersOneStreamBehindAnother) {
  const auto first = stream(), second = stream();
  const auto event = runtime.make_event(0);
  const auto done = runtime.make_signal(0);
  EXPECT_TRUE(event->reached());
  event->hold(*second);  // never recorded: holds nothing
  done->arm(*second, 1);
  ASSERT_TRUE(eventually([&] { return done->value() == 1; }));
  if (!gates()) {
    const Slot from(runtime, kBytes), to(runtime, kBytes);
    void *const memory = runtime.allocate(0, kBytes);
    for (uint32_t round = 2; round <= 20; ++round) {
      std::fill_n(from.host(), kBytes / 4, round);
      runtime.copy(*first, memory, from.device(), kBytes);
      event->record(*first);
      event->hold(*second);
      runtime.copy(*second, to.device(), memory, kBytes);
      done->arm(*second, round);
      ASSERT_TRUE(eventually([&] { return done->value() == round; }));
      EXPECT_TRUE(event->reached());
      ASSERT_EQ(to.host()[0], round);
      ASSERT_EQ(to.host()[kBytes / 4 - 1], round);
    }
    runtime.release(0, memory);
    return;
  }
  const auto gate = runtime.make_gate(0);
  gate->arm(*first, 1);
  event->record(*first);
  event->hold(*second);
  done->arm(*second, 2);
  std::this_thread::sleep_for(30ms);
  EXPECT_FALSE(event->reached());
  EXPECT_EQ(done->value(), 1u);
  gate->open(1);
  ASSERT_TRUE(eventually([&] { return done->value() == 2; }));
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
  // Not all vendors say where; who does says the same.
  const void *const there = runtime.find(slot.host() + 100).there;
  EXPECT_TRUE(there == nullptr || there == runtime.device_address(0, slot.host() + 100));
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

TEST_P(EveryRuntime, ForgetsARegistrationThatEnded) {
  void *const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto *const last = static_cast<std::byte *>(memory) + kBytes - 1;
  for (int round = 0; round < 2; ++round) {  // and the memory may be registered again
    runtime.register_host(0, memory, kBytes);
    EXPECT_EQ(runtime.find(last).where, Where::Registered);
    EXPECT_NO_THROW(runtime.device_address(0, last));
    EXPECT_TRUE(runtime.unregister_host(0, memory));
    EXPECT_EQ(runtime.find(memory).where, Where::Unknown);
    EXPECT_EQ(runtime.find(last).where, Where::Unknown);
    EXPECT_THROW(runtime.device_address(0, memory), Error);
    EXPECT_THROW(runtime.device_address(0, last), Error);
  }
  ::munmap(memory, kBytes);
}

// Where the host is the device, what is short is the host's.
TEST_P(EveryRuntime, ADeviceWithoutMemoryIsTheDevicesFailure) {
  try {
    runtime.allocate(0, SIZE_MAX - 100);
    FAIL() << "there is memory without end";
  } catch (const Error &e) {
    EXPECT_EQ(e.code(), std::string(runtime.vendor()) == "host" ? Code::Resource : Code::Device) << e.text();
  }
}

TEST_P(EveryRuntime, AStreamTakesMoreThanItsQueueHolds) {
  const auto s = stream();
  const auto done = runtime.make_signal(0);
  constexpr uint64_t kMany = 20000;
  for (uint64_t i = 1; i <= kMany; ++i) done->arm(*s, i);
  EXPECT_TRUE(eventually([&] { return done->value() == kMany; }));
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
    } catch (const Error &) { ::dlopen(rehearsal_file("nvidia/libcuda.so.1"), RTLD_NOW | RTLD_GLOBAL); }
    return true;
  }();
  (void)opened;
  return cuda_runtime();
}

Runtime &a_hip_runtime() {
  static const bool opened = [] {
    try {
      hip_runtime();
    } catch (const Error &) {
      const char *version = std::getenv("TEST_HIP");
      const std::string file = std::string("amd/libamdhip64.so.") + (version ? version : "7");
      ::dlopen(rehearsal_file(file.c_str()), RTLD_NOW | RTLD_GLOBAL);
    }
    return true;
  }();
  (void)opened;
  return hip_runtime();
}

Runtime &an_acl_runtime() {
  static const bool opened = [] {
    try {
      acl_runtime();
    } catch (const Error &) { ::dlopen(rehearsal_file("ascend/libascendcl.so"), RTLD_NOW | RTLD_GLOBAL); }
    return true;
  }();
  (void)opened;
  return acl_runtime();
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
  EXPECT_TRUE(eventually([&] { return done->value() == 1; }));
  EXPECT_TRUE(theirs->status().ok());
}

TEST_P(EveryRuntime, GatesAndSignalsThatEndAreUsedAgain) {
  const auto s = stream();
  const bool waits = gates();
  for (int i = 0; i < 300; ++i) {  // more than a page of counters
    const auto gate = waits ? runtime.make_gate(0) : nullptr;
    const auto done = runtime.make_signal(0);
    EXPECT_EQ(done->value(), 0u);
    if (gate) {
      gate->open(1);
      gate->arm(*s, 1);
    }
    done->arm(*s, 7);
    ASSERT_TRUE(eventually([&] { return done->value() == 7; }));
  }
}

// What is queued when a signal ends is of no other signal, and wakes nobody.
TEST_P(EveryRuntime, ASignalByAFunctionOfTheHostMayEndBeforeItsValueHasCome) {
  const Capabilities can = runtime.capabilities(0);
  if (!can.signals_wake || can.host_access) return;  // the stream writes it, or it is ours
  const Slot from(runtime, kBytes), to(runtime, kBytes);
  void *const memory = runtime.allocate(0, kBytes);
  const auto s = stream();
  for (int round = 0; round < 20; ++round) {
    auto woken = std::make_unique<std::atomic<int>>(0);
    auto lost = runtime.make_signal(
        0, [](void *c) { ++*static_cast<std::atomic<int> *>(c); }, woken.get());
    for (uint64_t i = 1; i <= 20; ++i) {
      runtime.copy(*s, memory, from.device(), kBytes);
      lost->arm(*s, 1000 + i);
    }
    lost.reset();
    woken.reset();
    const auto done = runtime.make_signal(0);
    EXPECT_EQ(done->value(), 0u);
    done->arm(*s, 1);
    ASSERT_TRUE(eventually([&] { return done->value() != 0; }));
    EXPECT_EQ(done->value(), 1u);
  }
  runtime.release(0, memory);
}

// ---- the vendor's library, as a program calls it ----------------------------------------------------------------------------

// How it is called, and the calls that differ in nothing but their names.
struct Names {
  std::vector<const char *> libraries;
  const char *begin_capture, *end_capture, *destroy_graph;
};
const Names &names_of(const Runtime &runtime) {
  static const std::map<std::string, Names> all = {
      {"cuda", {{"libcuda.so.1"}, "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphDestroy"}},
      {"hip",
       {{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"},
        "hipStreamBeginCapture",
        "hipStreamEndCapture",
        "hipGraphDestroy"}},
      {"acl", {{"libascendcl.so"}, "aclmdlRICaptureBegin", "aclmdlRICaptureEnd", "aclmdlRIDestroy"}}};
  return all.at(runtime.vendor());
}

// Calls a function of the library that the runtime has opened; its code. The types of the arguments are the caller's word.
template <class... A>
int by_name(const Runtime &runtime, const char *name, A... a) {
  void *library = nullptr;
  for (const char *file : names_of(runtime).libraries)
    if (!library) library = ::dlopen(file, RTLD_NOW | RTLD_NOLOAD);
  void *const found = library ? ::dlsym(library, name) : nullptr;
  if (found) return reinterpret_cast<int (*)(A...)>(found)(a...);
  ADD_FAILURE() << "no " << name;
  return -1;
}

// What this thread has chosen to work on: a context, or of AMD's the number of a device, which is 0 where it has chosen nothing. Else 0
// is nothing.
intptr_t chosen(const Runtime &runtime) {
  void *context = nullptr;
  int device = 0;
  const std::string name = runtime.vendor();
  if (name == "cuda") { EXPECT_EQ(by_name(runtime, "cuCtxGetCurrent", &context), 0); }
  if (name == "hip") { EXPECT_EQ(by_name(runtime, "hipGetDevice", &device), 0); }
  if (name == "acl") by_name(runtime, "aclrtGetCurrentContext", &context);  // fails where there is none
  return context ? reinterpret_cast<intptr_t>(context) : device;
}

void choose(const Runtime &runtime, int device) {
  void *context = nullptr;
  const std::string name = runtime.vendor();
  if (name == "cuda") {
    EXPECT_EQ(by_name(runtime, "cuDevicePrimaryCtxRetain", &context, device), 0);
    EXPECT_EQ(by_name(runtime, "cuCtxSetCurrent", context), 0);
  }
  if (name == "hip") { EXPECT_EQ(by_name(runtime, "hipSetDevice", device), 0); }
  if (name == "acl") { EXPECT_EQ(by_name(runtime, "aclrtSetDevice", device), 0); }
}

TEST_P(EveryRuntime, KnowsAStreamThatIsCaptured) {
  const auto s = stream();
  EXPECT_FALSE(s->capturing());
  if (&runtime == &host_runtime() || &runtime == &acme_runtime()) return;  // there are no graphs
  constexpr int kRelaxed = 2;                                              // a capture that forbids nobody anything
  const auto adopted = runtime.adopt(0, s->handle());
  const Names &names = names_of(runtime);
  void *graph = nullptr;
  {
    const Entered on_its_device(*s);
    ASSERT_EQ(by_name(runtime, names.begin_capture, s->handle(), kRelaxed), 0);
  }
  EXPECT_TRUE(s->capturing());
  EXPECT_TRUE(adopted->capturing());
  {
    const Entered on_its_device(*s);
    ASSERT_EQ(by_name(runtime, names.end_capture, s->handle(), &graph), 0);
    EXPECT_EQ(by_name(runtime, names.destroy_graph, graph), 0);
  }
  EXPECT_FALSE(s->capturing());
  EXPECT_FALSE(adopted->capturing());
}

// A thread of the program that has chosen no device has none again after each call. But Ascend's library has no call that takes a choice
// away: there it keeps the one of the first call.
TEST_P(EveryRuntime, WorksOnThreadsThatNeverUsedIt) {
  const bool keeps = std::string(runtime.vendor()) == "acl";
  uint32_t got = 0;
  std::thread([&] {
    intptr_t had = chosen(runtime);
    EXPECT_TRUE(!keeps || had == 0);
    const auto same = [&](const char *call) {
      const intptr_t now = chosen(runtime);
      if (keeps && had == 0) had = now;
      EXPECT_EQ(now, had) << "after " << call;
    };
    // The last one is another than a library takes where nothing was chosen.
    got = every_call(runtime.devices() - 1, 55, same);
    same("the end of all that it had made");
  }).join();
  EXPECT_EQ(got, 55u);
}

// One that has chosen another has that one after each call.
TEST_P(EveryRuntime, LeavesAThreadTheDeviceThatItHasChosen) {
  if (runtime.devices() < 2) {
    EXPECT_EQ(runtime.describe(0).find("imulated"), std::string::npos) << "simulated vendors have two";
    return;
  }
  uint32_t got = 0;
  std::thread([&] {
    choose(runtime, 1);
    const intptr_t had = chosen(runtime);
    EXPECT_NE(had, 0);
    const auto same = [&](const char *call) { EXPECT_EQ(chosen(runtime), had) << "after " << call; };
    got = every_call(0, 66, same);
    same("the end of all that it had made");
  }).join();
  EXPECT_EQ(got, 66u);
}

// The runtimes that this process is to test: all, or the one that TEST_RUNTIME names (device.cmake has the others' switches).
std::vector<Runtime *> runtimes() {
  ::setenv("REHEARSAL_DEVICES", "2", 0);  // so that a thread can have chosen another one; read when the first is opened
  const char *only = std::getenv("TEST_RUNTIME");
  const auto wanted = [&](const char *vendor) { return !only || std::string_view(only) == vendor; };
  std::vector<Runtime *> all;
  if (wanted("host")) all.push_back(&host_runtime());
  if (wanted("cuda")) all.push_back(&a_cuda_runtime());
  if (wanted("hip")) all.push_back(&a_hip_runtime());
  if (wanted("acl")) all.push_back(&an_acl_runtime());
  if (wanted("acme")) all.push_back(&acme_runtime());  // examples/vendor, the adapter to copy
  return all;
}
TEST(Hip, IsTheVersionThatIsThere) {
  if (const char *version = std::getenv("TEST_HIP"); version) {
    const std::string text = a_hip_runtime().version();
    EXPECT_EQ(text.rfind(version, 0), 0u) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Runtimes, EveryRuntime, testing::ValuesIn(runtimes()),
                         [](const auto &p) { return std::string(p.param->vendor()); });

// Which runtimes have gates is known of the simulated ones; real ones say it themselves.
TEST(Runtimes, HaveGatesWhereTheirStreamsWaitForValues) {
  const bool values = !std::getenv("REHEARSAL_CUDA_NO_STREAM_VALUES");
  for (Runtime *r : runtimes()) {
    if (r->describe(0).find("imulated") == std::string::npos) continue;
    const Capabilities can = r->capabilities(0);
    const bool waits = r != &an_acl_runtime() && (values || r != &a_cuda_runtime());
    EXPECT_EQ(can.gate, waits ? GateKind::HostStore : GateKind::None) << r->vendor();
    EXPECT_EQ(can.signals_wake, !waits) << r->vendor();
  }
}

// ---- signals by a function of the host --------------------------------------------------------------------------------------

TEST(AMark, IsUsedAgainAndTheRingGrowsOnlyWhereItsNextIsOutstanding) {
  Marks marks;
  int woken = 0;
  ASSERT_TRUE(marks.begin([](void *c) { ++*static_cast<int *>(c); }, &woken));
  std::vector<Marks::Mark *> first;
  for (uint64_t i = 1; i <= 64; ++i) first.push_back(&marks.take(i));
  for (Marks::Mark *m : first) Marks::reached(m);
  EXPECT_EQ(marks.value(), 64u);
  EXPECT_EQ(woken, 64);
  for (uint64_t i = 65; i <= 128; ++i) {  // all of them are free: the same ones in the same order
    Marks::Mark &m = marks.take(i);
    EXPECT_EQ(&m, first[i - 65]);
    Marks::reached(&m);
  }
  std::vector<Marks::Mark *> outstanding;
  for (uint64_t i = 129; i <= 1000; ++i) outstanding.push_back(&marks.take(i));
  for (size_t i = 0; i < outstanding.size(); ++i)
    for (size_t j = 0; j < i && j < 70; ++j) ASSERT_NE(outstanding[i], outstanding[j]) << i << " " << j;
  marks.give_back(*outstanding.back());  // its call could not be submitted
  outstanding.pop_back();
  for (Marks::Mark *m : outstanding) Marks::reached(m);
  EXPECT_EQ(marks.value(), 999u);
  EXPECT_EQ(woken, 64 + 64 + 871);
}

TEST(AMark, BelongsToOneSignalUntilAllCallsForItsRingHaveCome) {
  Marks marks;
  int woken = 0;
  const Wake wake = [](void *c) { ++*static_cast<int *>(c); };
  ASSERT_TRUE(marks.begin(wake, &woken));
  EXPECT_FALSE(marks.begin(wake, &woken)) << "a signal has it";
  std::atomic<uint64_t> counter{0};
  Marks::Mark &late = marks.take(7);
  late.counter = &counter;
  marks.end();
  EXPECT_FALSE(marks.begin(wake, &woken)) << "a call is outstanding";
  Marks::reached(&late);
  EXPECT_EQ(woken, 0) << "the signal has ended";
  EXPECT_EQ(counter, 1u);
  ASSERT_TRUE(marks.begin(wake, &woken));
  EXPECT_EQ(marks.value(), 0u);
  Marks::reached(&marks.take(1));
  EXPECT_EQ(marks.value(), 1u);
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(counter, 1u);
}

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
  EXPECT_TRUE(s->drain(Deadline(soon()).ns()));
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
  ASSERT_TRUE(eventually([&] { return done->value() == 1; }));
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
  static std::atomic<bool> inside, release, left;  // the thread may outlive the test
  inside = release = left = false;
  std::atomic<int> sum{0};
  const size_t before = abandoned_threads();
  {
    auto s = host_stream();
    s->call("a call that does not return", stay, Stuck{&inside, &release, &left});
    s->call("add", add, Add{&sum, 1});
    ASSERT_TRUE(eventually([] { return inside.load(); }));
    EXPECT_STREQ(s->inside(), "a call that does not return");
    EXPECT_FALSE(s->drain(Deadline(0.05).ns()));
    s->abandon();
    s.reset();  // were it to wait for its thread, it would be for ever
  }
  EXPECT_EQ(abandoned_threads(), before + 1);
  release = true;
  EXPECT_TRUE(eventually([] { return left.load(); }));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(sum, 0) << "nothing behind the call may run any more";
}

TEST(HostStreams, AForkedChildLeavesThemAlone) {
  auto s = host_stream();
  std::atomic<int> sum{0};
  s->call("add", add, Add{&sum, 1});
  ASSERT_TRUE(s->drain(Deadline(soon()).ns()));
  const pid_t child = ::fork();
  if (child == 0) {
    s.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  s->call("add", add, Add{&sum, 1});
  EXPECT_TRUE(s->drain(Deadline(soon()).ns()));
  EXPECT_EQ(sum, 2);
}

TEST(ACallThatMayNotComeBack, HasTheTimeInWhichItsProcessRunsAndNotThatInWhichItIsStopped) {
  const double patience = patient(8);
  int begun[2], over[2];
  ASSERT_EQ(::pipe(begun), 0);
  ASSERT_EQ(::pipe(over), 0);
  const pid_t self = ::getpid(), stopper = ::fork();
  if (stopper == 0) {
    ::close(begun[1]);
    char byte;
    const bool runs = ::read(begun[0], &byte, 1) == 1;
    if (!runs || ::kill(self, SIGSTOP) != 0) ::_exit(1);
    ::usleep(static_cast<useconds_t>(1e6 * (patience + 1)));
    const bool goes_on = ::kill(self, SIGCONT) == 0;
    ::usleep(300'000);  // for the one that waits to look
    ::_exit(goes_on && ::write(over[1], "", 1) == 1 ? 0 : 1);
  }
  const size_t before = abandoned_threads();
  const auto ended = call_within(patience, [&]() -> Status {
    char byte;
    const bool stopped = ::write(begun[1], "", 1) == 1 && ::read(over[0], &byte, 1) == 1;
    return stopped ? Status{} : Status{Code::System, "the pipes failed"};
  });
  int status = -1;
  ASSERT_EQ(::waitpid(stopper, &status, 0), stopper);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(ended && ended->ok());
  EXPECT_EQ(abandoned_threads(), before);
  for (const int end : {begun[0], begun[1], over[0], over[1]}) ::close(end);
}

}  // namespace
}  // namespace isthmus::device
