// What island_ccl.hpp promises, of libraries with NCCL's interface: on simulated ones, whose ranks are threads here, each with a device of its
// own. TEST_CCL says which: NVIDIA's NCCL unless it is "rccl", AMD's. What is decided once a process (faults, which library is opened) is
// tested in processes of their own, which are this program again.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ccl/nccl.hpp"
#include "ccl/stream_word.hpp"
#include "ccl_support.hpp"
#include "device/abandoned.hpp"
#include "device/calling.hpp"
#include "device/cuda.hpp"
#include "device/hip.hpp"
#include "device/host.hpp"

namespace isthmus::ccl {

namespace {

struct Tested {
  const char *family, *version, *file, *install;
  const char *driver;  // no library of that kind
  device::Runtime &(*runtime)();
  const char *query, *host_function;  // the driver's calls that ask a stream, and that make a stream call the host
};
constexpr Tested kNccl{"nccl",
                       "2.29.3",
                       "nvidia/libnccl.so.2",
                       "install NVIDIA's NCCL",
                       "nvidia/libcuda.so.1",
                       device::cuda_runtime,
                       "cuStreamQuery",
                       "cuLaunchHostFunc"};
constexpr Tested kRccl{"rccl",
                       "2.22.3",
                       "amd/librccl.so.1",
                       "install AMD's RCCL",
                       "amd/libamdhip64.so.7",
                       device::hip_runtime,
                       "hipStreamQuery",
                       "hipLaunchHostFunc"};
const Tested &tested() {
  const char *const name = std::getenv("TEST_CCL");
  return name && std::string(name) == kRccl.family ? kRccl : kNccl;
}
// What it says begins with its name.
std::string its(const char *text) { return std::string(tested().family) + " " + text; }

}  // namespace

device::Runtime &runtime() { return tested().runtime(); }
std::shared_ptr<Library> library() { return open_nccl(tested().family, ""); }

namespace {

constexpr DType kNumbers[] = {DType::Int8,    DType::UInt8,   DType::Int32,        DType::UInt32,
                              DType::Int64,   DType::UInt64,  DType::Float16,      DType::BFloat16,
                              DType::Float32, DType::Float64, DType::Float8E4M3FN, DType::Float8E5M2};
constexpr RedOp kOps[] = {RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max, RedOp::Avg};

// ---- what it says ---------------------------------------------------------------------------------------------------------

TEST(Nccl, SaysWhatItIs) {
  const auto l = library();
  EXPECT_STREQ(l->family(), tested().family);
  EXPECT_EQ(l->version(), tested().version);
  EXPECT_EQ(l->path(), rehearsal_file(tested().file));
  const LibraryCapabilities can = l->capabilities();
  EXPECT_FALSE(can.blocking);
  EXPECT_FALSE(can.one_stream);
  EXPECT_TRUE(can.groups && can.abort && can.thread_ranks && can.host_memory);
  EXPECT_EQ(can.id_bytes, 128u);
  EXPECT_TRUE(l->usable().ok());
  EXPECT_TRUE(serves_threads("nccl"));
  EXPECT_TRUE(serves_threads("rccl"));
  EXPECT_FALSE(serves_threads("oneccl"));
}

TEST(Nccl, IsOpenedOnce) {
  EXPECT_EQ(library(), library());
  EXPECT_EQ(library(), open_nccl(tested().family, "/nowhere/library.so"));
  expect_refused(Code::Argument, "no library of the family xccl", [] { open_nccl("xccl", ""); });
}

TEST(Nccl, SaysWhatItCan) {
  const auto l = library();
  const std::set<DType> numbers(std::begin(kNumbers), std::end(kNumbers));
  const std::set<RedOp> ops(std::begin(kOps), std::end(kOps));
  for (int c = 0; c < kIslandCalls; ++c)
    for (int t = 0; t < kDTypeCount; ++t)
      for (int o = 0; o < kRedOpCount; ++o) {
        const auto call = static_cast<Call>(c);
        const auto dtype = static_cast<DType>(t);
        const auto op = static_cast<RedOp>(o);
        const bool expected = !reduces(call) || (numbers.count(dtype) && (ops.count(op) || op == RedOp::PremulSum));
        EXPECT_EQ(l->can(call, dtype, op), expected)
            << island_call_name(call) << " " << redop_name(op) << " of " << dtype_name(dtype);
      }
  EXPECT_EQ(calls("ncclRedOpCreatePreMulSum"), 0u);
}

TEST(Nccl, EveryIdIsAnother) {
  const auto first = library()->make_id(), second = library()->make_id();
  EXPECT_EQ(first.size(), 128u);
  EXPECT_NE(first, second);
}

// ---- collectives ----------------------------------------------------------------------------------------------------------

class Collectives : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 3),
                         [](const auto &p) { return "Of" + std::to_string(p.param); });

