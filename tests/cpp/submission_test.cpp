// Which thread makes which call of a device's runtime for an operation, and on which stream, on every vendor: as the simulation wrote it down.
//
// The thread that calls submits all of an operation's device work, in one order, which is that of the plan's device list, and the user's
// stream gets two things: the record of where it stands, and one wait for an event behind the last copy. The progress thread makes none of
// it; all that it calls is the library's question whether the communicator has failed. HCCL's calls, which may wait for other ranks, are
// made by a thread of the communicator, one at a time, while the calling thread waits for it. What has come for a receive without a stream
// is copied in by the device worker.
#include "engine/operation.hpp"
#include "eventually.hpp"
#include "fleet.hpp"
#include "rehearsal_file.hpp"

#include <sys/syscall.h>

#include <barrier>
#include <memory>
#include <mutex>
#include <set>

// Under ThreadSanitizer, whose exits take a second each otherwise.
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options();
extern "C" const char *__tsan_default_options() { return "atexit_sleep_ms=20"; }

namespace isthmus_test {
namespace {

// ---- the journal ------------------------------------------------------------------------------------------------------------------

template <class F>
F *engine(const char *name) {
  void *const found = ::dlsym(::dlopen(rehearsal_file("librehearsal.so"), RTLD_NOW), name);
  if (!found) std::abort();
  return reinterpret_cast<F *>(found);
}

struct Line {
  long thread = 0;
  std::string thread_name, call;
  bool submitted = false;  // to `stream`; else the call itself
  uint64_t stream = 0;
};
std::vector<Line> read_journal() {
  std::string text(1 << 20, 0);
  const size_t size = engine<size_t(char *, size_t)>("rehearsal_journal_read")(text.data(), text.size());
  EXPECT_LT(size, text.size());
  std::istringstream all(text.substr(0, size));
  std::vector<Line> lines;
  for (std::string line; std::getline(all, line);) {
    std::istringstream fields(line);
    std::string thread, name, call, stream;
    std::getline(fields, thread, '\t');
    std::getline(fields, name, '\t');
    std::getline(fields, call, '\t');
    std::getline(fields, stream, '\t');
    lines.push_back({std::stol(thread), name, call, stream != "-", stream == "-" ? 0 : std::stoull(stream)});
  }
  return lines;
}

// What the simulation writes down between begin() and end(), which all ranks of the process call.
class Watched {
 public:
  explicit Watched(int ranks) : all_(ranks) {}
  void begin(const FleetRank &r) {
    {
      const std::lock_guard lock(mutex_);
      callers_.insert(::syscall(SYS_gettid));
    }
    together(r);
    if (!opened_.exchange(true)) engine<void()>("rehearsal_journal_open")();
    together(r);
  }
  std::vector<Line> end(const FleetRank &r) {
    together(r);
    if (opened_.exchange(false)) lines_ = read_journal();
    all_.arrive_and_wait();
    std::vector<Line> lines = lines_;
    all_.arrive_and_wait();
    return lines;
  }
  // Threads of the program, which are ranks.
  const std::set<long> &callers() const { return callers_; }

