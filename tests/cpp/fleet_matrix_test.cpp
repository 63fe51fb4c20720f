// Every collective, and messages, with every dtype and op, over rehearsed fleets of every shape: vendors alone and together, islands of
// their libraries, interleaved ranks, one host and two, by shared memory and over TCP. Each case has a way of its own (matrix_case.hpp): memory
// of the device, of the host and pinned, with the program's stream and without, in several chunks and in one, tags, two communicators, alone and
// beside another operation, on devices of one hardware queue and of several. Results are compared bit for bit with reduce_reference.hpp, and the
// memory around them with what it was. The sanitizers' builds run this: it is where they see the devices' side with the engine around it.
//
// A flight is one shape on one bridge. `make test-all` makes every combination in every flight, without sanitizers. Else a flight makes every
// seventh one, and the commit chooses with which it begins (SUITE_SHARE): each combination occurs in several shapes, each shape has every
// collective, dtype and op, and seven shares are the whole. EveryCombinationAndEveryShapeOccurs and SevenSharesAreTheWhole hold that.
// And every collective with every dtype occurs once so long that each slot is used again.
#include "matrix_case.hpp"

#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "second_host.hpp"

// Under ThreadSanitizer, whose exits take a second each otherwise.
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options();
extern "C" const char *__tsan_default_options() { return "atexit_sleep_ms=20"; }

