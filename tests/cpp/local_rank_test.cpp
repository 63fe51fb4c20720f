// The rooms of the context with a rank that only counts what it is asked: who calls it, and when nobody calls it any more.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "asleep.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/own_thread.hpp"
#include "device/host.hpp"
#include "link/arena.hpp"
#include "net/prompt_timer.hpp"
#include "patience.hpp"
#include "process/control_room.hpp"
#include "process/device_workers.hpp"
#include "process/helpers.hpp"
#include "process/progress.hpp"
#include "process/socket_watch.hpp"
#include "process/staging_book.hpp"

namespace isthmus::process {
namespace {

struct CountingRank final : LocalRank, std::enable_shared_from_this<CountingRank> {
  explicit CountingRank(uint32_t its_index = 0, uint32_t its_epoch = 7) : my_index(its_index), my_epoch(its_epoch) {}
  int rank() const noexcept override { return 0; }
  int world() const noexcept override { return 2; }
  uint32_t index() const noexcept override { return my_index; }
  uint32_t epoch() const noexcept override { return my_epoch; }
  std::weak_ptr<LocalRank> itself() noexcept override { return weak_from_this(); }
  PathTo path_to(int) const noexcept override { return {nullptr, nullptr, 0}; }
  bool give_idle_staging() noexcept override {
    if (idle == 0 || !arena) return false;
    arena->free_staging(std::exchange(idle, 0));
    return true;
  }
  bool has_lent_staging() const noexcept override { return lent; }

  link::Accept accept_frame(const link::FrameHeader &, int64_t, std::byte *&to) override {
    ++frames;
    to = place;
    return place ? link::Accept::Take : link::Accept::Defer;
  }
  void received_frame(const link::FrameHeader &) override { ++frames; }
  void link_broken(const link::Link *, const std::string &) noexcept override {}

  void credit(uint32_t, uint64_t bytes) noexcept override { granted = bytes; }
  void peer_left(uint32_t, uint64_t, uint64_t, Leaving) noexcept override { ++left; }
  void peer_ends_library(uint32_t, Leaving) noexcept override { ++ends_library; }
  void came_out_of_band(const OutOfBandHead &, std::span<const std::byte> bytes) override { came += bytes.size(); }
  void withdrawn_out_of_band(uint32_t, uint64_t) override { ++withdrawn; }
  void came_of_agreement(const AgreeHead &, std::span<const std::byte> ranks) override { agreed += ranks.size(); }
  void peer_lost(bootstrap::Peer &, const std::string &) noexcept override {}
  void fail(Failure reason, Tell) noexcept override { failure = std::move(reason); }
  void raised(std::string_view, bool) noexcept override {}
  Failure why() const override { return failure; }
  Answer answer(const RankQuestion &question) const noexcept override {
    Answer a;
    a.entered = question.sequence;
    return a;
  }
  std::string inside_text() const override { return inside; }
  std::string waiting_text() const override { return waiting; }

  bool has_work() const noexcept override { return work.load() != 0; }
  uint32_t waiters() const noexcept override { return waits.load(); }
  bool drive(LookAt) noexcept override {
    uint64_t left_over = work.load();
    while (left_over != 0 && !work.compare_exchange_weak(left_over, left_over - 1)) {}
    return left_over != 0;
  }
  int64_t check_deadlines(int64_t) noexcept override { return 0; }
  bool polls_device() const noexcept override { return false; }

  device::Runtime *runtime() const noexcept override { return &device::host_runtime(); }
  int device() const noexcept override { return 0; }
  bool carry_messages() noexcept override { return carried.fetch_add(1) < 2; }  // the third call finds all of them placed
  void look_at_device() noexcept override { ++looked; }
  void stop_stream() noexcept override { ++stopped; }

