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

void Member::take_aside(Operation *op, Arrived &from) noexcept {
  if (op->slot.in_slot) touch_slots();
  copy_bytes(op->data(context_->arena().base()), from.data.data(), from.total);
  consumed(from.source, from.total);
  const auto it = std::find_if(arrived_.begin(), arrived_.end(),
                               [&from](const std::unique_ptr<Arrived> &a) { return a.get() == &from; });
  spare_.push_back(std::move(*it));
  arrived_.erase(it);
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

void Member::prepare_messages() {
  constexpr size_t kSpare = 8;
  if (arrived_.capacity() >= kSpare) return;
  arrived_.reserve(4 * kSpare);
  spare_.reserve(4 * kSpare);
  for (size_t i = 0; i < kSpare; ++i) {
    spare_.push_back(std::make_unique<Arrived>());
    spare_.back()->data.reserve(kEagerMessage);
  }
}

bool Member::start_recv(Operation *op) noexcept {
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
    if (failed()) {  // drive() ends it
      posted_.append(op);
      return true;
    }
    prepare_messages();
    for (auto it = arrived_.begin(); it != arrived_.end(); ++it) {
      Arrived &a = **it;
      if (a.claimed || !wants(op, a.source, a.tag, a.part)) continue;
      met(op, a.source);
      if (!fits(op, a.source, a.total, a.whole, a.dtype)) {
        wrong = op->text;
        if (!a.rendezvous && !a.complete && a.lies < 0)
          break;  // its data still flows; it stays claimed by nobody and is dropped with the member
        if (a.rendezvous) clear_to_send(op, a.source, a.id);
        else if (a.lies < 0) consumed(a.source, a.total);
        spare_.push_back(std::move(*it));
        arrived_.erase(it);
        break;
      }
      if (a.rendezvous || a.lies >= 0) {
        if (!(a.rendezvous ? grant(op, a.source, a.id) : lies_there(op, static_cast<uint32_t>(a.lies)))) wrong = op->text;
        spare_.push_back(std::move(*it));
        arrived_.erase(it);
        if (wrong.empty()) return true;
        break;
      }
      if (!begin_taking(op)) {
        wrong = op->text;
        break;
      }
      if (!a.complete || !has_place(op)) {
        a.claimed = op;
        if (a.complete) hold_aside(op);
        else flowing_.append(op);
        return true;
      }
      take_aside(op, a);
      if (on_stage(op)) {
        come(op);
        return true;
      }
      goto matched;
    }
    if (wrong.empty()) {
      posted_.append(op);
      return true;
    }
  }
  end_wrong(op, wrong);
  return true;
matched:
  end_op(op, Code::Ok, {});
  return true;
}

void Member::consumed(int source, uint64_t bytes) noexcept {
  PeerRank &p = peers_[source];
  const uint64_t granted = p.recv_credit.consumed(bytes);
  if (granted == 0) return;
  const CreditBody body{p.their_index, epoch_, static_cast<uint32_t>(rank_), 0, granted};
  context_->control(p.process, Control::Credit, packed(body));
}

