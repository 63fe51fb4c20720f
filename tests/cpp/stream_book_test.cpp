// StreamBook, both ends of it, over connections that are cut at any byte, noticed late by either end, and made again, by random schedules.
// Each frame comes once, small frames come in their order, and a piece is confirmed when it has come and not before.
#include "link/stream_book.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "link/stream_windows.hpp"

namespace isthmus::link {
namespace {

// What may be wrong with a book, or with who uses it. Each of these must be found.
enum class Mutation {
  None,
  LostCountsOneLess,  // of what had come
  LostCountsOneMore,
  LostHidesTheOlder,  // a Lost note has no second count
  GotCountsOneMore,
  NobodyHearsOfLosses,  // no Lost note comes
  ReadsAfterTheEnd,     // an end that has said its count goes on reading
  LeaderByChance,       // small frames go by whatever stream is up
  GoesAgainAtOnce,      // what a lost stream owes goes again before the other end has said what had come
};

std::string name(Mutation m) {
  static constexpr const char *kNames[] = {"None",
                                           "LostCountsOneLess",
                                           "LostCountsOneMore",
                                           "LostHidesTheOlder",
                                           "GotCountsOneMore",
                                           "NobodyHearsOfLosses",
                                           "ReadsAfterTheEnd",
                                           "LeaderByChance",
                                           "GoesAgainAtOnce"};
  return kNames[static_cast<int>(m)];
}

struct Parcel {
  FrameHeader header;
  uint64_t size = 0, written = 0;  // bytes
};

// One direction of a connection: a parcel is there as far as it was written.
struct Pipe {
  std::deque<Parcel> parcels;
  uint64_t read = 0;  // bytes of the first
};

struct Connection {
  uint32_t generation = 0;
  bool cut = false;
  Pipe from[2];
};

class World {
 public:
  // `returns`: streams that are lost are connected again; else at least one is never cut. `room`: bytes of each stream for copies of what it owes.
  World(uint64_t seed, size_t streams, bool returns, Mutation mutation, uint64_t room = 0)
      : random_(seed),
        mutation_(mutation),
        returns_(returns),
        streams_(streams),
        books_{StreamBook(streams, room), StreamBook(streams, room)} {
    for (size_t s = 0; s < streams; ++s) {
      wires_.push_back(std::make_shared<Connection>());
      numbers_.push_back(0);
      for (int side : {0, 1}) ends_[side].push_back({wires_[s], {}});
    }
    for (int side : {0, 1}) {
      outs_[side] = std::deque<Outgoing>(kBulk);
      for (Outgoing &o : outs_[side]) o.header.total = o.cut = 1 << 20;
      for (uint64_t i = 0; i < kBulk; ++i) senders_[side].emplace_back(kPiece, pattern(kSmall + i));
    }
  }

  // What went wrong; empty: nothing.
  std::string run() {
    for (int step = 0; step < 1'000'000 && wrong_.empty(); ++step) {
      if (over()) return wrong_;
      const int side = pick(2);
      const size_t s = pick(streams_);
      switch (pick(13)) {
        case 0:
          if (pick(25) == 0 && cuts_ < 60) cut(s);
          break;
        case 1:
          if (pick(3) == 0) notice(side, s);
          break;
        case 2:
          if (pick(4) == 0) connect(s);
          break;
        case 3: take_up(side, s); break;
        case 4: copy(side, s); break;
        default: pick(2) ? write(side, s) : read(side, s);
      }
    }
    if (wrong_.empty()) wrong_ = "nothing goes on";
    return wrong_;
  }
  int cuts() const { return cuts_; }
  int kept() const { return copies_ - kept_back_; }  // of these, not confirmed yet
  int copies() const { return copies_; }             // of pieces, whose senders were free before they were confirmed

