// What island_ccl.hpp promises, on real vendor libraries: oneCCL, whose ranks are processes on the host. The test starts itself once a
// rank; TEST_ONECCL says where the library is, and without it only its absence is tested, and what is done about files of its transport.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "ccl/oneccl.hpp"
#include "ccl/oneccl_leftovers.hpp"
#include "ccl/oneccl_sharing.hpp"
#include "device/abandoned.hpp"
#include "device/host.hpp"
#include "eventually.hpp"
#include "patience.hpp"

extern char **environ;

// What oneCCL holds for a communicator that could not be ended together with its peers stays until the process ends: by design.
extern "C" __attribute__((visibility("default"))) const char *__lsan_default_suppressions() {
  return "leak:libccl\nleak:libfabric\n";
}

namespace isthmus::ccl {
namespace {

using namespace std::chrono_literals;
using isthmus_test::eventually, isthmus_test::soon;

// ---- one rank -------------------------------------------------------------------------------------------------------------

struct Place {
  int rank, size;
  std::string folder;  // where the ranks leave each other the id
  std::shared_ptr<Library> library;
};

#define MUST(condition)                                                                           \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      std::fprintf(stderr, "rank %d, line %d: %s does not hold\n", p.rank, __LINE__, #condition); \
      std::exit(1);                                                                               \
    }                                                                                             \
  } while (0)

// What one rank says, and what the others hear when it is said.
void say(const Place &p, const std::string &name, const std::string &text) {
  const std::string path = p.folder + "/" + name;
  std::ofstream(path + ".new", std::ios::binary) << text;
  std::rename((path + ".new").c_str(), path.c_str());
}
std::string hear(const Place &p, const std::string &name) {
  const std::string path = p.folder + "/" + name;
  MUST(eventually([&] { return ::access(path.c_str(), R_OK) == 0; }));
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// All ranks leave each other what the library wants known, and settle on it.
void settle(const Place &p) {
  const auto terms = p.library->terms();
  say(p, "terms" + std::to_string(p.rank), std::to_string(::getpid()) + " " + std::to_string(static_cast<int>(terms.at(0))));
  std::vector<IslandMember> members;
  for (int r = 0; r < p.size; ++r) {
    std::istringstream said(hear(p, "terms" + std::to_string(r)));
    IslandMember &m = members.emplace_back(IslandMember{"host", 0, {std::byte{}}});
    int sharing = -1;
    said >> m.pid >> sharing;
    m.terms[0] = static_cast<std::byte>(sharing);
  }
  p.library->settle(members);
}

std::vector<std::byte> shared_id(const Place &p, const std::string &name) {
  if (static std::once_flag once; true) std::call_once(once, [&] { settle(p); });
  if (p.rank == 0) {
    const auto id = p.library->make_id();
    say(p, name, {reinterpret_cast<const char *>(id.data()), id.size()});
    return id;
  }
  const std::string text = hear(p, name);
  const auto *const bytes = reinterpret_cast<const std::byte *>(text.data());
  return {bytes, bytes + text.size()};
}

std::shared_ptr<device::Stream> new_stream() { return device::host_runtime().make_stream(0, "island"); }

std::unique_ptr<IslandCommunicator> joined(const Place &p, const std::shared_ptr<device::Stream> &stream = new_stream(),
                                           const std::string &name = "id", double seconds = 2 * soon()) {
  const auto id = shared_id(p, name);
  return p.library->join({id, p.rank, p.size, Deadline(seconds)}, stream);
}

bool drained(IslandCommunicator &c, double seconds = soon()) {
  return static_cast<device::HostStream &>(c.stream()).drain(Deadline(seconds).ns()) && c.status().ok() &&
         c.stream().status().ok();
}

// Small whole numbers, so that every type holds every result.
template <class T>
T value(int rank, uint64_t i) {
  return static_cast<T>(1 + (static_cast<uint64_t>(rank) + i) % 3);
}

template <class T>
T reduced(RedOp op, int size, uint64_t i) {
  T x = value<T>(0, i);
  for (int r = 1; r < size; ++r) {
    const T y = value<T>(r, i);
    x = op == RedOp::Sum ? x + y : op == RedOp::Prod ? x * y : op == RedOp::Min ? std::min(x, y) : std::max(x, y);
  }
  return x;
}

template <class T>
void reductions(const Place &p, IslandCommunicator &c, DType t) {
  const auto n = static_cast<uint64_t>(p.size);
  for (const RedOp op : {RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max})
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, uint64_t{40000}}) {
      MUST(p.library->can(Call::AllReduce, t, op));
      std::vector<T> in(count * n + 1), out(count * n + 1, T{99});
      for (uint64_t i = 0; i < in.size(); ++i) in[i] = value<T>(p.rank, i);
      const auto same = [&](uint64_t offset, const std::vector<T> &got) {
        for (uint64_t i = 0; i < count; ++i)
          if (got[i] != reduced<T>(op, p.size, offset + i)) return false;
        return true;
      };
      c.all_reduce(in.data(), out.data(), count, t, op);
      MUST(drained(c) && same(0, out) && out[count] == T{99});
      auto own = in;
      c.all_reduce(own.data(), own.data(), count, t, op);
      MUST(drained(c) && same(0, own));
      std::fill(out.begin(), out.end(), T{99});
      c.reduce_scatter(in.data(), out.data(), count, t, op);
      MUST(drained(c) && same(static_cast<uint64_t>(p.rank) * count, out) && out[count] == T{99});
      const int root = p.size - 1;
      std::fill(out.begin(), out.end(), T{99});
      c.reduce(in.data(), out.data(), count, t, op, root);
      MUST(drained(c) && (p.rank != root || same(0, out)));
      for (uint64_t i = 0; i < in.size(); ++i) MUST(in[i] == value<T>(p.rank, i));
    }
}

