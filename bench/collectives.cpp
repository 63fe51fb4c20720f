#include "collectives.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string_view>

#include "names.hpp"

namespace isthmus::bench {
namespace {

struct CollectiveRow {
  const char *name;
  bool reduces, rooted, in_place;
};
constexpr CollectiveRow kRows[] = {
    {"all_reduce", true, false, true},  {"reduce", true, true, true},          {"broadcast", false, true, true},
    {"all_gather", false, false, true}, {"all_gather_v", false, false, true},  {"reduce_scatter", true, false, true},
    {"all_to_all", false, false, true}, {"all_to_all_v", false, false, false}, {"gather", false, true, false},
    {"scatter", false, true, false},    {"sendrecv", false, false, false},     {"barrier", false, false, false}};
static_assert(std::size(kRows) == static_cast<size_t>(Collective::Count));

const CollectiveRow &row(Collective c) { return kRows[static_cast<size_t>(c)]; }
uint64_t sum(const std::vector<uint64_t> &v) { return std::accumulate(v.begin(), v.end(), uint64_t{0}); }

// "All-Reduce" is allreduce: letters and digits alone, small.
std::string letters(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c))) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// The count that rank s sends to rank d in all_to_all_v. The counts are unequal, and every row and every column has the same
// total.
uint64_t pair_count(uint64_t mean, int s, int d, int world) {
  return mean * 2 * static_cast<uint64_t>((s + d) % world + 1) / static_cast<uint64_t>(world + 1);
}

uint64_t before(const std::vector<uint64_t> &counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, uint64_t{0});
}

// Where a rank's contribution stands in an operation in place, in elements from the start of b.
uint64_t in_place_offset(const Task &t) {
  if (t.collective == Collective::AllGather) return static_cast<uint64_t>(t.rank) * t.count;
  if (t.collective == Collective::AllGatherV) return before(t.recv_counts, t.rank);
  return 0;
}

bool sends(const Task &t) {
  return t.rank == t.root || (t.collective != Collective::Broadcast && t.collective != Collective::Scatter);
}
bool receives(const Task &t) {
  return t.rank == t.root || (t.collective != Collective::Reduce && t.collective != Collective::Gather);
}

std::byte *send_at(const Task &t, bool in_place) { return in_place ? t.b + in_place_offset(t) * t.element() : t.a; }
std::byte *recv_at(const Task &t, bool in_place) {
  const bool inside = in_place && t.collective == Collective::ReduceScatter;
  return inside ? t.b + static_cast<uint64_t>(t.rank) * t.count * t.element() : t.b;
}

}  // namespace

const char *collective_name(Collective c) { return row(c).name; }
bool reduces(Collective c) { return row(c).reduces; }
bool rooted(Collective c) { return row(c).rooted; }
bool can_run_in_place(Collective c) { return row(c).in_place; }

std::vector<Collective> parse_collectives(const std::string &text, std::vector<std::string> &hints) {
  std::vector<Collective> found;
  std::istringstream list(text);
  for (std::string name; std::getline(list, name, ',');) {
    const size_t before_this = found.size();
    for (size_t i = 0; i < std::size(kRows); ++i)
      if (name == "all" || name == kRows[i].name) found.push_back(static_cast<Collective>(i));
    if (found.size() > before_this) continue;
    const bool program = name.size() > 5 && name.ends_with("_perf");
    const std::string word = letters(program ? name.substr(0, name.size() - 5) : name);
    std::string known;
    std::vector<std::string> names{"all"};
    for (size_t i = 0; i < std::size(kRows); ++i) {
      const char *own = kRows[i].name;
      if (word == letters(own) || (word == "bcast" && i == static_cast<size_t>(Collective::Broadcast))) {
        found.push_back(static_cast<Collective>(i));
        hints.push_back(program ? name + " is nccl-tests' name; here it is " + own : name + " is " + own + " here");
      }
      known += std::string(" ") + own;
      names.emplace_back(own);
    }
    if (found.size() == before_this)
      throw std::invalid_argument("unknown collective '" + name + "'" + meant(name, names) + " Known:" + known + " all");
  }
  return found;
}

void check(isthmus_result result, const char *what) {
  if (result != ISTHMUS_OK)
    throw LibraryError(std::string(what) + ": " + isthmus_result_name(result) + ": " + isthmus_last_error());
}

