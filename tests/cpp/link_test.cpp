// What frame.hpp promises of a Link, on every link there is: within a process, through shared memory, over one socket and several, and by UCX
// over its TCP and its shared memory.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <ostream>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "link/memory.hpp"
#include "link/tcp.hpp"
#include "link/ucx.hpp"
#include "net/socket.hpp"
#include "patience.hpp"

static std::atomic<int> asked_for_interfaces{0};
extern "C" int getifaddrs(ifaddrs **out) noexcept {  // in the place of libc's
  ++asked_for_interfaces;
  static const auto real = reinterpret_cast<int (*)(ifaddrs **)>(::dlsym(RTLD_NEXT, "getifaddrs"));
  return real(out);
}

namespace isthmus::link {
namespace {

constexpr uint32_t kMember = 7, kEpoch = 3, kSource = 1;
constexpr auto kForeign = std::byte{0xee};  // in no payload

// Never 0, never kForeign, and different from frame to frame.
std::byte content(uint64_t id, uint64_t i) { return static_cast<std::byte>(1 + ((id * 31 + i * 7 + (i >> 8)) & 127)); }

// ---- two ends of a link --------------------------------------------------------------------------------------------------

// A ring with its data, as it lies in an arena.
class OwnRing {
 public:
  explicit OwnRing(uint64_t capacity = ByteRing::kLeastCapacity)
      : capacity_(capacity),
        place_(static_cast<std::byte *>(::operator new (ByteRing::bytes(capacity), std::align_val_t{64}))) {
    std::memset(static_cast<void *>(place_), 0, ByteRing::bytes(capacity));
    new (place_) ByteRing;
  }
  ~OwnRing() { ::operator delete (place_, std::align_val_t{64}); }
  OwnRing(const OwnRing &) = delete;
  OwnRing &operator=(const OwnRing &) = delete;
  ByteRing *get() const { return ByteRing::at(place_); }
  uint64_t capacity() const { return capacity_; }

