#include "as_messages.hpp"

#include <algorithm>
#include <utility>

namespace isthmus::bridge {
namespace {

using enum OperationKind;

// The messages of one rank, while they are made.
class BlockMessages {
 public:
  BlockMessages(const BridgedCall &exchange, const char *call, std::vector<BridgedCall> &out) : out_(out) {
    like_.dtype = exchange.dtype;
    like_.stream = exchange.stream;
    like_.timeout = exchange.timeout;
    like_.label = exchange.label.empty() ? call : exchange.label;
  }
  // `count` elements, `place` elements behind `base`, to or from rank `peer`.
  void send(const void *base, uint64_t place, uint64_t count, int peer) {
    if (BridgedCall *made = make(Send, base, place, count, peer)) made->send = at(base, place);
  }
  void receive(void *base, uint64_t place, uint64_t count, int peer) {
    if (BridgedCall *made = make(Recv, base, place, count, peer)) made->recv = const_cast<void *>(at(base, place));
  }
  bool fit() const noexcept { return fit_; }

 private:
  BridgedCall *make(OperationKind kind, const void *base, uint64_t place, uint64_t count, int peer) {
    if (count == 0) return nullptr;
    uint64_t end = 0, bytes = 0;
    fit_ = fit_ && !__builtin_add_overflow(place, count, &end) &&
           !__builtin_mul_overflow(end, uint64_t{isthmus_dtype_size(like_.dtype)}, &bytes) &&
           !__builtin_add_overflow(reinterpret_cast<uint64_t>(base), bytes, &end);
    if (!fit_) return nullptr;
    BridgedCall &made = out_.emplace_back(like_);
    made.call = kind;
    made.count = count;
    made.root = peer;
    as_bytes(made);  // the two ends may call the elements by two types
    return &made;
  }
  const void *at(const void *base, uint64_t place) const noexcept {  // NULL stays NULL: the message is refused as such
    return base ? static_cast<const char *>(base) + place * isthmus_dtype_size(like_.dtype) : nullptr;
  }

  BridgedCall like_;
  std::vector<BridgedCall> &out_;
  bool fit_ = true;
};

const char *block(const BridgedCall &o, const void *base, int rank) {
  return static_cast<const char *>(base) + static_cast<uint64_t>(rank) * o.count * isthmus_dtype_size(o.dtype);
}

void all_to_all(const BridgedCall &o, int size, BlockMessages &messages) {
  for (int peer = 0; peer < size; ++peer) {
    messages.send(o.send, static_cast<uint64_t>(peer) * o.count, o.count, peer);
    messages.receive(o.recv, static_cast<uint64_t>(peer) * o.count, o.count, peer);
  }
}

void all_to_all_v(const BridgedCall &o, int size, BlockMessages &messages) {
  for (size_t peer = 0; peer < static_cast<size_t>(size); ++peer) {
    messages.send(o.send, o.send_displs[peer], o.send_counts[peer], static_cast<int>(peer));
    messages.receive(o.recv, o.recv_displs[peer], o.recv_counts[peer], static_cast<int>(peer));
  }
}

void gather(const BridgedCall &o, int rank, int size, BlockMessages &messages) {
  const bool lies_there = o.root == rank && o.send == block(o, o.recv, rank);
  if (!lies_there) messages.send(o.send, 0, o.count, o.root);
  for (int peer = 0; o.root == rank && peer < size; ++peer)
    if (peer != rank || !lies_there) messages.receive(o.recv, static_cast<uint64_t>(peer) * o.count, o.count, peer);
}

void scatter(const BridgedCall &o, int rank, int size, BlockMessages &messages) {
  const bool lies_there = o.root == rank && o.recv == block(o, o.send, rank);
  for (int peer = 0; o.root == rank && peer < size; ++peer)
    if (peer != rank || !lies_there) messages.send(o.send, static_cast<uint64_t>(peer) * o.count, o.count, peer);
  if (!lies_there) messages.receive(o.recv, 0, o.count, o.root);
}

}  // namespace

bool exchanges_blocks(OperationKind kind) noexcept {
  return kind == AllToAll || kind == AllToAllV || kind == Gather || kind == Scatter;
}

Outcome as_messages(const BridgedCall &o, const char *call, int rank, int size, std::vector<BridgedCall> &out) {
  BlockMessages messages(o, call, out);
  const bool all = o.call == AllToAll || o.call == AllToAllV;
  const auto some = [](const std::vector<uint64_t> &counts) {
    return std::any_of(counts.begin(), counts.end(), [](uint64_t count) { return count != 0; });
  };
  if (all && size > 1 && o.send && o.send == o.recv && (o.count != 0 || (some(o.send_counts) && some(o.recv_counts))))
    return {ISTHMUS_ERR_ARGUMENT, std::string(call) + " in place: between vendors the two buffers must not be one"};
  if (o.call == AllToAll) all_to_all(o, size, messages);
  else if (o.call == AllToAllV) all_to_all_v(o, size, messages);
  else if (o.call == Gather) gather(o, rank, size, messages);
  else scatter(o, rank, size, messages);
  if (messages.fit()) return {};
  return {ISTHMUS_ERR_ARGUMENT, std::string(call) + ": more elements than memory can hold"};
}

}  // namespace isthmus::bridge
