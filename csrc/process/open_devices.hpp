// What this process has on each device that a rank works on: its streams, the blocks of memory that communicators lend each other, and the
// host memory that is registered there. Each is made at first use and shared by all communicators.
//
// Thread rules. Any thread may call. Calls of the device's runtime may hang, so they are made through ask() (hung_device.hpp). A device
// that hangs holds up its own lock alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/lock.hpp"
#include "bootstrap/mesh.hpp"
#include "device/runtime.hpp"
#include "link/arena.hpp"
#include "p2p/quiet_time.hpp"
#include "process/device_scratch.hpp"

namespace isthmus::process {

class OpenDevices {
 public:
  explicit OpenDevices(link::Arena &arena) noexcept : arena_(arena) {}

  // Before anything else on a device. All functions that take a device are for ask().
  void begin(device::Runtime &runtime, int device);
  // The stream of the vendors' libraries that compute on the host: one for the process, while anybody has it.
  static std::shared_ptr<device::Stream> host_stream();
  // Stream `number` of this process on that device, while anybody has it. Ranks that are threads on one device need streams of their own:
  // the gate of one rank may wait for what stands on the stream of another rank.
  std::shared_ptr<device::Stream> stream(device::Runtime &runtime, int device, int number);
  // A stream for the work of one communicator of the process's rank `ordinal` on that device. Such work waits for no other communicator's gate. So many
  // communicators of a rank have a stream each; further ones share the stream that the fewest have. A stream that has failed, or that was stopped
  // for a communicator that has failed, is for those alone who have it.
  std::shared_ptr<device::Stream> own_stream(device::Runtime &runtime, int device, int ordinal);
  static constexpr int kMostOwnStreams = 16;
  std::shared_ptr<DeviceScratch> scratch(device::Runtime &runtime, int device);
  // What ranks of this process have given that device, and waits for other ranks. Calls no runtime.
  p2p::QuietTime &quiet(device::Runtime &runtime, int device) { return known(runtime, device).quiet; }
  // Where that device finds base() of the arena. The device can reach the arena's staging memory from now on; the memory is registered
  // once. Throws what the runtime throws.
  std::byte *arena_on(device::Runtime &runtime, int device);
  // The same for the arena's reserve: where that device finds base() of the arena, for offsets in the reserve. Throws what the runtime throws.
  std::byte *reserve_on(device::Runtime &runtime, int device);
  // Where that device finds memory of a process with which this one shares memory (null: this process). The memory stays registered for the
  // device until the context ends. Null where the runtime cannot register it; the log says so. Page-aligned; a range is asked for whole,
  // always the same.
  std::byte *reach(device::Runtime &runtime, int device, bootstrap::Peer *peer, uint64_t offset, uint64_t bytes);
  // Gives back what is registered. Memory that a device may still reach stays mapped, in this process and where a peer is forgotten. No
  // thread uses the devices any more. Takes no lock, since a call that hangs may hold a device's lock for good.
  void end() noexcept ISTHMUS_UNCHECKED;

 private:
  struct OpenDevice {
    device::Runtime *runtime = nullptr;
    int device = -1;
    std::byte *there ISTHMUS_GUARDED_BY(mutex) = nullptr;    // base() of the arena, for staging; null: not registered
    std::byte *reserve ISTHMUS_GUARDED_BY(mutex) = nullptr;  // likewise, for the reserve
    std::vector<std::weak_ptr<device::Stream>> streams ISTHMUS_GUARDED_BY(mutex);
    struct OwnStream {
      int ordinal;
      std::weak_ptr<device::Stream> stream;
    };
    std::vector<OwnStream> own ISTHMUS_GUARDED_BY(mutex);
    std::weak_ptr<DeviceScratch> scratch ISTHMUS_GUARDED_BY(mutex);
    struct Reached {
      bootstrap::Peer *peer;
      uint64_t offset, bytes;
      std::byte *there;
    };
    std::vector<Reached> reached ISTHMUS_GUARDED_BY(mutex);
    bool begun ISTHMUS_GUARDED_BY(mutex) = false;
    p2p::QuietTime quiet;
    Mutex mutex;  // held in calls of the runtime, from which a call that hangs does not come back
  };
  OpenDevice &known(device::Runtime &runtime, int device);
  static void begin(OpenDevice &d) ISTHMUS_REQUIRES(d.mutex);
  void register_arena(OpenDevice &d) ISTHMUS_REQUIRES(d.mutex);
  // Registers as many bytes from there on as the runtime can. Where the device finds base() of the arena by them, and how many.
  std::pair<std::byte *, size_t> pin_most(OpenDevice &d, std::byte *memory, size_t wanted) ISTHMUS_REQUIRES(d.mutex);

  link::Arena &arena_;
  Mutex mutex_;  // never held over a call of a runtime
  std::deque<OpenDevice> devices_ ISTHMUS_GUARDED_BY(mutex_);
  std::atomic<bool> told_{false};  // what was lost of the pages that were asked for
};

}  // namespace isthmus::process
