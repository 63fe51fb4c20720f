// A rank's mailbox is the rank's part of a communicator in shared memory. Only the rank writes its mailbox, but for the pacts. The ranks that share
// memory with the rank read the mailbox.
//
//   line 0       done: sequence number of the last collective this rank ended
//   lines 1..4   the plan's counters, a line each
//   line 5       whose mailbox it is, and whether the rank has failed
//   lines 6..13  descriptions of the last 8 collectives: what was called, and where its ring lies
//   then         two cells for one-hop operations: sequence, digest, payload of up to `cell_bytes`
//   then         four arrays, with one number for each other rank:
//                  consumed  bytes of the rank's messages that this rank has consumed; the sender's credit follows from the number
//                  block     bytes of the block that this rank has for the rank, in a collective whose sizes only the two ranks know
//                  asked     messages of the rank for this rank's receive slots: how many have been asked for
//                  landed    and how many have left the slots (p2p/recv_slots.hpp)
//   last         pacts, a line for each other rank: which of its messages to this rank their library carries (p2p/library_pact.hpp). Both ranks
//                write there
//
// An operation's description is written before anything of the operation can be seen through a counter or a cell:
//
//   owner                                     reader
//   writes the description
//   stores counter or cell (release)  ----->  loads counter or cell (acquire)
//                                             reads the description plainly
//
// The words of a description are atomics, because a reader may also look early, to find a mismatch.
#pragma once

#include <atomic>
#include <cstdint>

#include "p2p/library_pact.hpp"
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

struct alignas(64) Standing {        // hardly ever written: it stays in every reader's cache
  std::atomic<uint64_t> overrun{0};  // not 0: the rank has failed, and its device may write its slots out of turn
  std::atomic<uint32_t> communicator{
      0};  // its epoch, 0: not known yet. A mailbox that was given back may be another communicator's
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
  Standing standing;
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
  // Of the messages that `sender` sends to the mailbox's rank.
  p2p::PactCell &pact(int sender, int world, uint64_t cell_bytes) noexcept {
    return reinterpret_cast<p2p::PactCell *>(reinterpret_cast<std::byte *>(this) + pacts_at(cell_bytes, world))[sender];
  }
  static uint64_t pacts_at(uint64_t cell_bytes, int world) noexcept {
    const uint64_t arrays = 4 * static_cast<uint64_t>(world) * sizeof(uint64_t);
    return sizeof(Mailbox) + 2 * stride(cell_bytes) + (arrays + 63) / 64 * 64;
  }
  static uint64_t bytes(uint64_t cell_bytes, int world) noexcept {
    return pacts_at(cell_bytes, world) + static_cast<uint64_t>(world) * sizeof(p2p::PactCell);
  }
};

}  // namespace isthmus::engine
