#include "link/stream_book.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace isthmus::link {
namespace {

FrameHeader make_note(uint8_t kind) noexcept {
  FrameHeader h;
  h.kind = static_cast<FrameKind>(kind);
  return h;
}

}  // namespace

StreamBook::StreamBook(size_t streams, uint64_t room) : ledgers_(streams) {
  if (streams < 2) return;
  for (Ledger &l : ledgers_) {
    l.owed.make();
    if (room != 0) l.room.make(room);
  }
}

void StreamBook::choose_leader(size_t candidate) noexcept {
  // Until a leader that has ended is settled, nobody knows which of its frames have come.
  if (!ledgers_[leader_].connected && ledgers_[leader_].settled && up(candidate)) leader_ = candidate;
}

bool StreamBook::takes_ordered(size_t s) noexcept {
  choose_leader(s);
  return s == leader_ && up(s) && again_ordered_.empty();
}

const std::byte *StreamBook::copy(const std::byte *from, uint32_t bytes, uint32_t &copied) noexcept {
  copied = 0;
  if (bytes == 0) return from;
  const uint64_t whole = (uint64_t{bytes} + 63) / 64 * 64;
  const uint64_t at = copies_used_ % kCopies, skipped = at + whole > kCopies ? kCopies - at : 0;
  if (copies_used_ + skipped + whole - copies_freed_ > kCopies) return nullptr;
  if (!copies_) copies_ = std::make_unique_for_overwrite<std::byte[]>(kCopies);  // once for a link
  std::byte *to = copies_.get() + (copies_used_ + skipped) % kCopies;
  std::memcpy(to, from, bytes);
  copied = static_cast<uint32_t>(skipped + whole);
  copies_used_ += copied;
  return to;
}

bool StreamBook::Pace::rested(uint64_t n, int64_t now_ns) const noexcept {
  constexpr double kRest = 64;  // times what it would need for the piece
  return owed == 0 && seconds > 0 &&
         bytes * static_cast<double>(now_ns - since_ns) * 1e-9 > kRest * seconds * static_cast<double>(n);
}

void StreamBook::Pace::give(uint64_t n, int64_t now_ns) noexcept {
  constexpr double kFaded = 1.0 / 64;  // what was long ago says little, once there is news
  if (rested(n, now_ns)) bytes *= kFaded, seconds *= kFaded;
  if (owed == 0) since_ns = now_ns;
  owed += n;
}

void StreamBook::Pace::confirm(uint64_t n, int64_t now_ns) noexcept {
  constexpr double kKept = 7.0 / 8;
  bytes = bytes * kKept + static_cast<double>(n);
  seconds = seconds * kKept + static_cast<double>(now_ns - since_ns) * 1e-9;
  since_ns = now_ns;
  owed -= std::min(owed, n);
}

double StreamBook::Pace::rate(int64_t now_ns) const noexcept {
  const double waited = owed == 0 ? 0 : static_cast<double>(now_ns - since_ns) * 1e-9;
  return seconds > 0 ? bytes / (seconds + waited) : 0;
}

bool StreamBook::takes_bulk(size_t s, uint64_t bytes, uint64_t waiting, int64_t now_ns) const noexcept {
  if (ledgers_[s].pace.rested(bytes, now_ns)) return true;
  const double mine = ledgers_[s].pace.rate(now_ns);
  double all = 0, sooner = 0, rest = static_cast<double>(waiting);
  const auto through = [&](const Pace &pace, double rate) { return static_cast<double>(pace.owed + bytes) / rate; };
  for (size_t o = 0; o < ledgers_.size(); ++o) {
    if (!has_room(o)) continue;
    const Pace &pace = ledgers_[o].pace;
    const double rate = pace.rate(now_ns);
    // What is not known is tried, and what has rested as well, unless other frames hold it up.
    if (rate == 0) return mine == 0 || o == s || pace.owed != 0;
    if (pace.rested(bytes, now_ns) && ledgers_[o].owed.size() == 0) return mine == 0 || o == s || pace.owed != 0;
    all += rate;
    rest += static_cast<double>(pace.owed);
    const double then = through(pace, rate);
    sooner = sooner == 0 ? then : std::min(sooner, then);
  }
  const double then = through(ledgers_[s].pace, mine);
  return then <= sooner || then * all <= rest;
}

