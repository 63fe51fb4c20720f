// Blocks of a device's memory that communicators lend each other: no block is anybody else's, and little is ever outgrown.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "base/error.hpp"
#include "device/host.hpp"
#include "process/device_scratch.hpp"

namespace isthmus::process {
namespace {

TEST(DeviceScratch, OneBlockServesCommunicatorsOneAfterTheOther) {
  DeviceScratch scratch(device::host_runtime(), 0);
  scratch.reserve(1000);
  const auto first = scratch.take(800);
  EXPECT_EQ(first.bytes, 1000u);
  const auto beside = scratch.take(800);
  EXPECT_NE(beside.memory, first.memory);
  scratch.give(first);
  EXPECT_EQ(scratch.take(900).memory, first.memory);
  scratch.give(first);
  scratch.give(beside);
}

TEST(DeviceScratch, WhatIsEverOutgrownIsLessThanTheLast) {
  DeviceScratch scratch(device::host_runtime(), 0);
  uint64_t others = 0;
  DeviceScratch::Block last;
  std::map<void *, size_t> seen;
  for (size_t bytes = 100; bytes < 100'000; bytes += 700) {
    scratch.give(last);
    last = scratch.take(bytes);
    ASSERT_GE(last.bytes, bytes);
    seen[last.memory] = last.bytes;
  }
  for (const auto &[memory, bytes] : seen)
    if (memory != last.memory) others += bytes;
  EXPECT_LT(others, last.bytes);
  scratch.give(last);
}

TEST(DeviceScratch, AReservationForWhichThereWasNoMemoryDoesNotCount) {
  DeviceScratch scratch(device::host_runtime(), 0);
  for (size_t i = 0; i < DeviceScratch::kReserved; ++i) EXPECT_THROW(scratch.reserve(~size_t{0}), Error);
  scratch.reserve(3000);
  const DeviceScratch::Block reserved = scratch.take(3000);
  EXPECT_EQ(reserved.bytes, 3000u);  // what is made now would be of a power of two
  scratch.give(reserved);
}

TEST(DeviceScratch, ReservesForAFewCommunicatorsAndNotForEach) {
  DeviceScratch scratch(device::host_runtime(), 0);
  for (int i = 0; i < 200; ++i) scratch.reserve(4096);
  std::vector<DeviceScratch::Block> taken;
  for (size_t i = 0; i < DeviceScratch::kReserved + 1; ++i) taken.push_back(scratch.take(3000));
  EXPECT_EQ(std::count_if(taken.begin(), taken.end(), [](const auto &b) { return b.bytes == 4096; }),
            static_cast<std::ptrdiff_t>(DeviceScratch::kReserved) + 1);  // the last is as large, and was made now
  for (const auto &b : taken) scratch.give(b);
}

}  // namespace
}  // namespace isthmus::process
