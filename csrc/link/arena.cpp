#include "link/arena.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/lock.hpp"
#include "net/fork_guard.hpp"

namespace isthmus::link {

Arena::Arena(size_t staging_bytes) {
  staging_bytes = (staging_bytes + 4095) / 4096 * 4096;
  const size_t total = kHeader + kMailboxRegion + staging_bytes + kBeyondRegion;
  fd_ = UniqueFd(::memfd_create("isthmus", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd_) fail_system("memfd_create", errno);
  if (::ftruncate(fd_.get(), static_cast<off_t>(total)) != 0) fail_system("ftruncate of the shared arena", errno);
  // The seals: a peer that shrank the file would turn our next access into SIGBUS.
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail_system("F_ADD_SEALS", errno);
  mapping_ = Mapping(fd_.get(), total);
  bell_socket_ = std::make_unique<BellSocket>(*new (mapping_.data() + kDoorbellOffset) Doorbell);
  net::close_in_child(bell_socket_->fd());
  mailboxes_ = {kHeader, kMailboxRegion, 0, {{kHeader, kMailboxRegion}}, {}};
  staging_ = {kStagingOffset, staging_bytes, 0, {{kStagingOffset, staging_bytes}}, {}};
  beyond_offset_ = kStagingOffset + staging_bytes;
  beyond_ = {beyond_offset_, kBeyondRegion, 0, {{beyond_offset_, kBeyondRegion}}, {}};
}

size_t Arena::staging_used() const noexcept {
  const Lock lock(mutex_);
  return staging_.used;
}

size_t Arena::staging_limit() const noexcept {
  const Lock lock(mutex_);
  return staging_.bytes;
}

uint64_t Arena::allocate_mailbox(size_t bytes) {
  const Lock lock(mutex_);
  return allocate(mailboxes_, bytes, "mailboxes");
}

uint64_t Arena::allocate_staging(size_t bytes, Fill fill) {
  uint64_t offset = 0;
  bool dirty = false;  // kept pages have what their last owner wrote
  {
    const Lock lock(mutex_);
    offset = allocate(staging_, bytes, "ISTHMUS_STAGING_BYTES");
    dirty = pinned_;
  }
  if (fill == Fill::Zeros && dirty) std::memset(base() + offset, 0, bytes);
  return offset;
}

uint64_t Arena::allocate_beyond(size_t bytes) {
  const Lock lock(mutex_);
  return allocate(beyond_, bytes, "memory beyond ISTHMUS_STAGING_BYTES");
}

void Arena::free_mailbox(uint64_t offset) noexcept {
  const Lock lock(mutex_);
  release(mailboxes_, offset);
}

void Arena::free_staging(uint64_t offset) noexcept {
  const Lock lock(mutex_);
  release(beyond(offset) ? beyond_ : staging_, offset);
}

void Arena::place_staging(int node) {
  const Lock lock(pages_mutex_);
  if (!pages_.asked) pages_ = ask_for_pages({staging_begin(), staging_limit()}, node);
}

StagingPages Arena::staging_pages() const {
  const Lock lock(pages_mutex_);
  StagingPages pages = pages_;
  if (pages.asked) look_at_pages({staging_begin(), staging_limit()}, pages);
  return pages;
}

void Arena::staging_is_pinned(size_t bytes) {
  const Lock lock(mutex_);
  pinned_ = true;
  if (bytes >= staging_.bytes) return;
  staging_.bytes = bytes / 4096 * 4096;
  const uint64_t end = staging_.begin + staging_.bytes;
  for (auto it = staging_.free.begin(); it != staging_.free.end();) {
    if (it->first >= end) {
      it = staging_.free.erase(it);
      continue;
    }
    it->second = std::min<size_t>(it->second, end - it->first);
    ++it;
  }
}

uint64_t Arena::allocate(Region &region, size_t bytes, const char *what) {
  bytes = (bytes + 4095) / 4096 * 4096;
  for (auto it = region.free.begin(); it != region.free.end(); ++it) {
    if (it->second < bytes) continue;
    const auto [offset, size] = *it;
    region.free.erase(it);
    if (size > bytes) region.free.emplace(offset + bytes, size - bytes);
    region.taken.emplace(offset, bytes);
    region.used += bytes;
    return offset;
  }
  fail(Code::Resource,
       "{} bytes of shared memory asked for, but {} of {} bytes ({}) are in use; destroy communicators or raise the limit",
       bytes, region.used, region.bytes, what);
}

void Arena::release(Region &region, uint64_t offset) noexcept {
  const auto it = region.taken.find(offset);
  if (it == region.taken.end()) return;
  size_t bytes = it->second;
  region.taken.erase(it);
  region.used -= bytes;
  // The pages go back to the system, and the next owner reads zeros.
  if (&region != &staging_ || !pinned_) ::madvise(base() + offset, bytes, MADV_REMOVE);
  const uint64_t end = region.begin + region.bytes;  // a pinned region has become smaller
  if (offset >= end) return;
  bytes = std::min<size_t>(bytes, end - offset);
  auto next = region.free.lower_bound(offset);
  if (next != region.free.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = region.free.erase(next);
  }
  if (next != region.free.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  region.free.emplace(offset, bytes);
}

}  // namespace isthmus::link
