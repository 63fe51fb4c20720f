#include "comm/preparation.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "comm/call_blocks.hpp"

namespace isthmus::comm {
namespace {

constexpr uint64_t kCommit = 0x636f6d6d6974;

uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 32);
}

bool any(std::span<const uint64_t> bytes) {
  return std::any_of(bytes.begin(), bytes.end(), [](uint64_t b) { return b != 0; });
}

}  // namespace

Preparation::Preparation(Communicator &comm, const CallRequest &request, engine::Operation &op)
    : comm_(comm),
      request_(request),
      op_(op),
      call_(op.call),
      memory_(comm.local()),
      name_(collective_name(request.collective)),
      me_(comm.rank()),
      world_(comm.size()) {}

void Preparation::run() {
  check_words();
  take_words();
  take_stream();
  take_size();
  is_message(request_.collective) ? prepare_message() : prepare_collective();
}

void Preparation::check_words() const {
  const CallRequest &r = request_;
  const Collective c = r.collective;
  if (r.dtype < 0 || r.dtype >= kDTypeCount) fail(Code::Argument, "{}: unknown dtype {}", name_, r.dtype);
  if (r.op < 0 || r.op >= kRedOpCount) fail(Code::Argument, "{}: unknown reduction {}", name_, r.op);
  if (is_reduction(c)) check_reduction(static_cast<DType>(r.dtype), static_cast<RedOp>(r.op));
  if (has_root(c) && (r.root < 0 || r.root >= world_))
    fail(Code::Argument, "{}: root {} is not a rank of '{}' (0 to {})", name_, r.root, comm_.name(),
         comm_.terms().numbering.slots() - 1);
  if (is_message(c)) {
    const int lowest = c == Collective::Recv ? -1 : 0;
    if (r.root < lowest || r.root >= world_)
      fail(Code::Argument, "{}: peer {} is not a rank of '{}' (0 to {})", name_, r.root, comm_.name(),
           comm_.terms().numbering.slots() - 1);
    if (r.tag < 0) fail(Code::Argument, "{}: tag {}: must be 0 or above", name_, r.tag);
  }
  if (r.timeout < 0 || r.timeout != r.timeout)
    fail(Code::Argument, "{}: timeout {}: must be above 0 seconds (0: the communicator's)", name_, r.timeout);
}

void Preparation::check_reduction(DType dtype, RedOp op) const {
  if (!combines(dtype, op)) fail(Code::Unsupported, "{}: {} of {} has no meaning", name_, redop_name(op), dtype_name(dtype));
  if (dtype == DType::Float8E4M3FN || dtype == DType::Float8E5M2) check_float8(dtype);
}

// The bytes of our types are the open standard's. A device whose arithmetic takes the bytes for other numbers, or its library, would give
// other sums: no rank reduces such types where there is such a device.
void Preparation::check_float8(DType dtype) const {
  const int fnuz_rank = comm_.terms().fnuz_rank;
  if (fnuz_rank < 0) return;
  const auto &ranks = comm_.topology().ranks;
  const auto said = [&](size_t rank) {
    const std::string &device = ranks[rank].device_name;
    return formatted("rank {} ({}{}{})", comm_.terms().numbering.slot(static_cast<int>(rank)), ranks[rank].device,
                     device.empty() ? "" : ", ", device);
  };
  const auto standard = std::find_if(ranks.begin(), ranks.end(), [](const auto &rank) { return !rank.fnuz; });
  fail(Code::Unsupported,
       "{}: {} takes the bytes of {} for another encoding (fnuz){}; convert to bfloat16 first (moving such bytes, as in "
       "broadcast or all_gather, works)",
       name_, said(static_cast<size_t>(fnuz_rank)), dtype_name(dtype),
       standard == ranks.end()
           ? std::string()
           : " than " + said(static_cast<size_t>(standard - ranks.begin())) + ", which has the OCP standard's");
}

void Preparation::take_words() {
  const CallRequest &r = request_;
  const Collective c = r.collective;
  call_.collective = c;
  call_.dtype = static_cast<DType>(r.dtype);
  call_.op = is_reduction(c) ? static_cast<RedOp>(r.op) : RedOp::Sum;
  call_.root = has_root(c) || is_message(c) ? r.root : 0;
  call_.tag = r.tag;
  call_.input = static_cast<const std::byte *>(r.send);
  call_.output = static_cast<std::byte *>(r.recv);
  call_.scale = r.scale;
  if (call_.op == RedOp::PremulSum && is_integer(call_.dtype)) call_.factor = factor();
  call_.timeout = r.timeout > 0 ? r.timeout : comm_.timeout();
  call_.commit = r.commit;
  if (r.label) op_.label.assign(r.label);
}

