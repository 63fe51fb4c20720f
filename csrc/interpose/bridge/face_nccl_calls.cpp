// The collectives and messages of NCCL and RCCL, over communicators that span vendors.
#include "call_check.hpp"
#include "face_nccl.hpp"

namespace isthmus::bridge::nccl {
namespace {

using enum OperationKind;
using interpose::CollConfig;
using interpose::kInvalidArgument;
using interpose::kInvalidUsage;
using interpose::Op;
using interpose::Stream;
using interpose::Type;

// A collective has two forms: a plain form, and a form with a configuration of the call. The configuration may be null.
struct Form {
  bool configured = false;
  const CollConfig *config = nullptr;
};

class NcclCheck : public CallCheck<NcclCheck> {
 public:
  // `call`: the name of the plain form.
  NcclCheck(Form form, const char *call, Handle handle, OperationKind what, Stream stream)
      : CallCheck(face(), call, handle, what, stream), form_(form) {
    if (!comm_) code_ = no_comm(name());
  }
  NcclCheck &type(Type t) {
    if (good() && (t < 0 || t >= kTypeCount)) fail(kInvalidArgument, "datatype " + std::to_string(t) + " is none");
    if (good()) operation.dtype = kTypes[t];
    return *this;
  }
  NcclCheck &op(Op op) {
    if (!good()) return *this;
    Factor factor;
    if (op >= 0 && op < kOpCount) {
      operation.op = kOps[op];
    } else if (!comm_->find(op - kOpCount, factor)) {
      fail(kInvalidArgument, "reduction " + std::to_string(op) + " is none, or was destroyed");
    } else if (factor.dtype != operation.dtype) {
      fail(kInvalidArgument, std::string("the factor of the reduction is ") + isthmus_dtype_name(factor.dtype) +
                                 ", the data " + isthmus_dtype_name(operation.dtype));
    } else {
      operation.op = ISTHMUS_PREMUL_SUM;
      operation.factor = factor;
    }
    return *this;
  }
  Result go() {
    if (form_.config && good()) read_config();
    return submit();
  }

 private:
  friend class CallCheck<NcclCheck>;
  const char *name() const { return form_.configured ? keep(std::string(call_) + "Config") : call_; }
  void read_config();
  void read_option(const interpose::ConfigExt &option);

