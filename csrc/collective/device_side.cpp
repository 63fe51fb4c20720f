#include "collective/device_side.hpp"

#include <algorithm>

#include "base/copy.hpp"
#include "device/abandoned.hpp"

namespace isthmus::collective {
namespace {

// Copies what of piece `k` belongs to blocks of the user's. Nothing between the blocks is touched.
void copy_piece(Operation &op, uint32_t k) noexcept {
  const Bounce &b = op.run.bounce;
  const plan::Operands o = op.operands();
  const bool input = k < b.input_pieces;
  const std::span<const uint64_t> at = input ? o.input_displ : o.output_displ,
                                  bytes = input ? o.input_bytes : o.output_bytes;
  const uint64_t begin = b.begin(k), end = begin + b.bytes(k);
  std::byte *const here = b.host + b.place(k);
  for (size_t i = 0; i < at.size(); ++i) {
    const uint64_t from = std::max(begin, at[i]), to = std::min(end, at[i] + bytes[i]);
    if (from >= to) continue;
    if (input) copy_bytes(here + (from - begin), op.call.input + from, to - from);
    else copy_bytes(op.call.output + from, here + (from - begin), to - from);
  }
}

}  // namespace

DeviceSide::~DeviceSide() = default;

void DeviceSide::submit(Operation &op) {
  executor_->submit(
      op, std::exchange(behind_host_, false),
      [](void *core, bool (*holds)(const void *), const void *what) {
        static_cast<RankCore *>(core)->sleep_until([&] { return holds(what); });
      },
      &core_);
}

// A failed call is noted before any signal that comes behind the call on the stream.
bool DeviceSide::sound(const Operation &op) noexcept {
  if (!executor_->failed()) return true;
  const Status s = executor_->status();
  core_.fail_at(op, s.code, ": " + s.text);
  return false;
}

bool DeviceSide::capturing(void *stream) {
  health_.refuse_stuck();
  const engine::CountedCall counted(core_);
  // A thread that submits to a device that cannot wait for the host may hold the submit lock for as long as the exchange takes.
  try {
    const SubmitLock::Held order = core_.collective_lock.try_take();
    if (!order) return core_.device && core_.device.runtime->adopt(core_.device.number, stream)->capturing();
    return executor_ && executor_->user(stream).capturing();
  } catch (const Error &) {
    if (!core_.failed()) throw;
  }
  const Status why = core_.failure();
  throw Error(why.code, why.text);
}

// ---- plain host memory ---------------------------------------------------------------------------------------------------------------

void DeviceSide::bounce_input(Operation &op) {
  if (!bounces_)
    bounces_ = std::make_unique<Bounces>(core_.context->arena(), executor_->arena().base, *core_.device.runtime,
                                         core_.device.number,
                                         formatted("communicator '{}', rank {}", core_.id.name, core_.id.number()));
  Bounce &b = op.run.bounce;
  const bool writes = op.call.output && writes_output(op.call.collective, core_.id.rank, op.call.root);
  b = bounces_->take(op.given_input(), writes ? op.given_output() : 0);
  b.filled_before = std::min(b.input_pieces, b.slots);
  for (; b.filled < b.filled_before; ++b.filled) copy_piece(op, b.filled);
}

bool DeviceSide::bounce_on(Operation &op) noexcept {
  Bounce &b = op.run.bounce;
  const uint32_t filled = b.filled, emptied = b.emptied;
  while (b.filled < b.input_pieces && executor_->signals().has_copied(op.sequence, b.filled - b.slots + 1)) {
    copy_piece(op, b.filled++);
    executor_->doors().give_pieces(op.sequence, b.filled);
  }
  while (b.emptied < b.output_pieces && executor_->signals().has_copied(op.sequence, b.input_pieces + b.emptied + 1) &&
         sound(op)) {
    copy_piece(op, b.input_pieces + b.emptied++);
    executor_->doors().give_pieces(op.sequence, b.input_pieces + b.emptied + b.slots);
  }
  return b.filled != filled || b.emptied != emptied;
}

void DeviceSide::bounce_output(Operation &op, bool well) noexcept {
  // Where the device may still come to the copy out, no operation gets the place any more. Where this rank has left before the operation's
  // thread came back from the driver, there is nothing to give back to.
  if (bounces_ && (well || !executor_ || executor_->ending().idle())) bounces_->give(op.run.bounce);
  else if (bounces_) bounces_->lose(op.run.bounce);
  op.run.bounce = {};
}

void DeviceSide::drop_bounces(bool lost) noexcept {
  if (lost) device::keep_for_good(bounces_.release());
  else bounces_.reset();
}

// ---- failure and end -----------------------------------------------------------------------------------------------------------------

// After an abort the gates hold nothing. So work behind the gates may fill slots that other ranks still read. The other ranks are told first, by
// `overrun`.
void DeviceSide::abort() noexcept {
  bool idle;
  {
    const SubmitLock::Held order = core_.collective_lock.try_take();  // not held: a thread submits just now
    idle = order && executor_->ending().idle();
    if (!idle) core_.mail->standing.overrun.store(1, std::memory_order_seq_cst);
  }
  // Who submits looks for the failure with the lock, so nothing comes to what was idle.
  const bool spares = idle && core_.failed();
  executor_->ending().abort(spares ? DeviceEnding::Spare::Library : DeviceEnding::Spare::Nothing);
}

DeviceSide::DeviceEstate DeviceSide::estate() noexcept {
  const SubmitLock::Held order = core_.collective_lock.try_take();
  if (!order) return {};
  if (!executor_) return {true, {}};
  return {executor_->ending().quiet(), lane_.estate()};
}

void DeviceSide::let_go_library() noexcept {
  if (executor_) executor_->ending().hand_over();  // also where the lock cannot be had
  const SubmitLock::Held order =
      core_.collective_lock.take(nullptr, [this] { return core_.leave_behind(core_.collective_lock); });
  if (order) lane_.let_go();
}

// A rank of the library's group has ended, or has not come to the collective that this rank is in.
bool DeviceSide::somebody_will_not_come(uint64_t entered) const noexcept {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](int q) {
    const PeerRank &p = core_.peers[q];
    return q != core_.id.rank && (p.lost() || p.left.load() || !p.mail ||
                                  p.mail->description(entered).sequence.load(std::memory_order_acquire) < entered);
  });
}

