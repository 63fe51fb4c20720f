#include "rank/departure.hpp"

#include <sched.h>

#include <algorithm>

#include "base/clock.hpp"
#include "engine/completions.hpp"

namespace isthmus::rank {

void Departure::say(int rank, Leaving how, bootstrap::Goes goes) noexcept {
  const PeerRank &p = core_.peers[rank];
  const LeaveBody body{p.their_index, core_.id.epoch,      static_cast<uint32_t>(core_.id.rank),
                       how,           collectives_.done(), p.messages_out.load(std::memory_order_relaxed)};
  core_.context->control().tell(p.process, Control::Leave, packed(body), goes);
}

// ---- operations ----------------------------------------------------------------------------------------------------------------------

// True: all pending operations are receives for which nothing has come.
bool Departure::only_receives_wait() noexcept {
  return collectives_.queue().empty() &&
         messages_.table().lock()->posted.size() == core_.pending.load(std::memory_order_acquire);
}

bool Departure::end_operations(int64_t until_ns, bool gone_over) noexcept {
  // A message that was sent before its sender left may still come, and nothing else.
  constexpr int64_t kReceives = 1'000'000'000;
  const int64_t begun = now_ns();
  bool receives = false;
  while (core_.has_work() && !core_.failed() && now_ns() < until_ns) {
    if (driver_.drive()) continue;
    driver_.check_deadlines(now_ns());
    receives = now_ns() - begun > kReceives && only_receives_wait();
    if (receives) break;
    core_.context->links().sleep(core_.context->links().count() != 0, 1'000'000,
                                 [&](LookAt links) { return driver_.drive(links) || !core_.has_work(); });
  }
  // Some peers may not have heard yet why this communicator failed. They must hear the reason before they hear of this rank's leaving.
  if (core_.failed() && !gone_over) core_.tell_peers(core_.why());
  const bool broken = core_.failed() || (core_.has_work() && !receives);
  // A receive for which nothing has come concerns no other rank.
  core_.fail(Code::Aborted,
             formatted("the communicator was destroyed on rank {}{}", core_.id.number(),
                       receives ? ", where a receive waited for a message that had not come" : ""),
             core_.has_work() && !receives ? Tell::Peers : Tell::Nobody);
  while (core_.has_work() && !driver_.only_stuck()) {
    if (!driver_.drive()) ::sched_yield();
  }
  return broken;
}

// ---- devices and libraries -----------------------------------------------------------------------------------------------------------

template <class Holds>
bool Departure::of_all_others(Holds holds) const noexcept {
  const std::vector<int> &island = collectives_.device().ranks();
  return std::all_of(island.begin(), island.end(), [&](int q) { return q == core_.id.rank || holds(core_.peers[q]); });
}

bool Departure::wait_for_others(std::atomic<bool> PeerRank::*flag, int64_t ns) noexcept {
  const auto come = [&] {
    return of_all_others([&](const PeerRank &p) { return (p.*flag).load(std::memory_order_acquire); });
  };
  const auto alive = [&] { return of_all_others([](const PeerRank &p) { return !p.lost() && !p.left_broken.load(); }); };
  for (const int64_t until = now_ns() + ns; !come() && alive() && now_ns() < until;)
    core_.context->links().sleep_at_doorbell(5'000'000, come);
  return come() && alive();
}

// To end a communicator, a library may need all ranks of the island, and first of all the process that made the id. oneCCL ends a process that
// comes late. So the library's communicator ends where all ranks come at nearly the same time, the maker of the id last. Else the library's
// communicator is left as it is.
bool Departure::leave_library(std::unique_ptr<DeviceExecutor> executor, bool has_library, bool broken) noexcept {
  constexpr int64_t kTogether = 2'000'000'000, kLast = 5'000'000'000;
  const std::vector<int> &island = collectives_.device().ranks();
  // No library, or the next epoch has it: the stream has run to its end, or is left as it is.
  if (!has_library) return executor->ending().idle();
  const int maker = island[0];
  bool together = !broken && wait_for_others(&PeerRank::left, kTogether);
  if (core_.id.rank == maker) together = together && wait_for_others(&PeerRank::left_library, kLast);
  else together = together && now_ns() - core_.peers[maker].left_ns.load() < kTogether;
  if (!together) {
    if (!executor->ending().idle()) core_.mail->standing.overrun.store(1, std::memory_order_seq_cst);
    executor->ending().abort();
  }
  const bool idle = executor->ending().idle();
  executor.reset();
  if (together && core_.id.rank != maker) say(maker, Leaving::LibraryEnded);
  return idle;
}

// A thread that is stuck keeps what the thread works with.
void Departure::leave_devices(bool broken) noexcept {
  DeviceSide &device = collectives_.device();
  core_.exec.take();  // the thread that drives may look at the device just now
  const bool has_library = device.lane().has_library();
  std::unique_ptr<DeviceExecutor> executor = device.take_executor();
  messages_.leave();
  if (!executor) device.leave_executor();
  core_.exec.give();
  const bool ended = executor && leave_library(std::move(executor), has_library, broken);
  device.drop_bounces(!ended);
  if (!ended) collectives_.memory().lose();
}

// ---- memory --------------------------------------------------------------------------------------------------------------------------

void Departure::retire() noexcept {
  struct Reader {
    int rank;
    bootstrap::Peer *process;
    Mailbox *mail;
    bool writes;  // to our mailbox, or its device to our receive slots
  };
  const int world = core_.id.world;
  const uint64_t entered = collectives_.entered();
  std::vector<Reader> readers;
  messages::SlotReceives::touch(*messages_.table().lock());
  for (int q = 0; q < world; ++q)
    if (const PeerRank &p = core_.peers[q]; q != core_.id.rank && p.mail)
      readers.push_back({q, p.process, p.mail, messages_.slots().written_by(q) || messages_.library().with(q)});
  collectives_.memory().let_in(collective::SlotAccess::Host);
  messages_.places().free_spares();
  Context *const context = core_.context.get();
  const auto gone = std::make_shared<std::vector<std::atomic<bool>>>(static_cast<size_t>(world));
  context->ranks().retire(
      core_.id.index, core_.id.epoch, gone,
      [readers, entered, gone] {
        for (const auto &r : readers)
          // One that is lost and may live, because it was stopped, goes on where it was: in the midst of a copy.
          if (!(*gone)[r.rank].load() && !(r.process && r.process->surely_ended()) &&
              (r.writes || r.mail->done.value.load(std::memory_order_acquire) < entered))
            return false;
        return true;
      },
      [context, rest = collectives_.memory().take_all(), mailbox = mailbox_] {
        for (const uint64_t offset : rest.rings) context->arena().free_staging(offset);
        if (rest.fixed) context->staging().give_fixed_ring(rest.fixed, rest.fixed_bytes);
        context->arena().free_mailbox(mailbox);
      });
  for (int q = 0; q < world; ++q)  // after retire(): the table hears of the ranks that leave from now on
    if (core_.peers[q].left.load(std::memory_order_acquire) && !core_.peers[q].left_writing.load()) (*gone)[q].store(true);
  context->remove(core_.id.index);
}

void Departure::leave(int64_t until_ns, bool gone_over) noexcept {
  core_.context->progress().stand_in();
  const bool broken = end_operations(until_ns, gone_over);
  const Leaving how = !broken ? Leaving::Well : messages_.copying() ? Leaving::BrokenWriting : Leaving::Broken;
  // Ranks of a library's island wait for each other's word.
  const bool haste = !gone_over || collectives_.device().executor();
  for (int q = 0; q < core_.id.world; ++q)
    if (q != core_.id.rank) say(q, how, haste ? bootstrap::Goes::AtOnce : bootstrap::Goes::Along);
  if (collectives_.device().executor()) leave_devices(broken);
  Completions::wait(core_, now_ns() + Completions::kMostNs);
  retire();
}

}  // namespace isthmus::rank
