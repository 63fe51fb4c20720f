// The table of settings, the flight recorder, time and deadlines, copies, and the tables of dtypes.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/copy.hpp"
#include "base/dtype.hpp"
#include "base/environment.hpp"
#include "base/error.hpp"
#include "base/file_name.hpp"
#include "base/fork.hpp"
#include "base/streaming_copy.hpp"
#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "base/one_line.hpp"
#include "base/recorder.hpp"
#include "base/seen_time.hpp"
#include "base/settings.hpp"
#include "in_child.hpp"

namespace isthmus {
namespace {

using isthmus_test::in_child;

using Kind = SettingKind;

// The text of the error that `what` throws, which must be a Config error; empty if it throws none.
template <class F>
std::string refused(F what) {
  try {
    what();
  } catch (const Error &e) {
    EXPECT_EQ(e.code(), Code::Config) << e.text();
    EXPECT_FALSE(e.text().empty());
    return e.text();
  }
  return "";
}
std::string refused(std::string_view name, std::string_view value) {
  Settings s;
  return refused([&] { s.set(name, value); });
}
bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }
std::string whole(double v) { return isthmus::formatted("{:.0f}", v); }
bool is_number(Kind k) { return k == Kind::Integer || k == Kind::Bytes; }

std::vector<std::string> choices_of(const SettingRow &row) {
  std::vector<std::string> out;
  std::string rest = row.choices;
  for (size_t bar; (bar = rest.find('|')) != std::string::npos; rest = rest.substr(bar + 1))
    out.push_back(rest.substr(0, bar));
  out.push_back(rest);
  return out;
}

std::string range_of(const SettingRow &row) {
  if (row.kind == Kind::Choice) return row.choices;
  if (row.kind == Kind::Ports) return "first-last, each from 1 to 65535";
  if (row.kind == Kind::Pattern) return isthmus::kPatternText;
  return is_number(row.kind) ? whole(row.min) + " to " + whole(row.max)
                             : isthmus::formatted("{:g} to {:g}", row.min, row.max);
}

// An environment variable for the length of a test.
class Variable {
 public:
  Variable(const char *name, const char *value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char *name_;
};

TEST(Environment, WhatIsAddedLeavesTheListThatAnotherThreadMayBeReading) {
  ::setenv("ISTHMUS_TEST_HAS", "mine", 1);
  char **const before = environ;
  std::vector<char *> texts;
  for (char **at = before; *at; ++at) texts.push_back(*at);
  const std::vector<std::pair<std::string, std::string>> more = {{"ISTHMUS_TEST_HAS", "other"}, {"ISTHMUS_TEST_NEW", "x"}};
  add_to_environment(more);
  EXPECT_STREQ(std::getenv("ISTHMUS_TEST_HAS"), "mine");
  EXPECT_STREQ(std::getenv("ISTHMUS_TEST_NEW"), "x");
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(before[i], texts[i]);
  EXPECT_EQ(before[texts.size()], nullptr);
  ::setenv("ISTHMUS_TEST_LATER", "y", 1);  // the system's own calls go on from there
  EXPECT_STREQ(std::getenv("ISTHMUS_TEST_LATER"), "y");
  EXPECT_STREQ(std::getenv("ISTHMUS_TEST_NEW"), "x");
  for (const char *name : {"ISTHMUS_TEST_HAS", "ISTHMUS_TEST_NEW", "ISTHMUS_TEST_LATER"}) ::unsetenv(name);
  EXPECT_EQ(std::getenv("ISTHMUS_TEST_NEW"), nullptr);
}

TEST(Settings, EveryRowHasItsPlaceAndSaysWhatItIs) {
  std::set<std::string> names;
  ASSERT_EQ(setting_rows().size(), static_cast<size_t>(kSettingCount));
  for (const auto &row : setting_rows()) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(&row - setting_rows().data(), static_cast<ptrdiff_t>(row.id));
    EXPECT_TRUE(names.insert(row.name).second);
    EXPECT_EQ(std::string(row.name).substr(0, 8), "ISTHMUS_");
    EXPECT_GT(std::string(row.meaning).size(), 10u);
    EXPECT_EQ(row.kind == Kind::Choice, *row.choices != 0);
    if (is_number(row.kind) || row.kind == Kind::Real) { EXPECT_LT(row.min, row.max); }
  }
}

TEST(Settings, EveryDefaultIsAValueThatItsRowAllows) {
  const Settings s;
  for (const auto &row : setting_rows()) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(s.text(row.id), row.fallback);
    EXPECT_FALSE(s.is_set(row.id));
    EXPECT_EQ(refused(row.name, row.fallback), "");
    if (is_number(row.kind) && s.integer(row.id) != 0) {  // 0 may stand for "not said"
      EXPECT_GE(static_cast<double>(s.integer(row.id)), row.min);
      EXPECT_LE(static_cast<double>(s.integer(row.id)), row.max);
    } else if (row.kind == Kind::Real) {
      EXPECT_GE(s.real(row.id), row.min);
      EXPECT_LE(s.real(row.id), row.max);
    }
  }
}

