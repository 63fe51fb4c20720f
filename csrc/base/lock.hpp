// Locks whose use the compiler checks. A field says which lock guards it, a function which locks its caller must hold; clang's
// -Wthread-safety then refuses an access without the lock (scripts/stages.py: "locks"). Other compilers see nothing of it.
//
//   Mutex mutex_;
//   std::deque<Job> jobs_ ISTHMUS_GUARDED_BY(mutex_);
//   void add(Job job) {                                    const Lock lock(mutex_); jobs_.push_back(job); }
//   Job first() ISTHMUS_REQUIRES(mutex_) {                 return jobs_.front(); }
//   given_.wait(lock, [this]() ISTHMUS_REQUIRES(mutex_) {  return !jobs_.empty(); });
//   if (mutex_.try_lock()) {                               const Lock lock(mutex_, kLocked); jobs_.clear(); }
//
// What several classes share is a Guarded<T>: only who holds its lock gets to the T, and a function that takes a T & has a caller who does.
//
//   Guarded<Jobs, SpinLock> jobs_;
//   const auto jobs = jobs_.lock();  jobs->append(job);  look_at(*jobs);
//
// Three rules. A lock is not held over a system call or a vendor's call, unless its declaration says so. A lambda is a function of its
// own: where it reads what a lock guards, it says ISTHMUS_REQUIRES; or it begins with counts_as_held() where a template of ours calls it,
// which has no name for the lock. A constructor and a destructor are not checked.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/spin_lock.hpp"
#include "base/thread_safety.hpp"

namespace isthmus {

class ISTHMUS_CAPABILITY("mutex") Mutex {
 public:
  void lock() ISTHMUS_ACQUIRE() { mutex_.lock(); }
  bool try_lock() ISTHMUS_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() ISTHMUS_RELEASE() { mutex_.unlock(); }
  // A word to the analysis alone: the caller knows that it is held.
  void counts_as_held() const noexcept ISTHMUS_ASSERTS_HELD() {}

 private:
  friend class Condition;
  std::mutex mutex_;
};

class ISTHMUS_CAPABILITY("mutex") SharedMutex {
 public:
  void lock() ISTHMUS_ACQUIRE() { mutex_.lock(); }
  void unlock() ISTHMUS_RELEASE() { mutex_.unlock(); }
  void lock_shared() ISTHMUS_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() ISTHMUS_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

struct Locked {};
inline constexpr Locked kLocked;

// Held from here to the end of the block, or until unlock(). With kLocked: this thread has locked it.
template <class M>
class ISTHMUS_SCOPED_LOCK Lock {
 public:
  explicit Lock(M &mutex) ISTHMUS_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  Lock(M &mutex, Locked) ISTHMUS_REQUIRES(mutex) : mutex_(mutex) {}
  ~Lock() ISTHMUS_RELEASE() {
    if (held_) mutex_.unlock();
  }
  Lock(const Lock &) = delete;
  Lock &operator=(const Lock &) = delete;
  void lock() ISTHMUS_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }
  void unlock() ISTHMUS_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }

 private:
  friend class Condition;
  M &mutex_;
  bool held_ = true;
};
template <class M>
Lock(M &) -> Lock<M>;
template <class M>
Lock(M &, Locked) -> Lock<M>;

class ISTHMUS_SCOPED_LOCK SharedLock {  // with other readers
 public:
  explicit SharedLock(SharedMutex &mutex) ISTHMUS_ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~SharedLock() ISTHMUS_RELEASE() { mutex_.unlock_shared(); }
  SharedLock(const SharedLock &) = delete;
  SharedLock &operator=(const SharedLock &) = delete;

 private:
  SharedMutex &mutex_;
};

template <class T, class M = Mutex>
class Guarded {
 public:
  template <class... Arguments>
  explicit Guarded(Arguments &&...arguments) : value_(std::forward<Arguments>(arguments)...) {}
  Guarded(const Guarded &) = delete;
  Guarded &operator=(const Guarded &) = delete;

  // Held from here to the end of the block, or until unlock(). Not checked by the analysis: this type is the proof.
  class Held {
   public:
    explicit Held(Guarded &of) ISTHMUS_UNCHECKED : of_(&of) { of.mutex_.lock(); }
    ~Held() ISTHMUS_UNCHECKED {
      if (of_) of_->mutex_.unlock();
    }
    Held(const Held &) = delete;
    Held &operator=(const Held &) = delete;
    T *operator->() const noexcept { return &of_->value_; }
    T &operator*() const noexcept { return of_->value_; }
    void unlock() noexcept ISTHMUS_UNCHECKED { std::exchange(of_, nullptr)->mutex_.unlock(); }

   private:
    Guarded *of_;
  };
  Held lock() noexcept { return Held(*this); }

 private:
  M mutex_;
  T value_;
};

// The other way round: not held from here to the end of the block, and then held again, also where the block throws.
template <class M>
class ISTHMUS_SCOPED_LOCK Unlocked {
 public:
  explicit Unlocked(M &mutex) ISTHMUS_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~Unlocked() ISTHMUS_RELEASE() { mutex_.lock(); }  // clang's word for the end of the scope, whatever it does
  Unlocked(const Unlocked &) = delete;
  Unlocked &operator=(const Unlocked &) = delete;

 private:
  M &mutex_;
};
template <class M>
Unlocked(M &) -> Unlocked<M>;

// std::condition_variable for a Mutex. The lock is held when a wait begins and when it ends.
class Condition {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }
  void wait(Lock<Mutex> &lock) {
    Adopted native(lock);
    condition_.wait(native.lock);
  }
  template <class Holds>
  void wait(Lock<Mutex> &lock, Holds holds) {
    Adopted native(lock);
    condition_.wait(native.lock, std::move(holds));
  }
  template <class Rep, class Period>
  std::cv_status wait_for(Lock<Mutex> &lock, const std::chrono::duration<Rep, Period> &time) {
    Adopted native(lock);
    return condition_.wait_for(native.lock, time);
  }
  template <class Rep, class Period, class Holds>
  bool wait_for(Lock<Mutex> &lock, const std::chrono::duration<Rep, Period> &time, Holds holds) {
    Adopted native(lock);
    return condition_.wait_for(native.lock, time, std::move(holds));
  }
  template <class Clock, class Duration>
  std::cv_status wait_until(Lock<Mutex> &lock, const std::chrono::time_point<Clock, Duration> &time) {
    Adopted native(lock);
    return condition_.wait_until(native.lock, time);
  }
  template <class Clock, class Duration, class Holds>
  bool wait_until(Lock<Mutex> &lock, const std::chrono::time_point<Clock, Duration> &time, Holds holds) {
    Adopted native(lock);
    return condition_.wait_until(native.lock, time, std::move(holds));
  }
  // For functions that are called with the mutex held.
  template <class Rep, class Period, class Holds>
  bool wait_for(Mutex &held, const std::chrono::duration<Rep, Period> &time, Holds holds) ISTHMUS_REQUIRES(held) {
    Adopted native(held);
    return condition_.wait_for(native.lock, time, std::move(holds));
  }

 private:
  struct Adopted {  // the mutex stays locked when it goes
    explicit Adopted(Lock<Mutex> &held) : Adopted(held.mutex_) {}
    explicit Adopted(Mutex &held) : lock(held.mutex_, std::adopt_lock) {}
    ~Adopted() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };
  std::condition_variable condition_;
};

}  // namespace isthmus
