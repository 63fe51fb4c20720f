// The net floor without threads: MAC, wire, frames, addresses, sockets, descriptors, handshake messages.
#include <gtest/gtest.h>

#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fcntl.h>

#include <array>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "in_child.hpp"
#include "net/connect_race.hpp"
#include "net/fork_guard.hpp"
#include "net/frame.hpp"
#include "net/handshake.hpp"
#include "net/shortage.hpp"
#include "net/siphash.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"
#include "patience.hpp"

namespace isthmus::net {
namespace {

using isthmus_test::soon;

std::string hex(const Bytes16 &b) {
  std::string out;
  for (const uint8_t x : b) out += isthmus::formatted("{:02x}", x);
  return out;
}

template <class Work>
Status error_of(Work work) {
  try {
    work();
  } catch (const Error &e) { return {e.code(), e.text()}; }
  return {};
}

bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

struct TcpPair {
  UniqueFd listener, client, server;
  explicit TcpPair(const char *at = "127.0.0.1:1") {
    listener = listen_tcp(numeric_address(at).with_port(0));
    EXPECT_EQ(connect_tcp(local_address(listener.get()), Deadline(soon()), client), 0);
    std::string from;
    int error = 0;
    server = accept_client(listener.get(), from, error);
    EXPECT_EQ(error, 0);
    EXPECT_EQ(from, local_address(client.get()).text());
  }
};

TEST(SipHash, GivesTheReferenceValues) {
  Bytes16 key;
  std::array<std::byte, 63> message;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(i);
  const auto of = [&](size_t n) { return hex(siphash128(key, std::span(message).first(n))); };
  // The reference implementation's vectors for 128-bit output; OpenSSL's SIPHASH gives the same.
  EXPECT_EQ(of(0), "a3817f04ba25a8e66df67214c7550293");
  EXPECT_EQ(of(1), "da87c1d86b99af44347659119b22fc45");
  EXPECT_EQ(of(15), "5493e99933b0a8117e08ec0f97cfc3d9");
  EXPECT_EQ(of(63), "5150d1772f50834a503e069a973fbd7c");
}

TEST(SipHash, ComparesAllBytes) {
  const Bytes16 a{1, 2, 3};
  EXPECT_TRUE(equal_constant_time(a, a));
  for (size_t i = 0; i < a.size(); ++i) {
    Bytes16 b = a;
    b[i] ^= 0x80;
    EXPECT_FALSE(equal_constant_time(a, b));
  }
}

TEST(Wire, ReadsBackWhatWasWrittenAndStopsAtTheEnd) {
  ByteVector v;
  Writer(v).number(uint8_t{1}).number(uint16_t{0x1234}).number(uint32_t{7}).number(int64_t{-5}).bytes16({9}).text("name");
  EXPECT_EQ(v[1], std::byte{0x34});  // little endian
  Reader r(v);
  EXPECT_EQ(r.number<uint8_t>(), 1);
  EXPECT_EQ(r.number<uint16_t>(), 0x1234);
  EXPECT_EQ(r.number<uint32_t>(), 7u);
  EXPECT_EQ(r.number<int64_t>(), -5);
  EXPECT_EQ(r.bytes16(), Bytes16{9});
  EXPECT_EQ(r.text(4), "name");
  EXPECT_TRUE(r.done());
  EXPECT_EQ(r.number<uint32_t>(), 0u);
  EXPECT_FALSE(r.ok());
  Reader limited{std::span(v).subspan(31)};
  EXPECT_EQ(limited.text(3), "");
  EXPECT_FALSE(limited.ok());
}

TEST(Frame, IsFoundInPiecesOfAnySize) {
  ByteVector stream;
  for (size_t i = 0; i < 40; ++i)
    append_frame(stream, static_cast<uint16_t>(i), ByteVector(i * i * 41, static_cast<std::byte>(i)));
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{8}, size_t{4096}, stream.size()}) {
    FrameReader reader;
    size_t at = 0;
    uint16_t expected = 0;
    while (at < stream.size()) {
      const auto space = reader.space();
      const size_t n = std::min({piece, space.size(), stream.size() - at});
      std::copy_n(stream.begin() + static_cast<ptrdiff_t>(at), n, space.begin());
      reader.received(n);
      at += n;
      uint16_t type = 0;
      std::span<const std::byte> body;
      while (reader.next(type, body) == FrameReader::Result::Frame) {
        ASSERT_EQ(type, expected);
        ASSERT_EQ(body.size(), size_t{expected} * expected * 41);
        for (const std::byte b : body) ASSERT_EQ(b, static_cast<std::byte>(expected));
        ++expected;
      }
    }
    EXPECT_EQ(expected, 40);
  }
}