 private:
  // All ranks have come, and no device has anything left to do.
  void together(const FleetRank &r) {
    FLEET_MUST(r, isthmus_barrier(r.comm, nullptr, nullptr) == ISTHMUS_OK);
    all_.arrive_and_wait();
  }
  std::barrier<> all_;
  std::mutex mutex_;
  std::set<long> callers_;
  std::atomic<bool> opened_{false};
  std::vector<Line> lines_;
};

// ---- what may be there ------------------------------------------------------------------------------------------------------------

struct Words {  // of a vendor
  const char *vendor, *record, *wait, *gate, *signal, *copy;
  const char *library, *question;  // what the names of its functions begin with; the one that the progress thread calls
  std::set<std::string> asking;    // whether the device has failed
};
const Words kWords[] = {
    {"nvidia",
     "cuEventRecord",
     "cuStreamWaitEvent",
     "cuStreamWaitValue64",
     "cuStreamWriteValue64",
     "cuMemcpyAsync",
     "nccl",
     "ncclCommGetAsyncError",
     {"cuStreamQuery", "cuCtxPushCurrent", "cuCtxGetId", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"}},
    {"amd",
     "hipEventRecord",
     "hipStreamWaitEvent",
     "hipStreamWaitValue64",
     "hipStreamWriteValue64",
     "hipMemcpyAsync",
     "nccl",
     "ncclCommGetAsyncError",
     {"hipStreamQuery", "hipGetDevice", "hipSetDevice", "hipGetLastError", "hipThreadExchangeStreamCaptureMode"}},
    {"ascend",
     "aclrtRecordEvent",
     "aclrtStreamWaitEvent",
     nullptr,
     "aclrtLaunchHostFunc",
     "aclrtMemcpyAsync",
     "Hccl",
     "HcclGetCommAsyncError",
     {"aclrtStreamQuery", "aclrtGetCurrentContext", "aclrtSetCurrentContext"}}};
const Words &words_of(const FleetRank &r) {
  for (const Words &w : kWords)
    if (!std::strcmp(w.vendor, r.vendor->name)) return w;
  std::abort();
}

std::string text_of(const std::vector<Line> &lines) {
  std::string text;
  for (const Line &l : lines)
    text += std::to_string(l.thread) + " " + l.thread_name + ": " + l.call +
            (l.submitted ? " to " + std::to_string(l.stream) : std::string()) + "\n";
  return text;
}
bool begins(const std::string &text, const char *with) { return text.rfind(with, 0) == 0; }

enum class DeviceWorker { MayNot, MayCopy };

// No thread of ours has made a call, but as it is said above. `callers`: the program's threads. Once an operation has waited
// for a device for 100 ms, the device worker asks the driver whether it has failed.
void expect_callers_alone(const FleetRank &r, const std::vector<Line> &lines, const std::set<long> &callers,
                          DeviceWorker worker) {
  for (const Line &l : lines) {
    if (callers.count(l.thread) || l.call == words_of(r).question) continue;
    if (l.thread_name == "isthmus-hccl" && begins(l.call, "Hccl")) continue;
    if (l.thread_name == "isthmus-worker" && (worker == DeviceWorker::MayCopy || words_of(r).asking.count(l.call))) continue;
    ADD_FAILURE() << "rank " << r.rank << ": " << l.thread_name << " called " << l.call << " in\n" << text_of(lines);
    return;
  }
}

// What operations gave to the user's stream: the record of where it stands, and a wait for an event; so many times.
void expect_users_stream(const FleetRank &r, const std::vector<Line> &lines, void *stream, size_t times) {
  const uint64_t user = engine<uint64_t(void *)>("rehearsal_stream")(stream);
  ASSERT_NE(user, 0u);
  size_t records = 0, waits = 0, others = 0;
  std::map<long, bool> fresh;  // a call may be two things to a queue
  for (const Line &l : lines) {
    if (!l.submitted) fresh[l.thread] = true;
    if (!l.submitted || l.stream != user || !std::exchange(fresh[l.thread], false)) continue;
    records += l.call == words_of(r).record;
    waits += l.call == words_of(r).wait;
    others += l.call != words_of(r).record && l.call != words_of(r).wait;
  }
  EXPECT_EQ(records, times) << "rank " << r.rank << "\n" << text_of(lines);
  EXPECT_EQ(waits, times) << "rank " << r.rank << "\n" << text_of(lines);
  EXPECT_EQ(others, 0u) << "rank " << r.rank << "\n" << text_of(lines);
}

// ---- the plan ---------------------------------------------------------------------------------------------------------------------

// What was given to the rank's streams, in order: the function and the stream. The user's stream is called so, the rank's own ones "first"
// and "second", as they come. Whoever calls for the rank uses its streams: its own thread, or the library's, for which that one waits.
std::vector<std::string> given(const FleetRank &r, const std::vector<Line> &lines, void *stream) {
  std::map<uint64_t, std::string> names;
  const uint64_t user = engine<uint64_t(void *)>("rehearsal_stream")(stream);
  for (const Line &l : lines)
    if (l.submitted && l.thread == ::syscall(SYS_gettid))
      names.try_emplace(l.stream, l.stream == user ? "user" : names.size() == names.count(user) ? "first" : "second");
  std::vector<std::string> found;
  std::map<long, bool> fresh;  // a call may be two things to a queue
  for (const Line &l : lines) {
    if (!l.submitted) fresh[l.thread] = true;
    if (l.submitted && std::exchange(fresh[l.thread], false) && names.count(l.stream))
      found.push_back(l.call + " " + names[l.stream]);
  }
  EXPECT_LE(names.size(), 3u) << "rank " << r.rank << "\n" << text_of(lines);
  return found;
}

// The same as plan.hpp says it of the plan by which the operation ran: the stages by turns and skews, each step for its chunk, and what ties
// the streams together. `work`, which has ended, is the engine's operation.
std::vector<std::string> planned(const FleetRank &r, isthmus_work_t work) {
  namespace plan = isthmus::plan;
  constexpr const char *kCalls[isthmus::kIslandCalls] = {
      "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "AlltoAll", "BatchSendRecv", "Send", "Recv"};
  const Words &w = words_of(r);
  const auto &op = *reinterpret_cast<const isthmus::engine::Operation *>(work);
  const plan::Plan &p = *op.plan;
  const uint32_t chunks = plan::chunks_of(p, op.operands());
  std::vector<std::string> all;
  const auto give = [&](const std::string &call, const char *stream) { all.push_back(call + " " + stream); };
  // NCCL's all_to_all is a group of sends and receives: one thing to a stream, by the name of the first. (Each rank gives itself something.)
  const auto function = [&](isthmus::IslandCall call) {
    const bool exchange = call == isthmus::IslandCall::AllToAll || call == isthmus::IslandCall::AllToAllV,
               group = exchange && begins(w.library, "nccl");
    return std::string(w.library) + kCalls[static_cast<size_t>(group ? isthmus::IslandCall::Send : call)];
  };
  // A copy from the user's memory to itself is none.
  const auto place = [&](const plan::Span &s, uint32_t c) -> const std::byte * {
    const std::byte *base = s.memory == plan::Memory::Input    ? op.call.input
                            : s.memory == plan::Memory::Output ? op.call.output
                                                               : nullptr;
    return base ? base + plan::span_offset(p, s, c, op.operands()) : nullptr;
  };
  const auto works = [&](const plan::Step &s, uint32_t c) {
    if (!plan::runs_for(p, s, c, op.operands()) || plan::extent_bytes(s.extent, c, op.operands()) == 0) return false;
    return s.kind != plan::StepKind::Move || !place(s.dst, c) || place(p.sources[s.source], c) != place(s.dst, c);
  };
  // A group of NCCL's is one thing to a stream, by the name of its first call. HCCL's is a batch of the messages.
  bool in_group = false;
  const auto grouped = [&](const plan::Step &s, const char *stream) {
    const bool nccl = begins(w.library, "nccl"),
               message = s.call == isthmus::IslandCall::Send || s.call == isthmus::IslandCall::Recv;
    if (!nccl && !message) return give(function(s.call), stream);
    if (!std::exchange(in_group, true)) give(function(nccl ? s.call : isthmus::IslandCall::AllToAllV), stream);
  };
  const auto step = [&](const plan::Step &s, uint32_t c, const char *stream, bool together) {
    in_group = in_group && s.kind == plan::StepKind::Ccl;
    switch (s.kind) {
      case plan::StepKind::Wait:
        if (w.gate && s.mul * c + s.add > 0) give(w.gate, stream);
        return;
      case plan::StepKind::Post: return give(w.signal, stream);
      case plan::StepKind::Move:
        if (works(s, c)) give(w.copy, stream);
        return;
      case plan::StepKind::Ccl:
        if (works(s, c)) together ? grouped(s, stream) : give(function(s.call), stream);
        return;
      default: ADD_FAILURE() << "a step of the device list that is of the host's";
    }
  };

  give(w.record, "user");
  give(w.wait, "first");
  if (w.gate) give(w.gate, "first");  // where the entry rule holds it up
  uint32_t skew = 0;
  for (const plan::Stage &s : p.device) skew = std::max(skew, s.skew);
  bool went_on = true, parted = false;  // the first stream, since the second was put behind it; they have not met again
  for (uint32_t t = 0; t < chunks + skew; ++t)
    for (const plan::Stage &s : p.device) {
      if (t < s.skew || t - s.skew >= chunks) continue;
      // Where the thread stands at every gate, and where there is one chunk, nothing would run beside anything.
      const bool beside = s.beside && w.gate && chunks > 1;
      if (beside && went_on) {
        give(w.record, "first");
        give(w.wait, "second");
      }
      went_on = !beside;
      parted |= beside;
      in_group = false;
      for (uint32_t i = 0; i < s.steps; ++i) step(p.steps[s.step + i], t - s.skew, beside ? "second" : "first", s.together);
    }
  if (parted) {
    give(w.record, "second");
    give(w.wait, "first");
  }
  give(w.record, "first");
  give(w.wait, "user");
  give(w.signal, "first");
  return all;
}

// The first is the second, but for gates of it that were open already.
void expect_as_planned(const FleetRank &r, const std::vector<std::string> &got, const std::vector<std::string> &all) {
  const char *const gate = words_of(r).gate;
  size_t next = 0;
  const auto list = [](const std::vector<std::string> &x) {
    std::string text;
    for (const std::string &one : x) text += "  " + one + "\n";
    return text;
  };
  for (const std::string &one : all) {
    if (next < got.size() && got[next] == one) {
      ++next;
    } else if (!gate || !begins(one, gate)) {
      ADD_FAILURE() << "rank " << r.rank << ": the plan has " << one << " behind " << next << " of what was given:\n"
                    << list(got) << "and the plan is\n"
                    << list(all);
      return;
    }
  }
  EXPECT_EQ(next, got.size()) << "rank " << r.rank << ": more was given than is in the plan:\n"
                              << list(got) << "and the plan is\n"
                              << list(all);
}

// ---- operations -------------------------------------------------------------------------------------------------------------------

constexpr uint64_t kCount = 150'000;  // several chunks
struct Operation {
  const char *name;
  uint64_t count;
  isthmus_result (*call)(const FleetRank &, char *in, char *out, uint64_t, const isthmus_call *, isthmus_work_t *);
};
constexpr auto kType = ISTHMUS_FLOAT32;
// Unequal ones, and rank 1's is none.
std::vector<uint64_t> counts_of(const FleetRank &r, uint64_t most) {
  std::vector<uint64_t> counts;
  for (int q = 0; q < r.size; ++q) counts.push_back(q == 1 ? 0 : most / static_cast<uint64_t>(q + 1));
  return counts;
}
const Operation kOperations[] = {
    {"all_reduce", kCount,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_all_reduce(r.comm, in, out, n, kType, ISTHMUS_MAX, how, work);
     }},
    {"small all_reduce", 16,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_all_reduce(r.comm, in, out, n, kType, ISTHMUS_SUM, how, work);
     }},
    {"all_reduce without the library", kCount,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_all_reduce(r.comm, in, out, n, ISTHMUS_INT32, ISTHMUS_BXOR, how, work);
     }},
    {"all_reduce with factors", kCount,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_all_reduce(r.comm, in, out, n, kType, ISTHMUS_PREMUL_SUM, how, work);
     }},
    {"reduce", kCount,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_reduce(r.comm, in, out, n, kType, ISTHMUS_MAX, 0, how, work);
     }},
    {"reduce_scatter", kCount / 4,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_reduce_scatter(r.comm, in, out, n, kType, ISTHMUS_SUM, how, work);
     }},
    {"broadcast", kCount,
     [](const FleetRank &r, char *in, char *, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_broadcast(r.comm, in, in, n, kType, 0, how, work);
     }},
    {"all_gather", kCount / 4,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_all_gather(r.comm, in, out, n, kType, how, work);
     }},
    {"all_to_all", kCount / 4,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_all_to_all(r.comm, in, out, n, kType, how, work);
     }},
    {"gather", kCount / 4,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_gather(r.comm, in, out, n, kType, 0, how, work);
     }},
    {"scatter", kCount / 4,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_scatter(r.comm, in, out, n, kType, 0, how, work);
     }},
    {"all_gather_v", kCount / 8,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_all_gather_v(r.comm, in, out, counts_of(r, n).data(), nullptr, kType, how, work);
     }},
    {"all_to_all_v", kCount / 8,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       std::vector<uint64_t> give, take;  // nothing from the first to rank 1
       for (int q = 0; q < r.size; ++q) {
         give.push_back(r.rank == 0 && q == 1 ? 0 : n / static_cast<uint64_t>(r.rank + 2 * q + 1));
         take.push_back(r.rank == 1 && q == 0 ? 0 : n / static_cast<uint64_t>(q + 2 * r.rank + 1));
       }
       return isthmus_all_to_all_v(r.comm, in, give.data(), nullptr, out, take.data(), nullptr, kType, how, work);
     }},
    {"reduce_scatter_v", kCount / 8,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_reduce_scatter_v(r.comm, in, out, counts_of(r, n).data(), nullptr, kType, ISTHMUS_SUM, how, work);
     }},
    {"gather_v", kCount / 8,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_gather_v(r.comm, in, out, counts_of(r, n).data(), nullptr, kType, 0, how, work);
     }},
    {"scatter_v", kCount / 8,
     [](const FleetRank &r, char *in, char *out, uint64_t n, const isthmus_call *how, isthmus_work_t *work) {
       return isthmus_scatter_v(r.comm, in, out, counts_of(r, n).data(), nullptr, kType, 0, how, work);
     }},
};

