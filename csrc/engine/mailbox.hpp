// A rank's mailbox: its part of a communicator in shared memory. Only its owner writes it; the ranks that share memory with it read.
//
//   line 0       done: sequence number of the last collective this rank ended
//   lines 1..4   the plan's counters, a line each
//   lines 5..12  descriptions of the last 8 collectives: what was called, and where its ring lies
//   then         two cells for one-hop operations: sequence, digest, payload of up to `cell_bytes`
//   last         for each rank, the bytes of its messages that this rank has consumed (the sender's credit follows from it), the
//                bytes of the block that this rank has for it in a collective whose sizes only the two of them know, and how many of
//                its messages for this rank's receive slots have been asked for and how many have left them (slots.cpp)
//
// An operation's description is written before anything of it can be seen through a counter or a cell, so a reader that has seen
// those may read it plainly; its words are atomics because a reader may also look early, to find a mismatch.
#pragma once

#include <atomic>
#include <cstdint>

#include "plan/plan.hpp"

namespace isthmus::engine {

struct alignas(64) Description {
  std::atomic<uint64_t> sequence{0};
  std::atomic<uint64_t> digest{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> ring{0};  // offset of the ring in the owner's arena, 0: none
  std::atomic<uint64_t> what{0};  // collective | dtype << 8 | op << 16 | root << 32
};

struct alignas(64) Counter {
  std::atomic<uint64_t> value{0};
};

struct alignas(64) Cell {
  std::atomic<uint64_t> sequence{0};
  std::atomic<uint64_t> digest{0};
  std::byte payload[48];  // goes on for cell_bytes in all
};
static_assert(sizeof(Cell) == 64 && offsetof(Cell, payload) == 16);

struct Mailbox {
  Counter done;
  Counter counters[plan::kCounters];
  Counter overrun;  // not 0: the rank has failed, and its device may write its slots out of turn
  static constexpr uint64_t kDescriptions = 8;
  Description descriptions[kDescriptions];

  Description &description(uint64_t sequence) noexcept { return descriptions[sequence % kDescriptions]; }
  Cell &cell(uint64_t sequence, uint64_t cell_bytes) noexcept {
    auto *first = reinterpret_cast<std::byte *>(this) + sizeof(Mailbox);
    return *reinterpret_cast<Cell *>(first + (sequence & 1) * stride(cell_bytes));
  }
  static uint64_t stride(uint64_t cell_bytes) noexcept { return (16 + cell_bytes + 63) / 64 * 64; }
  std::atomic<uint64_t> &consumed(int rank, uint64_t cell_bytes) noexcept {
    auto *first = reinterpret_cast<std::byte *>(this) + sizeof(Mailbox) + 2 * stride(cell_bytes);
    return reinterpret_cast<std::atomic<uint64_t> *>(first)[rank];
  }
  std::atomic<uint64_t> &block(int rank, int world, uint64_t cell_bytes) noexcept {
    return consumed(world + rank, cell_bytes);
  }
  std::atomic<uint64_t> &asked(int rank, int world, uint64_t cell_bytes) noexcept {
    return consumed(2 * world + rank, cell_bytes);
  }
  std::atomic<uint64_t> &landed(int rank, int world, uint64_t cell_bytes) noexcept {
    return consumed(3 * world + rank, cell_bytes);
  }
  static uint64_t bytes(uint64_t cell_bytes, int world) noexcept {
    return sizeof(Mailbox) + 2 * stride(cell_bytes) + 4 * static_cast<uint64_t>(world) * sizeof(uint64_t);
  }
};

}  // namespace isthmus::engine
