// Rendezvous among ranks that are threads of this process.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <thread>

#include "bootstrap/rendezvous.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "bootstrap/ticket_wire.hpp"
#include "bootstrap_support.hpp"
#include "net/handshake.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap::testing {
namespace {

const Bytes16 kKey{9, 8, 7};

Blob blob_of(const std::string &text) {
  const auto b = bytes(text);
  return {b.begin(), b.end()};
}

std::string text_of(const Blob &b) { return {reinterpret_cast<const char *>(b.data()), b.size()}; }

struct Outcome {
  std::vector<Blob> blobs;
  Status status;
};

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

Outcome run_rank(const std::string &address, int rank, int world, double seconds = soon(), const Bytes16 &key = kKey,
                 double delay = 0) {
  Outcome o;
  sleep_seconds(delay);
  o.status = error_of([&] {
    const Deadline deadline(seconds);
    const auto exchange = tcp_exchange(address, rank, world, key, Settings(), deadline);
    o.blobs = exchange->all_gather(blob_of("rank " + std::to_string(rank)), deadline);
  });
  return o;
}

// The last of them comes a moment after the others.
std::vector<Outcome> run_ranks(const std::string &address, const std::vector<int> &ranks, int world) {
  std::vector<std::future<Outcome>> all;
  for (size_t i = 0; i < ranks.size(); ++i)
    all.push_back(std::async(std::launch::async, [=] {
      return run_rank(address, ranks[i], world, soon(), kKey, i + 1 == ranks.size() ? 0.2 : 0);
    }));
  std::vector<Outcome> out;
  for (auto &f : all) out.push_back(f.get());
  return out;
}

TEST(TcpExchange, GathersBlobsOfAllSizesInSeveralRounds) {
  for (const char *host : {"127.0.0.1:1", "[::1]:1"}) {
    const std::string address = free_address(host);
    constexpr int kWorld = 5;
    const auto blob = [](int rank, int round) {
      Blob b(round == 2 ? kMaxBlob - static_cast<size_t>(rank) : static_cast<size_t>(rank * round * 1000));
      for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(rank));
      return b;
    };
    std::vector<std::future<void>> all;
    for (int r = 0; r < kWorld; ++r)
      all.push_back(std::async(std::launch::async, [&, r] {
        const Deadline deadline(soon());
        const auto exchange = tcp_exchange(address, r, kWorld, kKey, Settings(), deadline);
        for (int round = 0; round < 5; ++round) {
          const auto got = exchange->all_gather(blob(r, round), deadline);
          ASSERT_EQ(got.size(), static_cast<size_t>(kWorld));
          for (int other = 0; other < kWorld; ++other) EXPECT_EQ(got[static_cast<size_t>(other)], blob(other, round));
        }
      }));
    for (auto &f : all) f.get();
  }
}

TEST(TcpExchange, WorldOfOneNeedsNoNetwork) {
  const auto e = tcp_exchange("127.0.0.1:1", 0, 1, kKey, Settings(), Deadline(1));
  EXPECT_EQ(text_of(e->all_gather(blob_of("me"), Deadline(1)).at(0)), "me");
}

TEST(TcpExchange, ManyRanks) {
  std::vector<int> ranks(48);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  for (const Outcome &o : run_ranks(free_address(), ranks, 48)) {
    ASSERT_TRUE(o.status.ok()) << o.status.text;
    for (size_t r = 0; r < 48; ++r) EXPECT_EQ(text_of(o.blobs[r]), "rank " + std::to_string(r));
  }
}

TEST(TcpExchange, RanksMayComeInAnyOrder) {
  const std::string address = free_address();
  auto early = std::async(std::launch::async, [&] { return run_rank(address, 1, 3); });
  auto root = std::async(std::launch::async, [&] { return run_rank(address, 0, 3, soon(), kKey, 0.3); });
  auto late = std::async(std::launch::async, [&] { return run_rank(address, 2, 3, soon(), kKey, 0.6); });
  for (auto *f : {&early, &root, &late}) {
    const Outcome o = f->get();
    EXPECT_TRUE(o.status.ok()) << o.status.text;
  }
}

TEST(TcpExchange, TheSameAddressServesOneInitAfterAnother) {
  const std::string address = free_address();
  std::vector<std::future<void>> all;
  for (int r = 0; r < 4; ++r)
    all.push_back(std::async(std::launch::async, [&, r] {
      std::unique_ptr<Exchange> last;  // kept a while, as an init that is not quite done would
      for (int init = 0; init < 10; ++init) {
        if (r == 0) last.reset();
        auto exchange = tcp_exchange(address, r, 4, kKey, Settings(), Deadline(soon()));
        for (int round = 0; round < 2; ++round) {
          const std::string mine = std::to_string(init) + "." + std::to_string(round) + "." + std::to_string(r);
          const auto got = exchange->all_gather(blob_of(mine), Deadline(soon()));
          EXPECT_EQ(text_of(got[3]), std::to_string(init) + "." + std::to_string(round) + ".3");
        }
        last = std::move(exchange);
      }
    }));
  for (auto &f : all) f.get();
}

TEST(TcpExchange, DuplicateRanksFailOnAllAndNameBoth) {
  for (const auto &ranks : {std::vector<int>{0, 1, 1}, std::vector<int>{0, 1, 2, 1}}) {
    for (const Outcome &o : run_ranks(free_address(), ranks, 4)) {
      EXPECT_EQ(o.status.code, Code::Mismatch) << o.status.text;
      const std::string one = "rank 1 (process " + std::to_string(::getpid()) + " on host ";
      EXPECT_TRUE(contains(o.status.text, "two processes have rank 1: " + one)) << o.status.text;
      EXPECT_NE(o.status.text.find(one), o.status.text.rfind(one)) << o.status.text;
    }
  }
}

TEST(TcpExchange, TwoRootsFailOnAll) {
  for (const Outcome &o : run_ranks(free_address(), {0, 1, 0}, 3)) {
    EXPECT_EQ(o.status.code, Code::Mismatch) << o.status.text;
    EXPECT_TRUE(contains(o.status.text, "two processes have rank 0")) << o.status.text;
  }
}

