// The simulated libhccl.so: collectives with parts of different sizes, and messages.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "ascend/hccl_abi.hpp"

namespace rehearsal::hccl {
namespace {

// The parts of all ranks in a buffer: sizes and places, in elements.
struct Parts {
  std::vector<uint64_t> counts, offsets;

  Parts(const void *of_counts, const void *of_offsets, size_t ranks)
      : counts(copy(of_counts, ranks)), offsets(copy(of_offsets, ranks)) {}
  explicit Parts(std::vector<uint64_t> c) : counts(std::move(c)), offsets(counts.size()) {
    for (size_t i = 1; i < counts.size(); ++i) offsets[i] = offsets[i - 1] + counts[i - 1];
  }
  uint64_t extent() const {  // from the buffer's beginning to the end of the last part
    uint64_t end = 0;
    for (size_t i = 0; i < counts.size(); ++i)
      if (counts[i]) end = std::max(end, offsets[i] + counts[i]);
    return end;
  }

 private:
  static std::vector<uint64_t> copy(const void *numbers, size_t n) {
    std::vector<uint64_t> out(n);
    std::memcpy(out.data(), numbers, n * sizeof(uint64_t));
    return out;
  }
};

void add(Call &c, bool sends, size_t peer, std::byte *base, uint64_t offset, uint64_t bytes) {
  if (bytes) c.o.messages.push_back({sends, static_cast<int>(peer), base + offset, bytes});
}

// All to all: a message to each rank and a message from each rank.
Result exchange(Call &&c, const void *from, const Parts &out, size_t from_width, const void *to, const Parts &in) {
  std::byte *source = nullptr, *target = nullptr;
  const size_t width = from_width;
  if (from == to && from) return kParameter;
  if (const Result r = resolve(c, "sendBuf", from, out.extent() * width, &source)) return r;
  if (const Result r = resolve(c, "recvBuf", to, in.extent() * width, &target)) return r;
  for (size_t r = 0; r < out.counts.size(); ++r) {
    add(c, true, r, source, out.offsets[r] * width, out.counts[r] * width);
    add(c, false, r, target, in.offsets[r] * width, in.counts[r] * width);
  }
  return commit(std::move(c), Sort::Collective);
}

// The bytes of an element. Both sides must have the same type.
Result width_of(int from, int to, size_t *out) {
  *out = kind_of(from).width;
  if (from != to) return kParameter;
  return *out ? kSuccess : kNotSupported;
}

Result message(const Entry &e, bool sends, void *p, uint64_t count, int type, uint32_t peer, CommHandle h, void *stream) {
  Call c = new_call(e);
  if (const Result r = begin(c, h, stream)) return r;
  const Kind kind = kind_of(type);
  if (!kind.width) return kNotSupported;
  if (peer >= static_cast<uint32_t>(c.comm->size) || static_cast<int>(peer) == c.comm->rank) return kParameter;
  if (!count) return kSuccess;
  std::byte *at = nullptr;
  if (const Result r = resolve(c, sends ? "sendBuf" : "recvBuf", p, count * kind.width, &at)) return r;
  add(c, sends, peer, at, 0, count * kind.width);
  c.o.until_taken = true;
  return commit(std::move(c), Sort::Messages);
}

Result batch(const Entry &e, const BatchItem *items, uint32_t count, CommHandle h, void *stream) {
  Call c = new_call(e);
  if (const Result r = begin(c, h, stream)) return r;
  if (!count) return kSuccess;
  if (!items) return kNullPointer;
  std::set<std::pair<int, uint32_t>> known;
  for (uint32_t i = 0; i < count; ++i) {
    const BatchItem &item = items[i];
    const Kind kind = kind_of(item.type);
    if (item.what != kSend && item.what != kReceive) return kParameter;
    if (item.peer >= static_cast<uint32_t>(c.comm->size)) return kParameter;
    if (!known.emplace(item.what, item.peer).second) return kParameter;  // at most one message to a rank, and one from it
    if (!kind.width) return kNotSupported;
    std::byte *at = nullptr;
    const bool sends = item.what == kSend;
    if (const Result r = resolve(c, sends ? "send item" : "recv item", item.buffer, item.count * kind.width, &at)) return r;
    add(c, sends, item.peer, at, 0, item.count * kind.width);
  }
  c.o.until_taken = true;
  return commit(std::move(c), Sort::Messages);
}

Result reduce_scatter(const Entry &e, void *from, const void *counts, const void *offsets, void *to, uint64_t count,
                      int type, int op, CommHandle h, void *stream) {
  Call c = new_call(e);
  if (const Result r = begin(c, h, stream)) return r;
  const Kind kind = kind_of(type);
  if (op < 0 || op >= kOps) return kParameter;
  if (!kind.width || !kind.reduces) return kNotSupported;
  if (!counts || !offsets) return kNullPointer;
  const auto ranks = static_cast<size_t>(c.comm->size), mine = static_cast<size_t>(c.comm->rank);
  const Parts parts(counts, offsets, ranks);
  if (parts.counts[mine] != count) return kParameter;
  std::byte *source = nullptr, *target = nullptr;
  if (const Result r = resolve(c, "sendBuf", from, parts.extent() * kind.width, &source)) return r;
  if (const Result r = resolve(c, "recvBuf", to, count * kind.width, &target)) return r;
  c.o.collective = [call = e.name(), parts, source, target, kind, op](Fabric &fabric, const Fabric::Stop &stop) {
    for (size_t r = 0; r < parts.counts.size() && !stop(); ++r) {
      Work w;
      w.kind = Collective::Reduce;
      w.type = kind.type;
      w.reduction = static_cast<Reduction>(op);
      w.root = static_cast<int>(r);
      w.count = parts.counts[r];
      w.from = source + parts.offsets[r] * kind.width;
      w.to = target;
      fabric.run(call, w, stop);
    }
  };
  return commit(std::move(c), Sort::Collective);
}

}  // namespace
}  // namespace rehearsal::hccl

