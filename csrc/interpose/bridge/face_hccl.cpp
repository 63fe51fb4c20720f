// What a communicator that spans vendors does when it is called by HCCL's names.
#include "face_hccl.hpp"

#include <cstring>
#include <mutex>
#include <numeric>
#include <set>

#include "handles.hpp"

namespace isthmus::bridge::hccl {
namespace {

using namespace interpose::hccl;  // its codes and types

constexpr int kOpCount = 4;
constexpr isthmus_redop kOps[kOpCount] = {ISTHMUS_SUM, ISTHMUS_PROD, ISTHMUS_MAX, ISTHMUS_MIN};

const FrontDoor *the_door;

Result number_of(isthmus_result code) {
  switch (code) {
    case ISTHMUS_OK: return kSuccess;
    case ISTHMUS_ERR_ARGUMENT:
    case ISTHMUS_ERR_CONFIG:
    case ISTHMUS_ERR_MISMATCH: return kParameter;
    case ISTHMUS_ERR_FORKED:
    case ISTHMUS_ERR_UNSUPPORTED: return kNotSupported;
    case ISTHMUS_ERR_TIMEOUT: return kTimeout;
    case ISTHMUS_ERR_PEER_LOST:
    case ISTHMUS_ERR_ABORTED: return kRemote;
    case ISTHMUS_ERR_RESOURCE: return kUnavailable;
    case ISTHMUS_ERR_SYSTEM:
    case ISTHMUS_ERR_AUTH: return kSystem;
    case ISTHMUS_IN_PROGRESS: return kAgain;
    default: return kInternalError;
  }
}

Result no_comm(const char *call) {
  return note(refused(kParameter, call, "this communicator, which spanned vendors, was destroyed"));
}

// How Isthmus calls a type, and whether it adds what HCCL means by it; nothing: there is no such type, or none that can be moved.
struct Meaning {
  isthmus_dtype dtype;
  bool known, adds;
};
Meaning meaning(Type type) {
  switch (type) {
    case 0: return {ISTHMUS_INT8, true, true};
    case 1: return {ISTHMUS_INT16, true, true};
    case 2: return {ISTHMUS_INT32, true, true};
    case 3: return {ISTHMUS_FLOAT16, true, true};
    case 4: return {ISTHMUS_FLOAT32, true, true};
    case 5: return {ISTHMUS_INT64, true, true};
    case 6: return {ISTHMUS_UINT64, true, true};
    case 7: return {ISTHMUS_UINT8, true, true};
    case 8: return {ISTHMUS_UINT16, true, true};
    case 9: return {ISTHMUS_UINT32, true, true};
    case 10: return {ISTHMUS_FLOAT64, true, true};
    case 11: return {ISTHMUS_BFLOAT16, true, true};
    case 15: return {ISTHMUS_FLOAT8_E4M3FN, true, true};
    case 16: return {ISTHMUS_FLOAT8_E5M2, true, true};
    case 14:  // Huawei's own 8-bit float, and one that is nothing but an exponent
    case 17: return {ISTHMUS_UINT8, true, false};
    default: return {ISTHMUS_UINT8, false, false};
  }
}

// Between its own ranks HCCL sends nothing where there is nothing to send, so one end alone may make the call. Others match it.
bool is_none(const Operation &o, const Traits &traits) {
  return (o.call == Call::Send || o.call == Call::Recv) && o.count == 0 &&
         traits.vendors[static_cast<size_t>(o.root)] == door().family[0];
}

bool lacks_memory(const Operation &o, int rank) {
  const bool reads = o.call != Call::Recv && (o.call != Call::Scatter || o.root == rank),
             writes = o.call != Call::Send && (o.call != Call::Reduce || o.root == rank);
  return o.count != 0 && ((reads && !o.send) || (writes && !o.recv));
}

// ---- operations --------------------------------------------------------------------------------------------------------------------

// An operation while it is checked.
class Asking {
 public:
  Asking(const char *call, Handle comm, Call what, Stream stream) : call_(call), comm_(bridge::find(comm)) {
    o.call = what;
    o.stream = stream;
    if (!comm_) code_ = no_comm(call);
    else if (!stream) fail(kPointer, "the stream is NULL");
  }
  Asking &type(Type t) {
    if (code_ != kSuccess) return *this;
    const Meaning m = meaning(t);
    if (!m.known) fail(kNotSupported, "data type " + std::to_string(t) + " is none that Isthmus carries");
    o.dtype = m.dtype;
    adds_ = m.adds;
    return *this;
  }
  // Both sides say it.
  Asking &types(Type from, Type to) {
    if (code_ == kSuccess && from != to) fail(kParameter, "the types of what is sent and received are different");
    return type(from);
  }
  Asking &op(Op op) {
    if (code_ != kSuccess) return *this;
    if (op < 0 || op >= kOpCount) fail(kParameter, "reduction " + std::to_string(op) + " is none");
    else if (!adds_) fail(kNotSupported, "numbers of that type are not added: no other vendor has them");
    else o.op = kOps[op];
    return *this;
  }
  Asking &peer(uint32_t rank) {
    if (code_ == kSuccess && rank >= static_cast<uint32_t>(size()))
      fail(kParameter, "rank " + std::to_string(rank) + " is not in 0 to " + std::to_string(size() - 1));
    o.root = static_cast<int>(rank);
    return *this;
  }
  Asking &buffers(const void *send, void *recv, uint64_t count) {
    o.send = send;
    o.recv = recv;
    o.count = count;
    return *this;
  }
  // A message is bytes: the two ends need not call them by one type.
  Asking &as_bytes() {
    if (code_ == kSuccess && !bridge::as_bytes(o)) fail(kParameter, "more elements than memory can hold");
    return *this;
  }
  Asking &counts(std::vector<uint64_t> &to, const void *from) {
    if (code_ == kSuccess && !from) fail(kPointer, "an array of counts or displacements is NULL");
    if (code_ != kSuccess) return *this;
    to.resize(static_cast<size_t>(size()));
    std::memcpy(to.data(), from, to.size() * sizeof to[0]);
    return *this;
  }
  // What this rank gives or gets, twice said.
  Asking &mine(const std::vector<uint64_t> &counts, uint64_t count) {
    if (code_ == kSuccess && counts[static_cast<size_t>(rank())] != count)
      fail(kParameter, "the count of this rank is not the one that stands for it among all counts");
    return *this;
  }
  Asking &unequal(bool other, const char *why) {
    if (code_ == kSuccess && other) fail(kParameter, why);
    return *this;
  }
  bool good() const noexcept { return code_ == kSuccess; }
  int size() const noexcept { return comm_->traits().size; }
  int rank() const noexcept { return comm_->traits().rank; }
  Result go() {
    std::vector<Operation> one;
    const bool nothing = o.count == 0 && (o.call == Call::AllReduce || o.call == Call::Reduce || o.call == Call::Broadcast ||
                                          o.call == Call::AllGather || o.call == Call::ReduceScatter ||
                                          o.call == Call::AllToAll || o.call == Call::Scatter);
    if (!nothing) one.push_back(std::move(o));
    return go(std::move(one));
  }
  // These instead, together.
  Result go(std::vector<Operation> operations) {
    for (const Operation &each : operations)
      if (code_ == kSuccess && lacks_memory(each, rank())) fail(kPointer, "a buffer is NULL");
    if (code_ == kSuccess)
      if (const Outcome s = comm_->status(); !s.ok()) return note(failed(call_, s));
    if (code_ != kSuccess) return note(code_);
    std::erase_if(operations, [&](const Operation &each) { return is_none(each, comm_->traits()); });
    if (operations.empty()) return kSuccess;
    if (in_group()) {
      Pending &p = pending();
      for (Operation &each : operations) p.operations.emplace_back(comm_, std::move(each));
      return kSuccess;
    }
    if (operations.size() == 1) {
      if (const Outcome s = settle(*comm_, operations[0]); !s.ok()) return failed(call_, s);
      return failed(call_, comm_->run(operations[0]));
    }
    std::vector<std::pair<CommPtr, Operation>> all;
    for (Operation &each : operations) all.emplace_back(comm_, std::move(each));
    return failed(call_, run_group(all));
  }
  void fail(Result code, const std::string &text) { code_ = refused(code, call_, text); }

