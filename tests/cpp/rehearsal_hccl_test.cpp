// The simulated collective library of Ascend devices computes what Huawei's is defined to.
#include "rehearsal_hccl_support.hpp"

namespace {

using namespace rehearsed;
using namespace rehearsed::ascend;

struct Item {
  int what;
  void *buffer;
  uint64_t count;
  int type;
  uint32_t peer;
};

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
      IS(hc("BatchSendRecv", static_cast<void *>(items), 0u, comm, s), 0);
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

}  // namespace
