// Pacts: which messages go by the vendor's library. The rules one by one, two sides on two threads, and a model of ranks whose steps come in
// random order. The model has what can make ranks wait in a circle: queues of devices, collectives, receives behind gates, groups of messages.
#include "p2p/library_pact.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "p2p/quiet_time.hpp"

namespace isthmus::p2p {
namespace {

using Verdict = PactSide::Verdict;

struct Pair {
  PactCell cell;
  PactSide sender{cell, true}, receiver{cell, false};
};

// ---- the rules -----------------------------------------------------------------------------------------------------------------------

TEST(Pact, WhatBothSidesOfferIsTheLibrarys) {
  Pair p;
  p.sender.offer(1, 8);
  EXPECT_EQ(p.sender.look(1, 8), Verdict::Open);
  EXPECT_TRUE(p.receiver.is_awaited(1));
  p.receiver.offer(1, 8);
  EXPECT_EQ(p.receiver.look(1, 8), Verdict::Library);
  EXPECT_EQ(p.sender.look(1, 8), Verdict::Library);
  EXPECT_FALSE(p.receiver.is_awaited(1));
}

TEST(Pact, WhatTheOtherSideHasPassedGoesByLinks) {
  Pair p;
  p.receiver.pass(3);
  p.sender.offer(3, 8);
  EXPECT_EQ(p.sender.look(3, 8), Verdict::Links);
  p.sender.offer(4, 8);
  EXPECT_EQ(p.sender.look(4, 8), Verdict::Open);
}

TEST(Pact, OtherTermsGoByLinks) {
  Pair p;
  p.sender.offer(1, 8);
  p.receiver.offer(1, 9);
  EXPECT_EQ(p.receiver.look(1, 9), Verdict::Links);
  EXPECT_EQ(p.sender.look(1, 8), Verdict::Links);
}

TEST(Pact, WhoHasWaitedLongEnoughClosesAndNobodyOpensItAgain) {
  Pair p;
  p.sender.offer(1, 8);
  EXPECT_EQ(p.sender.close(1), Verdict::Links);
  p.receiver.offer(1, 8);
  EXPECT_EQ(p.receiver.look(1, 8), Verdict::Links);
}

TEST(Pact, WhoClosesTooLateHearsThatTheLibraryHasIt) {
  Pair p;
  p.sender.offer(1, 8);
  p.receiver.offer(1, 8);
  EXPECT_EQ(p.receiver.look(1, 8), Verdict::Library);
  EXPECT_EQ(p.sender.close(1), Verdict::Library);
}

TEST(Pact, ASlowSideFindsItsVerdictBehindLaterOnes) {
  Pair p;
  p.sender.offer(5, 8);
  p.receiver.offer(5, 8);
  ASSERT_EQ(p.receiver.look(5, 8), Verdict::Library);
  p.receiver.offer(6, 8);
  ASSERT_EQ(p.receiver.close(6), Verdict::Links);
  p.receiver.offer(9, 8);
  ASSERT_EQ(p.receiver.close(9), Verdict::Links);
  EXPECT_EQ(p.sender.look(5, 8), Verdict::Library);
  EXPECT_EQ(p.sender.look(6, 8), Verdict::Links);
}

TEST(Pact, AVerdictThatLiesVeryFarBackIsNotTakenForALaterOne) {
  Pair p;
  constexpr uint64_t kFar = uint64_t{1} << 24;
  p.sender.offer(1, 8);
  p.receiver.offer(1, 8);
  ASSERT_EQ(p.receiver.look(1, 8), Verdict::Library);
  for (const uint64_t n : {kFar - 1, kFar, kFar + 1, 3 * kFar}) {
    p.sender.offer(n, 8);
    EXPECT_EQ(p.sender.close(n), Verdict::Links) << n;
    EXPECT_EQ(p.receiver.look(n, 8), Verdict::Links) << n;
  }
  p.sender.offer(4 * kFar, 8);
  p.receiver.offer(4 * kFar, 8);
  EXPECT_EQ(p.sender.look(4 * kFar, 8), Verdict::Library);
  EXPECT_EQ(p.receiver.look(4 * kFar, 8), Verdict::Library);
}

TEST(Numbers, AReceiveHasNoNumberWhileOneFromAnyRankWaits) {
  MessageNumbers n;
  n.resize(2);
  EXPECT_EQ(n.receive(1), 1u);
  n.receive_any();
  EXPECT_EQ(n.receive(1), 0u);
  n.matched_any(1);
  EXPECT_EQ(n.receive(1), 4u);
  EXPECT_EQ(n.receive(0), 1u);
  EXPECT_EQ(n.send(1), 1u);
}

TEST(Quiet, NothingThatWaitsForARankIsThereInAQuietTime) {
  QuietTime q;
  ASSERT_TRUE(q.enter());
  EXPECT_FALSE(q.try_open());
  q.leave();
  ASSERT_TRUE(q.try_open());
  EXPECT_FALSE(q.try_open());
  EXPECT_FALSE(q.enter());
  EXPECT_TRUE(q.is_open());
  q.close();
  EXPECT_FALSE(q.try_open()) << "who was told to wait comes first";
  q.leave();
  EXPECT_TRUE(q.try_open());
}

// ---- threads -------------------------------------------------------------------------------------------------------------------------

std::vector<Verdict> settle_all(PactSide side, uint64_t seed, uint64_t messages) {
  std::mt19937_64 random(seed);
  std::vector<Verdict> all;
  for (uint64_t n = 1; n <= messages; ++n) {
    const auto chance = random() % 8;
    if (chance == 0) {
      side.pass(n);
      all.push_back(Verdict::Links);
      continue;
    }
    side.offer(n, chance == 1 ? 9 : 8);
    Verdict v = Verdict::Open;
    for (auto looks = random() % 64 + (chance > 4 ? 1000 : 0); looks > 0 && v == Verdict::Open; --looks) {
      v = side.look(n, chance == 1 ? 9 : 8);
      if (v == Verdict::Open && looks % 16 == 0) std::this_thread::yield();
    }
    if (v == Verdict::Open) v = side.close(n);
    side.pass(n);
    all.push_back(v);
  }
  return all;
}

TEST(Pact, TwoThreadsComeToTheSameVerdicts) {
  constexpr uint64_t kMessages = 20'000;
  Pair p;
  std::vector<Verdict> sent, received;
  std::thread sender([&] { sent = settle_all(p.sender, 1, kMessages); });
  received = settle_all(p.receiver, 2, kMessages);
  sender.join();
  EXPECT_EQ(sent, received);
  EXPECT_GT(std::count(sent.begin(), sent.end(), Verdict::Library), 0);
  EXPECT_GT(std::count(sent.begin(), sent.end(), Verdict::Links), 0);
}

// ---- the model -----------------------------------------------------------------------------------------------------------------------

// The two rules that the model can leave out.
struct Rules {
  bool quiet = true;      // a message is settled only while nothing on the device waits for a rank
  bool one_group = true;  // a rank's groups are settled one after the other
};

struct Message {
  int from, to;
  uint64_t number;
  auto operator<=>(const Message &) const = default;
};

// What a device does of ours.
struct Entry {
  enum Kind { Copy, Gate, Collective, Library } kind;
  std::vector<Message> messages;  // of a Collective: none
  uint64_t number = 0;            // of the Collective
};

// One call of a program. A group's messages, or a single message without a group; no messages: a collective of all ranks.
struct Item {
  std::vector<Message> messages;  // numbers are given when the call is made
  bool grouped = true;
};

// Ranks on devices with one queue, and one thread each; or with queues for each lane, and two threads each. Every program here ends without the
// library: copies of sends wait for no rank, and a receive's gate stands behind nothing for which its message waits.
class Model {
 public:
  Model(uint64_t seed, Rules rules) : random_(seed), rules_(rules), one_queue_(pick(0, 1) != 0), ranks_(pick(2, 4)) {
    cells_ = std::vector<PactCell>(static_cast<size_t>(ranks_ * ranks_));
    for (int r = 0; r < ranks_; ++r) {
      Rank &one = all_.emplace_back();
      one.numbers.resize(ranks_);
      one.threads.resize(one_queue_ ? 1 : 2);
    }
    for (int events = pick(4, 24); events > 0; --events) add_event();
  }

