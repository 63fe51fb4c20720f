// What the kernel tells of a TCP connection: the functions of net/socket.hpp that ask it so.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/error.hpp"
#include "net/address.hpp"
#include "net/socket.hpp"

namespace isthmus::net {

// What the kernel tells behind the part that <netinet/tcp.h> knows; <linux/tcp.h> and that do not go together.
struct LongTcpInfo {
  tcp_info known;
  uint64_t pacing_rate, most_pacing_rate, bytes_acked, bytes_received;
  uint32_t segments_out, segments_in, not_sent, least_round_trip_us;
  uint32_t data_segments_in, data_segments_out;
  uint64_t delivery_rate;
};
static_assert(sizeof(tcp_info) == 104 && offsetof(LongTcpInfo, least_round_trip_us) == 148 &&
              offsetof(LongTcpInfo, delivery_rate) == 160);

// False: the kernel does not tell so much.
static bool ask(int fd, LongTcpInfo &info) noexcept {
  socklen_t n = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && n == sizeof info;
}

int64_t least_round_trip_ns(int fd) noexcept {
  LongTcpInfo info{};
  return ask(fd, info) && info.least_round_trip_us != UINT32_MAX ? int64_t{info.least_round_trip_us} * 1000 : 0;
}

Window window(int fd) noexcept {
  LongTcpInfo info{};
  if (!ask(fd, info)) return {};
  Window w;
  w.waits = info.not_sent;
  w.under_way = w.waits + int64_t{info.known.tcpi_unacked} * info.known.tcpi_snd_mss;
  w.acknowledged = static_cast<int64_t>(info.bytes_acked);
  w.rate = static_cast<int64_t>(std::min<uint64_t>(info.pacing_rate, INT64_MAX));
  return w;
}

Traffic traffic(int fd) {
  LongTcpInfo info{};
  if (!ask(fd, info)) return {};
  Traffic t;
  try {
    t.from = local_address(fd).text();
    t.to = remote_address(fd).text();
  } catch (const Error &) { return {}; }
  t.round_trip_us = info.known.tcpi_rtt;
  t.least_round_trip_us = info.least_round_trip_us != UINT32_MAX ? info.least_round_trip_us : 0;
  t.segments = info.data_segments_out;
  t.sent_again = info.known.tcpi_total_retrans;
  t.rate = info.delivery_rate;
  return t;
}

int64_t unacknowledged(int fd) noexcept {
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

Answers answers(int fd) noexcept {
  tcp_info info{};
  socklen_t n = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) != 0) return {};
  Answers a;
  // Where this host has no way any more, what waits was never sent, and the kernel counts its attempts and probes instead.
  a.probed = info.tcpi_unacked == 0 && info.tcpi_probes != 0;
  a.unanswered = a.probed ? 1 : info.tcpi_unacked;
  a.quiet_ns = int64_t{info.tcpi_last_ack_recv} * 1'000'000;
  a.round_ns = int64_t{info.tcpi_rtt} * 1000;
  int unsent = 0;
  a.stuck = info.tcpi_unacked == 0 && ::ioctl(fd, SIOCOUTQNSD, &unsent) == 0 && unsent > 0;
  a.again = info.tcpi_retransmits + info.tcpi_probes;
  a.repeated = info.tcpi_total_retrans + a.again;
  return a;
}

}  // namespace isthmus::net
