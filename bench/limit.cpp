#include "limit.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <new>
#include <stdexcept>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define BENCH_CLONES __attribute__((noinline, target_clones("default", "avx2", "avx512f")))
#else
#define BENCH_CLONES __attribute__((noinline))
#endif

#include "launch.hpp"

namespace isthmus::bench {
namespace {

BENCH_CLONES void add(float *c, const float *a, const float *b, size_t n) {
  for (size_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

#if defined(__SSE2__)
__attribute__((noinline)) void add_streaming(float *c, const float *a, const float *b, size_t n) {
  size_t i = 0;
  for (; i < n && reinterpret_cast<uintptr_t>(c + i) % 16 != 0; ++i) c[i] = a[i] + b[i];
  for (; i + 4 <= n; i += 4) _mm_stream_ps(c + i, _mm_add_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i)));
  for (; i < n; ++i) c[i] = a[i] + b[i];
  _mm_sfence();
}
#else
constexpr auto add_streaming = add;  // there is no portable streaming store: the plain kernel stands in its place
#endif

constexpr size_t kSlot = 256 << 10, kSlots = 8;  // together no less than most second-level caches
constexpr int kMostRanks = 256;

struct Shared {  // the memory that the processes of --limit share
  std::atomic<int> arrived{0}, generation{0};
  std::atomic<bool> again{false};  // rank 0's word
  double rates[kMostRanks][kKernels];
  double handover[kMostRanks], latency[kMostRanks];  // seconds: to write a slot and read one; for one way of a ping-pong
  double slowest[kMostRanks];                        // the slowest of several such ways
  struct alignas(128) SubmitLock {
    std::atomic<uint64_t> count{0};
  } turns[kMostRanks];
  struct Slots {
    alignas(128) std::byte data[kSlots][kSlot];
  };
};

void line_up(Shared &s, int ranks) {
  const int g = s.generation.load();
  if (s.arrived.fetch_add(1) + 1 == ranks) {
    s.arrived.store(0);
    s.generation.store(g + 1);
  } else {
    while (s.generation.load() == g) usleep(50);
  }
}

void wait_for(const std::atomic<uint64_t> &turn, uint64_t value) {
  for (unsigned spins = 1; turn.load(std::memory_order_acquire) < value; ++spins)
    if (spins % 1024 == 0) sched_yield();
}

uint64_t sum_of(const std::byte *data, size_t bytes) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i + 64 <= bytes; i += 64)
    for (size_t k = 0; k < 8; ++k) {
      uint64_t v;
      std::memcpy(&v, data + i + 8 * k, 8);
      sum[k] += v;
    }
  return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

// Seconds for a slot that passes from core to core through shared memory, without other work. Every rank writes a slot of
// its own and reads the next rank's slot, all ranks at once. Cores that share no cache (two dies, two sockets) pass far less
// than the memory rate.
double hand_over(Shared &s, Shared::Slots *slots, int rank, int ranks, const std::vector<std::byte> &source) {
  constexpr uint64_t kPieces = 128;
  const int next = (rank + 1) % ranks;
  const uint64_t base = s.turns[rank].count.load();
  line_up(s, ranks);
  const double start = now_seconds();
  for (uint64_t i = 0; i < kPieces; ++i) {
    // Waits until the rank before has published piece i - 1. That rank had read this rank's piece i - 2 by then, which is
    // more than the slots need.
    wait_for(s.turns[(rank + ranks - 1) % ranks].count, base + i);
    std::memcpy(slots[rank].data[i % kSlots], source.data(), kSlot);
    s.turns[rank].count.store(base + i + 1, std::memory_order_release);
    wait_for(s.turns[next].count, base + i + 1);
    uint64_t sum = sum_of(slots[next].data[i % kSlots], kSlot);
    asm volatile("" : "+r"(sum));
  }
  return (now_seconds() - start) / kPieces;
}

// Ranks 0 and 1 write one cache line each in turn.
double latency(Shared &s, int rank, int ranks) {
  constexpr uint64_t kTurns = 2000;
  const uint64_t base = s.turns[rank].count.load();
  line_up(s, ranks);
  const double start = now_seconds();
  if (rank < 2)
    for (uint64_t i = 0; i < kTurns; ++i) {
      if (rank == 1) wait_for(s.turns[0].count, base + i + 1);
      s.turns[rank].count.store(base + i + 1, std::memory_order_release);
      if (rank == 0) wait_for(s.turns[1].count, base + i + 1);
    }
  else s.turns[rank].count.store(base + kTurns, std::memory_order_release);
  return (now_seconds() - start) / (2 * kTurns);
}

}  // namespace

double now_seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

const char *kernel_name(Kernel k) {
  constexpr const char *names[kKernels] = {"add", "copy", "add_streaming"};
  return names[static_cast<size_t>(k)];
}

MemoryProbe::MemoryProbe(size_t bytes)
    : a_(std::max<size_t>(64, bytes / 12), 1.0f), b_(a_.size(), 2.0f), c_(a_.size(), 0.0f) {}