  // Empty: everything has ended.
  std::string run(bool library = true) {
    library_ = library;
    for (int idle = 0;;) {
      if (step(idle > 0)) {
        idle = 0;
        continue;
      }
      if (over()) return {};
      if (++idle > 2) return state();
    }
  }
  int by_library() const { return by_library_; }
  int by_links() const { return by_links_; }

 private:
  struct Thread {
    std::deque<Item> program;
    int phase = 0;
    bool in_window = false;
    std::vector<Message> own, rest;  // of the item; those that go by links
    std::vector<Verdict> verdicts;
  };
  struct Rank {
    std::vector<Thread> threads;
    std::array<std::deque<Entry>, 3> lanes;  // library and collectives, copies out, gates
    QuietTime quiet;
    MessageNumbers numbers;
    int settling = 0;
    uint64_t collectives = 0, ended = 0;
  };

  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  Rank &at(int r) { return all_[static_cast<size_t>(r)]; }
  PactSide side(int rank, const Message &m) { return {cells_[static_cast<size_t>(m.from * ranks_ + m.to)], m.from == rank}; }
  std::deque<Entry> &lane(int r, int which) { return at(r).lanes[static_cast<size_t>(one_queue_ ? 0 : which)]; }

  // ---- programs
  Thread &thread(int r, int t) { return at(r).threads[static_cast<size_t>(one_queue_ ? 0 : t)]; }
  void add_event() {
    const int kind = pick(0, 5), t = pick(0, 1);
    if (kind == 0) {
      for (int r = 0; r < ranks_; ++r) thread(r, 0).program.push_back({});
    } else if (kind < 4) {
      std::vector<Item> parts(static_cast<size_t>(ranks_));
      for (int from = 0; from < ranks_; ++from)
        for (int to = 0; to < ranks_; ++to)
          if (from != to && pick(0, 2) == 0)
            for (const int r : {from, to}) parts[static_cast<size_t>(r)].messages.push_back({from, to, 0});
      for (int r = 0; r < ranks_; ++r)
        if (Item &part = parts[static_cast<size_t>(r)]; !part.messages.empty()) thread(r, t).program.push_back(part);
    } else {
      add_single(t);
    }
  }
  // A send may be called earlier than its place, and a receive later, past what the other rank has in another order.
  void add_single(int t) {
    const int from = pick(0, ranks_ - 1), to = (from + pick(1, ranks_ - 1)) % ranks_;
    const Item single{{{from, to, 0}}, pick(0, 2) != 0};
    auto &sends = thread(from, t).program;
    sends.insert(sends.end() - std::min<long>(pick(0, 3), static_cast<long>(sends.size())), single);
    late_.push_back({to, t, single});
    if (pick(0, 1) == 0) add_event();
    for (; !late_.empty(); late_.pop_back())
      thread(late_.back().rank, late_.back().thread).program.push_back(late_.back().item);
  }

