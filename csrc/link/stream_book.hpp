// What the streams of one TCP link owe: which piece was given to which stream, what has come, and what goes again when a stream is lost.
// Pure: StreamBook knows no socket, and is told the time. Both ends of a link keep one, and the two speak by notes, which travel between frames.
//
//   Got    by stream s: "so many frames of this connection have come". Their pieces are no longer owed.
//   Lost   by any stream: "my connection of stream s has ended; by it so many frames had come"
//
// A stream brings its frames in order, so a count says which ones have come. Nothing goes again before the other end has said its count, and
// an end that has said its count reads nothing more by that connection. So each frame comes exactly once, and frames need no numbers:
//
//   this end                                    the other end
//     s ends: Lost(s, count)    -- others -->     ends s as well
//                               <-- others --     Lost(s, count)
//     what s owes from there on goes again,
//     by the others
//     ...
//     s is connected again: Lost  -- s -->        the same, also where no other stream has brought it
//
// Connections of a stream are numbered (`generation`), and an end may never get one that the other has had. A Lost note holds two counts: of
// the last connection that has ended, and of the last one before it by which anything had come. By those between them nothing had come, nor
// by those behind them up to a third number. So the other end finds its own connection there, whatever attempts have failed meanwhile.
//
// A stream is up where it is connected, and this end knows what of its older connections had come (`settled`). A large frame's pieces may go
// by any stream. Small frames keep their order: they go by one stream, the leader, until it is lost. Then they wait until it is settled. Data
// has its place, whenever it comes, so a frame of it is large from kOrderedData on, and any other frame from kCopied on.
//
// Pieces of large frames are spread by the rates at which the streams' pieces are confirmed: a stream takes a piece where it would be through
// with it no later than all streams together with all that waits, or where no other stream would be through with it sooner. So a slow stream
// takes its part, and never the piece for which everybody waits at the end. A stream that was too slow for any piece is tried now and then.
//
// One thread at a time uses a StreamBook: the one that has the link's turn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "link/copy_room.hpp"
#include "link/frame.hpp"

namespace isthmus::link {

// A frame, or a piece of one, that a stream was given and that the other end has not confirmed.
struct OwedPiece {
  FrameHeader header;
  const std::byte *data = nullptr;
  Outgoing *out = nullptr;  // null: `data` is a copy, or the operation was cancelled
  uint32_t copied = 0;      // bytes of the book's copies that the piece holds
  bool ordered = false;
  bool gone = false;  // cancelled: goes by no other stream
  uint32_t kept = 0;  // bytes of the room of stream `keeper` that the piece holds
  uint32_t keeper = 0;
};

// The notes have a frame's header. These kinds are no FrameKind, and no sink sees them.
inline constexpr uint8_t kNoteGot = 7, kNoteLost = 8;
constexpr bool is_note(const FrameHeader &h) noexcept {
  return h.magic == FrameHeader::kMagic &&
         (static_cast<uint8_t>(h.kind) == kNoteGot || static_cast<uint8_t>(h.kind) == kNoteLost);
}

inline constexpr uint64_t kCopied = 64 * 1024, kOrderedData = 16 * 1024;  // bytes of the whole, at most
constexpr bool is_data(const FrameHeader &h) noexcept {
  return h.kind == FrameKind::PlanData || h.kind == FrameKind::MessageData;
}
constexpr bool any_order(const FrameHeader &h) noexcept { return is_data(h) && h.total > kOrderedData; }
// These frames are copied, their senders are free at once, and they are confirmed at leisure. The others are confirmed at once, since somebody
// may wait.
constexpr bool is_quiet(const FrameHeader &h) noexcept { return is_bare(h.kind) || (h.total <= kCopied && !any_order(h)); }

class StreamBook {
 public:
  static constexpr size_t kMostStreams = 16;
  // `room`: bytes of each stream for copies of what it owes. Over a long way a sender had better not wait for the confirmation.
  explicit StreamBook(size_t streams, uint64_t room = 0);
  bool connected(size_t s) const noexcept { return ledgers_[s].connected; }
  bool up(size_t s) const noexcept { return ledgers_[s].connected && ledgers_[s].settled; }
  uint32_t generation(size_t s) const noexcept { return ledgers_[s].generation; }  // of the last connection

