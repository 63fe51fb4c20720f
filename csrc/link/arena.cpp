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

namespace {

size_t in_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

Arena::Arena(size_t staging_bytes)
    : beyond_offset_(kStagingOffset + in_pages(staging_bytes)),
      mailboxes_(kHeader, kMailboxRegion),
      staging_(kStagingOffset, in_pages(staging_bytes)),
      beyond_(beyond_offset_, kBeyondRegion),
      reserve_(reserve_offset(), in_pages(staging_bytes)) {
  const size_t total = reserve_offset() + in_pages(staging_bytes);
  fd_ = UniqueFd(::memfd_create("isthmus", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd_) fail_system("memfd_create", errno);
  if (::ftruncate(fd_.get(), static_cast<off_t>(total)) != 0) fail_system("ftruncate of the shared arena", errno);
  // The seals: a peer that shrank the file would turn our next access into SIGBUS.
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail_system("F_ADD_SEALS", errno);
  mapping_ = Mapping(fd_.get(), total);
  bell_socket_ = std::make_unique<BellSocket>(*new (mapping_.data() + kDoorbellOffset) Doorbell);
  net::close_in_child(bell_socket_->fd());
}

size_t Arena::staging_used() const noexcept {
  const Lock lock(mutex_);
  return staging_.used();
}

size_t Arena::staging_limit() const noexcept {
  const Lock lock(mutex_);
  return staging_.bytes();
}

size_t Arena::reserve_limit() const noexcept {
  const Lock lock(mutex_);
  return reserve_.bytes();
}

Arena::Taken Arena::take(ArenaRegion &region, size_t bytes, const char *what) {
  const uint64_t fresh = region.fresh();
  const uint64_t offset = region.allocate(bytes, what);
  return {offset, region.pinned() && offset < fresh ? std::min<size_t>(bytes, fresh - offset) : 0};
}

uint64_t Arena::allocate_mailbox(size_t bytes) {
  const Lock lock(mutex_);
  return take(mailboxes_, bytes, "mailboxes").offset;
}

uint64_t Arena::allocate_staging(size_t bytes, Fill fill) {
  Taken taken;
  {
    const Lock lock(mutex_);
    taken = take(staging_, bytes, "ISTHMUS_STAGING_BYTES");
  }
  if (fill == Fill::Zeros && taken.dirty != 0) std::memset(base() + taken.offset, 0, taken.dirty);
  return taken.offset;
}

uint64_t Arena::allocate_beyond(size_t bytes) {
  const Lock lock(mutex_);
  return take(beyond_, bytes, "memory beyond ISTHMUS_STAGING_BYTES").offset;
}

uint64_t Arena::allocate_reserve(size_t bytes) {
  Taken taken;
  {
    const Lock lock(mutex_);
    taken = take(reserve_, bytes, "the reserve, as much again as ISTHMUS_STAGING_BYTES");
  }
  if (taken.dirty != 0) std::memset(base() + taken.offset, 0, taken.dirty);
  return taken.offset;
}

void Arena::free_mailbox(uint64_t offset) noexcept {
  const Lock lock(mutex_);
  release(mailboxes_, offset);
}

void Arena::free_staging(uint64_t offset) noexcept {
  const Lock lock(mutex_);
  release(offset >= reserve_offset() ? reserve_ : beyond(offset) ? beyond_ : staging_, offset);
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

void Arena::is_pinned(Pinned which, size_t bytes) {
  const Lock lock(mutex_);
  (which == Pinned::Staging ? staging_ : reserve_).pin(bytes);
}

// Pages that are not pinned go back to the system, and the next owner reads zeros.
void Arena::release(ArenaRegion &region, uint64_t offset) noexcept {
  if (const size_t bytes = region.taken(offset); bytes != 0 && !region.pinned())
    ::madvise(base() + offset, bytes, MADV_REMOVE);
  region.release(offset);
}

}  // namespace isthmus::link
