#include "comm/grow_exchange.hpp"

#include <algorithm>

#include "net/wire.hpp"

namespace isthmus::comm {

using bootstrap::Blob;

namespace {

// The first slots that no member has.
std::vector<int> free_slots(const Numbering &old, int count, Numbers numbers) {
  std::vector<int> slots;
  for (int slot = numbers == Numbers::Kept ? 0 : old.ranks(); static_cast<int>(slots.size()) < count; ++slot)
    if (numbers == Numbers::Dense || old.rank(slot) < 0) slots.push_back(slot);
  return slots;
}

void check_slots(const Numbering &old, int newcomers, const std::vector<int> &slots, Numbers numbers) {
  if (std::adjacent_find(slots.begin(), slots.end()) != slots.end())
    fail(Code::Argument, "grow: slot {} stands twice in the list", *std::adjacent_find(slots.begin(), slots.end()));
  if (static_cast<int>(slots.size()) != newcomers)
    fail(Code::Argument, "grow: {} slots for {} newcomers: give one for each, or none", slots.size(), newcomers);
  const int most = newcomers + (numbers == Numbers::Kept ? old.slots() : old.ranks()) - 1;
  if (slots.front() < 0 || slots.back() > most)
    fail(Code::Argument, "grow: slot {} is not from 0 to {}, the ranks of {} members and {} newcomers",
         slots.front() < 0 ? slots.front() : slots.back(), most, old.ranks(), newcomers);
  for (const int slot : slots)
    if (numbers == Numbers::Kept && old.rank(slot) >= 0)
      fail(Code::Argument, "grow: slot {} is not free, a rank lives there; the members keep their slots, which are {}", slot,
           old.text());
}

}  // namespace

GrownRanks GrownRanks::of(const Numbering &old, int newcomers, std::vector<int> slots, Numbers numbers) {
  if (slots.empty()) slots = free_slots(old, newcomers, numbers);
  std::sort(slots.begin(), slots.end());
  check_slots(old, newcomers, slots, numbers);
  std::vector<int> all = slots;  // with those of the members
  if (numbers == Numbers::Kept) all.insert(all.end(), old.members().begin(), old.members().end());
  else
    for (int slot = 0; static_cast<int>(all.size()) < old.ranks() + newcomers; ++slot)
      if (!std::binary_search(slots.begin(), slots.end(), slot)) all.push_back(slot);
  std::sort(all.begin(), all.end());
  const int count = numbers == Numbers::Kept ? std::max(old.slots(), all.back() + 1) : static_cast<int>(all.size());
  GrownRanks out;
  for (size_t r = 0; r < all.size(); ++r)
    (std::binary_search(slots.begin(), slots.end(), all[r]) ? out.newcomers : out.members).push_back(static_cast<int>(r));
  out.numbering = Numbering(std::move(all), count);
  out.slots = std::move(slots);
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
    if (!r.ok()) fail(Code::Mismatch, "grow: rank {} passed on what cannot be read", members_.number(host_));
    said[static_cast<size_t>(host_)].assign(rest.begin(), rest.end());
    for (size_t m = 0; m < said.size(); ++m) out[static_cast<size_t>(ranks_.members[m])] = std::move(said[m]);
    if (come_) come_->results(out, deadline, [this] { members_.look(); });
    return out;
  } catch (const Error &e) {
    members_.give_up(e.why());
    if (come_) come_->failed(e.why());
    throw;
  }
}

}  // namespace isthmus::comm