isthmus_call how_of(const FleetRank &r, void *stream) {
  isthmus_call how = ISTHMUS_CALL_INIT;
  how.scale = 2;
  how.on_stream = r.driver ? ISTHMUS_STREAM_BOTH : ISTHMUS_STREAM_NONE;
  how.stream = stream;
  return how;
}

class Submissions : public testing::TestWithParam<const char *> {
 protected:
  // body(rank, what watches its process) on every rank of the fleet.
  static void on_ranks(const std::function<void(FleetRank &, Watched &)> &body) {
    std::map<int, int> ranks;
    for (const FleetRank &r : ranks_of(GetParam())) ++ranks[r.process];
    std::map<int, std::unique_ptr<Watched>> watched;
    for (const auto &[process, n] : ranks) watched[process] = std::make_unique<Watched>(n);
    FleetOptions options;
    options.settings = "CHUNK_BYTES=16K";
    fly(GetParam(), options, [&](FleetRank &r) { body(r, *watched.at(r.process)); });
  }
};

// ---- the tests --------------------------------------------------------------------------------------------------------------------

TEST_P(Submissions, OfACollectiveAreTheCallersInOneOrderAndTheUsersStreamWaitsForOneEvent) {
  on_ranks([](FleetRank &r, Watched &watched) {
    FleetMemory in(r, 4 * kCount), out(r, 4 * kCount * 2);
    void *const stream = r.driver ? r.driver->stream() : nullptr;
    for (const Operation &o : kOperations) {
      SCOPED_TRACE(o.name);
      const isthmus_call how = how_of(r, stream);
      const auto call = [&] {
        isthmus_work_t work = nullptr;
        FLEET_MUST(
            r, o.call(r, static_cast<char *>(in.at(0)), static_cast<char *>(out.at(0)), o.count, &how, &work) == ISTHMUS_OK);
        if (r.driver) r.driver->synchronize(stream);  // so that this thread does nothing for it: the progress thread does
        FLEET_MUST(r, isthmus_work_wait(work, 0) == ISTHMUS_OK);
        return work;
      };
      isthmus_work_release(call());  // the first one of its size may allocate
      for (int turn = 0; turn < 2; ++turn) {
        watched.begin(r);
        const isthmus_work_t work = call();
        const std::vector<Line> lines = watched.end(r);
        if (r.driver) {
          expect_callers_alone(r, lines, watched.callers(), DeviceWorker::MayNot);
          expect_users_stream(r, lines, stream, 1);
          expect_as_planned(r, given(r, lines, stream), planned(r, work));
        }
        isthmus_work_release(work);
      }
    }
    if (stream) r.driver->end(stream);
  });
}