// A client with rank, world size and version of its choice.
struct RawClient {
  UniqueFd fd;
  Status status;

  RawClient(const std::string &address, uint32_t rank, uint32_t world, uint16_t version, const Bytes16 &process,
            const Bytes16 &key = kKey) {
    status = error_of([&] {
      const Deadline deadline(soon());
      int error = 0;
      while ((error = net::connect_tcp(net::numeric_address(address), deadline, fd)) != 0 && !deadline.passed())
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ASSERT_EQ(error, 0);
      net::Hello hello;
      hello.version = version;
      hello.role = net::Role::Rendezvous;
      hello.index = rank;
      hello.count = world;
      hello.process = process;
      net::dial(fd.get(), hello, key, "rank 0", deadline);
    });
  }
  void say(const net::ByteVector &message) { net::send_all(fd.get(), message, Deadline(soon())); }
};

TEST(TcpExchange, AProcessTooManyIsRefusedAndTheOthersGoOn) {
  const std::string address = free_address();
  std::promise<void> extra_done, all_joined;
  auto extra_over = extra_done.get_future().share();
  const auto rank = [&](int r) {
    return std::async(std::launch::async, [&, r] {
      return error_of([&] {
        const auto e = tcp_exchange(address, r, 2, kKey, Settings(), Deadline(soon()));
        e->all_gather({}, Deadline(soon()));
        if (r == 1) all_joined.set_value();
        if (r == 1) extra_over.wait();  // rank 0 serves its second round meanwhile
        e->all_gather({}, Deadline(soon()));
      });
    });
  };
  auto zero = rank(0), one = rank(1);
  ASSERT_EQ(all_joined.get_future().wait_for(std::chrono::duration<double>(soon())), std::future_status::ready);
  RawClient extra(address, 1, 2, net::kProtocolVersion, random_bytes16());
  net::ByteVector join;
  append_join(join, {4711, "elsewhere"});
  extra.say(join);
  std::array<std::byte, net::kFrameHeader> header;
  EXPECT_EQ(net::recv_exact(extra.fd.get(), header, Deadline(soon())), net::Io::Ok);
  EXPECT_EQ(header[2], static_cast<std::byte>(Meet::Failure));
  extra_done.set_value();
  EXPECT_TRUE(zero.get().ok());
  EXPECT_TRUE(one.get().ok());
}

TEST(TcpExchange, WorldSizesThatDifferAreNamedOnAll) {
  const std::string address = free_address();
  auto zero = std::async(std::launch::async, [&] { return run_rank(address, 0, 3); });
  auto one = std::async(std::launch::async, [&] { return run_rank(address, 1, 3); });
  auto two = std::async(std::launch::async, [&] { return run_rank(address, 2, 5, soon(), kKey, patient(0.3)); });
  for (auto *f : {&zero, &one, &two}) {
    const Outcome o = f->get();
    EXPECT_EQ(o.status.code, Code::Mismatch) << o.status.text;
    EXPECT_TRUE(contains(o.status.text, "rank 2 (process ") && contains(o.status.text, "world size 5, rank 0 with 3"))
        << o.status.text;
  }
}

const std::string kOurVersion = "version " + std::to_string(net::kProtocolVersion);

TEST(TcpExchange, ProtocolVersionsThatDifferAreNamedOnAll) {
  const std::string address = free_address();
  auto zero = std::async(std::launch::async, [&] { return run_rank(address, 0, 3); });
  auto one = std::async(std::launch::async, [&] { return run_rank(address, 1, 3); });
  sleep_seconds(patient(0.3));  // for the others to come: who comes long after a failure hears of it no more
  const RawClient two(address, 2, 3, 77, random_bytes16());
  EXPECT_EQ(two.status.code, Code::Mismatch);
  EXPECT_TRUE(contains(two.status.text, kOurVersion) && contains(two.status.text, "version 77")) << two.status.text;
  for (auto *f : {&zero, &one}) {
    const Outcome o = f->get();
    EXPECT_EQ(o.status.code, Code::Mismatch) << o.status.text;
    EXPECT_TRUE(contains(o.status.text, "rank 2 at 127.0.0.1:") && contains(o.status.text, "speaks protocol version 77"))
        << o.status.text;
  }
}

TEST(TcpExchange, AVersionThatIsNotProvedHarmsNobody) {
  const std::string address = free_address();
  auto zero = std::async(std::launch::async, [&] { return run_rank(address, 0, 2); });
  const RawClient foreign(address, 1, 2, 77, random_bytes16(), Bytes16{1});
  EXPECT_EQ(foreign.status.code, Code::Auth);
  const Outcome one = run_rank(address, 1, 2);
  EXPECT_TRUE(one.status.ok()) << one.status.text;
  EXPECT_TRUE(zero.get().status.ok());
}