TEST(Settings, TheEndsOfEveryRangeAreAllowedAndNothingBeyondThem) {
  for (const auto &row : setting_rows()) {
    SCOPED_TRACE(row.name);
    std::vector<std::string> good, bad;
    switch (row.kind) {
      case Kind::Integer:
      case Kind::Bytes:
        good = {whole(row.min), whole(row.max)};
        bad = {whole(row.min - 1),
               whole(row.max + 1),
               "99999999999999999999999999",
               "",
               " ",
               "x",
               "1x",
               "1 ",
               " 1",
               "0x10",
               "1.5",
               "1e3",
               "--1",
               "+1"};
        if (row.min >= 0) bad.push_back("-1");
        if (row.kind == Kind::Integer) bad.insert(bad.end(), {"16K", "1M"});
        break;
      case Kind::Real:
        good = {isthmus::formatted("{}", row.min), isthmus::formatted("{}", row.max)};
        bad = {isthmus::formatted("{}", std::nextafter(row.min, -INFINITY)),
               isthmus::formatted("{}", std::nextafter(row.max, INFINITY)),
               "-1",
               "nan",
               "inf",
               "",
               "x",
               "1s",
               "1,5",
               " 1"};
        break;
      case Kind::Choice:
        good = choices_of(row);
        bad = {"", "no such choice", std::string(good[0]) + " ", std::string(row.choices)};
        for (std::string upper : good) {
          for (char &c : upper) c = static_cast<char>(std::toupper(c));
          bad.push_back(upper);
        }
        break;
      case Kind::Ports:
        good = {"", "1-65535", "29600-29600"};
        bad = {"0-5",     "5-4",           "1-65536", "29600", "29600-", "-29600",       "a-b",
               "29600-x", "29600 - 29601", "1-2-3",   "1-+2",  "1,2",    "1-99999999999"};
        break;
      case Kind::Text: good = {"", "anything = at all; really"}; break;
      case Kind::Pattern:
        good = {"", "%h%p%r%%", "plain"};
        bad = {"%", "%x", "%H", "100%"};
        break;
    }
    for (const auto &v : good) EXPECT_EQ(refused(row.name, v), "") << "'" << v << "'";
    for (const auto &v : bad) {
      const std::string said = refused(row.name, v);
      EXPECT_TRUE(contains(said, isthmus::formatted("{}={}", row.name, v))) << "'" << v << "': " << said;
      EXPECT_TRUE(contains(said, range_of(row))) << "what would be allowed: " << said;
      EXPECT_TRUE(contains(said, *row.fallback ? row.fallback : "empty")) << said;
    }
  }
}

TEST(Settings, ARangeOfPortsHasItsEndsAndWithoutOneAnyPortWillDo) {
  Settings s;
  EXPECT_TRUE(s.ports(Setting::Ports).any());
  EXPECT_EQ(s.ports(Setting::Ports).count(), 0u);
  EXPECT_FALSE(s.ports(Setting::Ports).has(1));
  s.set("PORTS", "29600-29603");
  const PortRange ports = s.ports(Setting::Ports);
  EXPECT_FALSE(ports.any());
  EXPECT_EQ(ports.count(), 4u);
  for (const unsigned port : {29599u, 29600u, 29603u, 29604u})
    EXPECT_EQ(ports.has(port), port == 29600 || port == 29603) << port;
}

TEST(Settings, ARefusedValueLeavesTheOldOne) {
  Settings s;
  s.set("CHUNK_BYTES", "64K");
  EXPECT_NE(refused([&] { s.set("CHUNK_BYTES", "1"); }), "");
  EXPECT_EQ(s.integer(Setting::ChunkBytes), 65536);
  EXPECT_EQ(s.text(Setting::ChunkBytes), "64K");
}

TEST(Settings, BytesTakeOneSuffixOfEitherCase) {
  const auto bytes = [](std::string_view text) {
    Settings s;
    s.set("STAGING_BYTES", text);
    EXPECT_EQ(s.text(Setting::StagingBytes), text);
    EXPECT_TRUE(s.is_set(Setting::StagingBytes));
    return s.integer(Setting::StagingBytes);
  };
  EXPECT_EQ(bytes("1048576"), 1 << 20);
  EXPECT_EQ(bytes("1024K"), 1 << 20);
  EXPECT_EQ(bytes("1024k"), 1 << 20);
  EXPECT_EQ(bytes("1M"), 1 << 20);
  EXPECT_EQ(bytes("3m"), 3 << 20);
  EXPECT_EQ(bytes("2G"), int64_t{2} << 30);
  EXPECT_EQ(bytes("1g"), int64_t{1} << 30);
  EXPECT_EQ(bytes("1024G"), int64_t{1} << 40);
  for (const char *text :
       {"1T", "1KB", "1Ki", "1KK", "K", "M1", "1 M", "1.5M", "-1M", "0G", "9223372036854775807G", "17179869184G", "1025G"})
    EXPECT_NE(refused("STAGING_BYTES", text), "") << text;
}

TEST(Settings, AnUnknownNameIsAnErrorThatNamesTheNearest) {
  const std::pair<const char *, const char *> names[] = {{"ISTHMUS_TIMEOT", "ISTHMUS_TIMEOUT"},
                                                         {"ISTHMUS_CHUNKBYTES", "ISTHMUS_CHUNK_BYTES"},
                                                         {"ISTHMUS_TCP_STREAM", "ISTHMUS_TCP_STREAMS"},
                                                         {"ISTHMUS_BRIGDE", "ISTHMUS_BRIDGE"},
                                                         {"isthmus_timeot", "ISTHMUS_TIMEOUT"},
                                                         {"ISTHMUS_", "ISTHMUS_"},
                                                         {"", "ISTHMUS_"}};
  for (const auto &[wrong, meant] : names) {
    const std::string said = refused(wrong, "1");
    EXPECT_TRUE(contains(said, "no such setting")) << said;
    EXPECT_TRUE(contains(said, wrong) && contains(said, isthmus::formatted("did you mean {}", meant))) << said;
  }
  // As short names are allowed, in capitals or not, so is a misspelt one understood.
  EXPECT_TRUE(contains(refused("chunk_bites", "1"), "did you mean ISTHMUS_CHUNK_BYTES")) << refused("chunk_bites", "1");
  Settings small;
  small.set("chunk_bytes", "64K");
  EXPECT_EQ(small.integer(Setting::ChunkBytes), 65536);
  EXPECT_TRUE(contains(refused("CHUNK_BITES", "1"), "did you mean ISTHMUS_CHUNK_BYTES")) << refused("CHUNK_BITES", "1");
}