void moves(const Place &p, IslandCommunicator &c) {
  const auto n = static_cast<uint64_t>(p.size);
  using T = uint16_t;  // none of the library's own types
  for (const uint64_t count : {uint64_t{1}, uint64_t{1001}, uint64_t{40000}}) {
    const auto data = [&](int rank, uint64_t i) { return static_cast<T>(rank * 1000 + static_cast<int>(i % 997)); };
    std::vector<T> mine(count * n), all(count * n + 1, 7);
    for (uint64_t i = 0; i < mine.size(); ++i) mine[i] = data(p.rank, i);
    c.all_gather(mine.data(), all.data(), count, DType::UInt16);
    MUST(drained(c) && all[count * n] == 7);
    for (int r = 0; r < p.size; ++r)
      for (uint64_t i = 0; i < count; ++i) MUST(all[static_cast<uint64_t>(r) * count + i] == data(r, i));
    for (int root = 0; root < p.size; ++root) {
      auto x = mine;
      c.broadcast(x.data(), count, DType::UInt16, root);
      MUST(drained(c));
      for (uint64_t i = 0; i < count; ++i) MUST(x[i] == data(root, i));
    }
    c.all_to_all(mine.data(), all.data(), count, DType::UInt16);
    MUST(drained(c));
    for (int r = 0; r < p.size; ++r)
      for (uint64_t i = 0; i < count; ++i)
        MUST(all[static_cast<uint64_t>(r) * count + i] == data(r, static_cast<uint64_t>(p.rank) * count + i));
    const int next = (p.rank + 1) % p.size, before = (p.rank + p.size - 1) % p.size;
    std::fill(all.begin(), all.end(), T{7});
    for (int turn = 0; turn < 2; ++turn) {  // no groups there: who is even sends first
      if ((p.rank % 2 == 0) == (turn == 0)) c.send(mine.data(), count, DType::UInt16, next);
      else c.recv(all.data(), count, DType::UInt16, before);
    }
    MUST(drained(c));
    for (uint64_t i = 0; i < count; ++i) MUST(all[i] == data(before, i));
  }
}

