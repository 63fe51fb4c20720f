#include "reduce/target.hpp"

#include <atomic>
#include <cstring>

#include "reduce/reduce.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace isthmus::reduce {
namespace {

// Forced or detected; nullptr until the first use. Relaxed: the tables are constants.
std::atomic<const Table *> current{nullptr};

#if defined(__x86_64__)
// __builtin_cpu_supports() also asks whether the system saves the wide registers. It does not know all names in every
// compiler, so what is missing is read here.
bool has_sse4() noexcept { return __builtin_cpu_supports("sse4.2"); }
bool has_avx2() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  const bool f16c = (c >> 29 & 1) != 0, movbe = (c >> 22 & 1) != 0;
  if (!__get_cpuid(0x80000001, &a, &b, &c, &d)) return false;
  const bool lzcnt = (c >> 5 & 1) != 0;
  return f16c && movbe && lzcnt && has_sse4() && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
[[maybe_unused]] bool has_avx512() noexcept {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif
bool always() noexcept { return true; }

struct Candidate {
  const Table *table;
  bool (*runs)() noexcept;
};
// Best first.
constexpr Candidate kCandidates[] = {
#if defined(ISTHMUS_REDUCE_FEW)  // under a sanitizer
    {&kTableAvx2, has_avx2},
#elif defined(__x86_64__)
    {&kTableAvx512, has_avx512},
    {&kTableAvx2, has_avx2},
    {&kTableSse4, has_sse4},
#else
    {&kTableNeon, always},
#endif
    {&kTableScalar, always},
};

const Table *find(const char *name) noexcept {
  for (const Candidate &c : kCandidates)
    if ((!name || std::strcmp(name, c.table->name) == 0) && c.runs()) return c.table;
  return nullptr;
}

}  // namespace

const Table &active() noexcept {
  const Table *t = current.load(std::memory_order_relaxed);
  if (!t) {
    // A force_target() of another thread at this moment must not be undone.
    const Table *found = find(nullptr);
    if (current.compare_exchange_strong(t, found, std::memory_order_relaxed)) t = found;
  }
  return *t;
}

const char *target() noexcept { return active().name; }

bool force_target(const char *name) noexcept {
  const Table *t = find(name);
  if (t) current.store(t, std::memory_order_relaxed);
  return t != nullptr;
}

}  // namespace isthmus::reduce
