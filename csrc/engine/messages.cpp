// Point to point: matching by (source, tag) in the order sent. A small message travels with its data and is put aside where no
// receive waits for it or its place is not free, as far as credit allows; a large one is announced, and its data flows straight into the receive's buffer
// once there is one. Announcements and small messages keep their order on a link, so matching is in order.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/member.hpp"
#include "base/copy.hpp"

namespace isthmus::engine {
namespace {

link::FrameHeader header(const Operation &op, link::FrameKind kind, uint32_t member, uint32_t epoch, int rank, uint64_t id) {
  link::FrameHeader h;
  h.kind = kind;
  h.dtype = static_cast<uint8_t>(op.call.dtype);
  h.member = member;
  h.epoch = epoch;
  h.source = static_cast<uint32_t>(rank);
  h.tag = op.call.tag;
  h.id = id;
  h.total = op.call.bytes;
  h.digest = op.whole ? op.whole : op.call.bytes;
  h.part = op.part;
  return h;
}

Operation *op_of(link::Outgoing &out) {
  return reinterpret_cast<Operation *>(reinterpret_cast<std::byte *>(&out) - offsetof(Operation, out));
}

}  // namespace

// The link no longer reads the data of a send.
void Member::sent(link::Outgoing &out) {
  Operation *op = op_of(out);
  Member *m = op->member;
  const std::shared_ptr<Member> keep = op->keep;
  {
    const Lock lock(m->match_lock_);
    m->flowing_.take(op);
  }
  if (m->failed()) {
    m->end_op(op, m->failure().code, m->about(*op));
  } else {
    m->end_op(op, Code::Ok, {});
  }
}

bool Member::start_send(Operation *op, bool fresh) noexcept {
  PeerRank &p = peers_[op->call.root];
  const uint64_t total = op->call.bytes;
  op->message_id = next_message_.fetch_add(1, std::memory_order_relaxed);
  op->out.data = op->data(context_->arena().base());
  op->out.pending = op->out.also = nullptr;
  bool eager = total <= kEagerMessage && !op->send_slot;
  match_lock_.lock();
  if (fresh && behind_another(op)) {  // one before it is not out yet, and messages keep their order
    number_send(op);
    taking_.append(op);
    moving_.fetch_add(1, std::memory_order_release);
    match_lock_.unlock();
    return false;
  }
  if (failed()) {
    match_lock_.unlock();
    end_op(op, failure().code, about(*op));
    return true;
  }
  number_send(op);
  if (eager) eager = p.send_credit.take_for_message(total);
  if (eager) {
    op->out.header = header(*op, link::FrameKind::Message, p.their_index, epoch_, rank_, op->message_id);
    op->out.finished = &Member::sent;
    flowing_.append(op);
  } else if (op->send_slot) {
    op->out.header = header(*op, link::FrameKind::Placed, p.their_index, epoch_, rank_, op->message_id);
    op->out.header.slot = static_cast<uint16_t>(p.slots.slot(op->slot.number));
    op->out.data = nullptr;
    op->out.finished = &Member::sent;
    flowing_.append(op);
  } else {
    op->out.header = header(*op, link::FrameKind::RequestToSend, p.their_index, epoch_, rank_, op->message_id);
    op->out.finished = nullptr;
    sending_.append(op);
  }
  p.link->post(op->out);
  match_lock_.unlock();
  return true;
}

// Under the match lock. A receive that meets a message of another size or type ends in an error that names both; so must its sender's
// peer operation be understood: the message is consumed.
bool Member::fits(Operation *op, int source, uint64_t total, uint64_t whole, uint8_t dtype) noexcept {
  const uint64_t asked = op->whole ? op->whole : op->call.bytes;
  if (whole == asked && total == op->call.bytes && dtype == static_cast<uint8_t>(op->call.dtype)) return true;
  const auto is_bytes = [](uint8_t t) { return t == static_cast<uint8_t>(DType::UInt8); };
  const auto elements = [&](uint64_t bytes, uint8_t t) {
    return is_bytes(t) ? formatted("{} bytes", bytes)
           : t < kDTypeCount
               ? formatted("{} x {}", bytes / dtype_size(static_cast<DType>(t)), dtype_name(static_cast<DType>(t)))
               : formatted("{} bytes of unknown type {}", bytes, t);
  };
  op->text =
      formatted("{}: {} sent {} but the receive asked for {}; both sides must name the same {}", describe(*op),
                rank_text(source), elements(whole, dtype), elements(asked, static_cast<uint8_t>(op->call.dtype)),
                is_bytes(dtype) && is_bytes(static_cast<uint8_t>(op->call.dtype)) ? "number of bytes" : "count and dtype");
  return false;
}

void Member::clear_to_send(Operation *op, int source, uint64_t id) noexcept {
  PeerRank &p = peers_[source];
  link::Outgoing *grant = take_frame();
  grant->header = header(*op, link::FrameKind::ClearToSend, p.their_index, epoch_, rank_, id);
  grant->data = nullptr;
  grant->pending = grant->also = nullptr;
  grant->finished = give_frame;
  p.link->post(*grant);
}

// Whether a receive takes such a message. The parts of one from any rank come from the rank of the first.
bool Member::wants(const Operation *op, int source, int32_t tag, uint32_t part) noexcept {
  if (op->call.tag != tag || op->part != part) return false;
  if (op->call.root >= 0) return op->call.root == source;
  return part == 0 || op->parent->parts_source == source;
}

void Member::met(Operation *op, int source) noexcept {
  op->source = source;
  number_receive(op, source);
  if (op->whole != 0 && op->part == 0) op->parent->parts_source = source;
}

// A receive that met a message which it does not fit. Where its copy stands on the device, it ends with the member.
void Member::end_wrong(Operation *op, std::string text) noexcept {
  bool device;
  {
    const Lock lock(match_lock_);
    device = on_stage(op);
    if (device) posted_.append(op);
  }
  fail(Code::Mismatch, text, true);  // the sender has to hear of it too, before this process can end
  if (!device) end_op(op, Code::Mismatch, std::move(text));
}

// The whole message is there, but no place for it.
void Member::hold_aside(Operation *op) noexcept {
  op->held = true;
  granting_.append(op);
  moving_.fetch_add(1, std::memory_order_release);
  context_->wake();
}

void Member::take_aside(Operation *op, const UnexpectedMessage &from) noexcept {
  if (op->slot.in_slot) touch_slots();
  copy_bytes(op->data(context_->arena().base()), from.data.data(), from.total);
  consumed(from.source, from.total);
  unexpected_.done(from);
}

bool Member::grant(Operation *op, int source, uint64_t id) noexcept {
  op->message_id = id;
  if (!is_its_turn(op)) return false;
  if (!op->slot.in_slot) slot_left(op);
  if ((on_stage(op) && !op->place.own && !op->slot.in_slot) || !may_come(op)) {
    granting_.append(op);
    moving_.fetch_add(1, std::memory_order_release);
    context_->wake();
    return true;
  }
  if (op->slot.in_slot) touch_slots();
  receiving_.append(op);
  clear_to_send(op, source, id);
  return true;
}

bool Member::start_recv(Operation *op) noexcept {
  Encounter now = Encounter::Goes;
  std::string wrong;
  {
    const Lock lock(match_lock_);
    if (op->place.inherits && !chain_.inherit(op->place, op->call.bytes)) return false;
    if (op->port == Port::Expected && !op->place.own_or_will() && !claimable(op)) return false;
    claim(op);
    if (op->port == Port::Expected) {
      copier_->reserve(*op);
      put_behind_gates(op);
      lend(op);
    }
    unexpected_.prepare();
    UnexpectedMessage *const waits =
        failed() ? nullptr
                 : unexpected_.first([op](const UnexpectedMessage &m) { return wants(op, m.source, m.tag, m.part); });
    if (!waits) {  // after a failure drive() ends it
      posted_.append(op);
      return true;
    }
    now = meet(op, *waits);
    if (now == Encounter::Wrong) wrong = op->text;
  }
  if (now == Encounter::Wrong) end_wrong(op, std::move(wrong));
  else if (now == Encounter::Over) end_op(op, Code::Ok, {});
  return true;
}

// A receive that is called meets a message that waits for it.
Member::Encounter Member::meet(Operation *op, UnexpectedMessage &m) noexcept {
  met(op, m.source);
  if (!fits(op, m.source, m.total, m.whole, m.dtype)) {
    if (m.flows()) return Encounter::Wrong;  // nobody claims it: it goes with the member
    if (m.announced) clear_to_send(op, m.source, m.id);
    else if (m.lies < 0) consumed(m.source, m.total);
    unexpected_.done(m);
    return Encounter::Wrong;
  }
  if (m.announced || m.lies >= 0) {
    const bool well = m.announced ? grant(op, m.source, m.id) : lies_there(op, static_cast<uint32_t>(m.lies));
    unexpected_.done(m);
    return well ? Encounter::Goes : Encounter::Wrong;
  }
  if (!begin_taking(op)) return Encounter::Wrong;
  if (!m.complete || !has_place(op)) {
    m.claimed = op;
    if (m.complete) hold_aside(op);
    else flowing_.append(op);
    return Encounter::Goes;
  }
  take_aside(op, m);
  if (!on_stage(op)) return Encounter::Over;
  come(op);
  return Encounter::Goes;
}

void Member::consumed(int source, uint64_t bytes) noexcept {
  PeerRank &p = peers_[source];
  const uint64_t granted = p.recv_credit.consumed(bytes);
  if (granted == 0) return;
  const CreditBody body{p.their_index, epoch_, static_cast<uint32_t>(rank_), 0, granted};
  context_->control().tell(p.process, Control::Credit, packed(body));
}

link::Accept Member::accept_message(const link::FrameHeader &h, std::byte *&to) {
  switch (h.kind) {
    case link::FrameKind::Message:
    case link::FrameKind::RequestToSend:
    case link::FrameKind::Placed: return accept_new(h, to);
    case link::FrameKind::ClearToSend: send_data(h); break;
    case link::FrameKind::MessageData: return accept_data(h, to);
    case link::FrameKind::PlanData: break;
  }
  return link::Accept::Drop;
}

// A message, or word of it: to the receive that waits for it, or aside.
link::Accept Member::accept_new(const link::FrameHeader &h, std::byte *&to) {
  const int source = static_cast<int>(h.source);
  const bool announced = h.kind == link::FrameKind::RequestToSend, placed = h.kind == link::FrameKind::Placed;
  if (!announced && !placed && (h.bytes != h.total || h.total > kEagerMessage)) return link::Accept::Drop;
  Operation *op;
  bool well = false;
  {
    const Lock lock(match_lock_);
    if (failed()) return link::Accept::Drop;
    op = posted_.take_first([&](const Operation *o) { return wants(o, source, h.tag, h.part); });
    if (!op) return put_aside(h, nullptr, to);
    met(op, source);
    op->message_id = h.id;
    if (!fits(op, source, h.total, h.digest, h.dtype)) {
      if (announced) clear_to_send(op, source, h.id);  // its data is then dropped, and the sender is free
      else if (!placed) consumed(source, h.total);
    } else if (placed) {
      well = lies_there(op, h.slot);
    } else if (announced) {
      well = grant(op, source, h.id);
    } else if (begin_taking(op)) {
      if (!has_place(op)) {
        flowing_.append(op);
        return put_aside(h, op, to);
      }
      if (op->slot.in_slot) touch_slots();
      receiving_.append(op);
      to = op->data(context_->arena().base());
      return link::Accept::Take;
    }
  }
  if (!well) end_wrong(op, std::string(op->text));
  return link::Accept::Drop;
}

link::Accept Member::put_aside(const link::FrameHeader &h, Operation *claims, std::byte *&to) {
  UnexpectedMessage &m = unexpected_.add(h, claims);
  if (!m.flows()) return link::Accept::Drop;
  to = m.data.data();
  return link::Accept::Take;
}

// The receiver of an announced message has asked for its data.
void Member::send_data(const link::FrameHeader &h) noexcept {
  const int source = static_cast<int>(h.source);
  Operation *op;
  {
    const Lock lock(match_lock_);
    if (failed()) return;
    op = sending_.take_first([&](const Operation *o) { return o->message_id == h.id && o->call.root == source; });
    if (!op) return;
    flowing_.append(op);
  }
  op->out.header.kind = link::FrameKind::MessageData;
  op->out.finished = &Member::sent;
  peers_[source].link->post(op->out);
}

link::Accept Member::accept_data(const link::FrameHeader &h, std::byte *&to) noexcept {
  const Lock lock(match_lock_);
  if (failed()) return link::Accept::Drop;
  for (const Operation *o = receiving_.head; o; o = o->match_next)
    if (o->source == static_cast<int>(h.source) && o->message_id == h.id && o->call.bytes == h.total) {
      to = o->data(context_->arena().base()) + h.offset;
      return link::Accept::Take;
    }
  return link::Accept::Drop;
}

void Member::received_message(const link::FrameHeader &h) {
  const int source = static_cast<int>(h.source);
  Operation *over = nullptr;
  {
    const Lock lock(match_lock_);
    if (failed()) return;
    for (Operation *o = receiving_.head; o; o = o->match_next) {
      if (o->source != source || o->message_id != h.id) continue;
      if (o->received.fetch_add(h.bytes, std::memory_order_relaxed) + h.bytes < h.total) return;
      over = receiving_.take_first([&](const Operation *x) { return x == o; });
      if (h.kind == link::FrameKind::Message) consumed(source, h.total);
      if (on_stage(over)) return come(over);
      break;
    }
    if (UnexpectedMessage *const m =
            over || h.kind != link::FrameKind::Message ? nullptr : unexpected_.flowing(source, h.id)) {
      m->complete = true;
      if (!m->claimed) return;
      over = m->claimed;
      flowing_.take(over);
      if (!has_place(over)) return hold_aside(over);
      take_aside(over, *m);
      if (on_stage(over)) return come(over);
    }
  }
  if (over) end_op(over, Code::Ok, {});
}

// After the links have been cancelled: every operation still in a list is ours to end.
void Member::end_messages(Code code) noexcept {
  inbox_.forget();
  for (;;) {
    Operation *op = nullptr;
    {
      const Lock lock(match_lock_);
      const auto any = [](const Operation *) { return true; };
      for (OperationList *list : lists_) {
        if (list == &flowing_ || op) continue;
        op = list->take_first(any);
        if (!op) continue;
        if (std::exchange(op->held, false)) unexpected_.done(*unexpected_.claimed_by(op));
        if (placed(op)) context_->staging().unplaced_sends().fetch_sub(1, std::memory_order_release);
        if (list == &taking_ || list == &granting_ || list == &landing_) moving_.fetch_sub(1, std::memory_order_release);
      }
      gated_head_ = nullptr;
      gated_tail_ = &gated_head_;
      chain_.clear();
      if (!op && (op = unexpected_.take_claim())) flowing_.take(op);
    }
    if (!op) return;
    end_op(op, code, about(*op));
  }
}

}  // namespace isthmus::engine
