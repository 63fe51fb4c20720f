// The census: before a communicator is made, all its ranks say which vendor's library they have and which island they are in.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "id.hpp"
#include "outcome.hpp"

namespace isthmus::bridge {

// What a rank says of itself. All zeros: it did not come.
struct Record {
  // What ranks have in common that one library can serve; it comes first, and has no gaps.
  char family[8];          // "nccl"
  uint64_t island_digest;  // of the whole label
  // The rest is to be told.
  int64_t version;  // of its library, as that tells it; 0: it does not
  char island[64];  // its label, cut
  bool came() const noexcept { return family[0] != 0; }
  bool together(const Record &other) const noexcept;  // one library can serve both
};
Record record_of(const char *family, int version);

// "ranks 0 and 2: nccl 2.29.3; rank 1: rccl 2.22.3, island b"
std::string describe(const std::vector<Record> &ranks);
// Whether one vendor's library serves all of them.
bool one_island(const std::vector<Record> &ranks);

enum class Verdict {
  Vendor,  // the real library gets the communicator
  Spans,   // Isthmus does
  Failed
};

// One rank on its way into a communicator.
struct Arrival {
  Tail tail{};
  Record mine{};
  int rank = 0, world = 0;

  Verdict verdict = Verdict::Failed;
  Outcome outcome;  // why, where it failed
  std::vector<Record> ranks;
  isthmus_meeting_t meeting = nullptr;  // goes on where it spans

  Arrival() = default;
  ~Arrival() { isthmus_meeting_leave(meeting); }
  Arrival(const Arrival &) = delete;
  Arrival &operator=(const Arrival &) = delete;
};
// What it found, as a line of the log, for the caller of `call` and the vendor of that name. Empty where it failed: an error says why.
struct Finding {
  std::string text;
  bool doubtful = false;  // not all ranks came
};
Finding finding(const char *call, const char *vendor, const Arrival &arrival);

// Collective. Waits for all ranks, up to ISTHMUS_TIMEOUT, and where all that came belong together until for ISTHMUS_CENSUS no other has
// come. Ranks that do not come by then are taken for ranks without Isthmus where all that
// came belong together and with the maker of the id: the real library may then know them. So are all others for a rank of the maker's vendor
// that does not reach the meeting.
void meet(Arrival &arrival);

// Of several ids the census is held with the first. Of the meetings of the others, each once, those that one of `enders` has to end. A tail
// without a maker is of an id that was made without Isthmus.
std::vector<isthmus_ticket> share_of(std::span<const Tail> tails, size_t which, size_t enders);
// Ends them: nobody else comes. What went wrong is told, and whether it is doubtful.
void end_meetings(std::span<const isthmus_ticket> tickets, const std::function<void(bool, const std::string &)> &tell);

}  // namespace isthmus::bridge
