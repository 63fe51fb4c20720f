// Threads of ours. Signals are for the program's, so ours begin with all of them blocked.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace isthmus {

class SignalsBlocked {  // on this thread, and on those that it begins
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked &) = delete;
  SignalsBlocked &operator=(const SignalsBlocked &) = delete;

 private:
  sigset_t before_;
};

// Throws std::system_error where no thread can be begun.
template <class Loop>
std::thread begin_own_thread(Loop &&loop) {
  const SignalsBlocked blocked;
  return std::thread(std::forward<Loop>(loop));
}

}  // namespace isthmus
