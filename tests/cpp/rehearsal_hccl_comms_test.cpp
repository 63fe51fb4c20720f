// The simulated HCCL: communicators, and what is refused.
#include "rehearsal_hccl_support.hpp"

namespace {

using namespace rehearsed;
using namespace rehearsed::ascend;

struct Config {
  size_t size = 2232;
  uint32_t magic = 0xf0f0f0f0, version = 10;
  uint64_t reserved = 0;
  uint32_t buffer = 200, deterministic = 0xffffffff;
  char name[128] = {};
  unsigned char rest[2088] = {};
};

TEST(RehearsalHccl, WhatItDoesNotHaveIsRefused) {
  expect_clean({}, [] {
    ranks(1, [](int, Handle comm, Handle s) {
      char *a = allocate(64);
      const uint64_t one = 1, none = 0;
      const Handle nothing = nullptr;
      for (const int type : kOnlyMoved) {
        IS(hc("AllReduce", a, a, one, type, 0, comm, s), 5);
        IS(hc("Broadcast", a, one, type, 0u, comm, s), 0);
      }
      for (const int type : {+kI128, 13, 18, 255, -1}) IS(hc("Broadcast", a, one, type, 0u, comm, s), 5);
      for (const int op : {4, 255, -1}) IS(hc("AllReduce", a, a, one, kF32, op, comm, s), 1);  // no average
      IS(hc("AllReduce", a, a, one, kF32, 0, nothing, s), 2);
      IS(hc("AllReduce", a, a, one, kF32, 0, comm, nothing), 2);
      IS(hc("AllReduce", nothing, a, one, kF32, 0, comm, s), 2);
      IS(hc("AllReduce", nothing, a, none, kF32, 0, comm, s), 0);
      IS(hc("Broadcast", a, one, kF32, 1u, comm, s), 1);
      IS(hc("CommSuspend", comm), 0);
      IS(hc("AllReduce", a, a, one, kF32, 0, comm, s), 22);
      IS(hc("CommResume", comm), 0);
      IS(hc("AllReduce", a, a, one, kF32, 0, comm, s), 0);
      Handle other = nullptr;
      IS(hc("CommInitClusterInfo", "ranks.json", 0u, &other), 5);
      IS(wait_for(s), 0);
      release(a);
    });
  });
}

// Neither way, whoever's struct it lies in.
TEST(RehearsalHccl, NoLibraryMeetsTheRanksOfAnother) {
  const End end = run({{"REHEARSAL_DEVICES", "2"}}, [] {
    for (const char *other : {"nvidia/libnccl.so.2", "amd/librccl.so.1"}) {
      use(0);
      RootInfo root{};
      IS(call(other, "ncclGetUniqueId", static_cast<void *>(&root)), 0);
      join(2, root, 0, 1);
      root = new_root();
      int waiting = 0;
      std::thread rank([&] {
        use(0);
        Handle comm = nullptr;
        waiting = hc("CommInitRootInfo", 2u, static_cast<const void *>(&root), 0u, &comm);
      });
      Handle comm = nullptr;
      UniqueId id;
      std::memcpy(id.bytes, root.bytes, sizeof id);
      IS(call(other, "ncclCommInitRank", &comm, 2, id, 1), 4);
      rank.join();
      CHECK(waiting == 1 || waiting == 11);  // it came before the other, or after
    }
  });
  EXPECT_TRUE(end.clean()) << end.status << end.said;
  for (const char *line :
       {"HcclCommInitRootInfo: the id was made by NCCL, ", "HcclCommInitRootInfo: the id was made by RCCL, ",
        "ncclCommInitRank: the id was made by HCCL, and no rank of NCCL ",
        "ncclCommInitRank: the id was made by HCCL, and no rank of RCCL "})
    EXPECT_TRUE(end.has(line)) << end.said;
}

TEST(RehearsalHccl, CommunicatorsThatCannotBe) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}, {"HCCL_CONNECT_TIMEOUT", "1"}}, [] {
    RootInfo root{};
    IS(hc("GetRootInfo", static_cast<void *>(&root)), 15);  // no device yet
    use(0);
    join(1, root, 0, 1);
    root = new_root();
    join(2, root, 2, 1);
    join(2, root, 0, 9);  // the other never came
    ::setenv("HCCL_CONNECT_TIMEOUT", "60", 1);
    root = new_root();
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        use(0);  // the same device
        join(2, root, r, 1);
      });
    for (std::thread &t : threads) t.join();
    join(2, root, 0, 11);  // nobody listens there any more
    Config config;
    Handle comm = nullptr;
    const auto with_config = [&] {
      root = new_root();
      return hc("CommInitRootInfoConfig", 1u, static_cast<const void *>(&root), 0u, static_cast<const void *>(&config),
                &comm);
    };
    config.magic = 1;
    IS(with_config(), 1);
    config = {};
    std::strcpy(config.name, "mine");
    IS(with_config(), 0);
    char name[128];
    uint32_t size = 0, rank = 9;
    IS(hc("GetCommName", comm, static_cast<char *>(name)), 0);
    CHECK(std::strcmp(name, "mine") == 0);
    IS(hc("GetRankSize", comm, &size), 0);
    IS(hc("GetRankId", comm, &rank), 0);
    CHECK(size == 1 && rank == 0 && hc("GetCommConfigCapability") == 12);
    IS(hc("CommDestroy", comm), 0);
    for (const char *what : {"communicator", "allocation"}) IS(live(what), 0u);
  });
}

