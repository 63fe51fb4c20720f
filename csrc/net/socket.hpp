// Sockets: TCP (IPv4, IPv6) and abstract Unix. All are non-blocking, CLOEXEC and closed in forked children; every TCP socket
// has TCP_NODELAY. Buffer sizes are left to the kernel's autotuning.
#pragma once

#include <sys/types.h>

#include "base/clock.hpp"
#include "base/handles.hpp"
#include "base/settings.hpp"
#include "net/address.hpp"
#include "net/wire.hpp"

namespace isthmus::net {

UniqueFd listen_tcp(const Address &address);                // throws Error(System) with the errno in the text
int try_listen_tcp(const Address &address, UniqueFd &out);  // 0 or an errno
// At a free port of `ports` that is not `fixed`, or, where `ports` has none, at any; 0 or an errno (EADDRINUSE: no port of it is free).
// Of processes that try for one port at the same time each gets one, as long as there are enough.
int try_listen_tcp(const Address &address, PortRange ports, uint16_t fixed, UniqueFd &out);
std::string used_up_text(PortRange ports, const Address &address);  // for an error: no port of it is free there
UniqueFd listen_unix(const std::string &name);                      // abstract name without the leading NUL
Address local_address(int fd);

// The connection fails (ETIMEDOUT) when what was sent on it has not been acknowledged for so long: the other host is gone, or the way to
// it. A process that is merely stopped does not matter, its kernel acknowledges. No effect on Unix sockets.
void limit_unacknowledged(int fd, int ms) noexcept;

// One attempt; 0 or an errno (ETIMEDOUT at the deadline).
int connect_tcp(const Address &address, Deadline deadline, UniqueFd &out);
int connect_unix(const std::string &name, Deadline deadline, UniqueFd &out);
UniqueFd accept_client(int listener, std::string &from, int &error);  // empty with error 0: nobody is waiting

enum class Io { Ok, Closed, Timeout, Failed };  // Failed: errno tells
Io send_all(int fd, std::span<const std::byte> bytes, Deadline deadline);
Io recv_exact(int fd, std::span<std::byte> bytes, Deadline deadline);
// Non-blocking: bytes moved, 0 where the stream ended (receiving) or nothing fits (sending), -1 with errno (EAGAIN: nothing
// there).
ssize_t send_some(int fd, std::span<const std::byte> bytes) noexcept;
ssize_t recv_some(int fd, std::span<std::byte> bytes) noexcept;

// Descriptor passing. All bytes go in one message (they must fit in the socket's buffer). At most one descriptor is
// received; it comes with CLOEXEC and is closed in forked children.
Io send_with_fd(int fd, std::span<const std::byte> bytes, int passed, Deadline deadline);
ssize_t recv_with_fd(int fd, std::span<std::byte> bytes, UniqueFd &passed) noexcept;

struct Credentials {
  pid_t pid = 0;  // 0: not visible in our pid namespace
  uid_t uid = 0;
};
bool peer_credentials(int fd, Credentials &out) noexcept;  // of a connected Unix socket
// A descriptor that is readable once the process at the other end of a Unix socket has ended; empty where the kernel has
// none.
UniqueFd peer_pidfd(int fd) noexcept;

}  // namespace isthmus::net
