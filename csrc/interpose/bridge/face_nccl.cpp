// What a communicator that spans vendors does when it is called by NCCL's names.
#include "face_nccl.hpp"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>

#include "handles.hpp"

namespace isthmus::bridge::nccl {
namespace {

using interpose::CollConfig;
using interpose::kInProgress;
using interpose::kInternalError;
using interpose::kInvalidArgument;
using interpose::kInvalidUsage;
using interpose::kRemoteError;
using interpose::kSuccess;
using interpose::kSystemError;
using interpose::kTimeout;
using interpose::Op;
using interpose::Stream;
using interpose::Type;

constexpr isthmus_dtype kTypes[] = {ISTHMUS_INT8,    ISTHMUS_UINT8,    ISTHMUS_INT32,         ISTHMUS_UINT32,
                                    ISTHMUS_INT64,   ISTHMUS_UINT64,   ISTHMUS_FLOAT16,       ISTHMUS_FLOAT32,
                                    ISTHMUS_FLOAT64, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT8_E4M3FN, ISTHMUS_FLOAT8_E5M2};
constexpr isthmus_redop kOps[] = {ISTHMUS_SUM, ISTHMUS_PROD, ISTHMUS_MAX, ISTHMUS_MIN, ISTHMUS_AVG};
constexpr int kTypeCount = 12, kOpCount = 5;
constexpr int kTimeoutSince = 23003;

const FrontDoor *the_door;
std::atomic<const char *> the_last_told;

Result number_of(isthmus_result code) {
  switch (code) {
    case ISTHMUS_OK: return kSuccess;
    case ISTHMUS_ERR_ARGUMENT: return kInvalidArgument;
    case ISTHMUS_ERR_CONFIG:
    case ISTHMUS_ERR_MISMATCH:
    case ISTHMUS_ERR_FORKED:
    case ISTHMUS_ERR_UNSUPPORTED: return kInvalidUsage;
    case ISTHMUS_ERR_TIMEOUT: return door().version >= kTimeoutSince ? kTimeout : kRemoteError;
    case ISTHMUS_ERR_PEER_LOST:
    case ISTHMUS_ERR_ABORTED: return kRemoteError;
    case ISTHMUS_ERR_RESOURCE:
    case ISTHMUS_ERR_SYSTEM:
    case ISTHMUS_ERR_AUTH: return kSystemError;
    case ISTHMUS_IN_PROGRESS: return kInProgress;
    default: return kInternalError;
  }
}

Result no_comm(const char *call) {
  return refused(kInvalidArgument, call, "this communicator, which spanned vendors, was destroyed or aborted");
}

// ---- factors -----------------------------------------------------------------------------------------------------------------------

double small_float(unsigned bits, int exponent_bits, int mantissa_bits) {
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1),
                 exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const bool e4m3 = exponent_bits == 4;  // has no infinity, and one NaN
  const bool top = exponent == (1u << exponent_bits) - 1;
  const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  if (top && (!e4m3 || mantissa == 7)) return mantissa ? __builtin_nan("") : sign * __builtin_inf();
  const double value =
      exponent ? __builtin_ldexp(1 + mantissa / static_cast<double>(1u << mantissa_bits), static_cast<int>(exponent) - bias)
               : __builtin_ldexp(mantissa / static_cast<double>(1u << mantissa_bits), 1 - bias);
  return sign * value;
}

template <class T>
T load(const void *p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// One element, as an integer of that width, and as a float where it is one.
uint64_t bits(isthmus_dtype type, const void *p) {
  uint64_t value = 0;
  std::memcpy(&value, p, isthmus_dtype_size(type));
  return value;
}
double number(isthmus_dtype type, const void *p) {
  switch (type) {
    case ISTHMUS_FLOAT16: return small_float(load<uint16_t>(p), 5, 10);
    case ISTHMUS_BFLOAT16: return small_float(load<uint16_t>(p), 8, 7);
    case ISTHMUS_FLOAT8_E4M3FN: return small_float(load<uint8_t>(p), 4, 3);
    case ISTHMUS_FLOAT8_E5M2: return small_float(load<uint8_t>(p), 5, 2);
    case ISTHMUS_FLOAT64: return load<double>(p);
    case ISTHMUS_FLOAT32: return static_cast<double>(load<float>(p));
    default: return 1;
  }
}

// A factor that lies on the device is what the stream has left there when it comes to the operation, so this waits for that.
Outcome read_factor(Devices &from, const Traits &traits, Operation &o) {
  unsigned char bytes[8] = {};
  Place before;
  if (Outcome now = from.current(before); !now.ok()) return now;
  from.enter(traits.place);
  Outcome read = from.read(bytes, o.scale_at, isthmus_dtype_size(o.dtype), o.stream);
  from.enter(before);
  if (!read.ok()) return read;
  o.scale = number(o.dtype, bytes);
  o.factor = bits(o.dtype, bytes);
  return read;
}

// ---- operations --------------------------------------------------------------------------------------------------------------------

// Collectives have two forms: a plain one, and one with a configuration of the call, which may be null.
struct Form {
  bool configured = false;
  const CollConfig *config = nullptr;
};

// An operation while it is checked. `call`: the name of the plain form.
class Asking {
 public:
  Asking(Form form, const char *call, Handle comm, Call what, Stream stream)
      : plain_(call), form_(form), comm_(bridge::find(comm)) {
    o.call = what;
    o.stream = stream;
    if (!comm_) code_ = no_comm(name());
  }
  Asking &type(Type t) {
    if (code_ == kSuccess && (t < 0 || t >= kTypeCount))
      fail(kInvalidArgument, "datatype " + std::to_string(t) + " is none");
    if (code_ == kSuccess) o.dtype = kTypes[t];
    return *this;
  }
  Asking &op(Op op) {
    if (code_ != kSuccess) return *this;
    Scale scale;
    if (op >= 0 && op < kOpCount) {
      o.op = kOps[op];
    } else if (!comm_->find(op - kOpCount, scale)) {
      fail(kInvalidArgument, "reduction " + std::to_string(op) + " is none, or was destroyed");
    } else if (scale.dtype != o.dtype) {
      fail(kInvalidArgument, std::string("the factor of the reduction is ") + isthmus_dtype_name(scale.dtype) +
                                 ", the data " + isthmus_dtype_name(o.dtype));
    } else {
      o.op = ISTHMUS_PREMUL_SUM;
      o.scale = scale.number;
      o.factor = scale.whole;
      o.scale_at = scale.at;
    }
    return *this;
  }
  Asking &peer(int rank) {
    if (code_ == kSuccess && (rank < 0 || rank >= comm_->traits().size))
      fail(kInvalidArgument, "rank " + std::to_string(rank) + " is not in 0 to " + std::to_string(comm_->traits().size - 1));
    o.root = rank;
    return *this;
  }
  Asking &buffers(const void *send, void *recv, size_t count) {
    o.send = send;
    o.recv = recv;
    o.count = count;
    return *this;
  }
  // A message is bytes: the two ends need not call them by one type.
  Asking &as_bytes() {
    if (code_ == kSuccess && !bridge::as_bytes(o)) fail(kInvalidArgument, "more elements than memory can hold");
    return *this;
  }
  Asking &counts(std::vector<uint64_t> &to, const size_t *from) {
    if (code_ == kSuccess && !from) fail(kInvalidArgument, "an array of counts or displacements is NULL");
    if (code_ == kSuccess) to.assign(from, from + comm_->traits().size);
    return *this;
  }
  Result go() {
    if (form_.config && code_ == kSuccess) read_config();
    if (code_ != kSuccess) return note(code_);
    if (const Outcome s = comm_->status(); s.code == ISTHMUS_IN_PROGRESS) fail(kInvalidArgument, s.text);
    else if (!s.ok()) return note(failed(name(), s));
    if (code_ != kSuccess) return note(code_);
    if (const Outcome s = comm_->open(); !s.ok()) return note(failed(name(), s));
    const bool message = o.call == Call::Send || o.call == Call::Recv || o.call == Call::AllToAllV;
    if (o.count == 0 && !message) return kSuccess;
    if (in_group()) {
      pending().operations.emplace_back(comm_, std::move(o));
      return kSuccess;
    }
    if (const Outcome read = resolve(*comm_, o); !read.ok()) return failed(name(), read);
    const Outcome begun = comm_->run(o);
    return begun.ok() ? kSuccess : failed(name(), begun);
  }

  Operation o;

 private:
  void read_config();
  void read(const interpose::ConfigExt &option);
  void fail(Result code, const std::string &text) { code_ = refused(code, name(), text); }
  const char *name() const { return form_.configured ? keep(std::string(plain_) + "Config") : plain_; }
  const char *const plain_;
  const Form form_;
  CommPtr comm_;
  Result code_ = kSuccess;
};

// What is in it and cannot be left out, and what is for Isthmus.
void Asking::read_config() {
  constexpr int kMostOptions = 1024;  // a list that comes back to itself has no end
  size_t size = 0;
  std::memcpy(&size, form_.config, sizeof size);
  interpose::CollConfigHead head{};
  head.algSelection = nullptr;
  std::memcpy(&head, form_.config, std::min(size, sizeof head));
  if (head.magic != kConfigMagic) return fail(kInvalidArgument, "the configuration was not initialised");
  const int force = head.forceAlgSelection;
  if (force != 0 && force != INT_MIN && head.algSelection && *head.algSelection)
    return fail(kInvalidUsage, std::string("the algorithm ") + head.algSelection +
                                   " is asked for and forced (forceAlgSelection), and it is the vendor's");
  if (head.launchCompletionEvent)
    return fail(kInvalidUsage, "a launch completion event is asked for, and there is none between vendors");
  int options = 0;
  for (const interpose::ConfigExt *e = head.ext; e && code_ == kSuccess; e = e->next) {
    if (++options > kMostOptions) fail(kInvalidArgument, "the list of extensions of the configuration is a circle");
    else if (e->key.vendorId == ISTHMUS_NCCL_VENDOR) read(*e);
  }
}

void Asking::read(const interpose::ConfigExt &option) {
  if (option.key.optionId == ISTHMUS_NCCL_TIMEOUT) {
    if (option.val.i < 1)
      return fail(kInvalidArgument,
                  "ISTHMUS_NCCL_TIMEOUT is " + std::to_string(option.val.i) + ": it is in milliseconds, 1 or more");
    o.timeout = option.val.i * 1e-3;
  } else if (option.key.optionId == ISTHMUS_NCCL_LABEL) {
    if (!option.val.s) return fail(kInvalidArgument, "ISTHMUS_NCCL_LABEL is NULL");
    o.label = option.val.s;
  } else {
    fail(kInvalidArgument,
         "this version of Isthmus has no option " + std::to_string(option.key.optionId) + " (ISTHMUS_NCCL_VENDOR)");
  }
}

Result all_reduce(Form form, const void *from, void *to, size_t count, Type type, Op op, Handle comm, Stream stream) {
  return Asking(form, "ncclAllReduce", comm, Call::AllReduce, stream).type(type).op(op).buffers(from, to, count).go();
}
Result reduce(Form form, const void *from, void *to, size_t count, Type type, Op op, int root, Handle comm, Stream stream) {
  return Asking(form, "ncclReduce", comm, Call::Reduce, stream).type(type).op(op).peer(root).buffers(from, to, count).go();
}
Result broadcast(Form form, const void *from, void *to, size_t count, Type type, int root, Handle comm, Stream stream) {
  return Asking(form, "ncclBroadcast", comm, Call::Broadcast, stream).type(type).peer(root).buffers(from, to, count).go();
}
Result bcast(void *buffer, size_t count, Type type, int root, Handle comm, Stream stream) {
  return Asking({}, "ncclBcast", comm, Call::Broadcast, stream).type(type).peer(root).buffers(buffer, buffer, count).go();
}
Result all_gather(Form form, const void *from, void *to, size_t count, Type type, Handle comm, Stream stream) {
  return Asking(form, "ncclAllGather", comm, Call::AllGather, stream).type(type).buffers(from, to, count).go();
}
Result reduce_scatter(Form form, const void *from, void *to, size_t count, Type type, Op op, Handle comm, Stream stream) {
  return Asking(form, "ncclReduceScatter", comm, Call::ReduceScatter, stream)
      .type(type)
      .op(op)
      .buffers(from, to, count)
      .go();
}
Result all_to_all(Form form, const void *from, void *to, size_t count, Type type, Handle comm, Stream stream) {
  return Asking(form, "ncclAlltoAll", comm, Call::AllToAll, stream).type(type).buffers(from, to, count).go();
}
Result gather(Form form, const void *from, void *to, size_t count, Type type, int root, Handle comm, Stream stream) {
  return Asking(form, "ncclGather", comm, Call::Gather, stream).type(type).peer(root).buffers(from, to, count).go();
}
Result scatter(Form form, const void *from, void *to, size_t count, Type type, int root, Handle comm, Stream stream) {
  return Asking(form, "ncclScatter", comm, Call::Scatter, stream).type(type).peer(root).buffers(from, to, count).go();
}
Result send(const void *from, size_t count, Type type, int peer, Handle comm, Stream stream) {
  return Asking({}, "ncclSend", comm, Call::Send, stream)
      .type(type)
      .peer(peer)
      .buffers(from, nullptr, count)
      .as_bytes()
      .go();
}
Result recv(void *to, size_t count, Type type, int peer, Handle comm, Stream stream) {
  return Asking({}, "ncclRecv", comm, Call::Recv, stream).type(type).peer(peer).buffers(nullptr, to, count).as_bytes().go();
}
Result all_to_all_v(const void *from, const size_t *from_counts, const size_t *from_displs, void *to,
                    const size_t *to_counts, const size_t *to_displs, Type type, Handle comm, Stream stream) {
  Asking a({}, "ncclAlltoAllv", comm, Call::AllToAllV, stream);
  return a.type(type)
      .buffers(from, to, 0)
      .counts(a.o.send_counts, from_counts)
      .counts(a.o.send_displs, from_displs)
      .counts(a.o.recv_counts, to_counts)
      .counts(a.o.recv_displs, to_displs)
      .go();
}

// ---- making and ending them ----------------------------------------------------------------------------------------------------------

Result create_premul_sum(Op *op, void *scalar, Type type, int residence, Handle handle) {
  constexpr const char *kCall = "ncclRedOpCreatePreMulSum";
  constexpr int kDevice = 0, kHost = 1;
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm(kCall);
  if (const Outcome o = comm->status(); o.code == ISTHMUS_IN_PROGRESS) return refused(kInvalidArgument, kCall, o.text);
  if (!op || !scalar || type < 0 || type >= kTypeCount || (residence != kDevice && residence != kHost))
    return refused(kInvalidArgument, kCall, "an argument is NULL or out of range");
  Scale s;
  s.dtype = kTypes[type];
  if (residence == kHost) {
    s.number = number(s.dtype, scalar);
    s.whole = bits(s.dtype, scalar);
  } else {
    s.at = scalar;
  }
  *op = comm->add(s) + kOpCount;
  return kSuccess;
}
Result destroy_op(Op op, Handle handle) {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm("ncclRedOpDestroy");
  if (op >= kOpCount && comm->remove(op - kOpCount)) return kSuccess;
  return refused(kInvalidArgument, "ncclRedOpDestroy", "reduction " + std::to_string(op) + " is none that was created");
}

// ---- life --------------------------------------------------------------------------------------------------------------------------

Result answer(const char *call, Handle handle, int *out, int (*of)(const Traits &)) {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm(call);
  if (!out) return refused(kInvalidArgument, call, "an argument is NULL");
  if (const Outcome o = comm->status(); o.code == ISTHMUS_IN_PROGRESS) return refused(kInvalidArgument, call, o.text);
  *out = of(comm->traits());
  return kSuccess;
}
Result count(Handle comm, int *out) {
  return answer("ncclCommCount", comm, out, [](const Traits &t) { return t.size; });
}
Result user_rank(Handle comm, int *out) {
  return answer("ncclCommUserRank", comm, out, [](const Traits &t) { return t.rank; });
}
Result device(Handle comm, int *out) {
  return answer("ncclCommCuDevice", comm, out, [](const Traits &t) { return t.place.device; });
}

// Behind what is said here, whatever a newer vendor's adds: no interface for kernels, no windows, no network of its own, so zeros.
Result properties(Handle handle, void *out) {
  constexpr const char *kCall = "ncclCommQueryProperties";
  constexpr size_t kMost = 4096;
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm(kCall);
  if (!out) return refused(kInvalidArgument, kCall, "an argument is NULL");
  if (const Outcome o = comm->status(); o.code == ISTHMUS_IN_PROGRESS) return refused(kInvalidArgument, kCall, o.text);
  interpose::PropertiesHead head{};
  std::memcpy(&head, out, offsetof(interpose::PropertiesHead, rank));
  if (head.magic != kConfigMagic || head.size < sizeof head || head.size > kMost)
    return refused(kInvalidUsage, kCall, "the structure was not initialised");
  const Traits &t = comm->traits();
  head.rank = t.rank;
  head.nRanks = t.size;
  head.cudaDev = t.place.device;
  head.nvmlDev = -1;  // its number in the vendor's management library is not known
  std::memset(out, 0, head.size);
  std::memcpy(out, &head, sizeof head);
  return kSuccess;
}

// Registering is a hint, and its answer where the vendor does nothing of it (NCCL_LOCAL_REGISTER=0, no symmetric memory) is a success without
// a handle, which may be given back.
Result register_nothing(const char *call, Handle handle, void **out) {
  if (!bridge::find(handle)) return no_comm(call);
  if (!out) return refused(kInvalidArgument, call, "an argument is NULL");
  *out = nullptr;
  return kSuccess;
}
Result deregister_nothing(const char *call, Handle handle, const void *given) {
  if (!bridge::find(handle)) return no_comm(call);
  if (!given) return kSuccess;
  return refused(kInvalidArgument, call, "nothing is registered with a communicator that spans vendors");
}
Result register_buffer(Handle comm, void *, size_t, void **out) { return register_nothing("ncclCommRegister", comm, out); }
Result deregister_buffer(Handle comm, void *given) { return deregister_nothing("ncclCommDeregister", comm, given); }
Result register_window(Handle comm, void *, size_t, interpose::Window *out, int) {
  return register_nothing("ncclCommWindowRegister", comm, out);
}
Result deregister_window(Handle comm, interpose::Window given) {
  return deregister_nothing("ncclCommWindowDeregister", comm, given);
}

Result async_error(Handle handle, Result *out) {
  constexpr const char *kCall = "ncclCommGetAsyncError";
  const CommPtr comm = bridge::find(handle);
  if (!comm) {  // since the door looked it may have become the vendor's
    const Handle known = bridge::behind(handle);
    auto *f = known ? real<Result(Handle, Result *)>(kCall) : nullptr;
    return f ? f(known, out) : no_comm(kCall);
  }
  if (!out) return refused(kInvalidArgument, kCall, "an argument is NULL");
  const Outcome o = comm->status();
  *out = number_of(o.code);
  return kSuccess;
}

Handle behind_handle(Handle handle) { return bridge::behind(handle); }
bool named(Handle handle) { return bridge::alias_of(handle) != nullptr; }

const char *last_error(Handle handle) noexcept try {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return nullptr;
  const Outcome o = comm->status();
  return o.ok() || o.code == ISTHMUS_IN_PROGRESS ? nullptr : keep(o.text);
} catch (const std::exception &) { return "Isthmus has no memory to say why"; }

// The texts of what the standard library throws, which are few.
const char *no_memory(const char *what) noexcept {
  try {
    return keep(std::string("Isthmus: ") + what);
  } catch (const std::exception &) { return "Isthmus has no memory"; }
}

Result finalize(Handle handle) {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm("ncclCommFinalize");
  if (const Outcome o = comm->status(); o.code == ISTHMUS_IN_PROGRESS)
    return refused(kInvalidArgument, "ncclCommFinalize", o.text);
  return failed("ncclCommFinalize", comm->finalize());
}
// A communicator of the vendor's, by either of its handles: that one of ours stands for it is over with it. False: it is none.
bool end_real(const char *call, Handle handle, Result &result) {
  Handle known = bridge::behind(handle);
  if (!known) {
    known = handle;
    handle = bridge::alias_of(known);
    if (!handle) return false;
  }
  auto *f = real<Result(Handle)>(call);
  result = f ? f(known) : lacks(call);
  if (!failure(result)) drop_alias(handle);
  return true;
}
Result destroy(Handle handle) {
  constexpr const char *kCall = "ncclCommDestroy";
  if (Result ended; end_real(kCall, handle, ended)) return ended;
  CommPtr comm = bridge::find(handle);
  if (comm && comm->traits().promised)
    return refused(kInvalidUsage, kCall, "the communicator is made when the group ends, and that has not ended");
  comm = bridge::take_back(handle);
  if (comm) return failed(kCall, comm->destroy());
  Result ended;  // it may have become the vendor's meanwhile
  return end_real(kCall, handle, ended) ? ended : no_comm(kCall);
}
Result abort(Handle handle) {
  constexpr const char *kCall = "ncclCommAbort";
  Result ended;
  if (end_real(kCall, handle, ended)) return ended;
  const CommPtr comm = bridge::take_back(handle);
  if (!comm) return end_real(kCall, handle, ended) ? ended : no_comm(kCall);  // it may have become the vendor's meanwhile
  comm->abort();
  return kSuccess;
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
// A collective's two forms.
template <auto F>
struct Forms;
template <class... A, Result (*F)(Form, A...)>
struct Forms<F> {
  static Result plain(A... arguments) noexcept { return Guarded<F>::call({}, arguments...); }
  static Result configured(A... arguments, const CollConfig *config) noexcept {
    return Guarded<F>::call({true, config}, arguments...);
  }
};

constexpr interpose::Calls make_calls() {
  interpose::Calls c{};
  c.ncclGetUniqueId = Guarded<get_unique_id>::call;
  c.ncclCommInitAll = Guarded<init_all>::call;
  c.ncclCommInitRank = Guarded<init_rank>::call;
  c.ncclCommInitRankConfig = Guarded<init_rank_config>::call;
  c.ncclCommInitRankScalable = Guarded<init_rank_scalable>::call;
  c.ncclCommInitRankMulti = Guarded<init_rank_multi>::call;
  c.ncclCommSplit = Guarded<split>::call;
  c.ncclCommShrink = Guarded<shrink>::call;
  c.ncclCommCount = Guarded<count>::call;
  c.ncclCommUserRank = Guarded<user_rank>::call;
  c.ncclCommCuDevice = Guarded<device>::call;
  c.ncclCommQueryProperties = Guarded<properties>::call;
  c.ncclCommRegister = Guarded<register_buffer>::call;
  c.ncclCommDeregister = Guarded<deregister_buffer>::call;
  c.ncclCommWindowRegister = Guarded<register_window>::call;
  c.ncclCommWindowDeregister = Guarded<deregister_window>::call;
  c.ncclCommGetAsyncError = Guarded<async_error>::call;
  c.ncclCommFinalize = Guarded<finalize>::call;
  c.ncclCommDestroy = Guarded<destroy>::call;
  c.ncclCommAbort = Guarded<abort>::call;
  c.ncclRedOpCreatePreMulSum = Guarded<create_premul_sum>::call;
  c.ncclRedOpDestroy = Guarded<destroy_op>::call;
  c.ncclAllReduce = Forms<all_reduce>::plain;
  c.ncclReduce = Forms<reduce>::plain;
  c.ncclBroadcast = Forms<broadcast>::plain;
  c.ncclBcast = Guarded<bcast>::call;
  c.ncclAllGather = Forms<all_gather>::plain;
  c.ncclReduceScatter = Forms<reduce_scatter>::plain;
  c.ncclAlltoAll = Forms<all_to_all>::plain;
  c.ncclAllToAll = Forms<all_to_all>::plain;
  c.ncclAlltoAllv = Guarded<all_to_all_v>::call;
  c.ncclAllToAllv = Guarded<all_to_all_v>::call;
  c.ncclGather = Forms<gather>::plain;
  c.ncclScatter = Forms<scatter>::plain;
  c.ncclSend = Guarded<send>::call;
  c.ncclRecv = Guarded<recv>::call;
  c.ncclAllReduceConfig = Forms<all_reduce>::configured;
  c.ncclReduceConfig = Forms<reduce>::configured;
  c.ncclBroadcastConfig = Forms<broadcast>::configured;
  c.ncclAllGatherConfig = Forms<all_gather>::configured;
  c.ncclReduceScatterConfig = Forms<reduce_scatter>::configured;
  c.ncclAlltoAllConfig = Forms<all_to_all>::configured;
  c.ncclGatherConfig = Forms<gather>::configured;
  c.ncclScatterConfig = Forms<scatter>::configured;
  c.group_end = Guarded<group_end>::call;
  c.group_forget = group_forget;
  c.behind = behind_handle;
  c.last_error = last_error;
  c.named = named;
  return c;
}

}  // namespace

Outcome resolve(const Comm &comm, Operation &operation) {
  return operation.scale_at ? read_factor(devices(), comm.traits(), operation) : Outcome{};
}

const FrontDoor &door() noexcept { return *the_door; }
Devices &devices() { return bridge::devices(door().device, door().look_up); }

void say(Level level, const std::string &text) { door().say(static_cast<int>(level), text.c_str()); }

const char *keep(const std::string &text) {
  static std::mutex mutex;
  static auto *const texts = new std::set<std::string>;  // whoever was given one may read it at any time
  const std::lock_guard lock(mutex);
  return texts->insert(text).first->c_str();
}
const char *last_told() noexcept { return the_last_told; }
void tell_again(const char *why) {
  the_last_told = why;
  if (why) door().keep(why);
}
Result refused(Result code, const char *call, const std::string &text) {
  tell_again(keep(std::string(call) + ": " + text));
  return code;
}
Result failed(const char *call, const Outcome &o) { return o.ok() ? kSuccess : refused(number_of(o.code), call, o.text); }
Result thrown(const std::exception &e) noexcept {
  tell_again(no_memory(e.what()));
  try {
    return note(kSystemError);
  } catch (const std::exception &) { return kSystemError; }  // nothing of the group is ours yet
}
Result aborted(const char *call) {
  return refused(kInvalidUsage, call, "the program aborted the communicator before the group ended");
}
Result no_handle(const char *call) {
  return refused(kSystemError, call,
                 "too many communicators that span vendors are in use, or there is no memory for their handles");
}
Result lacks(const char *name) {
  return refused(kInvalidUsage, name, std::string("the library at ") + door().path + " has no such function");
}

bool in_group() noexcept { return door().thread()->depth > 0; }
Pending &pending() {
  interpose::Thread &t = *door().thread();
  if (!t.pending) t.pending = new Pending;
  return *static_cast<Pending *>(t.pending);
}
bool failure(Result r) { return r != kSuccess && r != kInProgress; }
Result note(Result r) {
  if (failure(r) && in_group() && pending().failure == kSuccess) {
    pending().failure = r;
    pending().why = last_told();
  }
  return r;
}
Result act_or_defer(const CommPtr &parent, std::function<Result()> act) {
  if (in_group()) {
    pending().laters.push_back({parent, std::move(act)});
    return kSuccess;
  }
  const DeviceGuard guard(devices());
  devices().enter(parent->traits().place);
  return act();
}

}  // namespace isthmus::bridge::nccl

extern "C" __attribute__((visibility("default"))) const isthmus::interpose::Bridged *isthmus_bridge_nccl(
    const isthmus::interpose::FrontDoor *door) {
  namespace bridge = isthmus::bridge;
  static const bool first = [&] {
    bridge::nccl::the_door = door->digest == isthmus::interpose::kCallsDigest ? door : nullptr;
    return true;
  }();
  static_cast<void>(first);
  // One door a process: RCCL's functions have NCCL's names.
  if (!bridge::nccl::the_door || std::strcmp(door->family, bridge::nccl::the_door->family) != 0) return nullptr;
  static const isthmus::interpose::Calls calls = [] {
    isthmus::interpose::Calls c = bridge::nccl::make_calls();
    c.handles = bridge::reserve_handles();
    return c;
  }();
  return calls.handles ? &calls : nullptr;
}
