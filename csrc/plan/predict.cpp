// The cost model: how long a plan takes on this rank at the rates that the ranks' profiles have.
#include <algorithm>

#include "base/error.hpp"
#include "plan/builder.hpp"

namespace isthmus::plan {
namespace {

using topology::Rate;

struct Work {  // of one chunk, bytes
  double copied = 0, folded = 0, sent = 0, received = 0, out = 0, in = 0;
};

bool on_device(const Span &s) noexcept { return s.memory != Memory::Ring && s.memory != Memory::Scratch; }

// `device`: whether the user's memory is a device's.
Work work_of(const Plan &p, bool device) {
  Work w;
  const double wide =
      static_cast<double>(dtype_size(accumulator(p.request.dtype))) / static_cast<double>(dtype_size(p.request.dtype));
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
          case StepKind::Reduce: w.folded += bytes * std::max(1.0, static_cast<double>(s.sources) - 1); break;
          case StepKind::Send: w.sent += s.token ? 0 : bytes * (s.partial ? wide : 1); break;
          case StepKind::Recv: w.received += s.token ? 0 : bytes * (s.partial ? wide : 1); break;
          default: break;
        }
      }
  return w;
}

bool narrow(DType t) noexcept { return dtype_size(accumulator(t)) > dtype_size(t); }

// The time of the busiest bridge in an all_reduce of `bytes`, for the shares that the plan has. A group sends its partial results for
// what the others finish, in accumulator width where several ranks fold, and the results of its own domain to each of them; it receives
// likewise. With the shares of bridge_shares() for these rates and nothing wider than the data it is T*.
double bridge_seconds(const Plan &p, const topology::Topology &t) {
  const size_t k = t.groups.size();
  const std::vector<double> shares = bridge_shares(t.weights);
  const auto n = static_cast<double>(p.request.bytes);
  const double wide =
      static_cast<double>(dtype_size(accumulator(p.request.dtype))) / static_cast<double>(dtype_size(p.request.dtype));
  std::vector<double> width(k);
  double all = 0;
  for (size_t g = 0; g < k; ++g) {
    width[g] = t.groups[g].ranks.size() > 1 && t.groups[g].ccl.empty() ? wide : 1;
    all += width[g];
  }
  double slowest = 0;
  for (size_t g = 0; g < k; ++g) {
    const std::vector<int> &ranks = t.groups[g].ranks;  // which carry equal parts
    double rate = topology::bridge_rate(t, ranks[0]);
    for (const int r : ranks) rate = std::min(rate, topology::bridge_rate(t, r));
    rate *= static_cast<double>(ranks.size());
    const double own = shares[g] * n, others = n - own;
    const double sent = width[g] * others + static_cast<double>(k - 1) * own, received = (all - width[g]) * own + others;
    slowest = std::max(slowest, std::max(sent, received) / rate);
  }
  return slowest;
}

}  // namespace

Prediction predict(const Plan &p, const topology::Topology &whole) {
  Prediction out;
  const Request &r = p.request;
  const topology::RankInfo &me = whole.ranks[static_cast<size_t>(p.rank)];
  if (const int missing = topology::unmeasured_rank(whole); missing >= 0) {
    out.unknown = formatted("rank {} has no profile with the rate of its bridge (ISTHMUS_PROFILE)", missing);
    return out;
  }
  if (is_varying(r.collective)) out.unknown = "the sizes are those of a call";
  else if (takes_star(planned_on(whole, r), r) || r.bytes <= kDefaultStar || r.collective == Collective::Barrier)
    out.unknown = "what is small is a matter of latency, which no profile holds";
  const double copy = me.rates[Rate::Copy], reduce = me.rates[narrow(r.dtype) ? Rate::ReduceBFloat16 : Rate::ReduceFloat32];
  if (!(copy > 0 && reduce > 0)) out.unknown = "this rank's profile has no rates of copies and reductions";
  if (!out.unknown.empty() || p.chunk == 0) return out;
  const topology::Topology t = planned_on(whole, r);
  const bool device = me.device != "host";
  const Work w = work_of(p, device);
  const double chunks = static_cast<double>(r.bytes) / static_cast<double>(p.chunk);
  // Of a device's rank, bridge_rate() has the device's copies in it too, which are counted apart here.
  topology::Topology links = t;
  links.ranks[static_cast<size_t>(p.rank)].device = "host";
  out.copies = chunks * w.copied / copy;
  out.folds = chunks * w.folded / reduce;
  out.links = chunks * std::max(w.sent, w.received) / topology::bridge_rate(links, p.rank);
  if (device) out.device = chunks * std::max(w.out / me.rates[Rate::DeviceToHost], w.in / me.rates[Rate::HostToDevice]);
  if (!t.flat && t.groups.size() > 1 && r.collective == Collective::AllReduce && !by_shared_slots(t, r.collective))
    out.bridge = bridge_seconds(p, t);
  const double thread = out.copies + out.folds + out.links, most = std::max({thread, out.bridge, out.device});
  const double pieces = std::max(chunks, 1.0);
  out.fill = (most == thread ? out.device : most == out.bridge ? out.copies + out.folds + out.device : thread) / pieces;
  out.seconds = most + out.fill;
  out.simulated = std::any_of(t.ranks.begin(), t.ranks.end(), [](const auto &rank) { return rank.rates.simulated; });
  return out;
}

}  // namespace isthmus::plan
