// What a front door adds to a call: calls of a library that does nothing, made by address (bare) and through the door, in
// turns.
//   build/release/bench/interpose/interpose_bench            the NCCL and HCCL doors, in front of a library that does nothing
//   build/release/bench/interpose/interpose_bench LIBRARY    in front of this one, ncclGetVersion alone
// Prints the median of the batches, in nanoseconds a call. The door's bridge is open, as it is in a program that has made a
// communicator. (alias) is the handle of an init that did not block: a handle of Isthmus', which stands for the library's
// own handle.
#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

struct UniqueId {
  unsigned char bytes[128];
};
struct Config {  // its beginning: `size` says that there is no more
  size_t size;
  unsigned magic, version;
  int blocking, unused;
};
using GetVersion = int(int *);
using GetUniqueId = int(UniqueId *);
using AllReduce = int(const void *, void *, size_t, int, int, void *, void *);
using InitRank = int(void **, int, UniqueId, int);
using InitRankConfig = int(void **, int, UniqueId, int, Config *);
using GetAsyncError = int(void *, int *);
using Destroy = int(void *);
using GetErrorString = const char *(int);
using HcclAllReduce = int(void *, void *, uint64_t, int, int, void *, void *);
using InGraph = int(void *, void *, uint64_t, int, int, const char *, void *, const char *, void **, size_t, void *,
                    uint64_t);
struct Group {
  int (*start)(), (*end)();
};

constexpr int kBatches = 501, kCalls = 2000;
constexpr int kSuccess = 0, kInProgress = 7;

double median(std::vector<double> &v) {
  std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

template <class Function, class Call>
double batch(Function *f, const Call &call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) {
    __asm__ volatile("" : "+r"(f));  // the address is not known at compile time
    call(f);
  }
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kCalls;
}

void *open(const char *path) {
  void *library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) std::fprintf(stderr, "%s\n", ::dlerror());
  return library;
}

template <class Function>
Function *find(void *library, const char *name) {
  return reinterpret_cast<Function *>(::dlsym(library, name));
}

template <class Function, class Call>
bool compare(const char *row, Function *bare, Function *through, const Call &call) {
  if (!bare || !through || bare == through) {
    std::fprintf(stderr, "no two of %s\n", row);
    return false;
  }
  std::vector<double> one, other, added;
  for (int i = 0; i < kBatches; ++i) {
    one.push_back(batch(bare, call));
    other.push_back(batch(through, call));
    added.push_back(other.back() - one.back());
  }
  std::printf("%-22s %10.2f %10.2f %10.2f\n", row, median(one), median(other), median(added));
  return true;
}
template <class Function, class Call>
bool compare(const char *name, void *real, void *door, const Call &call) {
  return compare(name, find<Function>(real, name), find<Function>(door, name), call);
}
bool compare_groups(void *real, void *door) {
  static Group bare, through;  // static: batch() hides from the compiler which one it is, and that may be no local one
  bare = {find<int()>(real, "ncclGroupStart"), find<int()>(real, "ncclGroupEnd")};
  through = {find<int()>(door, "ncclGroupStart"), find<int()>(door, "ncclGroupEnd")};
  if (!bare.start || !bare.end || !through.start || !through.end) return false;
  return compare("ncclGroupStart+End", &bare, &through, [](Group *g) {
    g->start();
    g->end();
  });
}