int collectives(const Place &p) {
  const auto c = joined(p);
  MUST(c->rank() == p.rank && c->size() == p.size);
  reductions<int8_t>(p, *c, DType::Int8);
  reductions<uint8_t>(p, *c, DType::UInt8);
  reductions<int32_t>(p, *c, DType::Int32);
  reductions<uint32_t>(p, *c, DType::UInt32);
  reductions<int64_t>(p, *c, DType::Int64);
  reductions<uint64_t>(p, *c, DType::UInt64);
  reductions<float>(p, *c, DType::Float32);
  reductions<double>(p, *c, DType::Float64);
  moves(p, *c);
  return 0;
}

// bfloat16 and float16 of 1 and of 2, as bits: their sum is 3 whatever adds them.
int halves(const Place &p) {
  const auto c = joined(p);
  const std::map<DType, std::vector<uint16_t>> numbers{{DType::BFloat16, {0x3f80, 0x4000, 0x4040}},
                                                       {DType::Float16, {0x3c00, 0x4000, 0x4200}}};
  for (const auto &[t, bits] : numbers) {
    std::vector<uint16_t> x(999, bits[static_cast<size_t>(p.rank)]);
    c->all_reduce(x.data(), x.data(), x.size(), t, RedOp::Sum);
    MUST(drained(*c));
    for (const uint16_t y : x) MUST(y == bits[2]);
  }
  return 0;
}

int refusals(const Place &p) {
  const auto c = joined(p);
  const auto refused = [&](Code code, const std::function<void()> &f) {
    try {
      f();
    } catch (const Error &e) { return e.code() == code && !e.text().empty(); }
    return false;
  };
  std::vector<float> x(8);
  MUST(!p.library->can(Call::AllReduce, DType::Float32, RedOp::Avg));
  MUST(!p.library->can(Call::AllReduce, DType::Float8E5M2, RedOp::Sum));
  MUST(!p.library->can(Call::ReduceScatter, DType::Complex64, RedOp::Sum));
  MUST(p.library->can(Call::AllGather, DType::Float8E5M2, RedOp::Sum));
  MUST(p.library->can(Call::AllToAll, DType::Int8, RedOp::Sum) && !p.library->can(Call::AllToAllV, DType::Int8, RedOp::Sum));
  MUST(refused(Code::Unsupported, [&] { c->all_reduce(x.data(), x.data(), 8, DType::Float32, RedOp::Avg); }));
  MUST(refused(Code::Unsupported, [&] { c->all_reduce(x.data(), x.data(), 8, DType::Bool, RedOp::Sum); }));
  MUST(refused(Code::Argument, [&] { c->broadcast(x.data(), 8, DType::Float32, p.size); }));
  MUST(refused(Code::Argument, [&] { c->send(x.data(), 8, DType::Float32, -1); }));
  const auto id = std::vector<std::byte>(10);
  MUST(refused(Code::Argument, [&] { p.library->join({id, 0, 1, Deadline(1)}, new_stream()); }));
  x.assign(8, static_cast<float>(p.rank));
  c->all_reduce(x.data(), x.data(), 8, DType::Float32, RedOp::Max);  // and it works on
  MUST(drained(*c) && x[7] == static_cast<float>(p.size - 1));
  return 0;
}