 private:
  uint64_t capacity_;
  std::byte *place_;
};

struct Ends {
  Doorbell bells[2];
  std::unique_ptr<OwnRing> rings[2];
  std::unique_ptr<UcxWorker> workers[2];
  std::vector<std::byte> places[2];  // of UCX links
  std::unique_ptr<Link> links[2];    // the second one empty: a link within a process, both ends in one
  Link &here() { return *links[0]; }
  Link &there() { return links[1] ? *links[1] : *links[0]; }
  bool one() const { return links[1] == nullptr; }
};
using Made = std::unique_ptr<Ends>;

Made local_ends() {
  auto e = std::make_unique<Ends>();
  e->links[0] = std::make_unique<LocalLink>(&e->bells[0]);
  return e;
}

Made shm_ends(uint64_t capacity, uint64_t back) {
  auto e = std::make_unique<Ends>();
  e->rings[0] = std::make_unique<OwnRing>(capacity);
  e->rings[1] = std::make_unique<OwnRing>(back);
  for (int i = 0; i < 2; ++i) {
    const OwnRing &out = *e->rings[i], &in = *e->rings[1 - i];
    auto l = std::make_unique<ShmLink>(out.get(), out.capacity(), &e->bells[1 - i]);
    l->set_in(in.get(), in.capacity());
    e->links[i] = std::move(l);
  }
  return e;
}

// `bytes`: of each socket's buffers. As it is, a large payload never fits.
Made tcp_ends(std::vector<UniqueFd> here, std::vector<UniqueFd> there, int bytes = 64 * 1024) {
  for (const auto *side : {&here, &there})
    for (const UniqueFd &fd : *side) {
      EXPECT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
      EXPECT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
    }
  auto e = std::make_unique<Ends>();
  e->links[0] = std::make_unique<TcpLink>(std::move(here));
  e->links[1] = std::make_unique<TcpLink>(std::move(there));
  return e;
}

template <int Streams>
Made socketpair_ends() {
  std::vector<UniqueFd> here, there;
  for (int i = 0; i < Streams; ++i) {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) fail_system("socketpair", errno);
    here.emplace_back(fds[0]);
    there.emplace_back(fds[1]);
  }
  return tcp_ends(std::move(here), std::move(there));
}

std::vector<std::array<UniqueFd, 2>> loopback_connections(int count) {
  const UniqueFd listener = net::listen_tcp(net::numeric_address("127.0.0.1:1").with_port(0));
  std::vector<std::array<UniqueFd, 2>> made;
  for (int i = 0; i < count; ++i) {
    UniqueFd mine, theirs;
    if (const int error = net::connect_tcp(net::local_address(listener.get()), Deadline(isthmus_test::soon()), mine);
        error != 0)
      fail_system("connect", error);
    const Deadline deadline(isthmus_test::soon());
    while (!theirs && !deadline.passed()) {
      std::string from;
      int error = 0;
      theirs = net::accept_client(listener.get(), from, error);
    }
    made.push_back({std::move(mine), std::move(theirs)});
  }
  return made;
}

Made loopback_ends() {
  std::vector<UniqueFd> here, there;
  for (auto &[mine, theirs] : loopback_connections(2)) {
    here.push_back(std::move(mine));
    there.push_back(std::move(theirs));
  }
  return tcp_ends(std::move(here), std::move(there));
}

class NoSink final : public FrameSink {
 public:
  Accept accept(const FrameHeader &, int64_t, std::byte *&) override { return Accept::Drop; }
  void received(const FrameHeader &) override {}
  void broken(const std::string &why) override { ADD_FAILURE() << why; }
};

bool drive(Link &link, FrameSink &inbox) {
  if (!link.try_turn()) return false;
  const bool moved = link.progress(inbox);
  link.end_turn();
  return moved;
}

UcxLink &ucx(Link &link) { return dynamic_cast<UcxLink &>(link); }

// Two links that know each other, of two workers that may use these transports. Null: this machine has no UCX.
Made ucx_ends(const char *transports, size_t memory, size_t other = 0) {
  ::setenv("UCX_TLS", transports, 1);
  auto e = std::make_unique<Ends>();
  try {
    UcxLibrary::open();
  } catch (const Error &) { return nullptr; }
  static constexpr uint8_t kNames[2][16] = {{1, 2, 3}, {4, 5, 6}};
  for (int i = 0; i < 2; ++i) {
    e->workers[i] = std::make_unique<UcxWorker>();
    e->places[i].resize(i == 1 && other != 0 ? other : memory);
  }
  for (int i = 0; i < 2; ++i)
    e->links[i] = std::make_unique<UcxLink>(*e->workers[i], e->workers[1 - i]->address(),
                                            UcxPair{std::span(kNames[i]), std::span(kNames[1 - i])}, e->places[i]);
  NoSink sink;
  for (const Deadline deadline(isthmus_test::soon()); !deadline.passed();) {
    for (const auto &link : e->links) drive(*link, sink);
    if (ucx(*e->links[0]).ready() && ucx(*e->links[1]).ready() && e->links[0]->idle() && e->links[1]->idle()) return e;
  }
  ADD_FAILURE() << "the hellos do not come over " << transports;
  return e;
}

// ---- what is sent, and what comes ----------------------------------------------------------------------------------------

struct Letter : Outgoing {
  std::vector<std::byte> bytes;
  std::atomic<uint32_t> unread{1};  // `pending`
  std::atomic<int> ends{0};         // calls of `finished`

  Letter(FrameKind kind, uint64_t number, uint64_t size, uint32_t to = kMember, uint32_t from = kSource,
         uint32_t era = kEpoch)
      : bytes(size) {
    for (uint64_t i = 0; i < size; ++i) bytes[i] = content(number, i);
    header.kind = kind;
    header.dtype = static_cast<uint8_t>(number % 17);
    header.member = to;
    header.epoch = era;
    header.source = from;
    header.tag = static_cast<int32_t>(number % 1000);
    header.id = number;
    header.total = size;
    header.digest = number * 0x9e3779b97f4a7c15ull;
    data = bytes.data();
    this->pending = &unread;
    finished = [](Outgoing &o) { static_cast<Letter &>(o).ends.fetch_add(1); };
  }
  bool over() const { return unread.load(std::memory_order_acquire) == 0; }
};
using Letters = std::deque<Letter>;

class Inbox final : public FrameSink {
 public:
  struct Parcel {
    FrameHeader first;  // header of the piece that came first
    std::vector<std::byte> bytes;
    std::map<uint64_t, uint32_t> pieces;  // offset -> bytes, of those that are complete
    uint64_t accepted = 0, here = 0;      // bytes
    bool complete() const { return here == first.total && !pieces.empty(); }
  };
  std::function<Accept(const FrameHeader &, int64_t)> decide = [](const FrameHeader &, int64_t) { return Accept::Take; };
  std::map<uint64_t, Parcel> parcels;  // by id
  std::vector<uint64_t> order;         // ids, as their last piece came
  std::vector<std::string> ends;       // what broken() said

