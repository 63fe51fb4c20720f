// Two ends of every link there is, what a test sends by them, and what comes. For the tests of links.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "link/hands.hpp"
#include "link/memory.hpp"
#include "link/tcp.hpp"
#include "link/ucx.hpp"
#include "net/socket.hpp"
#include "patience.hpp"

namespace isthmus::link {

constexpr uint32_t kMember = 7, kEpoch = 3, kSource = 1;
constexpr auto kForeign = std::byte{0xee};  // in no payload

// Never 0, never kForeign, and different from frame to frame.
inline std::byte content(uint64_t id, uint64_t i) {
  return static_cast<std::byte>(1 + ((id * 31 + i * 7 + (i >> 8)) & 127));
}

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

inline Made local_ends() {
  auto e = std::make_unique<Ends>();
  e->links[0] = std::make_unique<LocalLink>(&e->bells[0]);
  return e;
}

inline Made shm_ends(uint64_t capacity, uint64_t back) {
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

// A thread for each part of a job but one, which the caller does.
class TestHands final : public Hands {
 public:
  bool any() const noexcept override { return true; }
  void share(void (*work)(void *job, size_t i), void *job, size_t count) noexcept override {
    std::vector<std::thread> others;
    for (size_t i = 1; i < count; ++i) others.emplace_back(work, job, i);
    if (count != 0) work(job, 0);
    for (std::thread &t : others) t.join();
    most = std::max(most.load(), count);
  }
  std::atomic<size_t> most{0};  // parts of a job
};

constexpr int64_t kLongWayNs = 10'000'000;  // a round trip, as the links are told

// `bytes`: of each socket's buffers. As it is, a large payload never fits.
inline Made tcp_ends(std::vector<UniqueFd> here, std::vector<UniqueFd> there, int bytes = 64 * 1024, bool long_way = false,
                     Hands *hands = nullptr) {
  for (const auto *side : {&here, &there})
    for (const UniqueFd &fd : *side) {
      EXPECT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
      EXPECT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
    }
  auto e = std::make_unique<Ends>();
  e->links[0] = std::make_unique<TcpLink>(std::move(here), 0, long_way ? kLongWayNs : 0, hands);
  e->links[1] = std::make_unique<TcpLink>(std::move(there), 0, long_way ? kLongWayNs : 0, hands);
  return e;
}

template <int Streams>
inline Made socketpair_ends() {
  std::vector<UniqueFd> here, there;
  for (int i = 0; i < Streams; ++i) {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) fail_system("socketpair", errno);
    here.emplace_back(fds[0]);
    there.emplace_back(fds[1]);
  }
  return tcp_ends(std::move(here), std::move(there));
}

inline std::vector<std::array<UniqueFd, 2>> loopback_connections(int count) {
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

inline Made loopback_ends(int streams, bool long_way, Hands *hands = nullptr) {
  std::vector<UniqueFd> here, there;
  for (auto &[mine, theirs] : loopback_connections(streams)) {
    here.push_back(std::move(mine));
    there.push_back(std::move(theirs));
  }
  return tcp_ends(std::move(here), std::move(there), 64 * 1024, long_way, hands);
}
inline Made loopback_ends() { return loopback_ends(2, false); }
inline Made long_way_ends() { return loopback_ends(4, true); }
inline Made helped_ends() {
  static TestHands hands;
  return loopback_ends(4, false, &hands);
}

class NoSink final : public FrameSink {
 public:
  Accept accept(const FrameHeader &, int64_t, std::byte *&) override { return Accept::Drop; }
  void received(const FrameHeader &) override {}
  void broken(const std::string &why) override { ADD_FAILURE() << why; }
};

inline bool drive(Link &link, FrameSink &inbox) {
  if (!link.try_turn()) return false;
  const bool moved = link.progress(inbox);
  link.end_turn();
  return moved;
}

// False: not in time. `drive` is called again and again; true: something moved.
inline bool driven_until(const std::function<bool()> &what, const std::function<bool()> &drive) {
  const Deadline deadline(isthmus_test::soon());
  while (!what()) {
    if (deadline.passed()) return what();
    if (!drive()) std::this_thread::yield();
  }
  return true;
}

inline UcxLink &ucx(Link &link) { return dynamic_cast<UcxLink &>(link); }

// Two links that know each other, of two workers that may use these transports. Null: this machine has no UCX.
inline Made ucx_ends(const char *transports, size_t memory, size_t other = 0) {
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

inline void expect_whole(const Inbox &inbox, const Letter &sent) {
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

inline void about_to_sleep(Link &link) {
  ASSERT_TRUE(link.try_turn());
  link.before_sleep();
  link.end_turn();
}

inline void cancel(Link &link, uint32_t ours, uint32_t theirs, uint32_t source) {
  while (!link.try_turn()) std::this_thread::yield();
  link.cancel(ours, theirs, kEpoch, source);
  link.end_turn();
}

// ---- headers that are refused ----------------------------------------------------------------------------------------------

struct Damage {
  const char *what;
  std::function<void(FrameHeader &)> change;
};
inline std::vector<Damage> damages() {
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
inline FrameHeader sound_header() {
  FrameHeader h;
  h.bytes = 16;
  h.total = 16;
  return h;
}

}  // namespace isthmus::link
