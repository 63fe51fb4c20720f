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

// What `stream` of the program's is given from now on comes behind `op`, which was to be ordered later. Any thread. Throws what the runtime throws,
// and Error(Unsupported) for a stream that is being captured: then the operation goes on, and the stream is not ordered.
void order_behind(RankCore &core, DeviceSide &device, Operation *op, void *stream);

class EndMarks {
 public:
  // What `stream` was given so far is the end of `op`. By the thread that submits. Allocates nothing where an earlier mark was given back.
  void mark(Operation &op, device::Runtime &runtime, device::Stream &stream);
  // `op` is over. Any thread. A thread that orders another stream behind `op` may still look at the mark, and sees by the number whose it is.
  void give(const Operation &op) noexcept {
    const Lock lock(lock_);
    spare_.push_back(op.end.mark);
  }

 private:
  SpinLock lock_;
  std::vector<std::unique_ptr<engine::EndMark>> made_ ISTHMUS_GUARDED_BY(lock_);
  std::vector<engine::EndMark *> spare_ ISTHMUS_GUARDED_BY(lock_);
};

}  // namespace isthmus::collective
