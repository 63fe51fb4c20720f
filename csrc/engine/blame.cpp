// Who is to blame: turns a wait that took too long, or a description that does not fit, into a text that names the culprit and not
// the neighbour that waits like us. Runs off the hot path only.
#include <algorithm>

#include "base/clock.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {

namespace {

constexpr int kAnswerMs = 150;            // for a process that is well
constexpr double kPatienceSeconds = 1.0;  // of one search for a culprit, with processes whose heartbeats still come

}  // namespace

// Compares what rank q called at our sequence number with what we called, as far as its description can be seen; the number before
// too, where nobody has yet.
bool Member::check_peer(const Operation *op, int q) noexcept {
  const PeerRank &p = peers_[q];
  if (!p.mail) return true;
  const auto fits = [&](uint64_t sequence, uint64_t digest) {
    const Description &d = p.mail->description(sequence);
    return d.sequence.load(std::memory_order_acquire) != sequence || d.digest.load(std::memory_order_relaxed) == digest;
  };
  if (unchecked_ + 1 == op->sequence && !fits(unchecked_, unchecked_digest_)) return mismatch(unchecked_, q), false;
  if (!fits(op->sequence, op->digest)) return mismatch(op->sequence, q), false;
  return true;
}

void Member::mismatch(uint64_t sequence, int q) noexcept {
  const PeerRank &p = peers_[q];
  std::string theirs = "something else";
  if (p.mail) {
    const Description &d = p.mail->description(sequence);
    if (d.sequence.load(std::memory_order_acquire) == sequence) theirs = describe(d.what.load(), d.bytes.load());
  } else {
    Answer a;
    if (context_->control().query(p.process, p.their_index, epoch_, sequence, kAnswerMs, Deadline(kPatienceSeconds), a) &&
        a.known)
      theirs = describe(a.what, a.bytes);
  }
  const Called mine = called(sequence);
  const std::string ours = mine.known ? describe(mine.what, mine.bytes) : "something else";
  fail(Code::Mismatch,
       formatted("operation #{} of '{}' is not the same on all ranks: rank {} called {}, {} called {}{}; every rank must "
                 "make the same calls in "
                 "the same order",
                 sequence, name_, rank_, ours, rank_text(q), theirs,
                 ours == theirs ? " with other counts, or planned it on another topology" : ""),
       true);
}

Answer Member::answer(uint64_t sequence) const noexcept {
  Answer a;
  a.entered = entered_.load(std::memory_order_acquire);
  a.done = done_.load(std::memory_order_acquire);
  a.waiting_on = waiting_on_.load(std::memory_order_relaxed);
  a.turn = turn_.load(std::memory_order_relaxed);
  a.failed = failed();
  if (const Called own = called(sequence); own.known && sequence <= a.entered) {
    a.known = 1;
    a.digest = own.digest;
    a.what = own.what;
    a.bytes = own.bytes;
  } else if (a.entered > 0) {
    const Called last = called(a.entered);
    a.what = last.what;
    a.bytes = last.bytes;
  }
  if (a.entered <= a.done) {  // not inside a collective: the message that a thread waits for, or else the oldest
    a.waiting_on = -1;
    const Operation *awaited = awaited_message_.load(std::memory_order_acquire);
    const Lock lock(match_lock_);
    for (const OperationList *list : lists_)
      for (const Operation *o = list->head; o && !a.in_message; o = o->match_next) {
        const int peer = o->source >= 0 ? o->source : o->call.root;
        a.in_message = o == awaited && peer >= 0;
        if (a.waiting_on < 0 || a.in_message) a.waiting_on = peer;
      }
  }
  return a;
}

