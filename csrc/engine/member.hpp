// One rank's membership of one communicator: its mailbox, its view of every peer, its operations. Cheap: no thread, descriptor or
// slot of its own; ring memory is borrowed from the staging budget by large operations.
//
// Who owns what.
//   the exec flag (only tried)   the operation at the head of the queue, and everything that executing it touches
//   the match lock               messages between their call and their end, and those that came before their receives
//   a link's turn                the copy of the payload of a frame that was accepted
// OperationQueue, PlanInbox and the credit of a peer have locks of their own, or need none. After fail() the next holder of exec ends all
// operations. It has cancelled on the links first, so no thread touches user memory any more.
#pragma once

#include <sched.h>

#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/lock.hpp"
#include "base/clock.hpp"
#include "base/fork.hpp"
#include "engine/context_names.hpp"
#include "engine/device_executor.hpp"
#include "engine/mailbox.hpp"
#include "engine/operation.hpp"
#include "engine/operation_queue.hpp"
#include "engine/out_of_band.hpp"
#include "engine/plan_inbox.hpp"
#include "engine/device_copier.hpp"
#include "engine/rings.hpp"
#include "engine/submit_lock.hpp"
#include "engine/unexpected.hpp"
#include "p2p/flow_credit.hpp"
#include "reduce/reduce.hpp"
#include "topology/topology.hpp"

namespace isthmus::engine {

struct PeerRank {                      // what this member knows of one rank
  bootstrap::Peer *process = nullptr;  // null: a rank of this process
  std::byte *arena = nullptr;          // its process's arena, where memory is shared and the bridge may use it
  Mailbox *mail = nullptr;
  Doorbell *bell = nullptr;
  link::Link *link = nullptr;             // for frames
  uint32_t their_index = 0;               // of the communicator in that process
  std::atomic<bool> left{false};          // it destroyed its side
  std::atomic<bool> left_broken{false};   // and its side had failed
  std::atomic<bool> left_writing{false};  // and its device may still write to this rank's receive slots
  std::atomic<bool> left_library{false};  // and has ended its part of the library's communicator
  std::atomic<int64_t> left_ns{0};
  std::atomic<uint64_t> left_done{0};  // the last collective that it had ended then: what it sent for it is on its way
  uint64_t frames_out = 0;             // of plan data (exec)
  p2p::SendCredit send_credit;
  std::atomic<uint32_t> in_link{0};  // frames of the current plan whose data the link may still read
  p2p::RecvCredit recv_credit;
  p2p::SendSlots slots;  // that it has for this rank
  // its ring for the operation `ring_sequence` (exec)
  uint64_t ring_sequence = 0;
  std::byte *ring = nullptr;
};

struct OperationList {  // intrusive, in order, through Operation::match_next
  Operation *head = nullptr, **tail = &head;
  OperationList() = default;
  OperationList(const OperationList &) = delete;
  OperationList &operator=(const OperationList &) = delete;
  void append(Operation *op) noexcept {
    op->match_next = nullptr;
    *tail = op;
    tail = &op->match_next;
  }
  template <class M>
  Operation *take_first(M match) noexcept {  // unlinks and returns the first that matches, or nullptr
    for (Operation **at = &head; *at; at = &(*at)->match_next)
      if (Operation *op = *at; match(op)) {
        *at = op->match_next;
        if (!*at) tail = at;
        return op;
      }
    return nullptr;
  }
  bool has(const Operation *op) const noexcept {
    for (const Operation *o = head; o; o = o->match_next)
      if (o == op) return true;
    return false;
  }
  bool take(const Operation *op) noexcept {
    return take_first([op](const Operation *o) { return o == op; }) != nullptr;
  }
};

struct MemberSetup {
  std::shared_ptr<Context> context;
  topology::Topology topology;
  int rank = 0;
  uint32_t index = 0, epoch = 0;
  std::string name;
  uint64_t mailbox_offset = 0;
  uint64_t cell_bytes = 0, credit_window = 0;
  int64_t group_wait_ns = 0;   // see ISTHMUS_GROUP_WAIT_MS
  uint64_t part_bytes = 0;     // longer messages are several; the same on all ranks. 0: no rank works on a device's memory
  DeviceExecutorSetup island;  // with a communicator where a library serves this rank
  std::vector<int> served_in;  // by rank: the number of the island in which a library serves it; -1: none does
  uint64_t fixed_ring = 0, fixed_ring_bytes = 0;  // from StagingBook::take_fixed_ring(); 0: none
};

class Member final : public std::enable_shared_from_this<Member>, public process::LocalRank {
 public:
  explicit Member(MemberSetup setup);
  ~Member() override;
  Member(const Member &) = delete;
  Member &operator=(const Member &) = delete;

