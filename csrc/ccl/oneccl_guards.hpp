// Guards around calls of oneCCL. With them neither a signal nor an exception of the library ends the process.
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <utility>

namespace isthmus::ccl::oneccl {

// A signal of a write to a peer that is gone must not end the process. Threads that the library starts inherit the mask.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() {
    sigset_t pending;
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    ::sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~WithoutPipeSignal() {  // a signal that came meanwhile is the library's
    constexpr timespec kNow{};
    if (!was_pending_) ::sigtimedwait(&set_, nullptr, &kNow);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutPipeSignal(const WithoutPipeSignal &) = delete;
  WithoutPipeSignal &operator=(const WithoutPipeSignal &) = delete;

 private:
  sigset_t set_, before_;
  bool was_pending_ = false;
};

// Where a rank is gone, the library throws out of a destructor, and the language then ends the process. The library does so when a communicator
// ends whose id was that rank's, and, as it seems, when its transport notices in a call. With this guard the thread in the call stops for good
// instead. The thread is then left behind like one that hangs.
class Unending {
 public:
  // Finds set_terminate() of the library's own C++ run time, which need not be ours.
  static void find(void *library) {
    set_ = reinterpret_cast<Handler (*)(Handler)>(::dlsym(library, "_ZSt13set_terminatePFvvE"));
  }
  Unending() {
    here_ = true;
    if (const Handler before = set_ ? set_(stop) : nullptr; before != stop) before_ = before;
  }
  ~Unending() {
    here_ = false;
    if (!set_) return;
    // A handler that is there and is not ours is one that the program has set meanwhile. It is put back. So is a handler that the program sets
    // while this is done.
    Handler put = before_, ours = stop;
    for (Handler there = set_(put); there != ours; there = set_(put)) {
      ours = put;
      put = there;
    }
  }
  static int stops() noexcept { return stops_.load(); }  // threads that the guard has stopped
  Unending(const Unending &) = delete;
  Unending &operator=(const Unending &) = delete;

 private:
  using Handler = void (*)();
  static void stop() {
    if (here_) stops_.fetch_add(1);
    while (here_) ::pause();
    // Another thread, of the program. The program's own handler is asked. It may call what it found when it was set, and that is this
    // function where it was set during a call.
    if (const Handler before = before_; before && !std::exchange(asked_, true)) before();
    std::abort();
  }
  inline static Handler (*set_)(Handler) = nullptr;
  inline static std::atomic<Handler> before_{nullptr};
  inline static std::atomic<int> stops_{0};
  inline static thread_local bool here_ = false, asked_ = false;
};

}  // namespace isthmus::ccl::oneccl
