// The simulated libnccl.so.2 and librccl.so.1: collectives, messages, groups.
#include <cstring>
#include <thread>

#include "nccl/nccl_abi.hpp"

namespace rehearsal::nccl {
namespace {

// One call, from the moment it is made until the outermost group ends.
struct Call {
  Entry entry;
  CommPtr comm;
  StreamPtr stream;
  bool is_message = false;
  Work work;
  Scalar scalar;
  Message message;
  std::vector<std::shared_ptr<Block>> touches;
};

struct Group {
  int depth = 0;
  Result failure = kSuccess;
  std::vector<Call> calls;
  std::vector<std::function<Result()>> inits;
};
Group &group() {
  static thread_local Group the_group;
  return the_group;
}

bool alive(const Call &c) {
  for (const auto &block : c.touches)
    if (!block->live.load(std::memory_order_acquire)) {
      misuse(c.entry.name(), Code::Illegal, "memory at %#zx was freed before the work that uses it ran",
             static_cast<size_t>(block->address));
      c.comm->device.break_down(Machine::get().illegal_address.load());
      return false;
    }
  return true;
}

// A failure of the device ends its work for good; of the network only the communicator hears, and the work stands.
int breaks_device(const Extras &x) { return x.late == kUnhandledCuda ? Machine::get().illegal_address.load() : 0; }

Code submit_collective(const Call &c, const StreamPtr &s) {
  return c.comm->submit_locked(
      c.entry, s,
      [c](Fabric &fabric, const Fabric::Stop &stop) {
        if (!alive(c)) return;
        Work w = c.work;
        w.factor = c.scalar.value;
        if (c.scalar.place.found()) std::memcpy(&w.factor, c.scalar.place.at(), type_size(w.type));
        fabric.run(c.entry.name(), w, stop);
      },
      c.entry.extras(), breaks_device(c.entry.extras()));
}

Code submit_messages(const std::vector<Call> &calls, const StreamPtr &s) {
  Extras x;
  for (const Call &c : calls) {
    x.hang |= c.entry.extras().hang;
    x.slow_ms += c.entry.extras().slow_ms;
    if (c.entry.extras().late) x.late = c.entry.extras().late;
  }
  return calls.front().comm->submit_locked(
      calls.front().entry, s,
      [calls](Fabric &fabric, const Fabric::Stop &stop) {
        std::vector<Message> messages;
        for (const Call &c : calls) {
          if (!alive(c)) return;
          messages.push_back(c.message);
        }
        fabric.run(calls.front().entry.name(), messages, stop);
      },
      x, breaks_device(x));
}

// `second` goes on when `first` has come here. The device's lock is held.
void order(const Entry &e, const StreamPtr &first, const StreamPtr &second) {
  const auto marker = std::make_shared<Marker>();
  const Extras none;
  Device &d = first->device;
  submit_locked(
      e, first, [marker] { marker->done.store(true, std::memory_order_release); }, true, &none);
  submit_locked(
      e, second, [marker, &d] { poll_until([&] { return marker->done.load(std::memory_order_acquire) || d.broken(); }); },
      true, &none);
}

// All calls of a group on one communicator: its collectives in order, then all its messages at once.
Result launch(const std::vector<Call> &calls) {
  const Entry &e = calls.front().entry;
  const StreamPtr &s = calls.front().stream;
  Comm &comm = *calls.front().comm;
  if (!s->capture() && comm.prepare(e.name()) != Code::Ok) return say(kUnhandledCuda, "out of memory");
  const auto lock = comm.device.enter();
  if (comm.device.broken()) return say(kUnhandledCuda, "the device failed");
  const std::lock_guard submission(comm.submission);  // the device's lock may be switched off
  // One communicator's work is done in the order of its calls, whatever the streams.
  if (!s->capture()) {
    if (comm.last && comm.last != s) order(e, comm.last, s);
    comm.last = s;
  }
  std::vector<StreamPtr> others;
  for (const Call &c : calls)
    if (c.stream != s && std::find(others.begin(), others.end(), c.stream) == others.end()) others.push_back(c.stream);
  for (const StreamPtr &other : others) order(e, other, s);
  std::vector<Call> messages;
  for (const Call &c : calls) {
    if (c.is_message) messages.push_back(c);
    else if (c.work.count) submit_collective(c, s);
  }
  if (!messages.empty()) submit_messages(messages, s);
  for (const StreamPtr &other : others) order(e, s, other);
  return kSuccess;
}

Result end_group() {
  Group &g = group();
  std::vector<Call> calls;
  std::vector<std::function<Result()>> inits;
  calls.swap(g.calls);
  inits.swap(g.inits);
  Result result = g.failure;
  g.failure = kSuccess;
  if (!inits.empty()) {
    std::vector<Result> results(inits.size(), kSuccess);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < inits.size(); ++i) threads.emplace_back([&, i] { results[i] = inits[i](); });
    for (std::thread &t : threads) t.join();
    for (const Result r : results)
      if (result == kSuccess) result = r;
    if (!calls.empty() && result == kSuccess) result = say(kInvalidUsage, "init and collectives in one group");
  }
  while (!calls.empty() && result == kSuccess) {
    std::vector<Call> same, rest;
    for (Call &c : calls) (c.comm == calls.front().comm ? same : rest).push_back(c);
    result = launch(same);
    calls.swap(rest);
  }
  return result;
}

// A buffer of the communicator's device.
Result resolve(Call &c, const char *role, const void *p, uint64_t bytes, std::byte **out) {
  *out = nullptr;
  if (bytes == 0) return kSuccess;
  const char *call = c.entry.name();
  const Place place = find_place(reinterpret_cast<uintptr_t>(p));
  Device &d = c.comm->device;
  if (!place.found())
    misuse(call, Code::Invalid, "%s %p: %s", role, p,
           place.state == Place::State::Freed ? "memory that was freed" : "not memory of a device");
  else if (place.block->on_host()) misuse(call, Code::Invalid, "%s %p: memory of the host", role, p);
  else if (place.block->device != d.ordinal())
    misuse(call, Code::Invalid, "%s %p: memory of device %d, the communicator's is %d", role, p, place.block->device,
           d.ordinal());
  else if (bytes > place.left())
    misuse(call, Code::Invalid, "%s %p: %lu bytes, but %zu are left of what is there", role, p,
           static_cast<unsigned long>(bytes), place.left());
  else {
    *out = place.at();
    c.touches.push_back(place.block);
    return kSuccess;
  }
  return say(kInvalidArgument, "%s: %s is not usable memory", call, role);
}

Result find_operation(Comm &comm, int op, int type, Call *c) {
  if (op >= 0 && op < kOps) {
    c->work.reduction = static_cast<Reduction>(op);
    return kSuccess;
  }
  const std::lock_guard lock(comm.mutex);
  const auto it = comm.scalars.find(op);
  if (it == comm.scalars.end() || it->second.type != type) return say(kInvalidArgument, "op %d of type %d", op, type);
  c->work.reduction = Reduction::ScaledSum;
  c->scalar = it->second;
  return kSuccess;
}

Result begin(Call &c, CommHandle h, void *stream, int type, int peer) {
  if (const Result r = find_ready(c.entry, h, &c.comm)) return r;
  if (type < 0 || type >= kTypes) return say(kInvalidArgument, "datatype %d", type);
  if (peer < 0 || peer >= c.comm->size) return say(kInvalidArgument, "rank %d of %d", peer, c.comm->size);
  if (find_stream(c.entry, c.comm->device, stream, &c.stream) != Code::Ok) return say(kInvalidArgument, "not a stream");
  if (&c.stream->device != &c.comm->device)
    misuse(c.entry.name(), Code::Invalid, "a stream of device %d, the communicator's is %d", c.stream->device.ordinal(),
           c.comm->device.ordinal());
  else {
    c.work.type = static_cast<Type>(type);
    return kSuccess;
  }
  return say(kInvalidArgument, "not a stream of the communicator's device");
}

Result commit(Call &&c) {
  group().calls.push_back(std::move(c));
  return group().depth ? static_cast<Result>(kSuccess) : end_group();
}

struct Buffers {
  const void *from;
  void *to;
};

Result collective(const Entry &e, Collective kind, Buffers b, uint64_t count, int type, int op, int root, CommHandle h,
                  void *stream) {
  Call c{e, {}, {}, false, {}, {}, {}, {}};
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
  return commit(std::move(c));
}

Result message(const Entry &e, bool sends, void *p, uint64_t count, int type, int peer, CommHandle h, void *stream) {
  Call c{e, {}, {}, true, {}, {}, {}, {}};
  if (const Result r = begin(c, h, stream, type, peer)) return note(r);
  c.message.sends = sends;
  c.message.peer = peer;
  c.message.bytes = count * type_size(c.work.type);
  if (const Result r = resolve(c, sends ? "sendbuff" : "recvbuff", p, c.message.bytes, &c.message.at)) return note(r);
  return commit(std::move(c));
}

}  // namespace