int several(const Place &p) {
  const auto stream = new_stream();
  const auto first = joined(p, stream, "first"), second = joined(p, stream, "second");
  try {  // on another stream the two would run at once, which the library does not survive
    p.library->join({shared_id(p, "id"), p.rank, p.size, Deadline(1)}, new_stream());
    MUST(false);
  } catch (const Error &e) { MUST(e.code() == Code::Argument && e.text().find("share one stream") != std::string::npos); }
  for (int round = 0; round < 20; ++round) {
    std::vector<int32_t> x(100, p.rank), y(100, 10 * p.rank);
    first->all_reduce(x.data(), x.data(), 100, DType::Int32, RedOp::Max);
    second->all_reduce(y.data(), y.data(), 100, DType::Int32, RedOp::Max);
    MUST(drained(*first) && drained(*second));
    MUST(x[99] == p.size - 1 && y[99] == 10 * (p.size - 1));
  }
  first->abort();  // of one communicator: the other works on
  std::vector<int32_t> x(100, 5), y(100, p.rank);
  first->all_reduce(x.data(), x.data(), 100, DType::Int32, RedOp::Sum);
  second->all_reduce(y.data(), y.data(), 100, DType::Int32, RedOp::Max);
  MUST(drained(*second) && y[99] == p.size - 1 && x[99] == 5);
  return 0;
}

// A rank that comes late holds the others up, on their stream and not in their call: it comes when that has returned.
int late(const Place &p) {
  const auto c = joined(p);
  std::vector<int32_t> x(100, 1);
  if (p.rank == 1) hear(p, "returned");
  c->all_reduce(x.data(), x.data(), 100, DType::Int32, RedOp::Sum);
  if (p.rank == 0) {
    MUST(!drained(*c, 0.1));
    MUST(eventually([&] {
      const char *const inside = static_cast<device::HostStream &>(c->stream()).inside();
      return inside && std::string(inside) == "all_reduce";
    }));
    say(p, "returned", "");
  }
  MUST(drained(*c) && x[0] == p.size);
  return 0;
}

// The library waits for ever for a rank that is gone and has no abort: the deadline holds, and the thread in it is left behind.
int dead(const Place &p) {
  auto c = joined(p);
  if (p.rank == 1) std::_Exit(0);
  std::this_thread::sleep_for(200ms);
  auto x = std::make_unique<std::vector<int32_t>>(1000000, 1);
  for (int i = 0; i < 3; ++i) c->all_reduce(x->data(), x->data(), x->size(), DType::Int32, RedOp::Sum);
  MUST(!drained(*c, 0.5));  // nobody may be told that it went well
  c->abort();
  c->abort();
  c.reset();
  MUST(device::abandoned_threads() == 1);
  static_cast<void>(x.release());  // it is still in there
  try {
    joined(p);
    MUST(false);
  } catch (const Error &e) { MUST(e.text().find("stuck inside the library") != std::string::npos); }
  return 0;
}

// Threads of this process that were sent SIGPIPE and hold it back.
int spared_threads() {
  int found = 0;
  for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("SigPnd:")) found += (std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1)) & 1;
  }
  return found;
}

std::atomic<int> the_pipe_signals{0};

// The place where all meet is in the process of the rank that made the id. It is gone when the others end their communicators, and write
// to it: that would be the end of a program that has not asked for SIGPIPE to be anything else. Rank 1 has not, rank 2 has a handler.
int maker(const Place &p) {
  struct sigaction set {
  }, found{};
  set.sa_handler = p.rank == 1 ? SIG_DFL : +[](int) { ++the_pipe_signals; };
  MUST(::sigaction(SIGPIPE, &set, nullptr) == 0);
  auto c = joined(p);
  std::vector<int32_t> x(1000, p.rank);
  c->all_reduce(x.data(), x.data(), x.size(), DType::Int32, RedOp::Max);
  MUST(drained(*c) && x[999] == p.size - 1);
  if (p.rank == 0) {
    for (const char *name : {"sum 1", "sum 2"}) hear(p, name);
    say(p, "maker", std::to_string(::getpid()));
    hear(p, "watched 1"), hear(p, "watched 2");
    std::_Exit(0);
  }
  say(p, "sum " + std::to_string(p.rank), "");
  pollfd gone{static_cast<int>(::syscall(SYS_pidfd_open, std::stoi(hear(p, "maker")), 0)), POLLIN, 0};
  MUST(gone.fd >= 0);
  say(p, "watched " + std::to_string(p.rank), "");
  MUST(::poll(&gone, 1, static_cast<int>(1000 * soon())) == 1);
  std::this_thread::sleep_for(100ms);  // for the end of its connections to come
  c.reset();
  MUST(device::abandoned_threads() == 1);
  MUST(spared_threads() == 1);  // so it was sent
  sigset_t mask;
  MUST(::pthread_sigmask(SIG_SETMASK, nullptr, &mask) == 0 && sigismember(&mask, SIGPIPE) == 0);
  MUST(::sigaction(SIGPIPE, nullptr, &found) == 0 && found.sa_handler == set.sa_handler && the_pipe_signals == 0);
  return 0;
}

