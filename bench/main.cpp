// isthmus-bench: times and checks every collective of Isthmus through its C interface, in the form of nccl-tests.
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "base/lock.hpp"
#include "launch.hpp"
#include "limit.hpp"
#include "measure.hpp"
#include "options.hpp"
#include "report.hpp"

namespace isthmus::bench {
namespace {

struct FreeBlock {
  void operator()(std::byte *p) const { std::free(p); }
};
using Block = std::unique_ptr<std::byte, FreeBlock>;

Block block(size_t bytes) {  // whole pages, touched
  const size_t size = (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096;
  auto *p = static_cast<std::byte *>(std::aligned_alloc(4096, size));
  if (!p) throw std::runtime_error("no memory for a buffer of " + std::to_string(bytes) + " bytes: choose a smaller -e");
  std::memset(p, 0, size);
  return Block(p);
}

// All rows of one collective on one rank, in nccl-tests' order: type, operation, root, size.
std::vector<Task> tasks(const Options &o, Collective c, int rank, int world) {
  std::vector<Task> all;
  for (const isthmus_dtype type : o.dtypes)
    for (const isthmus_redop op : reduces(c) ? o.ops : std::vector<isthmus_redop>{ISTHMUS_SUM})
      for (int root = o.root < 0 || !rooted(c) ? 0 : o.root;
           root < (o.root < 0 && rooted(c) ? world : std::max(0, o.root) + 1); ++root) {
        if (reduces(c) && !combines(type, op)) continue;
        for (const uint64_t bytes : o.sizes()) {
          all.push_back(make_task(c, bytes, type, op, root, rank, world));
          if (c == Collective::Barrier) return all;
        }
        if (!rooted(c)) break;
      }
  return all;
}

std::vector<RankLine> rank_lines(const Session &s, const std::string &label) {
  struct Line {
    int32_t pid;
    char host[64], island[64], device[64];
  } mine{};
  mine.pid = getpid();
  gethostname(mine.host, sizeof mine.host - 1);
  std::snprintf(mine.island, sizeof mine.island, "%s", label.c_str());
  if (const char *device = std::getenv("ISTHMUS_DEVICE"); device && std::strcmp(device, "host") != 0)
    std::snprintf(mine.device, sizeof mine.device, "%s", device);
  std::vector<Line> all(static_cast<size_t>(s.world));
  check(isthmus_all_gather(s.comm, &mine, all.data(), sizeof mine, ISTHMUS_UINT8, nullptr, nullptr),
        "all_gather of the ranks");
  std::vector<RankLine> lines;
  for (size_t r = 0; r < all.size(); ++r)
    lines.push_back({static_cast<int>(r), all[r].pid, all[r].host, all[r].island, all[r].device});
  return lines;
}

int run_rank(const Options &o, const Place &place, int thread) {
  Session s;
  s.options = &o;
  s.world = place.processes * o.threads;
  s.rank = place.process * o.threads + thread;
  if (!o.islands.empty() && o.islands.size() != static_cast<size_t>(s.world))
    throw std::runtime_error("--islands names " + std::to_string(o.islands.size()) + " ranks, but there are " +
                             std::to_string(s.world));
  if (o.root >= s.world)
    throw std::runtime_error("-r " + std::to_string(o.root) + ": there are only " + std::to_string(s.world) + " ranks");
  const char *island = std::getenv("ISTHMUS_ISLAND"), *bridge = std::getenv("ISTHMUS_BRIDGE");
  const std::string label = !o.islands.empty() ? o.islands[static_cast<size_t>(s.rank)] : island ? island : "";

  isthmus_options options{};
  options.size = sizeof options;
  options.rank = s.rank, options.world_size = s.world;
  options.address = place.address.empty() ? nullptr : place.address.c_str();
  options.name = "bench";
  options.island = label.empty() ? nullptr : label.c_str();
  options.bridge = o.bridge.empty() ? nullptr : o.bridge.c_str();
  options.timeout = o.timeout;
  check(isthmus_init(&options, &s.comm), "init");

  // Binds the thread as mpirun does: two ranks that poll on one processor would time the scheduler. The library's own
  // threads exist by now, and stay free.
  const bool bound = o.bind && place.how.empty() && bind_to_processor(s.rank, s.world);
  int status = 0;
  describe_ranks(s, label);
  s.tcp_bridge = s.islands > 1 && (o.bridge.empty() ? bridge && std::strcmp(bridge, "tcp") == 0 : o.bridge == "tcp");
  const std::vector<RankLine> lines = rank_lines(s, label);
  std::unique_ptr<Report> report;
  const std::string how =
      place.how.empty() ? bound ? "started here, each on its own processor" : "started here" : "started by " + place.how;
  if (s.rank == 0) report = std::make_unique<Report>(o, s.world, o.threads > 1 ? how + ", as threads" : how, lines);

  size_t largest = 0;
  for (const Collective c : o.collectives)
    for (const Task &t : tasks(o, c, s.rank, s.world))
      largest = std::max(largest, std::max(t.send_count, t.recv_count) * t.element());
  const Block a = block(largest), b = block(largest);
  if (o.steady) {
    for (const Collective c : o.collectives)
      for (Task &t : tasks(o, c, s.rank, s.world)) {
        t.a = a.get(), t.b = b.get();
        const Steady counts = count_steady(s, t, false);
        const bool clean = counts.system_calls == 0 && counts.allocations == 0;
        status = status || !clean;
        if (s.rank == 0)
          std::printf("# steady %-14s %12" PRIu64
                      " B: %d iterations, all ranks: %.0f system calls but futex and sched_yield%s%s%s, "
                      "%.0f allocations, %.0f by other threads: %s\n",
                      collective_name(c), t.size_bytes, counts.iterations, counts.system_calls,
                      counts.numbers.empty() ? "" : " (rank 0: ", counts.numbers.c_str(), counts.numbers.empty() ? "" : ")",
                      counts.allocations, counts.allocations_elsewhere, clean ? "OK" : "FAILED");
      }
    check(isthmus_comm_destroy(s.comm), "destroy");
    return status;
  }
  Limits limits(s);
  for (int cycle = 0; cycle < o.cycles; ++cycle)
    for (const Collective c : o.collectives) {
      if (report) report->begin(c);
      for (Task &t : tasks(o, c, s.rank, s.world)) {
        t.a = a.get(), t.b = b.get();
        Row row{};
        row.task = t;
        row.has_in_place = can_run_in_place(c);
        row.out_of_place = measure(s, t, false);
        limits.apply(t, false, row.out_of_place);
        if (row.has_in_place) {
          row.in_place = measure(s, t, true);
          limits.apply(t, true, row.in_place);
        }
        if (report) report->add(std::move(row));
      }
      if (report) report->end();
    }
  if (report) status = report->finish();
  status = gather(s, {static_cast<double>(status)})[0] != 0;
  check(isthmus_comm_destroy(s.comm), "destroy");
  return status;
}

int run_threads(const Options &o, const Place &place) {
  Guarded<int> worst(0);  // held while a line is printed, so that lines stay whole
  const auto body = [&](int thread) {
    int mine = 1;
    try {
      mine = run_rank(o, place, thread);
    } catch (const std::exception &error) {
      const auto held = worst.lock();
      std::fprintf(stderr, "isthmus-bench: rank %d: %s\n", place.process * o.threads + thread, error.what());
    }
    const auto status = worst.lock();
    *status = std::max(*status, mine);
  };
  std::vector<std::thread> others;
  for (int t = 1; t < o.threads; ++t) others.emplace_back(body, t);
  body(0);
  for (auto &t : others) t.join();
  return *worst.lock();
}

int run(const Options &given) {
  Options o = given;
  if (o.raw_tcp) return print_raw_tcp(o.max_bytes, o.min_bytes, o.iterations ? o.iterations : 7);
  if (o.memory_limit) return print_memory_limit(o.ranks ? o.ranks : 2, o.max_bytes);
  if (o.host_rates > 0) return print_host_rates(o.host_rates);
  Place place;
  if (o.processes > 0) {
    place = {o.process, o.processes, o.address, ""};
  } else {
    if (o.ranks == 0) place = find_launcher();
    for (const std::string &hint : place.process == 0 || place.how.empty() ? o.hints : std::vector<std::string>{})
      std::fprintf(stderr, "isthmus-bench: %s\n", hint.c_str());
    if (place.how.empty()) {
      const int ranks = o.ranks ? o.ranks : o.islands.empty() ? std::max(2, o.threads) : static_cast<int>(o.islands.size());
      if (ranks % o.threads != 0) throw std::runtime_error("-t must divide the number of ranks, " + std::to_string(ranks));
      if (ranks > o.threads) return run_processes(o, ranks / o.threads);
      place.address = free_loopback_address();
    }
  }
  return run_threads(o, place);
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char **argv) {
  int status = 0;
  const auto options = isthmus::bench::parse_options(argc, argv, status);
  if (!options) return status;
  try {
    return isthmus::bench::run(*options);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "isthmus-bench: %s\n", error.what());
    return 1;
  }
}
