// What frame.hpp promises of a Link, on every link there is: within a process, through shared memory, over one socket and several, and by UCX
// over its TCP and its shared memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <ostream>
#include <thread>

#include "link_ends.hpp"

namespace isthmus::link {
namespace {

struct Kind {
  const char *name;
  Made (*make)();
  size_t sockets;     // on which a thread sleeps
  bool whole_pieces;  // a piece that the sink has accepted has come, and nobody is told that there is room again
  friend void PrintTo(const Kind &kind, std::ostream *out) { *out << kind.name; }
};

class EveryLink : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (!ends) GTEST_SKIP() << "libucp.so.0 is not on this machine (Debian: libucx0)";
  }
  Made ends = GetParam().make();
  Inbox back, inbox;  // of here, and of there; a link within a process has the second alone

  bool drive_both() {
    const bool moved = !ends->one() && drive(ends->here(), back);
    return drive(ends->there(), inbox) || moved;
  }
  bool eventually(const std::function<bool()> &what) {
    return driven_until(what, [this] { return drive_both(); });
  }
  void until_stuck() {  // until nothing more moves
    while (drive_both()) {}
  }
  void post(Letters &letters) {
    for (Letter &l : letters) ends->here().post(l);
  }
  bool over(const Letters &letters) const {
    return std::all_of(letters.begin(), letters.end(), [](const Letter &l) { return l.over(); });
  }
};

INSTANTIATE_TEST_SUITE_P(
    , EveryLink,
    testing::Values(Kind{"local", local_ends, 0, true},
                    Kind{"shm", [] { return shm_ends(ByteRing::kMostCapacity, ByteRing::kMostCapacity); }, 0, true},
                    Kind{"shm_least", [] { return shm_ends(ByteRing::kLeastCapacity, ByteRing::kMostCapacity); }, 0, true},
                    Kind{"tcp_one_stream", socketpair_ends<1>, 1, false},
                    Kind{"tcp_two_streams", socketpair_ends<2>, 2, false},
                    Kind{"tcp_four_streams", socketpair_ends<4>, 4, false}, Kind{"tcp_loopback", loopback_ends, 2, false},
                    Kind{"tcp_long_way", long_way_ends, 4, false}, Kind{"tcp_helped", helped_ends, 4, false},
                    Kind{"ucx_tcp", [] { return ucx_ends("tcp", UcxLink::kMostMemory); }, 1, true},
                    Kind{"ucx_shm", [] { return ucx_ends("posix,cma", UcxLink::kMostMemory); }, 1, true},
                    Kind{"ucx_least", [] { return ucx_ends("posix", UcxLink::kLeastMemory); }, 1, true},
                    Kind{"ucx_unlike", [] { return ucx_ends("tcp", UcxLink::kMostMemory, UcxLink::kLeastMemory); }, 1,
                         true}),
    [](const auto &tested) { return std::string(tested.param.name); });

TEST_P(EveryLink, SmallFramesArriveInTheirOrderWithTheirHeaders) {
  Letters letters;
  for (uint64_t i = 0; i < 600; ++i) {
    const bool bare = i % 5 > 2;
    const FrameKind kind = i % 5 == 3   ? FrameKind::RequestToSend
                           : i % 5 == 4 ? FrameKind::ClearToSend
                           : i % 5 == 2 ? FrameKind::PlanData
                                        : FrameKind::Message;
    letters.emplace_back(kind, i, bare ? 0 : i * 37 % 9000);
  }
  EXPECT_TRUE(ends->here().idle());
  post(letters);
  EXPECT_FALSE(ends->here().idle());
  ASSERT_TRUE(eventually([&] { return inbox.order.size() == letters.size() && over(letters); }));
  EXPECT_TRUE(std::is_sorted(inbox.order.begin(), inbox.order.end()));
  for (const Letter &l : letters) expect_whole(inbox, l);
  EXPECT_TRUE(eventually([&] { return ends->here().idle(); }));
  EXPECT_FALSE(drive_both());
  EXPECT_TRUE(inbox.ends.empty() && back.ends.empty() && back.parcels.empty());
}

