// Tickets: what very many of them cost a process, who is served, and what those are told who come too late or hold no ticket.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/rendezvous.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/ticket_book.hpp"
#include "bootstrap/ticket_wire.hpp"
#include "bootstrap_support.hpp"
#include "net/handshake.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap::testing {
namespace {

using TicketBytes = std::array<std::byte, kTicketBytes>;

TicketBytes ticket_at(const char *interface) {
  Settings settings;
  settings.set("ISTHMUS_INTERFACE", interface);
  TicketBytes ticket{};
  create_ticket(settings, ticket);
  return ticket;
}

size_t entries(const char *folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}
size_t threads() { return entries("/proc/self/task"); }
size_t descriptors() { return entries("/proc/self/fd"); }

struct Heard {
  Status status;
  std::string all;  // what the ranks said, one after the other
};
Heard come(const TicketBytes &ticket, int rank, int world, const std::string &say, double seconds = soon()) {
  Heard heard;
  heard.status = error_of([&] {
    const auto exchange = ticket_exchange(ticket, rank, world);
    const auto said = bytes(say);
    for (const Blob &b : exchange->all_gather({said.begin(), said.end()}, Deadline(seconds)))
      heard.all += std::string(reinterpret_cast<const char *>(b.data()), b.size());
  });
  return heard;
}
std::future<Heard> begin_to_come(const TicketBytes &ticket, int rank, int world, const std::string &say) {
  return std::async(std::launch::async, [=] { return come(ticket, rank, world, say); });
}

TEST(Tickets, ManyOfThemShareOneThreadAndOneSetOfSockets) {
  std::thread([] {}).join();  // a sanitizer begins a thread of its own with the first one of the program
  const size_t threads_before = threads(), descriptors_before = descriptors();
  std::vector<TicketBytes> made(2000);
  std::set<std::pair<uint32_t, net::Bytes16>> different;
  for (TicketBytes &t : made) {
    t = ticket_at("127.0.0.1");
    const Ticket ticket = unpack_ticket(t);
    different.emplace(ticket.number, ticket.key);
    ASSERT_EQ(ticket.addresses.size(), 1u);
    EXPECT_EQ(ticket.addresses[0].text(), unpack_ticket(made[0]).addresses[0].text());
  }
  EXPECT_EQ(different.size(), made.size());
  EXPECT_LE(threads(), threads_before + 1);
  EXPECT_LE(descriptors(), descriptors_before + 3);  // a listener for the address, the set that watches it, and its signals
  for (const size_t n : {made.size() - 1, size_t{0}, made.size() / 2}) {
    auto zero = begin_to_come(made[n], 0, 2, "a");
    const Heard one = come(made[n], 1, 2, "b");
    EXPECT_EQ(zero.get().all, "ab");
    EXPECT_EQ(one.all, "ab") << one.status.text;
  }
}

TEST(Tickets, OfOtherInterfacesLeadToOtherSocketsAndAllServe) {
  std::vector<TicketBytes> made;
  for (const char *interface : {"127.0.0.1", "lo", "127.0.0.1"}) made.push_back(ticket_at(interface));
  const auto first = [&](size_t n) { return unpack_ticket(made[n]).addresses.at(0).text(); };
  EXPECT_EQ(first(0), first(2));
  EXPECT_NE(first(0), first(1));
  for (const TicketBytes &ticket : made) {
    const Heard alone = come(ticket, 0, 1, "x");
    EXPECT_EQ(alone.all, "x") << alone.status.text;
  }
}

TEST(Tickets, MeetingsThatGoOnAtOnceDoNotMix) {
  const TicketBytes one = ticket_at("lo"), other = ticket_at("lo");
  std::vector<std::future<Heard>> ones, others;
  for (int r = 0; r < 2; ++r) {  // both meetings lack a rank while all these come
    ones.push_back(begin_to_come(one, r, 3, "o" + std::to_string(r)));
    others.push_back(begin_to_come(other, r, 3, "p" + std::to_string(r)));
  }
  EXPECT_EQ(come(other, 2, 3, "p2").all, "p0p1p2");
  for (auto &rank : others) EXPECT_EQ(rank.get().all, "p0p1p2");
  EXPECT_EQ(come(one, 2, 3, "o2").all, "o0o1o2");
  for (auto &rank : ones) EXPECT_EQ(rank.get().all, "o0o1o2");
}

TEST(Tickets, ThatNobodyMadeAreRefusedAtOnceAndWithWords) {
  const Ticket made = unpack_ticket(ticket_at("127.0.0.1"));
  Ticket other_key = made, other_number = made;
  other_key.key[3] ^= 1;
  other_number.number += 1'000'000;
  for (const Ticket &t : {other_key, other_number}) {
    TicketBytes false_ticket;
    pack_ticket(t, false_ticket);
    const Heard h = come(false_ticket, 0, 1, "x");
    EXPECT_EQ(h.status.code, Code::Auth);
    EXPECT_TRUE(contains(h.status.text, "does not know this ticket")) << h.status.text;
  }
}

TEST(Tickets, TellWhoComesTooLateThatTheMeetingIsOverAndHowItEnded) {
  const TicketBytes met = ticket_at("lo"), failed = ticket_at("lo");
  EXPECT_EQ(come(met, 0, 1, "x").all, "x");
  auto zero = begin_to_come(failed, 0, 2, "a");
  EXPECT_EQ(come(failed, 1, 3, "b").status.code, Code::Mismatch);
  EXPECT_EQ(zero.get().status.code, Code::Mismatch);
  for (int again = 0; again < 2; ++again) {
    const Heard after_met = come(met, 0, 1, std::string(kMaxBlob, 'x')), after_failure = come(failed, 1, 2, "b");
    EXPECT_EQ(after_met.status.code, Code::System);
    EXPECT_TRUE(contains(after_met.status.text, "is over: all its ranks met and have left")) << after_met.status.text;
    EXPECT_EQ(after_failure.status.code, Code::Mismatch);
    EXPECT_TRUE(contains(after_failure.status.text, "is over: it failed: ") &&
                contains(after_failure.status.text, "give all ranks the same"))
        << after_failure.status.text;
  }
}

TEST(Tickets, WhoComesAfterADeadlineOfTheOthersIsToldWhomTheyMissed) {
  const TicketBytes ticket = ticket_at("lo");
  EXPECT_EQ(come(ticket, 0, 2, "a", patient(0.5)).status.code, Code::Timeout);
  const Heard late = come(ticket, 1, 2, "b");
  EXPECT_EQ(late.status.code, Code::System);
  EXPECT_TRUE(contains(late.status.text, "is over: it failed: rank 1 of 2 did not arrive")) << late.status.text;
}

TEST(Tickets, AreServedThoughStrangersSayNothingOrAnything) {
  const TicketBytes ticket = ticket_at("lo");
  const net::ByteVector hello = net::encode(net::Hello{});
  std::vector<UniqueFd> strangers;
  for (const net::Address &at : unpack_ticket(ticket).addresses)
    for (const std::string &says : {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, 'Z'),
                                    std::string(reinterpret_cast<const char *>(hello.data()), hello.size() / 2),
                                    std::string(reinterpret_cast<const char *>(hello.data()), hello.size())}) {
      strangers.emplace_back();
      ASSERT_EQ(net::connect_tcp(at, Deadline(soon()), strangers.back()), 0);
      net::send_some(strangers.back().get(), bytes(says));
    }
  auto zero = begin_to_come(ticket, 0, 2, "a");
  EXPECT_EQ(come(ticket, 1, 2, "b").all, "ab");
  EXPECT_EQ(zero.get().all, "ab");
}

