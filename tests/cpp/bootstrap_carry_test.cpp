// A control connection that falls silent: carried over to another address, or a peer that is lost, and what a process that ends meanwhile waits for.
#include <gtest/gtest.h>

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <initializer_list>
#include <set>
#include <thread>
#include <utility>

#include "bootstrap/mesh_state.hpp"
#include "bootstrap_support.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap::testing {
namespace {

// This process's TCP connections to these nodes: both ends of each.
std::vector<int> connections_to(std::initializer_list<const Node *> nodes) {
  std::set<uint16_t> ports;
  for (const Node *node : nodes)
    for (const std::string &address : node->mesh->self().tcp) ports.insert(net::numeric_address(address).port());
  std::vector<int> found;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_storage here{}, there{};
    socklen_t n = sizeof here, m = sizeof there;
    if (::getsockname(fd, reinterpret_cast<sockaddr *>(&here), &n) != 0 || here.ss_family == AF_UNIX) continue;
    if (::getpeername(fd, reinterpret_cast<sockaddr *>(&there), &m) != 0) continue;
    const net::Address a(reinterpret_cast<const sockaddr *>(&here), n), b(reinterpret_cast<const sockaddr *>(&there), m);
    if (ports.contains(a.port()) || ports.contains(b.port())) found.push_back(fd);
  }
  return found;
}

