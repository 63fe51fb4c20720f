// Every dtype and op through the engine, with ranks as threads: each pair that combines, with the collectives in turn, so that every
// two of (dtype, op, collective) meet on each path that data can take. Results are compared bit for bit with reduce_reference.hpp.
// The sanitizers' builds run this too: it is where they see every kernel with the engine around it.
#include "engine_support.hpp"
#include "matrix_data.hpp"

#include <algorithm>

namespace isthmus::test {
namespace {

using matrix::before;
using matrix::Data;
using matrix::shares;
constexpr uint8_t kPattern = 0x5b;  // behind every output

enum Reducing { kAllReduce, kAllReduceInPlace, kReduce, kReduceScatter, kReduceScatterV, kReducings };
enum Moving {
  kBroadcast,
  kAllGather,
  kAllGatherV,
  kAllToAll,
  kAllToAllV,
  kGather,
  kGatherV,
  kScatter,
  kScatterV,
  kSendRecv,
  kMovings
};

struct Case {
  DType dtype;
  RedOp op = RedOp::Sum;
  int collective = 0;  // Reducing or Moving
  uint64_t count = 0;  // elements of a block
  int root = 0;
  std::vector<Data> given{};  // by rank; a reduction: elements to be reduced, else world blocks of count elements
  Data expected{};            // a reduction: the reduction of all of them
};

isthmus_dtype c_dtype(DType t) { return static_cast<isthmus_dtype>(t); }
isthmus_redop c_redop(RedOp op) { return static_cast<isthmus_redop>(op); }

std::vector<std::vector<int>> islands_of(const Shape &shape) {
  std::vector<std::string> labels(static_cast<size_t>(shape.world));
  for (size_t r = 0; r < shape.islands.size(); ++r) labels[r] = shape.islands[r];
  return matrix::islands_of(labels);
}

class EveryType : public testing::TestWithParam<Shape> {
 protected:
  std::mt19937_64 random_{20240607};
  const uint64_t world_ = static_cast<uint64_t>(GetParam().world);

  Case make(DType t, RedOp op, int collective, uint64_t count, uint64_t elements) {
    Case c{t, op, collective, count, static_cast<int>(count % world_), {}, {}};
    for (uint64_t r = 0; r < world_; ++r) {
      c.given.emplace_back(elements * dtype_size(t));
      matrix::fill(t, c.given.back(), random_);
    }
    return c;
  }