TEST(TcpExchange, ForeignClientsAreRefusedAndTheRanksMeet) {
  const std::string address = free_address();
  auto zero = std::async(std::launch::async, [&] { return run_rank(address, 0, 2); });
  const net::Address port = net::numeric_address(address);
  std::vector<UniqueFd> clients;
  for (const char *text : {"", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01", "ISTH", "X"}) {
    UniqueFd fd;
    ASSERT_TRUE(eventually([&] { return net::connect_tcp(port, Deadline(soon()), fd) == 0; }));
    net::send_all(fd.get(), bytes(text), Deadline(soon()));
    clients.push_back(std::move(fd));
  }
  UniqueFd large;
  ASSERT_EQ(net::connect_tcp(port, Deadline(soon()), large), 0);
  net::send_all(large.get(), bytes(std::string(1 << 20, 'Z')), Deadline(0.3));
  const RawClient wrong_key(address, 1, 2, net::kProtocolVersion, random_bytes16(), Bytes16{1, 1});
  EXPECT_EQ(wrong_key.status.code, Code::Auth);
  sleep_seconds(0.1);
  const Outcome one = run_rank(address, 1, 2);
  EXPECT_TRUE(one.status.ok()) << one.status.text;
  EXPECT_TRUE(zero.get().status.ok());
}

TEST(TcpExchange, AMemberThatSendsGarbageIsNamed) {
  const std::string address = free_address();
  auto zero = std::async(std::launch::async, [&] { return run_rank(address, 0, 3); });
  RawClient one(address, 1, 3, net::kProtocolVersion, random_bytes16());
  net::ByteVector message;
  append_join(message, {4711, "somewhere"});
  net::append_frame(message, 99, bytes("?"));
  one.say(message);
  const Outcome o = zero.get();
  EXPECT_EQ(o.status.code, Code::Mismatch);
  EXPECT_TRUE(contains(o.status.text, "rank 1 (process 4711 on host somewhere") && contains(o.status.text, "type 99"))
      << o.status.text;
}

TEST(TcpExchange, AMemberThatLeavesIsNamedOnAllOthers) {
  const std::string address = free_address();
  const auto rank = [&](int r) { return std::async(std::launch::async, [&, r] { return run_rank(address, r, 4); }); };
  auto zero = rank(0), two = rank(2);  // rank 3 is still to come
  {
    RawClient one(address, 1, 4, net::kProtocolVersion, random_bytes16());
    net::ByteVector message;
    append_join(message, {4711, "somewhere"});
    append_contribution(message, 0, {});
    one.say(message);
    sleep_seconds(patient(0.5));  // for rank 2 to come: who comes long after a failure hears of it no more
  }
  for (auto *f : {&zero, &two}) {
    const Outcome o = f->get();
    EXPECT_EQ(o.status.code, Code::PeerLost) << o.status.text;
    EXPECT_TRUE(contains(o.status.text, "rank 1 (process 4711 on host somewhere")) << o.status.text;
  }
}

// The rank's meeting, behind the first round.
auto behind_a_round(const std::string &address, int rank, int world) {
  auto e = tcp_exchange(address, rank, world, kKey, Settings(), Deadline(soon()));
  e->all_gather({}, Deadline(soon()));
  return e;
}

TEST(TcpExchange, WhoWaitsElsewhereHearsBetweenTheRoundsThatAnotherRankHasLeft) {
  const std::string address = free_address();
  const auto met = [&](int rank) { return behind_a_round(address, rank, 3); };
  const auto rank = [&](auto work) { return std::async(std::launch::async, [work] { return error_of(work); }); };
  auto zero = rank([&] { met(0)->all_gather({}, Deadline(soon())); });
  auto one = rank([&] {
    const auto e = met(1);
    Status heard;
    EXPECT_TRUE(eventually([&] {
      heard = error_of([&] { e->look(); });
      return !heard.ok();
    }));
    EXPECT_EQ(error_of([&] { e->all_gather({}, Deadline(soon())); }).text, heard.text);
    throw Error(heard);
  });
  auto two = rank([&] { met(2); });
  EXPECT_TRUE(two.get().ok());
  for (auto *f : {&zero, &one}) {
    const Status s = f->get();
    EXPECT_EQ(s.code, Code::PeerLost);
    EXPECT_TRUE(s.text.starts_with("rank 2 (process ")) << s.text;
  }
}

TEST(TcpExchange, ARootThatWaitsElsewhereHearsAtOnceWhyTheOnlyOtherRankHasGivenUp) {
  const std::string address = free_address();
  const auto met = [&](int rank) { return behind_a_round(address, rank, 2); };
  auto one = std::async(std::launch::async, [&] {
    return error_of([&] {
      const auto e = met(1);
      e->give_reason({Code::Config, "it listens where nobody comes"});
      e->all_gather({}, Deadline(0.0));
    });
  });
  const auto zero = met(0);
  Status heard;
  EXPECT_TRUE(eventually([&] {
    heard = error_of([&] { zero->look(); });
    return !heard.ok();
  }));
  EXPECT_EQ(heard.code, Code::Config);
  EXPECT_EQ(heard.text, "rank 1 gave up: it listens where nobody comes");
  EXPECT_FALSE(one.get().ok());
}

TEST(TcpExchange, OfTwoThatGaveUpAndLeftBeforeTheRootCameOneReasonIsTold) {
  const std::string address = free_address();
  const auto met = [&](int rank) { return behind_a_round(address, rank, 4); };
  const auto begun = [](auto work) { return std::async(std::launch::async, work); };
  const auto gives_up = [&](int rank) {
    return begun([&met, rank] {
      return error_of([&] {
        const auto e = met(rank);
        e->give_reason({Code::Config, "a library is missing"});
        e->all_gather({}, Deadline(0.0));
      });
    });
  };
  auto one = gives_up(1), two = gives_up(2);
  auto three = begun([&] { return met(3); });  // it does not come to the second round
  const auto zero = met(0);
  one.wait();
  two.wait();
  const Status heard = error_of([&] { zero->all_gather({}, Deadline(soon())); });
  EXPECT_EQ(heard.code, Code::Config) << heard.text;
  EXPECT_TRUE(heard.text.ends_with(" gave up: a library is missing")) << heard.text;
}

TEST(TcpExchange, RootTakesAPortThatIsJustBeingGivenUp) {
  auto before = std::make_unique<UniqueFd>(net::listen_tcp(net::numeric_address("127.0.0.1:1").with_port(0)));
  const std::string address = net::local_address(before->get()).text();
  auto zero = std::async(std::launch::async, [&] { return run_rank(address, 0, 2); });
  auto one = std::async(std::launch::async, [&] { return run_rank(address, 1, 2); });
  sleep_seconds(0.3);
  before.reset();
  EXPECT_TRUE(zero.get().status.ok());
  EXPECT_TRUE(one.get().status.ok());
}

TEST(TcpExchange, BadArgumentsAreNamed) {
  const auto status = [](const char *address, int rank, int world) {
    return error_of([&] { tcp_exchange(address, rank, world, kKey, Settings(), Deadline(1)); });
  };
  EXPECT_TRUE(contains(status("127.0.0.1:1", 4, 4).text, "rank 4 is outside 0 to 3 (world size 4)"));
  EXPECT_TRUE(contains(status("127.0.0.1:1", -1, 4).text, "rank -1"));
  EXPECT_TRUE(contains(status("127.0.0.1:1", 0, 0).text, "world size 0"));
  for (const char *bad : {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "::1:5", "[::1]"}) {
    const Status s = status(bad, 0, 2);
    EXPECT_EQ(s.code, Code::Argument) << bad;
    EXPECT_TRUE(contains(s.text, "expected host:port")) << s.text;
  }
  EXPECT_EQ(status("203.0.113.7:29501", 0, 2).code, Code::Config);  // not an address of this host
  EXPECT_EQ(status("no-such-host.invalid:29501", 0, 2).code, Code::System);
  const auto e = tcp_exchange("127.0.0.1:1", 0, 1, kKey, Settings(), Deadline(1));
  EXPECT_EQ(error_of([&] { e->all_gather(Blob(kMaxBlob + 1), Deadline(1)); }).code, Code::Argument);
}

TEST(TcpExchange, APortInUseIsSaidToBeInUseAlsoWhereTheAddressLeadsHereByATranslation) {
  Settings settings;
  settings.set("ISTHMUS_INTERFACE", "127.0.0.1");
  UniqueFd others;
  ASSERT_EQ(net::try_listen_tcp(net::numeric_address(free_address()), others), 0);
  const std::string translated = formatted("203.0.113.7:{}", net::local_address(others.get()).port());
  const Status s = error_of([&] { tcp_exchange(translated, 0, 2, kKey, settings, Deadline(0.2)); });
  EXPECT_EQ(s.code, Code::System) << s.text;
  EXPECT_TRUE(contains(s.text, net::local_address(others.get()).text() + " is in use by another program")) << s.text;
}

TEST(UniqueIdExchange, BringsTogetherWhoHoldsTheId) {
  Settings settings;
  settings.apply("ISTHMUS_INTERFACE=lo");
  std::array<std::byte, 128> id;
  create_unique_id(settings, id);
  std::vector<std::future<void>> all;
  for (int r = 0; r < 3; ++r)
    all.push_back(std::async(std::launch::async, [&, r] {
      const auto e = id_exchange(id, r, 3, settings, Deadline(soon()));
      EXPECT_EQ(text_of(e->all_gather(blob_of(std::to_string(r)), Deadline(soon())).at(2)), "2");
    }));
  for (auto &f : all) f.get();
  const Status again = error_of([&] { id_exchange(id, 0, 3, settings, Deadline(1)); });
  EXPECT_EQ(again.code, Code::Argument);
  EXPECT_TRUE(contains(again.text, "used before")) << again.text;
}

// A range of one port, at which nobody listens on 127.0.0.1 now.
std::string one_free_port() {
  const uint16_t port = net::numeric_address(free_address()).port();
  return formatted("{}-{}", port, port);
}

TEST(UniqueIdExchange, AnIdAndATicketTakePortsOfTheRangeAndSayWhenItIsUsedUp) {
  Settings settings;
  settings.set("ISTHMUS_INTERFACE", "127.0.0.1");
  settings.set("ISTHMUS_PORTS", one_free_port());
  std::array<std::byte, 128> id;
  create_unique_id(settings, id);
  UniqueFd connected;
  const auto at = net::numeric_address("127.0.0.1:1").with_port(settings.ports(Setting::Ports).first);
  EXPECT_EQ(net::connect_tcp(at, Deadline(soon()), connected), 0);
  std::array<std::byte, kTicketBytes> ticket{};
  for (const Status &s :
       {error_of([&] { create_unique_id(settings, id); }), error_of([&] { create_ticket(settings, ticket); })}) {
    EXPECT_EQ(s.code, Code::Resource) << s.text;
    EXPECT_TRUE(contains(s.text, "ISTHMUS_PORTS=" + settings.text(Setting::Ports))) << s.text;
  }
  settings.set("ISTHMUS_PORTS", one_free_port());
  for (int all_of_one_port = 0; all_of_one_port < 3; ++all_of_one_port) create_ticket(settings, ticket);
}

TEST(UniqueIdExchange, RefusesIdsThatAreDamagedOrOfAnotherVersion) {
  std::array<std::byte, 128> id;
  create_unique_id(Settings(), id);
  for (const size_t at : {size_t{0}, size_t{20}, size_t{40}, size_t{127}}) {
    auto bad = id;
    bad[at] ^= std::byte{1};
    EXPECT_EQ(error_of([&] { id_exchange(bad, 1, 2, Settings(), Deadline(1)); }).code, Code::Argument) << at;
  }
  auto other = id;
  other[8] = std::byte{99};
  const Status s = error_of([&] { id_exchange(other, 1, 2, Settings(), Deadline(1)); });
  EXPECT_EQ(s.code, Code::Mismatch);
  EXPECT_TRUE(contains(s.text, "version 99") && contains(s.text, kOurVersion)) << s.text;
}

// The caller's own all-gather, as a barrier among threads.
struct Meeting {
  int world;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::byte> all;
  int arrived = 0, left = 0;
  int calls = 0;

  void gather(int rank, const void *send, void *recv, size_t n) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return left == 0; });
    if (arrived == 0) {
      all.assign(n * static_cast<size_t>(world), {});
      ++calls;
    }
    std::memcpy(all.data() + n * static_cast<size_t>(rank), send, n);
    if (++arrived == world) {
      left = world;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return left > 0; });
    std::memcpy(recv, all.data(), all.size());
    if (--left == 0) {
      arrived = 0;
      changed.notify_all();
    }
  }
};
struct Seat {
  Meeting *meeting;
  int rank;
};
int gather(void *context, const void *send, void *recv, size_t n) {
  const Seat *s = static_cast<Seat *>(context);
  s->meeting->gather(s->rank, send, recv, n);
  return 0;
}

