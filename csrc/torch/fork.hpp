// A forked child has its parent's objects, and neither the threads nor the memory behind them: it leaves them as they are.
#pragma once

#include <atomic>
#include <cstdint>

namespace isthmus::torch_face {

// Forks between the process that loaded the module and this one; counted in each child, on its only thread.
inline constinit std::atomic<std::uint32_t> forks{0};

// In which process something was made.
class ProcessBirth {
 public:
  bool here() const noexcept { return at_ == forks.load(std::memory_order_relaxed); }

 private:
  std::uint32_t at_ = forks.load(std::memory_order_relaxed);
};

}  // namespace isthmus::torch_face