  Operation o;

 private:
  const char *const call_;
  CommPtr comm_;
  bool adds_ = false;
  Result code_ = kSuccess;
};

Result all_reduce(void *from, void *to, uint64_t count, Type type, Op op, Handle comm, Stream stream) {
  return Asking("HcclAllReduce", comm, Call::AllReduce, stream).type(type).op(op).buffers(from, to, count).go();
}
Result reduce(void *from, void *to, uint64_t count, Type type, Op op, uint32_t root, Handle comm, Stream stream) {
  return Asking("HcclReduce", comm, Call::Reduce, stream).type(type).op(op).peer(root).buffers(from, to, count).go();
}
Result broadcast(void *buffer, uint64_t count, Type type, uint32_t root, Handle comm, Stream stream) {
  return Asking("HcclBroadcast", comm, Call::Broadcast, stream).type(type).peer(root).buffers(buffer, buffer, count).go();
}
Result all_gather(void *from, void *to, uint64_t count, Type type, Handle comm, Stream stream) {
  return Asking("HcclAllGather", comm, Call::AllGather, stream).type(type).buffers(from, to, count).go();
}
Result reduce_scatter(void *from, void *to, uint64_t count, Type type, Op op, Handle comm, Stream stream) {
  return Asking("HcclReduceScatter", comm, Call::ReduceScatter, stream).type(type).op(op).buffers(from, to, count).go();
}
Result scatter(void *from, void *to, uint64_t count, Type type, uint32_t root, Handle comm, Stream stream) {
  return Asking("HcclScatter", comm, Call::Scatter, stream).type(type).peer(root).buffers(from, to, count).go();
}
Result all_gather_v(void *from, uint64_t count, void *to, const void *counts, const void *displs, Type type, Handle comm,
                    Stream stream) {
  Asking a("HcclAllGatherV", comm, Call::AllGatherV, stream);
  return a.type(type)
      .buffers(from, to, 0)
      .counts(a.o.recv_counts, counts)
      .counts(a.o.recv_displs, displs)
      .mine(a.o.recv_counts, count)
      .go();
}
Result reduce_scatter_v(void *from, const void *counts, const void *displs, void *to, uint64_t count, Type type, Op op,
                        Handle comm, Stream stream) {
  Asking a("HcclReduceScatterV", comm, Call::ReduceScatterV, stream);
  return a.type(type)
      .op(op)
      .buffers(from, to, 0)
      .counts(a.o.send_counts, counts)
      .counts(a.o.send_displs, displs)
      .mine(a.o.send_counts, count)
      .go();
}

constexpr const char *kDifferent = "the counts of what is sent and received are different";

Result all_to_all(const void *from, uint64_t from_count, Type from_type, const void *to, uint64_t to_count, Type to_type,
                  Handle comm, Stream stream) {
  return Asking("HcclAlltoAll", comm, Call::AllToAll, stream)
      .types(from_type, to_type)
      .unequal(from_count != to_count, kDifferent)
      .buffers(from, const_cast<void *>(to), from_count)
      .go();
}
Result all_to_all_v(const void *from, const void *from_counts, const void *from_displs, Type from_type, const void *to,
                    const void *to_counts, const void *to_displs, Type to_type, Handle comm, Stream stream) {
  Asking a("HcclAlltoAllV", comm, Call::AllToAllV, stream);
  return a.types(from_type, to_type)
      .buffers(from, const_cast<void *>(to), 0)
      .counts(a.o.send_counts, from_counts)
      .counts(a.o.send_displs, from_displs)
      .counts(a.o.recv_counts, to_counts)
      .counts(a.o.recv_displs, to_displs)
      .go();
}
// The counts of all: row i is what rank i sends to each. The parts lie one behind the other.
Result all_to_all_vc(const void *from, const void *matrix, Type from_type, const void *to, Type to_type, Handle comm,
                     Stream stream) {
  Asking a("HcclAlltoAllVC", comm, Call::AllToAllV, stream);
  a.types(from_type, to_type).buffers(from, const_cast<void *>(to), 0);
  if (a.good() && !matrix) a.fail(kPointer, "the matrix of counts is NULL");
  if (a.good()) {
    const auto ranks = static_cast<size_t>(a.size()), me = static_cast<size_t>(a.rank());
    std::vector<uint64_t> all(ranks * ranks);
    std::memcpy(all.data(), matrix, all.size() * sizeof all[0]);
    for (size_t r = 0; r < ranks; ++r) {
      a.o.send_counts.push_back(all[me * ranks + r]);
      a.o.recv_counts.push_back(all[r * ranks + me]);
    }
    const auto behind_each_other = [&](const std::vector<uint64_t> &counts, std::vector<uint64_t> &displs) {
      displs.resize(ranks);
      std::exclusive_scan(counts.begin(), counts.end(), displs.begin(), uint64_t{0});
    };
    behind_each_other(a.o.send_counts, a.o.send_displs);
    behind_each_other(a.o.recv_counts, a.o.recv_displs);
  }
  return a.go();
}

constexpr const char *kSelf = "a rank sends itself nothing outside of a group and HcclBatchSendRecv";

Result send(void *from, uint64_t count, Type type, uint32_t peer, Handle comm, Stream stream) {
  Asking a("HcclSend", comm, Call::Send, stream);
  a.type(type).peer(peer).buffers(from, nullptr, count).as_bytes();
  return a.unequal(a.good() && a.o.root == a.rank() && !in_group(), kSelf).go();
}
Result recv(void *to, uint64_t count, Type type, uint32_t peer, Handle comm, Stream stream) {
  Asking a("HcclRecv", comm, Call::Recv, stream);
  a.type(type).peer(peer).buffers(nullptr, to, count).as_bytes();
  return a.unequal(a.good() && a.o.root == a.rank() && !in_group(), kSelf).go();
}
Result batch(Message *messages, uint32_t count, Handle comm, Stream stream) {
  constexpr const char *kCall = "HcclBatchSendRecv";
  constexpr int kReceives = 1;
  Asking all(kCall, comm, Call::Send, stream);
  if (all.good() && count && !messages) all.fail(kPointer, "there are no messages");
  std::vector<Operation> operations;
  for (uint32_t i = 0; all.good() && i < count; ++i) {
    const Message &m = messages[i];
    const bool receives = m.what == kReceives;
    Asking one(kCall, comm, receives ? Call::Recv : Call::Send, stream);
    one.unequal(m.what < 0 || m.what > kReceives, "a message is neither to be sent nor to be received");
    one.type(m.type).peer(m.peer).buffers(receives ? nullptr : m.buffer, receives ? m.buffer : nullptr, m.count).as_bytes();
    if (!one.good()) return one.go();
    operations.push_back(std::move(one.o));
  }
  return all.go(std::move(operations));
}

Result barrier(Handle comm, Stream stream) { return Asking("HcclBarrier", comm, Call::Barrier, stream).go(); }

// ---- life --------------------------------------------------------------------------------------------------------------------------

Result rank_size(Handle handle, uint32_t *out) {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm("HcclGetRankSize");
  if (!out) return refused(kPointer, "HcclGetRankSize", "an argument is NULL");
  *out = static_cast<uint32_t>(comm->traits().size);
  return kSuccess;
}
Result rank_id(Handle handle, uint32_t *out) {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm("HcclGetRankId");
  if (!out) return refused(kPointer, "HcclGetRankId", "an argument is NULL");
  *out = static_cast<uint32_t>(comm->traits().rank);
  return kSuccess;
}
Result comm_name(Handle handle, char *out) {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm("HcclGetCommName");
  if (!out) return refused(kPointer, "HcclGetCommName", "an argument is NULL");
  constexpr size_t kBytes = sizeof ConfigHead::name;
  std::strncpy(out, comm->traits().name.c_str(), kBytes - 1);
  out[kBytes - 1] = 0;
  return kSuccess;
}
Result async_error(Handle handle, Result *out) {
  constexpr const char *kCall = "HcclGetCommAsyncError";
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm(kCall);
  if (!out) return refused(kPointer, kCall, "an argument is NULL");
  *out = failed(kCall, comm->status());
  return kSuccess;
}
Result destroy(Handle handle) {
  const CommPtr comm = bridge::take_back(handle);
  return comm ? failed("HcclCommDestroy", comm->destroy()) : no_comm("HcclCommDestroy");
}

// Nothing is thrown into a door, or the program behind it: no memory and no thread are errors like others.
template <auto F>
struct Guarded;
template <class... A, Result (*F)(A...)>
struct Guarded<F> {
  static Result call(A... arguments) noexcept {
    try {
      return F(arguments...);
    } catch (const std::exception &e) { return thrown(e); }
  }
};

constexpr interpose::hccl::Calls make_calls() {
  interpose::hccl::Calls c{};
  c.HcclGetRootInfo = Guarded<get_root_info>::call;
  c.HcclGetRootInfoScalable = Guarded<get_root_info_scalable>::call;
  c.HcclCommInitRootInfo = Guarded<init>::call;
  c.HcclCommInitRootInfoConfig = Guarded<init_config>::call;
  c.HcclCommInitRootInfoScalable = Guarded<init_scalable>::call;
  c.HcclCreateSubCommConfig = Guarded<create_part>::call;
  c.HcclGetRankSize = Guarded<rank_size>::call;
  c.HcclGetRankId = Guarded<rank_id>::call;
  c.HcclGetCommName = Guarded<comm_name>::call;
  c.HcclGetCommAsyncError = Guarded<async_error>::call;
  c.HcclCommDestroy = Guarded<destroy>::call;
  c.HcclAllReduce = Guarded<all_reduce>::call;
  c.HcclReduce = Guarded<reduce>::call;
  c.HcclBroadcast = Guarded<broadcast>::call;
  c.HcclAllGather = Guarded<all_gather>::call;
  c.HcclAllGatherV = Guarded<all_gather_v>::call;
  c.HcclReduceScatter = Guarded<reduce_scatter>::call;
  c.HcclReduceScatterV = Guarded<reduce_scatter_v>::call;
  c.HcclScatter = Guarded<scatter>::call;
  c.HcclAlltoAll = Guarded<all_to_all>::call;
  c.HcclAlltoAllV = Guarded<all_to_all_v>::call;
  c.HcclAlltoAllVC = Guarded<all_to_all_vc>::call;
  c.HcclSend = Guarded<send>::call;
  c.HcclRecv = Guarded<recv>::call;
  c.HcclBatchSendRecv = Guarded<batch>::call;
  c.HcclBarrier = Guarded<barrier>::call;
  c.group_end = Guarded<group_end>::call;
  return c;
}

}  // namespace

const FrontDoor &door() noexcept { return *the_door; }
Devices &devices() { return bridge::devices(door().device, door().look_up); }

void say(Level level, const std::string &text) { door().say(static_cast<int>(level), text.c_str()); }

Result refused(Result code, const char *call, const std::string &text) {
  constexpr size_t kMost = 1000;  // a program that goes on in spite of errors could fill the memory
  static std::mutex mutex;
  static auto *const said = new std::set<std::string>;
  const std::string line = std::string(call) + ": " + text;
  bool first = false;
  {
    const std::lock_guard lock(mutex);
    first = said->size() < kMost && said->insert(line).second;
  }
  if (first) say(Level::Warn, line);
  return code;
}
Result failed(const char *call, const Outcome &o) { return o.ok() ? kSuccess : refused(number_of(o.code), call, o.text); }
Result thrown(const std::exception &e) noexcept {
  door().say(static_cast<int>(Level::Warn), e.what());
  try {
    return note(kSystem);
  } catch (const std::exception &) { return kSystem; }
}
Result lacks(const char *name) {
  return refused(kNotSupported, name, std::string("the library at ") + door().path + " has no such function");
}

}  // namespace isthmus::bridge::hccl

extern "C" __attribute__((visibility("default"))) const isthmus::interpose::Bridged *isthmus_bridge_hccl(
    const isthmus::interpose::FrontDoor *door) {
  namespace bridge = isthmus::bridge;
  static const bool first = [&] {
    bridge::hccl::the_door = door->digest == isthmus::interpose::hccl::kCallsDigest ? door : nullptr;
    return true;
  }();
  static_cast<void>(first);
  if (!bridge::hccl::the_door) return nullptr;
  static const isthmus::interpose::hccl::Calls calls = [] {
    isthmus::interpose::hccl::Calls c = bridge::hccl::make_calls();
    c.handles = bridge::reserve_handles();
    return c;
  }();
  return calls.handles ? &calls : nullptr;
}
