// Where our stream has come to the end of an operation, for operations behind which a stream of the program's comes only when the program says so
// (Call::order_later).
#pragma once

#include <memory>
#include <vector>

#include "base/spin_lock.hpp"
#include "collective/engine_names.hpp"
#include "device/runtime.hpp"

namespace isthmus::collective {

class DeviceSide;

// What `stream` of the program's is given from now on comes behind `op`, which was to be ordered later. Any thread.
void order_behind(RankCore &core, DeviceSide &device, Operation *op, void *stream) noexcept;

class EndMarks {
 public:
  // What `stream` was given so far. By the thread that submits. Allocates nothing where an earlier mark was given back.
  device::Event *mark(device::Runtime &runtime, device::Stream &stream) {
    device::Event *event = take();
    if (!event) {
      auto made = runtime.make_event(stream.device());
      event = made.get();
      const Lock lock(lock_);
      made_.push_back(std::move(made));
      spare_.reserve(made_.size());  // so that give() never allocates
    }
    event->record(stream);
    return event;
  }
  // The operation is over. Any thread.
  void give(device::Event *event) noexcept {
    const Lock lock(lock_);
    spare_.push_back(event);
  }

 private:
  device::Event *take() noexcept {
    const Lock lock(lock_);
    if (spare_.empty()) return nullptr;
    device::Event *const event = spare_.back();
    spare_.pop_back();
    return event;
  }

  SpinLock lock_;
  std::vector<std::unique_ptr<device::Event>> made_ ISTHMUS_GUARDED_BY(lock_);
  std::vector<device::Event *> spare_ ISTHMUS_GUARDED_BY(lock_);
};

}  // namespace isthmus::collective