TEST(Settings, AListSetsEachOfItsEntriesInOrder) {
  Settings s;
  s.apply("TIMEOUT=2.5;ISTHMUS_CHUNK_BYTES=8K;;NAME=a=b c;TCP_STREAMS=3;TCP_STREAMS=4;");
  EXPECT_EQ(s.real(Setting::Timeout), 2.5);
  EXPECT_EQ(s.integer(Setting::ChunkBytes), 8192);
  EXPECT_EQ(s.text(Setting::Name), "a=b c") << "a value may hold '='";
  EXPECT_EQ(s.integer(Setting::TcpStreams), 4) << "the last one counts";
  EXPECT_TRUE(s.is_set(Setting::Timeout));
  EXPECT_FALSE(s.is_set(Setting::EagerBytes));
  s.apply("");
  s.apply(";");
  s.apply("ISLAND=");
  EXPECT_TRUE(s.is_set(Setting::Island));
  EXPECT_EQ(s.real(Setting::Timeout), 2.5);
  EXPECT_TRUE(contains(refused([&] { s.apply("TIMEOUT"); }), "'TIMEOUT' is not NAME=value"));
  EXPECT_TRUE(contains(refused([&] { s.apply("=1"); }), "no such setting"));
  EXPECT_TRUE(contains(refused([&] { s.apply("TIMEOUT=3;SPIN_US=never;NAME=c"); }), "ISTHMUS_SPIN_US=never"));
}

TEST(Settings, AFormerNameIsTakenAndTheLogSaysTheNameOfToday) {
  ::testing::internal::CaptureStderr();
  Settings s;
  s.apply("STAR_BYTES=2K");
  s.apply("ISTHMUS_STAR_BYTES=4K");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(s.integer(Setting::LeaderBytes), 4096);
  EXPECT_TRUE(contains(said, "ISTHMUS_STAR_BYTES is now called ISTHMUS_LEADER_BYTES")) << said;
  EXPECT_EQ(said.find("is now called"), said.rfind("is now called")) << "once: " << said;
  EXPECT_TRUE(contains(refused("ISTHMUS_STAR_BYTES", "many"), "ISTHMUS_LEADER_BYTES=many"));
  const Variable former("ISTHMUS_STAR_BYTES", "1K");
  EXPECT_EQ(Settings::from_environment().integer(Setting::LeaderBytes), 1024);
  const Variable today("ISTHMUS_LEADER_BYTES", "3K");
  EXPECT_EQ(Settings::from_environment().integer(Setting::LeaderBytes), 3072) << "whichever stands first";
}

TEST(Settings, TheEnvironmentIsReadAndWhatIsNoSettingIsAnError) {
  {
    const Variable a("ISTHMUS_TIMEOUT", "7"), b("ISTHMUS_ISLAND", "of the blue dolphins"), c("XISTHMUS_NOTHING", "1");
    const Settings s = Settings::from_environment();
    EXPECT_EQ(s.real(Setting::Timeout), 7);
    EXPECT_EQ(s.text(Setting::Island), "of the blue dolphins");
    EXPECT_TRUE(s.is_set(Setting::Timeout) && s.is_set(Setting::Island));
    EXPECT_FALSE(s.is_set(Setting::EagerBytes));
  }
  EXPECT_FALSE(Settings::from_environment().is_set(Setting::Timeout));
  {
    const Variable a("ISTHMUS_TIMEOUTS", "7");
    EXPECT_TRUE(contains(refused([] { Settings::from_environment(); }), "did you mean ISTHMUS_TIMEOUT?"));
  }
  {
    const Variable a("ISTHMUS_TIMEOUT", "soon");
    EXPECT_TRUE(contains(refused([] { Settings::from_environment(); }), "ISTHMUS_TIMEOUT=soon"));
  }
}

TEST(Settings, AProcessMayHaveADefaultOfItsOwnBehindTheEnvironment) {
  Settings::set_default("ISTHMUS_INTERFACE", "eth7");
  const Settings s = Settings::from_environment();
  EXPECT_EQ(s.text(Setting::Interface), "eth7");
  EXPECT_FALSE(s.is_set(Setting::Interface)) << "nobody has asked for it";
  {
    const Variable a("ISTHMUS_INTERFACE", "lo");
    EXPECT_EQ(Settings::from_environment().text(Setting::Interface), "lo");
  }
  EXPECT_TRUE(contains(refused([] { Settings::set_default("TIMEOUT", "soon"); }), "ISTHMUS_TIMEOUT=soon"));
  Settings::set_default("ISTHMUS_INTERFACE", "");
  EXPECT_EQ(Settings::from_environment().text(Setting::Interface), "");
}

TEST(Settings, AgreedTextIsEqualWhereWhatIsMeantIsEqualAndDiffersInEachAgreedRow) {
  const std::string defaults = Settings().agreed_text();
  Settings same;  // the defaults without their suffixes
  for (const auto &row : setting_rows())
    if (is_number(row.kind)) same.set(row.name, std::to_string(Settings().integer(row.id)));
  EXPECT_NE(same.text(Setting::StagingBytes), Settings().text(Setting::StagingBytes));
  EXPECT_EQ(same.agreed_text(), defaults);
  for (const auto &row : setting_rows()) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(contains(defaults, isthmus::formatted("{}=", row.name)), row.agreed);
    Settings other;
    switch (row.kind) {
      case Kind::Integer:
      case Kind::Bytes: other.set(row.name, whole(row.max)); break;
      case Kind::Real: other.set(row.name, isthmus::formatted("{}", row.max)); break;
      case Kind::Choice: {
        const auto choices = choices_of(row);
        other.set(row.name, choices.back() != row.fallback ? choices.back() : choices.front());
        break;
      }
      case Kind::Ports: other.set(row.name, "2-3"); break;
      case Kind::Text:
      case Kind::Pattern: other.set(row.name, "another text"); break;
    }
    ASSERT_NE(other.text(row.id), row.fallback);
    EXPECT_EQ(other.agreed_text() != defaults, row.agreed);
  }
}

