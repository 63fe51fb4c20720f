// Large pieces of a TCP link's streams, moved by several threads side by side.
#include <pthread.h>

#include <array>

#include "link/tcp_stream.hpp"

namespace isthmus::link {
namespace {

constexpr uint64_t kMuch = 32 * 1024;  // bytes: less is no reason to look again at once, nor to wake a thread that helps

template <class Stream>
struct LargeMove {
  Stream *stream;
  pthread_t driver;  // has the link's turn
  uint64_t sent, left;
  bool helped;  // another thread did it
};

}  // namespace

void TcpLink::SocketStream::move_large() noexcept {
  if (large_out())
    while (unsent() != 0 && write()) {}
  if (large_in()) in.bring(socket.get());
}

bool TcpLink::move_large() {
  std::array<LargeMove<SocketStream>, StreamBook::kMostStreams> moves;
  size_t count = 0, busy = 0;
  for (auto &s : streams_) {
    if (!s->large_out() && !s->large_in()) continue;
    moves[count++] = {s.get(), ::pthread_self(), s->sent, s->in.payload_left(), false};
    busy += s->busy;
  }
  const auto move = [](void *job, size_t i) {
    LargeMove<SocketStream> &one = static_cast<LargeMove<SocketStream> *>(job)[i];
    one.stream->move_large();
    one.helped = ::pthread_equal(one.driver, ::pthread_self()) == 0;
  };
  if (busy > 1) hands_->share(move, moves.data(), count);
  else
    for (size_t i = 0; i < count; ++i) move(moves.data(), i);
  bool more = false;
  for (size_t i = 0; i < count; ++i) {
    SocketStream &s = *moves[i].stream;
    const uint64_t out = s.sent - moves[i].sent, both = out + moves[i].left - s.in.payload_left();
    s.busy = both >= kMuch;
    more = more || s.busy || s.failed != 0 || (s.writing && s.unsent() == 0) || s.in.complete();
    if (out != 0) asks_.store(true, std::memory_order_relaxed);
    bytes_sent.fetch_add(out, std::memory_order_relaxed);
    if (moves[i].helped) bytes_helped.fetch_add(both, std::memory_order_relaxed);
    if (s.failed != 0) write_stream(s, Large::Over);  // before anybody asks whether the other streams are silent
    s.keep_awake();
  }
  return more;
}

}  // namespace isthmus::link
