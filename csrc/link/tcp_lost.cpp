// Streams of a TCP link that end, fall silent, and come again.
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "link/tcp_stream.hpp"

namespace isthmus::link {

void TcpLink::lose(SocketStream &s, const std::string &why) {
  if (several_) book_.end(s.index);
  close(s, why);
}

void TcpLink::close(SocketStream &s, const std::string &why) {
  end_text_ = why;
  s.mute = true;
  s.over.store(true, std::memory_order_release);
  if (!several_) return;
  if (s.writing) s.stop(writing_);
  s.in.lose();
  ::shutdown(s.socket.get(), SHUT_RDWR);  // a sleeper may still watch the descriptor, so it is closed later
  news_.lost(s.index, why);
}

void TcpLink::take_offers() {
  for (StreamOffer &o : news_.take_offers()) {
    SocketStream &s = *streams_[o.stream];
    const bool was = book_.connected(o.stream);
    if (!book_.come(o.stream, o.generation)) continue;
    if (was) close(s, "the peer has connected it again");
    s.connect(std::move(o.socket));
    news_.back(o.stream);
  }
}

void TcpLink::look_for_silence() {
  if (!asks_.load(std::memory_order_relaxed)) return;
  const int64_t now = now_ns();
  if (now - when_.looked_ns < StreamSilence::kLookNs) return;
  when_.looked_ns = now;
  bool asks = book_.owes().any;
  int64_t round = 0;
  std::array<int64_t, StreamBook::kMostStreams> silent{};
  const auto goes = [](const SocketStream &s) { return !s.over.load(std::memory_order_relaxed) && !s.mute; };
  for (auto &s : streams_) {
    if (!goes(*s)) continue;
    // Notes are asked about as well: where a confirmation is lost only the end that sent it can know.
    const net::Answers a = net::answers(s->socket.get());
    asks = asks || a.unanswered != 0 || a.stuck;
    round = std::max(round, a.round_ns);
    silent[s->index] = s->silence.look(a, now);
    if (silent[s->index] == 0 && s->silence.doubt() != 0 && interfaces_.down(s->socket.get(), s->silence.since(), now))
      silent[s->index] = s->silence.doubt();
  }
  news_.set_round(round);
  for (auto &s : streams_) {
    const auto answers = [&](const auto &o) { return o != s && goes(*o) && book_.up(o->index) && o->silence.answers(); };
    if (silent[s->index] == 0 || std::none_of(streams_.begin(), streams_.end(), answers)) continue;
    s->silence.lost(now);
    when_.gave_up_ns = now;
    const int64_t delay = s->silence.delay_ns();
    lose(*s, formatted("the peer's host has acknowledged nothing for {} ms{}", silent[s->index] / 1'000'000,
                       delay == 0 ? "" : formatted("; it delays no answer by more than {} ms", delay / 1'000'000)));
  }
  asks_.store(asks, std::memory_order_relaxed);
}

}  // namespace isthmus::link