TEST(Settings, JsonListsEveryRowWithItsValueAndKeepsTheKeyToItself) {
  Settings s;
  s.apply("JOB_KEY=00112233445566778899aabbccddeeff;TCP_STREAMS=5;NAME=quote\" and \\");
  const auto all = nlohmann::json::parse(s.to_json());
  ASSERT_EQ(all.size(), setting_rows().size());
  for (const auto &row : setting_rows()) {
    const auto &j = all[static_cast<size_t>(row.id)];
    SCOPED_TRACE(j.dump());
    EXPECT_EQ(j["name"], row.name);
    EXPECT_EQ(j["default"], row.fallback);
    EXPECT_EQ(j["meaning"], row.meaning);
    EXPECT_EQ(j["agreed"], row.agreed);
    EXPECT_EQ(j["given"], s.is_set(row.id));
    EXPECT_FALSE(j["range"].get<std::string>().empty());
    if (row.id != Setting::JobKey) { EXPECT_EQ(j["value"], s.text(row.id)); }
  }
  EXPECT_FALSE(contains(s.to_json(), "0011223344"));
}

TEST(Settings, APatternOfAFileNameTakesItsFourLettersAndNoOthers) {
  for (const char *name : {"LOG_FILE", "DUMP"}) {
    EXPECT_EQ(refused(name, "/tmp/%h.%p.%r.100%%"), "");
    EXPECT_TRUE(
        contains(refused(name, "/tmp/%x.log"), "%x stands for nothing; expected a path, in which %h is the host's name"));
    EXPECT_TRUE(contains(refused(name, "/tmp/log%"), "it ends with a lone %"));
  }
}

TEST(FileName, IsThePatternFilledInForThisProcess) {
  const std::string pid = std::to_string(::getpid());
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  EXPECT_EQ(isthmus::file_name("/a/%r-%p%%.%h", 3), "/a/3-" + pid + "%." + host);
  EXPECT_EQ(isthmus::file_name("%r", -1), "unknown");
  EXPECT_EQ(isthmus::file_name("plain", 0), "plain");
  EXPECT_TRUE(isthmus::has_rank("%%%r"));
  EXPECT_FALSE(isthmus::has_rank("%%r"));
}

// ---- the log -------------------------------------------------------------------------------------------------------------

class LogFile : public ::testing::Test {
 protected:
  LogFile() {
    std::string name = ::testing::TempDir() + "isthmus-log-XXXXXX";
    if (::mkdtemp(name.data())) folder_ = name;
    isthmus::set_log_level("info");
    isthmus::forget_log_rank();
  }
  ~LogFile() override {
    isthmus::set_log_file("");
    isthmus::forget_log_rank();
    isthmus::set_log_level("warn");
    std::filesystem::remove_all(folder_);
  }
  std::string path(const std::string &name) const { return folder_ + "/" + name; }
  std::string read(const std::string &name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static int note(int rank) {
    isthmus::note_log_ranks(std::span(&rank, 1), isthmus::LogRanks::MaybeSome);
    return rank;
  }
  std::string folder_;
};

TEST_F(LogFile, TakesTheLinesOfTheProcessWhichSayItsRank) {
  isthmus::set_log_file(path("%p"));
  ISTHMUS_INFO("before");
  note(7);
  ISTHMUS_INFO("after {}", 1);
  const std::string pid = std::to_string(::getpid()), said = read(pid);
  EXPECT_TRUE(contains(said, "[isthmus " + pid + " ")) << said;
  EXPECT_LT(said.find("] before\n"), said.find("[isthmus " + pid + " rank 7 ")) << said;
  EXPECT_TRUE(contains(said, "] after 1\n")) << said;
}

TEST_F(LogFile, WithTheRankInItsNameBeginsWhereTheRankIsKnown) {
  isthmus::set_log_file(path("%r.log"));
  ::testing::internal::CaptureStderr();
  ISTHMUS_INFO("too early");
  EXPECT_TRUE(contains(::testing::internal::GetCapturedStderr(), "] too early"));
  note(2);
  ISTHMUS_INFO("in time");
  note(3);  // another communicator's
  ISTHMUS_INFO("still here");
  EXPECT_TRUE(contains(read("2.log"), "] in time\n")) << read("2.log");
  EXPECT_TRUE(contains(read("2.log"), "rank 2 ")) << read("2.log");
  EXPECT_TRUE(contains(read("2.log"), "] still here\n")) << read("2.log");
  EXPECT_FALSE(std::filesystem::exists(path("3.log")));
}

TEST_F(LogFile, OfAProcessWithSeveralRanksSaysThemAll) {
  isthmus::set_log_file(path("log"));
  note(1);
  const std::vector<int> all{0, 1, 4};
  isthmus::note_log_ranks(all, isthmus::LogRanks::All);
  ISTHMUS_INFO("here");
  EXPECT_TRUE(contains(read("log"), " ranks 0,1,4 ")) << read("log");
}

TEST_F(LogFile, ThatCannotBeOpenedIsOneLineOnStderrAndTheLogGoesOnThere) {
  isthmus::set_log_file(path("no such folder/log"));
  ::testing::internal::CaptureStderr();
  ISTHMUS_INFO("first");
  ISTHMUS_INFO("second");
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string refusal = "ISTHMUS_LOG_FILE: " + path("no such folder/log") + ": No such file or directory";
  ASSERT_TRUE(contains(said, refusal)) << said;
  EXPECT_EQ(said.find(refusal), said.rfind(refusal)) << said;
  EXPECT_TRUE(contains(said, "] first\n") && contains(said, "] second\n")) << said;
}

TEST_F(LogFile, OfAForkedChildIsItsOwnWhereThePatternHasTheProcess) {
  const auto child = [&] {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ISTHMUS_INFO("the child");
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    return std::to_string(pid);
  };
  isthmus::set_log_file(path("%p"));
  ISTHMUS_INFO("the parent");
  std::string own = std::to_string(::getpid()), pid = child();
  EXPECT_FALSE(contains(read(own), "the child")) << read(own);
  EXPECT_TRUE(contains(read(pid), "[isthmus " + pid + " ")) << read(pid);
  isthmus::set_log_file(path("shared"));
  ISTHMUS_INFO("the parent");
  pid = child();
  EXPECT_TRUE(contains(read("shared"), "[isthmus " + own + " ") && contains(read("shared"), "[isthmus " + pid + " "));
}

TEST_F(LogFile, ForgetsTheParentsRankInAForkedChild) {
  isthmus::set_log_file(path("log"));
  const int parents = 7, own = 3;
  note_log_ranks(std::span(&parents, 1), LogRanks::All);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ISTHMUS_INFO("before it has a rank");
    note_log_ranks(std::span(&own, 1), LogRanks::MaybeSome);
    ISTHMUS_INFO("with its rank");
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  ISTHMUS_INFO("the parent");
  forget_log_rank();
  std::ifstream file(path("log"));
  std::string first, second, third;
  std::getline(file, first), std::getline(file, second), std::getline(file, third);
  EXPECT_FALSE(contains(first, "rank 7") || contains(first, "rank 3")) << first;
  EXPECT_TRUE(contains(second, " rank 3 ")) << second;
  EXPECT_TRUE(contains(third, " rank 7 ")) << third;
}

TEST_F(LogFile, HasWholeLinesWhateverThreadsAndForksAreUnderWay) {
  isthmus::set_log_file(path("log"));
  constexpr int kLines = 200, kForks = 20;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < kLines; ++i) ISTHMUS_INFO("line <{}>", i);
    });
  for (int i = 0; i < kForks; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ISTHMUS_INFO("line <child>");
      ::kill(::getpid(), SIGKILL);  // ThreadSanitizer would miss its parent's threads at an exit
    }
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  }
  for (auto &t : threads) t.join();
  std::ifstream file(path("log"));
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines)
    ASSERT_TRUE(line.starts_with("[isthmus ") && line.ends_with(">") && line.rfind("[isthmus ") == 0) << line;
  EXPECT_EQ(lines, 4 * kLines + kForks);
}

