#include "observe/leader_exchange.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace isthmus::observe {
namespace {

const std::vector<int64_t> kSizes{1024, 2048, 4096, 8192, 16384, 32768};

// Times of a form that costs `fixed` and `each` a KiB.
std::vector<double> line(double fixed, double each) {
  std::vector<double> out;
  for (const int64_t bytes : kSizes) out.push_back(fixed + each * static_cast<double>(bytes) / 1024);
  return out;
}

TEST(BestLeaderBytes, IsTheLastSizeForWhichOneHopCostsLess) {
  EXPECT_EQ(best_leader_bytes(kSizes, line(10, 2), line(20, 1)), 8192) << "they meet at 10 KiB";
  EXPECT_EQ(best_leader_bytes(kSizes, line(10, 2), line(200, 1)), 32768) << "never within the sizes: a longer latency";
  EXPECT_EQ(best_leader_bytes(kSizes, line(10, 2), line(5, 1)), 0) << "pieces are always better";
  EXPECT_EQ(best_leader_bytes(kSizes, line(10, 2), line(10, 2)), 0) << "of equals the smaller";
}

TEST(BestLeaderBytes, DoesNotFollowASingleOddTime) {
  std::vector<double> whole = line(10, 2);
  whole[0] *= 1.8;  // somebody was interrupted, where the leader exchange is better by half
  EXPECT_EQ(best_leader_bytes(kSizes, whole, line(20, 1)), 8192);
  whole = line(10, 2);
  whole[5] = 47;  // or not, behind a size for which it is worse
  EXPECT_EQ(best_leader_bytes(kSizes, whole, line(20, 1)), 8192);
}

}  // namespace
}  // namespace isthmus::observe
