// Ranks that go to a library's own listener and come to no meeting: how they are counted, and how the meeting of the others ends.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <csignal>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/own_thread.hpp"
#include "bootstrap/elsewhere.hpp"
#include "bootstrap/listener_watch.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/ticket_wire.hpp"
#include "bootstrap_support.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap::testing {
namespace {

// A listener as a library has it: a thread that waits in accept(), and closes each connection when it has read from it.
class Library {
 public:
  explicit Library(const char *at = "127.0.0.1:1") : listener_(net::listen_tcp(net::numeric_address(at).with_port(0))) {
    const int flags = ::fcntl(listener_.get(), F_GETFL);
    EXPECT_EQ(::fcntl(listener_.get(), F_SETFL, flags & ~O_NONBLOCK), 0);
    thread_ = std::thread([fd = listener_.get(), this] {
      for (int client; (client = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ::close(client)) {
        taken_.fetch_add(1);
        char word = 0;
        if (::recv(client, &word, 1, 0) == 1 && word == 'q') {
          ::close(client);
          return;
        }
      }
    });
  }
  ~Library() { end(); }
  void end() {
    if (!thread_.joinable()) return;
    visit('q');
    thread_.join();
    listener_.reset();
  }
  // Returns when the library has closed the connection.
  void visit(char word = 'x') const {
    UniqueFd fd;
    ASSERT_EQ(net::connect_tcp(net::local_address(listener_.get()), Deadline(soon()), fd), 0);
    ASSERT_EQ(net::send_all(fd.get(), bytes(std::string(1, word)), Deadline(soon())), net::Io::Ok);
    std::byte none{};
    EXPECT_EQ(net::recv_exact(fd.get(), {&none, 1}, Deadline(soon())), net::Io::Closed);
  }
  int fd() const { return listener_.get(); }
  int taken() const { return taken_.load(); }
  std::string at() const { return net::local_address(listener_.get()).text(); }

 private:
  UniqueFd listener_;
  std::atomic<int> taken_{0};
  std::thread thread_;
};

// The thread that hears, as the server of tickets has it.
class Hearing {
 public:
  Hearing() {
    std::promise<pid_t> number;
    auto begun = number.get_future();
    thread_ = begin_own_thread([&, number = std::move(number)]() mutable {
      number.set_value(static_cast<pid_t>(::syscall(SYS_gettid)));
      while (!stop_.load()) {
        pollfd p{watch.fd(), POLLIN, 0};
        if (::poll(&p, 1, 20) > 0) watch.hear([this](const WatchedListener &l) { note(l); });
      }
    });
    watch.begin(thread_.native_handle(), begun.get());
  }
  ~Hearing() {
    stop_.store(true);
    thread_.join();
  }
  int heard(uint64_t owner) { return (*heard_.lock())[owner]; }
  // All that has come by now has been heard when this returns.
  void settle() {
    Library last;
    const uint64_t mark = 1'000'000 + marks_++;
    ASSERT_TRUE(watch.watch(last.fd(), mark).ok());
    last.visit();
    EXPECT_TRUE(eventually([&] { return heard(mark) == 1; }));
  }

  ListenerWatch watch;

