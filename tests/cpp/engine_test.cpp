// Every collective, many at once, and every way to end, with ranks as threads through the C interface.
#include "asleep.hpp"
#include "engine_support.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <random>

namespace isthmus::test {
namespace {

constexpr isthmus_dtype kType = ISTHMUS_INT64;
const uint64_t kCounts[] = {0, 1, 1000, 300000};

// A number of isthmus_context_stats(); -1 where there is no context.
int64_t context_stat(const std::string &name) {
  char *json = nullptr;
  ISTHMUS_OK_OR_SAY(isthmus_context_stats(&json));
  const std::string text = json ? json : "";
  isthmus_free(json);
  const size_t at = text.find('"' + name + '"');
  return at == std::string::npos ? -1 : std::stoll(text.substr(text.find(':', at) + 1));
}

// Until what the last communicator left behind is gone; with it go the settings of the process.
bool no_context() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(isthmus_test::soon());
  while (context_stat("threads") >= 0) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

class Shapes : public testing::TestWithParam<Shape> {};

std::vector<Shape> shapes() {
  return {{"flat2", 2, {}, nullptr, nullptr},
          {"flat4", 4, {}, nullptr, nullptr},
          {"flat2_little_staging", 2, {}, nullptr, "STAGING_BYTES=2M"},
          {"flat3_streamed", 3, {}, nullptr, "STORES=streamed"},
          {"flat3_no_one_hop", 3, {}, nullptr, "EAGER_BYTES=0;CHUNK_BYTES=64K"},
          {"tcp_1_1", 2, {"a", "b"}, "tcp", nullptr},
          {"tcp_2_1", 3, {"a", "a", "b"}, "tcp", nullptr},
          {"tcp_interleaved", 4, {"a", "b", "a", "b"}, "tcp", "TCP_STREAMS=1"},
          {"tcp_helped", 3, {"a", "a", "b"}, "tcp", "TCP_STREAMS=4;REDUCE_THREADS=2"},
          {"tcp_three_islands", 5, {"a", "b", "c", "b", "a"}, "tcp", nullptr}};
}

INSTANTIATE_TEST_SUITE_P(, Shapes, testing::ValuesIn(shapes()),
                         [](const auto &tested) { return std::string(tested.param.name); });

TEST_P(Shapes, EveryCollectiveIsRightAtEverySize) {
  const int world = GetParam().world;
  const auto w = static_cast<uint64_t>(world);
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    const auto me = static_cast<uint64_t>(rank);
    for (const uint64_t n : kCounts) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ", count " + std::to_string(n));
      const auto one = contribution(rank, n), wide = contribution(rank, n * w);
      std::vector<int64_t> out(n * w + 1, -1);
      const int root = static_cast<int>(n % w);
      const auto mine = [&](int r) { return [r](uint64_t i) { return value(r, i); }; };
      const auto fresh = [&] { out.assign(n * w + 1, -1); };

      ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, one.data(), out.data(), n, kType, ISTHMUS_SUM, nullptr, nullptr));
      EXPECT_EQ(wrong(out.data(), n, [&](uint64_t i) { return sum_of(world, i); }), 0u);
      auto in_place = one;
      ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, in_place.data(), in_place.data(), n, kType, ISTHMUS_MAX, nullptr, nullptr));
      EXPECT_EQ(wrong(in_place.data(), n, mine(world - 1)), 0u);

      fresh();
      ISTHMUS_OK_OR_SAY(isthmus_reduce(comm, one.data(), out.data(), n, kType, ISTHMUS_SUM, root, nullptr, nullptr));
      EXPECT_EQ(wrong(out.data(), n, [&](uint64_t i) { return rank == root ? sum_of(world, i) : -1; }), 0u);

      fresh();
      ISTHMUS_OK_OR_SAY(isthmus_broadcast(comm, one.data(), out.data(), n, kType, root, nullptr, nullptr));
      EXPECT_EQ(wrong(out.data(), n, mine(root)), 0u);

      fresh();
      ISTHMUS_OK_OR_SAY(isthmus_all_gather(comm, one.data(), out.data(), n, kType, nullptr, nullptr));
      for (int r = 0; r < world; ++r) EXPECT_EQ(wrong(out.data() + static_cast<uint64_t>(r) * n, n, mine(r)), 0u);

      fresh();
      ISTHMUS_OK_OR_SAY(isthmus_reduce_scatter(comm, wide.data(), out.data(), n, kType, ISTHMUS_SUM, nullptr, nullptr));
      EXPECT_EQ(wrong(out.data(), n, [&](uint64_t i) { return sum_of(world, me * n + i); }), 0u);

      fresh();
      ISTHMUS_OK_OR_SAY(isthmus_all_to_all(comm, wide.data(), out.data(), n, kType, nullptr, nullptr));
      for (int r = 0; r < world; ++r)
        EXPECT_EQ(wrong(out.data() + static_cast<uint64_t>(r) * n, n, [&](uint64_t i) { return value(r, me * n + i); }), 0u);

      fresh();
      ISTHMUS_OK_OR_SAY(isthmus_gather(comm, one.data(), out.data(), n, kType, root, nullptr, nullptr));
      for (int r = 0; r < world && rank == root; ++r)
        EXPECT_EQ(wrong(out.data() + static_cast<uint64_t>(r) * n, n, mine(r)), 0u);

      fresh();
      ISTHMUS_OK_OR_SAY(isthmus_scatter(comm, wide.data(), out.data(), n, kType, root, nullptr, nullptr));
      EXPECT_EQ(wrong(out.data(), n, [&](uint64_t i) { return value(root, me * n + i); }), 0u);
      EXPECT_EQ(out.back(), -1);
      ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
    }
  });
}

