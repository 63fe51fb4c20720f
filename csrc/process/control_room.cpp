#include "process/control_room.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/one_line.hpp"
#include "process/context_threads.hpp"

namespace isthmus::process {
namespace {

// A process is taken for stopped where nothing has been heard of it for several heartbeats, and for this long: on a busy machine its control thread may
// get no processor for some tenths of a second.
constexpr int64_t kSilentBeats = 3, kSilentNs = 700'000'000;

Failure read_failure(const AbortMessage &message) {
  const AbortHead &h = message.head;
  Failure why;
  const auto code = static_cast<Code>(h.code);
  // A failure has a code that there is, and is neither a success nor still to come.
  why.code =
      h.code > static_cast<uint32_t>(kLastCode) || code == Code::Ok || code == Code::InProgress ? Code::Internal : code;
  const std::string subject = one_line(message.subject, kMostFailureText);
  why.text = subject + one_line(message.rest, kMostFailureText);
  why.subject = static_cast<uint32_t>(subject.size());
  why.by = h.by;
  why.raiser = h.raiser;
  why.sequence = h.sequence;
  why.late = h.late != 0;
  why.cut = h.cut != 0;
  why.ranks = message.numbers();
  return why;
}

}  // namespace

ControlRoom::ControlRoom(Doorbell &bell, RankTable &ranks, Links &links, DataStreams &streams, int64_t heartbeat_ns)
    : bell_(bell),
      ranks_(ranks),
      links_(links),
      data_streams_(streams),
      silent_ns_(std::max(kSilentNs, kSilentBeats * heartbeat_ns)) {}

// ---- to ranks of this process --------------------------------------------------------------------------------------------------------

void ControlRoom::take_abort(std::span<const std::byte> body) {
  const auto message = unpack_abort(body);
  if (!message) return;
  const AbortHead &h = message->head;
  ranks_.failed_while_making(h.member, h.epoch);
  if (const auto rank = ranks_.at(h.member, h.epoch)) rank->fail(read_failure(*message), Tell::Nobody);
}

void ControlRoom::take_credit(std::span<const std::byte> body) {
  if (const auto b = unpack<CreditBody>(body))
    if (const auto rank = ranks_.at(b->member, b->epoch)) rank->credit(b->rank, b->granted);
}

void ControlRoom::take_leave(std::span<const std::byte> body) {
  const auto b = unpack<LeaveBody>(body);
  if (!b || b->how > Leaving::LibraryStays) return;
  const auto rank = ranks_.at(b->member, b->epoch);
  if (is_of_library(b->how)) {
    if (rank) rank->peer_ends_library(b->rank, b->how);
    return;
  }
  if (rank) rank->peer_left(b->rank, b->done, b->sent, b->how);
  // And to the retired: the rank may be about to retire, and has looked already.
  if (b->how != Leaving::BrokenWriting) ranks_.has_gone(b->member, b->epoch, b->rank);
}

void ControlRoom::take_out_of_band(std::span<const std::byte> body) {
  const auto h = unpack<OutOfBandHead>(body);
  if (!h) return;
  const auto rank = ranks_.at(h->member, h->epoch);
  if (!rank) return;
  if (h->how == static_cast<uint32_t>(OutOfBandHow::Withdraws)) rank->withdrawn_out_of_band(h->rank, h->number);
  else rank->came_out_of_band(*h, body);
}

void ControlRoom::take_agree(std::span<const std::byte> body) {
  const auto h = unpack<AgreeHead>(body);
  if (!h) return;
  if (const auto rank = ranks_.at(h->member, h->epoch)) rank->came_of_agreement(*h, body);
}

void ControlRoom::take(Control type, std::span<const std::byte> body) {
  switch (type) {
    case Control::Abort: return take_abort(body);
    case Control::Credit: return take_credit(body);
    case Control::Leave: return take_leave(body);
    case Control::OutOfBand: return take_out_of_band(body);
    case Control::Agree: return take_agree(body);
    default: return;
  }
}

bool ControlRoom::tell(bootstrap::Peer *peer, Control type, std::span<const std::byte> body, bootstrap::Goes goes) noexcept {
  if (peer) return mesh_.load()->send(*peer, static_cast<uint16_t>(type), body, goes);
  take(type, body);
  return true;
}

bool ControlRoom::tell_failure(bootstrap::Peer *peer, uint32_t their_index, uint32_t epoch, const Failure &why) noexcept {
  const size_t bytes = std::min(why.text.size(), kMostFailureText), ranks = std::min(why.ranks.size(), kMostFailureRanks);
  const AbortHead head{their_index,
                       epoch,
                       static_cast<uint32_t>(why.code),
                       static_cast<uint32_t>(bytes),
                       std::min(why.subject, static_cast<uint32_t>(bytes)),
                       why.by,
                       why.raiser,
                       why.late,
                       why.sequence,
                       static_cast<uint32_t>(ranks),
                       why.cut};
  static_assert(sizeof(int) == sizeof(int32_t));
  std::array<std::byte, kMostFailureRanks * sizeof(int32_t) + kMostFailureText> behind;
  if (ranks) std::memcpy(behind.data(), why.ranks.data(), ranks * sizeof(int32_t));
  std::memcpy(behind.data() + ranks * sizeof(int32_t), why.text.data(), bytes);
  std::array<std::byte, sizeof head + behind.size()> room;
  return tell(peer, Control::Abort, pack(head, std::span(behind).first(ranks * sizeof(int32_t) + bytes), room));
}

// ---- the control thread --------------------------------------------------------------------------------------------------------------

void ControlRoom::on_message(bootstrap::Peer &peer, uint16_t type, std::span<const std::byte> body) {
  enter_context_thread();
  switch (static_cast<Control>(type)) {
    case Control::Abort:
    case Control::Credit:
    case Control::OutOfBand:
    case Control::Agree:
    case Control::Leave: take(static_cast<Control>(type), body); break;
    case Control::Query: {
      const auto q = unpack<QueryBody>(body);
      if (!q) break;
      const ReplyBody r{q->number, answer_query(q->member, q->epoch, q->question)};
      mesh_.load()->send(peer, static_cast<uint16_t>(Control::Reply), packed(r));
      break;
    }
    case Control::Reply: {
      const auto r = unpack<ReplyBody>(body);
      if (!r) break;
      const Lock lock(mutex_);
      if (const auto asked = questions_.find(r->number); asked != questions_.end()) asked->second = r->answer;
      answered_.notify_all();
      break;
    }
    case Control::StreamRing:
      if (const auto ring = unpack<StreamRingBody>(body); ring && lies_in(*ring, peer.arena.size()))
        links_.ring_came(peer, *ring);
      break;
  }
  bell_.ring();
}

void ControlRoom::on_lost(bootstrap::Peer &peer, const std::string &why) {
  enter_context_thread();
  for (const auto &rank : ranks_.all()) rank->peer_lost(peer, why);
  bell_.ring();
}

void ControlRoom::on_tick() {
  enter_context_thread();
  const int64_t now = now_ns();
  ticked_ns_.store(now, std::memory_order_relaxed);
  ranks_.sweep();
  links_.report_broken();
  // The control thread begins before begin() is called.
  if (bootstrap::Mesh *const mesh = mesh_.load(std::memory_order_acquire))
    mesh->let_go_of_the_gone([this](const bootstrap::Peer &peer) { return links_.let_go(peer); });
  data_streams_.look();
}

void ControlRoom::on_stream(bootstrap::Peer &peer, uint32_t stream, uint32_t generation, UniqueFd socket) {
  enter_context_thread();
  data_streams_.came(peer, stream, generation, std::move(socket));
}

// ---- questions -----------------------------------------------------------------------------------------------------------------------

Answer ControlRoom::answer_query(uint32_t index, uint32_t epoch, const RankQuestion &question) const {
  Answer a;
  const auto asked = ranks_.at(index);
  if (asked && asked->epoch() == epoch) a = asked->answer(question);
  std::string busy = asked ? asked->inside_text() : std::string();
  for (const auto &rank : ranks_.all())
    if (rank != asked && rank->epoch() != epoch && busy.empty()) busy = rank->waiting_text();
  std::memcpy(a.busy, busy.data(), std::min(busy.size(), sizeof a.busy - 1));
  return a;
}

ControlRoom::Inquiry ControlRoom::ask(bootstrap::Peer *peer, uint32_t their_index, uint32_t epoch,
                                      const RankQuestion &question) {
  Inquiry asked(*this, peer);
  if (!peer) {
    asked.own_ = answer_query(their_index, epoch, question);
    return asked;
  }
  {
    const Lock lock(mutex_);
    asked.number_ = ++next_;
    questions_[asked.number_];
  }
  const QueryBody body{their_index, epoch, asked.number_, question};
  if (!mesh_.load()->send(*peer, static_cast<uint16_t>(Control::Query), packed(body)))
    forget(std::exchange(asked.number_, 0));
  return asked;
}

bool ControlRoom::Inquiry::answered(int ms, Deadline patience, Answer &answer) {
  if (own_) answer = *own_;
  return own_ || (number_ != 0 && by_->await(*peer_, number_, ms, patience, answer));
}

bool ControlRoom::await(bootstrap::Peer &peer, uint64_t number, int ms, Deadline patience, Answer &answer) {
  // The control thread may be late as well. So what counts is the time of its last look: by then several heartbeats had not come.
  const auto silent = [&] { return ticked_ns_.load() - peer.last_heard_ns.load() > silent_ns_; };
  Lock lock(mutex_);
  const std::optional<Answer> &came = questions_.at(number);
  while (!answered_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return came.has_value(); }))
    if (peer.lost.load() || silent() || patience.passed()) return false;
  answer = *came;
  return true;
}

void ControlRoom::forget(uint64_t number) {
  const Lock lock(mutex_);
  questions_.erase(number);
}

}  // namespace isthmus::process