TEST(CallbackExchange, GathersBlobsOfDifferentSizes) {
  Meeting meeting{4, {}, {}, {}, 0, 0, 0};
  std::vector<std::future<void>> all;
  for (int r = 0; r < 4; ++r)
    all.push_back(std::async(std::launch::async, [&, r] {
      Seat seat{&meeting, r};
      const auto e = callback_exchange(gather, &seat, r, 4);
      for (int round = 0; round < 3; ++round) {
        const auto got = e->all_gather(blob_of(std::string(static_cast<size_t>(r * round), 'a')), Deadline(soon()));
        for (size_t o = 0; o < 4; ++o) EXPECT_EQ(got[o].size(), o * static_cast<size_t>(round));
      }
    }));
  for (auto &f : all) f.get();
  EXPECT_EQ(meeting.calls, 5);  // sizes each round, blobs where there are any
}

TEST(CallbackExchange, NamesRanksThatDisagree) {
  const auto run = [](std::vector<std::pair<int, int>> rank_world) {  // what each seat believes
    Meeting meeting{static_cast<int>(rank_world.size()), {}, {}, {}, 0, 0, 0};
    std::vector<std::future<Status>> all;
    for (size_t place = 0; place < rank_world.size(); ++place)
      all.push_back(std::async(std::launch::async, [&, place] {
        Seat seat{&meeting, static_cast<int>(place)};
        return error_of([&] {
          callback_exchange(gather, &seat, rank_world[place].first, rank_world[place].second)
              ->all_gather({}, Deadline(soon()));
        });
      }));
    std::vector<Status> out;
    for (auto &f : all) out.push_back(f.get());
    return out;
  };
  for (const Status &s : run({{0, 2}, {0, 2}})) {
    EXPECT_EQ(s.code, Code::Mismatch);
    EXPECT_TRUE(contains(s.text, "place 1 of the exchange says it is rank 0")) << s.text;
  }
  const auto failing = [](void *, const void *, void *, size_t) { return 3; };
  const Status s = error_of([&] { callback_exchange(failing, nullptr, 0, 2)->all_gather({}, Deadline(1)); });
  EXPECT_EQ(s.code, Code::System);
  EXPECT_TRUE(contains(s.text, "failed (3)")) << s.text;
  const auto foreign = [](void *, const void *send, void *recv, size_t n) {
    std::memcpy(recv, send, n);
    auto *two = static_cast<std::byte *>(recv) + n;
    std::memcpy(two, send, n);
    two[4] = std::byte{99};  // version
    return 0;
  };
  const Status v = error_of([&] { callback_exchange(foreign, nullptr, 0, 2)->all_gather({}, Deadline(1)); });
  EXPECT_TRUE(contains(v.text, "rank 1 speaks protocol version 99, rank 0 speaks " + kOurVersion)) << v.text;
  EXPECT_EQ(error_of([] { callback_exchange(nullptr, nullptr, 0, 2); }).code, Code::Argument);
}