TEST_P(Shapes, CollectivesWithCountsTakeZeroAndUnequalOnes) {
  const int world = GetParam().world;
  const auto w = static_cast<uint64_t>(world);
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    const auto me = static_cast<uint64_t>(rank);
    for (const uint64_t unit : {uint64_t{0}, uint64_t{3}, uint64_t{1000}, uint64_t{60001}}) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ", unit " + std::to_string(unit));
      std::vector<uint64_t> counts(w), at(w), turned(w), back(w);  // rank r: r units, so rank 0 has nothing
      uint64_t total = 0;
      for (uint64_t r = 0; r < w; ++r) {
        counts[r] = r * unit;
        at[r] = total;
        total += counts[r];
        turned[r] = ((me + r) % 3) * unit;  // to rank r; symmetric, so also from rank r
        back[r] = turned[r];
      }
      const auto mine = contribution(rank, counts[me]), all = contribution(rank, total);
      std::vector<int64_t> out(total + 1, -1);
      ISTHMUS_OK_OR_SAY(
          isthmus_all_gather_v(comm, mine.data(), out.data(), counts.data(), nullptr, kType, nullptr, nullptr));
      for (int r = 0; r < world; ++r) {
        const auto b = static_cast<uint64_t>(r);
        EXPECT_EQ(wrong(out.data() + at[b], counts[b], [&](uint64_t i) { return value(r, i); }), 0u);
      }
      out.assign(total + 1, -1);
      ISTHMUS_OK_OR_SAY(isthmus_reduce_scatter_v(comm, all.data(), out.data(), counts.data(), nullptr, kType, ISTHMUS_SUM,
                                                 nullptr, nullptr));
      EXPECT_EQ(wrong(out.data(), counts[me], [&](uint64_t i) { return sum_of(world, at[me] + i); }), 0u);

      // The same blocks, each rank's elsewhere: rank r has them in another order, with r + 1 elements between them.
      std::vector<uint64_t> places(w);
      uint64_t end = 0;
      for (uint64_t r = 0; r < w; ++r) {
        const uint64_t block = (r + me) % w;
        places[block] = end;
        end += counts[block] + me + 1;
      }
      std::vector<int64_t> apart(end, -7);
      for (uint64_t r = 0; r < w; ++r) std::copy_n(all.begin() + at[r], counts[r], apart.begin() + places[r]);
      const auto before = apart;
      out.assign(total + 1, -1);
      ISTHMUS_OK_OR_SAY(isthmus_reduce_scatter_v(comm, apart.data(), out.data(), counts.data(), places.data(), kType,
                                                 ISTHMUS_SUM, nullptr, nullptr));
      EXPECT_EQ(wrong(out.data(), counts[me], [&](uint64_t i) { return sum_of(world, at[me] + i); }), 0u);
      EXPECT_EQ(out.back(), -1);
      EXPECT_EQ(apart, before);

      out.assign(total + 1, -1);
      ISTHMUS_OK_OR_SAY(
          isthmus_gather_v(comm, mine.data(), out.data(), counts.data(), nullptr, kType, world - 1, nullptr, nullptr));
      if (rank == world - 1) {
        for (int r = 0; r < world; ++r) {
          const auto b = static_cast<uint64_t>(r);
          EXPECT_EQ(wrong(out.data() + at[b], counts[b], [&](uint64_t i) { return value(r, i); }), 0u);
        }
      }
      out.assign(total + 1, -1);
      ISTHMUS_OK_OR_SAY(isthmus_scatter_v(comm, all.data(), out.data(), counts.data(), nullptr, kType, 0, nullptr, nullptr));
      EXPECT_EQ(wrong(out.data(), counts[me], [&](uint64_t i) { return value(0, at[me] + i); }), 0u);
      EXPECT_EQ(out.back(), -1);

      const auto given = contribution(rank, 3 * w * unit + 1);
      std::vector<int64_t> got(3 * w * unit + 1, -1);
      ISTHMUS_OK_OR_SAY(isthmus_all_to_all_v(comm, given.data(), turned.data(), nullptr, got.data(), back.data(), nullptr,
                                             kType, nullptr, nullptr));
      uint64_t from = 0;
      for (int r = 0; r < world; ++r) {
        uint64_t there = 0;  // where rank r's block for us begins
        for (uint64_t d = 0; d < me; ++d) there += ((static_cast<uint64_t>(r) + d) % 3) * unit;
        const uint64_t n = back[static_cast<size_t>(r)];
        EXPECT_EQ(wrong(got.data() + from, n, [&](uint64_t i) { return value(r, there + i); }), 0u);
        from += n;
      }
      EXPECT_EQ(got[from], -1);
    }
  });
}

TEST_P(Shapes, ManyOperationsInFlightOnSeveralCommunicators) {
  const int world = GetParam().world;
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    isthmus_comm_t comms[3] = {comm, nullptr, nullptr};
    for (int c = 1; c < 3; ++c) ISTHMUS_OK_OR_SAY(isthmus_comm_split(comm, 0, 0, nullptr, &comms[c]));
    constexpr int kEach = 12;
    std::vector<std::vector<int64_t>> data;
    std::vector<isthmus_work_t> works;
    for (int i = 0; i < kEach * 3; ++i) {
      data.push_back(contribution(rank, i % 4 == 3 ? 50000 : 100));
      works.push_back(nullptr);
      auto &d = data.back();
      ISTHMUS_OK_OR_SAY(
          isthmus_all_reduce(comms[i % 3], d.data(), d.data(), d.size(), kType, ISTHMUS_SUM, nullptr, &works.back()));
    }
    for (size_t i = works.size(); i-- > 0;) {  // last first
      ISTHMUS_OK_OR_SAY(isthmus_work_wait(works[i], 0));
      EXPECT_EQ(wrong(data[i].data(), data[i].size(), [&](uint64_t k) { return sum_of(world, k); }), 0u);
      isthmus_work_release(works[i]);
    }
    for (int c = 1; c < 3; ++c) ISTHMUS_OK_OR_SAY(isthmus_comm_destroy(comms[c]));
  });
}

