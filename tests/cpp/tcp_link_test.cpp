// What is a TCP link's alone: on what a thread sleeps, streams that are lost, silent, cut and connected again, and peers that lie.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <functional>
#include <map>
#include <thread>

#include "link_ends.hpp"

static std::atomic<int> asked_for_interfaces{0};
extern "C" int getifaddrs(ifaddrs **out) noexcept {  // in the place of libc's
  ++asked_for_interfaces;
  static const auto real = reinterpret_cast<int (*)(ifaddrs **)>(::dlsym(RTLD_NEXT, "getifaddrs"));
  return real(out);
}

namespace isthmus::link {
namespace {

// A peer that has sent everything closes all its streams; one may be read to its end before another.
TEST(TcpLink, WhatCameByOtherStreamsBeforeTheEndIsRead) {
  std::vector<UniqueFd> sockets, peers;
  for (int i = 0; i < 3; ++i) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    sockets.emplace_back(fds[0]);
    peers.emplace_back(fds[1]);
  }
  TcpLink link(std::move(sockets));
  FrameHeader h = sound_header();
  const std::byte payload[16] = {};
  for (const uint64_t id : {uint64_t{1}, uint64_t{2}}) {
    h.id = id;
    const int fd = peers[id].get();
    ASSERT_EQ(::send(fd, &h, sizeof h, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof h));
    ASSERT_EQ(::send(fd, payload, sizeof payload, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof payload));
  }
  peers.clear();
  Inbox inbox;
  const Deadline deadline(isthmus_test::soon());
  while (inbox.ends.empty() && !deadline.passed()) drive(link, inbox);
  EXPECT_EQ(inbox.order, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(inbox.ends.size(), 1u);
}

// A link over one TCP connection, whose other end is a socket.
struct Wire {
  Wire() {
    const UniqueFd listener = net::listen_tcp(net::numeric_address("127.0.0.1:1").with_port(0));
    std::vector<UniqueFd> mine(1);
    EXPECT_EQ(net::connect_tcp(net::local_address(listener.get()), Deadline(isthmus_test::soon()), mine[0]), 0);
    std::string from;
    int error = 0;
    for (const Deadline deadline(isthmus_test::soon()); !peer && !deadline.passed();)
      peer = net::accept_client(listener.get(), from, error);
    link = std::make_unique<TcpLink>(std::move(mine));
  }
  void send(const void *bytes, size_t n) { ASSERT_EQ(::send(peer.get(), bytes, n, MSG_NOSIGNAL), static_cast<ssize_t>(n)); }
  bool readable(int ms) {
    std::vector<pollfd> fds;
    link->descriptors(fds);
    EXPECT_EQ(fds.size(), 1u);
    return ::poll(fds.data(), fds.size(), ms) == 1;
  }
  void about_to_sleep() {
    ASSERT_TRUE(link->try_turn());
    link->before_sleep();
    link->end_turn();
  }
  UniqueFd peer;
  std::unique_ptr<TcpLink> link;
};
constexpr int kSoon = 20, kSurely = 30'000;  // ms

TEST(TcpLink, WhoSleepsInsideAPayloadIsWokenForItsEndNotForEveryPacket) {
  Wire wire;
  Inbox inbox;
  FrameHeader h = sound_header();
  h.id = 1;
  h.bytes = 3000;
  h.total = 3000;
  const std::vector<std::byte> payload(3000);
  wire.send(&h, sizeof h);
  wire.send(payload.data(), 1000);
  ASSERT_TRUE(wire.readable(kSurely));
  drive(*wire.link, inbox);
  wire.about_to_sleep();
  wire.send(payload.data(), 1500);
  EXPECT_FALSE(wire.readable(kSoon));
  drive(*wire.link, inbox);  // another thread reads them: the sleeper is to hear of the rest all the same
  wire.send(payload.data(), 500);
  EXPECT_TRUE(wire.readable(kSurely));
  drive(*wire.link, inbox);
  EXPECT_EQ(inbox.order, std::vector<uint64_t>{1});
  wire.send(&h, 1);  // between frames, for anything
  EXPECT_TRUE(wire.readable(kSurely));
}

TEST(TcpLink, WhoSleepsInsideALargePayloadIsWokenLongBeforeItsEnd) {
  Wire wire;
  Inbox inbox;
  FrameHeader h = sound_header();
  h.id = 1;
  h.bytes = kMaxPayload;
  h.total = kMaxPayload;
  const std::vector<std::byte> payload(kMaxPayload / 2);
  wire.send(&h, sizeof h);
  ASSERT_TRUE(wire.readable(kSurely));
  drive(*wire.link, inbox);
  wire.about_to_sleep();
  wire.send(payload.data(), 1000);
  EXPECT_FALSE(wire.readable(kSoon));
  for (size_t sent = 0; sent < payload.size() / 2;) {
    pollfd room{wire.peer.get(), POLLOUT, 0};
    ASSERT_EQ(::poll(&room, 1, kSurely), 1);
    const ssize_t n = ::send(wire.peer.get(), payload.data(), payload.size() / 2 - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    ASSERT_GT(n, 0);
    sent += static_cast<size_t>(n);
  }
  EXPECT_TRUE(wire.readable(kSurely));
}

TEST(TcpLink, WhoSleepsInsideAPayloadHearsThatThePeerHasGone) {
  Wire wire;
  Inbox inbox;
  FrameHeader h = sound_header();
  h.bytes = 100'000;
  h.total = 100'000;
  wire.send(&h, sizeof h);
  ASSERT_TRUE(wire.readable(kSurely));
  drive(*wire.link, inbox);
  wire.about_to_sleep();
  EXPECT_FALSE(wire.readable(kSoon));
  wire.peer = UniqueFd();
  EXPECT_TRUE(wire.readable(kSurely));
}

// ---- streams that are lost --------------------------------------------------------------------------------------------------

// Ends of several streams, whose sockets a test may cut.
template <int Streams>
struct Cables {
  explicit Cables(int bytes = 64 * 1024, bool long_way = false, Hands *hands = nullptr)
      : Cables(
            [] {
              std::vector<std::array<UniqueFd, 2>> made;
              for (int i = 0; i < Streams; ++i) made.push_back(connected());
              return made;
            }(),
            bytes, long_way, hands) {}
  Cables(std::vector<std::array<UniqueFd, 2>> made, int bytes, bool long_way = false, Hands *hands = nullptr) {
    std::vector<UniqueFd> sides[2];
    for (int i = 0; i < Streams; ++i) {
      auto &pair = made[static_cast<size_t>(i)];
      for (int side : {0, 1}) {
        fds[side][i] = pair[side].get();
        sides[side].push_back(std::move(pair[side]));
      }
    }
    ends = tcp_ends(std::move(sides[0]), std::move(sides[1]), bytes, long_way, hands);
  }
  static std::array<UniqueFd, 2> connected() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) fail_system("socketpair", errno);
    return {UniqueFd(pair[0]), UniqueFd(pair[1])};
  }
  void post_both(Letters &letters, Letters &answers) {  // by turns
    for (size_t i = 0; i < letters.size(); ++i) {
      ends->here().post(letters[i]);
      ends->there().post(answers[i]);
    }
  }
  // What is under way is still read, as behind a FIN.
  void cut(int stream) { ASSERT_EQ(::shutdown(fds[0][stream], SHUT_RDWR), 0); }
  void connect_again(size_t stream, uint32_t generation) {
    auto pair = connected();
    for (int side : {0, 1}) {
      fds[side][stream] = pair[side].get();
      link(side).news().offer({static_cast<uint32_t>(stream), generation, std::move(pair[side])});
    }
  }
  TcpLink &link(int side) { return dynamic_cast<TcpLink &>(*ends->links[side]); }
  bool drive_both() {
    const bool moved = drive(*ends->links[0], back);
    return drive(*ends->links[1], inbox) || moved;
  }
  bool eventually(const std::function<bool()> &what) {
    return driven_until(what, [this] { return drive_both(); });
  }
  std::array<int, Streams> fds[2];
  Made ends;
  Inbox back, inbox;
};

bool over(const Letters &letters) {
  return std::all_of(letters.begin(), letters.end(), [](const Letter &l) { return l.over(); });
}

Letters mixed(uint64_t first, uint64_t count) {
  Letters letters;
  for (uint64_t i = first; i < first + count; ++i)
    letters.emplace_back(i % 3 == 0 ? FrameKind::PlanData : FrameKind::Message, i,
                         i % 3 == 0 ? (1 << 20) + i : i * 97 % 20'000);
  return letters;
}

void expect_small_ones_in_order(const Inbox &inbox) {
  std::vector<uint64_t> small;
  for (const uint64_t id : inbox.order)
    if (id % 3 != 0) small.push_back(id);
  EXPECT_TRUE(std::is_sorted(small.begin(), small.end()));
}

// Large pieces are moved by the thread that has the turn, or side by side.
class TcpStreams : public testing::TestWithParam<bool> {
 protected:
  Hands *hands() { return GetParam() ? &threads_ : nullptr; }
  TestHands threads_;
};
INSTANTIATE_TEST_SUITE_P(, TcpStreams, testing::Bool(),
                         [](const auto &tested) { return std::string(tested.param ? "helped" : "alone"); });

TEST_P(TcpStreams, WhicheverAreLostAllComesOnceByTheOthersAndInOrder) {
  for (int which = 0; which < 8; ++which)
    for (const size_t after : {0, 3, 20}) {  // frames that had come
      const int first = which / 2;
      const bool long_way = which % 2 != 0;
      SCOPED_TRACE("stream " + std::to_string(first) + " after " + std::to_string(after) + " frames" +
                   (long_way ? ", over a long way" : ""));
      Cables<4> c(64 * 1024, long_way, hands());
      Letters letters = mixed(0, 40), answers = mixed(0, 40);
      c.post_both(letters, answers);
      ASSERT_TRUE(c.eventually([&] { return c.inbox.order.size() >= after; }));
      c.cut(first);
      ASSERT_TRUE(c.eventually([&] { return c.inbox.order.size() >= after + 3; }));
      c.cut((first + 1) % 4);
      c.cut((first + 2) % 4);
      ASSERT_TRUE(
          c.eventually([&] { return c.inbox.has(letters) && c.back.has(answers) && over(letters) && over(answers); }));
      for (const Letter &l : letters) expect_whole(c.inbox, l);
      for (const Letter &l : answers) expect_whole(c.back, l);
      expect_small_ones_in_order(c.inbox);
      expect_small_ones_in_order(c.back);
      EXPECT_TRUE(c.inbox.ends.empty() && c.back.ends.empty());
      EXPECT_TRUE(c.eventually([&] { return c.ends->here().idle() && c.ends->there().idle(); }));
      for (int side : {0, 1}) {
        const auto report = c.link(side).news().report();
        for (int s = 0; s < 4; ++s) EXPECT_EQ(report[static_cast<size_t>(s)].connected, s == (first + 3) % 4);
      }
    }
}

// Each part of a job waits until all of them have begun.
class AllAtOnce final : public Hands {
 public:
  bool any() const noexcept override { return true; }
  void share(void (*work)(void *job, size_t i), void *job, size_t count) noexcept override {
    most = std::max(most, count);
    if (count == 0) return;
    std::barrier all(static_cast<std::ptrdiff_t>(count));
    const auto part = [&](size_t i) {
      all.arrive_and_wait();
      work(job, i);
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < count; ++i) others.emplace_back(part, i);
    part(0);
    for (std::thread &t : others) t.join();
  }
  size_t most = 0;
};

TEST(TcpLink, LargePiecesOfAllStreamsAreMovedAtTheSameTimeBothWays) {
  AllAtOnce hands;
  Cables<4> c(256 * 1024, false, &hands);
  Letters letters, answers;
  for (uint64_t id = 1; id <= 8; ++id) {
    letters.emplace_back(FrameKind::PlanData, id, 4 << 20);
    answers.emplace_back(FrameKind::MessageData, id, 4 << 20);
  }
  c.post_both(letters, answers);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.has(letters) && c.back.has(answers) && over(letters) && over(answers); }));
  EXPECT_EQ(hands.most, 4u);
  for (const Letter &l : letters) expect_whole(c.inbox, l);
  for (const Letter &l : answers) expect_whole(c.back, l);
  for (int side : {0, 1}) {
    EXPECT_GT(c.link(side).bytes_helped.load(), 0u);
    EXPECT_EQ(c.link(side).bytes_sent.load(), c.link(1 - side).bytes_received.load());
  }
  EXPECT_TRUE(c.eventually([&] { return c.ends->here().idle() && c.ends->there().idle(); }));
}

