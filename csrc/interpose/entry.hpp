// What the generated entry points of NCCL and RCCL are made of.
#pragma once

#include "abi.hpp"
#include "slot.hpp"

namespace isthmus::interpose {

// What a call returns that has no real function: an error, or, where the function has no way to tell of one, what nobody takes for an
// answer. The text for ncclGetLastError is set.
template <class R>
R refused(const char *name) noexcept;
template <>
inline Result refused<Result>(const char *name) noexcept {
  return refuse(name);
}
template <>
inline int refused<int>(const char *name) noexcept {
  refuse(name);
  return -1;
}
template <>
inline void refused<void>(const char *name) noexcept {
  refuse(name);
}
template <>
inline Team refused<Team>(const char *name) noexcept {
  refuse(name);
  return {0, -1, 0};
}

}  // namespace isthmus::interpose