  Accept accept(const FrameHeader &h, int64_t since_ns, std::byte *&to) override {
    EXPECT_EQ(frame_fault(h), nullptr);
    const Accept a = decide(h, since_ns);
    if (a != Accept::Take) return a;
    auto [at, fresh] = parcels.try_emplace(h.id);
    Parcel &p = at->second;
    if (fresh) {
      p.first = h;
      p.bytes.resize(h.total);
    }
    p.accepted += h.bytes;
    to = p.bytes.data() + h.offset;
    return a;
  }
  void received(const FrameHeader &h) override {
    Parcel &p = parcels.at(h.id);
    EXPECT_TRUE(p.pieces.emplace(h.offset, h.bytes).second) << "piece at " << h.offset << " came twice";
    p.here += h.bytes;
    if (p.here == h.total) order.push_back(h.id);
  }
  void broken(const std::string &why) override { ends.push_back(why); }

  bool has(const Letters &letters) const {
    return std::all_of(letters.begin(), letters.end(), [&](const Letter &l) {
      const auto at = parcels.find(l.header.id);
      return at != parcels.end() && at->second.complete();
    });
  }
};

void expect_whole(const Inbox &inbox, const Letter &sent) {
  SCOPED_TRACE("frame " + std::to_string(sent.header.id) + " of " + std::to_string(sent.bytes.size()) + " bytes");
  const auto at = inbox.parcels.find(sent.header.id);
  ASSERT_NE(at, inbox.parcels.end());
  const Inbox::Parcel &p = at->second;
  const FrameHeader &h = p.first, &s = sent.header;
  EXPECT_EQ(h.kind, s.kind);
  EXPECT_EQ(h.dtype, s.dtype);
  EXPECT_EQ(h.member, s.member);
  EXPECT_EQ(h.epoch, s.epoch);
  EXPECT_EQ(h.source, s.source);
  EXPECT_EQ(h.tag, s.tag);
  EXPECT_EQ(h.total, s.total);
  EXPECT_EQ(h.digest, s.digest);
  uint64_t end = 0;
  for (const auto &[offset, bytes] : p.pieces) {
    EXPECT_EQ(offset, end) << "pieces neither overlap nor leave a gap";
    EXPECT_LE(bytes, kMaxPayload);
    end = offset + bytes;
  }
  ASSERT_EQ(end, sent.bytes.size());
  EXPECT_TRUE(end == 0 || std::memcmp(p.bytes.data(), sent.bytes.data(), end) == 0);
  EXPECT_TRUE(sent.over());
  EXPECT_EQ(sent.ends, 1);
}

void about_to_sleep(Link &link) {
  ASSERT_TRUE(link.try_turn());
  link.before_sleep();
  link.end_turn();
}

void cancel(Link &link, uint32_t ours, uint32_t theirs, uint32_t source) {
  while (!link.try_turn()) std::this_thread::yield();
  link.cancel(ours, theirs, kEpoch, source);
  link.end_turn();
}

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
    const Deadline deadline(isthmus_test::soon());
    while (!what()) {
      if (deadline.passed()) return what();
      if (!drive_both()) std::this_thread::yield();
    }
    return true;
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
  EXPECT_TRUE(ends->here().idle());
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
  EXPECT_TRUE(ends->here().idle());
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
    EXPECT_TRUE(ends->here().idle());
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
                                         Kind{"ucx_tcp", [] { return ucx_ends("tcp", UcxLink::kMostMemory); }, 1, true}),
                         [](const auto &tested) { return std::string(tested.param.name); });

