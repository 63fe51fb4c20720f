// A forked child has its parent's objects, but neither the threads nor the memory behind the objects. So the child leaves
// the objects as they are.
#pragma once

#include <atomic>
#include <cstdint>

namespace isthmus::torch_face {

// The number of forks between the process that loaded the module and this process. Each child counts, on its only thread.
inline constinit std::atomic<std::uint32_t> forks{0};

// The process in which an object was made.
class ProcessBirth {
 public:
  bool here() const noexcept { return at_ == forks.load(std::memory_order_relaxed); }

 private:
  std::uint32_t at_ = forks.load(std::memory_order_relaxed);
};

}  // namespace isthmus::torch_face
