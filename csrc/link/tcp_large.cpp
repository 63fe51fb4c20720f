// Large pieces of a TCP link's streams, moved by several threads side by side.
#include <pthread.h>

#include <array>

#include "link/tcp_stream.hpp"

namespace isthmus::link {
namespace {

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

bool TcpLink::move_large() noexcept {
  std::array<LargeMove<SocketStream>, StreamBook::kMostStreams> moves;
  size_t count = 0;
  for (auto &s : streams_)
    if (s->large_out() || s->large_in()) moves[count++] = {s.get(), ::pthread_self(), s->sent, s->in.payload_left(), false};
  hands_->share(
      [](void *job, size_t i) {
        LargeMove<SocketStream> &one = static_cast<LargeMove<SocketStream> *>(job)[i];
        one.stream->move_large();
        one.helped = ::pthread_equal(one.driver, ::pthread_self()) == 0;
      },
      moves.data(), count);
  uint64_t out = 0, in = 0, helped = 0;
  for (size_t i = 0; i < count; ++i) {
    const LargeMove<SocketStream> &one = moves[i];
    const uint64_t went = one.stream->sent - one.sent, came = one.left - one.stream->in.payload_left();
    out += went;
    in += came;
    if (one.helped) helped += went + came;
    one.stream->keep_awake();
  }
  if (out != 0) asks_.store(true, std::memory_order_relaxed);
  bytes_sent.fetch_add(out, std::memory_order_relaxed);
  bytes_helped.fetch_add(helped, std::memory_order_relaxed);
  return out + in != 0;
}

}  // namespace isthmus::link
