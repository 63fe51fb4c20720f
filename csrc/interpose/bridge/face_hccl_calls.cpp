// The collectives and messages of HCCL, over communicators that span vendors.
#include <cstring>
#include <numeric>

#include "call_check.hpp"
#include "face_hccl.hpp"

namespace isthmus::bridge::hccl {
namespace {

using enum OperationKind;
using namespace interpose::hccl;  // its codes and types

constexpr int kOpCount = 4;
constexpr isthmus_redop kOps[kOpCount] = {ISTHMUS_SUM, ISTHMUS_PROD, ISTHMUS_MAX, ISTHMUS_MIN};

// The meaning of a number of HCCL's: Isthmus' type, whether Isthmus can move such elements, whether Isthmus can add them.
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
    case 14:  // Huawei's own 8-bit float, and a float that is nothing but an exponent
    case 17: return {ISTHMUS_UINT8, true, false};
    default: return {ISTHMUS_UINT8, false, false};
  }
}

bool lacks_memory(const BridgedCall &o, int rank) {
  const bool reads = o.call != Recv && (o.call != Scatter || o.root == rank),
             writes = o.call != Send && (o.call != Reduce || o.root == rank);
  return o.count != 0 && ((reads && !o.send) || (writes && !o.recv));
}

class HcclCheck : public CallCheck<HcclCheck> {
 public:
  HcclCheck(const char *call, Handle handle, OperationKind what, Stream stream)
      : CallCheck(face(), call, handle, what, stream) {
    if (!comm_) code_ = no_comm(call);
    else if (!stream) fail(kPointer, "the stream is NULL");
  }
  HcclCheck &type(Type t) {
    if (!good()) return *this;
    const Meaning m = meaning(t);
    if (!m.known) fail(kNotSupported, "data type " + std::to_string(t) + " is none that Isthmus carries");
    operation.dtype = m.dtype;
    adds_ = m.adds;
    return *this;
  }
  // The types of the elements that are sent and that are received. The two must be one type.
  HcclCheck &types(Type from, Type to) {
    if (good() && from != to) fail(kParameter, "the types of what is sent and received are different");
    return type(from);
  }
  HcclCheck &op(Op op) {
    if (!good()) return *this;
    if (op < 0 || op >= kOpCount) fail(kParameter, "reduction " + std::to_string(op) + " is none");
    else if (!adds_) fail(kNotSupported, "numbers of that type are not added: no other vendor has them");
    else operation.op = kOps[op];
    return *this;
  }
  // The count of this rank. The call says this count twice.
  HcclCheck &mine(const std::vector<uint64_t> &counts, uint64_t count) {
    if (good() && counts[static_cast<size_t>(rank())] != count)
      fail(kParameter, "the count of this rank is not the one that stands for it among all counts");
    return *this;
  }
  HcclCheck &refuse_if(bool wrong, const char *why) {
    if (good() && wrong) fail(kParameter, why);
    return *this;
  }
  Result go() {
    check_memory(operation);
    return submit();
  }
  // Sends and receives these messages instead, together.
  Result go_together(std::vector<BridgedCall> operations) {
    for (const BridgedCall &o : operations) check_memory(o);
    return ready() ? together(std::move(operations)) : note(code_);
  }

 private:
  friend class CallCheck<HcclCheck>;
  void check_memory(const BridgedCall &o) {
    if (good() && lacks_memory(o, rank())) fail(kPointer, "a buffer is NULL");
  }
  // Ranks of NCCL and RCCL exchange blocks as messages.
  bool blocks_as_messages() const noexcept { return comm_->vendors.lock()->find_first_of("nr") != std::string::npos; }

  bool adds_ = false;  // Isthmus adds numbers of the type
};

Result all_reduce(void *from, void *to, uint64_t count, Type type, Op op, Handle comm, Stream stream) {
  return HcclCheck("HcclAllReduce", comm, AllReduce, stream).data(type, from, to, count).op(op).go();
}
Result reduce(void *from, void *to, uint64_t count, Type type, Op op, uint32_t root, Handle comm, Stream stream) {
  return HcclCheck("HcclReduce", comm, Reduce, stream).data(type, from, to, count).op(op).peer(root).go();
}
Result broadcast(void *buffer, uint64_t count, Type type, uint32_t root, Handle comm, Stream stream) {
  return HcclCheck("HcclBroadcast", comm, Broadcast, stream).data(type, buffer, buffer, count).peer(root).go();
}
Result all_gather(void *from, void *to, uint64_t count, Type type, Handle comm, Stream stream) {
  return HcclCheck("HcclAllGather", comm, AllGather, stream).data(type, from, to, count).go();
}
Result reduce_scatter(void *from, void *to, uint64_t count, Type type, Op op, Handle comm, Stream stream) {
  return HcclCheck("HcclReduceScatter", comm, ReduceScatter, stream).data(type, from, to, count).op(op).go();
}
Result scatter(void *from, void *to, uint64_t count, Type type, uint32_t root, Handle comm, Stream stream) {
  return HcclCheck("HcclScatter", comm, Scatter, stream).data(type, from, to, count).peer(root).go();
}
Result all_gather_v(void *from, uint64_t count, void *to, const void *counts, const void *displs, Type type, Handle comm,
                    Stream stream) {
  HcclCheck check("HcclAllGatherV", comm, AllGatherV, stream);
  return check.data(type, from, to, 0).recv_blocks(counts, displs).mine(check.operation.recv_counts, count).go();
}
Result reduce_scatter_v(void *from, const void *counts, const void *displs, void *to, uint64_t count, Type type, Op op,
                        Handle comm, Stream stream) {
  HcclCheck check("HcclReduceScatterV", comm, ReduceScatterV, stream);
  return check.data(type, from, to, 0).op(op).send_blocks(counts, displs).mine(check.operation.send_counts, count).go();
}