// A socket that was full and has room, and the end of what is half here, as where nobody helps.
TEST(TcpLink, WhoSleepsWhileOthersHelpIsWokenForAllThatIsLeft) {
  TestHands hands;
  Cables<2> c(64 * 1024, false, &hands);
  Letters letters;
  letters.emplace_back(FrameKind::PlanData, 1, 4 << 20);
  c.ends->here().post(letters[0]);
  for (const Deadline deadline(isthmus_test::soon()); !deadline.passed();) {
    while (drive(*c.ends->links[0], c.back)) {}
    while (drive(*c.ends->links[1], c.inbox)) {}
    if (c.inbox.has(letters) && over(letters)) break;
    std::vector<pollfd> fds;
    for (const auto &link : c.ends->links) {
      about_to_sleep(*link);
      link->descriptors(fds);
    }
    ASSERT_GT(::poll(fds.data(), fds.size(), kSurely), 0) << "both ends sleep, and something is left";
  }
  ASSERT_TRUE(c.inbox.has(letters) && over(letters));
  EXPECT_EQ(hands.most, 2u);
  expect_whole(c.inbox, letters[0]);
}

TEST(TcpLink, FramesOfDataGoByEveryStreamAlsoWhereEachIsOf20KiB) {
  Cables<2> c;
  Letters letters;
  for (uint64_t i = 0; i < 40; ++i) letters.emplace_back(i % 2 ? FrameKind::PlanData : FrameKind::MessageData, i, 20'000);
  for (Letter &l : letters) c.ends->here().post(l);
  while (drive(*c.ends->links[0], c.back)) {}
  for (int stream : {0, 1}) {
    int there = 0;
    ASSERT_EQ(::ioctl(c.fds[1][stream], FIONREAD, &there), 0);
    EXPECT_GT(there, 20'000) << "by stream " << stream;
  }
  ASSERT_TRUE(c.eventually([&] { return c.inbox.has(letters) && over(letters); }));
  for (const Letter &l : letters) expect_whole(c.inbox, l);
}

TEST(TcpLink, ASingleFrameOf64KiBIsItsSendersAgainBeforeItHasCome) {
  Cables<2> c(256 * 1024);
  Letters letters;
  letters.emplace_back(FrameKind::PlanData, 1, 64 * 1024);
  c.ends->here().post(letters[0]);
  drive(*c.ends->links[0], c.back);
  EXPECT_TRUE(over(letters)) << "it was copied";
  std::fill(letters[0].bytes.begin(), letters[0].bytes.end(), kForeign);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.parcels.count(1) == 1 && c.inbox.parcels.at(1).complete(); }));
  for (uint64_t i = 0; i < 64 * 1024; ++i) ASSERT_EQ(c.inbox.parcels.at(1).bytes[i], content(1, i));
}

