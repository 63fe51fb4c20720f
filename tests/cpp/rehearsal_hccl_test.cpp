// The simulated collective library of Ascend devices computes what Huawei's is defined to, and refuses what that one does not have.
#include <algorithm>
#include <cmath>

#include "rehearsal_acl_support.hpp"

namespace {

using namespace rehearsed;
using namespace rehearsed::ascend;

struct RootInfo {
  unsigned char bytes[4108];
};
struct Config {
  size_t size = 2232;
  uint32_t magic = 0xf0f0f0f0, version = 10;
  uint64_t reserved = 0;
  uint32_t buffer = 200, deterministic = 0xffffffff;
  char name[128] = {};
  unsigned char rest[2088] = {};
};
struct Item {
  int what;
  void *buffer;
  uint64_t count;
  int type;
  uint32_t peer;
};

Handle join(int n, const RootInfo &root, int me, int expected = 0) {
  Handle comm = nullptr;
  IS(hc("CommInitRootInfo", static_cast<uint32_t>(n), static_cast<const void *>(&root), static_cast<uint32_t>(me), &comm),
     expected);
  return comm;
}
RootInfo new_root() {
  RootInfo root;
  IS(hc("GetRootInfo", static_cast<void *>(&root)), 0);
  return root;
}

// One thread a rank, each with a device of its own.
void ranks(int n, const std::function<void(int rank, Handle comm, Handle stream)> &body) {
  use(0);
  const RootInfo root = new_root();
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      use(r);
      const Handle comm = join(n, root, r), s = new_stream();
      body(r, comm, s);
      IS(wait_for(s), 0);
      IS(hc("CommDestroy", comm), 0);
      end_stream(s);
    });
  for (std::thread &t : threads) t.join();
  for (const char *what : {"allocation", "registration", "stream", "event", "communicator"}) IS(live(what), 0u);
}

enum : int { kI8, kI16, kI32, kF16, kF32, kI64, kU64, kU8, kU16, kU32, kF64, kBF16, kI128, kHif8 = 14, kE4M3, kE5M2, kE8M0 };
constexpr size_t kWidth[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2, 16, 0, 1, 1, 1, 1};
constexpr int kReduced[] = {kI8, kI16, kI32, kI64, kU64, kF16, kF32, kF64, kBF16};
constexpr int kOnlyMoved[] = {kU8, kU16, kU32, kHif8, kE4M3, kE5M2, kE8M0};

// Bits of a small whole number.
uint64_t bits_of(int type, double v) {
  const auto small = [&](int exponent, int mantissa) -> uint64_t {
    int e = 0;
    const double m = std::frexp(v, &e);
    return (static_cast<uint64_t>(e - 2 + (1 << (exponent - 1))) << mantissa) +
           static_cast<uint64_t>(std::ldexp(2 * m - 1, mantissa));
  };
  uint64_t bits = 0;
  const auto single = static_cast<float>(v);
  switch (type) {
    case kF16: return small(5, 10);
    case kBF16: return small(8, 7);
    case kF32: std::memcpy(&bits, &single, 4); return bits;
    case kF64: std::memcpy(&bits, &v, 8); return bits;
    default: return static_cast<uint64_t>(v);
  }
}
using Bytes = std::vector<unsigned char>;
Bytes packed(int type, size_t n, const std::function<double(size_t)> &value) {
  Bytes out(n * kWidth[type]);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t b = bits_of(type, value(i));
    std::memcpy(out.data() + i * kWidth[type], &b, kWidth[type]);
  }
  return out;
}
double contribution(int rank, size_t i) { return (i * 5 + static_cast<size_t>(rank) * 3 + i / 7) % 2 ? 2 : 1; }
double reduced(int n, size_t i, int op) {
  double v = contribution(0, i);
  for (int r = 1; r < n; ++r) {
    const double w = contribution(r, i);
    v = op == 1 ? v * w : op == 2 ? std::max(v, w) : op == 3 ? std::min(v, w) : v + w;
  }
  return v;
}

// A buffer on the device, and what it must hold when the stream has come so far.
void check(Handle s, const char *a, const Bytes &expected, const char *what, int type) {
  Bytes got(expected.size());
  IS(wait_for(s), 0);
  copy(got.data(), a, got.size(), kFromDevice);
  const auto differ = std::mismatch(got.begin(), got.end(), expected.begin());
  if (differ.first == got.end()) return;
  std::fprintf(stderr, "%s: type %d: byte %td is %d, not %d\n", what, type, differ.first - got.begin(), *differ.first,
               *differ.second);
  ::_exit(3);
}
char *filled(const Bytes &with) {
  char *a = allocate(with.size());
  copy(a, with.data(), with.size(), kToDevice);
  return a;
}

