// The arena: the memory that a process shares with the other processes of its host. One memfd, sparse, mapped once here and once
// in each peer. Layout: 64 bytes of the mesh (nonce), the doorbell, then two regions with an allocator each: mailboxes (control
// memory of communicators, a page or a few each) and staging (slots and stream rings, bounded by ISTHMUS_STAGING_BYTES).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <new>

#include "base/handles.hpp"
#include "base/doorbell.hpp"
#include "base/lock.hpp"

namespace isthmus::link {

class Arena {
 public:
  static constexpr size_t kHeader = 4096, kDoorbellOffset = 128;
  static constexpr size_t kMailboxRegion = size_t{1} << 30;  // virtual; pages exist once touched
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

  // Offsets from base(), 4096-aligned, zeroed. Throw Error(Resource) where the region is full.
  uint64_t allocate_mailbox(size_t bytes);
  uint64_t allocate_staging(size_t bytes, bool zeroed = true);
  // Beyond the staging memory, never pinned, for operations that would wait for each other else; given back by free_staging(), too.
  uint64_t allocate_beyond(size_t bytes);
  bool beyond(uint64_t offset) const noexcept { return offset >= beyond_offset_; }
  void free_mailbox(uint64_t offset) noexcept;
  void free_staging(uint64_t offset) noexcept;
  size_t staging_used() const noexcept;
  size_t staging_limit() const noexcept;
  std::byte *staging_begin() const noexcept { return base() + kStagingOffset; }

  // The first `bytes` of staging are pinned for a device: what is allocated from now on lies there, and pages that are freed are kept.
  // A page that went back to the system would come again as another one, and the device would go on writing to the first.
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
  mutable Mutex mutex_;         // held over the call that gives pages back: the next owner must find zeros
  Region mailboxes_ ISTHMUS_GUARDED_BY(mutex_);
  Region staging_ ISTHMUS_GUARDED_BY(mutex_);
  Region beyond_ ISTHMUS_GUARDED_BY(mutex_);
  bool pinned_ ISTHMUS_GUARDED_BY(mutex_) = false;
};

}  // namespace isthmus::link
