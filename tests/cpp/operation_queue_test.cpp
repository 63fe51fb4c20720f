// The queue of collectives.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "collective/operation_queue.hpp"

namespace isthmus::collective {
namespace {

TEST(OperationQueue, OperationsRunInTheOrderOfTheirNumbersWhoeverAppendsThem) {
  constexpr int kThreads = 4, kEach = 500;
  std::vector<std::unique_ptr<Operation>> operations;
  for (int i = 0; i < kThreads * kEach; ++i) operations.push_back(std::make_unique<Operation>());
  OperationQueue queue;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) queue.append(operations[static_cast<size_t>(t * kEach + i)].get());
    });
  uint64_t taken = 0;
  while (taken < kThreads * kEach)
    if (Operation *const first = queue.first()) {
      EXPECT_EQ(queue.take_first(), first);
      EXPECT_EQ(first->sequence, ++taken);
    }
  for (std::thread &thread : threads) thread.join();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.take_first(), nullptr);
  EXPECT_EQ(queue.sequence(), taken);
}

TEST(OperationQueue, ALookSeesAllOfThemInOrderUntilItHasEnough) {
  Operation one, two, three;
  OperationQueue queue;
  for (Operation *op : {&one, &two, &three}) queue.append(op);
  std::vector<uint64_t> seen;
  queue.each([&](const Operation &op) {
    seen.push_back(op.sequence);
    return op.sequence < 2;
  });
  EXPECT_EQ(seen, (std::vector<uint64_t>{1, 2}));
  while (queue.take_first()) {}
}

}  // namespace
}  // namespace isthmus::collective
