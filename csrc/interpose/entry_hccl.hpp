// What the generated entry points of HCCL are made of.
#pragma once

#include "abi_hccl.hpp"
#include "bridge.hpp"
#include "jump.hpp"
#include "bound_function.hpp"

namespace isthmus::interpose {

using namespace hccl;

// What a call without a real function returns: an error. A function that has no way to tell of an error answers with zero,
// false or -1: the library can do nothing.
template <class R>
R refused(const char *name) noexcept;
template <>
inline Result refused<Result>(const char *name) noexcept {
  return refuse(name);
}
template <>
inline uint32_t refused<uint32_t>(const char *name) noexcept {
  refuse(name);
  return 0;
}
template <>
inline bool refused<bool>(const char *name) noexcept {
  refuse(name);
  return false;
}
template <>
inline Kind refused<Kind>(const char *name) noexcept {
  refuse(name);
  return -1;
}

// What a call of a communicator that spans vendors returns. All such functions give a code.
template <class R>
R spanning(const char *name) noexcept;
template <>
inline Result spanning<Result>(const char *name) noexcept {
  return refuse(name, true);
}
// The same of a call that would be part of an open group.
inline Result spanning_operation(const char *name) noexcept { return refuse_operation(name); }

}  // namespace isthmus::interpose