link::Accept Member::accept_message(const link::FrameHeader &h, std::byte *&to) {
  const int source = static_cast<int>(h.source);
  Operation *wrong = nullptr, *ready = nullptr, *claims = nullptr;
  link::Accept result = link::Accept::Drop;
  {
    const Lock lock(match_lock_);
    if (failed()) return link::Accept::Drop;
    const auto waits_for_it = [&](const Operation *o) { return wants(o, source, h.tag, h.part); };
    switch (h.kind) {
      case link::FrameKind::Message:
      case link::FrameKind::RequestToSend:
      case link::FrameKind::Placed: {
        const bool rendezvous = h.kind == link::FrameKind::RequestToSend, placed = h.kind == link::FrameKind::Placed;
        const bool whole = !rendezvous && !placed;
        if (whole && (h.bytes != h.total || h.total > kEagerMessage)) return link::Accept::Drop;
        if (Operation *op = posted_.take_first(waits_for_it)) {
          met(op, source);
          op->message_id = h.id;
          if (!fits(op, source, h.total, h.digest, h.dtype)) {
            wrong = op;
            if (rendezvous) clear_to_send(op, source, h.id);  // its data is then dropped, and the sender is free
            else if (!placed) consumed(source, h.total);
            break;
          }
          if (placed) {
            if (!lies_there(op, h.slot)) wrong = op;
          } else if (rendezvous) {
            if (!grant(op, source, h.id)) wrong = op;
          } else if (!begin_taking(op)) {
            wrong = op;
          } else if (!has_place(op)) {
            claims = op;
          } else {
            if (op->slot.in_slot) touch_slots();
            receiving_.append(op);
            to = op->data(context_->arena().base());
            result = link::Accept::Take;
          }
          if (!claims) break;
          flowing_.append(op);
        }
        std::unique_ptr<Arrived> a;
        if (spare_.empty()) {
          a = std::make_unique<Arrived>();
          a->data.reserve(kEagerMessage);
        } else {
          a = std::move(spare_.back());
          spare_.pop_back();
        }
        a->source = source;
        a->tag = h.tag;
        a->dtype = h.dtype;
        a->id = h.id;
        a->total = h.total;
        a->whole = h.digest;
        a->part = h.part;
        a->rendezvous = rendezvous;
        a->complete = false;
        a->claimed = claims;
        a->lies = placed ? h.slot : -1;
        if (whole) {
          a->data.resize(std::max<uint64_t>(h.total, 1));
          to = a->data.data();
          result = link::Accept::Take;
        }
        arrived_.push_back(std::move(a));
        break;
      }
      case link::FrameKind::ClearToSend:
        ready = sending_.take_first([&](const Operation *o) { return o->message_id == h.id && o->call.root == source; });
        if (ready) flowing_.append(ready);
        break;
      case link::FrameKind::MessageData:
        for (Operation *o = receiving_.head; o; o = o->match_next)
          if (o->source == source && o->message_id == h.id && o->call.bytes == h.total) {
            to = o->data(context_->arena().base()) + h.offset;
            return link::Accept::Take;
          }
        break;
      case link::FrameKind::PlanData: break;
    }
  }
  if (wrong) end_wrong(wrong, std::string(wrong->text));
  if (ready) {
    ready->out.header.kind = link::FrameKind::MessageData;
    ready->out.finished = &Member::sent;
    peers_[source].link->post(ready->out);
  }
  return result;
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
    if (!over && h.kind == link::FrameKind::Message)
      for (auto it = arrived_.begin(); it != arrived_.end(); ++it) {
        Arrived &a = **it;
        if (a.source != source || a.id != h.id || a.rendezvous || a.complete || a.lies >= 0) continue;
        a.complete = true;
        if (a.claimed) {
          over = a.claimed;
          flowing_.take(over);
          if (!has_place(over)) return hold_aside(over);
          take_aside(over, a);
          if (on_stage(over)) return come(over);
        }
        break;
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
        if (std::exchange(op->held, false))
          std::erase_if(arrived_, [op](const std::unique_ptr<Arrived> &a) { return a->claimed == op; });
        if (placed(op)) context_->unplaced_sends().fetch_sub(1, std::memory_order_release);
        if (list == &taking_ || list == &granting_ || list == &landing_) moving_.fetch_sub(1, std::memory_order_release);
      }
      gated_head_ = nullptr;
      gated_tail_ = &gated_head_;
      chain_.clear();
      if (!op)
        for (auto it = arrived_.begin(); it != arrived_.end(); ++it)
          if ((*it)->claimed) {
            op = (*it)->claimed;
            flowing_.take(op);
            arrived_.erase(it);
            break;
          }
    }
    if (!op) return;
    end_op(op, code, about(*op));
  }
}

}  // namespace isthmus::engine
