// The planner's promises that need no run: validation, digests, chunks, bounded memory, shares of the bridge, zero copies,
// the texts.
#include "plan/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.hpp"
#include "plan/clusters.hpp"
#include "prove_case.hpp"

namespace isthmus::plan {
namespace {

using prover::operation_of;
using prover::world_of;

Request request_of(Collective c, uint64_t bytes) {
  Request r;
  r.collective = c;
  r.bytes = bytes;
  return r;
}

TEST(Plan, NamesGoBothWays) {
  for (int i = 0; i < kCollectiveCount; ++i) {
    Collective c = Collective::Barrier;
    ASSERT_TRUE(collective_from_name(collective_name(static_cast<Collective>(i)), c));
    EXPECT_EQ(static_cast<int>(c), i);
  }
  Collective c;
  EXPECT_FALSE(collective_from_name("allreduce", c));
}

TEST(Plan, RefusesWhatHasNoMeaningAndSaysWhy) {
  const auto t = world_of("aab");
  const auto code_of = [&](const Request &r) {
    try {
      plan_collective(t, 0, r);
    } catch (const Error &e) {
      EXPECT_FALSE(e.text().empty());
      return e.code();
    }
    return Code::Ok;
  };
  Request r = request_of(Collective::AllReduce, 64);
  r.op = RedOp::BXor;
  EXPECT_EQ(code_of(r), Code::Unsupported);
  r.collective = Collective::AllGather;
  EXPECT_EQ(code_of(r), Code::Ok) << "no reduction, so the op says nothing";
  r = request_of(Collective::Broadcast, 64);
  for (int root : {-1, 3}) {
    r.root = root;
    EXPECT_EQ(code_of(r), Code::Argument);
  }
  EXPECT_EQ(code_of(request_of(Collective::AllReduce, 7)), Code::Argument) << "7 bytes of float32";
  EXPECT_THROW(plan_collective(t, 3, request_of(Collective::Barrier, 0)), Error);
  r = request_of(Collective::AllToAllV, 0);
  r.in_place = true;
  EXPECT_EQ(code_of(r), Code::Unsupported);
}

TEST(Plan, DigestIsEqualOnAllRanksAndTellsCallsApart) {
  const auto t = world_of("aabba");
  std::vector<uint64_t> seen;
  for (int c = 0; c < 14; ++c)
    for (uint64_t bytes : {uint64_t{0}, uint64_t{256}, uint64_t{1} << 20}) {
      const auto collective = static_cast<Collective>(c);
      Request r = request_of(collective, bytes);
      const uint64_t digest = plan_collective(t, 0, r)->digest;
      for (int rank = 1; rank < t.size(); ++rank) {
        r.in_place = rank == 2 && collective != Collective::AllToAllV;  // each rank's own affair
        EXPECT_EQ(plan_collective(t, rank, r)->digest, digest);
      }
      seen.push_back(digest);
    }
  std::sort(seen.begin(), seen.end());
  // v-collectives and barrier do not depend on sizes: 8 collectives of 3 sizes, 6 of 1.
  EXPECT_EQ(std::unique(seen.begin(), seen.end()) - seen.begin(), 8 * 3 + 6);
  Request a = request_of(Collective::AllReduce, 64), b = a;
  b.dtype = DType::Int32;
  EXPECT_NE(plan_collective(t, 0, a)->digest, plan_collective(t, 0, b)->digest);
  b = a;
  b.op = RedOp::Max;
  EXPECT_NE(plan_collective(t, 0, a)->digest, plan_collective(t, 0, b)->digest);
}

TEST(Plan, ChunksAreLinesFewAndBoundedAndSlotsStayBounded) {
  for (const char *islands : {"aa", "aaaaaaaa", "ab", "aaabbbbc"})
    for (int c = 0; c < 13; ++c)
      for (uint64_t bytes = 4; bytes < uint64_t{1} << 33; bytes = bytes * 5 + 4) {
        const auto t = world_of(islands);
        const Request r = request_of(static_cast<Collective>(c), bytes);
        const auto p = plan_collective(t, 0, r);
        EXPECT_EQ(p->chunk % 64, 0u);
        if (p->chunks > 64 && p->slot_bytes) {  // more only where fewer would exceed 4 chunk_bytes of memory for a slot
          EXPECT_GT(p->slot_bytes, r.chunk_bytes) << collective_name(r.collective) << " " << islands << " " << bytes;
        }
        EXPECT_LE(p->slot_bytes, 4 * r.chunk_bytes + 64 * 16) << collective_name(r.collective) << " " << islands;
        if (p->chunks > 0) { EXPECT_GE(p->chunk * p->chunks, bytes); }
        EXPECT_LT(p->host.size(), 8u);
      }
}

// Chunks that are short beside what a slow bridge carries leave little to be done before the first of them crosses, and behind the last.
TEST(Plan, ChunksOfDevicesAreNoLongerThanASlowBridgeNeedsAndStayFew) {
  struct Case {
    const char *islands;
    uint64_t bytes, paced, chunk;  // chunk: the one expected, of a setting of 128 KiB
  };
  constexpr uint64_t kKi = 1024, kMi = 1024 * kKi;
  for (const Case &c :
       {Case{"NNOO", 4 * kMi, 0, kMi},                  // nobody knows the rates
        Case{"NNOO", 4 * kMi, 50 * kKi, 256 * kKi},     // 50 MB/s: what the library gets is never less than that
        Case{"NNOO", 4 * kMi, 512 * kKi, 512 * kKi},    // 500 MB/s
        Case{"NNOO", 4 * kMi, uint64_t{1} << 40, kMi},  // a fast bridge: as if nobody knew
        Case{"NNOO", 64 * kMi, 50 * kKi, kMi},          // 64 chunks and no more
        Case{"no", 4 * kMi, 0, 512 * kKi}, Case{"no", 4 * kMi, 50 * kKi, 128 * kKi}, Case{"no", 64 * kMi, 50 * kKi, kMi},
        Case{"aabb", 4 * kMi, 50 * kKi, 128 * kKi}}) {  // without devices the rates have no say
    const auto t = world_of(c.islands, "", topology::Bridge::Tcp);
    Request r = request_of(Collective::AllReduce, c.bytes);
    r.chunk_bytes = 128 * kKi;
    r.max_slots = kDeviceSlots;
    const auto usual = plan_collective(t, 0, r)->digest;
    r.paced_bytes = c.paced;
    const auto p = plan_collective(t, 0, r);
    SCOPED_TRACE(explain(*p, t));
    EXPECT_NEAR(static_cast<double>(p->chunk), static_cast<double>(c.chunk), 256.0) << c.islands;
    EXPECT_LE(p->chunks, 64u);
    EXPECT_EQ(p->digest != usual, c.paced > 0) << "ranks that take other rates to be true must not meet";
    Request v = request_of(Collective::AllGatherV, 0);
    v.chunk_bytes = r.chunk_bytes;
    const uint64_t sized_by_calls = plan_collective(t, 0, v)->chunk;
    v.paced_bytes = c.paced;
    EXPECT_EQ(plan_collective(t, 0, v)->chunk, sized_by_calls) << "nobody would bound their number";
    const bool said = c.paced > 0 && c.paced < kMi && topology::has_devices(t);
    EXPECT_EQ(explain(*p, t).find("the slowest bridge carries") != std::string::npos, said);
  }
}

TEST(Plan, EmptyMessagesHaveNoSteps) {
  const auto p = plan_collective(world_of("aab"), 1, request_of(Collective::AllReduce, 0));
  EXPECT_TRUE(p->host.empty());
  EXPECT_EQ(p->link_bytes, 0u);
}

TEST(Plan, TheLaunchSaysWhetherAVCollectiveWritesPastTheCaches) {
  const auto t = world_of("aa");
  Request r = operation_of(Collective::AllGatherV, 0).request;
  r.stream_bytes = 1000;
  const auto varying = plan_collective(t, 0, r);
  const auto launch = [](const std::vector<uint64_t> &received) { return Operands{{}, {}, {}, received}; };
  const std::vector<uint64_t> small{500, 499}, large{500, 500};
  EXPECT_FALSE(writes_past_caches(*varying, launch(small)));
  EXPECT_TRUE(writes_past_caches(*varying, launch(large)));
  r.collective = Collective::AllGather;
  r.bytes = 64;
  const auto equal = plan_collective(t, 0, r);
  EXPECT_TRUE(writes_past_caches(*equal, launch(small))) << "its steps say so";
  EXPECT_TRUE(std::none_of(equal->steps.begin(), equal->steps.end(), [](const Step &s) { return s.stream; }));
}

TEST(Plan, AnAverageIsDividedByTheRanksWhereItIsRounded) {
  for (const RedOp op : {RedOp::Avg, RedOp::Sum})
    for (const char *islands : {"a", "aaa", "aab"}) {
      const auto t = world_of(islands);
      Request r = operation_of(Collective::AllReduce, 100'000).request;
      r.op = op;
      for (int rank = 0; rank < t.size(); ++rank) {
        const auto plan = plan_collective(t, rank, r);
        for (const Step &s : plan->steps) {
          const bool rounds = s.kind == StepKind::Reduce && !s.partial;
          EXPECT_EQ(s.divisor, rounds && op == RedOp::Avg ? static_cast<uint64_t>(t.size()) : 1) << islands;
        }
      }
    }
}

TEST(Plan, SharesOfTheBridgeAttainTheLeastTime) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> rate(0.5, 100);
  std::vector<std::vector<double>> cases = {{10, 10, 10, 1}, {40, 20, 10, 5}, {25, 25, 2}, {8, 4, 4, 2, 1},
                                            {1, 1},          {5, 1},          {3, 3, 3}};
  for (int i = 0; i < 500; ++i) {
    std::vector<double> rates(2 + static_cast<size_t>(i) % 9);
    for (double &b : rates) b = rate(random);
    cases.push_back(rates);
  }
  for (const auto &rates : cases) {
    const auto w = bridge_shares(rates);
    const double k = static_cast<double>(rates.size()), best = bridge_time(rates);
    double sum = 0, worst = 0;
    for (size_t i = 0; i < rates.size(); ++i) {
      EXPECT_GE(w[i], 0);
      EXPECT_LE(w[i], 1);
      sum += w[i];
      worst = std::max(worst, (1 + (k - 2) * w[i]) / rates[i]);
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    EXPECT_LE(worst, best * 1.001);
  }
}

// What a library gets of a full chunk is worth a call, or all that is given together is; and the chunks are 64 and a shorter one, unless slots would
// have to hold more than rings at fixed places have (shared), or twice that.
TEST(Plan, ALibraryGetsAMebibyteAndAMessageHasAsFewChunksAsSlotsAllow) {
  struct World {
    const char *islands;
    topology::Bridge bridge;
  };
  for (const World &w : {World{"NNOO", topology::Bridge::Auto},
                         {"NNNNNNNNOOOOOOOO", topology::Bridge::Auto},
                         {"NNNNNNNNo", topology::Bridge::Auto},
                         {"NNNNNNNNOOOOOOOO", topology::Bridge::Tcp},
                         {"NNo", topology::Bridge::Tcp}})
    for (const Collective c : {Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter, Collective::AllGather})
      for (uint64_t bytes = 2 << 20; bytes <= uint64_t{1} << 30; bytes = bytes * 3 + 4) {
        const auto t = world_of(w.islands, "", w.bridge);
        Request r = request_of(c, bytes);
        r.max_slots = kDeviceSlots;
        r.device = true;
        const auto p = plan_collective(t, 0, r);
        SCOPED_TRACE(explain(*p, t));
        const bool shared = w.bridge == topology::Bridge::Auto;
        const uint64_t slot = (shared ? 8 : 16) * r.chunk_bytes;
        EXPECT_LE(p->slot_bytes, slot + 64 * 1024);
        // Most of a slot is used, where there are more chunks than that.
        uint64_t most = 0;
        for (int q = 0; q < t.size(); ++q) {
          Request theirs = r;
          theirs.device = t.ranks[static_cast<size_t>(q)].device != "host";
          most = std::max(most, plan_collective(t, q, theirs)->slot_bytes);
        }
        const bool alone = std::string(w.islands).find('o') != std::string::npos;
        if (p->chunks > 65 && (shared || !alone)) { EXPECT_GT(most + 64 * 1024, slot * 3 / 4); }
        for (const Stage &stage : p->device) {
          uint64_t given = 0;
          for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
            const Step &s = p->steps[i];
            if (s.kind != StepKind::Ccl || s.when == When::PartChunk) continue;
            const uint64_t ranks =
                s.call == IslandCall::ReduceScatter || s.call == IslandCall::AllGather ? t.islands[0].ranks.size() : 1;
            given += s.extent.length * ranks;
          }
          // A rank alone has the whole chunk in its slot, so what is more than a whole number of slots makes all chunks shorter.
          if (given) { EXPECT_GE(given, (uint64_t{1} << 20) * (alone ? 3 : 4) / 4 * 15 / 16) << stage.name; }
        }
      }
}

TEST(Plan, TheLargestChunkOfARingIsThatOfItsBytes) {
  for (const uint64_t chunk : {4096, 128 * 1024, 64 << 20}) {
    const uint64_t ring = most_ring_bytes(chunk, kDeviceSlots);
    EXPECT_EQ(most_ring_chunk(ring, kDeviceSlots), chunk);
    EXPECT_LT(most_ring_chunk(ring - 1, kDeviceSlots), chunk);
  }
  EXPECT_EQ(most_ring_chunk(most_ring_bytes(0, kDeviceSlots), kDeviceSlots), 0u);
  EXPECT_EQ(most_ring_chunk(1, kDeviceSlots), 0u);
}

// So no size of a message and no ISTHMUS_CHUNK_BYTES makes processors copy what devices would read.
TEST(Plan, RingsAtFixedPlacesHoldTheSlotsOfEveryPlanOfIslands) {
  struct World {
    const char *islands, *hosts;
  };
  for (const World &w : {World{"NNOO", ""}, World{"NNNNNNNNOOOOOOOO", ""}, World{"NNNo", ""}, World{"NNOOPPQQ", "xxxxyyyy"},
                         World{"NNNNOOOO", "xxyyxxyy"}, World{"NNOOa", "xyxyx"}, World{"NNNOOb", "xxyyyz"}})
    for (const Collective c : {Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter, Collective::Broadcast,
                               Collective::AllGather, Collective::AllGatherV, Collective::ReduceScatterV})
      for (const uint64_t chunk : {4096, 128 * 1024, 64 << 20})
        for (uint64_t bytes = 100'000; bytes <= uint64_t{1} << 32; bytes = bytes * 7 + 4) {
          const auto t = world_of(w.islands, w.hosts, topology::Bridge::Auto);
          Request r = request_of(c, is_varying(c) ? 0 : bytes);
          r.chunk_bytes = chunk;
          r.max_slots = kDeviceSlots;
          r.device = true;
          if (!by_shared_slots(planned_on(t, r), c) && !by_hosts(planned_on(t, r), c)) continue;
          const auto p = plan_collective(t, 0, r);
          EXPECT_LE(p->slots * p->slot_bytes, most_ring_bytes(chunk, kDeviceSlots)) << explain(*p, t);
        }
}

// Whatever its bytes: what the ranks of a group cannot share equally is one piece, a call more each way.
TEST(Plan, AMessageThatALibrarysRanksCannotShareEquallyTakesTwoCallsMore) {
  for (const char *world : {"NNNNNNNNa", "NNNaNNNNb", "NNNNMMMMMMa"})
    for (const uint64_t bytes : {(256u << 10) + 4, 668'676u, (1u << 20) - 4, 3'000'000u, (64u << 20) + 4})
      for (const Collective c : {Collective::AllReduce, Collective::Broadcast}) {
        const auto plan = plan_collective(world_of(world), 0, request_of(c, bytes));
        int in_full = 0, in_short = 0;
        for (const Step &s : plan->steps) {
          if (s.kind != StepKind::Ccl || s.when == When::Always) continue;
          ++(s.when == When::FullChunk ? in_full : in_short);
        }
        EXPECT_LE(in_short, in_full) << collective_name(c) << " of " << bytes << " over " << world;
        EXPECT_LE(in_short, 2) << collective_name(c) << " of " << bytes << " over " << world;
      }
}

TEST(Plan, OnePlusOneCopiesNothing) {
  const auto t = world_of("ab");
  auto op = operation_of(Collective::AllReduce, 1 << 20, 65536);
  for (bool in_place : {false, true}) {
    op.in_place = in_place;
    const auto v = prover::prove(t, {&op, 1});
    ASSERT_TRUE(v.ok) << v.text;
    for (const auto &r : v.ranks) {
      EXPECT_EQ(r.moved, 0u) << "sent from the input, received into the output";
      EXPECT_EQ(r.finished, 1u << 19);
      EXPECT_EQ(r.sent, 1u << 20);
    }
  }
}

TEST(Plan, TwoRanksThatShareMemoryTouchEachByteOnce) {
  const auto op = operation_of(Collective::AllReduce, 1 << 20, 65536);
  const auto v = prover::prove(world_of("aa"), {&op, 1});
  ASSERT_TRUE(v.ok) << v.text;
  for (const auto &r : v.ranks) {
    EXPECT_EQ(r.moved, 1u << 20) << "half in, half out";
    EXPECT_EQ(r.finished, 1u << 19);
  }
}

TEST(Plan, RootOfABridgedBroadcastSendsEachByteOnce) {
  const auto op = operation_of(Collective::Broadcast, 1 << 20, 65536);
  const auto v = prover::prove(world_of("abbcdd"), {&op, 1});
  ASSERT_TRUE(v.ok) << v.text;
  EXPECT_EQ(v.ranks[0].sent, 1u << 20);
  EXPECT_EQ(v.link_bytes, 3u << 20);
}

TEST(Plan, ExplainReadsAndItsJsonSaysTheSame) {
  const auto t = world_of("aabb");
  for (int c = 0; c < kCollectiveCount; ++c) {
    Request r = request_of(static_cast<Collective>(c), 1 << 20);
    r.root = 1;
    const auto p = plan_collective(t, 2, r);
    const std::string text = explain(*p, t);
    EXPECT_NE(text.find(collective_name(r.collective)), std::string::npos);
    EXPECT_NE(text.find("cost"), std::string::npos);
    const auto j = nlohmann::json::parse(explain_json(*p, t));
    EXPECT_EQ(j["text"], text);
    EXPECT_EQ(j["stages"].size(), p->host.size());
    EXPECT_EQ(j["link_bytes"], p->link_bytes);
  }
  const auto j = nlohmann::json::parse(explain_json(*plan_collective(t, 0, request_of(Collective::AllReduce, 1 << 20)), t));
  EXPECT_EQ(j["stages"][1]["name"], "reduce");
  EXPECT_NE(j["text"].get<std::string>().find("T*"), std::string::npos);
  EXPECT_EQ(j["bridge"]["time"], 1.0);
}

TEST(Plan, TheLeaderExchangeEndsWhereTheRequestSaysAndTheDigestTells) {
  const auto t = world_of("aabb");
  for (const Collective c : {Collective::AllReduce, Collective::Reduce, Collective::Broadcast})
    for (const uint64_t ends : {uint64_t{0}, kDefaultLeaderBytes, uint64_t{262144}})
      for (const uint64_t bytes : {uint64_t{1024}, uint64_t{8192}, uint64_t{8196}, uint64_t{262144}, uint64_t{262148}}) {
        Request r = request_of(c, bytes);
        r.small_bytes = ends;
        EXPECT_EQ(takes_leader_exchange(t, r), bytes <= ends)
            << collective_name(c) << " of " << bytes << ", leader exchange up to " << ends;
        const auto p = plan_collective(t, 3, r);  // the second rank of the second group, which is nobody's leader
        EXPECT_EQ(p->uses_links, bytes > ends)
            << collective_name(c) << " of " << bytes << ", leader exchange up to " << ends;
        r.small_bytes = ends + 4;
        EXPECT_NE(plan_collective(t, 3, r)->digest, p->digest);
        r.small_bytes = ends;
        r.small_from = LeaderBytesFrom::Profile;
        EXPECT_EQ(plan_collective(t, 3, r)->digest, p->digest) << "who said it changes no plan";
      }
  EXPECT_FALSE(has_leader_exchange(t, Collective::AllGather));
  EXPECT_FALSE(has_leader_exchange(world_of("aabb", "", topology::Bridge::Auto), Collective::AllReduce)) << "flat";
  EXPECT_FALSE(has_leader_exchange(world_of("aa"), Collective::AllReduce));
  EXPECT_EQ(most_leader_bytes(128 * 1024), 262144u);
  EXPECT_EQ(most_leader_bytes(4096), 16384u) << "slots are as small as chunks";
}

TEST(Plan, AnAllReduceBetweenGroupsThatAreFarApartGoesOneWayWhereThatIsWorthTheBytes) {
  const auto goes = [](const char *islands, DType dtype, uint64_t bytes, uint64_t way, bool far = true) {
    Request r = request_of(Collective::AllReduce, bytes);
    r.dtype = dtype;
    r.far = far;
    r.way_bytes = way;
    return takes_one_way(world_of(islands), r);
  };
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_TRUE(goes("ab", DType::BFloat16, kMiB << 20, 0)) << "between two groups of one rank no byte more crosses";
  EXPECT_TRUE(goes("aabb", DType::Float32, kMiB << 20, 0));
  EXPECT_FALSE(goes("ab", DType::Float32, kMiB, kMiB, false)) << "near";
  EXPECT_FALSE(goes("ab", DType::Float32, kDefaultLeaderBytes, kMiB)) << "the leader exchange is one way, too";
  // 2 n instead of 4/3 n; float32 sums of bfloat16 from each of two groups: 2 n instead of 3/2 n.
  EXPECT_TRUE(goes("abc", DType::Float32, 3 * kMiB, 2 * kMiB));
  EXPECT_FALSE(goes("abc", DType::Float32, 3 * kMiB + 64, 2 * kMiB));
  EXPECT_TRUE(goes("aab", DType::BFloat16, 2 * kMiB, kMiB));
  EXPECT_FALSE(goes("aab", DType::BFloat16, 2 * kMiB + 64, kMiB));
  EXPECT_FALSE(goes("AAb", DType::Float32, kMiB, kMiB)) << "where a library serves a group";
  EXPECT_FALSE(goes("nb", DType::Float32, kMiB, kMiB)) << "where ranks work on devices";
  Request r = request_of(Collective::AllReduce, kMiB);
  r.far = true;
  const auto t = world_of("ab");
  const auto p = plan_collective(t, 0, r);
  EXPECT_NE(explain(*p, t).find("form    whole, by each group, one way: far apart"), std::string::npos);
  const auto three = world_of("abc");
  const auto text = [&](uint64_t way) {
    Request some = r;
    some.way_bytes = way;
    return explain(*plan_collective(three, 0, some), three);
  };
  EXPECT_NE(text(2 * kMiB).find("form    whole, by each group, one way, up to 3.0 MiB: far apart"), std::string::npos)
      << text(2 * kMiB);
  EXPECT_NE(text(kMiB / 2).find("form    pieces, as above 768.0 KiB: a way is worth no more bytes"), std::string::npos)
      << text(kMiB / 2);
  EXPECT_NE(text(64).find("form    pieces, as above 8.0 KiB: the default"), std::string::npos) << text(64);
  r.way_bytes = 64;
  EXPECT_NE(plan_collective(t, 0, r)->digest, p->digest) << "ranks that have another bound may have another form";
  for (const Collective c : {Collective::Reduce, Collective::Broadcast, Collective::ReduceScatter}) {
    r.collective = c;
    EXPECT_FALSE(takes_one_way(t, r)) << collective_name(c) << " is one way in any form";
  }
}

TEST(Plan, ExplainSaysWhichFormAMessageTakesAndWhoSaidSo) {
  auto t = world_of("aabb");
  const auto said = [&](uint64_t bytes, LeaderBytesFrom from) {
    Request r = request_of(Collective::AllReduce, bytes);
    r.small_from = from;
    return nlohmann::json::parse(explain_json(*plan_collective(t, 0, r), t));
  };
  const auto line = [](const nlohmann::json &j) {
    const std::string text = j["text"];
    const size_t at = text.find("  form    ");
    return at == std::string::npos ? "" : text.substr(at + 10, text.find('\n', at) - at - 10);
  };
  EXPECT_EQ(
      line(said(8192, LeaderBytesFrom::Default)),
      "leader exchange: whole, by one rank of each group, up to 8.0 KiB: the default; no profile has it for all ranks");
  EXPECT_EQ(line(said(8196, LeaderBytesFrom::Setting)),
            "pieces, as above 8.0 KiB: set (ISTHMUS_LEADER_BYTES, ISTHMUS_EAGER_BYTES)");
  EXPECT_EQ(line(said(4, LeaderBytesFrom::Profile)),
            "leader exchange: whole, by one rank of each group, up to 8.0 KiB: measured (ISTHMUS_PROFILE)");
  const auto j = said(8196, LeaderBytesFrom::Profile);
  EXPECT_EQ(j["form"], "pieces");
  EXPECT_EQ(j["leader_exchange"], (nlohmann::json{{"bytes", 8192}, {"from", "profile"}, {"simulated", false}}));
  t.ranks[3].rates.simulated = true;
  EXPECT_NE(line(said(4, LeaderBytesFrom::Profile)).find("a rehearsal, which is no measurement"), std::string::npos);
  EXPECT_EQ(said(4, LeaderBytesFrom::Profile)["leader_exchange"]["simulated"], true);
  EXPECT_EQ(said(4, LeaderBytesFrom::Setting)["leader_exchange"]["simulated"], false);
  EXPECT_TRUE(nlohmann::json::parse(explain_json(*plan_collective(t, 0, request_of(Collective::AllGather, 64)), t))["form"]
                  .is_null());
}

// Ranks whose links differ, on otherwise fast hosts.
topology::Topology measured(topology::Topology t, const std::vector<double> &tcp) {
  for (size_t r = 0; r < t.ranks.size(); ++r) {
    auto &rates = t.ranks[r].rates;
    rates.values.fill(1e12);
    rates[topology::Rate::Tcp] = tcp[r];
  }
  topology::apply_profiles(t);
  return t;
}

TEST(Plan, MeasuredRatesMakeUnequalDomains) {
  const auto t = measured(world_of("abcd"), {1e9, 2e9, 4e9, 4e9});
  EXPECT_EQ(t.weights, (std::vector<double>{1, 2, 4, 4}));
  auto op = operation_of(Collective::AllReduce, 1 << 20, 65536);
  const auto v = prover::prove(t, {&op, 1});
  ASSERT_TRUE(v.ok) << v.text;
  EXPECT_LT(v.ranks[0].finished, v.ranks[1].finished);
  EXPECT_LT(v.ranks[1].finished, v.ranks[2].finished);
  EXPECT_EQ(v.link_bytes, 6u << 20) << "and not a byte more crosses";
}

TEST(Plan, APredictionOfABridgedAllReduceIsAtLeastTheBridgesBound) {
  const std::vector<std::vector<double>> cases = {{1e9, 1e9}, {1e9, 2e9}, {1e9, 2e9, 4e9, 4e9}, {3e8, 5e9, 1e9}};
  for (const auto &tcp : cases) {
    const auto t = measured(world_of(std::string("abcd").substr(0, tcp.size())), tcp);
    const auto request = request_of(Collective::AllReduce, 64 << 20);
    for (int rank = 0; rank < t.size(); ++rank) {
      const Prediction p = predict(*plan_collective(t, rank, request), t);
      EXPECT_EQ(p.unknown, "");
      const double bound = bridge_time(t.weights) * (64 << 20) / *std::min_element(tcp.begin(), tcp.end());
      EXPECT_NEAR(p.bridge, bound, 1e-6 * bound);
      EXPECT_GE(p.seconds, p.bridge);
      EXPECT_GE(p.seconds, p.copies + p.reductions + p.links);
      EXPECT_EQ(p.device, 0);
      EXPECT_FALSE(p.simulated);
    }
  }
}

// The device's part of an operation that goes by cells: the input out, the output in, and between them the host's word. The others' plans know
// nothing of it.
TEST(Plan, ADevicesPartOfAnOperationByCellsIsOneCopyEachWay) {
  const auto t = world_of("anb");
  for (int c = 0; c < kCollectiveCount; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (is_message(collective) || is_varying(collective) || collective == Collective::Barrier) continue;
    for (int root = 0; root < t.size(); ++root) {
      Request r = request_of(collective, 24);
      r.root = root;
      r.device = true;
      const int rank = 1;
      const bool reads = reads_input(collective, rank, root), writes = writes_output(collective, rank, root);
      const auto p = plan_by_cells(t, rank, r);
      ASSERT_TRUE(p) << collective_name(collective);
      EXPECT_TRUE(p->by_cells && p->host.empty() && !p->uses_links && p->slot_bytes == 0) << collective_name(collective);
      const bool inside = collective == Collective::Broadcast && root == rank;  // what it gives it gets without the host
      EXPECT_EQ(p->output_at.has_value(), writes && !inside) << collective_name(collective);
      std::vector<StepKind> kinds;
      for (const Step &s : p->steps) kinds.push_back(s.kind);
      std::vector<StepKind> expected;
      if (reads) expected = {StepKind::Move, StepKind::Post};
      if (inside) expected.push_back(StepKind::Move);
      else if (writes) expected.insert(expected.end(), {StepKind::Wait, StepKind::Move});
      EXPECT_EQ(kinds, expected) << collective_name(collective) << " from " << root;
      const auto bytes = [&](Blocks blocks, bool used) { return used ? block_count(blocks, t.size()) * r.bytes : 0; };
      EXPECT_GE(p->scratch_stride, bytes(traits(collective).input, reads));
      if (p->output_at) {
        EXPECT_GE(*p->output_at, bytes(traits(collective).input, reads)) << "the two do not overlap";
        EXPECT_GE(p->scratch_stride, *p->output_at + bytes(traits(collective).output, writes));
      }
    }
  }
  EXPECT_FALSE(plan_by_cells(t, 1, request_of(Collective::AllReduce, 0))) << "nothing to move";
}

// Blocks that lie apart in the user's memory lie back to back in what stands for it.
TEST(Plan, ADevicesPartOfAnOperationByCellsIsACopyOfEachBlockWhereBlocksLieApart) {
  const auto t = world_of("anb");
  Request r = request_of(Collective::AllToAll, 24);
  r.device = r.apart = true;
  const auto p = plan_by_cells(t, 1, r);
  ASSERT_TRUE(p && p->output_at);
  std::vector<std::pair<uint32_t, uint64_t>> in, out;  // block, place in scratch
  for (const Step &s : p->steps) {
    if (s.kind != StepKind::Move) continue;
    EXPECT_EQ(s.extent.length, 24u);
    const Span &from = p->sources[s.source];
    if (from.memory == Memory::Input) in.emplace_back(from.block, s.dst.base);
    else out.emplace_back(s.dst.block, from.base - *p->output_at);
  }
  using Blocks = std::vector<std::pair<uint32_t, uint64_t>>;
  EXPECT_EQ(in, (Blocks{{0, 0}, {1, 24}, {2, 48}}));
  EXPECT_EQ(out, (Blocks{{0, 0}, {1, 24}, {2, 48}}));
}

TEST(Plan, APredictionOverUnequalBridgesIsTheirBoundAndTheWayOfOneChunk) {
  struct Fleet {
    const char *islands;  // those from 'n' on work on devices
    std::vector<double> bridges;
  };
  // The fleets of bench/bridge.py, and the first of them on hosts. In the third it is the sum of the rates that bounds.
  const std::vector<Fleet> fleets = {{"nop", {400e6, 200e6, 50e6}},
                                     {"nopa", {200e6, 100e6, 100e6, 50e6}},
                                     {"nop", {75e6, 50e6, 50e6}},
                                     {"abc", {400e6, 200e6, 50e6}}};
  constexpr uint64_t bytes = 64 << 20;
  for (const auto &[islands, bridges] : fleets) {
    const auto t = measured(world_of(islands), bridges);
    auto equal = t;  // the ring's parts, over the same bridges
    equal.weights.assign(bridges.size(), 1.0);
    equal.digest = topology::digest_of(equal);
    const auto k = static_cast<double>(bridges.size());
    const double once = static_cast<double>(bytes) / *std::min_element(bridges.begin(), bridges.end());
    const double bound = bridge_time(t.weights) * once, ring = 2 * (k - 1) / k * once;
    const auto requested = [&](int rank) {
      Request r = request_of(Collective::AllReduce, bytes);
      r.device = t.ranks[static_cast<size_t>(rank)].device != "host";
      return r;
    };
    double sent = 0;  // by the busiest bridge, which receives as much
    for (int rank = 0; rank < t.size(); ++rank)
      sent = std::max(sent, static_cast<double>(plan_collective(t, rank, requested(rank))->link_bytes) /
                                bridges[static_cast<size_t>(rank)]);
    for (int rank = 0; rank < t.size(); ++rank) {
      const Prediction p = predict(*plan_collective(t, rank, requested(rank)), t);
      const Prediction q = predict(*plan_collective(equal, rank, requested(rank)), equal);
      EXPECT_NEAR(p.bridge, sent, 1e-9 * sent) << islands << ", rank " << rank;
      EXPECT_NEAR(p.bridge, bound, 1e-3 * bound) << "pieces are whole lines";
      EXPECT_GT(p.seconds, bound) << islands << ", rank " << rank;
      EXPECT_LE(p.seconds, 1.03 * bound) << islands << ", rank " << rank;
      EXPECT_NEAR(q.bridge, ring, 1e-3 * ring) << islands << ", rank " << rank;
      EXPECT_NEAR(q.seconds / p.seconds, ring / bound, 0.02 * ring / bound) << islands << ", rank " << rank;
    }
  }
}

TEST(Plan, APredictionForOneChunkIsBothItsHopsOneAfterTheOther) {
  const auto t = measured(world_of("abc"), {400e6, 200e6, 50e6});
  const auto p = plan_collective(t, 0, request_of(Collective::AllReduce, 64 << 10));
  ASSERT_EQ(p->chunks, 1u);
  const double once = (64 << 10) / 50e6;  // the slowest island owns nothing: it sends all, and then receives all
  EXPECT_NEAR(predict(*p, t).bridge, once, 1e-9 * once);
  EXPECT_NEAR(predict(*p, t).seconds, 2 * once, 1e-3 * once);
}

TEST(Plan, APredictionFollowsThePlansFramesAndNotTheShares) {
  const auto t = measured(world_of("abc"), {400e6, 200e6, 50e6});
  Plan p = *plan_collective(t, 2, request_of(Collective::AllReduce, 64 << 20));
  const Prediction before = predict(p, t);
  for (Step &s : p.steps)
    if (s.kind == StepKind::Recv) s.extent.length *= 2;
  const Prediction after = predict(p, t);
  EXPECT_GT(after.bridge, 1.9 * before.bridge) << "the last chunk's are cut at the end of the message";
  EXPECT_GT(after.seconds, 1.9 * before.seconds);
}

TEST(Plan, APredictionHasPartialResultsInTheirOwnWidth) {
  const auto t = measured(world_of("aab"), {1e9, 1e9, 1e9});
  Request r = request_of(Collective::AllReduce, 8 << 20);
  const double once = (8 << 20) / 1e9;
  EXPECT_NEAR(predict(*plan_collective(t, 2, r), t).bridge, once, 1e-3 * once);
  r.dtype = DType::BFloat16;
  // Of the third that b finishes it gets a's sum, in float32, and of a's two thirds the results, in bfloat16.
  for (int rank = 0; rank < t.size(); ++rank)
    EXPECT_NEAR(predict(*plan_collective(t, rank, r), t).bridge, (2.0 / 3 + 2.0 / 3) * once, 1e-3 * once) << rank;
}

TEST(Plan, APredictionKnowsTheBusiestBridgeOfOtherCollectives) {
  const auto t = measured(world_of("abc"), {50e6, 400e6, 400e6});
  Request r = request_of(Collective::Broadcast, 8 << 20);
  const double once = (8 << 20) / 50e6;
  for (int rank = 0; rank < t.size(); ++rank) {
    const Prediction p = predict(*plan_collective(t, rank, r), t);
    EXPECT_NEAR(p.bridge, once, 1e-9 * once) << "each byte leaves the root once";
    EXPECT_GT(p.seconds, p.bridge);
  }
  r.collective = Collective::AllGather;
  const Prediction p = predict(*plan_collective(t, 1, r), t);
  EXPECT_NEAR(p.bridge, 2 * once, 1e-9 * once) << "the slowest sends its block twice, and receives two";
  EXPECT_GE(p.seconds, p.bridge);
}

TEST(Plan, APredictionCountsWhatTheRanksThreadAndItsDeviceDo) {
  auto t = measured(world_of("nn", "", topology::Bridge::Auto), {1e9, 1e9});
  for (auto &r : t.ranks) {
    r.rates[topology::Rate::DeviceToHost] = 1e6;
    r.rates.simulated = true;
  }
  Request r = request_of(Collective::AllReduce, 8 << 20);
  r.device = true;
  const Prediction staged = predict(*plan_collective(t, 0, r), t);
  EXPECT_NEAR(staged.device, 8.388608, 1e-6) << "each byte goes out once";
  EXPECT_GT(staged.seconds, staged.device);
  EXPECT_EQ(staged.bridge, 0) << "one island in shared memory";
  EXPECT_TRUE(staged.simulated);
  t = measured(world_of("aa"), {1e9, 1e9});
  for (auto &rank : t.ranks) rank.rates[topology::Rate::ReduceFloat32] = 1e6;
  const Prediction reduced = predict(*plan_collective(t, 0, request_of(Collective::AllReduce, 8 << 20)), t);
  EXPECT_NEAR(reduced.reductions, 4.194304, 1e-6) << "half of it is reduced here";
}

TEST(Plan, APredictionThatCannotBeMadeSaysWhy) {
  auto t = measured(world_of("ab"), {1e9, 1e9});
  const auto why = [&](const Request &r) { return predict(*plan_collective(t, 0, r), t).unknown; };
  EXPECT_NE(why(request_of(Collective::AllReduce, 64)).find("latency"), std::string::npos);
  Request large = request_of(Collective::AllReduce, 100'000);
  EXPECT_EQ(why(large), "");
  large.small_bytes = 100'000;  // the leader exchange
  EXPECT_NE(why(large).find("latency"), std::string::npos);
  EXPECT_NE(why(request_of(Collective::Barrier, 0)).find("latency"), std::string::npos);
  EXPECT_NE(why(request_of(Collective::AllGatherV, 0)).find("sizes"), std::string::npos);
  t.ranks[0].rates[topology::Rate::Copy] = 0;
  EXPECT_NE(why(request_of(Collective::AllReduce, 1 << 20)).find("copies"), std::string::npos);
  t.ranks[1].rates = {};
  EXPECT_NE(why(request_of(Collective::AllReduce, 1 << 20)).find("rank 1 has no profile"), std::string::npos);
}

TEST(Plan, NobodyIsAskedForAProfileWhereNothingIsBridged) {
  const Request r = request_of(Collective::AllReduce, 1 << 20);
  for (const auto &t : {world_of("aa"), world_of("a")}) {
    ASSERT_TRUE(t.flat);
    const Prediction p = predict(*plan_collective(t, 0, r), t);
    EXPECT_TRUE(p.none && p.unknown.empty()) << p.unknown;
  }
  const auto apart = world_of("ab");
  const Prediction p = predict(*plan_collective(apart, 0, r), apart);
  EXPECT_FALSE(p.none);
  EXPECT_NE(p.unknown.find("rank 0 has no profile with the rate of its bridge (isthmus tune"), std::string::npos)
      << p.unknown;
  const auto known = measured(world_of("aa"), {1e9, 1e9});
  EXPECT_FALSE(predict(*plan_collective(known, 0, r), known).none);
}

TEST(Plan, TheTextCountsInTheSingularWhatIsOne) {
  const auto text = [](const topology::Topology &t, Collective c) {
    return explain(*plan_collective(t, 0, request_of(c, 1 << 20)), t);
  };
  EXPECT_NE(text(world_of("ab"), Collective::AllReduce).find("2 groups, mine has 1 rank\n"), std::string::npos);
  EXPECT_NE(text(world_of("aab"), Collective::AllReduce).find("2 groups, mine has 2 ranks\n"), std::string::npos);
  EXPECT_NE(text(world_of("a"), Collective::AllReduce).find("flat: a rank alone\n"), std::string::npos);
  for (const char *world : {"a", "aa", "ab", "aab"})
    for (const Collective c : {Collective::AllReduce, Collective::Broadcast, Collective::AllGather, Collective::Reduce})
      for (const char *wrong : {" 1 ranks", " 1 sources", " 1 groups", " 1 chunks"})
        EXPECT_EQ(text(world_of(world), c).find(wrong), std::string::npos) << text(world_of(world), c);
}

TEST(Plan, SendAndReceiveAreOneStepEach) {
  Request r = request_of(Collective::Send, 4096);
  r.root = 1;
  const auto t = world_of("aa");
  const auto send = plan_collective(t, 0, r);
  r.collective = Collective::Recv;
  r.root = 0;
  const auto recv = plan_collective(t, 1, r);
  ASSERT_EQ(send->steps.size(), 1u);
  EXPECT_EQ(send->steps[0].kind, StepKind::Send);
  EXPECT_EQ(send->link_bytes, 4096u);
  ASSERT_EQ(recv->steps.size(), 1u);
  EXPECT_EQ(recv->steps[0].kind, StepKind::Recv);
  EXPECT_EQ(send->digest, recv->digest);
  r.root = 9;
  EXPECT_THROW(plan_collective(t, 1, r), Error);
}

}  // namespace
}  // namespace isthmus::plan