TEST_P(Shapes, MessagesMatchBySourceAndTagAndAnySource) {
  const int world = GetParam().world;
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    const int next = (rank + 1) % world, previous = (rank + world - 1) % world;
    for (const uint64_t n : kCounts) {
      SCOPED_TRACE("rank " + std::to_string(rank) + ", count " + std::to_string(n));
      // Tags are received in the other order than they were sent in.
      const auto five = contribution(rank, n), six = contribution(rank + 100, n);
      std::vector<int64_t> a(n), b(n);
      isthmus_work_t sends[2], recvs[2];
      ISTHMUS_OK_OR_SAY(isthmus_send(comm, five.data(), n, kType, next, 5, nullptr, &sends[0]));
      ISTHMUS_OK_OR_SAY(isthmus_send(comm, six.data(), n, kType, next, 6, nullptr, &sends[1]));
      ISTHMUS_OK_OR_SAY(isthmus_recv(comm, b.data(), n, kType, previous, 6, nullptr, nullptr, &recvs[1]));
      ISTHMUS_OK_OR_SAY(isthmus_recv(comm, a.data(), n, kType, ISTHMUS_ANY_SOURCE, 5, nullptr, nullptr, &recvs[0]));
      for (auto *w : {recvs[0], recvs[1], sends[0], sends[1]}) ISTHMUS_OK_OR_SAY(isthmus_work_wait(w, 0));
      EXPECT_EQ(isthmus_work_source(recvs[0]), previous);
      for (auto *w : {recvs[0], recvs[1], sends[0], sends[1]}) isthmus_work_release(w);
      EXPECT_EQ(wrong(a.data(), n, [&](uint64_t i) { return value(previous, i); }), 0u);
      EXPECT_EQ(wrong(b.data(), n, [&](uint64_t i) { return value(previous + 100, i); }), 0u);
      // Nobody is mistaken for somebody of the next round: any source of tag 5 would take it.
      ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
    }
  });
}

TEST_P(Shapes, AGroupExchangesInAnyOrderWithItselfToo) {
  const int world = GetParam().world;
  const auto w = static_cast<uint64_t>(world);
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    for (const uint64_t n : {uint64_t{10}, uint64_t{100000}}) {
      const auto mine = contribution(rank, n);
      std::vector<int64_t> all(n * w, -1), sum(n, -1);
      ISTHMUS_OK_OR_SAY(isthmus_group_begin());
      for (int p = 0; p < world; ++p) ISTHMUS_OK_OR_SAY(isthmus_send(comm, mine.data(), n, kType, p, 1, nullptr, nullptr));
      ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, mine.data(), sum.data(), n, kType, ISTHMUS_SUM, nullptr, nullptr));
      for (int p = world; p-- > 0;)
        ISTHMUS_OK_OR_SAY(
            isthmus_recv(comm, all.data() + static_cast<uint64_t>(p) * n, n, kType, p, 1, nullptr, nullptr, nullptr));
      ISTHMUS_OK_OR_SAY(isthmus_group_end(nullptr));
      for (int p = 0; p < world; ++p)
        EXPECT_EQ(wrong(all.data() + static_cast<uint64_t>(p) * n, n, [&](uint64_t i) { return value(p, i); }), 0u);
      EXPECT_EQ(wrong(sum.data(), n, [&](uint64_t i) { return sum_of(world, i); }), 0u);
    }
  });
}

TEST_P(Shapes, AbortEndsPendingWorkOnEveryRank) {
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    std::vector<int64_t> x(300000), y(300000);
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that the others mostly wait already
      ISTHMUS_OK_OR_SAY(isthmus_comm_abort(comm, "on purpose"));
    } else {
      isthmus_work_t work[2] = {nullptr, nullptr};
      const auto a = isthmus_all_reduce(comm, x.data(), x.data(), x.size(), kType, ISTHMUS_SUM, nullptr, &work[0]);
      const auto b = isthmus_recv(comm, y.data(), y.size(), kType, 0, 4, nullptr, nullptr, &work[1]);
      EXPECT_TRUE(a != ISTHMUS_OK || isthmus_work_wait(work[0], 0) == ISTHMUS_ERR_ABORTED) << isthmus_last_error();
      EXPECT_TRUE(b != ISTHMUS_OK || isthmus_work_wait(work[1], 0) == ISTHMUS_ERR_ABORTED) << isthmus_last_error();
      for (auto *w : work) isthmus_work_release(w);
    }
    EXPECT_EQ(isthmus_barrier(comm, nullptr, nullptr), ISTHMUS_ERR_ABORTED);
    EXPECT_TRUE(std::strstr(isthmus_last_error(), "on purpose")) << isthmus_last_error();
  });
}

TEST_P(Shapes, WithoutRankZeroTheOthersShrinkIt) {
  const int world = GetParam().world;
  if (world < 2) return;
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    if (rank == 0) return;
    std::vector<int64_t> x(300000);
    isthmus_work_t work = nullptr;  // rank 0 never calls it
    ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, x.data(), x.data(), x.size(), kType, ISTHMUS_SUM, nullptr, &work));
    std::vector<int> left;
    for (int r = 1; r < world; ++r) left.push_back(r);
    std::vector<int64_t> said(left.size());
    const int64_t mine = value(rank, 5);
    for (int times = 0; times < 3; ++times) {
      ISTHMUS_OK_OR_SAY(isthmus_comm_exchange(comm, left.data(), world - 1, &mine, said.data(), sizeof mine, 0));
      for (const int r : left) EXPECT_EQ(said[static_cast<size_t>(r - 1)], value(r, 5));
    }
    isthmus_comm_t rest = nullptr;
    const int gone[] = {0};
    ISTHMUS_OK_OR_SAY(isthmus_comm_shrink(comm, gone, 1, ISTHMUS_SHRINK_ABORT, nullptr, &rest));
    EXPECT_NE(isthmus_work_wait(work, 0), ISTHMUS_OK);
    isthmus_work_release(work);
    std::vector<int64_t> sum = contribution(rank, 50000);
    ISTHMUS_OK_OR_SAY(isthmus_all_reduce(rest, sum.data(), sum.data(), sum.size(), kType, ISTHMUS_SUM, nullptr, nullptr));
    EXPECT_EQ(wrong(sum.data(), sum.size(), [&](uint64_t i) { return sum_of(world, i) - value(0, i); }), 0u);
    ISTHMUS_OK_OR_SAY(isthmus_comm_destroy(rest));
  });
}

