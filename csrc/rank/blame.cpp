#include "rank/blame.hpp"

#include <algorithm>
#include <optional>

#include "base/clock.hpp"
#include "engine/operation_text.hpp"

namespace isthmus::rank {
namespace {

template <class T>
bool has(const std::vector<T> &all, T one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// Since when nothing of a rank's messages can come any more, because the rank has left; -1: it has not, or something is on its way. The word that
// it leaves goes by another connection, and overtakes what lies in the kernels' buffers: seconds of it, where a network is slow.
int64_t left_ns(const PeerRank &p) {
  if (!p.left.load(std::memory_order_acquire)) return -1;
  if (p.messages_in.load(std::memory_order_acquire) < p.left_sent.load(std::memory_order_acquire)) return -1;
  return std::max(p.left_ns.load(), p.all_came_ns.load(std::memory_order_relaxed));
}

}  // namespace

const std::string Blame::inside() const {
  const std::string in = core_.inside_text();
  return in.empty() ? in : formatted("; {} is in {}", core_.id.text(core_.id.rank), in);
}

std::string Blame::culprit(const Operation &op, int first, Culprit &found) noexcept {
  return WaitChain(core_, served_in_, op, found).follow(first);
}

// ---- collectives ---------------------------------------------------------------------------------------------------------------------

std::string Blame::library_call_text(const Operation &op) const {
  const DeviceExecutor &executor = *collectives_.device().executor();
  const char *const call = executor.doing();
  const std::string standing = executor.standing(op);
  return formatted("{}{}{}",
                   call ? formatted("{} is in {}", core_.id.family, call)
                        : formatted("what was given to {} has not ended", core_.id.family),
                   standing.empty() ? "" : ": ", standing);
}

std::string Blame::library_text(const Operation &op, Culprit &found) noexcept {
  const std::vector<int> &island = collectives_.device().ranks();
  if (island.empty() ||
      op.plan->by_cells)  // no thread asks the driver here: the driver's call could wait for the very work that does not end
    return formatted("copies of {}:{} have not ended: the device is slow or has failed, or other work holds up its queue",
                     core_.id.family, core_.device.number);
  const std::string in = library_call_text(op);
  std::vector<std::optional<process::ControlRoom::Inquiry>> asked;  // none: of a rank that has left, or of this rank
  for (const int q : island)
    if (q == core_.id.rank || core_.peers[q].left.load(std::memory_order_acquire)) asked.emplace_back();
    else asked.emplace_back(ask(core_, q, {.sequence = op.sequence}));
  const Deadline patience(kBlamePatience);
  int outside = -1;  // a rank outside the island, for which a rank of the island waits
  int behind = -1;   // a rank of the island whose own device has not come as far as this one's
  uint32_t turn = op.run.at.turn();
  std::string busy;  // the call in which one rank of the island is
  for (size_t i = 0; i < island.size(); ++i) {
    const int q = island[i];
    if (q == core_.id.rank) continue;
    Answer a;
    if (!asked[i] || !asked[i]->answered(kAnswerMs, patience, a) || a.entered < op.sequence ||
        (a.known && a.digest != op.digest))
      return formatted("{}; {}", in, culprit(op, q, found));
    if (a.busy[0] && busy.empty()) busy = formatted("; {} is in {}", core_.id.text(q), a.busy);
    if (a.waiting_on < 0 && a.done < op.sequence && a.turn < turn) {
      behind = q;
      turn = a.turn;
    }
    if (const int on = a.waiting_on; on >= 0 && on < core_.id.world && !has(island, on)) outside = on;
  }
  if (outside >= 0) return formatted("{}; {}", in, culprit(op, outside, found));
  const uint32_t chunks = op.run.at.turn() - turn;
  if (behind >= 0)
    return formatted("{}; {} waits for its own device, which is {} chunk{} behind this rank's: it is slow or stuck{}", in,
                     core_.id.text(behind), chunks, chunks == 1 ? "" : "s", busy);
  return in + ", and all ranks of its group have called it: the library or its device is slow or stuck" + busy;
}

void Blame::fail_late(const Operation &op, const Operation &late) noexcept {
  const int first = op.run.blocked_on;
  Culprit found;
  std::string who;
  if (first >= 0 && first != core_.id.rank) who = culprit(op, first, found);
  else if (op.run.room.lacks && op.run.phase == Phase::Fresh)
    who = "no staging memory was free for it, which other operations of this process had (ISTHMUS_STAGING_BYTES)";
  else if (op.plan && !op.plan->device.empty() && collectives_.device().executor()) who = library_text(op, found);
  else who = "it waited for no rank";
  const std::string before = &late == &op ? std::string()
                                          : formatted("it waits for #{} {} before it: ", op.sequence,
                                                      describe(core_.id, code_of(op.call), op.call.bytes));
  core_.fail_at(late, found.code,
                formatted(" did not finish within {:g} s: {}{}{}", late.call.timeout, before, who, inside()), Lateness::Late,
                std::move(found.ranks));
}

// ---- messages ------------------------------------------------------------------------------------------------------------------------

std::string Blame::own_device_text(const Operation &op) const {
  return formatted(
      "the device of {} has not copied it {} yet: what its streams hold has not run, or the stream that was given "
      "waits for something",
      core_.id.text(core_.id.rank), op.call.collective == Collective::Send ? "out" : "in");
}

std::string Blame::library_message_text() const {
  const DeviceExecutor *const executor = collectives_.device().executor();
  const char *const call = executor ? executor->doing() : nullptr;
  return formatted(
      "both ranks have given it to {}, where it has not ended: the library or a device is slow or stuck, or a "
      "stream that was given waits for something{}",
      core_.id.family, call ? formatted("; {} is in {}", core_.id.family, call) : "");
}

std::string Blame::no_place_text(const Operation &op) const {
  const bool send = op.call.collective == Collective::Send;
  return formatted(
      "no pinned memory of {} was free for it, which other messages of this process had ({}; a larger "
      "ISTHMUS_STAGING_BYTES has room for more of them)",
      core_.id.text(core_.id.rank),
      send ? "sends before it that nobody has received yet" : "what has come for receives before it is not copied in yet");
}

// While this rank asks other ranks, a message may end, and its operation may be used again. So Blame judges a copy of the message. The judgement
// counts only if the operation is still there afterwards.
struct Blame::LateMessage {
  const Operation *late = nullptr;  // compared, never followed
  Operation copy;
  bool held = false, no_place = false, by_library = false;
  int64_t all_left_ns =
      0;  // since when nothing can come of the others, which have all left; -1: not all have, or something can
};

bool Blame::find_late(int64_t now, LateMessage &found) noexcept {
  constexpr int64_t kSecond = 1'000'000'000;
  const int world = core_.id.world;
  for (int q = 0; q < world && found.all_left_ns >= 0; ++q)
    if (q != core_.id.rank) {
      const int64_t one = left_ns(core_.peers[q]);
      found.all_left_ns = one < 0 ? -1 : std::max(found.all_left_ns, one);
    }
  // The message's peer has left, or all ranks have left that may send the message. All that they had sent has come, a second ago or more.
  const auto gone = [&](const Operation &o) {
    const int64_t left = o.call.root < 0 ? found.all_left_ns : left_ns(core_.peers[o.call.root]);
    return left >= 0 && world > 1 && now - std::max(left, o.time.submitted_ns) > kSecond;
  };
  messages_.each([&](const Operation &o, const OperationList &list, const MatchState &s) {
    if (now < o.time.deadline_ns && (&list == &s.landing || o.message.lies >= 0 || o.message.held || !gone(o))) return true;
    found.late = &o;
    const bool waits_for_slot =
        &list == &s.taking && o.message.slot.number != 0 && o.carry.ticket.load(std::memory_order_relaxed) == 0;
    found.held = on_stage(&o) && (&list == &s.landing || (&list == &s.taking && !waits_for_slot));
    found.no_place = o.carry.starved || (&list == &s.granting && on_stage(&o) && !o.message.place.own &&
                                         !o.message.slot.in_slot && o.message.lies < 0);
    found.by_library = &list == &s.exchanging;
    found.copy.call = o.call;
    found.copy.message.source = o.message.source;
    found.copy.label = o.label;
    found.copy.cut.whole = o.cut.whole;
    found.copy.carry.port = o.carry.port;
    found.copy.time.submitted_ns = o.time.submitted_ns;
    found.copy.time.deadline_ns = o.time.deadline_ns;
    return false;
  });
  return found.late != nullptr;
}

void Blame::fail_late_message(int64_t now) noexcept {
  LateMessage found;
  if (!find_late(now, found)) return;
  const Operation &copy = found.copy;
  const int first = copy.message.source >= 0 ? copy.message.source : copy.call.root;
  Culprit blamed;
  if (first < 0 && found.all_left_ns >= 0) {
    blamed.code = Code::PeerLost;
    for (int q = 0; q < core_.id.world; ++q)
      if (q != core_.id.rank) blamed.ranks.push_back(q);
  }
  const std::string who = found.no_place                  ? no_place_text(copy)
                          : found.held                    ? own_device_text(copy)
                          : found.by_library              ? library_message_text()
                          : blamed.code == Code::PeerLost ? "all other ranks have destroyed their side of the communicator"
                          : first < 0 || first == core_.id.rank ? "no rank has sent a message that matches"
                                                                : culprit(copy, first, blamed);
  const std::string in = inside();
  bool there = false;
  messages_.each([&](const Operation &o, const OperationList &, const MatchState &) {
    there = &o == found.late && o.time.submitted_ns == copy.time.submitted_ns;
    return !there;
  });
  if (!there) return;
  core_.fail_at(
      copy, blamed.code,
      formatted("{}: {}{}", now < copy.time.deadline_ns ? "" : formatted(" did not finish within {:g} s", copy.call.timeout),
                who, in),
      now < copy.time.deadline_ns ? Lateness::InTime : Lateness::Late, std::move(blamed.ranks));
}

// The operation is in none of the lists yet, because the thread that begins the operation is held up before.
void Blame::fail_late_submission(int64_t now) noexcept {
  std::string late;
  for (const engine::SubmitLock *lock : {&core_.collective_lock, &core_.message_lock})
    lock->if_late(now, [&](const Operation &op) {
      late = formatted("{} did not finish within {:g} s: {} is in {}", core_.describe(op), op.call.timeout,
                       core_.id.text(core_.id.rank), core_.inside_text());
    });
  if (late.empty()) return;
  Failure why{{Code::Timeout, late}};
  why.late = true;
  core_.fail(std::move(why), Tell::Peers);
}

}  // namespace isthmus::rank