// A request to send tells the size of what it announces, and brings nothing of it.
TEST_P(EveryLink, ABareFrameBringsTheSizeAndNoByteOfWhatItAnnounces) {
  Letters letters;
  letters.emplace_back(FrameKind::RequestToSend, 1, 3 << 20);
  letters.emplace_back(FrameKind::Message, 2, 10);
  inbox.decide = [&](const FrameHeader &h, int64_t) {
    if (h.kind == FrameKind::RequestToSend) {
      EXPECT_EQ(h.bytes, 0u);
      EXPECT_EQ(h.total, uint64_t{3} << 20);
    }
    return Accept::Take;
  };
  post(letters);
  ASSERT_TRUE(eventually([&] { return inbox.order.size() == 1 && over(letters); }));
  EXPECT_EQ(inbox.parcels.at(1).pieces.size(), 1u);
  expect_whole(inbox, letters[1]);
}

TEST_P(EveryLink, LargeFramesAreCutAndComeTogetherAgain) {
  Letters letters;
  uint64_t id = 0;
  for (const FrameKind kind : {FrameKind::PlanData, FrameKind::MessageData, FrameKind::Message})
    for (const uint64_t size : {64 * 1024, 64 * 1024 + 1, 512 * 1024, 1 << 20, (1 << 20) + 1, 2 * (1 << 20) + 13}) {
      letters.emplace_back(kind, id++, size);
      letters.emplace_back(FrameKind::Message, id++, 100);
    }
  post(letters);
  ASSERT_TRUE(eventually([&] { return inbox.has(letters) && over(letters); }));
  for (const Letter &l : letters) expect_whole(inbox, l);
  std::vector<uint64_t> small;
  for (const uint64_t i : inbox.order)
    if (i % 2 == 1) small.push_back(i);
  EXPECT_TRUE(std::is_sorted(small.begin(), small.end()));
  EXPECT_EQ(ends->here().bytes_sent.load(), ends->there().bytes_received.load());
}

TEST_P(EveryLink, ADeferredFrameIsAskedAboutAgainAndNothingIsLost) {
  Letters letters;
  letters.emplace_back(FrameKind::PlanData, 0, 200'000);
  for (uint64_t i = 1; i < 50; ++i) letters.emplace_back(FrameKind::Message, i, 500);
  int asked = 0;
  int64_t first = 0;
  bool willing = false;
  inbox.decide = [&](const FrameHeader &h, int64_t since) {
    if (h.id != 0 || willing) return Accept::Take;
    if (asked++ == 0) {
      EXPECT_EQ(since, 0) << "not asked before";
      first = now_ns();
    } else {
      EXPECT_GE(since, first) << "when it was first asked";
      EXPECT_LE(since, now_ns());
    }
    return Accept::Defer;
  };
  post(letters);
  ASSERT_TRUE(eventually([&] { return asked >= 5; }));
  EXPECT_EQ(inbox.parcels.count(0), 0u);
  willing = true;
  ASSERT_TRUE(eventually([&] { return inbox.has(letters) && over(letters); }));
  for (const Letter &l : letters) expect_whole(inbox, l);
}

TEST_P(EveryLink, ADroppedFrameIsDrainedAndHoldsUpNobody) {
  Letters kept, dropped;
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t size = i % 7 == 0 ? 700'000 : i % 11 == 0 ? 0 : i * 53 % 20'000;
    const FrameKind kind = i % 3 == 0 ? FrameKind::PlanData : FrameKind::Message;
    (i % 2 ? kept : dropped).emplace_back(kind, i, size);
  }
  inbox.decide = [](const FrameHeader &h, int64_t) { return h.id % 2 ? Accept::Take : Accept::Drop; };
  for (size_t i = 0; i < kept.size(); ++i) {
    ends->here().post(dropped[i]);
    ends->here().post(kept[i]);
  }
  ASSERT_TRUE(eventually([&] { return inbox.has(kept) && over(dropped) && over(kept); }));
  EXPECT_EQ(inbox.parcels.size(), kept.size());
  for (const Letter &l : kept) expect_whole(inbox, l);
  for (const Letter &l : dropped) EXPECT_EQ(l.ends, 1);
}