namespace isthmus_test {
namespace {

struct Shape {
  const char *name, *fleet;
  bool libraries = true;
  const char *hosts = "";  // by rank, where it stands; empty: all on one
  std::vector<int> places() const {
    std::vector<int> out;
    for (const char *c = hosts; *c; ++c) out.push_back(*c - '0');
    return out;
  }
  std::vector<FleetRank> ranks() const { return ranks_of(fleet, places()); }
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
    // Islands that reach over the hosts, and islands of which each stands on one.
    {"TwoHostsTwoVendorsOnEach", "nvidia:1,amd:1,nvidia:1,amd:1", true, "0011"},
    {"TwoHostsIslandsOnOneEach", "nvidia:2@a,cpu:1@b,amd:2@c", true, "00011"},
};
constexpr const char *kBridges[] = {"shm", "tcp"};
constexpr size_t kFlights = std::size(kShapes) * std::size(kBridges);
constexpr size_t kStride = 7;          // of the combinations that one flight makes
constexpr int kQueues[] = {1, 4, 16};  // of hardware, of a device: what a flight's devices have

// ---- the combinations -------------------------------------------------------------------------------------------------------------

// Which part of the combinations this run makes.
struct Part {
  bool whole = false;
  size_t share = 0;
};
Part asked_for() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kSlow = true;
#else
  constexpr bool kSlow = false;
#endif
  const char *const share = std::getenv("SUITE_SHARE");
  // The lowest bits choose the flights (run.sh).
  if (share) return {false, std::strtoull(share, nullptr, 10) / 16 % kStride};
  return {!kSlow, 0};
}

// Their indices among all_cells().
std::vector<size_t> cells_of(size_t flight, Part part) {
  std::vector<size_t> mine;
  for (size_t i = part.whole ? 0 : (flight + part.share) % kStride; i < all_cells().size(); i += part.whole ? 1 : kStride)
    mine.push_back(i);
  return mine;
}

// Those of one flight that are long: of all of them, kind by kind, dtype by dtype.
constexpr size_t kLong = size_t{kKinds} * isthmus::kDTypeCount;
std::vector<size_t> long_cells_of(size_t flight, Part part) {
  std::vector<size_t> mine;
  for (size_t i = (flight + part.share) % kFlights; i < kLong; i += kFlights) mine.push_back(i);
  return mine;
}

// A case's number, by which it is the same in every part that has it.
int number_of(size_t flight, size_t index, bool is_long) {
  return static_cast<int>(flight * (all_cells().size() + kLong) + index + (is_long ? all_cells().size() : 0));
}

TEST(FleetMatrix, EveryCollectiveIsLongWithEveryDtype) {
  for (size_t share = 0; share < kStride; ++share) {
    std::set<size_t> cells;
    for (size_t f = 0; f < kFlights; ++f)
      for (const size_t i : long_cells_of(f, {false, share})) EXPECT_TRUE(cells.insert(i).second);
    EXPECT_EQ(cells.size(), kLong);
  }
}

TEST(FleetMatrix, EveryCombinationAndEveryShapeOccurs) {
  const std::vector<Cell> all = all_cells();
  EXPECT_EQ(all.size(), 4 * 121u + 10 * 17u);
  for (size_t share = 0; share < kStride; ++share) {
    std::map<size_t, std::set<size_t>> shapes;
    for (size_t s = 0; s < std::size(kShapes); ++s) {
      std::set<Kind> kinds;
      std::set<DType> dtypes;
      std::set<RedOp> ops;
      for (size_t b = 0; b < std::size(kBridges); ++b)
        for (const size_t i : cells_of(s * std::size(kBridges) + b, {false, share})) {
          shapes[i].insert(s);
          kinds.insert(all[i].kind);
          dtypes.insert(all[i].dtype);
          ops.insert(all[i].op);
        }
      EXPECT_EQ(kinds.size(), static_cast<size_t>(kKinds)) << kShapes[s].name;
      EXPECT_EQ(dtypes.size(), static_cast<size_t>(isthmus::kDTypeCount)) << kShapes[s].name;
      EXPECT_EQ(ops.size(), static_cast<size_t>(isthmus::kRedOpCount)) << kShapes[s].name;
    }
    EXPECT_EQ(shapes.size(), all.size());
    for (const auto &[cell, where] : shapes) EXPECT_GE(where.size(), 3u) << kNames[all[cell].kind];
  }
}

TEST(FleetMatrix, SevenSharesAreTheWhole) {
  for (size_t f = 0; f < kFlights; ++f) {
    std::multiset<size_t> shared;
    for (size_t share = 0; share < kStride; ++share)
      for (const size_t i : cells_of(f, {false, share})) shared.insert(i);
    const std::vector<size_t> whole = cells_of(f, {true, 0});
    EXPECT_EQ(whole.size(), all_cells().size());
    EXPECT_TRUE(std::equal(whole.begin(), whole.end(), shared.begin(), shared.end()));
  }
}

// In every share, of every collective and of messages.
TEST(FleetMatrix, EveryTwoWaysOfACallGoTogether) {
  const std::vector<Cell> all = all_cells();
  for (size_t share = 0; share < kStride; ++share) {
    std::map<Kind, std::set<std::array<int, 4>>> pairs;
    for (size_t f = 0; f < kFlights; ++f)
      for (const size_t i : cells_of(f, {false, share})) {
        const Way w = way_of(number_of(f, i, false));
        const int ways[] = {static_cast<int>(w.place),
                            w.on_stream,
                            w.second,
                            w.beside,
                            w.tag != 0,
                            w.count > 600,
                            static_cast<int>(f % std::size(kQueues))};
        for (int a = 0; a < static_cast<int>(std::size(ways)); ++a)
          for (int b = 0; b < a; ++b) pairs[all[i].kind].insert({a, ways[a], b, ways[b]});
      }
    // Three places and three numbers of queues, and five things that are so or not.
    constexpr size_t kPairs = 3 * 3 + 2 * (5 * 3 * 2) + 10 * 2 * 2;
    for (int k = 0; k < kKinds; ++k)
      EXPECT_EQ(pairs[static_cast<Kind>(k)].size(), kPairs) << kNames[k] << ", share " << share;
  }
}

// ---- one case ---------------------------------------------------------------------------------------------------------------------

// Where two operations may be in flight: a piece of memory and a communicator for each.
struct Lane {
  isthmus_comm_t comm = nullptr;
  FleetMemory *memory = nullptr;
};

// A case in flight. Its buffers lie in one piece of memory, not at its beginning, with something between and behind that must survive.
class Flying {
 public:
  Flying(const FleetRank &r, const Case &c, Lane lane, void *stream)
      : r_(r),
        c_(c),
        lane_(lane),
        stream_(c.way.on_stream ? stream : nullptr),
        size_(dtype_size(c.dtype)),
        in_(c.sent(r.rank)),
        out_(c.received(r.rank)),
        in_place_(c.in_place && c.reads(r.rank) && c.writes(r.rank)),
        recv_(1 + in_ + 3) {
    if (in_place_) {
      recv_ = 1;
      if (out_ > in_) send_ += before(c.counts, r.rank);
      if (out_ < in_) recv_ += before(c.counts, r.rank);
    }
    expected_.assign((std::max(send_ + in_, recv_ + out_) + 2) * size_, 0x5b);
  }

  // `waits`: the call does, where it has no stream.
  void begin(bool waits) {
    const Data &given = c_.given[static_cast<size_t>(r_.rank)];
    if (c_.reads(r_.rank)) std::copy(given.begin(), given.end(), expected_.begin() + static_cast<long>(send_ * size_));
    lane_.memory->put(c_.way.place, expected_.data(), expected_.size());
    isthmus_call how = ISTHMUS_CALL_INIT;
    how.scale = matrix::factor(r_.rank, c_.factors);
    how.factor = matrix::whole_factor(r_.rank);
    how.on_stream = stream_ ? ISTHMUS_STREAM_BOTH : ISTHMUS_STREAM_NONE;
    how.stream = stream_;
    FLEET_MUST(r_, call(r_, lane_.comm, c_, c_.reads(r_.rank) ? lane_.memory->at(c_.way.place, send_ * size_) : nullptr,
                        c_.writes(r_.rank) ? lane_.memory->at(c_.way.place, recv_ * size_) : nullptr, &how,
                        waits ? nullptr : &work_) == ISTHMUS_OK);
  }

