// The simulated libhccl.so: collectives with parts of one size, groups.
#include <cstring>
#include <utility>

#include "ascend/hccl_abi.hpp"

namespace rehearsal::hccl {
namespace {

struct Calls final : Group {
  unsigned sorts = 0;  // a bit for each Sort in the group; a group has one sort
};
Calls &group() {
  static thread_local Calls the_group;
  return the_group;
}

// With a late kRuntime the device fails. With any other late failure, say of the network, only the communicator has the error, and the work
// waits until it is aborted.
int breaks_device(int late) { return late == kRuntime ? Machine::get().illegal_address.load() : 0; }

Result launch_all(const std::vector<Operation> &operations) {
  switch (launch(operations, breaks_device)) {
    case Code::Ok: return kSuccess;
    case Code::NoMemory: return kOutOfMemory;
    default: return kRuntime;
  }
}
Result mixed() { return kNotSupported; }
Result end_group() { return group().end(launch_all, mixed); }

// Notes a call of this sort in the open group. kNotSupported: the group has calls of another sort.
Result admit(Sort sort) {
  Calls &g = group();
  const unsigned bit = 1u << static_cast<unsigned>(sort);
  if (!g.depth) return kSuccess;
  if (g.sorts & ~bit) return note(kNotSupported);
  g.sorts |= bit;
  return kSuccess;
}

struct HcclBuffers {
  const void *from;
  void *to;
};

// `op`: -1 for a collective that reduces nothing.
Result collective(const Entry &e, Collective how, HcclBuffers b, uint64_t count, int type, int op, uint32_t root,
                  CommHandle h, void *stream) {
  Call c = new_call(e);
  if (const Result r = begin(c, h, stream)) return note(r);
  const Kind kind = kind_of(type);
  if (op < -1 || op >= kOps || root >= static_cast<uint32_t>(c.comm->size)) return note(kParameter);
  if (!kind.width || (op >= 0 && !kind.reduces)) return note(kNotSupported);
  if (count == 0) return kSuccess;
  const bool at_root = c.comm->rank == static_cast<int>(root);
  const uint64_t ranks = static_cast<uint64_t>(c.comm->size), bytes = count * kind.width;
  uint64_t from_bytes = bytes, to_bytes = bytes;
  if (how == Collective::AllGather) to_bytes *= ranks;
  if (how == Collective::ReduceScatter) from_bytes *= ranks;
  if (how == Collective::Reduce && !at_root) to_bytes = 0;
  Work w;
  w.kind = how;
  w.type = kind.type;
  w.reduction = static_cast<Reduction>(op < 0 ? 0 : op);
  w.root = static_cast<int>(root);
  w.count = bytes / type_size(kind.type);
  std::byte *from = nullptr;
  if (const Result r = resolve(c, "sendBuf", b.from, from_bytes, &from)) return note(r);
  if (const Result r = resolve(c, "recvBuf", b.to, to_bytes, &w.to)) return note(r);
  w.from = from;
  c.o.collective = [call = e.name(), w](Fabric &fabric, const Fabric::Stop &stop) { fabric.run(call, w, stop); };
  return commit(std::move(c), Sort::Collective);
}

}  // namespace

static_assert(static_cast<int>(Reduction::Sum) == kSum && static_cast<int>(Reduction::Prod) == kProd &&
              static_cast<int>(Reduction::Max) == kMax && static_cast<int>(Reduction::Min) == kMin);

Kind kind_of(int type) {
  switch (type) {
    case kInt8: return {Type::I8, 1, true};
    case kInt16: return {Type::I16, 2, true};
    case kInt32: return {Type::I32, 4, true};
    case kFloat16: return {Type::F16, 2, true};
    case kFloat32: return {Type::F32, 4, true};
    case kInt64: return {Type::I64, 8, true};
    case kUInt64: return {Type::U64, 8, true};
    case kUInt8: return {Type::U8, 1, false};
    case kUInt16: return {Type::U16, 2, false};
    case kUInt32: return {Type::U32, 4, false};
    case kFloat64: return {Type::F64, 8, true};
    case kBfloat16: return {Type::BF16, 2, true};
    case kHifloat8: return {Type::U8, 1, false};
    case kFloat8E4M3: return {Type::E4M3, 1, false};
    case kFloat8E5M2: return {Type::E5M2, 1, false};
    case kFloat8E8M0: return {Type::U8, 1, false};
    default: return {};  // kInt128 too: no collective takes it
  }
}

Call new_call(const Entry &e) { return {{e, {}, {}, {}, {}, false, true, {}}, {}}; }

Result begin(Call &c, CommHandle h, void *stream) {
  const Entry &e = c.o.entry;
  if (const Result r = find_ready(e, h, &c.comm)) return r;
  c.o.comm = c.comm;
  if (!stream) return kNullPointer;  // for the runtime null is the context's default stream, for this library it is an error
  if (const Result r = check_device(e, *c.comm)) return r;
  c.o.stream = Machine::get().streams.find(word(stream));
  if (!c.o.stream && Machine::get().streams.lost(word(stream))) return kRuntime;
  if (!c.o.stream) misuse(e.name(), Code::BadHandle, "stream %p %s", stream, Machine::get().streams.why_not(word(stream)));
  else if (&c.o.stream->device != &c.comm->device)
    misuse(e.name(), Code::Invalid, "a stream of device %d, the communicator's is %d", c.o.stream->device.ordinal(),
           c.comm->device.ordinal());
  else return kSuccess;
  return kParameter;
}

Result resolve(Call &c, const char *role, const void *p, uint64_t bytes, std::byte **out) {
  *out = nullptr;
  if (!bytes) return kSuccess;
  if (!p) return kNullPointer;
  return find_buffer(c.o, role, p, bytes, out, false) == Code::Ok ? kSuccess : kParameter;
}

Result commit(Call &&c, Sort sort) {
  if (const Result r = admit(sort)) return r;
  group().operations.push_back(std::move(c.o));
  return in_group() ? static_cast<Result>(kSuccess) : end_group();
}

bool in_group() { return group().depth > 0; }
Result defer_init(std::function<Result()> init) {
  if (const Result r = admit(Sort::Init)) return r;
  group().inits.push_back(std::move(init));
  return kSuccess;
}
Result note(Result r) { return group().note(r); }

}  // namespace rehearsal::hccl