// Follows the chain of who waits for whom from rank `first` to its end.
std::string Member::culprit(const Operation &op, int first, Code &code) noexcept {
  const Deadline patience(kPatienceSeconds);
  std::vector<int> seen{rank_};
  std::string chain;
  for (int q = first;;) {
    const PeerRank &p = peers_[q];
    if (p.left.load(std::memory_order_acquire)) {
      code = Code::PeerLost;
      return formatted("{} has destroyed its side of the communicator", rank_text(q));
    }
    Answer a;
    const int64_t heard = p.process ? p.process->last_heard_ns.load(std::memory_order_relaxed) : now_ns();
    const double silent = static_cast<double>(now_ns() - heard) * 1e-9;
    if (!context_->control().query(p.process, p.their_index, epoch_, op.sequence, kAnswerMs, patience, a))
      return formatted("{} does not answer; last heard {:.1f} s ago: its process is stopped, or the network to it is down{}",
                       rank_text(q), silent, chain);
    const std::string busy = a.busy[0] ? formatted("; it is in {}", a.busy) : std::string();
    const auto new_rank = [&](int next) {
      return next >= 0 && next < world_ && std::find(seen.begin(), seen.end(), next) == seen.end();
    };
    if (op.is_p2p() && new_rank(a.waiting_on)) {
      seen.push_back(q);
      chain += formatted(" (rank {} waits for rank {})", q, a.waiting_on);
      q = a.waiting_on;
      continue;
    }
    if (op.is_p2p()) {
      const char *what = op.call.collective == Collective::Send ? "receive" : "send";
      return formatted("{} has made no {} that matches; last heard {:.1f} s ago{}{}", rank_text(q), what, silent, busy,
                       chain);
    }
    if (a.entered < op.sequence && (a.entered > a.done || a.in_message) && new_rank(a.waiting_on)) {  // held up before ours
      seen.push_back(q);
      chain += a.in_message ? formatted(" (rank {} waits for a message of rank {})", q, a.waiting_on)
                            : formatted(" (rank {} waits for rank {} in #{})", q, a.waiting_on, a.entered);
      q = a.waiting_on;
      continue;
    }
    if (a.entered < op.sequence)
      return formatted("{} has not called it: {}; last heard {:.1f} s ago{}{}", rank_text(q),
                       a.entered == 0 ? std::string("it has called nothing on this communicator")
                                      : formatted("its last call was #{} {}", a.entered, describe(a.what, a.bytes)),
                       silent, busy, chain);
    if (a.known && a.digest != op.digest && a.digest != 0) {
      code = Code::Mismatch;
      return formatted("{} called {} in its place{}", rank_text(q), describe(a.what, a.bytes), chain);
    }
    if (a.done >= op.sequence)
      return formatted("{} has finished it, but what it sent has not arrived; check the network{}", rank_text(q), chain);
    const int next = a.waiting_on;
    // It is not asleep: slow, held up this moment, or in a call of its island's library, which waits for another rank of the
    // island. A rank that does not answer at all is likelier, or one of that island that has not come.
    if (next < 0 || next >= world_) {
      const int island = served_in_[static_cast<size_t>(q)];
      int missing = -1;
      std::string others;  // in calls of their own
      for (int r = 0; r < world_; ++r) {
        if (r == rank_ || r == q || std::find(seen.begin(), seen.end(), r) != seen.end()) continue;
        Answer other;
        if (!context_->control().query(peers_[r].process, peers_[r].their_index, epoch_, op.sequence, kAnswerMs, patience,
                                       other))
          return formatted("{} does not answer: its process is stopped, or the network to it is down{}", rank_text(r),
                           chain);
        const bool beside = island >= 0 && served_in_[static_cast<size_t>(r)] == island;
        if (beside && missing < 0 && other.entered < op.sequence) missing = r;
        if (beside && other.busy[0]) others += formatted("; {} of the same island is in {}", rank_text(r), other.busy);
      }
      if (missing >= 0) {
        seen.push_back(q);
        chain += formatted(" (rank {} waits for its island's rank {})", q, missing);
        q = missing;
        continue;
      }
      return formatted("{} is still inside it and waits for nobody{}{}{}{}", rank_text(q),
                       others.empty() ? ": it is slow, or its transfer is" : " that it knows of", busy, others, chain);
    }
    if (std::find(seen.begin(), seen.end(), next) != seen.end())
      return formatted(
          "{} waits for rank {} in turn: data between them does not move; if several communicators are in flight, check "
          "that all ranks use them in the same order{}{}",
          rank_text(q), next, busy, chain);
    seen.push_back(q);
    chain += formatted(" (rank {} waits for rank {})", q, next);
    q = next;
  }
}

