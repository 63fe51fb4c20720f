// Every collective proved on worlds of all shapes. What "proved" means stands in prover/prove.hpp.
#include <cstring>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "plan/cursor.hpp"
#include "prove_case.hpp"

namespace isthmus::prover {
namespace {

using plan::Collective;
constexpr int kProved = 14;  // all but send and recv

// Under a sanitizer, and under emulation, the proof is a test of the prover's and the planner's own memory: each world still has every
// collective, but only one in so many of its combinations. A prime, so that none of the loops is always met at the same place.
#if defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__)
constexpr int kOneIn = 23, kRounds = 150;
#else
constexpr int kOneIn = 1, kRounds = 2000;
#endif

constexpr uint64_t kReach = uint64_t{1} << 40;

bool in_place_allowed(Collective c) {
  return c == Collective::AllReduce || c == Collective::Reduce || c == Collective::Broadcast || c == Collective::AllGather ||
         c == Collective::AllGatherV || c == Collective::ReduceScatter || c == Collective::ReduceScatterV ||
         c == Collective::AllToAll;
}

// Sizes for the v-collectives: some blocks empty, some long, seeded by `bytes`.
void add_sizes(Operation &op, int world, uint64_t element) {
  const uint64_t unit = op.request.bytes / element;
  for (int i = 0; i < world; ++i) {
    op.counts.push_back(i % 3 == 1 ? 0 : unit * static_cast<uint64_t>(i + 1) / 2 * element);
    op.matrix.emplace_back();
    for (int j = 0; j < world; ++j)
      op.matrix.back().push_back((i * 7 + j * 3) % 4 == 0 ? 0 : unit * static_cast<uint64_t>((i + 2 * j) % 3) * element);
  }
}

std::string name_of(const std::string &islands, const Operation &op) {
  return islands + " " + collective_name(op.request.collective) + " of " + std::to_string(op.request.bytes) + " slots " +
         std::to_string(op.request.max_slots) + " op " + redop_name(op.request.op) + " " + dtype_name(op.request.dtype) +
         (op.in_place ? " in place" : "");
}

class Worlds : public testing::TestWithParam<const char *> {};

TEST_P(Worlds, EveryCollectiveIsItsDefinitionAndFreeOfRacesAndDeadlocks) {
  int combination = 0;
  for (auto bridge : {topology::Bridge::Auto, topology::Bridge::Tcp})
    for (int c = 0; c < kProved; ++c)
      for (uint64_t bytes : {0, 4, 1000, 9000})
        for (auto [redop, dtype] : {std::pair{RedOp::Sum, DType::Float32},
                                    {RedOp::Avg, DType::BFloat16},
                                    {RedOp::Avg, DType::Float16},
                                    {RedOp::PremulSum, DType::Float16}})
          for (uint32_t slots : {2, 3, 4, 5, 6})
            for (bool in_place : {false, true}) {
              if (slots >= 5 && !topology::has_devices(world_of(GetParam(), "", bridge))) continue;
              if (combination++ % kOneIn) continue;
              const auto t = world_of(GetParam(), "", bridge);
              Operation op = operation_of(static_cast<Collective>(c), bytes, 256, slots);
              if (in_place && !in_place_allowed(op.request.collective)) continue;
              op.in_place = in_place;
              op.request.op = redop;
              op.request.dtype = dtype;
              op.request.root = t.size() - 1;
              add_sizes(op, t.size(), dtype_size(dtype));
              const Operation twice[] = {op, op};  // back to back: slots and scratch are used again
              const Verdict v = prove(t, twice);
              ASSERT_TRUE(v.ok) << name_of(GetParam(), op) << ": " << v.text;
              if (!topology::has_devices(t) || !topology::one_memory(t)) continue;
              // Through slots that the devices reach: all of them, or some.
              const auto reaching = [&](Operation o) {
                o.request.reach = kReach;
                return o;
              };
              const Operation near[] = {reaching(op), op, reaching(op)};
              for (uint64_t who : {~uint64_t{0}, uint64_t{0xaaaaaaaaaaaaaaaa}}) {
                Options options;
                options.reaching = who;
                const Verdict w = prove(t, near, options);
                ASSERT_TRUE(w.ok) << name_of(GetParam(), op) << " by slots that devices reach: " << w.text;
              }
            }
}
INSTANTIATE_TEST_SUITE_P(All, Worlds,
                         testing::Values("a", "aa", "aaaa", "ab", "aabb", "abab", "abc", "aaab", "baabb", "aabbbc", "abcd"));
INSTANTIATE_TEST_SUITE_P(Libraries, Worlds,
                         testing::Values("A", "AA", "AAA", "AB", "Ab", "AAb", "bAA", "AAbb", "AABB", "ABAB", "AAAbCC",
                                         "AbABbA", "AAABBCCd", "AAABBcD"));
INSTANTIATE_TEST_SUITE_P(Devices, Worlds,
                         testing::Values("n", "no", "na", "anb", "noan", "nop", "nopq", "nnbo", "NNo", "NNOOp", "NaNo",
                                         "NNNap"));

// Where frames are long on their way many chunks are sent before the first is waited for. Of the longest of these messages slots are used again.
class FarWorlds : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(All, FarWorlds,
                         testing::Values("a", "aa", "ab", "aabb", "abc", "aaab", "baabb", "abcd", "aabbbc", "AAb", "AABB",
                                         "na", "NNo", "NaNo"));
TEST_P(FarWorlds, EveryCollectiveIsItsDefinitionAndFreeOfRacesAndDeadlocks) {
  constexpr uint64_t kAnyWay = uint64_t{1} << 40;  // an all_reduce goes one way whatever that costs
  int combination = 0;
  for (auto bridge : {topology::Bridge::Auto, topology::Bridge::Tcp})
    for (int c = 0; c < kProved; ++c)
      for (uint64_t bytes : {4, 1000, 9000, 100'000})
        for (auto [redop, dtype] : {std::pair{RedOp::Sum, DType::Float32},
                                    {RedOp::Avg, DType::BFloat16},
                                    {RedOp::Sum, DType::Float8E4M3FN},
                                    {RedOp::PremulSum, DType::Float16}})
          for (auto [in_place, way] : {std::pair{false, uint64_t{0}}, {true, 0}, {false, kAnyWay}, {true, kAnyWay}}) {
            if (way != 0 && static_cast<Collective>(c) != Collective::AllReduce) continue;
            if (combination++ % kOneIn) continue;
            const auto t = world_of(GetParam(), "", bridge);
            Operation op = operation_of(static_cast<Collective>(c), bytes, 256);
            if (in_place && !in_place_allowed(op.request.collective)) continue;
            op.in_place = in_place;
            op.request.far = true;
            op.request.way_bytes = way;
            op.request.op = redop;
            op.request.dtype = dtype;
            op.request.root = t.size() - 1;
            add_sizes(op, t.size(), dtype_size(dtype));
            const Operation twice[] = {op, op};
            const Verdict v = prove(t, twice);
            ASSERT_TRUE(v.ok) << "far: " << name_of(GetParam(), op) << ": " << v.text;
          }
}

// Of equal counts, as on a communicator with holes between its ranks.
TEST(Proof, BlocksThatLieApartAreGivenAndGotAsThoseThatLieBackToBack) {
  int combination = 0;
  for (const char *islands : {"a", "aaa", "abb", "AAA", "AAb", "AABB", "NNN", "NNo", "NaN", "noan"})
    for (auto bridge : {topology::Bridge::Auto, topology::Bridge::Tcp})
      for (const auto c :
           {Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll, Collective::Gather, Collective::Scatter})
        for (uint64_t bytes : {4, 1000, 9000})
          for (const RedOp redop : {RedOp::Sum, RedOp::Avg})
            for (bool in_place : {false, true}) {
              if (combination++ % std::min(kOneIn, 7)) continue;
              if (in_place && !in_place_allowed(c)) continue;
              const auto t = world_of(islands, "", bridge);
              Operation op = operation_of(c, bytes, 256, 4);
              op.request.apart = true;
              op.request.op = redop;
              op.request.root = t.size() - 1;
              op.in_place = in_place;
              const Operation twice[] = {op, op};
              const Verdict v = prove(t, twice);
              ASSERT_TRUE(v.ok) << name_of(islands, op) << ": " << v.text;
            }
}

// Long messages, so that slots are used again and again, and last chunks that the groups cannot cut in equal pieces.
class LongMessages : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(Islands, LongMessages,
                         testing::Values("AA", "AAb", "AAbb", "ABAB", "AAAbCC", "AAABBCCd", "AAAAABBBccD"));
TEST_P(LongMessages, HoldOnIslandsWithLibraries) {
  int combination = 0;
  const char *const islands = GetParam();
  for (Collective c :
       {Collective::AllReduce, Collective::Broadcast, Collective::AllGather, Collective::Reduce, Collective::ReduceScatter})
    for (uint64_t bytes : {32 * 1024, 65'540})
      for (uint32_t slots : {2, 9})
        for (bool in_place : {false, true})
          for (int root = 0; root < (c == Collective::Broadcast || c == Collective::Reduce ? 4 : 1); ++root) {
            if (combination++ % std::min(kOneIn, 7)) continue;  // a collective has 8
            auto t = world_of(islands);
            for (size_t g = 0; g < t.weights.size(); ++g) t.weights[g] = 1.0 + static_cast<double>(g % 3);
            t.digest = topology::digest_of(t);
            Operation op =
                operation_of(c, bytes, c == Collective::AllGather || c == Collective::ReduceScatter ? 512 : 64, slots);
            op.in_place = in_place;
            op.request.root = std::min(root * 2, t.size() - 1);
            EXPECT_EQ(topology::has_libraries(plan::planned_on(t, op.request)), true);
            const auto p = plan::plan_collective(t, 0, op.request);
            const bool long_enough = t.islands.size() == 1 || c == Collective::AllGather || c == Collective::ReduceScatter ||
                                     p->chunks > 2 * slots;
            ASSERT_TRUE(long_enough) << "slots are used again";
            const Operation twice[] = {op, op};
            const Verdict v = prove(t, twice);
            ASSERT_TRUE(v.ok) << name_of(islands, op) << ": " << v.text;
          }
}

// The same on one host, where all read each other's slots: all devices reach them, or some, or none.
class LongMessagesOnOneHost : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(Islands, LongMessagesOnOneHost,
                         testing::Values("AAb", "bAA", "NNo", "NNOO", "NaNo", "AAbnp", "NNNOOppb", "AAAAABBBccD"));
TEST_P(LongMessagesOnOneHost, HoldOnIslandsWithLibraries) {
  int combination = 0;
  const char *const islands = GetParam();
  for (Collective c : {Collective::Broadcast, Collective::AllGather, Collective::AllReduce, Collective::Reduce,
                       Collective::ReduceScatter, Collective::AllGatherV, Collective::ReduceScatterV})
    for (uint64_t bytes : {32 * 1024, 65'540})
      for (uint32_t slots : {2, 6, 9})
        for (bool in_place : {false, true})
          for (int root = 0; root < (has_root(c) ? static_cast<int>(std::strlen(islands)) : 1); ++root)
            for (uint64_t who : {~uint64_t{0}, uint64_t{0xaaaaaaaaaaaaaaaa}, uint64_t{0}}) {
              if (combination++ % kOneIn) continue;
              const auto t = world_of(islands, "", topology::Bridge::Auto);
              Operation op = operation_of(c, bytes, 64, slots);
              op.in_place = in_place;
              op.request.root = root;
              op.request.reach = kReach;
              add_sizes(op, t.size(), 4);
              const auto p = plan::plan_collective(t, 0, op.request);
              if (is_varying(c)) ASSERT_GT(bytes / p->chunk, 2 * slots) << "slots are used again";
              else ASSERT_GT(p->chunks, 2 * slots) << "slots are used again";
              EXPECT_FALSE(p->uses_links);
              Options options;
              options.reaching = who;
              const Operation twice[] = {op, op};
              const Verdict v = prove(t, twice, options);
              ASSERT_TRUE(v.ok) << name_of(islands, op) << ": " << v.text;
            }
}

// Islands that meet on several hosts: some of one host each, some on two, ranks of no island, hosts of one rank. Long messages too, so that slots are
// used again; all devices reach the slots of their host, or some, or none.
class IslandsThatMeetOnHosts : public testing::TestWithParam<std::pair<const char *, const char *>> {};
INSTANTIATE_TEST_SUITE_P(Worlds, IslandsThatMeetOnHosts,
                         testing::Values(std::pair{"NNOOPPQQ", "xxxxyyyy"}, std::pair{"NNOO", "xyxy"},
                                         std::pair{"NOON", "xxyy"}, std::pair{"NNOOpa", "xyxyxy"}, std::pair{"AAb", "xyx"},
                                         std::pair{"NNa", "xxy"}, std::pair{"NNaO", "xyyx"}, std::pair{"NNNOOb", "xxyyyz"},
                                         std::pair{"NNOOOaop", "xyzxyxyz"}, std::pair{"AAABBcdC", "xyzzyxyz"}));
TEST_P(IslandsThatMeetOnHosts, UseTheSlotsOfTheirHostsAndLinksBetweenHostsAlone) {
  const auto [islands, hosts] = GetParam();
  const auto t = world_of(islands, hosts, topology::Bridge::Auto);
  int combination = 0;
  for (Collective c : {Collective::AllReduce, Collective::Broadcast, Collective::AllGather, Collective::ReduceScatter})
    for (uint64_t bytes : {68, 1000, 32 * 1024, 65'540})
      for (auto [redop, dtype] :
           {std::pair{RedOp::Sum, DType::Float32}, {RedOp::Avg, DType::BFloat16}, {RedOp::Avg, DType::Float16}})
        for (uint32_t slots : {2, 6, 9})
          for (bool in_place : {false, true})
            for (int root = 0; root < (c == Collective::Broadcast ? t.size() : 1); ++root)
              for (uint64_t who : {~uint64_t{0}, uint64_t{0xaaaaaaaaaaaaaaaa}, uint64_t{0}}) {
                if (combination++ % std::max(kOneIn, 5)) continue;
                Operation op = operation_of(c, bytes, 64, slots);
                op.in_place = in_place;
                op.request.root = root;
                op.request.dtype = dtype;
                op.request.op = redop;
                op.request.reach = kReach;
                Options options;
                options.reaching = who;
                const Operation twice[] = {op, op};
                const Verdict v = prove(t, twice, options);
                ASSERT_TRUE(v.ok) << name_of(islands, op) << " on " << hosts << ", root " << root << ": " << v.text;
              }
}

// On one host the devices move what is only moved: the host list of a rank with a device waits and posts, and neither copies nor gives a link
// anything. A sum is one reduction of what lies in slots, and of the rank's own part.
TEST(Proof, WhereDevicesReachTheSlotsNoProcessorTouchesWhatIsOnlyMoved) {
  struct Touched {
    size_t moves = 0, frames = 0, reductions = 0;
    uint64_t reduced = 0, chunk = 0;  // bytes of a chunk
  };
  const auto touched = [](const topology::Topology &t, int rank, plan::Request r, uint64_t reach) {
    r.device = t.ranks[static_cast<size_t>(rank)].device != "host";
    r.reach = reach;
    const auto p = plan::plan_collective(t, rank, r);
    Touched n;
    n.chunk = p->chunk;
    for (const plan::Stage &stage : p->host)
      for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
        const plan::Step &s = p->steps[i];
        n.moves += s.kind == plan::StepKind::Move;
        n.frames += (s.kind == plan::StepKind::Send || s.kind == plan::StepKind::Recv) && !s.token;
        if (s.kind != plan::StepKind::Reduce) continue;
        ++n.reductions;
        n.reduced += s.extent.length;
      }
    return n;
  };
  for (const char *islands : {"nonp", "nao", "NNoo", "NaNo", "NNOO", "NNNap"}) {
    const auto t = world_of(islands, "", topology::Bridge::Auto);
    for (int c = 0; c < kProved; ++c)
      for (uint64_t bytes : {1000, 100'000}) {
        const auto collective = static_cast<Collective>(c);
        const plan::Request r = operation_of(collective, bytes, 256, 6).request;
        const auto planned = plan::planned_on(t, r);
        const bool sums = collective == Collective::AllReduce || collective == Collective::Reduce ||
                          collective == Collective::ReduceScatter || collective == Collective::ReduceScatterV;
        const bool libraries = topology::has_libraries(planned);
        uint64_t reduced = 0, chunk = 0;
        size_t else_touched = 0;
        for (int rank = 0; rank < t.size(); ++rank) {
          const Touched near = touched(t, rank, r, kReach), far = touched(t, rank, r, 0);
          reduced += near.reduced;
          chunk = near.chunk;
          if (t.ranks[static_cast<size_t>(rank)].device == "host") continue;
          SCOPED_TRACE(std::string(islands) + " " + collective_name(collective) + " of " + std::to_string(bytes) +
                       ", rank " + std::to_string(rank));
          const auto group = static_cast<size_t>(planned.island_of[static_cast<size_t>(rank)]);
          else_touched += far.moves + far.frames;
          // Of an island with a library not all have something to bring, nor do all that stand at a root's side.
          const bool only_inside = has_root(collective) && rank != r.root && !plan::inside_of(t, rank, r).empty();
          if (planned.islands[group].ccl.empty() && !only_inside) {
            EXPECT_EQ(far.moves + far.frames > 0, collective != Collective::Barrier) << "else by processors";
          }
          EXPECT_EQ(near.frames, 0u);
          EXPECT_EQ(near.moves, 0u);
          // Between islands the root's island reduces; of a small message the root alone.
          const bool gives =
              collective == Collective::Reduce && libraries &&
              (t.island_of[static_cast<size_t>(r.root)] != static_cast<int>(t.island_of[static_cast<size_t>(rank)]) ||
               (planned.islands[group].ranks.size() > 1 && near.reductions == 0));
          EXPECT_EQ(near.reductions > 0, sums && !gives);
          if (!libraries) { EXPECT_LE(near.reductions, 1u); }
        }
        // Where libraries serve all, each rank or the root's island takes its own reductions, which lie where its device copies.
        const bool own =
            sums && collective != Collective::AllReduce &&
            std::all_of(planned.islands.begin(), planned.islands.end(), [](const auto &g) { return !g.ccl.empty(); });
        EXPECT_EQ(else_touched > 0, collective != Collective::Barrier && !own)
            << islands << " " << collective_name(collective);
        if (collective == Collective::AllReduce || collective == Collective::Reduce) {
          EXPECT_EQ(reduced, chunk) << islands << " " << collective_name(collective) << ": each byte by one rank";
        }
      }
  }
}

// The same inside each host of several. What the host lists still do is to give links what goes to another host, out of slots and into slots.
TEST(Proof, ASecondHostChangesNothingForRanksOfOneHost) {
  struct World {
    const char *islands, *hosts;
  };
  for (const auto &[islands, hosts] : {World{"NNOOPPQQ", "xxxxyyyy"}, World{"NNOO", "xyxy"}, World{"NOnoNO", "xxxyyy"},
                                       World{"nono", "xxyy"}, World{"nnoo", "xyxy"}, World{"nop", "xxy"}}) {
    const auto t = world_of(islands, hosts, topology::Bridge::Auto);
    for (int c = 0; c < kProved; ++c)
      for (const uint64_t bytes : {uint64_t{1000}, uint64_t{100'000}})
        for (int rank = 0; rank < t.size(); ++rank) {
          const auto collective = static_cast<Collective>(c);
          plan::Request r = operation_of(collective, bytes, 256, 6).request;
          r.small_bytes = 0;
          r.device = true;
          r.reach = kReach;
          if (collective == Collective::Reduce && topology::has_libraries(plan::planned_on(t, r))) continue;
          const auto p = plan::plan_collective(t, rank, r);
          SCOPED_TRACE(std::string(islands) + " on " + hosts + ", " + collective_name(collective) + " of " +
                       std::to_string(bytes) + ", rank " + std::to_string(rank) + "\n" + plan::explain(*p, t));
          for (const plan::Stage &stage : p->host)
            for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
              const plan::Step &s = p->steps[i];
              EXPECT_NE(s.kind, plan::StepKind::Move) << "a processor copies";
              if (s.kind != plan::StepKind::Send && s.kind != plan::StepKind::Recv) continue;
              EXPECT_NE(t.ranks[static_cast<size_t>(s.peer)].host, t.ranks[static_cast<size_t>(rank)].host) << "a frame";
            }
        }
  }
}

// Bytes over links, of the whole communicator, for messages of n. Between two hosts nothing crosses twice, and nothing at all where an island's
// library spreads it.
TEST(Proof, BetweenTwoHostsOnlySumsOfAHostAndWhatItNeedsCross) {
  struct World {
    const char *islands, *hosts;
    uint64_t all_reduce, broadcast, all_gather;  // times n
  };
  const World worlds[] = {
      {"NNOOPPQQ", "xxxxyyyy", 2, 1, 8},  // two islands on each host: else each of the other three islands gets all of it
      {"NNOO", "xyxy", 0, 0, 0},          // two islands on both hosts, side by side
      {"NNOOOO", "xyxxyy", 0, 0, 0},      // whose pieces are not alike, but begin and end on one host
      {"NNOO", "xyyx", 2, 0, 0},          // not side by side: a piece is summed of two hosts
      {"NNa", "xyx", 1, 1, 1},  // a rank on the first host, which has half of the sum, and gives half of the numbers
  };
  constexpr uint64_t n = 96 * 1024;
  for (const World &w : worlds) {
    const auto t = world_of(w.islands, w.hosts, topology::Bridge::Auto);
    const auto crosses = [&](Collective c, int root) {
      uint64_t sum = 0;
      for (int rank = 0; rank < t.size(); ++rank) {
        plan::Request r = operation_of(c, n, 256, 6).request;
        r.root = root;
        r.device = t.ranks[static_cast<size_t>(rank)].device != "host";
        r.reach = kReach;
        sum += plan::plan_collective(t, rank, r)->link_bytes;
      }
      return sum;
    };
    SCOPED_TRACE(std::string(w.islands) + " on " + w.hosts);
    EXPECT_EQ(crosses(Collective::AllReduce, 0), w.all_reduce * n);
    EXPECT_EQ(crosses(Collective::Broadcast, 1), w.broadcast * n);
    EXPECT_EQ(crosses(Collective::AllGather, 0), w.all_gather * n);
  }
}

// What a step of sharded training moves between the memory of a device and the host's, on one host. Of all_gather: a rank's block goes out once, and
// of the blocks of other islands an island's ranks take each once. Of reduce_scatter: out goes what the library has made of all blocks, a piece a rank,
// and in comes the rank's block. A chunk is one copy out and as few in, and what the library is given of it stands together.
TEST(Proof, AStepOfShardedTrainingCopiesNoByteTwice) {
  struct Copies {
    uint64_t out = 0, in = 0, number = 0;
  };
  for (const char *islands : {"NNOO", "NNNNOOOO", "NNOOPP", "NNOOOO"})
    for (const uint64_t bytes : {64 * 1000, 1 << 20}) {
      const auto t = world_of(islands, "", topology::Bridge::Auto);
      const auto world = static_cast<uint64_t>(t.size());
      for (int rank = 0; rank < t.size(); ++rank)
        for (const auto collective : {Collective::AllGather, Collective::ReduceScatter}) {
          plan::Request r = operation_of(collective, bytes, 4096, plan::kDeviceSlots).request;
          r.device = true;
          r.reach = kReach;
          const auto p = plan::plan_collective(t, rank, r);
          ASSERT_FALSE(p->uses_links);
          const std::vector<uint64_t> blocks(world, bytes);
          std::vector<uint64_t> displ;
          for (uint64_t i = 0; i < world; ++i) displ.push_back(i * bytes);
          const plan::Operands o{displ, blocks, displ, blocks};
          Copies copies;
          for (plan::Cursor at(p->device, p->steps, p->chunks); !at.done(); at.next()) {
            const plan::Step &s = at.step();
            if (s.kind != plan::StepKind::Move || !plan::runs_for(*p, s, at.chunk(), o)) continue;
            const uint64_t n = plan::extent_bytes(s.extent, at.chunk(), o);
            const auto host = [](const plan::Span &x) {
              return x.memory == plan::Memory::Ring || x.memory == plan::Memory::Scratch;
            };
            const bool from = host(p->sources[s.source]), to = host(s.dst);
            if (n == 0 || from == to) continue;
            (to ? copies.out : copies.in) += n;
            ++copies.number;
          }
          const uint64_t members = t.islands[static_cast<size_t>(t.island_of[static_cast<size_t>(rank)])].ranks.size();
          SCOPED_TRACE(std::string(islands) + " " + collective_name(collective) + " of " + std::to_string(bytes) +
                       ", rank " + std::to_string(rank) + "\n" + plan::explain(*p, t));
          if (collective == Collective::AllGather) {
            const auto at = static_cast<uint64_t>(t.index_of[static_cast<size_t>(rank)]), outside = world - members;
            const uint64_t takes = outside / members + (at < outside % members);
            EXPECT_EQ(copies.out, bytes);
            EXPECT_EQ(copies.in, takes * bytes);
            EXPECT_EQ(copies.number, p->chunks * (1 + takes));
            continue;
          }
          const uint64_t last = bytes % p->chunk, piece = p->chunk / members;
          const uint64_t mine = static_cast<uint64_t>(t.index_of[static_cast<size_t>(rank)]) * piece;
          const uint64_t rest =
              last > mine ? std::min(last - mine, piece) : 0;  // of a shorter last chunk, which goes block by block
          EXPECT_EQ(copies.out, world * (bytes / p->chunk * piece + rest));
          EXPECT_EQ(copies.in, bytes);
          EXPECT_EQ(copies.number, 2 * (bytes / p->chunk) + (rest ? world : 0) + (last ? 1 : 0));
        }
    }
}

// Whatever the library gets of a chunk at one place of the list is one group, on one host, over links and on hosts that are several.
TEST(Proof, CallsOfAChunkThatFollowEachOtherAreOneGroupOfTheLibrarys) {
  struct World {
    const char *islands, *hosts;
    topology::Bridge bridge;
  };
  for (const World &w :
       {World{"NNOO", "", topology::Bridge::Auto}, World{"NNNOOo", "", topology::Bridge::Auto},
        World{"NNOO", "", topology::Bridge::Tcp}, World{"NNNOOo", "", topology::Bridge::Tcp},
        World{"NNOO", "xyyx", topology::Bridge::Auto}, World{"NNOOPPQQ", "xxxxyyyy", topology::Bridge::Auto}})
    for (const auto collective : {Collective::Broadcast, Collective::AllGather, Collective::AllReduce, Collective::Reduce,
                                  Collective::ReduceScatter, Collective::AllGatherV, Collective::ReduceScatterV})
      for (const uint64_t bytes : {64 * 1000, 65'540}) {
        const auto t = world_of(w.islands, w.hosts, w.bridge);
        const auto world = static_cast<uint64_t>(t.size());
        size_t groups = 0;
        for (int rank = 0; rank < t.size(); ++rank) {
          plan::Request r = operation_of(collective, bytes, 4096, plan::kDeviceSlots).request;
          r.device = true;
          r.small_bytes = 0;
          const auto p = plan::plan_collective(t, rank, r);
          SCOPED_TRACE(std::string(w.islands) + " on " + w.hosts + ", " + collective_name(collective) + " of " +
                       std::to_string(bytes) + ", rank " + std::to_string(rank) + "\n" + plan::explain(*p, t));
          const std::vector<uint64_t> blocks(world, bytes), displ(world, 0);
          const plan::Operands o{displ, blocks, displ, blocks};
          size_t calls = 0;
          for (plan::Cursor at(p->device, p->steps, plan::chunks_of(*p, o)); !at.done(); at.next()) {
            const plan::Step &s = at.step();
            if (at.begins_stage() || s.kind != plan::StepKind::Ccl) calls = 0;
            if (s.kind != plan::StepKind::Ccl || !plan::runs_for(*p, s, at.chunk(), o) ||
                plan::extent_bytes(s.extent, at.chunk(), o) == 0)
              continue;
            if (++calls < 2) continue;
            EXPECT_TRUE(at.stage().together) << at.stage().name;
            ++groups;
          }
        }
        const bool many = collective == Collective::AllGather || collective == Collective::ReduceScatter;
        if (many) { EXPECT_GT(groups, 0u); }
      }
}

// The gate of a chunk is opened while a later one is copied in, or the two streams of a device would take turns.
TEST(Proof, WithSixSlotsTheStreamsOfADeviceNeedNotTakeTurns) {
  for (const char *islands : {"no", "na"})
    for (const auto bridge : {topology::Bridge::Auto, topology::Bridge::Tcp}) {
      const auto t = world_of(islands, "", bridge);
      plan::Request request = operation_of(Collective::AllReduce, 256 * 64, 256, plan::kDeviceSlots).request;
      request.device = true;
      const auto p = plan::plan_collective(t, 0, request);
      ASSERT_EQ(p->device.size(), 2u) << plan::explain(*p, t);
      EXPECT_TRUE(!p->device[0].beside && p->device[1].beside);
      const auto give = std::find_if(p->host.begin(), p->host.end(),
                                     [](const plan::Stage &s) { return std::string_view(s.name) == "give"; });
      ASSERT_NE(give, p->host.end());
      EXPECT_GE(p->device[0].skew, give->skew + 2) << islands << "\n" << plan::explain(*p, t);
    }
}

// The same of islands with libraries, on one host, between hosts that share no island's memory, and host by host: what goes into slots stands on the
// second stream, and the host opens the gate of a chunk before the device has staged the one that it copies in beside the copy out.
TEST(Proof, WithSixSlotsTheStreamsOfAnIslandsDeviceNeedNotTakeTurns) {
  const auto into_slots = [](const plan::Plan &p, const plan::Stage &s) {
    return std::any_of(p.steps.begin() + s.step, p.steps.begin() + s.step + s.steps, [](const plan::Step &x) {
      return x.kind == plan::StepKind::Move && x.dst.memory == plan::Memory::Ring;
    });
  };
  struct Place {
    const char *islands, *hosts;
    topology::Bridge bridge;
  };
  for (const Place &at : {Place{"NNOO", "", topology::Bridge::Auto}, Place{"NNOO", "", topology::Bridge::Tcp},
                          Place{"NNNNOOOO", "aabbaabb", topology::Bridge::Auto}})
    for (const auto collective :
         {Collective::AllReduce, Collective::Reduce, Collective::AllGather, Collective::ReduceScatter}) {
      const auto t = world_of(at.islands, at.hosts, at.bridge);
      plan::Request request = operation_of(collective, 4096 * 64, 256, plan::kDeviceSlots).request;
      request.device = true;
      const auto p = plan::plan_collective(t, 0, request);
      SCOPED_TRACE(plan::explain(*p, t));
      int64_t ahead = 0, distance = 0;  // from the chunk whose gate is opened to the last one that has to be staged by then
      for (const plan::Stage &s : p->device) {
        ahead = std::max<int64_t>(ahead, s.skew);
        EXPECT_EQ(s.beside, into_slots(*p, s)) << s.name;
      }
      bool waited = false;  // in this turn, before the gate
      for (const plan::Stage &s : p->host)
        for (uint32_t i = s.step; i < s.step + s.steps; ++i) {
          const plan::Step &x = p->steps[i];
          waited |= x.kind == plan::StepKind::Wait && x.counter == plan::kStaged;
          if (x.kind == plan::StepKind::Post && x.counter == plan::kReady) distance = int64_t{s.skew} - (waited ? 0 : 1);
        }
      ASSERT_GT(ahead, 0);
      EXPECT_LE(distance, ahead - 2);
    }
}

// Devices without a library, on one host and on two, of which some reach the slots of others.
TEST(Proof, AnOperationMayBeginToCopyInWhileTheOneBeforeStillEnds) {
  std::mt19937 random(11);
  const Collective any[] = {Collective::AllReduce, Collective::AllReduce, Collective::Broadcast,
                            Collective::AllGather, Collective::Reduce,    Collective::ReduceScatter,
                            Collective::AllToAll,  Collective::Gather,    Collective::AllGatherV};
  uint64_t early = 0, ahead = 0;
  for (int round = 0; round < kRounds / 10; ++round) {
    const char *const worlds[][2] = {{"no", ""},  {"nno", ""},        {"nop", "aab"}, {"nnoo", "abab"},
                                     {"nab", ""}, {"nnooq", "aabbb"}, {"no", "ab"},   {"nopq", "abcd"}};
    const auto &[islands, hosts] = worlds[random() % std::size(worlds)];
    const auto t = world_of(islands, hosts, random() % 2 ? topology::Bridge::Auto : topology::Bridge::Tcp);
    std::vector<Operation> operations;
    std::string name = std::string(islands) + "@" + hosts;
    for (int i = 0; i < 4; ++i) {
      Operation op = operation_of(any[random() % std::size(any)], (1 + random() % 3000) * 4, 256, plan::kDeviceSlots);
      op.request.reach = kReach;
      op.in_place = random() % 2 && in_place_allowed(op.request.collective);
      add_sizes(op, t.size(), 4);
      if (op.request.collective == Collective::AllGatherV) op.request.bytes = 0;
      name += " " + name_of("", op);
      operations.push_back(std::move(op));
    }
    Options options;
    options.early = true;
    options.reaching = random();
    const Verdict v = prove(t, operations, options);
    ASSERT_TRUE(v.ok) << name << "\n" << v.text;
    early += v.early;
    ahead += v.ahead;
  }
  EXPECT_GT(early, static_cast<uint64_t>(kRounds) / 10);
  EXPECT_GT(ahead, static_cast<uint64_t>(kRounds) / 30);
}

TEST(Proof, AHostListMayBeginBeforeTheDeviceHasEndedTheOperationBeforeWhereNoTwoRanksShareMemory) {
  const std::vector<Operation> operations(4, operation_of(Collective::AllReduce, 64 << 10, 256, plan::kDeviceSlots));
  Options options;
  options.early = true;
  for (const auto &[islands, hosts, ahead] :
       {std::tuple{"no", "ab", 3u * 2}, std::tuple{"nop", "abc", 3u * 3}, std::tuple{"nop", "aab", 0u}}) {
    const Verdict v = prove(world_of(islands, hosts, topology::Bridge::Auto), operations, options);
    EXPECT_TRUE(v.ok) << v.text;
    EXPECT_EQ(v.ahead, ahead) << islands << "@" << hosts;
  }
}

TEST(Proof, AnIslandThatIsAloneNeedsNeitherSlotsNorLinksNorTheHost) {
  const auto t = world_of("AAA");
  for (const auto c : {Collective::AllReduce, Collective::Reduce, Collective::Broadcast, Collective::AllGather,
                       Collective::ReduceScatter, Collective::AllToAll, Collective::Gather, Collective::Scatter,
                       Collective::AllGatherV, Collective::ReduceScatterV, Collective::GatherV, Collective::ScatterV})
    for (int rank = 0; rank < t.size(); ++rank)
      for (const bool in_place : {false, true}) {
        plan::Request r = operation_of(c, 1 << 20).request;
        r.in_place = in_place;
        const auto p = plan::plan_collective(t, rank, r);
        EXPECT_FALSE(p->device.empty()) << collective_name(c);
        EXPECT_TRUE(p->host.empty() && !p->uses_links && p->slot_bytes == 0 && p->link_bytes == 0) << plan::explain(*p, t);
        EXPECT_EQ(p->device_bytes, c == Collective::AllToAll && in_place ? uint64_t{3} << 20 : 0) << "a copy of the input";
      }
}

// A group's calls end in any order, and may run at one time.
TEST(Proof, CallsThatAreGivenTogetherTouchNothingThatAnotherOneWrites) {
  struct Touch {
    plan::Memory memory;
    uint64_t begin, end;
  };
  const auto apart = [](const Touch &x, const Touch &y) {
    return x.memory != y.memory || x.end <= y.begin || y.end <= x.begin;
  };
  size_t groups = 0;
  const std::vector<uint64_t> unequal{400, 1000, 64, 8}, places{0, 400, 1400, 1464}, equal(4, 1000),
      displ{0, 1000, 2000, 3000};
  for (const char *islands : {"AAAA", "NNNN", "NNNo", "NNoo"})
    for (int c = 0; c < isthmus::kCollectiveCount; ++c)
      for (int rank = 0; rank < 4; ++rank) {
        const bool varying = is_varying(static_cast<Collective>(c));
        const plan::Operands o =
            varying ? plan::Operands{places, unequal, places, unequal} : plan::Operands{displ, equal, displ, equal};
        const auto t = world_of(islands);
        plan::Request r = operation_of(static_cast<Collective>(c), 1000).request;
        r.root = 1;
        r.device = t.ranks[static_cast<size_t>(rank)].device != "host";
        const auto p = plan::plan_collective(t, rank, r);
        const uint32_t chunks = plan::chunks_of(*p, o);
        for (uint32_t at_stage = 0; at_stage < p->device.size() * chunks; ++at_stage) {
          const plan::Stage &stage = p->device[at_stage / chunks];
          const uint32_t chunk = at_stage % chunks;
          if (!stage.together) continue;
          ++groups;
          std::vector<Touch> read, written;
          const auto touch = [&](const plan::Step &s, const plan::Span &span) {
            const uint64_t at = plan::span_offset(*p, span, chunk, o);
            return Touch{span.memory, at, at + plan::extent_bytes(s.extent, chunk, o)};
          };
          std::set<std::pair<IslandCall, int>> messages;
          for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
            const plan::Step &s = p->steps[i];
            if (s.kind != plan::StepKind::Ccl || !plan::runs_for(*p, s, chunk, o)) continue;
            if (plan::extent_bytes(s.extent, chunk, o) == 0) continue;
            const bool sends = s.call == IslandCall::Send, receives = s.call == IslandCall::Recv;
            EXPECT_TRUE((!sends && !receives) || messages.insert({s.call, s.peer}).second) << "one each way with each rank";
            const bool root = s.peer == t.index_of[static_cast<size_t>(rank)];
            const bool reads = s.call == IslandCall::Broadcast ? root : !receives;
            const bool writes = s.call == IslandCall::Reduce ? root : !sends;
            const Touch from = touch(s, p->sources[s.source]), to = touch(s, s.dst);
            for (const Touch &other : written) EXPECT_TRUE((!reads || apart(from, other)) && (!writes || apart(to, other)));
            for (const Touch &other : read) EXPECT_TRUE(!writes || apart(to, other)) << plan::explain(*p, t);
            if (reads) read.push_back(from);
            if (writes) written.push_back(to);
          }
        }
      }
  EXPECT_GE(groups, 50u);
}

// Sizes that two ranks know each are compared before the library is given them: by the host, which opens the gate before the call.
TEST(Proof, AnIslandThatIsAloneComparesTheSizesOfAnAllToAllAndMovesItWhole) {
  for (const char *hosts : {"xxx", "xyx"}) {
    const auto t = world_of("NNN", hosts);
    plan::Request r = operation_of(Collective::AllToAllV, 0).request;
    for (int rank = 0; rank < t.size(); ++rank) {
      r.device = true;
      const auto p = plan::plan_collective(t, rank, r);
      EXPECT_TRUE(p->pairwise_sizes && p->slot_bytes == 0 && p->device_bytes == 0) << plan::explain(*p, t);
      EXPECT_EQ(p->sizes_by_links, !topology::one_memory(t));
      EXPECT_EQ(p->uses_links, p->sizes_by_links);
      ASSERT_EQ(p->steps.size(), 3u) << plan::explain(*p, t);
      EXPECT_EQ(p->steps[0].kind, plan::StepKind::Wait);
      EXPECT_EQ(p->steps[1].call, IslandCall::AllToAllV);
      EXPECT_EQ(p->steps[2].kind, plan::StepKind::Post);
      const std::vector<uint64_t> nothing(3, 0);
      EXPECT_EQ(plan::chunks_of(*p, {nothing, nothing, nothing, nothing}), 1u) << "who has no block opens the gate too";
    }
  }
}

// What stays in a group is its library's also where the operation goes beyond it; the rest is as it would be without libraries.
TEST(Proof, BlocksThatStayInAnIslandAreItsLibrarys) {
  const Collective all[] = {Collective::AllToAll, Collective::AllToAllV, Collective::Gather,
                            Collective::GatherV,  Collective::Scatter,   Collective::ScatterV};
  const std::pair<const char *, const char *> worlds[] = {
      {"NNo", ""}, {"NaN", ""}, {"NNOO", ""}, {"NNNap", ""}, {"NNa", "xyx"}, {"NaNNa", "xxyyz"}, {"NNOOa", "xyxyy"}};
  int combination = 0;
  for (const auto &[islands, hosts] : worlds)
    for (const auto bridge : {topology::Bridge::Auto, topology::Bridge::Tcp})
      for (const Collective c : all)
        for (const uint64_t bytes : {4, 1000, 65'540})
          for (const uint32_t slots : {4, 6})
            for (const bool in_place : {false, true})
              for (const uint64_t reach : {uint64_t{0}, kReach}) {
                if (in_place && c != Collective::AllToAll) continue;
                if (combination++ % std::min(kOneIn, 11)) continue;
                const auto t = world_of(islands, hosts, bridge);
                Operation op = operation_of(c, bytes, 256, slots);
                op.in_place = in_place;
                op.request.root = combination % 2;
                op.request.reach = topology::one_memory(t) ? reach : 0;
                add_sizes(op, t.size(), 4);
                const Operation thrice[] = {op, op, operation_of(Collective::AllReduce, 3000)};
                const Verdict v = prove(t, thrice);
                ASSERT_TRUE(v.ok) << name_of(islands, op) << " on " << hosts << ": " << v.text;
                for (int rank = 0; rank < t.size(); ++rank) {
                  plan::Request r = op.request;
                  r.in_place = in_place;
                  r.device = t.ranks[static_cast<size_t>(rank)].device != "host";
                  const auto inside = plan::inside_of(t, rank, r);
                  const auto p = plan::plan_collective(t, rank, r);
                  const auto calls = std::count_if(p->steps.begin(), p->steps.end(),
                                                   [](const plan::Step &s) { return s.kind == plan::StepKind::Ccl; });
                  const bool rooted = has_root(c), root = rooted && rank == r.root;
                  EXPECT_EQ(calls, inside.empty() ? 0
                                   : root         ? static_cast<std::ptrdiff_t>(inside.size()) - 1
                                                  : 1)
                      << plan::explain(*p, t);
                  const auto group = static_cast<size_t>(t.island_of[static_cast<size_t>(rank)]);
                  const bool at_root = !rooted || t.island_of[static_cast<size_t>(r.root)] == static_cast<int>(group);
                  EXPECT_EQ(inside.empty(), t.islands[group].ccl.empty() || t.islands[group].ranks.size() < 2 || !at_root);
                }
              }
}

TEST(Proof, WhatALibraryCannotDoIsPlannedWithoutIt) {
  auto t = world_of("AAbb");
  plan::Request r = operation_of(Collective::AllReduce, 9000).request;
  EXPECT_EQ(plan::planned_on(t, r).islands[0].ccl, "library");
  EXPECT_FALSE(plan::plan_collective(t, 0, r)->device.empty());
  EXPECT_TRUE(plan::plan_collective(t, 2, r)->device.empty());
  r.op = RedOp::PremulSum;
  EXPECT_EQ(plan::planned_on(t, r).islands[0].ccl, "") << "the bridge adds what each rank has multiplied";
  EXPECT_EQ(plan::planned_on(world_of("AAA"), r).islands[0].ccl, "library") << "in one";
  r.op = RedOp::Sum;
  const auto near = world_of("AAbb", "", topology::Bridge::Auto);
  for (const auto c : {Collective::AllToAll, Collective::Gather, Collective::Scatter, Collective::AllGatherV,
                       Collective::ReduceScatterV, Collective::GatherV, Collective::ScatterV, Collective::AllToAllV}) {
    r.collective = c;
    EXPECT_EQ(plan::planned_on(t, r).islands[0].ccl, "") << "between islands";
    const bool by_slots = c == Collective::AllGatherV || c == Collective::ReduceScatterV;
    EXPECT_EQ(plan::planned_on(near, r).islands[0].ccl, by_slots ? "library" : "") << "between islands on one host";
    EXPECT_EQ(plan::planned_on(world_of("AAA"), r).islands[0].ccl, "library") << "in one";
  }
  auto devices = world_of("NNo");
  r.collective = Collective::AllToAll;
  EXPECT_EQ(plan::inside_of(devices, 1, r), (std::vector<int>{0, 1}));
  EXPECT_TRUE(plan::inside_of(devices, 2, r).empty()) << "one rank";
  EXPECT_TRUE(plan::inside_of(t, 0, r).empty()) << "memory that processors touch";
  for (auto &g : devices.islands) g.ccl_table.ops[static_cast<size_t>(IslandCall::AllToAllV)] = {};
  EXPECT_TRUE(plan::inside_of(devices, 1, r).empty()) << "blocks need places";
  r.collective = Collective::AllReduce;
  for (auto &g : t.islands) g.ccl_table.ops[static_cast<size_t>(IslandCall::ReduceScatter)] = {};
  EXPECT_EQ(plan::planned_on(t, r).islands[0].ccl, "") << "reduce_scatter is part of a large all_reduce";
  r.bytes = 64;
  EXPECT_EQ(plan::planned_on(t, r).islands[0].ccl, "library") << "a small one needs all_reduce and broadcast";
  EXPECT_FALSE(plan::planned_on(world_of("AbA"), r).flat);
  EXPECT_EQ(plan::planned_on(world_of("Ab", "", topology::Bridge::Auto), r).flat, true) << "one rank needs no library";
}

// A sum of float16 may be out of its range where the average is in it.
TEST(Proof, ALibraryAveragesAShortRangeByNumbersMadeSmallerOrNotAtAll) {
  auto t = world_of("AAAbCC");
  plan::Request r = operation_of(Collective::AllReduce, 9000).request;
  r.op = RedOp::Avg;
  const auto asked = [&](int rank) {
    std::set<std::pair<RedOp, int>> found;
    const auto p = plan::plan_collective(t, rank, r);
    for (const plan::Step &s : p->steps)
      if (s.kind == plan::StepKind::Ccl && isthmus::reduces(s.call)) found.insert({s.op, s.halvings});
    return found;
  };
  using Calls = std::set<std::pair<RedOp, int>>;
  for (const DType dtype : {DType::Float16, DType::Float8E4M3FN, DType::Float8E5M2}) {
    r.dtype = dtype;
    EXPECT_EQ(asked(0), (Calls{{RedOp::PremulSum, 2}})) << dtype_name(dtype);
    EXPECT_EQ(asked(4), (Calls{{RedOp::PremulSum, 1}})) << dtype_name(dtype);
  }
  for (const DType dtype : {DType::BFloat16, DType::Float32, DType::Float64, DType::Int8, DType::UInt64}) {
    r.dtype = dtype;
    EXPECT_EQ(asked(0), (Calls{{RedOp::Sum, 0}})) << dtype_name(dtype);
  }
  for (auto &by_dtype : t.islands[0].ccl_table.ops)
    for (uint16_t &ops : by_dtype) ops &= static_cast<uint16_t>(~(1u << static_cast<int>(RedOp::PremulSum)));
  EXPECT_EQ(plan::planned_on(t, r).islands[0].ccl, "library");
  r.dtype = DType::Float16;
  EXPECT_EQ(plan::planned_on(t, r).islands[0].ccl, "");
  EXPECT_EQ(plan::planned_on(t, r).islands[2].ccl, "library") << "another's library has it";
  r.op = RedOp::Sum;
  EXPECT_EQ(plan::planned_on(t, r).islands[0].ccl, "library");
  r.op = RedOp::Avg;
  r.dtype = DType::Float8E4M3FN;  // its smallest number is 2^-9
  for (const auto &[ranks, library] : {std::pair{512, "library"}, {513, ""}})
    EXPECT_EQ(plan::planned_on(world_of(std::string(static_cast<size_t>(ranks), 'A') + "b"), r).islands[0].ccl, library);
}

TEST(Proof, AlternatingWithWhatHasNoLibraryHolds) {
  const auto t = world_of("AAbAb");
  std::vector<Operation> operations;
  for (int i = 0; i < 3; ++i)
    for (Collective c : {Collective::AllReduce, Collective::AllGather, Collective::Barrier, Collective::Broadcast}) {
      operations.push_back(operation_of(c, 30'000, 256));
      operations.push_back(operation_of(c, c == Collective::AllReduce ? 64 : 4, 256));
    }
  const Verdict v = prove(t, operations);
  ASSERT_TRUE(v.ok) << v.text;
}

// A round's world and its operations are all of its seed, which a failure names. An island is of the host or of devices, and served by a
// library or not; of devices, some reach the rings, or all, or none, or not far enough.
constexpr int kParts = kOneIn == 1 ? 4 : 1;
class RandomWorlds : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Part, RandomWorlds, testing::Range(0, kParts));
TEST_P(RandomWorlds, AndSequencesHold) {
  constexpr int kSeeds = kRounds / kParts;
  const uint32_t first_seed = 20240229 + static_cast<uint32_t>(GetParam() * kSeeds);
  int with_devices = 0, with_own_and_served = 0, reached = 0, reused = 0;
  for (uint32_t seed = first_seed; seed < first_seed + kSeeds; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
    const int world = 1 + pick(12), islands = 1 + pick(4), hosts = 1 + pick(3);
    const bool devices = pick(3), libraries = pick(2);
    std::string letters, island_text, host_text;
    for (int i = 0; i < islands; ++i) {
      const char first = devices && pick(3) ? (libraries && pick(2) ? 'N' : 'n') : libraries && pick(2) ? 'A' : 'a';
      letters += static_cast<char>(first + i);
    }
    for (int r = 0; r < world; ++r) {
      island_text += letters[static_cast<size_t>(pick(islands))];
      host_text += static_cast<char>('x' + pick(hosts));
    }
    auto t = world_of(island_text, host_text, pick(2) ? topology::Bridge::Tcp : topology::Bridge::Auto);
    for (double &w : t.weights) w = pick(3) ? 1.0 : 0.25 * (1 + pick(20));
    t.digest = topology::digest_of(t);
    Options options;
    if (pick(2)) options.reaching = uint64_t{random()} << 32 | random();
    const uint32_t slots = pick(5) ? 2 + static_cast<uint32_t>(pick(5)) : 16;
    std::vector<Operation> operations;
    for (int i = 0, n = 1 + pick(4); i < n; ++i) {
      const DType dtypes[] = {DType::Float32, DType::BFloat16, DType::Float8E5M2, DType::Float64};
      const DType dtype = dtypes[pick(4)];
      const int longest[] = {5, 900, 900, 6000};
      Operation op = operation_of(static_cast<Collective>(pick(kProved)),
                                  static_cast<uint64_t>(pick(longest[pick(4)])) * dtype_size(dtype), 64 << pick(5), slots);
      op.request.dtype = dtype;
      const RedOp redops[] = {RedOp::PremulSum, RedOp::Avg, RedOp::Sum};
      op.request.op = redops[pick(3)];
      op.request.root = pick(world);
      op.request.small_bytes = static_cast<uint64_t>(pick(2) * 512);
      op.request.reach = pick(2) ? kReach : static_cast<uint64_t>(pick(2) * pick(32 * 1024));
      op.request.paced_bytes = pick(3) ? 0 : static_cast<uint64_t>(1 + pick(4096));
      op.in_place = pick(2) && in_place_allowed(op.request.collective);
      add_sizes(op, world, dtype_size(dtype));
      const auto plan = plan::plan_collective(t, 0, op.request);
      reused += plan->slots && plan->chunks > 2 * plan->slots && topology::has_devices(t);
      reached += topology::has_devices(t) && topology::one_memory(t) && op.request.reach && options.reaching;
      operations.push_back(op);
    }
    with_devices += topology::has_devices(t);
    const auto any = [&](char from, char to) {
      return std::any_of(island_text.begin(), island_text.end(), [=](char c) { return c >= from && c <= to; });
    };
    with_own_and_served += any('n', 'z') && any('N', 'Z');
    const Verdict v = prove(t, operations, options);
    ASSERT_TRUE(v.ok) << "seed " << seed << ", hosts " << host_text << ", reaching " << options.reaching << ": "
                      << name_of(island_text, operations.back()) << ": " << v.text;
  }
  EXPECT_GT(with_devices, kSeeds / 3);
  EXPECT_GT(with_own_and_served, kSeeds / 20);
  EXPECT_GT(reached, kSeeds / 20);
  EXPECT_GT(reused, kSeeds / 20);
}

// Up to which size messages take the leader exchange is measured, so it may be anything from never to the most that there is.
TEST(Proof, MessagesHoldOnBothSidesOfWhereverTheLeaderExchangeEnds) {
  constexpr struct {
    const char *islands, *hosts;
    topology::Bridge bridge;
  } kWorlds[] = {{"aabbb", "", topology::Bridge::Tcp},      // host ranks, three of one cluster
                 {"abca", "xyzx", topology::Bridge::Auto},  // alone in their clusters, and two that are not
                 {"AAABb", "xxyyy", topology::Bridge::Auto},
                 {"AAABBc", "", topology::Bridge::Auto},  // all slots are read by all
                 {"NNPPPq", "", topology::Bridge::Auto},  // and so on devices
                 {"NNPPP", "xxyyy", topology::Bridge::Auto}};
  const std::pair<DType, RedOp> kNumbers[] = {
      {DType::Float32, RedOp::Sum}, {DType::BFloat16, RedOp::Avg}, {DType::Float8E5M2, RedOp::Avg}};
  int combination = 0;
  for (const auto &w : kWorlds)
    for (const uint64_t ends : {uint64_t{0}, uint64_t{8192}, uint64_t{262144}})
      for (const Collective c : {Collective::AllReduce, Collective::Reduce, Collective::Broadcast})
        for (const auto &[dtype, redop] : kNumbers) {
          if (++combination % kOneIn) continue;
          const auto t = world_of(w.islands, w.hosts, w.bridge);
          const uint64_t size = dtype_size(dtype);
          std::vector<Operation> operations;  // the forms take turns on the same slots
          for (const uint64_t bytes : {ends, ends + size, size, uint64_t{262144} + size, ends ? ends - size : 8, ends}) {
            Operation op = operation_of(c, bytes, 128 * 1024, 6);
            op.request.small_bytes = ends;
            op.request.dtype = dtype;
            op.request.op = redop;
            op.request.root = t.size() - 1;
            EXPECT_EQ(plan::takes_leader_exchange(plan::planned_on(t, op.request), op.request), bytes > 0 && bytes <= ends);
            operations.push_back(op);
          }
          const Verdict v = prove(t, operations);
          ASSERT_TRUE(v.ok) << name_of(w.islands, operations[0]) << ", leader exchange up to " << ends << ": " << v.text;
        }
}

TEST(Proof, HundredsOfRanksHold) {
  std::string flat(96, 'a'), two = std::string(64, 'a') + std::string(40, 'b'), mixed;
  for (int i = 0; i < 120; ++i) mixed += static_cast<char>('a' + (i * i + i / 7) % 5);
  int world = 0;
  for (const std::string &islands : {flat, two, mixed}) {
    ++world;
    for (int c = 0; c < kProved; ++c) {
      if (kOneIn > 1 && (c + world) % 3 != 0) continue;  // each collective in one of them
      Operation op = operation_of(static_cast<Collective>(c), 64 * 300, 64 * 100, 3);
      if (c >= static_cast<int>(Collective::AllGather)) op.request.bytes /= 20;
      op.request.root = 17;
      const auto t = world_of(islands);
      add_sizes(op, t.size(), 4);
      for (uint64_t &n : op.counts) n %= 4096;
      for (auto &row : op.matrix)
        for (uint64_t &n : row) n %= 512;
      const Verdict v = prove(t, {&op, 1});
      ASSERT_TRUE(v.ok) << name_of(std::to_string(islands.size()) + " ranks", op) << ": " << v.text;
    }
  }
}

TEST(Proof, ThousandsOfRanksHoldForTheCheapOnes) {
  std::string islands;
  for (int i = 0; i < 2000; ++i) islands += static_cast<char>('a' + i % 7 + (i % 11 == 0));
  for (Collective c : {Collective::Broadcast, Collective::Barrier}) {
    Operation op = operation_of(c, 4096, 4096, 3);
    op.request.root = 1234;
    if (c == Collective::Barrier) op.request.bytes = 0;
    const Verdict v = prove(world_of(islands), {&op, 1});
    ASSERT_TRUE(v.ok) << name_of("2000 ranks", op) << ": " << v.text;
  }
}

// Where an island has many ranks, others pass its blocks on, and make sums for it.
TEST(Proof, BlocksThatOtherIslandsPassOnAndSumsThatTheyMakeHold) {
  constexpr struct {
    const char *islands;
    std::vector<double> weights() const { return {w[0], w[1], w[2], w[3]}; }
    double w[4];
  } kWorlds[] = {{"aaaaaaaabbcd", {1, 1, 1, 1}}, {"aaabbcd", {1, 4, 8, 2}},    {"baaacaaad", {2, 1, 1, 3}},
                 {"nnnnnoopq", {1, 1, 2, 1}},    {"AAAAAABBcd", {1, 1, 1, 1}}, {"AAABBcd", {1, 4, 8, 2}},
                 {"aaaaBBCCC", {1, 3, 2, 0}},    {"NNNNNOOpq", {1, 1, 2, 1}},  {"bNNNcNNNd", {2, 1, 1, 3}}};
  int combination = 0;
  for (const auto &w : kWorlds) {
    auto t = world_of(w.islands);
    t.weights = w.weights();
    t.digest = topology::digest_of(t);
    for (const Collective c : {Collective::AllGather, Collective::ReduceScatter})
      for (const uint64_t bytes : {uint64_t{200}, uint64_t{1000}, uint64_t{9000}})
        for (const uint32_t slots : {2u, 3u, 4u, 6u})
          for (const bool in_place : {false, true})
            for (const auto &[dtype, redop] : {std::pair{DType::Float32, RedOp::Sum}, {DType::BFloat16, RedOp::Avg}}) {
              if (combination++ % kOneIn) continue;
              Operation op = operation_of(c, bytes, 512, slots);
              op.request.dtype = dtype;
              op.request.op = redop;
              op.in_place = in_place;
              const Operation twice[] = {op, op};
              const Verdict v = prove(t, twice);
              ASSERT_TRUE(v.ok) << name_of(w.islands, op) << ": " << v.text;
            }
    // The island of most ranks sends less than a copy of its blocks to each other one; its sums are made by others in part.
    const auto most = std::max_element(t.islands.begin(), t.islands.end(),
                                       [](const auto &x, const auto &y) { return x.ranks.size() < y.ranks.size(); });
    const Operation gather = operation_of(Collective::AllGather, 64 * 1000, 4096),
                    sum = operation_of(Collective::ReduceScatter, 64 * 1000, 4096);
    uint64_t sent = 0, finished = 0;
    const Verdict v = prove(t, {&sum, 1});
    ASSERT_TRUE(v.ok) << v.text;
    for (const int r : most->ranks) {
      sent += plan::plan_collective(t, r, gather.request)->link_bytes;
      finished += v.ranks[static_cast<size_t>(r)].finished;
    }
    EXPECT_LT(sent, 3 * most->ranks.size() * gather.request.bytes) << w.islands;
    EXPECT_LT(finished, most->ranks.size() * sum.request.bytes) << w.islands;
  }
}

TEST(Proof, UnequalWeightsMoveTheVolumeAndNotTheResult) {
  auto t = world_of("aabbc");
  t.weights = {10, 10, 1};
  t.digest = topology::digest_of(t);
  const Operation op = operation_of(Collective::AllReduce, 1 << 20, 65536);
  const Verdict v = prove(t, {&op, 1});
  ASSERT_TRUE(v.ok) << v.text;
  EXPECT_LT(v.ranks[4].finished, (1u << 20) / 50) << "the slow bridge owns next to nothing";
  EXPECT_EQ(v.link_bytes, 4u << 20) << "2 (k - 1) n, however it is shared out";
}

}  // namespace
}  // namespace isthmus::prover
