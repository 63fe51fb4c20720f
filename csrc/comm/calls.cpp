// What a communicator does for a call before the engine has the operation.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "comm/communicator.hpp"
#include "comm/preparation.hpp"
#include "comm/slot_call.hpp"

namespace isthmus::comm {

void Communicator::check_ours(const char *what) const {
  if (local_->core().birth.here()) return;
  fail(Code::Forked,
       "{}: communicator '{}' belongs to the parent process, and a forked child cannot use it; make one here (init, with an "
       "address or id of its own), or call this in the parent",
       what, name());
}

void Communicator::prepare(const CallRequest &request, engine::Operation &op) {
  if (destroyed_.load(std::memory_order_acquire))
    fail(Code::Argument, "{}: communicator '{}' was destroyed", collective_name(request.collective), name());
  if (terms_.numbering.has_holes()) Preparation(*this, in_ranks(request, terms_.numbering), op).run();
  else Preparation(*this, request, op).run();
}

void Communicator::order_streams(void *before, void *after) {
  device::Runtime *runtime = local_->device().runtime;
  if (!runtime) fail(Code::Argument, "order: streams were given, and this rank works on host memory (ISTHMUS_DEVICE)");
  if (destroyed_.load(std::memory_order_acquire)) fail(Code::Argument, "order: communicator '{}' was destroyed", name());
  const Lock lock(ordered_.mutex);
  const auto adopted = [&](std::unique_ptr<device::Stream> &stream, void *handle) -> device::Stream & {
    if (!stream || stream->handle() != handle) stream = runtime->adopt(local_->device().number, handle);
    return *stream;
  };
  device::Stream &first = adopted(ordered_.before, before), &second = adopted(ordered_.after, after);
  if (first.capturing() || second.capturing())
    fail(Code::Unsupported,
         "order: a stream is being captured into a graph, and what is not in the graph cannot be ordered by it");
  if (!ordered_.event) ordered_.event = runtime->make_event(local_->device().number);
  ordered_.event->record(first);
  ordered_.event->hold(second);
}

void Communicator::make_ready(engine::Operation &op) {
  if (!op.call.by_call) return;
  static std::atomic<bool> said{false};
  if (!said.exchange(true))
    ISTHMUS_WARN(
        "communicator '{}', rank {}: {} got host memory and a stream: such calls wait for the stream and return when the "
        "operation is over; device memory is ordered by the stream and does not wait",
        name(), own_slot(*this), local_->core().describe(op));
  device::Runtime &runtime = *local_->device().runtime;
  const auto stream = runtime.adopt(local_->device().number, op.call.stream);
  const auto event = runtime.make_event(local_->device().number);
  event->record(*stream);
  const Deadline deadline(op.call.timeout);
  context_->progress().stand_in();
  for (auto pause = std::chrono::microseconds(5); !event->reached();
       pause = std::min(2 * pause, std::chrono::microseconds(1000))) {
    if (deadline.passed() && !local_->core().failed())
      local_->core().fail(Code::Timeout,
                          formatted("{} did not begin within {:g} s: the stream that was given has not come to it",
                                    local_->core().describe(op), op.call.timeout),
                          process::Tell::Peers);
    if (local_->core().failed()) { throw Error(local_->core().failure()); }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace isthmus::comm