// Who keeps the library of this rank's group waiting: who has not called the operation, or does not answer.
std::string Member::library_text(const Operation &op, Code &code) noexcept {
  const char *call = executor_->doing();
  if (island_ranks_.empty())  // nobody asks the driver here: its call could wait for the very work that does not end
    return formatted("copies of {}:{} have not ended: the device is slow or has failed, or other work holds up its queue",
                     island_family_, device_);
  const std::string standing = executor_->standing(op);
  const std::string in = formatted("{}{}{}",
                                   call ? formatted("{} is in {}", island_family_, call)
                                        : formatted("what was given to {} has not ended", island_family_),
                                   standing.empty() ? "" : ": ", standing);
  const Deadline patience(kPatienceSeconds);
  int outside = -1;  // whom a rank of the group waits for
  int behind = -1;   // a rank of the group whose own device has not come as far as this one's
  uint32_t turn = op.at.turn();
  std::string busy;  // what one of them is in
  for (const int q : island_ranks_) {
    if (q == rank_) continue;
    Answer a;
    if (peers_[q].left.load(std::memory_order_acquire) ||
        !context_->control().query(peers_[q].process, peers_[q].their_index, epoch_, op.sequence, kAnswerMs, patience, a) ||
        a.entered < op.sequence || (a.known && a.digest != op.digest))
      return formatted("{}; {}", in, culprit(op, q, code));
    if (a.busy[0] && busy.empty()) busy = formatted("{} is in {}", rank_text(q), a.busy);
    if (a.waiting_on < 0 && a.done < op.sequence && a.turn < turn) {
      behind = q;
      turn = a.turn;
    }
    const int on = a.waiting_on;
    if (on >= 0 && on < world_ && std::find(island_ranks_.begin(), island_ranks_.end(), on) == island_ranks_.end())
      outside = on;
  }
  if (outside >= 0) return formatted("{}; {}", in, culprit(op, outside, code));
  if (behind >= 0)
    return formatted("{}; {} waits for its own device, which is {} chunk{} behind this rank's: it is slow or stuck{}", in,
                     rank_text(behind), op.at.turn() - turn, op.at.turn() - turn == 1 ? "" : "s",
                     busy.empty() ? busy : "; " + busy);
  return in + ", and all ranks of its group have called it: the library or its device is slow or stuck" +
         (busy.empty() ? busy : "; " + busy);
}

void Member::on_deadline(const Operation &op) noexcept {
  const int first = op.is_p2p() ? (op.source >= 0 ? op.source : op.call.root) : op.blocked_on;
  Code code = Code::Timeout;
  std::string who;
  if (first < 0 || first == rank_)
    who = op.is_p2p() ? "no rank has sent a message that matches"
          : op.short_of_room && op.phase == Phase::Fresh
              ? "no staging memory was free for it, which other operations of this process had (ISTHMUS_STAGING_BYTES)"
          : op.plan && !op.plan->device.empty() && executor_ ? library_text(op, code)
                                                             : "it waited for no rank";
  else who = culprit(op, first, code);
  if (const std::string inside = inside_text(); !inside.empty()) who += formatted("; {} is in {}", rank_text(rank_), inside);
  fail_at(op, code, formatted(" did not finish within {:g} s: {}", op.call.timeout, who), true);
}