Task make_task(Collective c, uint64_t bytes, isthmus_dtype dtype, isthmus_redop op, int root, int rank, int world) {
  Task t{c, dtype, op, rooted(c) ? root : 0, rank, world, 0, 0, 0, {}, {}, 0, 1, nullptr, nullptr};
  const auto n = static_cast<uint64_t>(world);
  const uint64_t total = bytes / t.element(), line = std::max<uint64_t>(1, 16 / t.element());
  const uint64_t block = total == 0 ? 0 : total / n >= line ? total / n / line * line : std::max<uint64_t>(1, total / n);
  const double share = world > 1 ? static_cast<double>(world - 1) / world : 1;
  t.count = t.send_count = t.recv_count = total;
  switch (c) {
    case Collective::AllReduce: t.bus_factor = 2 * share; break;
    case Collective::AllGather: t.count = t.send_count = block, t.recv_count = n * block, t.bus_factor = share; break;
    case Collective::ReduceScatter: t.count = t.recv_count = block, t.send_count = n * block, t.bus_factor = share; break;
    case Collective::AllToAll: t.count = block, t.send_count = t.recv_count = n * block, t.bus_factor = share; break;
    case Collective::Gather:
      t.count = t.send_count = block, t.recv_count = rank == t.root ? n * block : 0, t.bus_factor = share;
      break;
    case Collective::Scatter:
      t.count = t.recv_count = block, t.send_count = rank == t.root ? n * block : 0, t.bus_factor = share;
      break;
    case Collective::AllGatherV:
      for (uint64_t r = 0; r < n; ++r) t.recv_counts.push_back(total * 2 * (r + 1) / (n * (n + 1)));
      t.recv_counts.back() += total - sum(t.recv_counts);
      t.count = t.send_count = t.recv_counts[static_cast<size_t>(rank)], t.bus_factor = share;
      break;
    case Collective::AllToAllV:
      for (int r = 0; r < world; ++r) {
        t.send_counts.push_back(pair_count(block, rank, r, world));
        t.recv_counts.push_back(pair_count(block, r, rank, world));
      }
      t.count = block, t.send_count = sum(t.send_counts), t.recv_count = sum(t.recv_counts), t.bus_factor = share;
      break;
    case Collective::Barrier: t.count = t.send_count = t.recv_count = 0; break;
    default: break;
  }
  const bool blocks = c == Collective::AllGather || c == Collective::ReduceScatter || c == Collective::AllToAll ||
                      c == Collective::Gather || c == Collective::Scatter;
  t.size_bytes = t.element() * (blocks                        ? n * t.count
                                : c == Collective::AllGatherV ? total
                                                              : std::max(t.send_count, t.recv_count));
  return t;
}

double memory_traffic(const Task &t, bool in_place) {
  const double e = static_cast<double>(t.element()), n = t.world, count = static_cast<double>(t.count);
  const double whole = static_cast<double>(t.size_bytes), block = count * e, own = in_place ? 1 : 0;
  switch (t.collective) {
    case Collective::AllReduce:
    case Collective::SendRecv: return 2 * n * whole;
    case Collective::Reduce: return (n + 1) * whole;
    case Collective::Broadcast: return (n + 1 - own) * whole;
    case Collective::AllGather: return n * block + n * (n - own) * block;
    case Collective::AllGatherV: return whole + (n - own) * whole;
    case Collective::ReduceScatter: return n * n * block + n * block;
    case Collective::AllToAll: return 2 * n * (n - own) * block;
    case Collective::AllToAllV: return 2 * n * whole;
    case Collective::Gather:
    case Collective::Scatter: return 2 * n * block;
    default: return 0;
  }
}

double bridge_traffic(const Task &t, const std::vector<int> &island) {
  const double e = static_cast<double>(t.element()), block = static_cast<double>(t.count) * e, n = t.world;
  const double second = static_cast<double>(std::count(island.begin(), island.end(), 1)), first = n - second;
  double out[2] = {0, 0};
  switch (t.collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::Broadcast: return block;
    case Collective::AllGather:
    case Collective::ReduceScatter: return std::max(first, second) * block;
    case Collective::AllGatherV:
      for (size_t r = 0; r < island.size(); ++r) out[island[r]] += static_cast<double>(t.recv_counts[r]) * e;
      return std::max(out[0], out[1]);
    case Collective::AllToAll: return first * second * block;
    case Collective::AllToAllV:
      for (int s = 0; s < t.world; ++s)
        for (int d = 0; d < t.world; ++d)
          if (island[static_cast<size_t>(s)] != island[static_cast<size_t>(d)])
            out[island[static_cast<size_t>(s)]] += static_cast<double>(pair_count(t.count, s, d, t.world)) * e;
      return std::max(out[0], out[1]);
    case Collective::Gather:
    case Collective::Scatter: return (island[static_cast<size_t>(t.root)] == 1 ? first : second) * block;
    case Collective::SendRecv:
      for (size_t r = 0; r < island.size(); ++r)
        if (island[r] != island[(r + 1) % island.size()]) out[island[r]] += block;
      return std::max(out[0], out[1]);
    default: return 0;
  }
}

