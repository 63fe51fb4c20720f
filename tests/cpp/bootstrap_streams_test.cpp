// The data connections of two nodes: how many there are, who dials them, and how one that was lost is made again.
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <future>

#include "bootstrap/streams_over.hpp"
#include "bootstrap_support.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap::testing {
namespace {

TEST(DataStreams, OpensDataStreamsInAgreedOrderAlsoOnOneHost) {
  Pair p;
  p.add_keys();
  p.connect(true, 3);
  ASSERT_EQ(p.of_a->data.size(), 3u);
  ASSERT_EQ(p.of_b->data.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const std::string text = "stream " + std::to_string(i);
    ASSERT_EQ(net::send_all(p.of_a->data[i].get(), bytes(text), Deadline(soon())), net::Io::Ok);
    std::string got(text.size(), ' ');
    ASSERT_EQ(net::recv_exact(p.of_b->data[i].get(), std::as_writable_bytes(std::span(got)), Deadline(soon())), net::Io::Ok);
    EXPECT_EQ(got, text);
    EXPECT_TRUE(net::local_address(p.of_a->data[i].get()).loopback());
  }
  // Taken by a link; a second communicator opens no further ones.
  std::vector<UniqueFd> taken = std::move(p.of_a->data), taken_too = std::move(p.of_b->data);
  p.of_a->data.clear();
  p.of_b->data.clear();
  p.connect(true, 3);
  EXPECT_TRUE(p.of_a->data.empty());
}

TEST(DataStreams, AddsDataStreamsToAPeerThatIsConnectedAlready) {
  Pair p;
  p.add_keys();
  p.connect(true, 0);
  p.connect(true, 2);
  EXPECT_EQ(p.of_a->data.size(), 2u);
  EXPECT_EQ(p.of_b->data.size(), 2u);
}

TEST(DataStreams, DataConnectionsHaveTheCongestionControlThatTheirOwnSideAsksForAlsoWhereTheyAreMadeAgain) {
  const auto congestion_of = [](int fd) {
    char name[16] = {};
    socklen_t n = sizeof name;
    EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &n), 0);
    return std::string(name);
  };
  for (const bool a_asks : {true, false}) {
    Pair p{Node(a_asks ? "TCP_CONGESTION=reno" : ""), Node(a_asks ? "" : "TCP_CONGESTION=reno")};
    p.add_keys();
    p.connect(true, 2);
    const std::vector<UniqueFd> &with = (a_asks ? p.of_a : p.of_b)->data, &without = (a_asks ? p.of_b : p.of_a)->data;
    const UniqueFd any(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::string usual = congestion_of(any.get());  // of this host
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(congestion_of(with[i].get()), "reno");
      EXPECT_EQ(congestion_of(without[i].get()), usual);
    }
    const bool a_dials = p.a.mesh->dials(*p.of_a);
    Node &dialer = a_dials ? p.a : p.b, &waiter = a_dials ? p.b : p.a;
    const UniqueFd again = dialer.mesh->connect_again(a_dials ? *p.of_a : *p.of_b, kKey, 1, 7, Deadline(soon()));
    std::vector<Recorder::Stream> came;
    ASSERT_TRUE(eventually([&] { return !(came = waiter.events.take_streams()).empty(); }));
    EXPECT_EQ(congestion_of(again.get()), a_dials == a_asks ? "reno" : usual);
    EXPECT_EQ(congestion_of(came[0].socket.get()), a_dials == a_asks ? usual : "reno");
  }
}

TEST(DataStreams, ACongestionControlThatTheKernelDoesNotHaveIsNamedWithThoseThatItAllows) {
  const auto e = error_of([] { Node("TCP_CONGESTION=carrier_pigeon"); });
  EXPECT_EQ(e.code, Code::Config);
  EXPECT_EQ(e.text, "ISTHMUS_TCP_CONGESTION=carrier_pigeon: the kernel has no such congestion control; this host allows: " +
                        net::allowed_congestion());
  EXPECT_NE((" " + net::allowed_congestion() + " ").find(" reno "), std::string::npos);
}