// Near, it would be its sender's again once it has come.
TEST(TcpLink, OverALongWayALargeFrameIsItsSendersAgainOnceItIsWrittenAndComesWhateverIsLost) {
  for (const bool long_way : {false, true}) {
    Cables<2> c(512 * 1024, long_way);
    Letters letters;
    letters.emplace_back(FrameKind::PlanData, 1, 100'000);
    c.ends->here().post(letters[0]);
    for (int i = 0; i < 10; ++i) drive(*c.ends->links[0], c.back);
    ASSERT_EQ(over(letters), long_way);
    EXPECT_FALSE(c.ends->here().idle()) << "nobody closes the sockets before it has come";
    if (!long_way) continue;
    std::fill(letters[0].bytes.begin(), letters[0].bytes.end(), kForeign);
    std::byte gone[4096];  // what was under way by the stream is lost with it
    while (::recv(c.fds[1][0], gone, sizeof gone, MSG_DONTWAIT) > 0) {}
    c.cut(0);
    ASSERT_TRUE(c.eventually([&] { return c.inbox.parcels.count(1) == 1 && c.inbox.parcels.at(1).complete(); }));
    for (uint64_t i = 0; i < 100'000; ++i) ASSERT_EQ(c.inbox.parcels.at(1).bytes[i], content(1, i));
    EXPECT_TRUE(c.eventually([&] { return c.ends->here().idle(); }));
  }
}

// A socket that is closed while notes are on their way to it resets the connection.
TEST(TcpLink, AProcessThatEndsOnceItsLinkIsIdleHasLostNothing) {
  for (const bool long_way : {false, true}) {
    SCOPED_TRACE(long_way ? "copies over a long way" : "frames that are confirmed at leisure");
    Cables<2> c(loopback_connections(2), 32 * 1024, long_way);
    const int much = 1 << 20;  // the sending kernel holds all of it
    for (const int fd : c.fds[0]) ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &much, sizeof much), 0);
    const uint64_t count = long_way ? 5 : 150, first = long_way ? 1 : 40;  // so many are confirmed
    uint64_t upto = count;
    c.inbox.decide = [&](const FrameHeader &h, int64_t) { return h.id <= upto ? Accept::Take : Accept::Defer; };
    Letters letters;
    for (uint64_t id = 1; id <= count; ++id) letters.emplace_back(FrameKind::PlanData, id, long_way ? 40'000 : 1'000);
    for (Letter &l : letters) c.ends->here().post(l);
    for (int i = 0; i < 10; ++i) drive(*c.ends->links[0], c.back);
    ASSERT_TRUE(over(letters)) << "the operations have ended, and the process may end as well";
    ASSERT_TRUE(c.eventually([&] { return c.ends->here().idle(); }));
    c.ends->links[0].reset();
    upto = first;
    for (int i = 0; i < 10; ++i) drive(*c.ends->links[1], c.inbox);
    upto = count;
    const Deadline deadline(isthmus_test::soon());
    while (!c.inbox.has(letters) && c.inbox.ends.empty() && !deadline.passed()) drive(*c.ends->links[1], c.inbox);
    ASSERT_TRUE(c.inbox.has(letters)) << (c.inbox.ends.empty() ? "" : c.inbox.ends[0]);
    for (const Letter &l : letters) expect_whole(c.inbox, l);
  }
}

