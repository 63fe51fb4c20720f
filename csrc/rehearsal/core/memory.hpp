// Memory of the devices, and memory of the host that the devices were told of.
//
// Device memory is mapped twice: without access at the address that the program sees, so that a touch by the host is a fault, and with
// access for the engine. Registered host memory has another address on the device than on the host, where nothing is mapped either.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/ledger.hpp"

namespace rehearsal {

// How memory of the host came to be known.
enum class Pinned {
  Registered,  // the program's
  Allocated,   // the engine's
  Signal       // the engine's, and one address for host and device
};

struct Block {
  int device = 0;
  uintptr_t address = 0;  // on the device, as the program sees it
  uintptr_t host = 0;     // on the host; 0: memory of the device
  size_t bytes = 0;
  std::byte *engine = nullptr;   // where the engine reads and writes
  std::byte *mapping = nullptr;  // of the engine's own, of host memory; page-aligned
  size_t mapped = 0;
  Pinned pinned = Pinned::Registered;
  std::atomic<bool> live{true};
  bool pooled = false;  // its pages stay, for the next one to have

  Block() = default;
  Block(const Block &) = delete;
  Block &operator=(const Block &) = delete;
  ~Block();
  bool on_host() const noexcept { return host != 0; }
  bool is(Pinned p) const noexcept { return on_host() && pinned == p; }
};

// What an address means.
struct Place {
  enum class State { Unknown, Freed, Found };
  State state = State::Unknown;
  std::shared_ptr<Block> block;
  size_t offset = 0;
  bool by_host_pointer = false;

  bool found() const noexcept { return state == State::Found; }
  std::byte *at() const noexcept { return block->engine + offset; }
  size_t left() const noexcept { return block->bytes - offset; }
};

// An address of device memory, a device address of registered host memory, or a pointer into registered host memory.
REHEARSAL_API Place find_place(uintptr_t address);

// These only keep the books; the machine's functions of the same purpose wait and lock.
Code map_device_memory(int device, size_t bytes, uintptr_t *address);
Code unmap_device_memory(const char *call, uintptr_t address);
Code map_host_memory(int device, size_t bytes, Pinned pinned, void **host);
Code unmap_host_memory(const char *call, Pinned pinned, void *host);
Code register_host_memory(const char *call, int device, void *host, size_t bytes);
Code unregister_host_memory(void *host);
REHEARSAL_API size_t memory_used(int device);
void lose_memory(int device);  // all that was allocated there or registered for it

}  // namespace rehearsal
