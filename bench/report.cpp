#include "report.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

extern char **environ;

namespace isthmus::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string date_now() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm broken{};
  localtime_r(&now, &broken);
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &broken);
  return text;
}

// The fleet of the rehearsal that this rank is part of, or null: no time of a rehearsal is a measurement.
const char *rehearsed_fleet() { return std::getenv("REHEARSAL_FLEET"); }

// A number in nccl-tests' way: as many decimals as fit the column.
std::string fit(double value, int width) {
  int digits = 0;
  for (double limit = 1; value >= limit; limit *= 10) ++digits;
  char text[64];
  if (digits >= width + 1) std::snprintf(text, sizeof text, "%*.*e", width, width >= 7 ? 1 : 0, value);
  else std::snprintf(text, sizeof text, "%*.*f", width, digits < width - 2 ? 2 : digits < width - 1 ? 1 : 0, value);
  return text;
}

double alg_bandwidth(const Task &task, const Timing &t) {  // GB/s
  return t.mean > 0 ? static_cast<double>(task.size_bytes) / t.mean * 1e-9 : 0;
}
double bus_bandwidth(const Task &task, const Timing &t) { return alg_bandwidth(task, t) * task.bus_factor; }
double percent(const Timing &t) { return t.mean > 0 && t.limit() > 0 ? 100 * t.limit() / t.mean : 0; }

const char *shown_op(const Task &t) { return reduces(t.collective) ? op_name(t.op) : "none"; }
int shown_root(const Task &t) { return rooted(t.collective) ? t.root : -1; }

void print_body(const Task &task, const Timing *t) {
  if (!t) {  // an operation that cannot be done in place
    std::printf("  %7s  %6s  %6s    N/A", "0.00", "0.00", "0.00");
    return;
  }
  std::printf("  %7s  %6s  %6s", fit(t->mean * 1e6, 7).c_str(), fit(alg_bandwidth(task, *t), 6).c_str(),
              fit(bus_bandwidth(task, *t), 6).c_str());
  if (t->wrong < 0) std::printf("    N/A");
  else std::printf("  %6g", t->wrong);
}

void print_detail(const Timing *t) {
  if (!t) {
    std::printf("  %8s %8s %10s %7s", "-", "-", "-", "-");
    return;
  }
  char slowest[32], share[16] = "-";
  const std::string mean = fit(t->slowest_mean * 1e6, 6);
  std::snprintf(slowest, sizeof slowest, "%d:%s", t->slowest_rank,
                mean.c_str() + std::min(mean.find_first_not_of(' '), mean.size()));
  if (t->limit() > 0) std::snprintf(share, sizeof share, "%.1f", percent(*t));
  std::printf("  %8s %8s %10s %7s", fit(t->p50 * 1e6, 8).c_str(), fit(t->p99 * 1e6, 8).c_str(), slowest, share);
}

Json own_json(const Task &task, const Timing &t) {
  Json j{{"time_us", t.mean * 1e6},
         {"alg_bw", alg_bandwidth(task, t)},
         {"bus_bw", bus_bandwidth(task, t)},
         {"wrong", nullptr},
         {"iterations", t.iterations},
         {"p50_us", t.p50 * 1e6},
         {"p99_us", t.p99 * 1e6},
         {"min_us", t.min * 1e6},
         {"max_us", t.max * 1e6},
         {"slowest_rank", t.slowest_rank},
         {"slowest_rank_us", t.slowest_mean * 1e6},
         {"limit", nullptr}};
  if (t.wrong >= 0) j["wrong"] = t.wrong;
  if (t.limit() > 0)
    j["limit"] = {{"kind", t.limit_kind},
                  {"bytes", t.limit_bytes},
                  {"bytes_per_s", t.limit_rate},
                  {"us", t.limit() * 1e6},
                  {"percent", percent(t)}};
  return j;
}