 private:
  static constexpr uint64_t kSmall = 150, kBulk = 150;  // frames of each end
  static constexpr size_t kPiece = 1000;                // bytes of a bulk frame's piece
  static std::byte pattern(uint64_t id) { return static_cast<std::byte>(id % 251); }

  struct End {
    std::shared_ptr<Connection> wire;  // null: it has none
    std::optional<Parcel> now;         // that is being written
    const std::byte *data = nullptr;   // of it; null: nobody looks
    std::shared_ptr<Connection> offered = {};
  };

  size_t pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  void fail(const std::string &why) {
    if (wrong_.empty()) wrong_ = why;
  }

  bool over() const {
    for (int side : {0, 1})
      if (came_[side].size() != kSmall + kBulk || confirmed_[side].size() != kBulk) return false;
    return true;
  }

  void cut(size_t s) {
    Connection &c = *wires_[s];
    if (c.cut || (!returns_ && s == 0)) return;
    c.cut = true;
    ++cuts_;
    for (Pipe &p : c.from) {  // what was under way is gone, from some byte on
      uint64_t there = 0;
      for (const Parcel &one : p.parcels) there += one.written;
      uint64_t keep = p.read + pick(there - p.read + 1);
      for (Parcel &one : p.parcels) {
        one.written = std::min(one.written, keep);
        keep -= one.written;
      }
    }
  }

  // An end finds that its connection has ended, after it has read what is there or some of it.
  void notice(int side, size_t s) {
    End &e = ends_[side][s];
    if (!e.wire || !e.wire->cut) return;
    for (size_t reads = pick(40); reads > 0 && ends_[side][s].wire; --reads) read(side, s);
    if (!ends_[side][s].wire) return;
    books_[side].end(s);
    close(side, s);
    if (mutation_ == Mutation::GoesAgainAtOnce) {
      FrameHeader note;
      note.kind = static_cast<FrameKind>(kNoteLost);
      note.slot = static_cast<uint16_t>(s);
      note.id = books_[side].generation(s);
      note.epoch = books_[side].generation(s) + 1;
      note.offset = std::exchange(got_[side][s], 0);
      hear(side, s, note);
    }
  }

  void close(int side, size_t s) {
    End &e = ends_[side][s];
    if (mutation_ == Mutation::ReadsAfterTheEnd) leftover_[side].push_back({s, e.wire});
    if (e.wire) cut_behind(*e.wire);
    e.wire = nullptr;
    e.now.reset();
  }
  void cut_behind(Connection &c) { c.cut = true; }

  // Side 0 connects, which may fail half way: then it alone has the connection.
  void connect(size_t s) {
    if (!returns_ || ends_[0][s].wire || ends_[0][s].offered) return;
    auto made = std::make_shared<Connection>();
    made->generation = ++numbers_[s];
    ends_[0][s].offered = made;
    if (pick(4) == 0) made->cut = true;
    else ends_[1][s].offered = made;
    wires_[s] = made;
  }
  void take_up(int side, size_t s) {
    End &e = ends_[side][s];
    if (!e.offered) return;
    const auto made = std::exchange(e.offered, nullptr);
    const bool had = books_[side].connected(s);
    if (!books_[side].come(s, made->generation)) {
      made->cut = true;
      return;
    }
    if (had) close(side, s);
    got_[side][s] = 0;
    e.wire = made;
  }

  void write(int side, size_t s) {
    End &e = ends_[side][s];
    if (!e.wire || (!e.now && !choose(side, s))) return;
    if (e.wire->cut) return;  // into nothing
    auto &parcels = e.wire->from[side].parcels;
    if (e.now->written == 0) parcels.push_back(*e.now);
    Parcel &there = parcels.back();
    const uint64_t n = 1 + pick(e.now->size - e.now->written);
    there.written = e.now->written += n;
    if (e.now->written != e.now->size) return;
    const auto own = [&](std::byte b) { return b == pattern(e.now->header.id); };
    if (e.data && !std::all_of(e.data, e.data + e.now->header.bytes, own)) fail("a piece was sent with other bytes");
    e.now.reset();
  }

