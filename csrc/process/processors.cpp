#include "process/processors.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "base/fork.hpp"

namespace isthmus::process {
namespace {

std::atomic<int> local_ranks{1};
const InChild forgets_local_ranks([](void *) noexcept { local_ranks.store(1, std::memory_order_relaxed); });

}  // namespace

int processors() noexcept {
  static std::atomic<int> count{0};
  int counted = count.load(std::memory_order_relaxed);
  if (counted != 0) return counted;
  cpu_set_t set;
  counted = ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
  count.store(counted, std::memory_order_relaxed);
  return counted;
}

int noted_local_ranks() noexcept { return local_ranks.load(std::memory_order_relaxed); }

bool oversubscribed() noexcept { return local_ranks.load(std::memory_order_relaxed) > processors(); }

bool processors_to_spare() noexcept { return 4 * local_ranks.load(std::memory_order_relaxed) <= processors(); }

int spare_processors(int here, int on_host) noexcept {
  constexpr int kMost = 7, kFew = 3;
  const int share = processors() * here / std::max({on_host, local_ranks.load(std::memory_order_relaxed), 1});
  return std::clamp(share - 2 * here, 0, std::clamp(share / 2, kFew, kMost));
}

void note_local_ranks(int ranks) noexcept {
  int seen = local_ranks.load(std::memory_order_relaxed);
  while (seen < ranks && !local_ranks.compare_exchange_weak(seen, ranks)) {}
  static_cast<void>(oversubscribed());  // counts the processors now, and not within an operation
}

}  // namespace isthmus::process
