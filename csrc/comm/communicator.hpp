// A communicator as users see it: made by a rendezvous or by a split, used by calls, ended by destroy or abort. Checks arguments,
// finds the plan, and hands operations to the engine.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/lock.hpp"
#include "base/settings.hpp"
#include "bootstrap/rendezvous.hpp"
#include "comm/join/invitation.hpp"
#include "comm/terms.hpp"
#include "rank/rank.hpp"

namespace isthmus::comm {

struct InitOptions {
  int rank = -1, world = -1;  // -1: from the environment
  bootstrap::ExchangeFn exchange = nullptr;
  void *exchange_context = nullptr;
  const std::byte *unique_id = nullptr;  // 128 bytes
  std::string address;
  std::string name;
  std::string members;  // whom this rank takes for the members; compared
  Settings settings;    // environment, overlaid by the caller's
};

// Elements, as the user gave them; make_op() turns them into bytes.
struct Request {
  plan::Collective collective = plan::Collective::Barrier;
  const void *send = nullptr;
  void *recv = nullptr;
  uint64_t count = 0;
  const uint64_t *send_counts = nullptr, *send_displs = nullptr;  // v-collectives
  const uint64_t *recv_counts = nullptr, *recv_displs = nullptr;
  int dtype = 0, op = 0;
  int root = 0;  // or the peer
  int tag = 0;
  double timeout = 0, scale = 1;
  const void *factor = nullptr;  // see isthmus_call
  const char *label = nullptr;
  bool on_stream = false;  // ordered on the user's stream
  bool order_later = false;
  void *stream = nullptr;
  int device_memory = 0;  // as in isthmus_call
  int64_t leader_bytes =
      -1;  // for measurements: what takes the leader exchange in this call, bytes, the same on all ranks; -1: as agreed
};

// What of a collective its plan depends on, beside what the ranks have agreed on.
struct Shape {
  plan::Collective collective = plan::Collective::Barrier;
  DType dtype = DType::UInt8;
  RedOp op = RedOp::Sum;
  int root = 0;
  uint64_t bytes = 0;  // of one block
  bool in_place = false;
  bool device = false;  // its memory is a device's
  bool operator==(const Shape &) const = default;
};

enum class Path : uint8_t { OneHop, Plan };  // OneHop: each rank writes a cell, and reads the others'
struct PlanChoice {
  plan::Request request;
  Path path = Path::Plan;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  static std::shared_ptr<Communicator> init(const InitOptions &options);             // collective
  std::shared_ptr<Communicator> split(int color, int key, const std::string &name);  // collective; null for color < 0
  // Collective over the ranks that are not excluded. `abort`: aborts this one first.
  std::shared_ptr<Communicator> shrink(const std::vector<int> &excluded, bool abort, const std::string &name);
  // See isthmus_comm_exchange().
  void exchange(const std::vector<int> &ranks, std::span<const std::byte> send, std::byte *recv, double timeout);
  ~Communicator();

  void destroy() noexcept;
  void abort(const std::string &reason) noexcept;
  void set_timeout(double seconds);
  double timeout() const noexcept { return timeout_.load(std::memory_order_relaxed); }
  int rank() const noexcept { return local_->id().rank; }
  int size() const noexcept { return local_->id().world; }
  rank::Rank &local() noexcept { return *local_; }
  const std::string &name() const noexcept { return local_->id().name; }
  const Settings &settings() const noexcept { return settings_; }
  uint64_t chunk_bytes() const noexcept { return terms_.chunk_bytes; }

