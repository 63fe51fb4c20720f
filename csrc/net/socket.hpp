// Sockets: TCP (IPv4, IPv6) and abstract Unix. All sockets are non-blocking and CLOEXEC, and forked children close them. Every TCP socket
// has TCP_NODELAY. The kernel tunes the sizes of buffers.
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
// Listens at a free port of `ports` that is not `fixed`. An empty `ports` means any port. 0 or an errno (EADDRINUSE: no port of the range
// is free). Where processes try for one port at the same moment, each gets a port, as long as there are enough.
int try_listen_tcp(const Address &address, PortRange ports, uint16_t fixed, UniqueFd &out);
std::string used_up_text(PortRange ports,
                         const Address &address);  // for an error: no port of the range is free at the address
UniqueFd listen_unix(const std::string &name);     // abstract name without the leading NUL
Address local_address(int fd);
Address remote_address(int fd);  // throws Error(System) where the connection has ended

// The connection fails (ETIMEDOUT) when sent bytes have not been acknowledged for so long: the other host is gone, or the way to the host.
// A process that is merely stopped does not count, because its kernel acknowledges, unless it has no room for what waits. Unix sockets
// have no such limit.
void limit_unacknowledged(int fd, int ms) noexcept;
// Where nothing is under way the kernel asks the other host once in `every_ms`, in whole seconds, and what was said of sent bytes holds for that.
void begin_probes(int fd, int every_ms) noexcept;
void end_probes(int fd) noexcept;

// The kernel takes no more of what is to be sent while it has so many bytes that it has not sent once. Else what is written next may stand behind
// megabytes, and a slow connection hold them where a faster one could send them. Unix sockets have no such limit.
void limit_unsent(int fd, int bytes) noexcept;

// Every TCP socket here asks its kernel to answer what comes within 8 ms, or 20 where the kernel's clock has 100 ticks a second. An answer is
// delayed where one or two segments came, or where the process does not read. This is how long it may be at most, which the other side has to
// be told; 0: the kernel does not say (Linux before 6.15), and 40 ms is usual, and 200 possible.
int64_t longest_delay_ns(int fd) noexcept;
void answer_now(int fd) noexcept;  // what has come, without that delay: the other side ends, and waits for it
// The shortest round trip that the kernel has seen on a TCP connection; 0: it does not say (before Linux 4.6), or has seen none.
int64_t least_round_trip_ns(int fd) noexcept;
// Bytes that a TCP connection of this host has sent and holds until they are acknowledged, at most (net.ipv4.tcp_wmem, or what tcp_rmem lets come);
// 0: the kernel does not say.
int64_t most_under_way();

// What the kernel does with what a TCP connection sends, in bytes. All zero for a Unix socket.
struct Window {
  int64_t waits = 0;      // given to it and not sent yet
  int64_t under_way = 0;  // given to it and not acknowledged; these among them
  int64_t acknowledged = 0;
  int64_t rate = 0;  // a second, of what it sends while more waits, from what it knows of the way; 0: not known
};
Window window(int fd) noexcept;

// What has become of a TCP connection so far, for people.
struct Traffic {
  std::string from, to;                                // addresses; empty: the socket has no connection
  int64_t round_trip_us = 0, least_round_trip_us = 0;  // of late, and ever; 0: not known
  uint64_t segments = 0, sent_again = 0;               // of data that went, and how many of them went once more
  uint64_t rate = 0;  // bytes a second that arrived of late, as the kernel has measured; 0: not known
};
Traffic traffic(int fd);
int64_t unacknowledged(int fd) noexcept;  // to the byte, where `under_way` counts whole segments. Of a TCP connection

// Which of the kernel's algorithms decides how much is under way on a TCP connection, and how fast it goes: "cubic", "bbr". 0 or an errno, as
// ENOENT: the kernel has none of that name; EPERM: this process may not have it.
int use_congestion(int fd, const std::string &name) noexcept;
std::string allowed_congestion();  // the names that any process may have, separated by spaces; empty: not known

// Where the connection is closed from now on, the other side finds it reset, and not ended in order. Unix sockets know no difference.
void reset_when_closed(int fd) noexcept;

// What the kernel knows of the other host's answers. It answers also where the process there does not run. All zero for a Unix socket.
struct Answers {
  uint32_t unanswered = 0;  // segments that were sent and are not acknowledged; 1 where a probe is all that was sent
  bool probed = false;      // a probe is all that was sent
  bool stuck = false;  // something waits and nothing is under way: this host has no way any more, or the other side no room
  int64_t quiet_ns = 0;   // since anything came from the other host
  int64_t round_ns = 0;   // a round trip, as of late
  uint32_t again = 0;     // attempts to be answered since then, behind the first
  uint32_t repeated = 0;  // segments sent again and probes. Rises while nothing is answered, and may fall with an answer
};
Answers answers(int fd) noexcept;
// Whether the interface that has the socket's own address can carry nothing: it is down, or its cable is out. Asks the kernel for all
// interfaces, so this is for a doubt and not for every look.
bool interface_down(int fd) noexcept;

// One attempt to connect. 0 or an errno (ETIMEDOUT at the deadline).
int connect_tcp(const Address &address, Deadline deadline, UniqueFd &out);
// The same in two steps, without a wait: when `out` has POLLOUT, the second step says what became of the attempt. 0 or an errno.
int begin_connect_tcp(const Address &address, UniqueFd &out);
int end_connect_tcp(const Address &address, int fd);
int connect_unix(const std::string &name, Deadline deadline, UniqueFd &out);
UniqueFd accept_client(int listener, std::string &from, int &error);  // empty with error 0: nobody is waiting

enum class Io { Ok, Closed, Timeout, Failed };  // Failed: errno tells
Io send_all(int fd, std::span<const std::byte> bytes, Deadline deadline);
Io recv_exact(int fd, std::span<std::byte> bytes, Deadline deadline);
// Non-blocking. Returns the bytes moved; 0 where the stream has ended (receiving) or nothing fits (sending); -1 with errno (EAGAIN:
// nothing is there).
ssize_t send_some(int fd, std::span<const std::byte> bytes) noexcept;
ssize_t recv_some(int fd, std::span<std::byte> bytes) noexcept;

// Descriptor passing. All bytes go in one message, so they must fit in the socket's buffer. A receiver takes one descriptor at most. The
// descriptor comes with CLOEXEC, and forked children close it.
Io send_with_fd(int fd, std::span<const std::byte> bytes, int passed, Deadline deadline);
ssize_t recv_with_fd(int fd, std::span<std::byte> bytes, UniqueFd &passed) noexcept;

struct Credentials {
  pid_t pid = 0;  // 0: not visible in our pid namespace
  uid_t uid = 0;
};
bool peer_credentials(int fd, Credentials &out) noexcept;  // of a connected Unix socket
// A descriptor that is readable once the process at the other end of a Unix socket has ended. Empty: the kernel has none.
UniqueFd peer_pidfd(int fd) noexcept;

}  // namespace isthmus::net