TEST(Frame, RefusesOtherVersionsAndExcessiveLengths) {
  const auto why = [](std::span<const std::byte> bytes) {
    FrameReader reader;
    std::copy(bytes.begin(), bytes.end(), reader.space().begin());
    reader.received(bytes.size());
    uint16_t type = 0;
    std::span<const std::byte> body;
    EXPECT_EQ(reader.next(type, body), FrameReader::Result::Bad);
    EXPECT_EQ(reader.next(type, body), FrameReader::Result::Bad);
    return reader.why();
  };
  auto header = frame_header(3, kMaxControlBody + 1);
  EXPECT_TRUE(contains(why(header), "65537 bytes (type 3); at most 65536"));
  header = frame_header(3, 10);
  header[0] = std::byte{42};
  EXPECT_TRUE(
      contains(why(header), isthmus::formatted("version 42, where this process speaks version {}", kProtocolVersion)));
}

TEST(Frame, SaysHowManyBytesAreMissing) {
  FrameReader reader;
  EXPECT_EQ(reader.missing(), kFrameHeader);
  const auto header = frame_header(1, 100);
  std::copy_n(header.begin(), 3, reader.space().begin());
  reader.received(3);
  EXPECT_EQ(reader.missing(), 5u);
  std::copy_n(header.begin() + 3, 5, reader.space().begin());
  reader.received(5);
  EXPECT_EQ(reader.missing(), 100u);
}

TEST(Address, ParsesAndPrints) {
  EXPECT_EQ(numeric_address("127.0.0.1:80").text(), "127.0.0.1:80");
  EXPECT_EQ(numeric_address("[::1]:80").text(), "[::1]:80");
  EXPECT_TRUE(numeric_address("127.9.9.9:1").loopback());
  EXPECT_TRUE(numeric_address("[::1]:1").loopback());
  EXPECT_FALSE(numeric_address("10.0.0.1:1").loopback());
  EXPECT_TRUE(numeric_address("0.0.0.0:1").wildcard());
  EXPECT_TRUE(numeric_address("[fe80::1]:1").link_local());
  EXPECT_TRUE(numeric_address("127.0.0.1:1").same_host(numeric_address("127.0.0.1:2")));
  EXPECT_FALSE(numeric_address("127.0.0.1:1").same_host(numeric_address("[::1]:1")));
  EXPECT_EQ(split_host_port("some.host:1").host, "some.host");
  for (const char *bad : {"", ":", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:1 ", "::1:80", "[]:80", "[::1]"})
    EXPECT_EQ(error_of([&] { split_host_port(bad); }).code, Code::Argument) << bad;
  EXPECT_EQ(error_of([] { numeric_address("localhost:1"); }).code, Code::Argument);
}

// A loopback address, and so many neighbouring ports of it that are free.
struct Free {
  Address address;
  PortRange ports;
  explicit Free(unsigned count) : address(numeric_address(isthmus::formatted("127.{}.77.1:1", 1 + ::getpid() % 250))) {
    for (unsigned base = 20000 + static_cast<unsigned>(::getpid()) % 5000; base < 31000; base += count) {
      std::vector<UniqueFd> tried(count);
      unsigned n = 0;
      while (n < count && try_listen_tcp(address.with_port(static_cast<uint16_t>(base + n)), tried[n]) == 0) ++n;
      if (n < count) continue;
      ports = {static_cast<uint16_t>(base), static_cast<uint16_t>(base + count - 1)};
      return;
    }
    ADD_FAILURE() << "no " << count << " neighbouring ports are free";
  }
};

TEST(Ports, OfARangeEachListenerGetsOneUntilNoneIsLeft) {
  const Free free(4);
  const uint16_t fixed = static_cast<uint16_t>(free.ports.first + 1);
  std::set<uint16_t> got;
  std::vector<UniqueFd> listeners(4);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(try_listen_tcp(free.address, free.ports, fixed, listeners[i]), 0);
    got.insert(local_address(listeners[i].get()).port());
  }
  EXPECT_EQ(got, (std::set<uint16_t>{free.ports.first, static_cast<uint16_t>(fixed + 1), free.ports.last}))
      << "not the fixed one";
  EXPECT_EQ(try_listen_tcp(free.address, free.ports, fixed, listeners[3]), EADDRINUSE);
  const std::string said = used_up_text(free.ports, free.address);
  EXPECT_TRUE(contains(said, isthmus::formatted("ISTHMUS_PORTS={}-{}", free.ports.first, free.ports.last))) << said;
  EXPECT_TRUE(contains(said, "Each process takes one") && contains(said, free.address.host())) << said;
  listeners[1].reset();
  EXPECT_EQ(try_listen_tcp(free.address, free.ports, fixed, listeners[3]), 0) << "what is given back is free again";
}

TEST(Ports, WithoutARangeTheSystemChooses) {
  UniqueFd fd;
  ASSERT_EQ(try_listen_tcp(numeric_address("127.0.0.1:1"), PortRange{}, 0, fd), 0);
  EXPECT_NE(local_address(fd.get()).port(), 1);
}

TEST(Ports, OfAsManyAsTryAtTheSameMomentEachGetsOne) {
  constexpr int kListeners = 8, kRounds = 200;
  const Free free(kListeners);
  for (int round = 0; round < kRounds; ++round) {
    std::array<UniqueFd, kListeners> listeners;
    std::array<int, kListeners> errors{};
    std::barrier start(kListeners);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kListeners; ++i)
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        errors[i] = try_listen_tcp(free.address, free.ports, 0, listeners[i]);
      });
    for (std::thread &t : threads) t.join();
    std::set<uint16_t> got;
    for (size_t i = 0; i < kListeners; ++i) {
      ASSERT_EQ(errors[i], 0) << "round " << round;
      got.insert(local_address(listeners[i].get()).port());
    }
    ASSERT_EQ(got.size(), static_cast<size_t>(kListeners)) << "round " << round;
  }
}

