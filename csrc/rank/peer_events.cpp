#include "rank/peer_events.hpp"

#include "base/clock.hpp"

namespace isthmus::rank {
namespace {

using process::MessageSide;
using process::RankQuestion;

MessageSide side_of(const Operation &message) noexcept {
  return message.call.collective == Collective::Send ? MessageSide::Send : MessageSide::Recv;
}

// -1: any rank. A part of a long receive from any rank comes from where the first one came.
int peer_of(const Operation &message) noexcept {
  if (message.message.source >= 0) return message.message.source;
  if (message.call.root >= 0 || message.cut.whole == 0 || !message.end.parent) return message.call.root;
  return message.end.parent->cut.source;
}

// Whether the message is `whole`, or a part of it: `whole` may be a long message, or a group.
bool belongs_to(const Operation &message, const Operation *whole) noexcept {
  for (const Operation *o = &message; o && whole; o = o->end.parent)
    if (o == whole) return true;
  return false;
}

}  // namespace

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

void PeerEvents::lost(bootstrap::Peer &process, const std::string &why) noexcept {
  fail_lost(process, why, process.is_unreachable());
}

void PeerEvents::fail_lost(bootstrap::Peer &process, const std::string &why, bool unreachable) noexcept {
  for (PeerRank &p : core_.peers)
    if (p.process == &process) nothing_more_of(p);
  for (int q = 0; q < core_.id.world; ++q) {
    if (core_.peers[q].process != &process || core_.peers[q].left.load(std::memory_order_acquire)) continue;
    Failure lost{{Code::PeerLost, unreachable
                                      ? formatted("{} does not reach {}", core_.id.text(core_.id.rank), core_.id.text(q))
                                      : formatted("{} is gone", core_.id.text(q))}};
    lost.subject = static_cast<uint32_t>(lost.text.size());
    lost.by = core_.id.rank;
    lost.cut = !process.surely_ended();
    lost.text +=
        formatted(": {}; {}", why,
                  unreachable ? "check the path between these two hosts" : "start it again and make a new communicator");
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
      return fail_lost(*p.process, formatted("its data connection broke ({})", why),
                       p.process->endpoint.host != core_.context->mesh().self().host);
    // The rank has left, and has closed the connection. All that the rank had to send should have come before.
    nothing_more_of(p);
    if (collectives_.waiting_on() != q) continue;
    return core_.fail(
        Status{Code::PeerLost,
               formatted("{} {}, and part of what it sent did not arrive ({})", core_.id.text(q), engine::kHasLeft, why),
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

Answer PeerEvents::answer(const RankQuestion &question) noexcept {
  Answer a;
  collectives_.answer(a, question.sequence);
  a.failed = core_.failed();
  const bool inside = a.entered > a.done;
  if (inside && question.side == MessageSide::None) return a;
  // Where the rank is not inside a collective, the answer names the peer of the message that a thread waits for, or else of the oldest message.
  const Operation *const awaited = driver_.awaited_message();
  messages_.each([&](const Operation &o, const OperationList &, const MatchState &) {
    const int peer = peer_of(o);
    if (question.side != MessageSide::None && side_of(o) != question.side && o.call.tag == question.tag &&
        (peer == question.rank || peer < 0))
      a.matched = 1;
    const bool waits = belongs_to(o, awaited);
    const bool says_more = waits && a.in_message && a.waiting_on < 0 && peer >= 0;
    if (inside || (a.in_message && !says_more) || (!waits && a.waiting_on >= 0)) return true;
    a.in_message = waits;
    a.waiting_on = peer;
    a.side = side_of(o);
    a.tag = o.call.tag;
    return true;
  });
  return a;
}

std::string PeerEvents::waiting_text() noexcept {
  std::string text = collectives_.waiting_text();
  const Operation *const awaited = driver_.awaited_message();
  if (!text.empty() || !awaited) return text;
  messages_.each([&](const Operation &o, const OperationList &, const MatchState &) {
    if (!belongs_to(o, awaited)) return true;
    const int peer = peer_of(o);
    text = formatted("{} of '{}', waiting for {} to {} it", message_text(core_.id, o), core_.id.name,
                     peer < 0 ? std::string("any rank") : core_.id.text(peer),
                     side_of(o) == MessageSide::Send ? "receive" : "send");
    return false;
  });
  return text;
}

}  // namespace isthmus::rank
