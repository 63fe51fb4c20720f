// Every collective, and messages, with every dtype and op, over rehearsed fleets of every shape: vendors alone and together, islands of
// their libraries, interleaved ranks, by shared memory and over TCP. Results are compared bit for bit with reduce_reference.hpp, and the
// memory around them with what it was. The sanitizers' builds run this: it is where they see the devices' side with the engine around it.
//
// A flight, one shape on one bridge, makes every seventh combination, and each begins at another, so that each combination occurs in
// several shapes, and each shape has every collective, dtype and op. EveryCombinationAndEveryShapeOccurs holds that. And every collective
// with every dtype occurs once so long that each slot is used again.
#include "fleet.hpp"
#include "matrix_data.hpp"

#include <nlohmann/json.hpp>
#include <random>
#include <set>

// Under ThreadSanitizer, whose exits take a second each otherwise.
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options();
extern "C" const char *__tsan_default_options() { return "atexit_sleep_ms=20"; }

namespace isthmus_test {
namespace {

using isthmus::DType;
using isthmus::dtype_size;
using isthmus::RedOp;
using matrix::before;
using matrix::Data;

enum Kind {
  AllReduce,
  Reduce,
  ReduceScatter,
  ReduceScatterV,
  Broadcast,
  AllGather,
  AllGatherV,
  AllToAll,
  AllToAllV,
  Gather,
  GatherV,
  Scatter,
  ScatterV,
  SendRecv,
  kKinds
};
constexpr const char *kNames[kKinds] = {"all_reduce", "reduce",       "reduce_scatter", "reduce_scatter_v", "broadcast",
                                        "all_gather", "all_gather_v", "all_to_all",     "all_to_all_v",     "gather",
                                        "gather_v",   "scatter",      "scatter_v",      "send and recv"};
bool reduces(Kind k) { return k <= ReduceScatterV; }
bool rooted(Kind k) { return k == Reduce || k == Broadcast || k == Gather || k == GatherV || k == Scatter || k == ScatterV; }

struct Shape {
  const char *name, *fleet;
  bool libraries = true;
};
constexpr Shape kShapes[] = {
    {"OneAndOne", "nvidia:1,cpu:1"},
    {"TwoVendors", "amd:1,nvidia:1"},
    {"AnIslandOfNvidia", "nvidia:3"},
    {"AnIslandOfAmdAndTheHost", "amd:2,cpu:1"},
    {"AnIslandOfAscendAndNvidia", "ascend:2,nvidia:1"},
    {"AnIslandOfAscendBesideTheHost", "cpu:1,ascend:2"},
    {"ThreeOneTwoInterleaved", "nvidia:1,ascend:1,nvidia:1,amd:1,ascend:1,nvidia:1"},
    {"FourVendors", "nvidia:2,amd:2,ascend:2,cpu:1"},
    {"FourVendorsOneEach", "cpu:1,ascend:1,amd:1,nvidia:1"},
    {"TheHostBetween", "nvidia:1,cpu:1,nvidia:1"},
    {"TwoIslandsOfOneVendor", "nvidia:1@a,nvidia:1@b,nvidia:1@a,nvidia:1@b,cpu:1"},
    {"ThreeAndTwo", "amd:3,nvidia:2"},
    // Nothing is added by a vendor, so the numbers may be any, and the order is known: docs/explain/numbers.md.
    {"WithoutLibraries", "nvidia:1,cpu:1,nvidia:1,amd:1", false},
    {"WithoutLibrariesAndGates", "ascend:1@a,amd:1@b,ascend:1@a,cpu:1@b", false},
};
constexpr const char *kBridges[] = {"shm", "tcp"};
constexpr size_t kStride = 7;  // of the combinations that one flight makes

// ---- the combinations -------------------------------------------------------------------------------------------------------------

struct Cell {
  Kind kind;
  DType dtype;
  RedOp op = RedOp::Sum;
  auto operator<=>(const Cell &) const = default;
};
std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  for (int k = 0; k < kKinds; ++k)
    for (int t = 0; t < isthmus::kDTypeCount; ++t) {
      const auto kind = static_cast<Kind>(k);
      const auto dtype = static_cast<DType>(t);
      if (!reduces(kind)) {
        cells.push_back({kind, dtype});
        continue;
      }
      for (int o = 0; o < isthmus::kRedOpCount; ++o)
        if (isthmus::combines(dtype, static_cast<RedOp>(o))) cells.push_back({kind, dtype, static_cast<RedOp>(o)});
    }
  return cells;
}
std::vector<Cell> cells_of(size_t flight) {
  const std::vector<Cell> all = all_cells();
  std::vector<Cell> mine;
  for (size_t i = flight % kStride; i < all.size(); i += kStride) mine.push_back(all[i]);
  return mine;
}

// Those of one flight that are long.
std::vector<Cell> long_cells_of(size_t flight) {
  constexpr size_t kFlights = std::size(kShapes) * std::size(kBridges);
  std::vector<Cell> mine;
  for (size_t i = flight; i < size_t{kKinds} * isthmus::kDTypeCount; i += kFlights)
    mine.push_back({static_cast<Kind>(i / isthmus::kDTypeCount), static_cast<DType>(i % isthmus::kDTypeCount)});
  return mine;
}

TEST(FleetMatrix, EveryCollectiveIsLongWithEveryDtype) {
  std::set<Cell> cells;
  for (size_t f = 0; f < std::size(kShapes) * std::size(kBridges); ++f)
    for (const Cell &c : long_cells_of(f)) EXPECT_TRUE(cells.insert(c).second);
  EXPECT_EQ(cells.size(), size_t{kKinds} * isthmus::kDTypeCount);
}

TEST(FleetMatrix, EveryCombinationAndEveryShapeOccurs) {
  std::map<Cell, std::set<size_t>> shapes;
  for (size_t s = 0; s < std::size(kShapes); ++s) {
    std::set<Kind> kinds;
    std::set<DType> dtypes;
    std::set<RedOp> ops;
    for (size_t b = 0; b < std::size(kBridges); ++b)
      for (const Cell &c : cells_of(s * std::size(kBridges) + b)) {
        shapes[c].insert(s);
        kinds.insert(c.kind);
        dtypes.insert(c.dtype);
        ops.insert(c.op);
      }
    EXPECT_EQ(kinds.size(), static_cast<size_t>(kKinds)) << kShapes[s].name;
    EXPECT_EQ(dtypes.size(), static_cast<size_t>(isthmus::kDTypeCount)) << kShapes[s].name;
    EXPECT_EQ(ops.size(), static_cast<size_t>(isthmus::kRedOpCount)) << kShapes[s].name;
  }
  EXPECT_EQ(shapes.size(), 4 * 121u + 10 * 17u);
  for (const auto &[cell, where] : shapes) EXPECT_GE(where.size(), 3u) << kNames[cell.kind];
}

// ---- one combination --------------------------------------------------------------------------------------------------------------

struct Case : Cell {
  int world = 1, root = 0, number = 0;
  uint64_t count = 0;  // elements of a block
  bool in_place = false, is_long = false;
  std::vector<uint64_t> counts{};  // of the ranks' blocks
  std::vector<Data> given{};       // by rank
  Data reduced{};
  matrix::Factors factors = matrix::Factors::Any;

