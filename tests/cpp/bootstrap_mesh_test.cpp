// The mesh among several nodes of one process: every node has its own listeners, arena and control thread.
#include <gtest/gtest.h>

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <future>
#include <set>

#include "bootstrap/absence.hpp"
#include "bootstrap/control_wire.hpp"
#include "bootstrap/mesh_dial.hpp"
#include "bootstrap_support.hpp"
#include "net/gate.hpp"
#include "net/handshake.hpp"
#include "net/shortage.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap::testing {
namespace {

size_t open_descriptors() {
  size_t n = 0;
  DIR *d = ::opendir("/proc/self/fd");
  while (::readdir(d)) ++n;
  ::closedir(d);
  return n - 3;  // ".", "..", and the directory itself
}

size_t threads() {
  size_t n = 0;
  DIR *d = ::opendir("/proc/self/task");
  while (::readdir(d)) ++n;
  ::closedir(d);
  return n - 2;
}

// The kernel lists a thread for a moment after it was joined: this is the count once it has stood for 50 ms.
size_t settled_threads() {
  size_t count = threads();
  for (int stood = 0; stood < 50; ++stood) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (const size_t now = threads(); now != count) {
      count = now;
      stood = 0;
    }
  }
  return count;
}

TEST(Absence, KnocksOnceAtAnAddressThatManyStreamsHave) {
  UniqueFd listener;
  ASSERT_EQ(net::try_listen_tcp(net::numeric_address("127.0.0.1:1").with_port(0), PortRange{}, 0, listener), 0);
  Absence absence;
  for (int stream = 0; stream < 8; ++stream) absence.add(net::local_address(listener.get()));
  EXPECT_FALSE(absence.look(now_ns()));
  size_t came = 0;
  for (pollfd ready{listener.get(), POLLIN, 0}; ::poll(&ready, 1, came == 0 ? 10'000 : 0) == 1; ++came)
    UniqueFd(::accept(listener.get(), nullptr, nullptr));
  EXPECT_EQ(came, 1u);
}

TEST(Mesh, SharesArenasOfOneHost) {
  Pair p;
  p.add_keys();
  p.connect();
  ASSERT_TRUE(p.of_a->arena);
  ASSERT_TRUE(p.of_b->arena);
  EXPECT_EQ(p.of_a->arena.size(), Node::kArena);
  p.a.memory.data()[4096] = std::byte{42};
  EXPECT_EQ(p.of_b->arena.data()[4096], std::byte{42});
  p.of_b->arena.data()[4097] = std::byte{43};
  EXPECT_EQ(p.a.memory.data()[4097], std::byte{43});
  EXPECT_EQ(p.of_a->endpoint.process, p.b.mesh->self().process);
  EXPECT_EQ(p.of_a->endpoint.pid, ::getpid());
}

TEST(Mesh, DoesNotShareWhereItIsNotWanted) {
  Pair p;
  p.add_keys();
  p.connect(false);
  EXPECT_FALSE(p.of_a->arena);
  EXPECT_FALSE(p.of_b->arena);
  p.connect(true);  // another communicator may want it later
  EXPECT_TRUE(p.of_a->arena);
  EXPECT_TRUE(p.of_b->arena);
}

TEST(Mesh, MovesMessagesBothWaysInOrderOverUnixAndTcp) {
  for (const bool tcp : {false, true}) {
    Pair p;
    p.add_keys();
    if (tcp) connect_as_hosts(p.a, p.b, p.of_a, p.of_b, true, 0);
    else p.connect();
    EXPECT_EQ(static_cast<bool>(p.of_a->arena), !tcp);
    const std::string large(net::kMaxControlBody, 'x');
    for (int i = 0; i < 300; ++i) {
      const std::string body = i % 50 == 7 ? large : std::to_string(i);
      ASSERT_TRUE(p.a.mesh->send(*p.of_a, static_cast<uint16_t>(i), bytes(body)));
      ASSERT_TRUE(p.b.mesh->send(*p.of_b, static_cast<uint16_t>(i), bytes(body)));
    }
    for (const Node *n : {&p.a, &p.b}) {
      ASSERT_TRUE(eventually([&] { return n->events.messages().size() == 300; }));
      const auto m = n->events.messages();
      for (int i = 0; i < 300; ++i) {
        EXPECT_EQ(m[static_cast<size_t>(i)].type, i);
        EXPECT_EQ(m[static_cast<size_t>(i)].body, i % 50 == 7 ? large : std::to_string(i));
      }
    }
  }
}

TEST(Mesh, RefusesMessagesThatAreTooLargeOrOfItsOwnTypes) {
  Pair p;
  p.add_keys();
  p.connect();
  EXPECT_FALSE(p.a.mesh->send(*p.of_a, 1, bytes(std::string(net::kMaxControlBody + 1, 'x'))));
  EXPECT_FALSE(p.a.mesh->send(*p.of_a, 0xff00, {}));
  EXPECT_FALSE(p.a.mesh->send(*p.of_a, 0xffff, {}));
  EXPECT_TRUE(p.a.mesh->send(*p.of_a, 0xfeff, {}));
}

TEST(Mesh, ConnectIsIdempotentFromManyThreads) {
  Pair p;
  p.add_keys();
  std::vector<std::future<Peer *>> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(std::async(std::launch::async,
                             [&] { return &p.a.mesh->connect(p.b.mesh->self(), kKey, true, 2, Deadline(soon())); }));
    all.push_back(std::async(std::launch::async,
                             [&] { return &p.b.mesh->connect(p.a.mesh->self(), kKey, true, 2, Deadline(soon())); }));
  }
  std::set<Peer *> seen;
  for (auto &f : all) seen.insert(f.get());
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(p.a.mesh->counts().peers, 1);
}

TEST(Mesh, ConnectsManyNodesAllToAll) {
  constexpr size_t kNodes = 6;
  std::vector<std::unique_ptr<Node>> nodes;
  for (size_t i = 0; i < kNodes; ++i) nodes.push_back(std::make_unique<Node>());
  for (auto &n : nodes) n->mesh->add_key(kKey);
  std::vector<std::future<void>> all;
  for (size_t i = 0; i < kNodes; ++i)
    all.push_back(std::async(std::launch::async, [&, i] {
      for (size_t j = 0; j < kNodes; ++j)
        if (i != j) {
          Peer &peer = nodes[i]->mesh->connect(nodes[j]->mesh->self(), kKey, true, i % 2 == j % 2 ? 0 : 1, Deadline(soon()));
          nodes[i]->mesh->send(peer, static_cast<uint16_t>(i), {});
        }
    }));
  for (auto &f : all) f.get();
  for (auto &n : nodes) EXPECT_TRUE(eventually([&] { return n->events.messages().size() == kNodes - 1; }));
}

// A dialer whose key is not known yet waits, and the key that comes ends its wait: without that it would be refused, and dial again.
TEST(Mesh, WaitsForAPeerThatLearnsTheKeyLater) {
  Pair p;
  const bool a_dials = p.a.mesh->self().process < p.b.mesh->self().process;
  Node &dialer = a_dials ? p.a : p.b, &waiter = a_dials ? p.b : p.a;
  dialer.mesh->add_key(kKey);
  auto dial = std::async(std::launch::async,
                         [&] { return &dialer.mesh->connect(waiter.mesh->self(), kKey, true, 0, Deadline(soon())); });
  UniqueFd fd;
  ASSERT_EQ(net::connect_unix(waiter.mesh->self().unix_name, Deadline(soon()), fd), 0);
  auto once = std::async(std::launch::async, [&] {
    return error_of([&] { net::dial(fd.get(), {}, kKey, "the waiting one", Deadline(soon())); });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  waiter.mesh->add_key(kKey);
  waiter.mesh->connect(dialer.mesh->self(), kKey, true, 0, Deadline(soon()));
  dial.get();
  const Status s = once.get();
  EXPECT_TRUE(s.ok()) << s.text;
}

TEST(Mesh, RefusesToConnectToItself) {
  Node a;
  EXPECT_EQ(error_of([&] { a.mesh->connect(a.mesh->self(), kKey, true, 0, Deadline(1)); }).code, Code::Argument);
}

TEST(Mesh, SaysThatAPeerShutDownAndDeliversItsLastMessages) {
  for (const bool tcp : {false, true}) {
    Pair p;
    p.add_keys();
    if (tcp) connect_as_hosts(p.a, p.b, p.of_a, p.of_b, false, 0);
    else p.connect();
    for (int i = 0; i < 100; ++i) p.b.mesh->send(*p.of_b, 7, bytes("last words"));
    p.b.mesh.reset();
    ASSERT_TRUE(eventually([&] { return p.a.events.lost().size() == 1; }));
    EXPECT_EQ(p.a.events.messages().size(), 100u);
    EXPECT_TRUE(p.of_a->lost.load());
    EXPECT_TRUE(contains(p.of_a->lost_text(), "shut Isthmus down")) << p.of_a->lost_text();
    EXPECT_FALSE(p.a.mesh->send(*p.of_a, 1, {}));
    EXPECT_EQ(error_of([&] { p.a.mesh->connect(p.of_a->endpoint, kKey, true, 0, Deadline(1)); }).code, Code::PeerLost);
  }
}

// The ends of the control connection of two nodes that see each other on another host: a's and b's.
std::pair<int, int> control_of(const Pair &p) {
  const bool a_dials = p.a.mesh->dials(*p.of_a);
  const std::string listens = (a_dials ? p.b : p.a).mesh->self().tcp.front();
  int dialer = -1, listener = -1;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage other{};
    socklen_t size = sizeof other;
    if (::getpeername(fd, reinterpret_cast<sockaddr *>(&other), &size) != 0 || other.ss_family != AF_INET) continue;
    (net::local_address(fd).text() == listens ? listener : dialer) = fd;
  }
  return a_dials ? std::pair{dialer, listener} : std::pair{listener, dialer};
}

// One more descriptor of a node's socket. ThreadSanitizer takes each for an object of its own, and the node's thread reads and closes its own.
UniqueFd one_more(int fd) { return UniqueFd(static_cast<int>(::syscall(SYS_dup, fd))); }

TEST(Mesh, APeerWhoseConnectionWasResetHasNotEndedForCertainAlsoWhereASenderHearsItFirst) {
  struct Held final : MeshEvents {  // its control thread, within the first message
    std::promise<void> came, go_on;
    std::atomic<int> lost{0};
    void on_message(Peer &, uint16_t, std::span<const std::byte>) override {
      came.set_value();
      go_on.get_future().wait();
    }
    void on_lost(Peer &, const std::string &) override { ++lost; }
    void on_tick() override {}
    void on_stream(Peer &, uint32_t, uint32_t, UniqueFd) override {}
  } held;
  Pair p;
  Settings settings;
  settings.apply("ISTHMUS_HEARTBEAT_MS=20");
  p.a.mesh = std::make_unique<Mesh>(settings, held, p.a.arena.get(), Node::kArena, "127.0.0.1");
  p.add_keys();
  connect_as_hosts(p.a, p.b, p.of_a, p.of_b, false, 0);
  const std::pair<int, int> ends = control_of(p);
  ASSERT_TRUE(ends.first >= 0 && ends.second >= 0);
  p.b.mesh->send(*p.of_b, 1, bytes("hold"));
  held.came.get_future().wait();
  // Both ends: who stands between two hosts resets the connection of each. connect() to no family is an RST to the other end.
  const sockaddr nowhere{AF_UNSPEC, {}};
  ASSERT_EQ(::connect(one_more(ends.second).get(), &nowhere, sizeof nowhere), 0);
  ASSERT_TRUE(eventually([&] {
    pollfd end{ends.first, 0, 0};
    return ::poll(&end, 1, 0) == 1 && (end.revents & POLLERR);
  }));
  p.a.mesh->send(*p.of_a, 1, bytes("is told"));
  held.go_on.set_value();
  ASSERT_TRUE(eventually([&] { return held.lost.load() == 1; }));
  EXPECT_FALSE(p.of_a->surely_ended()) << p.of_a->lost_text();
  EXPECT_TRUE(eventually([&] { return p.of_b->lost.load(); }));
  EXPECT_FALSE(p.of_b->surely_ended()) << p.of_b->lost_text();
  p.a.mesh.reset();  // before `held` ends
}

TEST(Mesh, HearsWhatOthersHaveSaidBeforeAPeerIsLost) {
  struct Held final : MeshEvents {  // its control thread, within the word "hold"
    std::promise<void> came, go_on;
    Mutex mutex;
    std::vector<std::string> log ISTHMUS_GUARDED_BY(mutex);
    void on_message(Peer &, uint16_t, std::span<const std::byte> body) override {
      const std::string word(reinterpret_cast<const char *>(body.data()), body.size());
      if (word == "hold") {
        came.set_value();
        return go_on.get_future().wait();
      }
      const Lock lock(mutex);
      log.push_back(word);
    }
    void on_lost(Peer &, const std::string &) override {
      const Lock lock(mutex);
      log.push_back("lost");
    }
    void on_tick() override {}
    void on_stream(Peer &, uint32_t, uint32_t, UniqueFd) override {}
    size_t count() {
      const Lock lock(mutex);
      return log.size();
    }
  } held;
  const std::string seldom = "ISTHMUS_HEARTBEAT_MS=10000";
  Node a(seldom), holds(seldom), ends(seldom), aborts(seldom);
  Settings settings;
  settings.apply(seldom);
  a.mesh = std::make_unique<Mesh>(settings, held, a.arena.get(), Node::kArena, "127.0.0.1");
  Peer *of_a = nullptr, *of_holds = nullptr, *of_ends = nullptr, *of_aborts = nullptr;
  for (Node *n : {&a, &holds, &ends, &aborts}) n->mesh->add_key(kKey);
  connect_as_hosts(a, holds, of_a, of_holds, false, 0);
  connect_as_hosts(a, ends, of_a, of_ends, false, 0);
  connect_as_hosts(a, aborts, of_a, of_aborts, false, 0);
  holds.mesh->send(*of_holds, 1, bytes("hold"));
  held.came.get_future().wait();
  ends.mesh->send(*of_ends, 1, bytes("a word"));  // so most often it is the first that has something to read
  aborts.mesh->send(*of_aborts, 1, bytes("an abort"));
  ends.mesh.reset();
  held.go_on.set_value();
  ASSERT_TRUE(eventually([&] { return held.count() >= 3; }));
  {
    const Lock lock(held.mutex);
    std::sort(held.log.begin(), held.log.begin() + 2);  // of what is ready epoll may name either first
    EXPECT_EQ(held.log, (std::vector<std::string>{"a word", "an abort", "lost"}));
  }
  a.mesh.reset();  // before `held` ends
}

TEST(Mesh, APeerThatGivesUpTheConnectionAndLivesIsNotTakenForEnded) {
  Pair p;
  p.add_keys();
  connect_as_hosts(p.a, p.b, p.of_a, p.of_b, false, 0);
  const std::pair<int, int> ends = control_of(p);
  ASSERT_TRUE(ends.first >= 0 && ends.second >= 0);
  const std::string garbage(64, '\xff');
  ASSERT_EQ(::send(one_more(ends.first).get(), garbage.data(), garbage.size(), 0), 64);
  ASSERT_TRUE(eventually([&] { return p.of_a->lost.load() && p.of_b->lost.load(); }));
  EXPECT_FALSE(p.of_a->surely_ended()) << p.of_a->lost_text();
  EXPECT_FALSE(p.of_b->surely_ended()) << p.of_b->lost_text();
}

TEST(Mesh, LetsGoOfAPeerThatHasGoneOnceNobodyHoldsIt) {
  Pair p;
  p.add_keys();
  p.connect(true, 2);
  p.of_a->arena.data()[4096] = std::byte{7};
  std::shared_ptr<const void> hold = p.of_a->hold;
  p.b.mesh.reset();
  ASSERT_TRUE(eventually([&] { return p.a.events.lost().size() == 1; }));  // its descriptors are closed by then
  const size_t before = open_descriptors();
  int asked = 0;
  const auto let_go = [&] { p.a.mesh->let_go_of_the_gone([&](Peer &) { return ++asked > 1; }); };
  let_go();
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(p.of_a->arena.data()[4096], std::byte{7});
  hold.reset();
  let_go();  // the caller keeps something still
  EXPECT_EQ(open_descriptors(), before);
  for (int i = 0; i < 3; ++i) let_go();
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(p.of_a->arena.data()[4096], std::byte{0});  // who looks late finds zeros
  EXPECT_EQ(open_descriptors(), before - 2);
}

size_t arenas_mapped() {
  std::ifstream maps("/proc/self/maps");
  size_t n = 0;
  for (std::string line; std::getline(maps, line);) n += contains(line, "memfd:isthmus-test");
  return n;
}

// The dialer is the one with the smaller id.
struct DialerAndWaiter {
  std::unique_ptr<Node> dialer = std::make_unique<Node>(), waiter = std::make_unique<Node>();
  DialerAndWaiter() {
    if (waiter->mesh->self().process < dialer->mesh->self().process) std::swap(waiter, dialer);
    dialer->mesh->add_key(kKey);
    waiter->mesh->add_key(kKey);
  }
  Peer &dial() { return dialer->mesh->connect(waiter->mesh->self(), kKey, true, 0, Deadline(soon())); }
};

TEST(Mesh, AProcessThatCameAndEndedWhileNobodyConnectedToItLeavesNothing) {
  const size_t before = arenas_mapped();
  DialerAndWaiter two;
  ASSERT_TRUE(two.dial().arena);
  ASSERT_TRUE(eventually([&] { return arenas_mapped() == before + 4; })) << "each has its own, and the other's";
  const size_t descriptors = two.waiter->mesh->counts().descriptors;
  two.dialer.reset();
  EXPECT_TRUE(eventually([&] {
    two.waiter->mesh->let_go_of_the_gone([](Peer &) { return true; });
    return arenas_mapped() == before + 1;
  })) << arenas_mapped();
  EXPECT_LT(static_cast<size_t>(two.waiter->mesh->counts().descriptors), descriptors);
}

TEST(Mesh, AWaitForAConnectionEndsWhenItsLookSaysThatItIsInVain) {
  DialerAndWaiter two;
  int looks = 0;
  const auto look = [&] {
    if (++looks == 3) fail(Code::Aborted, "the others have given up");
  };
  const auto wait_for = [&](int streams) {
    looks = 0;
    return error_of([&] { two.waiter->mesh->connect(two.dialer->mesh->self(), kKey, true, streams, Deadline(1e6), look); });
  };
  EXPECT_EQ(wait_for(0).text, "the others have given up") << "where the other side has not dialled";
  two.dial();
  EXPECT_EQ(wait_for(2).text, "the others have given up") << "where its data streams have not come";
  auto dials = std::async(std::launch::async,
                          [&] { two.dialer->mesh->connect(two.waiter->mesh->self(), kKey, true, 2, Deadline(soon())); });
  looks = 3;
  EXPECT_EQ(two.waiter->mesh->connect(two.dialer->mesh->self(), kKey, true, 2, Deadline(soon()), look).data.size(), 2u);
  dials.get();
}

TEST(Mesh, AWaitForAConnectionEndsWhereThisProcessHasNoDescriptorsForIt) {
  Node a, b;
  Node &waits = a.mesh->must_dial(b.mesh->self(), false) ? b : a, &other = &waits == &a ? b : a;
  std::atomic<bool> over{false};
  std::thread gate([&] {
    for (; !over; std::this_thread::sleep_for(std::chrono::milliseconds(20))) net::note_shortage(EMFILE);
  });
  const Status s = error_of([&] { waits.mesh->connect(other.mesh->self(), kKey, false, 0, Deadline(soon())); });
  over = true;
  gate.join();
  EXPECT_EQ(s.code, Code::Resource);
  EXPECT_TRUE(s.text.starts_with("this process is out of descriptors (ulimit -n ")) << s.text;
}

// Nobody listens on this host where the peer says that it listens.
TEST(Dialer, APeerOfAnotherHostThatListensOnlyAtLoopbackIsNotTakenForEnded) {
  Endpoint self{net::random16(), {1}, "here", "", {"10.0.0.1:1"}, 1},
      other{net::random16(), {2}, "there", "", {free_address()}, 2};
  const auto control = [&] { return error_of([&] { Dialer(self, {}, "").control(other, kKey, Deadline(soon()), {}); }); };
  EXPECT_FALSE(Dialer(self, {}, "").gone(other));
  const Status s = control();
  EXPECT_EQ(s.code, Code::Config);
  EXPECT_TRUE(s.text.starts_with("process 2 on host there (" + other.tcp[0] + ") listens only at loopback addresses"))
      << s.text;
  self.tcp = {"127.0.0.1:1"};  // here they may be one host, whose processes reach each other by loopback
  EXPECT_TRUE(Dialer(self, {}, "").gone(other));
  const Status both = control();
  EXPECT_EQ(both.code, Code::PeerLost);
  EXPECT_TRUE(contains(both.text, "it has probably ended, or it is on another host")) << both.text;
}

TEST(Mesh, HearsHeartbeatsAndTicks) {
  Pair p;
  p.add_keys();
  p.connect();
  const int64_t first = p.of_a->last_heard_ns.load();
  EXPECT_TRUE(eventually([&] { return p.of_a->last_heard_ns.load() > first + 30'000'000; }));
  EXPECT_TRUE(eventually([&] { return p.a.events.ticks.load() >= 3; }));
  EXPECT_TRUE(p.a.events.lost().empty());
}

TEST(Mesh, MessagesThatGoAlongComeWithTheNextMessageOrTheNextHeartbeatInOrder) {
  Pair p;
  p.add_keys();
  p.connect();
  EXPECT_TRUE(p.a.mesh->send(*p.of_a, 1, bytes("first"), Goes::Along));
  EXPECT_TRUE(p.a.mesh->send(*p.of_a, 2, bytes("second"), Goes::Along));
  EXPECT_TRUE(p.a.mesh->send(*p.of_a, 3, bytes("third")));
  EXPECT_TRUE(p.a.mesh->send(*p.of_a, 4, bytes("alone"), Goes::Along));
  ASSERT_TRUE(eventually([&] { return p.b.events.messages().size() == 4; }));
  std::vector<uint16_t> types;
  for (const Message &m : p.b.events.messages()) types.push_back(m.type);
  EXPECT_EQ(types, (std::vector<uint16_t>{1, 2, 3, 4}));
}

TEST(Mesh, WhereHeartbeatsAreSeldomNoMessageWaitsForOne) {
  Pair p{Node("ISTHMUS_HEARTBEAT_MS=60000"), Node("ISTHMUS_HEARTBEAT_MS=60000")};
  p.add_keys();
  p.connect();
  EXPECT_TRUE(p.a.mesh->send(*p.of_a, 1, bytes("now"), Goes::Along));
  EXPECT_TRUE(eventually([&] { return p.b.events.messages().size() == 1; }));
}

TEST(Mesh, WhatGoesAlongIsSaidBeforeTheFarewell) {
  Pair p{Node("ISTHMUS_HEARTBEAT_MS=250"), Node("ISTHMUS_HEARTBEAT_MS=250")};
  p.add_keys();
  p.connect();
  EXPECT_TRUE(p.a.mesh->send(*p.of_a, 1, bytes("last"), Goes::Along));
  p.a.mesh->shut_down();  // from here on there is no heartbeat
  EXPECT_TRUE(eventually([&] { return p.b.events.messages().size() == 1; }));
}

TEST(Mesh, TheLastWordsReachAPeerOfThisHostThatTakesNothingForAWhile) {
  Pair p{Node("ISTHMUS_HEARTBEAT_MS=250"), Node("ISTHMUS_HEARTBEAT_MS=250")};
  p.add_keys();
  p.connect();
  const std::string large(60'000, 'y');
  std::future<void> ends;
  {
    const auto held = p.b.events.hold();
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(p.a.mesh->send(*p.of_a, 5, bytes(large)));  // far more than the socket takes
    ends = std::async(std::launch::async, [&] { p.a.mesh->shut_down(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
  }
  ends.get();
  EXPECT_TRUE(eventually([&] { return p.b.events.messages().size() == 20; }));
}

TEST(Mesh, SaysWhomThisProcessHasToDial) {
  Pair p;
  Node &dials = p.a.mesh->self().process < p.b.mesh->self().process ? p.a : p.b, &waits = &dials == &p.a ? p.b : p.a;
  EXPECT_TRUE(dials.mesh->must_dial(waits.mesh->self(), false));
  EXPECT_FALSE(waits.mesh->must_dial(dials.mesh->self(), true));
  p.add_keys();
  p.connect();
  EXPECT_FALSE(dials.mesh->must_dial(waits.mesh->self(), false));
  EXPECT_TRUE(dials.mesh->must_dial(waits.mesh->self(), true));  // it has no data connections yet
  p.connect(true, 2);
  EXPECT_FALSE(dials.mesh->must_dial(waits.mesh->self(), true));
  EXPECT_FALSE(waits.mesh->must_dial(dials.mesh->self(), true));
}

TEST(Mesh, SendNeverBlocksAndCatchesUp) {
  Pair p;
  p.add_keys();
  p.connect();
  const std::string large(60'000, 'y');
  // 12 MB, far beyond a socket's buffer
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(p.a.mesh->send(*p.of_a, 5, bytes(large)));
  EXPECT_TRUE(eventually([&] { return p.b.events.messages().size() == 200; }));
}

TEST(Mesh, LeavesNothing) {
  {
    const Node warm;  // whatever is made once a process
  }
  const size_t fds = open_descriptors(), before = settled_threads();
  {
    Pair p;
    p.add_keys();
    p.connect(true, 2);
    EXPECT_EQ(p.a.mesh->counts().threads, 1);
    EXPECT_EQ(p.a.mesh->counts().peers, 1);
    EXPECT_GE(p.a.mesh->counts().descriptors, 6);
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() == fds; }));
  EXPECT_TRUE(eventually([&] { return threads() <= before; }));
}

TEST(Mesh, ListensWhereTheRouteLeads) {
  const Node v4("", "127.0.0.1"), v6("", "::1"), named("ISTHMUS_INTERFACE=lo", ""),
      literal("ISTHMUS_INTERFACE=127.0.0.1", "");
  EXPECT_TRUE(contains(v4.mesh->self().tcp.at(0), "127.0.0.1:"));
  EXPECT_TRUE(contains(v6.mesh->self().tcp.at(0), "[::1]:"));
  EXPECT_TRUE(contains(named.mesh->self().tcp.at(0), "127.0.0.1:"));
  EXPECT_TRUE(contains(literal.mesh->self().tcp.at(0), "127.0.0.1:"));
  const Status s = error_of([] { const Node n("ISTHMUS_INTERFACE=nosuch0", ""); });
  EXPECT_EQ(s.code, Code::Config);
  EXPECT_TRUE(contains(s.text, "nosuch0") && contains(s.text, "lo (127.0.0.1)")) << s.text;
}

TEST(Mesh, ListensAtAPortOfTheRangeThatIsNotTheRendezvousAndSaysWhenItIsUsedUp) {
  uint16_t first = 0;
  for (int free = 0; free < 3;) {
    first = net::numeric_address(free_address()).port();
    std::array<UniqueFd, 3> tried;
    for (free = 0; free < 3; ++free)
      if (net::try_listen_tcp(net::numeric_address(formatted("127.0.0.1:{}", first + free)),
                              tried[static_cast<size_t>(free)]) != 0)
        break;
  }
  const std::string settings = formatted("ISTHMUS_PORTS={}-{}", first, first + 2);
  const std::string rendezvous = formatted("127.0.0.1:{}", first + 1);
  const Node a(settings, rendezvous), b(settings, rendezvous);
  const std::set<std::string> at{a.mesh->self().tcp.at(0), b.mesh->self().tcp.at(0)};
  EXPECT_EQ(at, (std::set<std::string>{formatted("127.0.0.1:{}", first), formatted("127.0.0.1:{}", first + 2)}));
  const Status s = error_of([&] { const Node c(settings, rendezvous); });
  EXPECT_EQ(s.code, Code::Resource);
  EXPECT_TRUE(contains(s.text, formatted("ISTHMUS_PORTS={}-{}", first, first + 2))) << s.text;
}

TEST(Mesh, ConnectsOverIpv6) {
  Node a("", "::1"), b("", "::1");
  a.mesh->add_key(kKey);
  b.mesh->add_key(kKey);
  Peer *of_a = nullptr, *of_b = nullptr;
  connect_as_hosts(a, b, of_a, of_b, false, 2);
  EXPECT_EQ(of_a->data.size(), 2u);
  EXPECT_TRUE(a.mesh->send(*of_a, 3, bytes("six")));
  EXPECT_TRUE(eventually([&] { return b.events.messages().size() == 1; }));
}

TEST(Mesh, WorksWithoutAnArena) {
  Recorder events;
  Mesh a(Settings(), events, -1, 0, "127.0.0.1");
  Node b;
  a.add_key(kKey);
  b.mesh->add_key(kKey);
  auto other = std::async(std::launch::async, [&] { return &a.connect(b.mesh->self(), kKey, true, 0, Deadline(soon())); });
  Peer &of_b = b.mesh->connect(a.self(), kKey, true, 0, Deadline(soon()));
  EXPECT_FALSE(of_b.arena);
  EXPECT_FALSE(other.get()->arena);  // both or none
}

TEST(Endpoint, PacksAndUnpacks) {
  Endpoint e{random_bytes16(), random_bytes16(), "host", "name", {"127.0.0.1:1", "[::1]:2"}, 4711, 8000, 100'000};
  const auto packed = e.pack();
  const Endpoint u = Endpoint::unpack(packed);
  EXPECT_EQ(u.process, e.process);
  EXPECT_EQ(u.host, e.host);
  EXPECT_EQ(u.hostname, e.hostname);
  EXPECT_EQ(u.unix_name, e.unix_name);
  EXPECT_EQ(u.tcp, e.tcp);
  EXPECT_EQ(u.pid, e.pid);
  EXPECT_EQ(u.delay_us, e.delay_us);
  EXPECT_EQ(u.rate, e.rate);
  for (size_t n = 0; n < packed.size(); ++n)
    EXPECT_EQ(error_of([&] { Endpoint::unpack(std::span(packed).first(n)); }).code, Code::Mismatch);
  auto longer = packed;
  longer.push_back(std::byte{0});
  EXPECT_EQ(error_of([&] { Endpoint::unpack(longer); }).code, Code::Mismatch);
  e.delay_us = 1'000'001;  // no kernel delays an answer for so long
  EXPECT_EQ(error_of([&] { Endpoint::unpack(e.pack()); }).code, Code::Mismatch);
  EXPECT_EQ(hex(Bytes16{0x0f, 0xa0}), "0fa00000000000000000000000000000");
}

// ---- what takes its time, all at once ---------------------------------------------------------------------------------------------------

// Two nodes of which one dials and the other waits.
struct Couple : Pair {
  const bool a_dials = a.mesh->self().process < b.mesh->self().process;
  Node &dialer = a_dials ? a : b, &waiter = a_dials ? b : a;
};
template <class F>
auto begun(F f) {
  return std::async(std::launch::async, std::move(f));
}

struct Waiting {
  Couple keys, drops, silent, late_key, late_stream;
  Node late_word;
  Pair crowded;
  std::vector<UniqueFd> crowd;  // clients that never say a word
  std::future<Status> another_key, dropped_key, not_dialled, learned_late, streamed_late, introduced_late;
  std::vector<std::future<Status>> gone;
  std::future<int> most_of_crowd;  // descriptors while it was there; 0: the nodes have not met

  Waiting() {
    crowded.add_keys();
    for (size_t i = 0; i < 2 * net::kMaxHalfOpen; ++i) {
      UniqueFd fd;
      EXPECT_EQ(net::connect_unix(crowded.a.mesh->self().unix_name, Deadline(soon()), fd), 0);
      crowd.push_back(std::move(fd));
    }
    most_of_crowd = begun([this] {
      const Mesh &mesh = *crowded.a.mesh;
      const bool full = eventually([&] { return mesh.counts().descriptors >= static_cast<int>(net::kMaxHalfOpen); });
      const int most = mesh.counts().descriptors;
      crowded.connect(true, 0);
      return full && crowded.of_a->arena ? most : 0;
    });
    keys.waiter.mesh->add_key(kKey);
    // Refused only when the handshake's time is over: the key might still be added.
    another_key = begun([this] {
      return error_of(
          [&] { keys.dialer.mesh->connect(keys.waiter.mesh->self(), kOtherKey, true, 0, Deadline(patient(13))); });
    });
    drops.waiter.mesh->add_key(kOtherKey);
    drops.waiter.mesh->add_key(kKey);
    drops.waiter.mesh->drop_key(kOtherKey);
    dropped_key = begun([this] {
      Status s;
      for (int tries = 5; tries > 0 && !contains(s.text, "may not hold");
           --tries)  // the waiter may be held up before it answers
        s = error_of([&] { drops.dialer.mesh->connect(drops.waiter.mesh->self(), kOtherKey, true, 0, Deadline(2)); });
      return s;
    });
    // Longer than an address at which another process answers is asked again.
    late_key.dialer.mesh->add_key(kKey);
    learned_late = begun([this] {
      auto dial = begun([this] {
        return error_of(
            [&] { late_key.dialer.mesh->connect(late_key.waiter.mesh->self(), kKey, true, 0, Deadline(3 * soon())); });
      });
      std::this_thread::sleep_for(std::chrono::seconds(13));
      late_key.waiter.mesh->add_key(kKey);
      late_key.waiter.mesh->connect(late_key.dialer.mesh->self(), kKey, true, 0, Deadline(soon()));
      return dial.get();
    });
    late_stream.add_keys();
    late_stream.connect(false, 0);
    late_stream.dialer.mesh->add_key(kOtherKey);
    streamed_late = begun([this] {
      auto dial = begun([this] {
        return error_of([&] {
          late_stream.dialer.mesh->connect(late_stream.waiter.mesh->self(), kOtherKey, false, 1, Deadline(3 * soon()));
        });
      });
      std::this_thread::sleep_for(std::chrono::nanoseconds(net::kHandshakeNs + 2'000'000'000));
      late_stream.waiter.mesh->add_key(kOtherKey);
      late_stream.waiter.mesh->connect(late_stream.dialer.mesh->self(), kOtherKey, false, 1, Deadline(soon()));
      return dial.get();
    });
    late_word.mesh->add_key(kKey);
    introduced_late = begun([this] { return introduce_late(); });
    silent.add_keys();
    not_dialled = begun([this] {
      return error_of([&] { silent.waiter.mesh->connect(silent.dialer.mesh->self(), kKey, true, 0, Deadline(0.7)); });
    });
    for (const bool elsewhere : {false, true})
      for (const uint8_t first : {uint8_t{0x00}, uint8_t{0xff}})  // the larger id is dialled and the smaller one waited for
        gone.push_back(begun([=] {
          Node a;
          Endpoint ended;
          {
            const Node b;
            ended = b.mesh->self();
          }
          if (elsewhere) ended.host[0] ^= 1;
          ended.process.fill(first);
          return error_of([&] { a.mesh->connect(ended, kKey, true, 0, Deadline(2 * soon())); });
        }));
  }
  // A process that is stopped between the handshake and its first word, for longer than a stranger has for the handshake.
  Status introduce_late() {
    return error_of([&] {
      UniqueFd fd;
      Endpoint self = late_word.mesh->self();
      EXPECT_EQ(net::connect_tcp(net::numeric_address(self.tcp[0]), Deadline(soon()), fd), 0);
      self.process.fill(0);
      self.host[0] ^= 1;
      net::Hello hello;
      hello.process = self.process;
      net::dial(fd.get(), hello, kKey, "the mesh", Deadline(soon()));
      std::this_thread::sleep_for(std::chrono::nanoseconds(net::kHandshakeNs + 1'000'000'000));
      net::ByteVector message;
      net::append_frame(message, static_cast<uint16_t>(Own::Intro), encode(Intro{0, random_bytes16(), self}));
      EXPECT_EQ(net::send_all(fd.get(), message, Deadline(soon())), net::Io::Ok);
      EXPECT_FALSE(late_word.mesh->connect(self, kKey, true, 0, Deadline(soon())).lost.load());
    });
  }
};

class MeshWaiting : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { all_ = std::make_unique<Waiting>(); }
  static void TearDownTestSuite() { all_.reset(); }
  static inline std::unique_ptr<Waiting> all_;
};

TEST_F(MeshWaiting, ForeignClientsAreRefusedAndHarmNobody) {
  Pair p;
  p.add_keys();
  const net::Address port = net::numeric_address(p.a.mesh->self().tcp[0]);
  std::vector<UniqueFd> foreign;
  const auto client = [&] {
    UniqueFd fd;
    EXPECT_EQ(net::connect_tcp(port, Deadline(soon()), fd), 0);
    return fd;
  };
  for (int i = 0; i < 40; ++i) foreign.push_back(client());  // half-open: they never say a word
  for (int i = 0; i < 30; ++i) {
    UniqueFd fd = client();
    // oversized garbage; it may be reset meanwhile
    net::send_all(fd.get(), bytes(std::string(100'000, 'G')), Deadline(0.2));
    foreign.push_back(std::move(fd));
  }
  foreign.push_back(client());
  net::send_all(foreign.back().get(), bytes("GET / HTTP/1.1\r\n\r\n"), Deadline(soon()));
  foreign.push_back(client());
  net::send_all(foreign.back().get(), bytes("IST"), Deadline(soon()));  // plausible so far
  p.connect(true, 2);
  EXPECT_TRUE(p.a.mesh->send(*p.of_a, 1, bytes("unharmed")));
  EXPECT_TRUE(eventually([&] { return p.b.events.messages().size() == 1; }));
  // Garbage is refused at once, the silent ones when their time is over.
  const auto ends = [](const UniqueFd &fd) {
    std::byte one{};
    return net::recv_exact(fd.get(), {&one, 1}, Deadline(soon())) != net::Io::Timeout;
  };
  EXPECT_TRUE(ends(foreign[50]));
  EXPECT_TRUE(ends(foreign[0]));
  bool at_once = false;
  for (int i = 0; i < 5 && !at_once; ++i) {
    const int64_t before = now_ns();
    const UniqueFd garbage = client();
    net::send_all(garbage.get(), bytes("GARBAGE"), Deadline(soon()));
    EXPECT_TRUE(ends(garbage));
    at_once = now_ns() - before < net::kHandshakeNs;  // a silent one has so long
  }
  EXPECT_TRUE(at_once);
}

TEST_F(MeshWaiting, MoreHalfOpenClientsThanAllowedOnlyDelayTheOthers) {
  const int most = all_->most_of_crowd.get();
  EXPECT_GE(most, static_cast<int>(net::kMaxHalfOpen));
  EXPECT_LE(most, static_cast<int>(net::kMaxHalfOpen) + 8);
}

TEST_F(MeshWaiting, APeerMayLearnTheKeyAsLateAsItLikes) {
  const Status s = all_->learned_late.get();
  EXPECT_TRUE(s.ok()) << s.text;
}

TEST_F(MeshWaiting, APeerThatIsConnectedMayLearnTheKeyOfTheDataStreamsAsLateAsItLikes) {
  const Status s = all_->streamed_late.get();
  EXPECT_TRUE(s.ok()) << s.text;
}

TEST_F(MeshWaiting, APeerThatIsStoppedBeforeItsIntroductionIsHeardWhenItGoesOn) {
  const Status s = all_->introduced_late.get();
  EXPECT_TRUE(s.ok()) << s.text;
}

TEST_F(MeshWaiting, APeerThatDoesNotConnectIsNamed) {
  const Status s = all_->not_dialled.get();
  const Endpoint &dialer = all_->silent.dialer.mesh->self();
  EXPECT_EQ(s.code, Code::Timeout);
  EXPECT_TRUE(contains(s.text, std::to_string(::getpid()))) << s.text;
  EXPECT_TRUE(contains(s.text, dialer.hostname)) << s.text;
  EXPECT_TRUE(contains(s.text, dialer.tcp[0])) << s.text;
  EXPECT_TRUE(contains(s.text, "0.7 s")) << s.text;
}

TEST_F(MeshWaiting, APeerThatIsNoLongerThereIsToldBeforeTheDeadline) {
  for (auto &f : all_->gone) {
    const Status s = f.get();
    EXPECT_EQ(s.code, Code::PeerLost) << s.text;
  }
}

TEST_F(MeshWaiting, APeerWithAKeyThatWasDroppedIsRefusedAndOneWithAnotherIsNot) {
  const Status s = all_->dropped_key.get();
  EXPECT_EQ(s.code, Code::Timeout);
  EXPECT_TRUE(contains(s.text, "it may not hold our job key")) << s.text;
  Node &waiter = all_->drops.waiter, &dialer = all_->drops.dialer;
  auto wait = begun([&] { waiter.mesh->connect(dialer.mesh->self(), kKey, true, 0, Deadline(soon())); });
  EXPECT_EQ(error_of([&] { dialer.mesh->connect(waiter.mesh->self(), kKey, true, 0, Deadline(soon())); }).code, Code::Ok);
  wait.get();
}

TEST_F(MeshWaiting, APeerWithAnotherKeyIsRefused) {
  const Status s = all_->another_key.get();
  EXPECT_EQ(s.code, Code::Auth) << s.text;
  EXPECT_TRUE(contains(s.text, "job key")) << s.text;
  EXPECT_EQ(all_->keys.waiter.mesh->counts().peers, 0);
}

}  // namespace
}  // namespace isthmus::bootstrap::testing
