#include "comm/numbering.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace isthmus::comm {
namespace {

std::vector<int> counted(int ranks) {
  std::vector<int> out(static_cast<size_t>(ranks));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

Numbering::Numbering(int ranks) : Numbering(counted(ranks), ranks) {}

Numbering::Numbering(std::vector<int> members, int slots) : members_(std::move(members)) {
  const bool ascend = std::adjacent_find(members_.begin(), members_.end(), std::greater_equal<>()) == members_.end();
  if (!ascend || slots < 0 || (!members_.empty() && (members_.front() < 0 || members_.back() >= slots)))
    fail(Code::Argument, "the ranks have the slots {}, of {}: they must ascend, from 0 to {}", text(), slots, slots - 1);
  ranks_.assign(static_cast<size_t>(slots), -1);
  for (size_t r = 0; r < members_.size(); ++r) ranks_[static_cast<size_t>(members_[r])] = static_cast<int>(r);
}

std::vector<int> Numbering::slots_of(std::span<const int> of) const {
  std::vector<int> out;
  for (const int rank : of)
    if (rank >= 0 && rank < ranks()) out.push_back(slot(rank));
  return out;
}

int Numbering::rank_of(const char *call, int slot) const {
  const int found = rank(slot);
  if (found >= 0) return found;
  if (slot < 0 || slot >= slots()) fail(Code::Argument, "{}: there is no rank {} among {}", call, slot, slots());
  fail(Code::Argument, "{}: slot {} is a hole: no rank has that number; the members are {}", call, slot, text());
}

std::vector<int> Numbering::ranks_of(const char *call, std::span<const int> of) const {
  std::vector<int> out;
  for (const int slot : of) out.push_back(rank_of(call, slot));
  return out;
}

std::string Numbering::text() const {
  std::string out;
  for (const int slot : members_) out += formatted("{}{}", out.empty() ? "" : ",", slot);
  return out;
}

Numbering Numbering::left(std::span<const int> of, Numbers numbers) const {
  if (numbers == Numbers::Dense) return Numbering(static_cast<int>(of.size()));
  return {slots_of(of), slots()};
}

}  // namespace isthmus::comm