double MemoryProbe::run(Kernel k, double seconds) {
  const size_t n = a_.size(), inner = std::max<size_t>(1, 65536 / n);  // the clock is read every 64 Ki elements or more
  const double start = now_seconds();
  double end = start, bytes = 0;
  for (int pass = 0; pass < 2 || end - start < seconds; ++pass) {
    for (size_t i = 0; i < inner; ++i) {
      if (k == Kernel::Add) add(c_.data(), a_.data(), b_.data(), n);
      else if (k == Kernel::AddStreaming) add_streaming(c_.data(), a_.data(), b_.data(), n);
      else std::memcpy(c_.data(), a_.data(), n * 4);
      asm volatile("" : : "r"(c_.data()) : "memory");
    }
    bytes += static_cast<double>(inner * n) * (k == Kernel::Copy ? 8 : 12);
    end = now_seconds();
  }
  return bytes / (end - start);
}

int print_memory_limit(int ranks, size_t bytes) {
  if (ranks < 1 || ranks > kMostRanks) throw std::invalid_argument("--limit: --ranks must be 1 to 256");
  const size_t slots_at = (sizeof(Shared) + 4095) / 4096 * 4096;
  const size_t size = slots_at + static_cast<size_t>(ranks) * sizeof(Shared::Slots);
  void *page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::runtime_error("--limit: no memory");
  auto *shared = new (page) Shared;
  auto *slots = reinterpret_cast<Shared::Slots *>(static_cast<std::byte *>(page) + slots_at);
  std::vector<pid_t> children;
  const auto work = [&](int rank) {
    bind_to_processor(rank, ranks);  // bound like the ranks whose limit is measured
    std::vector<double> ways;
    MemoryProbe probe(bytes);
    const std::vector<std::byte> source(kSlot, std::byte{1});
    std::fill_n(shared->rates[rank], kKernels, 0.0);
    double slot = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (size_t k = 0; k < kKernels; ++k) {
        line_up(*shared, ranks);
        shared->rates[rank][k] = std::max(shared->rates[rank][k], probe.run(static_cast<Kernel>(k), 0.05));
      }
      if (ranks == 1) continue;
      for (int again = 0; again < 3; ++again) {
        slot = std::min(slot, hand_over(*shared, slots, rank, ranks, source));
        line_up(*shared, ranks);
        ways.push_back(latency(*shared, rank, ranks));
        line_up(*shared, ranks);
      }
    }
    shared->handover[rank] = slot;
    std::sort(ways.begin(), ways.end());
    if (!ways.empty()) shared->latency[rank] = ways.front(), shared->slowest[rank] = ways.back();
  };
  for (int r = 1; r < ranks; ++r) {
    const pid_t pid = fork();
    if (pid == 0) {
      work(r);
      _exit(0);
    }
    if (pid < 0) throw std::runtime_error("--limit: fork failed");
    children.push_back(pid);
  }
  work(0);
  for (const pid_t pid : children) waitpid(pid, nullptr, 0);
  nlohmann::ordered_json out{{"ranks", ranks}, {"footprint_bytes_per_rank", bytes}, {"unit", "bytes/s, all ranks at once"}};
  for (size_t k = 0; k < kKernels; ++k) {
    double sum = 0;
    for (int r = 0; r < ranks; ++r) sum += shared->rates[r][k];
    out[kernel_name(static_cast<Kernel>(k))] = sum;
  }
  if (ranks > 1) {
    out["handover_per_rank"] = kSlot / *std::max_element(shared->handover, shared->handover + ranks);
    out["latency_ns"] = shared->latency[0] * 1e9;
    out["slowest_latency_ns"] = shared->slowest[0] * 1e9;
  }
  std::printf("%s\n", out.dump().c_str());
  munmap(page, size);
  return 0;
}

std::vector<double> hand_over_rates(double seconds) {
  constexpr int kRanks = 2;
  const size_t slots_at = (sizeof(Shared) + 4095) / 4096 * 4096, size = slots_at + kRanks * sizeof(Shared::Slots);
  void *page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::runtime_error("shared memory: no memory");
  auto *shared = new (page) Shared;
  auto *slots = reinterpret_cast<Shared::Slots *>(static_cast<std::byte *>(page) + slots_at);
  const std::vector<std::byte> source(kSlot, std::byte{1});
  std::vector<double> rates;
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("shared memory: fork failed");
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);  // the child would wait for ever for a parent that was killed
  const int rank = child == 0 ? 1 : 0;
  hand_over(*shared, slots, rank, kRanks, source);  // touches the pages
  const double start = now_seconds();
  for (int i = 0; i < kMostRepetitions; ++i) {
    shared->handover[rank] = hand_over(*shared, slots, rank, kRanks, source);
    if (rank == 0) shared->again.store(i + 1 < kLeastRepetitions || now_seconds() - start < seconds);
    line_up(*shared, kRanks);
    rates.push_back(static_cast<double>(kSlot) / std::max(shared->handover[0], shared->handover[1]));
    const bool again = shared->again.load();
    line_up(*shared, kRanks);
    if (!again) break;
  }
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  munmap(page, size);
  return rates;
}

int print_host_rates(double seconds) {
  constexpr size_t kFootprint = 192 << 20;  // larger than most caches
  const double share = seconds / 3;
  nlohmann::ordered_json out;
  out["shm_exchange"] = hand_over_rates(share);
  out["tcp_loopback"] = loopback_rates(share);
  MemoryProbe probe(kFootprint);
  std::vector<double> copies;
  const double start = now_seconds();
  for (int i = 0; i < kMostRepetitions && (i < kLeastRepetitions || now_seconds() - start < share); ++i)
    copies.push_back(probe.run(Kernel::Copy, share / kLeastRepetitions / 2) / 2);  // STREAM counts the read and the write
  out["memory_copy"] = std::move(copies);
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace isthmus::bench
