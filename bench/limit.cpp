#include "limit.hpp"

#include <sys/mman.h>
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
constexpr auto add_streaming = add;  // no portable streaming store: the plain kernel stands for it
#endif

struct Shared {  // of the processes of --limit
  std::atomic<int> arrived{0}, generation{0};
  double rates[256][kKernels];
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
  if (ranks < 1 || ranks > 256) throw std::invalid_argument("--limit: --ranks must be 1 to 256");
  void *page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::runtime_error("--limit: no memory");
  auto *shared = new (page) Shared;
  std::vector<pid_t> children;
  const auto work = [&](int rank) {
    MemoryProbe probe(bytes);
    std::fill_n(shared->rates[rank], kKernels, 0.0);
    for (int repeat = 0; repeat < 3; ++repeat)
      for (size_t k = 0; k < kKernels; ++k) {
        line_up(*shared, ranks);
        shared->rates[rank][k] = std::max(shared->rates[rank][k], probe.run(static_cast<Kernel>(k), 0.05));
      }
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
  std::printf("%s\n", out.dump().c_str());
  munmap(page, sizeof(Shared));
  return 0;
}

}  // namespace isthmus::bench