TEST(RehearsalHccl, WorkEndsWithItsStream) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}, {"HCCL_CONNECT_TIMEOUT", "5"}}, [] {
    ranks(2, [](int me, Handle comm, Handle s) {
      char *a = allocate(64);
      IS(hc("AllReduce", a, a, uint64_t{1}, kF32, 0, comm, s), 0);
      IS(wait_for(s), 0);
      if (me == 0) {  // the other will not come
        for (int i = 0; i < 3; ++i) IS(hc("AllReduce", a, a, uint64_t{1}, kF32, 0, comm, s), 0);
        IS(acl("rtSynchronizeStreamWithTimeout", s, 50), 507046);
        IS(acl("rtStreamAbort", s), 0);
        IS(wait_for(s), 0);
        IS(hc("AllReduce", a, a, uint64_t{1}, kF32, 0, comm, s), 4);  // nobody knows where the other is
        int error = 0;
        IS(hc("GetCommAsyncError", comm, &error), 0);
        IS(error, 4);
        IS(acl("rtMemsetAsync", a, size_t{4}, 1, size_t{4}, s), 0);  // the stream works again
        IS(wait_for(s), 0);
        uint32_t got = 0;
        copy(&got, a, 4, kFromDevice);
        IS(got, 0x01010101u);
      }
      release(a);
    });
  });
}

TEST(RehearsalHccl, PartsOfACommunicator) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    ranks(3, [](int me, Handle comm, Handle s) {
      Config config;
      uint32_t members[] = {2, 0};
      for (uint64_t number = 0; number < 3; ++number) {
        Handle part = nullptr;
        if (me == 1) {
          IS(hc("CreateSubCommConfig", &comm, 0u, Handle{}, uint64_t{0xffffffff}, 0u, static_cast<void *>(&config), &part),
             0);
          CHECK(!part);
          continue;
        }
        const auto create = [&] {
          return hc("CreateSubCommConfig", &comm, 2u, static_cast<void *>(members), number, me == 2 ? 0u : 1u,
                    static_cast<void *>(&config), &part);
        };
        IS(create(), 0);
        uint32_t rank = 9;
        IS(hc("GetRankId", part, &rank), 0);
        IS(rank, me == 2 ? 0u : 1u);
        char *a = filled(packed(kI32, 1, [&](size_t) { return static_cast<double>(me + 5); }));
        IS(hc("AllReduce", a, a, uint64_t{1}, kI32, 0, part, s), 0);
        check(s, a, packed(kI32, 1, [](size_t) { return 12.0; }), "all_reduce of a part", kI32);
        release(a);
        IS(hc("CommDestroy", part), 0);
        IS(create(), 1);  // a number is used once
      }
    });
  });
}