int missing(const Place &p) {
  if (p.rank == 1) return settle(p), 0;
  try {
    joined(p, new_stream(), "id", 0.5);
  } catch (const Error &e) {
    MUST(e.code() == Code::Timeout && e.text().find("not all 2 ranks") != std::string::npos);
    MUST(device::abandoned_threads() == 1);
    return 0;
  }
  return 1;
}

int nowhere(const Place &p) {
  try {
    open_oneccl("/nowhere/libccl.so.2", "lo");
  } catch (const Error &e) {
    MUST(e.code() == Code::Unsupported);
    MUST(e.text().find("/nowhere/libccl.so.2 cannot be opened") != std::string::npos);
    MUST(e.text().find("install oneCCL 2022.1.0 or newer") != std::string::npos);
    return 0;
  }
  return 1;
}

const std::map<std::string, int (*)(const Place &)> kScenes{{"collectives", collectives},
                                                            {"halves", halves},
                                                            {"refusals", refusals},
                                                            {"several", several},
                                                            {"late", late},
                                                            {"dead", dead},
                                                            {"maker", maker},
                                                            {"missing", missing},
                                                            {"nowhere", nowhere}};

int play(int argc, char **argv) {
  if (argc != 5) return 2;
  try {
    Place p{std::atoi(argv[2]), std::atoi(argv[3]), argv[4], nullptr};
    if (std::string(argv[1]) != "nowhere") p.library = open_oneccl(std::getenv("TEST_ONECCL"), "lo");
    return kScenes.at(argv[1])(p);
  } catch (const Error &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 3;
  }
}

// ---- all ranks ------------------------------------------------------------------------------------------------------------

class OneCcl : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "isthmus-ccl-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (folder_.empty()) return;
    std::filesystem::remove_all(folder_);
  }

  void plays(const char *scene, int size) {
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; ++rank) {
      const std::string r = std::to_string(rank), n = std::to_string(size);
      const char *arguments[] = {"test_ccl", scene, r.c_str(), n.c_str(), folder_.c_str(), nullptr};
      pid_t child = -1;
      ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, const_cast<char **>(arguments), environ), 0);
      children.push_back(child);
    }
    const Deadline deadline(20 * soon());  // of libraries whose threads poll
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      pid_t ended = 0;
      while ((ended = ::waitpid(children[i], &status, WNOHANG)) == 0 && !deadline.passed()) std::this_thread::sleep_for(5ms);
      if (ended == 0) {
        ADD_FAILURE() << scene << ": rank " << i << " has not ended";
        ::kill(children[i], SIGKILL);
        ::waitpid(children[i], &status, 0);
        continue;
      }
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << scene << ": rank " << i << " ended with status " << status;
    }
  }

 private:
  std::string folder_;
};