// Of PREMUL_SUM of integers: the bits that the type has count.
uint64_t Preparation::factor() const {
  const CallRequest &r = request_;
  uint64_t bits = 0;
  static_assert(std::endian::native == std::endian::little);
  if (r.factor) return std::memcpy(&bits, r.factor, dtype_size(call_.dtype)), bits;
  if (std::trunc(r.scale) != r.scale || !(std::abs(r.scale) < 0x1p63))
    fail(Code::Argument, "{}: premul_sum of {} takes a whole number for its factor, and that is {:g}", name_,
         dtype_name(call_.dtype), r.scale);
  return static_cast<uint64_t>(static_cast<int64_t>(r.scale));
}

void Preparation::take_stream() {
  const CallRequest &r = request_;
  call_.on_stream = r.on_stream;
  call_.stream = r.stream;
  call_.order_later = r.order_later;
  if (r.order_later && r.collective == Collective::Send)
    fail(Code::Unsupported, "{}: a send cannot be ordered later (ISTHMUS_STREAM_BEFORE)", name_);
  rank::Rank &local = comm_.local();
  if (call_.on_stream && !local.device().runtime)
    fail(Code::Argument, "{}: a stream was given, and this rank works on host memory (ISTHMUS_DEVICE)", name_);
  if (call_.on_stream && local.collectives().device().capturing(call_.stream))
    fail(Code::Unsupported,
         "{}: the stream is being captured into a graph, and this operation needs the host at every replay: call it outside "
         "of the capture",
         name_);
}

void Preparation::take_size() {
  const CallRequest &r = request_;
  const CollectiveTraits &what = traits(r.collective);
  const bool lists_input = what.input == Blocks::OnePerRank, lists_output = what.output == Blocks::OnePerRank;
  const int blocks = r.numbering ? r.numbering->slots() : world_;
  const uint64_t times = lists_input || lists_output ? static_cast<uint64_t>(blocks) : 1;
  call_.bytes = what.varying ? 0 : to_bytes(name_, r.count, dtype_size(call_.dtype), times);
  if (what.varying && ((lists_output && !r.recv_counts) || (lists_input && !r.send_counts)))
    fail(Code::Argument, "{}: counts must not be NULL", name_);
}

void Preparation::prepare_message() {
  if (request_.keep) fail(Code::Unsupported, "{}: of a message no memory is kept (isthmus_call.keep)", name_);
  const bool sends = request_.collective == Collective::Send;
  if (call_.bytes && (sends ? call_.input == nullptr : call_.output == nullptr))
    fail(Code::Argument, "{}: the buffer must not be NULL", name_);
  call_.device =
      call_.bytes && memory_.on_device(name_, sends ? call_.input : nullptr, call_.output, request_.device_memory, call_);
  call_.input_there = call_.output_there = nullptr;  // a processor sends and receives pinned memory where the memory lies
  if (request_.device_memory && !call_.device && call_.bytes)
    sends ? memory_.check_claim(name_, "send", call_.input) : memory_.check_claim(name_, "recv", call_.output);
  call_.order_later &= call_.device;
  if (call_.bytes) stand_by_call();
}

void Preparation::prepare_collective() {
  const Collective c = request_.collective;
  reads_ = reads_input(c, me_, call_.root);
  writes_ = writes_output(c, me_, call_.root);
  in_place_ = call_.input == call_.output && call_.input != nullptr;
  if (reads_ || writes_)
    call_.device = memory_.on_device(name_, reads_ ? call_.input : nullptr, writes_ ? call_.output : nullptr,
                                     request_.device_memory, call_);
  Shape shape{c, call_.dtype, call_.op, call_.root, call_.bytes, in_place_, call_.device};
  PlanChoice choice = comm_.plans().choose(shape);
  short_path_ = choice.path == Path::OneHop && is_single_block(c) && !call_.device;
  if (!short_path_) fill_blocks(request_, me_, world_, op_);
  check_overlap();
  check_buffers();
  if (request_.device_memory && !call_.device) check_claims();
  drop_unused();
  if (is_varying(c)) {  // every rank plans for the same size, and knows no other rank's size
    shape.bytes = 0;
    choice.request = comm_.plans().choose(shape).request;
  }
  if (request_.leader_bytes >= 0)
    choice.request.small_bytes =
        std::min(static_cast<uint64_t>(request_.leader_bytes), plan::most_leader_bytes(comm_.terms().chunk_bytes));
  if (choice.path == Path::OneHop) take_cells(choice.request);
  else take_plan(choice.request);
  if (call_.commit) op_.digest = mix(op_.digest, kCommit) | 1;  // so one without it is another call
  if (reads_ || writes_) stand_by_call();
  call_.order_later &= call_.device;
  if (request_.keep) prepare_keeping();
}