TEST(TcpLink, AProcessThatEndsOnceItsOneStreamIsIdleHasLostNothingAlsoWhereThePeerStillSends) {
  Cables<1> c(loopback_connections(1), 32 * 1024);
  const int much = 1 << 20;  // the sending kernel holds all of it
  ASSERT_EQ(::setsockopt(c.fds[0][0], SOL_SOCKET, SO_SNDBUF, &much, sizeof much), 0);
  Letters letters, back;
  for (uint64_t id = 1; id <= 5; ++id) letters.emplace_back(FrameKind::PlanData, id, 40'000);
  for (Letter &l : letters) c.ends->here().post(l);
  for (int i = 0; i < 10; ++i) drive(*c.ends->links[0], c.back);
  ASSERT_TRUE(over(letters)) << "the operations have ended, and the process may end as well";
  ASSERT_TRUE(c.eventually([&] { return c.ends->here().idle(); }));
  c.ends->links[0].reset();
  back.emplace_back(FrameKind::Message, 1, 10);
  c.ends->there().post(back[0]);
  const Deadline deadline(isthmus_test::soon());
  while (!c.inbox.has(letters) && c.inbox.ends.empty() && !deadline.passed()) drive(*c.ends->links[1], c.inbox);
  ASSERT_TRUE(c.inbox.has(letters)) << (c.inbox.ends.empty() ? "" : c.inbox.ends[0]);
  for (const Letter &l : letters) expect_whole(c.inbox, l);
}

TEST_P(TcpStreams, OverALongWayOneThatThePeerDoesNotReadHoldsUpNoOther) {
  Cables<2> c(64 * 1024, true, hands());
  bool open = false;
  c.inbox.decide = [&](const FrameHeader &h, int64_t) { return h.id == 1 && !open ? Accept::Defer : Accept::Take; };
  Letters letters;
  for (uint64_t id = 1; id <= 4; ++id) letters.emplace_back(FrameKind::PlanData, id, 300'000);
  for (Letter &l : letters) c.ends->here().post(l);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.parcels.count(4) == 1 && c.inbox.parcels.at(4).complete(); }));
  open = true;
  ASSERT_TRUE(c.eventually([&] { return c.inbox.has(letters) && over(letters); }));
  for (const Letter &l : letters) expect_whole(c.inbox, l);
}

