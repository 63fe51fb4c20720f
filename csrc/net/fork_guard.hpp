// A forked child closes the descriptors that the library has in the parent. A pthread_atfork handler closes them at once.
// A child with a copy of a socket would hide its parent's death from the peers. A copy of a memfd would keep the memory alive.
#pragma once

#include "base/handles.hpp"

namespace isthmus::net {

// Forked children close `fd`. The owner of a socket or a file may close the descriptor here without a word: by its inode a child tells
// the file from a later one of the same number. A descriptor without an inode of its own (epoll, eventfd) belongs in a GuardedFd.
void close_in_child(int fd);

class GuardedFd {  // a UniqueFd that is closed in forked children and forgotten when it is closed here
 public:
  GuardedFd() = default;
  explicit GuardedFd(UniqueFd fd);
  GuardedFd(GuardedFd &&) noexcept = default;
  GuardedFd &operator=(GuardedFd &&other) noexcept;
  ~GuardedFd() { reset(); }
  int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  void reset() noexcept;

 private:
  UniqueFd fd_;
};

}  // namespace isthmus::net
