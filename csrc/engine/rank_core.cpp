#include "engine/rank_core.hpp"

#include "base/assert.hpp"
#include "base/log.hpp"
#include "net/wait.hpp"
#include "process/control_wire.hpp"
#include "engine/operation_text.hpp"

namespace isthmus::engine {
namespace {

thread_local const Operation *awaited_here = nullptr;
const InChild forgets_awaited([](void *) noexcept { awaited_here = nullptr; });

// The failure's text as this rank says it: where another rank has lost the way to this one, the text is of that rank.
std::string text_of(const Failure &why, const Identity &id) {
  if (!why.cut || why.by == id.rank || std::find(why.ranks.begin(), why.ranks.end(), id.rank) == why.ranks.end())
    return why.text;
  return formatted("{} no longer reaches this rank{}", id.text(why.by), std::string_view(why.text).substr(why.subject));
}

}  // namespace

Awaited::Awaited(const Operation *op) noexcept : outer_(std::exchange(awaited_here, op)) {}
Awaited::~Awaited() { awaited_here = outer_; }

std::string Identity::text(int of) const {
  if (of < 0 || of >= world) return formatted("rank {}", of);
  const auto &r = topology.ranks[static_cast<size_t>(of)];
  return formatted("rank {} (pid {} on {}{}{})", number(of), r.pid, r.hostname, r.island.empty() ? "" : ", island ",
                   r.island);
}

RankCore::RankCore(std::shared_ptr<Context> of, Identity who, RankDevice on, Mailbox *mailbox, uint64_t bytes_of_cell,
                   OperationSink &rooms, process::LocalRank &outside)
    : context(std::move(of)),
      id(std::move(who)),
      device(on),
      mail(mailbox),
      cell_bytes(bytes_of_cell),
      port(outside),
      peers(static_cast<size_t>(id.world)),
      rooms_(rooms) {
  if (mail) mail->standing.communicator.store(id.epoch, std::memory_order_release);
}

// ---- failure -------------------------------------------------------------------------------------------------------------------------

Status RankCore::failure() const {
  Failure f = why();
  f.text = text_of(f, id);
  if (!f.doing.empty()) f.text += "; this rank was in " + f.doing;
  return f;  // NOLINT(cppcoreguidelines-slicing): the status of it
}

Failure RankCore::why() const {
  const Lock lock(failure_mutex_);
  return failure_;
}

void RankCore::fail(Failure why, Tell whom) noexcept {
  why.noted_ns = now_ns();
  std::erase_if(why.ranks, [&](int q) { return q < 0 || q >= id.world; });  // another process may have sent them
  std::sort(why.ranks.begin(), why.ranks.end());
  {
    const Lock lock(failure_mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    failure_ = why;
    failed_.store(true, std::memory_order_release);
  }
  if (!left_.load(std::memory_order_relaxed)) ISTHMUS_INFO("communicator '{}', rank {}: {}", id.name, id.number(), why.text);
  if (whom == Tell::Peers) tell_peers(why);
  if (why.late) call_late_hook();
  if (has_work()) activate();  // some thread has to end what is pending, also where no thread waits
  wake();
}

void RankCore::tell_peers(const Failure &why) noexcept {
  for (int q = 0; q < id.world; ++q)
    if (q != id.rank) context->control().tell_failure(peers[q].process, peers[q].their_index, id.epoch, why);
}

void RankCore::fail_at(const Operation &op, Code code, std::string_view what, Lateness lateness,
                       std::vector<int> ranks) noexcept {
  if ((code == Code::Device || code == Code::Resource) && ranks.empty()) ranks.push_back(id.rank);
  Failure why{{code, describe(op), std::move(ranks)}};
  why.subject = static_cast<uint32_t>(why.text.size());
  why.text += what;
  why.by = id.rank;
  why.late = lateness == Lateness::Late;
  why.sequence = op.is_p2p() ? 0 : op.sequence;
  fail(std::move(why), Tell::Peers);
}

// After a failure the operation may be over, and used for another call. So `op` is read only where there is no failure yet.
void RankCore::not_submitted(const Operation &op, const Error &e) noexcept {
  if (!failed()) fail_at(op, e.code(), ": " + e.text());
}

void RankCore::ask_for_interrupt() noexcept {
  if (net::interrupt_wanted())
    fail(Code::Interrupted, formatted("interrupted on {} while it waited", id.text(id.rank)), Tell::Peers);
}

// ---- the end of an operation ---------------------------------------------------------------------------------------------------------

void RankCore::record(const Operation &op, Code result, int64_t ended_ns) noexcept {
  context->recorder().add({id.serial, op.sequence, op.time.submitted_ns, ended_ns, op.call.bytes, op.call.root, op.call.tag,
                           static_cast<uint8_t>(op.call.collective), static_cast<uint8_t>(op.call.dtype),
                           static_cast<uint8_t>(op.call.op), static_cast<uint8_t>(result)});
}

void RankCore::end(Operation *op, Code result, std::string text) noexcept {
  ISTHMUS_ASSERT(!op->over(), "an operation ends once");
  rooms_.release(*op, result);
  const int64_t now = now_ns();
  if (op->cut.whole == 0) record(*op, result, now);  // else finish_operation() records the message, with the last part
  const std::shared_ptr<void> keep = op->keep;
  if (keep)
    callbacks.due.fetch_add(1, std::memory_order_relaxed);  // its callback may be about to be due, once it is not pending
  [[maybe_unused]] const uint32_t before = pending.fetch_sub(1, std::memory_order_acq_rel);
  ISTHMUS_ASSERT(before != 0, "an operation that ends is pending");
  if (result != Code::Ok && failed()) op->end.ranks = id.topology.numbers(why().ranks);
  finish_operation(op, result, std::move(text), now);
  if (keep) callbacks.due.fetch_sub(1, std::memory_order_release);
  // The operation may be an inline op, whose thread sleeps. For the other operations finish_operation() wakes.
  if (waiters.load(std::memory_order_relaxed) > (awaited_here == op ? 1u : 0u)) wake();
}

Status status_of(const RankCore &core, const Operation &op) {
  Status end{op.end.result, op.end.text};
  if (!end.ok() && core.failed()) end.ranks = core.why().ranks;
  return end;
}

std::string RankCore::describe(const Operation &op) const { return engine::describe(id, op); }

std::string RankCore::about(const Operation &op) const {
  const Failure f = why();
  std::string own = describe(op);
  const bool same = f.subject != 0 && f.sequence != 0 && !op.is_p2p() && f.sequence == op.sequence;
  if (f.text.starts_with(own) || (same && f.by == id.rank)) return f.text;
  if (!same) return own + ": " + text_of(f, id);
  // The failure is of the same operation on another rank. Of that rank's name for the operation only the path stays.
  const std::string_view text = f.text, subject = text.substr(0, f.subject), rest = text.substr(subject.size());
  const std::string where = formatted(" of '{}'", id.name);
  const size_t at = subject.rfind(where);
  const std::string_view path = at == std::string_view::npos ? std::string_view() : subject.substr(at + where.size());
  return formatted("{}: on rank {}{}{}{}", own, id.number(f.by), path,
                   rest.starts_with(": ") ? ""
                   : path.empty()         ? " it"
                                          : ", it",
                   rest);
}

void RankCore::consumed(int source, uint64_t bytes) noexcept {
  PeerRank &p = peers[source];
  const uint64_t granted = p.recv_credit.consumed(bytes);
  if (granted == 0) return;
  const CreditBody body{p.their_index, id.epoch, static_cast<uint32_t>(id.rank), 0, granted};
  context->control().tell(p.process, Control::Credit, packed(body));
}

// ---- submissions ---------------------------------------------------------------------------------------------------------------------

SubmitLock::Held RankCore::lock_for(SubmitLock &lock, const Operation *op) noexcept {
  return lock.take(op, [&] {
    context->progress().stand_in();
    if (const int64_t now = now_ns(); !failed() && op && now >= op->time.deadline_ns)
      fail_at(*op, Code::Timeout,
              formatted(" did not finish within {:g} s: another thread of {} is before it{}{}", op->call.timeout,
                        id.text(id.rank), inside_text().empty() ? "" : ", in ", inside_text()),
              Lateness::Late);
    return failed();
  });
}

bool RankCore::leave_behind(SubmitLock &lock) noexcept {
  return lock.leave_behind(now_ns(), formatted("communicator '{}', rank {}", id.name, id.number()), device.runtime,
                           device.number);
}

std::string RankCore::inside_text() const {
  for (const SubmitLock *lock : {&collective_lock, &message_lock})
    if (const std::string call = lock->call(); !call.empty())
      return formatted("{}{}, which has not come back", call,
                       device ? formatted(" on {}:{}", device.runtime->vendor(), device.number) : "");
  return {};
}

}  // namespace isthmus::engine