// ---- forks

std::atomic<int> hooks{0};
const InChild counts([](void *) noexcept { ++hooks; });
struct Counted {
  std::mutex mutex;
  int number = 0;
};
PerProcess<Counted> counted;

TEST(Fork, WhatWasMadeBeforeIsNotTheChildsAndWhatTheChildMakesIs) {
  const Birth parents;
  EXPECT_TRUE(parents.here());
  in_child([&] {
    const Birth own;
    bool good = !parents.here() && own.here();
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(!parents.here() && !own.here() && Birth().here() ? 0 : 1);
    int status = -1;
    return ::waitpid(grandchild, &status, 0) == grandchild && status == 0 && good;
  });
  EXPECT_TRUE(parents.here());
}

TEST(Fork, AChildHasAnObjectOfItsOwnWhateverThreadHoldsTheParents) {
  counted->number = 5;
  std::binary_semaphore held{0}, over{0};
  std::thread holder([&] {
    const std::lock_guard lock(counted->mutex);
    held.release();
    over.acquire();
  });
  held.acquire();
  in_child([] { return counted->mutex.try_lock() && counted->number == 0 && hooks == 1; });
  over.release();
  holder.join();
  EXPECT_EQ(counted->number, 5);
  EXPECT_EQ(hooks, 0);
}

TEST(Fork, WhatAParentHasBegunIsKnownInItsChildrenAlone) {
  static constinit Beginning beginning;
  EXPECT_FALSE(beginning.in_a_parent());
  in_child([&] { return !beginning.in_a_parent(); });
  beginning.note();
  EXPECT_FALSE(beginning.in_a_parent());
  in_child([&] { return beginning.in_a_parent(); });
  beginning.take_back();
  in_child([&] { return !beginning.in_a_parent(); });
}

// ---- the recorder --------------------------------------------------------------------------------------------------------

// Every field follows from one number, so that a record that is half one and half another is seen.
Record numbered(uint64_t n) {
  Record r;
  r.communicator = n * 3;
  r.sequence = n;
  r.submitted_ns = static_cast<int64_t>(n * 5);
  r.ended_ns = static_cast<int64_t>(n * 7);
  r.bytes = ~n;
  r.peer_or_root = static_cast<int32_t>(n % 1000) - 1;
  r.tag = static_cast<int32_t>(n * 11);
  r.collective = static_cast<uint8_t>(n);
  r.dtype = static_cast<uint8_t>(n >> 1);
  r.op = static_cast<uint8_t>(n >> 2);
  r.result = static_cast<uint8_t>(n >> 3);
  return r;
}
bool is_whole(const Record &r) {
  const Record e = numbered(r.sequence);
  return r.communicator == e.communicator && r.submitted_ns == e.submitted_ns && r.ended_ns == e.ended_ns &&
         r.bytes == e.bytes && r.peer_or_root == e.peer_or_root && r.tag == e.tag && r.collective == e.collective &&
         r.dtype == e.dtype && r.op == e.op && r.result == e.result;
}

TEST(Recorder, KeepsTheLastEntriesOldestFirst) {
  Recorder recorder(16);
  EXPECT_TRUE(recorder.read().empty());
  for (uint64_t n = 0; n < 100; ++n) {
    recorder.add(numbered(n));
    EXPECT_EQ(recorder.total(), n + 1);
    const auto all = recorder.read();
    ASSERT_EQ(all.size(), std::min<uint64_t>(n + 1, 16));
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].sequence, n + 1 - all.size() + i);
      EXPECT_TRUE(is_whole(all[i]));
    }
  }
}

TEST(Recorder, KeepsTheExtremesOfEveryField) {
  Recorder recorder(16);
  Record r;
  r.communicator = r.sequence = r.bytes = ~uint64_t{0};
  r.submitted_ns = std::numeric_limits<int64_t>::min();
  r.ended_ns = std::numeric_limits<int64_t>::max();
  r.peer_or_root = std::numeric_limits<int32_t>::min();
  r.tag = std::numeric_limits<int32_t>::max();
  r.collective = r.dtype = r.op = r.result = 255;
  recorder.add(r);
  const auto all = recorder.read();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].communicator, r.communicator);
  EXPECT_EQ(all[0].bytes, r.bytes);
  EXPECT_EQ(all[0].submitted_ns, r.submitted_ns);
  EXPECT_EQ(all[0].ended_ns, r.ended_ns);
  EXPECT_EQ(all[0].peer_or_root, r.peer_or_root);
  EXPECT_EQ(all[0].tag, r.tag);
  EXPECT_EQ(all[0].collective + all[0].dtype + all[0].op + all[0].result, 4 * 255);
}

