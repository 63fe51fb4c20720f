// StagingBook tells who has the staging memory of the process (link/arena.hpp): slots of operations, pinned memory of messages, rings at fixed
// places.
//
// An operation that finds no room asks for what others keep but do not use, and otherwise waits until another operation gives memory back:
//
//   operation A                      operation B
//   finds no room, want_room(1)
//   reads given_back(), waits
//                                    ends, room_given_back(): counts up, rings
//   wakes, given_back() has changed
//   tries again, want_room(-1)
//
// Thread rules. Any thread may call. The lock is never held over a call of a device's runtime.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/lock.hpp"
#include "link/arena.hpp"
#include "p2p/staging_pool.hpp"
#include "process/rank_table.hpp"

namespace isthmus::process {

class StagingBook {
 public:
  StagingBook(link::Arena &arena, const RankTable &ranks) noexcept : arena_(arena), ranks_(ranks) {}
  StagingBook(const StagingBook &) = delete;
  StagingBook &operator=(const StagingBook &) = delete;

  // A ring that devices of other processes may reach. Its place stays registered there, so the place is used for nothing else again. 0
  // where more than 1/`part_of` of the staging memory would be in use then.
  uint64_t take_fixed_ring(uint64_t bytes, int part_of) noexcept;
  void give_fixed_ring(uint64_t offset, uint64_t bytes) noexcept;
  // Rings to which a device may still write. No operation gets these rings until the context ends.
  void lose_rings(int rings) noexcept { rings_lost_.fetch_add(rings, std::memory_order_relaxed); }
  int rings_lost() const noexcept { return rings_lost_.load(std::memory_order_relaxed); }

  // Notes what communicators have lost for want of staging memory: `path` is one of 32 ways. True: the loss was noted before.
  static constexpr unsigned kReserve = 30, kBeyondStaging = 31;
  bool note_lost(unsigned path) noexcept { return (lost_paths_.fetch_or(1u << path) >> path & 1) != 0; }

  bool is_lent() const;  // operations of the process have some, which they will give back
  bool give_idle();      // gives back what communicators keep for their next operations; false: nothing
  void want_room(int operations) noexcept { short_of_room_.fetch_add(static_cast<uint32_t>(operations)); }
  uint64_t given_back() const noexcept { return given_back_.load(std::memory_order_acquire); }
  void room_given_back() noexcept {  // by an operation that had some
    if (short_of_room_.load() == 0) return;
    given_back_.fetch_add(1, std::memory_order_acq_rel);
    arena_.doorbell().ring();
  }

  // For messages.
  p2p::StagingSource &source() noexcept { return source_; }
  p2p::ShareBytes &message_shares() noexcept { return message_shares_; }
  std::atomic<uint64_t> &spilled() noexcept {
    return spilled_;
  }  // bytes of messages that have left the staging memory for other memory
  // Sends of all ranks whose copies have not been submitted.
  std::atomic<uint32_t> &unplaced_sends() noexcept { return unplaced_sends_; }

 private:
  class MessageStaging final : public p2p::StagingSource {
   public:
    explicit MessageStaging(StagingBook &book) noexcept : book_(book) {}
    std::optional<uint64_t> allocate(uint64_t bytes) noexcept override;
    void free(uint64_t offset) noexcept override { book_.arena_.free_staging(offset); }
    uint64_t limit() const noexcept override { return book_.arena_.staging_limit(); }

   private:
    StagingBook &book_;
  };

  link::Arena &arena_;
  const RankTable &ranks_;
  Mutex mutex_;
  std::vector<std::pair<uint64_t, uint64_t>> spare_rings_ ISTHMUS_GUARDED_BY(mutex_);  // offset, bytes
  std::atomic<int> rings_lost_{0};
  std::atomic<uint32_t> lost_paths_{0};
  std::atomic<uint32_t> short_of_room_{0};  // operations
  std::atomic<uint64_t> given_back_{0};     // how often, while operations were short of room
  MessageStaging source_{*this};
  p2p::ShareBytes message_shares_{};
  std::atomic<uint64_t> spilled_{0};
  std::atomic<uint32_t> unplaced_sends_{0};
};

}  // namespace isthmus::process