TEST(CallbackExchange, TellsTheCallersFunctionThatWaitingIsInVain) {
  EXPECT_TRUE(watched_exchange().ok());  // no exchange at all
  std::vector<Status> heard;
  const auto asks = [](void *to, const void *, void *, size_t) {
    static_cast<std::vector<Status> *>(to)->push_back(watched_exchange());
    return 3;
  };
  const auto e = callback_exchange(asks, &heard, 0, 2);
  EXPECT_EQ(error_of([&] { e->all_gather({}, Deadline(1)); }).code, Code::System);
  e->watch([] { return Status{Code::PeerLost, "rank 1 is gone"}; });
  const Status s = error_of([&] { e->all_gather({}, Deadline(1)); });
  EXPECT_EQ(s.code, Code::PeerLost);
  EXPECT_EQ(s.text, "rank 1 is gone");
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_TRUE(heard[0].ok());  // nobody watches yet
  EXPECT_EQ(heard[1].code, Code::PeerLost);
  EXPECT_TRUE(watched_exchange().ok());
}

TEST(JobKey, ThatDiffersWithinOneJobIsSaidAtOnceAndHarmsNobodyElse) {
  const std::string address = free_address();
  const Bytes16 job{7, 7};
  const auto rank = [&](int r, const Bytes16 &key, const Bytes16 &name, double seconds) {
    return error_of([&] {
      const Deadline deadline(seconds);
      tcp_exchange(address, r, 2, key, Settings(), deadline, name)->all_gather({}, deadline);
    });
  };
  auto zero = std::async(std::launch::async, [&] { return rank(0, kKey, job, soon()); });
  constexpr int64_t kGraceNs = 5'000'000'000;  // which a rank of another job has
  bool at_once = false;
  for (int i = 0; i < 5 && !at_once; ++i) {
    const int64_t before = now_ns();
    const Status other = rank(1, Bytes16{5}, job, soon());
    at_once = now_ns() - before < kGraceNs;
    EXPECT_EQ(other.code, Code::Auth);
    EXPECT_EQ(other.text.find("rank 1: rank 0 at " + address + " has another ISTHMUS_JOB_KEY than this rank;"), 0u)
        << other.text;
  }
  EXPECT_TRUE(at_once);
  const Status foreign = rank(1, Bytes16{5}, Bytes16{8}, soon());
  EXPECT_EQ(foreign.code, Code::Auth);
  EXPECT_EQ(foreign.text.find("rank 1: rank 0 at " + address + " does not know our job key;"), 0u) << foreign.text;
  EXPECT_TRUE(rank(1, kKey, job, soon()).ok());
  EXPECT_TRUE(zero.get().ok());
}

TEST(JobKey, IsNotTheNameOfTheJob) {
  const Settings s;
  const std::vector<std::string> parts{"job 1", "host:1"}, others{"job 1h", "ost:1"};
  EXPECT_EQ(job_name(parts), job_name(parts));
  EXPECT_NE(job_name(parts), job_name(others));
  EXPECT_NE(job_name(parts), derive_key(s, parts));
  EXPECT_NE(job_name(parts), Bytes16{});
}

TEST(JobKey, IsTheGivenOneOrDerived) {
  Settings s;
  const std::vector<std::string> parts{"job 1", "host:1"}, others{"job 1h", "ost:1"};
  EXPECT_EQ(derive_key(s, parts), derive_key(s, parts));
  EXPECT_NE(derive_key(s, parts), derive_key(s, others));
  s.apply("ISTHMUS_JOB_KEY=000102030405060708090a0B0c0d0e0F");
  EXPECT_EQ(hex(derive_key(s, parts)), "000102030405060708090a0b0c0d0e0f");
  for (const char *bad : {"12", "000102030405060708090a0b0c0d0e0g", "000102030405060708090a0b0c0d0e0f0"}) {
    s.set("ISTHMUS_JOB_KEY", bad);
    const Status e = error_of([&] { derive_key(s, parts); });
    EXPECT_EQ(e.code, Code::Config);
    EXPECT_FALSE(contains(e.text, bad)) << "the key itself is not for error texts";
  }
}

