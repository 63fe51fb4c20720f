// Rank is one rank in one communicator. A rank has collectives and messages, and neither knows of the other. A rank has peers, fails and leaves.
// A rank is cheap: no thread, descriptor or slot is its own. Large operations borrow ring memory from the staging budget.
//
// Who owns what.
//   the right to execute (RankCore::exec, only tried)   the first collective, and everything that executing it touches
//   the match lock (MessageTable)                       messages between their call and their end, and those that came before their receives
//   the submit locks (RankCore)                         what gives the device work: collectives, messages
//   a link's turn                                       the copy of the payload of a frame that was accepted
// OperationQueue, PlanInbox and the credit of a peer have locks of their own, or need none. After a failure the next holder of the right to
// execute ends all operations. That thread has cancelled on the links first, so no thread touches user memory any more.
//
// The program's callbacks run from a list (Completions), after every lock here was released.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rank/blame.hpp"
#include "rank/departure.hpp"
#include "engine/device_health.hpp"
#include "rank/driver.hpp"
#include "rank/peer_events.hpp"
#include "rank/rank_agreement.hpp"
#include "rank/names.hpp"
#include "rank/rank_exchange.hpp"
#include "rank/rank_port.hpp"
#include "rank/succession.hpp"

namespace isthmus::rank {

struct RankSetup {
  std::shared_ptr<Context> context;
  topology::Topology topology;
  int rank = 0;
  uint32_t index = 0, epoch = 0;
  std::string name;
  uint64_t mailbox_offset = 0;
  uint64_t cell_bytes = 0, credit_window = 0;
  int64_t group_wait_ns = 0;      // see ISTHMUS_GROUP_WAIT_MS
  bool library_messages = false;  // see ISTHMUS_LIBRARY_MESSAGES
  uint64_t part_bytes = 0;     // longer messages are several; the same on all ranks. 0: no rank works on a device's memory
  DeviceExecutorSetup island;  // with a communicator where a library serves this rank
  std::vector<int> served_in;  // by rank: the number of the island in which a library serves it; -1: none does
  uint64_t fixed_ring = 0, fixed_ring_bytes = 0;  // from StagingBook::take_fixed_ring(); 0: none
};

// A rank has one operation of its own. A blocking call takes this operation, and so needs none of the pool.
class InlineOperation {
 public:
  InlineOperation() noexcept { operation_.life.inline_op = true; }
  Operation *take() noexcept {
    return taken_.exchange(true, std::memory_order_acquire) ? nullptr : &operation_;
  }  // null: the operation is taken
  void give(Operation *op) noexcept {
    op->reset();
    taken_.store(false, std::memory_order_release);
  }

 private:
  std::atomic<bool> taken_{false};
  Operation operation_;
};

class Rank final : public std::enable_shared_from_this<Rank>, private OperationSink {
 public:
  explicit Rank(RankSetup setup);
  ~Rank();
  Rank(const Rank &) = delete;
  Rank &operator=(const Rank &) = delete;

  void open_peers();  // called before the first operation and the first frame, once peers() is filled

  const Identity &id() const noexcept { return core_.id; }
  Context &context() noexcept { return *core_.context; }
  std::vector<PeerRank> &peers() noexcept { return core_.peers; }
  const RankDevice &device() const noexcept { return core_.device; }  // the device that this rank works on
  RankCore &core() noexcept { return core_; }
  DeviceHealth &health() noexcept { return health_; }
  Collectives &collectives() noexcept { return collectives_; }
  Messages &messages() noexcept { return messages_; }
  RankDriver &driver() noexcept { return driver_; }
  PeerEvents &events() noexcept { return events_; }
  RankExchange &exchange() noexcept { return exchange_; }
  RankAgreement &agreement() noexcept { return agreement_; }
  Succession &succession() noexcept { return succession_; }
  process::LocalRank &port() noexcept { return port_; }

  // Submission. The operation is fully described (call, blocks, plan or one-hop) and the submitter holds a reference.
  void submit(Operation *op) noexcept;
  // As submit(), for a caller that waits anyway. The operation runs at once where nothing is queued before the operation. `op` may be
  // inline_operation().
  void run(Operation *op) noexcept;
  InlineOperation &inline_operation() noexcept { return inline_; }

  void abort(std::string text) noexcept;  // by the program
  void leave(int64_t until_ns) noexcept;  // see Departure. Idempotent
  std::vector<Record> records();  // what the flight recorder has of this rank's operations, and those in flight behind it

 private:
  struct Parts;
  Rank(RankSetup &setup, Parts parts);
  void release(Operation &op, Code result) noexcept override;

  RankPort port_;
  RankCore core_;
  const uint64_t credit_window_;
  const bool library_messages_;
  DeviceHealth health_;
  Collectives collectives_;
  Messages messages_;
  Blame blame_;
  RankDriver driver_;
  PeerEvents events_;
  RankExchange exchange_;
  RankAgreement agreement_;
  Departure departure_;
  Succession succession_;
  InlineOperation inline_;
};

// The messages of a group, before any of them is submitted. The vendor's library gets those on which both sides agree (LibraryMessages); these are
// submitted by then.
void exchange_by_library(Rank &rank, std::span<Operation *const> messages) noexcept;

}  // namespace isthmus::rank
