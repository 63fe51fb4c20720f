// The command line: nccl-tests' flags with their meanings, and our own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives.hpp"
#include "types.hpp"

namespace isthmus::bench {

struct Options {
  std::vector<Collective> collectives;
  uint64_t min_bytes = 32 << 20, max_bytes = 32 << 20, step_bytes = 1 << 20, factor = 0;  // factor 0: steps of step_bytes
  int iterations = 0;                                                                     // 0: as many as fit, at least 20
  int warmup = 5, check = 1, aggregate = 1, average = 1, blocking = 0, cycles = 1;
  std::vector<isthmus_dtype> dtypes{ISTHMUS_FLOAT32};
  std::vector<isthmus_redop> ops{ISTHMUS_SUM};
  bool all_ops = false;
  int root = 0;     // -1: all
  int ranks = 0;    // to start here; 0: join a launcher
  int threads = 1;  // ranks a process
  bool as_threads = false, bind = true;
  std::vector<std::string> islands;  // label of every rank; empty: as the environment says
  std::string bridge, json, nccl_json;
  double timeout = 0;
  bool memory_limit = false, raw_tcp = false, steady = false;
  double host_rates = 0;            // seconds to measure them; 0: not asked for
  int process = -1, processes = 0;  // set by the parent of --ranks
  std::string address;
  std::vector<std::string> command;  // argv
  std::vector<std::string> hints;    // lines for who wrote it

  std::vector<uint64_t> sizes() const;
};

// Empty: help or version was printed, or a flag was wrong; `status` is then the exit status.
std::optional<Options> parse_options(int argc, char **argv, int &status);

}  // namespace isthmus::bench
