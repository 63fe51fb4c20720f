// Descriptions tells what the ranks of a communicator have called, by sequence number. The ranks' mailboxes say so. Every rank must make the
// same calls in the same order. Where two calls differ, the communicator fails, and the error names both.
//
// Thread rules: the thread with the right to execute. called(), and ended_by_all() without an operation, any thread.
#pragma once

#include <cstdint>

#include "collective/operation_queue.hpp"
#include "collective/engine_names.hpp"

namespace isthmus::collective {

class Descriptions {
 public:
  Descriptions(RankCore &core, const OperationQueue &queue) noexcept : core_(core), queue_(queue) {}

  // Called before anything of the operation can be seen through a counter or a cell. `ring`: where the slots begin in the arena; 0: there are
  // none.
  void publish(const Operation &op, uint64_t ring) noexcept;
  // Compares what rank `q` has called at this operation's number, as far as this rank can see. Compares the number before as well, where that
  // number is still unchecked. False: the calls differ, or the rank has left before it ended the operation; the communicator has failed.
  bool check(const Operation &op, int q) noexcept;
  bool same(const Operation &op,
            int q) noexcept;  // the same for an operation that needs nothing more of the rank: it may have left
  void mismatch(uint64_t sequence, int q) noexcept;  // fails the communicator; the error names both calls

  struct Called {
    bool known = false;
    uint64_t code = 0, bytes = 0, digest = 0;  // code: code_of(Call)
  };
  Called called(uint64_t sequence) const noexcept;  // by this rank, published or not
  bool published(uint64_t sequence) const noexcept {
    return core_.mail->description(sequence).sequence.load(std::memory_order_acquire) == sequence;
  }

  // The operation has ended here. `heard_all`: every other rank's description was compared.
  void ended(const Operation &op, bool heard_all) noexcept;
  bool unchecked() const noexcept { return unchecked_ != 0; }  // the last operation ended without a word from all ranks
  bool is_after_unchecked(const Operation &op) const noexcept { return unchecked_ + 1 == op.sequence; }

  // Every rank whose memory is shared has ended `sequence`. False: the rank op.run.blocked_on has not.
  bool ended_by_all(uint64_t sequence, Operation &op) noexcept;
  bool ended_by_all(uint64_t sequence) const noexcept;
  // A word from all ranks in `sequence` has come. So all ranks have ended the operation before.
  void heard_from_all(uint64_t sequence) noexcept { seen_by_all_ = std::max(seen_by_all_, sequence - 1); }

 private:
  bool gone(const Operation &op, int q) noexcept;  // the rank has left without it: the communicator has failed
  uint64_t ended_by(int q) const noexcept;         // the last operation that rank `q`, which shares memory, has ended

  RankCore &core_;
  const OperationQueue &queue_;
  uint64_t seen_by_all_ = 0;  // every peer has ended this operation, as far as known
  // The last operation, where that operation ended without a look at all descriptions; 0: all were compared.
  uint64_t unchecked_ = 0, unchecked_digest_ = 0;
};

}  // namespace isthmus::collective