 private:
  void note(const WatchedListener &l) { ++(*heard_.lock())[l.owner]; }
  Guarded<std::map<uint64_t, int>> heard_;
  std::atomic<bool> stop_{false};
  uint64_t marks_ = 0;
  std::thread thread_;
};

TEST(ListenerWatch, HearsOfEachConnectionOnceThoughTheOwnerTakesItAtOnce) {
  Hearing hearing;
  for (const char *at : {"127.0.0.1:1", "[::1]:1"}) {
    Library library(at), other(at);
    ASSERT_TRUE(hearing.watch.watch(library.fd(), 1).ok());
    ASSERT_TRUE(hearing.watch.watch(other.fd(), 2).ok());
    hearing.settle();  // the visits that ended the libraries of the last round
    const int before = hearing.heard(1), others_before = hearing.heard(2);
    std::vector<std::thread> visitors;
    for (int n = 0; n < 4; ++n)
      visitors.emplace_back([&] {
        for (int visit = 0; visit < 250; ++visit) library.visit();
      });
    for (std::thread &v : visitors) v.join();
    other.visit();
    hearing.settle();
    EXPECT_EQ(hearing.heard(1) - before, 1000) << at;
    EXPECT_EQ(library.taken(), 1000);
    EXPECT_EQ(hearing.heard(2) - others_before, 1) << at;
  }
}

TEST(ListenerWatch, EndsWithTheListenerAndTakesNothingOfItForTheNextOfItsNumber) {
  Hearing hearing;
  for (uint64_t owner = 10; owner < 60; ++owner) {
    Library library;
    ASSERT_TRUE(hearing.watch.watch(library.fd(), owner).ok());
    for (uint64_t visit = 10; visit < owner; ++visit) library.visit();
    library.end();  // one more
  }
  hearing.settle();
  for (uint64_t owner = 10; owner < 60; ++owner) EXPECT_EQ(hearing.heard(owner), static_cast<int>(owner - 9)) << owner;
}

TEST(ListenerWatch, KeepsNoListenerOpen) {
  Hearing hearing;
  std::string at;
  {
    Library library;
    ASSERT_TRUE(hearing.watch.watch(library.fd(), 1).ok());
    at = library.at();
  }
  UniqueFd fd;
  EXPECT_EQ(net::connect_tcp(net::numeric_address(at), Deadline(soon()), fd), ECONNREFUSED);
}

TEST(ListenerWatch, LeavesTheProgramItsSignals) {
  static std::atomic<int> handled;
  handled.store(0);
  const int number = SIGRTMAX - 1;
  struct sigaction program {
  }, before{};
  program.sa_handler = [](int) { handled.fetch_add(1); };
  program.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(number, &program, &before), 0);
  {
    Hearing hearing;
    Library library;
    ASSERT_TRUE(hearing.watch.watch(library.fd(), 1).ok());
    for (int n = 0; n < 200; ++n) {
      ASSERT_EQ(::sigqueue(::getpid(), number, {}), 0);
      library.visit();
    }
    hearing.settle();
    EXPECT_EQ(hearing.heard(1), 200);
    EXPECT_TRUE(eventually([] { return handled.load() == 200; })) << handled.load();
  }
  EXPECT_EQ(::sigaction(number, &before, nullptr), 0);
}

TEST(ListenerWatch, RefusesWhatDoesNotListen) {
  Hearing hearing;
  const UniqueFd memory = sealed_memory("no-socket", 1);
  for (const int fd : {-1, memory.get()}) {
    const Status refused = hearing.watch.watch(fd, 1);
    EXPECT_EQ(refused.code, Code::Argument);
    EXPECT_TRUE(contains(refused.text, "no socket that listens")) << refused.text;
  }
}

TEST(Elsewhere, EndsAWaitOnlyWhereSomebodyConnectedAndARankIsMissing) {
  Elsewhere nobody, one;
  one.note("here", 5);
  EXPECT_EQ(nobody.until_ns(2, 0), Elsewhere::kNever);
  EXPECT_EQ(one.until_ns(0, 0), Elsewhere::kNever);
  EXPECT_NE(one.until_ns(2, 0), Elsewhere::kNever);
}

TEST(Elsewhere, ManyAsAreMissingAreThoseAndAnotherNumberWaitsLonger) {
  Elsewhere two;
  two.note("here", 100);
  two.note("here", 300);
  EXPECT_EQ(two.until_ns(2, 0), 300 + Elsewhere::kAllNs);
  for (const size_t missing : {size_t{1}, size_t{3}}) EXPECT_EQ(two.until_ns(missing, 0), 300 + Elsewhere::kSomeNs);
}

TEST(Elsewhere, ARankThatComesBeginsTheWaitAnew) {
  Elsewhere one;
  one.note("here", 100);
  EXPECT_EQ(one.until_ns(1, 5000), 5000 + Elsewhere::kComingNs);
}

// ---- the meetings of tickets -----------------------------------------------------------------------------------------------------------

using TicketBytes = std::array<std::byte, kTicketBytes>;

TicketBytes ticket_on_loopback() {
  Settings settings;
  settings.set("ISTHMUS_INTERFACE", "127.0.0.1");
  TicketBytes ticket{};
  create_ticket(settings, ticket);
  return ticket;
}

// What a rank was told whose wait has no other end than the one of this test. Empty: all met.
std::future<Status> come(const TicketBytes &ticket, int rank, int world) {
  return std::async(std::launch::async, [=] {
    return error_of([&] { ticket_exchange(ticket, rank, world)->all_gather(Blob(1), Deadline(1e6)); });
  });
}

TEST(TicketsOfListeners, EndWithTheMissingRanksNamedWhereAsManyWentToTheListener) {
  for (const bool first : {true, false}) {  // those who went there, before the others came or behind them
    Library library;
    const TicketBytes ticket = ticket_on_loopback();
    watch_listener(ticket, library.fd());
    if (first) library.visit(), library.visit();
    auto zero = come(ticket, 0, 4), three = come(ticket, 3, 4);
    if (!first) library.visit(), library.visit();
    for (auto *rank : {&zero, &three}) {
      const Status told = rank->get();
      EXPECT_EQ(told.code, Code::Timeout);
      EXPECT_TRUE(contains(told.text, "rank 1 and rank 2 of 4 did not come to where the communicator's ranks meet"))
          << told.text;
      EXPECT_TRUE(contains(told.text, "and 2 connections came to the listener that the vendor's library has for the id (" +
                                          library.at() + "), as from ranks that run without Isthmus"))
          << told.text;
      EXPECT_TRUE(contains(told.text, "isthmus run") && contains(told.text, "ISTHMUS_DISABLE=1")) << told.text;
    }
    const Status late = come(ticket, 1, 4).get();
    EXPECT_EQ(late.code, Code::System);
    EXPECT_TRUE(contains(late.text, "is over: it failed: rank 1 and rank 2 of 4 did not come")) << late.text;
  }
}

TEST(TicketsOfListeners, DoNotEndWhereRanksGoToTheListenerWhenTheyHaveMet) {
  Library library;
  const TicketBytes ticket = ticket_on_loopback();
  watch_listener(ticket, library.fd());
  std::vector<std::future<Status>> ranks;
  for (int r = 0; r < 3; ++r)
    ranks.push_back(std::async(std::launch::async, [&, r] {
      return error_of([&] {
        const auto exchange = ticket_exchange(ticket, r, 3);
        exchange->all_gather(Blob(1), Deadline(soon()));
        library.visit();
        exchange->all_gather(Blob(1), Deadline(soon()));
      });
    }));
  for (auto &rank : ranks) {
    const Status told = rank.get();
    EXPECT_TRUE(told.ok()) << told.text;
  }
}

TEST(TicketsOfListeners, OfAnotherProcessAreNotWatched) {
  Library library;
  Ticket other = unpack_ticket(ticket_on_loopback());
  other.key[0] ^= 1;
  TicketBytes bytes;
  pack_ticket(other, bytes);
  const Status refused = error_of([&] { watch_listener(bytes, library.fd()); });
  EXPECT_EQ(refused.code, Code::Argument);
  EXPECT_TRUE(contains(refused.text, "this process did not make the ticket")) << refused.text;
}

}  // namespace
}  // namespace isthmus::bootstrap::testing
