// The cost model: how long a plan takes on this rank at the rates that the ranks' profiles have.
#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "plan/clusters.hpp"
#include "plan/plan.hpp"

namespace isthmus::plan {
namespace {

using topology::Rate;

struct ChunkWork {  // of one chunk, bytes
  double copied = 0, reduced = 0, sent = 0, received = 0, out = 0, in = 0;
};

bool on_device(const Span &s) noexcept { return s.memory != Memory::Ring && s.memory != Memory::Scratch; }

// Bytes of a partial result for each byte of data.
double width_of(const Request &r) noexcept { return static_cast<double>(accumulator_ratio(r.dtype)); }

// `device`: whether the user's memory is a device's.
ChunkWork work_of(const Plan &p, bool device) {
  ChunkWork w;
  const double wide = width_of(p.request);
  for (const auto *list : {&p.host, &p.device})
    for (const Stage &stage : *list)
      for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
        const Step &s = p.steps[i];
        const auto bytes = static_cast<double>(s.extent.length);
        switch (s.kind) {
          case StepKind::Move: {
            if (s.when == When::PartChunk) break;
            const bool from = on_device(p.sources[s.source]), to = on_device(s.dst);
            if (list == &p.host || !device) w.copied += bytes;
            else if (from != to) (from ? w.out : w.in) += bytes;
            break;
          }
          case StepKind::Reduce: w.reduced += bytes * std::max(1.0, static_cast<double>(s.sources) - 1); break;
          case StepKind::Send: w.sent += s.token ? 0 : bytes * (s.partial ? wide : 1); break;
          case StepKind::Recv: w.received += s.token ? 0 : bytes * (s.partial ? wide : 1); break;
          default: break;
        }
      }
  return w;
}

bool narrow(DType t) noexcept { return accumulator_ratio(t) > 1; }

// Of the whole message, seconds.
struct Bridges {
  double busiest = 0;  // the bridge that has most to carry, one way
  double hops = 0;     // the slowest bridge of each hop, added up, as if all were one chunk: one hop after the other
};

// What the plans of all ranks put on the bridges. Every frame that is received passes the bridge of its sender and that of
// its receiver, each of which carries both ways at once; the stage that receives it says which hop it is. A plan has the
// frames of one rank alone, but the planner is pure, so the others' plans are made here: whose memory a rank works on
// changes no frame. A plan for every rank is for people who ask, not for calls.
Bridges walk_bridges(const Plan &p, const topology::Topology &whole, const topology::Topology &planned) {
  const size_t ranks = planned.ranks.size();
  struct Load {
    std::vector<double> sent, received;  // by rank, bytes
  };
  const Load none{std::vector<double>(ranks), std::vector<double>(ranks)};
  Request request = p.request;
  request.device = false;
  request.reach = 0;
  const std::vector<uint64_t> blocks(ranks, request.bytes);
  const Operands operands{{}, blocks, {}, blocks};
  const double wide = width_of(request);
  std::map<std::string_view, Load> hops;
  const auto add = [&](const Plan &mine, size_t rank) {
    for (const Stage &stage : mine.host)
      for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
        const Step &s = mine.steps[i];
        if (s.kind != StepKind::Recv || s.token) continue;
        // All chunks are as long as the first, but for the last one.
        const uint32_t last = mine.chunks - 1;
        const double bytes = last * static_cast<double>(extent_bytes(s.extent, 0, operands)) +
                             static_cast<double>(extent_bytes(s.extent, last, operands));
        Load &hop = hops.try_emplace(stage.name, none).first->second;
        hop.sent[static_cast<size_t>(s.peer)] += bytes * (s.partial ? wide : 1);
        hop.received[rank] += bytes * (s.partial ? wide : 1);
      }
  };
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (static_cast<int>(rank) == p.rank) add(p, rank);
    else add(*plan_collective(whole, static_cast<int>(rank), request), rank);
  }
  const auto slowest = [&](const Load &load) {
    double seconds = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double rate = topology::bridge_rate(planned, static_cast<int>(rank));
      seconds = std::max(seconds, std::max(load.sent[rank], load.received[rank]) / rate);
    }
    return seconds;
  };
  Load all = none;
  Bridges out;
  for (const auto &[stage, hop] : hops) {
    out.hops += slowest(hop);
    for (size_t rank = 0; rank < ranks; ++rank) {
      all.sent[rank] += hop.sent[rank];
      all.received[rank] += hop.received[rank];
    }
  }
  out.busiest = slowest(all);
  return out;
}

}  // namespace

Prediction predict(const Plan &p, const topology::Topology &whole) {
  Prediction out;
  const Request &r = p.request;
  const topology::RankInfo &me = whole.ranks[static_cast<size_t>(p.rank)];
  const topology::Topology t = planned_on(whole, r);
  const bool grouped = !t.flat && t.islands.size() > 1, bridged = grouped && !by_shared_slots(t, r.collective);
  if (const int missing = topology::unmeasured_rank(whole); missing >= 0) {
    out.none = !bridged;
    if (bridged)
      out.unknown =
          formatted("rank {} has no profile with the rate of its bridge (isthmus tune makes one for ISTHMUS_PROFILE)",
                    whole.number(missing));
    return out;
  }
  if (is_varying(r.collective)) out.unknown = "the sizes are those of a call";
  else if (takes_leader_exchange(t, r) || r.bytes <= kDefaultLeaderBytes || r.collective == Collective::Barrier)
    out.unknown = "what is small is a matter of latency, which no profile holds";
  const double copy = me.rates[Rate::Copy], reduce = me.rates[narrow(r.dtype) ? Rate::ReduceBFloat16 : Rate::ReduceFloat32];
  if (!(copy > 0 && reduce > 0)) out.unknown = "this rank's profile has no rates of copies and reductions";
  if (!out.unknown.empty() || p.chunk == 0) return out;
  const bool device = me.device != "host";
  const ChunkWork w = work_of(p, device);
  const double chunks = static_cast<double>(r.bytes) / static_cast<double>(p.chunk);
  // Of a device's rank, bridge_rate() has the device's copies in it too, which are counted apart here.
  topology::Topology links = t;
  links.ranks[static_cast<size_t>(p.rank)].device = "host";
  out.copies = chunks * w.copied / copy;
  out.reductions = chunks * w.reduced / reduce;
  out.links = chunks * std::max(w.sent, w.received) / topology::bridge_rate(links, p.rank);
  if (device) out.device = chunks * std::max(w.out / me.rates[Rate::DeviceToHost], w.in / me.rates[Rate::HostToDevice]);
  const bool pair = is_message(r.collective);  // not a plan for every rank
  const Bridges bridges = grouped && !pair ? walk_bridges(p, whole, t) : Bridges{};
  out.bridge = bridges.busiest;
  const double thread = out.copies + out.reductions + out.links, most = std::max({thread, out.bridge, out.device});
  const double pieces = std::max(chunks, 1.0);
  // The first chunk comes to the last hop, and the last one through it, while the busiest bridge has nothing to carry.
  const double crossing = std::max(bridges.hops - bridges.busiest, 0.0);
  const double rest = most == thread ? out.device : most == out.bridge ? out.copies + out.reductions + out.device : thread;
  out.fill = (rest + crossing) / pieces;
  out.seconds = most + out.fill;
  out.simulated = std::any_of(t.ranks.begin(), t.ranks.end(), [](const auto &rank) { return rank.rates.simulated; });
  return out;
}

}  // namespace isthmus::plan
