// Waits side by side: what several threads do at a time, and what one thread's error, look or interrupt means for the others.
#include "bootstrap/side_by_side.hpp"

#include <gtest/gtest.h>

#include <future>
#include <set>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "net/wait.hpp"
#include "patience.hpp"

namespace isthmus::bootstrap {
namespace {

using isthmus_test::soon;

// Where a thread waits until so many have come.
class Meeting {
 public:
  explicit Meeting(size_t wanted) : wanted_(wanted) {}
  // False: the others have not come in time. Asks `look` meanwhile.
  bool come(const Look &look = {}) {
    const Lock lock(mutex_);
    ++come_;
    changed_.notify_all();
    const Deadline deadline(soon());
    while (!changed_.wait_for(mutex_, std::chrono::milliseconds(1),
                              [this]() ISTHMUS_REQUIRES(mutex_) { return come_ >= wanted_; })) {
      if (deadline.passed()) return false;
      const Unlocked outside(mutex_);
      if (look) look();
    }
    return true;
  }

 private:
  const size_t wanted_;
  Mutex mutex_;
  Condition changed_;
  size_t come_ ISTHMUS_GUARDED_BY(mutex_) = 0;
};

std::string text_of(const std::exception_ptr &why) {
  try {
    std::rethrow_exception(why);
  } catch (const Error &e) { return e.text(); } catch (const std::exception &e) {
    return e.what();
  }
}

Code how_it_ends(SideBySide &all) {
  try {
    all.await();
    return Code::Ok;
  } catch (const Error &e) { return e.code(); }
}

std::vector<size_t> upto(size_t count) {
  std::vector<size_t> all;
  for (size_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

TEST(SideBySide, AsManyTasksAsThereAreThreadsAreUnderWayAtOnceAndEachIsDoneOnce) {
  constexpr size_t kThreads = 4, kTasks = 12;
  Meeting meeting(kThreads);
  std::atomic<int> done[kTasks + 1] = {}, met = 0;
  SideBySide all(upto(kTasks), kThreads,
                 [&](size_t task, const Look &) {
                   if (task < kThreads)
                     met += meeting.come();  // nobody comes back from here before four tasks have been begun
                   ++done[task];
                 },
                 {});
  all.take_part();
  all.one(kTasks);
  all.await();
  EXPECT_EQ(met, static_cast<int>(kThreads));
  for (const auto &times : done) EXPECT_EQ(times, 1);
  EXPECT_TRUE(all.take_failed().empty());
}

TEST(SideBySide, OneTaskAloneIsDoneByTheCallingThread) {
  std::thread::id by;
  SideBySide all({7}, 8, [&](size_t, const Look &) { by = std::this_thread::get_id(); }, {});
  all.take_part();
  all.await();
  EXPECT_EQ(by, std::this_thread::get_id());
}

TEST(SideBySide, NothingToDoIsDone) {
  SideBySide all(
      {}, 8, [](size_t, const Look &) { FAIL(); }, [] { FAIL(); });
  all.take_part();
  all.await();
}

TEST(SideBySide, AnErrorOfOneTaskIsThatTasksAlone) {
  std::atomic<int> done = 0;
  SideBySide all(upto(9), 3,
                 [&](size_t task, const Look &) {
                   if (task == 4) fail(Code::PeerLost, "the fourth is gone");
                   if (task == 6) throw std::runtime_error("no memory for the sixth");
                   ++done;
                 },
                 {});
  all.take_part();
  all.await();
  EXPECT_EQ(done, 7);
  std::set<std::string> said;
  std::set<size_t> tasks;
  for (const auto &failed : all.take_failed()) {
    said.insert(text_of(failed.why));
    tasks.insert(failed.task);
  }
  EXPECT_EQ(said, (std::set<std::string>{"the fourth is gone", "no memory for the sixth"}));
  EXPECT_EQ(tasks, (std::set<size_t>{4, 6}));
}

TEST(SideBySide, TheLookIsTheCallingThreadsAndWhatItThrowsEndsAllAndIsThrown) {
  Meeting meeting(3), never(SIZE_MAX);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> others_looked = false, met = false;
  std::atomic<int> begun = 0;
  SideBySide all(
      upto(20), 3,
      [&](size_t, const Look &look) {
        ++begun;
        meeting.come();
        met = true;
        never.come(look);  // until the look throws
        ADD_FAILURE() << "nobody comes here";
      },
      [&] {
        if (std::this_thread::get_id() != caller) others_looked = true;
        if (met) fail(Code::PeerLost, "rank 5 has given up");
      });
  all.take_part();
  std::string why;
  try {
    all.await();
  } catch (const Error &e) { why = e.text(); }
  EXPECT_EQ(why, "rank 5 has given up");
  EXPECT_FALSE(others_looked);
  EXPECT_EQ(begun, 3);  // no task begins any more
  const auto failed = all.take_failed();
  EXPECT_EQ(failed.size(), 20u);
  for (const auto &one : failed) EXPECT_EQ(text_of(one.why), "rank 5 has given up");
}

TEST(SideBySide, TheCallingThreadLooksAlsoWhileItWaitsForTheOthers) {
  Meeting never(SIZE_MAX);
  std::atomic<int> looks = 0;
  std::promise<void> taken;
  SideBySide all(
      upto(2), 2,
      [&](size_t task, const Look &look) {
        if (task == 0) return taken.get_future().wait();  // one of the two threads has it, and the other one task 1
        taken.set_value();
        never.come(look);
      },
      [&] {
        if (++looks == 3) fail(Code::Aborted, "enough");
      });
  all.take_part();
  EXPECT_THROW(all.await(), Error);
  EXPECT_EQ(looks, 3);
}

TEST(SideBySide, AnInterruptInAnyTaskEndsAll) {
  Meeting meeting(4), never(SIZE_MAX);
  SideBySide all(upto(8), 4,
                 [&](size_t task, const Look &look) {
                   meeting.come();
                   if (task == 2) fail(Code::Interrupted, "interrupted");
                   never.come(look);
                 },
                 {});
  all.take_part();
  EXPECT_EQ(how_it_ends(all), Code::Interrupted);
}

std::atomic<bool> interrupted = false;

TEST(SideBySide, TheCallingThreadIsInterruptedAlsoWhileItWaitsForTheOthers) {
  net::set_interrupt_check([] { return interrupted ? 1 : 0; });
  Meeting never(SIZE_MAX);
  std::promise<void> taken;
  SideBySide all(upto(2), 2,
                 [&](size_t task, const Look &look) {
                   if (task == 0) return taken.get_future().wait();
                   taken.set_value();
                   interrupted = true;
                   never.come(look);
                 },
                 {});
  all.take_part();
  EXPECT_EQ(how_it_ends(all), Code::Interrupted);
  net::set_interrupt_check(nullptr);
}

TEST(SideBySide, ATaskThatWaitsWithoutALookHearsTheEnd) {
  Meeting both(2);
  std::atomic<bool> met = false;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> heard = 0;
  SideBySide all(
      upto(2), 2,
      [&](size_t, const Look &look) {
        met = both.come(look);
        if (std::this_thread::get_id() == caller) return;
        const Deadline deadline(soon());
        try {
          net::sleep_until(deadline);
        } catch (const Error &) {
          ++heard;
          throw;
        }
      },
      [&] {
        if (met) fail(Code::Aborted, "enough");
      });
  all.take_part();
  EXPECT_THROW(all.await(), Error);
  EXPECT_EQ(heard, 1);
}

TEST(SideBySide, ItsEndWaitsForTheTasksThatAreUnderWay) {
  std::atomic<int> done = 0;
  {
    Meeting meeting(3);
    SideBySide all(upto(3), 3,
                   [&](size_t, const Look &) {
                     meeting.come();
                     ++done;
                   },
                   {});
    all.take_part();  // and no await()
  }
  EXPECT_EQ(done, 3);
}

}  // namespace
}  // namespace isthmus::bootstrap
