// Control messages on the wire: what processes tell each other beside the data. Each body is a struct of fixed layout without padding, in
// the byte order of the processors (little endian). A text or other bytes follow some bodies.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace isthmus::process {

enum class Control : uint16_t {
  Credit = 1,
  Abort = 2,
  Query = 3,
  Reply = 4,
  StreamRing = 5,
  Leave = 6,
  OutOfBand = 7,
  Agree = 8
};

// `member` is the index of the communicator in the receiving process. A body of another `epoch` is for an earlier communicator of that
// index.

struct CreditBody {  // `rank` grants: it takes `granted` bytes in all
  uint32_t member, epoch, rank, spare;
  uint64_t granted;
};
static_assert(sizeof(CreditBody) == 24);

struct AbortHead {  // a communicator has failed (process::Failure); `ranks` numbers of 32 bits follow, and then the text
  uint32_t member, epoch, code;
  uint32_t bytes, subject;  // of the text; of its beginning, which says what the operation is
  int32_t by, raiser;
  uint32_t late;
  uint64_t sequence;
  uint32_t ranks, cut;
};
static_assert(sizeof(AbortHead) == 48);
constexpr size_t kMostFailureText = 4096;  // bytes
constexpr size_t kMostFailureRanks = 64;

enum class MessageSide : uint32_t { None = 0, Send = 1, Recv = 2 };

struct RankQuestion {     // what a rank does
  uint64_t sequence = 0;  // about the collective of that number
  // And about a message: whether the rank asked has the other side of what `rank` has with it. None: about no message.
  int32_t rank = -1, tag = 0;
  MessageSide side = MessageSide::None;
  uint32_t spare = 0;
};
static_assert(sizeof(RankQuestion) == 24);

struct QueryBody {
  uint32_t member, epoch;
  uint64_t number;  // of the question, for its reply
  RankQuestion question;
};
static_assert(sizeof(QueryBody) == 40);

struct Answer {  // what a rank does
  uint64_t entered = 0, done = 0, digest = 0, what = 0, bytes = 0;
  int32_t waiting_on = -1;
  uint32_t turn = 0;  // of the host list, in the rank's operation
  // Of the rank's message with waiting_on, where the rank is in no collective and has a message. waiting_on is -1 where any rank may send it.
  MessageSide side = MessageSide::None;
  int32_t tag = 0;
  uint8_t failed = 0, known = 0;
  uint8_t in_message = 0;  // a thread waits for that message
  uint8_t matched = 0;     // the rank has the other side of the message that was asked about
  char busy[256] = {};     // what else the rank's process waits for; may be empty
  uint8_t spare[4] = {};
};
static_assert(sizeof(Answer) == 320);

struct ReplyBody {
  uint64_t number;
  Answer answer;
};
static_assert(sizeof(ReplyBody) == 328);

struct StreamRingBody {  // where a byte ring lies in its writer's arena
  uint64_t offset, capacity;
};
static_assert(sizeof(StreamRingBody) == 16);
// Whether the reader may map that ring, where the writer's arena has `arena_bytes`.
bool lies_in(const StreamRingBody &ring, uint64_t arena_bytes) noexcept;

enum class Leaving : uint32_t {
  Well = 0,           // the rank leaves
  Broken = 1,         // the rank leaves after a failure
  BrokenWriting = 2,  // the same, and the rank's device may still write to receive slots
  // The end of the library's communicator of an island (rank/departure.hpp). The maker of its id says LibraryAsks and LibraryEnds.
  LibraryAsks = 3,   // all ranks of the island have left: will this one end its part when it hears that all do?
  LibraryReady = 4,  // it will
  LibraryEnds = 5,   // all will: now
  LibraryEnded = 6,  // the rank's part has ended
  LibraryStays = 7   // the rank leaves its part as it is, and waits for nobody any more
};
constexpr bool is_broken(Leaving how) noexcept { return how == Leaving::Broken || how == Leaving::BrokenWriting; }
constexpr bool is_of_library(Leaving how) noexcept { return how >= Leaving::LibraryAsks && how <= Leaving::LibraryStays; }

struct LeaveBody {
  uint32_t member, epoch, rank;
  Leaving how;
  uint64_t done;  // the last collective that the rank had ended
  uint64_t sent;  // of messages to the rank that hears it (engine/rank_core.hpp, messages_out)
};
static_assert(sizeof(LeaveBody) == 32);

enum class OutOfBandHow : uint32_t {
  Says = 0,
  Withdraws = 1,  // message `number`
  Replaces = 2    // what the rank has said about this before
};
struct OutOfBandHead {  // the bytes of OutOfBand follow
  uint32_t member, epoch, rank;
  uint32_t how;  // OutOfBandHow
  uint64_t about, turn, number;
};
static_assert(sizeof(OutOfBandHead) == 40);

struct AgreeHead {  // a word of an agreement (rank/consensus.hpp); `words` numbers of 64 bits follow, a bit for each rank
  uint32_t member, epoch, rank;
  uint32_t kind;    // rank::Saying::Kind
  uint64_t number;  // of the agreement, in the communicator
  uint64_t round, ballot, accepted, flags;
  uint32_t alone, words;
};
static_assert(sizeof(AgreeHead) == 64);

template <class T>
concept ControlStruct = std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>;  // no padding

// A body that nothing follows.
template <ControlStruct T>
std::span<const std::byte> packed(const T &body) noexcept {
  return std::as_bytes(std::span(&body, 1));
}

// A head and the bytes behind it, into `room`, which must be long enough. Returns the part of `room` that was written.
template <ControlStruct T>
std::span<const std::byte> pack(const T &head, std::span<const std::byte> rest, std::span<std::byte> room) noexcept {
  std::memcpy(room.data(), &head, sizeof head);
  if (!rest.empty()) std::memcpy(room.data() + sizeof head, rest.data(), rest.size());
  return room.first(sizeof head + rest.size());
}

// Takes a struct off the front of `bytes`. Returns nothing where `bytes` is too short, and leaves `bytes` as it was. The bytes behind a
// head belong to the head. The bytes behind a body are ignored.
template <ControlStruct T>
std::optional<T> unpack(std::span<const std::byte> &bytes) noexcept {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T body;
  std::memcpy(&body, bytes.data(), sizeof(T));
  if constexpr (std::is_same_v<T, ReplyBody>) body.answer.busy[sizeof body.answer.busy - 1] = 0;
  bytes = bytes.subspan(sizeof(T));
  return body;
}

struct AbortMessage {
  AbortHead head;
  std::span<const std::byte> ranks;  // these and the texts lie in the memory of the message
  std::string_view subject, rest;    // of the text as it came
  std::vector<int> numbers() const;  // the ranks, as they came
};
std::optional<AbortMessage> unpack_abort(std::span<const std::byte> bytes) noexcept;

}  // namespace isthmus::process
