// What happens to our descriptors in a forked child: they are closed there, at once, by a pthread_atfork handler. A child
// that kept a copy of a socket would hide its parent's death from the peers, and a copy of a memfd would keep the memory
// alive.
#pragma once

#include "base/handles.hpp"

namespace isthmus::net {

// `fd` is to be closed in forked children. Sockets and files are told from a later descriptor of the same number by their
// inode, so their owner may close them without a word; descriptors without an inode of their own (epoll, eventfd) belong in
// a GuardedFd.
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