bool in_group() { return group().depth > 0; }
void defer_init(std::function<Result()> init) { group().inits.push_back(std::move(init)); }
Result note(Result r) {
  Group &g = group();
  if (r != kSuccess && g.depth && g.failure == kSuccess) g.failure = r;
  return r;
}

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
  if (const Result stop = gate(entry)) {  // the group is over all the same
    if (entry.in_child() || g.depth == 0) return stop;
    open_groups().fetch_sub(1);
    if (--g.depth == 0) {
      g.calls.clear();
      g.inits.clear();
      g.failure = kSuccess;
    }
    return stop;
  }
  if (g.depth == 0) {
    misuse(entry.name(), Code::IllegalState, "no group is open");
    return kInvalidUsage;
  }
  open_groups().fetch_sub(1);
  return --g.depth ? static_cast<Result>(kSuccess) : end_group();
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
  const std::lock_guard lock(c->mutex);
  *op = c->next_op++;
  c->scalars[*op] = s;
  return kSuccess;
}

EXPORT Result ncclRedOpDestroy(int op, CommHandle h) {
  NCCL_CALL("ncclRedOpDestroy");
  CommPtr c;
  if (const Result r = find_ready(entry, h, &c)) return r;
  const std::lock_guard lock(c->mutex);
  return c->scalars.erase(op) ? static_cast<Result>(kSuccess) : say(kInvalidArgument, "op %d", op);
}