  // ---- steps
  bool step(bool impatient) {
    std::vector<std::pair<int, int>> who;  // a thread, or a device: -1
    for (int r = 0; r < ranks_; ++r)
      for (int t = -1; t < static_cast<int>(at(r).threads.size()); ++t) who.emplace_back(r, t);
    std::shuffle(who.begin(), who.end(), random_);
    for (const auto &[r, t] : who)
      if (t < 0 ? run_device(r) : run_thread(r, at(r).threads[static_cast<size_t>(t)], impatient)) return true;
    return false;
  }
  bool over() {
    for (int r = 0; r < ranks_; ++r) {
      for (const Thread &t : at(r).threads)
        if (!t.program.empty()) return false;
      for (const auto &l : at(r).lanes)
        if (!l.empty()) return false;
    }
    return true;
  }
  std::string state() {
    std::string text = "nothing goes on:";
    for (int r = 0; r < ranks_; ++r) {
      text += " rank " + std::to_string(r) + " [";
      for (const auto &l : at(r).lanes)
        for (const Entry &e : l) text += "CGKL"[e.kind];
      text += "]";
    }
    return text;
  }

  bool run_thread(int r, Thread &t, bool impatient) {
    if (t.program.empty()) return false;
    if (t.program.front().messages.empty()) return collective(r, t);
    if (t.phase == 0) return call(r, t);
    if (t.phase == 1) return settle(r, t, impatient);
    return by_links(r, t);
  }
  bool enters(Rank &one, Thread &t, int waiting) {  // false: waits until the quiet time is over
    if (t.phase != waiting && !one.quiet.enter()) return t.phase = waiting, false;
    return !(t.phase == waiting && one.quiet.is_open());
  }
  bool collective(int r, Thread &t) {
    Rank &one = at(r);
    if (one.settling > 0 && rules_.one_group) return false;  // the same lock
    const int before = t.phase;
    if (!enters(one, t, 9)) return t.phase != before;
    lane(r, 0).push_back({Entry::Collective, {}, ++one.collectives});
    return next(t);
  }
  bool next(Thread &t) {
    t.program.pop_front();
    t.phase = 0;
    return true;
  }