// One that takes part, and then neither reads nor leaves.
TEST(Tickets, AreServedThoughAClientOfAnotherReadsNothing) {
  constexpr int kRanks = 8;  // their result is more than a connection holds unread
  const TicketBytes stuck = ticket_at("lo"), other = ticket_at("lo");
  const Ticket ticket = unpack_ticket(stuck);
  UniqueFd silent;
  ASSERT_EQ(net::connect_tcp(ticket.addresses.at(0), Deadline(soon()), silent), 0);
  net::Hello hello;
  hello.role = net::Role::Rendezvous;
  hello.count = kRanks;
  hello.ticket = ticket.number;
  hello.process = net::random16();
  net::dial(silent.get(), hello, ticket.key, "the server", Deadline(soon()));
  net::ByteVector message;
  append_join(message, {4711, "somewhere"});
  append_contribution(message, 0, {});
  ASSERT_EQ(net::send_all(silent.get(), message, Deadline(soon())), net::Io::Ok);
  std::vector<std::future<size_t>> others;
  for (int r = 1; r < kRanks; ++r)
    others.push_back(std::async(std::launch::async, [&, r] {
      return ticket_exchange(stuck, r, kRanks)->all_gather(Blob(kMaxBlob), Deadline(soon())).at(1).size();
    }));
  for (auto &one : others) EXPECT_EQ(one.get(), kMaxBlob);
  EXPECT_EQ(come(other, 0, 1, "x").all, "x");
}

