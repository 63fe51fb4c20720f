// The descriptors that the control thread watches. Each has a tag, which says what the descriptor is, and a number.
#pragma once

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

#include "base/error.hpp"

namespace isthmus::bootstrap {

enum class Tag : uint64_t { Wake, Gate, Greeting, Control, Pid };
constexpr uint64_t tagged(Tag tag, uint64_t number) noexcept { return static_cast<uint64_t>(tag) << 56 | number; }
constexpr Tag tag_of(uint64_t data) noexcept { return static_cast<Tag>(data >> 56); }
constexpr uint64_t number_of(uint64_t data) noexcept { return data & 0xffffffffffffff; }

// epoll_ctl(). Throws Error(System).
inline void watch(int epoll, int operation, int fd, uint32_t events, uint64_t data) {
  epoll_event e{};
  e.events = events;
  e.data.u64 = data;
  if (::epoll_ctl(epoll, operation, fd, &e) != 0) fail_system("epoll_ctl", errno);
}

}  // namespace isthmus::bootstrap
