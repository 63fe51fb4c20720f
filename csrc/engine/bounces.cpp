#include "engine/bounces.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/log.hpp"

namespace isthmus::engine {

Bounces::~Bounces() {
  for (const Buffer &b : buffers_)
    if (b.free) release(b);
}

bool Bounces::release(const Buffer &buffer) noexcept {
  return runtime_.unregister_host(device_, buffer.host) && ::munmap(buffer.host, buffer.bytes) == 0;
}

Bounce Bounces::take(uint64_t in, uint64_t out) {
  Bounce bounce;
  bounce.out = (in + 255) / 256 * 256;
  const uint64_t bytes = std::max<uint64_t>(bounce.out + out, 1);
  // Much of the staging memory would be missed by what has to have some.
  if (bytes <= arena_.staging_limit() / 4) try {
      bounce.staging = arena_.allocate_staging(bytes, false);
      bounce.host = arena_.base() + bounce.staging;
      bounce.device = arena_device_ + bounce.staging;
      return bounce;
    } catch (const Error &e) {
      if (e.code() != Code::Resource) throw;
    }
  const std::lock_guard lock(mutex_);
  const auto fits = [&](const Buffer &b) { return b.free && b.bytes >= bytes; };
  auto found = std::find_if(buffers_.begin(), buffers_.end(), fits);
  if (found == buffers_.end()) {
    // Smaller ones would never be used again where programs' arrays grow.
    std::erase_if(buffers_, [&](const Buffer &b) { return b.free && (release(b), true); });
    const size_t whole = (bytes + 4095) / 4096 * 4096;
    void *const memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      fail(Code::Resource, "no memory for {} bytes between the host and {}:{}: {}", whole, runtime_.vendor(), device_,
           std::strerror(errno));
    try {
      runtime_.register_host(device_, memory, whole);
    } catch (const Error &e) {
      ::munmap(memory, whole);
      fail(Code::Resource, "{} bytes of host memory cannot be pinned for {}:{} (give smaller pieces, or device memory): {}",
           whole, runtime_.vendor(), device_, e.text());
    }
    if (!std::exchange(said_, true))
      ISTHMUS_WARN(
          "{}: {} bytes of host memory go through a pinned buffer of their own, as they are more than a quarter of the "
          "staging "
          "memory or it is in use; the buffer is kept until the communicator ends (a larger ISTHMUS_STAGING_BYTES has room "
          "for them, and device memory needs none)",
          name_, bytes);
    buffers_.push_back({static_cast<std::byte *>(memory), whole, true});
    found = buffers_.end() - 1;
  }
  found->free = false;
  bounce.host = found->host;
  bounce.device = static_cast<std::byte *>(runtime_.device_address(device_, found->host));
  return bounce;
}

void Bounces::give(const Bounce &bounce) noexcept {
  if (bounce.staging) return arena_.free_staging(bounce.staging);
  const std::lock_guard lock(mutex_);
  for (Buffer &b : buffers_)
    if (b.host == bounce.host) b.free = true;
}

void Bounces::lose(const Bounce &bounce) noexcept {
  if (bounce.staging) return;  // what is left of the staging memory is seen to when the communicator ends
  const std::lock_guard lock(mutex_);
  std::erase_if(buffers_, [&](const Buffer &b) { return b.host == bounce.host; });
}

}  // namespace isthmus::engine
