#include "plan/gather_routes.hpp"

#include <algorithm>
#include <cmath>

namespace isthmus::plan {
namespace {

// Whether blocks are cut: what is small goes whole, in one hop.
bool cuts(const Builder &b) { return !b.varying && b.request.bytes > b.request.small_bytes; }

}  // namespace

// A slot has the rank's own block, and its part of those that come.
void GatherRoutes::choose_chunk(Builder &b) {
  const auto world = static_cast<uint64_t>(b.world);
  uint64_t regions = 1;
  for (const auto &m : b.clusters.members)
    if (m.size() > 1) regions = std::max<uint64_t>(regions, 1 + (world - m.size() + m.size() - 1) / m.size());
  // One rank may pass on parts of all blocks to another. Two turns of that are within what a link grants (64 chunks of the setting; 256 where there are
  // libraries). What is passed on takes a hop more, so there chunks are shorter.
  const bool passed = !passing_of(b).relays.empty();
  if (passed) regions = std::max<uint64_t>(regions, (world + 7) / 8);
  b.libraries() ? b.choose_island_chunk({regions, 1}, passed ? world : 1) : b.choose_chunk(regions);
}

Passing GatherRoutes::passing_of(const Builder &b) {
  const size_t clusters = b.clusters.members.size();
  if (!cuts(b)) return {std::vector<double>(clusters, 1.0), {}};
  std::vector<double> ranks, rates;
  for (size_t g = 0; g < clusters; ++g) {
    ranks.push_back(static_cast<double>(b.clusters.size(g)));
    rates.push_back(b.topology.flat || g >= b.topology.weights.size() ? 1.0 : b.topology.weights[g]);
  }
  return gather_passing(ranks, rates);
}

GatherRoutes::GatherRoutes(const Builder &b)
    : clusters_(b.clusters.members.size()),
      ranks_(static_cast<size_t>(b.world)),
      passing_(passing_of(b)),
      parts_(clusters_ * clusters_ * ranks_),
      slots_(clusters_, b.plan.chunk) {
  for (size_t h = 0; h < clusters_; ++h) share_out(b, h);
}

// Domains of a block of that cluster, by cluster.
std::vector<Range> GatherRoutes::domains_of_blocks(const Builder &b, size_t home) const {
  std::vector<Range> out(clusters_);
  const double direct = passing_.direct[home];
  const uint64_t lines = b.plan.chunk / kLine;
  double sum = 0;
  uint64_t at = 0;
  const auto cut = [&](size_t domain, double share) {
    sum += share;
    const uint64_t end = std::min(lines, static_cast<uint64_t>(std::floor(sum * static_cast<double>(lines) + 0.5)));
    out[domain] = {at * kLine, std::max(at, end) * kLine};
    at = std::max(at, end);
  };
  if (direct >= 1) return out[home] = b.whole(), out;
  cut(home, direct);
  for (size_t d = 0; d < clusters_; ++d)
    if (d != home) cut(d, (1 - direct) * passing_.relays[d]);
  // Rounding may leave a line.
  for (size_t d = clusters_; d-- > 0 && at < lines;)
    if (!out[d].empty() && out[d].end == at * kLine) out[d].end = lines * kLine, at = lines;
  return out;
}

void GatherRoutes::share_out(const Builder &b, size_t h) {
  const size_t members = b.clusters.size(h);
  std::vector<uint64_t> end(members, b.plan.chunk);  // of what lies in the members' slots
  const auto take = [&](int owner, size_t domain, size_t member, Range r) {
    if (r.empty()) return;
    parts_[(h * ranks_ + static_cast<size_t>(owner)) * clusters_ + domain].push_back({member, r, end[member]});
    end[member] += r.size();
  };
  std::vector<std::vector<Range>> domains;
  std::vector<uint64_t> lines(clusters_ + 1);  // of all blocks, by who brings them; last: those that the owners send to all
  size_t outside = 0;
  for (size_t g = 0; g < clusters_; ++g) {
    domains.push_back(domains_of_blocks(b, g));
    if (g == h) continue;
    outside += b.clusters.size(g);
    for (size_t d = 0; d < clusters_; ++d) {
      lines[d == g ? clusters_ : d] += domains[g][d].size() / kLine * b.clusters.size(g);
      passes_on_ = passes_on_ || (d != g && !domains[g][d].empty());
    }
  }
  const bool whole = !cuts(b) || (passing_.relays.empty() && outside % members == 0);
  // Each class of what comes, by who brings it, is cut in equal parts of whole lines.
  std::vector<uint64_t> before(clusters_ + 1);
  size_t i = 0;
  for (size_t g = 0; g < clusters_; ++g) {
    if (g == h) continue;
    for (const int owner : b.clusters.members[g]) {
      for (size_t d = 0; d < clusters_; ++d) {
        const Range r = domains[g][d];
        if (whole) {
          take(owner, d, i % members, r);
          continue;
        }
        uint64_t &from = before[d == g ? clusters_ : d];
        const uint64_t all = lines[d == g ? clusters_ : d], begin = from;
        from += r.size() / kLine;
        for (size_t j = all ? begin * members / all : members; j < members && all * j / members < from; ++j) {
          const Range mine = intersect({all * j / members, all * (j + 1) / members}, {begin, from});
          if (!mine.empty())
            take(owner, d, j, {r.begin + (mine.begin - begin) * kLine, r.begin + (mine.end - begin) * kLine});
        }
      }
      ++i;
    }
  }
  slots_[h] = *std::max_element(end.begin(), end.end());
}

std::vector<GatherRoutes::RoutePart> GatherRoutes::holders(size_t h, int owner) const {
  std::vector<RoutePart> out;
  for (size_t d = 0; d < clusters_; ++d)
    for (const RoutePart &p : parts(h, owner, d)) out.push_back(p);
  std::sort(out.begin(), out.end(), [](const RoutePart &a, const RoutePart &b) { return a.range.begin < b.range.begin; });
  size_t last = 0;
  for (size_t i = 1; i < out.size(); ++i) {
    if (out[i].member == out[last].member) out[last].range.end = out[i].range.end;
    else out[++last] = out[i];
  }
  if (!out.empty()) out.resize(last + 1);
  return out;
}

}  // namespace isthmus::plan
