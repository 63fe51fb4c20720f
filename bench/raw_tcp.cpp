// The raw TCP exchange: the rate and the latency of one connection between two processes, without anything above the
// connection.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "limit.hpp"

namespace isthmus::bench {
namespace {

constexpr size_t kWindow = 256 << 10;

[[noreturn]] void broken(const char *what) {
  throw std::runtime_error(std::string("raw TCP exchange: ") + what + ": " + std::strerror(errno));
}

void no_delay(int fd) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) broken("TCP_NODELAY");
}

sockaddr_in loopback(uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

void send_all(int fd, const std::byte *p, size_t n) {
  while (n > 0) {
    const ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) broken("send");
    p += k, n -= static_cast<size_t>(k);
  }
}

void recv_all(int fd, std::byte *p, size_t n, bool spin) {
  while (n > 0) {
    const ssize_t k = recv(fd, p, n, spin ? MSG_DONTWAIT : 0);
    if (k < 0 && (errno == EINTR || errno == EAGAIN)) {
      if (spin) sched_yield();  // both ends may share one processor
      continue;
    }
    if (k <= 0) broken("recv");
    p += k, n -= static_cast<size_t>(k);
  }
}

void meet(int fd) {  // returns when both ends have arrived
  std::byte token{1};
  send_all(fd, &token, 1);
  recv_all(fd, &token, 1, false);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

}  // namespace

std::array<Variant, 10> variants(size_t bytes) {
  std::array<Variant, 10> all{};
  const size_t pieces[5] = {64 << 10, 256 << 10, 1 << 20, 4 << 20, bytes};
  for (size_t i = 0; i < 10; ++i) all[i] = {pieces[i / 2], i % 2 == 1};
  return all;
}

double exchange(int fd, const std::byte *source, std::byte *target, size_t bytes, Variant v) {
  meet(fd);
  const double start = now_seconds();
  for (size_t sent = 0, received = 0; sent < bytes || received < bytes;) {
    bool moved = false;
    if (sent < bytes) {
      const ssize_t k = send(fd, source + sent, std::min(v.piece, bytes - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (k < 0 && errno != EAGAIN && errno != EINTR) broken("send");
      if (k > 0) sent += static_cast<size_t>(k), moved = true;
    }
    if (received < bytes) {
      const size_t at = v.small_target ? received % kWindow : received;
      const size_t room = v.small_target ? std::min(bytes - received, kWindow - at) : bytes - received;
      const ssize_t k = recv(fd, target + at, std::min(v.piece, room), MSG_DONTWAIT);
      if (k == 0) errno = ECONNRESET;
      if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR)) broken("recv");
      if (k > 0) received += static_cast<size_t>(k), moved = true;
    }
    if (!moved) {
      pollfd p{fd, static_cast<short>((received < bytes ? POLLIN : 0) | (sent < bytes ? POLLOUT : 0)), 0};
      if (poll(&p, 1, 30000) == 0) throw std::runtime_error("raw TCP exchange: nothing moved for 30 s");
    }
  }
  return now_seconds() - start;
}

double ping_pong(int fd, size_t bytes, int rounds, bool first, bool spin) {
  std::vector<std::byte> buffer(bytes, std::byte{7});
  std::vector<double> times;
  meet(fd);
  for (int i = 0; i < rounds; ++i) {
    const double start = now_seconds();
    if (first) send_all(fd, buffer.data(), bytes);
    recv_all(fd, buffer.data(), bytes, spin);
    if (!first) send_all(fd, buffer.data(), bytes);
    times.push_back(now_seconds() - start);
  }
  return median(times);
}

RawRate raw_rate(int fd, size_t bytes, int rounds) {
  std::vector<std::byte> source(bytes, std::byte{3}), target(std::max(bytes, kWindow));
  RawRate best{0, {}, {}};
  const auto all = variants(bytes);
  std::vector<std::vector<double>> times(all.size());
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < all.size(); ++i) {
      double mine = exchange(fd, source.data(), target.data(), bytes, all[i]), theirs = 0;
      send_all(fd, reinterpret_cast<const std::byte *>(&mine), sizeof mine);
      recv_all(fd, reinterpret_cast<std::byte *>(&theirs), sizeof theirs, false);
      times[i].push_back(std::max(mine, theirs));
    }
  for (size_t i = 0; i < all.size(); ++i) {
    best.medians.push_back(median(times[i]));
    const double rate = static_cast<double>(bytes) / best.medians.back();
    if (rate > best.rate) best.rate = rate, best.best = all[i];
  }
  return best;
}

