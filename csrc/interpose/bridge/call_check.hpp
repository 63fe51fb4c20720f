// An operation while its arguments are checked, for every face.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "as_messages.hpp"
#include "face.hpp"
#include "group.hpp"
#include "handles.hpp"

namespace isthmus::bridge {

// An operation of no elements does nothing. A message of no elements neither: some builds of PyTorch leave such a message out,
// others make it, and HCCL's programs may make it at one end alone. A collective of blocks, whose counts are in
// arrays, may do something.
inline bool does_nothing(const BridgedCall &o) noexcept {
  return o.count == 0 && o.send_counts.empty() && o.recv_counts.empty() && o.call != OperationKind::Barrier;
}

// A face derives its own check from this one, and adds its types and reductions. Usage: one object a call, one function an
// argument, and go() at last:
//
//     return CallCheck(...).data(type, from, to, count).op(op).go();
//
// The program hears of the first wrong argument. The arguments behind that one are not looked at.
template <class Derived>
class CallCheck {
 public:
  CallCheck(Face &face, const char *call, const void *handle, OperationKind what, void *stream)
      : face_(face), call_(call), comm_(bridge::find(handle)) {
    operation.call = what;
    operation.stream = stream;
  }
  Derived &peer(int64_t rank) {  // or root
    if (good() && (rank < 0 || rank >= size()))
      fail(face_.rules.argument, "rank " + std::to_string(rank) + " is not in 0 to " + std::to_string(size() - 1));
    operation.root = static_cast<int>(rank);
    return self();
  }
  Derived &buffers(const void *send, void *recv, uint64_t count) {
    operation.send = send;
    operation.recv = recv;
    operation.count = count;
    return self();
  }
  // The type, where the elements are, and how many.
  template <class Type>
  Derived &data(Type type, const void *send, void *recv, uint64_t count) {
    return self().type(type).buffers(send, recv, count);
  }
  // A message travels as bytes: the two ends need not call the elements by one type.
  template <class Type>
  Derived &message(Type type, int64_t other, const void *send, void *recv, uint64_t count) {
    data(type, send, recv, count).peer(other);
    if (good() && !as_bytes(operation)) fail(face_.rules.argument, "more elements than memory can hold");
    return self();
  }
  // The counts and the displacements of blocks: arrays of one 64-bit number a rank.
  Derived &send_blocks(const void *counts, const void *displs) {
    return array(operation.send_counts, counts).array(operation.send_displs, displs);
  }
  Derived &recv_blocks(const void *counts, const void *displs) {
    return array(operation.recv_counts, counts).array(operation.recv_displs, displs);
  }

  bool good() const noexcept { return code_ == kOk; }
  int size() const noexcept { return comm_->traits().size; }  // only while good()
  int rank() const noexcept { return comm_->traits().rank; }  // likewise
  void fail(Result code, const std::string &text) { code_ = face_.refused(code, self().name(), text); }

  BridgedCall operation;

 protected:
  const char *name() const noexcept { return call_; }        // of the function, for errors
  bool blocks_as_messages() const noexcept { return true; }  // what exchanges blocks goes as messages (as_messages.hpp)

  // The end of go():
  // 1. The communicator must take operations.
  // 2. An operation that does nothing ends here.
  // 3. What exchanges blocks becomes messages.
  // 4. In a group the operation waits for the group's end. Elsewhere it begins now.
  Result submit() {
    if (!ready()) return face_.note(code_);
    if (does_nothing(operation)) return kOk;
    if (exchanges_blocks(operation.call) && self().blocks_as_messages()) {
      std::vector<BridgedCall> messages;
      if (const Outcome o = as_messages(operation, self().name(), rank(), size(), messages); !o.ok())
        return face_.note(face_.failed(self().name(), o));
      return together(std::move(messages));
    }
    if (face_.in_group()) {
      face_.pending().operations.emplace_back(comm_, std::move(operation));
      return kOk;
    }
    Outcome o = face_.prepare(*comm_, operation);
    if (o.ok()) o = comm_->run(operation);
    return face_.failed(self().name(), o);
  }
  // Begins these operations together: now, or when the group ends. They were checked, and the communicator is ready.
  Result together(std::vector<BridgedCall> operations) {
    std::erase_if(operations, [](const BridgedCall &o) { return does_nothing(o); });
    if (operations.empty()) return kOk;
    BridgedCalls of_comm, &all = face_.in_group() ? face_.pending().operations : of_comm;
    for (BridgedCall &o : operations) all.emplace_back(comm_, std::move(o));
    if (face_.in_group()) return kOk;
    for (auto &[comm, o] : of_comm)
      if (const Outcome ready = face_.prepare(*comm, o); !ready.ok()) return face_.failed(self().name(), ready);
    return face_.failed(self().name(), run_group(of_comm));
  }
  // Whether no argument was wrong, and the communicator takes operations. Tells the program why not.
  bool ready() {
    if (!good()) return false;
    const Outcome o = takes_operations(*comm_);
    if (o.code == ISTHMUS_IN_PROGRESS) fail(face_.rules.argument, o.text);
    if (good() && !o.ok()) code_ = face_.failed(self().name(), o);
    return good();
  }

  // Copies one number a rank.
  Derived &array(std::vector<uint64_t> &to, const void *from) {
    if (good() && !from) fail(face_.rules.null, "an array of counts or displacements is NULL");
    if (!good()) return self();
    to.resize(static_cast<size_t>(size()));
    std::memcpy(to.data(), from, to.size() * sizeof to[0]);
    return self();
  }

  Face &face_;
  const char *const call_;
  const CommPtr comm_;
  Result code_ = kOk;

 private:
  Derived &self() noexcept { return static_cast<Derived &>(*this); }
};

}  // namespace isthmus::bridge
