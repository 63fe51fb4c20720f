#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "names.hpp"

namespace isthmus::bench {
namespace {

// "8", "64K", "1.5M", "2G": powers of 1024.
uint64_t parse_size(const std::string &text) {
  size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception &) { used = 0; }
  const std::string unit = text.substr(used);
  const size_t power = unit.empty() ? 0 : std::string("kKmMgGtT").find(unit[0]) / 2 + 1;
  if (used == 0 || !(value >= 0) || unit.size() > 1 || power > 4 || value * std::pow(1024, power) > 1e18)
    throw CLI::ValidationError("'" + text + "' is not a size: write bytes, with K, M, G or T for powers of 1024");
  return static_cast<uint64_t>(value * std::pow(1024, power));
}

// "a:2,b:2": labels of the ranks, in order; a label may come again, which interleaves the islands.
std::vector<std::string> parse_islands(const std::string &text) {
  std::vector<std::string> labels;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ',');) {
    const size_t colon = part.find(':');
    const std::string number = colon == std::string::npos ? "1" : part.substr(colon + 1);
    const bool digits = !number.empty() && number.size() < 5 && number.find_first_not_of("0123456789") == std::string::npos;
    if (colon == 0 || !digits || std::stoi(number) < 1)
      throw CLI::ValidationError("--islands", "'" + part + "' is not label:ranks, as in a:2,b:2");
    labels.insert(labels.end(), static_cast<size_t>(std::stoi(number)), part.substr(0, colon));
  }
  if (labels.empty()) throw CLI::ValidationError("--islands", "names no island; write for example a:2,b:2");
  return labels;
}

// "all" (-1) or the number of a rank.
int parse_root(const std::string &text) {
  if (text == "all") return -1;
  if (text.empty() || text.size() > 7 || text.find_first_not_of("0123456789") != std::string::npos)
    throw CLI::ValidationError("-r " + text, "not the number of a rank, nor all");
  return std::stoi(text);
}

// Flags of nccl-tests that are about GPUs, or that we have in another form. The neutral value is taken.
struct Foreign {
  const char *flags, *what, *neutral, *instead;
};
constexpr Foreign kForeign[] = {
    {"-y,--stream_null", "the null stream: 0", "0", "host memory has no streams: leave -y out"},
    {"-G,--cudagraph", "launches of a captured graph: 0", "0",
     "only a GPU replays captured work: leave -G out; -m groups operations"},
    {"-C,--report_cputime", "the time of the calls alone: 0", "0", "a call here ends when its operation does: leave -C out"},
    {"-S,--report_timestamps", "a time of day a row: 0", "0",
     "rows have no time of day: leave -S out; --json writes that of the run"},
    {"-R,--local_register", "registered buffers: 0", "0", "host memory needs no registration: leave -R out"},
    {"-x,--cta_policy", "CTAs of the kernels: 0", "0", "no kernel of a GPU runs here: leave -x out"},
    {"-D,--device_implementation", "the test's own kernels: 0", "0", "no kernel of a GPU runs here: leave -D out"},
    {"-V,--device_cta_count", "CTAs of the test's own kernels: not taken", "", "no kernel of a GPU runs here: leave -V out"},
    {"-M,--memory", "what memory is used: 0", "0", "there is no report of memory: leave -M out"},
    {"-F", "rows as CSV: not taken", "", "there is no CSV: use -J FILE for nccl-tests' JSON, or --json FILE"}};

void refuse_foreign(const std::array<std::string, std::size(kForeign)> &given) {
  for (size_t i = 0; i < given.size(); ++i) {
    const Foreign &f = kForeign[i];
    if (!given[i].empty() && given[i] != f.neutral)
      throw CLI::ValidationError(std::string(f.flags).substr(0, 2) + " " + given[i], f.instead);
  }
}

// Refuses the words that no flag takes, in the order in which they were given, with the flag that the user may have meant.
void refuse_rest(const CLI::App &app) {
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty()) return;
  std::vector<std::string> known;
  for (const CLI::Option *option : app.get_options())
    for (const std::string &name : option->get_lnames())
      if (!option->get_group().empty()) known.push_back("--" + name);
  std::string words;
  for (const std::string &word : rest) words += (words.empty() ? "" : " ") + word;
  const auto flag = std::find_if(rest.begin(), rest.end(), [](const auto &word) { return word.starts_with("--"); });
  throw CLI::ValidationError("not expected", words + (flag == rest.end() ? "." : meant(*flag, known)));
}