TEST(Address, ChoosesTheInterfaceThatRoutes) {
  for (const char *hint : {"127.0.0.1", "127.0.0.1:29500", "localhost"}) {
    for (const Address &a : local_addresses("", hint)) EXPECT_TRUE(a.loopback()) << hint << " " << a.text();
  }
  EXPECT_EQ(local_addresses("", "::1").at(0).host(), "::1");
  EXPECT_FALSE(local_addresses("", "").empty());
  EXPECT_TRUE(local_addresses("lo", "").at(0).loopback());
  EXPECT_EQ(local_addresses("127.0.0.1", "").at(0).host(), "127.0.0.1");
  const auto several = local_addresses("nosuch,::1,127.0.0.1,lo,", "");  // each once, in the order of the list
  ASSERT_EQ(several.size(), 2u);
  EXPECT_EQ(several[0].host(), "::1");
  EXPECT_EQ(several[1].host(), "127.0.0.1");
  EXPECT_LE(local_addresses("", "").size(), kMostAddresses);
  EXPECT_EQ(error_of([] { local_addresses("0.0.0.0", ""); }).code, Code::Config);
  const Status s = error_of([] { local_addresses("nosuch", ""); });
  EXPECT_EQ(s.code, Code::Config);
  EXPECT_TRUE(contains(s.text, "lo (127.0.0.1)")) << s.text;
  const Status unknown = error_of([] { resolve("no-such-host.invalid", 1); });
  EXPECT_TRUE(contains(unknown.text, "no-such-host.invalid")) << unknown.text;
}

TEST(Address, WithoutDescriptorsTheLimitIsToBlameAndNotTheRoute) {
  isthmus_test::in_child([] {
    rlimit none{};
    ::setrlimit(RLIMIT_NOFILE, &none);
    const Status s = error_of([] { local_addresses("", "127.0.0.1"); });
    return s.code == Code::Resource && contains(s.text, "ulimit -n 0");
  });
}

TEST(Shortage, OfDescriptorsCountsWhereItLastsForASecond) {
  const auto note = [](int times) {
    for (int i = 0; i < times; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(50))) note_shortage(EMFILE);
  };
  note(4);
  EXPECT_EQ(lasting_shortage(), "");
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  note(4);
  EXPECT_EQ(lasting_shortage(), "");  // it began anew
  note(22);
  EXPECT_TRUE(lasting_shortage().starts_with("out of descriptors (ulimit -n ")) << lasting_shortage();
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(lasting_shortage(), "");
}

