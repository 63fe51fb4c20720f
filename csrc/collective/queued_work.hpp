// QueuedWork is all that the queue of a device's stream points to while work of ours stands there. All is in one object: where a queue does not
// come to its end, the object is left behind whole.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ccl/island_ccl.hpp"
#include "collective/device_signals.hpp"
#include "collective/end_marks.hpp"
#include "collective/host_doors.hpp"
#include "collective/scratch_loan.hpp"
#include "collective/stream_ties.hpp"
#include "collective/succession.hpp"
#include "device/runtime.hpp"
#include "process/device_scratch.hpp"

namespace isthmus::collective {

// Where the device finds this process's arena. By the thread that submits.
struct ArenaThere {
  std::byte *base = nullptr;           // of the arena
  std::byte *reserve = nullptr;        // the same for the arena's reserve, which is
  uint64_t reserve_from = UINT64_MAX;  // from this offset on
  std::byte *at(uint64_t offset) const noexcept { return (offset < reserve_from ? base : reserve) + offset; }
};

struct DeviceExecutorSetup {
  device::Runtime *runtime = nullptr;
  std::shared_ptr<ccl::Library> library;
  std::shared_ptr<device::Stream> stream;
  std::shared_ptr<device::Stream> beside;                 // for stages that say so; null: they stand on the one stream too
  std::shared_ptr<ccl::IslandCommunicator> communicator;  // or null; shared while one epoch follows another
  LibraryPlace place;                                     // in it, and what it was called for so far
  std::vector<int> ranks;                                 // of the communicator above us, by position in the group
  std::shared_ptr<process::DeviceScratch> scratch;        // of the device
  uint64_t first_scratch = 0;                             // bytes of scratch that are there from the beginning
  ArenaThere arena;
};

struct QueuedWork : DeviceExecutorSetup {
  QueuedWork(DeviceExecutorSetup setup, device::Wake wake, void *context)
      : DeviceExecutorSetup(std::move(setup)), doors(cancelled, wake, context), blocks(4 * ranks.size()) {}
  QueuedWork(const QueuedWork &) = delete;
  QueuedWork &operator=(const QueuedWork &) = delete;

  // What serves the rank: the library's family, else the runtime's vendor.
  const char *family() const noexcept { return library ? library->family() : runtime->vendor(); }
  // The library's call that runs now, or nullptr.
  const char *doing() const noexcept { return communicator ? communicator->inside() : nullptr; }

  std::atomic<bool> cancelled{false};  // copies that have not begun are skipped
  HostDoors doors;
  DeviceSignals signals;
  StreamTies ties;
  EndMarks marks;
  std::byte *input = nullptr, *output = nullptr, *borrowed = nullptr;  // of the operation that is being submitted
  ScratchLoan loan;
  std::vector<uint64_t> blocks;  // of an all_to_all_v, as ccl::Blocks has them, one list after the other
};

}  // namespace isthmus::collective
