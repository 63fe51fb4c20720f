// Islands of a real vendor library (oneCCL) through the C interface, under the sanitizers: the thread that submits, the stream's thread,
// the progress thread and the control thread of each rank at work together. The test starts itself once a rank; TEST_ONECCL says where
// the library is; without it the tests are skipped.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../../bench/free_port.hpp"
#include "patience.hpp"

extern char **environ;

// What oneCCL holds for a communicator that could not be ended together with its peers stays until the process ends: by design.
extern "C" __attribute__((visibility("default"))) const char *__lsan_default_suppressions() {
  return "leak:libccl\nleak:libfabric\n";
}

namespace {

using namespace std::chrono_literals;

struct Place {
  int rank, size;
  isthmus_comm_t comm;
};

#define MUST(condition)                                                                                                     \
  do {                                                                                                                      \
    if (!(condition)) {                                                                                                     \
      std::fprintf(stderr, "rank %d, line %d: %s does not hold; %s\n", p.rank, __LINE__, #condition, isthmus_last_error()); \
      std::_Exit(1);                                                                                                        \
    }                                                                                                                       \
  } while (0)

std::vector<float> contribution(int rank, size_t count) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>((i + static_cast<size_t>(rank)) % 5);
  return x;
}
float sum_at(int size, size_t i) {
  float s = 0;
  for (int r = 0; r < size; ++r) s += static_cast<float>((i + static_cast<size_t>(r)) % 5);
  return s;
}

// Blocking calls of every size class, in place and not.
int sums(const Place &p) {
  for (int round = 0; round < 3; ++round)
    for (const size_t count : {size_t{1}, size_t{500}, size_t{40'001}, size_t{1'200'003}}) {
      auto x = contribution(p.rank, count);
      std::vector<float> y(count, -1);
      MUST(isthmus_all_reduce(p.comm, x.data(), y.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, nullptr) ==
           ISTHMUS_OK);
      MUST(isthmus_all_reduce(p.comm, x.data(), x.data(), count, ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, nullptr) ==
           ISTHMUS_OK);
      for (size_t i = 0; i < count; ++i) MUST(x[i] == sum_at(p.size, i) && y[i] == x[i]);
    }
  return 0;
}

// Many in flight, some for the library and some not, waited for by another thread than the one that submits.
int flights(const Place &p) {
  constexpr size_t kCount = 60'000;
  constexpr int kWorks = 60;
  std::vector<std::vector<float>> all;
  std::vector<isthmus_work_t> works;
  for (int i = 0; i < kWorks; ++i) all.push_back(contribution(p.rank, kCount));
  for (int i = 0; i < kWorks; ++i) {
    isthmus_work_t work = nullptr;
    float *x = all[static_cast<size_t>(i)].data();
    MUST(isthmus_all_reduce(p.comm, x, x, i % 4 == 3 ? 100 : kCount, ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, &work) ==
         ISTHMUS_OK);
    works.push_back(work);
    if (i % 10 == 9) {
      MUST(isthmus_barrier(p.comm, nullptr, &work) == ISTHMUS_OK);
      works.push_back(work);
    }
  }
  std::thread waiter([&] {
    for (isthmus_work_t work : works) {
      MUST(isthmus_work_wait(work, 60) == ISTHMUS_OK);
      isthmus_work_release(work);
    }
  });
  waiter.join();
  for (int i = 0; i < kWorks; ++i)
    for (size_t k = 0; k < (i % 4 == 3 ? 100 : kCount); ++k) MUST(all[static_cast<size_t>(i)][k] == sum_at(p.size, k));
  return 0;
}

// One rank aborts while everybody's calls are under way, from another thread.
int aborted(const Place &p) {
  std::vector<float> x(300'000, 1);
  std::thread breaker;
  if (p.rank == 0)
    breaker = std::thread([&] {
      std::this_thread::sleep_for(100ms);
      isthmus_comm_abort(p.comm, "enough");
    });
  isthmus_result r = ISTHMUS_OK;
  while (r == ISTHMUS_OK)
    r = isthmus_all_reduce(p.comm, x.data(), x.data(), x.size(), ISTHMUS_FLOAT32, ISTHMUS_MAX, nullptr, nullptr);
  MUST(r == ISTHMUS_ERR_ABORTED && std::strstr(isthmus_last_error(), "enough"));
  if (breaker.joinable()) breaker.join();
  return 0;
}

// A rank ends without a word; the others have errors that name it, long before a deadline, and their processes end.
int dead(const Place &p) {
  std::vector<float> x(300'000, 1);
  MUST(isthmus_all_reduce(p.comm, x.data(), x.data(), x.size(), ISTHMUS_FLOAT32, ISTHMUS_MAX, nullptr, nullptr) ==
       ISTHMUS_OK);
  // A rank may leave only when the others need it no more, and that it has the sums itself does not say so: who has passed the
  // barrier knows that all have the sums. In the barrier, the others may already miss it.
  isthmus_result r = isthmus_barrier(p.comm, nullptr, nullptr);
  if (p.rank == 1) std::_Exit(r == ISTHMUS_OK ? 0 : 1);
  while (r == ISTHMUS_OK)
    r = isthmus_all_reduce(p.comm, x.data(), x.data(), x.size(), ISTHMUS_FLOAT32, ISTHMUS_MAX, nullptr, nullptr);
  MUST(r == ISTHMUS_ERR_PEER_LOST && std::strstr(isthmus_last_error(), "rank 1"));
  return 0;
}

const std::map<std::string, int (*)(const Place &)> kScenes{
    {"sums", sums}, {"flights", flights}, {"aborted", aborted}, {"dead", dead}};

// scene rank islands address: the islands are one letter a rank, capitals have the library.
int play(char **argv) {
  const int rank = std::atoi(argv[2]);
  const std::string islands = argv[3], island(1, islands[static_cast<size_t>(rank)]);
  const std::string settings = std::string("CCL=oneccl;CCL_LIBRARY=") + std::getenv("TEST_ONECCL");
  isthmus_options o{};
  o.size = sizeof o;
  o.rank = rank;
  o.world_size = static_cast<int>(islands.size());
  o.address = argv[4];
  o.island = island.c_str();
  o.timeout = 4 * isthmus_test::soon();
  o.settings = island[0] >= 'A' && island[0] <= 'Z' ? settings.c_str() : nullptr;
  Place p{rank, o.world_size, nullptr};
  MUST(isthmus_init(&o, &p.comm) == ISTHMUS_OK);
  const int code = kScenes.at(argv[1])(p);
  isthmus_comm_destroy(p.comm);
  return code;
}

void plays(const char *scene, const char *islands) {
  const std::string address = "127.0.0.1:" + std::to_string(isthmus::bench::free_port());
  std::vector<pid_t> children;
  for (size_t rank = 0; islands[rank]; ++rank) {
    const std::string r = std::to_string(rank);
    const char *arguments[] = {"island", scene, r.c_str(), islands, address.c_str(), nullptr};
    pid_t child = -1;
    ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char **>(arguments), environ), 0);
    children.push_back(child);
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(5 * isthmus_test::soon());
  for (size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(children[i], &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(5ms);
    if (ended == 0) {
      ADD_FAILURE() << scene << " on " << islands << ": rank " << i << " has not ended";
      ::kill(children[i], SIGKILL);
      ::waitpid(children[i], &status, 0);
      continue;
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << scene << " on " << islands << ": rank " << i << " ended with status " << status;
  }
}

class Island : public testing::TestWithParam<const char *> {
 protected:
  void SetUp() override {
    if (!std::getenv("TEST_ONECCL")) GTEST_SKIP() << "no oneCCL for this machine";
  }
};
std::string islands_of(const testing::TestParamInfo<const char *> &p) { return p.param; }

class Results : public Island {};
TEST_P(Results, OfSumsAreRight) { plays("sums", GetParam()); }
INSTANTIATE_TEST_SUITE_P(Islands, Results, testing::Values("AA", "AAb", "bAA", "ABAB"), islands_of);

class Flights : public Island {};
TEST_P(Flights, OfManyOperationsAreRight) { plays("flights", GetParam()); }
INSTANTIATE_TEST_SUITE_P(Islands, Flights, testing::Values("AA", "AAb", "ABAB"), islands_of);

class Aborts : public Island {};
TEST_P(Aborts, EndEverybody) { plays("aborted", GetParam()); }
INSTANTIATE_TEST_SUITE_P(Islands, Aborts, testing::Values("AA", "AAb"), islands_of);

class Deaths : public Island {};
TEST_P(Deaths, AreNamedAndTheOthersEnd) { plays("dead", GetParam()); }
INSTANTIATE_TEST_SUITE_P(Islands, Deaths, testing::Values("AA", "AAbb"), islands_of);

}  // namespace

int main(int argc, char **argv) {
  if (argc == 5 && kScenes.count(argv[1])) return play(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