TEST(DataStreams, ADataStreamIsConnectedAgainByTheSideThatDialsAndByNobodyWithoutTheToken) {
  Pair p;
  p.add_keys();
  p.connect(true, 2);
  const bool a_dials = p.a.mesh->dials(*p.of_a);
  EXPECT_NE(a_dials, p.b.mesh->dials(*p.of_b));
  Node &dialer = a_dials ? p.a : p.b, &waiter = a_dials ? p.b : p.a;
  Peer &to = a_dials ? *p.of_a : *p.of_b;
  const auto again = [&](uint32_t stream, uint32_t generation) {
    return dialer.mesh->connect_again(to, kKey, stream, generation, Deadline(soon()));
  };
  const UniqueFd mine = again(1, 7);
  std::vector<Recorder::Stream> came;
  ASSERT_TRUE(eventually([&] { return !(came = waiter.events.take_streams()).empty(); }));
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].stream, 1u);
  EXPECT_EQ(came[0].generation, 7u);
  ASSERT_EQ(net::send_all(mine.get(), bytes("again"), Deadline(soon())), net::Io::Ok);
  std::string got(5, ' ');
  ASSERT_EQ(net::recv_exact(came[0].socket.get(), std::as_writable_bytes(std::span(got)), Deadline(soon())), net::Io::Ok);
  EXPECT_EQ(got, "again");

  const auto refused = [&](uint32_t generation) {
    const UniqueFd fd = again(0, generation);
    std::byte one{};
    return net::recv_exact(fd.get(), {&one, 1}, Deadline(soon())) == net::Io::Closed;
  };
  EXPECT_TRUE(refused(0)) << "the first connection of a stream, a second time";
  to.token[3] ^= 1;
  EXPECT_TRUE(refused(8));
  EXPECT_TRUE(waiter.events.take_streams().empty());
  EXPECT_EQ(error_of([&] { again(2, 1); }).code, Code::Argument);
  // It is refused 3 s later, however slow the machine is.
  EXPECT_EQ(error_of([&] { dialer.mesh->connect_again(to, kOtherKey, 0, 1, Deadline(0.5)); }).code, Code::Timeout);
}

TEST(Endpoint, CountsTheWaysByTheFamilyThatBothHave) {
  const auto with = [](std::vector<std::string> tcp) {
    Endpoint e;
    e.tcp = std::move(tcp);
    return e;
  };
  const Endpoint none = with({}), one = with({"10.0.0.1:1"}), both = with({"10.0.0.2:1", "[fd00::2]:1"}),
                 two = with({"10.0.0.3:1", "[fd00::3]:1", "10.0.1.3:1"}), six = with({"[fd00::6]:1", "[fd00:1::6]:1"});
  EXPECT_EQ(none.ways_to(two), 1);
  EXPECT_EQ(one.ways_to(two), 1);
  EXPECT_EQ(both.ways_to(two), 1) << "an address of either family is one interface's";
  EXPECT_EQ(two.ways_to(two), 2);
  EXPECT_EQ(two.ways_to(six), 1);
  EXPECT_EQ(six.ways_to(six), 2);
  EXPECT_EQ(six.ways_to(one), 1);
}