class Sockets : public EveryLink {};
INSTANTIATE_TEST_SUITE_P(, Sockets,
                         testing::Values(Kind{"one_stream", socketpair_ends<1>, 1, false},
                                         Kind{"four_streams", socketpair_ends<4>, 4, false},
                                         Kind{"loopback", loopback_ends, 2, false}),
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

struct Damage {
  const char *what;
  std::function<void(FrameHeader &)> change;
};
std::vector<Damage> damages() {
  return {{"not a frame", [](FrameHeader &h) { h.magic ^= 1; }},
          {"unknown frame kind", [](FrameHeader &h) { h.kind = static_cast<FrameKind>(0); }},
          {"unknown frame kind", [](FrameHeader &h) { h.kind = static_cast<FrameKind>(7); }},
          {"payload too large", [](FrameHeader &h) { h.bytes = kMaxPayload + 1, h.total = h.bytes; }},
          {"total too large", [](FrameHeader &h) { h.total = (uint64_t{1} << 56) + 1; }},
          {"payload outside its message", [](FrameHeader &h) { h.offset = h.total + 1; }},
          {"payload outside its message", [](FrameHeader &h) { h.offset = ~uint64_t{0}; }},
          {"payload outside its message", [](FrameHeader &h) { h.offset = 1; }},
          {"payload on a bare frame", [](FrameHeader &h) { h.kind = FrameKind::RequestToSend; }}};
}
FrameHeader sound_header() {
  FrameHeader h;
  h.bytes = 16;
  h.total = 16;
  return h;
}

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
  explicit Cables(int bytes = 64 * 1024)
      : Cables(
            [] {
              std::vector<std::array<UniqueFd, 2>> made;
              for (int i = 0; i < Streams; ++i) made.push_back(connected());
              return made;
            }(),
            bytes) {}
  Cables(std::vector<std::array<UniqueFd, 2>> made, int bytes) {
    std::vector<UniqueFd> sides[2];
    for (int i = 0; i < Streams; ++i) {
      auto &pair = made[static_cast<size_t>(i)];
      for (int side : {0, 1}) {
        fds[side][i] = pair[side].get();
        sides[side].push_back(std::move(pair[side]));
      }
    }
    ends = tcp_ends(std::move(sides[0]), std::move(sides[1]), bytes);
  }
  static std::array<UniqueFd, 2> connected() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) fail_system("socketpair", errno);
    return {UniqueFd(pair[0]), UniqueFd(pair[1])};
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
    const Deadline deadline(isthmus_test::soon());
    while (!what()) {
      if (deadline.passed()) return what();
      if (!drive_both()) std::this_thread::yield();
    }
    return true;
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

TEST(TcpLink, WhicheverStreamsAreLostAllComesOnceByTheOthersAndInOrder) {
  for (int first = 0; first < 4; ++first)
    for (const size_t after : {0, 3, 20}) {  // frames that had come
      SCOPED_TRACE("stream " + std::to_string(first) + " after " + std::to_string(after) + " frames");
      Cables<4> c;
      Letters letters = mixed(0, 40), answers = mixed(0, 40);
      for (size_t i = 0; i < letters.size(); ++i) {
        c.ends->here().post(letters[i]);
        c.ends->there().post(answers[i]);
      }
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
      EXPECT_TRUE(c.ends->here().idle() && c.ends->there().idle());
      for (int side : {0, 1}) {
        const auto report = c.link(side).news().report();
        for (int s = 0; s < 4; ++s) EXPECT_EQ(report[static_cast<size_t>(s)].connected, s == (first + 3) % 4);
      }
    }
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

TEST(TcpLink, AFrameThatTheSinkHadAcceptedIsNotOfferedAgain) {
  Cables<2> c;
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

TEST(TcpLink, WhatIsCancelledGoesByNoOtherStream) {
  Cables<2> c;
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
  EXPECT_TRUE(c.ends->here().idle());
}

TEST(TcpLink, AStreamThatIsConnectedAgainCarriesItsPartAgain) {
  Cables<2> c;
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

TEST(TcpLink, WhenTheLastStreamIsLostTheLinkIsBroken) {
  Cables<2> c;
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
    for (size_t i = 0; i < letters.size(); ++i) {
      c.ends->here().post(letters[i]);
      c.ends->there().post(answers[i]);
    }
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

TEST(TcpLink,
     AfterASilenceALinkWithoutStreamsWaitsForNewConnections) {  // the ends may have taken one stream each for silent
  SilentCables c;
  Letters letters = mixed(0, 40), answers = mixed(0, 40);
  for (size_t i = 0; i < letters.size(); ++i) {
    c.ends->here().post(letters[i]);
    c.ends->there().post(answers[i]);
  }
  ASSERT_TRUE(c.eventually([&] { return c.inbox.order.size() >= 3; }));
  c.silence(0);
  ASSERT_TRUE(c.eventually([&] { return !c.report(0, 0).connected && !c.report(1, 0).connected; }));
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