constexpr const char *kDifferent = "the counts of what is sent and received are different";

Result all_to_all(const void *from, uint64_t from_count, Type from_type, const void *to, uint64_t to_count, Type to_type,
                  Handle comm, Stream stream) {
  return HcclCheck("HcclAlltoAll", comm, AllToAll, stream)
      .types(from_type, to_type)
      .refuse_if(from_count != to_count, kDifferent)
      .buffers(from, const_cast<void *>(to), from_count)
      .go();
}
Result all_to_all_v(const void *from, const void *from_counts, const void *from_displs, Type from_type, const void *to,
                    const void *to_counts, const void *to_displs, Type to_type, Handle comm, Stream stream) {
  return HcclCheck("HcclAlltoAllV", comm, AllToAllV, stream)
      .types(from_type, to_type)
      .buffers(from, const_cast<void *>(to), 0)
      .send_blocks(from_counts, from_displs)
      .recv_blocks(to_counts, to_displs)
      .go();
}
// The matrix has the counts of all ranks: row i has the counts that rank i sends to each rank. The parts lie one behind the
// other.
Result all_to_all_vc(const void *from, const void *matrix, Type from_type, const void *to, Type to_type, Handle comm,
                     Stream stream) {
  HcclCheck check("HcclAlltoAllVC", comm, AllToAllV, stream);
  check.types(from_type, to_type).buffers(from, const_cast<void *>(to), 0);
  if (check.good() && !matrix) check.fail(kPointer, "the matrix of counts is NULL");
  if (check.good()) {
    const auto ranks = static_cast<size_t>(check.size()), me = static_cast<size_t>(check.rank());
    std::vector<uint64_t> all(ranks * ranks);
    std::memcpy(all.data(), matrix, all.size() * sizeof all[0]);
    for (size_t r = 0; r < ranks; ++r) {
      check.operation.send_counts.push_back(all[me * ranks + r]);
      check.operation.recv_counts.push_back(all[r * ranks + me]);
    }
    const auto one_behind_the_other = [&](const std::vector<uint64_t> &counts, std::vector<uint64_t> &displs) {
      displs.resize(ranks);
      std::exclusive_scan(counts.begin(), counts.end(), displs.begin(), uint64_t{0});
    };
    one_behind_the_other(check.operation.send_counts, check.operation.send_displs);
    one_behind_the_other(check.operation.recv_counts, check.operation.recv_displs);
  }
  return check.go();
}

constexpr const char *kSelf = "a rank sends itself nothing outside of a group and HcclBatchSendRecv";

Result send(void *from, uint64_t count, Type type, uint32_t peer, Handle comm, Stream stream) {
  HcclCheck check("HcclSend", comm, Send, stream);
  check.message(type, peer, from, nullptr, count);
  return check.refuse_if(check.good() && check.operation.root == check.rank() && !in_group(), kSelf).go();
}
Result recv(void *to, uint64_t count, Type type, uint32_t peer, Handle comm, Stream stream) {
  HcclCheck check("HcclRecv", comm, Recv, stream);
  check.message(type, peer, nullptr, to, count);
  return check.refuse_if(check.good() && check.operation.root == check.rank() && !in_group(), kSelf).go();
}
Result batch(Message *messages, uint32_t count, Handle comm, Stream stream) {
  constexpr const char *kCall = "HcclBatchSendRecv";
  constexpr int kReceives = 1;
  HcclCheck all(kCall, comm, Send, stream);
  if (all.good() && count && !messages) all.fail(kPointer, "there are no messages");
  std::vector<BridgedCall> operations;
  for (uint32_t i = 0; all.good() && i < count; ++i) {
    const Message &m = messages[i];
    const bool receives = m.what == kReceives;
    HcclCheck one(kCall, comm, receives ? Recv : Send, stream);
    one.refuse_if(m.what < 0 || m.what > kReceives, "a message is neither to be sent nor to be received");
    one.message(m.type, m.peer, receives ? nullptr : m.buffer, receives ? m.buffer : nullptr, m.count);
    if (!one.good()) return one.go();
    operations.push_back(std::move(one.operation));
  }
  return all.go_together(std::move(operations));
}

Result barrier(Handle comm, Stream stream) { return HcclCheck("HcclBarrier", comm, Barrier, stream).go(); }

}  // namespace

void add_collectives(interpose::hccl::Calls &calls) {
  calls.HcclAllReduce = Caught<all_reduce>::call;
  calls.HcclReduce = Caught<reduce>::call;
  calls.HcclBroadcast = Caught<broadcast>::call;
  calls.HcclAllGather = Caught<all_gather>::call;
  calls.HcclAllGatherV = Caught<all_gather_v>::call;
  calls.HcclReduceScatter = Caught<reduce_scatter>::call;
  calls.HcclReduceScatterV = Caught<reduce_scatter_v>::call;
  calls.HcclScatter = Caught<scatter>::call;
  calls.HcclAlltoAll = Caught<all_to_all>::call;
  calls.HcclAlltoAllV = Caught<all_to_all_v>::call;
  calls.HcclAlltoAllVC = Caught<all_to_all_vc>::call;
  calls.HcclSend = Caught<send>::call;
  calls.HcclRecv = Caught<recv>::call;
  calls.HcclBatchSendRecv = Caught<batch>::call;
  calls.HcclBarrier = Caught<barrier>::call;
}

}  // namespace isthmus::bridge::hccl
