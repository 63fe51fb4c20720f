// The ranges of host memory that a vendor has pinned, with the number of devices that use each. A range is pinned once for all devices. Each
// device has an address of its own for the range (registered.hpp).
#pragma once

#include <cstddef>
#include <map>

#include "base/error.hpp"
#include "base/lock.hpp"

namespace isthmus::device {

class PinnedRanges {
 public:
  // One more device uses the range. The first use makes the vendor's call, pin(). `vendor`: for the text of Error(Argument), where the
  // same address is pinned for fewer bytes.
  template <class Pin>
  void add(void *memory, size_t bytes, const char *vendor, Pin pin) {
    const Lock one(pinning_);
    {
      const Lock lock(mutex_);
      if (const auto it = ranges_.find(memory); it != ranges_.end()) {
        if (it->second.bytes < bytes)
          fail(Code::Argument, "{}: only {} bytes at {} are registered already, and not {}", vendor, it->second.bytes,
               memory, bytes);
        ++it->second.users;
        return;
      }
    }
    pin();
    const Lock lock(mutex_);
    ranges_[memory] = {bytes, 1};
  }
  // One device less. True: the device was the last, and the range is to be unpinned.
  bool remove(void *memory) {
    const Lock lock(mutex_);
    const auto it = ranges_.find(memory);
    if (it == ranges_.end() || --it->second.users > 0) return false;
    ranges_.erase(it);
    return true;
  }

 private:
  struct PinnedRange {
    size_t bytes = 0;
    int users = 0;
  };
  Mutex pinning_;  // held over the vendor's call that pins, which a device that hangs may hold up
  Mutex mutex_;
  std::map<void *, PinnedRange> ranges_ ISTHMUS_GUARDED_BY(mutex_);
};

}  // namespace isthmus::device