TEST_F(OneCcl, SaysWhatItIs) {
  const auto library = open_oneccl(std::getenv("TEST_ONECCL"), "lo");
  EXPECT_STREQ(library->family(), "oneccl");
  EXPECT_EQ(library->version().rfind("20", 0), 0u) << library->version();
  EXPECT_NE(library->path().find("libccl"), std::string::npos) << library->path();
  EXPECT_TRUE(library->capabilities().blocking);
  EXPECT_EQ(library->capabilities().id_bytes, 4096u);
}
TEST_F(OneCcl, DoesEveryCollectiveItSaysItCan) { plays("collectives", 2); }
TEST_F(OneCcl, DoesEveryCollectiveOnThreeRanks) { plays("collectives", 3); }
TEST_F(OneCcl, AddsHalves) { plays("halves", 2); }
TEST_F(OneCcl, RefusesWhatItCannotAndWorksOn) { plays("refusals", 2); }
TEST_F(OneCcl, ServesSeveralCommunicatorsOfAProcess) { plays("several", 2); }
TEST_F(OneCcl, ALateRankHoldsUpTheStreamAndNotTheCaller) { plays("late", 2); }
TEST_F(OneCcl, ADeadRankDoesNotHoldTheOthersForEver) { plays("dead", 2); }
TEST_F(OneCcl, AMakerThatVanishedEndsNobodyAndSignalsStayTheUsers) { plays("maker", 3); }
TEST_F(OneCcl, ARankThatNeverJoinsIsATimeout) { plays("missing", 2); }

class NoOneCcl : public OneCcl {};
TEST_F(NoOneCcl, IsOneSentenceThatSaysWhatToDo) { plays("nowhere", 1); }

// ---- files of its transport -----------------------------------------------------------------------------------------------

// One that is named as the transport in a process of this number names its own, which it keeps mapped.
class TransportFile {
 public:
  enum class Mapped : uint8_t { No, Here };
  TransportFile(int endpoint, Mapped mapped)
      : path_("/dev/shm/" + std::to_string(::getpid()) + ":977:" + std::to_string(endpoint)) {
    const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EXPECT_GE(fd, 0) << path_;
    EXPECT_EQ(::ftruncate(fd, kBytes), 0);
    if (mapped == Mapped::Here) memory_ = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    ::close(fd);
  }
  ~TransportFile() {
    if (memory_) ::munmap(memory_, kBytes);
    ::unlink(path_.c_str());
  }
  TransportFile(const TransportFile &) = delete;
  TransportFile &operator=(const TransportFile &) = delete;
  bool there() const { return ::access(path_.c_str(), F_OK) == 0; }

 private:
  static constexpr size_t kBytes = 4096;
  const std::string path_;
  void *memory_ = nullptr;
};