TEST_P(TcpStreams, AFrameThatTheSinkHadAcceptedIsNotOfferedAgain) {
  Cables<2> c(64 * 1024, false, hands());
  std::map<uint64_t, int> offers;
  c.inbox.decide = [&](const FrameHeader &h, int64_t) {
    ++offers[h.id];
    return h.id == 2 ? Accept::Drop : Accept::Take;
  };
  Letters letters;
  letters.emplace_back(FrameKind::Message, 1, 900'000);  // more than a socket holds
  letters.emplace_back(FrameKind::Message, 2, 900'000);
  letters.emplace_back(FrameKind::Message, 3, 10);
  for (Letter &l : letters) c.ends->here().post(l);
  ASSERT_TRUE(c.eventually([&] { return offers[1] == 1; }));
  ASSERT_FALSE(c.inbox.parcels.at(1).complete());
  c.cut(0);
  ASSERT_TRUE(c.eventually([&] { return offers[2] == 1; }));
  c.connect_again(0, 1);
  ASSERT_TRUE(
      c.eventually([&] { return c.link(0).news().report()[0].connected && c.link(1).news().report()[0].connected; }));
  c.cut(1);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.parcels.count(3) == 1 && over(letters); }));
  EXPECT_EQ(offers, (std::map<uint64_t, int>{{1, 1}, {2, 1}, {3, 1}}));
  expect_whole(c.inbox, letters[0]);
  EXPECT_TRUE(c.inbox.ends.empty() && c.back.ends.empty());
}

