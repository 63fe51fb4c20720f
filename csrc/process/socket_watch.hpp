// SocketWatch tells which thread watches the sockets. Of the threads that sleep for sockets, one watches all sockets. The others sleep on the
// doorbell. The doorbell rings for the others when a frame has come (Links::drive) and when the watch is free. It rings for the thread with the
// watch, too, when a thread that is awake has read a frame for the rank that the sleeper drives:
//
//   thread A                         thread B
//   takes the watch                  finds the watch taken
//   polls all sockets                counts itself, and tries once more
//   a frame for B comes              sleeps on the doorbell
//   moves the frame, rings      -->  wakes, looks, sleeps again or has what it waited for
//   gives up the watch, rings   -->  wakes, takes the watch
//
// B tries once more because A may have given up the watch between B's first try and B's count: A did not see B then. B looks once more when B is
// a sleeper of the doorbell: A may have given up the watch, and rung, before B was one, and then nobody would poll the sockets.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/doorbell.hpp"
#include "base/fork.hpp"

namespace isthmus::process {

class SocketWatch {
 public:
  explicit SocketWatch(Doorbell &bell) noexcept : bell_(bell) {}
  SocketWatch(const SocketWatch &) = delete;
  SocketWatch &operator=(const SocketWatch &) = delete;

  // For as long as a thread sleeps.
  class Turn {
   public:
    explicit Turn(SocketWatch &watch) noexcept;
    // The watch, where no other thread sleeps for sockets, for a thread for which no socket matters. Else nothing.
    struct IfIdle {};
    Turn(SocketWatch &watch, IfIdle) noexcept;
    ~Turn();
    Turn(const Turn &) = delete;
    Turn &operator=(const Turn &) = delete;
    bool mine() const noexcept { return mine_; }  // the watch; else another thread has it
    // Where it is not mine(): sleeps at the doorbell until it rings, at most `ns`, unless the watch has become free or ready() holds. False: the
    // thread has not slept.
    template <class Ready>
    bool sleep(int64_t ns, Ready ready) {
      Nap nap(watch_.bell_);
      if (!watch_.taken_.load(std::memory_order_seq_cst) || ready()) return false;
      nap.sleep(ns);
      return true;
    }

   private:
    SocketWatch &watch_;
    bool mine_ = false, counted_ = false;  // the watch; or among the sleepers without it
  };
  // Other threads than this one sleep for sockets without the watch.
  bool others_sleep() const noexcept;

 private:
  static thread_local bool sleeps_, sleeps_without_;  // this thread sleeps for sockets; and does so without the watch
  static const InChild forgets_;

  Doorbell &bell_;
  std::atomic<bool> taken_{false};
  std::atomic<uint32_t> sleepers_{0};  // sleep for sockets without the watch
};

}  // namespace isthmus::process
