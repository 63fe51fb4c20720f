// Messages in device memory: cut into parts, brought to pinned memory before they are sent, and from there when they have come. What the
// links and the matching do is the same for all messages (messages.cpp); here is what is before and behind it.
//
// Who submits the copies. A send's: the caller, inside the call. A receive's on a user's stream: the caller too, behind a gate that opens when the
// message has come; where the device has no gates, or pinned memory is short, the call returns when the message has come. A receive's
// without a stream: the courier, when it has come. A gate there could stand, in the one queue of a device, before the copy of a send
// that the peer waits for.
#include <algorithm>
#include <bit>
#include <optional>

#include "base/clock.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {
namespace {

constexpr uint64_t kSmallestStage = 4096, kLargestSpare = 256 * 1024;
constexpr size_t kSpares = 16;
thread_local std::vector<Op *> held_here;  // submitted by this thread, which has to see to them before its call returns

}  // namespace

// ---- pinned memory -------------------------------------------------------------------------------------------------------------------

// Sends may use a quarter of all staging and receives another, so neither keeps the other, nor a collective, from going on. `anyway`: a
// small message, whose place cannot be asked for later.
std::optional<Member::Stage> Member::take_stage(uint64_t message, bool send, bool anyway) noexcept {
  const uint64_t bytes = std::max(std::bit_ceil(message), kSmallestStage);
  auto &used = context_->message_staging(send);
  const uint64_t before = used.fetch_add(bytes, std::memory_order_relaxed);
  if (before != 0 && before + bytes > context_->arena().staging_limit() / 4 && !anyway) {
    used.fetch_sub(bytes, std::memory_order_relaxed);
    return std::nullopt;
  }
  {
    const std::lock_guard lock(stages_lock_);
    const auto spare = std::find_if(stages_.begin(), stages_.end(), [bytes](const Stage &s) { return s.bytes == bytes; });
    if (spare != stages_.end()) {
      const Stage found = *spare;
      *spare = stages_.back();
      stages_.pop_back();
      return found;
    }
  }
  try {
    return Stage{bytes, context_->arena().allocate_staging(bytes, false)};
  } catch (const Error &) {
    used.fetch_sub(bytes, std::memory_order_relaxed);
    return std::nullopt;
  }
}

void Member::give_stage(Stage stage, bool send) noexcept {
  context_->message_staging(send).fetch_sub(stage.bytes, std::memory_order_relaxed);
  if (stage.bytes <= kLargestSpare) {
    const std::lock_guard lock(stages_lock_);
    if (stages_.size() < kSpares) {
      stages_.reserve(kSpares);
      stages_.push_back(stage);
      return;
    }
  }
  context_->arena().free_staging(stage.offset);
}

bool Member::stage(Op *op, bool anyway) noexcept {
  const auto free = take_stage(op->call.bytes, op->call.collective == plan::Collective::Send, anyway);
  if (!free) return false;
  op->place = free->offset;
  op->place_bytes = free->bytes;
  return op->staged = true;
}

void Member::unstage(Op *op) noexcept {
  op->staged = false;
  give_stage({op->place_bytes, op->place}, op->call.collective == plan::Collective::Send);
}

void Member::free_stages() noexcept {
  const std::lock_guard lock(stages_lock_);
  for (const Stage &spare : stages_) context_->arena().free_staging(spare.offset);
  stages_.clear();
}

// ---- submission ----------------------------------------------------------------------------------------------------------------------

// All ranks cut alike, so that it does not matter whose memory is whose.
void Member::submit_parts(Op *op) noexcept {
  const uint64_t whole = op->call.bytes, element = dtype_size(op->call.dtype);
  const uint64_t size = std::max(part_bytes_ / element, uint64_t{1}) * element;
  const auto parts = static_cast<uint32_t>((whole + size - 1) / size);
  op->children.store(parts + 1, std::memory_order_relaxed);
  for (uint32_t i = 0; i < parts; ++i) {
    Op *part = OpPool::instance().take();  // its one reference is the engine's
    part->call = op->call;
    part->call.bytes = std::min(size, whole - i * size);
    if (op->call.in) part->call.in += i * size;
    if (op->call.out) part->call.out += i * size;
    part->label = op->label;
    part->whole = whole;
    part->part = i;
    part->parent = op;
    part->member = this;
    part->keep = shared_from_this();
    if (op->call.order_later) {
      OpPool::retain(part);
      op->parts.push_back(part);
    }
    part->submitted_ns = op->submitted_ns;
    part->deadline_ns = op->deadline_ns;
    pending_.fetch_add(1, std::memory_order_acq_rel);
    if (failed()) {
      const Status why = failure();
      end_op(part, why.code, about(*part, why.text));
    } else if (op->call.collective == plan::Collective::Recv && op->call.root < 0) {
      submit_from_any(part);
    } else {
      submit_message(part);
    }
  }
  if (op->children.fetch_sub(1, std::memory_order_acq_rel) == 1) finish_op(op, op->result, std::string(op->text), now_ns());
}