// nccl-tests' ranks a thread: one GPU each there. Ranks of host memory are a thread or a process each.
void refuse_ngpus(const Options &o, int per_thread) {
  if (per_thread == 1) return;
  const std::string ranks = std::to_string(o.threads * per_thread);
  throw CLI::ValidationError("-g " + std::to_string(per_thread), "a thread is one rank here: use --ranks " + ranks +
                                                                     " for as many processes, or -t " + ranks +
                                                                     " for threads of one process");
}

void settle(Options &o) {
  if (o.min_bytes > o.max_bytes) throw CLI::ValidationError("-b is larger than -e: no sizes to run");
  if (o.factor == 1 || (o.factor == 0 && o.step_bytes == 0))
    throw CLI::ValidationError("-f must be 2 or more, and -i not 0: sizes must grow");
  if (o.as_threads) {
    if (o.threads > 1) throw CLI::ValidationError("--threads and -t exclude each other");
    o.threads = o.ranks > 0 ? o.ranks : o.islands.empty() ? 2 : static_cast<int>(o.islands.size());
    o.ranks = o.threads;
  }
  if (o.steady && o.threads > 1)
    throw CLI::ValidationError("--steady counts for a process: run it without --threads and -t");
  const size_t known = o.ranks > 0 ? static_cast<size_t>(o.ranks) : o.islands.size();
  if (known > 0 && o.root >= 0 && static_cast<size_t>(o.root) >= known)
    throw CLI::ValidationError("-r " + std::to_string(o.root), "there are " + std::to_string(known) + " ranks, from 0");
  if (o.ranks > 0 && o.ranks % o.threads != 0)
    throw CLI::ValidationError("--ranks must be a multiple of -t, the ranks a process");
  if (o.ranks > 0 && !o.islands.empty() && o.islands.size() != static_cast<size_t>(o.ranks))
    throw CLI::ValidationError("--islands names " + std::to_string(o.islands.size()) + " ranks, --ranks " +
                               std::to_string(o.ranks));
  if (o.all_ops) return;
  for (const Collective c : o.collectives)
    for (const isthmus_dtype t : o.dtypes)
      if (reduces(c) && o.dtypes.size() == 1 && !combines(t, o.ops[0]))
        throw CLI::ValidationError(std::string("-o ") + op_name(o.ops[0]) + " has no meaning for -d " + type_name(t));
}

}  // namespace

std::vector<uint64_t> Options::sizes() const {
  std::vector<uint64_t> all;
  for (uint64_t s = min_bytes; s <= max_bytes;) {
    all.push_back(s);
    const uint64_t next = factor > 1 ? std::max<uint64_t>(s, 1) * factor : s + step_bytes;
    if (next <= s) break;
    s = next;
  }
  return all;
}