  uint64_t between(int from, int to) const {  // elements that one rank gives another, of all_to_all
    return kind == AllToAll ? count : counts[static_cast<size_t>((from + to) % world)];
  }
  uint64_t sent(int rank) const {
    uint64_t sum = 0;
    switch (kind) {
      case ReduceScatter:
      case ReduceScatterV:
      case Scatter:
      case ScatterV: return before(counts, world);
      case AllGather:
      case AllGatherV:
      case Gather:
      case GatherV: return counts[static_cast<size_t>(rank)];
      case AllToAll:
      case AllToAllV:
        for (int d = 0; d < world; ++d) sum += between(rank, d);
        return sum;
      default: return count;
    }
  }
  uint64_t received(int rank) const {
    switch (kind) {
      case ReduceScatter:
      case ReduceScatterV:
      case Scatter:
      case ScatterV: return counts[static_cast<size_t>(rank)];
      case AllGather:
      case AllGatherV:
      case Gather:
      case GatherV: return before(counts, world);
      default: return sent(rank);  // as much comes back
    }
  }
  bool reads(int rank) const { return !rooted(kind) || kind == Reduce || kind == Gather || kind == GatherV || rank == root; }
  bool writes(int rank) const {
    return !rooted(kind) || kind == Broadcast || kind == Scatter || kind == ScatterV || rank == root;
  }
  // What the rank has then.
  Data result(int rank) const {
    const size_t size = dtype_size(dtype);
    Data out;
    const auto add = [&](const Data &from, uint64_t at, uint64_t elements) {
      out.insert(out.end(), from.begin() + static_cast<long>(at * size),
                 from.begin() + static_cast<long>((at + elements) * size));
    };
    switch (kind) {
      case AllReduce:
      case Reduce: add(reduced, 0, count); break;
      case ReduceScatter:
      case ReduceScatterV: add(reduced, before(counts, rank), received(rank)); break;
      case Broadcast: add(given[static_cast<size_t>(root)], 0, count); break;
      case Scatter:
      case ScatterV: add(given[static_cast<size_t>(root)], before(counts, rank), received(rank)); break;
      case SendRecv: add(given[static_cast<size_t>((rank + world - 1) % world)], 0, count); break;
      case AllToAll:
      case AllToAllV:
        for (int s = 0; s < world; ++s) {
          uint64_t at = 0;
          for (int d = 0; d < rank; ++d) at += between(s, d);
          add(given[static_cast<size_t>(s)], at, between(s, rank));
        }
        break;
      default:
        for (int s = 0; s < world; ++s) add(given[static_cast<size_t>(s)], 0, counts[static_cast<size_t>(s)]);
    }
    return out;
  }
  std::string text() const {
    return std::string(kNames[kind]) + " of " + std::to_string(count) + " " + isthmus::dtype_name(dtype) + ", " +
           isthmus::redop_name(op) + ", root " + std::to_string(root) + (in_place ? ", in place" : "");
  }
};

Case make_case(const Cell &cell, const Shape &shape, int number, bool is_long = false) {
  constexpr uint64_t kCounts[] = {603, 11, 130, 1};
  const auto ranks = ranks_of(shape.fleet);
  Case c{cell};
  c.world = static_cast<int>(ranks.size());
  c.number = number;
  c.is_long = is_long;
  c.count = is_long ? 420'000 / dtype_size(cell.dtype) : kCounts[number % 4];
  c.root = number % c.world;
  c.in_place = number % 3 == 1 && cell.kind != AllToAllV && cell.kind != SendRecv;
  const bool unequal = cell.kind == ReduceScatterV || cell.kind == AllGatherV || cell.kind == GatherV ||
                       cell.kind == ScatterV || cell.kind == AllToAllV;
  c.counts = unequal ? matrix::shares(c.world, 2 * c.count) : std::vector<uint64_t>(ranks.size(), c.count);
  if (cell.kind == AllReduce || cell.kind == Reduce) c.count = c.count * (is_long ? 1 : static_cast<uint64_t>(c.world)) + 1;
  std::mt19937_64 random(static_cast<uint64_t>(number) + 1);
  std::vector<std::string> labels;
  for (const FleetRank &r : ranks) {
    labels.push_back(r.island);
    Data data(c.sent(r.rank) * dtype_size(c.dtype));
    if (shape.libraries && reduces(c.kind)) matrix::fill_exactly(c.dtype, c.op, data, random);
    else matrix::fill(c.dtype, data, random);
    c.given.push_back(std::move(data));
  }
  c.factors = shape.libraries ? matrix::Factors::Exact : matrix::Factors::Any;
  if (reduces(c.kind)) c.reduced = matrix::reduced(matrix::islands_of(labels), c.dtype, c.op, c.given, c.sent(0), c.factors);
  return c;
}

isthmus_result call(const FleetRank &r, const Case &c, const void *in, void *out, const isthmus_call *how) {
  const auto t = static_cast<isthmus_dtype>(c.dtype);
  const auto op = static_cast<isthmus_redop>(c.op);
  const uint64_t *const counts = c.counts.data();
  switch (c.kind) {
    case AllReduce: return isthmus_all_reduce(r.comm, in, out, c.count, t, op, how, nullptr);
    case Reduce: return isthmus_reduce(r.comm, in, out, c.count, t, op, c.root, how, nullptr);
    case ReduceScatter: return isthmus_reduce_scatter(r.comm, in, out, c.count, t, op, how, nullptr);
    case ReduceScatterV: return isthmus_reduce_scatter_v(r.comm, in, out, counts, nullptr, t, op, how, nullptr);
    case Broadcast: return isthmus_broadcast(r.comm, in, out, c.count, t, c.root, how, nullptr);
    case AllGather: return isthmus_all_gather(r.comm, in, out, c.count, t, how, nullptr);
    case AllGatherV: return isthmus_all_gather_v(r.comm, in, out, counts, nullptr, t, how, nullptr);
    case AllToAll: return isthmus_all_to_all(r.comm, in, out, c.count, t, how, nullptr);
    case AllToAllV: {
      std::vector<uint64_t> mine;
      for (int q = 0; q < c.world; ++q) mine.push_back(c.between(r.rank, q));  // as much as comes back
      return isthmus_all_to_all_v(r.comm, in, mine.data(), nullptr, out, mine.data(), nullptr, t, how, nullptr);
    }
    case Gather: return isthmus_gather(r.comm, in, out, c.count, t, c.root, how, nullptr);
    case GatherV: return isthmus_gather_v(r.comm, in, out, counts, nullptr, t, c.root, how, nullptr);
    case Scatter: return isthmus_scatter(r.comm, in, out, c.count, t, c.root, how, nullptr);
    case ScatterV: return isthmus_scatter_v(r.comm, in, out, counts, nullptr, t, c.root, how, nullptr);
    default: {
      const int next = (r.rank + 1) % c.world, last = (r.rank + c.world - 1) % c.world, tag = c.number % 2 * 7;
      if (const auto failed = isthmus_group_begin()) return failed;
      isthmus_recv(r.comm, out, c.count, t, last, tag, nullptr, how, nullptr);
      isthmus_send(r.comm, in, c.count, t, next, tag, how, nullptr);
      return isthmus_group_end(nullptr);
    }
  }
}

// Both lie in one piece of memory, not at its beginning, with something between and behind that must survive.
void run(const FleetRank &r, const Case &c, FleetMemory &memory, void *stream) {
  const size_t size = dtype_size(c.dtype);
  const uint64_t in = c.sent(r.rank), out = c.received(r.rank);
  const bool in_place = c.in_place && c.reads(r.rank) && c.writes(r.rank), on_host = c.number % 5 == 4;
  uint64_t send = 1, recv = 1 + in + 3;
  if (in_place) {
    recv = 1;
    if (out > in) send += before(c.counts, r.rank);
    if (out < in) recv += before(c.counts, r.rank);
  }
  Data expected((std::max(send + in, recv + out) + 2) * size, 0x5b);
  const Data &given = c.given[static_cast<size_t>(r.rank)];
  if (c.reads(r.rank)) std::copy(given.begin(), given.end(), expected.begin() + static_cast<long>(send * size));
  memory.put(on_host, expected.data(), expected.size());
  isthmus_call how = ISTHMUS_CALL_INIT;
  how.scale = matrix::factor(r.rank, c.factors);
  how.factor = matrix::whole_factor(r.rank);
  how.on_stream = stream && !on_host && c.number % 2 == 0 ? ISTHMUS_STREAM_BOTH : ISTHMUS_STREAM_NONE;
  how.stream = stream;
  FLEET_MUST(r, call(r, c, c.reads(r.rank) ? memory.at(on_host, send * size) : nullptr,
                     c.writes(r.rank) ? memory.at(on_host, recv * size) : nullptr, &how) == ISTHMUS_OK);
  if (how.on_stream != ISTHMUS_STREAM_NONE) r.driver->synchronize(stream);
  Data got(expected.size());
  memory.get(on_host, got.data(), got.size());
  if (c.writes(r.rank)) {
    // In place, the blocks that other ranks get are free to change.
    if (in_place && out < in)
      std::copy_n(got.begin() + static_cast<long>(send * size), in * size,
                  expected.begin() + static_cast<long>(send * size));
    const Data result = c.result(r.rank);
    std::copy(result.begin(), result.end(), expected.begin() + static_cast<long>(recv * size));
  }
  if (got == expected) return;
  const auto differs = std::mismatch(got.begin(), got.end(), expected.begin()).first - got.begin();
  ADD_FAILURE() << c.text() << ": byte " << differs << " of the memory is wrong, " << send * size << " in, " << recv * size
                << " out";
  FLEET_MUST(r, got == expected);
}

// It goes through slots, in so many chunks that each slot is used again, where the plan says in how many.
void expect_slots_used_again(const FleetRank &r, const Case &c) {
  if (!c.is_long || c.kind == SendRecv) return;
  char *json = nullptr;
  FLEET_MUST(r, isthmus_comm_explain(r.comm, kNames[c.kind], c.count, static_cast<isthmus_dtype>(c.dtype),
                                     static_cast<isthmus_redop>(c.op), c.root, &json) == ISTHMUS_OK);
  const auto plan = nlohmann::json::parse(json);
  isthmus_free(json);
  const auto chunks = plan["chunks"].get<uint64_t>(), slots = plan["slots"].get<uint64_t>();
  if (chunks > 0 && slots > 0) { EXPECT_GE(chunks, 2 * slots) << c.text(); }
}

// Every island of two and more has its vendor's library, and between islands goes what was asked for.
void expect_ways(const FleetRank &r, const Shape &shape, const std::string &bridge) {
  char *json = nullptr;
  FLEET_MUST(r, isthmus_comm_topology(r.comm, &json) == ISTHMUS_OK);
  const auto topology = nlohmann::json::parse(json);
  isthmus_free(json);
  const auto ranks = ranks_of(shape.fleet);
  for (const auto &group : topology["groups"]) {
    const Vendor *const vendor = ranks.at(group["ranks"][0].get<size_t>()).vendor;
    if (group["ranks"].size() == 1) continue;
    EXPECT_EQ(group["ccl"], shape.libraries && vendor ? vendor->family : "") << topology.dump(1);
  }
  for (const auto &link : topology["links"]) {
    const FleetRank &q = ranks.at(link["to"].get<size_t>());
    EXPECT_EQ(link["kind"] == "tcp", bridge == "tcp" && q.island != r.island && q.process != r.process) << topology.dump(1);
  }
}

// ---- the flights ------------------------------------------------------------------------------------------------------------------

class FleetMatrices : public testing::TestWithParam<size_t> {};

TEST_P(FleetMatrices, AreTheReferences) {
  const Shape &shape = kShapes[GetParam() / std::size(kBridges)];
  std::vector<Case> cases;
  size_t largest = 0;
  FleetOptions options;
  options.bridge = kBridges[GetParam() % std::size(kBridges)];
  // Half of the operations in one hop, or whole, where there is memory; the others in a pipeline of chunks.
  options.settings = std::string("EAGER_BYTES=1K;CHUNK_BYTES=4K") + (shape.libraries ? "" : ";CCL=none");
  fly(
      shape.fleet, options,
      [&](FleetRank &r) {
        expect_ways(r, shape, options.bridge);
        FleetMemory memory(r, largest);
        void *const stream = r.driver ? r.driver->stream() : nullptr;
        for (const Case &c : cases) {
          SCOPED_TRACE(c.text());
          expect_slots_used_again(r, c);
          run(r, c, memory, stream);
        }
        FLEET_MUST(r, isthmus_barrier(r.comm, nullptr, nullptr) == ISTHMUS_OK);
        if (stream) r.driver->end(stream);
      },
      [&] {
        int number = static_cast<int>(GetParam());
        const auto add = [&](const Cell &cell, bool is_long) {
          cases.push_back(make_case(cell, shape, number++, is_long));
          for (int q = 0; q < cases.back().world; ++q)
            largest =
                std::max<size_t>(largest, (cases.back().sent(q) + cases.back().received(q) + 8) * dtype_size(cell.dtype));
        };
        for (const Cell &cell : cells_of(GetParam())) add(cell, false);
        for (const Cell &cell : long_cells_of(GetParam())) add(cell, true);
      });
}

INSTANTIATE_TEST_SUITE_P(, FleetMatrices, testing::Range(size_t{0}, std::size(kShapes) * std::size(kBridges)),
                         [](const auto &p) {
                           return std::string(kShapes[p.param / 2].name) + (p.param % 2 ? "OverTcp" : "InSharedMemory");
                         });

}  // namespace
}  // namespace isthmus_test

int main(int argc, char **argv) {
  ::setenv("REHEARSAL_DEVICES", "4", 1);
  ::setenv("REHEARSAL_QUIET", "1", 1);
  ::setenv("REHEARSAL_GFX", "950", 1);  // whose float8 is everybody's
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