Json nccl_json(const Task &task, const Timing &t) {
  Json j{
      {"time", t.mean * 1e6}, {"alg_bw", alg_bandwidth(task, t)}, {"bus_bw", bus_bandwidth(task, t)}, {"nwrong", nullptr}};
  if (t.wrong >= 0) j["nwrong"] = t.wrong;
  return j;
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

void write_file(const std::string &path, const Json &content) {
  std::ofstream out(path);
  out << content.dump(1) << '\n';
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

struct Totals {
  double wrong = 0, bandwidth = 0;
  size_t timings = 0;
};
Totals totals(const std::vector<Row> &rows, size_t first) {
  Totals sum;
  for (size_t i = first; i < rows.size(); ++i)
    for (const Timing *t : {&rows[i].out_of_place, rows[i].has_in_place ? &rows[i].in_place : nullptr}) {
      if (!t) continue;
      sum.wrong += std::max(0.0, t->wrong);
      sum.bandwidth += bus_bandwidth(rows[i].task, *t);
      ++sum.timings;
    }
  if (sum.timings > 0) sum.bandwidth /= static_cast<double>(sum.timings);
  return sum;
}

}  // namespace

Report::Report(const Options &options, int world, std::string how, std::vector<RankLine> ranks)
    : options_(options), world_(world), how_(std::move(how)), ranks_(std::move(ranks)), start_time_(date_now()) {}

void Report::begin(Collective c) {
  const Options &o = options_;
  first_ = rows_.size();
  std::printf("# isthmus-bench version %s (nccl-tests' flags and columns)\n", isthmus_version());
  std::printf("# Collective test starting: %s\n", collective_name(c));
  std::printf("# nThread %d nGpus 1 minBytes %" PRIu64 " maxBytes %" PRIu64 " step: %" PRIu64
              "(%s) warmup iters: %d iters: %d agg iters: %d "
              "validation: %d graph: 0\n",
              o.threads, o.min_bytes, o.max_bytes, o.factor > 1 ? o.factor : o.step_bytes, o.factor > 1 ? "factor" : "bytes",
              o.warmup, o.iterations ? o.iterations : 20, o.aggregate, o.check);
  if (o.iterations == 0) std::printf("# iters: at least 20, and more while a row takes less than 50 ms (-n N: exactly N)\n");
  if (o.blocking == 1) std::printf("# Blocking Enabled: wait for completion and barrier after each collective \n");
  std::printf("# %d ranks, %s; host memory; bridge %s\n", world_, how_.c_str(),
              o.bridge.empty() ? "as configured" : o.bridge.c_str());
  std::printf("#\n# Using devices\n");
  for (const RankLine &r : ranks_)
    std::printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [0000:00:00] host memory%s%s%s%s%s\n", r.rank, 0,
                r.process_id, r.host.c_str(), r.rank, r.island.empty() ? "" : ", island ", r.island.c_str(),
                r.device.empty() ? "" : "; that of ", r.device.c_str(),
                r.device.empty() ? "" : ", which the rank works on, is not measured");
  std::printf("#\n");
  std::printf("# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n", "", "", "",
              "", "");
  std::printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n", "size", "count", "type", "redop",
              "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
  std::printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n", "(B)", "(elements)", "", "", "",
              "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
  std::fflush(stdout);
}

void Report::print_row(const Row &row) {
  const Task &t = row.task;
  std::printf("%12" PRIu64 "  %12" PRIu64 "  %8s  %6s  %6d", t.size_bytes, t.count, type_name(t.dtype), shown_op(t),
              shown_root(t));
  print_body(t, &row.out_of_place);
  print_body(t, row.has_in_place ? &row.in_place : nullptr);
  std::printf("\n");
  std::fflush(stdout);
}

void Report::add(Row row) {
  row.task.a = row.task.b = nullptr;
  print_row(row);
  rows_.push_back(std::move(row));
}

void Report::print_details() {
  std::printf(
      "#\n# Single iterations (us; each as long as on its slowest rank), the rank with the largest mean (rank:us), and the "
      "share\n"
      "# of the limit measured in this run: the least traffic that the operation needs at the rate of this machine.\n");
  std::printf("# %10s  %8s  %6s  %6s %17s %28s %17s\n", "", "", "", "", "", "out-of-place", "in-place");
  std::printf("# %10s  %8s  %6s  %6s  %8s %8s %10s %7s  %8s %8s %10s %7s\n", "size", "type", "redop", "root", "p50", "p99",
              "slowest", "%limit", "p50", "p99", "slowest", "%limit");
  double rate = 0, at = 0;
  std::string kind;
  for (size_t i = first_; i < rows_.size(); ++i) {
    const Row &row = rows_[i];
    std::printf("# %10" PRIu64 "  %8s  %6s  %6d", row.task.size_bytes, type_name(row.task.dtype), shown_op(row.task),
                shown_root(row.task));
    print_detail(&row.out_of_place);
    print_detail(row.has_in_place ? &row.in_place : nullptr);
    std::printf("\n");
    if (row.out_of_place.limit() > 0)
      rate = row.out_of_place.limit_rate, at = static_cast<double>(row.task.size_bytes), kind = row.out_of_place.limit_kind;
  }
  if (rate > 0) std::printf("# Measured %s rate at size %.0f: %.2f GB/s\n", kind.c_str(), at, rate * 1e-9);
  std::printf("#\n");
}

void Report::end() {
  print_details();
  const Totals sum = totals(rows_, first_);
  std::printf("# %-20s : %.0f %s\n", "Out of bounds values", sum.wrong, sum.wrong > 0 ? "FAILED" : "OK");
  std::printf("# %-20s : %g \n", "Avg bus bandwidth", sum.bandwidth);
  std::printf("#\n# Collective test concluded: %s\n#\n",
              rows_.size() > first_ ? collective_name(rows_[first_].task.collective) : "no rows");
  std::fflush(stdout);
}

