// The output of the bench: nccl-tests' table, the bench's own second table on comment lines, and the two forms of JSON.
#pragma once

#include <string>
#include <vector>

#include "measure.hpp"

namespace isthmus::bench {

struct RankLine {
  int rank, process_id;
  std::string host, island;
  std::string device;  // the device that the rank works on, whose memory is not measured; empty: there is none
};

struct Row {
  Task task;
  Timing out_of_place, in_place;
  bool has_in_place = false;
};

class Report {  // on rank 0
 public:
  Report(const Options &options, int world, std::string how, std::vector<RankLine> ranks);
  void begin(Collective c);
  void add(Row row);
  void end();
  int finish();  // writes the JSON files; the exit status: 1 where an element was wrong

 private:
  void print_row(const Row &row);
  void print_details();
  const Options &options_;
  int world_;
  std::string how_;
  std::vector<RankLine> ranks_;
  std::vector<Row> rows_;  // of all collectives
  size_t first_ = 0;       // of the collective in hand
  std::string start_time_;
};

}  // namespace isthmus::bench
