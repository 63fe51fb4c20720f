#include "rank/rank.hpp"

#include <chrono>
#include <new>
#include <set>
#include <thread>
#include <tuple>

#include "base/clock.hpp"
#include "engine/completions.hpp"

namespace isthmus::rank {
namespace {

void wake(void *context) noexcept { static_cast<Context *>(context)->wake(); }

}  // namespace

// The parts of a setup that are made before the rank's rooms.
struct Rank::Parts {
  std::unique_ptr<DeviceExecutor> executor;
  std::unique_ptr<DeviceCopier> copier;
  std::vector<int> library_ranks;
  RankDevice device;
  DeviceStreams streams;
  std::string family;

  explicit Parts(RankSetup &s) : library_ranks(s.island.ranks) {
    if (!s.island.stream) return;
    std::byte *const arena = s.island.arena.base;
    executor = std::make_unique<DeviceExecutor>(std::move(s.island), wake, s.context.get());
    family = executor->family();
    if (!executor->private_memory()) return;
    device = {&executor->runtime(), executor->device()};
    device.quiet = &s.context->devices().quiet(*device.runtime, device.number);
    streams = executor->streams();
    copier = std::make_unique<DeviceCopier>(*device.runtime, device.number, arena, wake, s.context.get());
  }
  Identity identity(RankSetup &s) const {
    const int world = s.topology.size();
    return {std::move(s.topology), s.rank, world, s.index, s.epoch, s.context->ranks().next_serial(),
            std::move(s.name),     family};
  }
};

Rank::Rank(RankSetup setup) : Rank(setup, Parts(setup)) {}

Rank::Rank(RankSetup &s, Parts parts)
    : port_(*this),
      core_(s.context, parts.identity(s), parts.device,
            std::launder(reinterpret_cast<Mailbox *>(s.context->arena().base() + s.mailbox_offset)), s.cell_bytes, *this,
            port_),
      credit_window_(s.credit_window),
      library_messages_(s.library_messages),
      health_(core_, parts.streams),
      collectives_(
          core_,
          {std::move(parts.executor), std::move(parts.library_ranks), s.fixed_ring, s.fixed_ring_bytes, s.credit_window},
          health_),
      messages_(core_, std::move(parts.copier), s.part_bytes, s.group_wait_ns),
      blame_(core_, collectives_, messages_,
             s.served_in.empty() ? std::vector<int>(static_cast<size_t>(core_.id.world), -1) : std::move(s.served_in)),
      driver_(core_, collectives_, messages_, health_, blame_),
      events_(core_, collectives_, messages_, driver_),
      exchange_(core_),
      agreement_(core_),
      departure_(core_, collectives_, messages_, driver_, s.mailbox_offset),
      succession_(core_, collectives_, messages_, driver_) {}

Rank::~Rank() {
  if (core_.birth.here()) return;
  collectives_.device().forget();
  messages_.forget();
  collectives_.memory().take_all();
}

void Rank::open_peers() {
  for (int q = 0; q < core_.id.world; ++q) {
    PeerRank &p = core_.peers[q];
    p.send_credit.open(credit_window_, p.mail ? &p.mail->consumed(core_.id.rank, core_.cell_bytes) : nullptr);
    p.recv_credit.open(credit_window_, p.mail ? &core_.mail->consumed(q, core_.cell_bytes) : nullptr);
  }
  if (library_messages_) messages_.library().open(collectives_.device().lane());
}

namespace {

void begin(Rank &rank, Operation *op) noexcept {
  op->rank = &rank;
  op->core = &rank.core();
  if (!op->life.inline_op) {
    op->keep = rank.shared_from_this();
    OperationPool::retain(op);  // the engine's reference, dropped by finish_operation
  }
  op->time.submitted_ns = now_ns();
  op->time.deadline_ns = op->time.submitted_ns + seconds_to_ns(op->call.timeout);
}

}  // namespace

void exchange_by_library(Rank &rank, std::span<Operation *const> messages) noexcept {
  messages::LibraryMessages &library = rank.messages().library();
  if (!library.any()) return;
  for (Operation *op : messages) begin(rank, op);
  library.exchange(messages);
}

void Rank::submit(Operation *op) noexcept {
  if (!op->rank) begin(*this, op);  // else its group has begun it
  if (op->is_p2p()) return messages_.submit(op);
  core_.pending.fetch_add(1, std::memory_order_acq_rel);
  if (core_.failed()) return collectives_.submit_failed(op);
  collectives_.submit(op, [this, op] { messages_.copies().submit_before(op); });
  // A failure may have come between the look above and now. Then the operation is in a list that the driver ends.
}

void Rank::run(Operation *op) noexcept {
  submit(op);
  if (core_.device) StreamOrder::settle();
  if (op->is_p2p() || (op->plan && op->plan->uses_links)) driver_.drive();
  else driver_.drive_operations();
}

void Rank::abort(std::string text) noexcept {
  exchange_.abort();
  core_.fail(Code::Aborted, std::move(text), Tell::Peers);
}

void Rank::leave(int64_t until_ns) noexcept {
  if (core_.leave()) departure_.leave(until_ns, succession_.gone_over());
}

void Rank::release(Operation &op, Code result) noexcept {
  if (op.is_p2p()) messages_.release(op, result);
  else collectives_.release(op, result);
}

namespace {

// One look at those in flight and then at those that have ended.
std::vector<Record> look_at_records(RankCore &core, Collectives &collectives, Messages &messages, size_t &in_flight) {
  constexpr size_t kMostCollectives = 4096, kMost = 8192;
  std::vector<Record> flying;
  const auto add = [&](const Operation &o) {
    flying.push_back({core.id.serial, o.sequence, o.time.submitted_ns, 0, o.call.bytes, o.call.root, o.call.tag,
                      static_cast<uint8_t>(o.call.collective), static_cast<uint8_t>(o.call.dtype),
                      static_cast<uint8_t>(o.call.op), static_cast<uint8_t>(Code::InProgress)});
  };
  collectives.queue().each([&](const Operation &o) {
    add(o);
    return flying.size() < kMostCollectives;
  });
  messages.each([&](const Operation &o, const OperationList &, const MatchState &) {
    add(o);
    return flying.size() < kMost;
  });
  in_flight = flying.size() < kMostCollectives ? flying.size() : SIZE_MAX;
  std::vector<Record> all = core.context->recorder().read();
  std::erase_if(all, [&](const Record &r) { return r.communicator != core.id.serial; });
  std::set<std::tuple<uint64_t, int64_t, uint8_t>> ended;  // some of those in flight have ended meanwhile
  for (const Record &r : all) ended.emplace(r.sequence, r.submitted_ns, r.collective);
  for (const Record &r : flying)
    if (!ended.contains({r.sequence, r.submitted_ns, r.collective})) all.push_back(r);
  return all;
}

}  // namespace

// An operation that ends is in no list for a moment before it is in the recorder. Collectives have consecutive numbers, so a gap tells of one. A
// message is pending until it is in the recorder. So this looks again: for 50 ms, as others are pending before they are in a list, and for a
// second where there is a gap, which closes when the thread that has ended the operation goes on.
std::vector<Record> Rank::records() {
  const Deadline patience(0.05), of_gap(1);
  std::vector<Record> all;
  bool gap = false;
  for (bool again = false; !again || !(gap ? of_gap : patience).passed(); again = true) {
    if (again) std::this_thread::sleep_for(std::chrono::microseconds(100));
    const uint32_t pending = core_.pending.load(std::memory_order_acquire);
    size_t in_flight = 0;
    all = look_at_records(core_, collectives_, messages_, in_flight);
    std::set<uint64_t> numbers;
    for (const Record &r : all)
      if (!is_message(static_cast<Collective>(r.collective))) numbers.insert(r.sequence);
    gap = !numbers.empty() && *numbers.rbegin() - *numbers.begin() + 1 != numbers.size();
    if (!gap && in_flight >= pending) break;
  }
  return all;
}

}  // namespace isthmus::rank
