// Memory of the devices, and memory of the host that is registered with a device.
//
// Device memory is pages of the process that are mapped twice. The program's address has no access, so a touch by the host is a fault. The
// queues' threads (the engine) use the second mapping. Registered memory of the host has an address on the device, too. That address is
// another one than the host's, and nothing can be touched there.
//
//                        the program sees            the engine reads and writes
//   device memory        Block::address              Block::engine, a mapping of the same pages
//   host memory          Block::host                 Block::engine: the program's mapping, or one of the engine's own
//     on the device      Block::address
//
// Exceptions: REHEARSAL_SAME_ADDRESS, and Pinned::Signal, give host memory one address for both.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/ledger.hpp"

namespace rehearsal {

// How memory of the host came to be registered.
enum class Pinned {
  Registered,  // memory of the program, which the program registered
  Allocated,   // memory that the vendor's library allocated
  Signal       // likewise, with one address for host and device
};

// One allocation of a device, or one registration of host memory.
struct Block {
  int device = 0;
  uintptr_t address = 0;  // on the device, as the program sees it
  uintptr_t host = 0;     // on the host; 0: memory of the device
  size_t bytes = 0;
  std::byte *engine = nullptr;   // where the engine reads and writes
  std::byte *mapping = nullptr;  // a second mapping of host memory (REHEARSAL_OWN_MAPPING), page-aligned; null: none
  size_t mapped = 0;             // bytes of `mapping`
  Pinned pinned = Pinned::Registered;
  std::atomic<bool> live{true};  // neither freed nor lost
  bool pooled = false;           // the pages stay mapped when the block goes

  Block() = default;
  Block(const Block &) = delete;
  Block &operator=(const Block &) = delete;
  ~Block();  // unmaps what the engine uses. Work that still holds the block can touch the bytes until then.
  bool on_host() const noexcept { return host != 0; }
  bool is(Pinned p) const noexcept { return on_host() && pinned == p; }
};

// What an address of the program means.
struct Place {
  enum class State { Unknown, Freed, Found };
  State state = State::Unknown;
  std::shared_ptr<Block> block;
  size_t offset = 0;             // of the address in the block
  bool by_host_pointer = false;  // the address is the host's, and not the device's

  bool found() const noexcept { return state == State::Found; }
  std::byte *at() const noexcept { return block->engine + offset; }
  size_t left() const noexcept { return block->bytes - offset; }
};

// Finds an address of device memory, a device address of registered host memory, or a pointer into registered host memory. Freed: the
// address meant something before. Only the last 4096 freed ranges are known.
REHEARSAL_API Place find_place(uintptr_t address);

// These only keep the books. allocate() and the other functions of machine.hpp take the device's lock and wait. Any thread may call these.
// Invalid: zero bytes, or a misuse. NoMemory: the settings' limit is reached. Registered, NotRegistered: the host's range.
Code map_device_memory(int device, size_t bytes, uintptr_t *address);
Code unmap_device_memory(const char *call, uintptr_t address);
Code map_host_memory(int device, size_t bytes, Pinned pinned, void **host);
Code unmap_host_memory(const char *call, Pinned pinned, void *host);
Code register_host_memory(const char *call, int device, void *host, size_t bytes);
Code unregister_host_memory(void *host);
REHEARSAL_API size_t memory_used(int device);
void lose_memory(int device);  // a reset takes all that was allocated on the device or registered for it

}  // namespace rehearsal
