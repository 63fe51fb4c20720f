// The simulated libnccl.so.2 and librccl.so.1: collectives, messages, groups.
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "nccl/nccl_abi.hpp"

namespace rehearsal::nccl {
namespace {

Group &group() {
  static thread_local Group the_group;
  return the_group;
}

// With a late kUnhandledCuda the device fails. With any other late failure, say of the network, only the communicator has the error, and
// the work waits until it is aborted.
int breaks_device(int late) { return late == kUnhandledCuda ? Machine::get().illegal_address.load() : 0; }

Result launch_all(const std::vector<Operation> &operations) {
  switch (launch(operations, breaks_device)) {
    case Code::Ok: return kSuccess;
    case Code::NoMemory: return say(kUnhandledCuda, "out of memory");
    default: return say(kUnhandledCuda, "the device failed");
  }
}
// The job of this thread's last group that ends later.
struct JobHere {
  std::shared_ptr<ThreadJob> job;
  ~JobHere() {
    if (job) job->thread_gone.store(true);
  }
};
JobHere &job_here() {
  static thread_local JobHere here;
  return here;
}
// The next group of this thread would begin behind the job that is still there.
void look_for_job(const Entry &e, const Comm &comm) {
  std::shared_ptr<ThreadJob> &job = job_here().job;
  if (job && !job->completed.load() && !job->comms.contains(&comm))
    misuse(e.name(), Code::IllegalState,
           "this thread's last group was another communicator's, and nothing has completed it");
  if (job && job->completed.load()) job = nullptr;
}

Result mixed() { return say(kInvalidUsage, "init and collectives in one group"); }
// Launches the group's operations later. Until then the communicators that do not block are in progress.
Result end_later() {
  std::vector<Operation> operations;
  operations.swap(group().operations);
  std::vector<CommPtr> comms;
  for (const Operation &o : operations) comms.push_back(std::static_pointer_cast<Comm>(o.comm));
  constexpr int kNoJobsSince = 22600;
  const auto job = version() < kNoJobsSince ? std::make_shared<ThreadJob>() : nullptr;
  for (const CommPtr &c : comms) {
    if (c->blocking) continue;
    c->state.store(kInProgress);
    if (!job) continue;
    job->comms.insert(c.get());
    const Lock lock(c->mutex);
    c->job = job;
  }
  job_here().job = job;
  std::thread([operations, comms] {
    std::this_thread::sleep_for(std::chrono::milliseconds(settings().nccl_group_ms));
    Group later;
    later.operations = operations;
    const Result r = later.end(launch_all, mixed);
    for (const CommPtr &c : comms) {
      int expected = kInProgress;
      c->state.compare_exchange_strong(expected, r);
    }
  }).detach();
  return kInProgress;
}
Result end_group() {
  bool follows = false;
  for (const Operation &o : group().operations) follows |= !o.awaited;
  if (follows && settings().nccl_group_ms && !group().failure && group().inits.empty()) return end_later();
  const Result r = group().end(launch_all, mixed);
  return r == kSuccess && follows && Machine::get().blocking.load() ? static_cast<Result>(kInProgress) : r;
}

// One call of the program, while the call is made.
struct NcclCall {
  Operation o;
  CommPtr comm;
  Work work;
  Scalar scalar;
};

Result resolve(NcclCall &c, const char *role, const void *p, uint64_t bytes, std::byte **out) {
  if (find_buffer(c.o, role, p, bytes, out, true) == Code::Ok) return kSuccess;
  return say(kInvalidArgument, "%s: %s is not usable memory", c.o.entry.name(), role);
}

Result find_operation(Comm &comm, int op, int type, NcclCall *c) {
  if (op >= 0 && op < kOps) {
    c->work.reduction = static_cast<Reduction>(op);
    return kSuccess;
  }
  const Lock lock(comm.mutex);
  const auto it = comm.scalars.find(op);
  if (it == comm.scalars.end() || it->second.type != type) return say(kInvalidArgument, "op %d of type %d", op, type);
  c->work.reduction = Reduction::ScaledSum;
  c->scalar = it->second;
  return kSuccess;
}

Result begin(NcclCall &c, CommHandle h, void *stream, int type, int peer) {
  if (const Result r = find_ready(c.o.entry, h, &c.comm)) return r;
  c.o.comm = c.comm;
  look_for_job(c.o.entry, *c.comm);
  if (c.comm->revoked) return say(kInvalidUsage, "the communicator was revoked");
  if (type < 0 || type >= kTypes) return say(kInvalidArgument, "datatype %d", type);
  if (peer < 0 || peer >= c.comm->size) return say(kInvalidArgument, "rank %d of %d", peer, c.comm->size);
  const Code found = find_stream(c.o.entry, c.comm->device, stream, &c.o.stream);
  if (c.comm->lost() || found == Code::Lost) return say(kUnhandledCuda, "the device was reset");
  if (found != Code::Ok) return say(kInvalidArgument, "not a stream");
  c.o.awaited = c.comm->blocking;
  if (&c.o.stream->device != &c.comm->device)
    misuse(c.o.entry.name(), Code::Invalid, "a stream of device %d, the communicator's is %d", c.o.stream->device.ordinal(),
           c.comm->device.ordinal());
  else {
    c.work.type = static_cast<Type>(type);
    return kSuccess;
  }
  return say(kInvalidArgument, "not a stream of the communicator's device");
}

Result commit(Operation &&o) {
  group().operations.push_back(std::move(o));
  return group().depth ? static_cast<Result>(kSuccess) : end_group();
}

struct NcclBuffers {
  const void *from;
  void *to;
};

Result collective(const Entry &e, Collective kind, NcclBuffers b, uint64_t count, int type, int op, int root, CommHandle h,
                  void *stream) {
  NcclCall c{{e, {}, {}, {}, {}, false, true, {}}, {}, {}, {}};
  if (const Result r = begin(c, h, stream, type, root)) return note(r);
  if (const Result r = find_operation(*c.comm, op, type, &c)) return note(r);
  const uint64_t ranks = static_cast<uint64_t>(c.comm->size), bytes = count * type_size(c.work.type);
  const bool at_root = c.comm->rank == root;
  uint64_t from_bytes = bytes, to_bytes = bytes;
  if (kind == Collective::AllGather) to_bytes *= ranks;
  if (kind == Collective::ReduceScatter) from_bytes *= ranks;
  if (kind == Collective::Reduce && !at_root) to_bytes = 0;
  if (kind == Collective::Broadcast && !at_root) from_bytes = 0;
  std::byte *from = nullptr;
  if (const Result r = resolve(c, "sendbuff", b.from, from_bytes, &from)) return note(r);
  if (const Result r = resolve(c, "recvbuff", b.to, to_bytes, &c.work.to)) return note(r);
  c.work.kind = kind;
  c.work.root = root;
  c.work.count = count;
  c.work.from = from;
  if (count)
    c.o.collective = [call = e.name(), work = c.work, scalar = c.scalar](Fabric &fabric, const Fabric::Stop &stop) {
      Work w = work;
      w.factor = scalar.value;
      if (scalar.place.found()) std::memcpy(&w.factor, scalar.place.at(), type_size(w.type));
      fabric.run(call, w, stop);
    };
  return commit(std::move(c.o));
}

Result message(const Entry &e, bool sends, void *p, uint64_t count, int type, int peer, CommHandle h, void *stream) {
  NcclCall c{{e, {}, {}, {}, {}, false, true, {}}, {}, {}, {}};
  if (const Result r = begin(c, h, stream, type, peer)) return note(r);
  Message m{sends, peer, nullptr, count * type_size(c.work.type)};
  if (const Result r = resolve(c, sends ? "sendbuff" : "recvbuff", p, m.bytes, &m.at)) return note(r);
  c.o.messages.push_back(m);
  return commit(std::move(c.o));
}

}  // namespace

void complete_job(const Entry &e, Comm &comm) {
  std::shared_ptr<ThreadJob> job;
  {
    const Lock lock(comm.mutex);
    job.swap(comm.job);
  }
  if (!job || job->completed.exchange(true) || !job->thread_gone.load()) return;
  misuse(e.name(), Code::IllegalState,
         "the communicator's last group was ended by a thread that is gone, and nothing had completed it before");
}

bool in_group() { return group().depth > 0; }
void defer_init(std::function<Result()> init) { group().inits.push_back(std::move(init)); }
Result note(Result r) { return group().note(r); }

}  // namespace rehearsal::nccl

