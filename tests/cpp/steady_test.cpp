// What the steady state asks of the system over shared memory: nothing but futex and sched_yield, and no memory. The ranks are
// two processes. The parent traces the one that counts (ptrace) between two marks; allocations are seen by standing before malloc.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "patience.hpp"

#ifndef PTRACE_GET_SYSCALL_INFO
#include <linux/ptrace.h>
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<long> allocations{0};

void note() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t n) {
  note();
  return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
  note();
  return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
  note();
  return __libc_realloc(p, n);
}
void *aligned_alloc(size_t alignment, size_t n) {
  note();
  return __libc_memalign(alignment, n);
}
int posix_memalign(void **p, size_t alignment, size_t n) {
  note();
  *p = __libc_memalign(alignment, n);
  return *p ? 0 : ENOMEM;
}
}

namespace {

// What init has left to the control thread is over soon, and a few heartbeats go both ways: of several series that count, with a pause before
// each, one has to find nothing.
constexpr int kWarm = 50, kRounds = 300, kSeries = 4;
constexpr useconds_t kPause = 100'000;

struct Work {
  const char *name;
  uint64_t count;
  isthmus_result (*call)(isthmus_comm_t, int rank, float *in, float *out, uint64_t n);
};

const Work kWorks[] = {
    {"all_reduce", 16,
     [](isthmus_comm_t c, int, float *in, float *out, uint64_t n) {
       return isthmus_all_reduce(c, in, out, n, ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, nullptr);
     }},
    {"large all_reduce", 200000,
     [](isthmus_comm_t c, int, float *in, float *out, uint64_t n) {
       return isthmus_all_reduce(c, in, out, n, ISTHMUS_FLOAT32, ISTHMUS_SUM, nullptr, nullptr);
     }},
    {"all_gather", 16,
     [](isthmus_comm_t c, int, float *in, float *out, uint64_t n) {
       return isthmus_all_gather(c, in, out, n, ISTHMUS_FLOAT32, nullptr, nullptr);
     }},
    {"large all_gather", 100000,
     [](isthmus_comm_t c, int, float *in, float *out, uint64_t n) {
       return isthmus_all_gather(c, in, out, n, ISTHMUS_FLOAT32, nullptr, nullptr);
     }},
    {"send and recv", 16,
     [](isthmus_comm_t c, int rank, float *in, float *out, uint64_t n) {
       const auto first = rank == 0 ? isthmus_send(c, in, n, ISTHMUS_FLOAT32, 1, 0, nullptr, nullptr)
                                    : isthmus_recv(c, out, n, ISTHMUS_FLOAT32, 0, 0, nullptr, nullptr, nullptr);
       if (first != ISTHMUS_OK) return first;
       return rank == 0 ? isthmus_recv(c, out, n, ISTHMUS_FLOAT32, 1, 0, nullptr, nullptr, nullptr)
                        : isthmus_send(c, in, n, ISTHMUS_FLOAT32, 0, 0, nullptr, nullptr);
     }},
};

// One rank. Stops itself before and after each counted series, so that the tracer counts only those. Ends with 1 to 3 on an error,
// with 100 and more where there were allocations in every series.
int rank_main(int rank, const isthmus_unique_id &id, const Work &work) {
  isthmus_options o{};
  o.size = sizeof o;
  o.rank = rank;
  o.world_size = 2;
  o.id = &id;
  o.timeout = 2 * isthmus_test::soon();
  isthmus_comm_t comm = nullptr;
  if (isthmus_init(&o, &comm) != ISTHMUS_OK) return 1;
  std::vector<float> in(work.count, 1.0f), out(2 * work.count);
  long least = std::numeric_limits<long>::max();
  for (int series = 0; series < kSeries; ++series) {
    ::usleep(kPause);
    for (int i = 0; i < kWarm; ++i)
      if (work.call(comm, rank, in.data(), out.data(), work.count) != ISTHMUS_OK) return 2;
    if (rank == 0) ::raise(SIGUSR1);
    allocations = 0;
    counting = true;
    for (int i = 0; i < kRounds; ++i)
      if (work.call(comm, rank, in.data(), out.data(), work.count) != ISTHMUS_OK) return 3;
    counting = false;
    least = std::min(least, allocations.load());
    if (rank == 0) ::raise(SIGUSR2);
  }
  if (isthmus_barrier(comm, nullptr, nullptr) != ISTHMUS_OK) return 3;  // the end of one is not counted by the other
  isthmus_comm_destroy(comm);
  return least == 0 ? 0 : static_cast<int>(std::min<long>(99 + least, 255));
}

struct Seen {
  std::vector<std::map<long, int>> series;  // number -> times, between two marks
  int status = -1;
};

// Lets `child`'s first thread run under ptrace to its end and counts the system calls between each SIGUSR1 and SIGUSR2.
Seen trace(pid_t child) {
  Seen seen;
  bool between = false;
  int status = 0;
  if (::waitpid(child, &status, __WALL) != child || !WIFSTOPPED(status)) return seen;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  for (int deliver = 0;;) {
    if (::ptrace(between ? PTRACE_SYSCALL : PTRACE_CONT, child, nullptr, deliver) != 0) return seen;
    deliver = 0;
    if (::waitpid(child, &status, __WALL) != child) return seen;
    if (WIFEXITED(status)) {
      seen.status = WEXITSTATUS(status);
      return seen;
    }
    if (WIFSIGNALED(status)) return seen;
    const int signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {
      __ptrace_syscall_info info{};
      if (::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) > 0 && info.op == PTRACE_SYSCALL_INFO_ENTRY)
        ++seen.series.back()[static_cast<long>(info.entry.nr)];
    } else if (signal == SIGUSR1) {
      between = true;
      seen.series.emplace_back();
    } else if (signal == SIGUSR2) {
      between = false;
    } else if (signal != SIGTRAP && signal != SIGSTOP) {
      deliver = signal;
    }
  }
}

