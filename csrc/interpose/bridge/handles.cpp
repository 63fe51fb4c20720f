#include "handles.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/lock.hpp"
#include "comm.hpp"
#include "front_door.hpp"

namespace isthmus::bridge {
namespace {

constexpr uintptr_t kStep = 64;
constexpr uint64_t kInvalid = 4;  // an argument, as NCCL numbers errors
// The other half of the range is for libraries that read on behind a handle: to them a communicator is a large struct.
constexpr size_t kMost = interpose::kHandleBytes / 2 / kStep;

struct HandleTable {
  SharedMutex mutex;
  std::vector<std::shared_ptr<Comm>> comms ISTHMUS_GUARDED_BY(mutex);  // by place
  // Places, the longest free one first: so a stale handle stays stale for long.
  std::deque<size_t> free ISTHMUS_GUARDED_BY(mutex);
  // The places of aliases: by the vendor's handle, and those where no handle was seen yet. A vendor's library writes one
  // handle at any time, and null behind that at most.
  std::unordered_map<const void *, size_t> by_real ISTHMUS_GUARDED_BY(mutex);
  std::vector<size_t> unwritten ISTHMUS_GUARDED_BY(mutex);
};
// By place: the vendor's handle behind an alias, written by the vendor's library. Every call with an alias reads the handle,
// so there is no lock.
constinit std::atomic<void *> the_aliases[kMost];
// By place: how many aliases were dropped there.
constinit std::atomic<uint32_t> the_drops[kMost];
HandleTable &table() {
  static auto *const the_table = new HandleTable;  // a thread may still look when the process ends
  return *the_table;
}

// What each word of the range holds. A vendor's library may take a destroyed handle of ours for a communicator of its own,
// and read there. The word makes the library refuse it:
// - The lower half is all ones. NCCL looks for a number that its communicators begin with. A library that does not look for
//   that number first finds a rank, or a number of ranks, of -1.
// - The word as a whole is the address of zeros. ncclCommFinalize looks, before that number, whether a flag is set that the
//   communicator points to.
// - The upper half is 4, where such an address can be had. Versions before NCCL 2.20 know no such number. They take the
//   upper half for the communicator's state, and 4 is an invalid argument.
// The address is odd. A processor that loads nothing of the kind across a boundary ends the program there (AArch64, where
// the load is an atomic one).
uint64_t word() {
  constexpr uint64_t kSpan = uint64_t{1} << 32, kFirst = kInvalid + 1;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto zeros_around = [&](uint64_t boundary) {
    void *want = reinterpret_cast<void *>(static_cast<uintptr_t>(boundary - page));
    void *got = ::mmap(want, 2 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != want && got != MAP_FAILED) ::munmap(got, 2 * page);
    return got == want;
  };
  if (zeros_around(kFirst * kSpan)) return kFirst * kSpan - 1;
  // Memory of the program or of a sanitizer lies there. So look for room below the range.
  uint64_t boundary = reserve_handles() / kSpan * kSpan;
  for (int tries = 0; tries < 4096 && boundary > kSpan; ++tries, boundary -= kSpan)
    if (zeros_around(boundary)) return boundary - 1;
  return ~uint64_t{0};
}

// Makes the range readable: one piece of memory is mapped at many addresses.
bool fill() {
  constexpr size_t kPiece = size_t{2} << 20;
  static_assert(interpose::kHandleBytes % kPiece == 0);
  const int file = ::memfd_create("isthmus handles", MFD_CLOEXEC);
  if (file < 0) return false;
  bool filled = ::ftruncate(file, kPiece) == 0;
  void *piece = filled ? ::mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  filled = piece != MAP_FAILED;
  if (filled) {
    std::fill_n(static_cast<uint64_t *>(piece), kPiece / sizeof(uint64_t), word());
    ::munmap(piece, kPiece);
  }
  for (uintptr_t at = 0; filled && at < interpose::kHandleBytes; at += kPiece)
    filled = ::mmap(reinterpret_cast<void *>(reserve_handles() + at), kPiece, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) !=
             MAP_FAILED;
  ::close(file);
  return filled;
}

size_t place_of(const void *handle) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(handle) - reserve_handles();
  return at % kStep == 0 ? at / kStep : kMost;
}

// The place of `handle`, if `comm` is still behind the handle; else kMost.
size_t place_of(const HandleTable &t, const void *handle, const std::shared_ptr<Comm> &comm) ISTHMUS_REQUIRES(t.mutex) {
  const size_t place = place_of(handle);
  return place < t.comms.size() && t.comms[place] == comm ? place : kMost;
}

void *handle_at(size_t place) { return reinterpret_cast<void *>(reserve_handles() + place * kStep); }
bool stands_for(size_t place, const void *real) noexcept {
  return the_aliases[place].load(std::memory_order_acquire) == real;
}

// Takes note of what the vendor's library has written since. Where there is no memory, a place stays with the unwritten ones.
void read_aliases(HandleTable &t) noexcept ISTHMUS_REQUIRES(t.mutex) {
  try {
    std::erase_if(t.unwritten, [&t](size_t place) ISTHMUS_REQUIRES(t.mutex) {
      const void *const real = the_aliases[place].load(std::memory_order_acquire);
      if (real) t.by_real.insert_or_assign(real, place);
      return real != nullptr;
    });
  } catch (const std::exception &) {}
}

}  // namespace

