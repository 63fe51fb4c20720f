// The prover: runs the plans of all ranks symbolically, operation after operation, and objects to whatever is not right.
//
// Every byte of memory is a symbol (whose contribution, which block and position, which reduction of contributions in which
// order), every access has a time (vector clocks over counters and frames). Lists are in order and counters only rise, so
// the one greedy run that is made stands for all interleavings: what is not ordered by the clocks is a race, whatever the
// run happened to do first.
//
// Ranks that a library serves have two agents, one a list. The device list runs as one queue, so that it is shown to complete as one, but
// what stands on its second stream has a clock of its own: it knows of the first what was given to it before, and the first learns of it
// at the end of the operation. What comes early, it is given knowing only that the operation before may begin. Where no two ranks share memory, the
// host list of what comes early begins then too, behind the host list before. A call of the library ends when all ranks of
// the group have made theirs, and gives what it was given: sums of a group are symbols of their own, whose order nobody knows.
//
// Objections: a result that is not the definition of the collective, on any rank, in any byte, with the sums' order and
// rounding (where a group with a library has ranks on several hosts and meets others there, a sum has each contribution once, in an
// order that is the same on all ranks); a frame between ranks that share memory, where the operation needs none; a deadlock (also with bounded credits of the links); frames unmatched or of another size; two accesses to one
// span, one of them a write, that are not ordered (a link reads a sent span until the receiver's Recv has ended; slots and
// scratch across operations included); reads of unwritten bytes; accesses outside of slots, scratch and blocks; digests or
// slot layouts that differ; sizes that two ranks know each, given to a library before they were compared; bytes on links
// other than stated, or other than the bound of the algorithm.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.hpp"

namespace isthmus::prover {

struct Operation {
  plan::Request request;                      // bytes for equal counts
  std::vector<uint64_t> counts;               // v-collectives: bytes of the block of each rank
  std::vector<std::vector<uint64_t>> matrix;  // all_to_all_v: bytes from rank (row) to rank (column)
  bool in_place = false;
};

struct Options {
  uint64_t reaching = ~uint64_t{0};  // a bit a rank: its device reaches the rings that the request says, else none
  bool streams_meet = true;          // false: the second stream of a device does not wait for the first, a broken engine
  // An operation may come early (plan.hpp, entry rule). Broken engines: its slots and scratch lie where the last ones did; it waits for nothing; all
  // of it comes early, as if no step stood on the first stream.
  bool early = false;
  bool two_places = true, early_waits = true, early_meets = true;
  uint64_t credit_chunks = 4;  // chunks (of accumulator width) in flight between two ranks before Send blocks
  std::function<void(size_t operation, int rank, plan::Plan &)> mutate;  // breaks a plan before it is run
};

struct RankStats {
  uint64_t moved = 0, reduced = 0, finished = 0, sent = 0, frames = 0;
};

struct Verdict {
  bool ok = true;
  std::string text;  // the first objection
  uint64_t steps = 0, link_bytes = 0, token_bytes = 0;
  uint64_t early = 0;  // operations of a rank that came early
  uint64_t ahead = 0;  // of these, those whose host list went ahead of its turn
  std::vector<RankStats> ranks;
};

Verdict prove(const topology::Topology &t, std::span<const Operation> operations, const Options &options = {});

// {"ranks": [{"host", "island"}], "bridge", "weights", "operations": [{"collective", "dtype", "op", "root", "bytes",
// "counts", "matrix", "in_place", "chunk_bytes", "max_slots", "small_bytes"}], "credit_chunks"} -> {"ok", "text", "steps",
// "link_bytes", ..}. Never throws.
std::string prove_json(const std::string &request);

}  // namespace isthmus::prover