// Where an island of a library is alone, what is in place lies where it has to be.
TEST_P(Submissions, OfABroadcastOrGatherInPlaceInAnIslandCopyNothing) {
  on_ranks([](FleetRank &r, Watched &watched) {
    const auto fleet = ranks_of(GetParam());
    if (std::any_of(fleet.begin(), fleet.end(), [&](const FleetRank &q) { return q.island != r.island; })) return;
    const uint64_t world = static_cast<uint64_t>(r.size), mine = 4 * kCount * static_cast<uint64_t>(r.rank);
    FleetMemory memory(r, 4 * kCount * world);
    void *const stream = r.driver->stream();
    const isthmus_call how = how_of(r, stream);
    char *const all = static_cast<char *>(memory.at(0));
    for (int turn = 0; turn < 2; ++turn) {  // the first one may allocate
      watched.begin(r);
      for (int root = 0; root < r.size; ++root)
        FLEET_MUST(r, isthmus_broadcast(r.comm, all, all, kCount, kType, root, &how, nullptr) == ISTHMUS_OK);
      FLEET_MUST(r, isthmus_all_gather(r.comm, all + mine, all, kCount, kType, &how, nullptr) == ISTHMUS_OK);
      r.driver->synchronize(stream);
      const std::vector<Line> lines = watched.end(r);
      EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [&](const Line &l) { return l.call == words_of(r).copy; }), 0)
          << "rank " << r.rank << "\n"
          << text_of(lines);
    }
    r.driver->end(stream);
  });
}

