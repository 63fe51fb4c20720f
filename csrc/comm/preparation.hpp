// How a user's request becomes an operation: the words of the call are checked, the buffers' memory is found, the plan is chosen.
#pragma once

#include "comm/buffer_memory.hpp"
#include "comm/communicator.hpp"

namespace isthmus::comm {

// One request. The steps, in the order in which their errors come:
//   1. check_words()    dtype, reduction, root, peer, tag and timeout
//   2. take_words()     these words, in the operation
//   3. take_stream()    the user's stream
//   4. take_size()      the size of a block, where all blocks have the same
//   5. prepare_message() or prepare_collective()   memory, blocks and plan
class Preparation {
 public:
  Preparation(Communicator &comm, const CallRequest &request, engine::Operation &op);
  // Error(Argument, Unsupported): nothing was started.
  void run();

 private:
  void check_words() const;
  void check_reduction(DType dtype, RedOp op) const;
  void check_float8(DType dtype) const;  // of a reduction
  void take_words();
  uint64_t factor() const;
  void take_stream();
  void take_size();
  void prepare_message();

  void prepare_collective();
  void check_overlap();
  bool gives() const;  // whether the call has a byte of input
  bool gets() const;   // whether the call has a byte of output
  void check_buffers() const;
  void check_claims() const;
  void drop_unused();
  void take_plan(plan::Request &request);
  void take_cells(const plan::Request &request);
  uint64_t one_hop_digest() const;
  void stand_by_call();
  void prepare_keeping();

  Communicator &comm_;
  const CallRequest &request_;
  engine::Operation &op_;
  engine::Call &call_;
  const BufferMemory memory_;
  const char *const name_;  // of the collective
  const int me_, world_;
  // Of a collective on this rank.
  bool reads_ = false, writes_ = false;
  bool in_place_ = false;
  bool short_path_ = false;  // one hop of a single block, known by its size: the call needs no list of blocks
};

}  // namespace isthmus::comm