TEST(StreamsNear, OneForEach25GigabitsASecondOfWhatFallsToTheProcessFromOneToEight) {
  static_assert(streams_near({}) == 1 && streams_near({0, 100'000}) == 1, "a rate that is not known");
  static_assert(streams_near({10'000, 10'000}) == 1 && streams_near({25'000, 25'000}) == 1);
  static_assert(streams_near({40'000, 40'000}) == 2 && streams_near({100'000, 100'000}) == 4);
  static_assert(streams_near({400'000, 400'000}) == 8 && streams_near({UINT32_MAX, UINT32_MAX}) == 8);
  static_assert(streams_near({100'000, 25'000}) == 1 && streams_near({25'000, 100'000}) == 1, "the slower one counts");
  static_assert(streams_near({200'000, 200'000, 8, 8, 16}) == 1, "eight processes share each interface");
  static_assert(streams_near({200'000, 200'000, 1, 4, 5}) == 2 && streams_near({200'000, 200'000, 4, 1, 5}) == 2);
  static_assert(streams_near({400'000, 400'000, 1, 1, 32}) == 4 && streams_near({400'000, 400'000, 1, 1, 200}) == 1,
                "many processes have many connections");
}

TEST(DataStreams, NamesStreamCountsThatDiffer) {
  Pair p;
  p.add_keys();
  const bool a_dials = p.a.mesh->self().process < p.b.mesh->self().process;
  Node &dialer = a_dials ? p.a : p.b, &waiter = a_dials ? p.b : p.a;
  auto other =
      std::async(std::launch::async, [&] { dialer.mesh->connect(waiter.mesh->self(), kKey, true, 2, Deadline(soon())); });
  const Status s = error_of([&] { waiter.mesh->connect(dialer.mesh->self(), kKey, true, 4, Deadline(soon())); });
  EXPECT_EQ(s.code, Code::Mismatch);
  EXPECT_TRUE(contains(s.text, "opens 2 data streams, this process expects 4")) << s.text;
  other.get();
}

TEST(StreamsOver, AsManyAsCarryAGigabyteASecondOverTheRoundTripFromOneToEight) {
  constexpr int64_t ms = 1'000'000, window = 4 << 20;
  static_assert(streams_over(0, window) == 1 && streams_over(-1, window) == 1, "a round trip that is not known");
  static_assert(streams_over(80 * ms, 0) == 1, "a window that is not known");
  static_assert(streams_over(window, window) == 1 && streams_over(window + 1, window) == 2);
  static_assert(streams_over(10 * ms, window) == 3 && streams_over(20 * ms, window) == 5);
  static_assert(streams_over(80 * ms, window) == 8 && streams_over(INT64_MAX, 1) == 8);
  static_assert(streams_over(80 * ms, 64 << 20) == 2, "a kernel that lets more be under way");
}

TEST(DataStreams, ANearPeerHasOneWhereTheDistanceDecides) {
  Pair p;
  p.add_keys();
  p.connect(true, kStreamsByDistance);
  EXPECT_EQ(p.of_a->data.size(), 1u);
  EXPECT_EQ(p.of_b->data.size(), 1u);
  EXPECT_GT(net::most_under_way(), 0);
}

TEST(DataStreams, ANearPeerHasAsManyAsTheSideThatDialsSays) {
  Pair p;
  p.add_keys();
  p.connect(true, {kStreamsByDistance, 3});
  EXPECT_EQ(p.of_a->data.size(), 3u);
  EXPECT_EQ(p.of_b->data.size(), 3u);
}

TEST(DataStreams, WhereTheDistanceDecidesTheWaitingSideTakesAsManyAsAreDialed) {
  Pair p;
  p.add_keys();
  const bool a_dials = p.a.mesh->self().process < p.b.mesh->self().process;
  Node &dialer = a_dials ? p.a : p.b, &waiter = a_dials ? p.b : p.a;
  auto other = std::async(std::launch::async,
                          [&] { return &dialer.mesh->connect(waiter.mesh->self(), kKey, true, 5, Deadline(soon())); });
  const Peer &of_waiter = waiter.mesh->connect(dialer.mesh->self(), kKey, true, kStreamsByDistance, Deadline(soon()));
  EXPECT_EQ(other.get()->data.size(), 5u);
  EXPECT_EQ(of_waiter.data.size(), 5u);
}

}  // namespace
}  // namespace isthmus::bootstrap::testing