TEST_P(EveryLink, CancelForgetsWhatOneRankOfOneMembershipHadQueued) {
  Letters gone, kept;
  for (uint64_t i = 0; i < 40; ++i) {
    const uint64_t size = i % 4 == 0 ? 300'000 : 100;
    const FrameKind kind = i % 2 ? FrameKind::Message : FrameKind::PlanData;
    gone.emplace_back(kind, 10 * i, size);
    kept.emplace_back(kind, 10 * i + 1, size, kMember + 1);                   // another communicator
    kept.emplace_back(kind, 10 * i + 2, size, kMember, kSource + 1);          // another rank of this process
    kept.emplace_back(kind, 10 * i + 3, size, kMember, kSource, kEpoch + 1);  // another communicator, same index later
    kept.emplace_back(FrameKind::RequestToSend, 10 * i + 4, 0, kMember, kSource + 1);
  }
  for (size_t i = 0; i < gone.size(); ++i) {
    ends->here().post(gone[i]);
    for (size_t k = 4 * i; k < 4 * i + 4; ++k) ends->here().post(kept[k]);
  }
  cancel(ends->here(), 99, kMember, kSource);
  EXPECT_TRUE(over(gone)) << "at once: nobody reads the data any more";
  EXPECT_FALSE(over(kept));
  for (Letter &l : gone) {
    EXPECT_EQ(l.ends, 1);
    l.bytes = {};  // a sanitizer sees who still reads it
  }
  ASSERT_TRUE(eventually([&] { return inbox.has(kept) && over(kept); }));
  EXPECT_EQ(inbox.parcels.size(), kept.size());
  for (const Letter &l : kept) expect_whole(inbox, l);
  EXPECT_TRUE(eventually([&] { return ends->here().idle(); }))
      << "copies are confirmed a little later than their frames come";
}

