#include "ccl/hccl_thread.hpp"

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "device/abandoned.hpp"
#include "device/calling.hpp"
#include "device/runtimes.hpp"

namespace isthmus::ccl::hccl {
namespace {

constexpr double kPatience = 10;
constexpr int kLooks =
    1000;  // looks at least: a process that was held up has looked too seldom to say that the stream does not move

constexpr int kStanding = 60;       // looks, 50 ms or more apart, at a call that stands: the end of an event may take 2 s
constexpr double kNeverEnds = 1e6;  // seconds

// A thread that asks whether a stream is idle.
struct Question {
  device::VendorCall call;        // of the thread
  std::atomic<bool> over{false};  // nobody waits for the answer any more
};

class Calling {  // the calls of this thread are seen in the VendorCall
 public:
  explicit Calling(device::VendorCall &mine) noexcept : outer_(std::exchange(device::vendor_call_here, &mine)) {}
  ~Calling() { device::vendor_call_here = outer_; }
  Calling(const Calling &) = delete;
  Calling &operator=(const Calling &) = delete;

 private:
  device::VendorCall *const outer_;
};

// Whether the stream comes to a mark behind all that it holds.
Status ask_stream(Question &question, device::Runtime &runtime, const HcclRank &rank, double seconds) {
  const Calling calling(question.call);
  device::Stream &stream = *rank.stream;
  std::unique_ptr<device::Event> behind;
  // Two tries: the calls here may fail once, for what failed before them.
  for (int tries = 0; tries < 2 && !question.over.load(); ++tries) {
    try {
      if (!behind) behind = runtime.make_event(stream.device());
      behind->record(stream);
      int looks = 0;
      for (const Deadline deadline(seconds); !behind->reached(); std::this_thread::sleep_for(std::chrono::microseconds(100)))
        if (question.over.load() || (++looks > kLooks && deadline.passed())) {
          (void)behind.release();  // the stream still has the event
          return {Code::Timeout, ""};
        }
      return {};
    } catch (const Error &) {
      if (behind && rank.broken() && !stream.status().ok()) return {};  // a device that has failed does no more
    }
  }
  return {Code::Device, ""};
}

}  // namespace

HcclThread::HcclThread(std::shared_ptr<HcclRank> rank) : rank_(std::move(rank)) {
  thread_ = begin_own_thread([rank = rank_]() mutable { HcclRank::loop(std::move(rank)); });
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
  const int device = rank_->stream->device();
  try {
    device::Runtime &runtime = device::open_runtime("acl");
    if (runtime.stuck(device)) return false;
    const auto question = std::make_shared<Question>();
    const Deadline deadline(seconds);
    uint64_t seen = 0;
    int standing = 0;
    // The questions may also stand because this process was held up. So their number is looked at, and not the time alone.
    const auto enough = [&] {
      const uint64_t asked = question->call.number.load(std::memory_order_relaxed);
      standing = asked == seen ? standing + 1 : 0;
      seen = asked;
      return runtime.stuck(device) != nullptr || (deadline.passed() && standing >= kStanding);
    };
    const auto answer = device::call_within(
        kNeverEnds, [question, &runtime, rank = rank_, seconds] { return ask_stream(*question, runtime, *rank, seconds); },
        [&runtime, device] { runtime.came_back(device); }, enough);
    if (answer) return answer->ok();
    question->over.store(true);
    const char *const asked = question->call.call.load(std::memory_order_relaxed);
    const char *const call = asked ? asked : "a question about a stream";
    const bool first = !runtime.stuck(device);
    runtime.does_not_come_back(device, call);
    if (first)
      ISTHMUS_WARN("{} has not come back from acl:{} in {} s; its thread is left behind, and so is what hccl has there",
                   call, device, seconds);
  } catch (const std::exception &) {}
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
  if (rank_->parted.exchange(true)) return thread_.join();  // it has come out just now
  device::abandon_thread();
  const char *where = rank_->inside.load(std::memory_order_acquire);
  ISTHMUS_WARN(
      "a thread of rank {} of an island is stuck in hccl {} and is left behind: the library has no call that ends it",
      rank_->rank, where ? where : "at its end");
  thread_.detach();
}

}  // namespace isthmus::ccl::hccl
