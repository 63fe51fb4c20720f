#include "net/prompt_timer.hpp"

#include <sys/timerfd.h>

namespace isthmus::net {

PromptTimer::PromptTimer() : fd_(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))) {}

int PromptTimer::arm(int64_t ns) noexcept {
  const itimerspec at{{0, 0}, {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)}};
  // A time of 0 would disarm it. To arm it again takes back that it was readable.
  return ns > 0 && fd_ && ::timerfd_settime(fd_.get(), 0, &at, nullptr) == 0 ? fd_.get() : -1;
}

}  // namespace isthmus::net