std::optional<Options> parse_options(int argc, char **argv, int &status) {
  Options o;
  o.command.assign(argv, argv + argc);
  CLI::App app{"isthmus-bench: times and checks the collectives of Isthmus, with the flags and columns of nccl-tests",
               "isthmus-bench"};
  std::string name, type = "float", op = "sum", root = "0", islands, place;
  std::string min_bytes, max_bytes, step_bytes;
  int parallel_init = 0, per_thread = 1;
  std::array<std::string, std::size(kForeign)> foreign;
  app.allow_extras();  // refuse_rest() tells of them
  app.set_version_flag("--version", [] { return std::string("isthmus-bench ") + isthmus_version(); });
  app.add_option("collective", name,
                 "all_reduce, reduce, broadcast, all_gather, all_gather_v, reduce_scatter, all_to_all, "
                 "all_to_all_v, gather, scatter, sendrecv, barrier; several with commas; or all");
  app.add_option("-b,--minbytes", min_bytes, "first size (32M)");
  app.add_option("-e,--maxbytes", max_bytes, "last size (32M)");
  app.add_option("-i,--stepbytes", step_bytes, "step between sizes (1M)");
  app.add_option("-f,--stepfactor", o.factor, "factor between sizes, in place of a step");
  app.add_option("-n,--iters", o.iterations, "timed iterations of a row (as many as fit 50 ms, 20 to 2000)")
      ->check(CLI::Range(1, 10000000));
  app.add_option("-w,--warmup_iters", o.warmup, "iterations before the clock starts (5)")->check(CLI::NonNegativeNumber);
  app.add_option("-m,--agg_iters", o.aggregate, "operations grouped in one iteration (1)")->check(CLI::PositiveNumber);
  app.add_option("-c,--check", o.check, "checked iterations of a row; 0: no check (1)")->check(CLI::NonNegativeNumber);
  app.add_option("-o,--op", op, "sum, prod, min, max, avg, mulsum, band, bor, bxor or all (sum)");
  app.add_option("-d,--datatype", type, "float, double, half, bfloat16, f8e4m3, f8e5m2, int8, ..., or all (float)");
  app.add_option("-r,--root", root, "root rank, or all (0)");
  app.add_option("-z,--blocking", o.blocking, "1: a barrier after every collective; 0, 2: calls back to back (0)")
      ->check(CLI::Range(0, 3));
  app.add_option("-a,--average", o.average, "time shown: 0 rank 0, 1 average, 2 smallest, 3 largest of the ranks (1)")
      ->check(CLI::Range(0, 3));
  app.add_option("-J,--output_file", o.nccl_json, "write nccl-tests' JSON; an existing file is kept, .0, .1, ... is added");
  app.add_option("-t,--nthreads", o.threads, "ranks that are threads of one process (1)")->check(CLI::Range(1, 1024));
  app.add_option("-g,--ngpus", per_thread, "ranks a thread: always 1 for host memory")->check(CLI::PositiveNumber);
  app.add_option("-N,--run_cycles", o.cycles, "how often all rows are run and printed (1)")->check(CLI::Range(1, 1000000));
  app.add_option("-p,--parallel_init", parallel_init, "accepted; ranks always start in parallel");
  app.add_option("-T,--timeout", o.timeout, "deadline of every operation, in seconds (ISTHMUS_TIMEOUT)")
      ->check(CLI::NonNegativeNumber);
  for (size_t i = 0; i < foreign.size(); ++i)
    app.add_option(kForeign[i].flags, foreign[i], kForeign[i].what)->group("Of nccl-tests, for GPUs");
  app.add_option("--ranks", o.ranks, "start this many ranks here (else join torchrun, mpirun or srun; else 2)")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--threads", o.as_threads, "the ranks of --ranks are threads of this process");
  app.add_flag("!--no-bind", o.bind, "leave ranks started here to the scheduler, in place of a processor for each");
  app.add_option("--islands", islands, "island labels of the ranks in order, as in a:2,b:2");
  app.add_option("--bridge", o.bridge, "link between islands")->check(CLI::IsMember({"auto", "shm", "tcp", "ucx"}));
  app.add_option("--json", o.json, "write all figures of all rows as JSON");
  app.add_flag("--limit", o.memory_limit,
               "only measure the memory rate of --ranks processes (footprint -e) and print it as JSON");
  app.add_flag("--raw-tcp", o.raw_tcp,
               "only measure a raw TCP exchange of -e bytes and a ping-pong of -b bytes over loopback");
  app.add_option("--rates", o.host_rates,
                 "only measure, for about so many seconds, what `isthmus tune` asks of this host, and print it as JSON")
      ->check(CLI::Range(0.001, 3600.0));
  app.add_flag("--steady", o.steady,
               "count system calls and allocations of the loop in place of timing it; 1 process a rank");
  app.add_option("--process", place)->group("");  // the parent of --ranks tells its children
  app.add_option("--address", o.address)->group("");
  try {
    app.parse(argc, argv);
    refuse_rest(app);
    refuse_foreign(foreign);
    refuse_ngpus(o, per_thread);
    if (!min_bytes.empty()) o.min_bytes = parse_size(min_bytes);
    if (!max_bytes.empty()) o.max_bytes = parse_size(max_bytes);
    if (!step_bytes.empty()) o.step_bytes = parse_size(step_bytes);
    if (max_bytes.empty() && o.min_bytes > o.max_bytes) o.max_bytes = o.min_bytes;
    if (min_bytes.empty() && o.memory_limit) o.min_bytes = std::min(o.min_bytes, o.max_bytes);  // -e alone is its footprint
    if (name.empty() && !o.memory_limit && !o.raw_tcp && o.host_rates == 0)
      throw CLI::ValidationError("name a collective, as in: isthmus-bench all_reduce --ranks 4 -b 8 -e 64M -f 2");
    try {
      if (!name.empty()) o.collectives = parse_collectives(name, o.hints);
      o.dtypes = parse_types(type);
      o.ops = parse_ops(op);
      o.all_ops = op == "all";
      o.root = parse_root(root);
      if (!place.empty()) {
        o.process = std::stoi(place), o.processes = std::stoi(place.substr(place.find('/') + 1));
        o.command.resize(o.command.size() - 4);  // as it was given: run_processes added four words
      }
    } catch (const std::logic_error &error) { throw CLI::ValidationError(error.what()); }
    if (!islands.empty()) o.islands = parse_islands(islands);
    settle(o);
  } catch (const CLI::ParseError &error) {
    status = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  return o;
}

}  // namespace isthmus::bench
