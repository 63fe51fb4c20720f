#include "collective/bounces.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "base/log.hpp"

namespace isthmus::collective {
namespace {

constexpr uint64_t kWhole = 1 << 20;      // up to so many bytes are one piece
constexpr uint64_t kPiece = 1 << 20;      // the piece of longer memory, if there is room for some pieces
constexpr uint64_t kMostRing = 16 << 20;  // more would not be faster
constexpr uint64_t kLeastRing = 256 << 10, kOwnRing = 1 << 20;
constexpr uint64_t kSlots = 4;  // at least: a processor fills one while the device copies others
constexpr uint64_t kPage = 4096;

uint64_t rounded(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Bounces::~Bounces() {
  for (const PinnedBuffer &b : buffers_)
    if (b.free) release(b);
}

bool Bounces::release(const PinnedBuffer &buffer) noexcept {
  return runtime_.unregister_host(device_, buffer.host) && ::munmap(buffer.host, kOwnRing) == 0;
}

Bounce Bounces::take(uint64_t input, uint64_t output) {
  Bounce bounce;
  bounce.input = input;
  bounce.output = output;
  // A bounce takes a small part of the staging memory: other operations cannot do without staging memory.
  const uint64_t most = arena_.staging_limit() / 8, longest = std::max<uint64_t>(std::max(input, output), 1);
  const auto cut = [&](uint64_t ring) {
    bounce.piece = longest <= std::min(kWhole, ring / 2) ? rounded(longest, 256) : std::min(kPiece, ring / kSlots);
    bounce.input_pieces = static_cast<uint32_t>((input + bounce.piece - 1) / bounce.piece);
    bounce.output_pieces = static_cast<uint32_t>((output + bounce.piece - 1) / bounce.piece);
    bounce.slots = static_cast<uint32_t>(
        std::clamp<uint64_t>(uint64_t{bounce.input_pieces} + bounce.output_pieces, 1, ring / bounce.piece));
  };
  for (uint64_t ring = std::min(kMostRing, most) / kPage * kPage; ring >= kLeastRing; ring = ring / 2 / kPage * kPage) {
    cut(ring);
    try {
      bounce.staging = arena_.allocate_staging(bounce.slots * bounce.piece, link::Fill::AnyBytes);
      bounce.host = arena_.base() + bounce.staging;
      bounce.device = arena_device_ + bounce.staging;
      return bounce;
    } catch (const Error &e) {
      if (e.code() != Code::Resource) throw;
    }
  }
  cut(kOwnRing);
  bounce.host = buffer();
  bounce.device = static_cast<std::byte *>(runtime_.device_address(device_, bounce.host));
  return bounce;
}

std::byte *Bounces::buffer() {
  {
    const Lock lock(mutex_);
    const auto found = std::find_if(buffers_.begin(), buffers_.end(), [](const PinnedBuffer &b) { return b.free; });
    if (found != buffers_.end()) return found->free = false, found->host;
  }
  // Without the lock: the driver may wait for the device, and the device for a door that opens once another thread has given a buffer back.
  void *const memory = ::mmap(nullptr, kOwnRing, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    fail(Code::Resource, "no memory for {} bytes between the host and {}:{}: {}", kOwnRing, runtime_.vendor(), device_,
         std::strerror(errno));
  try {
    runtime_.register_host(device_, memory, kOwnRing);
  } catch (const Error &e) {
    ::munmap(memory, kOwnRing);
    fail(e.code() == Code::Device ? Code::Device : Code::Resource,
         "{} bytes of host memory cannot be pinned for {}:{} (give device memory or pinned memory): {}", kOwnRing,
         runtime_.vendor(), device_, e.text());
  }
  const Lock lock(mutex_);
  if (!std::exchange(said_, true))
    ISTHMUS_WARN(
        "{}: plain host memory goes through a pinned buffer of {} bytes beside the staging memory, which is in use; the "
        "buffer is kept until the communicator ends (a larger ISTHMUS_STAGING_BYTES has room, and device memory or pinned "
        "memory needs none)",
        name_, kOwnRing);
  buffers_.push_back({static_cast<std::byte *>(memory), false});
  return buffers_.back().host;
}

void Bounces::give(const Bounce &bounce) noexcept {
  if (bounce.staging) return arena_.free_staging(bounce.staging);
  const Lock lock(mutex_);
  for (PinnedBuffer &b : buffers_)
    if (b.host == bounce.host) b.free = true;
}

void Bounces::lose(const Bounce &bounce) noexcept {
  if (bounce.staging) return;  // the end of the communicator sees to what is left of the staging memory
  const Lock lock(mutex_);
  std::erase_if(buffers_, [&](const PinnedBuffer &b) { return b.host == bounce.host; });
}

}  // namespace isthmus::collective