OwedPiece &StreamBook::give(size_t s, const OwedPiece &piece, int64_t now_ns) noexcept {
  if (!is_quiet(piece.header)) ledgers_[s].pace.give(piece.header.bytes, now_ns);
  return ledgers_[s].owed.push(piece);
}

OwedPiece *StreamBook::again(size_t s, int64_t now_ns) noexcept {
  choose_leader(s);
  auto &queue = s == leader_ && !again_ordered_.empty() ? again_ordered_ : again_;
  if (queue.empty()) return nullptr;
  OwedPiece &now = give(s, queue.front(), now_ns);
  queue.pop_front();
  return &now;
}

StreamBook::Owes StreamBook::owes() const noexcept {
  const bool waits = !again_.empty() || !again_ordered_.empty();
  Owes owes{waits, waits};
  for (const Ledger &l : ledgers_) {
    if (l.owed.size() == 0) continue;
    owes.any = true;
    owes.again = owes.again || !l.settled;
  }
  return owes;
}

void StreamBook::settle(Ledger &l) {
  l.settled = true;
  l.confirmed = 0;
  l.pace = {};
  std::deque<OwedPiece> ordered;
  while (l.owed.size() != 0) {
    const OwedPiece p = l.owed.pop();
    if (p.kept != 0) ledgers_[p.keeper].room.scatter();
    if (!p.gone) (p.ordered ? ordered : again_).push_back(p);
  }
  // They are older than what is left of an earlier loss.
  again_ordered_.insert(again_ordered_.begin(), ordered.begin(), ordered.end());
}

bool StreamBook::received(size_t s, const FrameHeader &h) noexcept {
  Ledger &l = ledgers_[s];
  if (!up(s)) return false;
  ++l.had;
  l.quiet_bytes += h.bytes;
  l.prompt = l.prompt || !is_quiet(h);
  return true;
}

bool StreamBook::to_tell(size_t s) const noexcept {
  const Ledger &l = ledgers_[s];
  if (!l.connected) return false;
  return l.say != 0 ||
         (l.settled && l.had != l.told && (l.prompt || l.had - l.told >= kQuietFrames || l.quiet_bytes >= kQuietBytes));
}

bool StreamBook::next_note(size_t s, FrameHeader &note) noexcept {
  Ledger &l = ledgers_[s];
  if (!to_tell(s)) return false;
  if (l.say != 0) {
    const auto about = static_cast<size_t>(std::countr_zero(l.say));
    l.say &= l.say - 1;
    const Ledger &of = ledgers_[about];
    note = make_note(kNoteLost);
    note.slot = static_cast<uint16_t>(about);
    note.id = of.last.generation;
    note.offset = of.last.frames;
    note.total = of.before.generation;
    note.digest = of.before.frames;
    note.epoch = of.connected ? of.generation : of.last.generation + 1;
    return true;
  }
  note = make_note(kNoteGot);
  note.id = l.told = l.had;
  l.prompt = false;
  l.quiet_bytes = 0;
  return true;
}

void StreamBook::tell_all(size_t about) noexcept {
  for (Ledger &l : ledgers_)
    if (l.connected) l.say |= 1u << about;
}

void StreamBook::end(size_t s) noexcept {
  Ledger &l = ledgers_[s];
  l.connected = false;
  l.say = 0;
  l.ended(l.generation, l.had);
  if (l.settled) l.owed_generation = l.generation;
  l.settled = false;
  tell_all(s);
}

bool StreamBook::come(size_t s, uint32_t generation) noexcept {
  Ledger &l = ledgers_[s];
  if (generation <= l.generation || generation <= l.last.generation) return false;
  if (l.connected) end(s);
  l.connected = true;
  l.mute = false;
  l.generation = generation;
  l.had = l.told = l.quiet_bytes = 0;
  l.prompt = false;
  l.say = 1u << s;
  for (size_t about = 0; about < ledgers_.size(); ++about)
    if (!up(about)) l.say |= 1u << about;
  return true;
}

}  // namespace isthmus::link
