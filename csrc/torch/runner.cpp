#include "runner.hpp"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

namespace isthmus::torch_face {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::microseconds kMoment = 1ms, kLongestMoment = 20ms;
constexpr std::size_t kIdle = 1;  // threads that stay

}  // namespace

Runner::Clock::duration Runner::moment() const {
  const std::size_t stuck = inside_ > 0 ? inside_ - 1 : 0;  // besides the leader
  return std::min<Clock::duration>(kMoment * (std::size_t{1} << std::min<std::size_t>(stuck, 5)), kLongestMoment);
}

bool Runner::push(Task task) {
  const Lock lock(mutex_);
  if (stopped_) {
    new Task(std::move(task));
    return false;
  }
  queue_.push_back(std::move(task));
  stand_by();
  if (!led_ || !watched_) wake_.notify_one();
  return true;
}

void Runner::stand_by() {
  if (idle_ > 0) return;
  try {
    std::thread thread([this] { loop(); });
    ::pthread_setname_np(thread.native_handle(), "isthmus-torch-cb");
    thread.detach();
    ++idle_;
  } catch (const std::system_error &e) {
    TORCH_WARN_ONCE("isthmus: no thread could be started for callbacks of futures, so they wait for each other: ", e.what());
  }
}

void Runner::loop() {
  Lock lock(mutex_);
  while (true) {
    if (!queue_.empty() && !led_) {
      --idle_;
      lead();
      ++idle_;
      if (idle_ > kIdle + 1) break;
    } else if (queue_.empty() || watched_) {
      if (stopped_ && queue_.empty()) break;
      wake_.wait(lock);
    } else {
      watched_ = true;
      const std::uint64_t leader = leads_;
      wake_.wait_until(lock, since_ + moment());
      watched_ = false;
      if (led_ && leads_ == leader && Clock::now() >= since_ + moment()) led_ = false;  // it does not come back
    }
  }
  --idle_;
}

void Runner::lead() {
  led_ = true;
  const std::uint64_t number = ++leads_;
  while (!queue_.empty() && leads_ == number) {
    Task task = std::move(queue_.front());
    queue_.pop_front();
    ++inside_;
    since_ = Clock::now();
    stand_by();
    if (!queue_.empty() && !watched_) wake_.notify_one();
    {
      const Unlocked outside(mutex_);
      task();
      task = nullptr;
    }
    --inside_;
    if (inside_ == 0 && queue_.empty()) over_.notify_all();
  }
  if (leads_ == number) led_ = false;
}

std::size_t Runner::stop(std::chrono::milliseconds patience) {
  Lock lock(mutex_);
  over_.wait_for(lock, patience, [this]() ISTHMUS_REQUIRES(mutex_) { return inside_ == 0 && queue_.empty(); });
  const std::size_t left = inside_ + queue_.size();
  stopped_ = true;
  for (Task &task : queue_) new Task(std::move(task));  // kept for good
  queue_.clear();
  wake_.notify_all();
  return left;
}

}  // namespace isthmus::torch_face
