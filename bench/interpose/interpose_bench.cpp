// What a front door adds to a call: calls of a library that does nothing, made by address (bare) and through the door, in turns.
//   build/release/bench/interpose/interpose_bench            the NCCL and HCCL doors, in front of a library that does nothing
//   build/release/bench/interpose/interpose_bench LIBRARY    in front of this one, ncclGetVersion alone
// Prints the median of the batches, in nanoseconds a call.
#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

struct UniqueId {
  unsigned char bytes[128];
};
using GetVersion = int(int *);
using AllReduce = int(const void *, void *, size_t, int, int, void *, void *);
using InitRank = int(void **, int, UniqueId, int);
using GetErrorString = const char *(int);
using HcclAllReduce = int(void *, void *, uint64_t, int, int, void *, void *);
using InGraph = int(void *, void *, uint64_t, int, int, const char *, void *, const char *, void **, size_t, void *,
                    uint64_t);

constexpr int kBatches = 501, kCalls = 2000;

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

template <class Function, class Call>
bool compare(const char *name, void *real, void *door, const Call &call) {
  auto *bare = reinterpret_cast<Function *>(::dlsym(real, name));
  auto *through = reinterpret_cast<Function *>(::dlsym(door, name));
  if (!bare || !through || bare == through) {
    std::fprintf(stderr, "no two of %s\n", name);
    return false;
  }
  std::vector<double> one, other, added;
  for (int i = 0; i < kBatches; ++i) {
    one.push_back(batch(bare, call));
    other.push_back(batch(through, call));
    added.push_back(other.back() - one.back());
  }
  std::printf("%-22s %10.2f %10.2f %10.2f\n", name, median(one), median(other), median(added));
  return true;
}

}  // namespace

int main(int argc, char **argv) {
  const char *path = argc > 1 ? argv[1] : NULL_LIBRARY;
  ::setenv("ISTHMUS_REAL_NCCL", path, 1);
  void *real = open(path), *door = open(DOOR);
  if (!real || !door) return 1;
  utsname machine{};
  ::uname(&machine);
  std::printf("# %s, %ld processors, %d batches of %d calls, ns a call\n", machine.machine, ::sysconf(_SC_NPROCESSORS_ONLN),
              kBatches, kCalls);
  std::printf("# %-20s %10s %10s %10s\n", "function", "bare", "door", "added");
  int version = 0;
  bool ok = compare<GetVersion>("ncclGetVersion", real, door, [&](GetVersion *f) { f(&version); });
  if (argc > 1) return ok ? 0 : 1;
  char data[8] = {};
  ok &= compare<AllReduce>("ncclAllReduce", real, door, [&](AllReduce *f) { f(data, data, 1, 7, 0, data, data); });
  UniqueId id{};
  void *comm = nullptr;
  ok &= compare<InitRank>("ncclCommInitRank", real, door, [&](InitRank *f) { f(&comm, 2, id, 1); });
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
