// Rank, world size and rendezvous address from what the launchers put into the environment.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "comm/launcher.hpp"

namespace isthmus::comm {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr const char *kRead[] = {"RANK",
                                 "WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "TORCHELASTIC_RUN_ID",
                                 "TORCHELASTIC_RESTART_COUNT",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "PMIX_NAMESPACE",
                                 "SLURM_PROCID",
                                 "SLURM_NTASKS",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEP_NODELIST",
                                 "SLURM_JOB_NODELIST"};

// The environment of one process: these variables, and no other that a launcher would set. Put back at the end.
class Environment {
 public:
  explicit Environment(const Variables &variables) {
    for (const char *name : kRead) {
      const char *v = std::getenv(name);
      before_.emplace_back(name, v ? std::optional<std::string>(v) : std::nullopt);
      ::unsetenv(name);
    }
    for (const auto &[name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto &[name, value] : before_) value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
  }

 private:
  std::vector<std::pair<const char *, std::optional<std::string>>> before_;
};

Launch launched(const Variables &variables, const Settings &settings = {}) {
  const Environment environment(variables);
  return from_environment(settings);
}

Variables with(Variables v, const Variables &more) {
  for (const auto &[name, value] : more) v[name] = value;
  return v;
}

std::string host_of(const std::string &address) { return address.substr(0, address.rfind(':')); }
int port_of(const std::string &address) {
  const size_t colon = address.rfind(':');
  return colon == std::string::npos ? -1 : std::stoi(address.substr(colon + 1));
}

const Variables kSlurm{{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "71"}, {"SLURM_STEP_ID", "0"}};

TEST(Launcher, NothingIsKnownWithoutOne) {
  const Launch l = launched({});
  EXPECT_EQ(l.rank, -1);
  EXPECT_EQ(l.world, -1);
  EXPECT_EQ(l.address, "");
  EXPECT_EQ(l.launcher, "");
  EXPECT_TRUE(l.key_parts.empty());
}

TEST(Launcher, SrunsNodeListBeginsWithTheRendezvous) {
  const std::pair<const char *, const char *> lists[] = {
      {"n[003-9,12],m1", "n003"},
      {"localhost", "localhost"},
      {"single-name.cluster", "single-name.cluster"},
      {"a,b", "a"},
      {"m1,n[003-9]", "m1"},
      {"n[12]", "n12"},
      {"n[7,9]", "n7"},
      {"n[0001-1024]", "n0001"},
      {"gpu-a-[10-12],gpu-b-[1-2]", "gpu-a-10"},
      {"rack[1-2]_blade[3-4]", "rack1_blade3"},  // Slurm allows two ranges in a name
  };
  for (const auto &[list, first] : lists) {
    SCOPED_TRACE(list);
    const Launch l = launched(with(kSlurm, {{"SLURM_STEP_NODELIST", list}, {"SLURM_JOB_NODELIST", "elsewhere"}}));
    EXPECT_EQ(host_of(l.address), first);
    EXPECT_EQ(l.rank, 3);
    EXPECT_EQ(l.world, 8);
    EXPECT_EQ(l.launcher, "srun");
  }
}

TEST(Launcher, SrunTakesTheJobsNodesWhereTheStepHasNone) {
  EXPECT_EQ(host_of(launched(with(kSlurm, {{"SLURM_JOB_NODELIST", "n[4-5]"}})).address), "n4");
  const Launch none = launched(kSlurm);
  EXPECT_EQ(none.address, "");
  EXPECT_EQ(none.rank, 3);
  EXPECT_EQ(none.world, 8);
}

TEST(Launcher, ProcessesOfOneJobMeetAtOnePortAndOtherJobsAtAnother) {
  const Variables nodes = with(kSlurm, {{"SLURM_STEP_NODELIST", "n[1-2]"}});
  const Launch one = launched(nodes), other = launched(with(nodes, {{"SLURM_PROCID", "4"}}));
  EXPECT_EQ(one.address, other.address);
  EXPECT_EQ(one.key_parts, other.key_parts);
  EXPECT_GE(port_of(one.address), 1024);
  EXPECT_LT(port_of(one.address), 32768) << "below the ephemeral ports";
  const Launch step = launched(with(nodes, {{"SLURM_STEP_ID", "1"}})), job = launched(with(nodes, {{"SLURM_JOB_ID", "72"}}));
  EXPECT_NE(step.address, one.address);
  EXPECT_NE(job.address, one.address);
  EXPECT_NE(step.key_parts, one.key_parts);
  EXPECT_NE(job.key_parts, one.key_parts);
}

TEST(Launcher, BesideAPortThatTheSystemGaveTorchrunNoneIsTakenThatTheSystemGivesToOthers) {
  const auto at = [](const char *master, const char *rank = "0", const Settings &settings = {}) {
    const Variables torchrun{{"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", master}};
    return launched(torchrun, settings).address;
  };
  EXPECT_EQ(at("29500"), "head:29501");
  EXPECT_EQ(at("32767"), "head:32768");
  for (const char *given : {"32768", "41000", "60999", "65535"}) {
    EXPECT_EQ(host_of(at(given)), "head");
    EXPECT_GE(port_of(at(given)), 20000);
    EXPECT_LT(port_of(at(given)), 32000);
    EXPECT_EQ(at(given), at(given, "1"));
  }
  EXPECT_NE(at("41000"), at("41001"));
  Settings s;
  s.set("PORTS", "29600-29603");
  EXPECT_EQ(port_of(at("41000", "0", s)) & ~3, 29600);
}

TEST(Launcher, APortThatNoLauncherSaidIsOneOfThoseThatAreAllowed) {
  Settings s;
  s.set("PORTS", "29600-29603");
  std::set<int> ports;
  for (int job = 0; job < 64; ++job) {
    const std::string id = std::to_string(job);
    ports.insert(port_of(launched(with(kSlurm, {{"SLURM_STEP_NODELIST", "n1"}, {"SLURM_JOB_ID", id}}), s).address));
    ports.insert(port_of(launched({{"OMPI_COMM_WORLD_RANK", "0"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                   {"PMIX_NAMESPACE", id}},
                                  s)
                             .address));
  }
  EXPECT_EQ(ports, (std::set<int>{29600, 29601, 29602, 29603}));
  const Variables torchrun{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(launched(torchrun, s).address, "head:29501") << "the launcher said";
  s.set("ADDRESS", "here:1234");
  EXPECT_EQ(launched(kSlurm, s).address, "here:1234");
}

TEST(Launcher, TorchrunsStoreKeepsItsPortAndOursIsTheNext) {
  const Variables v{{"RANK", "1"},
                    {"WORLD_SIZE", "4"},
                    {"MASTER_ADDR", "head"},
                    {"MASTER_PORT", "29500"},
                    {"TORCHELASTIC_RUN_ID", "run"},
                    {"TORCHELASTIC_RESTART_COUNT", "0"}};
  const Launch l = launched(with(kSlurm, v));  // torchrun under srun: torchrun is the one that started this process
  EXPECT_EQ(l.rank, 1);
  EXPECT_EQ(l.world, 4);
  EXPECT_EQ(l.launcher, "torchrun");
  EXPECT_EQ(l.address, "head:29501");
  EXPECT_EQ(launched(with(v, {{"MASTER_ADDR", "::1"}})).address, "[::1]:29501");
  EXPECT_EQ(launched(with(v, {{"MASTER_ADDR", ""}})).address, "");
  EXPECT_EQ(launched({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).address, "");
  // Whoever comes from before a restart must not prove the key of after it.
  EXPECT_NE(launched(with(v, {{"TORCHELASTIC_RESTART_COUNT", "1"}})).key_parts, l.key_parts);
}

TEST(Launcher, MpirunSaysWhereOnlyOnOneHost) {
  const Variables v{{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_NAMESPACE", "prterun-1"}};
  const Launch spread = launched(with(v, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}));
  EXPECT_EQ(spread.rank, 2);
  EXPECT_EQ(spread.world, 4);
  EXPECT_EQ(spread.launcher, "mpirun");
  EXPECT_EQ(spread.address, "");
  const Launch here = launched(with(v, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  EXPECT_EQ(host_of(here.address), "127.0.0.1");
  EXPECT_GE(port_of(here.address), 1024);
  EXPECT_NE(launched(with(v, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"PMIX_NAMESPACE", "prterun-2"}})).address, here.address);
}

TEST(Launcher, OurOwnSettingsComeFirst) {
  Settings s;
  s.apply("RANK=5;WORLD_SIZE=6;ADDRESS=here:1234");
  const Launch l = launched(with(kSlurm, {{"SLURM_STEP_NODELIST", "n1"}}), s);
  EXPECT_EQ(l.rank, 5);
  EXPECT_EQ(l.world, 6);
  EXPECT_EQ(l.address, "here:1234");
  const Launch alone = launched({}, s);
  EXPECT_EQ(alone.rank, 5);
  EXPECT_FALSE(alone.key_parts.empty()) << "a key that all who know the address derive alike";
}

TEST(Launcher, ARankThatIsNoNumberIsAnErrorThatNamesTheVariable) {
  for (const auto &[name, value] :
       {std::pair<const char *, const char *>("RANK", "first"), std::pair<const char *, const char *>("WORLD_SIZE", "4x"),
        std::pair<const char *, const char *>("MASTER_PORT", "-1"),
        std::pair<const char *, const char *>("RANK", "99999999999")}) {
    const Variables v = with({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}, {{name, value}});
    try {
      launched(v);
      ADD_FAILURE() << name << "=" << value << " was taken";
    } catch (const Error &e) {
      EXPECT_EQ(e.code(), Code::Config);
      EXPECT_NE(e.text().find(isthmus::formatted("{}={}", name, value)), std::string::npos) << e.text();
    }
  }
}

}  // namespace
}  // namespace isthmus::comm