TEST_P(Collectives, Reduce) {
  ranks(GetParam(), [](Rank &r) {
    for (const DType t : kNumbers)
      for (const RedOp op : kOps) reductions(r, t, op, t == DType::Float32 && op == RedOp::Sum ? 60'001 : 333);
    reductions(r, DType::Int32, RedOp::Max, 1);
  });
}

// What does not depend on each other goes to the library as one group, and a call behind it is not part of it.
TEST_P(Collectives, ThatAreGivenTogetherAreOneGroup) {
  constexpr size_t kEach = 5000;
  const unsigned long begun = calls("ncclGroupStart"), ended = calls("ncclGroupEnd"), made = calls("ncclReduceScatter");
  ranks(GetParam(), [](Rank &r) {
    const auto n = static_cast<size_t>(r.size);
    const auto number = [](int rank, size_t block, size_t i) {
      return static_cast<double>((rank + 1) * (block + 1)) + static_cast<double>(i % 7);
    };
    std::vector<std::unique_ptr<Memory>> from, to;
    for (size_t block = 0; block < 3; ++block) {
      from.push_back(std::make_unique<Memory>(
          r, packed(DType::Float32, kEach * n, [&](size_t i) { return number(r.rank, block, i); })));
      to.push_back(std::make_unique<Memory>(r, packed(DType::Float32, kEach, [](size_t) { return 0.0; })));
    }
    struct Given {
      Rank &r;
      const decltype(from) &in, &out;
    } given{r, from, to};
    r.c->together(
        [](void *context) {
          auto &g = *static_cast<Given *>(context);
          for (size_t block = 0; block < 3; ++block)
            g.r.c->reduce_scatter(g.in[block]->at(), g.out[block]->at(), kEach, DType::Float32, RedOp::Sum);
        },
        &given);
    const Memory after(r, packed(DType::Float32, 10, [&](size_t) { return r.rank + 1.0; }));
    r.c->all_reduce(after.at(), after.at(), 10, DType::Float32, RedOp::Sum);
    EXPECT_TRUE(r.c->status().ok()) << r.c->status().text;
    const double all = static_cast<double>(n * (n + 1) / 2);
    EXPECT_EQ(after.content(), packed(DType::Float32, 10, [&](size_t) { return all; }));
    for (size_t block = 0; block < 3; ++block)
      EXPECT_EQ(to[block]->content(), packed(DType::Float32, kEach, [&](size_t i) {
                  double sum = 0;
                  for (int q = 0; q < r.size; ++q) sum += number(q, block, static_cast<size_t>(r.rank) * kEach + i);
                  return sum;
                }));
  });
  const auto world = static_cast<unsigned long>(GetParam());
  EXPECT_EQ(calls("ncclGroupStart") - begun, world);
  EXPECT_EQ(calls("ncclGroupEnd") - ended, world);
  EXPECT_EQ(calls("ncclReduceScatter") - made, 3 * world);
}

// Sums that are out of the type's range, but for the factor. An operation of the library is made once for a factor.
TEST_P(Collectives, SumNumbersMadeSmaller) {
  const int world = GetParam();
  const unsigned long made = calls("ncclRedOpCreatePreMulSum"), ended = calls("ncclRedOpDestroy");
  ranks(world, [](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const int halvings = size == 3 ? 2 : size - 1;
    for (const DType t : {DType::Float16, DType::Float8E4M3FN, DType::Float8E5M2}) {
      const double large = t == DType::Float8E4M3FN ? 256 : 32768;
      const auto all = [&](double x, size_t count) { return packed(t, count, [&](size_t) { return x; }); };
      const auto n = static_cast<size_t>(size);
      for (const int times : {halvings, halvings + 1}) {
        const double sum = large * size / (1 << times);
        const Memory from(r, all(large, 100 * n)), to(r, all(0, 100)), there(r, all(0, 100)), part(r, all(0, 100));
        c->all_reduce(from.at(), to.at(), 100, t, {RedOp::PremulSum, times});
        c->reduce(from.at(), there.at(), 100, t, {RedOp::PremulSum, times}, 0);
        c->reduce_scatter(from.at(), part.at(), 100, t, {RedOp::PremulSum, times});
        EXPECT_EQ(to.content(), all(sum, 100)) << dtype_name(t);
        EXPECT_EQ(part.content(), all(sum, 100)) << dtype_name(t);
        EXPECT_EQ(there.content(), all(rank == 0 ? sum : 0, 100)) << dtype_name(t);
      }
      expect_refused(Code::Unsupported, "premul_sum of", [&] {
        c->all_reduce(nullptr, nullptr, 1, t, {RedOp::PremulSum, most_halvings(t) + 1});
      });
    }
    MUST(c->status().ok());
  });
  EXPECT_EQ(calls("ncclRedOpCreatePreMulSum") - made, static_cast<unsigned long>(world) * 3 * 2);
  EXPECT_EQ(calls("ncclRedOpDestroy") - ended, static_cast<unsigned long>(world) * 3);
}

// Each rank has a factor of its own. An operation of the library is made once for a factor.
TEST_P(Collectives, SumNumbersTimesTheFactorsOfTheRanks) {
  const int world = GetParam();
  const unsigned long made = calls("ncclRedOpCreatePreMulSum");
  ranks(world, [](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const std::pair<DType, std::array<uint64_t, 3>> factors[] = {
        {DType::Float32, {0x3f800000, 0x40000000, 0x40400000}},  // 1, 2 and 3
        {DType::Float64, {0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000}},
        {DType::BFloat16, {0x3f80, 0x4000, 0x4040}},
        {DType::Float16, {0x3c00, 0x4000, 0x4200}},
        {DType::Int32, {1, 2, 3}},
        {DType::UInt8, {1, 2, 3}}};
    for (const auto &[t, of_ranks] : factors) {
      const auto by = Reduction::multiplied(of_ranks[static_cast<size_t>(rank)]);
      const auto all = [&, t = t](double x) { return packed(t, 100, [&](size_t) { return x; }); };
      const double sum = 2.0 * size * (size + 1) / 2;
      const Memory from(r, all(2)), to(r, all(0));
      for (int twice = 0; twice < 2; ++twice) c->all_reduce(from.at(), to.at(), 100, t, by);
      EXPECT_EQ(to.content(), all(sum)) << dtype_name(t);
    }
    MUST(c->status().ok());
  });
  EXPECT_EQ(calls("ncclRedOpCreatePreMulSum") - made, static_cast<unsigned long>(world) * 6);
}

// All of it is one group, which begins with the first call that has something to do.
TEST_P(Collectives, OfOneGroupAreGivenTogether) {
  const int world = GetParam();
  const unsigned long begun = calls("ncclGroupStart"), ended = calls("ncclGroupEnd");
  ranks(world, [](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    passes_messages_together(r);
    const Memory given(r, noise(rank, 300));
    expect_refused(Code::Argument, "rank 7", [&] {
      together(r, [&] {
        c->broadcast(given.at(), 300, DType::Int8, 0);
        c->broadcast(given.at(), 300, DType::Int8, 7);
      });
    });
    EXPECT_EQ(given.content(), noise(0, 300)) << "what was given before the refusal";
    c->broadcast(given.at(), 1, DType::Int8, 0);
    MUST(r.drained() && c->status().ok());
  });
  EXPECT_EQ(calls("ncclGroupStart") - begun, static_cast<unsigned long>(2 * world));
  EXPECT_EQ(calls("ncclGroupEnd") - ended, static_cast<unsigned long>(2 * world));
}

TEST_P(Collectives, MoveBytesOfAnyType) { ranks(GetParam(), moves_bytes_of_any_type); }
TEST_P(Collectives, ExchangeBlocksOfAnySize) { ranks(GetParam(), exchanges_blocks); }
TEST_P(Collectives, PassMessages) { ranks(GetParam(), passes_messages); }

TEST_P(Collectives, OfNothingAreNothing) {
  ranks(GetParam(), [](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const unsigned long before = calls("ncclAllReduce") + calls("ncclBroadcast") + calls("ncclAllGather");
    c->all_reduce(nullptr, nullptr, 0, DType::Float32, RedOp::Sum);
    c->broadcast(nullptr, 0, DType::Float32, 0);
    c->all_gather(nullptr, nullptr, 0, DType::Float32);
    c->all_to_all(nullptr, nullptr, 0, DType::Float32);
    MUST(r.drained() && c->status().ok());
    EXPECT_EQ(calls("ncclAllReduce") + calls("ncclBroadcast") + calls("ncclAllGather"), before);
  });
}

// The caller goes on, and the stream waits for the rank that comes late.
TEST(Nccl, ALateRankHoldsUpTheStreamAndNotTheCaller) {
  std::atomic<bool> seen{false};
  ranks(2, [&](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const Memory x(r, packed(DType::Int32, 1000, [](size_t) { return 1; }));
    if (rank == 1) MUST(eventually([&] { return seen.load(); }));
    for (int i = 0; i < 5; ++i) c->all_reduce(x.at(), x.at(), 1000, DType::Int32, RedOp::Sum);
    if (rank == 0) {
      MUST(!r.drained(0.05));
      MUST(c->inside() == nullptr && !c->held_up() && !c->failed());
      seen.store(true);
    }
    EXPECT_EQ(x.content(), packed(DType::Int32, 1000, [](size_t) { return 32; }));
  });
}

TEST(Nccl, CommunicatorsOfOneDeviceAreIndependent) {
  const auto other = library()->make_id();
  ranks(2, [&](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const auto second = library()->join({other, 1 - rank, 2, Deadline(2 * soon())}, stream);  // ranks the other way round
    EXPECT_EQ(second->rank(), 1 - rank);
    EXPECT_EQ(&second->stream(), stream.get());
    const Memory x(r, noise(rank, 100)), y(r, noise(rank, 100));
    for (int i = 0; i < 20; ++i) {
      c->broadcast(x.at(), 100, DType::Int8, i % 2);
      second->broadcast(y.at(), 100, DType::Int8, i % 2);
    }
    EXPECT_EQ(x.content(), noise(0, 100));
    EXPECT_EQ(y.content(), noise(1, 100));
    second->abort();  // the first works on
    c->broadcast(x.at(), 100, DType::Int8, 1);
    EXPECT_EQ(x.content(), noise(0, 100));
    MUST(c->status().ok() && !c->failed());
  });
}

// ---- refusals -------------------------------------------------------------------------------------------------------------

TEST(Nccl, RefusesWhatItCannotAndWorksOn) {
  ranks(2, [](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    const Memory x(r, packed(DType::Float32, 8, [&](size_t) { return 1 + r.rank; }));
    void *const p = x.at();
    const auto refused = [&](Code code, const std::string &text, const std::function<void()> &f) {
      expect_refused(code, text, f);
    };
    refused(Code::Unsupported, its("all_reduce: no band of int32"),
            [&] { c->all_reduce(p, p, 8, DType::Int32, RedOp::BAnd); });
    refused(Code::Unsupported, "premul_sum of float32", [&] { c->all_reduce(p, p, 8, DType::Float32, RedOp::PremulSum); });
    refused(Code::Unsupported, "sum of int16", [&] { c->all_reduce(p, p, 8, DType::Int16, RedOp::Sum); });
    refused(Code::Unsupported, "sum of bool", [&] { c->reduce(p, p, 8, DType::Bool, RedOp::Sum, 0); });
    refused(Code::Unsupported, "reduce_scatter: no sum of complex64",
            [&] { c->reduce_scatter(p, p, 1, DType::Complex64, RedOp::Sum); });
    refused(Code::Argument, its("broadcast: rank 2 is not of this island (0 to 1)"),
            [&] { c->broadcast(p, 8, DType::Float32, 2); });
    refused(Code::Argument, its("reduce: rank -1"), [&] { c->reduce(p, p, 8, DType::Float32, RedOp::Sum, -1); });
    refused(Code::Argument, its("send: rank 2"), [&] { c->send(p, 8, DType::Float32, 2); });
    refused(Code::Argument, its("recv: rank -1"), [&] { c->recv(p, 8, DType::Float32, -1); });
    c->all_reduce(p, p, 8, DType::Float32, RedOp::Max);
    EXPECT_EQ(x.content(), packed(DType::Float32, 8, [](size_t) { return 2; }));
    MUST(c->status().ok());
  });
}

TEST(Nccl, RefusesToJoinWhatCannotBe) {
  const auto id = library()->make_id();
  const auto join = [&](std::vector<std::byte> with, int rank, int size, std::shared_ptr<device::Stream> stream) {
    library()->join({with, rank, size, Deadline(5)}, std::move(stream));
  };
  const auto stream = new_stream(0);
  expect_refused(Code::Argument, "an id of 10 bytes; 128 are needed",
                 [&] { join(std::vector<std::byte>(10), 0, 1, stream); });
  expect_refused(Code::Argument, "an id of 0 bytes", [&] { join({}, 0, 1, stream); });
  expect_refused(Code::Argument, "rank 2 of an island of 2", [&] { join(id, 2, 2, stream); });
  expect_refused(Code::Argument, "rank -1 of an island of 2", [&] { join(id, -1, 2, stream); });
  expect_refused(Code::Argument, "rank 0 of an island of 0", [&] { join(id, 0, 0, stream); });
  expect_refused(Code::Argument, "it needs a stream of its vendor's runtime", [&] { join(id, 0, 1, nullptr); });
  expect_refused(Code::Argument, "it needs a stream of its vendor's runtime",
                 [&] { join(id, 0, 1, device::host_runtime().make_stream(0, "host")); });
  expect_refused(Code::System, its("init: "), [&] { join(std::vector<std::byte>(128), 0, 1, stream); });  // nobody's id
  EXPECT_EQ(live("communicator"), 0u);
}

TEST(Nccl, TwoRanksOnOneDeviceAreRefusedToBoth) {
  const auto id = library()->make_id();
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      expect_refused(Code::System, "Duplicate GPU", [&] { library()->join({id, r, 2, Deadline(soon())}, new_stream(0)); });
    });
  for (std::thread &t : threads) t.join();
  EXPECT_TRUE(eventually([] { return live("communicator") == 0; }));
}