  // Rings of up to `bytes` are at their fixed places on all ranks that share memory with this one; `rings`: where this rank's device finds
  // them, by rank, or empty. Before the first operation.
  void fix_rings(uint64_t bytes, std::vector<std::byte *> rings);
  // Takes the access to these away from this process, the setting GuardSlots, in operations that leave them to devices. Likewise.
  void guard(std::vector<std::span<std::byte>> slots) { guarded_ = std::move(slots); }
  // Receive slots for messages (slots.cpp), `slots` for each rank: `mine` is where in the arena this rank's begin; `theirs`, by rank, how many
  // slots the one for this rank has there and where this rank's device finds it. Before the first operation.
  struct TheirSlots {
    uint32_t slots = 0;
    std::byte *there = nullptr;
  };
  static constexpr uint32_t kMostRecvSlots = 32;
  void fix_slots(uint64_t mine, uint32_t slots, const std::vector<TheirSlots> &theirs);
  // Which of the parts of rank `owner`'s receive slots is the one for `sender`.
  static uint64_t slots_of(int owner, int sender) noexcept {
    return static_cast<uint64_t>(sender < owner ? sender : sender - 1);
  }
  // Takes the access to these receive slots away from this process until a processor has to copy a message there.
  void guard_recv_slots(std::vector<std::span<std::byte>> slots);
  std::vector<PeerRank> &peers() noexcept { return peers_; }  // filled by the communicator, which then calls open_credit()
  void open_credit() noexcept;                                // before the first operation and the first frame
  // Who shares memory with whom; knows no libraries.
  const topology::Topology &topology() const noexcept { return topology_; }
  bool ours() const noexcept { return birth_.here(); }  // of this process, and not of one that it was forked from
  int rank() const noexcept override { return rank_; }
  int world() const noexcept override { return world_; }
  uint32_t index() const noexcept override { return index_; }
  uint32_t epoch() const noexcept override { return epoch_; }
  std::weak_ptr<process::LocalRank> itself() noexcept override { return weak_from_this(); }
  process::PathTo path_to(int rank) const noexcept override {
    const PeerRank &p = peers_[static_cast<size_t>(rank)];
    return {p.process, p.link, p.their_index};
  }
  uint64_t serial() const noexcept { return serial_; }
  const std::string &name() const noexcept { return name_; }
  Context &context() noexcept { return *context_; }
  uint64_t cell_bytes() const noexcept { return cell_bytes_; }
  uint64_t sequence() const noexcept { return queue_.sequence(); }

  // Submission. The operation is fully described (call, blocks, plan or one-hop) and the submitter holds a reference.
  void submit(Operation *op) noexcept;
  // Before an operation is submitted, or any of its group. In a callback, Error(Unsupported) where the call would have to wait: nothing has
  // begun, and the communicator is as it was. What it has taken so that it need not wait, give_back() gives back of what is not submitted.
  void make_ready(Operation &op);
  void give_back(Operation &op) noexcept;
  // Before the operations of a group are submitted, of each. A send of a group that finds no slot can then wait for one, as its receive is called
  // at once; else it would go by the link.
  void announce(Operation *op) noexcept;
  // The same, for a caller that waits anyway: runs it at once where nothing is queued before it. `op` may be inline_op().
  void run(Operation *op) noexcept;
  // After the submissions of this thread: waits for what has to happen inside the call, which are messages on a user's stream that
  // found no pinned memory or whose device has no gates. Of all members.
  static void settle_streams() noexcept;
  // What `stream` gets from now on comes behind the message that `op`, a receive which was to be ordered later, brings. Waits for the
  // message where the device has no gates, or no pinned memory is free; in a callback, Error(Unsupported) instead. What else goes wrong fails
  // the member.
  void order(Operation *op, void *stream);
  // By the device worker: the copies that nobody else submits. True: some wait for pinned memory, so come again.
  bool carry_messages() noexcept override;
  // By the device worker, where check_deadlines() has asked for it: whether the device has failed.
  void look_at_device() noexcept override;
  // By the device worker that stops streams, where island_settled() has asked for it.
  void stop_stream() noexcept override;
  bool wants_stop_of_stream(int64_t now, bool turn) noexcept;  // exec
  // Waits until op is over or `until_ns` has passed (false). Drives this member and the links; calls the interrupt check.
  bool wait(Operation *op, int64_t until_ns) noexcept;
  // One non-blocking try to move things. True if something moved.
  bool drive(bool watched = false) noexcept override;
  bool drive_operations() noexcept;  // the same without the links
  // The op for a blocking call, if it is free (one a member); else nullptr.
  Operation *take_inline() noexcept;
  void give_inline(Operation *op) noexcept;

