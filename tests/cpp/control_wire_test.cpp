// Control messages on the wire: the bytes of each, there and back, and nothing read of one that is cut short.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "process/control_wire.hpp"
#include "link/arena.hpp"
#include "link/memory.hpp"

namespace isthmus::process {
namespace {

using Bytes = std::vector<std::byte>;

// Numbers of so many bytes each, the least byte first.
struct Number {
  size_t bytes;
  uint64_t value;
};
Bytes bytes_of(std::initializer_list<Number> numbers) {
  Bytes out;
  for (const auto &[bytes, value] : numbers)
    for (size_t i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(i < 8 ? value >> (8 * i) : 0));
  return out;
}

// The struct's bytes are `wire`; the same comes back, with what follows it left over; one byte less gives nothing.
template <ControlStruct T>
void goes_there_and_back(const T &body, const Bytes &wire) {
  const auto sent = packed(body);
  ASSERT_EQ(Bytes(sent.begin(), sent.end()), wire);
  const Bytes tail = bytes_of({{3, 0x636261}});
  std::vector<std::byte> room(sizeof(T) + tail.size());
  std::span<const std::byte> came = pack(body, tail, room);
  ASSERT_EQ(came.size(), sizeof(T) + tail.size());
  const auto got = unpack<T>(came);
  ASSERT_TRUE(got);
  EXPECT_EQ(std::memcmp(&*got, &body, sizeof(T)), 0);
  EXPECT_EQ(Bytes(came.begin(), came.end()), tail);
  for (size_t n = 0; n < sizeof(T); ++n) {
    const Bytes cut(wire.begin(), wire.begin() + static_cast<ptrdiff_t>(n));
    std::span<const std::byte> in(cut);
    EXPECT_FALSE(unpack<T>(in)) << n << " bytes";
    EXPECT_EQ(in.size(), n) << "a message that is too short was taken in part";
  }
}

TEST(ControlWire, Credit) {
  goes_there_and_back(CreditBody{1, 2, 3, 0, 1ull << 40}, bytes_of({{4, 1}, {4, 2}, {4, 3}, {4, 0}, {8, 1ull << 40}}));
}

TEST(ControlWire, AbortHead) {
  goes_there_and_back(
      AbortHead{1, 2, 4, 40, 23, 5, -1, 1, 9, 2, 1},
      bytes_of({{4, 1}, {4, 2}, {4, 4}, {4, 40}, {4, 23}, {4, 5}, {4, 0xffffffff}, {4, 1}, {8, 9}, {4, 2}, {4, 1}}));
}

TEST(ControlWire, Query) {
  goes_there_and_back(QueryBody{1, 2, 3, {.sequence = 4, .rank = 5, .tag = -6, .side = MessageSide::Recv}},
                      bytes_of({{4, 1}, {4, 2}, {8, 3}, {8, 4}, {4, 5}, {4, 0xfffffffa}, {4, 2}, {4, 0}}));
}

TEST(ControlWire, Reply) {
  ReplyBody body{7, {}};
  body.answer.entered = 11;
  body.answer.done = 10;
  body.answer.digest = 12;
  body.answer.what = 13;
  body.answer.bytes = 14;
  body.answer.turn = 15;
  body.answer.side = MessageSide::Send;
  body.answer.tag = 16;
  body.answer.known = 1;
  body.answer.matched = 1;
  body.answer.busy[0] = 'x';
  goes_there_and_back(body, bytes_of({{8, 7},
                                      {8, 11},
                                      {8, 10},
                                      {8, 12},
                                      {8, 13},
                                      {8, 14},
                                      {4, 0xffffffff},
                                      {4, 15},
                                      {4, 1},
                                      {4, 16},
                                      {1, 0},
                                      {1, 1},
                                      {1, 0},
                                      {1, 1},
                                      {256, 'x'},
                                      {4, 0}}));
}

TEST(ControlWire, AReplyWhoseTextHasNoEndIsGivenOne) {
  ReplyBody body{7, {}};
  for (char &c : body.answer.busy) c = 'x';
  std::span<const std::byte> in = packed(body);
  const auto got = unpack<ReplyBody>(in);
  ASSERT_TRUE(got);
  EXPECT_EQ(std::string(got->answer.busy), std::string(sizeof got->answer.busy - 1, 'x'));
}

TEST(ControlWire, StreamRing) { goes_there_and_back(StreamRingBody{4096, 1 << 20}, bytes_of({{8, 4096}, {8, 1 << 20}})); }

TEST(ControlWire, ARingLiesInItsWritersArenaOrIsRefused) {
  const uint64_t least = link::ByteRing::kLeastCapacity, header = link::Arena::kHeader;
  const uint64_t end = header + link::ByteRing::bytes(least);
  EXPECT_TRUE(lies_in({header, least}, end));
  EXPECT_FALSE(lies_in({header, least}, end - 1));
  EXPECT_FALSE(lies_in({header - 64, least}, end)) << "in the header";
  EXPECT_FALSE(lies_in({header + 8, least}, end + 64)) << "not aligned";
  EXPECT_FALSE(lies_in({header, least + 1}, 2 * end)) << "no capacity of a ring";
  EXPECT_FALSE(lies_in({~uint64_t{63}, least}, end)) << "far behind the end";
}

TEST(ControlWire, LeaveInEachWay) {
  const std::array<Leaving, 8> ways{Leaving::Well,         Leaving::Broken,       Leaving::BrokenWriting,
                                    Leaving::LibraryAsks,  Leaving::LibraryReady, Leaving::LibraryEnds,
                                    Leaving::LibraryEnded, Leaving::LibraryStays};
  for (uint32_t way = 0; way < ways.size(); ++way) {
    goes_there_and_back(LeaveBody{1, 2, 3, ways[way], 5, 6}, bytes_of({{4, 1}, {4, 2}, {4, 3}, {4, way}, {8, 5}, {8, 6}}));
    EXPECT_EQ(is_broken(ways[way]), way == 1 || way == 2);
    EXPECT_EQ(is_of_library(ways[way]), way >= 3);
  }
}

TEST(ControlWire, OutOfBandHead) {
  goes_there_and_back(OutOfBandHead{1, 2, 3, 1, 5, 6, 7},
                      bytes_of({{4, 1}, {4, 2}, {4, 3}, {4, 1}, {8, 5}, {8, 6}, {8, 7}}));
}

TEST(ControlWire, AgreeHead) {
  goes_there_and_back(AgreeHead{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2},
                      bytes_of({{4, 1}, {4, 2}, {4, 3}, {4, 4}, {8, 5}, {8, 6}, {8, 7}, {8, 8}, {8, 9}, {4, 1}, {4, 2}}));
}

TEST(ControlWire, TheTextOfAnAbortIsCutWhereItsSubjectEnds) {
  const std::string text = "all_reduce #3: rank 2 is late";
  std::array<std::byte, 128> room;
  const auto came = [&](uint32_t subject) {
    return unpack_abort(pack(AbortHead{1, 2, 4, static_cast<uint32_t>(text.size()), subject, 0, -1, 1, 3, 0, 0},
                             std::as_bytes(std::span(text)), room));
  };
  const auto some = came(13), none = came(0), more = came(1000);
  ASSERT_TRUE(some && none && more);
  EXPECT_EQ(some->head.code, 4u);
  EXPECT_EQ(some->subject, "all_reduce #3");
  EXPECT_EQ(some->rest, ": rank 2 is late");
  EXPECT_EQ(none->subject, "");
  EXPECT_EQ(none->rest, text);
  EXPECT_EQ(more->subject, text) << "a subject that is longer than the text is the text";
  EXPECT_EQ(more->rest, "");
  EXPECT_FALSE(unpack_abort(std::span<const std::byte>(room).first(sizeof(AbortHead) - 1)));
}

TEST(ControlWire, TheRanksOfAnAbortStandBeforeItsTextAndNoMoreAreReadThanThereAre) {
  std::array<std::byte, 128> room;
  const auto came = [&](uint32_t ranks) {
    std::vector<std::byte> behind = bytes_of({{4, 3}, {4, 700}});
    for (const char c : std::string("late")) behind.push_back(static_cast<std::byte>(c));
    return unpack_abort(pack(AbortHead{1, 2, 4, 4, 0, 0, -1, 1, 3, ranks, 0}, behind, room));
  };
  const auto two = came(2), none = came(0);
  ASSERT_TRUE(two && none);
  EXPECT_EQ(two->numbers(), (std::vector<int>{3, 700}));
  EXPECT_EQ(two->rest, "late");
  EXPECT_TRUE(none->numbers().empty());
  EXPECT_EQ(none->rest.size(), 12u);
  EXPECT_TRUE(came(3)) << "the text's bytes are there to be read as a rank";
  EXPECT_FALSE(came(4));
  EXPECT_FALSE(came(kMostFailureRanks + 1));
}

TEST(ControlWire, TheNumbersOfTheMessagesStayWhatTheyAre) {
  EXPECT_EQ(static_cast<int>(Control::Credit), 1);
  EXPECT_EQ(static_cast<int>(Control::Abort), 2);
  EXPECT_EQ(static_cast<int>(Control::Query), 3);
  EXPECT_EQ(static_cast<int>(Control::Reply), 4);
  EXPECT_EQ(static_cast<int>(Control::StreamRing), 5);
  EXPECT_EQ(static_cast<int>(Control::Leave), 6);
  EXPECT_EQ(static_cast<int>(Control::OutOfBand), 7);
  EXPECT_EQ(static_cast<int>(Control::Agree), 8);
}

}  // namespace
}  // namespace isthmus::process
