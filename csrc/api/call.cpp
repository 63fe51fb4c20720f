#include "api/call.hpp"

#include <sched.h>

#include "base/clock.hpp"
#include "base/seen_time.hpp"
#include "net/wait.hpp"
#include "observe/dump.hpp"
#include "observe/dumper.hpp"

namespace isthmus::api {

using comm::Communicator;

namespace {

constexpr int64_t kInsideNs = 2'000'000'000;  // for so long destroy and reconfigure wait for calls of other threads

constexpr double kDumpSeconds =
    2;  // for so long a flight record that is wanted may hold up destroy; unwatch() has a bound of its own

// Destroyed handles: some bytes each, kept on purpose (see isthmus_comm).
std::atomic<isthmus_comm *> destroyed_handles{nullptr};

thread_local std::string text_of_last_error;
thread_local std::vector<int> ranks_of_last_error;

// The communicator's end, behind its operations. Calls of other threads are on their way out. A call that is stuck in a vendor's library is not: it
// lets go of the communicator when it ends.
void end_communicator(isthmus_comm_t comm, Communicator &communicator) noexcept {
  communicator.destroy();
  observe::write_trace(communicator);
  for (SeenTime waited; comm->inside.load(std::memory_order_seq_cst) != 0 && waited.look(now_ns()) < kInsideNs;) {
    communicator.local().context().wake();
    ::sched_yield();
  }
  comm->left.store(true, std::memory_order_seq_cst);
  if (comm->inside.load(std::memory_order_seq_cst) == 0) CallInside::let_go(comm);
}

}  // namespace

isthmus_result failed(Code code, std::string text, std::vector<int> ranks) noexcept {
  text_of_last_error = std::move(text);
  ranks_of_last_error = std::move(ranks);
  return static_cast<isthmus_result>(code);
}

const std::string &last_error() noexcept { return text_of_last_error; }
const std::vector<int> &last_error_ranks() noexcept { return ranks_of_last_error; }

// ---- calls of this thread ------------------------------------------------------------------------------------------------------------

thread_local const CallHere *CallHere::innermost_ = nullptr;

bool CallHere::is_for(Communicator &communicator) noexcept {
  for (const CallHere *call = innermost_; call; call = call->outer_)
    if (call->of_ == &communicator.local().core()) return true;
  return comm::group_ends_here(communicator);
}

bool CallHere::innermost_is_for(Communicator &communicator) noexcept {
  return innermost_ && innermost_->of_ == &communicator.local().core();
}

// ---- destroy -------------------------------------------------------------------------------------------------------------------------

thread_local std::vector<EndOfCall::Destroyed> EndOfCall::waiting_;

void EndOfCall::end() noexcept {
  // One after the other: the end of one may call the program's check, which may destroy another.
  for (size_t n = 0; n < waiting_.size();) {
    if (CallHere::is_for(*waiting_[n].communicator)) {  // there is an outer call
      ++n;
      continue;
    }
    const Destroyed one = std::move(waiting_[n]);
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(n));
    if (one.comm->birth.here()) end_communicator(one.comm, *one.communicator);
    n = 0;
  }
}

void destroy(isthmus_comm_t comm) {
  if (comm->destroyed.exchange(true)) fail(Code::Argument, "the communicator was destroyed already");
  comm->next = destroyed_handles.load(std::memory_order_relaxed);
  while (!destroyed_handles.compare_exchange_weak(comm->next, comm, std::memory_order_release)) {}
  const std::shared_ptr<Communicator> communicator = epoch_of(comm);
  const bool later = net::in_interrupt_check() && CallHere::is_for(*communicator);
  if (later) {
    EndOfCall::waiting_.push_back({comm, communicator});
    communicator->abort("destroyed by the interrupt check of a call of this thread");
    if (CallHere::innermost_is_for(*communicator)) net::end_this_wait();
  }
  settle_dumps();
  observe::unwatch(*communicator);
  if (!later) end_communicator(comm, *communicator);
}

// ---- calls inside a communicator -----------------------------------------------------------------------------------------------------

isthmus_comm_t CallInside::entered(isthmus_comm_t comm, const char *what) {
  if (!comm) fail(Code::Argument, "the communicator is NULL");
  if (!comm->birth
           .here()) {  // nothing of the handle changes in a forked child, so `destroyed` says what the handle was at the fork
    if (!comm->destroyed.load(std::memory_order_seq_cst)) comm->communicator->check_ours(what);
    fail(Code::Argument, "the communicator was destroyed");
  }
  comm->inside.fetch_add(1, std::memory_order_seq_cst);
  const bool destroyed = comm->destroyed.load(std::memory_order_seq_cst);
  if (!destroyed && !comm->changing.load(std::memory_order_seq_cst)) return comm;
  leave(comm);
  if (destroyed) fail(Code::Argument, "the communicator was destroyed");
  fail(Code::Argument, "{}: another thread is in isthmus_comm_reconfigure on this communicator: wait for its end", what);
}

void CallInside::let_go(isthmus_comm_t comm) noexcept {
  if (!comm->left.load(std::memory_order_seq_cst) || !comm->left.exchange(false)) return;
  const Lock lock(comm->swap);
  comm->communicator.reset();
}

void CallInside::close() const {
  if (comm_->changing.exchange(true, std::memory_order_seq_cst))
    fail(Code::Argument, "reconfigure: another thread is in it on this communicator: wait for its end");
  for (SeenTime waited; comm_->inside.load(std::memory_order_seq_cst) != 1;) {
    if (waited.look(now_ns()) > kInsideNs) {
      open();
      fail(Code::Argument, "reconfigure: another thread is in a call on this communicator: wait for its end");
    }
    ::sched_yield();
  }
}

// ---- the communicator of a handle ----------------------------------------------------------------------------------------------------

std::shared_ptr<Communicator> epoch_of(isthmus_comm_t comm) {
  const Lock lock(comm->swap);
  return comm->communicator;
}

std::shared_ptr<Communicator> go_over(isthmus_comm_t comm, std::shared_ptr<Communicator> epoch) {
  const Lock lock(comm->swap);
  return std::exchange(comm->communicator, std::move(epoch));
}

void settle_dumps() noexcept { observe::settle_dumps(kDumpSeconds); }

}  // namespace isthmus::api
