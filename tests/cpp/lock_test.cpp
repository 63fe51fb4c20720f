// The locks of base/lock.hpp: what is held when, which the compiler's analysis takes for granted.
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "base/lock.hpp"

namespace isthmus {
namespace {

// Whether another thread finds it free.
bool free_for_others(Mutex &mutex) {
  bool found = false;
  std::thread other([&] {
    if (!mutex.try_lock()) return;
    found = true;
    mutex.unlock();
  });
  other.join();
  return found;
}

TEST(Locks, AreHeldToTheEndOfTheirBlock) {
  Mutex mutex;
  {
    Lock lock(mutex);
    EXPECT_FALSE(free_for_others(mutex));
    lock.unlock();
    EXPECT_TRUE(free_for_others(mutex));
    lock.lock();
    EXPECT_FALSE(free_for_others(mutex));
  }
  EXPECT_TRUE(free_for_others(mutex));
}

TEST(Locks, TakeOverWhatIsLocked) {
  Mutex mutex;
  ASSERT_TRUE(mutex.try_lock());
  {
    const Lock lock(mutex, kLocked);
    EXPECT_FALSE(free_for_others(mutex));
  }
  EXPECT_TRUE(free_for_others(mutex));
}

TEST(Locks, AreGivenAwayForABlockAlsoWhereItThrows) {
  Mutex mutex;
  const Lock lock(mutex);
  try {
    const Unlocked outside(mutex);
    EXPECT_TRUE(free_for_others(mutex));
    throw std::runtime_error("over");
  } catch (const std::runtime_error &) { EXPECT_FALSE(free_for_others(mutex)); }
  EXPECT_FALSE(free_for_others(mutex));
}

TEST(Locks, AreHeldBehindAWait) {
  Mutex mutex;
  Condition changed;
  bool given = false;
  Lock lock(mutex);
  EXPECT_FALSE(changed.wait_for(mutex, std::chrono::milliseconds(1), [&] { return given; }));
  EXPECT_FALSE(free_for_others(mutex));
  const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  while (changed.wait_until(lock, soon) != std::cv_status::timeout) {}
  EXPECT_FALSE(free_for_others(mutex));
  std::thread other([&] {
    const Lock theirs(mutex);
    given = true;
    changed.notify_all();
  });
  changed.wait(lock, [&] { return given; });
  EXPECT_FALSE(free_for_others(mutex));
  lock.unlock();
  other.join();
}

}  // namespace
}  // namespace isthmus
