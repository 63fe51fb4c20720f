// The simulated runtime of Ascend devices: misuse, and faults on demand.
#include "rehearsal_acl_support.hpp"

namespace {

using namespace rehearsed;
using namespace rehearsed::ascend;

Pages plain;

TEST(RehearsalAcl, TheHostCannotTouchDeviceMemory) {
  const End end = run({}, [] {
    use(0);
    *static_cast<volatile char *>(allocate(100)) = 1;
  });
  EXPECT_TRUE((WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGSEGV) || end.has("SEGV")) << end.said;
}

Hold *held(Handle s) { return new Hold(s); }

TEST(RehearsalAcl, MisuseIsLoud) {
  struct Case {
    const char *says;
    int code;
    std::function<int()> does;
  };
  static int ints[4];
  const auto record_held = [](Handle e) {
    const Handle s = new_stream();
    held(s);
    IS(acl("rtRecordEvent", e, s), 0);
    return s;
  };
  const std::vector<Case> cases = {
      {"neither memory of a device nor registered", 107000, [] { return copy_on({}, allocate(16), ints, 16, kToDevice); }},
      {"room for 8", 107000,
       [] { return acl("rtMemcpy", allocate(16), size_t{8}, static_cast<const void *>(ints), size_t{16}, kToDevice); }},
      {"a copy of kind 5", 107000, [] { return acl("rtMemcpy", allocate(16), size_t{16}, ints, size_t{16}, 5); }},
      {"does not begin at a page", 107000,
       [] { return acl("rtHostRegisterV2", static_cast<void *>(plain.bytes + 8), uint64_t{64}, kMapped); }},
      {"of another context", 107003,
       [] {
         const Handle s = new_stream();
         use(1);
         return copy_on(s, allocate(16), allocate(16), 16, kWithin);
       }},
      {"device 1 may not touch it", 107000,
       [] {
         char *a = allocate(16);
         use(1);
         return copy_on({}, allocate(16), a, 16, kWithin);
       }},
      {"is memory of device 0, and device 1 is current", 107000,
       [] {
         char *a = allocate(16);
         use(1);
         return acl("rtFree", static_cast<void *>(a));
       }},
      {"the context's own stream", 107017, [] { return acl("rtDestroyStream", Handle{}); }},
      {"without the flag for streams to wait", 107017,
       [] { return acl("rtStreamWaitEvent", Handle{}, new_event(kTimeline)); }},
      {"has not come to its record", 107017,
       [&] {
         const Handle e = new_event();
         record_held(e);
         return acl("rtDestroyEvent", e);
       }},
      {"do not have this", 107017, [] { return acl("rtResetEvent", new_event(), Handle{}); }},
      {"nobody has set device 1", 107001, [] { return acl("rtResetDevice", 1); }},
      {"was destroyed", 107017,
       [] {
         const Handle s = new_stream();
         end_stream(s);
         return wait_for(s);
       }},
      {"called by a host function", 0,
       [] {
         const auto f = +[](void *) { acl("rtSynchronizeDevice"); };
         return acl("rtLaunchHostFunc", Handle{}, f, Handle{}) + acl("rtSynchronizeDevice");
       }},
  };
  for (const Case &c : cases) {
    const auto body = [&](bool lenient) {
      use(0);
      const int code = c.does();
      if (lenient) IS(code, c.code);
      ::_exit(0);
    };
    const End end = run({{"REHEARSAL_DEVICES", "2"}}, [&] { body(false); });
    EXPECT_TRUE(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT) << c.says << ": " << end.status << end.said;
    EXPECT_TRUE(end.has("rehearsal: misuse: acl") && end.has(c.says)) << c.says << ": " << end.said;
    const End lenient = run({{"REHEARSAL_DEVICES", "2"}, {"REHEARSAL_ABORT_ON_MISUSE", "0"}}, [&] { body(true); });
    EXPECT_TRUE(lenient.clean() && lenient.has(c.says)) << lenient.status << lenient.said;
  }
}

TEST(RehearsalAcl, FaultsOnDemand) {
  expect_clean({{"REHEARSAL_FAIL", "aclrtMalloc:2:207001"}, {"REHEARSAL_FAIL_LATE", "aclrtMemsetAsync:2:507015"}}, [] {
    use(0);
    char *a = allocate(16);
    void *p = nullptr;
    IS(acl("rtMalloc", &p, size_t{4}, 0), 207001);
    const Handle s = new_stream();
    for (const int code : {0, 507015}) {
      IS(acl("rtMemsetAsync", a, size_t{4}, 1, size_t{4}, s), 0);
      IS(wait_for(s), code);
    }
    int status = 9;
    IS(acl("rtStreamQuery", s, &status), 507015);
  });
  expect_clean({{"REHEARSAL_DEVICES", "0"}}, [] {
    uint32_t count = 9;
    IS(acl("rtGetDeviceCount", &count), 207004);
    IS(count, 0u);
    IS(acl("Init", static_cast<const char *>(nullptr)), 207004);
  });
}

}  // namespace
