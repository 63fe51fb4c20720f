#include "p2p/library_pact.hpp"

#include <algorithm>

namespace isthmus::p2p {

PactSide::Verdict PactSide::verdict(uint64_t decided, uint64_t first) noexcept {
  if (number(decided) < first) return Verdict::Open;
  const uint64_t back = decided & kMostBack;
  return back != kMostBack && number(decided) - back == first ? Verdict::Library : Verdict::Links;
}

// The last message of the library stays where it was.
uint64_t PactSide::by_links(uint64_t decided, uint64_t first) noexcept {
  const uint64_t back = decided & kMostBack;
  const uint64_t farther = back == kMostBack ? kMostBack : std::min(first - (number(decided) - back), kMostBack);
  return first << kBackBits | farther;
}

PactSide::Verdict PactSide::look(uint64_t first, uint64_t terms) noexcept {
  for (uint64_t decided = cell_->decided.load(std::memory_order_seq_cst);;) {
    if (const Verdict v = verdict(decided, first); v != Verdict::Open) return v;
    const bool passed = theirs_->passed.load(std::memory_order_seq_cst) >= first;
    const bool offered = theirs_->offered.load(std::memory_order_seq_cst) == first;
    if (!passed && !offered) return Verdict::Open;
    // Where the other side has gone on to another offer meanwhile, `decided` has changed, and these terms do not count.
    const bool alike = !passed && theirs_->terms.load(std::memory_order_acquire) == terms;
    const uint64_t next = alike ? by_library(first) : by_links(decided, first);
    if (cell_->decided.compare_exchange_strong(decided, next, std::memory_order_seq_cst)) return verdict(next, first);
  }
}

PactSide::Verdict PactSide::close(uint64_t first) noexcept {
  for (uint64_t decided = cell_->decided.load(std::memory_order_seq_cst);;) {
    if (const Verdict v = verdict(decided, first); v != Verdict::Open) return v;
    const uint64_t next = by_links(decided, first);
    if (cell_->decided.compare_exchange_strong(decided, next, std::memory_order_seq_cst)) return Verdict::Links;
  }
}

void PactSide::pass(uint64_t last) noexcept {
  uint64_t before = mine_->passed.load(std::memory_order_relaxed);
  while (before < last && !mine_->passed.compare_exchange_weak(before, last, std::memory_order_seq_cst)) {}
}

}  // namespace isthmus::p2p
