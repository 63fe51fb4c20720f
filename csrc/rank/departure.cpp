#include "rank/departure.hpp"

#include <sched.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/seen_time.hpp"
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

template <class Over>
void Departure::wait_for(Over over, int64_t ns) noexcept {
  constexpr int64_t kLookNs = 5'000'000;
  for (SeenTime waited; !over() && waited.look(now_ns()) < ns;) core_.context->links().sleep_at_doorbell(kLookNs, over);
}

namespace {

Leaving said(const PeerRank &p) noexcept { return p.library_end.load(std::memory_order_acquire); }
bool has_left(const PeerRank &p) noexcept { return p.left.load(std::memory_order_acquire); }
bool is_ready(const PeerRank &p) noexcept { return said(p) == Leaving::LibraryReady; }
bool has_ended(const PeerRank &p) noexcept { return said(p) == Leaving::LibraryEnded; }
bool is_there(const PeerRank &p) noexcept { return !p.lost() && !p.left_broken.load(std::memory_order_acquire); }
// The rank may still do what this one waits for.
bool takes_part(const PeerRank &p) noexcept { return has_ended(p) || (is_there(p) && said(p) != Leaving::LibraryStays); }

constexpr int64_t kTogether = 2'000'000'000;  // in which all ranks of an island come to their ends
constexpr int64_t kStep = 5'000'000'000;      // that the others have for each step then
// The leader's word comes within kStep. A leader that was stopped says it later, to those that are still there.
constexpr int64_t kLeastFollowed = 2 * kStep;

}  // namespace

bool Departure::leads_library_end() noexcept {
  const auto all = [&](auto holds, int64_t ns) {
    const auto hold = [&] { return of_all_others(holds); };
    wait_for([&] { return hold() || !of_all_others(takes_part); }, ns);
    return hold() && of_all_others(takes_part);
  };
  const auto say_to_all = [&](Leaving how) {
    for (const int q : collectives_.device().ranks())
      if (q != core_.id.rank) say(q, how);
  };
  bool ends = all(has_left, kTogether);
  if (ends) {
    say_to_all(Leaving::LibraryAsks);
    ends = all(is_ready, kStep);
  }
  say_to_all(ends ? Leaving::LibraryEnds : Leaving::LibraryStays);
  return ends && all(has_ended, kStep);
}

bool Departure::follows_library_end(int leader, int64_t until_ns) noexcept {
  const PeerRank &p = core_.peers[leader];
  wait_for([&] { return said(p) != Leaving::Well || !of_all_others(takes_part); }, kTogether);
  if (said(p) == Leaving::LibraryAsks) {
    say(leader, Leaving::LibraryReady);
    wait_for([&] { return said(p) != Leaving::LibraryAsks || !is_there(p); }, std::max(until_ns - now_ns(), kLeastFollowed));
  }
  if (said(p) == Leaving::LibraryEnds && is_there(p)) return true;
  say(leader, Leaving::LibraryStays);
  return false;
}

// To end a communicator, a library may need all ranks of the island, and first of all the process that made the id. oneCCL ends a process that
// comes late. So the library's communicator ends where all ranks say that they end it, the maker of the id last. Else the library's communicator is
// left as it is.
bool Departure::leave_library(std::unique_ptr<DeviceExecutor> executor, bool has_library, bool broken,
                              int64_t until_ns) noexcept {
  const std::vector<int> &island = collectives_.device().ranks();
  const bool leads = !island.empty() && core_.id.rank == island[0];
  // No library, or the next epoch has it: the stream has run to its end, or is left as it is. Of this one the first rank may still have it.
  if (!has_library) {
    if (!island.empty() && !leads) say(island[0], Leaving::LibraryStays, bootstrap::Goes::Along);
    return executor->ending().idle();
  }
  const bool ends = !broken && (leads ? leads_library_end() : follows_library_end(island[0], until_ns));
  if (!ends) {
    if (!executor->ending().idle()) core_.mail->standing.overrun.store(1, std::memory_order_seq_cst);
    executor->ending().abort();
  }
  const bool idle = executor->ending().idle();
  executor.reset();
  if (ends && !leads) say(island[0], Leaving::LibraryEnded);
  return idle;
}

// A thread that is stuck keeps what the thread works with.
void Departure::leave_devices(bool broken, int64_t until_ns) noexcept {
  DeviceSide &device = collectives_.device();
  core_.exec.take();  // the thread that drives may look at the device just now
  const bool has_library = device.lane().has_library();
  std::unique_ptr<DeviceExecutor> executor = device.take_executor();
  messages_.leave();
  if (!executor) device.leave_executor();
  core_.exec.give();
  const bool ended = executor && leave_library(std::move(executor), has_library, broken, until_ns);
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
  if (collectives_.device().executor()) leave_devices(broken, until_ns);
  Completions::wait(core_, now_ns() + Completions::kMostNs);
  retire();
}

}  // namespace isthmus::rank