using namespace rehearsal;
using namespace rehearsal::hccl;

EXPORT Result HcclScatter(void *from, void *to, uint64_t count, int type, uint32_t root, CommHandle comm, void *stream) {
  HCCL_CALL("HcclScatter");
  Call c = new_call(entry);
  if (const Result r = begin(c, comm, stream)) return note(r);
  const size_t ranks = static_cast<size_t>(c.comm->size), bytes = count * kind_of(type).width;
  if (root >= ranks) return note(kParameter);
  if (!kind_of(type).width) return note(kNotSupported);
  const bool at_root = c.comm->rank == static_cast<int>(root);
  std::byte *source = nullptr, *target = nullptr;
  if (const Result r = resolve(c, "sendBuf", from, at_root ? bytes * ranks : 0, &source)) return note(r);
  if (const Result r = resolve(c, "recvBuf", to, bytes, &target)) return note(r);
  for (size_t r = 0; r < ranks && at_root; ++r) add(c, true, r, source, r * bytes, bytes);
  add(c, false, root, target, 0, bytes);
  return commit(std::move(c), Sort::Collective);
}

EXPORT Result HcclAllGatherV(void *from, uint64_t count, void *to, const void *counts, const void *offsets, int type,
                             CommHandle comm, void *stream) {
  HCCL_CALL("HcclAllGatherV");
  Call c = new_call(entry);
  if (const Result r = begin(c, comm, stream)) return note(r);
  const size_t width = kind_of(type).width;
  if (!width) return note(kNotSupported);
  if (!counts || !offsets) return note(kNullPointer);
  const Parts parts(counts, offsets, static_cast<size_t>(c.comm->size));
  if (parts.counts[static_cast<size_t>(c.comm->rank)] != count) return note(kParameter);
  std::byte *source = nullptr, *target = nullptr;
  if (const Result r = resolve(c, "sendBuf", from, count * width, &source)) return note(r);
  if (const Result r = resolve(c, "recvBuf", to, parts.extent() * width, &target)) return note(r);
  for (size_t r = 0; r < parts.counts.size(); ++r) {
    add(c, true, r, source, 0, count * width);
    add(c, false, r, target, parts.offsets[r] * width, parts.counts[r] * width);
  }
  return commit(std::move(c), Sort::Collective);
}

