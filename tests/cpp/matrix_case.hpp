// One case of the fleets' matrix: a collective, or messages, with a dtype and an op; how it is called, on what memory; what every rank gives and
// what it must have then.
#pragma once

#include <isthmus/isthmus.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "fleet.hpp"
#include "matrix_data.hpp"

namespace isthmus_test {

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
inline constexpr const char *kNames[kKinds] = {
    "all_reduce", "reduce",       "reduce_scatter", "reduce_scatter_v", "broadcast", "all_gather", "all_gather_v",
    "all_to_all", "all_to_all_v", "gather",         "gather_v",         "scatter",   "scatter_v",  "send and recv"};
inline bool reduces(Kind k) { return k <= ReduceScatterV; }
inline bool rooted(Kind k) {
  return k == Reduce || k == Broadcast || k == Gather || k == GatherV || k == Scatter || k == ScatterV;
}

struct Cell {
  Kind kind;
  DType dtype;
  RedOp op = RedOp::Sum;
  auto operator<=>(const Cell &) const = default;
};
inline std::vector<Cell> all_cells() {
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

// How a case is called. Of the number of the case alone, so that all ranks agree, and mixed, so that no two of these go together.
struct Way {
  Place place = Place::Device;  // of the memory
  bool on_stream = false;       // of the program's, with memory of any place
  bool second = false;          // by the rank's second communicator
  bool beside = false;          // in flight with the case behind it, which goes by the other communicator
  bool in_place = false;
  int tag = 0;         // of messages
  uint64_t count = 1;  // elements of a block
};
inline Way way_of(int number) {
  // splitmix64, from a beginning with which every share has every two ways together (FleetMatrix.EveryTwoWaysOfACallGoTogether).
  uint64_t mixed = (static_cast<uint64_t>(number) + 4) * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  mixed ^= mixed >> 31;
  const auto draw = [&](uint64_t of) {
    const uint64_t drawn = mixed % of;
    mixed /= of;
    return drawn;
  };
  constexpr Place kPlaces[] = {Place::Device, Place::Device, Place::Host, Place::Pinned};
  constexpr uint64_t kCounts[] = {2100, 603, 130, 11, 1};  // the first two in several chunks with most types
  Way way;
  way.place = kPlaces[draw(std::size(kPlaces))];
  way.on_stream = draw(2) == 0;
  way.second = draw(2) == 0;
  way.beside = draw(3) == 0;
  way.in_place = draw(3) == 0;
  way.tag = draw(2) == 0 ? 7 : 0;
  way.count = kCounts[draw(std::size(kCounts))];
  return way;
}

struct Case : Cell {
  int world = 1, root = 0, number = 0;
  Way way{};
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
    constexpr const char *kWhere[] = {"of the device", "of the host", "pinned"};
    return std::string(kNames[kind]) + " of " + std::to_string(count) + " " + isthmus::dtype_name(dtype) + ", " +
           isthmus::redop_name(op) + ", root " + std::to_string(root) + (in_place ? ", in place" : "") + ", memory " +
           kWhere[static_cast<int>(way.place)] + (way.on_stream ? ", on a stream" : "") +
           (way.second ? ", second communicator" : "") + (kind == SendRecv ? ", tag " + std::to_string(way.tag) : "");
  }
};

// `exact`: numbers whose sums every type holds, so that it does not matter who adds them in which order.
inline Case make_case(const Cell &cell, const std::vector<FleetRank> &ranks, bool exact, int number, bool is_long) {
  Case c{cell};
  c.world = static_cast<int>(ranks.size());
  c.number = number;
  c.way = way_of(number);
  c.is_long = is_long;
  c.count = is_long ? 420'000 / dtype_size(cell.dtype) : c.way.count;
  c.root = number % c.world;
  c.in_place = c.way.in_place && cell.kind != AllToAllV && cell.kind != SendRecv;
  const bool unequal = cell.kind == ReduceScatterV || cell.kind == AllGatherV || cell.kind == GatherV ||
                       cell.kind == ScatterV || cell.kind == AllToAllV;
  c.counts = unequal ? matrix::shares(c.world, 2 * c.count) : std::vector<uint64_t>(ranks.size(), c.count);
  if (cell.kind == AllReduce || cell.kind == Reduce) c.count = c.count * (is_long ? 1 : static_cast<uint64_t>(c.world)) + 1;
  std::mt19937_64 random(static_cast<uint64_t>(number) + 1);
  std::vector<std::string> labels;
  for (const FleetRank &r : ranks) {
    labels.push_back(r.island);
    Data data(c.sent(r.rank) * dtype_size(c.dtype));
    if (exact && reduces(c.kind)) matrix::fill_exactly(c.dtype, c.op, data, random);
    else matrix::fill(c.dtype, data, random);
    c.given.push_back(std::move(data));
  }
  c.factors = exact ? matrix::Factors::Exact : matrix::Factors::Any;
  if (reduces(c.kind)) c.reduced = matrix::reduced(matrix::islands_of(labels), c.dtype, c.op, c.given, c.sent(0), c.factors);
  return c;
}

// `work`: null for a call that waits.
inline isthmus_result call(const FleetRank &r, isthmus_comm_t comm, const Case &c, const void *in, void *out,
                           const isthmus_call *how, isthmus_work_t *work) {
  const auto t = static_cast<isthmus_dtype>(c.dtype);
  const auto op = static_cast<isthmus_redop>(c.op);
  const uint64_t *const counts = c.counts.data();
  switch (c.kind) {
    case AllReduce: return isthmus_all_reduce(comm, in, out, c.count, t, op, how, work);
    case Reduce: return isthmus_reduce(comm, in, out, c.count, t, op, c.root, how, work);
    case ReduceScatter: return isthmus_reduce_scatter(comm, in, out, c.count, t, op, how, work);
    case ReduceScatterV: return isthmus_reduce_scatter_v(comm, in, out, counts, nullptr, t, op, how, work);
    case Broadcast: return isthmus_broadcast(comm, in, out, c.count, t, c.root, how, work);
    case AllGather: return isthmus_all_gather(comm, in, out, c.count, t, how, work);
    case AllGatherV: return isthmus_all_gather_v(comm, in, out, counts, nullptr, t, how, work);
    case AllToAll: return isthmus_all_to_all(comm, in, out, c.count, t, how, work);
    case AllToAllV: {
      std::vector<uint64_t> mine;
      for (int q = 0; q < c.world; ++q) mine.push_back(c.between(r.rank, q));  // as much as comes back
      return isthmus_all_to_all_v(comm, in, mine.data(), nullptr, out, mine.data(), nullptr, t, how, work);
    }
    case Gather: return isthmus_gather(comm, in, out, c.count, t, c.root, how, work);
    case GatherV: return isthmus_gather_v(comm, in, out, counts, nullptr, t, c.root, how, work);
    case Scatter: return isthmus_scatter(comm, in, out, c.count, t, c.root, how, work);
    case ScatterV: return isthmus_scatter_v(comm, in, out, counts, nullptr, t, c.root, how, work);
    default: {
      const int next = (r.rank + 1) % c.world, last = (r.rank + c.world - 1) % c.world, tag = c.way.tag;
      if (const auto failed = isthmus_group_begin()) return failed;
      isthmus_recv(comm, out, c.count, t, last, tag, nullptr, how, nullptr);
      isthmus_send(comm, in, c.count, t, next, tag, how, nullptr);
      return isthmus_group_end(work);
    }
  }
}

}  // namespace isthmus_test