// ---- tickets -------------------------------------------------------------------------------------------------------------------------

using TicketBytes = std::array<std::byte, kTicketBytes>;
TicketBytes new_ticket() {
  Settings settings;
  settings.set("ISTHMUS_INTERFACE", "lo");
  TicketBytes ticket{};
  create_ticket(settings, ticket);
  return ticket;
}

struct Met {
  std::vector<Blob> blobs, came;
  Status status;
};
Met meet(const TicketBytes &ticket, int rank, int world, double seconds, int rounds) {
  Met met;
  std::unique_ptr<Exchange> exchange;
  met.status = error_of([&] {
    const Deadline deadline(seconds);
    exchange = ticket_exchange(ticket, rank, world);
    for (int round = 0; round < rounds; ++round)
      met.blobs = exchange->all_gather(blob_of(std::to_string(rank) + "/" + std::to_string(round)), deadline);
  });
  if (exchange) met.came = exchange->came();
  return met;
}
std::vector<Met> meet_all(const TicketBytes &ticket, const std::vector<int> &ranks, int world, double seconds,
                          int rounds = 1) {
  std::vector<std::future<Met>> all;
  for (const int r : ranks)
    all.push_back(std::async(std::launch::async, [&, r] { return meet(ticket, r, world, seconds, rounds); }));
  std::vector<Met> out;
  for (auto &f : all) out.push_back(f.get());
  return out;
}

TEST(Ticket, IsServedForRanksOfWhichNoneServes) {
  for (const int world : {1, 2, 7}) {
    std::vector<int> ranks;
    for (int r = world - 1; r >= 0; --r) ranks.push_back(r);
    for (const Met &met : meet_all(new_ticket(), ranks, world, soon(), 3)) {
      EXPECT_TRUE(met.status.ok()) << met.status.text;
      ASSERT_EQ(met.blobs.size(), static_cast<size_t>(world));
      for (int r = 0; r < world; ++r) EXPECT_EQ(text_of(met.blobs[static_cast<size_t>(r)]), std::to_string(r) + "/2");
    }
  }
}

TEST(Ticket, RefusesTwoOfOneRankAndRanksOfAnotherWorld) {
  for (const Met &met : meet_all(new_ticket(), {1, 1}, 3, soon())) {
    EXPECT_EQ(met.status.code, Code::Mismatch) << met.status.text;
    EXPECT_TRUE(contains(met.status.text, "two processes have rank 1")) << met.status.text;
  }
  const TicketBytes ticket = new_ticket();
  auto two = std::async(std::launch::async, [&] { return meet(ticket, 0, 2, soon(), 1); });
  const Met three = meet(ticket, 1, 3, soon(), 1);
  EXPECT_EQ(two.get().status.code, Code::Mismatch);
  EXPECT_EQ(three.status.code, Code::Mismatch);
  EXPECT_TRUE(contains(three.status.text, "give all ranks the same")) << three.status.text;
}

TEST(Ticket, SaysWhoLeftWhileTheOthersWait) {
  const TicketBytes ticket = new_ticket();
  auto first = std::async(std::launch::async, [&] { return meet(ticket, 0, 2, soon(), 2); });
  const Met second = meet(ticket, 1, 2, soon(), 1);  // one round, and it leaves
  EXPECT_TRUE(second.status.ok()) << second.status.text;
  const Met left = first.get();
  EXPECT_EQ(left.status.code, Code::PeerLost) << left.status.text;
  EXPECT_TRUE(contains(left.status.text, "rank 1 ")) << left.status.text;
}

TEST(Ticket, IsNothingElse) {
  TicketBytes ticket = new_ticket();
  ticket[40] ^= std::byte{1};
  EXPECT_EQ(meet(ticket, 0, 2, 1, 1).status.code, Code::Argument);
  EXPECT_EQ(meet(TicketBytes{}, 0, 2, 1, 1).status.code, Code::Argument);
}

// ---- deadlines that pass -------------------------------------------------------------------------------------------------------------

template <class F>
auto begun(F f) {
  return std::async(std::launch::async, std::move(f));
}
constexpr double kLate = 3;   // what must happen before a deadline has so long
constexpr double kWaits = 7;  // how long those that came wait for the others

struct Alike {
  Status status;
  std::vector<Blob> blobs;
  int64_t begun_ns = 0, ended_ns = 0;
};
// Ranks of four, each with what it says and after how long. Those whose first byte is the same wait no longer than kWaits for the others.
std::vector<Alike> meet_alike(const std::vector<std::pair<std::string, double>> &ranks) {
  const TicketBytes ticket = new_ticket();
  std::vector<std::future<Alike>> all;
  for (size_t r = 0; r < ranks.size(); ++r)
    all.push_back(begun([&, r] {
      sleep_seconds(ranks[r].second);
      Alike one;
      one.begun_ns = now_ns();
      one.status = error_of([&] {
        const auto exchange = ticket_exchange(ticket, static_cast<int>(r), 4);
        exchange->be_patient({1, seconds_to_ns(patient(kWaits))});
        one.blobs = exchange->all_gather(blob_of(ranks[r].first), Deadline(2 * soon()));
      });
      one.ended_ns = now_ns();
      return one;
    }));
  std::vector<Alike> out;
  for (auto &f : all) out.push_back(f.get());
  return out;
}

// All wait at the same time, each for a test of its own.
struct Waiting {
  const std::string address_of_missing = free_address(), address_of_root = free_address();
  std::future<Outcome> missing_root = begun([this] { return run_rank(address_of_missing, 0, 4, patient(kLate)); });
  std::future<Outcome> missing_other = begun([this] { return run_rank(address_of_missing, 1, 4); });

  std::future<std::array<Outcome, 2>> first_gives_up = begun([] {
    const std::string address = free_address();
    auto root = begun([&] { return run_rank(address, 0, 3); });
    auto first = run_rank(address, 1, 3, patient(kLate));
    return std::array{root.get(), std::move(first)};
  });