// Those calls that are neither.
std::string others(const std::map<long, int> &calls) {
  std::string text;
  for (const auto &[number, times] : calls) {
    // The marks themselves: raise() asks for the thread's number, blocks signals and sends one.
    const bool mark = number == SYS_getpid || number == SYS_gettid || number == SYS_tgkill || number == SYS_rt_sigprocmask;
    if (number == SYS_futex || number == SYS_sched_yield || (mark && times <= 3)) continue;
    text += " system call " + std::to_string(number) + " x" + std::to_string(times);
  }
  return text;
}

class Steady : public testing::TestWithParam<Work> {};

TEST_P(Steady, AsksForNothingButFutexAndSchedYield) {
  isthmus_unique_id id;
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  const pid_t first = ::fork();
  if (first == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    isthmus_unique_id mine;
    if (isthmus_unique_id_create(&mine) != ISTHMUS_OK || ::write(pipes[1], &mine, sizeof mine) != sizeof mine) ::_exit(1);
    ::_exit(rank_main(0, mine, GetParam()));
  }
  const pid_t second = ::fork();
  if (second == 0) {
    ::close(pipes[1]);  // so that the end of the first one is the end of the pipe
    if (::read(pipes[0], &id, sizeof id) != sizeof id) ::_exit(1);
    ::_exit(rank_main(1, id, GetParam()));
  }
  ::close(pipes[1]);
  const Seen seen = trace(first);
  int status = 0;
  ASSERT_EQ(::waitpid(second, &status, 0), second);
  ::close(pipes[0]);
  EXPECT_EQ(seen.status, 0) << (seen.status >= 100 ? std::to_string(seen.status - 99) + " allocations" : "rank 0 failed");
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank 1: " << status;
  std::vector<std::string> all;
  for (const auto &calls : seen.series) all.push_back(others(calls));
  EXPECT_EQ(all.size(), static_cast<size_t>(kSeries));
  EXPECT_NE(std::count(all.begin(), all.end(), ""), 0) << testing::PrintToString(all);
}

INSTANTIATE_TEST_SUITE_P(, Steady, testing::ValuesIn(kWorks), [](const auto &tested) {
  std::string name = tested.param.name;
  for (char &c : name)
    if (c == ' ') c = '_';
  return name;
});

}  // namespace
