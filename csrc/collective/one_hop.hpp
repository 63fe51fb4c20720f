// OneHop runs one-hop operations between ranks that share memory. Every rank that has something to say writes into its cell. Every rank reads
// all the cells that the rank needs, and combines them itself. Each rank has two cells, used in turn.
//
//   rank 0, operation s                     rank 1, operation s
//   all have ended s-2
//   writes its cell s, stores `sequence`    writes its cell s, stores `sequence`
//   rings                                   rings
//   sees rank 1's `sequence`: reads         sees rank 0's `sequence`: reads
//   ends s: `done`                          ends s: `done`
//
// A rank whose memory only its device can touch takes part through pinned memory (plan::plan_by_cells). Nothing of that concerns the others: each
// rank's memory is its own affair, from call to call.
//
//   device                                  rank
//   copies the input out, kStaged
//                                           writes its cell, rings, reads the others' cells
//                                           puts the result into pinned memory, opens the gate: kReady
//   copies the result in, signals the end
//                                           ends s
//
// Reuse. The cell of operation s was last used by operation s-2, so all readers must have ended s-2 first. Where an operation reads from all
// ranks, a peer's cell s proves that the peer has ended s-1. So in a run of such operations the check costs nothing.
//
// Thread rules: the thread with the right to execute.
#pragma once

#include <span>
#include <vector>

#include "collective/descriptions.hpp"
#include "collective/device_side.hpp"
#include "collective/engine_names.hpp"
#include "collective/step_tracer.hpp"
#include "reduce/reduce.hpp"

namespace isthmus::collective {

// The operation goes by cells: it has no plan, or one of its device's part alone.
inline bool by_cells(const Operation &op) noexcept { return !op.plan || op.plan->by_cells; }

class OneHop {
 public:
  OneHop(RankCore &core, Descriptions &descriptions, DeviceSide &device, StreamingCopy &streaming);
  Outcome run(Operation &op) noexcept;
  // The first step of an operation, which lets the device begin. False: op.run.blocked_on has not ended the operation that last used the cell.
  bool begin(Operation &op) noexcept;
  bool heard_all(const Operation &op) const noexcept;  // the operation reads every rank's cell

 private:
  Outcome finish(Operation &op) noexcept;  // behind the last look at a cell
  // Where a processor finds what is given, and puts what is got: the user's memory, or the pinned memory that stands for a device's.
  struct Places {
    const std::byte *input;
    std::byte *output;
  };
  Places places(const Operation &op) const noexcept;
  // Where a block is there: the user's memory has it where the call says, and what stands for a device's has blocks back to back.
  static uint64_t place(const Operation &op, std::span<const uint64_t> displ, size_t block) noexcept;
  bool say(Operation &op) noexcept;   // writes the cell. False: the device has not copied the input out
  bool land(Operation &op) noexcept;  // the device has copied the output in
  void post(const Operation &op) noexcept;
  void consume(const Operation &op) noexcept;
  const std::byte *payload(const Operation &op, int q) const noexcept;
  // Reduces what lies at `offset` of all cells to `to`; `own`: this rank's part, in the user's memory.
  void reduce(const Operation &op, uint64_t offset, uint64_t bytes, std::byte *to, const std::byte *own) noexcept;

  RankCore &core_;
  Descriptions &descriptions_;
  DeviceSide &device_;
  StreamingCopy &streaming_;
  const StepTracer tracer_;
  std::vector<reduce::Source> sources_;
  std::vector<int> order_;  // the order in which ranks are reduced: island by island
  std::vector<uint32_t> group_ends_;
};

// PREMUL_SUM: the rank's input is multiplied by the rank's factor.
void scale(std::byte *to, const std::byte *from, uint64_t bytes, const Call &c) noexcept;

}  // namespace isthmus::collective