// At a port where nobody listens.
Address closed_port() {
  const UniqueFd held = listen_tcp(numeric_address("127.0.0.1:9").with_port(0));
  return local_address(held.get());
}

TEST(Address, ARateIsWhatTheDriverSaysOrNotKnown) {
  const std::string under = ::testing::TempDir() + "isthmus-rates-" + std::to_string(::getpid());
  const auto says = [&](const std::string &text) {
    std::filesystem::create_directories(under + "/eth0");
    std::ofstream(under + "/eth0/speed") << text;
    return rate_of("eth0", under);
  };
  EXPECT_EQ(rate_of("eth0", under), 0u) << "no such interface";
  EXPECT_EQ(says("100000\n"), 100'000u);
  EXPECT_EQ(rate_of("eth0:1", under), 100'000u) << "a label";
  for (const char *unknown : {"-1\n", "", "Unknown!", "99999999999999999999999"}) EXPECT_EQ(says(unknown), 0u) << unknown;
  EXPECT_EQ(rate_of("", under), 0u);
  EXPECT_EQ(rate_of("../" + under, "/"), 0u) << "a name is no path";
  std::filesystem::remove_all(under);
}

TEST(ConnectRace, PassesByAddressesThatRefuseAndGivesTheOneThatAnswers) {
  const UniqueFd listener = listen_tcp(numeric_address("127.0.0.1:9").with_port(0));
  ConnectRace race({closed_port(), closed_port(), local_address(listener.get())});
  UniqueFd fd;
  size_t which = 0;
  ASSERT_TRUE(race.next(Deadline(soon()), fd, which));
  EXPECT_TRUE(fd);
  EXPECT_EQ(which, 2u);
  EXPECT_FALSE(race.all_refused());
  EXPECT_TRUE(contains(race.why(), "Connection refused")) << race.why();
}

TEST(ConnectRace, OfTwoThatAnswerTheBetterComesFirstAndTheOtherStaysToBeAskedFor) {
  const UniqueFd better = listen_tcp(numeric_address("127.0.0.1:9").with_port(0)),
                 other = listen_tcp(numeric_address("[::1]:9").with_port(0));
  ConnectRace race({local_address(better.get()), local_address(other.get())});
  UniqueFd first, second, none;
  size_t which = 9;
  ASSERT_TRUE(race.next(Deadline(soon()), first, which));
  EXPECT_EQ(which, 0u);
  ASSERT_TRUE(race.next(Deadline(soon()), second, which)) << "somebody else has answered at the first";
  EXPECT_EQ(which, 1u);
  EXPECT_FALSE(race.next(Deadline(soon()), none, which)) << "no attempt is left";
  EXPECT_EQ(race.why(), "");
}

TEST(ConnectRace, EndsAtTheDeadlineAndWhereAllRefuse) {
  UniqueFd fd;
  size_t which = 0;
  ConnectRace refused({closed_port(), closed_port()});
  EXPECT_FALSE(refused.next(Deadline(soon()), fd, which));
  EXPECT_TRUE(refused.all_refused());
  // A listener whose queue is full takes no more connections.
  const UniqueFd busy(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Address any = numeric_address("127.0.0.1:9").with_port(0);
  ASSERT_EQ(::bind(busy.get(), any.raw(), any.length()), 0);
  ASSERT_EQ(::listen(busy.get(), 0), 0);
  const Address at = local_address(busy.get());
  std::vector<UniqueFd> waiting(8);
  for (UniqueFd &one : waiting) ASSERT_EQ(begin_connect_tcp(at, one), 0);
  ConnectRace late({at});
  EXPECT_FALSE(late.next(Deadline(0.05), fd, which));
  EXPECT_FALSE(late.all_refused());
  EXPECT_TRUE(contains(late.why(), "timed out")) << late.why();
  EXPECT_FALSE(ConnectRace({}).next(Deadline(soon()), fd, which));
}

TEST(Socket, TcpHasNoDelayAndIsClosedOnExec) {
  for (const char *at : {"127.0.0.1:1", "[::1]:1"}) {
    const TcpPair p(at);
    for (const UniqueFd *fd : {&p.client, &p.server, &p.listener}) {
      int on = 0;
      socklen_t n = sizeof on;
      ASSERT_EQ(::getsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, &n), 0);
      EXPECT_NE(on, 0);
      EXPECT_NE(::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
      EXPECT_NE(::fcntl(fd->get(), F_GETFL) & O_NONBLOCK, 0);
    }
  }
}

TEST(Socket, ConnectTellsRefusedFromLate) {
  // A port that somebody has, and does not listen at: nobody else comes to.
  const UniqueFd owner(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(owner.get(), reinterpret_cast<const sockaddr *>(&any), sizeof any), 0);
  UniqueFd fd;
  EXPECT_EQ(connect_tcp(local_address(owner.get()), Deadline(soon()), fd), ECONNREFUSED);
  EXPECT_EQ(connect_unix("isthmus-no-such-name", Deadline(soon()), fd), ECONNREFUSED);
  EXPECT_FALSE(fd);
}

// In a network of its own, whose loopback interface it takes up and down. 0: well; 77: this process may make no network.
int watch_an_interface() {
  if (::unshare(CLONE_NEWNET) != 0) return 77;
  const UniqueFd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto set = [&](bool up) {
    ifreq request{};
    std::memcpy(request.ifr_name, "lo", 3);
    request.ifr_flags = static_cast<short>(up ? IFF_UP | IFF_RUNNING : 0);
    return ::ioctl(any.get(), SIOCSIFFLAGS, &request) == 0;
  };
  if (!set(true)) return 77;
  const UniqueFd listener = listen_tcp(numeric_address("127.0.0.1:1").with_port(0));
  UniqueFd fd;
  if (connect_tcp(local_address(listener.get()), Deadline(soon()), fd) != 0) return 1;
  if (interface_down(fd.get())) return 2;
  if (!set(false) || !interface_down(fd.get())) return 3;
  return set(true) && !interface_down(fd.get()) ? 0 : 4;
}

TEST(Socket, KnowsWhetherItsInterfaceIsDown) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(watch_an_interface());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "networks of one's own need root";
  EXPECT_EQ(status, 0);
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd one(pair[0]), other(pair[1]);
  EXPECT_FALSE(interface_down(pair[0]));
  EXPECT_EQ(answers(pair[0]).unanswered, 0u);
}

// Every Linux tells how much it has not sent. An emulator does not pass the question on; scripts/suite_cases.py allows the skip there alone.
constexpr const char *kNothingOfUnsent = "nobody tells here what is not sent yet (SIOCOUTQNSD)";
bool tells_unsent(const TcpPair &pair) {
  int bytes = 0;
  return ::ioctl(pair.client.get(), SIOCOUTQNSD, &bytes) == 0;
}

TEST(Socket, WhatWaitsWhileNothingIsUnderWayIsStuckBeforeTheKernelTriesAgain) {
  const TcpPair pair;
  if (!tells_unsent(pair)) GTEST_SKIP() << kNothingOfUnsent;
  EXPECT_FALSE(answers(pair.client.get()).stuck);
  const std::vector<std::byte> piece(64 * 1024);
  while (send_some(pair.client.get(), piece) > 0) {}  // the other side reads nothing, and has no room in the end
  const Deadline late(soon());
  bool stuck = false;
  for (Answers a; !stuck && !late.passed(); a = answers(pair.client.get())) stuck = a.stuck;
  EXPECT_TRUE(stuck);
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(answers(file.get()).stuck);
}

TEST(Socket, WhatTheKernelHasNotSentIsLimited) {
  if (!tells_unsent(TcpPair())) GTEST_SKIP() << kNothingOfUnsent;
  const auto unsent = [](bool limited) {
    const TcpPair pair;
    if (limited) limit_unsent(pair.client.get(), 128 * 1024);
    const std::vector<std::byte> piece(64 * 1024);
    while (send_some(pair.client.get(), piece) > 0) {}  // the other side reads nothing, and has no room in the end
    int bytes = 0;
    EXPECT_EQ(::ioctl(pair.client.get(), SIOCOUTQNSD, &bytes), 0);
    return bytes;
  };
  EXPECT_LE(unsent(true), 256 * 1024);
  EXPECT_GT(unsent(false), 512 * 1024);
}

TEST(Socket, AnAnswerIsDelayedNoLongerThanTheKernelSaysThoughNobodyReads) {
  const TcpPair pair;
  const int64_t delay = longest_delay_ns(pair.listener.get());
  if (delay == 0) GTEST_SKIP() << "the kernel does not say (Linux before 6.15)";
  EXPECT_LE(delay, 20'000'000);
  for (const int fd : {pair.client.get(), pair.server.get()}) EXPECT_EQ(longest_delay_ns(fd), delay);
  const auto answered = [&] {
    const std::byte one{};
    const int64_t begin = now_ns();
    EXPECT_EQ(send_some(pair.client.get(), {&one, 1}), 1);
    for (const Deadline late(soon()); answers(pair.client.get()).unanswered != 0 && !late.passed();)
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    return now_ns() - begin;
  };
  for (int n = 0; n < 100; ++n) answered();  // a kernel answers the first ones at once
  int64_t best = answered();
  for (const Deadline late(soon()); best >= 35'000'000 && !late.passed();) best = std::min(best, answered());
  EXPECT_LT(best, 35'000'000) << "it is 40 ms as a rule";
}

TEST(Socket, NeverConnectsToItself) {
  // Loopback, a port that nobody listens at, many tries: the kernel may choose that very port as the source.
  Address nobody;
  {
    const UniqueFd fd = listen_tcp(numeric_address("127.0.0.1:1").with_port(0));
    nobody = local_address(fd.get());
  }
  for (int i = 0; i < 2000; ++i) {
    UniqueFd fd;
    const bool connected = connect_tcp(nobody, Deadline(soon()), fd) == 0;  // somebody else may have come to listen there
    ASSERT_FALSE(connected && local_address(fd.get()).text() == nobody.text());
  }
}

TEST(Socket, WaitsEndAtTheDeadline) {
  const TcpPair p;
  std::byte one{};
  const int64_t start = now_ns();
  EXPECT_EQ(recv_exact(p.client.get(), {&one, 1}, Deadline(0.12)), Io::Timeout);
  EXPECT_GE(now_ns() - start, 120'000'000);
  const ByteVector much(64 << 20);
  EXPECT_EQ(send_all(p.client.get(), much, Deadline(0.1)), Io::Timeout);
}

TEST(Socket, InterruptCheckEndsAWait) {
  const TcpPair p;
  set_interrupt_check([] { return 1; });
  const Status s = error_of([&] { wait_events(p.client.get(), POLLIN, Deadline(soon())); });
  EXPECT_EQ(wait_events(p.client.get(), POLLIN, Deadline(0)), 0);  // no time to wait: asks nobody
  set_interrupt_check(nullptr);
  EXPECT_EQ(s.code, Code::Interrupted);
}

TEST(Socket, PassesDescriptorsAndCredentials) {
  const std::string name = isthmus::formatted("isthmus-net-test-{}", ::getpid());
  const UniqueFd listener = listen_unix(name);
  UniqueFd client;
  ASSERT_EQ(connect_unix(name, Deadline(soon()), client), 0);
  std::string from;
  int error = 0;
  const UniqueFd server = accept_client(listener.get(), from, error);
  ASSERT_TRUE(server);
  Credentials c;
  ASSERT_TRUE(peer_credentials(server.get(), c));
  EXPECT_EQ(c.pid, ::getpid());
  EXPECT_EQ(c.uid, ::getuid());
  EXPECT_TRUE(contains(from, std::to_string(c.pid)));

  const UniqueFd memory(::memfd_create("net-test", MFD_CLOEXEC));
  ASSERT_EQ(::pwrite(memory.get(), "shared", 6, 0), 6);
  ASSERT_EQ(send_with_fd(client.get(), as_bytes("take this"), memory.get(), Deadline(soon())), Io::Ok);
  std::array<std::byte, 64> buffer;
  UniqueFd passed;
  ASSERT_EQ(recv_with_fd(server.get(), buffer, passed), 9);
  ASSERT_TRUE(passed);
  EXPECT_NE(::fcntl(passed.get(), F_GETFD) & FD_CLOEXEC, 0);
  char text[6];
  ASSERT_EQ(::pread(passed.get(), text, 6, 0), 6);
  EXPECT_EQ(std::string(text, 6), "shared");
  EXPECT_EQ(send_with_fd(client.get(), as_bytes("none"), -1, Deadline(soon())), Io::Ok);
  UniqueFd none;
  EXPECT_EQ(recv_with_fd(server.get(), buffer, none), 4);
  EXPECT_FALSE(none);
}

TEST(ForkGuard, ClosesOursAndNothingElse) {
  TcpPair p;
  const int reused = p.client.get();
  // Our socket is closed without a word and its number taken by a file of the program, which the child must keep.
  p.client.reset();
  const UniqueFd file(::memfd_create("the program's", MFD_CLOEXEC));
  ASSERT_EQ(file.get(), reused);
  const pid_t child = ::fork();
  if (child == 0) ::_exit((::fcntl(file.get(), F_GETFD) < 0 ? 1 : 0) | (::fcntl(p.server.get(), F_GETFD) >= 0 ? 2 : 0));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ForkGuard, ClosesWhatAChildHasOpenedInItsOwnChild) {
  const pid_t child = ::fork();
  if (child == 0) {
    TcpPair p;
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(::fcntl(p.client.get(), F_GETFD) >= 0 || ::fcntl(p.server.get(), F_GETFD) >= 0 ? 1 : 0);
    int status = -1;
    ::_exit(::waitpid(grandchild, &status, 0) == grandchild && status == 0 && ::fcntl(p.client.get(), F_GETFD) >= 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// ---- handshake messages, driven by hand

struct Talk {
  Bytes16 key{7};
  Hello hello;
  Acceptor acceptor;
  ByteVector reply;
  explicit Talk(uint16_t their_version = kProtocolVersion) : acceptor({42}) {
    hello.version = their_version;
    hello.nonce = random16();
    hello.process = {43};
  }
};

TEST(Handshake, AcceptsOnlyTheRightProof) {
  Talk t;
  const auto hello = encode(t.hello);
  ASSERT_EQ(hello.size(), kHelloBytes);
  t.acceptor.feed(hello, t.reply);
  ASSERT_EQ(t.acceptor.state(), Acceptor::State::Proof);
  ASSERT_EQ(t.reply.size(), kChallengeBytes);
  ByteVector message;
  Writer(message).bytes(as_bytes("D")).bytes(hello).bytes(t.reply);
  const Bytes16 proof = siphash128(t.key, message);
  t.acceptor.feed(std::as_bytes(std::span(proof)), t.reply);
  ASSERT_EQ(t.acceptor.state(), Acceptor::State::Unproved);
  ByteVector verdict;
  EXPECT_FALSE(t.acceptor.try_key({8}, verdict));
  EXPECT_TRUE(t.acceptor.try_key(t.key, verdict));
  EXPECT_EQ(t.acceptor.state(), Acceptor::State::Done);
  EXPECT_EQ(verdict.size(), kVerdictBytes);
}

TEST(Handshake, AProofIsGoodForItsOwnHelloAndChallengeOnly) {
  Talk first;
  const auto hello = encode(first.hello);
  first.acceptor.feed(hello, first.reply);
  ByteVector message;
  Writer(message).bytes(as_bytes("D")).bytes(hello).bytes(first.reply);
  const Bytes16 proof = siphash128(first.key, message);
  {
    Talk replay;  // the same hello and proof, another challenge
    replay.acceptor.feed(hello, replay.reply);
    replay.acceptor.feed(std::as_bytes(std::span(proof)), replay.reply);
    EXPECT_FALSE(replay.acceptor.try_key(first.key, replay.reply));
  }
  for (size_t at = 4; at < kHelloBytes; ++at) {  // the same challenge, any other hello
    if (at == 6 || at == 7) continue;            // no field of the hello, but part of the proof all the same
    auto changed = hello;
    changed[at] ^= std::byte{1};
    ByteVector other;
    Writer(other).bytes(as_bytes("D")).bytes(changed).bytes(first.reply);
    EXPECT_NE(siphash128(first.key, other), proof);
  }
}

TEST(Handshake, TellsForeignBytesEarly) {
  const Acceptor a({1});
  EXPECT_TRUE(a.plausible(as_bytes("I")));
  EXPECT_TRUE(a.plausible(as_bytes("ISTH...")));
  EXPECT_FALSE(a.plausible(as_bytes("G")));
  EXPECT_FALSE(a.plausible(as_bytes("IST\n")));
  std::string why;
  EXPECT_FALSE(parse_hello(as_bytes("GET / HTTP/1.1\r\n"), why));
  EXPECT_TRUE(contains(why, "GET / HTTP/1.1..")) << why;
}

TEST(Handshake, CostsLittleBeforeTheProof) { EXPECT_LE(kHelloBytes + kProofBytes, kMaxUnauthenticatedBytes); }

}  // namespace
}  // namespace isthmus::net