// Runs it in a process of its own, since what a process has noted it never forgets.
void apart(const std::function<void()> &body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

// Containers that share /dev/shm may have processes of one number, so a name alone does not say whose a file is.
TEST(OneCclLeftovers, AreRemovedWhereThisProcessMadeThemAndNotByTheirNameAlone) {
  apart([] {
    using Mapped = TransportFile::Mapped;
    const TransportFile earlier(0, Mapped::No), reused(1, Mapped::Here);
    note_earlier_files();  // as when the library is opened
    const TransportFile ours(2, Mapped::Here), theirs(3, Mapped::No);
    remove_own_leftovers();
    EXPECT_TRUE(earlier.there()) << "it was there before the library was opened";
    EXPECT_TRUE(reused.there()) << "it was there before the library was opened, and whoever made it may work with it";
    EXPECT_FALSE(ours.there()) << "it came later, and this process works with it";
    EXPECT_TRUE(theirs.there()) << "it came later, and this process does not work with it";
  });
}

TEST(OneCclLeftovers, StayWhereMoreWereThereBeforeThanCanBeRemembered) {
  apart([] {
    std::vector<std::unique_ptr<TransportFile>> earlier;
    for (int i = 0; i < 100; ++i) earlier.push_back(std::make_unique<TransportFile>(i, TransportFile::Mapped::Here));
    note_earlier_files();
    const TransportFile later(100, TransportFile::Mapped::Here);
    remove_own_leftovers();
    for (const auto &file : earlier) EXPECT_TRUE(file->there());
    EXPECT_TRUE(later.there());
  });
}

// ---- whether the ranks share memory ---------------------------------------------------------------------------------------

using oneccl::decide, oneccl::Sharing, oneccl::sharing_of, oneccl::terms_of;

IslandMember member(const char *host, int64_t pid, Sharing sharing = Sharing::Undecided) {
  return {host, pid, terms_of(sharing)};
}
Status refusal_of(const std::vector<IslandMember> &island) {
  try {
    decide(island);
  } catch (const Error &e) { return {e.code(), e.text()}; }
  return {};
}

TEST(OneCclSharing, IsUsedWhereTheProcessIdsOfEachHostAreOfOneLength) {
  EXPECT_EQ(decide(std::vector{member("a", 1000), member("a", 9999)}), Sharing::Used);
  EXPECT_EQ(decide(std::vector{member("a", 7), member("b", 1234)}), Sharing::Used);
  EXPECT_EQ(decide(std::vector{member("a", 7)}), Sharing::Used);
}

TEST(OneCclSharing, IsLeftOutOnAllRanksWhereThoseOfOneHostAreNot) {
  EXPECT_EQ(decide(std::vector{member("a", 9999), member("a", 10000)}), Sharing::LeftOut);
  EXPECT_EQ(decide(std::vector{member("b", 1), member("a", 100), member("b", 2), member("a", 99)}), Sharing::LeftOut);
}

TEST(OneCclSharing, FollowsWhatARankHasDecidedBefore) {
  EXPECT_EQ(decide(std::vector{member("a", 1, Sharing::LeftOut), member("a", 2)}), Sharing::LeftOut);
  EXPECT_EQ(decide(std::vector{member("a", 1, Sharing::Used), member("a", 2)}), Sharing::Used);
  const Status two = refusal_of({member("a", 1, Sharing::LeftOut), member("a", 2, Sharing::Used)});
  EXPECT_EQ(two.code, Code::Unsupported);
  EXPECT_NE(two.text.find("process 2 on a uses oneCCL's shared memory and process 1 on a does not"), std::string::npos)
      << two.text;
  const Status late = refusal_of({member("a", 9, Sharing::Used), member("a", 10)});
  EXPECT_EQ(late.code, Code::Unsupported);
  EXPECT_NE(late.text.find("between processes 9 and 10 on a"), std::string::npos) << late.text;
  EXPECT_NE(late.text.find("FI_PROVIDER=^shm"), std::string::npos) << late.text;
}

TEST(OneCclSharing, IsTheUsersWhereFiProviderIsSet) {
  EXPECT_EQ(sharing_of(nullptr), Sharing::Undecided);
  EXPECT_EQ(sharing_of(""), Sharing::Used);
  EXPECT_EQ(sharing_of("tcp"), Sharing::LeftOut);
  EXPECT_EQ(sharing_of("^shm"), Sharing::LeftOut);
  EXPECT_EQ(sharing_of("shm,tcp"), Sharing::Used);
  EXPECT_EQ(sharing_of("^verbs"), Sharing::Used);
}

TEST(OneCclSharing, TermsThatCannotBeReadAreRefused) {
  EXPECT_EQ(refusal_of({{"a", 1, {}}}).code, Code::Mismatch);
  EXPECT_EQ(refusal_of({{"a", 1, {std::byte{3}}}}).code, Code::Mismatch);
  EXPECT_EQ(refusal_of({{"a", 1, {std::byte{1}, std::byte{1}}}}).code, Code::Mismatch);
}

TEST(OneCclLeftovers, OfAProcessThatLivesAreLeftToIt) {
  const TransportFile alive(0, TransportFile::Mapped::No);
  remove_leftovers_of_the_dead();
  EXPECT_TRUE(alive.there());
}

}  // namespace
}  // namespace isthmus::ccl

int main(int argc, char **argv) {
  if (argc > 1 && isthmus::ccl::kScenes.count(argv[1])) return isthmus::ccl::play(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  if (!std::getenv("TEST_ONECCL")) GTEST_FLAG_SET(filter, "NoOneCcl.*:OneCclLeftovers.*:OneCclSharing.*");
  return RUN_ALL_TESTS();
}
