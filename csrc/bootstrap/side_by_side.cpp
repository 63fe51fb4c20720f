#include "bootstrap/side_by_side.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
SideBySide::SideBySide(std::vector<size_t> tasks, size_t most, Task task, const Look &look)
    : tasks_(std::move(tasks)), task_(std::move(task)), look_([this, look] { ask(look); }) {
  const size_t threads = std::min(tasks_.size(), most);
  try {
    for (size_t i = 1; i < threads; ++i) threads_.push_back(begin_own_thread([this] { serve(); }));
  } catch (const std::exception &e) {
    ISTHMUS_INFO("{} threads instead of {} for {} waits: {}", threads_.size() + 1, threads, tasks_.size(), e.what());
  }
}

SideBySide::~SideBySide() { join(); }

void SideBySide::take_part() noexcept { work(look_); }

void SideBySide::one(size_t task) noexcept { run(task, look_); }

void SideBySide::await() {
  const auto done = [this]() ISTHMUS_REQUIRES(mutex_) { return ended_ == threads_.size(); };
  try {
    const Lock lock(mutex_);
    while (!changed_.wait_for(mutex_, std::chrono::nanoseconds(kLookNs), done)) {
      const Unlocked outside(mutex_);
      look_();
    }
  } catch (...) {  // ask() has told the others
  }
  join();
  check_goes_on();
}

std::vector<SideBySide::Failed> SideBySide::take_failed() {
  const Lock lock(mutex_);
  return std::exchange(failed_, {});
}

// ---- on all threads ------------------------------------------------------------------------------------------------------------------

void SideBySide::serve() noexcept {
  const net::ThreadsOwnCheck goes_on([this] { check_goes_on(); });
  work([this] { check_goes_on(); });
  const Lock lock(mutex_);
  ++ended_;
  changed_.notify_all();
}

void SideBySide::work(const Look &look) noexcept {
  for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_.size();) run(tasks_[i], look);
}

void SideBySide::run(size_t task, const Look &look) noexcept {
  std::exception_ptr why;
  bool interrupted = false;
  try {
    check_goes_on();
    return task_(task, look);
  } catch (const Error &e) {
    why = std::current_exception();
    interrupted = e.code() == Code::Interrupted;
  } catch (...) { why = std::current_exception(); }
  if (interrupted) end_all(why);
  const Lock lock(mutex_);
  failed_.push_back({task, std::move(why)});
}

void SideBySide::ask(const Look &look) {
  check_goes_on();
  try {
    net::check_interrupt();
    if (look) look();
  } catch (...) {
    end_all(std::current_exception());
    throw;
  }
}

void SideBySide::end_all(std::exception_ptr why) noexcept {
  const Lock lock(mutex_);
  if (!over_) over_ = std::move(why);
}

void SideBySide::check_goes_on() {
  const Lock lock(mutex_);
  if (over_) std::rethrow_exception(over_);
}

void SideBySide::join() {
  for (std::thread &thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace isthmus::bootstrap
