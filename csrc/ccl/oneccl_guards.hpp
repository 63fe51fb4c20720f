// What stands around calls of oneCCL, so that neither its signals nor its exceptions end the process.
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

// Signals of writes to a peer that is gone must not end the process; threads that the library starts inherit the mask.
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
  ~WithoutPipeSignal() {  // one that came meanwhile is the library's
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

// Where a rank is gone, the library throws out of a destructor: when a communicator is ended and its id was that rank's, and, it seems, when
// its transport notices in a call. The language then ends the process. So the thread that is in there stops for good instead, and is left behind
// as one that hangs there.
class Unending {
 public:
  // Of the library's own C++ run time, which need not be ours.
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
    // Whatever is there and is not ours, the program has set meanwhile, and it is put back; so is what it sets while that is done.
    Handler put = before_, ours = stop;
    for (Handler there = set_(put); there != ours; there = set_(put)) {
      ours = put;
      put = there;
    }
  }
  static int stops() noexcept { return stops_.load(); }  // threads that it has stopped
  Unending(const Unending &) = delete;
  Unending &operator=(const Unending &) = delete;

 private:
  using Handler = void (*)();
  static void stop() {
    if (here_) stops_.fetch_add(1);
    while (here_) ::pause();
    // Of another thread: the program's own, which may call what it found, and that is this where it was set during a call.
    if (const Handler before = before_; before && !std::exchange(asked_, true)) before();
    std::abort();
  }
  inline static Handler (*set_)(Handler) = nullptr;
  inline static std::atomic<Handler> before_{nullptr};
  inline static std::atomic<int> stops_{0};
  inline static thread_local bool here_ = false, asked_ = false;
};

}  // namespace isthmus::ccl::oneccl
