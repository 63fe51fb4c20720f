// The program's callbacks (Operation::done) that are due. An operation that ends is put on this list, and whoever ended it calls the callback
// once it has released every lock: so a callback may submit, wait and destroy.
//
// The callbacks of one rank run one after the other, in the order in which its operations ended. One per process.
//
// Thread rules: any thread. deliver() without a lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fork.hpp"
#include "base/lock.hpp"
#include "engine/operation.hpp"

namespace isthmus::engine {

class Completions {
 public:
  static void add(Operation *op) noexcept;  // takes over a reference
  static void deliver() noexcept {
    if (due_.load(std::memory_order_acquire) != 0) deliver_due();
  }

 private:
  static void deliver_due() noexcept;
  static inline std::atomic<uint32_t> due_{0};
  static const InChild forgets_;
};

}  // namespace isthmus::engine