// Rank 1 gives up and comes again, rank 0 waits all the time, rank 2 comes late: nobody has lost what the others said.
TEST_P(Shapes, WhoGivesUpAnExchangeMayComeAgain) {
  const int world = GetParam().world;
  if (world < 3) return;
  std::atomic<bool> gave_up{false};
  std::atomic<pid_t> zero{0};
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    const int first[] = {0, 1, 2};
    const int64_t mine = value(rank, 7);
    int64_t said[3] = {};
    if (rank > 2) {
      ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
      return;
    }
    if (rank == 0) zero = isthmus_test::this_thread();
    if (rank == 1) {
      while (zero == 0) std::this_thread::yield();
      EXPECT_TRUE(isthmus_test::falls_asleep(zero)) << "in its exchange";
      EXPECT_EQ(isthmus_comm_exchange(comm, first, 3, &mine, said, sizeof mine, isthmus_test::patient(0.5)),
                ISTHMUS_ERR_TIMEOUT);
      EXPECT_TRUE(std::strstr(isthmus_last_error(), "rank 2")) << "as rank 0 says: " << isthmus_last_error();
      gave_up = true;
    }
    while (rank == 2 && !gave_up) std::this_thread::yield();
    ISTHMUS_OK_OR_SAY(isthmus_comm_exchange(comm, first, 3, &mine, said, sizeof mine, isthmus_test::soon()));
    for (const int r : first) EXPECT_EQ(said[r], value(r, 7));
    const int64_t then = value(rank, 8);
    ISTHMUS_OK_OR_SAY(isthmus_comm_exchange(comm, first, 3, &then, said, sizeof then, isthmus_test::soon()));
    for (const int r : first) EXPECT_EQ(said[r], value(r, 8)) << "what rank " << r << " says in the second exchange";
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
  });
}

// Ranks 1 and 2 give up as often as they like, also in the moment in which rank 0 passes on what they have said.
TEST_P(Shapes, RanksThatGiveUpAnExchangeAndComeAgainStayInStepAndAllGetTheSame) {
  const int world = GetParam().world;
  if (world < 3) return;
  constexpr int kTimes = 300;
  using Said = std::array<int64_t, 3>;  // of each rank the exchange, times 1000, and how often the rank has called it
  std::array<std::vector<Said>, 3> got;
  std::atomic<int> gave_up{0};
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    const int first[] = {0, 1, 2};
    if (rank < 3) {
      std::minstd_rand any(static_cast<unsigned>(rank) + 1);
      for (int i = 0; i < kTimes; ++i) {
        Said said{};
        for (int64_t mine = 1000 * i;; ++mine) {
          const double most =
              rank == 0 || mine % 1000 == 500 ? isthmus_test::soon() : 1e-6 * static_cast<double>(any() % 400 + 1);
          const isthmus_result r = isthmus_comm_exchange(comm, first, 3, &mine, said.data(), sizeof mine, most);
          if (r == ISTHMUS_OK) break;
          ASSERT_EQ(r, ISTHMUS_ERR_TIMEOUT) << isthmus_last_error();
          ASSERT_NE(rank, 0) << isthmus_last_error();
          ++gave_up;
        }
        for (const int64_t s : said) ASSERT_EQ(s / 1000, i) << "on rank " << rank;
        got[static_cast<size_t>(rank)].push_back(said);
      }
    }
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
  });
  EXPECT_GT(gave_up, 0);
  EXPECT_EQ(got[1], got[0]);
  EXPECT_EQ(got[2], got[0]);
}

TEST_P(Shapes, AnAbortHereEndsAnExchangeOfAnAbortedCommunicator) {
  std::atomic<bool> over{false};
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    const int world = GetParam().world, both[] = {0, 1};
    if (world < 2 || rank > 1) return;
    char in = 1, out[2];
    ISTHMUS_OK_OR_SAY(isthmus_comm_abort(comm, "first"));
    while (rank == 1 && !over) std::this_thread::yield();
    if (rank == 1) return;  // it does not come, and destroys its side only now, which would end the exchange as well
    std::thread other([&] {
      for (; !over; std::this_thread::sleep_for(std::chrono::milliseconds(5))) isthmus_comm_abort(comm, "again");
    });
    EXPECT_EQ(isthmus_comm_exchange(comm, both, 2, &in, out, 1, 2 * isthmus_test::soon()), ISTHMUS_ERR_ABORTED);
    EXPECT_TRUE(std::strstr(isthmus_last_error(), "aborted here meanwhile")) << isthmus_last_error();
    over = true;
    other.join();
  });
}