  const Form form_;
};

// Refuses what Isthmus cannot do and the program insists on, and reads the options that are meant for Isthmus.
void NcclCheck::read_config() {
  constexpr int kMostOptions = 1024;  // a list that comes back to itself would have no end
  const auto head = read_head<interpose::CollConfigHead>(form_.config);
  if (head.magic != kConfigMagic) return fail(kInvalidArgument, "the configuration was not initialised");
  const int force = head.forceAlgSelection;
  if (force != 0 && force != INT_MIN && head.algSelection && *head.algSelection)
    return fail(kInvalidUsage, std::string("the algorithm ") + head.algSelection +
                                   " is asked for and forced (forceAlgSelection), and it is the vendor's");
  if (head.launchCompletionEvent)
    return fail(kInvalidUsage, "a launch completion event is asked for, and there is none between vendors");
  int options = 0;
  for (const interpose::ConfigExt *e = head.ext; e && good(); e = e->next) {
    if (++options > kMostOptions) fail(kInvalidArgument, "the list of extensions of the configuration is a circle");
    else if (e->key.vendorId == ISTHMUS_NCCL_VENDOR) read_option(*e);
  }
}

void NcclCheck::read_option(const interpose::ConfigExt &option) {
  if (option.key.optionId == ISTHMUS_NCCL_TIMEOUT) {
    if (option.val.i < 1)
      return fail(kInvalidArgument,
                  "ISTHMUS_NCCL_TIMEOUT is " + std::to_string(option.val.i) + ": it is in milliseconds, 1 or more");
    operation.timeout = option.val.i * 1e-3;
  } else if (option.key.optionId == ISTHMUS_NCCL_LABEL) {
    if (!option.val.s) return fail(kInvalidArgument, "ISTHMUS_NCCL_LABEL is NULL");
    operation.label = option.val.s;
  } else {
    fail(kInvalidArgument,
         "this version of Isthmus has no option " + std::to_string(option.key.optionId) + " (ISTHMUS_NCCL_VENDOR)");
  }
}

Result all_reduce(Form form, const void *from, void *to, size_t count, Type type, Op op, Handle comm, Stream stream) {
  return NcclCheck(form, "ncclAllReduce", comm, AllReduce, stream).data(type, from, to, count).op(op).go();
}
Result reduce(Form form, const void *from, void *to, size_t count, Type type, Op op, int root, Handle comm, Stream stream) {
  return NcclCheck(form, "ncclReduce", comm, Reduce, stream).data(type, from, to, count).op(op).peer(root).go();
}
Result broadcast(Form form, const void *from, void *to, size_t count, Type type, int root, Handle comm, Stream stream) {
  return NcclCheck(form, "ncclBroadcast", comm, Broadcast, stream).data(type, from, to, count).peer(root).go();
}
Result bcast(void *buffer, size_t count, Type type, int root, Handle comm, Stream stream) {
  return NcclCheck({}, "ncclBcast", comm, Broadcast, stream).data(type, buffer, buffer, count).peer(root).go();
}
Result all_gather(Form form, const void *from, void *to, size_t count, Type type, Handle comm, Stream stream) {
  return NcclCheck(form, "ncclAllGather", comm, AllGather, stream).data(type, from, to, count).go();
}
Result reduce_scatter(Form form, const void *from, void *to, size_t count, Type type, Op op, Handle comm, Stream stream) {
  return NcclCheck(form, "ncclReduceScatter", comm, ReduceScatter, stream).data(type, from, to, count).op(op).go();
}
Result all_to_all(Form form, const void *from, void *to, size_t count, Type type, Handle comm, Stream stream) {
  return NcclCheck(form, "ncclAlltoAll", comm, AllToAll, stream).data(type, from, to, count).go();
}
Result gather(Form form, const void *from, void *to, size_t count, Type type, int root, Handle comm, Stream stream) {
  return NcclCheck(form, "ncclGather", comm, Gather, stream).data(type, from, to, count).peer(root).go();
}
Result scatter(Form form, const void *from, void *to, size_t count, Type type, int root, Handle comm, Stream stream) {
  return NcclCheck(form, "ncclScatter", comm, Scatter, stream).data(type, from, to, count).peer(root).go();
}
Result send(const void *from, size_t count, Type type, int peer, Handle comm, Stream stream) {
  return NcclCheck({}, "ncclSend", comm, Send, stream).message(type, peer, from, nullptr, count).go();
}
Result recv(void *to, size_t count, Type type, int peer, Handle comm, Stream stream) {
  return NcclCheck({}, "ncclRecv", comm, Recv, stream).message(type, peer, nullptr, to, count).go();
}
Result all_to_all_v(const void *from, const size_t *from_counts, const size_t *from_displs, void *to,
                    const size_t *to_counts, const size_t *to_displs, Type type, Handle comm, Stream stream) {
  return NcclCheck({}, "ncclAlltoAllv", comm, AllToAllV, stream)
      .data(type, from, to, 0)
      .send_blocks(from_counts, from_displs)
      .recv_blocks(to_counts, to_displs)
      .go();
}

// A collective's two forms.
template <auto F>
struct Forms;
template <class... A, Result (*F)(Form, A...)>
struct Forms<F> {
  static Result plain(A... arguments) noexcept { return Caught<F>::call({}, arguments...); }
  static Result configured(A... arguments, const CollConfig *config) noexcept {
    return Caught<F>::call({true, config}, arguments...);
  }
};

}  // namespace

void add_collectives(interpose::Calls &calls) {
  calls.ncclAllReduce = Forms<all_reduce>::plain;
  calls.ncclReduce = Forms<reduce>::plain;
  calls.ncclBroadcast = Forms<broadcast>::plain;
  calls.ncclBcast = Caught<bcast>::call;
  calls.ncclAllGather = Forms<all_gather>::plain;
  calls.ncclReduceScatter = Forms<reduce_scatter>::plain;
  calls.ncclAlltoAll = Forms<all_to_all>::plain;
  calls.ncclAllToAll = Forms<all_to_all>::plain;
  calls.ncclAlltoAllv = Caught<all_to_all_v>::call;
  calls.ncclAllToAllv = Caught<all_to_all_v>::call;
  calls.ncclGather = Forms<gather>::plain;
  calls.ncclScatter = Forms<scatter>::plain;
  calls.ncclSend = Caught<send>::call;
  calls.ncclRecv = Caught<recv>::call;
  calls.ncclAllReduceConfig = Forms<all_reduce>::configured;
  calls.ncclReduceConfig = Forms<reduce>::configured;
  calls.ncclBroadcastConfig = Forms<broadcast>::configured;
  calls.ncclAllGatherConfig = Forms<all_gather>::configured;
  calls.ncclReduceScatterConfig = Forms<reduce_scatter>::configured;
  calls.ncclAlltoAllConfig = Forms<all_to_all>::configured;
  calls.ncclGatherConfig = Forms<gather>::configured;
  calls.ncclScatterConfig = Forms<scatter>::configured;
}

}  // namespace isthmus::bridge::nccl
