#include "messages/matcher.hpp"

#include <algorithm>
#include <utility>

#include "base/copy.hpp"

namespace isthmus::messages {
namespace {

std::string elements(uint64_t bytes, uint8_t dtype) {
  if (dtype == static_cast<uint8_t>(DType::UInt8)) return formatted("{} bytes", bytes);
  if (dtype >= kDTypeCount) return formatted("{} bytes of unknown type {}", bytes, dtype);
  const auto type = static_cast<DType>(dtype);
  return formatted("{} x {}", bytes / dtype_size(type), dtype_name(type));
}

}  // namespace

link::FrameHeader Matcher::header(const Operation &op, link::FrameKind kind, int peer, uint64_t id) const noexcept {
  link::FrameHeader h;
  h.kind = kind;
  h.dtype = static_cast<uint8_t>(op.call.dtype);
  h.member = core_.peers[peer].their_index;
  h.epoch = core_.id.epoch;
  h.source = static_cast<uint32_t>(core_.id.rank);
  h.tag = op.call.tag;
  h.id = id;
  h.total = op.call.bytes;
  h.digest = op.cut.whole ? op.cut.whole : op.call.bytes;
  h.part = op.cut.part;
  return h;
}

// ---- sends ---------------------------------------------------------------------------------------------------------------------------

// The link no longer reads the data of a send.
void Matcher::sent(link::Outgoing &out) {
  const auto &frame = static_cast<engine::MessageFrame &>(out);  // no other frame has this function
  Operation *const op = frame.operation;
  Matcher &me = *frame.matcher;
  const std::shared_ptr<void> keep = op->keep;
  me.table_.lock()->flowing.take(op);
  if (me.core_.failed()) me.core_.end(op, me.core_.failure().code, me.core_.about(*op));
  else me.core_.end(op, Code::Ok, {});
}

void Matcher::start_send(Operation *op, SendTurn turn) noexcept {
  const int peer = op->call.root;
  PeerRank &p = core_.peers[peer];
  const uint64_t total = op->call.bytes;
  op->message.id = table_.next_id();
  op->frame.matcher = this;
  op->frame.operation = op;
  op->frame.data = op->data(core_.context->arena().base());
  op->frame.pending = op->frame.also = nullptr;
  op->frame.finished = &Matcher::sent;
  {
    const auto s = table_.lock();
    if (turn == SendTurn::Awaits &&
        s->behind_another(op)) {  // a send before this one is not out yet, and messages keep their order
      sends_.number(*s, op);
      return table_.begin_moving(s->taking, op);
    }
    if (!core_.failed()) {
      sends_.number(*s, op);
      auto kind = link::FrameKind::RequestToSend;
      if (op->carry.send_slot) kind = link::FrameKind::Placed;
      else if (total <= UnexpectedMessages::kData && p.send_credit.take_for_message(total)) kind = link::FrameKind::Message;
      op->frame.header = header(*op, kind, peer, op->message.id);
      if (kind == link::FrameKind::Placed) {
        op->frame.header.slot = sends_.slot_of(op);
        op->frame.data = nullptr;
      }
      if (kind == link::FrameKind::RequestToSend) {
        op->frame.finished = nullptr;
        s->sending.append(op);
      } else {
        s->flowing.append(op);
        p.messages_out.fetch_add(op->frame.header.kind == link::FrameKind::Message ? total + 1 : 1,
                                 std::memory_order_relaxed);
      }
      return p.link->post(op->frame);
    }
  }
  core_.end(op, core_.failure().code, core_.about(*op));
}

// The receiver of an announced message has asked for its data.
void Matcher::send_data(const link::FrameHeader &h) noexcept {
  const int source = static_cast<int>(h.source);
  Operation *op;
  {
    const auto s = table_.lock();
    if (core_.failed()) return;
    op = s->sending.take_first([&](const Operation *o) { return o->message.id == h.id && o->call.root == source; });
    if (!op) return;
    s->flowing.append(op);
  }
  op->frame.header.kind = link::FrameKind::MessageData;
  op->frame.finished = &Matcher::sent;
  PeerRank &p = core_.peers[source];
  p.messages_out.fetch_add(std::max<uint64_t>(op->call.bytes, 1), std::memory_order_relaxed);
  p.link->post(op->frame);
}

// ---- receives ------------------------------------------------------------------------------------------------------------------------

bool Matcher::start_recv(Operation *op) noexcept {
  Encounter now = Encounter::Goes;
  std::string wrong;
  {
    const auto s = table_.lock();
    if (op->message.place.inherits && !s->chain.inherit(op->message.place, op->call.bytes)) return false;
    if (op->carry.port == Port::Expected && !op->message.place.own_or_will() && !slots_.claimable(*s, op)) return false;
    slots_.claim(*s, op);
    if (op->carry.port == Port::Expected) {
      device_.copier->reserve(*op);
      s->put_behind_gates(op);
      places_.lend(*s, op);
    }
    s->unexpected.prepare();
    UnexpectedMessage *const waits = core_.failed() ? nullptr : s->message_for(*op);
    if (!waits) {  // after a failure drive() ends the receive
      s->posted.append(op);
      return true;
    }
    now = meet(*s, op, *waits);
    if (now == Encounter::Wrong) wrong = op->end.text;
  }
  if (now == Encounter::Wrong) end_wrong(op, std::move(wrong));
  else if (now == Encounter::Over) core_.end(op, Code::Ok, {});
  return true;
}

Matcher::Encounter Matcher::meet(MatchState &s, Operation *op, UnexpectedMessage &m) noexcept {
  match(s, op, m.source);
  if (!fits(op, m.source, m.total, m.whole, m.dtype)) {
    if (m.flows()) return Encounter::Wrong;  // no receive claims the message: the message goes with the communicator
    if (m.announced) clear_to_send(*op, m.source, m.id);
    else if (m.lies < 0) core_.consumed(m.source, m.total);
    s.unexpected.done(m);
    return Encounter::Wrong;
  }
  if (m.announced || m.lies >= 0) {
    const bool well = m.announced ? grant(s, op, m.source, m.id) : slots_.lies_there(s, op, static_cast<uint32_t>(m.lies));
    s.unexpected.done(m);
    return well ? Encounter::Goes : Encounter::Wrong;
  }
  if (!slots_.begin(s, op)) return Encounter::Wrong;
  if (!m.complete || !has_place(slots_, s, op)) {
    m.claimed = op;
    if (m.complete) hold_aside(s, op);
    else s.flowing.append(op);
    return Encounter::Goes;
  }
  take_aside(s, op, m);
  if (!on_stage(op)) return Encounter::Over;
  table_.landed(s, op);
  return Encounter::Goes;
}

void Matcher::match(MatchState &s, Operation *op, int source) noexcept {
  MatchOrder::meet(*op, source);
  if (op->call.root < 0 && op->message.counted) s.numbers.matched_any(source);
  slots_.match(s, op, source);
}

bool Matcher::fits(Operation *op, int source, uint64_t total, uint64_t whole, uint8_t dtype) const noexcept {
  const uint64_t asked = op->cut.whole ? op->cut.whole : op->call.bytes;
  const auto mine = static_cast<uint8_t>(op->call.dtype);
  if (whole == asked && total == op->call.bytes && dtype == mine) return true;
  constexpr auto kBytes = static_cast<uint8_t>(DType::UInt8);
  op->end.text = formatted("{}: {} sent {} but the receive asked for {}; both sides must name the same {}",
                           core_.describe(*op), core_.id.text(source), elements(whole, dtype), elements(asked, mine),
                           dtype == kBytes && mine == kBytes ? "number of bytes" : "count and dtype");
  return false;
}

// Where the copy of the receive stands on the device, the receive ends with the communicator.
void Matcher::end_wrong(Operation *op, std::string text) noexcept {
  bool device;
  {
    const auto s = table_.lock();
    device = on_stage(op);
    if (device) s->posted.append(op);
  }
  core_.fail(Code::Mismatch, text, Tell::Peers);  // the sender has to hear of the mismatch too, before this process can end
  if (!device) core_.end(op, Code::Mismatch, std::move(text));
}

void Matcher::hold_aside(MatchState &s, Operation *op) noexcept {
  op->message.held = true;
  table_.wait_for_place(s, op);
}

void Matcher::take_aside(MatchState &s, Operation *op, const UnexpectedMessage &from) noexcept {
  if (op->message.slot.in_slot) SlotReceives::touch(s);
  copy_bytes(op->data(core_.context->arena().base()), from.data.data(), from.total);
  core_.consumed(from.source, from.total);
  s.unexpected.done(from);
}

bool Matcher::grant(MatchState &s, Operation *op, int source, uint64_t id) noexcept {
  op->message.id = id;
  if (!slots_.begin(s, op)) return false;
  if ((on_stage(op) && !op->message.place.own && !op->message.slot.in_slot) || !slots_.may_come(s, op)) {
    table_.wait_for_place(s, op);
    return true;
  }
  if (op->message.slot.in_slot) SlotReceives::touch(s);
  s.receiving.append(op);
  clear_to_send(*op, source, id);
  return true;
}

void Matcher::clear_to_send(const Operation &op, int source, uint64_t id) noexcept {
  link::Outgoing *grant = take_frame();
  grant->header = header(op, link::FrameKind::ClearToSend, source, id);
  grant->data = nullptr;
  grant->pending = grant->also = nullptr;
  grant->finished = give_frame;
  core_.peers[source].link->post(*grant);
}

void Matcher::place(Operation *op, const p2p::Piece *piece) noexcept {
  const auto s = table_.lock();
  if (op->message.slot.in_slot) SlotReceives::touch(*s);
  s->granting.take(op);
  table_.end_moving();
  if (piece) MessagePlaces::give_to(op, *piece);
  if (std::exchange(op->message.held, false)) {
    take_aside(*s, op, *s->unexpected.claimed_by(op));
    return table_.landed(*s, op);
  }
  s->receiving.append(op);
  clear_to_send(*op, op->message.source, op->message.id);
}

// ---- frames --------------------------------------------------------------------------------------------------------------------------

link::Accept Matcher::accept(const link::FrameHeader &h, std::byte *&to) {
  auto answer = link::Accept::Drop;
  switch (h.kind) {
    case link::FrameKind::Message:
    case link::FrameKind::RequestToSend:
    case link::FrameKind::Placed: answer = accept_new(h, to); break;
    case link::FrameKind::ClearToSend: send_data(h); break;
    case link::FrameKind::MessageData: answer = accept_data(h, to); break;
    case link::FrameKind::PlanData: break;
  }
  if (answer == link::Accept::Drop) count(h);
  return answer;
}

// What has come of a message (PeerRank::messages_in). After its receive has heard of it: who sees the count may take a receive for one to which
// nothing comes any more.
void Matcher::count(const link::FrameHeader &h) noexcept {
  const uint64_t by = h.kind == link::FrameKind::Message       ? h.bytes + uint64_t{1}
                      : h.kind == link::FrameKind::MessageData ? (h.total != 0 ? h.bytes : 1)
                      : h.kind == link::FrameKind::Placed      ? 1
                                                               : 0;
  if (by == 0) return;
  PeerRank &p = core_.peers[h.source];
  const uint64_t in = p.messages_in.fetch_add(by, std::memory_order_release) + by;
  if (p.left.load(std::memory_order_acquire) && in >= p.left_sent.load(std::memory_order_relaxed))
    p.all_came_ns.store(now_ns(), std::memory_order_relaxed);
}

// A message or an announcement goes to the receive that waits, or aside.
link::Accept Matcher::accept_new(const link::FrameHeader &h, std::byte *&to) {
  const int source = static_cast<int>(h.source);
  const bool announced = h.kind == link::FrameKind::RequestToSend, placed = h.kind == link::FrameKind::Placed;
  if (!announced && !placed && (h.bytes != h.total || h.total > UnexpectedMessages::kData)) return link::Accept::Drop;
  Operation *op;
  bool well = false;
  std::string wrong;
  {
    const auto s = table_.lock();
    if (core_.failed()) return link::Accept::Drop;
    op = s->take_receive_for(source, h.tag, h.part);
    if (!op) return put_aside(*s, h, nullptr, to);
    match(*s, op, source);
    op->message.id = h.id;
    if (!fits(op, source, h.total, h.digest, h.dtype)) {
      if (announced) clear_to_send(*op, source, h.id);  // the message's data is then dropped, and the sender is free
      else if (!placed) core_.consumed(source, h.total);
    } else if (placed) {
      well = slots_.lies_there(*s, op, h.slot);
    } else if (announced) {
      well = grant(*s, op, source, h.id);
    } else if (slots_.begin(*s, op)) {
      if (!has_place(slots_, *s, op)) {
        s->flowing.append(op);
        return put_aside(*s, h, op, to);
      }
      if (op->message.slot.in_slot) SlotReceives::touch(*s);
      s->receiving.append(op);
      to = op->data(core_.context->arena().base());
      return link::Accept::Take;
    }
    if (!well) wrong = op->end.text;
  }
  if (!well) end_wrong(op, std::move(wrong));
  return link::Accept::Drop;
}

link::Accept Matcher::put_aside(MatchState &s, const link::FrameHeader &h, Operation *claims, std::byte *&to) {
  UnexpectedMessage &m = s.unexpected.add(h, claims);
  if (!m.flows()) return link::Accept::Drop;
  to = m.data.data();
  return link::Accept::Take;
}

link::Accept Matcher::accept_data(const link::FrameHeader &h, std::byte *&to) noexcept {
  const auto s = table_.lock();
  if (core_.failed()) return link::Accept::Drop;
  for (const Operation *o = s->receiving.head; o; o = o->message.next)
    if (o->message.source == static_cast<int>(h.source) && o->message.id == h.id && o->call.bytes == h.total) {
      to = o->data(core_.context->arena().base()) + h.offset;
      return link::Accept::Take;
    }
  return link::Accept::Drop;
}

void Matcher::received(const link::FrameHeader &h) {
  const int source = static_cast<int>(h.source);
  Operation *over = nullptr;
  {
    const auto s = table_.lock();
    if (core_.failed()) return;
    const struct CountsAtEnd {  // with the lock
      Matcher &matcher;
      const link::FrameHeader &of;
      ~CountsAtEnd() { matcher.count(of); }
    } counts{*this, h};
    for (Operation *o = s->receiving.head; o; o = o->message.next) {
      if (o->message.source != source || o->message.id != h.id) continue;
      if (o->message.received.fetch_add(h.bytes, std::memory_order_relaxed) + h.bytes < h.total) return;
      over = s->receiving.take_first([&](const Operation *x) { return x == o; });
      if (h.kind == link::FrameKind::Message) core_.consumed(source, h.total);
      if (on_stage(over)) return table_.landed(*s, over);
      break;
    }
    if (UnexpectedMessage *const m =
            over || h.kind != link::FrameKind::Message ? nullptr : s->unexpected.flowing(source, h.id)) {
      m->complete = true;
      if (!m->claimed) return;
      over = m->claimed;
      s->flowing.take(over);
      if (!has_place(slots_, *s, over)) return hold_aside(*s, over);
      take_aside(*s, over, *m);
      if (on_stage(over)) return table_.landed(*s, over);
    }
  }
  if (over) core_.end(over, Code::Ok, {});
}

// ---- the end -------------------------------------------------------------------------------------------------------------------------

// An operation that is still in a list, or that has claimed a message. Null: there is none.
Operation *Matcher::take_any(bool &was_unplaced) noexcept {
  const auto s = table_.lock();
  Operation *op = nullptr;
  for (OperationList *const list : s->all) {
    if (list == &s->flowing || op) continue;
    op = list->take_first([](const Operation *) { return true; });
    if (!op) continue;
    if (std::exchange(op->message.held, false)) s->unexpected.done(*s->unexpected.claimed_by(op));
    was_unplaced = s->placed(op);
    if (list == &s->taking || list == &s->granting || list == &s->landing || list == &s->exchanging) table_.end_moving();
  }
  s->forget_gates();
  s->chain.clear();
  if (!op && (op = s->unexpected.take_claim())) s->flowing.take(op);
  return op;
}

void Matcher::end_all(Code code) noexcept {
  for (;;) {
    bool was_unplaced = false;
    Operation *const op = take_any(was_unplaced);
    if (!op) return;
    if (was_unplaced) core_.context->staging().unplaced_sends().fetch_sub(1, std::memory_order_release);
    core_.end(op, code, core_.about(*op));
  }
}

}  // namespace isthmus::messages