  // ---- what this end sends
  bool has_room(size_t s) const noexcept { return up(s) && !ledgers_[s].mute && ledgers_[s].owed.size() < kMostOwed; }
  // Nothing more can be written by the connection, whose end has not been read yet. No other stream leaves it anything.
  void mute(size_t s) noexcept { ledgers_[s].mute = true; }
  // Whether the next frame that keeps its order may go by this stream now.
  bool takes_ordered(size_t s) noexcept;
  // A copy for a frame that keeps its order; null: there is no room until the other end confirms. `copied` is for OwedPiece.
  const std::byte *copy(const std::byte *from, uint32_t bytes, uint32_t &copied) noexcept;
  // Whether the next piece of a large frame, which this stream takes, may be a copy as well: only where small frames have room left, and where
  // frames keep their order, since copies are freed in it.
  bool may_copy(size_t s, const FrameHeader &h) noexcept {
    return h.total <= kCopied && copies_used_ - copies_freed_ <= kCopies / 2 && takes_ordered(s);
  }
  // Whether a piece of a large frame, of so many bytes, is to go by this stream, which has_room(). `waiting`: bytes of large frames that no
  // stream has taken, with this piece.
  bool takes_bulk(size_t s, uint64_t bytes, uint64_t waiting, int64_t now_ns) const noexcept;
  // The piece is owed by the stream from now on, which has_room().
  OwedPiece &give(size_t s, const OwedPiece &piece, int64_t now_ns) noexcept;
  // A piece that goes again, from now on owed by this stream, which has_room(); null: there is none for it.
  OwedPiece *again(size_t s, int64_t now_ns) noexcept;
  // Copies what stream s owes, all of which was written, as far as there is room. `done(piece)` is called for each piece: nobody reads its sender's
  // memory any more.
  template <class Done>
  void copy_owed(size_t s, Done done);
  // Whether anything given has neither been confirmed nor cancelled; and whether some of it was given to a stream that is lost, and waits for another
  // one or for word of what had come.
  struct Owes {
    bool any = false, again = false;
  };
  Owes owes() const noexcept;

  // ---- what this end receives
  // A frame has come. False: no frame may come by the stream now.
  bool received(size_t s, const FrameHeader &h) noexcept;

  // ---- notes
  // The note that goes by stream s now, before any frame. False: there is none.
  bool next_note(size_t s, FrameHeader &note) noexcept;
  bool to_tell(size_t s) const noexcept;  // whether there is one
  enum class Heard : uint8_t { Well, Ended, Fault };
  // A note that came by stream s. Ended: the connection of stream `note.slot` has ended, and the caller closes it. `done(piece)` is called for
  // each piece that has come and was not cancelled, and for each that copy_owed() had copied (`kept` is not 0). Fault: the other end counts wrongly.
  template <class Done>
  Heard heard(size_t s, const FrameHeader &note, int64_t now_ns, Done done);

  // ---- ends and beginnings
  void end(size_t s) noexcept;  // of the connection: this end reads and writes it no more
  // A new connection of the stream; the one before it has ended. False: one as new as this has ended already.
  bool come(size_t s, uint32_t generation) noexcept;

  // Calls `drop(piece)` for each piece with an Outgoing for which `match` holds. The book forgets the Outgoing.
  template <class Match, class Drop>
  void cancel(Match match, Drop drop);

 private:
  static constexpr size_t kMostOwed = 256;  // pieces of one stream
  // So much of what need not be confirmed at once may come without a note. Far less than what the other end may owe.
  static constexpr uint64_t kQuietFrames = 32, kQuietBytes = 64 * 1024;
  static constexpr uint64_t kCopies = 256 * 1024;  // bytes

  class PieceRing {
   public:
    void make() { pieces_.resize(kMostOwed); }
    size_t size() const noexcept { return size_; }
    OwedPiece &operator[](size_t i) noexcept { return pieces_[(first_ + i) % kMostOwed]; }
    OwedPiece &push(const OwedPiece &p) noexcept { return pieces_[(first_ + size_++) % kMostOwed] = p; }
    OwedPiece pop() noexcept {
      const OwedPiece p = pieces_[first_];
      first_ = (first_ + 1) % kMostOwed;
      --size_;
      return p;
    }

   private:
    std::vector<OwedPiece> pieces_;
    size_t first_ = 0, size_ = 0;
  };

  struct Had {  // what had come by a connection
    uint32_t generation = 0;
    uint64_t frames = 0;
  };

  // How fast pieces of large frames are confirmed: the last ones count most.
  struct Pace {
    uint64_t owed = 0;              // bytes
    int64_t since_ns = 0;           // when it began to owe, or when one was confirmed last
    double bytes = 0, seconds = 0;  // of what was confirmed
    void give(uint64_t n, int64_t now_ns) noexcept;
    void confirm(uint64_t n, int64_t now_ns) noexcept;
    double rate(int64_t now_ns) const noexcept;  // bytes a second, less the longer nothing is confirmed; 0: not known
    // Whether it has had nothing for so long that a try costs little, should it be as slow as it was.
    bool rested(uint64_t n, int64_t now_ns) const noexcept;
  };