// The rest of a message from any rank comes from the rank of its beginning, and is posted when that is known; so on a stream all of it is
// brought by the caller, who waits.
void Member::submit_from_any(Op *part) noexcept {
  if (part->call.device) {
    island_polls_.store(true, std::memory_order_relaxed);
    const std::lock_guard porter(porter_mutex_);
    if (!failed() && porter_) {
      part->port = part->call.on_stream && !part->call.order_later ? Port::Caller : Port::Courier;
      try {
        if (part->call.order_later) porter_->mark(*part);
      } catch (const Error &e) { fail(e.code(), describe(*part) + ": " + e.text(), true); }
      part->call.on_stream &= !part->call.order_later;
      if (part->port == Port::Caller && may_wait_here(part)) hold(part);
    }
  }
  if (part->part == 0) return post_part(part);
  const std::lock_guard lock(match_lock_);
  chained_.append(part);
  porting_.fetch_add(1, std::memory_order_release);
}

void Member::post_part(Op *part) noexcept {
  if (on_stage(part) && part->call.bytes <= kEagerMessage && !stage(part, true))
    fail(Code::Resource, describe(*part) + ": no pinned memory is free for it (ISTHMUS_STAGING_BYTES)", true);
  start_recv(part);
}

void Member::submit_message(Op *op) noexcept {
  const bool send = op->call.collective == plan::Collective::Send;
  if (op->call.device && op->call.bytes != 0) {
    island_polls_.store(true, std::memory_order_relaxed);
    return send ? send_from_device(op) : recv_to_device(op);
  }
  if (!send) return start_recv(op);
  {
    const std::lock_guard lock(match_lock_);
    if (sends_behind_ != 0) {  // one before it is not out yet, and messages keep their order
      ++sends_behind_;
      taking_.append(op);
      porting_.fetch_add(1, std::memory_order_release);
      return;
    }
  }
  start_send(op);
}

// The thread that is inside a link, or in a callback of an operation that it has ended, is what the message would need to go on.
bool Member::may_wait_here(Op *op) noexcept {
  if (!Context::inside_link() && driven_by_this_thread() == nullptr) return true;
  fail(Code::Unsupported,
       describe(*op) +
           ": a message of device memory on a stream cannot be begun in a callback where it has to wait; give no stream",
       true);
  return false;
}

void Member::hold(Op *op) noexcept {
  if (!op->inline_op) OpPool::retain(op);
  held_here.push_back(op);
  context_->activate(*this);
}

void Member::send_from_device(Op *op) noexcept {
  op->port = Port::Taken;
  const std::lock_guard porter(porter_mutex_);
  bool waits = false;
  {
    const std::lock_guard lock(match_lock_);
    ++sends_behind_;
    taking_.append(op);
    porting_.fetch_add(1, std::memory_order_release);
    waits = unstaged_ != 0;
  }
  if (failed() || !porter_) return;  // drive() ends it
  try {
    if (!waits && stage(op, op->call.bytes <= kEagerMessage)) return porter_->take(*op);
  } catch (const Error &e) { return fail(e.code(), describe(*op) + ": " + e.text(), true); }
  if (op->call.on_stream && !may_wait_here(op)) return;
  {
    const std::lock_guard lock(match_lock_);
    ++unstaged_;
  }
  if (op->call.on_stream) hold(op);
  courier_wanted_.store(true, std::memory_order_release);
  context_->wake();
}