int listen_loopback(uint16_t &port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a = loopback(0);
  socklen_t length = sizeof a;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr *>(&a), sizeof a) != 0 || listen(fd, 1) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr *>(&a), &length) != 0)
    broken("listen on loopback");
  port = ntohs(a.sin_port);
  return fd;
}

int accept_one(int listener) {
  pollfd p{listener, POLLIN, 0};
  if (poll(&p, 1, 30000) != 1) throw std::runtime_error("raw TCP exchange: nobody connected within 30 s");
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) broken("accept");
  no_delay(fd);
  return fd;
}

int connect_loopback(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in a = loopback(port);
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr *>(&a), sizeof a) != 0) broken("connect");
  no_delay(fd);
  return fd;
}

std::vector<double> loopback_rates(double seconds) {
  constexpr size_t kBytes = 16 << 20;
  uint16_t port = 0;
  const int listener = listen_loopback(port);
  const pid_t child = fork();
  if (child < 0) broken("fork");
  const int fd = child == 0 ? connect_loopback(port) : accept_one(listener);
  // A first round finds the best way of calling the system. That way is measured.
  const Variant best = raw_rate(fd, kBytes, 1).best;
  Variant agreed = best;
  if (child == 0) recv_all(fd, reinterpret_cast<std::byte *>(&agreed), sizeof agreed, false);
  else send_all(fd, reinterpret_cast<const std::byte *>(&agreed), sizeof agreed);
  std::vector<std::byte> source(kBytes, std::byte{3}), target(kBytes);
  std::vector<double> rates;
  const double start = now_seconds();
  for (int i = 0; i < kMostRepetitions; ++i) {
    struct {
      double seconds;
      bool again;
    } mine{exchange(fd, source.data(), target.data(), kBytes, agreed), false}, theirs{};
    mine.again = i + 1 < kLeastRepetitions || now_seconds() - start < seconds;  // the parent's word counts
    send_all(fd, reinterpret_cast<const std::byte *>(&mine), sizeof mine);
    recv_all(fd, reinterpret_cast<std::byte *>(&theirs), sizeof theirs, false);
    rates.push_back(static_cast<double>(kBytes) / std::max(mine.seconds, theirs.seconds));
    if (!(child == 0 ? theirs : mine).again) break;
  }
  close(fd);
  if (child == 0) _exit(0);
  close(listener);
  waitpid(child, nullptr, 0);
  return rates;
}

int print_raw_tcp(size_t bytes, size_t small_bytes, int rounds) {
  uint16_t port = 0;
  const int listener = listen_loopback(port);
  const pid_t child = fork();
  if (child < 0) broken("fork");
  const int fd = child == 0 ? connect_loopback(port) : accept_one(listener);
  const RawRate raw = raw_rate(fd, bytes, rounds);
  double trip[2];
  for (const bool spin : {false, true}) trip[spin] = ping_pong(fd, small_bytes, 2000, child != 0, spin);
  close(fd);
  if (child == 0) _exit(0);
  close(listener);
  waitpid(child, nullptr, 0);
  auto list = nlohmann::ordered_json::array();
  const auto all = variants(bytes);
  for (size_t i = 0; i < all.size(); ++i)
    list.push_back({{"piece_bytes", all[i].piece},
                    {"target", all[i].small_target ? "256 KiB window" : "whole buffer"},
                    {"seconds", raw.medians[i]}});
  const nlohmann::ordered_json out{{"bytes", bytes},
                                   {"rounds", rounds},
                                   {"best_rate_bytes_per_s_each_way", raw.rate},
                                   {"best_piece_bytes", raw.best.piece},
                                   {"best_target", raw.best.small_target ? "256 KiB window" : "whole buffer"},
                                   {"variants", list},
                                   {"ping_pong_bytes", small_bytes},
                                   {"round_trip_s", {{"sleeping", trip[0]}, {"spinning", trip[1]}}}};
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace isthmus::bench