  void end() {
    if (work_) {
      const isthmus_result result = isthmus_work_wait(work_, 0);
      isthmus_work_release(work_);
      FLEET_MUST(r_, result == ISTHMUS_OK);
    }
    if (stream_) r_.driver->synchronize(stream_);
    Data got(expected_.size());
    lane_.memory->get(c_.way.place, got.data(), got.size());
    if (c_.writes(r_.rank)) {
      // In place, the blocks that other ranks get are free to change.
      if (in_place_ && out_ < in_)
        std::copy_n(got.begin() + static_cast<long>(send_ * size_), in_ * size_,
                    expected_.begin() + static_cast<long>(send_ * size_));
      const Data result = c_.result(r_.rank);
      std::copy(result.begin(), result.end(), expected_.begin() + static_cast<long>(recv_ * size_));
    }
    if (got == expected_) return;
    const auto differs = std::mismatch(got.begin(), got.end(), expected_.begin()).first - got.begin();
    ADD_FAILURE() << "rank " << r_.rank << ", " << c_.text() << ": byte " << differs << " of the memory is wrong, "
                  << send_ * size_ << " in, " << recv_ * size_ << " out";
    FLEET_MUST(r_, got == expected_);
  }

 private:
  const FleetRank &r_;
  const Case &c_;
  const Lane lane_;
  void *const stream_;  // null: the call has none
  const size_t size_;
  const uint64_t in_, out_;
  const bool in_place_;
  uint64_t send_ = 1, recv_;
  Data expected_;
  isthmus_work_t work_ = nullptr;
};

// It goes through slots, in so many chunks that each slot is used again, where the plan says in how many.
void expect_slots_used_again(const FleetRank &r, const Shape &shape, const Case &c) {
  if (!c.is_long || c.kind == SendRecv || *shape.hosts) return;  // over hosts a chunk is longer
  char *json = nullptr;
  FLEET_MUST(r, isthmus_comm_explain(r.comm, kNames[c.kind], c.count, static_cast<isthmus_dtype>(c.dtype),
                                     static_cast<isthmus_redop>(c.op), c.root, &json) == ISTHMUS_OK);
  const auto plan = nlohmann::json::parse(json);
  isthmus_free(json);
  const auto chunks = plan["chunks"].get<uint64_t>(), slots = plan["slots"].get<uint64_t>();
  if (chunks > 0 && slots > 0) { EXPECT_GE(chunks, 2 * slots) << c.text(); }
}

// Every island of two and more has its vendor's library, and between islands goes what was asked for.
void expect_ways(const FleetRank &r, const Shape &shape, bool by_tcp) {
  char *json = nullptr;
  FLEET_MUST(r, isthmus_comm_topology(r.comm, &json) == ISTHMUS_OK);
  const auto topology = nlohmann::json::parse(json);
  isthmus_free(json);
  const auto ranks = shape.ranks();
  std::set<int> hosts;
  for (const FleetRank &q : ranks) hosts.insert(q.host);
  EXPECT_EQ(topology["hosts"].size(), hosts.size()) << topology.dump(1);
  for (const auto &group : topology["groups"]) {
    const FleetRank &first = ranks.at(group["ranks"][0].get<size_t>());
    const bool alike = std::all_of(group["ranks"].begin(), group["ranks"].end(),
                                   [&](const auto &q) { return ranks.at(q.template get<size_t>()).vendor == first.vendor; });
    if (group["ranks"].size() == 1) continue;
    EXPECT_EQ(group["ccl"], shape.libraries && alike && first.vendor ? first.vendor->family : "") << topology.dump(1);
  }
  for (const auto &link : topology["links"]) {
    const FleetRank &q = ranks.at(link["to"].get<size_t>());
    const bool tcp = q.host != r.host || (by_tcp && q.island != r.island && q.process != r.process);
    EXPECT_EQ(link["kind"] == "tcp", tcp) << topology.dump(1);
  }
}

// ---- the flights ------------------------------------------------------------------------------------------------------------------

// Another communicator of the same ranks, whose islands and hosts are those of the first.
FleetRank again(const FleetRank &r, const FleetOptions &options) {
  FleetRank second = r;
  if (!options.rendezvous) FLEET_MUST(r, isthmus_comm_split(r.comm, 0, r.rank, "second", &second.comm) == ISTHMUS_OK);
  else FLEET_MUST(r, init_rank(second, nullptr, options, "second") == ISTHMUS_OK);
  return second;
}

// All cases, in their order; the memory and the communicator of a case are those of one of the two lanes.
void fly_all(const FleetRank &r, const Shape &shape, const std::vector<Case> &cases, size_t largest,
             const FleetOptions &options, bool by_tcp) {
  expect_ways(r, shape, by_tcp);
  const FleetRank second = again(r, options);
  expect_ways(second, shape, by_tcp);
  FleetMemory memory(r, largest, true), other(r, largest, true);
  const Lane lanes[] = {{r.comm, &memory}, {second.comm, &other}};
  void *const stream = r.driver ? r.driver->stream() : nullptr;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case &c = cases[i];
    SCOPED_TRACE(c.text());
    expect_slots_used_again(r, shape, c);
    Flying one(r, c, lanes[c.way.second], stream);
    if (!c.way.beside || i + 1 == cases.size()) {
      one.begin(true);
      one.end();
      continue;
    }
    Flying next(r, cases[++i], lanes[!c.way.second], stream);
    one.begin(false);
    next.begin(false);
    one.end();
    next.end();
  }
  FLEET_MUST(r, isthmus_barrier(r.comm, nullptr, nullptr) == ISTHMUS_OK);
  FLEET_MUST(r, isthmus_comm_destroy(second.comm) == ISTHMUS_OK);
  if (stream) r.driver->end(stream);
}

