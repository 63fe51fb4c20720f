// Waits of tests for what another thread does.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "patience.hpp"

namespace isthmus_test {

// Whether it holds before the seconds are over.
inline bool within(double seconds, const std::function<bool()> &holds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return holds();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// Whether what must happen has happened.
inline bool eventually(const std::function<bool()> &holds) { return within(soon(), holds); }

}  // namespace isthmus_test