TEST_P(Shapes, WhatCannotBeExchangedIsRefused) {
  const int world = GetParam().world;
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    char in[5000] = {}, out[5000];
    const int all[] = {0, 1, 2, 3, 4, 5, 6, 7}, twice[] = {rank, rank}, beyond[] = {rank, world},
              other[] = {(rank + 1) % world};
    const auto refused = [&](const int *ranks, int count, const void *send, void *recv, size_t bytes, double timeout) {
      EXPECT_EQ(isthmus_comm_exchange(comm, ranks, count, send, recv, bytes, timeout), ISTHMUS_ERR_ARGUMENT);
    };
    refused(nullptr, 1, in, out, 1, 0);
    refused(all, 0, in, out, 1, 0);
    refused(all, -1, in, out, 1, 0);
    refused(twice, 2, in, out, 1, 0);
    refused(beyond, 2, in, out, 1, 0);
    if (world > 1) refused(other, 1, in, out, 1, 0);
    refused(&rank, 1, in, out, 0, 0);
    refused(&rank, 1, in, out, 4097, 0);
    refused(&rank, 1, nullptr, out, 1, 0);
    refused(&rank, 1, in, nullptr, 1, 0);
    refused(&rank, 1, in, out, 1, -1);
    in[0] = 7;
    ISTHMUS_OK_OR_SAY(isthmus_comm_exchange(comm, &rank, 1, in, out, 4096, 0));  // with itself
    EXPECT_EQ(out[0], 7);
    isthmus_comm_t rest = nullptr;
    EXPECT_EQ(isthmus_comm_shrink(comm, nullptr, 1, ISTHMUS_SHRINK_KEEP, nullptr, &rest), ISTHMUS_ERR_ARGUMENT);
    EXPECT_EQ(isthmus_comm_shrink(comm, &rank, 1, ISTHMUS_SHRINK_KEEP, nullptr, &rest), ISTHMUS_ERR_ARGUMENT);
    EXPECT_EQ(isthmus_comm_shrink(comm, &world, 1, ISTHMUS_SHRINK_KEEP, nullptr, &rest), ISTHMUS_ERR_ARGUMENT);
    EXPECT_EQ(isthmus_comm_shrink(comm, all, 1, ISTHMUS_SHRINK_KEEP, nullptr, nullptr), ISTHMUS_ERR_ARGUMENT);
    EXPECT_EQ(rest, nullptr);
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
  });
}

TEST_P(Shapes, DestroyWithPendingWorkEndsIt) {
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int) {
    isthmus_comm_t part = nullptr;
    ISTHMUS_OK_OR_SAY(isthmus_comm_split(comm, 0, 0, nullptr, &part));
    ISTHMUS_OK_OR_SAY(isthmus_comm_set_timeout(part, 0.1));
    int64_t never = 0;
    isthmus_work_t work = nullptr;
    ISTHMUS_OK_OR_SAY(isthmus_recv(part, &never, 1, kType, ISTHMUS_ANY_SOURCE, 0, nullptr, nullptr, &work));
    isthmus_comm_destroy(part);
    EXPECT_NE(isthmus_work_test(work), ISTHMUS_IN_PROGRESS);
    EXPECT_NE(isthmus_work_test(work), ISTHMUS_OK);
    isthmus_work_release(work);
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
  });
}

TEST_P(Shapes, CallbacksMaySubmitTheNextOperation) {
  const int world = GetParam().world;
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    struct Chain {
      isthmus_comm_t comm;
      std::vector<int64_t> data;
      std::atomic<int> left{20};
      std::atomic<isthmus_result> result{ISTHMUS_OK};
      std::atomic<bool> over{false};
      static void next(void *self, isthmus_result result, const char *) {
        auto *c = static_cast<Chain *>(self);
        if (result != ISTHMUS_OK || c->left.fetch_sub(1) == 0) {
          c->result = result;
          c->over = true;
          return;
        }
        c->submit();
      }
      void submit() {
        isthmus_work_t work = nullptr;
        const auto r = isthmus_all_reduce(comm, data.data(), data.data(), data.size(), kType, ISTHMUS_MAX, nullptr, &work);
        if (r != ISTHMUS_OK || isthmus_work_on_done(work, next, this) != ISTHMUS_OK) {
          result = r;
          over = true;
        }
        isthmus_work_release(work);
      }
    } chain{comm, contribution(rank, 1000)};
    chain.submit();
    while (!chain.over) std::this_thread::yield();  // the progress thread drives
    EXPECT_EQ(chain.result.load(), ISTHMUS_OK);
    EXPECT_EQ(wrong(chain.data.data(), 1000, [&](uint64_t i) { return value(world - 1, i); }), 0u);
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
  });
}

// Every rank's callback joins a collective, and waits for it. Nobody else drives but the progress thread, on which one of the callbacks may
// run: another thread takes its place.
TEST_P(Shapes, ACallbackMayWaitForACollectiveThatCallbacksOfTheOthersJoin) {
  const int world = GetParam().world;
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    struct Callback {
      isthmus_comm_t comm;
      std::vector<int64_t> data;
      std::atomic<int> result{-1};
      static void done(void *self, isthmus_result, const char *) {
        auto *c = static_cast<Callback *>(self);
        isthmus_work_t work = nullptr;
        const auto sum = [&](isthmus_work_t *into) {
          return isthmus_all_reduce(c->comm, c->data.data(), c->data.data(), c->data.size(), kType, ISTHMUS_MAX, nullptr,
                                    into);
        };
        isthmus_result got = sum(nullptr);
        if (got == ISTHMUS_OK) got = sum(&work);
        if (got == ISTHMUS_OK) got = isthmus_work_wait(work, 0);
        isthmus_work_release(work);
        c->result = got;
      }
    };
    for (int turn = 0; turn < 5; ++turn) {
      Callback callback{comm, contribution(rank, 1000)};
      isthmus_work_t work = nullptr;
      ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, &work));
      ISTHMUS_OK_OR_SAY(isthmus_work_on_done(work, Callback::done, &callback));
      isthmus_work_release(work);
      while (callback.result == -1) std::this_thread::yield();
      EXPECT_EQ(callback.result, ISTHMUS_OK);
      EXPECT_EQ(wrong(callback.data.data(), 1000, [&](uint64_t i) { return value(world - 1, i); }), 0u);
    }
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
  });
}