  const uint32_t my_index, my_epoch;
  link::Arena *arena = nullptr;
  uint64_t idle = 0;  // of the staging memory
  bool lent = false;
  std::byte *place = nullptr;  // for frames
  int frames = 0, left = 0, ends_library = 0, withdrawn = 0;
  size_t agreed = 0;
  uint64_t granted = 0, came = 0;
  Failure failure;
  std::string inside, waiting;
  std::atomic<uint64_t> work{0};
  std::atomic<uint32_t> waits{0};
  std::atomic<int> carried{0}, looked{0}, stopped{0};
};

template <class Holds>
bool soon(Holds holds) {
  for (const Deadline deadline(isthmus_test::soon()); !deadline.passed(); std::this_thread::yield())
    if (holds()) return true;
  return false;
}

class RoomTest : public testing::Test {
 protected:
  std::shared_ptr<CountingRank> seated(uint32_t epoch = 7) {
    auto rank = std::make_shared<CountingRank>(ranks.reserve(), epoch);
    ranks.set(rank->my_index, rank);
    return rank;
  }
  link::Arena arena{8 << 20};
  RankTable ranks;
  DataStreams streams{arena.doorbell()};
  Helpers helpers{0, 1000};
  Links links{arena, ranks, streams, helpers, Stores::Auto, 1000};
  ControlRoom control{arena.doorbell(), ranks, links, streams, 1'000'000};
};

// A look that comes too late is late by a nap.
TEST(DeviceNaps, AreAPartOfTheWaitAndShorterWhereProcessorsAreToSpare) {
  for (const int64_t waited : {0, 1'000, 100'000, 320'000}) EXPECT_EQ(Drivable::device_nap(waited, true), 5'000);
  for (const int64_t waited : {0, 1'000, 100'000, 480'000}) EXPECT_EQ(Drivable::device_nap(waited, false), 30'000);
  EXPECT_EQ(Drivable::device_nap(6'400'000, true), 100'000);
  EXPECT_EQ(Drivable::device_nap(1'600'000, false), 100'000);
}

// Each look costs a switch of context.
TEST(DeviceNaps, OfASecondAreNoMoreWhereProcessorsAreToSpareAndEndPromptly) {
  const auto looks = [](bool spare, int64_t late) {
    int count = 0;
    for (int64_t waited = 20'000; waited < 1'000'000'000; waited += Drivable::device_nap(waited, spare) + late) ++count;
    return count;
  };
  EXPECT_LE(looks(true, kPromptSlackNs), looks(false, kUsualSlackNs));
}

TEST_F(RoomTest, AFrameReachesTheRankOfItsIndexAndEpoch) {
  std::byte *to = nullptr;
  link::FrameHeader h;
  h.member = ranks.reserve();
  h.epoch = 7;
  EXPECT_EQ(links.accept(h, 0, to), link::Accept::Drop);  // reserved, and no rank yet
  const auto rank = std::make_shared<CountingRank>(h.member);
  ranks.set(h.member, rank);
  EXPECT_EQ(links.accept(h, 0, to), link::Accept::Defer);  // the rank tells epochs apart itself
  links.received(h);
  h.epoch = 8;
  links.received(h);
  EXPECT_EQ(rank->frames, 2);
  h.member = 1000;
  EXPECT_EQ(links.accept(h, 0, to), link::Accept::Drop);
}

// The thread that sleeps with the watch of the sockets may not hear of a frame that another thread has read.
TEST_F(RoomTest, WhoReadsAFrameForARankThatAnotherThreadDrivesRingsTheDoorbell) {
  const auto rank = seated(), other = seated();
  std::byte place[8] = {}, data[8] = {};
  rank->place = place;
  link::Link &link = *links.link_to(nullptr, Carrier::Memory);
  const auto rings = [&](const LocalRank *driven, uint32_t waiters, link::FrameKind kind = link::FrameKind::PlanData) {
    rank->waits = waiters;
    link::Outgoing frame;
    frame.header.kind = kind;
    frame.header.member = rank->my_index;
    frame.header.epoch = rank->my_epoch;
    frame.header.total = sizeof data;
    frame.data = data;
    frame.finished = [](link::Outgoing &) {};
    link.post(frame);
    const Nap sleeper(arena.doorbell());
    std::optional<Links::Driving> here;
    if (driven) here.emplace(*driven);
    else here.emplace();
    const uint32_t before = arena.doorbell().bell;
    const int frames = rank->frames;
    EXPECT_TRUE(links.drive());
    EXPECT_EQ(rank->frames, frames + 2);  // it was asked for a place, and has heard that the frame is there
    return arena.doorbell().bell != before;
  };
  EXPECT_FALSE(rings(rank.get(), 1)) << "this thread waits for the rank";
  EXPECT_TRUE(rings(other.get(), 1)) << "it waits for another rank";
  EXPECT_TRUE(rings(other.get(), 0)) << "the progress thread drives the rank";
  EXPECT_FALSE(rings(nullptr, 0)) << "this thread is the progress thread, and nobody waits for the rank";
  EXPECT_TRUE(rings(nullptr, 1)) << "somebody waits for the rank";
  EXPECT_FALSE(rings(other.get(), 1, link::FrameKind::Message)) << "the matcher wakes who waits for a message";
  EXPECT_TRUE(rings(other.get(), 1, link::FrameKind::ClearToSend)) << "its answer waits for its link's turn";
}

TEST_F(RoomTest, AnIndexIsFreeOnceItsMemoryIs) {
  const auto rank = seated();
  bool safe = false, freed = false;
  const auto gone = std::make_shared<std::vector<std::atomic<bool>>>(2);
  EXPECT_EQ(ranks.take(rank->my_index), rank);
  EXPECT_EQ(ranks.take(rank->my_index), nullptr);
  ranks.retire(
      rank->my_index, 7, gone, [&] { return safe; }, [&] { freed = true; });
  ranks.sweep();
  EXPECT_FALSE(freed);
  EXPECT_EQ(ranks.leaving(), 1);
  EXPECT_NE(ranks.reserve(), rank->my_index);
  safe = true;
  ranks.sweep();
  EXPECT_TRUE(freed);
  EXPECT_EQ(ranks.leaving(), 0);
  EXPECT_EQ(ranks.reserve(), rank->my_index);
}

TEST_F(RoomTest, ControlMessagesReachTheRankOfTheirEpoch) {
  const auto rank = seated();
  for (const uint32_t epoch : {6u, 7u}) {
    EXPECT_TRUE(control.tell(nullptr, Control::Credit, packed(CreditBody{rank->my_index, epoch, 1, 0, 100 + epoch})));
    EXPECT_TRUE(control.tell(nullptr, Control::Leave, packed(LeaveBody{rank->my_index, epoch, 1, Leaving::Well, 3, 0})));
    EXPECT_TRUE(
        control.tell(nullptr, Control::Leave, packed(LeaveBody{rank->my_index, epoch, 1, Leaving::LibraryEnded, 3, 0})));
    EXPECT_TRUE(control.tell(nullptr, Control::Leave, packed(LeaveBody{rank->my_index, epoch, 1, Leaving{99}, 3, 0})))
        << "unknown, and ignored";
    std::array<std::byte, 64> room;
    const std::array<std::byte, 5> bytes{};
    EXPECT_TRUE(
        control.tell(nullptr, Control::OutOfBand, pack(OutOfBandHead{rank->my_index, epoch, 1, 0, 5, 0, 6}, bytes, room)));
    EXPECT_TRUE(control.tell(nullptr, Control::OutOfBand, packed(OutOfBandHead{rank->my_index, epoch, 1, 1, 5, 0, 6})));
  }
  EXPECT_EQ(rank->granted, 107u);
  EXPECT_EQ(rank->left, 1);
  EXPECT_EQ(rank->ends_library, 1);
  EXPECT_EQ(rank->came, 5u);
  EXPECT_EQ(rank->withdrawn, 1);
}

TEST_F(RoomTest, AFailureIsReadAsItWasTold) {
  const auto rank = seated();
  Failure why{{Code::Timeout, "all_reduce #3 of 'world': rank 2 is late"}};
  why.subject = 23;
  why.by = 1;
  why.sequence = 3;
  why.late = true;
  EXPECT_TRUE(control.tell_failure(nullptr, rank->my_index, 7, why));
  EXPECT_EQ(rank->failure.code, Code::Timeout);
  EXPECT_EQ(rank->failure.text, why.text);
  EXPECT_EQ(rank->failure.subject, 23u);
  EXPECT_EQ(rank->failure.by, 1);
  EXPECT_EQ(rank->failure.sequence, 3u);
  EXPECT_TRUE(rank->failure.late);
}

TEST_F(RoomTest, AFailureWhoseCodeIsNoneIsOneAllTheSame) {
  for (const Code code : {Code::Ok, Code::InProgress, static_cast<Code>(99)}) {
    const auto rank = seated();
    EXPECT_TRUE(control.tell_failure(nullptr, rank->my_index, 7, Failure{{code, "what it was"}}));
    EXPECT_EQ(rank->failure.code, Code::Internal);
    EXPECT_EQ(rank->failure.text, "what it was");
  }
}

TEST_F(RoomTest, AFailureReachesARankThatIsStillBeingMade) {
  const uint32_t index = ranks.reserve();
  const auto failed = ranks.making(index, 7);
  control.tell_failure(nullptr, index, 6, Failure{{Code::Aborted, "another"}});
  EXPECT_FALSE(failed->load());
  control.tell_failure(nullptr, index, 7, Failure{{Code::Aborted, "this one"}});
  EXPECT_TRUE(failed->load());
}

TEST_F(RoomTest, TheRetiredHearWhoHasLeft) {
  const auto rank = seated();
  const auto gone = std::make_shared<std::vector<std::atomic<bool>>>(2);
  ranks.take(rank->my_index);
  ranks.retire(
      rank->my_index, 7, gone, [] { return false; }, [] {});
  const auto leave = [&](uint32_t who, Leaving how) {
    control.tell(nullptr, Control::Leave, packed(LeaveBody{rank->my_index, 7, who, how, 0, 0}));
  };
  leave(0, Leaving::BrokenWriting);  // its device may still write
  EXPECT_FALSE((*gone)[0].load());
  leave(1, Leaving::Broken);
  EXPECT_TRUE((*gone)[1].load());
  leave(2, Leaving::Well);  // no such rank
  EXPECT_EQ(rank->left, 0);
}

TEST_F(RoomTest, AnAnswerSaysWhatElseTheProcessWaitsFor) {
  const auto asked = seated(), other = seated();
  Answer a;
  EXPECT_TRUE(control.ask(nullptr, asked->my_index, 7, {.sequence = 42}).answered(10, Deadline(1), a));
  EXPECT_EQ(a.entered, 42u);
  EXPECT_STREQ(a.busy, "");
  other->waiting = "barrier #1 of 'other'";
  EXPECT_TRUE(control.ask(nullptr, asked->my_index, 6, {.sequence = 42}).answered(10, Deadline(1), a));
  EXPECT_EQ(a.entered, 0u);  // of an earlier communicator of that index
  EXPECT_STREQ(a.busy, "barrier #1 of 'other'");
  asked->inside = "ncclAllReduce";
  EXPECT_TRUE(control.ask(nullptr, asked->my_index, 7, {.sequence = 42}).answered(10, Deadline(1), a));
  EXPECT_STREQ(a.busy, "ncclAllReduce");
}

// The list empties while work comes, again and again, so each order of activate() and the thread's last look is met.
TEST_F(RoomTest, ProgressDrivesAllWorkThatComes) {
  Progress progress(arena, links, 1000);
  progress.begin();
  const auto one = seated(), two = seated();
  std::vector<std::thread> callers;
  for (const auto &rank : {one, two})
    callers.emplace_back([&progress, rank] {
      for (int i = 0; i < 3000; ++i) {
        rank->work.fetch_add(1);
        progress.activate(*rank);
        if (i % 3 == 0)
          while (rank->has_work()) std::this_thread::yield();
      }
    });
  for (auto &t : callers) t.join();
  EXPECT_TRUE(soon([&] { return !one->has_work() && !two->has_work(); }));
  // Without work the thread holds no rank.
  EXPECT_TRUE(soon([&] { return one.use_count() == 2 && two.use_count() == 2; }));
  progress.end();
}

// With a rank that has work the thread sleeps at the arena's doorbell, and not at its own.
TEST_F(RoomTest, ProgressHearsOfARankWhileItSleepsForAnother) {
  Progress progress(arena, links, 1000);
  const Nap nap(arena.doorbell());  // a bell without sleepers does not change
  const uint32_t before = arena.doorbell().bell.load();
  progress.activate(*seated());
  EXPECT_NE(arena.doorbell().bell.load(), before);
}

TEST_F(RoomTest, ProgressLeavesARankToItsWaiter) {
  Progress progress(arena, links, 1000);
  progress.begin();
  const auto rank = seated();
  rank->waits = 1;
  rank->work = 1;
  progress.activate(*rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(rank->has_work());
  rank->waits = 0;
  EXPECT_TRUE(soon([&] { return !rank->has_work(); }));
  progress.forget(rank);
  progress.end();
}

// What the callback waits for is brought about by the progress thread, on which the callback runs.
TEST_F(RoomTest, ACallbackThatWaitsOnTheProgressThreadHasAnotherThreadTakeItsPlace) {
  Progress progress(arena, links, 1000);
  progress.begin();
  const auto other = seated();
  static std::function<void()> callback;
  for (int turn = 0; turn < 20; ++turn) {
    std::atomic<bool> over{false};
    callback = [&] {
      progress.stand_in();
      progress.stand_in();  // a thread that has been replaced is not replaced again
      other->work = 3;
      progress.activate(*other);
      while (other->has_work()) std::this_thread::yield();
      over = true;
    };
    progress.call_soon([] {
      if (callback) std::exchange(callback, nullptr)();
    });
    ASSERT_TRUE(soon([&] { return over.load(); }));
  }
  progress.stand_in();  // another thread than the progress thread: nothing
  progress.forget(other);
  progress.end();
}

// pthread_exit and pthread_cancel unwind a thread, as Python does with threads that want the lock of an interpreter that ends.
TEST_F(RoomTest, ACallbackThatEndsTheProgressThreadHasAnotherThreadTakeItsPlace) {
  Progress progress(arena, links, 1000);
  progress.begin();
  static std::atomic<int> endings;
  endings = 3;
  progress.call_soon([] {
    if (endings.load() > 0 && endings.fetch_sub(1) > 0) ::pthread_exit(nullptr);
  });
  ASSERT_TRUE(soon([&] { return endings.load() == 0; })) << "the thread that took the place has the calls that were due";
  const auto rank = seated();
  rank->work = 3;
  progress.activate(*rank);
  EXPECT_TRUE(soon([&] { return !rank->has_work(); }));
  progress.forget(rank);
  progress.end();
}

TEST(PromptTimer, IsReadableWhenItsTimeIsOverAndNotOnceItIsArmedAgain) {
  net::PromptTimer timer;
  constexpr int64_t kShort = 1'000'000;
  const int64_t begin = now_ns();
  pollfd fd{timer.arm(kShort), POLLIN, 0};
  ASSERT_GE(fd.fd, 0);
  EXPECT_EQ(::poll(&fd, 1, -1), 1);
  EXPECT_GE(now_ns() - begin, kShort);
  EXPECT_EQ(::poll(&fd, 1, 0), 1);
  EXPECT_EQ(timer.arm(3600 * int64_t{1'000'000'000}), fd.fd);
  EXPECT_EQ(::poll(&fd, 1, 0), 0);
  EXPECT_EQ(timer.arm(0), -1) << "that would never end";
}

// ---- who watches the sockets ---------------------------------------------------------------------------------------------------------

// Nobody would poll the sockets until the sleeper's time is over.
TEST(SocketWatch, NobodySleepsAtTheDoorbellWhereTheWatchHasBecomeFree) {
  Doorbell bell;
  SocketWatch watch(bell);
  std::atomic<bool> has{false}, go{false};
  std::thread holder([&] {
    SocketWatch::Turn first(watch);
    has = first.mine();
    while (!go) std::this_thread::yield();
  });
  while (!has) std::this_thread::yield();
  SocketWatch::Turn second(watch);
  ASSERT_FALSE(second.mine());
  go = true;
  holder.join();  // it has rung, and nobody slept at the bell yet
  EXPECT_FALSE(second.sleep(10'000'000, [] { return false; }));
}

// A short sleep for a device takes the watch for its timer alone.
TEST(SocketWatch, WhoNeedsNoSocketTakesTheWatchOnlyWhereNobodySleepsForSockets) {
  using Turn = SocketWatch::Turn;
  Doorbell bell;
  SocketWatch watch(bell);
  const auto takes = [&] {
    bool mine = false;
    std::thread([&] { mine = Turn(watch, Turn::IfIdle{}).mine(); }).join();
    return mine;
  };
  EXPECT_TRUE(takes());
  EXPECT_TRUE(takes()) << "it was given back";
  {
    const Turn first(watch);
    EXPECT_FALSE(takes());
    EXPECT_FALSE(watch.others_sleep()) << "who takes nothing is no sleeper";
  }
  const Turn idle(watch, Turn::IfIdle{});
  std::thread([&] {
    const Turn second(watch);
    EXPECT_FALSE(second.mine());
    EXPECT_FALSE(takes());
  }).join();
}

TEST_F(RoomTest, ASleepThatEndsPromptlyEndsByARingToo) {
  std::atomic<bool> over{false};
  std::atomic<pid_t> thread{0};
  std::thread sleeper([&] {
    thread = isthmus_test::this_thread();
    links.sleep(
        false, static_cast<int64_t>(2e9 * isthmus_test::soon()), [](LookAt) { return false; }, SleepEnds::Promptly);
    over = true;
  });
  while (thread == 0) std::this_thread::yield();
  EXPECT_TRUE(isthmus_test::falls_asleep(thread));
  EXPECT_FALSE(over);
  arena.doorbell().ring();
  EXPECT_TRUE(soon([&] { return over.load(); }));
  sleeper.join();
}

TEST_F(RoomTest, OfTwoSleepsThatEndPromptlyEachEndsAtItsTime) {
  std::atomic<int> over{0};
  const auto nap = [&] {
    for (int i = 0; i < 20; ++i)
      links.sleep(
          false, 1'000'000, [](LookAt) { return false; }, SleepEnds::Promptly);
    ++over;
  };
  std::thread first(nap), second(nap);
  EXPECT_TRUE(soon([&] { return over == 2; }));
  first.join();
  second.join();
}

TEST(SocketWatch, WhoEndsTheWatchWakesASleeperWithoutIt) {
  Doorbell bell;
  SocketWatch watch(bell);
  std::atomic<bool> woken{false};
  std::atomic<pid_t> thread{0};
  auto first = std::make_unique<SocketWatch::Turn>(watch);
  ASSERT_TRUE(first->mine());
  std::thread sleeper([&] {
    SocketWatch::Turn second(watch);
    EXPECT_FALSE(second.mine());
    thread = isthmus_test::this_thread();
    EXPECT_TRUE(second.sleep(static_cast<int64_t>(2e9 * isthmus_test::soon()), [] { return false; }));
    woken = true;
  });
  while (thread == 0) std::this_thread::yield();
  EXPECT_TRUE(isthmus_test::falls_asleep(thread));
  first.reset();
  EXPECT_TRUE(soon([&] { return woken.load(); }));
  sleeper.join();
}

TEST_F(RoomTest, AWorkerComesAgainWhileMessagesWait) {
  DeviceWorkers workers;
  const auto rank = seated();
  workers.call(*rank, WorkerTask::LookAndCarry);
  EXPECT_TRUE(soon([&] { return rank->carried == 3; }));
  EXPECT_GE(rank->looked.load(), 3);
  EXPECT_EQ(rank->stopped.load(), 0);
  workers.call(*rank, WorkerTask::StopStream);
  EXPECT_TRUE(soon([&] { return rank->stopped == 1; }));
  EXPECT_EQ(rank->carried.load(), 3);
  workers.end();
}

TEST_F(RoomTest, AMessageTakesStagingThatNoOperationUses) {
  StagingBook staging(arena, ranks);
  const auto rank = seated();
  rank->arena = &arena;
  rank->idle = arena.allocate_staging(arena.staging_limit());
  const auto place = staging.source().allocate(4096);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(rank->idle, 0u);
  EXPECT_FALSE(staging.source().allocate(arena.staging_limit()).has_value());
  staging.source().free(*place);
  EXPECT_FALSE(staging.is_lent());
  rank->lent = true;
  EXPECT_TRUE(staging.is_lent());
}

TEST_F(RoomTest, AFixedRingKeepsItsPlace) {
  StagingBook staging(arena, ranks);
  constexpr uint64_t kRing = 64 * 1024;
  const uint64_t first = staging.take_fixed_ring(kRing, 2);
  ASSERT_NE(first, 0u);
  EXPECT_EQ(staging.take_fixed_ring(arena.staging_limit(), 2), 0u);
  staging.give_fixed_ring(first, kRing);
  const uint64_t other = staging.take_fixed_ring(2 * kRing, 2);
  EXPECT_NE(other, 0u);
  EXPECT_NE(other, first);
  EXPECT_EQ(staging.take_fixed_ring(kRing, 2), first);
}

TEST_F(RoomTest, RoomIsSaidToBeGivenBackWhereAnOperationIsShort) {
  StagingBook staging(arena, ranks);
  staging.room_given_back();
  EXPECT_EQ(staging.given_back(), 0u);
  staging.want_room(1);
  staging.room_given_back();
  EXPECT_EQ(staging.given_back(), 1u);
  staging.want_room(-1);
  staging.room_given_back();
  EXPECT_EQ(staging.given_back(), 1u);
  EXPECT_FALSE(staging.note_lost(3));
  EXPECT_TRUE(staging.note_lost(3));
}

}  // namespace
}  // namespace isthmus::process