  // Runs the cases in order on all ranks. `act` fills `out` (at its end a pattern that must survive) and says what must be there.
  template <class Act>
  void run(const std::vector<Case> &cases, Act act) {
    on_ranks(GetParam(), [&](isthmus_comm_t comm, int rank) {
      for (const Case &c : cases) {
        SCOPED_TRACE(std::string(dtype_name(c.dtype)) + " " + redop_name(c.op) + ", collective " +
                     std::to_string(c.collective) + ", count " + std::to_string(c.count) + ", rank " + std::to_string(rank));
        const size_t whole = c.given[0].size() * world_;
        Data out(whole + 16, kPattern), expected(whole + 16, kPattern);
        act(comm, rank, c, out, expected);
        const auto differs = std::mismatch(out.begin(), out.end(), expected.begin()).first;
        ASSERT_EQ(differs - out.begin(), static_cast<ptrdiff_t>(out.size())) << "the first byte that is wrong";
      }
    });
  }
};

TEST_P(EveryType, ReducesWithEveryOpAsTheReferenceDoes) {
  std::vector<Case> pairs;  // dtype, op, collective: every two of them meet
  const auto met = [&](auto what) { return std::any_of(pairs.begin(), pairs.end(), what); };
  const auto each = [](int n, auto what) {
    for (int i = 0; i < n; ++i) what(i);
  };
  each(kDTypeCount, [&](int t) {
    each(kRedOpCount, [&](int o) {
      if (combines(static_cast<DType>(t), static_cast<RedOp>(o)))
        pairs.push_back({static_cast<DType>(t), static_cast<RedOp>(o), static_cast<int>(pairs.size()) % kReducings});
    });
  });
  ASSERT_EQ(pairs.size(), 121u);
  each(kReducings, [&](int k) {
    each(kDTypeCount, [&](int t) {
      const auto dtype = static_cast<DType>(t);
      if (!met([&](const Case &c) { return c.dtype == dtype && c.collective == k; }))
        pairs.push_back({dtype, RedOp::Sum, k});
    });
    each(kRedOpCount, [&](int o) {
      const auto op = static_cast<RedOp>(o);
      if (!met([&](const Case &c) { return c.op == op && c.collective == k; }))
        pairs.push_back({combines(DType::Int32, op) ? DType::Int32 : DType::Float16, op, k});
    });
  });
  std::vector<Case> cases;
  for (const Case &p : pairs)
    for (const uint64_t size : {uint64_t{11}, uint64_t{603}}) {  // one hop where there is memory; a pipeline of chunks
      const bool scattered = p.collective == kReduceScatter || p.collective == kReduceScatterV;
      const uint64_t count = scattered ? size : size * world_ + 1;
      uint64_t elements = count;
      if (p.collective == kReduceScatter) elements = count * world_;
      if (p.collective == kReduceScatterV) elements = before(shares(GetParam().world, 2 * count), GetParam().world);
      cases.push_back(make(p.dtype, p.op, p.collective, count, elements));
      Case &made = cases.back();
      made.expected = matrix::reduced(islands_of(GetParam()), made.dtype, made.op, made.given, elements);
    }

  run(cases, [&](isthmus_comm_t comm, int rank, const Case &c, Data &out, Data &expected) {
    const auto me = static_cast<uint64_t>(rank);
    const size_t size = dtype_size(c.dtype);
    const Data &in = c.given[me];
    isthmus_call call = ISTHMUS_CALL_INIT;
    call.scale = matrix::factor(rank);
    call.factor = matrix::whole_factor(rank);
    const auto expect = [&](size_t from, size_t bytes) {
      std::copy_n(c.expected.begin() + static_cast<ptrdiff_t>(from), bytes, expected.begin());
    };
    const isthmus_dtype t = c_dtype(c.dtype);
    const isthmus_redop op = c_redop(c.op);
    switch (c.collective) {
      case kAllReduce:
        expect(0, c.count * size);
        ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, in.data(), out.data(), c.count, t, op, &call, nullptr));
        break;
      case kAllReduceInPlace:
        expect(0, c.count * size);
        std::copy(in.begin(), in.end(), out.begin());
        ISTHMUS_OK_OR_SAY(isthmus_all_reduce(comm, out.data(), out.data(), c.count, t, op, &call, nullptr));
        break;
      case kReduce:
        if (rank == c.root) expect(0, c.count * size);
        ISTHMUS_OK_OR_SAY(isthmus_reduce(comm, in.data(), out.data(), c.count, t, op, c.root, &call, nullptr));
        break;
      case kReduceScatter:
        expect(me * c.count * size, c.count * size);
        ISTHMUS_OK_OR_SAY(isthmus_reduce_scatter(comm, in.data(), out.data(), c.count, t, op, &call, nullptr));
        break;
      default: {
        const auto counts = shares(GetParam().world, 2 * c.count);
        expect(before(counts, rank) * size, counts[me] * size);
        ISTHMUS_OK_OR_SAY(
            isthmus_reduce_scatter_v(comm, in.data(), out.data(), counts.data(), nullptr, t, op, &call, nullptr));
      }
    }
  });
}

