// What a forked child has of its own. It begins as a process that has not used Isthmus: no communicator, no thread, no lock that another
// thread of its parent held at the fork. What its parent had stays in its memory as it was then, and is neither used nor destroyed there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace isthmus {

namespace detail {
extern std::atomic<uint32_t> the_generation;
}

// How many forks lie between this process and the one that loaded the library.
inline uint32_t generation() noexcept { return detail::the_generation.load(std::memory_order_relaxed); }

// What belongs to one process remembers by this in which it was made.
class Birth {
 public:
  Birth() noexcept {}                                         // written out: clang lets no const member do without
  bool here() const noexcept { return at_ == generation(); }  // in this process, and not in one that this was forked from

 private:
  uint32_t at_ = generation();
};

// Begun in some process, and of no use in those forked from it since. Static.
class Beginning {
 public:
  void note() noexcept { at_.store(generation(), std::memory_order_relaxed); }
  void take_back() noexcept { at_.store(kNever, std::memory_order_relaxed); }
  bool in_a_parent() const noexcept {
    const uint32_t at = at_.load(std::memory_order_relaxed);
    return at != kNever && at != generation();
  }

 private:
  static constexpr uint32_t kNever = ~uint32_t{0};
  std::atomic<uint32_t> at_{kNever};
};

// Called in every forked child, on its only thread, before the fork returns there; those of one source file in their order. It takes no
// lock and does not log. Static, made when the library is loaded: no fork comes between its making and its use.
class InChild {
 public:
  using Function = void (*)(void *context) noexcept;
  explicit InChild(Function function, void *context = nullptr) noexcept;
  InChild(const InChild &) = delete;
  InChild &operator=(const InChild &) = delete;

 private:
  friend struct ChildHooks;
  const Function function_;
  void *const context_;
  InChild *next_ = nullptr;
};

// An object that a process has once. In a forked child a new one begins in its place, and what the parent's held is never let go of there.
// Static. Never destroyed: threads may use it while the process ends.
template <class T>
class PerProcess {
 public:
  PerProcess() { begin(this); }
  T &operator*() noexcept { return *std::launder(reinterpret_cast<T *>(place_)); }
  T *operator->() noexcept { return &**this; }

 private:
  static void begin(void *self) noexcept { ::new (static_cast<PerProcess *>(self)->place_) T; }
  alignas(T) std::byte place_[sizeof(T)];
  const InChild again_{begin, this};
};

}  // namespace isthmus