TEST_P(TcpStreams, WhatIsCancelledGoesByNoOtherStream) {
  Cables<2> c(64 * 1024, false, hands());
  c.inbox.decide = [&](const FrameHeader &h, int64_t) { return h.id == 1 && h.offset > 0 ? Accept::Defer : Accept::Take; };
  Letters gone, later;
  gone.emplace_back(FrameKind::PlanData, 1, 4 << 20);
  c.ends->here().post(gone[0]);
  while (c.drive_both()) {}
  ASSERT_FALSE(over(gone));
  const std::vector<std::byte> sent = gone[0].bytes;
  cancel(c.ends->here(), 99, kMember, kSource);
  EXPECT_TRUE(over(gone));
  std::fill(gone[0].bytes.begin(), gone[0].bytes.end(), kForeign);
  c.cut(0);
  cancel(c.ends->there(), kMember, 99, 0);  // the receiver has heard of it as well
  c.inbox.decide = [&](const FrameHeader &h, int64_t) { return h.id == 1 ? Accept::Drop : Accept::Take; };
  for (uint64_t i = 2; i < 30; ++i)
    later.emplace_back(i % 3 ? FrameKind::Message : FrameKind::PlanData, i, i % 3 ? 300 : 150'000);
  for (Letter &l : later) c.ends->here().post(l);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.has(later) && over(later); }));
  for (const Letter &l : later) expect_whole(c.inbox, l);
  EXPECT_EQ(gone[0].ends, 1);
  EXPECT_TRUE(c.eventually([&] { return c.ends->here().idle(); }));
}

TEST_P(TcpStreams, AStreamThatIsConnectedAgainCarriesItsPartAgain) {
  Cables<2> c(64 * 1024, false, hands());
  for (uint32_t generation = 1; generation <= 5; ++generation) {
    Letters letters = mixed(1000 * generation, 20);
    for (Letter &l : letters) c.ends->here().post(l);
    const int stream = static_cast<int>(generation % 2);
    c.cut(stream);
    ASSERT_TRUE(c.eventually([&] { return c.inbox.has(letters) && over(letters); }));
    EXPECT_FALSE(c.link(0).news().report()[static_cast<size_t>(stream)].connected);
    c.connect_again(static_cast<size_t>(stream), generation);
    ASSERT_TRUE(c.eventually([&] { return c.link(0).news().report()[static_cast<size_t>(stream)].connected; }));
    for (const Letter &l : letters) expect_whole(c.inbox, l);
  }
  // Both are needed now: one takes nothing more once its socket is full.
  c.inbox.decide = [](const FrameHeader &, int64_t) { return Accept::Defer; };
  Letters letters;
  letters.emplace_back(FrameKind::PlanData, 1, 4 << 20);
  c.ends->here().post(letters[0]);
  while (c.drive_both()) {}
  std::vector<pollfd> fds;
  c.ends->here().descriptors(fds);
  EXPECT_EQ(std::count_if(fds.begin(), fds.end(), [](const pollfd &f) { return f.events & POLLOUT; }), 2);
  const auto report = c.link(1).news().report();
  EXPECT_EQ(report[0].lost + report[1].lost, 5u);
  EXPECT_EQ(report[0].back + report[1].back, 5u);
}

TEST(TcpLink, AConnectionThatOnlyOneEndGotIsNoHarm) {
  Cables<2> c;
  c.cut(1);
  ASSERT_TRUE(
      c.eventually([&] { return !c.link(0).news().report()[1].connected && !c.link(1).news().report()[1].connected; }));
  for (uint32_t generation = 1; generation <= 3; ++generation) {
    auto pair = Cables<2>::connected();
    c.link(0).news().offer({1, generation, std::move(pair[0])});  // the other end of it is closed
    pair[1] = {};
    ASSERT_TRUE(c.eventually([&] { return c.link(0).news().report()[1].lost == generation + 1; }));
  }
  c.connect_again(1, 4);
  Letters letters = mixed(0, 20);
  for (Letter &l : letters) c.ends->here().post(l);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.has(letters) && over(letters); }));
  c.cut(0);
  Letters more = mixed(100, 20);
  for (Letter &l : more) c.ends->here().post(l);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.has(more) && over(more); }));
  for (const Letters *all : {&letters, &more})
    for (const Letter &l : *all) expect_whole(c.inbox, l);
  EXPECT_TRUE(c.inbox.ends.empty() && c.back.ends.empty());
}

