// What the generated entry points of NCCL and RCCL are made of.
#pragma once

#include "abi.hpp"
#include "bridge.hpp"
#include "bound_function.hpp"

namespace isthmus::interpose {

// What a failed call returns: an error. A function that has no way to tell of an error returns a value that no program takes
// for an answer.
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

// refused(): there is no real function. spanning(): the communicator spans vendors. spanning_operation(): likewise, and the call
// would be part of an open group. All set the text for ncclGetLastError.
template <class R>
R refused(const char *name) noexcept {
  return given_up<R>(refuse(name));
}
template <class R>
R spanning(const char *name) noexcept {
  return given_up<R>(refuse(name, true));
}
inline Result spanning_operation(const char *name) noexcept { return refuse_operation(name); }

}  // namespace isthmus::interpose