TEST_P(EveryLink, CancelHalfWayFreesTheDataAndLeavesTheStreamInOrder) {
  for (const FrameKind kind : {FrameKind::PlanData, FrameKind::MessageData, FrameKind::Message}) {
    SCOPED_TRACE(static_cast<int>(kind));
    ends = GetParam().make();
    inbox = {};
    Letters gone, later;
    gone.emplace_back(kind, 1, ByteRing::kMostCapacity + (1 << 20));  // more than any link holds
    const std::vector<std::byte> sent = gone[0].bytes;
    bool closed = true;  // the receiver takes the first piece only
    inbox.decide = [&](const FrameHeader &h, int64_t) { return closed && h.offset > 0 ? Accept::Defer : Accept::Take; };
    post(gone);
    until_stuck();
    EXPECT_FALSE(gone[0].over());
    EXPECT_FALSE(ends->here().idle());
    ASSERT_EQ(inbox.parcels.count(1), 1u);
    EXPECT_LT(inbox.parcels.at(1).here, sent.size());

    cancel(ends->here(), 99, kMember, kSource);
    EXPECT_TRUE(gone[0].over()) << "at once: nobody reads the data any more";
    EXPECT_EQ(gone[0].ends, 1);
    std::fill(gone[0].bytes.begin(), gone[0].bytes.end(), kForeign);
    closed = false;
    for (uint64_t i = 2; i < 30; ++i) later.emplace_back(i % 3 ? FrameKind::Message : kind, i, i % 3 ? 300 : 150'000);
    post(later);
    ASSERT_TRUE(eventually([&] { return inbox.has(later) && over(later); }));
    for (const Letter &l : later) expect_whole(inbox, l);
    const Inbox::Parcel &p = inbox.parcels.at(1);
    for (const auto &[offset, bytes] : p.pieces)
      EXPECT_EQ(std::memcmp(p.bytes.data() + offset, sent.data() + offset, bytes), 0)
          << "a piece that came was not as it had been sent";
    EXPECT_TRUE(eventually([&] { return ends->here().idle(); }));
  }
}

TEST_P(EveryLink, CancelOnTheReceivingSideTouchesTheBufferNoMoreAndDrainsTheRest) {
  Letters gone, later;
  gone.emplace_back(FrameKind::PlanData, 1, 2 << 20);
  bool left = false;
  inbox.decide = [&](const FrameHeader &h, int64_t) {
    if (h.id != 1) return Accept::Take;
    if (left) return Accept::Drop;  // as the owner does for whoever is no longer there
    return h.offset == 0 ? Accept::Take : Accept::Defer;
  };
  post(gone);
  if (!ends->one()) drive(ends->here(), back);
  drive(ends->there(), inbox);
  if (GetParam().whole_pieces) {
    ASSERT_TRUE(eventually([&] { return inbox.parcels.count(1) == 1; }));
  }
  ASSERT_EQ(inbox.parcels.count(1), 1u);
  Inbox::Parcel &p = inbox.parcels.at(1);
  const bool half = p.accepted > p.here;  // a piece of it is half read
  EXPECT_EQ(half, GetParam().sockets > 0 && !GetParam().whole_pieces);
  cancel(ends->there(), kMember, 99, 0);
  left = true;
  std::fill(p.bytes.begin(), p.bytes.end(), kForeign);
  const uint64_t here = p.here;
  for (uint64_t i = 2; i < 20; ++i) later.emplace_back(FrameKind::Message, i, 4000);
  post(later);
  ASSERT_TRUE(eventually([&] { return inbox.has(later) && over(gone) && over(later); }));
  for (const Letter &l : later) expect_whole(inbox, l);
  EXPECT_EQ(p.here, here) << "received() for a frame that was cancelled";
  EXPECT_TRUE(std::all_of(p.bytes.begin(), p.bytes.end(), [](std::byte b) { return b == kForeign; }));
}

TEST_P(EveryLink, AnyThreadMayPostWhileOthersMakeProgress) {
  constexpr int kPosters = 4;
  constexpr uint64_t kEach = 200;
  std::vector<Letters> letters(kPosters);
  for (uint64_t t = 0; t < kPosters; ++t)
    for (uint64_t i = 0; i < kEach; ++i)
      letters[t].emplace_back(i % 2 ? FrameKind::Message : FrameKind::PlanData, t * 1000 + i,
                              i % 20 == 6 ? 200'000 : i * 29 % 3000, kMember, static_cast<uint32_t>(t));
  Letters answers;
  for (uint64_t i = 0; i < kEach; ++i) answers.emplace_back(FrameKind::Message, 100'000 + i, i * 17 % 5000);
  std::atomic<bool> stop{false};
  std::vector<std::thread> movers, posters;
  for (int i = 0; i < 3; ++i)  // more than there are ends: the turn is contended
    movers.emplace_back([&, i] {
      Link &link = i % 2 ? ends->here() : ends->there();
      Inbox &box = i % 2 && !ends->one() ? back : inbox;
      while (!stop.load(std::memory_order_acquire))
        if (!drive(link, box)) std::this_thread::yield();
    });
  for (auto &mine : letters)
    posters.emplace_back([&] {
      for (Letter &l : mine) ends->here().post(l);
    });
  posters.emplace_back([&] {
    for (Letter &l : answers) ends->there().post(l);
  });
  for (auto &t : posters) t.join();
  const Deadline deadline(isthmus_test::soon());
  const auto arrived = [](Link &link, Inbox &box, size_t n) {
    if (!link.try_turn()) return false;
    const bool all = box.order.size() >= n;
    link.end_turn();
    return all;
  };
  const size_t whole = kPosters * kEach;
  const auto sent = [&] {
    return over(answers) && std::all_of(letters.begin(), letters.end(), [&](const Letters &mine) { return over(mine); });
  };
  bool there = false, here = false;
  while (!(there && here && sent()) && !deadline.passed()) {
    std::this_thread::yield();
    if (ends->one()) {
      there = here = arrived(ends->here(), inbox, whole + kEach);
    } else {
      there = there || arrived(ends->there(), inbox, whole);
      here = here || arrived(ends->here(), back, kEach);
    }
  }
  stop.store(true, std::memory_order_release);
  for (auto &t : movers) t.join();
  ASSERT_TRUE(there && here);
  Inbox &replies = ends->one() ? inbox : back;
  for (const auto &mine : letters)
    for (const Letter &l : mine) expect_whole(inbox, l);
  for (const Letter &l : answers) expect_whole(replies, l);
  std::map<uint64_t, uint64_t> last;  // of each poster's small frames, the order is its own
  for (const uint64_t id : inbox.order) {
    if (id % 1000 % 20 == 6 && id < 100'000) continue;
    EXPECT_GE(id, last[id / 1000]);
    last[id / 1000] = id;
  }
}

TEST_P(EveryLink, SaysWhatToSleepOn) {
  std::vector<pollfd> fds;
  ends->here().descriptors(fds);
  EXPECT_EQ(fds.size(), GetParam().sockets);
  for (const pollfd &f : fds) EXPECT_EQ(f.events, POLLIN);
  if (fds.empty()) return;
  Letters letters;
  letters.emplace_back(FrameKind::PlanData, 1, 2 << 20);
  post(letters);
  while (drive(ends->here(), back)) {}
  fds.clear();
  ends->here().descriptors(fds);
  for (const pollfd &f : fds)
    EXPECT_EQ(f.events, !GetParam().whole_pieces ? POLLIN | POLLOUT : POLLIN) << "it waits for room";
  ASSERT_TRUE(eventually([&] { return inbox.has(letters) && over(letters); }));
}

// More of it may stand in the socket, which would be readable for as long as the frame is refused.
TEST_P(EveryLink, NobodySpinsOnAFrameThatIsRefused) {
  bool open = false, asked = false;
  inbox.decide = [&](const FrameHeader &, int64_t) {
    asked = true;
    return open ? Accept::Take : Accept::Defer;
  };
  Letters letters;
  letters.emplace_back(FrameKind::PlanData, 1, 1 << 20);
  post(letters);
  int64_t most = 0;
  std::vector<pollfd> fds;
  ASSERT_TRUE(eventually([&] {  // what a peer is told of a frame comes over a while
    until_stuck();
    about_to_sleep(ends->there());
    fds.clear();
    most = ends->there().descriptors(fds);
    return asked && most > 100'000 && (GetParam().sockets == 0 || ::poll(fds.data(), fds.size(), 0) == 0);
  }));
  if (GetParam().sockets != 0) {
    EXPECT_LE(most, 1'000'000) << "it is to be offered again";
    if (!GetParam().whole_pieces) {
      EXPECT_LT(std::count_if(fds.begin(), fds.end(), [](const pollfd &f) { return f.events & POLLIN; }),
                static_cast<long>(GetParam().sockets));
    }
  }
  open = true;
  ASSERT_TRUE(eventually([&] { return inbox.has(letters) && over(letters); }));
  ASSERT_TRUE(eventually([&] {
    about_to_sleep(ends->there());
    fds.clear();
    return ends->there().descriptors(fds) == Link::kAnyTime;
  }));
  EXPECT_EQ(fds.size(), GetParam().sockets);
  for (const pollfd &f : fds) EXPECT_TRUE(f.events & POLLIN);
}

// ---- ends ------------------------------------------------------------------------------------------------------------------

class MortalLink : public EveryLink {};
INSTANTIATE_TEST_SUITE_P(, MortalLink,
                         testing::Values(Kind{"tcp_one_stream", socketpair_ends<1>, 1, false},
                                         Kind{"tcp_two_streams", socketpair_ends<2>, 2, false},
                                         Kind{"tcp_four_streams", socketpair_ends<4>, 4, false},
                                         Kind{"tcp_loopback", loopback_ends, 2, false},
                                         Kind{"tcp_long_way", long_way_ends, 4, false},
                                         Kind{"tcp_helped", helped_ends, 4, false},
                                         Kind{"ucx_tcp", [] { return ucx_ends("tcp", UcxLink::kMostMemory); }, 1, true}),
                         [](const auto &tested) { return std::string(tested.param.name); });

class Sockets : public EveryLink {};
INSTANTIATE_TEST_SUITE_P(, Sockets,
                         testing::Values(Kind{"one_stream", socketpair_ends<1>, 1, false},
                                         Kind{"four_streams", socketpair_ends<4>, 4, false},
                                         Kind{"loopback", loopback_ends, 2, false},
                                         Kind{"long_way", long_way_ends, 4, false}),
                         [](const auto &tested) { return std::string(tested.param.name); });

// All UCX links of a process have one worker: what it takes out of UCX may be for any of them.
TEST(UcxNeighbours, ADeadPeerIsReportedHoweverBusyAnotherLinkIs) {
  const Made ends = ucx_ends("tcp", UcxLink::kMostMemory);
  if (!ends) GTEST_SKIP() << "libucp.so.0 is not on this machine (Debian: libucx0)";
  static constexpr uint8_t kFirst[16] = {1, 2, 3}, kThird[16] = {7, 8, 9};
  UcxWorker third;
  std::vector<std::byte> near(UcxLink::kLeastMemory), far(UcxLink::kLeastMemory);
  UcxLink to(*ends->workers[0], third.address(), UcxPair{std::span(kFirst), std::span(kThird)}, near);
  UcxLink from(third, ends->workers[0]->address(), UcxPair{std::span(kThird), std::span(kFirst)}, far);
  Inbox back, busy, none;
  const Deadline deadline(isthmus_test::soon());
  while (!(to.ready() && from.ready()) && !deadline.passed()) drive(to, busy), drive(from, none);
  ASSERT_TRUE(to.ready() && from.ready());
  UcxLink &dying = ucx(*ends->links[0]);
  ends->links[1].reset();
  ends->workers[1].reset();
  int late = 0;  // looks at the link that left its end untold
  for (uint64_t n = 0; back.ends.empty() && !deadline.passed(); n += 8) {
    Letters letters;
    for (uint64_t i = 0; i < 8; ++i) letters.emplace_back(FrameKind::Message, n + i, 100);
    for (Letter &l : letters) from.post(l);
    while (!std::all_of(letters.begin(), letters.end(), [](const Letter &l) { return l.over(); })) drive(from, none);
    drive(dying, back);
    late += !dying.trouble().empty() && back.ends.empty();
    drive(to, busy);
  }
  EXPECT_EQ(back.ends.size(), 1u);
  EXPECT_LE(late, 1);
  EXPECT_TRUE(busy.ends.empty());
}

TEST_P(MortalLink, ADeadPeerIsReportedOnceAndEndsNothingButByCancel) {
  Letters letters, later;
  for (uint64_t i = 0; i < 20; ++i)
    letters.emplace_back(i % 3 ? FrameKind::Message : FrameKind::PlanData, i, i % 3 ? 1000 : 1 << 20);
  inbox.decide = [](const FrameHeader &h, int64_t) { return h.id >= 3 ? Accept::Defer : Accept::Take; };
  post(letters);
  until_stuck();
  std::vector<int> ended;
  for (const Letter &l : letters) ended.push_back(l.ends);
  EXPECT_FALSE(over(letters));
  ends->links[1].reset();
  ends->workers[1].reset();
  const Deadline deadline(isthmus_test::soon());
  while (back.ends.empty() && !deadline.passed()) drive(ends->here(), back);
  ASSERT_EQ(back.ends.size(), 1u);
  EXPECT_FALSE(back.ends[0].empty());
  for (size_t i = 0; i < letters.size(); ++i)
    EXPECT_EQ(letters[i].ends, ended[i]) << "it was not sent, so it did not succeed";
  std::vector<pollfd> fds;
  ends->here().descriptors(fds);
  EXPECT_TRUE(fds.empty()) << "nobody may spin on a dead socket";
  later.emplace_back(FrameKind::Message, 100, 10);
  later.emplace_back(FrameKind::PlanData, 101, 1 << 20);
  post(later);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(drive(ends->here(), back));
  EXPECT_EQ(back.ends.size(), 1u);
  cancel(ends->here(), 99, kMember, kSource);
  EXPECT_TRUE(over(letters) && over(later));
  for (const Letters *all : {&letters, &later})
    for (const Letter &l : *all) EXPECT_EQ(l.ends, 1);
  EXPECT_TRUE(ends->here().idle());
}

TEST_P(Sockets, APeerThatDiesInsideAPayloadNeverCompletesIt) {
  Letters letters;
  letters.emplace_back(FrameKind::Message, 1, 100);
  letters.emplace_back(FrameKind::PlanData, 2, 2 << 20);
  post(letters);
  drive(ends->here(), back);
  drive(ends->there(), inbox);
  ends->links[0].reset();
  const Deadline deadline(isthmus_test::soon());
  while (inbox.ends.empty() && !deadline.passed()) drive(ends->there(), inbox);
  ASSERT_EQ(inbox.ends.size(), 1u);
  EXPECT_FALSE(drive(ends->there(), inbox));
  ASSERT_EQ(inbox.parcels.count(2), 1u);
  EXPECT_FALSE(inbox.parcels.at(2).complete());
  EXPECT_EQ(inbox.order, std::vector<uint64_t>{1});
}

// The ring's memory belongs to the peer: whatever it writes there, we read no byte outside and end.
TEST(ShmLink, ARingThatHoldsNoFrameEndsItOnceWithTheReason) {
  struct Case {
    std::string what;
    std::function<void(ByteRing &)> fill;
  };
  std::vector<Case> cases{
      {"ring counters out of range", [](ByteRing &r) { r.written = 63; }},
      {"ring counters out of range", [](ByteRing &r) { r.written = ByteRing::kLeastCapacity + 64; }},
      {"ring counters out of range", [](ByteRing &r) { r.written = ~uint64_t{0}; }},
      {"ring counters out of range", [](ByteRing &r) { r.read = 128, r.written = 64; }},
      {"ring counters out of range", [](ByteRing &r) { r.read = 1, r.written = 65; }},
      {"frame longer than the ring holds",
       [](ByteRing &r) {
         const FrameHeader h = sound_header();
         std::memcpy(r.data(), &h, sizeof h);
         r.written = 64;
       }},
  };
  for (const Damage &d : damages())
    cases.push_back({d.what, [change = d.change](ByteRing &r) {
                       FrameHeader h = sound_header();
                       change(h);
                       std::memcpy(r.data(), &h, sizeof h);
                       r.written = 128;
                     }});
  for (const Case &c : cases) {
    const Made ends = shm_ends(ByteRing::kLeastCapacity, ByteRing::kLeastCapacity);
    c.fill(*ends->rings[0]->get());
    Inbox inbox;
    Letters letters;
    letters.emplace_back(FrameKind::PlanData, 1, 600'000);
    ends->there().post(letters[0]);
    drive(ends->there(), inbox);
    ASSERT_EQ(inbox.ends.size(), 1u) << c.what;
    EXPECT_NE(inbox.ends[0].find(c.what), std::string::npos) << inbox.ends[0] << " for " << c.what;
    EXPECT_FALSE(drive(ends->there(), inbox));
    EXPECT_EQ(inbox.ends.size(), 1u);
    EXPECT_TRUE(inbox.parcels.empty());
    cancel(ends->there(), 99, kMember, kSource);
    EXPECT_TRUE(letters[0].over());
  }
}

TEST(ShmLink, TheRingFromThePeerMayComeLater) {
  OwnRing rings[2];
  Doorbell bells[2];
  ShmLink here(rings[0].get(), rings[0].capacity(), &bells[1]), there(rings[1].get(), rings[1].capacity(), &bells[0]);
  Inbox inbox;
  Letters letters;
  letters.emplace_back(FrameKind::Message, 1, 1000);
  here.post(letters[0]);
  EXPECT_TRUE(drive(here, inbox));
  EXPECT_FALSE(drive(there, inbox));
  there.set_in(rings[0].get(), rings[0].capacity());
  EXPECT_TRUE(drive(there, inbox));
  expect_whole(inbox, letters[0]);
}

}  // namespace
}  // namespace isthmus::link