EXPORT Result HcclReduceScatterV(void *from, const void *counts, const void *offsets, void *to, uint64_t count, int type,
                                 int op, CommHandle comm, void *stream) {
  HCCL_CALL("HcclReduceScatterV");
  return note(reduce_scatter(entry, from, counts, offsets, to, count, type, op, comm, stream));
}

EXPORT Result HcclAlltoAll(const void *from, uint64_t from_count, int from_type, const void *to, uint64_t to_count,
                           int to_type, CommHandle comm, void *stream) {
  HCCL_CALL("HcclAlltoAll");
  Call c = new_call(entry);
  size_t width = 0;
  if (const Result r = begin(c, comm, stream)) return note(r);
  if (const Result r = width_of(from_type, to_type, &width)) return note(r);
  if (from_count != to_count) return note(kParameter);
  const Parts parts(std::vector<uint64_t>(static_cast<size_t>(c.comm->size), from_count));
  return note(exchange(std::move(c), from, parts, width, to, parts));
}

EXPORT Result HcclAlltoAllV(const void *from, const void *from_counts, const void *from_offsets, int from_type,
                            const void *to, const void *to_counts, const void *to_offsets, int to_type, CommHandle comm,
                            void *stream) {
  HCCL_CALL("HcclAlltoAllV");
  Call c = new_call(entry);
  size_t width = 0;
  if (const Result r = begin(c, comm, stream)) return note(r);
  if (const Result r = width_of(from_type, to_type, &width)) return note(r);
  if (!from_counts || !from_offsets || !to_counts || !to_offsets) return note(kNullPointer);
  const auto ranks = static_cast<size_t>(c.comm->size);
  const Parts out(from_counts, from_offsets, ranks), in(to_counts, to_offsets, ranks);
  return note(exchange(std::move(c), from, out, width, to, in));
}

// `matrix`: row i has the number of elements that rank i sends to each rank.
EXPORT Result HcclAlltoAllVC(const void *from, const void *matrix, int from_type, const void *to, int to_type,
                             CommHandle comm, void *stream) {
  HCCL_CALL("HcclAlltoAllVC");
  Call c = new_call(entry);
  size_t width = 0;
  if (const Result r = begin(c, comm, stream)) return note(r);
  if (const Result r = width_of(from_type, to_type, &width)) return note(r);
  if (!matrix) return note(kNullPointer);
  const auto ranks = static_cast<size_t>(c.comm->size), mine = static_cast<size_t>(c.comm->rank);
  const auto *all = static_cast<const uint64_t *>(matrix);
  std::vector<uint64_t> sends(ranks), receives(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    sends[r] = all[mine * ranks + r];
    receives[r] = all[r * ranks + mine];
  }
  return note(exchange(std::move(c), from, Parts(sends), width, to, Parts(receives)));
}

EXPORT Result HcclSend(void *from, uint64_t count, int type, uint32_t peer, CommHandle comm, void *stream) {
  HCCL_CALL("HcclSend");
  return note(message(entry, true, from, count, type, peer, comm, stream));
}
EXPORT Result HcclRecv(void *to, uint64_t count, int type, uint32_t peer, CommHandle comm, void *stream) {
  HCCL_CALL("HcclRecv");
  return note(message(entry, false, to, count, type, peer, comm, stream));
}

EXPORT Result HcclBatchSendRecv(BatchItem *items, uint32_t count, CommHandle comm, void *stream) {
  HCCL_CALL("HcclBatchSendRecv");
  return note(batch(entry, items, count, comm, stream));
}
