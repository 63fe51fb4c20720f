// The simulated vendors when a program resets a device, and with the variables that make launches block.
#include <sys/mman.h>

#include <atomic>
#include <cstdint>

#include "rehearsal_acl_support.hpp"

namespace {

using namespace rehearsed;
using Address = unsigned long long;
using ascend::acl;

template <class... A>
int cu(const char *name, A... a) {
  return call("nvidia/libcuda.so.1", (std::string("cu") + name).c_str(), a...);
}
template <class... A>
int hip(const char *name, A... a) {
  return call("amd/libamdhip64.so.7", (std::string("hip") + name).c_str(), a...);
}

void *page() {
  void *p = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(p != MAP_FAILED);
  return p;
}
void nothing_lives() {
  for (const char *what : {"stream", "event", "allocation", "registration"}) IS(live(what), 0u);
}

Handle cuda_context() {
  Handle context = nullptr;
  IS(cu("Init", 0u), 0);
  IS(cu("DevicePrimaryCtxRetain", &context, 0), 0);
  IS(cu("CtxSetCurrent", context), 0);
  return context;
}

TEST(RehearsedReset, NvidiasContextIsDestroyedUntilSomebodyRetainsItAgain) {
  expect_clean({{"REHEARSAL_ABORT_ON_MISUSE", "0"}}, [] {
    const Handle context = cuda_context();
    Handle stream = nullptr, event = nullptr, popped = nullptr;
    Address memory = 0, there = 0;
    unsigned long long id = 0, next = 0;
    unsigned flags = 0;
    int active = 0;
    void *const host = page();
    IS(cu("StreamCreate", &stream, 1u), 0);
    IS(cu("EventCreate", &event, 2u), 0);
    IS(cu("MemAlloc_v2", &memory, size_t{4096}), 0);
    IS(cu("MemHostRegister_v2", host, size_t{4096}, 3u), 0);
    IS(cu("MemHostGetDevicePointer_v2", &there, host, 0u), 0);
    IS(cu("CtxGetId", context, &id), 0);
    IS(cu("StreamWaitValue64_v2", stream, there, uint64_t{1}, 0u), 0);  // nobody will ever write it
    IS(cu("MemcpyAsync", memory, there, size_t{64}, stream), 0);
    IS(cu("EventRecord", event, stream), 0);
    IS(cu("DevicePrimaryCtxReset", 0), 0);
    nothing_lives();
    IS(cu("DevicePrimaryCtxGetState", 0, &flags, &active), 0);
    IS(active, 0);
    IS(cu("CtxPushCurrent_v2", context), 0);  // it is current where it was
    IS(cu("CtxPopCurrent_v2", &popped), 0);
    IS(cu("StreamQuery", stream), 709);
    IS(cu("EventQuery", event), 709);
    IS(cu("MemcpyAsync", memory, there, size_t{64}, stream), 709);
    IS(cu("MemAlloc_v2", &memory, size_t{4096}), 709);
    IS(cu("MemHostUnregister", host), 709);
    IS(cu("CtxGetId", context, &next), 709);
    IS(cu("DevicePrimaryCtxReset_v2", 0), 0);  // there is nothing to reset
    IS(number_of("rehearsal_misuses"), 0u);

    Handle again = nullptr;
    const Address old = memory;
    IS(cu("DevicePrimaryCtxRetain", &again, 0), 0);
    CHECK(again == context);
    IS(cu("CtxGetId", context, &next), 0);
    CHECK(next != id);
    IS(cu("MemAlloc_v2", &memory, size_t{4096}), 0);
    IS(cu("MemHostUnregister", host), 713);
    IS(cu("MemFree_v2", old), 1);
    IS(number_of("rehearsal_misuses"), 0u);
    IS(cu("StreamQuery", stream), 400);  // which a real driver looks for at its address
    IS(number_of("rehearsal_misuses"), 1u);
  });
}

TEST(RehearsedReset, AmdsDeviceIsAsNew) {
  expect_clean({}, [] {
    Handle stream = nullptr, event = nullptr;
    void *memory = nullptr, *word = nullptr, *more = nullptr, *const host = page();
    IS(hip("StreamCreateWithFlags", &stream, 1u), 0);
    IS(hip("EventCreateWithFlags", &event, 2u), 0);
    IS(hip("Malloc", &memory, size_t{4096}), 0);
    IS(hip("ExtMallocWithFlags", &word, size_t{8}, 2u), 0);
    IS(hip("HostRegister", host, size_t{4096}, 2u), 0);
    *static_cast<uint64_t *>(word) = 0;
    IS(hip("StreamWaitValue64", stream, word, uint64_t{1}, 0u, ~uint64_t{0}), 0);  // nobody will ever write it
    IS(hip("MemcpyAsync", memory, static_cast<const void *>(host), size_t{64}, 1, stream), 0);
    IS(hip("DeviceReset"), 0);
    nothing_lives();
    IS(hip("StreamQuery", stream), 709);
    IS(hip("EventQuery", event), 709);
    IS(hip("StreamWaitValue64", stream, word, uint64_t{1}, 0u, ~uint64_t{0}), 709);
    IS(hip("MemcpyAsync", memory, static_cast<const void *>(host), size_t{64}, 1, stream), 709);
    IS(hip("StreamDestroy", stream), 709);
    IS(hip("Free", memory), 1);
    IS(hip("Free", word), 1);
    IS(hip("HostUnregister", host), 713);
    CHECK(*static_cast<uint64_t *>(word) != 0);  // its pool's, with rubbish in it
    IS(hip("Malloc", &more, size_t{4096}), 0);
    IS(hip("StreamCreateWithFlags", &stream, 1u), 0);
    IS(hip("StreamQuery", stream), 0);
    IS(number_of("rehearsal_misuses"), 0u);
  });
}

TEST(RehearsedReset, HuaweisDeviceIsResetByTheLastOfItsUsersOrByForceWhenItsWorkIsDone) {
  expect_clean({}, [] {
    ascend::use(0);
    ascend::use(0);
    Handle context = nullptr;
    IS(acl("rtGetCurrentContext", &context), 0);
    const Handle stream = ascend::new_stream(), event = ascend::new_event();
    char *const memory = ascend::allocate(4096);
    void *const host = page();
    IS(acl("rtHostRegisterV2", host, uint64_t{4096}, uint32_t{ascend::kMapped | ascend::kPinned}), 0);
    IS(acl("rtResetDevice", 0), 0);  // the other one still has it
    IS(acl("rtSynchronizeStream", stream), 0);
    ascend::Hold hold(stream);
    std::atomic<bool> over{false};
    std::thread resets([&] {
      IS(acl("rtResetDeviceForce", 0), 0);
      over.store(true);
    });
    sleep_ms(100);
    CHECK(!over.load());
    hold.go_on();
    resets.join();
    nothing_lives();
    void *more = nullptr;
    IS(acl("rtMalloc", &more, size_t{4096}, 0), 107002);
    IS(acl("rtRecordEvent", event, stream), 107002);
    IS(acl("rtSetCurrentContext", context), 107002);
    ascend::use(0);
    IS(acl("rtRecordEvent", event, stream), 107002);
    IS(acl("rtFree", static_cast<void *>(memory)), 107000);
    IS(acl("rtHostUnregister", host), 507911);
    ascend::release(ascend::allocate(4096));
    IS(number_of("rehearsal_misuses"), 0u);
  });
}

// As slow as shows that a call waited for it; where none waits, slower than anybody looks.
std::string slow(const std::string &call, const std::string &value) { return call + (value == "0" ? "60000" : "200"); }

// Whether a slow copy has ended when its call returns, with that variable set.
bool ends_in_the_call_of_nvidia(const char *variable, const char *value) {
  const End end = run({{variable, value}, {"REHEARSAL_SLOW", slow("cuMemcpyAsync:1:", value)}}, [] {
    cuda_context();
    Handle stream = nullptr;
    Address memory = 0, more = 0;
    IS(cu("StreamCreate", &stream, 1u), 0);
    IS(cu("MemAlloc_v2", &memory, size_t{4096}), 0);
    IS(cu("MemAlloc_v2", &more, size_t{4096}), 0);
    IS(cu("MemcpyAsync", memory, more, size_t{64}, stream), 0);
    ::_exit(cu("StreamQuery", stream) == 0 ? 10 : 11);
  });
  EXPECT_TRUE(WIFEXITED(end.status) && WEXITSTATUS(end.status) >= 10) << end.said;
  return WEXITSTATUS(end.status) == 10;
}
bool ends_in_the_call_of_amd(const char *variable, const char *value) {
  const End end = run({{variable, value}, {"REHEARSAL_SLOW", slow("hipMemsetAsync:1:", value)}}, [] {
    Handle stream = nullptr;
    void *memory = nullptr;
    IS(hip("StreamCreateWithFlags", &stream, 1u), 0);
    IS(hip("Malloc", &memory, size_t{4096}), 0);
    IS(hip("MemsetAsync", memory, 1, size_t{64}, stream), 0);
    ::_exit(hip("StreamQuery", stream) == 0 ? 10 : 11);
  });
  EXPECT_TRUE(WIFEXITED(end.status) && WEXITSTATUS(end.status) >= 10) << end.said;
  return WEXITSTATUS(end.status) == 10;
}
bool ends_in_the_call_of_huawei(const char *variable, const char *value) {
  const End end = run({{variable, value}, {"REHEARSAL_SLOW", slow("aclrtMemsetAsync:1:", value)}}, [] {
    ascend::use(0);
    const Handle stream = ascend::new_stream();
    void *const memory = ascend::allocate(4096);
    IS(acl("rtMemsetAsync", memory, size_t{64}, 1, size_t{64}, stream), 0);
    ::_exit(ascend::idle(stream) ? 10 : 11);
  });
  EXPECT_TRUE(WIFEXITED(end.status) && WEXITSTATUS(end.status) >= 10) << end.said;
  return WEXITSTATUS(end.status) == 10;
}

TEST(RehearsedBlocking, TheVendorsVariablesMakeACallReturnWhenItsWorkHasEnded) {
  EXPECT_TRUE(ends_in_the_call_of_nvidia("CUDA_LAUNCH_BLOCKING", "1"));
  EXPECT_FALSE(ends_in_the_call_of_nvidia("CUDA_LAUNCH_BLOCKING", "0"));
  for (const char *variable : {"HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY"}) {
    EXPECT_TRUE(ends_in_the_call_of_amd(variable, "3")) << variable;
    EXPECT_FALSE(ends_in_the_call_of_amd(variable, "0")) << variable;
  }
  EXPECT_TRUE(ends_in_the_call_of_huawei("ASCEND_LAUNCH_BLOCKING", "1"));
  EXPECT_FALSE(ends_in_the_call_of_huawei("ASCEND_LAUNCH_BLOCKING", "0"));
}

// A wait for a word is no work: the thread that makes it may be the one that writes the word. What comes behind it is.
TEST(RehearsedBlocking, WhatStandsBehindAGateReturnsWhenSomebodyHasOpenedIt) {
  expect_clean({{"CUDA_LAUNCH_BLOCKING", "1"}}, [] {
    cuda_context();
    Handle stream = nullptr, event = nullptr;
    Address memory = 0, there = 0;
    void *const host = page();
    IS(cu("StreamCreate", &stream, 1u), 0);
    IS(cu("EventCreate", &event, 2u), 0);
    IS(cu("MemAlloc_v2", &memory, size_t{4096}), 0);
    IS(cu("MemHostRegister_v2", host, size_t{4096}, 3u), 0);
    IS(cu("MemHostGetDevicePointer_v2", &there, host, 0u), 0);
    IS(cu("StreamWaitValue64_v2", stream, there, uint64_t{1}, 0u), 0);
    IS(cu("EventRecord", event, stream), 0);
    IS(cu("StreamWaitEvent", stream, event, 0u), 0);
    std::atomic<bool> opened{false};
    std::thread opens([&] {
      sleep_ms(100);
      opened.store(true);
      std::atomic_ref(*static_cast<uint64_t *>(host)).store(1);
    });
    IS(cu("MemsetD8Async", memory, static_cast<unsigned char>(1), size_t{4}, stream), 0);
    CHECK(opened.load());
    opens.join();
  });
}

}  // namespace