uintptr_t reserve_handles() noexcept {
  static const uintptr_t begin = [] {
    void *p = ::mmap(nullptr, interpose::kHandleBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? uintptr_t{0} : reinterpret_cast<uintptr_t>(p);
  }();
  return begin;
}

bool in_range(const void *handle) noexcept {
  return reinterpret_cast<uintptr_t>(handle) - reserve_handles() < interpose::kHandleBytes;
}

void *give_handle(std::shared_ptr<Comm> comm) {
  static const bool filled = fill();
  if (!filled) return nullptr;
  HandleTable &t = table();
  const Lock lock(t.mutex);
  size_t place = t.comms.size();
  if (place < kMost) {
    t.comms.push_back(std::move(comm));
  } else {
    if (t.free.empty()) return nullptr;
    place = t.free.front();
    t.free.pop_front();
    t.comms[place] = std::move(comm);
  }
  return handle_at(place);
}

std::shared_ptr<Comm> find(const void *handle) {
  HandleTable &t = table();
  const SharedLock lock(t.mutex);
  const size_t place = place_of(handle);
  return place < t.comms.size() ? t.comms[place] : nullptr;
}

std::shared_ptr<Comm> take_back(const void *handle) {
  HandleTable &t = table();
  const Lock lock(t.mutex);
  const size_t place = place_of(handle);
  if (place >= t.comms.size() || !t.comms[place]) return nullptr;
  t.free.push_back(place);
  return std::exchange(t.comms[place], nullptr);
}
bool take_back(const void *handle, const std::shared_ptr<Comm> &comm) {
  HandleTable &t = table();
  const Lock lock(t.mutex);
  const size_t place = place_of(t, handle, comm);
  if (place == kMost) return false;
  t.free.push_back(place);
  t.comms[place] = nullptr;
  return true;
}
bool replace(const void *handle, const std::shared_ptr<Comm> &comm, std::shared_ptr<Comm> by) {
  HandleTable &t = table();
  const Lock lock(t.mutex);
  const size_t place = place_of(t, handle, comm);
  if (place == kMost) return false;
  t.comms[place] = std::move(by);
  return true;
}

void **make_alias(const void *handle, const std::shared_ptr<Comm> &comm) {
  static_assert(sizeof the_aliases[0] == sizeof(void *) && std::atomic<void *>::is_always_lock_free);
  HandleTable &t = table();
  const Lock lock(t.mutex);
  const size_t place = place_of(t, handle, comm);
  if (place == kMost) return nullptr;
  t.unwritten.push_back(place);
  t.comms[place] = nullptr;
  return reinterpret_cast<void **>(&the_aliases[place]);
}
bool become_alias(const void *handle, const std::shared_ptr<Comm> &comm, void *real) {
  HandleTable &t = table();
  const Lock lock(t.mutex);
  const size_t place = place_of(t, handle, comm);
  if (place == kMost) return false;
  t.by_real.insert_or_assign(real, place);
  the_aliases[place].store(real, std::memory_order_release);
  t.comms[place] = nullptr;
  return true;
}
void *behind(const void *handle) noexcept {
  const size_t place = place_of(handle);
  return place < kMost ? the_aliases[place].load(std::memory_order_acquire) : nullptr;
}
// Every end of a communicator of the vendor's asks this.
void *alias_of(const void *real) noexcept {
  if (!real) return nullptr;
  HandleTable &t = table();
  const Lock lock(t.mutex);
  read_aliases(t);
  if (const auto known = t.by_real.find(real); known != t.by_real.end() && stands_for(known->second, real))
    return handle_at(known->second);
  for (const size_t place : t.unwritten)
    if (stands_for(place, real)) return handle_at(place);
  return nullptr;
}
void drop_alias(const void *handle) noexcept {
  const size_t place = place_of(handle);
  HandleTable &t = table();
  const Lock lock(t.mutex);
  const void *const real = the_aliases[place].exchange(nullptr, std::memory_order_acq_rel);
  std::erase(t.unwritten, place);
  if (!real) std::erase_if(t.by_real, [place](const auto &entry) { return entry.second == place; });
  else if (const auto known = t.by_real.find(real); known != t.by_real.end() && known->second == place)
    t.by_real.erase(known);
  the_drops[place].fetch_add(1, std::memory_order_acq_rel);  // before the place may serve again
  the_drops[place].notify_all();
  try {
    t.free.push_back(place);
  } catch (const std::exception &) {}  // no memory: the place is not used again
}

AliasEnd::AliasEnd(const void *handle) noexcept
    : handle_(handle), drops_(the_drops[place_of(handle)].load(std::memory_order_acquire)) {}
void AliasEnd::wait() const noexcept { the_drops[place_of(handle_)].wait(drops_, std::memory_order_acquire); }

}  // namespace isthmus::bridge
