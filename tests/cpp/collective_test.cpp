// The table of collectives, and whether plans agree with it: who reads, who writes, and how many blocks there are.
#include "base/collective.hpp"

#include <gtest/gtest.h>

#include <set>

#include "plan/plan.hpp"
#include "prove_case.hpp"

namespace isthmus {
namespace {

using plan::Memory;
using plan::Plan;
using plan::Span;
using plan::StepKind;

// Blocks of the user's buffers that a plan's steps touch.
struct Touched {
  std::set<uint32_t> read, written;  // of the input; of the output
};

Touched touched_by(const Plan &p) {
  Touched out;
  const auto from = [&](const Span &s) {
    if (s.memory == Memory::Input) out.read.insert(s.block);
  };
  const auto to = [&](const Span &s) {
    if (s.memory == Memory::Output) out.written.insert(s.block);
    EXPECT_NE(s.memory, Memory::Input) << "the input is never written";
  };
  for (const plan::Step &s : p.steps) {
    for (uint32_t i = 0; i < s.sources; ++i) from(p.sources[s.source + i]);
    if (s.kind == StepKind::Move || s.kind == StepKind::Reduce || s.kind == StepKind::Recv) to(s.dst);
    if (s.kind == StepKind::Reduce && s.has_copy) to(s.copy);
  }
  return out;
}

// All of them, where there are any.
void expect_blocks(const std::set<uint32_t> &touched, bool uses, Blocks blocks, int world) {
  const uint32_t count = uses ? block_count(blocks, world) : 0;
  EXPECT_EQ(touched.size(), count);
  for (const uint32_t b : touched) EXPECT_LT(b, count);
}

TEST(Collective, RowsHaveTheOrderOfTheEnum) {
  EXPECT_STREQ(collective_name(Collective::AllReduce), "all_reduce");
  EXPECT_STREQ(collective_name(Collective::ReduceScatterV), "reduce_scatter_v");
  EXPECT_STREQ(collective_name(Collective::ScatterV), "scatter_v");
  EXPECT_STREQ(collective_name(Collective::Barrier), "barrier");
  EXPECT_STREQ(collective_name(Collective::Recv), "recv");
  EXPECT_STREQ(collective_name(static_cast<Collective>(kCollectiveCount)), "unknown collective");
}

TEST(Collective, RowsAgreeWithThemselves) {
  for (int i = 0; i < kCollectiveCount; ++i) {
    const auto c = static_cast<Collective>(i);
    SCOPED_TRACE(collective_name(c));
    const CollectiveTraits &row = traits(c);
    EXPECT_EQ(row.has_root, row.reads == Who::Root || row.writes == Who::Root);
    EXPECT_EQ(row.input == Blocks::None, row.reads == Who::Nobody);
    EXPECT_EQ(row.output == Blocks::None, row.writes == Who::Nobody);
    EXPECT_EQ(row.varying, std::string_view(row.name).ends_with("_v"));
    EXPECT_EQ(row.reduces, std::string_view(row.name).find("reduce") != std::string_view::npos);
    if (row.varying) {  // as the collective of equal counts, but for the counts
      Collective equal;
      ASSERT_TRUE(collective_from_name(std::string_view(row.name).substr(0, std::string_view(row.name).size() - 2), equal));
      const CollectiveTraits &other = traits(equal);
      EXPECT_TRUE(row.has_root == other.has_root && row.reduces == other.reduces && row.input == other.input &&
                  row.output == other.output && row.reads == other.reads && row.writes == other.writes);
    }
  }
}

class OfPlans : public ::testing::TestWithParam<const char *> {};

TEST_P(OfPlans, TouchWhatTheTableSays) {
  const topology::Topology t = prover::world_of(GetParam());
  for (int i = 0; i < kCollectiveCount; ++i) {
    const auto c = static_cast<Collective>(i);
    for (const uint64_t bytes : {uint64_t{64}, uint64_t{100'000}})
      for (int root = 0; root < t.size(); ++root)
        for (int rank = 0; rank < t.size(); ++rank) {
          if (is_message(c) && rank == root) continue;  // root: the peer
          if (is_message(c) && t.size() == 1) continue;
          plan::Request r = prover::operation_of(c, is_varying(c) ? 0 : bytes).request;
          r.root = has_root(c) || is_message(c) ? root : 0;
          SCOPED_TRACE(std::string(collective_name(c)) + " of " + std::to_string(bytes) + ", root " + std::to_string(root) +
                       ", rank " + std::to_string(rank));
          const Touched touched = touched_by(*plan::plan_collective(t, rank, r));
          expect_blocks(touched.read, reads_input(c, rank, r.root), traits(c).input, t.size());
          expect_blocks(touched.written, writes_output(c, rank, r.root), traits(c).output, t.size());
        }
  }
}

INSTANTIATE_TEST_SUITE_P(Collective, OfPlans, ::testing::Values("a", "aa", "aaaaa", "ab", "aabb", "aaab", "abcaa"));

}  // namespace
}  // namespace isthmus
