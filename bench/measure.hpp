// One rank's part of the run: timing, checking, and the limit of a row. Every function here is collective.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collectives.hpp"
#include "options.hpp"

namespace isthmus::bench {

struct Session {
  isthmus_comm_t comm = nullptr;
  int rank = 0, world = 1;
  const Options *options = nullptr;
  bool one_host = true;
  bool tcp_bridge = false;
  std::vector<int> island;  // of every rank, numbered by first appearance
  int islands = 1;
};

// Every rank's `mine`, rank after rank. Throws LibraryError where the library garbled the values.
std::vector<double> gather(const Session &s, const std::vector<double> &mine);
void barrier(const Session &s);
void describe_ranks(Session &s, const std::string &label);  // fills one_host, island, islands

struct Timing {
  double mean = 0;                            // seconds, as -a says
  double p50 = 0, p99 = 0, min = 0, max = 0;  // of single iterations; an iteration takes as long as on its slowest rank
  int slowest_rank = 0;                       // the one with the largest mean
  double slowest_mean = 0;
  int iterations = 0;
  double wrong = -1;                       // elements on all ranks; -1: not checked
  const char *limit_kind = "";             // "memory", "bridge", or empty: no limit measured
  double limit_bytes = 0, limit_rate = 0;  // least traffic, measured bytes a second
  double limit() const { return limit_rate > 0 ? limit_bytes / limit_rate : 0; }
};

// For --steady, over the row's iterations:
// - the system calls of all ranks' calling threads, without futex and sched_yield;
// - the allocations of these threads, and those of their processes' other threads.
struct Steady {
  int iterations;
  double system_calls, allocations, allocations_elsewhere;
  std::string numbers;
};
Steady count_steady(const Session &s, const Task &task, bool in_place);

Timing measure(const Session &s, const Task &task, bool in_place);

// Measures each limit once, and remembers the limit.
class Limits {
 public:
  explicit Limits(const Session &s) : session_(s) {}
  void apply(const Task &task, bool in_place, Timing &timing);

 private:
  double memory_rate(size_t footprint);
  double bridge_rate(size_t bytes);
  const Session &session_;
  std::map<size_t, double> memory_, bridge_;
};

}  // namespace isthmus::bench