  std::future<Outcome> no_root = begun([this] { return run_rank(address_of_root, 2, 3, 0.4); });

  std::future<std::array<Status, 2>> silent_later = begun([] {
    const std::string address = free_address();
    std::promise<void> over;
    auto silent = begun([&, done = over.get_future().share()] {
      const auto e = tcp_exchange(address, 1, 3, kKey, Settings(), Deadline(soon()));
      e->all_gather({}, Deadline(soon()));
      done.wait();
    });
    const auto two_rounds = [&](int rank, double seconds) {
      return error_of([&] {
        const auto e = tcp_exchange(address, rank, 3, kKey, Settings(), Deadline(soon()));
        e->all_gather({}, Deadline(soon()));
        e->all_gather({}, Deadline(seconds));
      });
    };
    auto other = begun([&] { return two_rounds(2, soon()); });
    const Status root = two_rounds(0, patient(kLate)), two = other.get();
    over.set_value();
    silent.get();
    return std::array{root, two};
  });

  // Rank 1 comes to the second round at its deadline, for it has waited for somebody. The others: how it ended.
  std::future<std::array<Status, 2>> late_for_a_reason = begun([] {
    const std::string address = free_address();
    const auto met = [&](int rank) {
      auto e = tcp_exchange(address, rank, 3, kKey, Settings(), Deadline(soon()));
      e->all_gather({}, Deadline(soon()));
      return e;
    };
    auto root = begun([&] { return error_of([&] { met(0)->all_gather({}, Deadline(soon())); }); });
    auto late = begun([&] {
      return error_of([&] {
        const auto e = met(1);
        e->give_reason({Code::Config, "it could not reach its neighbour"});
        e->all_gather({}, Deadline(0.0));
      });
    });
    const auto innocent = met(2);
    return std::array{root.get(), late.get()};
  });

  // Rank 0 comes to the second round when all others have, and the deadline of one of them has passed.
  std::future<std::array<Status, 3>> root_comes_late = begun([] {
    const std::string address = free_address();
    const auto rank = [&](int r, double after, double seconds) {
      return begun([&address, r, after, seconds] {
        return error_of([&] {
          const auto e = tcp_exchange(address, r, 3, kKey, Settings(), Deadline(soon()));
          e->all_gather({}, Deadline(soon()));
          sleep_seconds(after);
          e->all_gather({}, Deadline(seconds));
        });
      });
    };
    auto zero = rank(0, 1.5, soon()), one = rank(1, 0, 0.2), two = rank(2, 0.5, soon());
    return std::array{zero.get(), one.get(), two.get()};
  });

  std::future<std::array<Outcome, 2>> another_key = begun([] {
    const std::string address = free_address();
    auto zero = begun([&] { return run_rank(address, 0, 2, patient(3 * kLate)); });
    auto one = run_rank(address, 1, 2, soon(), Bytes16{5});  // it ends by itself
    return std::array{zero.get(), std::move(one)};
  });

  const UniqueFd foreign = net::listen_tcp(net::numeric_address("127.0.0.1:1").with_port(0));
  const std::string address_of_foreign = net::local_address(foreign.get()).text();
  std::future<std::array<Outcome, 2>> another_program = begun([this] {
    std::atomic<bool> stop{false};
    std::thread server([&] {
      while (!stop) {
        std::string from;
        int error = 0;
        const UniqueFd fd = net::accept_client(foreign.get(), from, error);
        if (fd) net::send_all(fd.get(), bytes("SSH-2.0-OpenSSH_9.2\r\n"), Deadline(soon()));
        sleep_seconds(0.005);
      }
    });
    auto zero = begun([this] { return run_rank(address_of_foreign, 0, 2, 0.5); });
    auto one = run_rank(address_of_foreign, 1, 2, soon());  // it ends by itself
    std::array both{zero.get(), std::move(one)};
    stop = true;
    server.join();
    return both;
  });

  // Somebody else listens at the first address, and answers nothing.
  std::vector<Blob> heard_at_next;
  std::future<Status> next_address = begun([this] {
    Settings settings;
    settings.set("ISTHMUS_INTERFACE", "lo");
    std::vector<UniqueFd> others;
    EXPECT_EQ(listen_all(reachable_addresses(settings.text(Setting::Interface)), others), 0);
    TicketBytes bytes = new_ticket();
    Ticket ticket = unpack_ticket(bytes);
    ticket.addresses.insert(ticket.addresses.begin(), net::local_address(others[0].get()));
    pack_ticket(ticket, bytes);
    return error_of([&] { heard_at_next = ticket_exchange(bytes, 0, 1)->all_gather(blob_of("here"), Deadline(soon())); });
  });

  std::future<std::vector<Met>> ticket_missing = begun([] {
    const TicketBytes ticket = new_ticket();
    auto two = begun([&] { return meet(ticket, 2, 4, soon(), 1); });
    std::vector<Met> all{meet(ticket, 0, 4, patient(kLate), 1)};
    all.push_back(two.get());
    return all;
  });
  std::future<std::vector<Alike>> alike = begun([] { return meet_alike({{"ab", 0}, {"ac", 0.2}, {"ad", 0.4}}); });
  std::future<std::vector<Alike>> not_alike = begun([] {
    return meet_alike({{"ab", 0}, {"bb", 0}, {"ad", 0}, {"ab", patient(kWaits) + 0.5}});
  });

  std::future<std::vector<Met>> after_it = begun([] {
    const TicketBytes ticket = new_ticket();
    std::vector<Met> all = meet_all(ticket, {0, 1}, 2, soon());
    all.push_back(meet(ticket, 1, 2, 2 * soon(), 1));
    return all;
  });
};

class Deadlines : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { all_ = std::make_unique<Waiting>(); }
  static void TearDownTestSuite() { all_.reset(); }
  static inline std::unique_ptr<Waiting> all_;
};

TEST_F(Deadlines, NameTheMissingRanksOnAllOthers) {
  for (auto *rank : {&all_->missing_root, &all_->missing_other}) {
    const Outcome o = rank->get();
    EXPECT_EQ(o.status.code, Code::Timeout);
    EXPECT_TRUE(contains(o.status.text, "rank 2 and rank 3 of 4 did not arrive within ")) << o.status.text;
    EXPECT_TRUE(contains(o.status.text, " s at " + all_->address_of_missing +
                                            "; check that they were started with the same address and world size"))
        << o.status.text;
  }
}