  // As a link does it, where nothing is half written.
  void copy(int side, size_t s) {
    if (ends_[side][s].now) return;
    books_[side].copy_owed(s, [&](const OwedPiece &piece) {
      std::vector<std::byte> &sender = senders_[side][piece.header.id - kSmall];
      std::fill(sender.begin(), sender.end(), std::byte{0xff});  // it is the program's again
      if (!confirmed_[side].insert(piece.header.id).second) fail("a piece was copied that was confirmed");
      ++copies_;
    });
  }

  bool choose(int side, size_t s) {
    StreamBook &book = books_[side];
    End &e = ends_[side][s];
    e.data = nullptr;
    FrameHeader note;
    if (book.next_note(s, note)) {
      const bool lost = static_cast<uint8_t>(note.kind) == kNoteLost;
      if (lost && mutation_ == Mutation::LostCountsOneLess && note.offset > 0) --note.offset;
      if (lost && mutation_ == Mutation::LostCountsOneMore) ++note.offset;
      if (lost && mutation_ == Mutation::LostHidesTheOlder) note.total = note.digest = 0;
      if (!lost && mutation_ == Mutation::GotCountsOneMore) ++note.id;
      e.now = Parcel{note, sizeof(FrameHeader), 0};
      return true;
    }
    if (!book.has_room(s)) return false;
    if (OwedPiece *again = book.again(s, 0)) {
      e.now = Parcel{again->header, 64 + again->header.bytes, 0};
      if (!again->ordered) e.data = again->data;
      return true;
    }
    OwedPiece piece;
    const bool ordered =
        (mutation_ == Mutation::LeaderByChance || book.takes_ordered(s)) && next_small_[side] < kSmall && pick(2) == 0;
    if (ordered) {
      piece.header.id = next_small_[side];
      piece.header.total = piece.header.bytes = static_cast<uint32_t>(pick(3000));
      piece.ordered = true;
      const std::vector<std::byte> bytes(piece.header.bytes, static_cast<std::byte>(next_small_[side]));
      piece.data = book.copy(bytes.data(), piece.header.bytes, piece.copied);
      if (piece.header.bytes != 0 && !piece.data) return false;
      ++next_small_[side];
    } else {
      if (next_bulk_[side] == kBulk) return false;
      Outgoing &out = outs_[side][next_bulk_[side]];
      piece.header.id = kSmall + next_bulk_[side]++;
      piece.header.total = 1 << 20;
      piece.header.bytes = kPiece;
      piece.out = &out;
      piece.data = e.data = senders_[side][piece.header.id - kSmall].data();
      ++out.pieces;
    }
    e.now = Parcel{book.give(s, piece, 0).header, 64 + piece.header.bytes, 0};
    return true;
  }

  void read(int side, size_t s) {
    if (mutation_ == Mutation::ReadsAfterTheEnd)
      for (auto &[stream, wire] : leftover_[side])
        if (stream == s && wire) take(side, s, *wire);
    if (ends_[side][s].wire) take(side, s, *std::shared_ptr(ends_[side][s].wire));
  }

  void take(int side, size_t s, Connection &wire) {
    Pipe &p = wire.from[1 - side];
    if (p.parcels.empty()) return;
    Parcel &first = p.parcels.front();
    if (first.written == p.read) return;
    p.read += 1 + pick(first.written - p.read);
    if (p.read < first.size) return;
    const FrameHeader h = first.header;
    p.parcels.pop_front();
    p.read = 0;
    StreamBook &book = books_[side];
    if (is_note(h)) {
      if (ends_[side][s].wire.get() != &wire) return;
      const bool lost = static_cast<uint8_t>(h.kind) == kNoteLost;
      if (mutation_ == Mutation::NobodyHearsOfLosses && lost) return;
      if (!lost) got_[side][s] = h.id;
      for (size_t times = pick(5) == 0 ? 2 : 1; times > 0; --times) hear(side, s, h);
      return;
    }
    if (ends_[side][s].wire.get() == &wire && !book.received(s, h)) fail("a frame came before its time");
    auto &came = came_[1 - side];  // by sender
    if (!came.insert(h.id).second) fail("a frame came twice");
    if (h.id < kSmall && h.id != small_came_[side]++) fail("a small frame came out of its order");
  }

