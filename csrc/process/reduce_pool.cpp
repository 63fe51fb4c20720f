#include "process/reduce_pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/own_thread.hpp"

namespace isthmus::process {
namespace {

constexpr size_t kMostSources = 256;  // of a part's own list of sources; beyond, the reduction is not shared
constexpr size_t kLine = 64;

}  // namespace

ReducePool::ReducePool(int threads, int64_t spin_ns) : spin_ns_(spin_ns), inside_(kClosed) {
  try {
    for (int i = 0; i < threads; ++i) helpers_.push_back(begin_own_thread([this] { help(); }));
  } catch (const std::system_error &e) {
    stop_.store(true, std::memory_order_release);
    bell_.wake();
    for (std::thread &t : helpers_) t.join();
    isthmus::fail(Code::Resource, "cannot start {} threads that help to reduce: {}; lower ISTHMUS_REDUCE_THREADS", threads,
                  e.what());
  }
}

ReducePool::~ReducePool() {
  stop_.store(true, std::memory_order_release);
  bell_.wake();
  for (std::thread &t : helpers_) t.join();
}

void ReducePool::reduce(const reduce::LocalReduction &task, size_t count) noexcept {
  const size_t element = dtype_size(task.dtype);
  if (helpers_.empty() || count * element < kLeast || task.sources.size() > kMostSources ||
      shared_.test_and_set(std::memory_order_acquire))
    return reduce::reduce(task, count);
  task_ = task;
  count_ = count;
  // Each thread gets a few parts, so a thread that comes late takes fewer. A part is of whole cache lines.
  const size_t takers = helpers_.size() + 1, least = std::max(kPart / element, size_t{1});
  part_ = std::max((count / (4 * takers) + kLine - 1) / kLine * kLine, least);
  next_.store(0, std::memory_order_relaxed);
  inside_.fetch_and(~kClosed,
                    std::memory_order_release);  // a helper that came too late for the last reduction may still be counted
  opened_.fetch_add(1, std::memory_order_release);
  bell_.ring();
  take_parts();
  // No part is left. A helper that is inside computes a part. A helper that comes later finds the reduction closed.
  inside_.fetch_or(kClosed, std::memory_order_acq_rel);
  for (uint32_t i = 0; inside_.load(std::memory_order_acquire) != kClosed; ++i)
    if (i % 64 == 63) std::this_thread::yield();
  shared_.clear(std::memory_order_release);
}

void ReducePool::take_parts() noexcept {
  const size_t element = dtype_size(task_.dtype), wide = dtype_size(accumulator(task_.dtype));
  const auto at = [](const void *p, size_t bytes) -> const void * { return static_cast<const std::byte *>(p) + bytes; };
  const auto out = [](void *p, size_t bytes) -> void * { return p ? static_cast<std::byte *>(p) + bytes : nullptr; };
  std::array<reduce::Source, kMostSources> sources;
  for (;;) {
    const size_t begin = next_.fetch_add(part_, std::memory_order_relaxed);
    if (begin >= count_) return;
    reduce::LocalReduction part = task_;
    for (size_t i = 0; i < task_.sources.size(); ++i) {
      const reduce::Source &s = task_.sources[i];
      sources[i] = {at(s.data, begin * (s.partial ? wide : element)), s.partial, s.weight};
    }
    part.sources = {sources.data(), task_.sources.size()};
    part.dst = out(task_.dst, begin * (task_.partial ? wide : element));
    part.copy = out(task_.copy, begin * (task_.partial ? wide : element));
    reduce::reduce(part, std::min(part_, count_ - begin));
  }
}

void ReducePool::help() noexcept {
  ::pthread_setname_np(::pthread_self(), "isthmus-reduce");
  uint64_t seen = 0;
  int64_t idle_since = now_ns();
  while (!stop_.load(std::memory_order_acquire)) {
    const uint64_t opened = opened_.load(std::memory_order_acquire);
    if (opened != seen) {
      seen = opened;
      if ((inside_.fetch_add(1, std::memory_order_acq_rel) & kClosed) == 0) take_parts();
      inside_.fetch_sub(1, std::memory_order_release);
      idle_since = now_ns();
      continue;
    }
    if (now_ns() - idle_since < spin_ns_) {
      std::this_thread::yield();
      continue;
    }
    constexpr int64_t kNap = 1'000'000'000;
    Nap nap(bell_);
    if (opened_.load(std::memory_order_acquire) == seen && !stop_.load(std::memory_order_acquire)) nap.sleep(kNap);
  }
}

}  // namespace isthmus::process
