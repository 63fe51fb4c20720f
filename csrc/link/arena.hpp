// The arena: the memory that a process shares with the other processes of its host. An arena is one sparse memfd, mapped once in its
// process and once in each peer.
//
//   offset 0     64 bytes of the mesh (bootstrap/arena_offer.hpp)
//   128          the doorbell
//   4096         mailboxes: control memory of communicators, a page or a few each
//   + 1 GiB      staging: slots and stream rings, bounded by ISTHMUS_STAGING_BYTES
//   + its size   beyond: staging memory past that bound, which no device reaches
//   + 1 GiB      reserve: as much as staging, for devices, where operations would wait for each other's staging memory for ever
//
// Each of the last four regions has an allocator.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "base/handles.hpp"
#include "base/doorbell.hpp"
#include "base/lock.hpp"
#include "link/arena_region.hpp"
#include "link/staging_pages.hpp"

namespace isthmus::link {

// What memory holds when an allocation hands it over.
enum class Fill : uint8_t { Zeros, AnyBytes };

class Arena {
 public:
  static constexpr size_t kHeader = 4096, kDoorbellOffset = 128;
  static constexpr size_t kMailboxRegion = size_t{1} << 30;  // of addresses; a page exists once somebody touches it
  static constexpr size_t kBeyondRegion = size_t{1} << 30;   // likewise
  static constexpr uint64_t kStagingOffset = kHeader + kMailboxRegion;

  explicit Arena(size_t staging_bytes);
  int fd() const noexcept { return fd_.get(); }
  size_t bytes() const noexcept { return mapping_.size(); }
  std::byte *base() const noexcept { return mapping_.data(); }
  Doorbell &doorbell() const noexcept { return doorbell_of(base()); }
  BellSocket &bell_socket() const noexcept { return *bell_socket_; }
  static Doorbell &doorbell_of(std::byte *arena_base) noexcept {
    return *std::launder(reinterpret_cast<Doorbell *>(arena_base + kDoorbellOffset));
  }

  // Offsets from base(), aligned to 4096 bytes, of memory with zeros unless the caller takes any bytes. Throw Error(Resource) where the region is full.
  uint64_t allocate_mailbox(size_t bytes);
  uint64_t allocate_staging(size_t bytes, Fill fill = Fill::Zeros);
  // Memory beyond the staging region, which is never pinned, for operations that would wait for each other without it. free_staging() frees
  // such memory too.
  uint64_t allocate_beyond(size_t bytes);
  bool beyond(uint64_t offset) const noexcept { return offset >= beyond_offset_ && offset < reserve_offset(); }
  // Of the reserve, with zeros. Whoever lets a device reach the memory has called is_pinned() before.
  uint64_t allocate_reserve(size_t bytes);
  uint64_t reserve_offset() const noexcept { return beyond_offset_ + kBeyondRegion; }
  size_t reserve_limit() const noexcept;
  void free_mailbox(uint64_t offset) noexcept;
  void free_staging(uint64_t offset) noexcept;
  size_t staging_used() const noexcept;
  size_t staging_limit() const noexcept;
  std::byte *staging_begin() const noexcept { return base() + kStagingOffset; }

  // For a device that is about to pin staging: its pages are to lie on that node (-1: any) and to be huge. The first call counts.
  void place_staging(int node);
  // As the kernel has it, once a device has pinned staging.
  StagingPages staging_pages() const;
  // The first `bytes` of staging, or of the reserve, are pinned for a device, or about to be, since another thread may free some meanwhile. From
  // now on such memory is allocated there, and freed pages are kept. A page that went back to the system would come again as another page, and
  // the device would go on writing to the first.
  enum class Pinned : uint8_t { Staging, Reserve };
  void is_pinned(Pinned which, size_t bytes);
  void keep_mapped() noexcept { mapping_.keep(); }  // until the process ends

 private:
  struct Taken {
    uint64_t offset = 0;
    size_t dirty = 0;  // bytes at its beginning that may hold what their last owner wrote: their pages were kept
  };
  static Taken take(ArenaRegion &region, size_t bytes, const char *what);
  void release(ArenaRegion &region, uint64_t offset) noexcept ISTHMUS_REQUIRES(mutex_);

  UniqueFd fd_;
  Mapping mapping_;
  std::unique_ptr<BellSocket> bell_socket_;
  const uint64_t beyond_offset_;
  mutable Mutex mutex_;  // held over the system call that gives pages back: the next owner must find zeros
  ArenaRegion mailboxes_ ISTHMUS_GUARDED_BY(mutex_);
  ArenaRegion staging_ ISTHMUS_GUARDED_BY(mutex_);
  ArenaRegion beyond_ ISTHMUS_GUARDED_BY(mutex_);
  ArenaRegion reserve_ ISTHMUS_GUARDED_BY(mutex_);
  mutable Mutex
      pages_mutex_;  // held over the system calls that place pages and look at them, all of them at init or in a report
  StagingPages pages_ ISTHMUS_GUARDED_BY(pages_mutex_);
};

}  // namespace isthmus::link