TEST(RehearsalHccl, ReductionsComputeWhatTheyAreDefinedTo) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    ranks(3, [](int me, Handle comm, Handle s) {
      const int n = 3;
      const size_t un = n, ume = static_cast<size_t>(me);
      for (const int type : kReduced)
        for (int op = 0; op < 4; ++op) {
          const uint64_t count = type == kF32 && op == 0 ? 300'001 : 1000;
          char *from = filled(packed(type, count * un, [&](size_t i) { return contribution(me, i); }));
          char *to = allocate(count * kWidth[type]);
          IS(hc("AllReduce", from, to, count, type, op, comm, s), 0);
          check(s, to, packed(type, count, [&](size_t i) { return reduced(n, i, op); }), "all_reduce", type);
          IS(hc("ReduceScatter", from, to, count, type, op, comm, s), 0);
          check(s, to, packed(type, count, [&](size_t i) { return reduced(n, i + ume * count, op); }), "reduce_scatter",
                type);
          const uint64_t counts[] = {count / 2, 0, 3}, offsets[] = {5, 0, count};
          IS(hc("ReduceScatterV", from, static_cast<const void *>(counts), static_cast<const void *>(offsets), to,
                counts[me], type, op, comm, s),
             0);
          check(s, to, packed(type, counts[me], [&](size_t i) { return reduced(n, i + offsets[me], op); }),
                "reduce_scatter_v", type);
          IS(hc("Reduce", from, from, count, type, op, 2u, comm, s), 0);  // in place
          check(s, from, packed(type, count, [&](size_t i) { return me == 2 ? reduced(n, i, op) : contribution(me, i); }),
                "reduce", type);
          release(from);
          release(to);
        }
    });
  });
}

TEST(RehearsalHccl, WhatMovesArrives) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    ranks(3, [](int me, Handle comm, Handle s) {
      const size_t n = 3, ume = static_cast<size_t>(me);
      const auto of = [](size_t rank, size_t i) { return static_cast<double>((i * 7 + rank * 5) % 100 + 1); };
      for (const int type : {+kI8, +kF16, +kF64, +kU32, +kBF16, +kHif8, +kE8M0}) {
        const uint64_t count = type == kI8 ? 200'003 : 700;
        const size_t bytes = count * kWidth[type];
        const Bytes mine = packed(type, count * n, [&](size_t i) { return of(ume, i); });
        char *from = filled(mine), *to = allocate(bytes * n);
        IS(hc("AllGather", from, to, count, type, comm, s), 0);
        check(s, to, packed(type, count * n, [&](size_t i) { return of(i / count, i % count); }), "all_gather", type);
        IS(hc("AlltoAll", from, count, type, to, count, type, comm, s), 0);
        check(s, to, packed(type, count * n, [&](size_t i) { return of(i / count, i % count + ume * count); }), "all_to_all",
              type);
        IS(hc("Scatter", from, to, count, type, 1u, comm, s), 0);
        check(s, to, packed(type, count, [&](size_t i) { return of(1, i + ume * count); }), "scatter", type);
        IS(hc("Broadcast", from, count, type, 1u, comm, s), 0);
        check(s, from, packed(type, count, [&](size_t i) { return of(1, i); }), "broadcast", type);
        release(from);
        release(to);
      }
      IS(hc("Barrier", comm, s), 0);
    });
  });
}

