// From a user's request, in elements, to an operation, in bytes: validation, operands, the choice between cells and plan.
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "comm/communicator.hpp"
#include "nlohmann/json.hpp"

namespace isthmus::comm {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 56;

uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 32);
}

// `count` elements of `size` bytes, `times` of them; an error where that is more than memory can hold or less than nothing.
uint64_t to_bytes(const char *name, uint64_t count, uint64_t size, uint64_t times) {
  if (count > kMaxBytes / size / std::max<uint64_t>(times, 1))
    fail(Code::Argument, "{}: a count of {} elements{} is negative or too large", name, static_cast<int64_t>(count),
         times > 1 ? formatted(" for each of {} ranks", times) : "");
  return count * size;
}

// Blocks that a collective writes must not share a byte: which rank's would stay is nobody's decision. Ascending ones, as nearly all are, are
// looked at in their order.
void check_apart(const char *name, const uint64_t *counts, const uint64_t *displs, uint64_t world) {
  uint64_t end = 0, last = 0;
  bool ascending = true;
  for (uint64_t b = 0; b < world && ascending; ++b) {
    if (counts[b] == 0) continue;
    ascending = displs[b] >= end;
    end = displs[b] + counts[b];
  }
  if (ascending) return;
  static thread_local std::vector<uint64_t> order;
  order.clear();
  for (uint64_t b = 0; b < world; ++b)
    if (counts[b] != 0) order.push_back(b);
  std::sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return displs[a] < displs[b]; });
  end = 0;
  for (const uint64_t b : order) {
    if (displs[b] < end)
      fail(Code::Argument,
           "{}: the blocks that are received from rank {} ({} elements at {}) and from rank {} ({} at {}) overlap", name,
           last, counts[last], displs[last], b, counts[b], displs[b]);
    end = displs[b] + counts[b];
    last = b;
  }
}

// What this rank gives and what it gets must not share a byte, but where the call's in place puts the one onto the other: else what is read
// depends on how far the copies have come.
void check_aliasing(const char *name, const engine::Operation &op, size_t me) {
  const auto o = op.operands();
  const size_t ins = o.in_bytes.size(), outs = o.out_bytes.size();
  const auto start = [](const std::byte *base, uint64_t at) { return reinterpret_cast<uintptr_t>(base) + at; };
  struct Range {
    uintptr_t first = UINTPTR_MAX, end = 0;
  } in, out;  // of all blocks
  const auto hull = [&](Range &r, const std::byte *base, std::span<const uint64_t> at, std::span<const uint64_t> bytes) {
    for (size_t b = 0; b < bytes.size(); ++b) {
      if (bytes[b] == 0) continue;
      r.first = std::min(r.first, start(base, at[b]));
      r.end = std::max(r.end, start(base, at[b]) + bytes[b]);
    }
  };
  hull(in, op.call.in, o.in_displ, o.in_bytes);
  hull(out, op.call.out, o.out_displ, o.out_bytes);
  if (in.first >= out.end || out.first >= in.end) return;
  for (size_t i = 0; i < ins; ++i)
    for (size_t k = 0; k < outs; ++k) {
      const uintptr_t a = start(op.call.in, o.in_displ[i]), b = start(op.call.out, o.out_displ[k]);
      if (o.in_bytes[i] == 0 || o.out_bytes[k] == 0 || a >= b + o.out_bytes[k] || b >= a + o.in_bytes[i]) continue;
      // In place a block lies on that of its number, and where the one side has a single block, on this rank's own.
      if (a == b && (ins == outs ? i == k : ins == 1 ? k == me : i == me)) continue;
      fail(Code::Argument,
           "{}: send ({} bytes at {}) and recv ({} bytes at {}) overlap, and the call is not in place so (isthmus.h); give "
           "buffers that do not overlap",
           name, o.in_bytes[i], reinterpret_cast<const void *>(a), o.out_bytes[k], reinterpret_cast<const void *>(b));
    }
}

[[noreturn]] void refuse_two_places(const char *name, bool in) {
  fail(Code::Argument, "{}: send is memory of {} and recv of {}; give both of one, or pinned memory that the device reaches",
       name, in ? "the device" : "the host", in ? "the host" : "the device");
}

}  // namespace