// A copy each for the parts of a message, which the user's stream waits for together.
TEST_P(Submissions, OfMessagesOnAStreamAreTheCallers) {
  on_ranks([](FleetRank &r, Watched &watched) {
    constexpr uint64_t kPart = 8 * 16 * 1024;  // eight chunks
    FleetMemory memory(r, 5 * kPart);
    void *const stream = r.driver ? r.driver->stream() : nullptr;
    const isthmus_call how = how_of(r, stream);
    for (const uint64_t parts : {1, 3})
      for (int turn = 0; turn < 2; ++turn) {  // the first one makes the lanes
        watched.begin(r);
        // From rank 0 to the last one, and back.
        const int other = r.rank == 0 ? r.size - 1 : 0;
        const bool takes_part = r.rank == 0 || r.rank == r.size - 1;
        for (int back = 0; back < 2 && takes_part; ++back) {
          isthmus_work_t work = nullptr;
          const bool sends = (r.rank == 0) == (back == 0);
          void *const at = memory.at(0);
          FLEET_MUST(r, (sends ? isthmus_send(r.comm, at, parts * kPart, ISTHMUS_UINT8, other, 0, &how, &work)
                               : isthmus_recv(r.comm, at, parts * kPart, ISTHMUS_UINT8, other, 0, nullptr, &how, &work)) ==
                            ISTHMUS_OK);
          if (r.driver) r.driver->synchronize(stream);
          FLEET_MUST(r, isthmus_work_wait(work, 0) == ISTHMUS_OK);
          isthmus_work_release(work);
        }
        const std::vector<Line> lines = watched.end(r);
        if (!r.driver || turn == 0) continue;
        expect_callers_alone(r, lines, watched.callers(), DeviceWorker::MayNot);
        if (takes_part) expect_users_stream(r, lines, stream, 2);
      }
    if (stream) r.driver->end(stream);
  });
}

TEST_P(Submissions, OfAReceiveWithoutAStreamAreTheDeviceWorkers) {
  on_ranks([](FleetRank &r, Watched &watched) {
    FleetMemory memory(r, 300'000);
    const int other = r.rank == 0 ? r.size - 1 : 0;
    for (int turn = 0; turn < 2; ++turn) {
      watched.begin(r);
      for (int back = 0; back < 2 && (r.rank == 0 || r.rank == r.size - 1); ++back)
        FLEET_MUST(r, ((r.rank == 0) == (back == 0)
                           ? isthmus_send(r.comm, memory.at(0), 100'000, ISTHMUS_UINT8, other, 0, nullptr, nullptr)
                           : isthmus_recv(r.comm, memory.at(0), 100'000, ISTHMUS_UINT8, other, 0, nullptr, nullptr,
                                          nullptr)) == ISTHMUS_OK);
      const std::vector<Line> lines = watched.end(r);
      if (!r.driver || turn == 0) continue;
      expect_callers_alone(r, lines, watched.callers(), DeviceWorker::MayCopy);
      if (r.rank != 0 && r.rank != r.size - 1) continue;
      EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const Line &l) {
        return l.thread_name == "isthmus-worker" && l.submitted;
      })) << text_of(lines);
    }
  });
}

// Where a device has no gates, the call that begins an operation waits in their place. A callback may make such a call too, also where
// another callback, of another rank of this process, has to join it.
struct Called {
  std::function<isthmus_result()> call;
  std::atomic<int> result{-1};
  std::string text;
  static void done(void *context, isthmus_result, const char *) {
    auto *called = static_cast<Called *>(context);
    const isthmus_result got = called->call();
    called->text = got == ISTHMUS_OK ? "" : isthmus_last_error();
    called->result.store(got);
  }
};
constexpr int kAsk = 77, kTrigger = 78;

