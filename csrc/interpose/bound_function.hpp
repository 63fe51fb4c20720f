// Where an entry point goes: to the real function. The first call finds that function, so every later call is a load and a
// jump. Arguments on the stack are moved, where there are any.
#pragma once

#include <atomic>

#include "real.hpp"

#define ISTHMUS_ENTRY extern "C" __attribute__((visibility("default")))

namespace isthmus::interpose {

template <class Function>
using BoundFunction = std::atomic<Function *>;

// The function to call now: the real function, once the first call has found it. Before that: the function of the first
// call. Acquire: a thread that sees the address also sees what the opening of the library wrote.
template <class Function>
inline Function *bound(const BoundFunction<Function> &function) noexcept {
  return function.load(std::memory_order_acquire);
}

// Finds the real function, for the first call, and for every call while there is no such function. Null: there is no such
// function, and refused() says why.
template <class Function>
inline Function *bind(BoundFunction<Function> &function, const char *name) noexcept {
  auto *f = reinterpret_cast<Function *>(look_up(name));
  if (f) function.store(f, std::memory_order_release);
  return f;
}

}  // namespace isthmus::interpose