TEST_P(TcpStreams, WhenTheLastIsLostTheLinkIsBroken) {
  Cables<2> c(64 * 1024, false, hands());
  Letters letters = mixed(0, 20);
  for (Letter &l : letters) c.ends->here().post(l);
  c.cut(0);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.has(letters) && over(letters); }));
  c.cut(1);
  ASSERT_TRUE(c.eventually([&] { return !c.inbox.ends.empty() && !c.back.ends.empty(); }));
  EXPECT_EQ(c.inbox.ends, std::vector<std::string>{"the peer closed the connection"});
  EXPECT_TRUE(c.link(0).broken() && c.link(1).broken());
}

// Two streams over TCP, whose packets a test lets vanish: nothing tells either end, as where a cable is pulled out.
struct SilentCables : Cables<2> {
  explicit SilentCables(int bytes = 64 * 1024) : Cables<2>(loopback_connections(2), bytes) {}
  // Nothing comes in at that end of the stream any more.
  void mute(int side, int stream) {
    sock_filter drop{BPF_RET, 0, 0, 0};
    const sock_fprog program{1, &drop};
    ASSERT_EQ(::setsockopt(fds[side][stream], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
  }
  void silence(int stream) {
    mute(0, stream);
    mute(1, stream);
  }
  void connect_again(size_t stream, uint32_t generation) {
    auto pair = std::move(loopback_connections(1)[0]);
    for (int side : {0, 1}) {
      fds[side][stream] = pair[side].get();
      link(side).news().offer({static_cast<uint32_t>(stream), generation, std::move(pair[side])});
    }
  }
  StreamReport report(int side, size_t stream) { return link(side).news().report()[stream]; }
};

TEST(TcpLink, ASilentStreamIsLostWhileAnotherAnswersAndAllComesByThat) {
  for (const int stream : {0, 1}) {
    SCOPED_TRACE(stream);
    SilentCables c;
    Letters letters = mixed(0, 40), answers = mixed(0, 40);
    c.post_both(letters, answers);
    ASSERT_TRUE(c.eventually([&] { return c.inbox.order.size() >= 3; }));
    c.silence(stream);
    ASSERT_TRUE(c.eventually([&] { return c.inbox.has(letters) && c.back.has(answers) && over(letters) && over(answers); }));
    for (const Letter &l : letters) expect_whole(c.inbox, l);
    for (const Letter &l : answers) expect_whole(c.back, l);
    expect_small_ones_in_order(c.inbox);
    expect_small_ones_in_order(c.back);
    for (int side : {0, 1}) {
      EXPECT_FALSE(c.report(side, static_cast<size_t>(stream)).connected);
      EXPECT_TRUE(c.report(side, static_cast<size_t>(1 - stream)).connected);
    }
  }
}

TEST(TcpLink, AStreamIsTakenForSilentAlsoWhereOnlyAConfirmationIsUnderWay) {
  SilentCables c(256 * 1024);
  Letters letters;
  letters.emplace_back(FrameKind::PlanData, 1, 70'000);
  c.ends->here().post(letters[0]);
  const auto in_kernel = [&](int stream) {  // of the other end, which has read nothing
    int there = 0;
    EXPECT_EQ(::ioctl(c.fds[1][stream], FIONREAD, &there), 0);
    return there;
  };
  while (in_kernel(0) + in_kernel(1) < 70'064) drive(*c.ends->links[0], c.back);
  const int stream = in_kernel(1) != 0 ? 1 : 0;
  while (net::answers(c.fds[0][stream]).unanswered != 0) std::this_thread::yield();
  c.silence(stream);
  ASSERT_TRUE(c.eventually([&] { return over(letters); }));
  expect_whole(c.inbox, letters[0]);
  EXPECT_FALSE(c.report(0, static_cast<size_t>(stream)).connected);
  EXPECT_TRUE(c.report(0, static_cast<size_t>(1 - stream)).connected);
}

// The ends may have taken one stream each for silent, one of them long ago.
class AfterASilence : public ::testing::TestWithParam<int> {};
TEST_P(AfterASilence, ALinkWithoutStreamsWaitsForNewConnections) {
  SilentCables c;
  Letters letters = mixed(0, 40), answers = mixed(0, 40);
  c.post_both(letters, answers);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.order.size() >= 3; }));
  c.silence(0);
  ASSERT_TRUE(c.eventually([&] { return !c.report(0, 0).connected && !c.report(1, 0).connected; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(GetParam()));
  c.cut(1);
  ASSERT_TRUE(c.eventually([&] { return !c.report(0, 1).connected && !c.report(1, 1).connected; }));
  EXPECT_FALSE(c.link(0).broken() || c.link(1).broken());
  c.connect_again(0, 5);
  c.connect_again(1, 5);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.has(letters) && c.back.has(answers) && over(letters) && over(answers); }));
  for (const Letter &l : letters) expect_whole(c.inbox, l);
  for (const Letter &l : answers) expect_whole(c.back, l);
  expect_small_ones_in_order(c.inbox);
  expect_small_ones_in_order(c.back);
}

