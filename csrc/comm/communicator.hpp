// A communicator as users see it. A rendezvous, a split or a shrink makes the communicator, calls use it, destroy or abort ends it.
//
// A call goes through three steps here:
//   1. prepare()      arguments become an operation, or an error before anything was started
//   2. make_ready()   the caller waits for the user's stream, where no stream can wait for the operation
//   3. the operation is given to the Rank (rank/rank.hpp), alone or with its group
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/lock.hpp"
#include "base/settings.hpp"
#include "bootstrap/rendezvous.hpp"
#include "comm/join/invitation.hpp"
#include "comm/plan_cache.hpp"
#include "comm/call_request.hpp"
#include "comm/confirmation.hpp"
#include "comm/numbering.hpp"
#include "comm/terms.hpp"
#include "rank/rank.hpp"

namespace isthmus::comm {

namespace join {
struct Seat;
}

struct InitOptions {
  int rank = -1, world = -1;  // -1: the environment says
  bootstrap::ExchangeFn exchange = nullptr;
  void *exchange_context = nullptr;
  const std::byte *unique_id = nullptr;  // 128 bytes
  std::string address;
  std::string name;
  std::string members;  // whom this rank takes for the members; the ranks compare the texts
  Settings settings;    // the environment's, overlaid by the caller's
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  static std::shared_ptr<Communicator> init(const InitOptions &options);             // collective
  std::shared_ptr<Communicator> split(int color, int key, const std::string &name);  // collective; null for color < 0
  // Collective over the ranks that are not excluded, which are named as ranks here and not as slots.
  //   Keep   this communicator goes on
  //   Abort  this communicator is aborted first
  //   Agree  the same, and the ranks agree on who is excluded: those that are gone, and those that any rank names in `excluded`
  enum class Shrink : uint8_t { Keep, Abort, Agree };
  // `numbers`: the same on all. `watch`: of the call that this one is a part of. Null: an abort from now on ends this one.
  std::shared_ptr<Communicator> shrink(const std::vector<int> &excluded, Shrink mode, const std::string &name,
                                       Numbers numbers = Numbers::Dense, const AbortWatch *watch = nullptr);
  // See isthmus_comm_exchange(). `ranks`: slots, as there.
  void exchange(const std::vector<int> &ranks, std::span<const std::byte> send, std::byte *recv, double timeout);
  ~Communicator();

  void destroy() noexcept;
  enum class Words : uint8_t { Aborted, Revoked };
  void abort(const std::string &reason, Words words = Words::Aborted) noexcept;
  void set_timeout(double seconds);
  double timeout() const noexcept { return timeout_.load(std::memory_order_relaxed); }
  // Ranks are counted without gaps inside of the library. The caller of isthmus.h knows slots: terms().numbering has both.
  int rank() const noexcept { return local_->id().rank; }
  int size() const noexcept { return local_->id().world; }
  rank::Rank &local() noexcept { return *local_; }
  const std::string &name() const noexcept { return local_->id().name; }
  const Settings &settings() const noexcept { return settings_; }
  const Terms &terms() const noexcept { return terms_; }

  // Orders two streams of the user. Work that is given to `after` from now on runs behind the work that `before` holds now.
  void order_streams(void *before, void *after);
  // Fills `op` from a request. Error(Argument, Unsupported): nothing was started.
  void prepare(const CallRequest &request, engine::Operation &op);
  // Error(Forked): the communicator belongs to the process from which this process was forked.
  void check_ours(const char *what) const;
  // Called before an operation is submitted, or any operation of its group. Acts for an operation on host memory that was given with a stream:
  //
  //   user's stream   kernel A ------------- event|                           | kernel B
  //                                               v                           ^ the call has returned
  //   caller          make_ready(): waits ........ submits, waits for the end |
  //
  // So later work of the stream is behind the operation. Error, and the communicator fails: the stream does not come to the event by the
  // operation's deadline.
  void make_ready(engine::Operation &op);
  std::string topology_json() const;
  // The islands and their libraries. The topology of local().id() knows only who shares memory with whom.
  const topology::Topology &topology() const noexcept { return topology_; }
  PlanCache &plans() noexcept { return plans_; }

 private:
  friend class Growing;    // grow.cpp
  friend class AllOrNone;  // commit.cpp
  friend class Shrinking;  // parts.cpp
  friend rank::Verdict agree(Communicator &, uint64_t, const std::vector<int> &, bool, Deadline);
  // Without a rank and without a use of the context: make() gives both afterwards, and destroy() ends both.
  Communicator(const join::Invitation &invitation, const bootstrap::Bytes16 &key, join::Seat &seat);
  // Collective over the ranks that meet in the invitation's exchange.
  static std::shared_ptr<Communicator> make(const join::Invitation &invitation, process::Context::Lease use);
  // The invitation to a communicator that is made from this communicator. Ends: this one leaves what it has to the new one, once all ranks have
  // that (Succession::keep).
  enum class Parent : uint8_t { GoesOn, Ends };
  join::Invitation invite(bootstrap::Exchange &exchange, int rank, const Numbering &numbering, Deadline deadline,
                          Parent what = Parent::GoesOn) const;

  process::Context::Lease use_;
  const std::shared_ptr<process::Context> context_;
  std::shared_ptr<rank::Rank> local_;
  const Settings settings_;
  const bootstrap::Bytes16 key_;
  std::atomic<double> timeout_;
  std::atomic<bool> destroyed_{false};
  const topology::Topology topology_;
  const Terms terms_;
  PlanCache plans_;
  Mutex split_mutex_;  // one split, shrink, grow or commit at a time; held while the ranks speak with each other
  Confirmation confirmation_ ISTHMUS_GUARDED_BY(split_mutex_);
  uint64_t splits_ ISTHMUS_GUARDED_BY(split_mutex_) = 0;
  bool undone_ ISTHMUS_GUARDED_BY(split_mutex_) = false;  // an operation was not done on all ranks: see commit()
  struct {  // the two streams of the user that were ordered last, and the event between them
    Mutex mutex;
    std::unique_ptr<device::Stream> before ISTHMUS_GUARDED_BY(mutex), after ISTHMUS_GUARDED_BY(mutex);
    std::unique_ptr<device::Event> event ISTHMUS_GUARDED_BY(mutex);
  } ordered_;
};

// The number by which people know this rank.
inline int own_slot(const Communicator &comm) { return comm.terms().numbering.slot(comm.rank()); }

void begin_log(const Settings &settings);  // before the first communicator of this process

// ---- split, shrink, grow, reconfigure, commit: one at a time ----------------------------------------------------------------------------
// Takes the communicator's split_mutex_. Where another thread is in such a call, waits for it until `deadline`. What the call then does with the
// other ranks has a deadline of its own. Error(Timeout, Aborted, Interrupted), which begins with `call`.
void take_turn(Mutex &split_mutex, Communicator &of, const char *call, Deadline deadline) ISTHMUS_ACQUIRE(split_mutex);

// ---- groups (per thread) ---------------------------------------------------------------------------------------------------------------
void group_begin();
bool group_open() noexcept;
// A group of this thread is about to end, in which the communicator has an operation.
bool group_ends_here(const Communicator &communicator) noexcept;
void group_add(std::shared_ptr<Communicator> comm, engine::Operation *op);  // takes the reference of the group's submission
void group_fail(const Error &error) noexcept;
// Submits the operations of the group, and returns their parent, with one reference, the caller's. nullptr: the group that ends is inside another
// group. Throws the group's first failure. `waits`: the caller waits for the parent at once.
engine::Operation *group_end(bool waits);

}  // namespace isthmus::comm