TEST_P(EveryType, MovesWithoutAChange) {
  std::vector<Case> cases;
  for (int t = 0; t < kDTypeCount; ++t)
    for (int k = 0; k < kMovings; ++k) {
      const uint64_t count = (t + k) % 2 == 0 ? 11 : 601;
      cases.push_back(make(static_cast<DType>(t), RedOp::Sum, k, count, count * world_));
    }
  const int world = GetParam().world;
  run(cases, [&](isthmus_comm_t comm, int rank, const Case &c, Data &out, Data &expected) {
    const auto me = static_cast<uint64_t>(rank);
    const size_t size = dtype_size(c.dtype);
    const uint64_t n = c.count;
    const Data &in = c.given[me];
    const isthmus_dtype t = c_dtype(c.dtype);
    const bool root = rank == c.root;
    size_t filled = 0;
    // The next `count` elements of the output are those that rank r has from element `from` on.
    const auto expect = [&](int r, uint64_t from, uint64_t count) {
      const Data &theirs = c.given[static_cast<size_t>(r)];
      std::copy_n(theirs.begin() + static_cast<ptrdiff_t>(from * size), count * size,
                  expected.begin() + static_cast<ptrdiff_t>(filled));
      filled += count * size;
    };
    const auto counts = shares(world, n);
    const auto between = [&](int from, int to) { return counts[static_cast<size_t>((from + to) % world)]; };
    switch (c.collective) {
      case kBroadcast:
        expect(c.root, 0, n);
        ISTHMUS_OK_OR_SAY(isthmus_broadcast(comm, in.data(), out.data(), n, t, c.root, nullptr, nullptr));
        break;
      case kAllGather:
        for (int r = 0; r < world; ++r) expect(r, 0, n);
        ISTHMUS_OK_OR_SAY(isthmus_all_gather(comm, in.data(), out.data(), n, t, nullptr, nullptr));
        break;
      case kAllGatherV:
        for (int r = 0; r < world; ++r) expect(r, 0, counts[static_cast<size_t>(r)]);
        ISTHMUS_OK_OR_SAY(isthmus_all_gather_v(comm, in.data(), out.data(), counts.data(), nullptr, t, nullptr, nullptr));
        break;
      case kAllToAll:
        for (int r = 0; r < world; ++r) expect(r, me * n, n);
        ISTHMUS_OK_OR_SAY(isthmus_all_to_all(comm, in.data(), out.data(), n, t, nullptr, nullptr));
        break;
      case kAllToAllV: {
        std::vector<uint64_t> mine;
        for (int r = 0; r < world; ++r) {
          uint64_t from = 0;
          for (int d = 0; d < rank; ++d) from += between(r, d);
          expect(r, from, between(r, rank));
          mine.push_back(between(rank, r));  // as much as comes back
        }
        ISTHMUS_OK_OR_SAY(isthmus_all_to_all_v(comm, in.data(), mine.data(), nullptr, out.data(), mine.data(), nullptr, t,
                                               nullptr, nullptr));
        break;
      }
      case kGather:
        for (int r = 0; r < world && root; ++r) expect(r, 0, n);
        ISTHMUS_OK_OR_SAY(isthmus_gather(comm, in.data(), out.data(), n, t, c.root, nullptr, nullptr));
        break;
      case kGatherV:
        for (int r = 0; r < world && root; ++r) expect(r, 0, counts[static_cast<size_t>(r)]);
        ISTHMUS_OK_OR_SAY(
            isthmus_gather_v(comm, in.data(), out.data(), counts.data(), nullptr, t, c.root, nullptr, nullptr));
        break;
      case kScatter:
        expect(c.root, me * n, n);
        ISTHMUS_OK_OR_SAY(isthmus_scatter(comm, in.data(), out.data(), n, t, c.root, nullptr, nullptr));
        break;
      case kScatterV:
        expect(c.root, before(counts, rank), counts[me]);
        ISTHMUS_OK_OR_SAY(
            isthmus_scatter_v(comm, in.data(), out.data(), counts.data(), nullptr, t, c.root, nullptr, nullptr));
        break;
      default:
        expect((rank + world - 1) % world, 0, n);
        ISTHMUS_OK_OR_SAY(isthmus_group_begin());
        ISTHMUS_OK_OR_SAY(isthmus_send(comm, in.data(), n, t, (rank + 1) % world, 0, nullptr, nullptr));
        ISTHMUS_OK_OR_SAY(isthmus_recv(comm, out.data(), n, t, (rank + world - 1) % world, 0, nullptr, nullptr, nullptr));
        ISTHMUS_OK_OR_SAY(isthmus_group_end(nullptr));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    , EveryType,
    testing::Values(Shape{"flat", 3, {}, nullptr, "EAGER_BYTES=1K;CHUNK_BYTES=4K"},
                    Shape{"flat_islands", 4, {"a", "b", "b", "a"}, "shm", "EAGER_BYTES=1K;CHUNK_BYTES=4K"},
                    Shape{"tcp_three_islands", 5, {"a", "b", "c", "b", "a"}, "tcp", "EAGER_BYTES=1K;CHUNK_BYTES=4K"}),
    [](const auto &tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace isthmus::test
