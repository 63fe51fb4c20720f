#include "collective/descriptions.hpp"

#include "engine/operation_text.hpp"

namespace isthmus::collective {

void Descriptions::publish(const Operation &op, uint64_t ring) noexcept {
  Description &d = core_.mail->description(op.sequence);
  // `sequence` is stored last. A reader that looks early sees the old description. Once the number fits, the reader sees all of the new
  // description.
  d.digest.store(op.digest, std::memory_order_relaxed);
  d.bytes.store(op.call.bytes, std::memory_order_relaxed);
  d.ring.store(ring, std::memory_order_relaxed);
  d.what.store(code_of(op.call), std::memory_order_relaxed);
  d.sequence.store(op.sequence, std::memory_order_release);
}

// What a rank that has left had to send belongs to the operations that it had ended. Its mailbox is there until this rank has ended them too, and no
// longer. It may be another communicator's before this rank hears that the rank has left.
bool Descriptions::gone(const Operation &op, int q) noexcept {
  const PeerRank &p = core_.peers[q];
  const uint32_t owner = p.mail ? p.mail->standing.communicator.load(std::memory_order_acquire) : 0;
  const bool left = p.left.load(std::memory_order_acquire) && p.left_done.load(std::memory_order_relaxed) < op.sequence;
  if (!left && (owner == 0 || owner == core_.id.epoch)) return false;
  core_.fail_at(op, Code::PeerLost, formatted(": {} {}", core_.id.text(q), engine::kHasLeft), engine::Lateness::InTime, {q});
  return true;
}

bool Descriptions::check(const Operation &op, int q) noexcept { return !gone(op, q) && same(op, q); }

bool Descriptions::same(const Operation &op, int q) noexcept {
  const PeerRank &p = core_.peers[q];
  if (!p.mail) return true;
  const auto fits = [&](uint64_t sequence, uint64_t digest) {
    const Description &d = p.mail->description(sequence);
    return d.sequence.load(std::memory_order_acquire) != sequence || d.digest.load(std::memory_order_relaxed) == digest;
  };
  const bool before = unchecked_ + 1 != op.sequence || fits(unchecked_, unchecked_digest_);
  if (before && fits(op.sequence, op.digest)) return true;
  if (!gone(op, q)) mismatch(before ? op.sequence : unchecked_, q);
  return false;
}

void Descriptions::mismatch(uint64_t sequence, int q) noexcept {
  const PeerRank &p = core_.peers[q];
  std::string theirs = "something else";
  if (p.mail) {
    const Description &d = p.mail->description(sequence);
    if (d.sequence.load(std::memory_order_acquire) == sequence) theirs = describe(core_.id, d.what.load(), d.bytes.load());
  } else {
    constexpr int kAnswerMs = 150;
    constexpr double kPatienceSeconds = 5;  // a process that is lost ends the wait
    Answer a;
    auto question = core_.context->control().ask(p.process, p.their_index, core_.id.epoch, {.sequence = sequence});
    if (question.answered(kAnswerMs, Deadline(kPatienceSeconds), a) && a.known) theirs = describe(core_.id, a.what, a.bytes);
  }
  const Called mine = called(sequence);
  const std::string ours = mine.known ? describe(core_.id, mine.code, mine.bytes) : "something else";
  core_.fail(
      Code::Mismatch,
      formatted("operation #{} of '{}' is not the same on all ranks: rank {} called {}, {} called {}{}; every rank must "
                "make the same calls in "
                "the same order",
                sequence, core_.id.name, core_.id.number(), ours, core_.id.text(q), theirs,
                ours == theirs ? " with other counts, or planned it on another topology" : ""),
      Tell::Peers);
}

// This rank publishes an operation when its host list begins, a little after the rank has called it. Until then an older operation's description
// stands there. So the queue is asked first.
Descriptions::Called Descriptions::called(uint64_t sequence) const noexcept {
  Called own;
  queue_.each([&](const Operation &o) {
    if (o.sequence == sequence) own = {true, code_of(o.call), o.call.bytes, o.digest};
    return o.sequence < sequence;
  });
  if (own.known) return own;
  const Description &d = core_.mail->description(sequence);
  if (d.sequence.load(std::memory_order_acquire) != sequence) return own;
  return {true, d.what.load(), d.bytes.load(), d.digest.load()};
}

// An operation may end without a word from all ranks, so the operation may have met another one elsewhere (a broadcast from another root). The
// next operation compares the description of the last one too.
void Descriptions::ended(const Operation &op, bool heard_all) noexcept {
  unchecked_ = heard_all ? 0 : op.sequence;
  unchecked_digest_ = op.digest;
}

// A rank that has left may have given its mailbox back: zeros, or another communicator's numbers.
uint64_t Descriptions::ended_by(int q) const noexcept {
  const PeerRank &p = core_.peers[q];
  return p.left.load(std::memory_order_acquire) ? p.left_done.load(std::memory_order_relaxed)
                                                : p.mail->done.value.load(std::memory_order_acquire);
}

bool Descriptions::ended_by_all(uint64_t sequence, Operation &op) noexcept {
  if (seen_by_all_ >= sequence) return true;
  for (int q = 0; q < core_.id.world; ++q) {
    if (q == core_.id.rank || !core_.peers[q].mail || ended_by(q) >= sequence) continue;
    gone(op, q);
    return op.run.blocked_on = q, false;
  }
  seen_by_all_ = sequence;
  return true;
}

bool Descriptions::ended_by_all(uint64_t sequence) const noexcept {
  for (int q = 0; q < core_.id.world; ++q)
    if (q != core_.id.rank && core_.peers[q].mail && ended_by(q) < sequence) return false;
  return true;
}

}  // namespace isthmus::collective
