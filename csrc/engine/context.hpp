// What a process owns once: the arena, the control mesh, the links, the flight recorder and the progress thread. Made by the first
// communicator, gone with the last.
//
// Threads. The control thread (in the mesh) handles liveness and control messages. The progress thread drives operations that
// nobody waits for; it sleeps on the doorbell otherwise. A caller that waits drives its own member and the links itself.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/lock.hpp"
#include "base/fork.hpp"
#include "base/handover.hpp"
#include "base/recorder.hpp"
#include "base/settings.hpp"
#include "bootstrap/mesh.hpp"
#include "device/runtime.hpp"
#include "engine/operation.hpp"
#include "link/arena.hpp"
#include "link/memory.hpp"
#include "link/tcp.hpp"
#include "process/control_wire.hpp"
#include "process/device_scratch.hpp"
#include "process/reduce_pool.hpp"

namespace isthmus::engine {

using process::AbortHead;
using process::AbortMessage;
using process::Control;
using process::CreditBody;
using process::DeviceScratch;
using process::kMostFailureText;
using process::LeaveBody;
using process::Leaving;
using process::OutOfBandHead;
using process::QueryBody;
using process::ReducePool;
using process::ReplyBody;
using process::RingPlace;
using process::unpack;
using process::unpack_abort;

// Why a communicator has failed. The text may begin with what an operation is: the others say which of theirs that is, instead.
struct Failure : Status {
  Failure() = default;
  Failure(Status status) : Status(std::move(status)) {}  // NOLINT: a status is a failure of which no more is known
  std::string doing;      // what this rank was in, for who hears of it without an operation of his own; not told to others
  uint32_t subject = 0;   // bytes of that beginning
  int32_t by = -1;        // the rank whose operation it is
  uint64_t sequence = 0;  // its number; 0: it is a message
  int32_t raiser = -1;    // the rank whose process ends by an error of its program, where that is the reason
  bool late = false;      // an operation has met its deadline
  int64_t noted_ns = 0;
};

class Context final : public bootstrap::MeshEvents, public link::FrameSink {
 public:
  // A communicator's use of the context, from its making to its destruction. When the last one has ended, the next acquire() makes a
  // new context, whatever holds this one a moment longer (an operation that is over, a thread of ours).
  class Use {
   public:
    Use() = default;
    Use(Use &&) noexcept = default;
    Use &operator=(Use &&other) noexcept {
      end();
      context_ = std::move(other.context_);
      return *this;
    }
    ~Use() { end(); }
    const std::shared_ptr<Context> &context() const noexcept { return context_; }
    Use again() const;  // one more, for a communicator that is made from this one's
    void end() noexcept;

   private:
    friend class Context;
    explicit Use(std::shared_ptr<Context> context) noexcept : context_(std::move(context)) {}
    std::shared_ptr<Context> context_;
  };
  // The process's context, made with these settings if there is none in use. Throws Error.
  static Use acquire(const Settings &settings, const std::string &route_hint);
  static std::shared_ptr<Context> current();  // null if there is none
  Context(const Settings &settings, const std::string &route_hint);
  ~Context() override;

  link::Arena &arena() noexcept { return arena_; }
  bootstrap::Mesh &mesh() noexcept { return *mesh_; }
  Recorder &recorder() noexcept { return recorder_; }
  int64_t spin_ns() const noexcept { return spin_ns_; }
  Stores stores() const noexcept { return stores_; }  // into memory that other ranks read
  // How long to spin where sockets may end the wait: shorter while waits are longer than any spinning, long again once one was not. (As KVM
  // does where it polls for an interrupt before it halts.)
  int64_t socket_spin_ns() const noexcept { return socket_spin_ns_.load(std::memory_order_relaxed); }
  void note_socket_wait(int64_t ns) noexcept;

  // The process with this endpoint, connected as asked; idempotent. One thread of this process at a time.
  bootstrap::Peer &connect(const bootstrap::Endpoint &endpoint, const bootstrap::Bytes16 &key, bool shared, int streams,
                           Deadline deadline);
  // The link to a process (null: this one). Made at first use; `memory`: through shared memory, else TCP over peer->data.
  link::Link *link_to(bootstrap::Peer *peer, bool memory);

