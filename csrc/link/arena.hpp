// The arena: the memory that a process shares with the other processes of its host. An arena is one sparse memfd, mapped once in its
// process and once in each peer.
//
//   offset 0     64 bytes of the mesh (bootstrap/arena_offer.hpp)
//   128          the doorbell
//   4096         mailboxes: control memory of communicators, a page or a few each
//   + 1 GiB      staging: slots and stream rings, bounded by ISTHMUS_STAGING_BYTES
//   + its size   beyond: staging memory past that bound
//
// Each of the last three regions has an allocator.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <new>

#include "base/handles.hpp"
#include "base/doorbell.hpp"
#include "base/lock.hpp"
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
  bool beyond(uint64_t offset) const noexcept { return offset >= beyond_offset_; }
  void free_mailbox(uint64_t offset) noexcept;
  void free_staging(uint64_t offset) noexcept;
  size_t staging_used() const noexcept;
  size_t staging_limit() const noexcept;
  std::byte *staging_begin() const noexcept { return base() + kStagingOffset; }

  // For a device that is about to pin staging: its pages are to lie on that node (-1: any) and to be huge. The first call counts.
  void place_staging(int node);
  // As the kernel has it, once a device has pinned staging.
  StagingPages staging_pages() const;
  // The first `bytes` of staging are pinned for a device. From now on staging is allocated there, and freed pages are kept.
  // A page that went back to the system would come again as another page, and the device would go on writing to the first.
  void staging_is_pinned(size_t bytes);
  void keep_mapped() noexcept { mapping_.keep(); }  // until the process ends

 private:
  struct Region {
    uint64_t begin = 0;
    size_t bytes = 0, used = 0;
    std::map<uint64_t, size_t> free, taken;  // offset -> bytes
  };
  uint64_t allocate(Region &region, size_t bytes, const char *what) ISTHMUS_REQUIRES(mutex_);
  void release(Region &region, uint64_t offset) noexcept ISTHMUS_REQUIRES(mutex_);

  UniqueFd fd_;
  Mapping mapping_;
  std::unique_ptr<BellSocket> bell_socket_;
  uint64_t beyond_offset_ = 0;  // constant after construction
  mutable Mutex mutex_;         // held over the system call that gives pages back: the next owner must find zeros
  Region mailboxes_ ISTHMUS_GUARDED_BY(mutex_);
  Region staging_ ISTHMUS_GUARDED_BY(mutex_);
  Region beyond_ ISTHMUS_GUARDED_BY(mutex_);
  bool pinned_ ISTHMUS_GUARDED_BY(mutex_) = false;
  mutable Mutex
      pages_mutex_;  // held over the system calls that place pages and look at them, all of them at init or in a report
  StagingPages pages_ ISTHMUS_GUARDED_BY(pages_mutex_);
};

}  // namespace isthmus::link