// ---- failures -------------------------------------------------------------------------------------------------------------

TEST(Nccl, ARankThatNeverJoinsIsATimeout) {
  const int64_t begin = now_ns();
  expect_refused(Code::Timeout, "not all 3 ranks of the island joined in time (this is rank 1 of it)", [] {
    library()->join({library()->make_id(), 1, 3, Deadline(0.5)}, new_stream(0));
  });
  EXPECT_GT(now_ns() - begin, 400'000'000);
  EXPECT_TRUE(eventually([] { return live("communicator") == 0; }));
}

TEST(Nccl, AbortEndsACallWhosePeerIsMissing) {
  std::atomic<bool> over{false};
  ranks(2, [&](Rank &r) {
    auto &[rank, size, stream, c, done, value, pinned] = r;
    if (rank == 1) {
      MUST(eventually([&] { return over.load(); }));  // never makes the call, and does not leave either
      return c->abort();
    }
    const Memory x(r, noise(0, 400'000));
    c->all_reduce(x.at(), x.at(), 100'000, DType::Float32, RedOp::Sum);
    MUST(!r.drained(0.1));
    std::thread([&] {
      c->abort();
      c->abort();
    }).join();
    MUST(r.drained());
    const unsigned long before = calls("ncclAllReduce");
    c->all_reduce(x.at(), x.at(), 100'000, DType::Float32, RedOp::Sum);
    c->broadcast(x.at(), 100'000, DType::Float32, 1);
    MUST(r.drained());
    EXPECT_EQ(calls("ncclAllReduce"), before);
    c.reset();
    over.store(true);
  });
  EXPECT_TRUE(eventually([] { return live("communicator") == 0; }));
}

// From several threads, while another submits and one asks.
TEST(Nccl, AbortMayComeAtAnyTime) {
  for (int round = 0; round < 5; ++round)
    ranks(2, [round](Rank &r) {
      auto &[rank, size, stream, c, done, value, pinned] = r;
      const Memory x(r, noise(0, 40'000));
      std::atomic<bool> stop{false};
      std::vector<std::thread> others;
      for (int i = 0; i < 2; ++i)
        others.emplace_back([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(3 * round));
          c->abort();
        });
      others.emplace_back([&] {
        while (!stop) c->failed();
      });
      for (int i = 0; i < 50; ++i) c->all_reduce(x.at(), x.at(), 10'000, DType::Float32, RedOp::Max);
      EXPECT_TRUE(r.drained());
      stop = true;
      for (std::thread &t : others) t.join();
      EXPECT_TRUE(c->status().ok()) << c->status().text;
    });
}

TEST(Nccl, LeavesNothing) {
  const auto count = [] {
    std::map<std::string, size_t> all;
    for (const char *what : {"allocation", "registration", "stream", "event", "communicator"}) all[what] = live(what);
    return all;
  };
  const auto body = [](Rank &r) {
    const Memory x(r, noise(r.rank, 4000));
    r.c->all_reduce(x.at(), x.at(), 1000, DType::Float32, RedOp::Max);
    EXPECT_TRUE(r.drained());
  };
  ranks(3, body);  // pages of counters are made once
  const auto before = count();
  for (int i = 0; i < 3; ++i) ranks(3, body);
  EXPECT_TRUE(eventually([&] { return count() == before; })) << testing::PrintToString(count());
}

// ---- in processes of their own --------------------------------------------------------------------------------------------

// The second call of an island of one fails at once; a third is not made.
void a_call_fails() {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(!r.c->failed() && r.c->status().ok(), r.c->status().text);
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  const Status s = r.c->status();
  HOLDS(r.c->failed() && s.code == Code::System && has(s, its("all_reduce: ")) && has(s, "unhandled system error") &&
            has(s, "(2)"),
        s.text);
  const unsigned long before = calls("ncclAllReduce");
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(calls("ncclAllReduce") == before, "the third call was made");
  HOLDS(r.c->status().text == s.text, r.c->status().text);
  HOLDS(r.drained(), "");
}
// In the middle of the sends and receives of an all_to_all: their group is closed all the same.
void a_message_fails() {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400)), y(r, 400);
  r.c->all_to_all(x.at(), y.at(), 100, DType::Float32);
  const Status s = r.c->status();
  HOLDS(r.c->failed() && has(s, its("all_to_all: ")) && has(s, "(3)"), s.text);
  HOLDS(calls("ncclGroupStart") == 1 && calls("ncclGroupEnd") == 1, "the group is open");
}
// The second call of a group: the group is closed all the same, and the communicator says which call it was.
void a_call_of_a_group_fails() {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  struct Given {
    Rank &r;
    void *at;
  } given{r, x.at()};
  r.c->together(
      [](void *context) {
        auto &g = *static_cast<Given *>(context);
        for (int i = 0; i < 3; ++i) g.r.c->all_reduce(g.at, g.at, 100, DType::Float32, RedOp::Sum);
      },
      &given);
  const Status s = r.c->status();
  HOLDS(r.c->failed() && has(s, its("all_reduce: ")) && has(s, "(2)"), s.text);
  HOLDS(calls("ncclAllReduce") == 2, "the third call was made");
  HOLDS(calls("ncclGroupStart") == 1 && calls("ncclGroupEnd") == 1, "the group is open");
}
// The thread that ends a group does not come back from there, and is left behind. When it comes back, its call fails, and the group is closed.
void a_groups_end_comes_late() {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  const auto reduce = [&] { r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum); };
  reduce();  // what the library does once is done
  HOLDS(r.drained(), "");
  const auto gate = runtime().make_gate(0);
  gate->arm(*r.stream, 1);
  Status s;
  device::VendorCall call;
  {
    const DriverLocked locked(0);
    std::atomic<pid_t> number{0};
    std::thread caller([&] {
      device::vendor_call_here = &call;
      number = isthmus_test::this_thread();
      s = thrown([&] { together(r, reduce); });
    });
    HOLDS(eventually([&] { return calls("ncclGroupEnd") == 1; }) && isthmus_test::falls_asleep(number), "");
    uint32_t in = device::VendorCall::kIn;
    HOLDS(call.state.compare_exchange_strong(in, device::VendorCall::kLeft), "it is in no call");
    gate->open(1);
    caller.join();
  }
  HOLDS(s.code == Code::Aborted && has(s, "came back too late"), s.text);
  const unsigned long begun = calls("ncclGroupStart");
  reduce();
  HOLDS(calls("ncclGroupStart") == begun && calls("ncclGroupEnd") == begun, "it still wants a group");
  HOLDS(r.drained() && r.c->status().ok(), r.c->status().text);
}
// The program's signals are for the program's threads.
void an_abort_takes_no_signals() {
  const auto threads = [] {
    std::map<std::string, std::string> blocked;  // the signals that each thread has blocked
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream file(task.path() / "status");
      for (std::string line; std::getline(file, line);)
        if (line.starts_with("SigBlk:")) blocked[task.path().filename()] = line.substr(line.find_first_not_of(" \t", 7));
    }
    return blocked;
  };
  Rank r(0, 1);
  r.join(library()->make_id());
  const auto before = threads();
  size_t others = 0;
  together(r, [&] {  // meanwhile the thread that aborts waits
    r.c->abort();
    for (const auto &[thread, at_first] : threads()) {
      if (before.count(thread)) continue;
      ++others;
      HOLDS(isthmus_test::falls_asleep(std::stoi(thread)), "");  // a thread begins with all signals blocked for a moment
      const std::string blocked = threads()[thread];
      // All up to 31 but the two that nobody blocks.
      HOLDS((std::stoull(blocked, nullptr, 16) & 0x7fffffff) == 0x7ffbfeff, blocked);
    }
  });
  HOLDS(others == 1, std::to_string(others));
}
void an_init_fails() {
  Rank r(0, 1);
  const Status s = thrown([&] { r.join(library()->make_id()); });
  HOLDS(s.code == Code::System && has(s, its("init: ")) && has(s, "(2)"), s.text);
}
void an_id_fails() {
  const Status s = thrown([&] { library()->make_id(); });
  HOLDS(s.code == Code::System && has(s, its("unique id: ")) && has(s, "(3)"), s.text);
}
// What fails behind the call is seen by failed(), and told with its number; the communicator can be left.
void fails_late(const char *number, bool device) {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(eventually([&] { return r.c->failed(); }), "not seen");
  const Status s = r.c->status();
  HOLDS(s.code == (device ? Code::Device : Code::System) && has(s, its("communicator: ")) && has(s, number), s.text);
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(calls("ncclAllReduce") == 1, "a second call was made");
  HOLDS(has(s, "; its stream has failed: ") == device, s.text);
  r.c.reset();
  if (device) std::_Exit(fine ? 0 : 1);  // nothing works on it any more, and nothing can be given back
}
void the_network_fails_late() { fails_late("(6)", false); }
void the_device_fails_late() { fails_late("(1)", true); }
// A stream that stands in a function of the host until it is let go, also where its device has failed meanwhile.
class StandingStream {
 public:
  explicit StandingStream(device::Stream &stream) {
    using Function = void (*)(void *);
    const auto launch = reinterpret_cast<int (*)(void *, Function, void *)>(::dlsym(RTLD_DEFAULT, tested().host_function));
    const Function stand = [](void *context) {
      auto &me = *static_cast<StandingStream *>(context);
      me.stands_.store(true);
      me.goes_.wait(false);
    };
    const device::Entered entered(stream);
    if (!launch || launch(stream.handle(), stand, this) != 0 || !eventually([&] { return stands_.load(); })) throw Broken();
  }
  void let_go() {
    goes_.store(true);
    goes_.notify_all();
  }

 private:
  std::atomic<bool> stands_{false}, goes_{false};
};
// A device fails while a thread that waits for the device has the driver locked. The driver has its time to say how. Then the library's words stand
// alone, and who fails before the driver has answered does not ask it.
void the_device_fails_and_the_driver_is_locked() {
  Rank r(0, 1);
  r.join(library()->make_id());
  const auto beside = [&] { return library()->join({library()->make_id(), 0, 1, Deadline(2 * soon())}, r.stream); };
  const auto second = beside(), third = beside();
  const Memory x(r, noise(0, 400));
  const auto reduce = [&](IslandCommunicator &c) { c.all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum); };
  reduce(*r.c);  // what the library does once is done
  HOLDS(r.drained(), "");
  const auto gate = runtime().make_gate(0);
  const auto other = new_stream(0);  // of another hardware queue
  StandingStream standing(*other);
  gate->arm(*r.stream, 1);
  reduce(*r.c);  // fails once the gate is open
  {
    const DriverLocked locked(0);
    gate->open(1);
    HOLDS(eventually([&] { return r.c->failed(); }) && calls(tested().query) == 0, "not seen, or not without the driver");
    const int64_t begin = now_ns();
    const Status s = r.c->status();
    HOLDS(s.code == Code::Device && has(s, its("communicator: ")) && has(s, "(1)") && !has(s, "its stream"), s.text);
    HOLDS(now_ns() - begin > 1'900'000'000, "the driver had no time to answer");
    reduce(*second);
    const Status next = second->status();
    HOLDS(next.code == Code::Device && has(next, its("all_reduce: ")) && !has(next, "its stream"), next.text);
    HOLDS(calls(tested().query) == 1 && device::abandoned_threads() == 1, "the driver was asked again");
    standing.let_go();
  }
  HOLDS(eventually([] { return unanswered->load() == 0; }), "its answer is not counted");
  reduce(*third);
  HOLDS(has(third->status(), "; its stream has failed: "), third->status().text);
  HOLDS(calls(tested().query) == 2, "the driver was not asked anew");
  std::_Exit(fine ? 0 : 1);  // nothing works on the device any more, and nothing can be given back
}
void a_call_hangs() {
  Rank r(0, 1);
  r.join(library()->make_id());
  const Memory x(r, noise(0, 400));
  r.c->all_reduce(x.at(), x.at(), 100, DType::Float32, RedOp::Sum);
  HOLDS(!r.drained(0.1) && !r.c->failed(), r.c->status().text);
  r.c->abort();
  HOLDS(r.drained(), "");
}
void nowhere() {
  const Status s = thrown([] { open_nccl(tested().family, "/nowhere/library.so"); });
  HOLDS(s.code == Code::Unsupported && has(s, std::string(tested().family) + ": /nowhere/library.so cannot be opened") &&
            has(s, std::string(tested().install) + " 2.14.0 or newer") && has(s, "ISTHMUS_CCL=none"),
        s.text);
  HOLDS(s.text.find('\n') == std::string::npos, s.text);
  HOLDS(library()->version() == tested().version, "and what is here is still opened");
}
void no_library() {
  const std::string path = "/proc/self/status";
  const Status s = thrown([&] { open_nccl(tested().family, path); });
  HOLDS(s.code == Code::Unsupported && has(s, "/proc/self/status cannot be opened") && has(s, tested().install), s.text);
}
void another_library() {
  const std::string path = rehearsal_file(tested().driver);
  const Status s = thrown([&] { open_nccl(tested().family, path); });
  HOLDS(s.code == Code::Unsupported && has(s, path) && has(s, tested().install), s.text);
  HOLDS(s.text.find('\n') == std::string::npos, s.text);
}
void too_old() {
  const std::string soname = std::strrchr(tested().file, '/') + 1;
  const Status s = thrown([] { library(); });
  HOLDS(s.code == Code::Unsupported && has(s, soname) && has(s, "2.14.0 or newer"), s.text);
}

const std::map<std::string, void (*)()> kScenes{{"a call fails", a_call_fails},
                                                {"a message fails", a_message_fails},
                                                {"a call of a group fails", a_call_of_a_group_fails},
                                                {"a group's end comes late", a_groups_end_comes_late},
                                                {"an abort takes no signals", an_abort_takes_no_signals},
                                                {"an init fails", an_init_fails},
                                                {"an id fails", an_id_fails},
                                                {"the network fails late", the_network_fails_late},
                                                {"the device fails late", the_device_fails_late},
                                                {"the driver is locked", the_device_fails_and_the_driver_is_locked},
                                                {"a call hangs", a_call_hangs},
                                                {"nowhere", nowhere},
                                                {"no library", no_library},
                                                {"another library", another_library},
                                                {"too old", too_old}};

int play(const char *scene) {
  try {
    kScenes.at(scene)();
  } catch (const Error &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
  return fine ? 0 : 1;
}

TEST(NcclAlone, ACallThatFailsIsToldWithItsNumber) { plays("a call fails", {"REHEARSAL_FAIL=ncclAllReduce:2:2"}); }
TEST(NcclAlone, AGroupIsNeverLeftOpen) { plays("a message fails", {"REHEARSAL_FAIL=ncclRecv:1:3"}); }
TEST(NcclAlone, AGroupOfCallsIsNeverLeftOpen) { plays("a call of a group fails", {"REHEARSAL_FAIL=ncclAllReduce:2:2"}); }
TEST(NcclAlone, AThreadThatIsLeftBehindAtAGroupsEndFailsWhenItComesBack) { plays("a group's end comes late"); }
TEST(NcclAlone, AnAbortTakesNoSignalsOfTheProgram) { plays("an abort takes no signals"); }
TEST(NcclAlone, AnInitThatFailsIsToldWithItsNumber) {
  plays("an init fails", {"REHEARSAL_FAIL=ncclCommInitRankConfig:1:2"});
}
TEST(NcclAlone, AnIdThatFailsIsToldWithItsNumber) { plays("an id fails", {"REHEARSAL_FAIL=ncclGetUniqueId:1:3"}); }
TEST(NcclAlone, AFailureOfTheNetworkIsSeenLater) {
  plays("the network fails late", {"REHEARSAL_FAIL_LATE=ncclAllReduce:1:6"});
}
TEST(NcclAlone, AFailureOfTheDeviceIsSeenLater) {
  plays("the device fails late", {"REHEARSAL_FAIL_LATE=ncclAllReduce:1:1"});
}
TEST(NcclAlone, ADriverThatDoesNotSayHowTheDeviceFailedIsAskedOnceUntilItHasAnswered) {
  plays("the driver is locked", {"REHEARSAL_QUEUES=2", "REHEARSAL_FAIL_LATE=ncclAllReduce:2:1",
                                 "REHEARSAL_FAIL=ncclAllReduce:3:1,ncclAllReduce:4:1"});
}
TEST(NcclAlone, AbortEndsACallThatHangs) { plays("a call hangs", {"REHEARSAL_HANG=ncclAllReduce:1"}); }
TEST(NcclAlone, AFileThatIsNotThereIsOneSentence) { plays("nowhere"); }
TEST(NcclAlone, AFileThatIsNoLibraryIsOneSentence) { plays("no library"); }
TEST(NcclAlone, AnotherLibraryIsOneSentence) { plays("another library"); }
TEST(NcclAlone, AVersionThatCannotBeReadIsOneSentence) { plays("too old", {"REHEARSAL_FAIL=ncclGetVersion:1:2"}); }

}  // namespace
}  // namespace isthmus::ccl

int main(int argc, char **argv) {
  ::setenv("REHEARSAL_DEVICES", "4", 1);
  ::setenv("REHEARSAL_QUIET", "1", 1);
  ::setenv("REHEARSAL_GFX", "950", 1);  // whose float8 is everybody's
  for (const char *file : {isthmus::ccl::tested().driver, isthmus::ccl::tested().file})
    if (!::dlopen(rehearsal_file(file), RTLD_NOW | RTLD_GLOBAL)) {
      std::fprintf(stderr, "%s\n", ::dlerror());
      return 4;
    }
  if (argc == 2 && isthmus::ccl::kScenes.count(argv[1])) return isthmus::ccl::play(argv[1]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