  struct Ledger {
    bool connected = true, settled = true, mute = false;
    bool prompt = false;           // somebody waits for the confirmation
    uint32_t generation = 0;       // of the last connection
    uint32_t owed_generation = 0;  // of the connection to which what is owed was given
    uint32_t say = 0;              // the streams whose ends this stream is to tell; one bit each
    PieceRing owed;
    uint64_t confirmed = 0;      // frames before those owed, which the other end has
    uint64_t had = 0, told = 0;  // frames that have come by the last connection, and of which the other end was told
    uint64_t quiet_bytes = 0;    // that have come since
    Pace pace;
    CopyRoom room;
    Had last, before;                                    // the two counts of a Lost note
    void ended(uint32_t of, uint64_t frames) noexcept {  // a connection of that generation
      if (last.frames != 0) before = last;
      last = {of, frames};
    }
  };

  template <class Done>
  bool confirm(Ledger &l, uint64_t count, int64_t now_ns, Done done);
  void settle(Ledger &l);  // what the ledger still owes goes again
  void choose_leader(size_t candidate) noexcept;
  void tell_all(size_t about) noexcept;

  std::vector<Ledger> ledgers_;
  size_t leader_ = 0;
  std::deque<OwedPiece> again_ordered_, again_;
  std::unique_ptr<std::byte[]> copies_;  // a ring, freed in the order of the frames
  uint64_t copies_used_ = 0, copies_freed_ = 0;
};

template <class Done>
bool StreamBook::confirm(Ledger &l, uint64_t count, int64_t now_ns, Done done) {
  if (count < l.confirmed || count - l.confirmed > l.owed.size()) return false;
  for (; l.confirmed < count; ++l.confirmed) {
    const OwedPiece p = l.owed.pop();
    copies_freed_ += p.copied;
    if (p.kept != 0) ledgers_[p.keeper].room.give_back(p.kept);
    if (!is_quiet(p.header)) l.pace.confirm(p.header.bytes, now_ns);
    if (p.out || p.kept != 0) done(p);
  }
  return true;
}

template <class Done>
StreamBook::Heard StreamBook::heard(size_t s, const FrameHeader &note, int64_t now_ns, Done done) {
  if (static_cast<uint8_t>(note.kind) == kNoteGot)
    return up(s) && confirm(ledgers_[s], note.id, now_ns, done) ? Heard::Well : Heard::Fault;
  // note.epoch: the first connection of which the note does not speak.
  if (note.slot >= ledgers_.size() || note.id >= note.epoch || note.total > note.id) return Heard::Fault;
  const size_t about = note.slot;
  Ledger &l = ledgers_[about];
  const bool ends = l.connected && l.generation < note.epoch;
  if (ends && about == s) return Heard::Fault;  // nobody says by a connection that it has ended
  if (ends) end(about);
  if (!l.settled && l.owed_generation < note.epoch) {
    const uint64_t count = l.owed_generation == note.id      ? note.offset
                           : l.owed_generation == note.total ? note.digest
                           : l.owed_generation > note.total  ? 0
                                                             : UINT64_MAX;
    if (!confirm(l, count, now_ns, done)) return Heard::Fault;
    settle(l);
  }
  if (note.epoch - 1 > std::max(l.last.generation, l.generation)) {  // of a connection that this end has never had
    l.ended(note.epoch - 1, 0);
    tell_all(about);
  }
  return ends ? Heard::Ended : Heard::Well;
}

template <class Done>
void StreamBook::copy_owed(size_t s, Done done) {
  Ledger &l = ledgers_[s];
  for (size_t i = 0; i < l.owed.size(); ++i) {
    OwedPiece &p = l.owed[i];
    if (!p.out) continue;
    std::byte *const to = l.room.take(p.header.bytes, p.kept);
    if (!to) return;
    std::memcpy(to, p.data, p.header.bytes);
    p.keeper = static_cast<uint32_t>(s);
    p.data = to;
    const OwedPiece was = p;
    p.out = nullptr;
    done(was);
  }
}

template <class Match, class Drop>
void StreamBook::cancel(Match match, Drop drop) {
  const auto look = [&](OwedPiece &p) {
    if (!p.out || !match(p)) return;
    const OwedPiece was = p;
    p.out = nullptr;
    p.data = nullptr;
    p.gone = true;
    drop(was);
  };
  for (Ledger &l : ledgers_)
    for (size_t i = 0; i < l.owed.size(); ++i) look(l.owed[i]);
  for (OwedPiece &p : again_) look(p);
  for (OwedPiece &p : again_ordered_) look(p);
  std::erase_if(again_, [](const OwedPiece &p) { return p.gone; });
  std::erase_if(again_ordered_, [](const OwedPiece &p) { return p.gone; });
}

}  // namespace isthmus::link