int Report::finish() {
  const Options &o = options_;
  const Totals sum = totals(rows_, 0);
  if (!o.json.empty()) {
    utsname system{};
    uname(&system);
    Json out{{"tool", "isthmus-bench"},
             {"version", isthmus_version()},
             {"command", o.command},
             {"date", start_time_},
             {"machine",
              {{"host", system.nodename},
               {"kernel", system.release},
               {"architecture", system.machine},
               {"processor", processor()},
               {"cores", sysconf(_SC_NPROCESSORS_ONLN)}}},
             {"ranks", world_},
             {"threads_per_process", o.threads},
             {"launched_by", how_},
             {"memory", "host"},
             {"devices_not_measured", Json::array()},
             {"islands", Json::array()},
             {"bridge", o.bridge.empty() ? "as configured" : o.bridge},
             {"simulated", rehearsed_fleet() != nullptr},
             {"rows", Json::array()}};
    for (const RankLine &r : ranks_) out["islands"].push_back(r.island);
    for (const RankLine &r : ranks_)
      if (!r.device.empty()) out["devices_not_measured"].push_back({{"rank", r.rank}, {"device", r.device}});
    for (const Row &row : rows_) {
      const Task &t = row.task;
      out["rows"].push_back({{"collective", collective_name(t.collective)},
                             {"size", t.size_bytes},
                             {"count", t.count},
                             {"type", type_name(t.dtype)},
                             {"redop", shown_op(t)},
                             {"root", shown_root(t)},
                             {"out_of_place", own_json(t, row.out_of_place)},
                             {"in_place", row.has_in_place ? own_json(t, row.in_place) : Json(nullptr)}});
    }
    out["wrong"] = sum.wrong;
    out["ok"] = sum.wrong == 0;
    if (const char *fleet = rehearsed_fleet()) out["rehearsal"] = fleet;
    write_file(o.json, out);
  }
  if (!o.nccl_json.empty()) {
    std::string path = o.nccl_json;
    for (int i = 0; access(path.c_str(), F_OK) == 0; ++i) path = o.nccl_json + "." + std::to_string(i);
    Json out{{"version", 2}, {"start_time", start_time_}, {"args", o.command}, {"env", Json::array()}, {"nccl_version", 0}};
    for (char **e = environ; *e; ++e)  // the job key is a secret
      if (!std::string(*e).starts_with("ISTHMUS_JOB_KEY=")) out["env"].push_back(*e);
    out["config"] = {{"nthreads", o.threads}, {"ngpus", 1}, {"minimum_bytes", o.min_bytes}, {"maximum_bytes", o.max_bytes}};
    out["config"][o.factor > 1 ? "step_factor" : "step_bytes"] = o.factor > 1 ? o.factor : o.step_bytes;
    out["config"].update({{"warmup_iters", o.warmup},
                          {"iterations", o.iterations ? o.iterations : 20},
                          {"aggregated_iterations", o.aggregate},
                          {"validation", o.check},
                          {"graph", 0},
                          {"blocking_collectives", o.blocking ? "true" : "false"},
                          {"parallel_init", "true"},
                          {"devices", Json::array()}});
    for (const RankLine &r : ranks_)
      out["config"]["devices"].push_back({{"rank", r.rank},
                                          {"group", 0},
                                          {"pid", r.process_id},
                                          {"hostname", r.host},
                                          {"device", r.rank},
                                          {"device_hex", "0000:00:00"},
                                          {"device_info", "host memory"}});
    out["results"] = Json::array();
    for (const Row &row : rows_) {
      const Task &t = row.task;
      out["results"].push_back({{"size", t.size_bytes},
                                {"count", t.count},
                                {"type", type_name(t.dtype)},
                                {"redop", shown_op(t)},
                                {"root", std::to_string(shown_root(t))},
                                {"out_of_place", nccl_json(t, row.out_of_place)},
                                {"in_place", row.has_in_place ? nccl_json(t, row.in_place) : Json(nullptr)},
                                {"actual_iterations", row.out_of_place.iterations},
                                {"experiment_name", collective_name(t.collective)}});
    }
    out["out_of_bounds"] = {{"count", sum.wrong}, {"okay", sum.wrong == 0 ? "true" : "false"}};
    out["average_bus_bandwidth"] = {{"bandwidth", sum.bandwidth}, {"okay", "unchecked"}};
    out["end_time"] = date_now();
    if (const char *fleet = rehearsed_fleet()) out["rehearsal"] = fleet;
    write_file(path, out);
    std::printf("# Writing JSON output to %s\n", path.c_str());
  }
  return sum.wrong > 0 ? 1 : 0;
}

}  // namespace isthmus::bench