class FleetMatrices : public testing::TestWithParam<size_t> {};

TEST_P(FleetMatrices, AreTheReferences) {
  const size_t flight = GetParam();
  const Shape &shape = kShapes[flight / std::size(kBridges)];
  const std::vector<FleetRank> ranks = shape.ranks();
  std::vector<Case> cases;
  size_t largest = 0;
  FleetOptions options;
  const bool by_tcp = flight % std::size(kBridges) == 1;
  options.bridge = by_tcp ? "tcp" : *shape.hosts ? "auto" : "shm";
  options.hosts = shape.places();
  Board board;
  std::vector<Hearing> hearings;
  if (*shape.hosts) {
    ASSERT_LE(ranks.size(), Board::kMostRanks);
    for (const FleetRank &q : ranks) hearings.emplace_back(board, options.hosts, static_cast<size_t>(q.rank));
    options.rendezvous = [&](const FleetRank &r, isthmus_options &o) {
      o.id = nullptr;
      o.exchange = Hearing::all_gather;
      o.exchange_context = &hearings[static_cast<size_t>(r.rank)];
    };
  }
  // Half of the operations in one hop, or whole, where there is memory; the others in a pipeline of chunks.
  options.settings = std::string("EAGER_BYTES=1K;CHUNK_BYTES=4K") + (shape.libraries ? "" : ";CCL=none");
  const auto prepare = [&] {
    ::setenv("REHEARSAL_QUEUES", std::to_string(kQueues[flight % std::size(kQueues)]).c_str(), 1);
    const std::vector<Cell> all = all_cells();
    const auto add = [&](const Cell &cell, size_t index, bool is_long) {
      cases.push_back(make_case(cell, ranks, shape.libraries, number_of(flight, index, is_long), is_long));
      for (int q = 0; q < cases.back().world; ++q)
        largest = std::max<size_t>(largest, (cases.back().sent(q) + cases.back().received(q) + 8) * dtype_size(cell.dtype));
    };
    for (const size_t i : cells_of(flight, asked_for())) add(all[i], i, false);
    for (const size_t i : long_cells_of(flight, asked_for()))
      add({static_cast<Kind>(i / isthmus::kDTypeCount), static_cast<DType>(i % isthmus::kDTypeCount)}, i, true);
  };
  fly(
      shape.fleet, options, [&](FleetRank &r) { fly_all(r, shape, cases, largest, options, by_tcp); }, prepare);
}

INSTANTIATE_TEST_SUITE_P(, FleetMatrices, testing::Range(size_t{0}, kFlights), [](const auto &p) {
  return std::string(kShapes[p.param / 2].name) + (p.param % 2 ? "OverTcp" : "InSharedMemory");
});

}  // namespace
}  // namespace isthmus_test

int main(int argc, char **argv) {
  ::setenv("REHEARSAL_DEVICES", "4", 1);
  ::setenv("REHEARSAL_QUIET", "1", 1);
  ::setenv("ISTHMUS_LOG", "error", 0);  // each communicator warns once of calls with host memory and a stream
  ::setenv("REHEARSAL_GFX", "950", 1);  // whose float8 is everybody's
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