TEST_F(Deadlines, OfARankBeforeThatOfTheRootNameTheMissingToo) {
  const auto [root, first] = all_->first_gives_up.get();
  EXPECT_EQ(first.status.code, Code::Timeout);
  EXPECT_TRUE(contains(first.status.text, "rank 2 of 3 did not arrive")) << first.status.text;
  EXPECT_TRUE(contains(root.status.text, "rank 2 of 3 did not arrive") && contains(root.status.text, "rank 1 gave up first"))
      << root.status.text;
}

TEST_F(Deadlines, NameTheMissingRoot) {
  const Outcome o = all_->no_root.get();
  EXPECT_EQ(o.status.code, Code::Timeout);
  EXPECT_TRUE(contains(o.status.text, "rank 0 of 3 did not appear within 0.4 s at " + all_->address_of_root))
      << o.status.text;
  EXPECT_TRUE(contains(o.status.text, "Connection refused")) << o.status.text;
}

TEST_F(Deadlines, NameARankThatDoesNotTakePartInALaterRound) {
  for (const Status &s : all_->silent_later.get()) {
    EXPECT_EQ(s.code, Code::Timeout);
    EXPECT_TRUE(contains(s.text, "rank 1 of 3 did not take part in exchange 1")) << s.text;
  }
}

TEST_F(Deadlines, OfARankThatIsLateForAReasonGiveThatReasonAndAccuseNobodyElse) {
  for (const Status &s : all_->late_for_a_reason.get()) {
    EXPECT_EQ(s.code, Code::Config);
    EXPECT_EQ(s.text, "rank 1 gave up: it could not reach its neighbour");
  }
}

TEST_F(Deadlines, ThatPassWhileRankZeroIsLateEndNothingWhereAllOthersHaveCome) {
  for (const Status &s : all_->root_comes_late.get()) EXPECT_TRUE(s.ok()) << s.text;
}

TEST_F(Deadlines, OfARankWithAnotherKeyAreAuthErrors) {
  const auto [zero, one] = all_->another_key.get();
  EXPECT_EQ(one.status.code, Code::Auth) << one.status.text;
  EXPECT_TRUE(contains(one.status.text, "rank 1: ") && contains(one.status.text, "job key")) << one.status.text;
  EXPECT_EQ(zero.status.code, Code::Timeout);
  EXPECT_EQ(zero.status.text.find("rank 1 has another ISTHMUS_JOB_KEY than rank 0, or is of another job: "), 0u)
      << zero.status.text;
  EXPECT_TRUE(contains(zero.status.text, "rank 1 of 2 did not arrive") &&
              contains(zero.status.text, "did not prove the job key"))
      << zero.status.text;
}

TEST_F(Deadlines, AreNotSpentOnAnotherProgramAtTheAddressWhichIsNamed) {
  const auto [zero, one] = all_->another_program.get();
  EXPECT_EQ(one.status.code, Code::Auth) << one.status.text;
  EXPECT_TRUE(contains(one.status.text, "another program")) << one.status.text;
  EXPECT_EQ(zero.status.code, Code::System) << zero.status.text;
  EXPECT_TRUE(contains(zero.status.text, all_->address_of_foreign + " is in use")) << zero.status.text;
}

TEST_F(Deadlines, AreNotSpentOnAnAddressOfSomebodyElseWhereATicketHasMore) {
  const Status s = all_->next_address.get();
  EXPECT_TRUE(s.ok()) << s.text;
  ASSERT_EQ(all_->heard_at_next.size(), 1u);
  EXPECT_EQ(text_of(all_->heard_at_next[0]), "here");
}

TEST_F(Deadlines, OfATicketTellThoseThatCameWhoDidNotAndWhatTheOthersBrought) {
  for (const Met &met : all_->ticket_missing.get()) {
    EXPECT_EQ(met.status.code, Code::Timeout);
    EXPECT_TRUE(contains(met.status.text, "rank 1 and rank 3 of 4 did not arrive")) << met.status.text;
    ASSERT_EQ(met.came.size(), 4u);
    EXPECT_EQ(text_of(met.came[0]), "0/0");
    EXPECT_EQ(text_of(met.came[2]), "2/0");
    EXPECT_TRUE(met.came[1].empty() && met.came[3].empty());
  }
}

// Those who begin alike wait a short while after the last that came, others as long as they may.
TEST_F(Deadlines, OfThoseWhoAreAlikeAreThatShortWhileAfterTheLastOfThem) {
  const std::vector<Alike> all = all_->alike.get();
  const int64_t last = std::max_element(all.begin(), all.end(), [](const Alike &a, const Alike &b) {
                         return a.begun_ns < b.begun_ns;
                       })->begun_ns;
  for (const Alike &one : all) {
    EXPECT_EQ(one.status.code, Code::Timeout);
    EXPECT_TRUE(contains(one.status.text, "rank 3 of 4 did not arrive")) << one.status.text;
    EXPECT_TRUE(contains(one.status.text, "wait no longer")) << one.status.text;
    EXPECT_GE(one.ended_ns - last, seconds_to_ns(patient(kWaits)));
  }
  for (const Alike &one : all_->not_alike.get()) {
    EXPECT_TRUE(one.status.ok()) << one.status.text;
    ASSERT_EQ(one.blobs.size(), 4u);
    EXPECT_EQ(text_of(one.blobs[1]), "bb");
  }
}

TEST_F(Deadlines, AreNotWaitedForByWhoComesToATicketAfterItsMeeting) {
  const std::vector<Met> all = all_->after_it.get();
  for (const size_t rank : {size_t{0}, size_t{1}}) EXPECT_TRUE(all[rank].status.ok()) << all[rank].status.text;
  EXPECT_EQ(all[2].status.code, Code::System) << all[2].status.text;
  EXPECT_TRUE(contains(all[2].status.text, "is over: all its ranks met and have left")) << all[2].status.text;
}

}  // namespace
}  // namespace isthmus::bootstrap::testing