// Blocks of input and output as the definition of the collective says; displacements default to back to back.
void Communicator::blocks(const Request &r, engine::Operation &op) const {
  const auto world = static_cast<uint64_t>(local_->id().world);
  const auto me = static_cast<uint64_t>(local_->id().rank);
  const uint64_t size = dtype_size(op.call.dtype);
  const char *name = collective_name(r.collective);
  const CollectiveTraits &what = traits(r.collective);
  const auto equal = [&](uint64_t blocks) {
    for (uint64_t b = 0; b < blocks; ++b) op.blocks.push_back(b * op.call.bytes);
    for (uint64_t b = 0; b < blocks; ++b) op.blocks.push_back(op.call.bytes);
    return static_cast<uint32_t>(blocks);
  };
  const auto listed = [&](const uint64_t *counts, const uint64_t *displs) {
    uint64_t at = 0;
    for (uint64_t b = 0; b < world; ++b) {
      const uint64_t bytes = to_bytes(name, counts[b], size, 1);
      op.blocks.push_back(displs ? to_bytes(name, displs[b], size, 1) : at);
      at += bytes;
      if (at > kMaxBytes) fail(Code::Argument, "{}: the counts add up to more than memory can hold", name);
    }
    for (uint64_t b = 0; b < world; ++b) {
      op.blocks.push_back(counts[b] * size);
      op.call.bytes = std::max(op.call.bytes, counts[b] * size);
    }
    return static_cast<uint32_t>(world);
  };
  const auto own = [&](uint64_t bytes) {
    op.blocks.push_back(0);
    op.blocks.push_back(bytes);
    return 1u;
  };
  // One side of the call. A single block of a call with counts is what the other side's list says of this rank.
  const auto side = [&](Blocks blocks, const uint64_t *counts, const uint64_t *displs, const uint64_t *others) {
    if (!what.varying) return equal(block_count(blocks, local_->id().world));
    return blocks == Blocks::One ? own(to_bytes(name, others[me], size, 1)) : listed(counts, displs);
  };
  op.blocks.clear();
  op.in_blocks = side(what.in, r.send_counts, r.send_displs, r.recv_counts);
  op.out_blocks = side(what.out, r.recv_counts, r.recv_displs, r.send_counts);
  if (!what.varying || what.out == Blocks::One) return;
  if (r.recv_displs && writes_output(r.collective, local_->id().rank, r.root))
    check_apart(name, r.recv_counts, r.recv_displs, world);
  if (what.in == Blocks::OnePerRank && r.send_counts[me] != r.recv_counts[me])
    fail(Code::Argument, "{}: rank {} sends itself {} elements but expects {}", name, me, r.send_counts[me],
         r.recv_counts[me]);
}

bool Communicator::on_device(const char *name, const void *send, const void *recv, int claims, engine::Call &call) const {
  const device::Runtime *runtime = local_->device().runtime;
  if (!runtime) return false;
  const auto place = [&](const void *p, std::byte *&there) {
    const device::PointerInfo found = local_->health().find(p);
    there = static_cast<std::byte *>(found.there);
    if (found.where != device::Where::Device) return false;
    if (found.device != local_->device().number)
      fail(Code::Argument, "{}: the buffer at {} is memory of {}:{}, and this rank works on {}:{}", name, p,
           runtime->vendor(), found.device, runtime->vendor(), local_->device().number);
    return true;
  };
  if (!recv) return place(send, call.in_there);
  if (!send) return place(recv, call.out_there);
  const bool in = place(send, call.in_there), out = send == recv ? in : place(recv, call.out_there);
  if (send == recv) call.out_there = call.in_there;
  if (in == out || (in ? call.out_there : call.in_there)) return in || out;
  if (claims & (in ? 2 : 1)) check_claim(name, in ? "recv" : "send", in ? recv : send);
  refuse_two_places(name, in);
}

// The first byte of what a call gives has been looked at, and the last one decides: programs pin whole buffers. Where a library serves the
// rank, or the other buffer is the device's, the device works on it; else processors do, without a copy.
void Communicator::take_pinned(const char *name, plan::Request &request, bool sends, bool receives, engine::Operation &op) {
  engine::Call &call = op.call;
  const auto check = [&](const std::byte *here, std::byte *&there, uint64_t bytes, bool recv) {
    if (!there || (bytes != 0 && local_->health().find(here + bytes - 1).there == there + bytes - 1)) return;
    there = nullptr;
    if (call.device && bytes != 0) refuse_two_places(name, recv);
  };
  const uint64_t in = sends ? op.given_in() : 0, out = receives ? op.given_out() : 0;
  check(call.in, call.in_there, in, false);
  check(call.out, call.out_there, out, true);
  if (call.device) return;
  call.device = !op.plan->device.empty() && (in == 0 || call.in_there) && (out == 0 || call.out_there);
  if (!call.device) {
    call.in_there = call.out_there = nullptr;
    return;
  }
  request.device = true;
  request.reach = terms_.reach;
  op.plan = plan_for(request);
}