  // `memory` (or nothing yet) is of a device that DLPack calls by that type and number. Throws where this rank does not work on that device:
  // Error(Unsupported) on a rank of the host, Error(Argument) elsewhere. The text says what this rank works on.
  void check_lent(int type, int number, const void *memory) const;
  // Work given to the user's stream `after` from now on runs behind what `before` holds now.
  void order_streams(void *before, void *after);
  // Fills `op` from a request. Error(Argument, Unsupported): nothing was started.
  void prepare(const Request &request, engine::Operation &op);
  // Error(Forked) where the communicator belongs to a process that this one was forked from.
  void check_ours(const char *what) const;
  // Called before an operation is submitted, or any of its group. For an operation on host memory that was given with a stream: the caller
  // waits here until the stream has come to the call. The submitter then waits for the operation's end, so that later work of the stream is
  // behind the operation. Where the stream does not come by the operation's deadline: Error, and the communicator fails.
  void make_ready(engine::Operation &op);
  // The request that prepare() would plan for, and whether cells serve it instead (plans.cpp). plan_for() keeps plans.
  PlanChoice choose(const Shape &shape) const;
  std::shared_ptr<const plan::Plan> plan_for(const plan::Request &request);
  void check_float8(const char *name, DType dtype) const;  // of a reduction
  std::string topology_json() const;
  // The islands and their libraries; the local rank's own topology knows only who shares memory with whom.
  const topology::Topology &topology() const noexcept { return topology_; }

 private:
  Communicator() {
    for (auto &f : flat_) f.store(-1, std::memory_order_relaxed);
  }
  // Collective over the ranks that meet in the invitation's exchange.
  static std::shared_ptr<Communicator> make(const join::Invitation &invitation, process::Context::Use use);
  // The invitation of a communicator that is made from this one.
  join::Invitation invite(bootstrap::Exchange &exchange, int rank, int world, Deadline deadline) const;
  void blocks(const Request &r, engine::Operation &op) const;
  // Whether the buffers are memory of this rank's device. Error(Argument): they are another device's, or only one buffer is the device's.
  // `claims`: Request::device_memory.
  bool on_device(const char *name, const void *send, const void *recv, int claims, engine::Call &call) const;
  // For a call with pinned memory that the device reaches, whose plan is made: whether device or processors work on the memory.
  void take_pinned(const char *name, plan::Request &request, bool sends, bool receives, engine::Operation &op);
  // Error(Argument) where the caller says that memory is the device's and the runtime does not know it. on_device() has not taken it.
  void check_claim(const char *name, const char *argument, const void *memory) const;
  bool planned_flat(const plan::Request &r) const;

  process::Context::Use use_;
  std::shared_ptr<process::Context> context_;
  std::shared_ptr<rank::Rank> local_;
  Settings settings_;
  bootstrap::Bytes16 key_{};
  std::atomic<double> timeout_{300};
  std::atomic<bool> destroyed_{false};
  topology::Topology topology_;
  Terms terms_;
  // By collective, dtype, op and size class: whether a request is planned flat although libraries serve islands. -1: not known yet.
  mutable std::array<std::atomic<int8_t>, size_t{kCollectiveCount} * kDTypeCount * kRedOpCount * 2> flat_;
  Mutex split_mutex_;  // one split or shrink at a time; held while the ranks speak with each other
  struct {             // the user's streams that were ordered last, and the event between them
    Mutex mutex;
    std::unique_ptr<device::Stream> before ISTHMUS_GUARDED_BY(mutex), after ISTHMUS_GUARDED_BY(mutex);
    std::unique_ptr<device::Event> event ISTHMUS_GUARDED_BY(mutex);
  } ordered_;

  struct PlanKey {
    Shape shape;
    uint64_t small_bytes;
    bool operator==(const PlanKey &) const = default;
  };
  struct PlanKeyHash {
    size_t operator()(const PlanKey &k) const noexcept;
  };
  Mutex plans_mutex_;
  std::unordered_map<PlanKey, std::shared_ptr<const plan::Plan>, PlanKeyHash> plans_ ISTHMUS_GUARDED_BY(plans_mutex_);
};

// ---- groups (per thread) ---------------------------------------------------------------------------------------------------------------
void group_begin();
bool group_open() noexcept;
void group_add(std::shared_ptr<Communicator> comm, engine::Operation *op);  // takes the reference of the group's submission
void group_fail(const Error &error) noexcept;
// Submits what was recorded; returns the parent (one reference, the caller's), or nullptr while still nested. Throws the group's first failure.
// `waits`: the caller waits for it at once.
engine::Operation *group_end(bool waits);

}  // namespace isthmus::comm