  void abort(std::string text) noexcept {  // by the program
    aborts_.fetch_add(1, std::memory_order_acq_rel);
    fail(Code::Aborted, std::move(text), true);
  }
  // Failure. First writer wins; floods where `flood`. Any thread.
  void fail(Code code, std::string text, bool flood) noexcept { fail(Failure{{code, std::move(text)}}, flood); }
  void fail(Failure why, bool flood) noexcept override;
  // The program has not caught an error: `what`. `first`: it is not what another rank's has led to.
  void raised(std::string_view what, bool first) noexcept override;
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire) != 0; }
  Status failure() const;
  Failure why() const override;
  // All-gather of `mine`, at most OutOfBand::kMostBytes, among `ranks` (ascending, this one among them; the same on all of them), also where
  // the member has failed. It ends where this rank aborts the communicator meanwhile, again or not, or destroys it. `what` it is: the same
  // on all, and for errors. `all`: in the order of `ranks`. Where one has failed it may have succeeded on others. Throws Error. Any thread.
  // `look` is called now and then while the exchange waits, and may throw.
  void exchange(const char *what, std::span<const int> ranks, std::span<const std::byte> mine, std::byte *all,
                Deadline deadline, const std::function<void()> &look = {});
  // Tells those ranks, and waits for nobody. hear(): what `from` has told the same ranks about the same thing, once. Any thread.
  void tell(const char *what, std::span<const int> ranks, std::span<const std::byte> mine) noexcept;
  std::optional<std::vector<std::byte>> hear(const char *what, std::span<const int> ranks, int from);
  // Local end: waits until `until_ns` for pending operations, of receives for which nothing has come a second, then fails the rest; tells
  // the peers. Idempotent.
  void leave(int64_t until_ns) noexcept;

  // From the links and the control thread.
  link::Accept accept_frame(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) override;
  void received_frame(const link::FrameHeader &h) override;
  void credit(uint32_t rank, uint64_t granted) noexcept override;
  void peer_lost(bootstrap::Peer &process, const std::string &why, const char *state = "is gone") noexcept override;
  void link_broken(const link::Link *link, const std::string &why) noexcept override;
  void peer_left(uint32_t rank, uint64_t done, Leaving how) noexcept override;
  void peer_left_library(uint32_t rank) noexcept override;
  void came_out_of_band(uint32_t rank, uint64_t about, uint64_t number, std::span<const std::byte> bytes) override {
    out_of_band_.came(rank, about, number, bytes);
  }
  void withdrawn_out_of_band(uint32_t rank, uint64_t number) override { out_of_band_.withdrawn(rank, number); }
  Answer answer(uint64_t sequence) const noexcept override;
  std::string inside_text() const override;   // the vendor's call that a thread of ours gives the device work in, or empty
  std::string waiting_text() const override;  // "all_reduce #3 of 'world', waiting for rank 2", or empty
  bool polls_device() const noexcept override { return island_polls_.load(std::memory_order_relaxed) && has_work(); }
  // The device that this rank works on, or null: whoever prepares an operation asks whose memory it was given.
  device::Runtime *runtime() const noexcept override { return runtime_; }
  int device() const noexcept override { return device_; }
  // Whose memory that is. What the runtime does not know may have been the device's until the program reset it: then this member fails, and
  // throws.
  device::PointerInfo find(const void *memory);
  bool capturing(void *stream);  // the user's stream, of that device
  // For explain(). How long the parts are in which a message of this type is sent (0: whole), and whether one of `bytes` with tag 0 lies in a
  // receive slot on its way, as far as this rank knows: where no slot is free it goes by the link all the same.
  static constexpr uint64_t kEagerMessage = UnexpectedMessages::kData;  // and less: sent without having been asked for
  uint64_t part_of(DType dtype) const noexcept {
    const uint64_t element = dtype_size(dtype);
    return part_bytes_ == 0 ? 0 : std::max(part_bytes_ / element, uint64_t{1}) * element;
  }
  bool would_take_slot(bool send, int peer, uint64_t bytes) const noexcept;
  // Of the flight recorder.
  void record(const Operation &op, Code result, int64_t ended_ns) noexcept;
  bool has_work() const noexcept override { return pending_.load(std::memory_order_acquire) != 0; }
  bool only_receives_wait() const noexcept;
  uint32_t waiters() const noexcept override { return waiters_.load(std::memory_order_relaxed); }
  int64_t check_deadlines(int64_t now) noexcept override;  // ends what is late; for operations that nobody waits for

  // Of the staging memory: what no operation of this member has is given back, for another that finds none. Any thread.
  bool give_idle_staging() noexcept override;
  bool has_lent_staging() const noexcept override { return !failed() && rings_.lent(); }

  static void set_interrupt_check(int (*check)()) noexcept;
  // Called, on any thread, where an operation of a member has met its deadline, on this rank or another. Must be short; null: nothing is.
  static void set_late_hook(void (*hook)()) noexcept;
  std::string describe(const Operation &op) const;  // "all_reduce #41 (float32, sum, 4096 bytes) of 'world'"
  static std::string describe(uint64_t what, uint64_t bytes);
  // A call as a mailbox and an answer have it.
  static uint64_t what(const Call &c) noexcept {
    return static_cast<uint64_t>(c.collective) | static_cast<uint64_t>(c.dtype) << 8 | static_cast<uint64_t>(c.op) << 16 |
           static_cast<uint64_t>(static_cast<uint32_t>(c.root)) << 32;
  }
  std::vector<Record> in_flight() const;

 private:
  enum class Outcome : uint8_t { Blocked, Moved, Ended };
  static void scale(std::byte *to, const std::byte *from, uint64_t bytes, const Call &c) noexcept {
    const uint64_t count = bytes / dtype_size(c.dtype);
    if (is_integer(c.dtype)) reduce::scale_integers(to, from, count, c.dtype, c.factor);
    else reduce::scale(to, from, count, c.dtype, c.scale);
  }
  struct Called {
    bool known = false;
    uint64_t what = 0, bytes = 0, digest = 0;
  };
  Called called(uint64_t sequence) const noexcept;  // by this rank, whether its description is published or not
  Outcome advance(Operation *op) noexcept;
  void end_head(Operation *op) noexcept;  // it has come to its end
  bool end_what_memory_completes() noexcept;
  Outcome one_hop(Operation *op) noexcept;  // eager.cpp
  void note_unchecked(const Operation &op) noexcept;
  void post_cell(Operation *op) noexcept;
  void consume_cells(Operation *op) noexcept;
  Outcome run_plan(Operation *op) noexcept;  // executor.cpp
  Outcome run_step(Operation *op, const plan::Step &step, uint32_t c) noexcept;
  bool island_sound(Operation *op) noexcept;                 // false: the library has failed, and so has the member
  Outcome wait_for_device(Operation *op) noexcept;           // Blocked, having looked whether it goes on at all
  bool all_done(uint64_t sequence, Operation *op) noexcept;  // every peer in memory has ended `sequence`
  bool start_plan(Operation *op) noexcept;
  bool begin_plan(Operation *op) noexcept;
  void begin_if_first(Operation *op) noexcept;
  void doubt_device(int64_t now) noexcept;  // device_health.cpp
  // For its submission. None: the communicator has failed, also where the operation's deadline has passed meanwhile.
  SubmitLock::Held lock_for(SubmitLock &turn, const Operation *op) noexcept;
  bool leave_behind(
      SubmitLock &turn) noexcept;    // exec, after a failure: its holder is stuck, and nobody waits for it any more
  bool only_stuck() const noexcept;  // what has not ended are calls of such threads
  void late_submission(int64_t now) noexcept;
  void refuse_stuck() const;                // throws what has failed
  void end_failed(Operation *op) noexcept;  // it has failed before it began
  void not_submitted(const Operation &op, const Error &e) noexcept;
  void device_failed(const Status &s) noexcept;
  bool compare_sizes(Operation *op) noexcept;  // false: not all have published or sent theirs, or the member has failed
  bool tells_sizes(const plan::Plan &p, int rank) const noexcept;  // to that rank and from it, by a link
  std::byte *address(Operation *op, const plan::Span &span, uint32_t c) noexcept;
  std::byte *ring_of(Operation *op, int rank) noexcept;
  Outcome send_step(Operation *op, const plan::Step &step, uint32_t c, uint64_t bytes, const std::byte *data) noexcept;
  Outcome recv_step(Operation *op, const plan::Step &step, uint64_t bytes, std::byte *to) noexcept;
  void publish(Operation *op, uint64_t ring) noexcept;
  void let_in(bool host) noexcept;  // to the slots, where they are guarded
  bool take_room(Operation *op);    // in the staging memory
  bool read_by_all(uint64_t sequence) const noexcept;
  // The user's plain host memory, for a device that works on it: before the device is given anything, as it goes on, and at the end.
  void bounce_in(Operation *op);
  bool bounce_on(Operation *op) noexcept;  // whether anything was copied
  static void bounce_piece(Operation *op, uint32_t k) noexcept;
  void bounce_out(Operation *op, bool well) noexcept;
  void submit_to_island(Operation *op) noexcept;
  template <class Holds>
  void sleep_until(Holds holds) noexcept;
  static bool interrupt_wanted() noexcept;
  void ask_for_interrupt() noexcept;  // fails the member if the program wants to stop
  void say_leave(int rank, Leaving how) noexcept;
  void leave_library(bool broken) noexcept;
  void say_out_of_band(int rank, uint64_t about, uint64_t number, uint32_t given_up,
                       std::span<const std::byte> bytes) noexcept;
  void abort_island() noexcept;
  void forget_on_links() noexcept;
  bool slots_held(Operation *op) noexcept;               // what it read in slots of others was what they wrote for it
  bool island_settled() noexcept;                        // after a failure: nothing of ours runs on the device any more
  bool check_peer(const Operation *op, int q) noexcept;  // false: mismatch, the member has failed
  void mismatch(uint64_t sequence, int q) noexcept;      // fails the member, naming who called what
  void flood(const Failure &why) noexcept;
  void fail_at(const Operation &op, Code code, std::string_view what,
               bool late = false) noexcept;     // floods: "<the operation><what>"
  void submit_message(Operation *op) noexcept;  // device_messages.cpp
  void submit_parts(Operation *op) noexcept;
  void send_from_device(Operation *op) noexcept;
  void recv_to_device(Operation *op) noexcept;
  bool drive_messages() noexcept;  // exec
  bool grant_next() noexcept;
  bool start_next_send() noexcept;
  void open_gates() noexcept;
  bool end_next_landed() noexcept;
  void place_sends(const Operation *before) noexcept;
  bool stage_all(
      const Operation *behind);  // with the device copier's submit lock, as are the next two; throw what the runtime throws
  bool order_now(Operation *op, void *stream, bool may_wait);
  bool take_waiting(Operation *op);
  void place_later(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  bool placed(Operation *op) noexcept ISTHMUS_REQUIRES(
      match_lock_);  // whether it is to be taken from the context's count as well, once its copy is submitted
  void run_short(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  static bool can_wait_here() noexcept;
  std::unique_lock<std::recursive_timed_mutex> in_order(const Operation &op) noexcept;
  void hold(Operation *op, void *stream) noexcept;        // settle_streams() has to see to it
  bool order_part(Operation *op, void *stream) noexcept;  // false: it would have to wait, in a callback
  bool stage_posted(Operation *op) noexcept;
  void put_behind_gates(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  bool may_settle(const Operation &op) const noexcept;
  bool settle_stream(Operation *op, void *stream) noexcept;  // false: not yet
  bool may_wait_here(Operation *op) noexcept;
  static constexpr const char *kNoGates = "the call waits where the device cannot";
  const char *ready_message(Operation &op);  // for make_ready(): why it cannot be begun here, or null
  template <class Take>
  bool take_places(Operation &op, Take take);
  static const Member *driven_by_this_thread() noexcept;
  bool stage(Operation *op, p2p::Share share) noexcept;
  bool stage_send(Operation *op) noexcept;
  std::optional<p2p::Piece> take_ahead(uint64_t bytes, bool small) noexcept;
  static bool give_place(Operation *op, const p2p::Piece &piece) noexcept;
  bool stage_ahead(Operation *op) noexcept;
  void lend(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  void hand_on(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  void spill(Operation *op) noexcept;
  static bool small(const Operation *op) noexcept;  // a whole message that may be sent without having been asked for
  void unstage(Operation *op) noexcept;
  bool behind_another(const Operation *op) const noexcept
      ISTHMUS_REQUIRES(match_lock_);                                // a send of the same rank and tag is not out yet
  void come(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);  // the message of a receive is there, in its stage
  bool messages_settled() noexcept;
  static bool on_stage(const Operation *op) noexcept { return op->port != Port::None; }
  bool takes_slot(int tag, uint64_t bytes) const noexcept;  // slots.cpp
  bool takes_slot(const Operation *op) const noexcept { return takes_slot(op->call.tag, op->call.bytes); }
  void number_send(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  void claim(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  bool claimable(const Operation *op) const noexcept ISTHMUS_REQUIRES(match_lock_);
  void number_receive(Operation *op, int source) noexcept ISTHMUS_REQUIRES(match_lock_);
  bool may_come(const Operation *op) const noexcept ISTHMUS_REQUIRES(match_lock_);
  bool has_place(const Operation *op) const noexcept ISTHMUS_REQUIRES(match_lock_) {
    return !on_stage(op) || op->place.own || (op->slot.in_slot && may_come(op));
  }
  bool begin_taking(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  void hold_aside(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);  // messages.cpp
  void take_aside(Operation *op, const UnexpectedMessage &from) noexcept ISTHMUS_REQUIRES(match_lock_);
  bool on_host(int rank) const noexcept { return topology_.ranks[static_cast<size_t>(rank)].device == "host"; }
  void read_slot(Operation *op, int source, uint64_t number) noexcept ISTHMUS_REQUIRES(match_lock_);
  void slot_submitted(const Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  void forget_unplaced() noexcept;
  void slot_left(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  uint64_t part_of(const Operation &op) const noexcept { return part_of(op.call.dtype); }  // of a message of several
  bool slot_free(const Operation *op) const noexcept;
  bool into_slot(Operation *op) noexcept;
  bool waits_for_slot(const Operation *op) noexcept;
  void stand_apart(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  bool is_its_turn(Operation *op) noexcept ISTHMUS_REQUIRES(match_lock_);
  bool lies_there(Operation *op, uint32_t slot) noexcept ISTHMUS_REQUIRES(match_lock_);
  void bring(Operation *op) noexcept;  // exec
  void has_landed(Operation *op) noexcept;
  bool room_for_a_waiter() noexcept;
  void touch_slots() noexcept ISTHMUS_REQUIRES(match_lock_);
  // messages.cpp. Start a send: false where it is a new one that has to wait for those before it. A receive: false where its place on the
  // device is not known, and it has no other.
  bool start_send(Operation *op, bool fresh) noexcept;
  bool start_recv(Operation *op) noexcept;
  enum class Encounter : uint8_t { Goes, Over, Wrong };  // of a receive and a message: see op->text where it is wrong
  Encounter meet(Operation *op, UnexpectedMessage &m) noexcept ISTHMUS_REQUIRES(match_lock_);
  void clear_to_send(Operation *op, int source, uint64_t id) noexcept;
  bool fits(Operation *op, int source, uint64_t total, uint64_t whole, uint8_t dtype) noexcept;
  static bool wants(const Operation *op, int source, int32_t tag, uint32_t part) noexcept;
  void met(Operation *op, int source) noexcept ISTHMUS_REQUIRES(match_lock_);
  void end_wrong(Operation *op, std::string text) noexcept;
  bool grant(Operation *op, int source, uint64_t id) noexcept
      ISTHMUS_REQUIRES(match_lock_);  // the announced message may come. False: see op->text
  static void sent(link::Outgoing &out);
  link::Accept accept_message(const link::FrameHeader &h, std::byte *&to);
  link::Accept accept_new(const link::FrameHeader &h, std::byte *&to);
  link::Accept put_aside(const link::FrameHeader &h, Operation *claims, std::byte *&to) ISTHMUS_REQUIRES(match_lock_);
  link::Accept accept_data(const link::FrameHeader &h, std::byte *&to) noexcept;
  void send_data(const link::FrameHeader &h) noexcept;
  void received_message(const link::FrameHeader &h);
  void consumed(int source, uint64_t bytes) noexcept;  // gives credit back
  void end_messages(Code code) noexcept;
  void end_all(Code code) noexcept;
  void end_op(Operation *op, Code code, std::string text) noexcept;
  void on_deadline(const Operation &op) noexcept;
  void on_message_deadline(int64_t now) noexcept;
  std::string own_device_text(const Operation &op) const;
  std::string no_place_text(const Operation &op) const;
  std::string culprit(const Operation &op, int first, Code &code) noexcept;
  std::string library_text(const Operation &op, Code &code) noexcept;
  std::string rank_text(int rank) const;
  std::string path_text(const Operation &op) const;
  std::string about(const Operation &op) const;  // why it ends: what it is, and why this has failed

  const Birth birth_;
  std::shared_ptr<Context> context_;
  const topology::Topology topology_;
  const int rank_, world_;
  const uint32_t index_, epoch_;
  const uint64_t serial_;
  const std::string name_;
  const uint64_t cell_bytes_, credit_window_;
  const uint64_t mailbox_offset_;
  Mailbox *mail_;
  std::vector<PeerRank> peers_;
  OutOfBand out_of_band_;
  std::atomic<uint64_t> out_of_band_number_{0}, aborts_{0};
  std::vector<int> fold_order_;  // ranks, groups in order
  std::vector<uint32_t> group_ends_;

  // exec
  std::atomic_flag exec_;
  std::vector<reduce::Source> sources_;
  HandOver hand_over_;
  std::vector<std::byte> scratch_;
  uint64_t last_ring_ = 0;      // sequence of the last operation that wrote a ring anywhere in the communicator
  bool watches_slots_ = false;  // some rank's device fills its slots
  bool ring_lost_ = false;      // the device may still come to copies that were left behind
  bool looked_again_ = false;   // after a failure, for what can still end well
  bool forgotten_ = false;      // after a failure, on the links
  uint64_t seen_by_all_ = 0;    // every peer has ended this operation, as far as known
  uint64_t unchecked_ = 0,
           unchecked_digest_ = 0;  // last operation, where it ended without a look at everybody's description

  PlanInbox inbox_;
  Rings rings_;
  uint64_t fixed_ring_;
  const uint64_t fixed_ring_allocated_;
  uint64_t fixed_ring_bytes_ = 0;  // of it, what the others have as well
  std::vector<std::span<std::byte>> guarded_;

  // The device side, or null. The island's submit lock orders submissions: sequence numbers rise as the stream's work does.
  std::unique_ptr<DeviceExecutor> executor_;
  std::unique_ptr<Bounces> bounces_;    // made when first needed, by who submits to the island
  bool bounced_ = false;                // exec: a piece was copied since the driver last looked
  device::Runtime *runtime_ = nullptr;  // of a device whose memory the host cannot touch
  int device_ = -1;
  std::atomic<bool> island_polls_{false};
  std::string island_family_;
  std::vector<int> island_ranks_;  // that the library serves with this one
  const std::vector<int>
      served_in_;  // by rank, as in MemberSetup: who waits inside a library waits for ranks of the same island
  SubmitLock island_lock_;
  bool behind_host_ = true;  // the last operation submitted had no device work

  OperationQueue queue_;
  std::atomic<uint32_t> pending_{0};  // operations not over, of all kinds
  std::atomic<uint32_t> waiters_{0};
  std::atomic<bool> inline_taken_{false};
  Operation inline_op_;

  // published for diagnosis
  std::atomic<uint64_t> entered_{0}, done_{0};
  std::atomic<int32_t> waiting_on_{-1};
  std::atomic<uint32_t> turn_{0};  // of the operation that waits
  std::atomic<Operation *> awaited_message_{
      nullptr};  // that a thread waits for and has found nothing to do; compared, never followed

  // Frames that come in, and messages between their call and their end.
  mutable SpinLock match_lock_;
  uint64_t their_size_ = 0;  // compare_sizes(): what came last by a link
  UnexpectedMessages unexpected_ ISTHMUS_GUARDED_BY(match_lock_);
  // Receives without a message; announced sends; receives whose data flows in; sends that the link has, and receives that have claimed a
  // message which is still arriving. Every operation between ranks is in one of them until it ends, so that its deadline is seen.
  OperationList posted_ ISTHMUS_GUARDED_BY(match_lock_), sending_ ISTHMUS_GUARDED_BY(match_lock_),
      receiving_ ISTHMUS_GUARDED_BY(match_lock_), flowing_ ISTHMUS_GUARDED_BY(match_lock_);
  // Messages in device memory, and what has to keep its place among them: sends in order, until their bytes are out; announced messages
  // that wait for pinned memory, for their slot, or for a processor that brings them; receives whose bytes are there.
  OperationList taking_ ISTHMUS_GUARDED_BY(match_lock_), granting_ ISTHMUS_GUARDED_BY(match_lock_),
      landing_ ISTHMUS_GUARDED_BY(match_lock_);
  OperationList *const lists_[7] ISTHMUS_GUARDED_BY(match_lock_) = {&posted_, &sending_,  &receiving_, &flowing_,
                                                                    &taking_, &granting_, &landing_};
  Operation *gated_head_ ISTHMUS_GUARDED_BY(match_lock_) = nullptr,
                         **gated_tail_ ISTHMUS_GUARDED_BY(match_lock_) =
                             &gated_head_;  // receives behind gates, in the order of their tickets
  p2p::PlaceChain chain_ ISTHMUS_GUARDED_BY(match_lock_){
      kEagerMessage};                // small ones of these with pinned memory of their own and no heir
  std::atomic<uint32_t> moving_{0};  // in taking_, granting_, landing_
  struct {
    bool any = false;
    int rank = 0, tag = 0;
  } starting_ ISTHMUS_GUARDED_BY(match_lock_);             // a send that was taken out of taking_ and is not in its link yet
  uint32_t unstaged_ ISTHMUS_GUARDED_BY(match_lock_) = 0;  // of taking_: wait for pinned memory or a slot
  uint32_t short_[2] ISTHMUS_GUARDED_BY(match_lock_) = {};  // of these, large and small: found none
  std::atomic<bool> worker_wanted_{false}, worker_called_{false};
  p2p::RecvSlots recv_slots_ ISTHMUS_GUARDED_BY(match_lock_);
  std::recursive_timed_mutex order_[2];    // sends, receives: the order of their numbers is that of their calls
  std::atomic<uint32_t> slot_waiters_{0};  // sends that wait for a slot
  std::vector<std::span<std::byte>> guarded_recv_slots_ ISTHMUS_GUARDED_BY(match_lock_);
  std::pair<std::weak_ptr<device::Stream>, std::weak_ptr<device::Stream>> device_streams_;  // never changed
  std::atomic<int64_t> device_asked_ns_{0};  // or when something of it last went on
  uint64_t device_moved_ = 0;                // exec: what had gone on then
  std::atomic<bool> device_doubted_{false};
  enum class Stop : uint8_t { None, Asked, Done, Refused };  // of the island's stream, by the device worker
  std::atomic<Stop> stop_{Stop::None};
  bool stopped_in_turn_ = false;            // exec: nobody submitted when it was asked for
  std::atomic<bool> device_silent_{false};  // its driver has not answered, so nobody asks again
  const uint64_t part_bytes_;
  const int64_t group_wait_ns_;
  std::unique_ptr<DeviceCopier> copier_;
  bool copier_gates_ = true;
  SubmitLock copier_lock_;                // whoever submits copies; taken before the match lock
  std::atomic<bool> stages_lost_{false};  // the device may still come to any of them
  p2p::StagingPool pool_;
  std::atomic<uint64_t> next_message_{0};

  // failure
  std::atomic<uint32_t> failed_{0};
  mutable Mutex failure_mutex_;
  Failure failure_ ISTHMUS_GUARDED_BY(failure_mutex_);
  std::atomic<bool> left_{false};
};

// A thread that submits waits in the place of a stream that cannot. What it waits for, the progress thread brings about, which also
// sees the deadline: this thread holds what the end of an operation needs, so it does not drive.
template <class Holds>
void Member::sleep_until(Holds holds) noexcept {
  constexpr int64_t kNap = 20'000'000, kAsk = 50'000'000;
  const int64_t spin_until = now_ns() + context_->spin_ns();
  int64_t asked = now_ns();
  while (!holds()) {
    const int64_t now = now_ns();
    if (now < spin_until) {
      ::sched_yield();
      continue;
    }
    if (now - asked > kAsk) {
      asked = now;
      ask_for_interrupt();
    }
    context_->links().sleep(false, kNap, [&](bool) { return holds(); });
  }
}

}  // namespace isthmus::engine
