// LibraryMessages has the vendor's library carry messages of device memory between two ranks of one host that it serves. No byte of such a message
// goes by the host. docs/explain/islands.md says which messages these are, and why they cannot hang what did not hang without them.
//
// In short. A group offers all its messages at once, and waits a moment for the other sides (p2p/library_pact.hpp). What both sides have
// offered goes to the library as one group; the rest goes by links. While a group waits, this rank offers nothing else, and the device has nothing of
// ours that waits for another rank and is given nothing like that (p2p/quiet_time.hpp):
//
//   group's end, rank 0                       group's end, rank 1
//   numbers its messages
//   takes the lane, opens a quiet time
//   offers: send 4 to 1, receive 9 from 1
//   rings, waits                              (the same) offers: receive 4 from 0, send 9 to 0
//                                             looks: both are the library's
//   looks: both are the library's   <-------  rings
//   the library's group                       the library's group
//   ends the quiet time, gives back           (the same)
//
// A message outside of a group waits for nobody. It is the library's only where the other side's group waits for just this message.
//
// Thread rules: open() before the first operation. exchange() and take() any thread. end_next() with the right to execute. The rest any thread.
#pragma once

#include <span>
#include <vector>

#include "engine/island_lane.hpp"
#include "messages/message_table.hpp"
#include "p2p/library_pact.hpp"

namespace isthmus::messages {

class LibraryMessages {
 public:
  LibraryMessages(RankCore &core, MessageTable &table, int64_t group_wait_ns) noexcept
      : core_(core), table_(table), group_wait_ns_(group_wait_ns) {}
  void open(engine::IslandLane &lane);

  // The messages of a group, none of which was submitted. Those that the library has are submitted then (`by_library`); the others are counted.
  void exchange(std::span<Operation *const> messages) noexcept { settle(messages, now_ns() + group_wait_ns_); }
  bool take(Operation *op) noexcept;  // a message outside of a group. True: the library has it
  static bool by_library(const Operation &op) noexcept { return op.carry.port == Port::Library; }
  bool end_next() noexcept;  // true: one has ended

  bool any() const noexcept { return lane_ != nullptr; }
  bool with(int peer) const noexcept { return any() && sides_[at(peer)].of(true).any(); }
  uint64_t messages() const noexcept { return messages_.load(std::memory_order_relaxed); }
  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  using Verdict = p2p::PactSide::Verdict;
  struct Sides {
    p2p::PactSide sends, receives;
    const p2p::PactSide &of(bool send) const noexcept { return send ? sends : receives; }
    p2p::PactSide &of(bool send) noexcept { return send ? sends : receives; }
  };
  // The messages of a group one way with one rank.
  struct GroupWay {
    int peer = -1;
    bool send = false, fits = true;
    uint64_t first = 0, count = 0, terms = 0;
    Verdict verdict = Verdict::Open;
  };
  static size_t at(int rank) noexcept { return static_cast<size_t>(rank); }
  static bool sends(const Operation &op) noexcept { return op.call.collective == Collective::Send; }

  bool counts(const Operation &op) const noexcept;
  void count(Operation &op) noexcept;
  bool may_go(const Operation &op) const noexcept;
  void settle(std::span<Operation *const> messages, int64_t until_ns) noexcept;
  void find_ways(std::span<Operation *const> messages) noexcept;
  GroupWay *way_with(const Operation &op) noexcept;  // null: none that fits
  GroupWay &way_of(const Operation &op) noexcept;
  void pass(const Operation &op) noexcept;
  void pass_ways(std::span<Operation *const> messages) noexcept;
  bool agree(int64_t until_ns) noexcept;
  bool look() noexcept;
  void ring() noexcept;
  void give(std::span<Operation *const> messages) noexcept;

  RankCore &core_;
  MessageTable &table_;
  const int64_t group_wait_ns_;
  engine::IslandLane *lane_ = nullptr;  // null: no message goes by a library
  std::vector<Sides> sides_;            // by rank
  // Under the collective lock.
  std::vector<GroupWay> ways_;
  std::vector<Operation *> given_;
  uint64_t ticket_ = 0;
  std::atomic<uint64_t> messages_{0}, bytes_{0};
};

}  // namespace isthmus::messages