// Many laps while somebody reads: what is overwritten under the reader's eyes is left out, never mixed.
TEST(Recorder, AReaderNeverSeesAMixtureWhileAWriterGoesRound) {
  Recorder recorder(2);  // so few that the writer is always at what is read
  constexpr uint64_t kEntries = 500'000;
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (uint64_t n = 0; n < kEntries; ++n) recorder.add(numbered(n));
    over.store(true, std::memory_order_release);
  });
  uint64_t seen = 0, mixed = 0, unordered = 0;
  for (bool last = false; !last;) {
    last = over.load(std::memory_order_acquire);  // one look after the end
    const auto all = recorder.read();
    seen += all.size();
    for (size_t i = 0; i < all.size(); ++i) {
      mixed += !is_whole(all[i]);
      unordered += i > 0 && all[i].sequence <= all[i - 1].sequence;
    }
  }
  writer.join();
  EXPECT_EQ(mixed, 0u) << "of " << seen;
  EXPECT_EQ(unordered, 0u);
  EXPECT_GE(seen, 2u);
  EXPECT_EQ(recorder.read().back().sequence, kEntries - 1);
}

TEST(Recorder, EveryThreadMayWrite) {
  constexpr uint64_t kThreads = 4, kEach = 2000;
  Recorder recorder(kThreads * kEach);
  std::atomic<bool> over{false};
  std::vector<std::thread> writers;
  for (uint64_t t = 0; t < kThreads; ++t)
    writers.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) recorder.add(numbered(t * kEach + i));
    });
  std::thread reader([&] {
    while (!over.load(std::memory_order_acquire))
      for (const Record &r : recorder.read()) EXPECT_TRUE(is_whole(r));
  });
  for (auto &t : writers) t.join();
  over.store(true, std::memory_order_release);
  reader.join();
  std::vector<uint64_t> next(kThreads);
  const auto all = recorder.read();
  ASSERT_EQ(all.size(), kThreads * kEach);
  for (const Record &r : all) {  // each thread's in its order
    const uint64_t t = r.sequence / kEach;
    EXPECT_EQ(r.sequence, t * kEach + next[t]++);
  }
}

TEST(Text, IsCutBetweenCharacters) {
  const std::string text = "a\u00e4\u4e2d";  // of 1, 2 and 3 bytes
  const char *const heads[] = {"", "a", "a", "a\u00e4", "a\u00e4", "a\u00e4", "a\u00e4\u4e2d", "a\u00e4\u4e2d"};
  for (size_t most = 0; most < std::size(heads); ++most) EXPECT_EQ(head_of(text, most), heads[most]) << most;
}

// ---- time ----------------------------------------------------------------------------------------------------------------

