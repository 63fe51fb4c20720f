// Control messages sent and taken (control_wire.hpp). A body that does not fit is dropped: its sender has proved the job key and can only be
// of another version, which the handshake refuses.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/clock.hpp"
#include "base/one_line.hpp"
#include "engine/context.hpp"
#include "process/control_wire.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {
namespace {

// A process that has not been heard from for this long is taken for stopped.
constexpr int64_t kSilentBeats = 3, kSilentNs = 300'000'000;

Failure read_failure(const AbortMessage &message) {
  const AbortHead &h = message.head;
  Failure why;
  why.code = static_cast<Code>(h.code);
  const std::string subject = one_line(message.subject, kMostFailureText);
  why.text = subject + one_line(message.rest, kMostFailureText);
  why.subject = static_cast<uint32_t>(subject.size());
  why.by = h.by;
  why.raiser = h.raiser;
  why.sequence = h.sequence;
  why.late = h.late != 0;
  return why;
}

}  // namespace

bool Context::control(bootstrap::Peer *peer, Control type, std::span<const std::byte> body) noexcept {
  if (peer) return mesh_->send(*peer, static_cast<uint16_t>(type), body);
  switch (type) {
    case Control::Abort: {
      const auto message = unpack_abort(body);
      if (!message) break;
      const AbortHead &h = message->head;
      {
        const Lock lock(members_mutex_);
        for (const Making &m : making_)
          if (m.index == h.member && m.epoch == h.epoch) m.failed->store(true);
      }
      if (auto m = member_at(h.member); m && m->epoch() == h.epoch) m->fail(read_failure(*message), false);
      break;
    }
    case Control::Credit: {
      if (const auto b = unpack<CreditBody>(body))
        if (auto m = member_at(b->member); m && m->epoch() == b->epoch) m->credit(b->rank, b->granted);
      break;
    }
    case Control::Leave: {
      const auto b = unpack<LeaveBody>(body);
      if (!b) break;
      if (auto m = member_at(b->member); m && m->epoch() == b->epoch) {
        if (b->how == Leaving::LibraryEnded) return m->peer_left_library(b->rank), true;
        m->peer_left(b->rank, b->done, b->how);
      }  // and to those below: the member may be about to retire, and has looked already
      const Lock lock(retired_mutex_);
      for (auto &r : retired_)
        if (r.index == b->member && r.epoch == b->epoch && b->rank < r.gone->size() && b->how != Leaving::BrokenWriting)
          (*r.gone)[b->rank].store(true);
      break;
    }
    case Control::OutOfBand: {
      if (const auto h = unpack<OutOfBandHead>(body))
        if (auto m = member_at(h->member); m && m->epoch() == h->epoch) {
          if (h->given_up) m->out_of_band().withdrawn(h->rank, h->number);
          else m->out_of_band().came(h->rank, h->about, h->number, body);
        }
      break;
    }
    default: break;
  }
  return true;
}

bool Context::tell_failure(bootstrap::Peer *peer, uint32_t their_index, uint32_t epoch, const Failure &why) noexcept {
  const size_t bytes = std::min(why.text.size(), kMostFailureText);
  const AbortHead head{their_index,
                       epoch,
                       static_cast<uint32_t>(why.code),
                       static_cast<uint32_t>(bytes),
                       std::min(why.subject, static_cast<uint32_t>(bytes)),
                       why.by,
                       why.raiser,
                       why.late,
                       why.sequence};
  std::array<std::byte, sizeof head + kMostFailureText> room;
  return control(peer, Control::Abort, pack(head, std::as_bytes(std::span(why.text)).first(bytes), room));
}

void Context::on_message(bootstrap::Peer &peer, uint16_t type, std::span<const std::byte> body) {
  enter_own_thread();
  switch (static_cast<Control>(type)) {
    case Control::Abort:
    case Control::Credit:
    case Control::OutOfBand:
    case Control::Leave: control(nullptr, static_cast<Control>(type), body); break;
    case Control::Query: {
      const auto q = unpack<QueryBody>(body);
      if (!q) break;
      const ReplyBody r{q->number, answer_query(q->member, q->epoch, q->sequence)};
      mesh_->send(peer, static_cast<uint16_t>(Control::Reply), packed(r));
      break;
    }
    case Control::Reply: {
      const auto r = unpack<ReplyBody>(body);
      if (!r) break;
      const Lock lock(query_mutex_);
      if (answers_.size() > 64) answers_.erase(answers_.begin());
      answers_.emplace_back(r->number, r->answer);
      query_answered_.notify_all();
      break;
    }
    case Control::StreamRing: {
      const auto ring = unpack<RingPlace>(body);
      if (!ring || !lies_in(*ring, peer.arena.size())) break;
      const Lock lock(links_mutex_);
      for (auto &l : links_)
        if (l->peer == &peer && l->shm) l->shm->set_in(link::ByteRing::at(peer.arena.data() + ring->offset), ring->capacity);
      early_rings_.emplace_back(&peer, *ring);
      break;
    }
  }
  wake();
}

void Context::on_lost(bootstrap::Peer &peer, const std::string &why) {
  enter_own_thread();
  for (const auto &m : members()) m->peer_lost(peer, why);
  wake();
}

void Context::on_tick() {
  enter_own_thread();
  const int64_t now = now_ns();
  ticked_ns_.store(now, std::memory_order_relaxed);
  sweep();
  report_broken(now);
}

Context::Answer Context::answer_query(uint32_t index, uint32_t epoch, uint64_t sequence) const {
  Answer a;
  const auto asked = member_at(index);
  if (asked && asked->epoch() == epoch) a = asked->answer(sequence);
  std::string busy = asked ? asked->inside_text() : std::string();
  for (const auto &m : members())
    if (m != asked && busy.empty()) busy = m->waiting_text();
  std::memcpy(a.busy, busy.data(), std::min(busy.size(), sizeof a.busy - 1));
  return a;
}

bool Context::query(bootstrap::Peer *peer, uint32_t their_index, uint32_t epoch, uint64_t sequence, int ms,
                    Deadline patience, Answer &answer) {
  if (!peer) {
    answer = answer_query(their_index, epoch, sequence);
    return true;
  }
  Lock lock(query_mutex_);
  const uint64_t number = ++query_next_;
  const QueryBody q{their_index, epoch, sequence, number};
  if (!mesh_->send(*peer, static_cast<uint16_t>(Control::Query), packed(q))) return false;
  const auto mine = [&]() ISTHMUS_REQUIRES(query_mutex_) {
    return std::find_if(answers_.begin(), answers_.end(), [&](const auto &a) { return a.first == number; });
  };
  // Of several heartbeats none has come by the last time that our own control thread, which may be late as well, has looked.
  const int64_t several = std::max(kSilentNs, kSilentBeats * 1'000'000 * settings_.integer(Setting::HeartbeatMs));
  const auto silent = [&] { return ticked_ns_.load() - peer->last_heard_ns.load() > several; };
  const auto answered = [&]() ISTHMUS_REQUIRES(query_mutex_) { return mine() != answers_.end(); };
  while (!query_answered_.wait_for(lock, std::chrono::milliseconds(ms), answered))
    if (peer->lost.load() || silent() || patience.passed()) return false;
  answer = mine()->second;
  answers_.erase(mine());
  return true;
}

}  // namespace isthmus::engine