  void hear(int side, size_t s, const FrameHeader &h) {
    const auto heard = books_[side].heard(s, h, 0, [&](const OwedPiece &piece) {
      if (!came_[side].contains(piece.header.id)) fail("a piece was confirmed that had not come");
      if (piece.kept != 0) return (void)++kept_back_;  // its sender was told when it was copied
      if (!confirmed_[side].insert(piece.header.id).second) fail("a piece was confirmed twice");
    });
    if (heard == StreamBook::Heard::Fault) fail("a note was refused");
    if (heard == StreamBook::Heard::Ended) close(side, h.slot);
  }

  std::mt19937_64 random_;
  const Mutation mutation_;
  const bool returns_;
  const size_t streams_;
  StreamBook books_[2];
  std::vector<std::shared_ptr<Connection>> wires_;
  std::vector<uint32_t> numbers_;
  std::vector<End> ends_[2];
  std::vector<std::pair<size_t, std::shared_ptr<Connection>>> leftover_[2];
  std::deque<Outgoing> outs_[2];
  std::vector<std::vector<std::byte>> senders_[2];  // the memory of bulk frames
  uint64_t next_small_[2] = {}, next_bulk_[2] = {}, small_came_[2] = {};
  std::set<uint64_t> came_[2], confirmed_[2];  // by sender
  std::map<size_t, uint64_t> got_[2];          // what the last Got said, by stream
  int cuts_ = 0, copies_ = 0, kept_back_ = 0;
  std::string wrong_;
};

TEST(StreamBook, WhateverIsCutEachFrameComesOnceInOrderAndIsConfirmed) {
  int cuts = 0;
  for (const bool returns : {true, false})
    for (const size_t streams : {2, 3, 4, 16})
      for (uint64_t seed = 0; seed < 150; ++seed) {
        World world(seed, streams, returns, Mutation::None);
        ASSERT_EQ(world.run(), "") << "seed " << seed << ", " << streams << " streams, returns: " << returns;
        cuts += world.cuts();
      }
  EXPECT_GT(cuts, 2000) << "the schedules cut next to nothing";
}

TEST(StreamBook, SendersWhosePiecesAreCopiedAreFreeAtOnceAndTheirPiecesComeWhateverIsCut) {
  int cuts = 0, copies = 0;
  for (const bool returns : {true, false})
    for (const size_t streams : {2, 3, 8})
      for (const uint64_t room : {1'500, 4'000, 100'000})
        for (uint64_t seed = 0; seed < 50; ++seed) {
          World world(seed, streams, returns, Mutation::None, room);
          ASSERT_EQ(world.run(), "") << "seed " << seed << ", " << streams << " streams, returns: " << returns << ", room "
                                     << room;
          cuts += world.cuts();
          copies += world.copies();
        }
  EXPECT_GT(cuts, 1000) << "the schedules cut next to nothing";
  EXPECT_GT(copies, 10'000) << "next to nothing was copied";
}

class StreamBookMutation : public testing::TestWithParam<Mutation> {};
INSTANTIATE_TEST_SUITE_P(, StreamBookMutation,
                         testing::Values(Mutation::LostCountsOneLess, Mutation::LostCountsOneMore,
                                         Mutation::LostHidesTheOlder, Mutation::GotCountsOneMore,
                                         Mutation::NobodyHearsOfLosses, Mutation::ReadsAfterTheEnd, Mutation::LeaderByChance,
                                         Mutation::GoesAgainAtOnce),
                         [](const auto &tested) { return name(tested.param); });

TEST_P(StreamBookMutation, IsFoundByTheSchedules) {
  std::string found;
  for (const bool returns : {true, false})
    for (uint64_t seed = 0; seed < 150 && found.empty(); ++seed) found = World(seed, 3, returns, GetParam()).run();
  EXPECT_NE(found, "");
}

TEST(StreamWindows, APieceGoesByTheStreamByWhichItHasLeftFirst) {
  StreamWindows windows(1);
  std::set<size_t> may{0, 1, 2};
  const auto taker = [&](int64_t bytes) {  // of the streams in their order, as a link asks them
    for (size_t s = 0; s < 3; ++s)
      if (may.contains(s) && windows.takes(s, bytes, 3, [&](size_t o) { return may.contains(o); }))
        return static_cast<int>(s);
    return -1;
  };
  const auto give = [&](int64_t bytes) {
    const int s = taker(bytes);
    windows.gave(static_cast<size_t>(s), bytes);
    return s;
  };
  const auto see = [&](std::initializer_list<net::Window> all) {
    windows.look();
    size_t s = 0;
    for (const net::Window &w : all) windows.see(s++, w);
  };
  see({{.rate = 100}, {.rate = 300}, {.rate = 100}});
  std::vector<int> by;
  for (int i = 0; i < 10; ++i) by.push_back(give(100));
  EXPECT_EQ(by, (std::vector<int>{1, 1, 0, 1, 2, 1, 1, 0, 1, 2})) << "three fifths by the one that is three times as fast";
  see({{.waits = 250, .rate = 100}, {.waits = 1000, .rate = 300}, {.waits = 300, .rate = 100}});
  EXPECT_EQ(taker(1), 0) << "what waits leaves first";
  EXPECT_EQ(taker(1000), 1) << "the longer the piece, the less does it count";
  may = {1, 2};
  EXPECT_EQ(taker(1), 2) << "a stream that may not take any holds nobody up";
  may = {0, 1, 2};
  see({{}, {}, {}});
  by.clear();
  for (int i = 0; i < 6; ++i) by.push_back(give(100));
  EXPECT_EQ(by, (std::vector<int>{0, 1, 2, 0, 1, 2})) << "in turn where no rate is known";
}

TEST(StreamWindows, NoMoreIsUnderWayThanHalfAsMuchAgainAsCameThroughInARoundTripAndAWindowMore) {
  constexpr int64_t ms = 1'000'000, MiB = 1 << 20;
  StreamWindows windows(80 * ms);
  int64_t acknowledged = 0;
  const auto look = [&](int64_t at, int64_t under_way) {
    windows.look();
    windows.see(0, {.under_way = under_way, .acknowledged = acknowledged});
    windows.looked(at);
  };
  const auto takes = [&] { return windows.takes(0, MiB, 1, [](size_t) { return true; }); };
  look(1, 0);
  EXPECT_EQ(windows.most(), 4 * MiB) << "nobody knows the way yet";
  look(2, 3 * MiB);
  EXPECT_TRUE(takes());
  windows.gave(0, MiB);
  EXPECT_FALSE(takes()) << "4 MiB are under way";
  acknowledged = 10 * MiB;
  look(80 * ms + 1, 0);
  EXPECT_EQ(windows.most(), 17 * MiB);
  look(120 * ms, 16 * MiB);
  EXPECT_TRUE(takes());
  look(121 * ms, 17 * MiB);
  EXPECT_FALSE(takes());
  acknowledged += 2 * MiB;  // less than before
  look(160 * ms + 1, 0);
  EXPECT_EQ(windows.most(), 10 * MiB - 10 * MiB / 8 + (10 * MiB - 10 * MiB / 8) / 2 + 2 * MiB);
  for (int64_t at = 300; at < 10'000; at += 80) look(at * ms, 0);
  EXPECT_EQ(windows.most(), 4 * MiB) << "nothing comes through any more";
  acknowledged = 0;  // the stream was connected again
  look(20'000 * ms, 0);
  acknowledged = 8 * MiB;
  look(20'160 * ms, 0);
  EXPECT_EQ(windows.most(), 4 * MiB + 2 * MiB + 2 * MiB) << "in two round trips";
  acknowledged = 26 * MiB;
  look(20'280 * ms, 0);
  EXPECT_EQ(windows.most(), 12 * MiB + 6 * MiB + 2 * MiB) << "in one and a half";
  look(20'281 * ms, 0);
  EXPECT_TRUE(windows.takes(0, 100 * MiB, 1, [](size_t) { return true; })) << "one piece may go in any case";
}

// ---- how pieces are spread ---------------------------------------------------------------------------------------------------

// Streams that carry so many bytes a second each, and whose sockets hold 4 MiB, over so many bytes. A time of its own.
struct Spread {
  explicit Spread(std::vector<double> bytes_a_second)
      : rates(std::move(bytes_a_second)), book(rates.size()), given(rates.size()) {}

  // Seconds until all of `bytes` are confirmed; nothing is before `none_before` by stream `stalled`.
  double carry(uint64_t bytes, size_t stalled = SIZE_MAX) {
    const int64_t begin = now;
    uint64_t waiting = bytes, confirmed = 0;
    std::vector<std::deque<int64_t>> due(rates.size());  // when the pieces of a stream are confirmed
    std::vector<int64_t> free(rates.size(), now);
    std::vector<uint64_t> count(rates.size());
    while (confirmed < bytes) {
      for (size_t s = 0; s < rates.size(); ++s)
        while (waiting > 0 && due[s].size() < 32 && book.takes_bulk(s, kPiece, waiting, now)) {
          OwedPiece piece;
          piece.header.total = 1 << 20;
          piece.header.bytes = kPiece;
          book.give(s, piece, now);
          given[s] += kPiece;
          waiting -= kPiece;
          free[s] = std::max(free[s], now) + static_cast<int64_t>(kPiece / rates[s] * 1e9);
          due[s].push_back(s == stalled ? INT64_MAX : free[s]);
        }
      size_t first = 0;
      int64_t at = INT64_MAX;
      for (size_t s = 0; s < rates.size(); ++s)
        if (!due[s].empty() && due[s].front() < at) at = due[s].front(), first = s;
      if (at == INT64_MAX || at > now + 1'000'000) {
        now += 1'000'000;  // somebody looks again
        if (at == INT64_MAX && waiting == 0) break;
        continue;
      }
      now = at;
      due[first].pop_front();
      confirmed += kPiece;
      FrameHeader note;
      note.kind = static_cast<FrameKind>(kNoteGot);
      note.id = ++told[first];
      EXPECT_EQ(book.heard(first, note, now, [](const OwedPiece &) {}), StreamBook::Heard::Well);
    }
    return static_cast<double>(now - begin) * 1e-9;
  }
  static constexpr uint32_t kPiece = 128 * 1024;
  std::vector<double> rates;
  StreamBook book;
  std::vector<uint64_t> given;
  std::map<size_t, uint64_t> told;
  int64_t now = 1;
};

TEST(StreamBook, StreamsShareByTheirRatesAndASlowOneHoldsNobodyUpAtTheEnd) {
  const double all = 64 << 20;
  for (const std::vector<double> &rates : {std::vector{1e9, 1e9}, {1e9, 1e8}, {1e8, 1e9, 3e8}, {1e9, 1e7}}) {
    Spread spread(rates);
    spread.carry(16 << 20);  // the rates are found out
    std::fill(spread.given.begin(), spread.given.end(), 0);
    const double sum = std::accumulate(rates.begin(), rates.end(), 0.0), seconds = spread.carry(64 << 20);
    EXPECT_LT(seconds, 1.1 * all / sum + 2 * Spread::kPiece / *std::min_element(rates.begin(), rates.end()));
    for (size_t s = 0; s < rates.size(); ++s)
      EXPECT_NEAR(static_cast<double>(spread.given[s]) / all, rates[s] / sum, 0.1) << s << " of " << rates.size();
  }
}

TEST(StreamBook, TheShareFollowsAChangedRateWithin32PiecesOfItsStream) {
  for (const double changed : {1.25e9, 8e8, 5e8, 2.5e8, 4e9}) {
    Spread spread({1e9, 1e9});
    spread.carry(16 << 20);
    spread.rates[1] = changed;
    std::fill(spread.given.begin(), spread.given.end(), 0);
    while (spread.given[1] < 32 * Spread::kPiece) spread.carry(2 << 20);
    std::fill(spread.given.begin(), spread.given.end(), 0);
    const double all = 64 << 20, sum = spread.rates[0] + spread.rates[1];
    const double seconds = spread.carry(64 << 20);
    EXPECT_NEAR(static_cast<double>(spread.given[1]) / all, changed / sum, 0.05) << changed;
    EXPECT_LT(seconds, 1.1 * all / sum) << changed;
  }
}

TEST(StreamBook, AStreamThatWasVerySlowIsFoundFastAgainThoughLittleWaitsAtATime) {
  Spread spread({1e9, 1e9});
  spread.carry(16 << 20);
  spread.rates[1] = 5e6;
  for (int i = 0; i < 64; ++i) spread.carry(1 << 20);
  std::fill(spread.given.begin(), spread.given.end(), 0);
  const int64_t slow = spread.now;
  while (spread.now < slow + 4'000'000'000) spread.carry(1 << 20);
  EXPECT_LE(static_cast<double>(spread.given[1]), 4 * 5e6 / 50) << "tries cost a fiftieth of the time at most";
  spread.rates[1] = 1e9;
  const int64_t fast = spread.now;
  while (spread.now < fast + 4'000'000'000) spread.carry(1 << 20);
  std::fill(spread.given.begin(), spread.given.end(), 0);
  for (int i = 0; i < 64; ++i) spread.carry(1 << 20);
  EXPECT_GE(spread.given[1], 16u << 20) << "of 64 MiB";
}

TEST(StreamBook, AStreamThatConfirmsNothingMoreGetsNothingMore) {
  Spread spread({1e9, 1e9});
  spread.carry(16 << 20);
  std::fill(spread.given.begin(), spread.given.end(), 0);
  const double seconds = spread.carry(64 << 20, 1);
  EXPECT_LT(spread.given[1], 8u << 20);
  EXPECT_LT(seconds, 0.3) << "the other has carried the rest";
}

TEST(StreamBook, AStreamThatCanBeWrittenNoMoreIsLeftNothingUntilItIsConnectedAgain) {
  Spread spread({1e9, 1e7});
  spread.carry(64 << 20);  // the second is so slow that it leaves a single piece to the first
  ASSERT_FALSE(spread.book.takes_bulk(1, Spread::kPiece, Spread::kPiece, spread.now));
  spread.book.mute(0);
  EXPECT_FALSE(spread.book.has_room(0));
  EXPECT_TRUE(spread.book.takes_bulk(1, Spread::kPiece, Spread::kPiece, spread.now));
  spread.book.end(0);
  ASSERT_TRUE(spread.book.come(0, 1));
  FrameHeader note;
  note.kind = static_cast<FrameKind>(kNoteLost);
  note.slot = 0;
  note.offset = spread.told[0];
  note.epoch = 1;
  ASSERT_EQ(spread.book.heard(1, note, spread.now, [](const OwedPiece &) {}), StreamBook::Heard::Well);
  EXPECT_TRUE(spread.book.has_room(0));
}

}  // namespace
}  // namespace isthmus::link