using namespace rehearsal;
using namespace rehearsal::hccl;

EXPORT Result HcclGroupStart() {
  HCCL_CALL("HcclGroupStart");
  ++group().depth;
  open_groups().fetch_add(1);
  return kSuccess;
}

EXPORT Result HcclGroupEnd() {
  static Counter &this_counter = counter("HcclGroupEnd");
  const Entry entry(this_counter);
  Calls &g = group();
  const Result stop = gate(entry);
  if (entry.in_child()) return stop;
  if (g.depth == 0) {
    if (!stop) misuse(entry.name(), Code::IllegalState, "no group is open");
    return stop ? stop : static_cast<Result>(kParameter);
  }
  open_groups().fetch_sub(1);
  if (--g.depth) return stop;
  g.sorts = 0;
  if (stop) g.forget();  // the group ends also when the call fails
  return stop ? stop : end_group();
}

EXPORT Result HcclAllReduce(void *from, void *to, uint64_t count, int type, int op, CommHandle comm, void *stream) {
  HCCL_CALL("HcclAllReduce");
  return op < 0 ? note(kParameter) : collective(entry, Collective::AllReduce, {from, to}, count, type, op, 0, comm, stream);
}
EXPORT Result HcclReduce(void *from, void *to, uint64_t count, int type, int op, uint32_t root, CommHandle comm,
                         void *stream) {
  HCCL_CALL("HcclReduce");
  return op < 0 ? note(kParameter) : collective(entry, Collective::Reduce, {from, to}, count, type, op, root, comm, stream);
}
EXPORT Result HcclReduceScatter(void *from, void *to, uint64_t count, int type, int op, CommHandle comm, void *stream) {
  HCCL_CALL("HcclReduceScatter");
  return op < 0 ? note(kParameter)
                : collective(entry, Collective::ReduceScatter, {from, to}, count, type, op, 0, comm, stream);
}
EXPORT Result HcclBroadcast(void *buffer, uint64_t count, int type, uint32_t root, CommHandle comm, void *stream) {
  HCCL_CALL("HcclBroadcast");
  return collective(entry, Collective::Broadcast, {buffer, buffer}, count, type, -1, root, comm, stream);
}
EXPORT Result HcclAllGather(void *from, void *to, uint64_t count, int type, CommHandle comm, void *stream) {
  HCCL_CALL("HcclAllGather");
  return collective(entry, Collective::AllGather, {from, to}, count, type, -1, 0, comm, stream);
}

EXPORT Result HcclBarrier(CommHandle comm, void *stream) {
  HCCL_CALL("HcclBarrier");
  Call c = new_call(entry);
  if (const Result r = begin(c, comm, stream)) return note(r);
  c.o.collective = [](Fabric &fabric, const Fabric::Stop &stopped) {
    std::byte nothing{0};
    Work w;
    w.kind = Collective::AllReduce;
    w.type = Type::U8;
    w.reduction = Reduction::Max;
    w.count = 1;
    w.from = w.to = &nothing;
    fabric.run("HcclBarrier", w, stopped);
  };
  return commit(std::move(c), Sort::Collective);
}