INSTANTIATE_TEST_SUITE_P(, AfterASilence, ::testing::Values(0, 3500));

TEST(TcpLink, TheLastStreamIsNeverTakenForSilent) {
  SilentCables c;
  Letters letters = mixed(0, 20);
  for (Letter &l : letters) c.ends->here().post(l);
  c.cut(0);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.order.size() >= 3; }));
  c.silence(1);
  // Sent again twice: a stream that had another beside it would have been lost long ago.
  ASSERT_TRUE(c.eventually([&] { return net::answers(c.fds[0][1]).repeated >= 3; }));
  EXPECT_TRUE(c.report(0, 1).connected);
  EXPECT_FALSE(c.link(0).broken());
}

TEST(TcpLink, WhetherAnInterfaceIsDownIsAskedAtMostOnceIn50MillisecondsHoweverLongAStreamIsSilent) {
  SilentCables c;
  Letters letters = mixed(0, 20);
  for (Letter &l : letters) c.ends->here().post(l);
  c.cut(0);
  ASSERT_TRUE(c.eventually([&] { return c.inbox.order.size() >= 3; }));
  const int64_t begin = now_ns();
  const int before = asked_for_interfaces;
  c.silence(1);
  ASSERT_TRUE(c.eventually([&] { return asked_for_interfaces >= before + 6; }));
  // Both ends may ask at once, and then each 50 ms.
  EXPECT_LE(asked_for_interfaces - before, 2 * (1 + (now_ns() - begin) / 50'000'000));
}

TEST(TcpLink, APeerThatCountsWronglyIsRefused) {
  const auto note = [](uint8_t kind, uint16_t slot, uint64_t id, uint64_t offset) {
    FrameHeader h;
    h.kind = static_cast<FrameKind>(kind);
    h.slot = slot;
    h.id = id;
    h.offset = offset;
    h.epoch = 1;
    return h;
  };
  for (const FrameHeader &h : {note(kNoteGot, 0, 1, 0), note(kNoteLost, 2, 0, 0), note(kNoteLost, 0, 0, 0),
                               note(kNoteLost, 1, 0, 1), note(kNoteLost, 1, ~uint64_t{0}, 0)}) {
    std::vector<UniqueFd> mine, theirs;
    for (int i = 0; i < 2; ++i) {
      auto pair = Cables<2>::connected();
      mine.push_back(std::move(pair[0]));
      theirs.push_back(std::move(pair[1]));
    }
    TcpLink link(std::move(mine));
    ASSERT_EQ(::send(theirs[0].get(), &h, sizeof h, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof h));
    Inbox inbox;
    drive(link, inbox);
    ASSERT_EQ(inbox.ends.size(), 1u);
    EXPECT_NE(inbox.ends[0].find("protocol error"), std::string::npos) << inbox.ends[0];
  }
}

TEST(TcpLink, BytesThatAreNoFrameEndItWithTheReason) {
  for (const Damage &d : damages()) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const UniqueFd peer(fds[1]);
    std::vector<UniqueFd> sockets;
    sockets.emplace_back(fds[0]);
    TcpLink link(std::move(sockets));
    Inbox inbox;
    FrameHeader h = sound_header();
    const std::byte payload[16] = {};
    const auto send = [&] {
      ASSERT_EQ(::send(peer.get(), &h, sizeof h, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof h));
      ASSERT_EQ(::send(peer.get(), payload, sizeof payload, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof payload));
    };
    send();
    EXPECT_TRUE(drive(link, inbox));
    EXPECT_EQ(inbox.order.size(), 1u);
    EXPECT_TRUE(inbox.ends.empty());
    d.change(h);
    send();
    drive(link, inbox);
    drive(link, inbox);
    ASSERT_EQ(inbox.ends.size(), 1u) << d.what;
    EXPECT_NE(inbox.ends[0].find(d.what), std::string::npos) << inbox.ends[0];
    EXPECT_EQ(inbox.order.size(), 1u);
  }
}

}  // namespace
}  // namespace isthmus::link
