// Plans broken on purpose: the prover must object to each. A prover that lets one pass proves nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "prove_case.hpp"

namespace isthmus::prover {
namespace {

using plan::Collective;
using plan::Memory;
using plan::Plan;
using plan::Step;
using plan::StepKind;

Operation long_operation(Collective c, int world, uint32_t slots = 2) {
  Operation op = operation_of(c, 256 * 9, 256, slots);
  op.request.dtype = DType::BFloat16;
  op.counts.assign(static_cast<size_t>(world), 256 * 9);
  op.matrix.assign(static_cast<size_t>(world), std::vector<uint64_t>(static_cast<size_t>(world), 256 * 9));
  return op;
}

constexpr uint8_t kReduced = 1, kConsumed = 2;  // of the counters of slots

Verdict prove_twice(const topology::Topology &t, const Operation &op, std::function<void(int, Plan &)> mutate) {
  const Operation twice[] = {op, op};
  Options options;
  options.mutate = [&](size_t, int rank, Plan &p) { mutate(rank, p); };
  return prove(t, twice, options);
}

void drop(Step &s) {  // a wait for nothing
  s = Step{};
  s.kind = StepKind::Wait;
}

// Every wait of the templates is needed, but for those that other waits imply in the given world.
int waits_not_missed(const char *islands, Collective c) {
  const auto t = world_of(islands);
  const Operation op = long_operation(c, t.size());
  int missed = 0;
  for (int rank = 0; rank < t.size(); ++rank) {
    const auto p = plan::plan_collective(t, rank, op.request);
    for (size_t i = 0; i < p->steps.size(); ++i)
      if (p->steps[i].kind == StepKind::Wait)
        missed += prove_twice(t, op, [&](int r, Plan &q) {
                    if (r == rank) drop(q.steps[i]);
                  }).ok;
  }
  return missed;
}

TEST(Mutation, WithoutAnyOneOfItsWaitsAFlatPlanIsRefused) {
  for (const char *islands : {"aa", "aaa", "aaaa"})
    for (int c = 0; c < 14; ++c)
      EXPECT_EQ(waits_not_missed(islands, static_cast<Collective>(c)), 0)
          << islands << " " << collective_name(static_cast<Collective>(c));
}

TEST(Mutation, WithoutAnyOneOfItsWaitsABridgedPlanIsRefused) {
  for (const char *islands : {"ab", "aab", "aabb"})
    for (int c = 0; c < 14; ++c) {
      const auto collective = static_cast<Collective>(c);
      // Between islands every block of all_to_all is answered, which implies some of the waits inside.
      if (collective == Collective::AllToAll || collective == Collective::AllToAllV) continue;
      EXPECT_EQ(waits_not_missed(islands, collective), 0) << islands << " " << collective_name(collective);
    }
}

// A message of many chunks, the last one shorter.
Operation island_operation(uint64_t bytes, Collective c = Collective::AllReduce, int root = 0) {
  Operation op = operation_of(c, bytes, c == Collective::AllGather || c == Collective::ReduceScatter ? 128 : 64, 6);
  op.request.small_bytes = 1024;
  op.request.root = root;
  return op;
}

// Whether the step runs for any chunk: a last chunk may end before some rank's piece of it.
bool runs(const Plan &p, const Step &s) {
  if (s.kind == StepKind::Post || s.kind == StepKind::Wait) return true;
  const std::vector<uint64_t> displ(static_cast<size_t>(p.world), 0), bytes(static_cast<size_t>(p.world), p.request.bytes);
  const plan::Operands o{displ, bytes, displ, bytes};
  for (uint32_t c = 0; c < p.chunks; ++c)
    if (plan::extent_bytes(s.extent, c, o) > 0 && plan::runs_for(p, s, c, o)) return true;
  return false;
}

TEST(Mutation, WithoutAnyOneOfItsStepsAnIslandsPlanIsRefused) {
  const Operation operations[] = {island_operation(10'004),
                                  island_operation(1000),
                                  island_operation(10'004, Collective::Broadcast, 0),
                                  island_operation(10'004, Collective::Broadcast, 2),
                                  island_operation(1000, Collective::Broadcast, 2),
                                  island_operation(10'004, Collective::AllGather),
                                  island_operation(10'004, Collective::Reduce, 0),
                                  island_operation(10'004, Collective::Reduce, 2),
                                  island_operation(1000, Collective::Reduce, 1),
                                  island_operation(1000, Collective::Reduce, 2),
                                  island_operation(10'004, Collective::ReduceScatter)};
  for (const char *islands : {"AAb", "AAbb", "AABB", "AABBc"})
    for (const Operation &op : operations) {
      const auto t = world_of(islands);
      const uint64_t bytes = op.request.bytes;
      const Collective c = op.request.collective;
      for (int rank = 0; rank < t.size(); ++rank) {
        const auto p = plan::plan_collective(t, rank, op.request);
        if (p->device.empty()) continue;
        EXPECT_TRUE(bytes < 1024 || p->chunks > p->slots + 3) << "slots must be used again for this to say something";
        // The one root takes what rank 0 sends before what rank 1 does, whose wait therefore holds for both.
        const bool implied = std::string(islands) == "AAb" && c == Collective::Reduce && op.request.root == 2 && rank == 0;
        // The links say that what was sent has gone. That the others have taken it shows in the next blocks that the library spreads,
        // too, and who takes none of them himself opens his gate for nothing else.
        const bool gathers = c == Collective::AllGather,
                   takes =
                       std::any_of(p->steps.begin(), p->steps.end(), [](const Step &x) { return x.kind == StepKind::Recv; });
        for (size_t i = implied ? 1 : 0; i < p->steps.size(); ++i) {
          if (!runs(*p, p->steps[i])) continue;
          const Step &x = p->steps[i];
          if (gathers && x.kind == StepKind::Taken) continue;
          if (gathers && !takes && x.kind == StepKind::Wait && x.counter == plan::kReady) continue;
          EXPECT_FALSE(prove_twice(t, op,
                                   [&](int r, Plan &q) {
                                     if (r == rank) drop(q.steps[i]);
                                   })
                           .ok)
              << islands << " " << collective_name(c) << " of " << bytes << ", root " << op.request.root << ", rank " << rank
              << ", step " << i;
        }
      }
    }
}

// Islands that pass blocks on and make sums for the largest one, and whose libraries sum domain by domain.
TEST(Mutation, WithoutAnyOneOfItsStepsAPlanOfUnlikeIslandsIsRefused) {
  size_t dropped = 0;
  for (const char *islands : {"AAAABBc", "BBaaaac"})
    for (const Collective c : {Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter}) {
      const Operation op = island_operation(c == Collective::AllReduce ? 9'004 : 3'004, c);
      const auto t = world_of(islands);
      for (int rank = 0; rank < t.size(); ++rank) {
        const auto p = plan::plan_collective(t, rank, op.request);
        if (p->device.empty()) continue;
        EXPECT_GT(p->chunks, p->slots + 3) << "slots must be used again for this to say something";
        for (size_t i = 0; i < p->steps.size(); ++i) {
          if (!runs(*p, p->steps[i])) continue;
          ++dropped;
          EXPECT_FALSE(prove_twice(t, op,
                                   [&](int r, Plan &q) {
                                     if (r == rank) drop(q.steps[i]);
                                   })
                           .ok)
              << islands << " " << collective_name(c) << ", rank " << rank << ", step " << i;
        }
      }
    }
  EXPECT_GT(dropped, 500u);
}

// Ranks whose memory only their device can touch.
TEST(Mutation, WithoutAnyOneOfTheStepsThatStageItAPlanIsRefused) {
  for (const char *islands : {"na", "no", "nno", "n"})
    for (int c = 0; c < 14; ++c) {
      const auto collective = static_cast<Collective>(c);
      const auto t = world_of(islands);
      Operation op = long_operation(collective, t.size(), 4);
      op.request.bytes = collective == Collective::Barrier ? 0 : 1024 * 12;
      for (auto &n : op.counts) n = op.request.bytes;
      for (auto &row : op.matrix)
        for (auto &n : row) n = op.request.bytes;
      for (int rank = 0; rank < t.size(); ++rank) {
        plan::Request request = op.request;
        request.device = t.ranks[static_cast<size_t>(rank)].device != "host";
        const auto p = plan::plan_collective(t, rank, request);
        EXPECT_EQ(p->device.empty(), !request.device || collective == Collective::Barrier);
        for (size_t i = 0; i < p->steps.size() && !p->device.empty(); ++i) {
          const Step &x = p->steps[i];
          // Where all ranks send and receive, what comes is an answer to what went.
          const bool answered = collective != Collective::Broadcast && collective != Collective::Reduce &&
                                collective != Collective::Gather && collective != Collective::GatherV &&
                                collective != Collective::Scatter && collective != Collective::ScatterV;
          const bool staging = (x.kind == StepKind::Taken && !answered) ||
                               ((x.kind == StepKind::Post || x.kind == StepKind::Wait) && x.counter >= plan::kCounters) ||
                               (x.kind == StepKind::Move && i >= p->device.front().step);
          if (!staging) continue;
          EXPECT_FALSE(prove_twice(t, op,
                                   [&](int r, Plan &q) {
                                     if (r == rank) drop(q.steps[i]);
                                   })
                           .ok)
              << islands << " " << collective_name(collective) << ", rank " << rank << ", step " << i << "\n"
              << plan::explain(*p, t);
        }
        if (p->device.empty() || p->host.empty()) continue;
        EXPECT_FALSE(prove_twice(t, op,
                                 [&](int r, Plan &q) {
                                   if (r != rank) return;
                                   const auto give = std::find_if(q.host.begin(), q.host.end(), [](const plan::Stage &s) {
                                     return std::string_view(s.name) == "give";
                                   });
                                   q.device.front().skew = give->skew;
                                 })
                         .ok)
            << "too few chunks ahead: " << islands << " " << collective_name(collective) << ", rank " << rank << "\n"
            << plan::explain(*p, t);
      }
    }
}

// Ranks whose devices reach the rings of one host.
TEST(Mutation, WithoutAnyOneOfItsStepsAPlanThroughReachedSlotsIsRefused) {
  for (const char *islands : {"no", "nao"})
    for (int c = 0; c < 13; ++c) {
      const auto collective = static_cast<Collective>(c);
      const auto t = world_of(islands, "", topology::Bridge::Auto);
      Operation op = long_operation(collective, t.size(), 5);
      op.request.reach = uint64_t{1} << 30;
      op.request.bytes = 1024 * 12;
      for (auto &n : op.counts) n = op.request.bytes;
      for (auto &row : op.matrix)
        for (auto &n : row) n = op.request.bytes;
      for (int rank = 0; rank < t.size(); ++rank) {
        plan::Request request = op.request;
        request.device = t.ranks[static_cast<size_t>(rank)].device != "host";
        const auto p = plan::plan_collective(t, rank, request);
        // Where a rank waits for what all others gave of a chunk, they have taken its own of the one before: it need not be told.
        const bool told = collective == Collective::Broadcast || collective == Collective::Gather ||
                          collective == Collective::GatherV || collective == Collective::Scatter ||
                          collective == Collective::ScatterV;
        for (size_t i = 0; i < p->steps.size() && !p->device.empty(); ++i) {
          if (!told && p->steps[i].kind == StepKind::Wait && p->steps[i].add <= 0) continue;
          EXPECT_FALSE(prove_twice(t, op,
                                   [&](int r, Plan &q) {
                                     if (r == rank) drop(q.steps[i]);
                                   })
                           .ok)
              << islands << " " << collective_name(collective) << ", rank " << rank << ", step " << i << "\n"
              << plan::explain(*p, t);
        }
      }
    }
}

// Islands with libraries on one host, whose ranks read each other's slots, by their devices or not.
TEST(Mutation, WithoutAnyOneOfItsStepsAnIslandsPlanThroughSlotsIsRefused) {
  for (const char *islands : {"NNo", "NNOO", "AAb"})
    for (const auto &[collective, root] : {std::pair{Collective::Broadcast, 0},
                                           {Collective::AllGather, 0},
                                           {Collective::AllReduce, 0},
                                           {Collective::Reduce, 0},
                                           {Collective::Reduce, 2},
                                           {Collective::ReduceScatter, 0}})
      for (const bool reaches : {true, false}) {
        const auto t = world_of(islands, "", topology::Bridge::Auto);
        Operation op = operation_of(collective, 64 * 8 * 14, 64, 6);
        op.request.root = root;
        op.request.reach = reaches ? uint64_t{1} << 30 : 0;
        for (int rank = 0; rank < t.size(); ++rank) {
          plan::Request request = op.request;
          request.device = t.ranks[static_cast<size_t>(rank)].device != "host";
          const auto p = plan::plan_collective(t, rank, request);
          ASSERT_GT(p->chunks, 2 * p->slots);
          for (size_t i = 0; i < p->steps.size(); ++i) {
            const Step &x = p->steps[i];
            // Where a rank waits for what all others gave of a chunk, they have taken its own of the one before: it need not be told.
            if (collective != Collective::Broadcast && x.counter == kConsumed) continue;
            // What the host brought to scratch was taken before the other ranks of the island came to the next chunk but one.
            if (!reaches && x.kind == StepKind::Wait && x.counter == plan::kTaken) continue;
            if (x.when == plan::When::PartChunk) continue;  // there is none
            // A call of the library is behind the gates of all ranks of the island, which the same reducers open in a reduce.
            const bool gate = x.kind == StepKind::Wait && (x.counter == plan::kReady || x.counter == kReduced);
            const bool all = collective == Collective::Reduce && gate;
            EXPECT_FALSE(prove_twice(t, op,
                                     [&](int r, Plan &q) {
                                       const auto island = [&](int y) { return t.island_of[static_cast<size_t>(y)]; };
                                       if (r == rank || (all && island(r) == island(rank))) drop(q.steps[i]);
                                     })
                             .ok)
                << islands << " " << collective_name(collective) << (reaches ? "" : " by hosts") << ", rank " << rank
                << ", step " << i << "\n"
                << plan::explain(*p, t);
          }
        }
      }
}

// What the library's broadcast gives away is what its sum has just written.
TEST(Mutation, AGroupOfCallsThatDependOnEachOtherIsRefused) {
  for (const auto bridge : {topology::Bridge::Auto, topology::Bridge::Tcp}) {
    const auto t = world_of("NNOO", "", bridge);
    Operation op = operation_of(Collective::AllReduce, 1000, 256, 6);
    op.request.small_bytes = 1024;
    const auto grouped = [&](bool together) {
      return prove_twice(t, op, [&](int, Plan &p) {
        for (plan::Stage &stage : p.device) stage.together = together;
      });
    };
    EXPECT_TRUE(grouped(false).ok);
    EXPECT_NE(grouped(true).text.find("touches what another one of its group writes"), std::string::npos);
  }
}

// The same on two hosts: slots inside a host, links between them.
TEST(Mutation, WithoutAnyOneOfItsStepsAPlanOfIslandsThatMeetOnHostsIsRefused) {
  struct World {
    const char *islands, *hosts;
  };
  for (const auto &[islands, hosts] : {World{"NNOOPPa", "xxxxyyy"}, World{"NNOOa", "xyxyx"}})
    for (const auto collective :
         {Collective::Broadcast, Collective::AllGather, Collective::AllReduce, Collective::ReduceScatter})
      for (const bool reaches : {true, false}) {
        const auto t = world_of(islands, hosts, topology::Bridge::Auto);
        const uint64_t chunk = collective == Collective::AllReduce ? 128 : 64;  // every rank has a part of a sum
        Operation op = operation_of(collective, chunk * 8 * 14, chunk, 6);
        op.request.reach = reaches ? uint64_t{1} << 30 : 0;
        std::string implied;  // who would not miss that it waits for whom
        for (int rank = 0; rank < t.size(); ++rank) {
          plan::Request request = op.request;
          request.device = t.ranks[static_cast<size_t>(rank)].device != "host";
          const auto p = plan::plan_collective(t, rank, request);
          ASSERT_GT(p->chunks, 2 * p->slots);
          ASSERT_TRUE(prove_twice(t, op, [](int, Plan &) {}).ok);
          std::set<int> waited;  // for these ranks
          for (size_t i = 0; i < p->steps.size(); ++i) {
            const Step &x = p->steps[i];
            // That a slot has been read shows in what its readers gave of later chunks too, here or through their library.
            if (x.counter == kConsumed || x.kind == StepKind::Taken) continue;
            if (x.kind == StepKind::Wait && x.counter == plan::kTaken) continue;
            if (x.when == plan::When::PartChunk) continue;  // of one chunk at the most
            // Not every rank of the host reads every block.
            if (collective == Collective::AllGather && x.kind == StepKind::Post && x.counter <= kReduced) continue;
            // The library's last sums of a chunk come behind what all its ranks have put into their slots before. So do the frames of those of its ranks
            // that stand on the other host.
            const bool by_calls = collective == Collective::ReduceScatter;
            // What a rank has received lies in its slot behind what it had: the one wait stands for the other.
            const auto arrives = [&](const Step &s) {
              return s.kind == StepKind::Wait && s.counter <= kReduced && (s.peer == x.peer || by_calls);
            };
            if (arrives(x) && by_calls && std::string_view(hosts) == "xyxyx") continue;
            if (arrives(x) && !waited.insert(by_calls ? -1 : x.peer).second) continue;
            const bool missed = prove_twice(t, op, [&](int r, Plan &q) {
                                  if (r != rank) return;
                                  for (size_t j = i; j < q.steps.size(); ++j)
                                    if (j == i || (arrives(x) && arrives(q.steps[j]))) drop(q.steps[j]);
                                }).ok;
            if (missed && arrives(x) && collective == Collective::AllReduce) {
              implied += std::to_string(rank) + " for " + std::to_string(x.peer) + "; ";
              continue;
            }
            EXPECT_FALSE(missed) << islands << " on " << hosts << ", " << collective_name(collective)
                                 << (reaches ? "" : " by hosts") << ", rank " << rank << ", step " << i << "\n"
                                 << plan::explain(*p, t);
          }
        }
        // An all_reduce gives a chunk behind what has come of older ones. So a frame of the other host can say that a neighbour has given its part.
        const bool seven = std::string_view(hosts) == "xxxxyyy";
        EXPECT_EQ(implied, collective != Collective::AllReduce ? "" : seven ? "0 for 2; 2 for 0; " : "4 for 2; ");
      }
}

// The device fills again what it has read: shadows in scratch, and slots.
TEST(Mutation, WhereTheSecondStreamDoesNotWaitForTheFirstAStagedPlanIsRefused) {
  for (const char *islands : {"na", "no", "nao"})
    for (const bool reaches : {false, true})
      for (int c = 0; c < 13; ++c) {
        const auto collective = static_cast<Collective>(c);
        const auto t = world_of(islands, "", topology::Bridge::Auto);
        Operation op = long_operation(collective, t.size(), 5);
        op.request.bytes = 1024 * 12;
        op.request.reach = reaches ? uint64_t{1} << 30 : 0;
        for (auto &n : op.counts) n = op.request.bytes;
        for (auto &row : op.matrix)
          for (auto &n : row) n = op.request.bytes;
        const Operation twice[] = {op, op};
        Options options;
        ASSERT_TRUE(prove(t, twice, options).ok);
        options.streams_meet = false;
        EXPECT_FALSE(prove(t, twice, options).ok)
            << islands << " " << collective_name(collective) << (reaches ? ", through slots it reaches" : "");
      }
}

TEST(Mutation, WithoutAnyPartOfTheEntryRuleAnOperationThatComesEarlyIsRefused) {
  const auto t = world_of("no", "", topology::Bridge::Auto);
  const auto prove_three = [&](uint64_t bytes, uint64_t reach, const Options &options) {
    std::vector<Operation> operations(3, operation_of(Collective::AllReduce, bytes, 256, plan::kDeviceSlots));
    for (Operation &op : operations) op.request.reach = reach;
    return prove(t, operations, options);
  };
  struct Part {
    bool Options::*engine;
    uint64_t
        bytes;  // of two chunks, all copies in come early, and nothing but the rule orders them behind the operation before the last one
  };
  for (const Part &part :
       {Part{&Options::two_places, 64 << 10}, Part{&Options::early_waits, 2048}, Part{&Options::early_meets, 64 << 10}})
    for (const uint64_t reach : {uint64_t{0}, uint64_t{1} << 40}) {
      Options options;
      options.early = true;
      const Verdict sound = prove_three(part.bytes, reach, options);
      ASSERT_TRUE(sound.ok) << sound.text;
      ASSERT_EQ(sound.early, 4u);  // the second and the third operation of two ranks
      options.*part.engine = false;
      const Verdict v = prove_three(part.bytes, reach, options);
      EXPECT_FALSE(v.ok) << part.bytes << " " << reach;
      EXPECT_NE(v.text.find("race"), std::string::npos) << v.text;
    }
}

// A host list takes what the second stream posts for the next operation for its own, unless its own posts stand there too.
TEST(Mutation, AnOperationIsRefusedThatComesEarlyBehindOneThatStagesOnTheFirstStream) {
  std::vector<Operation> operations(2, operation_of(Collective::AllReduce, 64 * 1024, 256, plan::kDeviceSlots));
  Options options;
  options.early = true;
  options.mutate = [](size_t operation, int, plan::Plan &p) {
    for (plan::Stage &s : p.device) s.beside = s.beside && operation != 0;
  };
  const Verdict v = prove(world_of("no", "", topology::Bridge::Auto), operations, options);
  EXPECT_FALSE(v.ok);
  EXPECT_NE(v.text.find("beside the last post"), std::string::npos) << v.text;
}

TEST(Mutation, AnIslandsPlanNeedsItsSlotsAndItsOrder) {
  const auto t = world_of("AAbBB");
  const Operation op = island_operation(20'004);
  const auto with = [&](auto change) {
    return prove_twice(t, op, [&](int, Plan &q) {
      if (!q.device.empty()) change(q);
    });
  };
  EXPECT_TRUE(with([](Plan &) {}).ok);
  EXPECT_FALSE(with([](Plan &q) { q.slots = 3; }).ok) << "answers are still read from the slot";
  const Verdict late = with([](Plan &q) { q.device[0].skew = 2; });  // copy out of chunk c before copy in of chunk c + 2
  EXPECT_FALSE(late.ok);
  EXPECT_NE(late.text.find("deadlock"), std::string::npos) << late.text;
  const Verdict store_and_forward = with([](Plan &q) { q.device[0].skew = q.chunks; });  // all in, then all out
  EXPECT_FALSE(store_and_forward.ok);
  const Verdict other_root = with([](Plan &q) {
    for (Step &s : q.steps)
      if (s.kind == StepKind::Ccl && s.call == IslandCall::Reduce && q.rank == 0) s.peer = 1 - s.peer;
  });
  EXPECT_NE(other_root.text.find("another rank calls"), std::string::npos) << other_root.text;
}

// An average of float16: what the library makes smaller, so that its sum is in range, the reduces make larger again.
TEST(Mutation, AnAverageOfAShortRangeNeedsEachOfItsFactors) {
  for (const char *islands : {"AAb", "AAAbBB", "bAAA"})
    for (const auto bridge : {topology::Bridge::Auto, topology::Bridge::Tcp})
      for (const Collective c : {Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter})
        for (const uint64_t bytes : {uint64_t{1000}, uint64_t{10'004}}) {
          const auto t = world_of(islands, "", bridge);
          Operation op = island_operation(bytes, c, 1);
          op.request.dtype = DType::Float16;
          op.request.op = RedOp::Avg;
          const auto with = [&](auto change) { return prove_twice(t, op, [&](int rank, Plan &p) { change(rank, p); }); };
          const auto each_call = [](Plan &p, auto f) {
            for (Step &s : p.steps)
              if (s.kind == StepKind::Ccl && reduces(s.call)) f(s);
          };
          const Verdict whole = with([](int, Plan &) {});
          ASSERT_TRUE(whole.ok) << islands << " " << collective_name(c) << ": " << whole.text;
          EXPECT_FALSE(with([&](int, Plan &p) {
                         each_call(p, [](Step &s) { s.op = RedOp::Sum, s.halvings = 0; });
                         for (plan::Span &s : p.sources) s.weight = 1;
                       }).ok)
              << islands << " " << collective_name(c) << ": a sum that overflows";
          EXPECT_FALSE(with([&](int, Plan &p) {
                         each_call(p, [](Step &s) { --s.halvings; });
                         for (plan::Span &s : p.sources) s.weight = std::max(s.weight / 2, 1u);
                       }).ok)
              << islands << " " << collective_name(c) << ": a factor that is too large";
          EXPECT_FALSE(with([&](int rank, Plan &p) { each_call(p, [&](Step &s) { s.halvings += rank == 1; }); }).ok)
              << islands << " " << collective_name(c) << ": factors that differ";
          size_t weights = 0;
          for (int rank = 0; rank < t.size(); ++rank) {
            const auto p = plan::plan_collective(t, rank, op.request);
            for (const Step &s : p->steps)
              for (uint32_t i = s.source; s.kind == StepKind::Reduce && runs(*p, s) && i < s.source + s.sources; ++i) {
                if (p->sources[i].weight == 1) continue;
                ++weights;
                for (const uint32_t other : {1u, 2 * p->sources[i].weight})
                  EXPECT_FALSE(with([&](int r, Plan &q) {
                                 if (r == rank) q.sources[i].weight = other;
                               }).ok)
                      << islands << " " << collective_name(c) << ", rank " << rank << ", source " << i;
              }
          }
          EXPECT_GT(weights, 0u) << islands << " " << collective_name(c);
        }
}

TEST(Mutation, EveryCopyAndCallOfAnIslandThatIsAloneIsNeeded) {
  const auto t = world_of("AAA");
  for (const auto c : {Collective::AllToAll, Collective::Gather, Collective::Scatter, Collective::AllGatherV,
                       Collective::ReduceScatterV, Collective::GatherV, Collective::ScatterV, Collective::AllToAllV}) {
    Operation op = operation_of(c, 1000);
    op.in_place = op.request.in_place = c == Collective::AllToAll;
    op.counts = {400, 1000, 64};
    op.matrix = {{400, 8, 0}, {1000, 64, 4}, {16, 0, 32}};
    op.request.root = 1;
    ASSERT_TRUE(prove_twice(t, op, [](int, Plan &) {}).ok) << collective_name(c);
    for (int rank = 0; rank < t.size(); ++rank)
      for (size_t i = 0; i < plan::plan_collective(t, rank, op.request)->steps.size(); ++i) {
        const Verdict without = prove_twice(t, op, [&](int r, Plan &q) {
          if (r == rank) drop(q.steps[i]);
        });
        EXPECT_FALSE(without.ok) << collective_name(c) << ", rank " << rank << ", step " << i;
      }
    const Verdict other_peer = prove_twice(t, op, [](int r, Plan &q) {
      for (Step &s : q.steps)
        if (r == 0 && s.kind == StepKind::Ccl && (s.call == IslandCall::Send || s.call == IslandCall::Recv)) s.peer = 2;
    });
    const bool pairs = has_root(c);
    EXPECT_EQ(other_peer.ok, !pairs) << other_peer.text;
  }
}

// Where only a part of an operation is a library's.
TEST(Mutation, EveryCopyAndCallOfBlocksThatStayInAnIslandIsNeeded) {
  for (const char *hosts : {"xxx", "xyx"})
    for (const auto c : {Collective::AllToAll, Collective::AllToAllV, Collective::Gather, Collective::ScatterV}) {
      const auto t = world_of("NNo", hosts, topology::Bridge::Auto);
      Operation op = operation_of(c, 1000);
      op.in_place = op.request.in_place = c == Collective::AllToAll;
      op.counts = {400, 1000, 64};
      op.matrix = {{400, 8, 12}, {1000, 64, 4}, {16, 8, 32}};
      const Verdict whole = prove_twice(t, op, [](int, Plan &) {});
      ASSERT_TRUE(whole.ok) << whole.text;
      for (int rank = 0; rank < 2; ++rank) {
        plan::Request request = op.request;
        request.device = true;
        const auto p = plan::plan_collective(t, rank, request);
        const auto island = std::find_if(p->device.begin(), p->device.end(),
                                         [](const plan::Stage &s) { return std::string_view(s.name) == "island"; });
        ASSERT_NE(island, p->device.end());
        for (uint32_t i = island->step; i < island->step + island->steps; ++i)
          EXPECT_FALSE(prove_twice(t, op,
                                   [&](int r, Plan &q) {
                                     if (r == rank) drop(q.steps[i]);
                                   })
                           .ok)
              << collective_name(c) << ", rank " << rank << ", step " << i << "\n"
              << plan::explain(*p, t);
        if (c != Collective::AllToAllV) continue;
        const Verdict early = prove_twice(t, op, [&](int r, Plan &q) {
          if (r == rank) q.device[static_cast<size_t>(island - p->device.begin())].skew = 0;
        });
        EXPECT_NE(early.text.find("that were not compared"), std::string::npos) << early.text;
        const Verdict blindly = prove_twice(t, op, [&](int r, Plan &q) {
          if (r == rank) q.pairwise_sizes = false;
        });
        EXPECT_NE(blindly.text.find("that were not compared"), std::string::npos) << blindly.text;
      }
    }
}

TEST(Mutation, WithoutAnyOneOfItsFramesABridgedPlanIsRefused) {
  for (const char *islands : {"ab", "aabb", "abc"})
    for (int c = 0; c < 14; ++c) {
      const auto t = world_of(islands);
      const Operation op = long_operation(static_cast<Collective>(c), t.size());
      for (int rank = 0; rank < t.size(); ++rank) {
        const auto p = plan::plan_collective(t, rank, op.request);
        for (size_t i = 0; i < p->steps.size(); ++i) {
          const StepKind kind = p->steps[i].kind;
          if (kind != StepKind::Send && kind != StepKind::Recv) continue;
          EXPECT_FALSE(prove_twice(t, op,
                                   [&](int r, Plan &q) {
                                     if (r == rank) drop(q.steps[i]);
                                   })
                           .ok)
              << islands << " " << collective_name(op.request.collective) << ", rank " << rank << ", step " << i;
        }
      }
    }
}

TEST(Mutation, WithoutAnyOneOfItsMovesOrReductionsAPlanIsRefused) {
  for (const char *islands : {"aaa", "aabb"})
    for (int c = 0; c < 13; ++c) {
      const auto t = world_of(islands);
      const Operation op = long_operation(static_cast<Collective>(c), t.size());
      const auto p = plan::plan_collective(t, 0, op.request);
      for (size_t i = 0; i < p->steps.size(); ++i)
        if (p->steps[i].kind == StepKind::Move || p->steps[i].kind == StepKind::Reduce) {
          EXPECT_FALSE(prove_twice(t, op,
                                   [&](int r, Plan &q) {
                                     if (r == 0) drop(q.steps[i]);
                                   })
                           .ok)
              << islands << " " << collective_name(op.request.collective) << ", step " << i;
        }
    }
}

TEST(Mutation, WithoutAnyOneOfItsPostsAPlanIsRefused) {
  for (const char *islands : {"aaa", "aab", "aabb"})
    for (int c = 0; c < 14; ++c) {
      const auto t = world_of(islands);
      const Operation op = long_operation(static_cast<Collective>(c), t.size());
      for (int rank = 0; rank < t.size(); ++rank) {
        const auto p = plan::plan_collective(t, rank, op.request);
        for (size_t i = 0; i < p->steps.size(); ++i) {
          if (p->steps[i].kind != StepKind::Post) continue;
          const Verdict v = prove_twice(t, op, [&](int r, Plan &q) {
            if (r == rank) drop(q.steps[i]);
          });
          EXPECT_NE(v.text.find("deadlock"), std::string::npos)
              << islands << " " << collective_name(op.request.collective) << ", rank " << rank << ", step " << i << v.text;
        }
      }
    }
}

TEST(Mutation, APostBeforeItsDataIsARace) {
  for (const char *islands : {"aaa", "aabb"})
    for (int c = 0; c < 13; ++c) {
      const auto t = world_of(islands);
      const Operation op = long_operation(static_cast<Collective>(c), t.size());
      const auto p = plan::plan_collective(t, 0, op.request);
      for (size_t i = 1; i < p->steps.size(); ++i) {
        const StepKind before = p->steps[i - 1].kind;
        if (p->steps[i].kind != StepKind::Post || (before != StepKind::Move && before != StepKind::Reduce)) continue;
        if (p->steps[i - 1].dst.memory != Memory::Ring) continue;
        EXPECT_FALSE(prove_twice(t, op,
                                 [&](int r, Plan &q) {
                                   if (r == 0) std::swap(q.steps[i - 1], q.steps[i]);
                                 })
                         .ok)
            << islands << " " << collective_name(op.request.collective) << ", step " << i;
      }
    }
}

TEST(Mutation, FewerSlotsThanTheWaitsCountOnIsARaceOrADeadlock) {
  for (Collective c : {Collective::AllReduce, Collective::AllGather, Collective::Broadcast, Collective::AllToAll,
                       Collective::Reduce, Collective::ReduceScatter, Collective::Gather, Collective::Scatter})
    for (const char *islands : {"aaa", "aabb"}) {
      const auto t = world_of(islands);
      EXPECT_FALSE(prove_twice(t, long_operation(c, t.size(), 3), [](int, Plan &p) { p.slots = 1; }).ok)
          << collective_name(c);
      EXPECT_FALSE(prove_twice(t, long_operation(c, t.size(), 3), [](int, Plan &p) { p.slot_bytes /= 2; }).ok)
          << collective_name(c);
    }
}

TEST(Mutation, AnotherOrderOfTheSumIsAnotherResult) {
  for (const char *islands : {"aaa", "aabb", "abc"}) {
    const auto t = world_of(islands);
    const Operation op = long_operation(Collective::AllReduce, t.size());
    const Verdict v = prove_twice(t, op, [](int r, Plan &p) {
      if (r == 0)
        for (const Step &s : p.steps)
          if (s.kind == StepKind::Reduce && !s.partial) std::swap(p.sources[s.source], p.sources[s.source + s.sources - 1]);
    });
    EXPECT_FALSE(v.ok);
    EXPECT_NE(v.text.find("wrong result"), std::string::npos) << v.text;
  }
}

// AVG is divided once, by the number of ranks, where the sum is rounded.
TEST(Mutation, AnotherDivisorIsAnotherResult) {
  for (const char *islands : {"aaa", "aabb"}) {
    const auto t = world_of(islands);
    for (const RedOp asked : {RedOp::Avg, RedOp::Sum}) {
      Operation op = long_operation(Collective::AllReduce, t.size());
      op.request.op = asked;
      const Verdict sound = prove_twice(t, op, [](int, Plan &) {});
      ASSERT_TRUE(sound.ok) << sound.text;
      const auto broken = [&](bool partial, uint64_t divisor) {
        return prove_twice(t, op, [&](int r, Plan &p) {
          for (Step &s : p.steps)
            if (r == 0 && s.kind == StepKind::Reduce && s.partial == partial) s.divisor = divisor;
        });
      };
      EXPECT_NE(broken(false, asked == RedOp::Avg ? 1 : 2).text.find("wrong result"), std::string::npos);
      const Verdict early = broken(true, 2);
      EXPECT_EQ(early.ok, std::string(islands) == "aaa") << early.text;
      if (!early.ok) { EXPECT_NE(early.text.find("a partial result is divided by 2"), std::string::npos) << early.text; }
    }
  }
}

TEST(Mutation, AnotherGroupingOfTheSumIsAnotherResult) {
  const auto t = world_of("aabb", "", topology::Bridge::Auto);  // flat: the groups only say the order
  const Verdict v = prove_twice(t, long_operation(Collective::AllReduce, 4), [](int r, Plan &p) {
    if (r == 1)
      for (Step &s : p.steps) s.groups = 0;
  });
  EXPECT_FALSE(v.ok);
  EXPECT_NE(v.text.find("wrong result"), std::string::npos) << v.text;
}

TEST(Mutation, RoundingTwiceIsAnotherResult) {
  const auto t = world_of("aab");
  const Verdict v = prove_twice(t, long_operation(Collective::AllReduce, 3), [](int, Plan &p) {
    for (Step &s : p.steps)
      if (s.partial) s.partial = false, s.dst.partial = false;
    for (auto &s : p.sources) s.partial = false;
  });
  EXPECT_FALSE(v.ok);
}

TEST(Mutation, AFrameOfAnotherSizeIsRefused) {
  const auto t = world_of("ab");
  const Verdict v = prove_twice(t, long_operation(Collective::AllReduce, 2), [](int r, Plan &p) {
    if (r == 0)
      for (Step &s : p.steps)
        if (s.kind == StepKind::Send) s.extent.length -= 64;
  });
  EXPECT_FALSE(v.ok);
  EXPECT_NE(v.text.find("bytes"), std::string::npos) << v.text;
}

TEST(Mutation, AStatedVolumeThatIsNotTheRealOneIsRefused) {
  const auto t = world_of("ab");
  const Verdict v = prove_twice(t, long_operation(Collective::Broadcast, 2), [](int r, Plan &p) { p.link_bytes += r == 0; });
  EXPECT_FALSE(v.ok);
  EXPECT_NE(v.text.find("states"), std::string::npos) << v.text;
}

TEST(Mutation, AReceiveBeforeItsSendIsADeadlock) {
  const auto t = world_of("ab");
  const Verdict v = prove_twice(t, long_operation(Collective::AllReduce, 2), [](int, Plan &p) {
    std::swap(p.host.front(), p.host.back());
    for (auto &stage : p.host) stage.skew = 0;
  });
  EXPECT_FALSE(v.ok);
  EXPECT_NE(v.text.find("deadlock"), std::string::npos) << v.text;
}

TEST(Mutation, WritingElsewhereIsRefused) {
  const auto t = world_of("aa");
  const Operation op = long_operation(Collective::AllGather, 2);
  const auto ring = prove_twice(t, op, [](int r, Plan &p) {
    for (Step &s : p.steps)
      if (r == 0 && s.kind == StepKind::Move && s.dst.memory == Memory::Ring) s.dst.rank = 1;
  });
  EXPECT_NE(ring.text.find("writes to the ring of rank 1"), std::string::npos) << ring.text;
  const auto block = prove_twice(t, op, [](int r, Plan &p) {
    for (Step &s : p.steps)
      if (r == 0 && s.dst.memory == Memory::Output && s.kind == StepKind::Move) s.dst.base += 64;
  });
  EXPECT_NE(block.text.find("outside of block"), std::string::npos) << block.text;
}

TEST(Mutation, InPlaceWithoutStagingIsARace) {
  const auto t = world_of("ab");
  Operation op = long_operation(Collective::AllToAll, 2, 4);
  op.in_place = true;
  EXPECT_TRUE(prove_twice(t, op, [](int, Plan &) {}).ok);
  const Verdict v = prove_twice(t, op, [](int, Plan &p) {
    for (Step &s : p.steps)
      if (s.kind == StepKind::Send) {
        plan::Span &from = p.sources[s.source];
        from = {Memory::Input, -1, s.extent.block, 0, p.chunk, false};
      }
  });
  EXPECT_FALSE(v.ok);
  EXPECT_NE(v.text.find("link reads"), std::string::npos) << v.text;
}

}  // namespace
}  // namespace isthmus::prover
