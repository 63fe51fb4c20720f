// reduce(): every dtype x op x number of sources x grouping x count, in place or not, with partial sources and results, second
// destinations and any alignment, on every target of this processor, bit for bit against the reference.
#include <gtest/gtest.h>

#include <algorithm>

#include "reduce_data.hpp"

namespace {

using namespace reduce_test;
using isthmus::reduce::LocalReduction;
using isthmus::reduce::Source;

struct Case {
  DType dtype;
  RedOp op;
  size_t sources, count;
  std::vector<uint32_t> groups;
  bool partial_in, partial_out, copy, stream, in_place;
  uint64_t divisor;
  bool stream_dst = false;

  std::string text() const {
    std::string s = std::string(isthmus::dtype_name(dtype)) + " " + isthmus::redop_name(op) +
                    " sources=" + std::to_string(sources) + " count=" + std::to_string(count) + " groups=";
    for (uint32_t g : groups) s += std::to_string(g) + ",";
    return s + (partial_in ? " partial_in" : "") + (partial_out ? " partial_out" : "") + (copy ? " copy" : "") +
           (stream ? " stream" : "") + (stream_dst ? " stream_dst" : "") + (in_place ? " in_place" : "") +
           " divisor=" + std::to_string(divisor);
  }
};

class EveryDType : public testing::TestWithParam<DType> {
 protected:
  std::mt19937_64 random_{static_cast<uint64_t>(GetParam()) + 1};
  std::vector<std::string> targets_ = targets();
  size_t reductions_ = 0;

  void TearDown() override {
    isthmus::reduce::force_target(nullptr);
    RecordProperty("reductions", std::to_string(reductions_));
  }

  size_t offset(size_t element) {
    switch (random_() % 3) {
      case 0: return 0;
      case 1: return random_() % (64 / element) * element;  // aligned as an array of the type is
      default: return random_() % 64;
    }
  }

  void check(const Case &c) {
    const size_t narrow = isthmus::dtype_size(c.dtype), wide = isthmus::dtype_size(isthmus::accumulator(c.dtype));
    std::vector<Buffer> data;
    std::vector<Source> sources;
    for (size_t k = 0; k < c.sources; ++k) {
      const bool partial = c.partial_in && random_() % 3 != 0;
      data.emplace_back(c.count * (partial ? wide : narrow), offset(narrow));
      fill(partial ? isthmus::accumulator(c.dtype) : c.dtype, data.back().data(), c.count, random_);
      if (partial && c.dtype == DType::Bool)
        for (size_t i = 0; i < c.count; ++i) data.back().data()[i] &= 1;
      const bool narrow_float = isthmus::accumulator(c.dtype) != c.dtype;
      const uint32_t weight = narrow_float && random_() % 3 == 0 ? 2u << random_() % 4 : 1;
      sources.push_back({data.back().data(), partial, weight});
    }
    const size_t out = c.count * (c.partial_out ? wide : narrow);
    Buffer expected(out, 0);
    LocalReduction task{c.dtype, c.op, sources, c.groups, expected.data(), nullptr, c.partial_out, c.divisor, false};
    reference::reduce(task, c.count);

    size_t place = sources.size();
    if (c.in_place)
      for (size_t k = 0; k < sources.size(); ++k)
        if (data[k].size() == out && (place == sources.size() || random_() % 2)) place = k;
    const std::vector<uint8_t> kept =
        place < data.size() ? std::vector<uint8_t>(data[place].data(), data[place].data() + out) : std::vector<uint8_t>();
    for (const std::string &target : targets_) {
      ASSERT_TRUE(isthmus::reduce::force_target(target.c_str()));
      Buffer dst(out, offset(narrow)), copy(out, offset(narrow));
      const bool inside = place < data.size(),
                 copy_inside = inside && c.copy && c.stream_dst;  // as where all_reduce is in place
      task.dst = inside && !copy_inside ? data[place].data() : dst.data();
      task.copy = copy_inside ? data[place].data() : c.copy ? copy.data() : nullptr;
      task.stream_copy = c.stream;
      task.stream_dst = c.stream_dst;
      isthmus::reduce::reduce(task, c.count);
      ++reductions_;
      ASSERT_EQ(first_difference(task.dst, expected.data(), out), out) << "dst on " << target << ": " << c.text();
      const size_t same = c.copy ? first_difference(task.copy, expected.data(), out) : out;
      ASSERT_EQ(same, out) << "copy on " << target << ": " << c.text();
      ASSERT_TRUE(dst.edges_intact() && copy.edges_intact()) << target << ": " << c.text();
      for (const Buffer &b : data) ASSERT_TRUE(b.edges_intact()) << target << ": " << c.text();
      if (inside) std::copy(kept.begin(), kept.end(), data[place].data());
    }
  }

  static size_t first_difference(const void *a, const void *b, size_t n) {
    const auto *x = static_cast<const uint8_t *>(a), *y = static_cast<const uint8_t *>(b);
    return static_cast<size_t>(std::mismatch(x, x + n, y).first - x);
  }

