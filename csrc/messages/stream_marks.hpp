// StreamMarks keeps the marks of what streams held at calls (StreamMark), for the copies of messages that are submitted later. Events are used again.
//
// Thread rules: one thread at a time takes a mark, and may call the runtime. The rest any thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/spin_lock.hpp"
#include "device/runtime.hpp"
#include "messages/engine_names.hpp"

namespace isthmus::messages {

class StreamMarks {
 public:
  explicit StreamMarks(device::Runtime &runtime, int device) noexcept : runtime_(runtime), device_(device) {}

  size_t held() {
    const Lock lock(lock_);
    return held_;
  }
  // A mark that nobody has. `record(event)` marks the stream. Null: it has marked nothing.
  template <class Record>
  StreamMark *take(Record record) {
    std::unique_ptr<StreamMark> mark = spare();
    if (!mark) mark = std::make_unique<StreamMark>(StreamMark{runtime_.make_event(device_)});
    const bool marked = record(*mark->event);
    const Lock lock(lock_);
    if (!marked) return spare_.push_back(std::move(mark)), nullptr;
    mark->number = ++numbered_;
    mark->users = 1;
    ++held_;
    return mark.release();
  }
  StreamMark *share(StreamMark *mark) noexcept {
    const Lock lock(lock_);
    ++mark->users;
    return mark;
  }
  void give_back(StreamMark *mark) noexcept {
    const Lock lock(lock_);
    if (--mark->users != 0) return;
    spare_.emplace_back(mark);
    --held_;
  }

 private:
  std::unique_ptr<StreamMark> spare() noexcept {
    const Lock lock(lock_);
    if (spare_.empty()) return nullptr;
    std::unique_ptr<StreamMark> mark = std::move(spare_.back());
    spare_.pop_back();
    return mark;
  }

  device::Runtime &runtime_;
  const int device_;
  SpinLock lock_;
  size_t held_ ISTHMUS_GUARDED_BY(lock_) = 0;
  uint64_t numbered_ ISTHMUS_GUARDED_BY(lock_) = 0;
  std::vector<std::unique_ptr<StreamMark>> spare_ ISTHMUS_GUARDED_BY(lock_);
};

}  // namespace isthmus::messages
