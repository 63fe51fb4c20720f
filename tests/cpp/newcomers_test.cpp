// Processes that come with a ticket: who is let in, who is told what, and what the two ends say to each other afterwards.
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "bootstrap/newcomers.hpp"
#include "bootstrap/waiting_room.hpp"
#include "bootstrap_support.hpp"
#include "net/address.hpp"

namespace isthmus::bootstrap::testing {
namespace {

Settings at_home(const char *key = "") {
  Settings settings;
  settings.set("ISTHMUS_INTERFACE", "127.0.0.1");
  if (*key) settings.set("ISTHMUS_JOB_KEY", key);
  return settings;
}

Ticket ticket_for(double seconds = 600, const char *key = "") { return create_entry(at_home(key), seconds); }

Blob blob(const std::string &text) {
  const auto said = bytes(text);
  return {said.begin(), said.end()};
}

std::string text_of(const std::vector<Blob> &blobs) {
  std::string all;
  for (const Blob &b : blobs) all += std::string(reinterpret_cast<const char *>(b.data()), b.size()) + " ";
  return all;
}

// A newcomer that takes part in one round. What it heard, or how it failed.
std::future<std::string> begin_to_come(const Ticket &ticket, const std::string &says, int slot = kAnySlot,
                                       const char *key = "") {
  return std::async(std::launch::async, [=] {
    try {
      Entry entry(ticket, at_home(key), slot, Deadline(soon()));
      const auto all = entry.all_gather(blob(says), entry.making());
      entry.say_made();
      const bool kept = entry.kept(entry.whole());
      return formatted("rank {} of {} '{}': {}{}", entry.welcome().rank, entry.welcome().world, entry.welcome().name,
                       text_of(all), kept ? "kept" : "late");
    } catch (const Error &e) { return formatted("{}: {}", code_name(e.code()), e.text()); }
  });
}

bool await_waiting(const Ticket &ticket, size_t count) {
  return eventually([&] { return waiting(ticket) == count; });
}

Welcome welcome_to(int world) { return {0, world, 0, world, seconds_to_ns(soon()), seconds_to_ns(soon()), "grown", "all"}; }

TEST(Newcomers, ExchangeWithTheMemberThatLetsThemInAndHearTheLastWord) {
  const Ticket ticket = ticket_for();
  auto any = begin_to_come(ticket, "any"), second = begin_to_come(ticket, "second", 2);
  ASSERT_TRUE(await_waiting(ticket, 2));
  Newcomers come(ticket, {1, 2}, Deadline(soon()), {});
  come.welcome(welcome_to(3), {1, 2});
  const auto said = come.contributions(Deadline(soon()), {});
  EXPECT_EQ(text_of(said), "any second ") << "in the order of their slots";
  come.results({blob("member"), said[0], said[1]}, Deadline(soon()), {});
  come.await_made(Deadline(soon()), {});
  come.kept();
  EXPECT_EQ(any.get(), "rank 1 of 3 'grown': member any second kept");
  EXPECT_EQ(second.get(), "rank 2 of 3 'grown': member any second kept");
}

TEST(Newcomers, AMemberLooksMeanwhileWhereOneTakesNothing) {
  const Ticket ticket = ticket_for();
  std::promise<void> over;
  auto silent = std::async(std::launch::async, [&, waits = over.get_future()] {
    const Entry entry(ticket, at_home(), kAnySlot, Deadline(soon()));
    waits.wait();
  });
  const struct Ends {
    std::promise<void> &over;
    ~Ends() { over.set_value(); }
  } ends{over};
  ASSERT_TRUE(await_waiting(ticket, 1));
  Newcomers come(ticket, {1}, Deadline(soon()), {});
  come.welcome(welcome_to(2), {1});
  const std::vector<Blob> more_than_a_socket_holds(64, Blob(kMaxBlob));
  int looks = 0;
  const auto second = [&] {
    if (++looks == 2) fail(Code::Aborted, "enough");
  };
  try {
    come.results(more_than_a_socket_holds, Deadline(soon()), second);
    ADD_FAILURE() << "nobody has taken them";
  } catch (const Error &e) { EXPECT_EQ(e.text(), "enough"); }
}

TEST(Newcomers, HearWhyNobodyHasItAlsoWhereTheMemberSaysNothing) {
  const Ticket ticket = ticket_for(), other = ticket_for();
  auto told = begin_to_come(ticket, "a"), left = begin_to_come(other, "b");
  {
    Newcomers come(ticket, {1}, Deadline(soon()), {}), forgetful(other, {1}, Deadline(soon()), {});
    come.welcome(welcome_to(2), {1});
    come.failed({Code::Device, "rank 0 has no device"});
  }
  EXPECT_TRUE(contains(told.get(), "rank 0 has no device"));
  EXPECT_TRUE(contains(left.get(), "the members have given up"));
}

TEST(Newcomers, ThatWaitForSomethingElseHearThatTheMembersHaveGivenUpOrAreGone) {
  const Ticket ticket = ticket_for();
  auto comes =
      std::async(std::launch::async, [&] { return std::make_unique<Entry>(ticket, at_home(), kAnySlot, Deadline(soon())); });
  ASSERT_TRUE(await_waiting(ticket, 1));
  auto come = std::make_unique<Newcomers>(ticket, std::vector<int>{1}, Deadline(soon()), Look());
  come->welcome(welcome_to(2), {1});
  const std::unique_ptr<Entry> entry = comes.get();
  entry->look();  // nothing to hear yet
  come->failed({Code::Device, "rank 0 has no device"});
  Status heard;
  EXPECT_TRUE(eventually([&] { return !(heard = error_of([&] { entry->look(); })).ok(); }));
  EXPECT_EQ(heard.text, "rank 0 has no device");
  come.reset();
  EXPECT_TRUE(eventually([&] { return error_of([&] { entry->look(); }).code == Code::PeerLost; }));
}

TEST(Newcomers, ATicketIsUsedOnceAndWhoIsLeftOverOrLateIsToldSo) {
  const Ticket ticket = ticket_for();
  auto one = begin_to_come(ticket, "a"), other = begin_to_come(ticket, "b");
  ASSERT_TRUE(await_waiting(ticket, 2));
  {
    const Newcomers come(ticket, {1}, Deadline(soon()), {});
    EXPECT_EQ(waiting(ticket), 0u);
    EXPECT_EQ(error_of([&] { Newcomers(ticket, {1}, Deadline(soon()), {}); }).code, Code::Argument);
    EXPECT_TRUE(contains(begin_to_come(ticket, "late").get(), "the ticket was used"));
  }
  const std::string all = one.get() + other.get();
  EXPECT_TRUE(contains(all, "the ticket was used")) << all;
  EXPECT_TRUE(contains(all, "the members have given up")) << all;
}

TEST(Newcomers, ATicketThatHasExpiredTellsThoseThatWaitAndThoseThatCome) {
  const Ticket ticket = ticket_for(patient(0.3));
  auto waits = begin_to_come(ticket, "a");
  EXPECT_TRUE(contains(waits.get(), "has expired"));
  EXPECT_TRUE(contains(begin_to_come(ticket, "b").get(), "has expired"));
  EXPECT_TRUE(contains(error_of([&] { Newcomers(ticket, {1}, Deadline(soon()), {}); }).text, "has expired"));
}

TEST(Newcomers, TooFewAtTheDeadlineAreCountedAndGoOnWaiting) {
  const Ticket ticket = ticket_for();
  auto one = begin_to_come(ticket, "a");
  ASSERT_TRUE(await_waiting(ticket, 1));
  const Status late = error_of([&] { Newcomers(ticket, {1, 2}, Deadline(patient(0.1)), {}); });
  EXPECT_EQ(late.code, Code::Timeout);
  EXPECT_TRUE(contains(late.text, "of 2 processes with the ticket 1 came")) << late.text;
  EXPECT_EQ(waiting(ticket), 1u);
  { const Newcomers come(ticket, {1}, Deadline(soon()), {}); }
  EXPECT_TRUE(contains(one.get(), "the members have given up"));
}

TEST(Newcomers, OfTwoThatComeForOneSlotTheSecondIsRefusedAtOnce) {
  const Ticket ticket = ticket_for();
  auto first = begin_to_come(ticket, "a", 1);
  ASSERT_TRUE(await_waiting(ticket, 1));
  EXPECT_TRUE(contains(begin_to_come(ticket, "b", 1).get(), "has come for slot 1 before"));
  { const Newcomers come(ticket, {1}, Deadline(soon()), {}); }
  first.get();
}

TEST(Newcomers, WhoAsksForASlotThatIsNotFreeIsRefusedAndTheMemberWaitsOn) {
  const Ticket ticket = ticket_for();
  auto bold = begin_to_come(ticket, "a", 0);
  ASSERT_TRUE(await_waiting(ticket, 1));
  auto member = std::async(std::launch::async, [&] { const Newcomers come(ticket, {1}, Deadline(soon()), {}); });
  EXPECT_TRUE(contains(bold.get(), "slot 0 is not free, a rank lives there; free are 1"));
  auto modest = begin_to_come(ticket, "b");
  member.get();
  EXPECT_TRUE(contains(modest.get(), "the members have given up"));
}

TEST(Newcomers, WhoHasNotTheJobKeyIsRefused) {
  constexpr const char *kKey = "0123456789abcdef0123456789abcdef", *kOther = "0123456789abcdef0123456789abcdee";
  const Ticket ticket = ticket_for(600, kKey);
  for (const char *key : {"", kOther}) {
    const std::string said = begin_to_come(ticket, "a", kAnySlot, key).get();
    EXPECT_TRUE(contains(said, "another ISTHMUS_JOB_KEY")) << said;
  }
  auto knows = begin_to_come(ticket, "a", kAnySlot, kKey);
  ASSERT_TRUE(await_waiting(ticket, 1));
  { const Newcomers come(ticket, {1}, Deadline(soon()), {}); }
  knows.get();
}

TEST(Newcomers, OneThatEndsWhileItIsLetInIsNamedByItsProcessAndItsRank) {
  const Ticket ticket = ticket_for();
  auto leaves = std::async(std::launch::async, [&] { Entry(ticket, at_home(), kAnySlot, Deadline(soon())); });
  Newcomers come(ticket, {4}, Deadline(soon()), {});
  come.welcome(welcome_to(5), {4});
  leaves.get();
  const Status gone = error_of([&] { come.contributions(Deadline(soon()), {}); });
  EXPECT_EQ(gone.code, Code::PeerLost);
  EXPECT_TRUE(contains(gone.text, formatted("pid {}", ::getpid())) && contains(gone.text, "to be rank 4")) << gone.text;
}

TEST(Newcomers, AProcessMakesNoMoreTicketsThanItMayHaveOpen) {
  WaitingRooms rooms;
  const int64_t later = now_ns() + seconds_to_ns(600);
  for (size_t n = 0; n < WaitingRooms::kMostOpen; ++n) rooms.open(n, {}, n ? later : 0);
  rooms.open(WaitingRooms::kMostOpen, {}, later);  // the first has expired
  EXPECT_EQ(error_of([&] { rooms.open(WaitingRooms::kMostOpen + 1, {}, later); }).code, Code::Resource);
}

TEST(EntryText, IsPrintableAndComesBackAsItWas) {
  const Ticket ticket{
      0xfedcba98, {1, 2, 0xff}, {net::numeric_address("10.0.0.1:4000"), net::numeric_address("[fd00::2]:4001")}};
  const std::string text = entry_text(ticket);
  EXPECT_LT(text.size(), 110u);
  for (const char c : text) EXPECT_TRUE(std::isalnum(c) || c == '-' || c == '_') << text;
  const Ticket back = parse_entry(text);
  EXPECT_EQ(back.number, ticket.number);
  EXPECT_EQ(back.key, ticket.key);
  ASSERT_EQ(back.addresses.size(), 2u);
  EXPECT_EQ(back.addresses[1].text(), "[fd00::2]:4001");
}

TEST(EntryText, ThatIsChangedOrCutIsRefused) {
  const std::string text = entry_text({1, {2}, {net::numeric_address("10.0.0.1:4000")}});
  std::vector<std::string> wrong{"", "isthmus-", text + "A", text.substr(1), text.substr(0, text.size() - 1)};
  for (size_t i = 0; i < text.size(); ++i) {
    wrong.push_back(text);
    wrong.back()[i] = text[i] == 'B' ? 'C' : 'B';
    wrong.push_back(text);
    wrong.back()[i] = ' ';
  }
  for (const std::string &one : wrong) {
    const Code code = error_of([&] { parse_entry(one); }).code;
    EXPECT_TRUE(code == Code::Argument || code == Code::Mismatch) << one;
  }
}

}  // namespace
}  // namespace isthmus::bootstrap::testing
