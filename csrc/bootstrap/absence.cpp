#include "bootstrap/absence.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>

namespace isthmus::bootstrap {
namespace {

constexpr int kRefusals = 2;
constexpr int64_t kAnswerNs = 1'000'000'000;  // knocks that nobody answers are made anew

}  // namespace

void Absence::add(const net::Address &address) {
  const auto same = [&](const net::Address &a) { return a.same_host(address) && a.port() == address.port(); };
  if (std::none_of(addresses_.begin(), addresses_.end(), same)) addresses_.push_back(address);
}

Absence::Said Absence::ask() {
  Said said = Said::Nothing;
  for (Knock &k : knocks_) {
    pollfd of{k.fd.get(), POLLOUT, 0};
    if (!k.fd || ::poll(&of, 1, 0) != 1) continue;
    const int error = net::end_connect_tcp(k.address, k.fd.get());
    k.fd.reset();
    if (error == 0) return Said::Taken;
    if (error == ECONNREFUSED) said = Said::Refused;
  }
  return said;
}

bool Absence::look(int64_t now_ns) {
  const Said said = ask();
  if (said == Said::Nothing && !knocks_.empty() && now_ns - begun_ns_ < kAnswerNs) return false;
  refused_ = said == Said::Refused ? refused_ + 1 : 0;
  knocks_.clear();
  if (refused_ >= kRefusals) return true;
  begun_ns_ = now_ns;
  for (const net::Address &address : addresses_) {
    UniqueFd fd;
    if (net::begin_connect_tcp(address, fd) == 0) knocks_.push_back({address, std::move(fd)});
  }
  return false;
}

}  // namespace isthmus::bootstrap
