// Threads of ours. Signals are for the program's, so ours begin with all of them blocked. Their naps end when they should.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

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

// Unless a thread says otherwise the kernel may end each sleep with a time limit 50 us late (the "timer slack", prctl(2)), so that it wakes several
// threads at once. That is more than a short nap itself. A thread of the program's keeps what the program has chosen.
inline constexpr unsigned long kPromptSlackNs = 1000, kUsualSlackNs = 50'000;
inline void nap_promptly() noexcept {
  const int now =
      ::prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);  // inherited from the thread that began this one; 0 under a real-time policy
  if (now > static_cast<int>(kPromptSlackNs)) ::prctl(PR_SET_TIMERSLACK, kPromptSlackNs, 0, 0, 0);
}

// Throws std::system_error where no thread can be begun.
template <class Loop>
std::thread begin_own_thread(Loop &&loop) {
  const SignalsBlocked blocked;
  return std::thread([mine = std::forward<Loop>(loop)]() mutable {
    nap_promptly();
    mine();
  });
}

}  // namespace isthmus
