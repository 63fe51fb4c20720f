#include "measure.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>

#include "limit.hpp"
#include "steady.hpp"

namespace isthmus::bench {
namespace {

constexpr double kRowSeconds = 0.05;             // how long a row takes without -n, the number of iterations
constexpr double kStampsCost = 20e-6;            // an iteration that is longer hides its two reads of the clock
constexpr size_t kSmallestFootprint = 64 << 10;  // below this size latency decides, and no rate is a limit
constexpr double kGuard = 20877.125;

double hash_text(const std::string &text) { return static_cast<double>(std::hash<std::string>{}(text) >> 12); }

std::string host_identity() {
  char name[256] = {}, boot[64] = {};
  gethostname(name, sizeof name - 1);
  if (FILE *f = std::fopen("/proc/sys/kernel/random/boot_id", "r")) {
    if (!std::fgets(boot, sizeof boot, f)) boot[0] = 0;
    std::fclose(f);
  }
  return std::string(name) + boot;
}

void once(const Session &s, const Task &task, bool in_place) {
  const Options &o = *s.options;
  if (o.aggregate > 1) {
    check(isthmus_group_begin(), "group_begin");
    for (int i = 0; i < o.aggregate; ++i) check(call(s.comm, task, in_place), collective_name(task.collective));
    check(isthmus_group_end(nullptr), collective_name(task.collective));
  } else {
    const isthmus_result result = call(s.comm, task, in_place);
    if (result != ISTHMUS_OK) check(result, collective_name(task.collective));
  }
  if (o.blocking == 1) barrier(s);
}

// 1 where a rank left the barrier before another rank had come, else 0. The ranks come late in turn. All ranks need one
// clock.
double wrong_barriers(const Session &s, int iteration) {
  barrier(s);
  if (iteration % s.world == s.rank) usleep(300);
  const double came = now_seconds();
  check(isthmus_barrier(s.comm, nullptr, nullptr), "barrier");
  const std::vector<double> all = gather(s, {came, now_seconds()});
  double last_came = 0, first_left = all[1];
  for (size_t r = 0; r < all.size(); r += 2) {
    last_came = std::max(last_came, all[r]);
    first_left = std::min(first_left, all[r + 1]);
  }
  return first_left < last_came;
}

double wrong_elements(const Session &s, const Task &task, bool in_place) {
  double bad = 0;
  for (int i = 0; i < s.options->check; ++i) {
    if (task.collective == Collective::Barrier) {
      for (int r = 0; r < s.world; ++r) bad += s.rank == 0 && s.one_host ? wrong_barriers(s, r) : (wrong_barriers(s, r), 0);
      continue;
    }
    const auto seed = static_cast<uint64_t>(i) * 2 + (in_place ? 1 : 0) + task.size_bytes;
    const Pattern pattern(task.dtype, reduces(task.collective) ? std::optional(task.op) : std::nullopt, s.world, seed);
    prepare(task, pattern, in_place);
    check(call(s.comm, task, in_place), collective_name(task.collective));
    bad += static_cast<double>(verify(task, pattern, in_place));
  }
  const std::vector<double> all = gather(s, {bad});
  return std::accumulate(all.begin(), all.end(), 0.0);
}

}  // namespace

std::vector<double> gather(const Session &s, const std::vector<double> &mine) {
  std::vector<double> send = mine;
  send.push_back(kGuard + s.rank);
  const size_t n = send.size(), world = static_cast<size_t>(s.world);
  std::vector<double> recv(n * world), out;
  check(isthmus_all_gather(s.comm, send.data(), recv.data(), n, ISTHMUS_FLOAT64, nullptr, nullptr),
        "all_gather of the figures");
  for (size_t r = 0; r < world; ++r) {
    if (recv[r * n + n - 1] != kGuard + static_cast<double>(r))
      throw LibraryError("all_gather garbled the bench's own figures");
    out.insert(out.end(), recv.begin() + static_cast<std::ptrdiff_t>(r * n),
               recv.begin() + static_cast<std::ptrdiff_t>(r * n + n - 1));
  }
  return out;
}

void barrier(const Session &s) { check(isthmus_barrier(s.comm, nullptr, nullptr), "barrier"); }

void describe_ranks(Session &s, const std::string &label) {
  const std::vector<double> all = gather(s, {hash_text(host_identity()), hash_text(label)});
  std::vector<double> labels;
  for (size_t r = 0; r < all.size(); r += 2) {
    s.one_host = s.one_host && all[r] == all[0];
    const auto at = std::find(labels.begin(), labels.end(), all[r + 1]);
    s.island.push_back(static_cast<int>(at - labels.begin()));
    if (at == labels.end()) labels.push_back(all[r + 1]);
  }
  s.islands = static_cast<int>(labels.size());
}

Steady count_steady(const Session &s, const Task &task, bool in_place) {
  const int iterations = s.options->iterations ? s.options->iterations : 1000;
  for (int i = 0; i < std::max(100, s.options->warmup); ++i) once(s, task, in_place);
  barrier(s);
  steady_start();
  for (int i = 0; i < iterations; ++i) once(s, task, in_place);
  const SteadyCounts mine = steady_stop();
  const std::vector<double> all = gather(s, {static_cast<double>(mine.system_calls), static_cast<double>(mine.allocations),
                                             static_cast<double>(mine.allocations_elsewhere)});
  Steady sum{iterations, 0, 0, 0, mine.system_call_numbers};
  for (size_t r = 0; r < all.size(); r += 3)
    sum.system_calls += all[r], sum.allocations += all[r + 1], sum.allocations_elsewhere += all[r + 2];
  return sum;
}

Timing measure(const Session &s, const Task &task, bool in_place) {
  const Options &o = *s.options;
  Timing t;
  const Pattern pattern(task.dtype, reduces(task.collective) ? std::optional(task.op) : std::nullopt, s.world, 0);
  prepare(task, pattern, in_place);
  for (int i = 0; i < o.warmup; ++i) once(s, task, in_place);

  t.iterations = o.iterations;
  if (t.iterations == 0) {
    barrier(s);
    const double start = now_seconds();
    for (int i = 0; i < 3; ++i) once(s, task, in_place);
    const std::vector<double> spent = gather(s, {(now_seconds() - start) / 3});
    t.iterations = static_cast<int>(std::clamp(kRowSeconds / *std::max_element(spent.begin(), spent.end()), 20.0, 2000.0));
  }

  const auto n = static_cast<size_t>(t.iterations);
  std::vector<double> stamps(n + 1), mine(n);
  barrier(s);
  stamps[0] = now_seconds();
  for (size_t i = 1; i <= n; ++i) {
    once(s, task, in_place);
    stamps[i] = now_seconds();
  }
  const double per = o.aggregate;
  for (size_t i = 0; i < n; ++i) mine[i] = (stamps[i + 1] - stamps[i]) / per;
  double mean = (stamps[n] - stamps[0]) / static_cast<double>(n) / per;
  if (gather(s, {mean})[0] < kStampsCost) {  // again, without reading the clock in between
    barrier(s);
    const double start = now_seconds();
    for (size_t i = 0; i < n; ++i) once(s, task, in_place);
    mean = (now_seconds() - start) / static_cast<double>(n) / per;
  }
  mine.push_back(mean);
  const std::vector<double> all = gather(s, mine);

  std::vector<double> iteration(n, 0.0), means;
  for (size_t r = 0; r < static_cast<size_t>(s.world); ++r) {
    for (size_t i = 0; i < n; ++i) iteration[i] = std::max(iteration[i], all[r * (n + 1) + i]);
    means.push_back(all[r * (n + 1) + n]);
  }
  std::sort(iteration.begin(), iteration.end());
  t.min = iteration.front(), t.max = iteration.back();
  t.p50 = iteration[n / 2], t.p99 = iteration[std::min(n - 1, n * 99 / 100)];
  const auto slowest = std::max_element(means.begin(), means.end());
  t.slowest_rank = static_cast<int>(slowest - means.begin()), t.slowest_mean = *slowest;
  switch (o.average) {
    case 0: t.mean = means[0]; break;
    case 2: t.mean = *std::min_element(means.begin(), means.end()); break;
    case 3: t.mean = *slowest; break;
    default: t.mean = std::accumulate(means.begin(), means.end(), 0.0) / s.world;
  }
  if (o.check > 0 && (task.collective != Collective::Barrier || s.one_host)) t.wrong = wrong_elements(s, task, in_place);
  return t;
}

void Limits::apply(const Task &task, bool in_place, Timing &t) {
  const size_t footprint = (task.send_count + task.recv_count) * task.element();
  const std::vector<double> all = gather(session_, {static_cast<double>(footprint)});
  const auto largest = static_cast<size_t>(*std::max_element(all.begin(), all.end()));
  if (!session_.one_host || largest < kSmallestFootprint) return;
  if (session_.tcp_bridge && session_.islands == 2) {
    t.limit_kind = "bridge";
    t.limit_bytes = bridge_traffic(task, session_.island);
    if (t.limit_bytes > 0) t.limit_rate = bridge_rate(static_cast<size_t>(t.limit_bytes));
  } else if (session_.islands == 1 || !session_.tcp_bridge) {
    t.limit_kind = "memory";
    t.limit_bytes = memory_traffic(task, in_place);
    t.limit_rate = memory_rate(largest);
  }
}

double Limits::memory_rate(size_t footprint) {
  footprint = std::bit_ceil(footprint);
  const auto known = memory_.find(footprint);
  if (known != memory_.end()) return known->second;
  MemoryProbe probe(footprint);
  double best = 0;
  for (int repeat = 0; repeat < 2; ++repeat)
    for (size_t k = 0; k < kKernels; ++k) {
      barrier(session_);
      const std::vector<double> rates = gather(session_, {probe.run(static_cast<Kernel>(k), 0.008)});
      best = std::max(best, std::accumulate(rates.begin(), rates.end(), 0.0));
    }
  return memory_[footprint] = best;
}

double Limits::bridge_rate(size_t bytes) {
  bytes = std::clamp<size_t>(std::bit_ceil(bytes), 64 << 10, 64 << 20);
  const auto known = bridge_.find(bytes);
  if (known != bridge_.end()) return known->second;
  const auto other =
      static_cast<int>(std::find(session_.island.begin(), session_.island.end(), 1) - session_.island.begin());
  const bool first = session_.rank == 0, second = session_.rank == other;
  uint16_t port = 0;
  const int listener = first ? listen_loopback(port) : -1;
  port = static_cast<uint16_t>(gather(session_, {static_cast<double>(port)})[0]);
  double rate = 0;
  if (first || second) {
    const int fd = first ? accept_one(listener) : connect_loopback(port);
    rate = raw_rate(fd, bytes, 5).rate;
    close(fd);
  }
  if (first) close(listener);
  return bridge_[bytes] = gather(session_, {rate})[0];
}

}  // namespace isthmus::bench