// A copy of the handle that an init gave before it was done. Null: the init failed, or the census did not end.
void *make_alias(void *door) {
  auto *make_id = find<GetUniqueId>(door, "ncclGetUniqueId");
  auto *init = find<InitRankConfig>(door, "ncclCommInitRankConfig");
  auto *ask = find<GetAsyncError>(door, "ncclCommGetAsyncError");
  if (!make_id || !init || !ask) return nullptr;
  using Clock = std::chrono::steady_clock;
  const auto until = [](auto time, const auto &holds) {
    for (const auto end = Clock::now() + time; !holds() && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return holds();
  };
  for (int tries = 0; tries < 20; ++tries) {
    UniqueId id{};
    void *volatile comm = nullptr;
    Config config{sizeof(Config), 0xcafebeef, 21400, 0, INT_MIN};
    if (make_id(&id) != kSuccess || init(const_cast<void **>(&comm), 1, id, 0, &config) != kInProgress) return nullptr;
    void *const copy = comm;  // the variable gets the library's own handle when the init is done
    int state = kInProgress;
    const auto done = [&] { return ask(copy, &state) != kSuccess || state != kInProgress; };
    if (!until(std::chrono::seconds(30), done) || state != kSuccess) return nullptr;
    if (until(std::chrono::seconds(1), [&] { return comm != copy; }))
      return copy;  // else it was done before the copy was taken
  }
  return nullptr;
}

}  // namespace

int main(int argc, char **argv) {
  const char *path = argc > 1 ? argv[1] : NULL_LIBRARY;
  ::setenv("ISTHMUS_REAL_NCCL", path, 1);
  ::setenv("ISTHMUS_INTERFACE", "lo", 0);
  void *real = open(path), *door = open(DOOR);
  if (!real || !door) return 1;
  utsname machine{};
  ::uname(&machine);
  std::printf("# %s, %ld processors, %d batches of %d calls, ns a call\n", machine.machine, ::sysconf(_SC_NPROCESSORS_ONLN),
              kBatches, kCalls);
  std::printf("# %-20s %10s %10s %10s\n", "function", "bare", "door", "added");
  int version = 0;
  const auto compare_versions = [&] {
    return compare<GetVersion>("ncclGetVersion", real, door, [&](GetVersion *f) { f(&version); });
  };
  if (argc > 1) return compare_versions() ? 0 : 1;

  char data[8] = {};
  UniqueId id{};
  auto *init = find<InitRank>(door, "ncclCommInitRank");
  auto *bare = find<AllReduce>(real, "ncclAllReduce"), *through = find<AllReduce>(door, "ncclAllReduce");
  void *comm = nullptr, *alias = make_alias(door);
  if (!init || init(&comm, 2, id, 1) != kSuccess || !alias || !bare || !through) {
    std::fprintf(stderr, "the communicators could not be made\n");
    return 1;
  }
  const auto takes = [&](AllReduce *f, void *handle) { return f(data, data, 1, 7, 0, handle, data) == kSuccess; };
  if (!takes(bare, comm) || !takes(through, comm) || takes(bare, alias) || !takes(through, alias)) {
    std::fprintf(stderr, "a handle is not what its row says\n");
    return 1;
  }
  bool ok = compare_versions();
  ok &= compare("ncclAllReduce", bare, through, [&](AllReduce *f) { f(data, data, 1, 7, 0, comm, data); });
  ok &= compare("ncclAllReduce(alias)", bare, through, [&](AllReduce *f) { f(data, data, 1, 7, 0, alias, data); });
  ok &= compare_groups(real, door);
  ok &= compare<InitRank>("ncclCommInitRank", real, door, [&](InitRank *f) { f(&comm, 2, id, 1); });
  ok &= compare<Destroy>("ncclCommDestroy", real, door, [&](Destroy *f) { f(comm); });
  ok &= compare<GetErrorString>("ncclGetErrorString", real, door, [](GetErrorString *f) { f(0); });

  ::setenv("ISTHMUS_REAL_HCCL", path, 1);
  void *hccl = open(HCCL_DOOR);
  if (!hccl) return 1;
  ok &= compare<HcclAllReduce>("HcclAllReduce", real, hccl, [&](HcclAllReduce *f) { f(data, data, 1, 4, 0, data, data); });
  // Handed on without knowledge of its parameters, half of which are on the stack.
  ok &= compare<InGraph>("HcclAllReduceGraphMode", real, hccl,
                         [&](InGraph *f) { f(data, data, 1, 4, 0, data, data, data, nullptr, 0, data, 0); });
  return ok ? 0 : 1;
}