using namespace rehearsal;
using namespace rehearsal::nccl;
using rehearsal::nccl::find_ready;

EXPORT Result ncclGroupStart() {
  NCCL_CALL("ncclGroupStart");
  ++group().depth;
  open_groups().fetch_add(1);
  return kSuccess;
}

EXPORT Result ncclGroupEnd() {
  static Counter &this_counter = counter("ncclGroupEnd");
  const Entry entry(this_counter);
  Group &g = group();
  if (const Result stop = gate(entry)) {  // the group ends also when the call fails
    if (entry.in_child() || g.depth == 0) return stop;
    open_groups().fetch_sub(1);
    if (--g.depth == 0) g.forget();
    return stop;
  }
  if (g.depth == 0) {
    misuse(entry.name(), Code::IllegalState, "no group is open");
    return kInvalidUsage;
  }
  open_groups().fetch_sub(1);
  return --g.depth ? static_cast<Result>(kSuccess) : end_group();
}

// The group ends, and nothing of the group is done. As the estimate each operation takes one second.
EXPORT Result ncclGroupSimulateEnd(SimInfo *info) {
  NCCL_CALL("ncclGroupSimulateEnd");
  Group &g = group();
  if (g.depth == 0) {
    misuse(entry.name(), Code::IllegalState, "no group is open");
    return kInvalidUsage;
  }
  if (info && info->magic != kSimInfoMagic) return note(say(kInvalidArgument, "not a ncclSimInfo_t"));
  open_groups().fetch_sub(1);
  if (--g.depth) return kSuccess;
  if (info) info->seconds = static_cast<float>(g.operations.size());
  g.forget();
  return kSuccess;
}

