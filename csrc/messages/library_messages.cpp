#include "messages/library_messages.hpp"

#include <sched.h>

#include <algorithm>

namespace isthmus::messages {

namespace {

constexpr uint64_t kMostOneWay = 16;  // messages of one group, one way with one rank

// The size and type of a message, added to the terms of the messages before it. Of one message exactly, of several a digest.
constexpr uint64_t add_terms(uint64_t terms, const Operation &op) noexcept {
  const uint64_t one = op.call.bytes << 8 | (static_cast<uint64_t>(op.call.dtype) + 1);
  return terms == 0 ? one : (terms ^ (one >> 29) ^ one) * 0x9e3779b97f4a7c15 + 1;
}

}  // namespace

void LibraryMessages::open(engine::IslandLane &lane) {
  if (!core_.device.quiet || !lane.carries()) return;
  const int world = core_.id.world, me = core_.id.rank;
  sides_.resize(at(world));
  bool any = false;
  for (int q = 0; q < world; ++q) {
    const PeerRank &p = core_.peers[at(q)];
    if (q == me || !p.mail || !lane.serves(q)) continue;
    sides_[at(q)] = {{p.mail->pact(me, world, core_.cell_bytes), true},
                     {core_.mail->pact(q, world, core_.cell_bytes), false}};
    any = true;
  }
  if (!any) return;
  table_.lock()->numbers.resize(world);
  lane_ = &lane;
}

// ---- numbers -------------------------------------------------------------------------------------------------------------------------

// Messages with a tag match among themselves, so they need no numbers.
bool LibraryMessages::counts(const Operation &op) const noexcept {
  return lane_ && op.call.tag == 0 && (op.call.root < 0 || with(op.call.root));
}

void LibraryMessages::count(Operation &op) noexcept {
  if (op.message.counted || !counts(op)) return;
  op.message.counted = true;
  const auto s = table_.lock();
  if (sends(op)) op.message.number = s->numbers.send(op.call.root);
  else if (op.call.root >= 0) op.message.number = s->numbers.receive(op.call.root);
  else s->numbers.receive_any();
}

bool LibraryMessages::may_go(const Operation &op) const noexcept {
  const engine::Call &c = op.call;
  return op.message.number != 0 && c.device && c.bytes != 0 && !c.by_call && !c.order_later;
}

// The message goes by links. The other side may wait for this side's word.
void LibraryMessages::pass(const Operation &op) noexcept {
  if (!op.message.counted || op.call.root < 0) return;
  p2p::PactSide &side = sides_[at(op.call.root)].of(sends(op));
  const uint64_t number = op.message.number;
  side.pass(number != 0 ? number : table_.lock()->numbers.received(op.call.root));
  if (number != 0 && side.is_awaited(number)) core_.peers[at(op.call.root)].bell->ring();
}

bool LibraryMessages::take(Operation *op) noexcept {
  if (op->message.counted || !counts(*op)) return false;
  count(*op);
  // A message of a group has been announced for a slot already.
  if (!op->message.grouped && may_go(*op) && sides_[at(op->call.root)].of(sends(*op)).is_awaited(op->message.number)) {
    settle({&op, 1}, 0);
    return by_library(*op);
  }
  pass(*op);
  return false;
}

// ---- the two sides -------------------------------------------------------------------------------------------------------------------

LibraryMessages::GroupWay *LibraryMessages::way_with(const Operation &op) noexcept {
  const auto same = [&](const GroupWay &w) { return op.message.counted && w.peer == op.call.root && w.send == sends(op); };
  const auto found = std::find_if(ways_.begin(), ways_.end(), same);
  return found == ways_.end() ? nullptr : &*found;
}

LibraryMessages::GroupWay &LibraryMessages::way_of(const Operation &op) noexcept {
  if (GroupWay *const known = way_with(op)) return *known;
  GroupWay &way = ways_.emplace_back();
  way.peer = op.call.root;
  way.send = sends(op);
  way.first = op.message.number;
  return way;
}

// Either all messages one way go by the library, or none.
void LibraryMessages::find_ways(std::span<Operation *const> messages) noexcept {
  ways_.clear();
  const uint64_t most = lane_->takes_several() ? kMostOneWay : 1;
  for (const Operation *op : messages) {
    if (!op->message.counted || op->call.root < 0) continue;
    GroupWay &way = way_of(*op);
    way.fits = way.fits && may_go(*op) && op->message.number == way.first + way.count && way.count < most;
    way.terms = add_terms(way.terms, *op);
    ++way.count;
  }
  std::erase_if(ways_, [](const GroupWay &w) { return !w.fits; });
}

void LibraryMessages::ring() noexcept {
  for (const GroupWay &w : ways_) core_.peers[at(w.peer)].bell->ring();
}

bool LibraryMessages::look() noexcept {
  bool all = true;
  for (GroupWay &w : ways_) {
    if (w.verdict == Verdict::Open) w.verdict = sides_[at(w.peer)].of(w.send).look(w.first, w.terms);
    all = all && w.verdict != Verdict::Open;
  }
  return all;
}

// True: the library has something to carry.
bool LibraryMessages::agree(int64_t until_ns) noexcept {
  constexpr int64_t kNap = 20'000'000;
  for (GroupWay &w : ways_) sides_[at(w.peer)].of(w.send).offer(w.first, w.terms);
  ring();
  const int64_t spin_until = now_ns() + core_.context->spin_ns();
  bool all = look();
  if (!all && until_ns > now_ns()) {
    core_.context->progress().stand_in();
    if (core_.has_work()) core_.activate();
  }
  for (int64_t now = now_ns(); !all && now < until_ns && !core_.failed(); now = now_ns()) {
    if (now < spin_until) {
      ::sched_yield();
      all = look();
      continue;
    }
    core_.ask_for_interrupt();
    core_.context->links().sleep_at_doorbell(std::min(kNap, until_ns - now),
                                             [&] { return all = look(), all || core_.failed(); });
  }
  for (GroupWay &w : ways_)
    if (w.verdict == Verdict::Open) w.verdict = sides_[at(w.peer)].of(w.send).close(w.first);
  ring();
  return std::any_of(ways_.begin(), ways_.end(), [](const GroupWay &w) { return w.verdict == Verdict::Library; });
}

void LibraryMessages::settle(std::span<Operation *const> messages, int64_t until_ns) noexcept {
  if (!lane_) return;
  Operation *fits = nullptr;
  for (Operation *op : messages) {
    count(*op);
    if (!fits && may_go(*op)) fits = op;
  }
  if (!fits) return pass_ways(messages);
  {
    // A thread that has the lane submits a collective, or another group's messages.
    const SubmitLock::Held submitting = core_.collective_lock.try_take(fits);
    if (submitting && !core_.failed() && lane_->carries()) {
      find_ways(messages);
      for (const Operation *op : messages)
        if (!way_with(*op)) pass(*op);
      if (!ways_.empty() && core_.device.quiet->try_open()) {
        if (agree(std::min(until_ns, fits->time.deadline_ns))) give(messages);
        core_.device.quiet->close();
        core_.wake();
      }
    }
  }
  pass_ways(messages);
}

void LibraryMessages::pass_ways(std::span<Operation *const> messages) noexcept {
  for (const Operation *op : messages) pass(*op);
}

// ---- the library ---------------------------------------------------------------------------------------------------------------------

// Both sides know of each message that the library has it. So this side does not go back, whatever happens: a failure here fails the communicator.
void LibraryMessages::give(std::span<Operation *const> messages) noexcept {
  given_.clear();
  const uint64_t ticket = ++ticket_;
  uint64_t bytes = 0;
  for (Operation *op : messages) {
    const GroupWay *const way = way_with(*op);
    if (!way || way->verdict != Verdict::Library) continue;
    op->carry.port = Port::Library;
    bytes += op->call.bytes;
    given_.push_back(op);
  }
  core_.uses_device.store(true, std::memory_order_relaxed);
  core_.pending.fetch_add(static_cast<uint32_t>(given_.size()), std::memory_order_acq_rel);
  bool failed;
  {
    const auto s = table_.lock();
    failed = core_.failed();
    for (Operation *op : given_)
      if (!failed) table_.begin_moving(s->exchanging, op);
  }
  if (failed) {
    for (Operation *op : given_) core_.end(op, core_.failure().code, core_.about(*op));
    return;
  }
  core_.activate();
  try {
    lane_->exchange(given_, ticket);
  } catch (const Error &e) { return core_.not_submitted(*given_.front(), e); }
  messages_.fetch_add(given_.size(), std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  for (Operation *op : given_) op->carry.ticket.store(ticket, std::memory_order_release);
  core_.wake();
}

bool LibraryMessages::end_next() noexcept {
  // No other thread ends one: this thread has the right to execute.
  const Operation *const first = table_.lock()->exchanging.head;
  if (!first || !lane_->sound(*first)) return false;
  Operation *op = nullptr;
  {
    const auto s = table_.lock();
    const uint64_t exchanged = lane_->exchanged();
    op = s->exchanging.take_first([&](const Operation *o) {
      const uint64_t ticket = o->carry.ticket.load(std::memory_order_acquire);
      return ticket != 0 && ticket <= exchanged;
    });
    if (!op) return false;
    table_.end_moving();
  }
  core_.end(op, Code::Ok, {});
  return true;
}

}  // namespace isthmus::messages
