#include "topology/profile.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace isthmus::topology {
namespace {

std::string entry(const std::string &name, const std::string &median, const std::string &more = "") {
  return formatted(R"({{"name": "{}", "unit": "bytes/s", "median": {}, "min": 1, "max": 1e15, "repetitions": 9{}}})", name,
                   median, more);
}

std::string profile(const std::string &entries, const std::string &head = R"("schema": 1, "simulated": false)") {
  return formatted(R"({{{}, "isthmus": "0.1.0", "host": "node-a", "date": "2026-01-31T12:00:00Z", "entries": [{}]}})", head,
                   entries);
}

// The text of the error, or empty.
std::string refusal(const std::string &text) {
  try {
    parse_profile(text, "/etc/a profile");
  } catch (const Error &e) {
    EXPECT_EQ(e.code(), Code::Config);
    EXPECT_TRUE(e.text().starts_with("ISTHMUS_PROFILE=/etc/a profile: ")) << e.text();
    return e.text();
  }
  return {};
}

TEST(Profile, HoldsTheMediansByName) {
  const Profile p = parse_profile(profile(entry("tcp_loopback", "3.5e9") + "," + entry("cuda:1/host_to_device", "7")), "p");
  EXPECT_EQ(p.host, "node-a");
  EXPECT_EQ(p.date, "2026-01-31T12:00:00Z");
  EXPECT_FALSE(p.simulated);
  EXPECT_EQ(p.medians, (std::map<std::string, double>{{"tcp_loopback", 3.5e9}, {"cuda:1/host_to_device", 7}}));
}

TEST(Profile, RatesAreThoseOfTheRanksDevice) {
  std::string all;
  double value = 10;
  for (const char *name : {"memory_copy", "reduce_float32", "reduce_bfloat16", "shm_exchange", "tcp_loopback",
                           "cuda:0/device_to_host", "cuda:0/host_to_device", "cuda:1/device_to_host"})
    all.append(all.empty() ? 0 : 1, ',').append(entry(name, std::to_string(value++)));
  const Profile p = parse_profile(profile(all, R"("schema": 1, "simulated": true)"), "p");
  EXPECT_EQ(rates_of(p, "host").values, (std::array<double, kRates>{10, 11, 12, 13, 14, 0, 0}));
  EXPECT_EQ(rates_of(p, "cuda:0").values, (std::array<double, kRates>{10, 11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(rates_of(p, "cuda:1").values, (std::array<double, kRates>{10, 11, 12, 13, 14, 17, 0}));
  EXPECT_TRUE(rates_of(p, "host").simulated);
}

std::string with_star(const std::string &star) {
  return profile(entry("x", "2"), formatted(R"("schema": 1, "simulated": false, "star": {})", star));
}

TEST(Profile, SaysUpToWhichSizeTheLeaderExchangeIsTakenOverWhichLink) {
  const auto star = [](const std::string &text) { return parse_profile(text, "p").leader_bytes; };
  EXPECT_EQ(star(profile(entry("x", "2"))).tcp, -1) << "one that was made before there was such a thing";
  const LeaderBytes one =
      star(with_star(R"({"tcp": {"bytes": 4096, "min": 0, "max": 262144, "repetitions": 9, "note": "4 ranks"}})"));
  EXPECT_EQ(one.tcp, 4096);
  EXPECT_EQ(one.memory, -1);
  const LeaderBytes two = star(with_star(R"({"tcp": {"bytes": 0, "min": 0, "max": 0, "repetitions": 1},
    "memory": {"bytes": 262144, "min": 1, "max": 262144, "repetitions": 5, "sizes": [1, 2]}, "pigeon": 3})"));
  EXPECT_EQ(two.tcp, 0);
  EXPECT_EQ(two.memory, kMostLeaderBytes);
}

TEST(Profile, WhatLaterVersionsAddIsPassedOver) {
  EXPECT_EQ(refusal(profile(entry("x", "2", R"(, "spread": [1, 2], "of": {"a": 1})"))), "");
  EXPECT_EQ(refusal(profile("", R"("schema": 1, "simulated": false, "missing": [{"name": "hip", "text": "none"}])")), "");
}

TEST(Profile, ARefusalNamesThePlaceAndWhatWasExpected) {
  const std::string good = entry("x", "2");
  const struct {
    std::string text, place, expected;
  } cases[] = {
      {"", "byte 1 of 0", "expected JSON"},
      {"[1]", "the profile", "expected an object"},
      {"{\"schema\": 1", "byte 13 of 12", "expected JSON"},
      {profile(good, R"("schema": 2, "simulated": false)"), "schema", "of schema 1"},
      {profile(good, R"("schema": "1", "simulated": false)"), "schema", "of schema 1"},
      {profile(good, R"("simulated": false)"), "the profile", "has no \"schema\""},
      {profile(good, R"("schema": 1, "simulated": "no")"), "simulated", "true or false"},
      {R"({"schema": 1, "host": 3, "date": "", "simulated": false, "entries": []})", "host", "a text"},
      {R"({"schema": 1, "host": "", "date": "", "simulated": false, "entries": {}})", "entries", "a list"},
      {profile("7"), "entries[0]", "expected an object"},
      {profile(good + "," + good), "entries[1].name", "'x' is there twice"},
      {profile(entry("", "2")), "entries[0].name", "the name of what was measured"},
      {profile(entry(std::string(300, 'n'), "2")), "entries[0].name", "at most 256 bytes"},
      {profile(entry("x", "\"fast\"")), "entries[0].median", "bytes a second"},
      {profile(entry("x", "-3")), "entries[0].median", "bytes a second"},
      {profile(entry("x", "0")), "entries[0].median", "bytes a second"},
      {profile(entry("x", "1e16")), "entries[0].median", "bytes a second"},
      {profile(entry("x", "null")), "entries[0].median", "bytes a second"},
      {profile(entry("x", "1e999")), "the text", "expected JSON"},
      {profile(entry("x", "NaN")), "byte ", "expected JSON"},
      {profile(R"({"name": "x", "unit": "GB/s", "median": 2, "min": 1, "max": 3, "repetitions": 1})"), "entries[0].unit",
       "\"bytes/s\""},
      {profile(R"({"name": "x", "unit": "bytes/s", "median": 4, "min": 1, "max": 3, "repetitions": 1})"), "entries[0]",
       "min <= median <= max"},
      {profile(R"({"name": "x", "unit": "bytes/s", "median": 2, "min": 1, "max": 3, "repetitions": 0})"),
       "entries[0].repetitions", "above 0"},
      {with_star("[]"), "star", "expected an object"},
      {with_star(R"({"tcp": 8192})"), "star.tcp", "expected an object"},
      {with_star(R"({"memory": {}})"), "star.memory", "has no \"bytes\""},
      {with_star(R"({"tcp": {"bytes": 1}})"), "star.tcp", "has no \"min\""},
      {with_star(R"({"tcp": {"bytes": -1, "min": 0, "max": 0, "repetitions": 1}})"), "star.tcp.bytes", "from 0 to 262144"},
      {with_star(R"({"tcp": {"bytes": 262145, "min": 0, "max": 0, "repetitions": 1}})"), "star.tcp.bytes",
       "from 0 to 262144"},
      {with_star(R"({"tcp": {"bytes": 1e3, "min": 0, "max": 0, "repetitions": 1}})"), "star.tcp.bytes", "a whole number"},
      {with_star(R"({"tcp": {"bytes": 18446744073709551615, "min": 0, "max": 0, "repetitions": 1}})"), "star.tcp.bytes",
       "from 0 to 262144"},
      {with_star(R"({"tcp": {"bytes": 5, "min": 6, "max": 7, "repetitions": 1}})"), "star.tcp", "min <= bytes <= max"},
      {with_star(R"({"tcp": {"bytes": 5, "min": 5, "max": 5, "repetitions": 0}})"), "star.tcp.repetitions", "above 0"},
      {profile(R"({"name": "x", "unit": "bytes/s", "median": 2, "min": 1, "max": 3})"), "entries[0]", "no \"repetitions\""},
  };
  for (const auto &c : cases) {
    const std::string text = refusal(c.text);
    EXPECT_NE(text.find(": " + c.place), std::string::npos) << c.text << "\n" << text;
    EXPECT_NE(text.find(c.expected), std::string::npos) << c.text << "\n" << text;
    EXPECT_NE(text.find("isthmus tune"), std::string::npos) << text;
  }
}

TEST(Profile, IsBoundedInSizeEntriesAndDepth) {
  EXPECT_NE(refusal(std::string(kMostProfileBytes + 1, ' ')).find("at most 1048576"), std::string::npos);
  EXPECT_NE(refusal(std::string(kMostProfileBytes, '[')).find("deep"), std::string::npos);
  EXPECT_NE(refusal(profile(entry("x", "2", R"(, "a": [[1]])"))).find("deep"), std::string::npos);
  std::string all = "0";
  for (size_t i = 0; i < kMostProfileEntries; ++i) all += ",0";
  EXPECT_NE(refusal(profile(all)).find("at most 4096"), std::string::npos);
}

TEST(Profile, EveryTruncationIsRefused) {
  const std::string whole = profile(entry("tcp_loopback", "3.5e9") + "," + entry("memory_copy", "9e9"),
                                    R"("schema": 1, "simulated": false, "star": {"tcp": {"bytes": 1, "min": 1, "max": 1,
                                       "repetitions": 5}})");
  EXPECT_EQ(refusal(whole), "");
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_NE(refusal(whole.substr(0, n)), "") << n;
}

}  // namespace
}  // namespace isthmus::topology
