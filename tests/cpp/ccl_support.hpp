// What the tests of vendors' collective libraries share: ranks that are threads, each with a device of its own, memory
// there, numbers that every type holds, and processes of their own for what is decided once a process (faults, which library
// is opened), which are the same program again.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "asleep.hpp"
#include "ccl/libraries.hpp"
#include "eventually.hpp"
#include "patience.hpp"
#include "rehearsal_file.hpp"

extern char **environ;

// Under ThreadSanitizer, whose exits take a second each otherwise.
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options();
extern "C" const char *__tsan_default_options() { return "atexit_sleep_ms=20"; }

namespace isthmus::ccl {

// Of the test that includes this.
device::Runtime &runtime();
std::shared_ptr<Library> library();

using namespace std::chrono_literals;

inline std::shared_ptr<device::Stream> new_stream(int device) { return runtime().make_stream(device, "test"); }

inline void *simulated(const char *function) {
  void *const found = ::dlsym(::dlopen(rehearsal_file("librehearsal.so"), RTLD_NOW), function);
  if (!found) std::abort();
  return found;
}
inline unsigned long calls(const char *name) {
  return reinterpret_cast<unsigned long (*)(const char *)>(simulated("rehearsal_calls"))(name);
}
inline size_t live(const char *what) {
  return reinterpret_cast<size_t (*)(const char *)>(simulated("rehearsal_live"))(what);
}

using isthmus_test::eventually, isthmus_test::within, isthmus_test::patient, isthmus_test::soon;

// The code that `f` throws, with its text.
inline Status thrown(const std::function<void()> &f) {
  try {
    f();
  } catch (const Error &e) { return {e.code(), e.text()}; }
  return {};
}
inline void expect_refused(Code code, const std::string &text, const std::function<void()> &f) {
  const Status s = thrown(f);
  EXPECT_EQ(s.code, code) << s.text;
  EXPECT_NE(s.text.find(text), std::string::npos) << s.text;
}

// ---- one rank -------------------------------------------------------------------------------------------------------------

struct Broken : std::exception {};
#define MUST(condition)                                                                                            \
  do {                                                                                                             \
    if (!(condition)) {                                                                                            \
      ADD_FAILURE() << "rank " << rank << ": " << #condition << " does not hold; " << (c ? c->status().text : ""); \
      throw Broken();                                                                                              \
    }                                                                                                              \
  } while (0)

using Bytes = std::vector<std::byte>;

struct Rank {
  int rank = 0, size = 1;
  std::shared_ptr<device::Stream> stream;
  std::unique_ptr<IslandCommunicator> c;
  std::unique_ptr<device::Signal> done;
  uint64_t value = 0;
  std::byte *pinned = nullptr;  // both sides reach it
  static constexpr size_t kPinned = 2 << 20;

  Rank(int r, int n) : rank(r), size(n), stream(new_stream(r)), done(runtime().make_signal(r)) {
    pinned = static_cast<std::byte *>(::mmap(nullptr, kPinned, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    runtime().register_host(rank, pinned, kPinned);
  }
  ~Rank() {
    c.reset();
    runtime().unregister_host(rank, pinned);
    ::munmap(pinned, kPinned);
  }

  void join(const std::vector<std::byte> &id, double seconds = 2 * soon()) {
    c = library()->join({id, rank, size, Deadline(seconds)}, stream);
  }
  // Whether the stream comes to here.
  bool drained(double seconds = soon()) {
    done->arm(*stream, ++value);
    return within(seconds, [&] { return done->value() >= value; });
  }
};

// Memory on the device of a rank.
class Memory {
 public:
  Memory(Rank &r, const Bytes &content) : Memory(r, content.size()) {
    std::memcpy(r.pinned, content.data(), content.size());
    runtime().copy(*r.stream, memory_, runtime().device_address(r.rank, r.pinned), content.size());
    if (!r.drained()) throw Broken();  // before the pinned memory is used again
  }
  Memory(Rank &r, size_t bytes) : r_(r), bytes_(bytes), memory_(runtime().allocate(r.rank, bytes)) {}
  ~Memory() { runtime().release(r_.rank, memory_); }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  std::byte *at(size_t offset = 0) const { return static_cast<std::byte *>(memory_) + offset; }
  // What it holds when all that was submitted has run.
  Bytes content() const {
    runtime().copy(*r_.stream, runtime().device_address(r_.rank, r_.pinned), memory_, bytes_);
    if (!r_.drained()) throw Broken();
    return {r_.pinned, r_.pinned + bytes_};
  }

 private:
  Rank &r_;
  const size_t bytes_;
  void *const memory_;
};

// Threads that are ranks, and a communicator of them.
inline void ranks(int n, const std::function<void(Rank &)> &body) {
  const auto id = library()->make_id();
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      Rank rank(r, n);
      try {
        rank.join(id);
        body(rank);
      } catch (const Error &e) {
        ADD_FAILURE() << "rank " << r << ": " << e.text();
        if (rank.c) rank.c->abort();
      } catch (const Broken &) {
        if (rank.c) rank.c->abort();
      }
    });
  for (std::thread &t : threads) t.join();
}

// A thread that waits for the device to be idle, to get memory of it, and has the driver locked meanwhile.
class DriverLocked {
 public:
  explicit DriverLocked(int device) {
    thread_ = std::thread([this, device] {
      number_ = isthmus_test::this_thread();
      runtime().release(device, runtime().allocate(device, 4096));
    });
    if (!eventually([&] { return number_ != 0; }) || !isthmus_test::falls_asleep(number_)) throw Broken();
  }
  ~DriverLocked() { thread_.join(); }  // the device goes on by then
  DriverLocked(const DriverLocked &) = delete;
  DriverLocked &operator=(const DriverLocked &) = delete;

