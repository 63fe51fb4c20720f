// The pool that helps with sums and copies: the same bits as one thread gives, whoever has work at the same time, and nothing left of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "process/helper_pool.hpp"
#include "patience.hpp"

namespace isthmus::process {
namespace {

constexpr int64_t kSpin = 50'000;

std::vector<float> numbers(size_t count, uint32_t seed) {
  std::vector<float> out(count);
  uint32_t x = seed * 2654435761u + 1;
  for (float &f : out) {
    x = x * 1664525u + 1013904223u;
    f = static_cast<float>(static_cast<int32_t>(x)) * 1e-6f;
  }
  return out;
}

struct Work {
  explicit Work(size_t n, int sources, uint32_t seed) : count(n), alone(n), shared(n), copy(n) {
    for (int i = 0; i < sources; ++i) inputs.push_back(numbers(n, seed + static_cast<uint32_t>(i)));
    for (const auto &in : inputs) list.push_back({in.data(), false});
    task = {DType::Float32, RedOp::Sum, list, {}};
    task.dst = alone.data();
    reduce::reduce(task, n);
    task.dst = shared.data();
    task.copy = copy.data();
  }
  bool right() const {
    return std::memcmp(alone.data(), shared.data(), count * sizeof(float)) == 0 &&
           std::memcmp(alone.data(), copy.data(), count * sizeof(float)) == 0;
  }
  size_t count;
  std::vector<std::vector<float>> inputs;
  std::vector<reduce::Source> list;
  std::vector<float> alone, shared, copy;
  reduce::LocalReduction task;
};

TEST(HelperPool, GivesTheBitsOfOneThreadAtEverySize) {
  for (const int threads : {0, 1, 3}) {
    HelperPool pool(threads, kSpin);
    EXPECT_EQ(pool.threads(), threads);
    const size_t least = HelperPool::kLeast / sizeof(float);
    for (const size_t count : {size_t{1}, least - 1, least, least + 1, least + 17, 3 * least + 5, 16 * least}) {
      Work work(count, 3, static_cast<uint32_t>(count));
      pool.reduce(work.task, count);
      EXPECT_TRUE(work.right()) << count << " elements, " << threads << " helpers";
    }
  }
}

// Narrow numbers from partial results in float32, and from narrow ones, groups and a divisor.
TEST(HelperPool, CutsWideAndNarrowSourcesAlike) {
  HelperPool pool(2, kSpin);
  const size_t count = HelperPool::kLeast;
  const auto wide = numbers(count, 1), other = numbers(count, 2);
  std::vector<uint16_t> narrow(count), alone(count), shared(count);
  for (size_t i = 0; i < count; ++i) narrow[i] = static_cast<uint16_t>(0x3f80 + i % 64);
  const reduce::Source sources[] = {{wide.data(), true}, {narrow.data(), false, 4}, {other.data(), true}};
  const uint32_t groups[] = {1, 3};
  reduce::LocalReduction task{DType::BFloat16, RedOp::Avg, sources, groups};
  task.divisor = 3;
  task.dst = alone.data();
  reduce::reduce(task, count);
  task.dst = shared.data();
  pool.reduce(task, count);
  EXPECT_EQ(alone, shared);
  std::vector<float> alone_wide(count), shared_wide(count);
  task.partial = true;
  task.dst = alone_wide.data();
  reduce::reduce(task, count);
  task.dst = shared_wide.data();
  pool.reduce(task, count);
  EXPECT_EQ(std::memcmp(alone_wide.data(), shared_wide.data(), count * sizeof(float)), 0);
}

TEST(HelperPool, CopiesEverySizeThroughTheCachesAndPastThem) {
  for (const int threads : {0, 3}) {
    HelperPool pool(threads, kSpin);
    for (const bool past : {false, true})
      for (const size_t bytes :
           {size_t{0}, size_t{1}, HelperPool::kLeast - 1, HelperPool::kLeast + 3, 16 * HelperPool::kLeast + 77})
        for (const size_t shift : {size_t{0}, size_t{5}}) {
          std::vector<char> from(bytes + shift), to(bytes + shift + 64, 'x');
          for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7 + i / 251);
          pool.copy(to.data() + 1, from.data() + shift, bytes, past);
          EXPECT_TRUE(std::equal(from.begin() + static_cast<std::ptrdiff_t>(shift), from.end(), to.begin() + 1))
              << bytes << " bytes, " << threads << " helpers";
          EXPECT_EQ(to[0], 'x');
          EXPECT_EQ(to[bytes + 1], 'x') << "nothing behind the end is written";
        }
  }
}

// In place: the destination is a source.
TEST(HelperPool, WritesOverASource) {
  HelperPool pool(2, kSpin);
  Work work(HelperPool::kLeast, 2, 9);
  work.task.dst = work.inputs[0].data();
  work.task.copy = nullptr;
  pool.reduce(work.task, work.count);
  EXPECT_EQ(std::memcmp(work.alone.data(), work.inputs[0].data(), work.count * sizeof(float)), 0);
}

TEST(HelperPool, DoesEachPartOnceAlsoWhereTheyAreFew) {
  for (const int threads : {0, 2}) {
    HelperPool pool(threads, kSpin);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{5}, size_t{200}}) {
      std::vector<std::atomic<int>> done(count);
      const auto work = [](void *job, size_t i) { ++(*static_cast<std::vector<std::atomic<int>> *>(job))[i]; };
      pool.each(work, &done, count);
      for (const auto &times : done) EXPECT_EQ(times.load(), 1) << count << " parts, " << threads << " helpers";
    }
  }
}

// Each part waits until the other one has begun.
TEST(HelperPool, TwoPartsAreDoneAtTheSameTime) {
  HelperPool pool(1, kSpin);
  std::barrier both(2);
  pool.each([](void *job, size_t) { static_cast<std::barrier<> *>(job)->arrive_and_wait(); }, &both, 2);
}

// Several are shared at a time. Helpers fall asleep in between and are woken.
TEST(HelperPool, ManyThreadsReduceAtOnce) {
  HelperPool pool(2, 20'000);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Work work(HelperPool::kLeast / sizeof(float) + 100 * t, 2, t);
      for (int turn = 0; turn < 40; ++turn) {
        std::memset(work.shared.data(), 0, work.count * sizeof(float));
        pool.reduce(work.task, work.count);
        if (!work.right()) ++wrong;
        if (turn % 10 == 9) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  for (auto &t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

// Helpers do work: with one of them, parts are taken by two threads.
TEST(HelperPool, HelpersTakeParts) {
  HelperPool pool(1, 1'000'000'000);  // it polls
  Work work(64 * HelperPool::kLeast / sizeof(float), 2, 5);
  timespec before, after;
  for (const Deadline deadline(isthmus_test::soon()); !deadline.passed();) {
    const auto own = [](timespec &t) { ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); };
    const auto ns = [](const timespec &t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; };
    own(before);
    work.task.dst = work.shared.data();
    reduce::reduce(work.task, work.count);
    own(after);
    const auto alone = ns(after) - ns(before);
    own(before);
    pool.reduce(work.task, work.count);
    own(after);
    ASSERT_TRUE(work.right());
    if (ns(after) - ns(before) < alone * 9 / 10) return;  // the other thread has taken some
  }
  FAIL() << "no part was ever taken by the helper";
}

}  // namespace
}  // namespace isthmus::process