void Member::recv_to_device(Op *op) noexcept {
  const std::lock_guard porter(porter_mutex_);
  if (failed() || !porter_) {
    op->port = Port::None;
    return start_recv(op);  // drive() ends it
  }
  const bool small = op->call.bytes <= kEagerMessage;
  try {
    if (op->call.order_later) {
      if (!op->begun) porter_->mark(*op);
      op->call.on_stream = false;
    }
    if (op->call.on_stream && porter_->gates() && all_staged() && stage(op, small)) {
      op->port = Port::Expected;
      porter_->expect(*op);
      {
        const std::lock_guard lock(match_lock_);
        put_behind_gates(op);
      }
      return start_recv(op);
    }
    op->port = op->call.on_stream ? Port::Caller : Port::Courier;
    if (small && !op->staged && !stage(op, true))
      isthmus::fail(Code::Resource, "no pinned memory is free for it (ISTHMUS_STAGING_BYTES)");
  } catch (const Error &e) { fail(e.code(), describe(*op) + ": " + e.text(), true); }
  if (op->port == Port::Caller && may_wait_here(op)) hold(op);
  start_recv(op);
}

void Member::put_behind_gates(Op *op) noexcept {
  op->port_next = nullptr;
  *gated_tail_ = op;
  gated_tail_ = &op->port_next;
}

void Member::order(Op *op, void *stream) {
  if (op->parts.empty()) order_part(op, stream);
  for (Op *part : op->parts) order_part(part, stream);
  settle_streams();
}

// Behind a gate, as if it had been submitted so, where that can still be; else the caller waits for it.
void Member::order_part(Op *op, void *stream) {
  const std::lock_guard porter(porter_mutex_);
  if (op->over() || failed() || !porter_) return;
  if (op->ticket.load(std::memory_order_relaxed) != 0) return porter_->order(stream);
  op->call.on_stream = true;
  op->call.stream = stream;
  const bool gate = porter_->gates() && op->call.root >= 0 && (op->staged || stage_posted(op));
  bool arrived, expected;
  {
    const std::lock_guard lock(match_lock_);
    arrived = op->arrived.load(std::memory_order_relaxed);
    expected = gate && !arrived;
    op->port = expected ? Port::Expected : Port::Caller;
    if (expected) put_behind_gates(op);
  }
  if (expected) return porter_->expect(*op);
  if (arrived) return porter_->put(*op);
  if (may_wait_here(op)) hold(op);
}

// Pinned memory for a receive that has none yet, if its message has not been announced: else the engine is about to see to it.
bool Member::stage_posted(Op *op) noexcept {
  const std::optional<Stage> free = take_stage(op->call.bytes, false, false);
  if (!free) return false;
  {
    const std::lock_guard lock(match_lock_);
    if (!op->staged && posted_.has(op)) {
      op->place = free->offset;
      op->place_bytes = free->bytes;
      return op->staged = true;
    }
  }
  give_stage(*free, false);
  return false;
}

bool Member::all_staged() noexcept {
  const std::lock_guard lock(match_lock_);
  return unstaged_ == 0;
}

// In any order: a send may wait for the pinned memory that a receive of the same group gives back.
void Member::settle_streams() noexcept {
  while (!held_here.empty()) {
    std::vector<Op *> held = std::exchange(held_here, {});
    while (!held.empty()) {
      const auto over = std::remove_if(held.begin(), held.end(), [](Op *op) {
        if (!op->member->settle_stream(op)) return false;
        if (!op->inline_op) OpPool::instance().release(op);
        return true;
      });
      if (over == held.end())
        held.front()->member->sleep_until(
            [&] { return std::any_of(held.begin(), held.end(), [](const Op *op) { return op->member->may_settle(*op); }); });
      else held.erase(over, held.end());
    }
  }
}

bool Member::may_settle(const Op &op) const noexcept {
  return failed() || op.over() ||
         (op.call.collective == plan::Collective::Send ? op.ticket.load(std::memory_order_acquire) != 0
                                                       : op.arrived.load(std::memory_order_acquire));
}

bool Member::settle_stream(Op *op) noexcept {
  if (!may_settle(*op)) return false;
  if (op->call.collective == plan::Collective::Send) return true;
  const std::lock_guard porter(porter_mutex_);
  if (failed() || !porter_ || op->over()) return true;
  try {
    porter_->put(*op);
  } catch (const Error &e) { fail(e.code(), describe(*op) + ": " + e.text(), true); }
  return true;
}