TEST_P(Shapes, ACallbackMayDestroyItsCommunicator) {
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    isthmus_comm_t part = nullptr;
    ISTHMUS_OK_OR_SAY(isthmus_comm_split(comm, 0, rank, nullptr, &part));
    struct Callback {
      isthmus_comm_t comm;
      std::atomic<int> result{-1};
      static void done(void *self, isthmus_result result, const char *) {
        auto *c = static_cast<Callback *>(self);
        isthmus_comm_destroy(c->comm);
        c->result = result;
      }
    } callback{part};
    isthmus_work_t work = nullptr;
    ISTHMUS_OK_OR_SAY(isthmus_barrier(part, nullptr, &work));
    ISTHMUS_OK_OR_SAY(isthmus_work_on_done(work, Callback::done, &callback));
    isthmus_work_release(work);
    while (callback.result == -1) std::this_thread::yield();
    EXPECT_EQ(callback.result, ISTHMUS_OK);
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
  });
}

// The last rank comes to the barrier before them when the others have said what they want called.
TEST_P(Shapes, CallbacksOfOneCommunicatorRunInOrderAndOneAtATime) {
  const int world = GetParam().world;
  std::atomic<int> ready{0};
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    constexpr int kEach = 50;
    struct Callbacks {
      std::atomic<int> running{0}, ran{0};
      std::atomic<bool> well{true};
    } callbacks;
    struct One {
      Callbacks *all;
      int number;
      static void done(void *self, isthmus_result, const char *) {
        auto *one = static_cast<One *>(self);
        if (one->all->running.fetch_add(1) != 0 || one->all->ran.load() != one->number) one->all->well = false;
        std::this_thread::yield();
        one->all->running.fetch_sub(1);
        one->all->ran.fetch_add(1);
      }
    };
    std::vector<One> ones;
    for (int i = 0; i < kEach; ++i) ones.push_back({&callbacks, i});
    const bool last = rank == world - 1;
    while (last && ready < world - 1) std::this_thread::yield();
    isthmus_work_t barrier = nullptr;
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, &barrier));
    std::vector<int64_t> data(64, 1);
    std::vector<isthmus_work_t> works(kEach);
    for (int i = 0; i < kEach; ++i) {
      ISTHMUS_OK_OR_SAY(
          isthmus_all_reduce(comm, data.data(), data.data(), data.size(), kType, ISTHMUS_MAX, nullptr, &works[i]));
      if (!last) ISTHMUS_OK_OR_SAY(isthmus_work_on_done(works[i], One::done, &ones[i]));
    }
    ++ready;
    std::vector<std::thread> waiters;
    for (int t = 0; t < 2; ++t)
      waiters.emplace_back([&] {
        for (isthmus_work_t work : works) ISTHMUS_OK_OR_SAY(isthmus_work_wait(work, 0));
      });
    for (std::thread &waiter : waiters) waiter.join();
    for (isthmus_work_t work : works) isthmus_work_release(work);
    isthmus_work_release(barrier);
    while (!last && callbacks.ran < kEach) std::this_thread::yield();
    EXPECT_TRUE(callbacks.well);
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
  });
}

// The last rank comes when the others have said what they want called.
TEST_P(Shapes, TheCallbackOfAGroupComesBehindThoseOfItsOperations) {
  const int world = GetParam().world;
  std::atomic<int> ready{0};
  on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
    constexpr int kEach = 3;
    struct Called {
      explicit Called(std::atomic<int> *of) : count(of) {}
      std::atomic<int> *count;
      int before = -1;  // how many had run
      std::atomic<bool> over{false};
      static void done(void *self, isthmus_result, const char *) {
        auto *called = static_cast<Called *>(self);
        called->before = called->count->fetch_add(1);
        called->over = true;
      }
    };
    const bool last = rank == world - 1;
    while (last && ready < world - 1) std::this_thread::yield();
    std::atomic<int> count{0};
    std::vector<int64_t> data(64, 1);
    std::vector<isthmus_work_t> works(kEach);
    isthmus_work_t group = nullptr;
    ISTHMUS_OK_OR_SAY(isthmus_group_begin());
    for (isthmus_work_t &work : works)
      ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, data.data(), data.data(), data.size(), kType, ISTHMUS_MAX, nullptr, &work));
    ISTHMUS_OK_OR_SAY(isthmus_group_end(&group));
    std::deque<Called> called;
    for (isthmus_work_t work : works)
      ISTHMUS_OK_OR_SAY(isthmus_work_on_done(work, Called::done, &called.emplace_back(&count)));
    Called &whole = called.emplace_back(&count);
    ISTHMUS_OK_OR_SAY(isthmus_work_on_done(group, Called::done, &whole));
    ++ready;
    ISTHMUS_OK_OR_SAY(isthmus_work_wait(group, 0));
    EXPECT_TRUE(whole.over);
    if (!last) { EXPECT_EQ(whole.before, kEach); }
    for (isthmus_work_t work : works) {
      ISTHMUS_OK_OR_SAY(isthmus_work_wait(work, 0));
      isthmus_work_release(work);
    }
    isthmus_work_release(group);
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
  });
}

TEST(Engine, SplitMakesGroupsInTheOrderOfTheKeys) {
  on_ranks({"split", 4, {}, nullptr, nullptr}, [](isthmus_comm_t comm, int rank) {
    isthmus_comm_t part = nullptr;
    ISTHMUS_OK_OR_SAY(isthmus_comm_split(comm, rank % 2, -rank, "part", &part));
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(isthmus_comm_size(part), 2);
    EXPECT_EQ(isthmus_comm_rank(part), rank < 2 ? 1 : 0);
    int64_t x = rank;
    ISTHMUS_OK_OR_SAY(isthmus_all_reduce(part, &x, &x, 1, kType, ISTHMUS_SUM, nullptr, nullptr));
    EXPECT_EQ(x, rank % 2 == 0 ? 2 : 4);
    ISTHMUS_OK_OR_SAY(isthmus_comm_destroy(part));
    ISTHMUS_OK_OR_SAY(isthmus_comm_split(comm, rank == 1 ? -1 : 7, 0, nullptr, &part));
    EXPECT_EQ(part == nullptr, rank == 1);
    EXPECT_EQ(isthmus_comm_size(part), rank == 1 ? -1 : 3);
    ISTHMUS_OK_OR_SAY(isthmus_comm_destroy(part));
  });
}