void silence_all(const std::vector<int> &fds) {
  sock_filter drop{BPF_RET, 0, 0, 0};
  const sock_fprog program{1, &drop};
  ASSERT_GE(fds.size(), 2u);
  for (const int fd : fds) ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

// Two nodes, each with two addresses, whose connections a test lets fall silent: no packet comes in any more, and nobody is told.
struct TwoWays {
  explicit TwoWays(const std::string &more = "ISTHMUS_HEARTBEAT_MS=200", int streams = 0)
      : a(more + ";ISTHMUS_INTERFACE=127.0.0.1,::1"), b(more + ";ISTHMUS_INTERFACE=127.0.0.1,::1") {
    if (a.mesh->self().tcp.size() < 2) return;  // a host without IPv6
    a.mesh->add_key(kKey);
    b.mesh->add_key(kKey);
    connect_as_hosts(a, b, of_a, of_b, false, streams);
  }
  bool made() const { return of_a != nullptr; }
  // All connections that there are: nothing comes in by them any more.
  void silence() const { silence_all(connections_to({&a, &b})); }
  bool a_dials() const { return a.mesh->dials(*of_a); }
  Node &dialer() { return a_dials() ? a : b; }
  Peer &dialed() { return a_dials() ? *of_a : *of_b; }
  // As the thread of the data streams does.
  void carry_over_when_silent() {
    ASSERT_TRUE(eventually([&] { return dialer().mesh->to_carry_over(dialed()); }));
    dialer().mesh->carry_over(dialed(), kKey, Deadline(soon()));
    ASSERT_TRUE(eventually([&] { return !dialer().mesh->to_carry_over(dialed()); }));
  }
  Node a, b;
  Peer *of_a = nullptr, *of_b = nullptr;
};

void expect_counted(const Node &node, size_t count) {
  const auto messages = node.events.messages();
  ASSERT_EQ(messages.size(), count);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(messages[i].body, std::to_string(i));
}

TEST(Mesh, OneProbeThatWaitsForItsAnswerIsNoSilenceAndTwoAre) {
  net::Answers a;
  a.quiet_ns = 10'000'000'000;
  EXPECT_FALSE(is_silent(a)) << "nothing is under way";
  a.unanswered = a.again = 1;
  EXPECT_TRUE(is_silent(a)) << "a segment was sent again";
  a.probed = true;
  EXPECT_FALSE(is_silent(a));
  a.again = 2;
  EXPECT_TRUE(is_silent(a));
}

TEST(Mesh, AControlConnectionThatFallsSilentGoesOnOverAnotherWayAndEachMessageComesOnceInOrder) {
  TwoWays w;
  if (!w.made()) GTEST_SKIP() << "this host has one loopback address";
  size_t sent = 0;
  const auto say = [&](size_t count) {
    for (const size_t end = sent + count; sent < end; ++sent) {
      ASSERT_TRUE(w.a.mesh->send(*w.of_a, 5, bytes(std::to_string(sent))));
      ASSERT_TRUE(w.b.mesh->send(*w.of_b, 5, bytes(std::to_string(sent))));
    }
  };
  for (int times = 0; times < 3; ++times) {
    say(100);
    w.silence();  // some of the hundred may be under way
    say(100);
    w.carry_over_when_silent();
    say(100);
    ASSERT_TRUE(eventually([&] { return w.a.events.messages().size() >= sent && w.b.events.messages().size() >= sent; }));
    expect_counted(w.a, sent);
    expect_counted(w.b, sent);
    EXPECT_TRUE(w.a.events.lost().empty() && w.b.events.lost().empty());
  }
}

TEST(Mesh, WhoWaitsToBeHeardWaitsForThatAndNoLongerAlsoWhereItsConnectionIsCarriedOverMeanwhile) {
  TwoWays w;
  if (!w.made()) GTEST_SKIP() << "this host has one loopback address";
  for (int i = 0; i < 1000; ++i)
    ASSERT_TRUE(w.a.mesh->send(*w.of_a, 5, bytes("more than the next connection will have carried")));
  w.a.mesh->await_heard();
  ASSERT_TRUE(eventually([&] { return w.b.events.messages().size() == 1000u; }));
  w.silence();
  ASSERT_TRUE(w.a.mesh->send(*w.of_a, 5, bytes("the last")));
  auto heard = std::async(std::launch::async, [&] {
    w.a.mesh->await_heard();
    return w.b.events.messages().size();
  });
  w.carry_over_when_silent();
  EXPECT_EQ(heard.get(), 1001u);
}

TEST(Mesh, WhoWaitsToBeHeardWaitsForThePeersKernelAndNotForItsNextHeartbeat) {
  TwoWays w("ISTHMUS_HEARTBEAT_MS=60000");
  if (!w.made()) GTEST_SKIP() << "this host has one loopback address";
  bool at_once = false;
  for (int tries = 5; !at_once && tries > 0; --tries) {  // this process may be held up
    ASSERT_TRUE(w.a.mesh->send(*w.of_a, 5, bytes("the last")));
    const int64_t begun = now_ns();
    w.a.mesh->await_heard();
    at_once = now_ns() - begun < 2'000'000'000;  // the most that it waits is 4 s
  }
  EXPECT_TRUE(at_once);
}

TEST(Mesh, WhereNoOtherWayIsTakenASilentPeerIsLostAsBefore) {
  TwoWays w("ISTHMUS_HEARTBEAT_MS=10");
  if (!w.made()) GTEST_SKIP() << "this host has one loopback address";
  w.silence();
  ASSERT_TRUE(eventually([&] { return w.a.events.lost().size() == 1 && w.b.events.lost().size() == 1; }));
  EXPECT_TRUE(contains(w.a.events.lost()[0], "is unreachable")) << w.a.events.lost()[0];
}

TEST(Mesh, AProcessThatEndsIsNeverCarriedOverAndIsLostThoughItsLastConnectionIsSilent) {
  TwoWays w("ISTHMUS_HEARTBEAT_MS=60");  // lost after 6 s: the dialer has to look before
  if (!w.made()) GTEST_SKIP() << "this host has one loopback address";
  Node &dialer = w.dialer(), &other = w.a_dials() ? w.b : w.a;
  Peer &of_dialer = w.dialed();
  w.silence();
  std::thread end([&] { other.mesh.reset(); });  // waits for the other side to have its last words
  const bool tries = eventually([&] { return dialer.mesh->to_carry_over(of_dialer); });
  end.join();
  ASSERT_TRUE(tries);
  EXPECT_NE(error_of([&] { dialer.mesh->carry_over(of_dialer, kKey, Deadline(soon())); }).text, "");
  ASSERT_TRUE(eventually([&] { return dialer.events.lost().size() == 1; }));
}

TEST(Mesh, AProcessThatEndsWaitsForAPeerThatHearsNothingForSecondsAtMostAndTheOthersHearOfTheEndAtOnce) {
  Node a("ISTHMUS_HEARTBEAT_MS=5000"), b("ISTHMUS_HEARTBEAT_MS=5000"), c("ISTHMUS_HEARTBEAT_MS=5000");
  for (Node *node : {&a, &b, &c}) node->mesh->add_key(kKey);
  Peer *of_a = nullptr, *of_b = nullptr, *a_of_c = nullptr, *of_c = nullptr;
  connect_as_hosts(a, b, of_a, of_b, false, 0);
  const std::vector<int> others = connections_to({&a, &b, &c});
  connect_as_hosts(a, c, a_of_c, of_c, false, 0);
  std::vector<int> silent = connections_to({&a, &b, &c});
  std::erase_if(silent, [&](int fd) { return std::find(others.begin(), others.end(), fd) != others.end(); });
  silence_all(silent);
  std::atomic<bool> ended{false};
  const int64_t begun = now_ns();
  std::thread end([&] {
    a.mesh.reset();
    ended.store(true);
  });
  const bool heard = eventually([&] { return b.events.lost().size() == 1; });
  const bool first = !ended.load();
  end.join();
  EXPECT_LT(now_ns() - begun, 60'000'000'000) << "50 heartbeats are 250 s";
  const int none = 0;
  for (const int fd : silent)
    ::setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);  // and the end of `a` is closed
  ASSERT_TRUE(heard);
  EXPECT_TRUE(contains(b.events.lost()[0], "shut Isthmus down")) << b.events.lost()[0];
  EXPECT_TRUE(first) << "`a` was still waiting for `c`";
}

// Of 200 ms each a hundred heartbeats are 20 s, and the text would say that it is unreachable. The process that ends waits for 5 s.
TEST(Mesh, AProcessThatEndsUnheardIsLostByEitherSideAsItsHostRefusesWhereItsStreamsHadReachedIt) {
  for (const bool dialer_ends : {false, true}) {
    TwoWays w("ISTHMUS_HEARTBEAT_MS=200", 2);
    if (!w.made()) GTEST_SKIP() << "this host has one loopback address";
    Node &ends = w.a_dials() == dialer_ends ? w.a : w.b, &other = &ends == &w.a ? w.b : w.a;
    w.silence();
    ends.mesh.reset();
    ASSERT_TRUE(eventually([&] { return other.events.lost().size() == 1; }));
    EXPECT_TRUE(contains(other.events.lost()[0], "refuses connections where it listened")) << other.events.lost()[0];
  }
}

TEST(Mesh, ASilentProcessThatStillListensIsNotTakenForEnded) {
  TwoWays w("ISTHMUS_HEARTBEAT_MS=10", 2);
  if (!w.made()) GTEST_SKIP() << "this host has one loopback address";
  w.silence();
  ASSERT_TRUE(eventually([&] { return w.a.events.lost().size() == 1 && w.b.events.lost().size() == 1; }));
  for (const Node *node : {&w.a, &w.b})
    EXPECT_TRUE(contains(node->events.lost()[0], "is unreachable")) << node->events.lost()[0];
}

TEST(Mesh, AConnectionThatWouldTakeTheOldOnesPlaceShowsTheTokenAndIsNewer) {
  TwoWays w;
  if (!w.made()) GTEST_SKIP() << "this host has one loopback address";
  Node &dialer = w.dialer(), &other = w.a_dials() ? w.b : w.a;
  const Bytes16 token = std::exchange(w.dialed().token, Bytes16{9});
  dialer.mesh->carry_over(w.dialed(), kKey, Deadline(soon()));
  ASSERT_TRUE(eventually([&] { return dialer.mesh->to_carry_over(w.dialed()); })) << "it was refused, and is tried again";
  EXPECT_TRUE(other.events.lost().empty());
  w.dialed().token = token;
  w.carry_over_when_silent();
  ASSERT_TRUE(dialer.mesh->send(w.dialed(), 5, bytes("0")));
  ASSERT_TRUE(eventually([&] { return other.events.messages().size() == 1; }));
  EXPECT_TRUE(dialer.events.lost().empty() && other.events.lost().empty());
}

}  // namespace
}  // namespace isthmus::bootstrap::testing
