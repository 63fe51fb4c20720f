#include "p2p/recv_slots.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace isthmus::p2p {
namespace {

// `upto` and `apart` together are the numbers that were given here; all up to the first are.
void count(uint64_t &upto, std::vector<uint64_t> &apart, uint64_t number) {
  if (number > upto) apart.push_back(number);
  const auto next = [&] { return std::find(apart.begin(), apart.end(), upto + 1); };
  for (auto at = next(); at != apart.end(); at = next()) {
    *at = apart.back();
    apart.pop_back();
    ++upto;
  }
}

bool counted(uint64_t upto, const std::vector<uint64_t> &apart, uint64_t number) {
  return number <= upto || std::find(apart.begin(), apart.end(), number) != apart.end();
}

}  // namespace

// ---- the sender ----------------------------------------------------------------------------------------------------------------------

void SendSlots::open(uint32_t count, std::byte *first, uint64_t slot_bytes, const std::atomic<uint64_t> &asked,
                     const std::atomic<uint64_t> &landed) noexcept {
  count_ = count;
  first_ = count != 0 ? first : nullptr;
  slot_bytes_ = slot_bytes;
  asked_ = &asked;
  landed_ = &landed;
}

bool SendSlots::free(uint64_t number) const noexcept {
  if (number == 0 || !first_) return false;
  const uint64_t landed = landed_->load(std::memory_order_acquire);
  ISTHMUS_ASSERT(landed < number, "no message has left its slot before it was written there");
  return number <= landed + count_;
}

bool SendSlots::worth_waiting(uint64_t number, const Wait &wait) noexcept {
  if (number == 0 || !first_) return false;
  const uint64_t asked = asked_->load(std::memory_order_acquire);
  if (asked > most_asked_) {
    most_asked_ = asked;
    moved_ns_ = wait.now_ns;
  }
  if (asked < number)  // and where it was more once, the receive has got memory of its own
    return wait.grouped && most_asked_ < number && wait.now_ns - wait.called_ns < wait.group_ns;
  if (const uint64_t landed = landed_->load(std::memory_order_acquire); landed != seen_landed_) {
    seen_landed_ = landed;
    moved_ns_ = wait.now_ns;
  }
  return wait.now_ns - moved_ns_ < wait.patience_ns;
}

// ---- the receiver --------------------------------------------------------------------------------------------------------------------

void RecvSlots::resize(int ranks, uint32_t count, uint64_t slot_bytes) {
  sources_ = std::vector<SourceCounts>(static_cast<size_t>(ranks));
  count_ = count;
  slot_bytes_ = slot_bytes;
}

void RecvSlots::open(int source, uint64_t offset, std::atomic<uint64_t> &asked, std::atomic<uint64_t> &landed) noexcept {
  ISTHMUS_ASSERT(count_ != 0 && offset != 0, "slots have a number and a place");
  SourceCounts &from = of(source);
  from.offset = offset;
  from.asked_word = &asked;
  from.landed_word = &landed;
}

void RecvSlots::promise(int source, uint64_t receives) noexcept {
  SourceCounts &from = of(source);
  from.promised += receives;
  publish_asked(from);
}

bool RecvSlots::claimable(int source) const noexcept {
  if (count_ == 0 || source == kAnySource || any_waiting_ != 0) return false;
  const SourceCounts &from = of(source);
  return from.offset != 0 && may_gate(from, from.claimed + 1);
}

void RecvSlots::claim(SlotUse &use, int source, bool gated, bool own) noexcept {
  if (count_ == 0) return;
  if (source == kAnySource) {
    ISTHMUS_ASSERT(!gated || own, "a receive from any rank that waits behind a gate has memory of its own");
    use.counted = true;
    ++any_waiting_;
    if (gated) stand_apart(use, source);
    return;
  }
  SourceCounts &from = of(source);
  if (from.offset == 0) return;
  if (gated && !own) {
    ISTHMUS_ASSERT(claimable(source), "a receive waits for its slot behind a gate only where its number is known");
    submitted(source, from.claimed + 1);
    use.in_slot = true;
  }
  ++from.claimed;
  ISTHMUS_ASSERT(!use.promised || from.promised != 0, "a promised receive is called once");
  from.promised -= use.promised;
  use.promised = false;
  if (any_waiting_ == 0) use.expected = from.claimed;
  if (gated && own) stand_apart(use, source);
  else publish_asked(from);
}

