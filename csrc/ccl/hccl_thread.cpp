#include "ccl/hccl_thread.hpp"

#include <chrono>
#include <utility>

#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "device/abandoned.hpp"
#include "device/runtimes.hpp"

namespace isthmus::ccl::hccl {
namespace {

constexpr double kPatience = 10;
constexpr int kLooks =
    1000;  // looks at least: a process that was held up has looked too seldom to say that the stream does not move

}  // namespace

HcclThread::HcclThread(std::shared_ptr<HcclRank> rank) : rank_(std::move(rank)) {
  thread_ = begin_own_thread([rank = rank_] { rank->loop(); });
}

bool HcclThread::ask(const Task &t, int64_t until_ns, const IslandJoin *join) {
  HcclRank &r = *rank_;
  r.task = t;
  const uint64_t number = r.asked.load(std::memory_order_relaxed) + 1;
  r.asked.store(number, std::memory_order_release);
  r.work.ring();
  const auto made = [&] { return r.done.load(std::memory_order_acquire) >= number; };
  const bool always = t.name == kDestroy;
  const auto over = [&] {
    return made() || (!always && r.aborted.load()) || r.ended.load(std::memory_order_acquire) || (join && join->in_vain());
  };
  HcclRank::wait(r.back, over, until_ns);
  if (!made()) r.aborted.store(true);  // nobody waits for the call any more
  return made();
}

bool HcclThread::idle(double seconds) const noexcept {
  device::Stream &stream = *rank_->stream;
  std::unique_ptr<device::Event> behind;
  for (int tries = 0; tries < 2; ++tries) {  // the calls here may fail once, for what failed before them
    try {
      if (!behind) behind = device::open_runtime("acl").make_event(stream.device());
      behind->record(stream);
      int looks = 0;
      for (const Deadline deadline(seconds); !behind->reached(); std::this_thread::sleep_for(std::chrono::microseconds(100)))
        if (++looks > kLooks && deadline.passed()) {
          (void)behind.release();  // the stream still has the event
          return false;
        }
      return true;
    } catch (const Error &) {
      if (behind && rank_->broken() && !stream.status().ok()) return true;  // a device that has failed does no more
    }
  }
  return false;
}

void HcclThread::leave(double patience) noexcept {
  if (!thread_.joinable()) return;
  HcclRank &r = *rank_;
  const auto ended = [&] { return r.ended.load(std::memory_order_acquire); };
  const auto out = [&] { return ended() || r.done.load(std::memory_order_acquire) == r.asked.load(); };
  if (HcclRank::wait(r.back, out, Deadline(patience).ns()) && r.joined() && idle(r.broken() ? kBrokenPatience : kPatience)) {
    Task destroy;
    destroy.name = kDestroy;
    ask(destroy, Deadline(r.broken() ? kBrokenPatience : kPatience).ns());
  }
  const double seconds = out() ? kPatience : 0;  // 0: the thread is stuck
  r.stop.store(true);
  r.work.ring();
  if (HcclRank::wait(r.back, ended, Deadline(seconds).ns())) return thread_.join();
  abandon();
}

void HcclThread::abandon() noexcept {
  device::abandon_thread();
  rank_->left.store(true);
  const char *where = rank_->inside.load(std::memory_order_acquire);
  ISTHMUS_WARN(
      "a thread of rank {} of an island is stuck in hccl {} and is left behind: the library has no call that ends it",
      rank_->rank, where ? where : "at its end");
  thread_.detach();
}

}  // namespace isthmus::ccl::hccl