void Preparation::prepare_keeping() {
  if (call_.device)
    fail(Code::Unsupported,
         "{}: memory that a device works on is not kept (isthmus_call.keep): copy it on the stream before the call", name_);
  if (writes_ && call_.output && gets()) op_.kept.size = short_path_ ? call_.bytes : op_.given_output();
}

void Preparation::check_overlap() {
  if (!reads_ || !writes_ || !call_.input || !call_.output) return;
  const bool single = is_single_block(request_.collective);
  if (in_place_ && (single || request_.collective == Collective::AllToAllV)) return;
  const auto at = [](const std::byte *p) { return reinterpret_cast<uintptr_t>(p); };
  const bool apart = at(call_.input) + call_.bytes <= at(call_.output) || at(call_.output) + call_.bytes <= at(call_.input);
  if (single && apart) return;
  if (short_path_) fill_blocks(request_, me_, world_, op_);
  check_aliasing(name_, op_, me_);
}

bool Preparation::gives() const { return short_path_ ? call_.bytes != 0 : any(op_.operands().input_bytes); }
bool Preparation::gets() const { return short_path_ ? call_.bytes != 0 : any(op_.operands().output_bytes); }

void Preparation::check_buffers() const {
  if (reads_ && !call_.input && gives())
    fail(Code::Argument, "{}: send must not be NULL on rank {}", name_, own_slot(comm_));
  if (writes_ && !call_.output && gets())
    fail(Code::Argument, "{}: recv must not be NULL on rank {}", name_, own_slot(comm_));
}

void Preparation::check_claims() const {
  // Where the call has one buffer only, a claim is about that buffer, whichever of the two the caller has named.
  const bool one = !call_.input || !call_.output || in_place_;
  if (call_.input && reads_ && (one || request_.device_memory & 1) && gives())
    memory_.check_claim(name_, "send", call_.input);
  if (call_.output && writes_ && (one || request_.device_memory & 2) && gets())
    memory_.check_claim(name_, "recv", call_.output);
}

// A buffer that only the root uses may be anything on other ranks, and no rank copies such a buffer.
void Preparation::drop_unused() {
  const CollectiveTraits &what = traits(request_.collective);
  if (!reads_ && what.input == Blocks::OnePerRank) call_.input = nullptr;
  if (!writes_ && what.output == Blocks::OnePerRank) call_.output = nullptr;
}

void Preparation::take_plan(plan::Request &request) {
  op_.plan = comm_.plans().plan_for(request);
  if ((call_.input_there || call_.output_there) && memory_.take_pinned(name_, reads_, writes_, op_)) {
    request.device = true;
    request.reach = comm_.terms().reach;
    op_.plan = comm_.plans().plan_for(request);
  }
  if (plan::chunks_of(*op_.plan, op_.operands()) >= plan::kMostChunks)
    fail(Code::Unsupported, "{}: a block needs more than {} chunks of {} bytes: raise ISTHMUS_CHUNK_BYTES", name_,
         plan::kMostChunks, op_.plan->chunk);
  op_.digest = mix(op_.plan->digest, comm_.local().core().id.epoch);
  // Collectives whose counts every rank knows compare the counts too.
  const CollectiveTraits &what = traits(request_.collective);
  const auto o = op_.operands();
  if (what.varying && what.input != Blocks::OnePerRank)
    for (const uint64_t b : o.output_bytes) op_.digest = mix(op_.digest, b);
  if (what.varying && what.output != Blocks::OnePerRank)
    for (const uint64_t b : o.input_bytes) op_.digest = mix(op_.digest, b);
}

// Processors work on pinned memory where it lies, unless the other buffer is the device's.
void Preparation::take_cells(const plan::Request &request) {
  op_.digest = one_hop_digest();
  if (call_.device) op_.plan = comm_.plans().by_cells(request);
  if (!op_.plan) call_.input_there = call_.output_there = nullptr;
  else if (call_.input_there || call_.output_there) memory_.take_pinned(name_, reads_, writes_, op_);
}

uint64_t Preparation::one_hop_digest() const {
  const uint64_t words = static_cast<uint64_t>(call_.collective) | static_cast<uint64_t>(call_.dtype) << 8 |
                         static_cast<uint64_t>(call_.op) << 16 |
                         static_cast<uint64_t>(static_cast<uint32_t>(call_.root)) << 32;
  return mix(mix(mix(0x15741157, words), call_.bytes), comm_.local().core().id.epoch) | 1;
}

// No stream orders the work of processors on host memory. So the call waits for the stream (Communicator::make_ready).
void Preparation::stand_by_call() {
  if (!call_.on_stream || call_.device || (!call_.input && !call_.output)) return;
  call_.by_call = true;
  call_.on_stream = false;
}

}  // namespace isthmus::comm
