#include "engine/member.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/copy.hpp"
#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/log.hpp"
#include "device/abandoned.hpp"
#include "base/one_line.hpp"

namespace isthmus::engine {
namespace {

std::atomic<int (*)()> interrupt_check{nullptr};
std::atomic<void (*)()> late_hook{nullptr};
thread_local const Operation *awaited_here = nullptr;  // by this thread, in wait()
thread_local const Member *driven_here = nullptr;      // whose operations this thread drives, holding its exec flag
const InChild forgets_driven([](void *) noexcept {
  late_hook.store(nullptr);
  awaited_here = nullptr;
  driven_here = nullptr;
});

}  // namespace

const Member *Member::driven_by_this_thread() noexcept { return driven_here; }

void Member::set_interrupt_check(int (*check)()) noexcept { interrupt_check.store(check, std::memory_order_release); }

void Member::set_late_hook(void (*hook)()) noexcept { late_hook.store(hook, std::memory_order_release); }

Member::Member(MemberSetup s)
    : context_(std::move(s.context)),
      topology_(std::move(s.topology)),
      rank_(s.rank),
      world_(topology_.size()),
      index_(s.index),
      epoch_(s.epoch),
      serial_(context_->ranks().next_serial()),
      name_(std::move(s.name)),
      cell_bytes_(s.cell_bytes),
      credit_window_(s.credit_window),
      mailbox_offset_(s.mailbox_offset),
      mail_(std::launder(reinterpret_cast<Mailbox *>(context_->arena().base() + s.mailbox_offset))),
      peers_(static_cast<size_t>(world_)),
      out_of_band_(world_),
      sources_(static_cast<size_t>(std::max(world_, 2))),
      hand_over_(context_->stores()),
      inbox_(world_),
      rings_(context_->arena(), [this](uint64_t sequence) { return read_by_all(sequence); }),
      fixed_ring_(s.fixed_ring),
      fixed_ring_allocated_(s.fixed_ring_bytes),
      served_in_(s.served_in.empty() ? std::vector<int>(static_cast<size_t>(world_), -1) : std::move(s.served_in)),
      part_bytes_(s.part_bytes),
      group_wait_ns_(s.group_wait_ns),
      pool_(context_->staging().source(), context_->staging().message_shares()) {
  for (const auto &g : topology_.groups) {
    for (int r : g.ranks) fold_order_.push_back(r);
    group_ends_.push_back(static_cast<uint32_t>(fold_order_.size()));
  }
  inline_op_.inline_op = true;
  watches_slots_ = topology::has_devices(topology_);
  if (s.island.stream) {
    island_ranks_ = s.island.ranks;
    std::byte *const arena = s.island.arena;
    const auto wake = [](void *context) { static_cast<Context *>(context)->wake(); };
    executor_ = std::make_unique<DeviceExecutor>(std::move(s.island), wake, context_.get());
    island_family_ = executor_->family();
    if (executor_->private_memory()) {
      runtime_ = &executor_->runtime();
      device_ = executor_->device();
      device_streams_ = executor_->streams();
      copier_ = std::make_unique<DeviceCopier>(*runtime_, device_, arena, wake, context_.get());
      copier_gates_ = copier_->gates();
    }
  }
}

Member::~Member() {
  if (!birth_.here()) {  // the parent's memory, and its threads
    (void)executor_.release();
    (void)copier_.release();
    rings_.take_all();
  }
}

void Member::fix_rings(uint64_t bytes, std::vector<std::byte *> rings) {
  fixed_ring_bytes_ = bytes;
  // Nobody was told a place that can be used; but it may be one that was used before, so it stays a ring's.
  if (bytes == 0 && fixed_ring_ != 0)
    context_->staging().give_fixed_ring(std::exchange(fixed_ring_, 0), fixed_ring_allocated_);
  if (executor_ && !rings.empty()) executor_->reaches(std::move(rings));
}

// ---- submission ----------------------------------------------------------------------------------------------------------------------

Operation *Member::take_inline() noexcept {
  if (inline_taken_.exchange(true, std::memory_order_acquire)) return nullptr;
  return &inline_op_;
}

void Member::give_inline(Operation *op) noexcept {
  op->reset();
  inline_taken_.store(false, std::memory_order_release);
}

void Member::submit(Operation *op) noexcept {
  op->member = this;
  if (!op->inline_op) {
    op->keep = shared_from_this();
    OperationPool::retain(op);  // the engine's reference, dropped by finish_operation
  }
  op->submitted_ns = now_ns();
  op->deadline_ns = op->submitted_ns + seconds_to_ns(op->call.timeout);
  if (op->is_p2p() && part_bytes_ != 0 && op->call.bytes > part_bytes_) return submit_parts(op);
  if (!op->pieces.empty()) {
    give_place(op, op->pieces.front());
    op->pieces.clear();
  }
  pending_.fetch_add(1, std::memory_order_acq_rel);
  if (failed()) {
    // Who hears of a failure may free memory, which waits for all that the device has to do: not before what stands there is stopped.
    const bool stands = executor_ && !op->is_p2p() && pending_.load(std::memory_order_acquire) > 1;
    return stands && driven_here != this && !Links::inside_link() ? queue_.append(op) : end_failed(op);
  }
  if (op->is_p2p()) submit_message(op);
  else if (executor_) submit_to_island(op);
  else queue_.append(op);
  // fail() may have come between the look above and now: then the operation is in a list that drive() ends.
}

void Member::end_failed(Operation *op) noexcept {
  if (!op->is_p2p()) op->sequence = queue_.sequence() + 1;  // it would have had
  end_op(op, failure().code, about(*op));
}

void Member::make_ready(Operation &op) {
  if (!runtime_ || can_wait_here()) return;
  const char *why = nullptr;
  if (op.call.by_call) why = "with host memory and a stream the call waits for the stream";
  else if (op.is_p2p()) why = ready_message(op);
  else if (!copier_gates_ && op.plan && !op.plan->device.empty()) why = kNoGates;
  if (!why) return;
  isthmus::fail(Code::Unsupported, "{}: it cannot be begun in a callback, because {}; make it on another thread",
                op.is_p2p() ? describe(op)
                            : formatted("{}{} on rank {} of '{}'", op.label.empty() ? "" : op.label + " ",
                                        describe(what(op.call), op.call.bytes), rank_, name_),
                why);
}

// The operation is in the queue before its device work is submitted: that may wait for room on the stream, which is made by what the
// progress thread does for this and earlier operations.
void Member::submit_to_island(Operation *op) noexcept {
  if (context_->staging().unplaced_sends().load(std::memory_order_acquire) != 0) place_sends(op);
  const SubmitLock::Held order = lock_for(island_lock_, op);
  if (!order) return end_failed(op);
  const std::shared_ptr<const plan::Plan> plan = op->plan;
  if (failed() || !executor_) return queue_.append(op);  // drive() ends it; the island may be gone
  if (!plan || plan->device.empty()) {
    queue_.append(op);
    behind_host_ = true;
    return;
  }
  try {
    while (!take_room(op)) {  // what has it needs no thread of the caller's
      if (Links::inside_link() || driven_here || now_ns() >= op->deadline_ns || failed())
        isthmus::fail(Code::Resource,
                      "no staging memory is free for it, which other operations have (ISTHMUS_STAGING_BYTES){}",
                      Links::inside_link() || driven_here ? ", and a callback cannot wait for it" : "");
      sleep_until([&] { return context_->staging().given_back() != op->given_back || now_ns() >= op->ask_again_ns; });
    }
    if (runtime_) {
      if (!op->call.device) bounce_in(op);
      else if (op->call.in_there || op->call.out_there) executor_->lend_for_pinned(*op);
      island_polls_.store(true, std::memory_order_relaxed);
    }
    queue_.append(op);
    begin_if_first(op);
    context_->progress().activate(*this);
    executor_->submit(
        *op, std::exchange(behind_host_, false),
        [](void *me, bool (*holds)(const void *), const void *what) {
          static_cast<Member *>(me)->sleep_until([&] { return holds(what); });
        },
        this);
  } catch (const Error &e) {
    const uint64_t begun = op->sequence;
    op->broken.store(true, std::memory_order_release);
    if (begun == 0) queue_.append(op);
    not_submitted(*op, e);  // before its end is signalled: it has not come to its end
    if (begun != 0) executor_->finish(begun);
  }
}

// Where the host can begin at once, the stream need not wait until it has.
void Member::begin_if_first(Operation *op) noexcept {
  if (exec_.test_and_set(std::memory_order_acquire)) return;
  if (queue_.first() == op && !failed()) begin_plan(op);
  exec_.clear(std::memory_order_release);
}

bool Member::interrupt_wanted() noexcept {
  auto *check = interrupt_check.load(std::memory_order_acquire);
  return check && check() != 0;
}

void Member::ask_for_interrupt() noexcept {
  if (interrupt_wanted()) fail(Code::Interrupted, formatted("interrupted on {} while it waited", rank_text(rank_)), true);
}

bool Member::capturing(void *stream) {
  refuse_stuck();
  struct Pending {  // so that after a failure somebody looks whether this thread comes back
    std::atomic<uint32_t> &count;
    explicit Pending(std::atomic<uint32_t> &c) noexcept : count(c) { count.fetch_add(1, std::memory_order_acq_rel); }
    ~Pending() { count.fetch_sub(1, std::memory_order_acq_rel); }
  } const pending(pending_);
  // Whoever submits to a device that cannot wait for the host may hold the submit lock for as long as the exchange takes.
  try {
    const SubmitLock::Held order = island_lock_.try_take();
    if (!order) return runtime_ && runtime_->adopt(device_, stream)->capturing();
    return executor_ && executor_->capturing(stream);
  } catch (const Error &) {
    if (!failed()) throw;
  }
  const Status why = failure();
  throw Error(why.code, why.text);
}

void Member::bounce_in(Operation *op) {
  if (!bounces_)
    bounces_ = std::make_unique<Bounces>(context_->arena(), executor_->arena(), *runtime_, device_,
                                         formatted("communicator '{}', rank {}", name_, rank_));
  Bounce &b = op->bounce;
  const bool writes = op->call.out && writes_output(op->call.collective, rank_, op->call.root);
  b = bounces_->take(op->given_in(), writes ? op->given_out() : 0);
  b.filled_before = std::min(b.in_pieces, b.slots);
  for (; b.filled < b.filled_before; ++b.filled) bounce_piece(op, b.filled);
}

// What of a piece belongs to blocks of the user's: nothing between them is touched.
void Member::bounce_piece(Operation *op, uint32_t k) noexcept {
  const Bounce &b = op->bounce;
  const plan::Operands o = op->operands();
  const bool in = k < b.in_pieces;
  const std::span<const uint64_t> at = in ? o.in_displ : o.out_displ, bytes = in ? o.in_bytes : o.out_bytes;
  const uint64_t begin = b.begin(k), end = begin + b.bytes(k);
  std::byte *const here = b.host + b.place(k);
  for (size_t i = 0; i < at.size(); ++i) {
    const uint64_t from = std::max(begin, at[i]), to = std::min(end, at[i] + bytes[i]);
    if (from >= to) continue;
    if (in) copy_bytes(here + (from - begin), op->call.in + from, to - from);
    else copy_bytes(op->call.out + from, here + (from - begin), to - from);
  }
}

bool Member::bounce_on(Operation *op) noexcept {
  Bounce &b = op->bounce;
  const uint32_t filled = b.filled, emptied = b.emptied;
  while (b.filled < b.in_pieces && executor_->has_copied(op->sequence, b.filled - b.slots + 1)) {
    bounce_piece(op, b.filled++);
    executor_->give_pieces(op->sequence, b.filled);
  }
  while (b.emptied < b.out_pieces && executor_->has_copied(op->sequence, b.in_pieces + b.emptied + 1) && island_sound(op)) {
    bounce_piece(op, b.in_pieces + b.emptied++);
    executor_->give_pieces(op->sequence, b.in_pieces + b.emptied + b.slots);
  }
  return b.filled != filled || b.emptied != emptied;
}

void Member::bounce_out(Operation *op, bool well) noexcept {
  // Where the device may still come to the copy out, the place is nobody's any more; nor is it where this rank has left before the thread of
  // this operation came back from the driver.
  if (bounces_ && (well || !executor_ || executor_->idle())) bounces_->give(op->bounce);
  else if (bounces_) bounces_->lose(op->bounce);
  op->bounce = {};
}

// The gates hold nothing any more then, so what stands behind them may fill slots that others still read: they are told first.
void Member::abort_island() noexcept {
  {
    const SubmitLock::Held order = island_lock_.try_take();  // else a thread submits just now
    if (!order || !executor_->idle()) mail_->overrun.value.store(1, std::memory_order_seq_cst);
  }
  executor_->abort();
}

// `turn`: nobody submits now. Who submits while the stream is stopped may give it more behind that, so then it is done once again.
bool Member::wants_stop_of_stream(int64_t now, bool turn) noexcept {
  const Stop stop = stop_.load(std::memory_order_acquire);
  if (stop == Stop::Done && turn) {
    if (stopped_in_turn_) executor_->died();
    else stop_.store(Stop::None, std::memory_order_release);
  }
  if (stop == Stop::Refused || !executor_->wants_stop(now)) return false;
  if (stop_.load(std::memory_order_acquire) == Stop::None) {
    stopped_in_turn_ = turn;
    stop_.store(Stop::Asked, std::memory_order_release);
    context_->workers().call(*this, true);
  }
  return true;
}

bool Member::island_settled() noexcept {
  if (!executor_) return true;
  abort_island();  // first: whoever submits may wait for room behind a gate
  const int64_t now = now_ns();
  const SubmitLock::Held order = island_lock_.try_take();
  const bool wants_stop = wants_stop_of_stream(now, static_cast<bool>(order));
  if (!order) {
    if (!leave_behind(island_lock_)) return false;
    executor_->leave_behind();
    return true;
  }
  const uint64_t entered = entered_.load(std::memory_order_acquire);
  const bool alone = std::any_of(island_ranks_.begin(), island_ranks_.end(), [&](int q) {
    const PeerRank &p = peers_[q];
    return q != rank_ && ((p.process && p.process->lost.load()) || p.left.load() || !p.mail ||
                          p.mail->description(entered).sequence.load(std::memory_order_acquire) < entered);
  });
  if (executor_->settled(now, alone, stop_.load(std::memory_order_acquire) == Stop::Refused)) return true;
  if (wants_stop)
    return false;  // its driver may be locked by whoever waits for the device: it is asked how it does when that is over
  doubt_device(now);
  return false;
}

void Member::run(Operation *op) noexcept {
  submit(op);
  if (runtime_) settle_streams();
  if (op->is_p2p() || (op->plan && op->plan->uses_links)) drive();
  else drive_operations();
}

// ---- progress ------------------------------------------------------------------------------------------------------------------------

Member::Outcome Member::advance(Operation *op) noexcept {
  if (op->phase == Phase::Fresh) entered_.store(op->sequence, std::memory_order_release);
  return op->plan ? run_plan(op) : one_hop(op);
}

bool Member::drive(bool watched) noexcept {
  const bool moved = drive_operations();
  return (context_->links().any() && context_->links().drive(watched)) || moved;
}

void Member::forget_on_links() noexcept {
  { const Lock posted(match_lock_); }
  context_->links().cancel(*this);
}

bool Member::drive_operations() noexcept {
  bool moved = false;
  if (Links::inside_link()) {  // a callback that submits: this thread holds a link's turn, which ending operations needs
    if (has_work()) context_->progress().activate(*this);
    return false;
  }
  // Most looks find nothing to do, and this one takes no lock.
  if (queue_.empty() && moving_.load(std::memory_order_acquire) == 0 && !failed()) return false;
  if (!exec_.test_and_set(std::memory_order_acquire)) {
    const Member *const outer = std::exchange(driven_here, this);  // a callback may drive another member
    for (;;) {
      if (failed()) {
        const Status why = failure();
        if (!std::exchange(looked_again_, true)) moved |= end_what_memory_completes();
        const bool pending = pending_.load(std::memory_order_acquire) != 0;
        // The links forget us before a gate opens: what stands behind one may fill what they would still send. Whoever saw no failure
        // under the match lock has posted what it was about to post once we have had that lock.
        if (pending && !std::exchange(forgotten_, true)) {
          forget_on_links();
          forget_unplaced();
        }
        const bool messages = !pending || messages_settled();  // both are told to end before either is waited for
        if (pending && island_settled() && messages) {
          forget_on_links();  // nothing of ours may touch user memory once an operation has ended
          end_all(why.code);
          moved = true;
        }
        break;
      }
      if (moving_.load(std::memory_order_acquire) != 0) moved |= drive_messages();
      Operation *op = queue_.first();
      if (!op) break;
      const Outcome o = advance(op);
      if (failed() && o != Outcome::Ended) continue;  // what has come to its end is not looked at again
      if (const int q = inbox_.wrong(); q >= 0 && !failed()) {
        mismatch(op->sequence, q);
        continue;
      }
      if (o == Outcome::Blocked) {
        waiting_on_.store(op->blocked_on, std::memory_order_relaxed);
        turn_.store(op->at.turn(), std::memory_order_relaxed);
        moved |= std::exchange(bounced_, false);
        break;
      }
      moved = true;
      end_head(op);
    }
    driven_here = outer;
    exec_.clear(std::memory_order_release);
  }
  return moved;
}

void Member::end_head(Operation *op) noexcept {
  queue_.take_first();
  note_unchecked(*op);
  done_.store(op->sequence, std::memory_order_release);
  mail_->done.value.store(op->sequence, std::memory_order_release);
  waiting_on_.store(-1, std::memory_order_relaxed);
  // Where it ended without having heard from everybody, somebody may wait for just this.
  if (unchecked_ != 0)
    for (int q = 0; q < world_; ++q)
      if (q != rank_ && peers_[q].bell) peers_[q].bell->ring();
  end_op(op, Code::Ok, {});
}

// A rank that is gone, or that has aborted, may have ended an operation in which this one still stands, for instance a barrier before.
// What all ranks had to say for it is in memory that is mapped here; so such an operation ends well, unless a device of this rank is
// still at it. Else the end of an operation would depend on which of the two a rank hears first.
bool Member::end_what_memory_completes() noexcept {
  for (bool moved = false;; moved = true) {
    Operation *op = queue_.first();
    if (!op || (op->plan && op->plan->uses_links) || advance(op) != Outcome::Ended) return moved;
    end_head(op);
  }
}

void Member::record(const Operation &op, Code result, int64_t ended_ns) noexcept {
  context_->recorder().add({serial_, op.sequence, op.submitted_ns, ended_ns, op.call.bytes, op.call.root,
                            static_cast<uint8_t>(op.call.collective), static_cast<uint8_t>(op.call.dtype),
                            static_cast<uint8_t>(op.call.op), static_cast<uint8_t>(result)});
}

void Member::end_op(Operation *op, Code code, std::string text) noexcept {
  if (op->bounce) bounce_out(op, code == Code::Ok);
  if (op->on_device && code == Code::Ok && executor_) executor_->ended_well(*op);
  if (std::exchange(op->lent, false)) {
    rings_.end(op->sequence);
    context_->staging().room_given_back();
  }
  if (std::exchange(op->short_of_room, false)) context_->staging().want_room(-1);
  if (op->place.own) unstage(op);
  if (op->spilled) {
    context_->staging().spilled().fetch_sub(op->call.bytes, std::memory_order_relaxed);
    op->spilled.reset();
  }
  if (code == Code::Ok && op->slot.number != 0 && op->call.collective == Collective::Recv) has_landed(op);
  if (op->begun && copier_) copier_->forget(*op);
  if (op->whole != 0 && op->part == 0 && op->source >= 0) op->parent->source = op->source;
  const int64_t end = now_ns();
  if (op->whole == 0) record(*op, code, end);  // else finish_operation() does, with the last part
  const std::shared_ptr<Member> keep = op->keep;
  pending_.fetch_sub(1, std::memory_order_acq_rel);
  finish_operation(op, code, std::move(text), end);
  // It may be an inline op, whose thread sleeps; finish_operation wakes for the others.
  if (waiters_.load(std::memory_order_relaxed) > (awaited_here == op ? 1u : 0u)) context_->wake();
}

void Member::end_all(Code code) noexcept {
  while (Operation *op = queue_.take_first()) end_op(op, code, about(*op));
  end_messages(code);
}

bool Member::wait(Operation *op, int64_t until_ns) noexcept {
  if (op->over()) return true;
  waiters_.fetch_add(1, std::memory_order_acq_rel);
  const bool crowded = process::oversubscribed();
  const bool p2p = op->is_p2p(), group = op->children.load(std::memory_order_relaxed) != 0;
  const bool sockets = context_->links().any() && (p2p || group || !topology_.flat);
  // Frames matter to this operation, or only to others (then the links are looked at now and then).
  const bool frames = p2p || group || (op->plan && op->plan->uses_links) || !op->member;
  const int polls = crowded || sockets ? 8 : 256;  // before the clock is looked at
  int idle = 0;
  int64_t idle_since = 0, looked = 0, asked = 0;
  bool over = false;
  const Operation *const outer = awaited_here;  // a callback or a signal handler may wait inside a wait
  awaited_here = op;
  uint32_t busy = 0;
  for (;;) {
    bool moved = drive_operations();
    if (op->over()) {
      over = true;
      break;
    }
    if ((frames || (idle & 63) == 63) && context_->links().any()) moved |= context_->links().drive();
    if (moved) {
      if (sockets && idle_since != 0) context_->links().note_socket_wait(now_ns() - idle_since);
      idle = 0;
      idle_since = 0;
      if (++busy % 1024 != 0) continue;  // traffic of others must not keep us from the clock
    } else if (++idle < polls) {
      SpinLock::pause();
      continue;
    }
    const int64_t now = now_ns();
    if (idle_since == 0) idle_since = now;
    if (asked == 0) asked = now;
    if (now >= until_ns) break;
    if (now - looked > 1'000'000) {
      looked = now;
      if (p2p) awaited_message_.store(op, std::memory_order_release);
      context_->links().report_broken(now);
      check_deadlines(now);
      if (now - asked > 50'000'000) {
        asked = now;
        ask_for_interrupt();
      }
    }
    if (now - idle_since < (sockets ? context_->links().socket_spin_ns() : context_->spin_ns())) {
      if (crowded || (idle & 31) == 0) ::sched_yield();
      else SpinLock::pause();
      continue;
    }
    int64_t nap = std::min<int64_t>(until_ns - now, 20'000'000);
    if (polls_device()) nap = std::min(nap, device_nap(now - idle_since));
    bool driven = false;
    context_->links().sleep(sockets, nap, [&](bool watched) { return (driven = drive(watched)) || op->over(); });
    if (driven && sockets) {
      context_->links().note_socket_wait(now_ns() - idle_since);
      idle_since = 0;
    }
  }
  awaited_here = outer;
  if (p2p) awaited_message_.store(nullptr, std::memory_order_release);
  waiters_.fetch_sub(1, std::memory_order_acq_rel);
  return over;
}

int64_t Member::check_deadlines(int64_t now) noexcept {
  if (failed()) {
    drive();
    return now;
  }
  // The oldest operation is the one that everybody waits for; messages are looked at one by one.
  if (exec_.test_and_set(std::memory_order_acquire)) return now;
  Operation *late = queue_.first();
  if (late) {
    const int q = late->blocked_on;
    if (late->phase == Phase::Posted || late->phase == Phase::Comparing || late->phase == Phase::Running) {
      if (q >= 0 && !check_peer(late, q)) late = nullptr;
      // A peer that has gone will send nothing more than what it had sent for the operations it ended.
      else if (q >= 0 && peers_[q].left.load(std::memory_order_acquire) && peers_[q].left_done.load() < late->sequence)
        fail_at(*late, Code::PeerLost, formatted(": {} has destroyed its side of the communicator", rank_text(q)));
    }
    if (late && now >= late->deadline_ns) on_deadline(*late);
  }
  // The device is asked only where nothing of it has gone on for so long.
  const uint64_t moved = (late ? late->sequence + late->at.turn() : 0) + (executor_ ? executor_->signalled() : 0) +
                         (copier_ ? copier_->signalled() : 0) + moving_.load();
  if (moved != device_moved_) {
    device_moved_ = moved;
    device_asked_ns_.store(now, std::memory_order_relaxed);
  } else if (late ? polls_device() : moving_.load() != 0) {
    doubt_device(now);
  }
  if (!failed()) on_message_deadline(now);
  if (!failed()) late_submission(now);
  exec_.clear(std::memory_order_release);
  if (failed()) drive();
  return now;
}

// ---- failure -------------------------------------------------------------------------------------------------------------------------

Status Member::failure() const {
  Failure f = why();
  if (!f.doing.empty()) f.text += "; this rank was in " + f.doing;
  return f;
}

Failure Member::why() const {
  const Lock lock(failure_mutex_);
  return failure_;
}

void Member::fail(Failure why, bool flood) noexcept {
  why.noted_ns = now_ns();
  {
    const Lock lock(failure_mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    failure_ = why;
    failed_.store(1, std::memory_order_release);
  }
  if (!left_.load(std::memory_order_relaxed)) ISTHMUS_INFO("communicator '{}', rank {}: {}", name_, rank_, why.text);
  if (flood) this->flood(why);
  if (auto *hook = late_hook.load(std::memory_order_acquire); hook && why.late) hook();
  if (has_work()) context_->progress().activate(*this);  // somebody has to end what is pending, also where nobody waits
  context_->wake();
}

void Member::flood(const Failure &why) noexcept {
  for (int q = 0; q < world_; ++q)
    if (q != rank_) context_->control().tell_failure(peers_[q].process, peers_[q].their_index, epoch_, why);
}

void Member::fail_at(const Operation &op, Code code, std::string_view what, bool late) noexcept {
  Failure why{{code, describe(op)}};
  why.subject = static_cast<uint32_t>(why.text.size());
  why.text += what;
  why.by = rank_;
  why.late = late;
  why.sequence = op.is_p2p() ? 0 : op.sequence;
  fail(std::move(why), true);
}

void Member::raised(std::string_view what, bool first) noexcept {
  constexpr size_t kMost = 300;
  Failure why{{Code::PeerLost, formatted("{} raised {}", rank_text(rank_), one_line(what, kMost))}};
  why.raiser = first ? rank_ : -1;
  fail(std::move(why), true);
}

void Member::peer_lost(bootstrap::Peer &process, const std::string &why, const char *state) noexcept {
  for (int q = 0; q < world_; ++q) {
    if (peers_[q].process != &process || peers_[q].left.load(std::memory_order_acquire)) continue;
    Failure lost{
        {Code::PeerLost, formatted("{} {}: {}; start it again and make a new communicator", rank_text(q), state, why)}};
    lost.doing = waiting_text();
    fail(std::move(lost), true);
    return;
  }
}

void Member::link_broken(const link::Link *link, const std::string &why) noexcept {
  if (failed()) return;
  for (int q = 0; q < world_; ++q) {
    if (peers_[q].link != link || !peers_[q].process) continue;
    if (peers_[q].left.load(
            std::memory_order_acquire)) {  // it has closed the connection; all it had to say should have come before
      if (waiting_on_.load(std::memory_order_relaxed) != q) continue;
      return fail(Code::PeerLost,
                  formatted("{} has destroyed its side of the communicator, and part of what it sent did not arrive ({})",
                            rank_text(q), why),
                  true);
    }
    peer_lost(*peers_[q].process, formatted("its data connection broke ({})", why), "is cut off");
    return;
  }
}

void Member::say_leave(int rank, Leaving how) noexcept {
  const LeaveBody body{peers_[rank].their_index, epoch_, static_cast<uint32_t>(rank_), how,
                       done_.load(std::memory_order_acquire)};
  context_->control().tell(peers_[rank].process, Control::Leave, packed(body));
}

void Member::peer_left_library(uint32_t rank) noexcept {
  if (rank >= static_cast<uint32_t>(world_)) return;
  peers_[rank].left_library.store(true, std::memory_order_release);
  context_->wake();
}

// A library may need all ranks of a group, and first of all the process that made its id, to end a communicator; oneCCL ends a process
// that comes late. So it is ended where all come at nearly the same time, the maker of the id last; else it is left as it is.
void Member::leave_library(bool broken) noexcept {
  constexpr int64_t kTogether = 2'000'000'000, kLast = 5'000'000'000;
  // The thread that drives may look at the island just now, and one that submits.
  const bool here = driven_here == this;  // in a callback of an operation that this thread has ended
  while (!here && exec_.test_and_set(std::memory_order_acquire)) ::sched_yield();
  std::unique_ptr<DeviceExecutor> island;
  // What a thread that is stuck works with is left to it.
  if (const SubmitLock::Held order = island_lock_.take(nullptr, [this] { return leave_behind(island_lock_); }))
    island = std::move(executor_);
  if (copier_) copier_->abort();
  if (const SubmitLock::Held submitting = copier_lock_.take(nullptr, [this] { return leave_behind(copier_lock_); }))
    copier_.reset();
  if (!island) {
    abort_island();
    executor_->leave_behind();
  }
  if (!here) exec_.clear(std::memory_order_release);
  struct Buffers {  // the device may still come to them where it has not run to the end
    Member &member;
    ~Buffers() {
      if (member.ring_lost_) device::keep_for_good(member.bounces_.release());
      else member.bounces_.reset();
    }
  } const buffers{*this};
  if (!island) return void(ring_lost_ = true);
  if (island_ranks_.empty()) {  // no library: the stream has run to its end, or is left as it is
    ring_lost_ = !island->idle();
    return;
  }
  const int maker = island_ranks_[0];
  const auto others = [&](auto holds) {
    return std::all_of(island_ranks_.begin(), island_ranks_.end(), [&](int q) { return q == rank_ || holds(peers_[q]); });
  };
  const auto alive = [&] {
    return others([](const PeerRank &p) { return (!p.process || !p.process->lost.load()) && !p.left_broken.load(); });
  };
  const auto wait = [&](std::atomic<bool> PeerRank::*flag, int64_t ns) {
    const auto come = [&] { return others([&](const PeerRank &p) { return (p.*flag).load(std::memory_order_acquire); }); };
    for (const int64_t until = now_ns() + ns; !come() && alive() && now_ns() < until;)
      context_->links().sleep(false, 5'000'000, [&](bool) { return come(); });
    return come() && alive();
  };
  bool together = !broken && wait(&PeerRank::left, kTogether);
  if (rank_ == maker) together = together && wait(&PeerRank::left_library, kLast);
  else together = together && now_ns() - peers_[maker].left_ns.load() < kTogether;
  if (!together) {
    if (!island->idle()) mail_->overrun.value.store(1, std::memory_order_seq_cst);
    island->abort();
  }
  ring_lost_ = !island->idle();
  island.reset();
  if (together && rank_ != maker) say_leave(maker, Leaving::LibraryEnded);
}

void Member::peer_left(uint32_t rank, uint64_t done, Leaving how) noexcept {
  if (rank >= static_cast<uint32_t>(world_)) return;
  peers_[rank].left_broken.store(is_broken(how), std::memory_order_relaxed);
  peers_[rank].left_writing.store(how == Leaving::BrokenWriting, std::memory_order_relaxed);
  peers_[rank].left_done.store(done, std::memory_order_relaxed);
  peers_[rank].left_ns.store(now_ns(), std::memory_order_relaxed);
  peers_[rank].left.store(true, std::memory_order_release);
  context_->wake();
}

// Whether all that is pending are receives for which nothing has come.
bool Member::only_receives_wait() const noexcept {
  if (!queue_.empty()) return false;
  const Lock lock(match_lock_);
  uint32_t receives = 0;
  for (const Operation *o = posted_.head; o; o = o->match_next) ++receives;
  return receives == pending_.load(std::memory_order_acquire);
}

void Member::leave(int64_t until_ns) noexcept {
  if (left_.exchange(true)) return;
  // What was sent before its sender left may still come, and no more.
  constexpr int64_t kReceives = 1'000'000'000;
  const int64_t begun = now_ns();
  bool receives = false;
  while (has_work() && !failed() && now_ns() < until_ns) {
    if (drive()) continue;
    check_deadlines(now_ns());
    receives = now_ns() - begun > kReceives && only_receives_wait();
    if (receives) break;
    context_->links().sleep(context_->links().any(), 1'000'000, [&](bool watched) { return drive(watched) || !has_work(); });
  }
  // Peers that have not heard yet why this communicator failed must hear it before they hear that this rank has gone.
  if (failed()) { flood(why()); }
  const bool broken = failed() || (has_work() && !receives);
  // A receive that has begun with nothing concerns nobody else.
  fail(Code::Aborted,
       receives
           ? formatted("the communicator was destroyed on rank {}, where a receive waited for a message that had not come",
                       rank_)
           : formatted("the communicator was destroyed on rank {}", rank_),
       has_work() && !receives);
  while (has_work() && !only_stuck()) {
    if (!drive()) ::sched_yield();
  }
  // A peer may be inside an operation that failed here: it reads our slots until it has ended it too, or has left.
  const uint64_t entered = entered_.load(std::memory_order_acquire);
  for (int q = 0; q < world_; ++q)
    if (q != rank_)
      say_leave(q, !broken ? Leaving::Well : copier_ && copier_->busy() ? Leaving::BrokenWriting : Leaving::Broken);
  if (executor_) leave_library(broken);
  // What peers may still read goes back only when they have ended our last operation, have left, or are gone.
  struct Reader {
    int rank;
    bootstrap::Peer *process;
    Mailbox *mail;
    bool writes;  // its device, to our receive slots
  };
  std::vector<Reader> readers;
  {
    const Lock lock(match_lock_);
    touch_slots();
    const auto writes = [this](int q)
                            ISTHMUS_REQUIRES(match_lock_) { return recv_slots_.any() && recv_slots_.has(q) && !on_host(q); };
    for (int q = 0; q < world_; ++q)
      if (q != rank_ && peers_[q].mail) readers.push_back({q, peers_[q].process, peers_[q].mail, writes(q)});
  }
  Context *context = context_.get();
  let_in(true);
  pool_.free_spares();
  std::vector<uint64_t> rings = rings_.take_all();
  if (ring_lost_) {  // nobody's until the context ends
    context_->staging().lose_rings(static_cast<int>(rings.size()) + (fixed_ring_ != 0));
    rings.clear();
    fixed_ring_ = 0;
  }
  const auto gone = std::make_shared<std::vector<std::atomic<bool>>>(static_cast<size_t>(world_));
  context_->ranks().retire(
      index_, epoch_, gone,
      [readers, entered, gone] {
        for (const auto &r : readers)
          if (!(*gone)[r.rank].load() && !(r.process && r.process->lost.load()) &&
              (r.writes || r.mail->done.value.load(std::memory_order_acquire) < entered))
            return false;
        return true;
      },
      [context, rings, mailbox = mailbox_offset_, fixed = fixed_ring_, bytes = fixed_ring_allocated_] {
        for (uint64_t offset : rings) context->arena().free_staging(offset);
        if (fixed) context->staging().give_fixed_ring(fixed, bytes);
        context->arena().free_mailbox(mailbox);
      });
  for (int q = 0; q < world_; ++q)  // after retire(), which hears of those that leave from now on
    if (peers_[q].left.load(std::memory_order_acquire) && !peers_[q].left_writing.load()) (*gone)[q].store(true);
  context_->remove(index_);
}

void Member::open_credit() noexcept {
  for (int q = 0; q < world_; ++q) {
    PeerRank &p = peers_[q];
    p.send_credit.open(credit_window_, p.mail ? &p.mail->consumed(rank_, cell_bytes_) : nullptr);
    p.recv_credit.open(credit_window_, p.mail ? &mail_->consumed(q, cell_bytes_) : nullptr);
  }
}

void Member::credit(uint32_t rank, uint64_t granted) noexcept {
  if (rank >= static_cast<uint32_t>(world_)) return;
  peers_[rank].send_credit.grant(granted);
  context_->wake();
}

// ---- words ---------------------------------------------------------------------------------------------------------------------------

std::string Member::rank_text(int rank) const {
  if (rank < 0 || rank >= world_) return formatted("rank {}", rank);
  const auto &r = topology_.ranks[static_cast<size_t>(rank)];
  return formatted("rank {} (pid {} on {}{}{})", rank, r.pid, r.hostname, r.island.empty() ? "" : ", island ", r.island);
}

std::string Member::describe(uint64_t what, uint64_t bytes) {
  const auto c = static_cast<uint8_t>(what), t = static_cast<uint8_t>(what >> 8), o = static_cast<uint8_t>(what >> 16);
  const auto root = static_cast<int32_t>(what >> 32);
  const bool known = c < kCollectiveCount;
  const auto collective = static_cast<Collective>(c);
  std::string text = known ? collective_name(collective) : "unknown";
  if (collective == Collective::Barrier) return text;
  text += formatted(" ({}", t < kDTypeCount ? dtype_name(static_cast<DType>(t)) : "?");
  if (known && is_reduction(collective))
    text += formatted(", {}", o < kRedOpCount ? redop_name(static_cast<RedOp>(o)) : "?");
  if (t < kDTypeCount) text += formatted(", {} elements", bytes / dtype_size(static_cast<DType>(t)));
  if (known && has_root(collective)) text += formatted(", root {}", root);
  return text + ")";
}

std::string Member::describe(const Operation &op) const {
  const Call &c = op.call;
  if (op.is_p2p()) {
    const bool send = c.collective == Collective::Send;
    const uint64_t bytes = op.whole ? op.whole : c.bytes;
    // Programs whose messages have no tags, or are bytes, hear of none and of bytes.
    const std::string tag = c.tag == 0 ? std::string() : formatted("tag {}, ", c.tag),
                      what = c.dtype == DType::UInt8
                                 ? formatted("{} bytes", bytes)
                                 : formatted("{}, {} elements", dtype_name(c.dtype), bytes / dtype_size(c.dtype));
    return formatted("{} {} {} ({}{}) on rank {} of '{}'", op.label.empty() ? (send ? "send" : "recv") : op.label,
                     send ? "to" : "from", c.root < 0 ? std::string("any rank") : rank_text(c.root), tag, what, rank_,
                     name_);
  }
  std::string progress;
  if (const uint32_t chunks = op.at.chunks(); op.plan && chunks > 1)
    progress = formatted(", chunk {} of {}", std::min(op.at.turn(), chunks), chunks);
  return formatted("{}#{} {} on rank {} of '{}' over {}{}", op.label.empty() ? "" : op.label + " ", op.sequence,
                   describe(what(c), c.bytes), rank_, name_, path_text(op), progress);
}

std::string Member::path_text(const Operation &op) const {
  if (!op.plan) return "shared memory";
  const std::string bridge = op.plan->uses_links && !topology_.flat ? "tcp" : "shared memory";
  if (op.plan->device.empty()) return bridge;
  return op.plan->host.empty() ? island_family_ : island_family_ + " and " + bridge;
}

std::string Member::about(const Operation &op) const {
  const Failure f = why();
  std::string own = describe(op);
  const bool same = f.subject != 0 && f.sequence != 0 && !op.is_p2p() && f.sequence == op.sequence;
  if (f.text.starts_with(own) || (same && f.by == rank_)) return f.text;
  if (!same) return own + ": " + f.text;
  // The same operation: what stays of the other rank's words for it is how it went there.
  const std::string_view text = f.text, subject = text.substr(0, f.subject), rest = text.substr(subject.size());
  const std::string where = formatted(" of '{}'", name_);
  const size_t at = subject.rfind(where);
  const std::string_view path = at == std::string_view::npos ? std::string_view() : subject.substr(at + where.size());
  return formatted("{}: on rank {}{}{}{}", own, f.by, path,
                   rest.starts_with(": ") ? ""
                   : path.empty()         ? " it"
                                          : ", it",
                   rest);
}

std::string Member::waiting_text() const {
  const int q = waiting_on_.load(std::memory_order_relaxed);
  const uint64_t entered = entered_.load(std::memory_order_acquire);
  if (q < 0 || entered <= done_.load(std::memory_order_acquire)) return {};
  const Called own = called(entered);
  if (!own.known) return {};  // it ended while we looked
  return formatted("#{} {} of '{}', waiting for {}", entered, describe(own.what, own.bytes), name_, rank_text(q));
}

// What this rank has entered it publishes a little later, and until then an older operation's description stands there.
Member::Called Member::called(uint64_t sequence) const noexcept {
  Called own;
  queue_.each([&](const Operation &o) {
    if (o.sequence == sequence) own = {true, what(o.call), o.call.bytes, o.digest};
    return o.sequence < sequence;
  });
  if (own.known) return own;
  const Description &d = mail_->description(sequence);
  if (d.sequence.load(std::memory_order_acquire) != sequence) return own;
  return {true, d.what.load(), d.bytes.load(), d.digest.load()};
}

std::vector<Record> Member::in_flight() const {
  std::vector<Record> out;
  const auto add = [&](const Operation *o) {
    out.push_back({serial_, o->sequence, o->submitted_ns, 0, o->call.bytes, o->call.root,
                   static_cast<uint8_t>(o->call.collective), static_cast<uint8_t>(o->call.dtype),
                   static_cast<uint8_t>(o->call.op), static_cast<uint8_t>(Code::InProgress)});
  };
  queue_.each([&](const Operation &o) {
    add(&o);
    return out.size() < 4096;
  });
  const Lock lock(match_lock_);
  for (const OperationList *list : lists_)
    for (const Operation *o = list->head; o && out.size() < 8192; o = o->match_next) add(o);
  return out;
}

}  // namespace isthmus::engine