class WithoutGates : public testing::TestWithParam<const char *> {
 protected:
  // On every rank `call` in a callback of a barrier, and what it gave. Nobody else of the program is in a call meanwhile.
  static isthmus_result in_callbacks(const FleetRank &r, std::string &text, std::function<isthmus_result()> call) {
    Called called{std::move(call), -1, {}};
    isthmus_work_t work = nullptr;
    FLEET_MUST(r, isthmus_barrier(r.comm, nullptr, &work) == ISTHMUS_OK);
    FLEET_MUST(r, isthmus_work_on_done(work, &Called::done, &called) == ISTHMUS_OK);
    while (called.result.load() == -1) std::this_thread::yield();  // alarm() ends it
    isthmus_work_release(work);
    text = called.text;
    return static_cast<isthmus_result>(called.result.load());
  }
  // On rank 0 `call` in a callback of a message from the last rank, and what it gave. Elsewhere nothing.
  static isthmus_result in_a_callback(const FleetRank &r, std::string &text, std::function<isthmus_result()> call) {
    char byte = 0;
    const int last = r.size - 1;
    if (r.rank == last) {
      FLEET_MUST(r, isthmus_recv(r.comm, &byte, 1, ISTHMUS_UINT8, 0, kAsk, nullptr, nullptr, nullptr) == ISTHMUS_OK);
      FLEET_MUST(r, isthmus_send(r.comm, &byte, 1, ISTHMUS_UINT8, 0, kTrigger, nullptr, nullptr) == ISTHMUS_OK);
    }
    if (r.rank != 0) return ISTHMUS_OK;
    Called called{std::move(call), -1, {}};
    isthmus_work_t work = nullptr;
    FLEET_MUST(r, isthmus_recv(r.comm, &byte, 1, ISTHMUS_UINT8, last, kTrigger, nullptr, nullptr, &work) == ISTHMUS_OK);
    FLEET_MUST(r, isthmus_work_on_done(work, &Called::done, &called) == ISTHMUS_OK);
    FLEET_MUST(r, isthmus_send(r.comm, &byte, 1, ISTHMUS_UINT8, last, kAsk, nullptr, nullptr) == ISTHMUS_OK);
    while (called.result.load() == -1) std::this_thread::yield();  // alarm() ends it
    FLEET_MUST(r, isthmus_work_wait(work, 0) == ISTHMUS_OK);
    isthmus_work_release(work);
    text = called.text;
    return static_cast<isthmus_result>(called.result.load());
  }
};

TEST_P(WithoutGates, CollectivesAndGroupsInCallbacksOfAllRanksWaitAndAreRight) {
  fly(GetParam(), {}, [](FleetRank &r) {
    constexpr uint64_t kMost = 50'000;
    FleetMemory in(r, 4 * kMost), out(r, 4 * kMost);
    std::vector<float> x(kMost, static_cast<float>(r.rank + 1)), y(kMost);
    in.put(x.data(), 4 * kMost);
    void *const stream = r.driver ? r.driver->stream() : nullptr;
    const isthmus_call how = how_of(r, stream);
    for (const uint64_t count : {uint64_t{16}, kMost}) {
      const auto call = [&] {
        return isthmus_all_reduce(r.comm, in.at(0), out.at(0), count, kType, ISTHMUS_SUM, &how, nullptr);
      };
      const auto in_group = [&] {
        char sent = 0, came = 0;
        isthmus_group_begin();
        isthmus_send(r.comm, &sent, 1, ISTHMUS_UINT8, (r.rank + 1) % r.size, 5, nullptr, nullptr);
        isthmus_recv(r.comm, &came, 1, ISTHMUS_UINT8, (r.rank + r.size - 1) % r.size, 5, nullptr, nullptr, nullptr);
        call();
        return isthmus_group_end(nullptr);
      };
      for (const bool group : {false, true}) {
        std::string text;
        FLEET_MUST(r, in_callbacks(r, text, [&] { return group ? in_group() : call(); }) == ISTHMUS_OK);
        EXPECT_EQ(isthmus_comm_error(r.comm), ISTHMUS_OK);
        out.get(y.data(), 4 * count);
        for (uint64_t i = 0; i < count; ++i) FLEET_MUST(r, y[i] == static_cast<float>(r.size * (r.size + 1) / 2));
      }
    }
    if (stream) r.driver->end(stream);
  });
}