void Communicator::check_claim(const char *name, const char *argument, const void *memory) const {
  const device::Runtime *runtime = local_->device().runtime;
  if (!runtime || !memory || local_->health().find(memory).where != device::Where::Unknown) return;
  const std::string own = formatted("{}:{}", runtime->vendor(), local_->device().number);
  fail(Code::Argument,
       "{}: {} at {} was given as memory of a device, and the runtime of {}, on which this rank works, knows no memory at "
       "this address: was it freed, is it the host's, or another vendor's? Pass memory that was allocated on {}, or pinned "
       "memory that its runtime knows",
       name, argument, memory, own, own);
}

void Communicator::check_lent(int type, int number, const void *memory) const {
  const device::Runtime *runtime = local_->device().runtime;
  if (!runtime)
    fail(Code::Unsupported, "this rank works on host memory: set ISTHMUS_DEVICE before init, or copy it to the host first");
  const device::Dlpack known = runtime->dlpack();
  const std::string own = formatted("{}:{}", runtime->vendor(), local_->device().number);
  if ((type != known.type || number != local_->device().number) && (known.shared == 0 || type != known.shared))
    fail(Code::Argument, "this rank works on {}", own);
  if (memory && local_->health().find(memory).where == device::Where::Unknown)
    fail(Code::Argument, "{}, on which this rank works, has no memory at {}", own, memory);
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
        name(), rank(), local_->core().describe(op));
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
                          true);
    if (local_->core().failed()) {
      const Status why = local_->core().failure();
      throw Error(why.code, why.text);
    }
    std::this_thread::sleep_for(pause);
  }
}

// The bytes of our types are the open standard's, and a device whose arithmetic takes them for other numbers, or its library, would give
// other sums: nobody reduces them where there is such a device.
void Communicator::check_float8(const char *name, DType dtype) const {
  if (terms_.fnuz_rank < 0) return;
  const auto &ranks = topology_.ranks;
  const auto said = [&](size_t rank) {
    const std::string &device = ranks[rank].device_name;
    return formatted("rank {} ({}{}{})", rank, ranks[rank].device, device.empty() ? "" : ", ", device);
  };
  const auto standard = std::find_if(ranks.begin(), ranks.end(), [](const auto &rank) { return !rank.fnuz; });
  fail(Code::Unsupported,
       "{}: {} takes the bytes of {} for another encoding (fnuz){}; convert to bfloat16 first (moving such bytes, as in "
       "broadcast or all_gather, works)",
       name, said(static_cast<size_t>(terms_.fnuz_rank)), dtype_name(dtype),
       standard == ranks.end()
           ? std::string()
           : " than " + said(static_cast<size_t>(standard - ranks.begin())) + ", which has the OCP standard's");
}

namespace {

// Of PREMUL_SUM of integers: the bits that the type has count.
uint64_t factor_of(const char *name, DType t, const Request &r) {
  uint64_t factor = 0;
  static_assert(std::endian::native == std::endian::little);
  if (r.factor) return std::memcpy(&factor, r.factor, dtype_size(t)), factor;
  if (std::trunc(r.scale) != r.scale || !(std::abs(r.scale) < 0x1p63))
    fail(Code::Argument, "{}: premul_sum of {} takes a whole number for its factor, and that is {:g}", name, dtype_name(t),
         r.scale);
  return static_cast<uint64_t>(static_cast<int64_t>(r.scale));
}

}  // namespace

namespace {

// No stream orders what processors do with host memory.
void stand_by_call(engine::Call &call) {
  if (!call.on_stream || call.device || (!call.in && !call.out)) return;
  call.by_call = true;
  call.on_stream = false;
}

}  // namespace

void Communicator::check_ours(const char *what) const {
  if (local_->core().birth.here()) return;
  fail(Code::Forked,
       "{}: communicator '{}' belongs to the parent process, and a forked child cannot use it; make one here (init, with an "
       "address or id of its own), or call this in the parent",
       what, this->name());
}

