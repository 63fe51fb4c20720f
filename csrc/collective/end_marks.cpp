#include "collective/end_marks.hpp"

#include "collective/device_side.hpp"

namespace isthmus::collective {

void EndMarks::mark(Operation &op, device::Runtime &runtime, device::Stream &stream) {
  engine::EndMark *mark = nullptr;
  {
    const Lock lock(lock_);
    if (!spare_.empty()) {
      mark = spare_.back();
      spare_.pop_back();
    }
  }
  if (!mark) {
    auto made = std::make_unique<engine::EndMark>();
    made->event = runtime.make_event(stream.device());
    mark = made.get();
    const Lock lock(lock_);
    made_.push_back(std::move(made));
    spare_.reserve(made_.size());  // so that give() never allocates
  }
  mark->sequence = op.sequence;
  op.end.mark = mark;  // first: it goes back with the operation, also where the record fails
  mark->event->record(stream);
}

void order_behind(RankCore &core, DeviceSide &device, Operation *op, void *stream) {
  const SubmitLock::Held order = core.lock_for(core.collective_lock, op);
  if (!order || op->over() || core.failed() || !device.executor() || !op->end.mark) return;
  if (op->end.mark->sequence != op->sequence) return;  // the operation is as good as over, and another one has the mark
  device::Stream &theirs = device.executor()->user(stream);
  if (theirs.capturing())
    fail(Code::Unsupported,
         "work_order: the stream is being captured into a graph, in which nothing of {} can be waited for",
         collective_name(op->call.collective));
  op->end.mark->event->hold(theirs);
}

}  // namespace isthmus::collective
