#include "process/helper_pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <system_error>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/own_thread.hpp"

namespace isthmus::process {
namespace {

constexpr size_t kMostSources = 256;  // of a part's own list of sources; beyond, the sum is not shared
constexpr size_t kLine = 64;

struct CopyJob {
  std::byte *to;
  const std::byte *from;
  bool past_caches;
};

void copy_part(const CopyJob &job, size_t begin, size_t bytes) noexcept {
  reduce::copy(job.to + begin, job.from + begin, bytes, job.past_caches);
}

void reduce_part(const reduce::LocalReduction &task, size_t begin, size_t count) noexcept {
  const size_t element = dtype_size(task.dtype), wide = dtype_size(accumulator(task.dtype));
  const auto at = [](const void *p, size_t bytes) -> const void * { return static_cast<const std::byte *>(p) + bytes; };
  const auto out = [](void *p, size_t bytes) -> void * { return p ? static_cast<std::byte *>(p) + bytes : nullptr; };
  std::array<reduce::Source, kMostSources> sources;
  reduce::LocalReduction part = task;
  for (size_t i = 0; i < task.sources.size(); ++i) {
    const reduce::Source &s = task.sources[i];
    sources[i] = {at(s.data, begin * (s.partial ? wide : element)), s.partial, s.weight};
  }
  part.sources = {sources.data(), task.sources.size()};
  part.dst = out(task.dst, begin * (task.partial ? wide : element));
  part.copy = out(task.copy, begin * (task.partial ? wide : element));
  reduce::reduce(part, count);
}

}  // namespace

HelperPool::HelperPool(int threads, int64_t spin_ns) : spin_ns_(spin_ns) {
  try {
    for (int i = 0; i < threads; ++i) helpers_.push_back(begin_own_thread([this, i] { help(static_cast<size_t>(i)); }));
  } catch (const std::system_error &e) {
    stop_.store(true, std::memory_order_release);
    bell_.wake();
    for (std::thread &t : helpers_) t.join();
    isthmus::fail(Code::Resource, "cannot start {} threads that help with sums and copies: {}; lower ISTHMUS_REDUCE_THREADS",
                  threads, e.what());
  }
}

HelperPool::~HelperPool() {
  stop_.store(true, std::memory_order_release);
  bell_.wake();
  for (std::thread &t : helpers_) t.join();
}

void HelperPool::reduce(const reduce::LocalReduction &task, size_t count) noexcept {
  const Part part = [](const void *job, size_t begin, size_t n) {
    reduce_part(*static_cast<const reduce::LocalReduction *>(job), begin, n);
  };
  if (task.sources.size() > kMostSources || !share(part, &task, count, dtype_size(task.dtype))) reduce::reduce(task, count);
}

void HelperPool::copy(void *to, const void *from, size_t bytes, bool past_caches) noexcept {
  const CopyJob job{static_cast<std::byte *>(to), static_cast<const std::byte *>(from), past_caches};
  const Part part = [](const void *shared, size_t begin, size_t n) {
    copy_part(*static_cast<const CopyJob *>(shared), begin, n);
  };
  if (!share(part, &job, bytes, 1)) copy_part(job, 0, bytes);
}

void HelperPool::each(void (*work)(void *job, size_t i), void *job, size_t count) noexcept {
  struct Each {
    void (*work)(void *job, size_t i);
    void *job;
  };
  const Each all{work, job};
  const Part part = [](const void *shared, size_t begin, size_t n) {
    const Each &each = *static_cast<const Each *>(shared);
    for (size_t i = begin; i < begin + n; ++i) each.work(each.job, i);
  };
  if (count < 2 || !put_up(part, &all, count, 1)) part(&all, 0, count);
}

bool HelperPool::share(Part part, const void *job, size_t count, size_t unit) noexcept {
  if (count * unit < kLeast) return false;
  // Each thread gets a few parts, so a thread that comes late takes fewer. A part is of whole cache lines.
  const size_t takers = helpers_.size() + 1, least = std::max(kPart / unit, size_t{1});
  return put_up(part, job, count, std::max((count / (4 * takers) + kLine - 1) / kLine * kLine, least));
}

bool HelperPool::put_up(Part part, const void *job, size_t count, size_t size) noexcept {
  if (helpers_.empty()) return false;
  const auto free =
      std::find_if(desks_.begin(), desks_.end(), [](Desk &d) { return !d.taken.test_and_set(std::memory_order_acquire); });
  if (free == desks_.end()) return false;
  Desk &desk = *free;
  desk.part = part;
  desk.job = job;
  desk.count = count;
  desk.size = size;
  desk.next.store(0, std::memory_order_relaxed);
  // A helper that came too late for the last job of this desk may still be counted.
  desk.inside.fetch_and(~kClosed, std::memory_order_release);
  opened_.fetch_add(1, std::memory_order_release);
  wake_for(desk, (count + size - 1) / size);
  take_parts(desk);
  // No part is left. A helper that is inside does a part. A helper that comes later finds the desk closed.
  desk.inside.fetch_or(kClosed, std::memory_order_acq_rel);
  for (uint32_t i = 0; desk.inside.load(std::memory_order_acquire) != kClosed; ++i)
    if (i % 64 == 63) std::this_thread::yield();
  desk.taken.clear(std::memory_order_release);
  return true;
}

void HelperPool::wake_for(const Desk &desk, size_t parts) noexcept {
  full_fence(bell_.sleepers);  // as in Doorbell::ring(): who falls asleep sees the job, or is counted here
  const size_t asleep = bell_.sleepers.load(std::memory_order_acquire);
  if (asleep == 0) return;
  size_t busy = asleep;  // or at another desk
  for (const Desk &other : desks_)
    if (&other != &desk) busy += other.inside.load(std::memory_order_relaxed) & ~kClosed;
  const size_t free = helpers_.size() - std::min(busy, helpers_.size());
  if (free + 1 < parts) bell_.wake(static_cast<int>(std::min(parts - 1 - free, asleep)));
}

bool HelperPool::take_parts(Desk &desk) noexcept {
  for (bool any = false;; any = true) {
    const size_t begin = desk.next.fetch_add(desk.size, std::memory_order_relaxed);
    if (begin >= desk.count) return any;
    desk.part(desk.job, begin, std::min(desk.size, desk.count - begin));
  }
}

void HelperPool::help(size_t number) noexcept {
  ::pthread_setname_np(::pthread_self(), "isthmus-help");
  uint64_t seen = 0;
  int64_t idle_since = now_ns();
  while (!stop_.load(std::memory_order_acquire)) {
    const uint64_t opened = opened_.load(std::memory_order_acquire);
    if (opened != seen) {
      seen = opened;
      bool any = false;
      for (size_t i = 0; i < kDesks; ++i) {
        Desk &desk = desks_[(number + i) % kDesks];
        if ((desk.inside.load(std::memory_order_relaxed) & kClosed) != 0) continue;
        if ((desk.inside.fetch_add(1, std::memory_order_acq_rel) & kClosed) == 0) any |= take_parts(desk);
        desk.inside.fetch_sub(1, std::memory_order_release);
      }
      if (any) idle_since = now_ns();  // where there are more helpers than parts, some sleep
      continue;
    }
    if (now_ns() - idle_since < spin_ns_) {
      std::this_thread::yield();
      continue;
    }
    constexpr int64_t kNap = 1'000'000'000;
    Nap nap(bell_);
    if (opened_.load(std::memory_order_acquire) == seen && !stop_.load(std::memory_order_acquire)) nap.sleep(kNap);
    if (opened_.load(std::memory_order_acquire) != seen)
      idle_since = now_ns();  // it may come too late for this job, and not for the next
  }
}

}  // namespace isthmus::process
