// The simulated collective library of NVIDIA's: its results are those of plain arithmetic, and misuse is loud.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "rehearsal_cuda_support.hpp"

namespace {

using namespace rehearsed;

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

TEST(Rehearsal, CollectivesTakePinnedMemoryWhereTheDeviceFindsIt) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    ranks(2, [](int me, Handle comm, Handle s) {
      Pinned mine(4096), sum(4096);
      const size_t count = 1000;
      const auto given = packed(kF32, count, [&](size_t i) { return contribution(me, i); });
      std::memcpy(mine.host, given.data(), given.size());
      IS(nc("AllReduce", mine.device, sum.device, count, kF32, 0, comm, s), 0);
      IS(cu("StreamSynchronize", s), 0);
      const auto expected = packed(kF32, count, [](size_t i) { return reduced(2, i, 0); });
      IS(std::memcmp(sum.host, expected.data(), expected.size()), 0);
      mine.free();
      sum.free();
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
                   CHECK(comes([&] {
                     int error = -1;
                     IS(nc("CommGetAsyncError", comm, &error), 0);
                     return error == state;
                   }));
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
                 CHECK(comes([&] { return nc("CommGetAsyncError", comm, &error) == 0 && error == 1; }));
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

TEST(Rehearsal, CommunicatorsShrink) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    std::atomic<int> gone{0};
    ranks(3, [&](int rank, Handle comm, Handle) {
      if (rank == 1) {  // has no call to make
        CHECK(comes([&] { return gone.load() == 2; }));
        return;
      }
      int excluded[] = {1, 3};
      Handle left = nullptr;
      const auto shrink = [&](Handle of, int count, int flags) {
        return nc("CommShrink", of, excluded, count, &left, nullptr, flags);
      };
      IS(shrink(comm, 0, 0), 4);
      IS(shrink(comm, 2, 0), 4);  // there is no rank 3
      IS(shrink(comm, 1, 4), 4);
      excluded[0] = rank;
      IS(shrink(comm, 1, 0), 4);
      excluded[0] = 1;
      for (const int flags : {0, 0, 1}) {  // the same again is another one
        IS(shrink(comm, 1, flags), 0);
        int size = 0, place = -1;
        IS(nc("CommCount", left, &size), 0);
        IS(nc("CommUserRank", left, &place), 0);
        IS(size, 2);
        IS(place, rank / 2);
        IS(nc("CommDestroy", left), 0);
      }
      ++gone;
    });
  });
}

// AMD's library has NVIDIA's interface, and each refuses the other's ids; the ranks that wait for such a rank end, too.
TEST(Rehearsal, NoLibraryMeetsTheRanksOfAnother) {
  const End end = run({{"REHEARSAL_DEVICES", "2"}}, [] {
    const auto rc = [](const char *name, auto... a) {
      return call("amd/librccl.so.1", (std::string("nccl") + name).c_str(), a...);
    };
    const auto meets = [](auto &own, auto &other) {
      use(0);
      UniqueId id;
      IS(own("GetUniqueId", &id), 0);
      int waiting = 0;
      std::thread rank([&] {
        use(0);
        Handle comm = nullptr;
        waiting = own("CommInitRank", &comm, 2, id, 0);
      });
      Handle comm = nullptr;
      IS(other("CommInitRank", &comm, 2, id, 1), 4);
      rank.join();
      CHECK(waiting == 5 || waiting == 2);  // it came before the other, or after
      // Nor by an id that says that it is the other's.
      UniqueId forged;
      IS(other("GetUniqueId", &forged), 0);
      IS(own("GetUniqueId", &id), 0);
      std::memcpy(forged.bytes + 8, id.bytes + 8, 40);
      IS(other("CommInitRank", &comm, 1, forged, 0), 5);
      CHECK(!comm);
    };
    const auto nccl = [](const char *name, auto... a) { return nc(name, a...); };
    meets(nccl, rc);
    meets(rc, nccl);
  });
  EXPECT_TRUE(end.clean()) << end.status << end.said;
  for (const char *pair : {"NCCL, and no rank of RCCL", "RCCL, and no rank of NCCL"})
    EXPECT_TRUE(end.has((std::string("rehearsal: ncclCommInitRank: the id was made by ") + pair).c_str())) << end.said;
  for (const char *name : {"NCCL", "RCCL"})
    EXPECT_TRUE(end.has((std::string("a rank of another library came, and no rank of ") + name).c_str())) << end.said;
}

TEST(Rehearsal, RanksMeetByTheFirstOfSeveralIds) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    use(0);
    UniqueId ids[3];
    for (UniqueId &id : ids) IS(nc("GetUniqueId", &id), 0);
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r)
      threads.emplace_back([&, r] {
        use(r);
        Handle comm = nullptr;
        IS(nc("CommInitRankScalable", &comm, 3, r, 0, ids, nullptr), 4);
        IS(nc("CommInitRankScalable", &comm, 3, r, 4, ids, nullptr), 4);
        UniqueId wrong[2] = {ids[0], {}};
        IS(nc("CommInitRankScalable", &comm, 3, r, 2, wrong, nullptr), 4);
        IS(nc("CommInitRankScalable", &comm, 3, r, 3, ids, nullptr), 0);
        int size = 0;
        IS(nc("CommCount", comm, &size), 0);
        IS(size, 3);
        IS(nc("CommDestroy", comm), 0);
      });
    for (std::thread &t : threads) t.join();
    Handle again = nullptr;
    IS(nc("CommInitRank", &again, 1, ids[1], 0), 2);  // its maker has been told
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
      ::alarm(static_cast<unsigned>(5 * isthmus_test::soon()));
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
