#include "core/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "core/lock.hpp"

namespace rehearsal {
namespace {

constexpr size_t kQuarantine = 4096;  // so many freed ranges keep their addresses, so that a use is noticed
constexpr uintptr_t kPage = 4096;

using Blocks = std::map<uintptr_t, std::shared_ptr<Block>>;

struct MemoryBooks {
  SharedMutex mutex;
  Blocks device ISTHMUS_GUARDED_BY(mutex);                      // by device address
  Blocks host ISTHMUS_GUARDED_BY(mutex);                        // registered memory, by its address on the host
  std::map<uintptr_t, size_t> freed ISTHMUS_GUARDED_BY(mutex);  // freed device addresses, with the bytes of each range
  std::set<uintptr_t> lost ISTHMUS_GUARDED_BY(mutex);           // beginnings of what a reset took, on the device or the host
  std::deque<uintptr_t> freed_in_order ISTHMUS_GUARDED_BY(mutex);
  std::map<int, size_t> used ISTHMUS_GUARDED_BY(mutex);
  size_t registered ISTHMUS_GUARDED_BY(mutex) = 0;  // bytes of host memory
};
MemoryBooks &books() {
  static MemoryBooks *const the_books = new MemoryBooks;
  return *the_books;
}

uintptr_t round_up(uintptr_t n) { return (n + kPage - 1) & ~(kPage - 1); }

// Addresses at which nothing can be touched; 0: none left. One page more is reserved, so that two ranges never touch.
uintptr_t reserve(size_t bytes) {
  void *p = ::mmap(nullptr, round_up(bytes) + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(p);
}

// The last range that begins at or before the address; end(): none. The range may end before the address.
template <class Map>
typename Map::const_iterator containing(const Map &map, uintptr_t address) {
  auto it = map.upper_bound(address);
  return it == map.begin() ? map.end() : std::prev(it);
}

// Takes away the pages at a block's device address, and notes the range as freed.
void retire(MemoryBooks &b, const Block &block) ISTHMUS_REQUIRES(b.mutex) {
  const uintptr_t start = block.address & ~(kPage - 1);
  const size_t bytes = round_up(block.address + block.bytes) - start;
  constexpr int kOverThem = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  static_cast<void>(::mmap(reinterpret_cast<void *>(start), bytes, PROT_NONE, kOverThem, -1, 0));
  b.freed[start] = bytes;
  b.freed_in_order.push_back(start);
  if (b.freed_in_order.size() > kQuarantine) {
    const auto oldest = b.freed.find(b.freed_in_order.front());
    ::munmap(reinterpret_cast<void *>(oldest->first), oldest->second + kPage);
    b.freed.erase(oldest);
    b.freed_in_order.pop_front();
  }
}

bool overlaps(const Blocks &blocks, uintptr_t start, size_t bytes) {
  const auto next = blocks.lower_bound(start + bytes);
  if (next == blocks.begin()) return false;
  const Block &before = *std::prev(next)->second;
  return std::prev(next)->first + before.bytes > start;
}

Code enter_host_memory(const std::shared_ptr<Block> &block) {
  MemoryBooks &b = books();
  const Lock lock(b.mutex);
  if (overlaps(b.host, block->host, block->bytes)) return Code::Registered;
  if (settings().pinned && b.registered + block->bytes > settings().pinned) return Code::NoMemory;
  block->address = block->host;
  if (!settings().same_address && block->pinned != Pinned::Signal) {
    const uintptr_t within = block->host & (kPage - 1);
    const uintptr_t start = reserve(within + block->bytes);
    if (!start) return Code::NoMemory;
    block->address = start + within;
    b.device[block->address] = block;
  }
  b.host[block->host] = block;
  b.registered += block->bytes;
  return Code::Ok;
}

Code leave_host_memory(void *host, Pinned pinned) {
  MemoryBooks &b = books();
  const Lock lock(b.mutex);
  const auto found = b.host.find(reinterpret_cast<uintptr_t>(host));
  if (found == b.host.end() || found->second->pinned != pinned) return Code::NotRegistered;
  const std::shared_ptr<Block> block = found->second;
  block->live.store(false);
  if (block->address != block->host) {
    b.device.erase(block->address);
    retire(b, *block);
  }
  b.host.erase(found);
  b.registered -= block->bytes;
  return Code::Ok;
}

bool was_lost(uintptr_t address) {
  MemoryBooks &b = books();
  const SharedLock lock(b.mutex);
  return b.lost.count(address) != 0;
}

}  // namespace

Block::~Block() {
  if (engine && !is(Pinned::Registered) && !pooled) ::munmap(engine, round_up(bytes));
  if (mapping) ::munmap(mapping, mapped);
}

Place find_place(uintptr_t address) {
  MemoryBooks &b = books();
  const SharedLock lock(b.mutex);
  Place place;
  for (const Blocks *blocks : {&b.device, &b.host}) {
    const auto it = containing(*blocks, address);
    if (it == blocks->end() || address - it->first >= it->second->bytes) continue;
    place.state = Place::State::Found;
    place.block = it->second;
    place.offset = address - it->first;
    place.by_host_pointer = blocks == &b.host;
    return place;
  }
  const auto it = containing(b.freed, address);
  if (it != b.freed.end() && address - it->first < it->second) place.state = Place::State::Freed;
  return place;
}

Code map_device_memory(int device, size_t bytes, uintptr_t *address) {
  if (bytes == 0) return Code::Invalid;
  MemoryBooks &b = books();
  const Lock lock(b.mutex);
  size_t &used = b.used[device];
  if (bytes > settings().memory || used + round_up(bytes) > settings().memory) return Code::NoMemory;
  const int fd = ::memfd_create("rehearsal device memory", MFD_CLOEXEC);
  if (fd < 0) return Code::NoMemory;
  const auto block = std::make_shared<Block>();
  const size_t mapped = round_up(bytes);
  void *engine = MAP_FAILED;
  uintptr_t seen = 0;
  if (::ftruncate(fd, static_cast<off_t>(mapped)) == 0) {
    engine = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (engine != MAP_FAILED) {
      block->bytes = bytes;
      block->engine = static_cast<std::byte *>(engine);
      seen = reserve(bytes);
      if (seen && ::mmap(reinterpret_cast<void *>(seen), mapped, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        seen = 0;
    }
  }
  ::close(fd);
  if (!seen) return Code::NoMemory;
  block->device = device;
  block->address = seen;
  used += mapped;
  b.device[seen] = block;
  *address = seen;
  born(Live::Allocation);
  return Code::Ok;
}

Code unmap_device_memory(const char *call, uintptr_t address) {
  MemoryBooks &b = books();
  const char *what = nullptr;
  {
    const Lock lock(b.mutex);
    const auto found = b.device.find(address);
    if (found == b.device.end() && b.lost.count(address)) return Code::Invalid;
    if (found == b.device.end())
      what = b.freed.count(address) ? "memory that was freed already" : "not the start of an allocation";
    else if (found->second->on_host()) what = "registered host memory, not an allocation";
    else {
      const std::shared_ptr<Block> block = found->second;
      block->live.store(false);
      b.used[block->device] -= round_up(block->bytes);
      b.device.erase(found);
      retire(b, *block);
    }
  }
  if (what) return misuse(call, Code::Invalid, "%#zx is %s", static_cast<size_t>(address), what);
  died(Live::Allocation);
  return Code::Ok;
}

Code map_host_memory(int device, size_t bytes, Pinned pinned, void **host) {
  if (bytes == 0) return Code::Invalid;
  void *p = ::mmap(nullptr, round_up(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return Code::NoMemory;
  const auto block = std::make_shared<Block>();
  block->device = device;
  block->host = reinterpret_cast<uintptr_t>(p);
  block->bytes = bytes;
  block->engine = static_cast<std::byte *>(p);
  block->pinned = pinned;
  const Code code = enter_host_memory(block);
  if (code != Code::Ok) return code;
  *host = p;
  born(Live::Allocation);
  return Code::Ok;
}

Code unmap_host_memory(const char *call, Pinned pinned, void *host) {
  const Code code = leave_host_memory(host, pinned);
  if (code != Code::Ok && was_lost(reinterpret_cast<uintptr_t>(host))) return Code::Invalid;
  if (code != Code::Ok) return misuse(call, Code::Invalid, "%p is not host memory that was allocated here", host);
  died(Live::Allocation);
  return code;
}

Code register_host_memory(const char *call, int device, void *host, size_t bytes) {
  if (!host || bytes == 0) return misuse(call, Code::Invalid, "%zu bytes at %p", bytes, host);
  const uintptr_t start = reinterpret_cast<uintptr_t>(host) & ~(kPage - 1);
  const uintptr_t end = round_up(reinterpret_cast<uintptr_t>(host) + bytes);
  if (::msync(reinterpret_cast<void *>(start), end - start, MS_ASYNC) != 0)
    return misuse(call, Code::Invalid, "%p, %zu bytes: not all of it is mapped", host, bytes);
  if (const Place p = find_place(reinterpret_cast<uintptr_t>(host)); p.found() && !p.by_host_pointer)
    return misuse(call, Code::Invalid, "%p is an address of the device", host);
  const auto block = std::make_shared<Block>();
  block->device = device;
  block->host = reinterpret_cast<uintptr_t>(host);
  block->bytes = bytes;
  block->engine = static_cast<std::byte *>(host);
  if (settings().own_mapping) {  // a second mapping of the same pages. mremap makes one of shared memory only.
    void *again = ::mremap(reinterpret_cast<void *>(start), 0, end - start, MREMAP_MAYMOVE);
    if (again != MAP_FAILED) {
      ::mprotect(again, end - start, PROT_READ | PROT_WRITE);
      block->mapping = static_cast<std::byte *>(again);
      block->mapped = end - start;
      block->engine = block->mapping + (reinterpret_cast<uintptr_t>(host) - start);
    }
  }
  const Code code = enter_host_memory(block);
  if (code == Code::Ok) born(Live::Registration);
  return code;
}

Code unregister_host_memory(void *host) {
  const Code code = leave_host_memory(host, Pinned::Registered);
  if (code == Code::Ok) died(Live::Registration);
  return code;
}

void lose_memory(int device) {
  MemoryBooks &b = books();
  const Lock lock(b.mutex);
  b.used[device] = 0;
  for (Blocks *blocks : {&b.device, &b.host})
    std::erase_if(*blocks, [&](const auto &entry) ISTHMUS_REQUIRES(b.mutex) {
      Block &block = *entry.second;
      if (block.device != device) return false;
      b.lost.insert(entry.first);
      if (!block.live.exchange(false)) return true;  // seen already: host memory is in both books
      if (!block.on_host() || block.address != block.host) retire(b, block);
      died(block.is(Pinned::Registered) ? Live::Registration : Live::Allocation);
      if (block.on_host()) b.registered -= block.bytes;
      if (block.is(Pinned::Signal)) {  // the runtime has a pool of signals: the pages stay, and others write to them
        block.pooled = true;
        std::memset(block.engine, 0xA5, block.bytes);
      }
      return true;
    });
}

size_t memory_used(int device) {
  MemoryBooks &b = books();
  const SharedLock lock(b.mutex);
  const auto found = b.used.find(device);
  return found == b.used.end() ? 0 : found->second;
}

}  // namespace rehearsal