TEST(TicketWire, HoldsSixAddressesOfIPv4OrThreeBesideOneOfIPv6) {
  const auto listed = [](std::initializer_list<const char *> addresses) {
    Ticket t{0xfedcba98, {1, 2, 3}, {}};
    for (const char *a : addresses) t.addresses.push_back(net::numeric_address(a));
    TicketBytes bytes;
    const size_t count = pack_ticket(t, bytes);
    const Ticket back = unpack_ticket(bytes);
    EXPECT_EQ(back.addresses.size(), count);
    EXPECT_EQ(back.number, t.number);
    EXPECT_EQ(back.key, t.key);
    std::string text;
    for (const net::Address &a : back.addresses) text += a.text() + " ";
    return text;
  };
  EXPECT_EQ(listed({"1.1.1.1:1", "1.1.1.2:2", "1.1.1.3:3", "1.1.1.4:4", "1.1.1.5:5", "1.1.1.6:6", "1.1.1.7:7"}),
            "1.1.1.1:1 1.1.1.2:2 1.1.1.3:3 1.1.1.4:4 1.1.1.5:5 1.1.1.6:6 ");
  EXPECT_EQ(listed({"1.1.1.1:1", "[fd00::1]:65535", "1.1.1.2:2", "[fd00::2]:3", "1.1.1.3:3"}),
            "1.1.1.1:1 [fd00::1]:65535 1.1.1.2:2 1.1.1.3:3 ");
}

TEST(TicketBook, ForgetsTheOldestAndKnowsHowManyOfThemNobodyHadUsed) {
  TicketBook book(4, 2);
  for (uint64_t n = 0; n < 4; ++n) EXPECT_EQ(book.make(), n);
  for (uint64_t n = 0; n < 4; ++n) EXPECT_FALSE(book.over(n)) << n;
  book.note_over(1, {});
  EXPECT_EQ(book.dropped(), 0u);
  book.make();
  book.make();
  EXPECT_EQ(book.dropped(), 1u);  // ticket 0; ticket 1 had been used
  for (const uint64_t old : {uint64_t{0}, uint64_t{1}}) {
    EXPECT_EQ(book.find(static_cast<uint32_t>(old)), old);  // who holds it is known, and told why it does not serve
    ASSERT_TRUE(book.over(old));
    EXPECT_TRUE(contains(book.over(old)->text, "more than 4 tickets were made after this one"));
  }
  for (uint64_t n = 2; n < 6; ++n) EXPECT_FALSE(book.over(n)) << n;
  EXPECT_FALSE(book.find(6));
  EXPECT_FALSE(book.find(~uint32_t{0}));
}

TEST(TicketBook, KnowsHowMeetingsEndedAndWhyTheLastOfThemFailed) {
  TicketBook book(8, 2);
  for (int n = 0; n < 4; ++n) book.make();
  book.note_over(0, {});
  book.note_over(0, {Code::Mismatch, "a later end does not count"});
  for (uint64_t n = 1; n < 4; ++n) book.note_over(n, {Code::PeerLost, "rank " + std::to_string(n) + " has ended"});
  EXPECT_TRUE(contains(book.over(0)->text, "all its ranks met"));
  EXPECT_EQ(book.over(1)->text, "it failed, long ago");
  EXPECT_EQ(book.over(2)->text, "it failed: rank 2 has ended");
  EXPECT_EQ(book.over(3)->code, Code::PeerLost);
}

TEST(TicketBook, GivesEachTicketAKeyThatNoOtherAndNoOtherBookHas) {
  TicketBook book, other;
  std::set<net::Bytes16> keys;
  for (int n = 0; n < 100; ++n) {
    keys.insert(book.key(book.make()));
    keys.insert(other.key(other.make()));
  }
  EXPECT_EQ(keys.size(), 200u);
  EXPECT_TRUE(keys.contains(book.key(7)));
}

}  // namespace
}  // namespace isthmus::bootstrap::testing