bool DeviceSide::settled(uint64_t entered) noexcept {
  if (!executor_) return true;
  abort();  // first: a thread that submits may wait for room behind a gate
  const int64_t now = now_ns();
  const SubmitLock::Held order = core_.collective_lock.try_take();
  const bool wants_stop = stop_.wanted(*executor_, now, static_cast<bool>(order));
  if (!order) {
    if (!core_.leave_behind(core_.collective_lock)) return false;
    executor_->ending().leave_behind();
    return true;
  }
  if (executor_->ending().settled(now, somebody_will_not_come(entered), stop_.refused())) return true;
  // A thread that waits for the device may have the driver locked. So the driver is asked for the device's health when that wait is over.
  if (!wants_stop) health_.doubt(now);
  return false;
}

// A thread that submits may stand at a gate with the lock, until that thread hears of the failure. Then the worker is called again.
void DeviceSide::died() noexcept {
  if (const SubmitLock::Held order = core_.collective_lock.try_take(); order && executor_) executor_->ending().died();
}

std::unique_ptr<DeviceExecutor> DeviceSide::take_executor() noexcept {
  if (const SubmitLock::Held order =
          core_.collective_lock.take(nullptr, [this] { return core_.leave_behind(core_.collective_lock); }))
    return std::move(executor_);
  return nullptr;
}

void DeviceSide::leave_executor() noexcept {
  abort();
  executor_->ending().leave_behind();
}

void DeviceSide::forget() noexcept { (void)executor_.release(); }

}  // namespace isthmus::collective