// The promise is one second on an idle machine of two cores, and that is only said: a sanitizer's build or a loaded machine takes longer.
// But there is not a thread, a socket or a descriptor for any of them.
TEST(Engine, AThousandCommunicatorsCostLittleAndNoThread) {
  // Processor time of the whole process, both ranks: what else the machine does is not counted.
  static std::atomic<int64_t> processor_ms{0};
  on_ranks({"thousand", 2, {}, nullptr, nullptr}, [](isthmus_comm_t comm, int rank) {
    const auto stats = [] { return std::pair(context_stat("threads"), context_stat("descriptors")); };
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
    const auto before = stats();
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
    const std::clock_t begin = std::clock();
    std::vector<isthmus_comm_t> parts(1000, nullptr);
    for (auto &part : parts)
      if (isthmus_comm_split(comm, 0, 0, nullptr, &part) != ISTHMUS_OK) {
        ADD_FAILURE() << isthmus_last_error();
        return;
      }
    ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
    if (rank == 0) processor_ms = 1000 * static_cast<int64_t>(std::clock() - begin) / CLOCKS_PER_SEC;
    EXPECT_EQ(stats(), before);
    EXPECT_GE(before.first, 1);
    for (size_t i = 0; i < parts.size(); i += 100) {
      int64_t x = 1;
      ISTHMUS_OK_OR_SAY(isthmus_all_reduce(parts[i], &x, &x, 1, kType, ISTHMUS_SUM, nullptr, nullptr));
      EXPECT_EQ(x, 2);
    }
    for (auto *part : parts) isthmus_comm_destroy(part);
  });
  std::printf("1000 communicators of 2 ranks in %lld ms of processor time\n", static_cast<long long>(processor_ms.load()));
}

TEST(Engine, ThreadsOfOneRankMayUseDifferentCommunicators) {
  on_ranks({"threads", 2, {}, nullptr, nullptr}, [](isthmus_comm_t comm, int rank) {
    isthmus_comm_t parts[3] = {};
    for (auto &part : parts) ISTHMUS_OK_OR_SAY(isthmus_comm_split(comm, 0, 0, nullptr, &part));
    std::vector<std::thread> threads;
    for (auto *part : parts)
      threads.emplace_back([part, rank] {
        for (int i = 0; i < 50; ++i) {
          auto x = contribution(rank, i % 10 == 0 ? 20000 : 10);
          ISTHMUS_OK_OR_SAY(isthmus_all_reduce(part, x.data(), x.data(), x.size(), kType, ISTHMUS_SUM, nullptr, nullptr));
          EXPECT_EQ(wrong(x.data(), x.size(), [](uint64_t k) { return sum_of(2, k); }), 0u);
        }
      });
    for (auto &t : threads) t.join();
    for (auto *part : parts) ISTHMUS_OK_OR_SAY(isthmus_comm_destroy(part));
  });
}

TEST(Engine, AbortFromAnotherThreadWhileEverybodyWorks) {
  for (int round = 0; round < 10; ++round)
    on_ranks({"abort", 3, {}, nullptr, nullptr}, [&](isthmus_comm_t comm, int rank) {
      std::thread other;
      if (rank == round % 3)
        other = std::thread([comm, round] {
          std::this_thread::sleep_for(std::chrono::milliseconds(round));
          ISTHMUS_OK_OR_SAY(isthmus_comm_abort(comm, "enough"));
        });
      std::vector<int64_t> x(20000, rank);
      isthmus_result result;
      do result = isthmus_all_reduce(comm, x.data(), x.data(), x.size(), kType, ISTHMUS_MAX, nullptr, nullptr);
      while (result == ISTHMUS_OK);
      EXPECT_EQ(result, ISTHMUS_ERR_ABORTED) << isthmus_last_error();
      if (other.joinable()) other.join();
    });
}

// What is read would depend on how far the copies have come. The refusal starts nothing, so the ranks go on with the next operation.
TEST(Engine, SendAndReceiveBuffersThatOverlapButInPlaceAreRefused) {
  on_ranks({"overlap", 2, {}}, [](isthmus_comm_t comm, int rank) {
    constexpr uint64_t kMost = 60000;
    std::vector<int64_t> x(4 * kMost, 1);
    const uint64_t first[] = {0, 0}, counts[] = {2, 2}, apart[] = {0, 4};
    int64_t *const at = x.data();
    const auto refused = [](isthmus_result result) {
      EXPECT_EQ(result, ISTHMUS_ERR_ARGUMENT);
      EXPECT_NE(std::string(isthmus_last_error()).find("overlap"), std::string::npos) << isthmus_last_error();
    };
    const auto me = static_cast<uint64_t>(rank), other = 1 - me;
    for (const uint64_t n : {uint64_t{4}, kMost}) {  // small ones need no list of blocks
      refused(isthmus_all_reduce(comm, at, at + 1, n, kType, ISTHMUS_SUM, nullptr, nullptr));
      refused(isthmus_reduce(comm, at + 1, at, n, kType, ISTHMUS_SUM, rank, nullptr, nullptr));
      refused(isthmus_broadcast(comm, at, at + n - 1, n, kType, rank, nullptr, nullptr));
      refused(isthmus_all_gather(comm, at + other * n, at, n, kType, nullptr, nullptr));
      refused(isthmus_gather(comm, at + other * n, at, n, kType, rank, nullptr, nullptr));
      refused(isthmus_reduce_scatter(comm, at, at + other * n, n, kType, ISTHMUS_SUM, nullptr, nullptr));
      refused(isthmus_scatter(comm, at, at + other * n, n, kType, rank, nullptr, nullptr));
      refused(isthmus_all_to_all(comm, at, at + n, n, kType, nullptr, nullptr));
    }
    refused(isthmus_all_to_all_v(comm, at, counts, first, at + 1, counts, apart, kType, nullptr, nullptr));
    // Blocks between blocks share nothing, and what is in place is.
    ISTHMUS_OK_OR_SAY(isthmus_all_to_all_v(comm, at, counts, apart, at + 2, counts, apart, kType, nullptr, nullptr));
    ISTHMUS_OK_OR_SAY(isthmus_all_gather(comm, at + me * kMost, at, kMost, kType, nullptr, nullptr));
    ISTHMUS_OK_OR_SAY(isthmus_reduce_scatter(comm, at, at + me * kMost, kMost, kType, ISTHMUS_SUM, nullptr, nullptr));
    ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, at, at + kMost, kMost, kType, ISTHMUS_SUM, nullptr, nullptr));
  });
}