TEST_P(WithoutGates, ACallbackWaitsForAReceiveOnAStreamAndOrdersOneThatHasBegun) {
  fly(GetParam(), {}, [](FleetRank &r) {
    constexpr uint64_t kParts = 3 * 1024 * 1024;  // several of a message
    FleetMemory memory(r, kParts);
    void *const stream = r.driver ? r.driver->stream() : nullptr;
    const isthmus_call how = how_of(r, stream);
    for (const uint64_t bytes : {uint64_t{100}, kParts})
      for (const int tag : {0, 3}) {
        const auto send = [&] {
          if (r.rank != r.size - 1) return;
          EXPECT_EQ(isthmus_send(r.comm, memory.at(0), bytes, ISTHMUS_UINT8, 0, tag, nullptr, nullptr), ISTHMUS_OK);
        };
        std::string text;
        std::thread sender(send);  // the callback returns when the message has come
        FLEET_MUST(r, in_a_callback(r, text, [&] {
                        return isthmus_recv(r.comm, memory.at(0), bytes, ISTHMUS_UINT8, r.size - 1, tag, nullptr, &how,
                                            nullptr);
                      }) == ISTHMUS_OK);
        sender.join();
        isthmus_work_t later = nullptr;
        if (r.rank == 0) {
          isthmus_call unordered = how;
          unordered.on_stream = ISTHMUS_STREAM_BEFORE;
          FLEET_MUST(r, isthmus_recv(r.comm, memory.at(0), bytes, ISTHMUS_UINT8, r.size - 1, tag, nullptr, &unordered,
                                     &later) == ISTHMUS_OK);
        }
        std::thread again(send);
        FLEET_MUST(r, in_a_callback(r, text, [&] { return isthmus_work_order(later, stream); }) == ISTHMUS_OK);
        again.join();
        if (r.rank != 0) continue;
        FLEET_MUST(r, isthmus_work_wait(later, 0) == ISTHMUS_OK);
        isthmus_work_release(later);
      }
    if (stream) r.driver->end(stream);
  });
}

// The check is the process's, and only this thread's call is meant.
thread_local isthmus_comm_t doomed = nullptr;
std::atomic<int> destroyed{-1};
int destroys() {
  if (isthmus_comm_t comm = std::exchange(doomed, nullptr)) destroyed = isthmus_comm_destroy(comm);
  return 0;
}

// Of this process.
int communicators() {
  char *json = nullptr;
  EXPECT_EQ(isthmus_context_stats(&json), ISTHMUS_OK);
  const std::string text = json;
  isthmus_free(json);
  const std::string key = "\"communicators\": ";
  const size_t at = text.find(key);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + key.size());  // the last one may end the context
}

// On rank 0 `call`, which waits for the other ranks in vain. The check destroys the communicator meanwhile.
void destroyed_meanwhile(const char *fleet, const std::string &settings, std::function<isthmus_result(FleetRank &)> call,
                         isthmus_result end = ISTHMUS_ERR_ABORTED) {
  FleetOptions options;
  options.settings = settings;
  options.timeout = 20 * soon();  // longer than the test may take
  destroyed = -1;
  fly(fleet, options, [&](FleetRank &r) {
    FLEET_MUST(r, isthmus_barrier(r.comm, nullptr, nullptr) == ISTHMUS_OK);
    if (r.rank != 0) {
      EXPECT_TRUE(eventually([&] { return isthmus_comm_error(r.comm) == ISTHMUS_ERR_ABORTED; }));
      return;
    }
    isthmus_set_interrupt_check(destroys);
    doomed = r.comm;
    const int before = communicators();
    EXPECT_EQ(call(r), end) << isthmus_last_error();
    EXPECT_LT(communicators(), before) << "it is freed behind the call";
    isthmus_set_interrupt_check(nullptr);
    EXPECT_EQ(destroyed.load(), ISTHMUS_OK);
    EXPECT_EQ(isthmus_comm_rank(r.comm), -1) << "the communicator is destroyed";
    r.comm = nullptr;
  });
}

isthmus_result blocking_all_reduce(FleetRank &r) {
  FleetMemory memory(r, 400);
  return isthmus_all_reduce(r.comm, memory.at(0), memory.at(0), 100, kType, ISTHMUS_SUM, nullptr, nullptr);
}

TEST(InterruptCheck, MayDestroyTheCommunicatorToWhoseDeviceTheThreadGivesWorkInTurnWithTheHost) {
  destroyed_meanwhile("ascend:1,cpu:1", "", blocking_all_reduce);
}

TEST(InterruptCheck, MayDestroyTheCommunicatorForWhichTheThreadAgreesOnAMessageWithTheOtherSide) {
  destroyed_meanwhile("nvidia:2", "GROUP_WAIT_MS=60000", [](FleetRank &r) {
    FleetMemory memory(r, 400);
    isthmus_group_begin();
    EXPECT_EQ(isthmus_send(r.comm, memory.at(0), 100, kType, 1, 0, nullptr, nullptr), ISTHMUS_OK);
    return isthmus_group_end(nullptr);
  });
}

TEST(InterruptCheck, MayDestroyTheCommunicatorForWhoseCollectiveTheThreadWaits) {
  for (const char *fleet : {"cpu:2", "nvidia:1,cpu:1"}) destroyed_meanwhile(fleet, "", blocking_all_reduce);
}

TEST(InterruptCheck, MayDestroyTheCommunicatorForWhoseWorkTheThreadWaits) {
  destroyed_meanwhile("cpu:2", "", [](FleetRank &r) {
    float value = 1;
    isthmus_work_t work = nullptr;
    FLEET_MUST(r, isthmus_all_reduce(r.comm, &value, &value, 1, kType, ISTHMUS_SUM, nullptr, &work) == ISTHMUS_OK);
    const isthmus_result end = isthmus_work_wait(work, 0);
    isthmus_work_release(work);
    return end;
  });
}