TEST(Clock, SecondsBecomeNanosecondsAndNeverOverflow) {
  static_assert(seconds_to_ns(0) == 0);
  static_assert(seconds_to_ns(1.5) == 1'500'000'000);
  static_assert(seconds_to_ns(1e-9) == 1);
  static_assert(seconds_to_ns(-2) == -2'000'000'000);
  EXPECT_EQ(seconds_to_ns(0.001), 1'000'000);
  const double far[] = {8.9e9, 9e9, 1e10, 1e300, INFINITY};
  for (const double s : far) {
    EXPECT_GE(seconds_to_ns(s), std::numeric_limits<int64_t>::max() / 2) << s;
    EXPECT_FALSE(Deadline(s).passed()) << s;  // now + that much is in the future, not wrapped into the past
    EXPECT_GT(Deadline(s).ns(), now_ns()) << s;
  }
}

TEST(Clock, NowGoesForward) {
  int64_t last = now_ns();
  EXPECT_GT(last, 0);
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = now_ns();
    EXPECT_GE(now, last);
    last = now;
  }
}

TEST(Clock, ADeadlineSaysHowMuchIsLeft) {
  const int64_t begin = now_ns();
  const Deadline soon(10);
  EXPECT_FALSE(soon.passed());
  EXPECT_GE(soon.ns(), begin + 10'000'000'000);
  const int64_t left = soon.left_ns();
  EXPECT_LE(left, 10'000'000'000);
  EXPECT_GE(left, 10'000'000'000 - (now_ns() - begin));
  for (const Deadline &d : {Deadline(0), Deadline(-5), Deadline::at_ns(begin), Deadline::at_ns(0)}) {
    EXPECT_TRUE(d.passed());
    EXPECT_EQ(d.left_ns(), 0);
    EXPECT_EQ(d.left_ms(), 0);
  }
  EXPECT_EQ(Deadline::at_ns(12345).ns(), 12345);
}

TEST(Clock, MillisecondsForPollAreRoundedUpAndFitAnInt) {
  // A nanosecond left is a millisecond to poll(): less would be a loop that burns the processor until the time has come.
  const Deadline hour(3600.0005);
  const int ms = hour.left_ms();
  EXPECT_LE(ms, 3'600'001);
  EXPECT_GE(ms, static_cast<int>(hour.left_ns() / 1'000'000));
  EXPECT_EQ(Deadline(2 * 86'400).left_ms(), 86'400'000);
  EXPECT_EQ(Deadline(1e12).left_ms(), 86'400'000);
  for (int i = 0; i < 1000; ++i) {
    const Deadline d(2e-3);
    const int left = d.left_ms();
    if (!d.passed()) {
      EXPECT_GE(left, 1);
      EXPECT_LE(left, 2);
    }
  }
}

// ---- dtypes --------------------------------------------------------------------------------------------------------------

TEST(DTypes, NamesSizesAndKindsAgree) {
  std::set<std::string> names;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto t = static_cast<DType>(i);
    const std::string name = dtype_name(t);
    SCOPED_TRACE(name);
    EXPECT_TRUE(names.insert(name).second);
    DType back{};
    EXPECT_TRUE(dtype_from_name(name, back));
    EXPECT_EQ(back, t);
    // "int32", "bfloat16", "float8_e5m2": the bits stand in the name.
    const std::string stem = name.substr(0, name.find('_'));
    const size_t digit = stem.find_first_of("0123456789");
    EXPECT_EQ(dtype_size(t), digit == std::string::npos ? 1 : std::stoul(stem.substr(digit)) / 8);
    EXPECT_EQ(is_float(t), contains(name, "float"));
    EXPECT_EQ(is_complex(t), contains(name, "complex"));
    EXPECT_EQ(is_integer(t), contains(name, "int"));
    EXPECT_EQ(is_float(t) + is_complex(t) + is_integer(t) + (t == DType::Bool), 1);
    const DType wide = accumulator(t);
    EXPECT_EQ(wide, is_float(t) && dtype_size(t) < 4 ? DType::Float32 : t);
    EXPECT_EQ(accumulator(wide), wide);
  }
  DType untouched = DType::Int16;
  for (const char *name : {"", "int", "float", "Float32", "int8 ", "unknown dtype"})
    EXPECT_FALSE(dtype_from_name(name, untouched));
  EXPECT_EQ(untouched, DType::Int16);
  EXPECT_STREQ(dtype_name(static_cast<DType>(kDTypeCount)), "unknown dtype");
  EXPECT_STREQ(dtype_name(static_cast<DType>(255)), "unknown dtype");
}

TEST(DTypes, OpsHaveNames) {
  std::set<std::string> names;
  for (int i = 0; i < kRedOpCount; ++i) {
    const auto op = static_cast<RedOp>(i);
    EXPECT_TRUE(names.insert(redop_name(op)).second);
    RedOp back{};
    EXPECT_TRUE(redop_from_name(redop_name(op), back));
    EXPECT_EQ(back, op);
  }
  RedOp untouched = RedOp::Max;
  for (const char *name : {"", "SUM", "mean", "unknown op"}) EXPECT_FALSE(redop_from_name(name, untouched));
  EXPECT_EQ(untouched, RedOp::Max);
  EXPECT_STREQ(redop_name(static_cast<RedOp>(kRedOpCount)), "unknown op");
}

// isthmus.h: no AVG or PREMUL_SUM on bool, no MIN/MAX on complex, bitwise operations on integers and bool only, PREMUL_SUM on
// integers and floating types only.
TEST(DTypes, OpsCombineAsThePublicHeaderSays) {
  int allowed = 0;
  for (int i = 0; i < kDTypeCount; ++i)
    for (int k = 0; k < kRedOpCount; ++k) {
      const auto t = static_cast<DType>(i);
      const auto op = static_cast<RedOp>(k);
      const bool bitwise = op == RedOp::BAnd || op == RedOp::BOr || op == RedOp::BXor;
      const bool order = op == RedOp::Min || op == RedOp::Max;
      bool good = true;
      if (t == DType::Bool && (op == RedOp::Avg || op == RedOp::PremulSum)) good = false;
      if (is_complex(t) && order) good = false;
      if (bitwise && !(is_integer(t) || t == DType::Bool)) good = false;
      if (op == RedOp::PremulSum && is_complex(t)) good = false;
      EXPECT_EQ(combines(t, op), good) << dtype_name(t) << " " << redop_name(op);
      allowed += good;
    }
  EXPECT_EQ(allowed, 121);
  EXPECT_FALSE(combines(DType::Float32, static_cast<RedOp>(kRedOpCount)));
}

TEST(Copy, MovesItsBytesAndNoOthersWhateverTheAddressesAndTheSize) {
  constexpr size_t kRoom = 3 * 4096;
  std::vector<uint8_t> from(kRoom), want(kRoom);
  for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<uint8_t>(i * 7 + i / 251);
  std::vector<size_t> sizes = {0, 1, 63, 64, 65, kLargeCopy - 1, 8191};
  for (size_t past = 0; past <= 4 * 64 + 1; ++past)
    sizes.push_back(kLargeCopy + past);  // every remainder of lines and of loops
  for (const size_t bytes : sizes)
    for (const size_t a : {0, 1, 16, 63, 64})
      for (const size_t b : {0, 1, 16, 32, 63, 2047}) {
        std::vector<uint8_t> to(kRoom, 0xee);
        std::fill(want.begin(), want.end(), 0xee);
        std::copy_n(from.begin() + static_cast<ptrdiff_t>(a), bytes, want.begin() + static_cast<ptrdiff_t>(b));
        copy_bytes(to.data() + b, from.data() + a, bytes);
        ASSERT_EQ(to, want) << bytes << " bytes from " << a << " to " << b;
        std::fill(to.begin(), to.end(), 0xee);
        copy_streamed(to.data() + b, from.data() + a, bytes);
        ASSERT_EQ(to, want) << bytes << " bytes from " << a << " to " << b << ", past the caches";
      }
}

TEST(Copy, WhatIsHandedOverIsWholeHoweverItIsStored) {
  constexpr size_t kRoom = 200'000;
  std::vector<uint8_t> from(kRoom);
  for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<uint8_t>(i * 7 + i / 251);
  for (const Stores mode : {Stores::Auto, Stores::Cached, Stores::Streamed}) {
    StreamingCopy hand(mode);
    for (const size_t bytes : {size_t{0}, size_t{8}, StreamingCopy::kLeast - 1, StreamingCopy::kLeast,
                               StreamingCopy::kLeast + 77, 4 * StreamingCopy::kLeast, size_t{150'001}})
      for (size_t turn = 0; turn < 2 * StreamingCopy::kEvery; ++turn) {  // measured, and not
        const size_t a = turn * 13 % 64, b = turn * 29 % 100;
        std::vector<uint8_t> to(kRoom, 0xee), want(kRoom, 0xee);
        std::copy_n(from.begin() + static_cast<ptrdiff_t>(a), bytes, want.begin() + static_cast<ptrdiff_t>(b));
        hand.copy(to.data() + b, from.data() + a, bytes);
        ASSERT_EQ(to, want) << bytes << " bytes, turn " << turn << ", mode " << static_cast<int>(mode);
        if (mode != Stores::Auto) {
          EXPECT_EQ(hand.streams(bytes), mode == Stores::Streamed && bytes >= StreamingCopy::kLeast && has_streamed_copy());
        }
      }
  }
}

// Nanoseconds for a line, as measured on an EPYC.
TEST(Copy, StoresGoPastTheCachesBetweenProcessorsThatShareNone) {
  StreamingCopy hand;
  const auto measured = [&](std::initializer_list<std::pair<double, double>> times) {
    for (const auto &[cached, streamed] : times) hand.note(cached / 64, streamed / 64);
    return hand.streams(StreamingCopy::kLeast);
  };
  EXPECT_FALSE(hand.streams(1 << 20)) << "nothing is known yet";
  EXPECT_FALSE(measured({{6.6, 1.8}, {2.2, 1.8}, {11.9, 1.6}, {8.8, 2.2}, {4.1, 2.1}})) << "two cores of one complex";
  EXPECT_FALSE(measured({{400, 2}})) << "the thread was interrupted";
  EXPECT_FALSE(measured({{2.3, 1.8}, {400, 2}, {2.3, 2.0}}));
  EXPECT_TRUE(measured({{33.3, 1.8}, {39.8, 2.7}, {23.8, 2.8}, {31.6, 4.5}, {34.9, 2.2}})) << "cores of different complexes";
  EXPECT_FALSE(hand.streams(StreamingCopy::kLeast - 1));
  EXPECT_FALSE(measured({{6.6, 1.8}, {2.2, 1.8}, {8.2, 2.0}, {3.3, 2.2}, {2.0, 2.0}, {6.6, 2.3}})) << "together again";
  EXPECT_EQ(stores_of("cached"), Stores::Cached);
  EXPECT_EQ(stores_of("streamed"), Stores::Streamed);
  EXPECT_EQ(stores_of("auto"), Stores::Auto);
}

TEST(Errors, OthersWordsBecomeOneLineOfBoundedLengthAndSoundText) {
  using isthmus::one_line;
  EXPECT_EQ(one_line("as it is", 8), "as it is");
  EXPECT_EQ(one_line("as it is.", 8), "as it...");
  EXPECT_EQ(one_line("two\r\nlines\tand \x1b[31mcolour\x7f", 100), "two lines and [31mcolour");
  EXPECT_EQ(one_line("Größe 日本 😀", 100), "Größe 日本 😀");
  EXPECT_EQ(one_line("日本日本", 8), "日...") << "no character is cut in two";
  for (const char *broken : {"a\xff"
                             "b",
                             "a\xc0\x80"
                             "b",
                             "a\xed\xa0\x80"
                             "b",
                             "a\xe6\x97",
                             "a\xf5\x80\x80\x80"
                             "b"}) {
    const std::string text = one_line(broken, 100);
    EXPECT_TRUE(text == "a b" || text == "a") << text;
  }
  EXPECT_EQ(one_line(std::string(1000, 'x'), 300).size(), 300u);
  EXPECT_EQ(one_line("", 10), "");
}

TEST(Errors, EveryCodeHasItsName) {
  std::set<std::string> names;
  for (int c = 0; c <= static_cast<int>(isthmus::kLastCode); ++c) {
    const std::string name = code_name(static_cast<Code>(c));
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_NE(name, "unknown result");
  }
  EXPECT_STREQ(code_name(static_cast<Code>(static_cast<int>(isthmus::kLastCode) + 1)), "unknown result");
  EXPECT_STREQ(code_name(Code::Device), "device error");
  EXPECT_EQ(system_text("connect", ECONNREFUSED), isthmus::formatted("connect: Connection refused ({})", ECONNREFUSED));
  EXPECT_TRUE(system_text("socket", EMFILE)
                  .starts_with(isthmus::formatted("socket: Too many open files ({}); the limit: ulimit -n ", EMFILE)));
  EXPECT_TRUE(system_text("socket", ENFILE).ends_with("; the limit: fs.file-max of this host"));
  for (const int error : {EMFILE, ENFILE, ENOMEM}) EXPECT_EQ(system_code(error), Code::Resource) << error;
  EXPECT_EQ(system_code(ECONNREFUSED), Code::System);
}

// ---- naps ----------------------------------------------------------------------------------------------------------------------------

unsigned long slack() { return static_cast<unsigned long>(::prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)); }
unsigned long slack_of_ours() {
  unsigned long theirs = 0;
  begin_own_thread([&theirs] { theirs = slack(); }).join();
  return theirs;
}

TEST(Naps, TheKernelEndsTheNapsOfAThreadOfOursPromptlyAndOfNoOther) {
  std::thread([] {
    ASSERT_EQ(::prctl(PR_SET_TIMERSLACK, 77'000, 0, 0, 0), 0);
    EXPECT_EQ(slack_of_ours(), kPromptSlackNs);
    EXPECT_EQ(slack(), 77'000u);
  }).join();
}

TEST(Naps, ASlackThatIsShorterStaysAsItIs) {
  std::thread([] {
    ASSERT_EQ(::prctl(PR_SET_TIMERSLACK, 10, 0, 0, 0), 0);
    EXPECT_EQ(slack_of_ours(), 10u);
  }).join();
}

TEST(SeenTime, AStoppedProcessSeesNoneOfTheTimeThatPassesMeanwhile) {
  constexpr int64_t kMs = 1'000'000, kMost = SeenTime::kMostBetweenLooks;
  SeenTime t;
  EXPECT_EQ(t.look(1000 * kMs), 0);
  EXPECT_EQ(t.look(1010 * kMs), 10 * kMs);
  EXPECT_EQ(t.look(1010 * kMs), 10 * kMs) << "another thread in the same moment";
  EXPECT_EQ(t.look(1005 * kMs), 10 * kMs) << "one that had read the clock before";
  EXPECT_EQ(t.look(9000 * kMs), 10 * kMs + kMost);
}

}  // namespace
}  // namespace isthmus
