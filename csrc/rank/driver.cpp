#include "rank/driver.hpp"

#include <sched.h>

#include "base/clock.hpp"
#include "engine/completions.hpp"

namespace isthmus::rank {

bool RankDriver::drive(LookAt links) noexcept {
  const process::Links::Driving here(core_.port);
  const bool moved = drive_operations();
  if (core_.context->links().count() == 0 || !core_.context->links().drive(links)) return moved;
  drive_operations();  // this may be the thread's last look, and what has come for this rank rings nobody
  return true;
}

bool RankDriver::drive_operations() noexcept {
  // Most looks find nothing to do. This look takes no lock.
  if (collectives_.queue().empty() && !messages_.moving() && !core_.failed()) return false;
  if (!core_.exec.try_take()) return false;
  const bool moved = drive_held();
  core_.exec.give();
  return moved;
}

bool RankDriver::drive_held() noexcept {
  for (bool moved = false;;) {
    if (core_.failed()) return end_after_failure() || moved;
    if (messages_.moving()) moved |= messages_.drive();
    if (collectives_.advance() == Outcome::Blocked) return collectives_.host().has_moved() || moved;
    moved = true;
  }
}

bool RankDriver::end_after_failure() noexcept {
  bool moved = false;
  if (!std::exchange(looked_again_, true)) moved = collectives_.end_what_memory_completes();
  const bool pending = core_.has_work();
  // The links forget this rank before a gate opens: device work behind a gate may fill memory that the links would still send.
  if (pending && !std::exchange(forgotten_, true)) {
    forget_on_links();
    messages_.copies().forget();
  }
  const bool messages =
      !pending || messages_.settled();  // messages and collectives are both told to end before a wait for either
  if (!pending || !collectives_.device().settled(collectives_.entered()) || !messages) return moved;
  forget_on_links();  // nothing of ours may touch user memory once an operation has ended
  const Code code = core_.failure().code;
  collectives_.end_all(code);
  messages_.matcher().end_all(code);
  return true;
}

void RankDriver::forget_on_links() noexcept {
  messages_.table()
      .lock();  // a thread that saw no failure under the match lock has by now posted what the thread was about to post
  core_.context->links().cancel(core_.port);
}

// ---- waiting -------------------------------------------------------------------------------------------------------------------------

struct RankDriver::Waiting {
  Operation *op;
  bool messages, sockets, crowded, spare;  // `messages`: a message or a group
  bool frames;  // frames matter to this operation; else only to others, and the thread looks at the links now and then
  int polls;    // before the thread looks at the clock
  int idle = 0;
  uint32_t busy = 0;
  int64_t idle_since = 0, looked = 0, asked = 0;

  Waiting(Operation *of, const RankCore &core) noexcept
      : op(of), crowded(process::oversubscribed()), spare(process::processors_to_spare()) {
    const bool group = of->end.children.load(std::memory_order_relaxed) != 0;
    messages = of->is_p2p() || group;
    sockets = core.context->links().count() != 0 && (messages || !core.id.topology.flat);
    frames = messages || (of->plan && of->plan->uses_links) || !of->core;
    polls = crowded || sockets ? 8 : 256;
  }
  void has_moved() noexcept {
    idle = 0;
    idle_since = 0;
  }
};

// Once a millisecond.
void RankDriver::look_at_clock(Waiting &w, int64_t now) noexcept {
  w.looked = now;
  core_.context->progress().stand_in();
  if (w.messages) awaited_message_.store(w.op, std::memory_order_release);
  core_.context->links().report_broken();
  check_deadlines(now);
  if (now - w.asked > 50'000'000) {
    w.asked = now;
    core_.ask_for_interrupt();
  }
}

// Nothing has moved: the thread yields for a while, then sleeps. True: the thread has slept, and something has moved meanwhile.
bool RankDriver::pause(Waiting &w, int64_t now, int64_t until_ns) noexcept {
  if (now - w.idle_since < (w.sockets ? core_.context->links().socket_spin_ns() : core_.context->spin_ns())) {
    if (w.crowded || (w.idle & 31) == 0) ::sched_yield();
    else SpinLock::pause();
    return false;
  }
  int64_t nap = std::min<int64_t>(until_ns - now, 20'000'000);
  const bool polls = polls_device();
  if (polls) nap = std::min(nap, process::Drivable::device_nap(now - w.idle_since, w.spare));
  bool driven = false;
  core_.context->progress().stand_in();
  core_.context->links().sleep(
      w.sockets, nap, [&](LookAt links) { return (driven = drive(links)) || w.op->over(); },
      polls && w.spare ? process::SleepEnds::Promptly : process::SleepEnds::Somewhat);
  return driven;
}

bool RankDriver::wait(Operation *op, int64_t until_ns) noexcept {
  if (op->over()) return true;
  core_.waiters.fetch_add(1, std::memory_order_acq_rel);
  Context &context = *core_.context;
  Waiting w(op, core_);
  bool over = false;
  {
    const Awaited awaited(op);
    const process::Links::Driving here(core_.port);
    for (;;) {
      bool moved = drive_operations();
      over = op->over();
      if (over) break;
      if ((w.frames || (w.idle & 63) == 63) && context.links().count() != 0) moved |= context.links().drive();
      if (moved) {
        if (w.sockets && w.idle_since != 0) context.links().note_socket_wait(now_ns() - w.idle_since);
        w.has_moved();
        if (++w.busy % 1024 != 0) continue;  // traffic of others must not keep us from the clock
      } else if (++w.idle < w.polls) {
        SpinLock::pause();
        continue;
      }
      const int64_t now = now_ns();
      if (w.idle_since == 0) w.idle_since = now;
      if (w.asked == 0) w.asked = now;
      if (now >= until_ns) break;
      if (now - w.looked > 1'000'000) look_at_clock(w, now);
      if (pause(w, now, until_ns)) {
        if (w.sockets) {
          context.links().note_socket_wait(now_ns() - w.idle_since);
          w.idle_since = 0;
        }
      }
    }
  }
  if (w.messages) awaited_message_.store(nullptr, std::memory_order_release);
  core_.waiters.fetch_sub(1, std::memory_order_acq_rel);
  return over;
}

// ---- deadlines -----------------------------------------------------------------------------------------------------------------------

int64_t RankDriver::check_deadlines(int64_t now) noexcept {
  if (core_.failed()) {
    drive();
    return now;
  }
  if (!core_.exec.try_take()) return now;
  if (const auto found = collectives_.late(now); found.late) blame_.fail_late(*found.first, *found.late);
  // The device is asked only where nothing of the device has gone on for so long (DeviceHealth).
  health_.note(collectives_.progress() + messages_.progress(),
               collectives_.queue().empty() ? messages_.moving() : polls_device(), now);
  if (!core_.failed()) blame_.fail_late_message(now);
  if (!core_.failed()) blame_.fail_late_submission(now);
  core_.exec.give();
  if (core_.failed()) drive();
  return now;
}

void RankDriver::look_at_device() noexcept {
  const Status s = health_.look();
  if (s.ok()) return;
  collectives_.device().died();
  health_.failed(s);
}

bool RankDriver::only_stuck() noexcept {
  if (!core_.collective_lock.left() && !core_.message_lock.left()) return false;
  return collectives_.queue().empty() && messages_.table().lock()->empty();
}

}  // namespace isthmus::rank