// A message may end, and its operation be used again, while others are asked who is to blame: so what is judged is a copy, and it
// counts only if the operation is still there afterwards.
// A message whose copy from or to the device has not come to its end.
std::string Member::own_device_text(const Operation &op) const {
  const bool send = op.call.collective == Collective::Send;
  return formatted(
      "the device of {} has not copied it {} yet: what its streams hold has not run, or the stream that was given "
      "waits for something",
      rank_text(rank_), send ? "out" : "in");
}

std::string Member::no_place_text(const Operation &op) const {
  const bool send = op.call.collective == Collective::Send;
  return formatted(
      "no pinned memory of {} was free for it, which other messages of this process had ({}; a larger "
      "ISTHMUS_STAGING_BYTES has room for more of them)",
      rank_text(rank_),
      send ? "sends before it that nobody has received yet" : "what has come for receives before it is not copied in yet");
}

void Member::on_message_deadline(int64_t now) noexcept {
  Operation copy;
  const Operation *late = nullptr, *held = nullptr;
  bool no_place = false;
  const auto &lists = lists_;
  // Its peer has left, or all have of whom it may come, and what they had sent has had a second to come.
  int64_t all_left_ns = 0;
  for (int q = 0; q < world_ && all_left_ns >= 0; ++q)
    if (q != rank_) all_left_ns = peers_[q].left.load() ? std::max(all_left_ns, peers_[q].left_ns.load()) : -1;
  const auto gone = [&](const Operation &o) {
    const int64_t left = o.call.root < 0                   ? all_left_ns
                         : peers_[o.call.root].left.load() ? peers_[o.call.root].left_ns.load()
                                                           : -1;
    return left >= 0 && world_ > 1 && now - std::max(left, o.submitted_ns) > 1'000'000'000;
  };
  {
    const Lock lock(match_lock_);
    for (const OperationList *list : lists)
      for (const Operation *o = list->head; o && !late; o = o->match_next)
        if (now >= o->deadline_ns || (list != &landing_ && o->lies < 0 && !o->held && gone(*o))) late = o;
    if (!late) return;
    for (const OperationList *list : {&taking_, &landing_})
      for (const Operation *o = list->head; o && !held; o = o->match_next)
        if (o == late && on_stage(o) &&
            (list == &landing_ || o->slot.number == 0 || o->ticket.load(std::memory_order_relaxed) != 0))
          held = o;  // not a send that waits for its slot
    no_place = late->short_of_memory;
    for (const Operation *o = granting_.head; o; o = o->match_next)
      no_place |= o == late && on_stage(o) && !o->place.own && !o->slot.in_slot && o->lies < 0;
    copy.call = late->call;
    copy.source = late->source;
    copy.label = late->label;
    copy.whole = late->whole;
    copy.port = late->port;
    copy.submitted_ns = late->submitted_ns;
    copy.deadline_ns = late->deadline_ns;
  }
  const int first = copy.source >= 0 ? copy.source : copy.call.root;
  Code code = first < 0 && all_left_ns >= 0 ? Code::PeerLost : Code::Timeout;
  const std::string who = no_place                      ? no_place_text(copy)
                          : held                        ? own_device_text(copy)
                          : code == Code::PeerLost      ? "all other ranks have destroyed their side of the communicator"
                          : first < 0 || first == rank_ ? "no rank has sent a message that matches"
                                                        : culprit(copy, first, code);
  const std::string inside = inside_text();
  {
    const Lock lock(match_lock_);
    bool there = false;
    for (const OperationList *list : lists)
      for (const Operation *o = list->head; o && !there; o = o->match_next)
        there = o == late && o->submitted_ns == copy.submitted_ns;
    if (!there) return;
  }
  fail_at(copy, code,
          formatted("{}: {}{}", now < copy.deadline_ns ? "" : formatted(" did not finish within {:g} s", copy.call.timeout),
                    who, inside.empty() ? "" : formatted("; {} is in {}", rank_text(rank_), inside)),
          now >= copy.deadline_ns);
}

}  // namespace isthmus::engine