// Staging memory is the process's. What does not fit ends in an error that says which setting to raise; what fitted goes on.
TEST(Engine, ManyCommunicatorsShareALittleStagingOneAfterTheOtherAndAllAtOnce) {
  ASSERT_TRUE(no_context());
  on_ranks({"budget", 2, {}, nullptr, "STAGING_BYTES=2M"}, [](isthmus_comm_t comm, int rank) {
    EXPECT_EQ(context_stat("staging_limit"), 2 << 20);
    std::vector<isthmus_comm_t> parts(40, nullptr);
    std::vector<std::vector<int64_t>> x(parts.size());
    for (auto &part : parts) {
      ISTHMUS_OK_OR_SAY(isthmus_comm_split(comm, 0, 0, nullptr, &part));
      x[0] = contribution(rank, 100000);
      ISTHMUS_OK_OR_SAY(
          isthmus_all_reduce(part, x[0].data(), x[0].data(), x[0].size(), kType, ISTHMUS_SUM, nullptr, nullptr));
      EXPECT_EQ(wrong(x[0].data(), x[0].size(), [](uint64_t k) { return sum_of(2, k); }), 0u);
      EXPECT_LE(context_stat("staging_used"), context_stat("staging_limit"));
    }
    // More at once than there are slots for: some wait until others have ended.
    std::vector<isthmus_work_t> works(parts.size(), nullptr);
    for (size_t i = 0; i < parts.size(); ++i) {
      x[i] = contribution(rank, 100000);
      ISTHMUS_OK_OR_SAY(
          isthmus_all_reduce(parts[i], x[i].data(), x[i].data(), x[i].size(), kType, ISTHMUS_SUM, nullptr, &works[i]));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      ISTHMUS_OK_OR_SAY(isthmus_work_wait(works[i], 60));
      isthmus_work_release(works[i]);
      EXPECT_EQ(wrong(x[i].data(), x[i].size(), [](uint64_t k) { return sum_of(2, k); }), 0u);
    }
    for (auto *part : parts) ISTHMUS_OK_OR_SAY(isthmus_comm_destroy(part));
  });
}

// Slots of operations that follow each other lie beside each other in one ring, whose size does not depend on how many there were.
TEST(Engine, OperationsTakeTurnsThroughARingThatStaysAsItIs) {
  ASSERT_TRUE(no_context());
  on_ranks({"turns", 3, {}}, [](isthmus_comm_t comm, int rank) {
    constexpr uint64_t kMost = 90000;
    auto x = contribution(rank, kMost);
    std::vector<int64_t> sum(kMost), all(3 * kMost);
    int64_t used = 0;
    uint64_t count = kMost;  // first the largest: it decides how large the ring is
    for (int round = 0; round < 400; ++round, count = 1 + (count * 7919 + 31) % kMost) {
      std::fill(sum.begin(), sum.end(), -1);
      std::fill(all.begin(), all.end(), -1);
      isthmus_work_t work[2] = {};
      ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, x.data(), sum.data(), count, kType, ISTHMUS_SUM, nullptr, &work[0]));
      ISTHMUS_OK_OR_SAY(isthmus_all_gather(comm, x.data(), all.data(), count, kType, nullptr, &work[1]));
      for (isthmus_work_t w : work) {
        ISTHMUS_OK_OR_SAY(isthmus_work_wait(w, 0));
        isthmus_work_release(w);
      }
      ASSERT_EQ(wrong(sum.data(), count, [](uint64_t i) { return sum_of(3, i); }), 0u) << "round " << round;
      for (int r = 0; r < 3; ++r)
        ASSERT_EQ(wrong(all.data() + static_cast<uint64_t>(r) * count, count, [r](uint64_t i) { return value(r, i); }), 0u)
            << "round " << round << ", rank " << r;
      ISTHMUS_OK_OR_SAY(isthmus_barrier(comm, nullptr, nullptr));
      if (round == 0) used = context_stat("staging_used");
      EXPECT_EQ(context_stat("staging_used"), used);
    }
  });
}

// Settings of the process are the first communicator's to choose: when the last one has been destroyed, the next one is the first.
TEST(Engine, AfterTheLastCommunicatorTheNextOneChoosesTheSettingsOfTheProcess) {
  ASSERT_TRUE(no_context());
  for (int round = 0; round < 20; ++round) {
    const int64_t mib = round % 3 == 0 ? 512 : round % 3;  // the default, where nothing is said
    const std::string setting = round % 3 == 0 ? "" : "STAGING_BYTES=" + std::to_string(mib) + "M";
    on_ranks({"anew", 2, {}, nullptr, setting.c_str()}, [&](isthmus_comm_t comm, int rank) {
      EXPECT_EQ(context_stat("staging_limit"), mib << 20);
      auto x = contribution(rank, 20000);
      isthmus_work_t work = nullptr;
      ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, x.data(), x.data(), x.size(), kType, ISTHMUS_SUM, nullptr, &work));
      ISTHMUS_OK_OR_SAY(isthmus_work_wait(work, 0));
      isthmus_work_release(work);
    });
  }
}

}  // namespace
}  // namespace isthmus::test