TEST(RehearsalHccl, PartsMayBeUnequal) {
  expect_clean({{"REHEARSAL_DEVICES", "3"}}, [] {
    ranks(3, [](int me, Handle comm, Handle s) {
      const size_t ume = static_cast<size_t>(me);
      // What rank i sends to each.
      const uint64_t all[3][3] = {{1, 0, 4}, {2, 3, 0}, {5, 1, 2}}, out_at[] = {0, 10, 20};
      uint64_t in[3], in_at[3] = {4, 12, 30};
      Bytes mine(32), expected(40, 0);
      for (size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<unsigned char>(40 * me + static_cast<int>(i));
      for (size_t r = 0; r < 3; ++r) {
        in[r] = all[r][ume];
        for (size_t i = 0; i < in[r]; ++i) expected[in_at[r] + i] = static_cast<unsigned char>(40 * r + out_at[ume] + i);
      }
      const auto array = [](const uint64_t *p) { return static_cast<const void *>(p); };
      char *from = filled(mine), *to = filled(Bytes(40, 0));
      IS(hc("AlltoAllV", from, array(all[me]), array(out_at), kU8, to, array(in), array(in_at), kU8, comm, s), 0);
      check(s, to, expected, "all_to_all_v", kU8);
      IS(hc("AlltoAllVC", from, array(all[0]), kU8, to, kU8, comm, s), 0);
      Bytes packed_in;
      for (size_t r = 0; r < 3; ++r) {
        size_t at = 0;
        for (size_t to_rank = 0; to_rank < ume; ++to_rank) at += all[r][to_rank];
        for (size_t i = 0; i < in[r]; ++i) packed_in.push_back(static_cast<unsigned char>(40 * r + at + i));
      }
      check(s, to, packed_in, "all_to_all_vc", kU8);
      const uint64_t counts[] = {3, 0, 7}, offsets[] = {20, 0, 1};
      copy(to, Bytes(40, 0).data(), 40, kToDevice);
      IS(hc("AllGatherV", from, counts[me], to, array(counts), array(offsets), kU8, comm, s), 0);
      expected.assign(40, 0);
      for (size_t r = 0; r < 3; ++r)
        for (size_t i = 0; i < counts[r]; ++i) expected[offsets[r] + i] = static_cast<unsigned char>(40 * r + i);
      check(s, to, expected, "all_gather_v", kU8);
      IS(hc("AllGatherV", from, counts[me] + 1, to, array(counts), array(offsets), kU8, comm, s), 1);
      IS(hc("AlltoAll", from, uint64_t{1}, kU8, from, uint64_t{1}, kU8, comm, s), 1);  // not in place
      IS(hc("AlltoAll", from, uint64_t{1}, kU8, to, uint64_t{1}, kI8, comm, s), 1);
      release(from);
      release(to);
    });
  });
}

TEST(RehearsalHccl, MessagesGoInPairsOrInBatches) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}}, [] {
    ranks(2, [](int me, Handle comm, Handle s) {
      const uint64_t count = 100'000;
      const auto other = static_cast<uint32_t>(1 - me);
      char *from = filled(packed(kI32, count, [&](size_t i) { return static_cast<double>(i + static_cast<size_t>(me)); }));
      char *to = allocate(count * 4);
      const Bytes expected = packed(kI32, count, [&](size_t i) { return static_cast<double>(i + other); });
      for (int turn = 0; turn < 2; ++turn)
        IS(hc((turn == 0) == (me == 0) ? "Send" : "Recv", (turn == 0) == (me == 0) ? from : to, count, kI32, other, comm, s),
           0);
      check(s, to, expected, "send and recv", kI32);
      copy(to, Bytes(count * 4, 0).data(), count * 4, kToDevice);
      Item items[] = {{0, from, count, kI32, other}, {1, to, count, kI32, other}, {0, from, 1, kI32, other}};
      IS(hc("BatchSendRecv", static_cast<void *>(items), 2u, comm, s), 0);
      check(s, to, expected, "batch", kI32);
      IS(hc("BatchSendRecv", static_cast<void *>(items), 3u, comm, s), 1);  // two to one rank
      IS(hc("GroupStart"), 0);
      IS(hc("Send", from, count, kI32, other, comm, s), 0);
      IS(hc("Recv", to, count, kI32, other, comm, s), 0);
      CHECK(idle(s));  // nothing was submitted so far
      IS(hc("GroupEnd"), 0);
      check(s, to, expected, "group", kI32);
      IS(hc("GroupStart"), 0);
      IS(hc("Send", from, count, kI32, other, comm, s), 0);
      IS(hc("AllReduce", from, to, count, kI32, 0, comm, s), 5);  // not both in one group
      IS(hc("GroupEnd"), 5);
      IS(hc("Send", from, count, kI32, static_cast<uint32_t>(me), comm, s), 1);
      release(from);
      release(to);
    });
  });
}

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

TEST(RehearsalHccl, CommunicatorsThatCannotBe) {
  expect_clean({{"REHEARSAL_DEVICES", "2"}, {"HCCL_CONNECT_TIMEOUT", "1"}}, [] {
    RootInfo root{};
    IS(hc("GetRootInfo", static_cast<void *>(&root)), 15);  // no device yet
    use(0);
    join(1, root, 0, 1);
    root = new_root();
    join(2, root, 2, 1);
    join(2, root, 0, 9);  // the other never came
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
      IS(hc("GetCommAsyncError", second, &error), 0);
      IS(error, 15);
    });
  });
  expect_clean(faults, [&] {
    one([&](Handle comm, Handle s, char *a) {
      IS(hc("Broadcast", a, count, kF32, 0u, comm, s), 0);
      int error = 0;
      for (int i = 0; i < 1000 && !error; ++i) {
        IS(hc("GetCommAsyncError", comm, &error), 0);
        sleep_ms(5);
      }
      IS(error, 21);
      CHECK(!idle(s));  // the network: it stands
      IS(hc("Broadcast", a, count, kF32, 0u, comm, s), 21);
    });
  });
}

}  // namespace