isthmus_result call(isthmus_comm_t comm, const Task &t, bool in_place) {
  const void *send = send_at(t, in_place);
  void *recv = recv_at(t, in_place);
  switch (t.collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::ReduceScatter: {
      isthmus_call options = ISTHMUS_CALL_INIT;
      options.scale = premul_scale(t.rank);
      const isthmus_call *with = t.op == ISTHMUS_PREMUL_SUM ? &options : nullptr;
      if (t.collective == Collective::AllReduce)
        return isthmus_all_reduce(comm, send, recv, t.count, t.dtype, t.op, with, nullptr);
      if (t.collective == Collective::Reduce)
        return isthmus_reduce(comm, send, recv, t.count, t.dtype, t.op, t.root, with, nullptr);
      return isthmus_reduce_scatter(comm, send, recv, t.count, t.dtype, t.op, with, nullptr);
    }
    case Collective::Broadcast: return isthmus_broadcast(comm, send, recv, t.count, t.dtype, t.root, nullptr, nullptr);
    case Collective::AllGather: return isthmus_all_gather(comm, send, recv, t.count, t.dtype, nullptr, nullptr);
    case Collective::AllGatherV:
      return isthmus_all_gather_v(comm, send, recv, t.recv_counts.data(), nullptr, t.dtype, nullptr, nullptr);
    case Collective::AllToAll: return isthmus_all_to_all(comm, send, recv, t.count, t.dtype, nullptr, nullptr);
    case Collective::AllToAllV:
      return isthmus_all_to_all_v(comm, send, t.send_counts.data(), nullptr, recv, t.recv_counts.data(), nullptr, t.dtype,
                                  nullptr, nullptr);
    case Collective::Gather: return isthmus_gather(comm, send, recv, t.count, t.dtype, t.root, nullptr, nullptr);
    case Collective::Scatter: return isthmus_scatter(comm, send, recv, t.count, t.dtype, t.root, nullptr, nullptr);
    case Collective::SendRecv: {
      const int to = (t.rank + 1) % t.world, from = (t.rank + t.world - 1) % t.world;
      isthmus_result result = isthmus_group_begin();
      if (result == ISTHMUS_OK) result = isthmus_send(comm, send, t.count, t.dtype, to, 0, nullptr, nullptr);
      if (result == ISTHMUS_OK) result = isthmus_recv(comm, recv, t.count, t.dtype, from, 0, nullptr, nullptr, nullptr);
      const isthmus_result end = isthmus_group_end(nullptr);
      return result == ISTHMUS_OK ? end : result;
    }
    default: return isthmus_barrier(comm, nullptr, nullptr);
  }
}

void prepare(const Task &t, const Pattern &pattern, bool in_place) {
  const size_t e = t.element();
  std::memset(t.b, 0xa5, std::max(t.send_count, t.recv_count) * e);
  if (!sends(t)) {
    std::memset(t.a, 0x5a, t.send_count * e);
    return;
  }
  const Period &mine = pattern.of(t.rank);
  fill(send_at(t, in_place), mine, 0, t.send_count);
}

uint64_t verify(const Task &t, const Pattern &pattern, bool in_place) {
  const size_t e = t.element();
  const std::byte *recv = recv_at(t, in_place);
  const auto block = [&](uint64_t i) { return recv + i * t.count * e; };
  const auto rank = static_cast<uint64_t>(t.rank);
  uint64_t bad = !in_place && sends(t) ? wrong(t.a, pattern.of(t.rank), 0, t.send_count) : 0;  // inputs stay as they were
  if (!receives(t)) return bad;
  switch (t.collective) {
    case Collective::AllReduce:
    case Collective::Reduce: return bad + wrong(recv, pattern.result(), 0, t.count);
    case Collective::ReduceScatter: return bad + wrong(recv, pattern.result(), rank * t.count, t.count);
    case Collective::Broadcast: return bad + wrong(recv, pattern.of(t.root), 0, t.count);
    case Collective::Scatter: return bad + wrong(recv, pattern.of(t.root), rank * t.count, t.count);
    case Collective::SendRecv: return bad + wrong(recv, pattern.of((t.rank + t.world - 1) % t.world), 0, t.count);
    case Collective::AllGather:
    case Collective::Gather:
      for (int r = 0; r < t.world; ++r) bad += wrong(block(static_cast<uint64_t>(r)), pattern.of(r), 0, t.count);
      return bad;
    case Collective::AllToAll:
      for (int r = 0; r < t.world; ++r)
        bad += wrong(block(static_cast<uint64_t>(r)), pattern.of(r), rank * t.count, t.count);
      return bad;
    case Collective::AllGatherV:
      for (int r = 0; r < t.world; ++r)
        bad += wrong(recv + before(t.recv_counts, r) * e, pattern.of(r), 0, t.recv_counts[static_cast<size_t>(r)]);
      return bad;
    case Collective::AllToAllV:
      for (int r = 0; r < t.world; ++r) {
        uint64_t offset = 0;  // where my block stands in rank r's buffer
        for (int d = 0; d < t.rank; ++d) offset += pair_count(t.count, r, d, t.world);
        bad += wrong(recv + before(t.recv_counts, r) * e, pattern.of(r), offset, t.recv_counts[static_cast<size_t>(r)]);
      }
      return bad;
    default: return bad;
  }
}

}  // namespace isthmus::bench