EXPORT Result ncclAllReduce(const void *from, void *to, size_t count, int type, int op, CommHandle comm, void *stream) {
  NCCL_CALL("ncclAllReduce");
  return collective(entry, Collective::AllReduce, {from, to}, count, type, op, 0, comm, stream);
}
EXPORT Result ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, CommHandle comm,
                         void *stream) {
  NCCL_CALL("ncclReduce");
  return collective(entry, Collective::Reduce, {from, to}, count, type, op, root, comm, stream);
}
EXPORT Result ncclBroadcast(const void *from, void *to, size_t count, int type, int root, CommHandle comm, void *stream) {
  NCCL_CALL("ncclBroadcast");
  return collective(entry, Collective::Broadcast, {from, to}, count, type, 0, root, comm, stream);
}
EXPORT Result ncclBcast(void *buffer, size_t count, int type, int root, CommHandle comm, void *stream) {
  NCCL_CALL("ncclBcast");
  return collective(entry, Collective::Broadcast, {buffer, buffer}, count, type, 0, root, comm, stream);
}
EXPORT Result ncclAllGather(const void *from, void *to, size_t count, int type, CommHandle comm, void *stream) {
  NCCL_CALL("ncclAllGather");
  return collective(entry, Collective::AllGather, {from, to}, count, type, 0, 0, comm, stream);
}
EXPORT Result ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, CommHandle comm, void *stream) {
  NCCL_CALL("ncclReduceScatter");
  return collective(entry, Collective::ReduceScatter, {from, to}, count, type, op, 0, comm, stream);
}
EXPORT Result ncclSend(const void *from, size_t count, int type, int peer, CommHandle comm, void *stream) {
  NCCL_CALL("ncclSend");
  return message(entry, true, const_cast<void *>(from), count, type, peer, comm, stream);
}
EXPORT Result ncclRecv(void *to, size_t count, int type, int peer, CommHandle comm, void *stream) {
  NCCL_CALL("ncclRecv");
  return message(entry, false, to, count, type, peer, comm, stream);
}

EXPORT Result ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, CommHandle h) {
  NCCL_CALL("ncclRedOpCreatePreMulSum");
  CommPtr c;
  if (const Result r = find_ready(entry, h, &c)) return r;
  if (!op || !scalar || type < 0 || type >= kTypes || residence < 0 || residence > 1) return note(kInvalidArgument);
  Scalar s;
  s.type = type;
  if (residence == 1) {
    std::memcpy(&s.value, scalar, type_size(static_cast<Type>(type)));
  } else {
    s.place = find_place(reinterpret_cast<uintptr_t>(scalar));
    if (!s.place.found() || s.place.left() < type_size(static_cast<Type>(type))) {
      misuse(entry.name(), Code::Invalid, "scalar %p: not memory of a device", scalar);
      return note(kInvalidArgument);
    }
  }
  const Lock lock(c->mutex);
  *op = c->next_op++;
  c->scalars[*op] = s;
  return kSuccess;
}

EXPORT Result ncclRedOpDestroy(int op, CommHandle h) {
  NCCL_CALL("ncclRedOpDestroy");
  CommPtr c;
  if (const Result r = find_ready(entry, h, &c)) return r;
  const Lock lock(c->mutex);
  return c->scalars.erase(op) ? static_cast<Result>(kSuccess) : say(kInvalidArgument, "op %d", op);
}
