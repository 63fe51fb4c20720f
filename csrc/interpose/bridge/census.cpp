#include "census.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace isthmus::bridge {
namespace {

uint64_t digest(const char *text) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325;
  for (; *text; ++text) h = (h ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
  return h;
}

std::string version_text(int64_t code) {
  if (code < 10000)
    return std::to_string(code / 1000) + "." + std::to_string(code / 100 % 10) + "." + std::to_string(code % 100);
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

std::string list(const std::vector<size_t> &ranks) {
  constexpr size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kNamed; ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kNamed) text += " and " + std::to_string(ranks.size() - kNamed) + " more";
  return text;
}

}  // namespace

bool RankRecord::together(const RankRecord &other) const noexcept {
  return std::strncmp(family, other.family, sizeof family) == 0 && island_digest == other.island_digest;
}

RankRecord record_of(const char *family, int version) {
  RankRecord r{};
  std::strncpy(r.family, family, sizeof r.family - 1);
  r.version = version;
  const char *label = std::getenv("ISTHMUS_ISLAND");
  std::strncpy(r.island, label ? label : "", sizeof r.island - 1);
  r.island_digest = digest(label ? label : "");
  return r;
}

std::string describe(const std::vector<RankRecord> &ranks) {
  std::string text;
  std::vector<bool> told(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (told[r]) continue;
    std::vector<size_t> alike;
    for (size_t q = r; q < ranks.size(); ++q) {
      if (told[q] || !ranks[r].together(ranks[q]) || ranks[r].version != ranks[q].version) continue;
      told[q] = true;
      alike.push_back(q);
    }
    if (!text.empty()) text += "; ";
    text += list(alike);
    text += ": ";
    if (!ranks[r].came()) {
      text += "did not come";
      continue;
    }
    text += ranks[r].family;
    if (ranks[r].version) text.append(" ").append(version_text(ranks[r].version));
    if (ranks[r].island[0]) text += std::string(", island ") + ranks[r].island;
  }
  return text;
}

std::string vendors_of(const std::vector<RankRecord> &ranks) {
  std::string letters;
  for (const RankRecord &one : ranks) letters += one.family[0];
  return letters;
}

bool one_island(const std::vector<RankRecord> &ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [&](const RankRecord &r) { return r.together(ranks.front()); });
}

Finding finding(const char *call, const char *vendor, const CensusArrival &a) {
  if (a.verdict == Verdict::Failed) return {};
  const std::string where = std::string(call) + ", rank " + std::to_string(a.rank) + " of " + std::to_string(a.world) + ": ",
                    who = " (" + describe(a.ranks) + ")";
  if (!a.outcome.ok())
    return {where + "not all ranks came to the census" + who + "; taken for ranks without Isthmus, so " + vendor +
                " gets the communicator. " + a.outcome.text,
            true};
  if (a.verdict == Verdict::Vendor) return {where + vendor + " gets the communicator" + who};
  return {where + "Isthmus carries the communicator" + who};
}

void meet(CensusArrival &a) {
  isthmus_result r = isthmus_meeting_join(&a.tail.ticket, a.rank, a.world, 0, &a.meeting);
  a.ranks.assign(static_cast<size_t>(a.world), RankRecord{});
  // Where the library of the id's maker could not serve this rank, no rank goes to that library before all have come.
  const bool of_maker = a.mine.family[0] == a.tail.maker;
  if (r == ISTHMUS_OK) r = isthmus_meeting_patience(a.meeting, of_maker ? offsetof(RankRecord, version) : 0, 0);
  if (r == ISTHMUS_OK) r = isthmus_meeting_exchange(a.meeting, &a.mine, a.ranks.data(), sizeof a.mine);
  a.outcome = outcome(r);
  for (RankRecord &one : a.ranks) one.family[sizeof one.family - 1] = one.island[sizeof one.island - 1] = 0;
  if (r == ISTHMUS_OK) {
    a.verdict = one_island(a.ranks) && of_maker ? Verdict::Vendor : Verdict::Spans;
  } else if (r == ISTHMUS_ERR_TIMEOUT || r == ISTHMUS_ERR_AUTH || r == ISTHMUS_ERR_SYSTEM) {
    std::vector<RankRecord> came;
    std::copy_if(a.ranks.begin(), a.ranks.end(), std::back_inserter(came), [](const RankRecord &one) { return one.came(); });
    // Where no rank came, this rank did not reach the meeting, or the meeting has ended. The other ranks may be with the real
    // library. The library of this rank finds them without Isthmus.
    const bool alike = came.size() < a.ranks.size() && one_island(came) && (came.empty() || came.front().together(a.mine));
    if (alike && of_maker) a.verdict = Verdict::Vendor;
    else if (r == ISTHMUS_ERR_SYSTEM)
      a.outcome.text +=
          ". Where the others are of the vendor of the id, and this rank came later than ISTHMUS_CENSUS after them, they "
          "are with its library: set that higher, for all ranks";
  }
  if (a.verdict == Verdict::Spans) return;
  isthmus_meeting_leave(a.meeting);
  a.meeting = nullptr;
}

std::vector<isthmus_ticket> share_of(std::span<const Tail> tails, size_t which, size_t enders) {
  std::vector<isthmus_ticket> share;
  for (size_t n = 1; n < tails.size(); ++n) {
    const auto same = [&](const Tail &known) { return std::memcmp(&known, &tails[n], sizeof known) == 0; };
    if (n % enders != which || !tails[n].maker) continue;
    if (std::none_of(tails.begin(), tails.begin() + static_cast<ptrdiff_t>(n), same)) share.push_back(tails[n].ticket);
  }
  return share;
}

// This thread comes to each meeting as rank 0 of one rank, and leaves.
void end_meetings(std::span<const isthmus_ticket> tickets, const std::function<void(bool, const std::string &)> &tell) {
  // For all meetings together. The processes that made the ids have just sent the ids, so they can be reached.
  constexpr double kSeconds = 5;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(kSeconds);
  for (const isthmus_ticket &ticket : tickets) {
    const double left = std::chrono::duration<double>(until - std::chrono::steady_clock::now()).count();
    if (left <= 0) return tell(true, "not all meetings of further ids were ended in time");
    isthmus_meeting_t meeting = nullptr;
    isthmus_result r = isthmus_meeting_join(&ticket, 0, 1, left, &meeting);
    if (r == ISTHMUS_OK) r = isthmus_meeting_exchange(meeting, nullptr, nullptr, 0);
    if (r != ISTHMUS_OK) tell(false, "the meeting of a further id: " + outcome(r).text);
    isthmus_meeting_leave(meeting);
  }
}

}  // namespace isthmus::bridge