 private:
  std::atomic<pid_t> number_{0};
  std::thread thread_;
};

// ---- numbers --------------------------------------------------------------------------------------------------------------

// A small number that the type holds exactly.
inline void put(DType type, double v, std::byte *to) {
  const auto narrow = [&](int exponent, int mantissa) {
    if (v == 0) return uint64_t{0};
    int e = 0;
    const double m = std::frexp(v, &e);
    return (static_cast<uint64_t>(e - 1 + (1 << (exponent - 1)) - 1) << mantissa) +
           static_cast<uint64_t>(std::ldexp(2 * m - 1, mantissa));
  };
  uint64_t bits = static_cast<uint64_t>(v);
  if (type == DType::Float16) bits = narrow(5, 10);
  if (type == DType::BFloat16) bits = narrow(8, 7);
  if (type == DType::Float8E4M3FN) bits = narrow(4, 3);
  if (type == DType::Float8E5M2) bits = narrow(5, 2);
  if (type == DType::Float32) bits = narrow(8, 23);
  if (type == DType::Float64) std::memcpy(&bits, &v, sizeof bits);
  std::memcpy(to, &bits, dtype_size(type));
}
inline Bytes packed(DType type, size_t count, const std::function<double(size_t)> &value) {
  Bytes out(count * dtype_size(type));
  for (size_t i = 0; i < count; ++i) put(type, value(i), out.data() + i * dtype_size(type));
  return out;
}

// 1 to 3, another on every rank, so that every type holds every sum, product and average of two or three ranks.
inline double contribution(int size, RedOp op, int rank, size_t i) {
  const auto turn = (i + i / 13 + static_cast<size_t>(rank)) % static_cast<size_t>(size);
  if (op == RedOp::Avg) return size == 2 ? 1 + 2 * static_cast<double>(turn) : 1 + static_cast<double>(turn);
  return turn == 0 ? 2 : 1 + static_cast<double>(i / 7 % 2);
}
inline double reduced(int size, RedOp op, size_t i) {
  double x = contribution(size, op, 0, i);
  for (int r = 1; r < size; ++r) {
    const double y = contribution(size, op, r, i);
    x = op == RedOp::Prod ? x * y : op == RedOp::Min ? std::min(x, y) : op == RedOp::Max ? std::max(x, y) : x + y;
  }
  return op == RedOp::Avg ? x / size : x;
}

inline Bytes noise(int rank, size_t bytes) {
  Bytes out(bytes);
  for (size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>((i * 31 + i / 251 + static_cast<size_t>(rank) * 77) & 0xff);
  return out;
}
inline Bytes part(const Bytes &all, size_t at, size_t bytes) {
  return {all.begin() + static_cast<long>(at), all.begin() + static_cast<long>(at + bytes)};
}

inline void reductions(Rank &r, DType t, RedOp op, size_t count) {
  auto &[rank, size, stream, c, done, value, pinned] = r;
  const auto n = static_cast<size_t>(size), me = static_cast<size_t>(rank);
  const size_t bytes = count * dtype_size(t);
  const auto mine = [&](size_t elements) {
    return packed(t, elements, [&](size_t i) { return contribution(size, op, rank, i); });
  };
  const auto sums = [&](size_t first) { return packed(t, count, [&](size_t i) { return reduced(size, op, first + i); }); };
  const Bytes before(bytes, std::byte{0x5a});
  const auto text = std::string(redop_name(op)) + " of " + dtype_name(t);
  const Memory from(r, mine(count * n)), to(r, before), own(r, mine(count)), blocks(r, mine(count * n));
  c->all_reduce(from.at(), to.at(), count, t, op);
  EXPECT_EQ(to.content(), sums(0)) << "all_reduce, " << text;
  c->all_reduce(own.at(), own.at(), count, t, op);
  EXPECT_EQ(own.content(), sums(0)) << "all_reduce in place, " << text;
  c->reduce_scatter(from.at(), to.at(), count, t, op);
  EXPECT_EQ(to.content(), sums(me * count)) << "reduce_scatter, " << text;
  c->reduce_scatter(blocks.at(), blocks.at(me * bytes), count, t, op);
  const Bytes all = blocks.content();
  EXPECT_EQ(Bytes(all.begin() + static_cast<long>(me * bytes), all.begin() + static_cast<long>((me + 1) * bytes)),
            sums(me * count))
      << "reduce_scatter in place, " << text;
  const int root = size - 1;
  const Memory there(r, before), ours(r, mine(count));
  c->reduce(from.at(), rank == root ? there.at() : nullptr, count, t, op, root);
  EXPECT_EQ(there.content(), rank == root ? sums(0) : before) << "reduce, " << text;
  c->reduce(ours.at(), ours.at(), count, t, op, root);
  EXPECT_EQ(ours.content(), rank == root ? sums(0) : mine(count)) << "reduce in place, " << text;
  EXPECT_EQ(from.content(), mine(count * n)) << "what was only to be read, " << text;
  MUST(c->status().ok() && !c->failed());
}

// Types that the library does not have itself are moved as well.
inline void moves_bytes_of_any_type(Rank &r) {
  auto &[rank, size, stream, c, done, value, pinned] = r;
  const auto n = static_cast<size_t>(size), me = static_cast<size_t>(rank);
  for (const DType t : {DType::Float32, DType::UInt16, DType::Complex128, DType::Bool, DType::Float8E5M2})
    for (const size_t count : {1, 1001, 40'000}) {
      const size_t bytes = count * dtype_size(t);
      if (bytes * n > Rank::kPinned) continue;
      const std::string text = std::to_string(count) + " of " + dtype_name(t);
      const Bytes mine = noise(rank, bytes * n);
      const Memory from(r, mine), to(r, bytes * n);
      Bytes expected;
      for (int q = 0; q < size; ++q) {
        const Bytes theirs = part(noise(q, bytes * n), 0, bytes);
        expected.insert(expected.end(), theirs.begin(), theirs.end());
      }
      c->all_gather(from.at(), to.at(), count, t);
      EXPECT_EQ(to.content(), expected) << "all_gather, " << text;
      Bytes in_place(bytes * n, std::byte{1});
      std::memcpy(in_place.data() + me * bytes, mine.data(), bytes);
      const Memory both(r, in_place);
      c->all_gather(both.at(me * bytes), both.at(), count, t);
      EXPECT_EQ(both.content(), expected) << "all_gather in place, " << text;
      for (int root = 0; root < size; ++root) {
        const Memory x(r, mine);
        c->broadcast(x.at(), count, t, root);
        EXPECT_EQ(part(x.content(), 0, bytes), part(noise(root, bytes * n), 0, bytes)) << "broadcast, " << text;
      }
      c->all_to_all(from.at(), to.at(), count, t);
      for (int q = 0; q < size; ++q)
        EXPECT_EQ(part(to.content(), static_cast<size_t>(q) * bytes, bytes), part(noise(q, bytes * n), me * bytes, bytes))
            << "all_to_all, " << text;
      EXPECT_EQ(from.content(), mine) << "what was only to be read, " << text;
      MUST(c->status().ok() && !c->failed());
    }
}

// Of sizes and at places of their own, against the order of ranks; some are none, and the last rank has none at all.
inline void exchanges_blocks(Rank &r) {
  auto &[rank, size, stream, c, done, value, pinned] = r;
  const auto n = static_cast<size_t>(size), me = static_cast<size_t>(rank);
  const auto bytes = [&](size_t from, size_t to) {
    const bool none = n > 1 && (from + 1 == n || to + 1 == n || (from == 1 && to == 0));
    return none ? uint64_t{0} : 40'001 * from + 1000 * to + 7;
  };
  std::vector<uint64_t> give, give_at, take, take_at;
  uint64_t sent = 0, received = 0;
  for (size_t q = 0; q < n; ++q) {
    give.push_back(bytes(me, q));
    take.push_back(bytes(q, me));
    sent += give.back() + 5;
    received += take.back() + 3;
    give_at.push_back(0);
    take_at.push_back(0);
  }
  for (size_t i = 0, at = 0, to = 0; i < n; ++i) {
    const size_t q = n - 1 - i;
    give_at[q] = std::exchange(at, at + give[q] + 5);
    take_at[q] = std::exchange(to, to + take[q] + 3);
  }
  const Memory from(r, noise(rank, sent)), to(r, Bytes(received, std::byte{0x5a}));
  for (int turn = 0; turn < 3; ++turn) c->all_to_all_v(from.at(), to.at(), {give, give_at, take, take_at});
  Bytes expected(received, std::byte{0x5a});
  for (size_t q = 0; q < n; ++q) {
    size_t at = 0, all = 0;  // of the block in what rank q gives
    for (size_t i = 0; i < n; ++i) all += bytes(q, i) + 5;
    for (size_t i = n; i-- > me + 1;) at += bytes(q, i) + 5;
    const Bytes theirs = part(noise(static_cast<int>(q), all), at, take[q]);
    std::copy(theirs.begin(), theirs.end(), expected.begin() + static_cast<long>(take_at[q]));
  }
  EXPECT_EQ(to.content(), expected) << "rank " << rank;
  EXPECT_EQ(from.content(), noise(rank, sent)) << "what was only to be read";
  MUST(c->status().ok() && !c->failed());
}

// Makes `calls` as one group of the library's.
inline void together(Rank &r, std::function<void()> calls) {
  r.c->together([](void *f) { (*static_cast<std::function<void()> *>(f))(); }, &calls);
}
// Every rank sends something to every rank, itself too. One after the other these calls would wait for each other.
inline void passes_messages_together(Rank &r) {
  const auto n = static_cast<size_t>(r.size);
  const Memory given(r, noise(r.rank, 300)), got(r, noise(9, 300 * n));
  together(r, [] {});
  together(r, [&] { r.c->send(given.at(), 0, DType::Int8, 0); });
  together(r, [&] {
    for (int q = 0; q < r.size; ++q) {
      r.c->recv(got.at(300 * static_cast<size_t>(q)), 300, DType::Int8, q);
      r.c->send(given.at(), 300, DType::Int8, q);
    }
  });
  Bytes all;
  for (int q = 0; q < r.size; ++q) {
    const Bytes theirs = noise(q, 300);
    all.insert(all.end(), theirs.begin(), theirs.end());
  }
  EXPECT_EQ(got.content(), all);
}

// Against the order of ranks, so whoever waits for a message has sent nothing yet.
inline void passes_messages(Rank &r) {
  auto &[rank, size, stream, c, done, value, pinned] = r;
  if (size == 1) return;
  for (const size_t count : {1, 100'000}) {
    const Memory from(r, noise(rank, count * 2)), to(r, count * 2);
    if (rank > 0) c->recv(to.at(), count, DType::UInt16, rank - 1);
    c->send(rank > 0 ? to.at() : from.at(), count, DType::UInt16, (rank + 1) % size);
    if (rank == 0) c->recv(to.at(), count, DType::UInt16, size - 1);
    EXPECT_EQ(to.content(), noise(0, count * 2)) << "rank " << rank;
  }
}

// ---- in processes of their own --------------------------------------------------------------------------------------------

// Says what does not hold and goes on; the process ends with 1.
inline bool fine = true;
#define HOLDS(condition, text)                                                                                  \
  do {                                                                                                          \
    if (!(condition)) {                                                                                         \
      std::fprintf(stderr, "line %d: %s does not hold; %s\n", __LINE__, #condition, std::string(text).c_str()); \
      fine = false;                                                                                             \
    }                                                                                                           \
  } while (0)
inline bool has(const Status &s, const std::string &text) { return s.text.find(text) != std::string::npos; }

// What it says is shown where it does not end well.
inline void plays(const char *scene, std::vector<std::string> variables = {}) {
  std::vector<char *> environment;
  for (std::string &v : variables) environment.push_back(v.data());
  for (char **v = environ; *v; ++v) environment.push_back(*v);
  environment.push_back(nullptr);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  ::posix_spawn_file_actions_addclose(&actions, ends[0]);
  ::posix_spawn_file_actions_addclose(&actions, ends[1]);
  const char *arguments[] = {"test_nccl", scene, nullptr};
  pid_t child = -1;
  ASSERT_EQ(::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, const_cast<char **>(arguments), environment.data()),
            0);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string said;
  char some[4096];
  const Deadline deadline(4 * soon());
  while (true) {
    pollfd p{ends[0], POLLIN, 0};
    if (deadline.passed() || ::poll(&p, 1, deadline.left_ms()) <= 0) {
      said += "(took too long)";
      ::kill(child, SIGKILL);
      break;
    }
    const ssize_t got = ::read(ends[0], some, sizeof some);
    if (got <= 0) break;
    said.append(some, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << scene << ": status " << status << "\n" << said;
}

}  // namespace isthmus::ccl
