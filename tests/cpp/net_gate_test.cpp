// The gate on one thread, dialers on others.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstring>
#include <future>
#include <thread>

#include "net/gate.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"
#include "patience.hpp"

namespace isthmus::net {
namespace {

using isthmus_test::soon;

const Bytes16 kKey{1}, kOther{2}, kProcess{9};

bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

struct Doorkeeper {  // a gate with a thread that serves it
  Gate gate;
  static inline std::atomic<int> number{0};
  std::string unix_name = isthmus::formatted("isthmus-gate-test-{}-{}", ::getpid(), number.fetch_add(1));
  Address address;
  std::mutex mutex;
  std::vector<Guest> guests;  // under mutex, as the next two
  size_t most_half_open = 0;
  std::string last_refused;
  std::atomic<bool> stop{false}, stopped{false};
  std::thread thread;

  explicit Doorkeeper(Gate::UnknownKey policy = Gate::UnknownKey::Refuse, const char *at = "127.0.0.1:1")
      : gate(kProcess, policy) {
    UniqueFd fd = listen_tcp(numeric_address(at).with_port(0));
    address = local_address(fd.get());
    gate.add_listener(std::move(fd));
    gate.add_listener(listen_unix(unix_name));
    thread = std::thread([this] {
      while (!stop) {
        pollfd p{gate.fd(), POLLIN, 0};
        ::poll(&p, 1, std::min(Deadline::at_ns(gate.next_deadline_ns()).left_ms(), 10));
        std::vector<Guest> in;
        gate.service(in);
        const std::lock_guard lock(mutex);
        for (Guest &g : in) guests.push_back(std::move(g));
        most_half_open = std::max(most_half_open, gate.half_open());
        last_refused = gate.last_refused();
      }
    });
  }
  ~Doorkeeper() {
    stop = true;
    thread.join();
  }
  template <class F>
  bool eventually(F what) {
    const Deadline deadline(soon());
    while (!deadline.passed()) {
      {
        const std::lock_guard lock(mutex);
        if (what()) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
};

UniqueFd connected(const Doorkeeper &d) {
  UniqueFd fd;
  EXPECT_EQ(connect_tcp(d.address, Deadline(soon()), fd), 0);
  return fd;
}

Status dial_status(int fd, const Bytes16 &key, uint16_t version = kProtocolVersion, double seconds = soon()) {
  try {
    Hello h;
    h.version = version;
    h.role = Role::Data;
    h.index = 5;
    h.count = 6;
    h.process = {4};
    EXPECT_EQ(dial(fd, h, key, "the gate", Deadline(seconds)).process, kProcess);
  } catch (const Error &e) { return {e.code(), e.text()}; }
  return {};
}

TEST(Gate, LetsInWhoeverProvesAKey) {
  for (const char *at : {"127.0.0.1:1", "[::1]:1"}) {
    Doorkeeper d(Gate::UnknownKey::Refuse, at);
    d.gate.add_key(kOther);
    d.gate.add_key(kKey);
    const UniqueFd tcp = connected(d);
    UniqueFd local;
    ASSERT_EQ(connect_unix(d.unix_name, Deadline(soon()), local), 0);
    EXPECT_TRUE(dial_status(tcp.get(), kKey).ok());
    EXPECT_TRUE(dial_status(local.get(), kOther).ok());
    ASSERT_TRUE(d.eventually([&] { return d.guests.size() == 2; }));
    EXPECT_EQ(d.guests[0].key, kKey);
    EXPECT_FALSE(d.guests[0].local);
    EXPECT_EQ(d.guests[0].hello.role, Role::Data);
    EXPECT_EQ(d.guests[0].hello.index, 5u);
    EXPECT_EQ(d.guests[0].hello.count, 6u);
    EXPECT_EQ(d.guests[0].hello.process, Bytes16{4});
    EXPECT_EQ(d.guests[1].key, kOther);
    EXPECT_TRUE(d.guests[1].local);
    // What comes after the handshake is left in the socket.
    ASSERT_EQ(send_all(tcp.get(), as_bytes("next"), Deadline(soon())), Io::Ok);
    std::array<std::byte, 4> next;
    EXPECT_EQ(recv_exact(d.guests[0].fd.get(), next, Deadline(soon())), Io::Ok);
  }
}

TEST(Gate, FindsTheKeyThatAHelloNamesAndTriesNoOther) {
  Gate gate(kProcess, Gate::UnknownKey::Refuse);
  gate.find_keys([](const Hello &h) -> std::optional<Bytes16> {
    if (h.ticket != 0x12345678) return {};
    return kKey;
  });
  UniqueFd listener = listen_tcp(numeric_address("127.0.0.1:1").with_port(0));
  const Address at = local_address(listener.get());
  gate.add_listener(std::move(listener));
  const auto dialed = [&](uint32_t ticket, const Bytes16 &key, std::vector<Guest> &guests) {
    auto code = std::async(std::launch::async, [&] {
      try {
        UniqueFd fd;
        EXPECT_EQ(connect_tcp(at, Deadline(soon()), fd), 0);
        Hello h;
        h.role = Role::Rendezvous;
        h.ticket = ticket;
        dial(fd.get(), h, key, "the gate", Deadline(soon()));
      } catch (const Error &e) { return e.code(); }
      return Code::Ok;
    });
    while (code.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) gate.service(guests);
    gate.service(guests);
    return code.get();
  };
  std::vector<Guest> guests;
  EXPECT_EQ(dialed(0x12345678, kOther, guests), Code::Auth);
  EXPECT_EQ(dialed(0x5678, kKey, guests), Code::Auth);  // all 32 bits of the number count
  EXPECT_TRUE(guests.empty());
  EXPECT_EQ(dialed(0x12345678, kKey, guests), Code::Ok);
  ASSERT_EQ(guests.size(), 1u);
  EXPECT_EQ(guests[0].hello.ticket, 0x12345678u);
}

TEST(Gate, RefusesAWrongKeyAtOnceOrWhenItsTimeIsOver) {
  Doorkeeper strict;
  strict.gate.add_key(kKey);
  bool at_once = false;
  for (int i = 0; i < 5 && !at_once; ++i) {
    const int64_t before = now_ns();
    const UniqueFd a = connected(strict);
    const Status s = dial_status(a.get(), kOther);
    EXPECT_EQ(s.code, Code::Auth);
    EXPECT_TRUE(contains(s.text, "job key")) << s.text;
    at_once = now_ns() - before < kHandshakeNs;  // which the patient one takes
  }
  EXPECT_TRUE(at_once);
  EXPECT_TRUE(strict.eventually([&] { return contains(strict.last_refused, "did not prove the job key"); }));
  EXPECT_TRUE(strict.guests.empty());

  Doorkeeper patient(Gate::UnknownKey::Wait);
  const UniqueFd c = connected(patient);
  auto late = std::async(std::launch::async, [&] { return dial_status(c.get(), kKey); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  patient.gate.add_key(kKey);
  EXPECT_TRUE(late.get().ok());
  const int64_t before = now_ns();
  const UniqueFd b = connected(patient);
  EXPECT_EQ(dial_status(b.get(), kOther).code, Code::Auth);
  EXPECT_GE(now_ns() - before, kHandshakeNs);
}

TEST(Gate, BothEndsLearnWhichVersionsMet) {
  Doorkeeper d;
  d.gate.add_key(kKey);
  const UniqueFd fd = connected(d);
  constexpr uint16_t kNext = kProtocolVersion + 1;
  const Status s = dial_status(fd.get(), kKey, kNext);
  EXPECT_EQ(s.code, Code::Mismatch);
  EXPECT_TRUE(
      contains(s.text, isthmus::formatted("the gate speaks protocol version {}, where this process speaks version {}",
                                          kProtocolVersion, kNext)))
      << s.text;
  ASSERT_TRUE(d.eventually([&] { return d.guests.size() == 1; }));
  EXPECT_EQ(d.guests[0].hello.version, kNext);
}

TEST(Gate, ADialerDoesNotTrustAnAcceptorWithoutTheKey) {
  const UniqueFd listener = listen_tcp(numeric_address("127.0.0.1:1").with_port(0));
  const auto against = [&](std::vector<ByteVector> answers, double seconds = soon()) {
    UniqueFd fd;
    EXPECT_EQ(connect_tcp(local_address(listener.get()), Deadline(soon()), fd), 0);
    std::string from;
    int error = 0;
    const UniqueFd server = accept_client(listener.get(), from, error);
    for (const ByteVector &a : answers) send_all(server.get(), a, Deadline(soon()));
    return dial_status(fd.get(), kKey, kProtocolVersion, seconds);
  };
  const ByteVector challenge = encode(Challenge{});
  ByteVector verdict, ssh;
  Writer(verdict).bytes(as_bytes("ISTH")).number(kProtocolVersion).number(uint16_t{0}).bytes16({});
  Writer(ssh).bytes(as_bytes("SSH-2.0"));
  const Status forged = against({challenge, verdict});
  EXPECT_EQ(forged.code, Code::Auth);
  EXPECT_TRUE(contains(forged.text, "did not prove the job key")) << forged.text;
  const Status foreign = against({ssh});
  EXPECT_EQ(foreign.code, Code::Auth);
  EXPECT_TRUE(contains(foreign.text, "another program")) << foreign.text;
  EXPECT_EQ(against({}, 0.2).code, Code::Timeout);
  EXPECT_EQ(against({challenge}, 0.2).code, Code::Timeout);
}

TEST(Gate, ReadsNoMoreThanItMust) {
  Doorkeeper d;
  d.gate.add_key(kKey);
  const UniqueFd fd = connected(d);
  // A plausible hello, then a flood: the hello and a proof are read, the rest never.
  Hello h;
  h.process = {4};
  ASSERT_EQ(send_all(fd.get(), encode(h), Deadline(soon())), Io::Ok);
  send_all(fd.get(), ByteVector(1 << 20), Deadline(0.3));
  EXPECT_TRUE(d.eventually([&] { return contains(d.last_refused, "did not prove the job key"); }));
  EXPECT_TRUE(d.guests.empty());
}

TEST(Gate, BoundsHalfOpenClientsAndTheirTime) {
  Doorkeeper d;
  d.gate.add_key(kKey);
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < kMaxHalfOpen + 20; ++i) silent.push_back(connected(d));
  EXPECT_TRUE(d.eventually([&] { return d.most_half_open == kMaxHalfOpen; }));
  const UniqueFd honest = connected(d);
  // it waits until the silent ones have had their time
  EXPECT_TRUE(dial_status(honest.get(), kKey).ok());
  const std::lock_guard lock(d.mutex);
  EXPECT_EQ(d.most_half_open, kMaxHalfOpen);
  EXPECT_TRUE(contains(d.last_refused, "within 3 s")) << d.last_refused;
}

TEST(Gate, ServesManyDialersAtOnce) {
  Doorkeeper d;
  d.gate.add_key(kKey);
  std::vector<std::future<Status>> all;
  for (int t = 0; t < 4; ++t)
    all.push_back(std::async(std::launch::async, [&] {
      for (int i = 0; i < 50; ++i) {
        const UniqueFd fd = connected(d);
        if (const Status s = dial_status(fd.get(), kKey); !s.ok()) return s;
      }
      return Status{};
    }));
  for (auto &f : all) {
    const Status s = f.get();
    EXPECT_TRUE(s.ok()) << s.text;
  }
  EXPECT_TRUE(d.eventually([&] { return d.guests.size() == 200; }));
}

// Abstract Unix sockets have no permissions, so the gate itself looks who comes. Only root can become somebody else to try.
TEST(Gate, ShutsTheUnixListenerToOtherUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to connect as another user";
  constexpr uid_t kNobody = 65534;
  Doorkeeper d;
  d.gate.add_key(kKey);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, d.unix_name.data(), d.unix_name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + d.unix_name.size());
  const auto hello = encode(Hello{});
  enum Outcome { kShut = 10, kAnswered, kSilent, kNotNobody, kNotConnected };
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // nothing but system calls: this process had other threads
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(kNotNobody);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr *>(&address), length) != 0) ::_exit(kNotConnected);
    ::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL);
    pollfd p{fd, POLLIN, 0};
    if (::poll(&p, 1, 30'000) != 1) ::_exit(kSilent);
    char byte;
    ::_exit(::recv(fd, &byte, 1, 0) == 1 ? kAnswered : kShut);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotNobody) GTEST_SKIP() << "this root may not become another user";
  EXPECT_EQ(WEXITSTATUS(status), kShut);
  EXPECT_TRUE(d.eventually([&] { return contains(d.last_refused, "it belongs to another user"); })) << d.last_refused;
  EXPECT_TRUE(contains(d.last_refused, isthmus::formatted("user {}", kNobody))) << d.last_refused;
  EXPECT_TRUE(d.guests.empty());
  UniqueFd mine;  // and our own user is still let in
  ASSERT_EQ(connect_unix(d.unix_name, Deadline(soon()), mine), 0);
  EXPECT_TRUE(dial_status(mine.get(), kKey).ok());
}

}  // namespace
}  // namespace isthmus::net
