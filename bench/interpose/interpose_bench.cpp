// What a front door adds to a call: calls of a library that does nothing, made by address (bare) and through the door, in
// turns. The door's bridge is open, and a communicator exists that spans vendors.
//   interpose_bench                        the doors of NCCL and HCCL, with 1, 16 and 1000 communicators
//     --limit NS                           exits with 1, and names the row, where a row adds more to a call (default 50)
//     --communicators N[,N...]             live communicators of each kind (default 1,16,1000)
//     --quick                              shows that the program runs, and measures little
//     --door FILE, --hccl-door FILE        the doors
//   interpose_bench LIBRARY                the door of NCCL in front of this library, ncclGetVersion alone
// Prints medians, in nanoseconds a row. Calls go round the communicators. A row of several calls has the limit for each call.
// Inits have no limit, nor has the end of a communicator of the library: no training step has one.
//   own     the handle is the library's own
//   alias   a copy of the handle that an init gave which does not block: it stands for the library's own handle
#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string_view>

#include "communicators.hpp"
#include "rows.hpp"

namespace {

constexpr int kGrouped = 16;  // calls in a group

using GetVersion = int(int *);
using GetErrorString = const char *(int);
using Reduction = int(const void *, void *, size_t, int, int, void *, void *);  // ncclBroadcast's is the same
using Gathering = int(const void *, void *, size_t, int, void *, void *);
using Message = int(void *, size_t, int, int, void *, void *);  // HcclBroadcast's is the same
using Ask = int(void *, int *);
using InGraph = int(void *, void *, uint64_t, int, int, const char *, void *, const char *, void **, size_t, void *,
                    uint64_t);
using InitRootInfo = int(uint32_t, const void *, uint32_t, void **);
struct Group {
  int (*start)(), (*end)();
  Reduction *call;
};

char the_data[8];
unsigned char the_root[4108];  // a root info that was made without Isthmus

struct Options {
  double limit = 50;
  std::vector<size_t> communicators{1, 16, 1000};
  bool quick = false;
  const char *door = DOOR, *hccl_door = HCCL_DOOR, *library = nullptr;
};

bool parse(int argc, char **argv, Options &o) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool takes = word == "--limit" || word == "--communicators" || word == "--door" || word == "--hccl-door";
    if (takes && ++i == argc) return false;
    char *rest = argv[i];
    if (word == "--quick") o.quick = true;
    else if (word == "--door") o.door = argv[i];
    else if (word == "--hccl-door") o.hccl_door = argv[i];
    else if (word == "--limit") {
      o.limit = std::strtod(argv[i], &rest);
      if (rest == argv[i] || *rest) return false;
    } else if (word == "--communicators") {
      o.communicators.clear();
      do {
        if (*rest == ',') ++rest;
        const char *const begin = rest;
        o.communicators.push_back(std::strtoul(begin, &rest, 10));
        if (rest == begin || o.communicators.back() < 1 || o.communicators.back() > 10000) return false;
      } while (*rest == ',');
      if (*rest) return false;
    } else if (word.starts_with("-") || o.library) {
      return false;
    } else {
      o.library = argv[i];
    }
  }
  return true;
}

void *open(const char *path, int flags = RTLD_LOCAL) {
  void *library = ::dlopen(path, RTLD_NOW | flags);
  if (!library) std::fprintf(stderr, "%s\n", ::dlerror());
  return library;
}

// Adds rows of one door, with the communicators of one level.
class Level {
 public:
  Level(Rows &rows, void *real, void *door, size_t communicators)
      : rows_(rows), real_(real), door_(door), communicators_(communicators) {}

  template <class Function, class Call>
  void add(const char *name, const char *kind, const Handles &handles, Call call, bool held = true) {
    auto *bare = find<Function>(real_, name), *through = find<Function>(door_, name);
    if (!good(name, bare && through && bare != through)) return;
    rows_.add(name + std::string(kind), communicators_, 1, held, bare, through, handles, call);
  }
  void add_groups(const char *start, const char *end, const char *call, const char *kind, const Handles &handles) {
    const auto of = [&](void *library) {
      return Group{find<int()>(library, start), find<int()>(library, end), find<Reduction>(library, call)};
    };
    const Group bare = of(real_), door = of(door_);
    if (!good(start, bare.start && bare.end && bare.call && door.start && door.end && door.call)) return;
    rows_.add(std::string("group of 16 ") + call + kind, communicators_, kGrouped + 2, true, bare, door, handles,
              [](const Group &g, void *comm) {
                g.start();
                for (int i = 0; i < kGrouped; ++i) g.call(the_data, the_data, 1, 7, 0, comm, the_data);
                g.end();
              });
    if (*kind && std::string_view(kind) != " own") return;
    rows_.add(std::string(start) + "+End", communicators_, 2, true, bare, door, handles, [](const Group &g, void *) {
      g.start();
      g.end();
    });
  }
  bool complete() const { return complete_; }