void Communicator::prepare(const Request &r, engine::Operation &op) {
  const Collective c = r.collective;
  const char *name = collective_name(c);
  const int world = local_->id().world, me = local_->id().rank;
  if (destroyed_.load(std::memory_order_acquire))
    fail(Code::Argument, "{}: communicator '{}' was destroyed", name, this->name());
  if (r.dtype < 0 || r.dtype >= kDTypeCount) fail(Code::Argument, "{}: unknown dtype {}", name, r.dtype);
  if (r.op < 0 || r.op >= kRedOpCount) fail(Code::Argument, "{}: unknown reduction {}", name, r.op);
  const auto t = static_cast<DType>(r.dtype);
  const auto red = is_reduction(c) ? static_cast<RedOp>(r.op) : RedOp::Sum;
  if (is_reduction(c) && !combines(t, red))
    fail(Code::Unsupported, "{}: {} of {} has no meaning", name, redop_name(red), dtype_name(t));
  if (is_reduction(c) && (t == DType::Float8E4M3FN || t == DType::Float8E5M2)) check_float8(name, t);
  if (has_root(c) && (r.root < 0 || r.root >= world))
    fail(Code::Argument, "{}: root {} is not a rank of '{}' (0 to {})", name, r.root, this->name(), world - 1);
  const CollectiveTraits &what = traits(c);
  const bool p2p = is_message(c);
  if (p2p) {
    const int lowest = c == Collective::Recv ? -1 : 0;
    if (r.root < lowest || r.root >= world)
      fail(Code::Argument, "{}: peer {} is not a rank of '{}' (0 to {})", name, r.root, this->name(), world - 1);
    if (r.tag < 0) fail(Code::Argument, "{}: tag {}: must be 0 or above", name, r.tag);
  }
  if (r.timeout < 0 || r.timeout != r.timeout)
    fail(Code::Argument, "{}: timeout {}: must be above 0 seconds (0: the communicator's)", name, r.timeout);

  engine::Call &call = op.call;
  call.collective = c;
  call.dtype = t;
  call.op = red;
  call.root = has_root(c) || p2p ? r.root : 0;
  call.tag = r.tag;
  call.in = static_cast<const std::byte *>(r.send);
  call.out = static_cast<std::byte *>(r.recv);
  call.scale = r.scale;
  if (red == RedOp::PremulSum && is_integer(t)) call.factor = factor_of(name, t, r);
  call.timeout = r.timeout > 0 ? r.timeout : timeout();
  if (r.label) op.label.assign(r.label);
  call.on_stream = r.on_stream;
  call.stream = r.stream;
  call.order_later = r.order_later && c == Collective::Recv;
  if (r.order_later && c != Collective::Recv)
    fail(Code::Unsupported, "{}: only a receive can be ordered later (ISTHMUS_STREAM_BEFORE)", name);
  if (call.on_stream && !local_->device().runtime)
    fail(Code::Argument, "{}: a stream was given, and this rank works on host memory (ISTHMUS_DEVICE)", name);
  if (call.on_stream && local_->collectives().device().capturing(call.stream))
    fail(Code::Unsupported,
         "{}: the stream is being captured into a graph, and this operation needs the host at every replay: call it outside "
         "of the capture",
         name);
  const uint64_t size = dtype_size(t);
  const bool lists_in = what.in == Blocks::OnePerRank, lists_out = what.out == Blocks::OnePerRank;
  call.bytes = what.varying ? 0 : to_bytes(name, r.count, size, lists_in || lists_out ? static_cast<uint64_t>(world) : 1);

  if (what.varying && ((lists_out && !r.recv_counts) || (lists_in && !r.send_counts)))
    fail(Code::Argument, "{}: counts must not be NULL", name);
  if (p2p) {
    if (c == Collective::Send && !call.in && call.bytes) fail(Code::Argument, "{}: the buffer must not be NULL", name);
    if (c == Collective::Recv && !call.out && call.bytes) fail(Code::Argument, "{}: the buffer must not be NULL", name);
    call.device = call.bytes && on_device(name, c == Collective::Send ? call.in : nullptr, call.out, r.device_memory, call);
    call.in_there = call.out_there = nullptr;  // a processor sends and receives it where it lies
    if (r.device_memory && !call.device && call.bytes)
      c == Collective::Send ? check_claim(name, "send", call.in) : check_claim(name, "recv", call.out);
    call.order_later &= call.device;
    if (call.bytes) stand_by_call(call);
    return;
  }
  const bool in_place = call.in == call.out && call.in != nullptr;
  const bool reads = reads_input(c, me, call.root), writes = writes_output(c, me, call.root);
  if (reads || writes)
    call.device = on_device(name, reads ? call.in : nullptr, writes ? call.out : nullptr, r.device_memory, call);
  Shape shape{c, t, red, call.root, call.bytes, in_place, call.device};
  auto [request, path] = choose(shape);
  const bool one_hop = path == Path::OneHop;
  // The shortest path needs no list of blocks: one block, known by its size.
  const bool single = is_single_block(c);
  if (!(one_hop && single)) blocks(r, op);
  const auto any = [](std::span<const uint64_t> bytes) {
    return std::any_of(bytes.begin(), bytes.end(), [](uint64_t b) { return b != 0; });
  };
  const auto o = op.operands();
  const auto at = [](const std::byte *p) { return reinterpret_cast<uintptr_t>(p); };
  const bool apart = at(call.in) + call.bytes <= at(call.out) || at(call.out) + call.bytes <= at(call.in);
  if (reads && writes && call.in && call.out && !(in_place && (single || c == Collective::AllToAllV)) &&
      !(single && apart)) {
    if (single) blocks(r, op);  // the shortest path has made none
    check_aliasing(name, op, static_cast<size_t>(me));
  }
  if (one_hop && single && call.bytes && ((reads && !call.in) || (writes && !call.out)))
    fail(Code::Argument, "{}: {} must not be NULL on rank {}", name, reads && !call.in ? "send" : "recv", me);
  if (reads && !call.in && any(o.in_bytes)) fail(Code::Argument, "{}: send must not be NULL on rank {}", name, me);
  if (writes && !call.out && any(o.out_bytes)) fail(Code::Argument, "{}: recv must not be NULL on rank {}", name, me);
  if (r.device_memory && !call.device) {
    const bool one = !call.in || !call.out || in_place;  // whichever the caller has named, it is that
    const bool short_path = one_hop && single;           // without a list of blocks
    if (call.in && reads && (one || r.device_memory & 1) && (short_path ? call.bytes != 0 : any(o.in_bytes)))
      check_claim(name, "send", call.in);
    if (call.out && writes && (one || r.device_memory & 2) && (short_path ? call.bytes != 0 : any(o.out_bytes)))
      check_claim(name, "recv", call.out);
  }
  // What only the root uses may be anything elsewhere, and nobody copies it.
  if (!reads && lists_in) call.in = nullptr;
  if (!writes && lists_out) call.out = nullptr;
  if (what.varying) {  // every rank plans for the same size, and knows no other's
    shape.bytes = 0;
    request = choose(shape).request;
  }
  if (r.leader_bytes >= 0)
    request.small_bytes = std::min(static_cast<uint64_t>(r.leader_bytes), plan::most_leader_bytes(terms_.chunk_bytes));
  if (one_hop) {
    uint64_t h =
        mix(0x15741157, static_cast<uint64_t>(c) | static_cast<uint64_t>(t) << 8 | static_cast<uint64_t>(red) << 16 |
                            static_cast<uint64_t>(static_cast<uint32_t>(call.root)) << 32);
    op.digest = mix(h, call.bytes) | 1;
  } else {
    op.plan = plan_for(request);
    if (call.in_there || call.out_there) take_pinned(name, request, reads, writes, op);
    op.digest = op.plan->digest;
    // Collectives whose counts every rank knows compare them too.
    if (what.varying && !lists_in)
      for (uint64_t b : o.out_bytes) op.digest = mix(op.digest, b);
    if (what.varying && !lists_out)
      for (uint64_t b : o.in_bytes) op.digest = mix(op.digest, b);
  }
  if (reads || writes) stand_by_call(call);
}

std::string Communicator::topology_json() const {
  auto json = nlohmann::ordered_json::parse(topology::to_json(topology_));
  json["name"] = name();
  json["rank"] = rank();
  json["bridge"] = settings_.text(Setting::Bridge);
  json["staging"] = {{"chunk_bytes", terms_.chunk_bytes},
                     {"ring_bytes", terms_.ring_bytes},
                     {"recv_slots", terms_.recv_slots},
                     {"lost", terms_.lost}};
  auto links = nlohmann::ordered_json::array();
  const auto &peers = const_cast<rank::Rank &>(*local_).peers();
  for (int q = 0; q < size(); ++q) {
    const auto &p = peers[static_cast<size_t>(q)];
    const char *kind = q == rank() ? "self" : p.mail ? "memory" : p.link->name();
    nlohmann::ordered_json link{{"from", rank()}, {"to", q}, {"kind", kind}};
    if (q != rank()) {  // in memory these are messages alone: what collectives exchange lies in slots
      link["bytes_sent"] = p.link->bytes_sent.load();
      link["bytes_received"] = p.link->bytes_received.load();
    }
    links.push_back(std::move(link));
  }
  json["links"] = std::move(links);
  return json.dump(2);
}

}  // namespace isthmus::comm