TEST(RehearsalHccl, OneThreadMakesAll) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    use(1);
    use(0);
    int32_t devices[] = {1, 0};
    Handle comms[2], s[2];
    char *a[2];
    IS(hc("CommInitAll", 2u, static_cast<int32_t *>(devices), static_cast<Handle *>(comms)), 0);
    for (int r = 0; r < 2; ++r) {
      use(devices[r]);
      s[r] = new_stream();
      a[r] = filled(packed(kI32, 1, [&](size_t) { return 20.0 + r; }));
      IS(hc("AllReduce", a[r], a[r], uint64_t{1}, kI32, 0, comms[r], s[r]), 0);
    }
    for (int r = 0; r < 2; ++r) {
      use(devices[r]);
      check(s[r], a[r], packed(kI32, 1, [](size_t) { return 41.0; }), "all_reduce", kI32);
      IS(hc("CommDestroy", comms[r]), 0);
    }
  });
}

TEST(RehearsalHccl, MisuseAndFailuresAreLoud) {
  const auto one = [](const std::function<void(Handle, Handle, char *)> &body) {
    use(0);
    const Handle comm = join(1, new_root(), 0), s = new_stream();
    body(comm, s, allocate(64));
    ::_exit(0);
  };
  const uint64_t count = 1;
  const std::vector<std::pair<const char *, std::function<void(Handle, Handle, char *)>>> cases = {
      {"memory of device 1, the communicator's is 0",
       [&](Handle comm, Handle s, char *) {
         use(1);
         char *a = allocate(4);
         use(0);
         hc("AllReduce", a, a, count, kF32, 0, comm, s);
       }},
      {"device 1 is current in this thread, the communicator's is 0",
       [&](Handle comm, Handle s, char *a) {
         use(1);
         hc("AllReduce", a, a, count, kF32, 0, comm, s);
       }},
      {"bytes, but 64 are left",
       [&](Handle comm, Handle s, char *a) { hc("AllReduce", a, a, uint64_t{17}, kF32, 0, comm, s); }},
      {"work of the communicator is not done",
       [&](Handle comm, Handle s, char *a) {
         IS(hc("AllReduce", a, a, count, kF32, 0, comm, s), 0);  // the first one waits for the device
         IS(wait_for(s), 0);
         new Hold(s);
         IS(hc("AllReduce", a, a, count, kF32, 0, comm, s), 0);
         hc("CommDestroy", comm);
       }},
      {"was destroyed",
       [](Handle comm, Handle, char *) {
         IS(hc("CommDestroy", comm), 0);
         hc("CommDestroy", comm);
       }},
  };
  for (const auto &[says, does] : cases) {
    const End end = run({{"REHEARSAL_DEVICES", "2"}}, [&, does = does] { one(does); });
    EXPECT_TRUE(end.has("rehearsal: misuse: Hccl") && end.has(says)) << says << ": " << end.said;
  }
  const Environment faults = {{"REHEARSAL_FAIL", "HcclAllReduce:1:4"},
                              {"REHEARSAL_FAIL_LATE", "HcclBroadcast:1:21,HcclAllReduce:2:15"}};
  expect_clean(faults, [&] {
    one([&](Handle comm, Handle s, char *a) {
      IS(hc("AllReduce", a, a, count, kF32, 0, comm, s), 4);
      const Handle second = join(1, new_root(), 0);
      IS(hc("AllReduce", a, a, count, kF32, 0, second, s), 0);
      IS(wait_for(s), 507053);  // the device has failed
      int error = 0;
      CHECK(comes([&] { return hc("GetCommAsyncError", second, &error) == 0 && error == 15; }));
    });
  });
  expect_clean(faults, [&] {
    one([&](Handle comm, Handle s, char *a) {
      IS(hc("Broadcast", a, count, kF32, 0u, comm, s), 0);
      int error = 0;
      CHECK(comes([&] {
        IS(hc("GetCommAsyncError", comm, &error), 0);
        return error != 0;
      }));
      IS(error, 21);
      CHECK(!idle(s));  // the network: it stands
      IS(hc("Broadcast", a, count, kF32, 0u, comm, s), 21);
    });
  });
}

}  // namespace
