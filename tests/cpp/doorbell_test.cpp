// Sleeping until somebody rings, and what wakes those who sleep on sockets meanwhile.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "base/doorbell.hpp"
#include "base/error.hpp"

namespace isthmus {
namespace {

constexpr int kPatience = 20'000;  // ms; a wake that is lost takes so long
constexpr int kTurns = 2000;

// Two counters and a doorbell each, in memory that may be another process's too.
struct Table {
  std::atomic<int> turns[2] = {};
  Doorbell bells[2];
};

// Side `me` waits for the other side's count and answers with its own, on sockets or on the futex. False: a wake was lost.
bool play(Table &table, int me, BellSocket *socket) {
  Doorbell &mine = table.bells[me];
  for (int i = 1; i <= kTurns; ++i) {
    if (me == 0) {
      table.turns[0].store(i, std::memory_order_relaxed);
      table.bells[1].ring();
    }
    const auto come = [&] { return table.turns[1 - me].load(std::memory_order_relaxed) >= i; };
    while (!come()) {
      if (socket) {
        const PollNap nap(mine);
        if (come()) break;
        pollfd fd{socket->fd(), POLLIN, 0};
        if (::poll(&fd, 1, kPatience) != 1) return false;
        socket->answer();
      } else {
        const auto begin = std::chrono::steady_clock::now();
        Nap nap(mine);
        if (come()) break;
        nap.sleep(int64_t{kPatience} * 1'000'000);
        if (std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(kPatience)) return false;
      }
    }
    if (me == 1) {
      table.turns[1].store(i, std::memory_order_relaxed);
      table.bells[0].ring();
    }
  }
  return true;
}

TEST(Doorbell, WakesOneWhoSleepsOnSocketsAndOneWhoDoesNot) {
  Table table;
  BellSocket socket(table.bells[0]);
  bool well = false;
  std::thread other([&] { well = play(table, 1, nullptr); });
  EXPECT_TRUE(play(table, 0, &socket));
  other.join();
  EXPECT_TRUE(well);
  EXPECT_EQ(table.bells[0].sleepers.load(), 0u);
  EXPECT_EQ(table.bells[0].pollers.load(), 0u);
}

TEST(Doorbell, WakesOneOfAnotherProcessWhoSleepsOnSockets) {
  void *memory = ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Table &table = *new (memory) Table;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const BellSocket unused(table.bells[1]);  // what it calls with
    BellSocket *const none = nullptr;
    ::_exit(play(table, 1, none) ? 0 : 1);
  }
  {
    BellSocket socket(table.bells[0]);
    EXPECT_TRUE(play(table, 0, &socket));
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::munmap(memory, sizeof(Table));
}

TEST(Doorbell, OneCallIsEnoughUntilItIsAnswered) {
  Doorbell bell;
  BellSocket socket(bell);
  pollfd fd{socket.fd(), POLLIN, 0};
  bell.ring();
  EXPECT_EQ(::poll(&fd, 1, 0), 0) << "nobody sleeps";
  const PollNap nap(bell);
  for (int i = 0; i < 1000; ++i) bell.ring();
  ASSERT_EQ(::poll(&fd, 1, kPatience), 1);
  socket.answer();
  EXPECT_EQ(::poll(&fd, 1, 0), 0);
  bell.ring();
  EXPECT_EQ(::poll(&fd, 1, kPatience), 1);
}

TEST(Doorbell, ACallThatFailedIsTriedAgainByTheNext) {
  Doorbell bell;
  const PollNap nap(bell);
  std::optional<BellSocket> gone(std::in_place, bell);
  gone.reset();
  bell.ring();  // there is no socket to call with
  Doorbell other;
  BellSocket mine(other);
  bell.ring();  // nobody has that name
  EXPECT_EQ(bell.called.load(), 0u);
  char name[Doorbell::kName];
  std::memcpy(name, bell.name, sizeof name);
  BellSocket socket(bell);
  EXPECT_NE(std::memcmp(name, bell.name, sizeof name), 0) << "a name of its own";
  bell.ring();
  pollfd fd{socket.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&fd, 1, kPatience), 1);
}

}  // namespace
}  // namespace isthmus