 private:
  bool good(const char *name, bool good) {
    if (!good) std::fprintf(stderr, "no two of %s\n", name);
    complete_ = complete_ && good;
    return good;
  }

  Rows &rows_;
  void *const real_, *const door_;
  const size_t communicators_;
  bool complete_ = true;
};

const auto reduce = [](Reduction *f, void *comm) { f(the_data, the_data, 1, 7, 0, comm, the_data); };
const auto gather = [](Gathering *f, void *comm) { f(the_data, the_data, 1, 7, comm, the_data); };
const auto message = [](Message *f, void *comm) { f(the_data, 1, 7, 0, comm, the_data); };
const auto ask = [](Ask *f, void *comm) {
  int answer = 0;
  f(comm, &answer);
};

void add_nccl(Level &level, const Handles &own, const Handles &aliases) {
  for (const Handles *handles : {&own, &aliases}) {
    const char *const kind = handles == &own ? " own" : " alias";
    for (const char *name : {"ncclAllReduce", "ncclBroadcast", "ncclReduceScatter"})
      level.add<Reduction>(name, kind, *handles, reduce);
    level.add<Gathering>("ncclAllGather", kind, *handles, gather);
    for (const char *name : {"ncclSend", "ncclRecv"}) level.add<Message>(name, kind, *handles, message);
    for (const char *name : {"ncclCommCount", "ncclCommUserRank", "ncclCommGetAsyncError"})
      level.add<Ask>(name, kind, *handles, ask);
    level.add_groups("ncclGroupStart", "ncclGroupEnd", "ncclAllReduce", kind, *handles);
  }
  level.add<GetVersion>("ncclGetVersion", "", own, [](GetVersion *f, void *) {
    int version = 0;
    f(&version);
  });
  level.add<GetErrorString>("ncclGetErrorString", "", own, [](GetErrorString *f, void *) { f(0); });
  // An init and an end come once in a communicator's life. A door that is in use looks the library's function up at each end.
  level.add<Destroy>(
      "ncclCommDestroy", " own", own, [](Destroy *f, void *comm) { f(comm); }, false);
  const auto init = [](InitRank *f, void *) {
    void *comm = nullptr;
    f(&comm, 2, UniqueId{}, 1);
  };
  level.add<InitRank>("ncclCommInitRank", "", own, init, false);
}

void add_hccl(Level &level, const Handles &own) {
  for (const char *name : {"HcclAllReduce", "HcclReduceScatter"}) level.add<Reduction>(name, "", own, reduce);
  level.add<Gathering>("HcclAllGather", "", own, gather);
  for (const char *name : {"HcclBroadcast", "HcclSend", "HcclRecv"}) level.add<Message>(name, "", own, message);
  for (const char *name : {"HcclGetRankSize", "HcclGetRankId", "HcclGetCommAsyncError"}) level.add<Ask>(name, "", own, ask);
  level.add_groups("HcclGroupStart", "HcclGroupEnd", "HcclAllReduce", "", own);
  // Handed on without knowledge of its parameters, half of which are on the stack.
  level.add<InGraph>("HcclAllReduceGraphMode", "", own, [](InGraph *f, void *comm) {
    f(the_data, the_data, 1, 4, 0, the_data, comm, the_data, nullptr, 0, the_data, 0);
  });
  level.add<Destroy>("HcclCommDestroy", "", own, [](Destroy *f, void *comm) { f(comm); });
  const auto init = [](InitRootInfo *f, void *) {
    void *comm = nullptr;
    f(2, the_root, 1, &comm);
  };
  level.add<InitRootInfo>("HcclCommInitRootInfo", "", own, init, false);
}