// Not beyond a receive that stands behind a gate with memory of its own. It needs no slot, and the device may come to nothing that would
// empty one before the message of that receive has come.
void RecvSlots::publish_asked(SourceCounts &from) noexcept {
  if (from.apart == 0 && any_apart_ == 0) from.asked_word->store(from.claimed + from.promised, std::memory_order_release);
}

void RecvSlots::ask_for_less(SourceCounts &from, uint64_t number) noexcept {
  if (from.asked_word->load(std::memory_order_relaxed) > number) from.asked_word->store(number, std::memory_order_release);
}

void RecvSlots::stand_apart(SlotUse &use, int source) noexcept {
  if (use.apart) return;
  if (source == kAnySource) {
    use.apart = use.counted;
    any_apart_ += use.counted;
    for (SourceCounts &from : sources_)
      if (use.counted && from.offset != 0) ask_for_less(from, from.matched);
  } else if (SourceCounts &from = of(source); from.offset != 0) {
    use.apart = true;
    ++from.apart;
    ask_for_less(from, use.expected != 0 ? use.expected - 1 : from.matched);
  }
}

bool RecvSlots::take_slot(SlotUse &use, int source) noexcept {
  if (use.expected == 0 || !may_gate(of(source), use.expected)) return false;
  ISTHMUS_ASSERT(use.number == 0 && !use.in_slot, "a receive takes its slot once, before its message has come");
  submitted(source, use.expected);
  return use.in_slot = true;
}

void RecvSlots::match(SlotUse &use, int source, int sender) noexcept {
  SourceCounts &from = of(sender);
  const bool any = std::exchange(use.counted, false), apart = std::exchange(use.apart, false);
  ISTHMUS_ASSERT(!any || source == kAnySource, "only receives from any rank wait for all of them");
  if (any) {
    --any_waiting_;
    if (from.offset != 0) ++from.claimed;
  }
  if (apart) --(any ? any_apart_ : from.apart);
  if (apart && any && any_apart_ == 0) {
    for (SourceCounts &each : sources_)
      if (each.offset != 0) publish_asked(each);
  } else if (from.offset != 0 && (any || apart)) {
    publish_asked(from);
  }
  if (from.offset == 0) return;
  use.number = ++from.matched;
  ISTHMUS_ASSERT(from.matched <= from.claimed, "no message is matched without a receive that was called");
}

bool RecvSlots::may_come(const SlotUse &use, int sender) const noexcept {
  return !use.in_slot || use.number <= of(sender).landed + count_;
}

void RecvSlots::submitted(int sender, uint64_t number) noexcept {
  SourceCounts &from = of(sender);
  if (!counted(from.ordered, from.early, number)) count(from.ordered, from.early, number);
}

void RecvSlots::leave(SlotUse &use, int sender) noexcept {
  if (use.number == 0) return;
  SourceCounts &from = of(sender);
  const uint64_t number = std::exchange(use.number, 0);
  ISTHMUS_ASSERT(!counted(from.landed, from.ahead, number), "a message leaves its slot once");
  ISTHMUS_ASSERT(number <= from.matched, "only a message that was matched leaves its slot");
  count(from.landed, from.ahead, number);
  submitted(sender, number);
  ISTHMUS_ASSERT(from.landed <= from.ordered && from.ordered <= from.claimed,
                 "what has left its slot has been ordered, and claimed");
  from.landed_word->store(from.landed, std::memory_order_release);
}

}  // namespace isthmus::p2p