  // The program calls: messages get their numbers.
  bool call(int r, Thread &t) {
    Rank &one = at(r);
    const Item &item = t.program.front();
    t.own = item.messages;
    for (Message &m : t.own) m.number = m.from == r ? one.numbers.send(m.to) : one.numbers.receive(m.from);
    t.verdicts.assign(t.own.size(), Verdict::Open);
    const bool waits = item.grouped || side(r, t.own[0]).is_awaited(t.own[0].number);
    t.in_window = library_ && waits && !(rules_.one_group && one.settling > 0) && opens(one);
    if (t.in_window) {
      ++one.settling;
      for (const Message &m : t.own) side(r, m).offer(m.number, 8);
    }
    t.phase = 1;
    return true;
  }
  bool opens(Rank &one) {
    if (!rules_.quiet) return true;
    return (!rules_.one_group && one.settling > 0) || one.quiet.try_open();
  }
  bool settle(int r, Thread &t, bool impatient) {
    bool moved = !t.in_window;
    if (t.in_window) {
      if (!t.program.front().grouped || pick(0, 30) == 0) impatient = true;
      bool open = false;
      for (size_t i = 0; i < t.own.size(); ++i) {
        if (t.verdicts[i] != Verdict::Open) continue;
        if (impatient || pick(0, 1) == 0) t.verdicts[i] = side(r, t.own[i]).look(t.own[i].number, 8);
        if (impatient && t.verdicts[i] == Verdict::Open) t.verdicts[i] = side(r, t.own[i]).close(t.own[i].number);
        moved = moved || t.verdicts[i] != Verdict::Open;
        open = open || t.verdicts[i] == Verdict::Open;
      }
      if (open) return moved;
      give(r, t);
    }
    t.rest.clear();
    for (size_t i = 0; i < t.own.size(); ++i) {
      side(r, t.own[i]).pass(t.own[i].number);
      if (t.verdicts[i] != Verdict::Library) t.rest.push_back(t.own[i]);
    }
    by_links_ += static_cast<int>(t.rest.size());
    std::stable_partition(t.rest.begin(), t.rest.end(), [r](const Message &m) { return m.from == r; });
    t.phase = 2;
    return true;
  }
  void give(int r, Thread &t) {
    Entry e{Entry::Library, {}};
    for (size_t i = 0; i < t.own.size(); ++i)
      if (t.verdicts[i] == Verdict::Library) e.messages.push_back(t.own[i]);
    by_library_ += static_cast<int>(e.messages.size());
    if (!e.messages.empty()) lane(r, 0).push_back(std::move(e));
    if (--at(r).settling == 0 && rules_.quiet) at(r).quiet.close();
  }
  bool by_links(int r, Thread &t) {  // sends first, then receives, each behind a gate
    if (t.rest.empty()) return next(t);
    const Message m = t.rest.front();
    if (m.from == r) {
      lane(r, 1).push_back({Entry::Copy, {m}});
    } else {
      const int before = t.phase;
      if (!enters(at(r), t, 3)) return t.phase != before;
      lane(r, 2).push_back({Entry::Gate, {m}});
      t.phase = 2;
    }
    t.rest.erase(t.rest.begin());
    return true;
  }

