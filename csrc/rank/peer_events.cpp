#include "rank/peer_events.hpp"

#include "base/clock.hpp"

namespace isthmus::rank {

void PeerEvents::credit(uint32_t rank, uint64_t granted) noexcept {
  if (!is_rank(rank)) return;
  core_.peers[rank].send_credit.grant(granted);
  core_.wake();
}

// What a rank that had left has sent, and has not come yet, may be in this host's kernel, and else does not come.
void PeerEvents::nothing_more_of(PeerRank &p) noexcept {
  if (p.left_sent.load(std::memory_order_relaxed) > p.messages_in.load(std::memory_order_relaxed))
    p.all_came_ns.store(now_ns(), std::memory_order_relaxed);
  p.left_sent.store(0, std::memory_order_release);  // who reads it reads the time too
}

void PeerEvents::lost(bootstrap::Peer &process, const std::string &why, const char *state) noexcept {
  for (PeerRank &p : core_.peers)
    if (p.process == &process) nothing_more_of(p);
  for (int q = 0; q < core_.id.world; ++q) {
    if (core_.peers[q].process != &process || core_.peers[q].left.load(std::memory_order_acquire)) continue;
    Failure lost{
        {Code::PeerLost, formatted("{} {}: {}; start it again and make a new communicator", core_.id.text(q), state, why)}};
    lost.doing = collectives_.waiting_text();
    for (int r = 0; r < core_.id.world; ++r)
      if (core_.peers[r].process == &process && !core_.peers[r].left.load(std::memory_order_acquire))
        lost.ranks.push_back(r);
    return core_.fail(std::move(lost), Tell::Peers);
  }
}

void PeerEvents::link_broken(const link::Link *link, const std::string &why) noexcept {
  if (core_.failed()) return;
  for (int q = 0; q < core_.id.world; ++q) {
    PeerRank &p = core_.peers[q];
    if (p.link != link || !p.process) continue;
    if (!p.left.load(std::memory_order_acquire))
      return lost(*p.process, formatted("its data connection broke ({})", why), "is cut off");
    // The rank has left, and has closed the connection. All that the rank had to send should have come before.
    nothing_more_of(p);
    if (collectives_.waiting_on() != q) continue;
    return core_.fail(
        Status{Code::PeerLost,
               formatted("{} has destroyed its side of the communicator, and part of what it sent did not arrive ({})",
                         core_.id.text(q), why),
               {q}},
        Tell::Peers);
  }
}

void PeerEvents::left(uint32_t rank, uint64_t done, uint64_t sent, Leaving how) noexcept {
  if (!is_rank(rank)) return;
  PeerRank &p = core_.peers[rank];
  p.left_broken.store(is_broken(how), std::memory_order_relaxed);
  p.left_writing.store(how == Leaving::BrokenWriting, std::memory_order_relaxed);
  p.left_done.store(done, std::memory_order_relaxed);
  p.left_sent.store(is_broken(how) ? 0 : sent, std::memory_order_relaxed);
  p.left_ns.store(now_ns(), std::memory_order_relaxed);
  p.left.store(true, std::memory_order_release);
  core_.wake();
}

void PeerEvents::ends_library(uint32_t rank, Leaving how) noexcept {
  if (!is_rank(rank)) return;
  core_.peers[rank].library_end.store(how, std::memory_order_release);
  core_.wake();
}

Answer PeerEvents::answer(uint64_t sequence) noexcept {
  Answer a;
  collectives_.answer(a, sequence);
  a.failed = core_.failed();
  if (a.entered > a.done) return a;
  // The rank is not inside a collective. So the answer names the peer of the message that a thread waits for, or else of the oldest message.
  const Operation *const awaited = driver_.awaited_message();
  messages_.each([&](const Operation &o, const OperationList &, const MatchState &) {
    const int peer = o.message.source >= 0 ? o.message.source : o.call.root;
    a.in_message = &o == awaited && peer >= 0;
    if (a.waiting_on < 0 || a.in_message) a.waiting_on = peer;
    return !a.in_message;
  });
  return a;
}

}  // namespace isthmus::rank