TEST(InterruptCheck, MayDestroyTheCommunicatorForWhoseGroupTheThreadWaits) {
  destroyed_meanwhile("cpu:2", "", [](FleetRank &r) {
    float value = 1;
    isthmus_group_begin();
    FLEET_MUST(r, isthmus_all_reduce(r.comm, &value, &value, 1, kType, ISTHMUS_SUM, nullptr, nullptr) == ISTHMUS_OK);
    return isthmus_group_end(nullptr);
  });
}

TEST(InterruptCheck, MayDestroyTheCommunicatorWhoseRanksTheThreadAsksToAgree) {
  destroyed_meanwhile(
      "cpu:2", "",
      [](FleetRank &r) {
        uint64_t flags = 1;
        uint8_t out[2] = {};
        return isthmus_comm_agree(r.comm, &flags, out, 0, 0);
      },
      ISTHMUS_ERR_INTERRUPTED);
}

TEST(InterruptCheck, MayDestroyTheCommunicatorOfWhichTheThreadMakesAnother) {
  destroyed_meanwhile("cpu:2", "", [](FleetRank &r) {
    isthmus_comm_t part = nullptr;
    return isthmus_comm_split(r.comm, 0, 0, nullptr, &part);
  });
}

// A group of the communicator that is kept settles a message with the library of the device, and meanwhile nothing of the other one may begin there
// that waits for a rank.
std::atomic<bool> settles{false};
thread_local bool is_settling = false;
int destroys_or_settles() {
  if (is_settling) settles = true;
  return destroys();
}

TEST(InterruptCheck, MayDestroyACommunicatorThatWaitsForTheGroupOfAnotherOnTheSameDevice) {
  FleetOptions options;
  options.settings = "GROUP_WAIT_MS=60000";
  options.timeout = 20 * soon();
  fly("nvidia:2,cpu:1", options, [](FleetRank &r) {
    FLEET_MUST(r, isthmus_barrier(r.comm, nullptr, nullptr) == ISTHMUS_OK);
    isthmus_comm_t other = nullptr;
    FLEET_MUST(r, isthmus_comm_split(r.comm, 0, r.rank, "other", &other) == ISTHMUS_OK);
    if (r.rank != 0) {
      EXPECT_TRUE(eventually([&] { return isthmus_comm_error(other) == ISTHMUS_ERR_ABORTED; }));
      FleetMemory memory(r, 400);
      if (r.rank == 1) {
        isthmus_group_begin();
        EXPECT_EQ(isthmus_recv(r.comm, memory.at(0), 100, kType, 0, 0, nullptr, nullptr, nullptr), ISTHMUS_OK);
        EXPECT_EQ(isthmus_group_end(nullptr), ISTHMUS_OK) << isthmus_last_error();
      }
      isthmus_comm_destroy(other);
      FLEET_MUST(r, isthmus_barrier(r.comm, nullptr, nullptr) == ISTHMUS_OK);
      return;
    }
    destroyed = -1;
    isthmus_set_interrupt_check(destroys_or_settles);
    std::thread group([&] {
      r.driver->here(r.device);
      is_settling = true;
      FleetMemory memory(r, 400);
      isthmus_group_begin();
      EXPECT_EQ(isthmus_send(r.comm, memory.at(0), 100, kType, 1, 0, nullptr, nullptr), ISTHMUS_OK);
      EXPECT_EQ(isthmus_group_end(nullptr), ISTHMUS_OK) << isthmus_last_error();
    });
    EXPECT_TRUE(eventually([&] { return settles.load(); }));
    doomed = other;
    FleetRank apart = r;
    apart.comm = other;
    EXPECT_EQ(blocking_all_reduce(apart), ISTHMUS_ERR_ABORTED) << isthmus_last_error();
    EXPECT_EQ(destroyed.load(), ISTHMUS_OK);
    EXPECT_EQ(isthmus_comm_rank(other), -1) << "the communicator is destroyed";
    group.join();
    isthmus_set_interrupt_check(nullptr);
    EXPECT_EQ(isthmus_barrier(r.comm, nullptr, nullptr), ISTHMUS_OK) << "the other communicator goes on";
  });
}

INSTANTIATE_TEST_SUITE_P(, WithoutGates, testing::Values("ascend:2", "ascend:1,cpu:1", "ascend:2,cpu:1"), [](const auto &p) {
  std::string name = "Of";
  for (const char *c = p.param; *c; ++c)
    if (std::isalnum(static_cast<unsigned char>(*c))) name += *c;
  return name;
});

INSTANTIATE_TEST_SUITE_P(, Submissions,
                         testing::Values("nvidia:1,cpu:1", "nvidia:2", "nvidia:2,cpu:1", "amd:1,cpu:1", "amd:2,nvidia:1",
                                         "ascend:1,cpu:1", "ascend:2", "ascend:2,cpu:1"),
                         [](const auto &p) {
                           std::string name = "Of";
                           for (const char *c = p.param; *c; ++c)
                             if (std::isalnum(static_cast<unsigned char>(*c))) name += *c;
                           return name;
                         });

}  // namespace
}  // namespace isthmus_test

int main(int argc, char **argv) {
  ::setenv("REHEARSAL_DEVICES", "4", 1);
  ::setenv("REHEARSAL_QUIET", "1", 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