  // ---- devices
  bool run_device(int r) {
    for (auto &l : at(r).lanes)
      if (!l.empty() && ends(r, l.front())) {
        l.pop_front();
        return true;
      }
    return false;
  }
  bool ends(int r, const Entry &e) {
    switch (e.kind) {
      case Entry::Copy: return came_.insert(e.messages[0]).second;
      case Entry::Gate:
        if (!came_.contains(e.messages[0])) return false;
        break;
      case Entry::Collective:
        for (int q = 0; q < ranks_; ++q)
          if (at(q).ended < e.number &&
              !stands(q, [&](const Entry &x) { return x.kind == Entry::Collective && x.number == e.number; }))
            return false;
        at(r).ended = e.number;
        break;
      case Entry::Library: return carried(r, e);
    }
    at(r).quiet.leave();
    return true;
  }
  template <class F>
  bool stands(int r, F is) {
    const auto &l = lane(r, 0);
    return !l.empty() && is(l.front());
  }
  // A group's messages move independently; the group is over when all have come.
  bool carried(int r, const Entry &e) {
    bool all = true;
    for (const Message &m : e.messages) {
      const int peer = m.from == r ? m.to : m.from;
      const auto has = [&](const Entry &x) {
        return x.kind == Entry::Library && std::find(x.messages.begin(), x.messages.end(), m) != x.messages.end();
      };
      if (!carried_.contains(m) && stands(peer, has)) carried_.insert(m);
      all = all && carried_.contains(m);
    }
    return all;
  }

  struct Late {
    int rank, thread;
    Item item;
  };
  std::mt19937_64 random_;
  const Rules rules_;
  const bool one_queue_;
  const int ranks_;
  bool library_ = true;
  std::vector<PactCell> cells_;
  std::deque<Rank> all_;
  std::vector<Late> late_;
  std::set<Message> came_, carried_;
  int by_library_ = 0, by_links_ = 0;
};

constexpr uint64_t kSeeds = 4000;

TEST(Model, EveryProgramHereEndsWithoutTheLibrary) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Model model(seed, {});
    ASSERT_EQ(model.run(false), "") << "seed " << seed;
  }
}

TEST(Model, WhatEndsWithoutTheLibraryEndsWithIt) {
  int by_library = 0, by_links = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Model model(seed, {});
    ASSERT_EQ(model.run(), "") << "seed " << seed;
    by_library += model.by_library();
    by_links += model.by_links();
  }
  EXPECT_GT(by_library, by_links / 20) << "or the model shows nothing";
  EXPECT_GT(by_links, by_library / 20);
}

// Of the first program that hangs, what stands on the devices: C copy, G gate, K collective, L messages of the library. Empty: none hangs.
std::string first_hang(Rules rules) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    if (std::string state = Model(seed, rules).run(); !state.empty()) return state;
  return {};
}

TEST(Model, WithoutQuietTimesSomeProgramHangs) {
  const std::string state = first_hang({.quiet = false});
  EXPECT_NE(state.find("[L"), std::string::npos) << state;
}

TEST(Model, WithTwoGroupsOfARankSettledAtATimeSomeProgramHangs) {
  const std::string state = first_hang({.one_group = false});
  EXPECT_NE(state.find("[L"), std::string::npos) << state;
}

}  // namespace
}  // namespace isthmus::p2p