// ---- progress ------------------------------------------------------------------------------------------------------------------------

// Its device work waits for this thread or another one; see drive_messages().
void Member::come(Op *op) noexcept {
  landing_.append(op);
  porting_.fetch_add(1, std::memory_order_release);
  op->arrived.store(true, std::memory_order_release);
  if (op->port == Port::Courier) courier_wanted_.store(true, std::memory_order_release);
  context_->wake();
}

bool Member::drive_messages() noexcept {
  bool moved = false;
  while (!failed() && (start_next_send() || grant_next() || post_next_part() || end_next_landed())) moved = true;
  open_gates();
  if (courier_wanted_.exchange(false, std::memory_order_acq_rel)) context_->courier(*this);
  return moved;
}

// The first send whose bytes are out; those behind it keep their place.
bool Member::start_next_send() noexcept {
  Op *op;
  {
    const std::lock_guard lock(match_lock_);
    op = taking_.head;
    if (!op || (op->port == Port::Taken && !porter_->taken(*op))) return false;
    taking_.take(op);
    porting_.fetch_sub(1, std::memory_order_release);
  }
  start_send(op);
  const std::lock_guard lock(match_lock_);
  --sends_behind_;
  return true;
}

bool Member::grant_next() noexcept {
  Op *op;
  {
    const std::lock_guard lock(match_lock_);
    op = granting_.head;
  }
  if (!op || !stage(op, false)) return false;  // exec: nobody else takes it out
  const std::lock_guard lock(match_lock_);
  granting_.take(op);
  porting_.fetch_sub(1, std::memory_order_release);
  receiving_.append(op);
  clear_to_send(op, op->source, op->message_id);
  return true;
}

bool Member::post_next_part() noexcept {
  Op *op;
  {
    const std::lock_guard lock(match_lock_);
    op = chained_.take_first([](const Op *o) { return o->parent->source >= 0; });
    if (!op) return false;
    porting_.fetch_sub(1, std::memory_order_release);
    op->call.root = op->parent->source;
  }
  post_part(op);
  return true;
}

// A gate opens what stands before it too, so each waits for those before it.
void Member::open_gates() noexcept {
  const std::lock_guard lock(match_lock_);
  while (gated_head_ && gated_head_->arrived.load(std::memory_order_relaxed) &&
         gated_head_->ticket.load(std::memory_order_acquire) != 0) {
    porter_->open(*gated_head_);
    gated_head_ = gated_head_->port_next;
    if (!gated_head_) gated_tail_ = &gated_head_;
  }
}

bool Member::end_next_landed() noexcept {
  Op *op;
  {
    const std::lock_guard lock(match_lock_);
    op = landing_.take_first([this](const Op *o) { return porter_->landed(*o); });
    if (!op) return false;
    porting_.fetch_sub(1, std::memory_order_release);
  }
  end_op(op, Code::Ok, {});
  return true;
}

bool Member::carry_messages() noexcept {
  for (;;) {
    const std::lock_guard porter(porter_mutex_);
    if (failed() || !porter_) return false;
    Op *op = nullptr;
    {
      const std::lock_guard lock(match_lock_);
      for (Op *o = landing_.head; o && !op; o = o->match_next)
        if (o->port == Port::Courier && o->ticket.load(std::memory_order_relaxed) == 0) op = o;
      for (Op *o = taking_.head; o && !op; o = o->match_next)
        if (o->port == Port::Taken && o->ticket.load(std::memory_order_relaxed) == 0) op = o;
    }
    if (!op) return false;
    try {
      if (op->port == Port::Courier) {
        porter_->put(*op);
        continue;
      }
      if (!op->staged && !stage(op, false)) return true;
      porter_->take(*op);
      const std::lock_guard lock(match_lock_);
      --unstaged_;
    } catch (const Error &e) {
      fail(e.code(), describe(*op) + ": " + e.text(), true);
      return false;
    }
    context_->wake();
  }
}

bool Member::messages_settled() noexcept {
  if (!porter_) return true;
  porter_->abort();
  const std::unique_lock porter(porter_mutex_, std::try_to_lock);
  return porter.owns_lock() && (!porter_ || porter_->settled(now_ns()));
}

}  // namespace isthmus::engine
