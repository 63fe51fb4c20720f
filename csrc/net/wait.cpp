#include "net/wait.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/error.hpp"

namespace isthmus::net {
namespace {
std::atomic<int (*)()> g_check{nullptr};
constexpr int kSliceMs = 50;
thread_local const ThreadsOwnCheck *own_check = nullptr;

// The check that this thread is in.
struct InCheck {
  InCheck *const outer = std::exchange(here, this);
  bool ends = false;
  InCheck() = default;
  InCheck(const InCheck &) = delete;
  InCheck &operator=(const InCheck &) = delete;
  ~InCheck() { here = outer; }
  static thread_local InCheck *here;
};
thread_local InCheck *InCheck::here = nullptr;

}  // namespace

void set_interrupt_check(int (*check)()) noexcept { g_check.store(check, std::memory_order_release); }

bool interrupt_wanted() noexcept {
  auto *const check = g_check.load(std::memory_order_acquire);
  if (!check) return false;
  InCheck asking;  // end_this_wait() writes to it
  return check() != 0 || asking.ends;
}

bool in_interrupt_check() noexcept { return InCheck::here != nullptr; }

void end_this_wait() noexcept {
  if (InCheck::here) InCheck::here->ends = true;
}

ThreadsOwnCheck::ThreadsOwnCheck(std::function<void()> check) : check_(std::move(check)), before_(own_check) {
  own_check = this;
}

ThreadsOwnCheck::~ThreadsOwnCheck() { own_check = before_; }

void check_interrupt() {
  if (own_check) own_check->check_();
  if (interrupt_wanted()) fail(Code::Interrupted, "interrupted while waiting for other processes");
}

int wait_events(std::span<pollfd> fds, Deadline deadline) {
  for (;;) {
    const int n = ::poll(fds.data(), fds.size(), std::min(deadline.left_ms(), kSliceMs));
    if (n > 0) return n;
    if (n < 0 && errno != EINTR) fail_system("poll", errno);
    if (deadline.passed()) return 0;  // before the check: threads that serve all callers wait with no time
    check_interrupt();
  }
}

short wait_events(int fd, short events, Deadline deadline) {
  pollfd p{fd, events, 0};
  return wait_events({&p, 1}, deadline) > 0 ? p.revents : short{0};
}

void sleep_until(Deadline deadline) { wait_events({}, deadline); }

}  // namespace isthmus::net