int reduce_once(void *library, void *comm) {
  return find<Reduction>(library, "ncclAllReduce")(the_data, the_data, 1, 7, 0, comm, the_data);
}
bool takes_all(void *library, const std::vector<void *> &handles) {
  return std::all_of(handles.begin(), handles.end(), [=](void *comm) { return reduce_once(library, comm) == kSuccess; });
}
bool takes_any(void *library, const std::vector<void *> &handles) {
  return std::any_of(handles.begin(), handles.end(), [=](void *comm) { return reduce_once(library, comm) == kSuccess; });
}
// The rows of a call are of the handles that they say: the door alone knows an alias.
bool as_said(void *real, void *door, const Handles &own, const Handles &aliases) {
  return takes_all(real, own.bare) && takes_all(door, own.door) && takes_all(real, aliases.bare) &&
         takes_all(door, aliases.door) && !takes_any(real, aliases.door);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// One level: its communicators live while its rows are measured. Negative: it could not be made.
int level_of(const Options &o, size_t communicators, const Communicators &made, void *real, void *nccl, void *hccl) {
  Handles own, aliases;
  for (size_t i = 0; i < communicators; ++i)
    if (!made.add_own(own)) return -1;
  auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < communicators; ++i)
    if (!made.add_alias(aliases)) return -1;
  const double inits = seconds_since(begin);
  if (!as_said(real, nccl, own, aliases)) return -1;
  Rows rows(o.quick ? 1 : 5, o.quick ? 11 : 101);
  Level of_nccl(rows, real, nccl, communicators), of_hccl(rows, real, hccl, communicators);
  add_nccl(of_nccl, own, aliases);
  add_hccl(of_hccl, own);
  if (!of_nccl.complete() || !of_hccl.complete()) return -1;
  rows.measure();
  const int over = rows.print(o.limit);
  begin = std::chrono::steady_clock::now();
  if (!made.destroy_all(aliases)) return -1;
  const double ends = seconds_since(begin);
  if (takes_any(nccl, aliases.door)) return -1;
  const double each = 1e6 / static_cast<double>(communicators);
  std::printf("# %zu inits with a census that do not block: %.1f us each; their ends: %.2f us each\n", communicators,
              inits * each, ends * each);
  std::fflush(stdout);
  return over;
}

int version_alone(const Options &o, void *real, void *door) {
  const Handles none{{nullptr}, {nullptr}};
  Rows rows(5, 101);
  Level level(rows, real, door, 0);
  level.add<GetVersion>("ncclGetVersion", "", none, [](GetVersion *f, void *) {
    int version = 0;
    f(&version);
  });
  if (!level.complete()) return 1;
  rows.measure();
  return rows.print(o.limit) ? 1 : 0;
}

}  // namespace

int main(int argc, char **argv) {
  Options o;
  if (!parse(argc, argv, o)) {
    std::fprintf(stderr,
                 "interpose_bench [--limit NS] [--communicators N,...] [--quick] [--door FILE] [--hccl-door FILE] "
                 "[LIBRARY]\n");
    return 2;
  }
  const char *path = o.library ? o.library : NULL_LIBRARY;
  ::setenv("ISTHMUS_REAL_NCCL", path, 1);
  ::setenv("ISTHMUS_REAL_HCCL", path, 1);
  ::setenv("ISTHMUS_INTERFACE", "lo", 0);
  ::setenv("ISTHMUS_CCL", "none", 1);  // each island has one rank, and the library that does nothing serves none
  ::setenv("REHEARSAL_QUIET", "1", 1);
  void *real = open(path), *nccl = open(o.door);
  if (!real || !nccl) return 1;
  utsname machine{};
  ::uname(&machine);
  std::printf("# %s, %ld processors, batches of %d calls, ns\n", machine.machine, ::sysconf(_SC_NPROCESSORS_ONLN),
              Rows::kCalls);
  if (o.library) return version_alone(o, real, nccl);

  // The communicator that spans vendors has simulated devices. Its driver is found by name from here on.
  void *cuda = open(CUDA_LIBRARY, RTLD_GLOBAL), *hccl = open(o.hccl_door);
  const Communicators made(nccl);
  auto *root = hccl ? find<int(void *)>(hccl, "HcclGetRootInfo") : nullptr;
  auto *start_driver = cuda ? find<int(unsigned)>(cuda, "cuInit") : nullptr;
  std::vector<unsigned char> root_info(sizeof the_root);
  if (!start_driver || start_driver(0) != kSuccess || !root || root(root_info.data()) != kSuccess || !made.complete() ||
      !made.span()) {
    std::fprintf(stderr, "no communicator that spans vendors could be made\n");
    return 1;
  }
  int over = 0;
  for (const size_t communicators : o.communicators) {
    const int more = level_of(o, communicators, made, real, nccl, hccl);
    if (more < 0) {
      std::fprintf(stderr, "the communicators could not be made\n");
      return 1;
    }
    over += more;
  }
  return over ? 1 : 0;
}
