// What the generated entry points are made of. A forwarded call is a load and a jump, and moving what stands on the stack.
#pragma once

#include <atomic>

#include "abi.hpp"
#include "bridge.hpp"
#include "real.hpp"

#define ISTHMUS_ENTRY extern "C" __attribute__((visibility("default")))

namespace isthmus::interpose {

template <class Function>
using Slot = std::atomic<Function *>;

// Where a call goes: to the real function, once the first call has found it. Acquire: who sees the address sees what opening the library
// wrote.
template <class Function>
inline Function *bound(const Slot<Function> &slot) noexcept {
  return slot.load(std::memory_order_acquire);
}

// Of the first call, and of every one while there is no such function: null then, and refused() says why.
template <class Function>
inline Function *bind(Slot<Function> &slot, const char *name) noexcept {
  auto *f = reinterpret_cast<Function *>(look_up(name));
  if (f) slot.store(f, std::memory_order_release);
  return f;
}

// What a call returns that failed: an error, or, where the function has no way to tell of one, what nobody takes for an answer.
template <class R>
R given_up(Result code) noexcept;
template <>
inline Result given_up<Result>(Result code) noexcept {
  return code;
}
template <>
inline int given_up<int>(Result) noexcept {
  return -1;
}
template <>
inline void given_up<void>(Result) noexcept {}
template <>
inline Team given_up<Team>(Result) noexcept {
  return {0, -1, 0};
}

// Where there is no real function, and where the communicator spans vendors. The text for ncclGetLastError is set.
template <class R>
R refused(const char *name) noexcept {
  return given_up<R>(refuse(name));
}
template <class R>
R spanning(const char *name) noexcept {
  return given_up<R>(refuse(name, true));
}

}  // namespace isthmus::interpose
