// The pinned memory that messages of device memory go through: pieces of the process's staging memory, of a power of two each.
//
// Each kind of message has a share of all staging memory, so that no kind keeps another, nor a collective, from going on:
//
//   Send        a send, until its bytes are out                                          a quarter
//   Announced   a receive whose message has come, or has been announced                 a quarter
//   Ahead       a receive that waits for its message behind a gate                       an eighth
//   SmallSend   a send of a small message, which does not wait for large ones            an eighth
//   SmallAhead  a small receive that waits for its message                               an eighth
//
// A share is the process's: all pools count in the same numbers. A pool keeps some pieces for its next messages.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/lock.hpp"

namespace isthmus::p2p {

enum class Share : uint8_t { Send, Announced, Ahead, SmallSend, SmallAhead };
inline constexpr size_t kShares = 5;
using ShareBytes = std::array<std::atomic<uint64_t>, kShares>;  // in use, of each share

struct Piece {
  uint64_t bytes = 0, offset = 0;  // in the arena
  Share share = Share::Send;
};

// Where pieces come from. Any thread.
class StagingSource {
 public:
  virtual ~StagingSource() = default;
  virtual std::optional<uint64_t> allocate(uint64_t bytes) noexcept = 0;  // the offset
  virtual void free(uint64_t offset) noexcept = 0;
  virtual uint64_t limit() const noexcept = 0;  // bytes of all staging memory
};

class StagingPool {  // Any thread.
 public:
  static constexpr uint64_t kLeast = 4096;                              // bytes of a piece
  static constexpr uint64_t kMostSpare = 256 * 1024;                    // larger pieces are not kept
  static constexpr size_t kSpares = 16;                                 // kept at most
  static constexpr uint64_t of(Share share, uint64_t limit) noexcept {  // bytes of a share
    return limit / (share == Share::Send || share == Share::Announced ? 4 : 8);
  }

  StagingPool(StagingSource &source, ShareBytes &used) noexcept : source_(source), used_(used) {}
  StagingPool(const StagingPool &) = delete;
  StagingPool &operator=(const StagingPool &) = delete;
  ~StagingPool() { free_spares(); }

  // A piece for a message of so many bytes. None: the share has no room, or the staging memory has none. A share that nothing is in has room
  // for one message of any size. `beyond`: the piece may be more than the share.
  std::optional<Piece> take(uint64_t message, Share share, bool beyond = false) noexcept;
  void give(const Piece &piece) noexcept;
  // The piece stays out of use: a device may still write there.
  void lose(const Piece &piece) noexcept;
  bool free_spares() noexcept;  // gives back what no message has; false: nothing
  uint64_t of(Share share) const noexcept { return of(share, source_.limit()); }
  uint64_t used(Share share) const noexcept { return count(share).load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> &count(Share share) const noexcept { return used_[static_cast<size_t>(share)]; }
  std::optional<uint64_t> spare(uint64_t bytes) noexcept;

  StagingSource &source_;
  ShareBytes &used_;
  SpinLock lock_;
  std::vector<Piece> spares_ ISTHMUS_GUARDED_BY(lock_);
};

// The pinned memory of one message. Part of its operation; reset by assigning a fresh one.
struct Place {
  Piece piece;
  bool own = false;       // the piece is this message's
  bool inherits = false;  // the piece is still that of an earlier one in the chain
  Place *heir = nullptr;  // whose piece this one's will be
  Place *next = nullptr;  // in the chain
  bool own_or_will() const noexcept { return own || inherits; }
};

// Small receives behind gates need no piece each. A gate is opened after the gates before it, so a receive may take over the piece of an
// earlier one once the copy of that one has landed. Meanwhile its message waits outside of the pinned memory, or at its sender's.
//
// Thread rules: all calls under one lock (the match lock).
class PlaceChain {
 public:
  explicit PlaceChain(uint64_t wide) noexcept : wide_bytes_(wide) {}  // bytes of the largest small message
  PlaceChain(const PlaceChain &) = delete;
  PlaceChain &operator=(const PlaceChain &) = delete;

  // A piece in the chain has room for any small message, so no receive ends up without.
  bool wide() const noexcept { return wide_ != 0; }
  // The first piece with room for so many bytes, and without an heir, will be `place`'s. False: there is none.
  bool inherit(Place &place, uint64_t bytes) noexcept;
  void lend(Place &place) noexcept;     // the piece of this receive may be inherited
  void hand_on(Place &place) noexcept;  // its copy has landed
  void clear() noexcept;                // after a failure: all receives end

 private:
  bool is_wide(const Place &place) const noexcept { return place.piece.bytes >= wide_bytes_; }
  void unlink(Place **at) noexcept;

  const uint64_t wide_bytes_;
  Place *head_ = nullptr, **tail_ = &head_;
  uint32_t wide_ = 0;
};

}  // namespace isthmus::p2p