  // Members: index for frame headers. A reserved index drops frames until set.
  uint32_t reserve_index();
  void release_index(uint32_t index);  // of no member
  void set_member(uint32_t index, std::shared_ptr<Member> member);
  // After this no thread of ours is inside the member on behalf of a link, and no link holds anything of it.
  void remove_member(uint32_t index);
  // For a member that is still being made, until its index is released or its member is set: raised when a rank of it says that it has failed
  // (Control::Abort), which others may not hear otherwise while they wait inside a library.
  std::shared_ptr<const std::atomic<bool>> making(uint32_t index, uint32_t epoch);
  std::shared_ptr<Member> member_at(uint32_t index) const;
  std::vector<std::shared_ptr<Member>> members() const;
  uint64_t next_serial() noexcept { return serial_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Makes calls of a device's runtime or library that a device which hangs would hold up, on a thread of their own, until the deadline. Throws
  // what they throw, and Error(System) where they have not come back, or something before has not. `calls` may run on then, so it holds all that
  // it uses.
  static void ask(device::Runtime &runtime, int device, Deadline deadline, std::function<void()> calls);
  template <class T>
  static T asked(device::Runtime &runtime, int device, Deadline deadline, std::function<T()> calls) {
    const auto answer = std::make_shared<std::optional<T>>();
    ask(runtime, device, deadline, [answer, calls = std::move(calls)] { answer->emplace(calls()); });
    return std::move(**answer);
  }
  // Error(System) where a call of an earlier communicator's has not come back from the device.
  static void refuse_stuck(const device::Runtime &runtime, int device);
  // Before anything else on a device. This, and the three below, are for ask().
  void begin_on(device::Runtime &runtime, int device);
  // The stream of the vendors' libraries that compute on the host: one for the process, while anybody has it.
  static std::shared_ptr<device::Stream> host_stream();
  // Stream `number` of ours on that device, while anybody has it. Ranks that are threads on one device need their own: the gate of one may
  // wait for what stands on the stream of another.
  std::shared_ptr<DeviceScratch> device_scratch(device::Runtime &runtime, int device);
  std::shared_ptr<device::Stream> device_stream(device::Runtime &runtime, int device, int number);
  // Where that device finds base() of the arena, whose staging it can reach from now on. Registered once. Throws what the runtime throws.
  std::byte *arena_on(device::Runtime &runtime, int device);
  // Where that device finds memory of a process with which this one shares memory (null: this process), which is registered for it until
  // the context ends. Null where the runtime cannot; the log says so. Page-aligned; a range is asked for whole, always the same.
  std::byte *reach(device::Runtime &runtime, int device, bootstrap::Peer *peer, uint64_t offset, uint64_t bytes);
  // Staging for a ring that other processes' devices may reach: its place stays registered there, so it is used for nothing else again.
  // 0 where more than 1/`part_of` of the staging memory would be in use then.
  uint64_t take_fixed_ring(uint64_t bytes, int part_of) noexcept;
  void give_fixed_ring(uint64_t offset, uint64_t bytes) noexcept;
  void lose_rings(int rings) noexcept { rings_lost_.fetch_add(rings, std::memory_order_relaxed); }

  // Progress.
  bool has_links() const noexcept { return link_count_.load(std::memory_order_acquire) != 0; }
  bool drive_links(bool watched = false) noexcept;  // `watched`: none that sockets tell of
  void cancel_on_links(Member &member);
  void wake() noexcept { arena_.doorbell().ring(); }
  void activate(Member &member);  // it has operations that nobody may be waiting for
  // The device worker, a thread that may call its device's runtime, carries messages of that member (Member::carry_messages). One a device, since a
  // call of the runtime may wait for what the device has to do. Begun at first use. `stops`: another one, which stops that member's stream
  // (Member::stop_stream), and so ends what the first may be waiting for.
  void call_worker(Member &member, bool stops = false);
  // Of what communicators have lost for want of staging memory, one of 32: whether it was noted before.
  static constexpr unsigned kBeyondStaging = 31;
  bool note_lost(unsigned path) noexcept { return (lost_paths_.fetch_or(1u << path) >> path & 1) != 0; }
  bool staging_is_lent() const;  // operations of the process have some, which they will give back
  bool give_idle_staging();      // what communicators keep of it for their next operations; false: nothing
  void want_room(int operations) noexcept { short_of_room_.fetch_add(static_cast<uint32_t>(operations)); }
  uint64_t given_back() const noexcept { return given_back_.load(std::memory_order_acquire); }
  void room_given_back() noexcept {  // by an operation that had some
    if (short_of_room_.load() == 0) return;
    given_back_.fetch_add(1, std::memory_order_acq_rel);
    wake();
  }
  // Staging memory for messages. Any thread.
  p2p::StagingSource &staging_source() noexcept { return staging_source_; }
  p2p::ShareBytes &message_staging() noexcept { return message_staging_; }
  std::atomic<uint64_t> &spilled() noexcept { return spilled_; }  // bytes of messages that have left it for other memory
  std::atomic<uint32_t> &unplaced_sends() noexcept {
    return unplaced_sends_;
  }  // whose copies have not been submitted, of all members
  // Sleeps until something may have happened: the doorbell, a socket (when `sockets`), at most `ns`. ready(watched) is asked once more before;
  // `watched`: not about what sockets tell.
  template <class Ready>
  void sleep(bool sockets, int64_t ns, Ready ready);
  // Memory that peers of a destroyed member may still read: freed once `safe` holds (asked at ticks and by sweep()), or with the
  // context. `gone[rank]` is set when that rank says that it has left; until then frames for the index are still understood.
  using Gone = std::shared_ptr<std::vector<std::atomic<bool>>>;
  void retire(uint32_t index, uint32_t epoch, Gone gone, std::function<bool()> safe, std::function<void()> free_it);
  void sweep() noexcept;
  // Fails the members behind links that broke while the peer's control connection goes on as if nothing were wrong.
  void report_broken(int64_t now) noexcept;
  // This thread is inside a link's progress(): in a callback of an operation that ended there. It must not drive.
  static bool inside_link() noexcept { return current_slot != nullptr; }

  // Threads that help to reduce: as many as the setting says, or `automatic`; the first communicator for which that is more than none
  // makes them. Throws Error(Resource).
  void want_helpers(int automatic);
  void fold(const reduce::Fold &task, size_t count) noexcept {
    if (ReducePool *const pool = reduce_pool_.load(std::memory_order_acquire)) pool->fold(task, count);
    else reduce::fold(task, count);
  }

  // Control messages. peer null: this process, delivered at once.
  bool control(bootstrap::Peer *peer, Control type, std::span<const std::byte> body) noexcept;
  // Tells the process of a rank that this one fails, with whatever it has of that index.
  bool tell_failure(bootstrap::Peer *peer, uint32_t their_index, uint32_t epoch, const Failure &why) noexcept;
  // This process ends by an error that its program has not caught: `what`. All its communicators fail, on all ranks, and its connections
  // stay until the process has ended, so that the others see its end.
  static void raised(std::string_view what) noexcept;
  // Whether a communicator of this process has failed a moment ago because another rank raised, and whether that one's process is there.
  enum class Raiser { None, There, Gone };
  static Raiser raiser() noexcept;
  // Asks the process of a rank what the member `their_index` is doing. False: no answer within `ms`, though where heartbeats of that
  // process still come the wait goes on until `patience` ends: whoever is merely late is not stopped.
  using Answer = process::Answer;
  bool query(bootstrap::Peer *peer, uint32_t their_index, uint32_t epoch, uint64_t sequence, int ms, Deadline patience,
             Answer &answer);
  Answer answer_query(uint32_t index, uint32_t epoch, uint64_t sequence) const;

  struct Stats {
    int threads, descriptors, peers, links, members;
    int leaving;     // members that were destroyed, whose slots peers may still read
    int rings_lost;  // rings that a device may still write to, and that nobody gets until the context ends
    size_t staging_used, staging_limit;
  };
  Stats stats() const;

  // MeshEvents, on the control thread
  void on_message(bootstrap::Peer &peer, uint16_t type, std::span<const std::byte> body) override;
  void on_lost(bootstrap::Peer &peer, const std::string &why) override;
  void on_tick() override;
  // FrameSink, on whoever has a link's turn. broken() is told apart by the thread's current link, and only notes it: see report_broken.
  link::Accept accept(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) override;
  void received(const link::FrameHeader &h) override;
  void broken(const std::string &why) override;

  static int processors() noexcept;       // that this process may use
  static bool oversubscribed() noexcept;  // more ranks on this host than processors
  static void note_local_ranks(int ranks) noexcept;

 private:
  struct LinkSlot {
    bootstrap::Peer *peer = nullptr;
    std::unique_ptr<link::Link> link;
    link::ShmLink *shm = nullptr;
    bool sockets = false;
    std::string why;  // published by broken_ns
    std::atomic<int64_t> broken_ns{0};
  };
  RingPlace make_ring();
  static thread_local LinkSlot *current_slot;  // whose link this thread drives just now
  static const InChild forgets_;
  // Of those who sleep for sockets one watches them all; the others sleep on the doorbell, and are woken when something came for somebody
  // and when the watch is free.
  class Watch {
   public:
    explicit Watch(Context &context) noexcept;
    ~Watch();
    Watch(const Watch &) = delete;
    Watch &operator=(const Watch &) = delete;
    bool mine() const noexcept { return taken_ || again_; }

   private:
    Context &context_;
    bool taken_ = false;
    bool again_ = false;  // by this thread, further out: a callback waits
  };
  bool drive_slot(LinkSlot &slot);
  static void enter_own_thread() noexcept;
  void progress_loop();
  struct DeviceWorker {
    device::Runtime *runtime;
    int device;
    bool stops;
    Condition called;
    std::vector<std::weak_ptr<Member>> jobs;
    std::thread thread;
  };
  void worker_loop(DeviceWorker &worker);
  void poll_sockets(int64_t ns);

  const Birth birth_;
  Settings settings_;
  int uses_ = 0;  // under the lock of acquire()
  link::Arena arena_;
  Recorder recorder_;
  int64_t spin_ns_;
  Stores stores_;
  std::atomic<int64_t> socket_spin_ns_;
  std::unique_ptr<bootstrap::Mesh> mesh_;

  struct OnDevice {
    device::Runtime *runtime = nullptr;
    int device = -1;
    std::byte *there ISTHMUS_GUARDED_BY(mutex) = nullptr;  // base() of the arena; null: not registered
    std::vector<std::weak_ptr<device::Stream>> streams ISTHMUS_GUARDED_BY(mutex);
    std::weak_ptr<DeviceScratch> scratch ISTHMUS_GUARDED_BY(mutex);
    struct Reached {
      bootstrap::Peer *peer;
      uint64_t offset, bytes;
      std::byte *there;
    };
    std::vector<Reached> reached ISTHMUS_GUARDED_BY(mutex);
    bool begun ISTHMUS_GUARDED_BY(mutex) = false;
    Mutex mutex;  // held in calls of the runtime, from which one that hangs does not come back
  };
  OnDevice &known(device::Runtime &runtime, int device);
  static void begin(OnDevice &d) ISTHMUS_REQUIRES(d.mutex);
  Mutex devices_mutex_;  // never held over a call of a runtime
  std::deque<OnDevice> devices_ ISTHMUS_GUARDED_BY(devices_mutex_);
  Mutex spare_rings_mutex_;  // never held over a call of a runtime
  std::vector<std::pair<uint64_t, uint64_t>> spare_rings_ ISTHMUS_GUARDED_BY(spare_rings_mutex_);  // offset, bytes

  Mutex connect_mutex_;
  mutable Mutex links_mutex_;
  std::vector<std::unique_ptr<LinkSlot>> links_ ISTHMUS_GUARDED_BY(links_mutex_);  // append only
  std::array<std::atomic<LinkSlot *>, 4096> link_table_{};
  std::atomic<uint32_t> link_count_{0};
  std::atomic<bool> has_sockets_{false}, has_broken_{false};
  std::atomic<bool> watched_{false};
  std::atomic<uint32_t> unwatching_{0};  // sleep for sockets without the watch
  std::vector<std::pair<bootstrap::Peer *, RingPlace>> early_rings_
      ISTHMUS_GUARDED_BY(links_mutex_);  // StreamRing messages that came before our link

  mutable Mutex members_mutex_;
  std::vector<std::shared_ptr<Member>> members_ ISTHMUS_GUARDED_BY(members_mutex_);
  std::vector<uint32_t> free_indices_ ISTHMUS_GUARDED_BY(members_mutex_);
  struct Making {
    uint32_t index, epoch;
    std::shared_ptr<std::atomic<bool>> failed;
  };
  std::vector<Making> making_ ISTHMUS_GUARDED_BY(members_mutex_);
  std::atomic<uint64_t> serial_{0};

  Mutex active_mutex_;
  std::vector<std::shared_ptr<Member>> active_ ISTHMUS_GUARDED_BY(active_mutex_);
  std::atomic<uint64_t> active_version_{0};
  Doorbell progress_bell_;  // where the progress thread sleeps while it has nothing to drive

  mutable Mutex retired_mutex_;
  struct Retired {
    uint32_t index, epoch;
    Gone gone;
    std::function<bool()> safe;
    std::function<void()> free_it;
  };
  std::vector<Retired> retired_ ISTHMUS_GUARDED_BY(retired_mutex_);
  int freeing_ ISTHMUS_GUARDED_BY(retired_mutex_) = 0;  // of those, taken out by sweep(), whose slots are about to be free
  std::atomic<int> rings_lost_{0};

  std::atomic<int64_t> ticked_ns_{0};  // when the control thread had last read what had come
  mutable Mutex query_mutex_;
  Condition query_answered_;
  uint64_t query_next_ ISTHMUS_GUARDED_BY(query_mutex_) = 0;
  std::vector<std::pair<uint64_t, Answer>> answers_ ISTHMUS_GUARDED_BY(query_mutex_);

  class MessageStaging final : public p2p::StagingSource {
   public:
    explicit MessageStaging(Context &context) noexcept : context_(context) {}
    std::optional<uint64_t> allocate(uint64_t bytes) noexcept override;
    void free(uint64_t offset) noexcept override;
    uint64_t limit() const noexcept override;

   private:
    Context &context_;
  } staging_source_{*this};
  p2p::ShareBytes message_staging_{};
  std::atomic<uint64_t> spilled_{0};
  std::atomic<uint32_t> lost_paths_{0};
  std::atomic<uint32_t> short_of_room_{0};  // operations
  std::atomic<uint64_t> given_back_{0};     // how often, while some were
  std::atomic<uint32_t> unplaced_sends_{0};
  Mutex worker_mutex_;
  std::vector<std::unique_ptr<DeviceWorker>> workers_ ISTHMUS_GUARDED_BY(worker_mutex_);
  bool workers_end_ ISTHMUS_GUARDED_BY(worker_mutex_) = false;

  Mutex reduce_pool_mutex_;
  std::unique_ptr<ReducePool> reduce_pool_owner_ ISTHMUS_GUARDED_BY(reduce_pool_mutex_);
  std::atomic<ReducePool *> reduce_pool_{nullptr};

  std::atomic<bool> stop_{false};
  std::thread progress_;
};

template <class Ready>
void Context::sleep(bool sockets, int64_t ns, Ready ready) {
  if (!sockets || !has_sockets_.load(std::memory_order_acquire)) {
    Nap nap(arena_.doorbell());
    if (!ready(false)) nap.sleep(ns);
    return;
  }
  const Watch watch(*this);
  if (watch.mine()) {
    const PollNap nap(arena_.doorbell());
    if (!ready(true)) poll_sockets(ns);
  } else {
    Nap nap(arena_.doorbell());
    if (!ready(false)) nap.sleep(ns);
  }
}

}  // namespace isthmus::engine
