#include "collective/library_lane.hpp"

#include <algorithm>
#include <utility>

#include "collective/device_side.hpp"
#include "device/calling.hpp"

namespace isthmus::collective {

bool LibraryLane::carries() const noexcept {
  const DeviceExecutor *const executor = side_.executor();
  return executor && executor->private_memory() && executor->work_->communicator;
}

bool LibraryLane::serves(int rank) const noexcept {
  const std::vector<int> &ranks = side_.ranks();
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

bool LibraryLane::takes_several() const noexcept { return side_.executor()->work_->library->capabilities().groups; }

uint64_t LibraryLane::exchanged() const noexcept { return side_.executor()->signals().exchanged(); }

bool LibraryLane::sound(const Operation &op) noexcept { return side_.sound(op); }

LibraryEstate LibraryLane::estate() const {
  if (!has_library()) return {};
  DeviceExecutor &executor = *side_.executor();
  if (!executor.ending().quiet() || executor.ending().library_aborted() || executor.failed()) return {};
  return {executor.work_->place, executor.work_->communicator, executor.work_->stream};
}

void LibraryLane::let_go() noexcept {
  if (has_library()) side_.executor()->work_->communicator.reset();
}

bool LibraryLane::has_library() const noexcept {
  const DeviceExecutor *const executor = side_.executor();
  return executor && executor->work_->communicator;
}

void LibraryLane::give(std::span<Operation *const> messages) {
  struct Group {
    ccl::IslandCommunicator *library;
    std::span<Operation *const> messages;
    const std::vector<int> *ranks;
    LibraryPlace *place;
  } here{side_.executor()->work_->communicator.get(), messages, &side_.ranks(), &side_.executor()->work_->place};
  here.library->together(
      [](void *context) {
        const Group &g = *static_cast<Group *>(context);
        for (const Operation *op : g.messages) {
          const engine::Call &c = op->call;
          const auto peer = static_cast<int>(std::find(g.ranks->begin(), g.ranks->end(), c.root) - g.ranks->begin());
          const uint64_t count = c.bytes / dtype_size(c.dtype);
          if (c.collective == Collective::Send) g.place->sends_to(static_cast<uint32_t>(peer));
          else g.place->receives_from(static_cast<uint32_t>(peer));
          if (c.collective == Collective::Send) g.library->send(c.input, count, c.dtype, peer);
          else g.library->recv(c.output, count, c.dtype, peer);
        }
      },
      &here);
}

// Nothing of ours that waits for a rank stands on the device (p2p/quiet_time.hpp), so no gate is needed.
void LibraryLane::exchange(std::span<Operation *const> messages, uint64_t ticket) {
  DeviceExecutor &executor = *side_.executor();
  device::Stream &stream = *executor.work_->stream;
  StreamTies &ties = executor.work_->ties;
  uint64_t bytes = 0;
  for (const Operation *op : messages) bytes += op->call.bytes;
  executor.ending().begin(bytes);
  executor.early_.forget();  // an operation that follows may work on what comes here
  executor.ending().exchanges(ticket);
  struct Signal {  // also where something is thrown: with the signal the stream has done all that it was given
    LibraryLane &lane;
    uint64_t ticket;
    ~Signal() { lane.end(ticket); }
  } const signal{*this, ticket};
  bool behind_default = false;
  for (const Operation *op : messages) {
    if (op->call.on_stream) {
      ties.user(executor.runtime(), executor.device(), op->call.stream);
      ties.behind_user(stream);
    } else if (!std::exchange(behind_default, true)) {
      ties.behind_default(executor.runtime(), stream);
    }
  }
  give(messages);
  for (const Operation *op : messages) {
    if (!op->call.on_stream) continue;
    ties.user(executor.runtime(), executor.device(), op->call.stream);
    ties.user_behind(stream);
  }
}

// Two tries, as in DeviceExecutor::finish().
void LibraryLane::end(uint64_t ticket) noexcept {
  DeviceExecutor &executor = *side_.executor();
  for (int tries = 0; tries < 2; ++tries) {
    if (device::left_behind_here()) return;
    try {
      return executor.work_->signals.exchange(ticket, *executor.work_->stream);
    } catch (const Error &) {}
  }
  executor.ending().unfinished();
}

}  // namespace isthmus::collective