  std::vector<uint32_t> some_groups(size_t sources, int kind) {
    std::vector<uint32_t> ends;
    if (kind == 0) return ends;
    if (kind == 1) {  // random sizes, the first one sometimes empty
      for (size_t end = random_() % 2; end < sources; end += 1 + random_() % 4) ends.push_back(static_cast<uint32_t>(end));
    } else {  // halves
      ends.push_back(static_cast<uint32_t>((sources + 1) / 2));
    }
    ends.push_back(static_cast<uint32_t>(sources));
    return ends;
  }

  Case random_case(RedOp op, size_t sources, size_t count, int grouping) {
    const uint64_t r = random_();
    constexpr uint64_t divisors[] = {1, 2, 3, 7, 200, 70000};
    return {GetParam(),   op,           sources,        count,         some_groups(sources, grouping), (r & 1) != 0,
            (r & 6) == 6, (r & 8) != 0, (r & 24) == 24, (r & 32) != 0, divisors[(r >> 8) % 6]};
  }
};

TEST_P(EveryDType, ReducesLikeTheReferenceForSmallCounts) {
  for (int o = 0; o < isthmus::kRedOpCount; ++o) {
    const auto op = static_cast<RedOp>(o);
    if (!isthmus::combines(GetParam(), op)) continue;
    for (const size_t sources : {1, 2, 3, 5, 17})
      for (int grouping = 0; grouping < 3; ++grouping)
        for (size_t count = 0; count <= 67; ++count) {
          check(random_case(op, sources, count, grouping));
          if (HasFatalFailure()) return;
        }
  }
}

TEST_P(EveryDType, ReducesLikeTheReferenceAcrossBlocks) {
#if defined(__SANITIZE_ADDRESS__) || !defined(__x86_64__)
  constexpr unsigned kOneIn =
      3;  // slow: a count has two of the six ways to write, but each number of sources has all of them
#else
  constexpr unsigned kOneIn = 1;
#endif
  unsigned turn = 0;
  for (int o = 0; o < isthmus::kRedOpCount; ++o) {
    const auto op = static_cast<RedOp>(o);
    if (!isthmus::combines(GetParam(), op)) continue;
    for (const size_t sources : {1, 2, 4, 5, 17})
      for (const size_t count : {255, 1025, 8192, 20011}) {
        ++turn;
        // Up to 160 KiB of results, streamed or not, with a copy or without, whatever the other choices are.
        unsigned way = 0;
        for (const unsigned bits : {0, 1, 2, 3, 4, 6}) {
          if ((way++ + turn) % kOneIn != 0) continue;
          Case c = random_case(op, sources, sources == 17 ? count / 4 : count, static_cast<int>(random_() % 3));
          c.stream = bits & 1, c.stream_dst = bits & 2, c.copy = !(bits & 4);
          check(c);
          if (HasFatalFailure()) return;
        }
      }
  }
}

TEST_P(EveryDType, EveryCombinationOfPartialCopyAndPlaceIsTaken) {
  for (int o = 0; o < isthmus::kRedOpCount; ++o) {
    const auto op = static_cast<RedOp>(o);
    if (!isthmus::combines(GetParam(), op)) continue;
    for (const size_t sources : {2, 3, 5})
      for (unsigned bits = 0; bits < 32; ++bits) {
        Case c = random_case(op, sources, 37 + bits, static_cast<int>(bits % 3));
        c.partial_in = bits & 1, c.partial_out = bits & 2, c.copy = bits & 4, c.stream = bits & 8, c.in_place = bits & 16;
        c.divisor = 3;
        check(c);
        if (HasFatalFailure()) return;
      }
  }
}

// Split anywhere, a range gives the same bits: what pools of threads and chunked messages rely on.
TEST_P(EveryDType, SplitsOfTheRangeGiveTheSameBits) {
  const DType t = GetParam();
  const size_t size = isthmus::dtype_size(t), count = 3000;
  const RedOp op = t == DType::Bool ? RedOp::Sum : RedOp::Avg;
  std::vector<Buffer> data;
  std::vector<Source> sources;
  for (int k = 0; k < 6; ++k) {
    data.emplace_back(count * size, 0);
    fill(t, data.back().data(), count, random_);
    sources.push_back({data.back().data(), false});
  }
  const uint32_t groups[] = {2, 6};
  Buffer whole(count * size, 0), parts(count * size, 0);
  isthmus::reduce::reduce({t, op, sources, groups, whole.data(), nullptr, false, 6, false}, count);
  for (size_t begin = 0; begin < count;) {
    const size_t n = std::min<size_t>(count - begin, 1 + random_() % 400);
    std::vector<Source> part;
    for (const Source &s : sources) part.push_back({static_cast<const uint8_t *>(s.data) + begin * size, false});
    isthmus::reduce::reduce({t, op, part, groups, parts.data() + begin * size, nullptr, false, 6, false}, n);
    begin += n;
  }
  EXPECT_EQ(first_difference(whole.data(), parts.data(), count * size), count * size);
}

std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (int t = 0; t < isthmus::kDTypeCount; ++t) all.push_back(static_cast<DType>(t));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Reduce, EveryDType, testing::ValuesIn(all_dtypes()),
                         [](const auto &param) { return std::string(isthmus::dtype_name(param.param)); });

}  // namespace
