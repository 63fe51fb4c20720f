#include "comm/grow_exchange.hpp"

#include <algorithm>

#include "net/wire.hpp"

namespace isthmus::comm {

using bootstrap::Blob;

GrownRanks GrownRanks::of(int members, int newcomers, std::vector<int> slots) {
  const int world = members + newcomers;
  if (slots.empty())
    for (int r = members; r < world; ++r) slots.push_back(r);
  std::sort(slots.begin(), slots.end());
  if (std::adjacent_find(slots.begin(), slots.end()) != slots.end())
    fail(Code::Argument, "grow: slot {} stands twice in the list", *std::adjacent_find(slots.begin(), slots.end()));
  if (static_cast<int>(slots.size()) != newcomers)
    fail(Code::Argument, "grow: {} slots for {} newcomers: give one for each, or none", slots.size(), newcomers);
  if (slots.front() < 0 || slots.back() >= world)
    fail(Code::Argument, "grow: slot {} is not from 0 to {}, the ranks of {} members and {} newcomers",
         slots.front() < 0 ? slots.front() : slots.back(), world - 1, members, newcomers);
  GrownRanks out;
  for (int r = 0; r < world; ++r)
    if (!std::binary_search(slots.begin(), slots.end(), r)) out.members.push_back(r);
  out.newcomers = std::move(slots);
  return out;
}

// The blob of the host: for each newcomer the size and the bytes, then the host's own bytes. The host gives a newcomer up before the other members
// give the host up, so that they hear which newcomer it was.
Blob GrowExchange::with_newcomers(const Blob &mine, Deadline deadline) {
  Blob out;
  const Deadline early(0.8 * static_cast<double>(deadline.left_ns()) * 1e-9);
  for (const Blob &blob : come_->contributions(early, [this] { members_.look(); }))
    net::Writer(out).number(static_cast<uint32_t>(blob.size())).bytes(blob);
  net::Writer(out).bytes(mine);
  return out;
}

std::vector<Blob> GrowExchange::all_gather(const Blob &mine, Deadline deadline) {
  try {
    std::vector<Blob> said = members_.all_gather(come_ ? with_newcomers(mine, deadline) : mine, deadline);
    std::vector<Blob> out(static_cast<size_t>(ranks_.world()));
    const Blob of_host = std::move(said[static_cast<size_t>(host_)]);
    net::Reader r(of_host);
    for (const int rank : ranks_.newcomers) {
      const auto blob = r.bytes(r.number<uint32_t>());
      out[static_cast<size_t>(rank)].assign(blob.begin(), blob.end());
    }
    const auto rest = r.rest();
    if (!r.ok()) fail(Code::Mismatch, "grow: rank {} passed on what cannot be read", host_);
    said[static_cast<size_t>(host_)].assign(rest.begin(), rest.end());
    for (size_t m = 0; m < said.size(); ++m) out[static_cast<size_t>(ranks_.members[m])] = std::move(said[m]);
    if (come_) come_->results(out, deadline);
    return out;
  } catch (const Error &e) {
    members_.give_up(e.why());
    if (come_) come_->failed(e.why());
    throw;
  }
}

}  // namespace isthmus::comm
