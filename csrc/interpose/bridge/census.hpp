// The census: before a communicator is made, all its ranks say which vendor's library they have and which island they are
// in. The records of all ranks decide who makes the communicator:
//
//   rank 0, NCCL   record ---+               +--- all records: Isthmus makes the communicator
//                            +- the meeting -+
//   rank 1, RCCL   record ---+               +--- all records: Isthmus makes the communicator
//
// Where the records say NCCL on all ranks, the real library makes the communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "id.hpp"
#include "outcome.hpp"

namespace isthmus::bridge {

// What a rank says of itself. All zeros: the rank did not come.
struct RankRecord {
  // Ranks that one library can serve have this part in common. The part comes first, and has no gaps.
  char family[8];          // "nccl"
  uint64_t island_digest;  // of the whole label
  // This part is for people.
  int64_t version;  // of the library, as the library says; 0: unknown
  char island[64];  // the label, cut
  bool came() const noexcept { return family[0] != 0; }
  bool together(const RankRecord &other) const noexcept;  // one library can serve both
};
RankRecord record_of(const char *family, int version);

// "ranks 0 and 2: nccl 2.29.3; rank 1: rccl 2.22.3, island b"
std::string describe(const std::vector<RankRecord> &ranks);
// The first letter of each rank's family.
std::string vendors_of(const std::vector<RankRecord> &ranks);
// Whether one vendor's library serves all these ranks.
bool one_island(const std::vector<RankRecord> &ranks);

enum class Verdict {
  Vendor,  // the real library gets the communicator
  Spans,   // Isthmus does
  Failed
};

// One rank on its way into a communicator.
struct CensusArrival {
  Tail tail{};
  RankRecord mine{};
  int rank = 0, world = 0;

  Verdict verdict = Verdict::Failed;
  Outcome outcome;  // why the census failed, or why not all ranks came
  std::vector<RankRecord> ranks;
  isthmus_meeting_t meeting = nullptr;  // stays open where the ranks span vendors

  CensusArrival() = default;
  ~CensusArrival() { isthmus_meeting_leave(meeting); }
  CensusArrival(const CensusArrival &) = delete;
  CensusArrival &operator=(const CensusArrival &) = delete;
};
// What the census found, as a line of the log, for the caller of `call`. `vendor` is the vendor's name. Empty where the
// census failed: an error says why.
struct Finding {
  std::string text;
  bool doubtful = false;  // not all ranks came
};
Finding finding(const char *call, const char *vendor, const CensusArrival &arrival);

// Holds the census. Collective.
// 1. The census waits for all ranks, up to ISTHMUS_TIMEOUT. Where all ranks that came belong together, the census ends
//    earlier: when no other rank has come for ISTHMUS_CENSUS.
// 2. Where all ranks that came belong together and with the maker of the id, the census takes the other ranks for ranks
//    without Isthmus: the real library may know them.
// 3. A rank of the maker's vendor that does not reach the meeting takes all others for ranks without Isthmus.
void meet(CensusArrival &arrival);

// Some calls take several ids. The census is held with the first id. The meeting of each other id must be ended once. A
// number of ranks, `enders`, share this work. The result is the tickets of the ender of number `which`. A tail without a
// maker is of an id made without Isthmus.
std::vector<isthmus_ticket> share_of(std::span<const Tail> tails, size_t which, size_t enders);
// Ends these meetings, to which no other rank comes. `tell` gets what went wrong, and whether the failure is doubtful.
void end_meetings(std::span<const isthmus_ticket> tickets, const std::function<void(bool, const std::string &)> &tell);

}  // namespace isthmus::bridge
