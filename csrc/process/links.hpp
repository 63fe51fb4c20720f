// The links of this process to other processes, and to itself. All communicators share them.
//
// A link is made at its first use and stays until the context ends. A thread that has time drives the links: a caller that waits, or the
// progress thread. One thread at a time has a link's turn (link/frame.hpp).
//
// Thread rules. Any thread may call. The functions of FrameSink are called by the thread that has the link's turn.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/doorbell.hpp"
#include "base/fork.hpp"
#include "base/streaming_copy.hpp"
#include "base/lock.hpp"
#include "bootstrap/mesh.hpp"
#include "link/arena.hpp"
#include "link/frame.hpp"
#include "link/hands.hpp"
#include "link/memory.hpp"
#include "link/ucx.hpp"
#include "net/prompt_timer.hpp"
#include "process/control_wire.hpp"
#include "process/data_streams.hpp"
#include "process/local_rank.hpp"
#include "process/rank_table.hpp"
#include "process/socket_watch.hpp"

namespace isthmus::process {

// When a sleep with a time limit ends. On a thread of the program's `Somewhat` may be 50 us late, as the kernel has it. A timer ends the sleep of one
// thread at a time promptly; on the context's own threads every sleep ends promptly (base/own_thread.hpp).
enum class SleepEnds : uint8_t { Somewhat, Promptly };

enum class Carrier : uint8_t { Memory, Tcp, Ucx };

// How frames go to a process where they do not go through memory.
struct Streams {
  Carrier carrier = Carrier::Tcp;
  // Tcp: connections. 0: one for each way that the two processes have to each other. Or bootstrap::kStreamsByDistance.
  bootstrap::StreamCount count = 0;
  std::span<const std::byte> address;  // Ucx: of the other process' worker
};

class Links final {
 public:
  // `hands`: help links of several streams, and outlive the last drive(). `stores`: into memory that other ranks read. `spin_ns`: how long a thread
  // spins before it sleeps.
  Links(link::Arena &arena, const RankTable &ranks, DataStreams &streams, link::Hands &hands, Stores stores,
        int64_t spin_ns);
  void begin(bootstrap::Mesh &mesh) noexcept { mesh_ = &mesh; }  // before the first connect()

  // The process with this endpoint, connected as asked. `streams`: null, where its frames go through memory. `look`: asked now and then while the
  // other process has not come. Idempotent.
  bootstrap::Peer &connect(const bootstrap::Endpoint &endpoint, const bootstrap::Bytes16 &key, bool shared,
                           const Streams *streams, Deadline deadline, const bootstrap::Look &look = {});
  // How UCX reaches this process. Throws Error(Unsupported): there is no UCX here.
  std::vector<std::byte> ucx_address();
  // Waits until the UCX link of that process, which connect() has made, is there on both sides.
  void await_ucx(bootstrap::Peer &peer, Deadline deadline, const bootstrap::Look &look);
  // The link to a process (null: this process), made at first use: through shared memory, or by TCP over peer->data. A UCX link is made by
  // connect() alone.
  link::Link *link_to(bootstrap::Peer *peer, Carrier carrier);
  // A peer has made its ring for what it sends to this process (Control::StreamRing).
  void ring_came(bootstrap::Peer &peer, const StreamRingBody &ring);
  // Whether some links make way only while a thread drives them, so one drives them now and then also where no operation is under way: what
  // they have sent may not have left this process yet, and several streams have to notice the loss of one.
  bool need_driving() const noexcept { return need_driving_.load(std::memory_order_acquire); }
  // For the end of the process's use: drives the links that still hold what was sent, each until it does no more, or until nothing more of it has got
  // through for five seconds. At most kMostLeaveSeconds: by a long way some MiB are under way, and none of them may be lost.
  static constexpr int kMostLeaveSeconds = 30;
  void let_leave() noexcept;
  // Those that were not let go.
  int count() const noexcept {
    return static_cast<int>(counts_.made.load(std::memory_order_acquire) - counts_.let_go.load(std::memory_order_relaxed));
  }
  // The peer is gone, and no rank has it: its links give back what they hold. What is left of one is its place in the table, because threads
  // look there without a lock. False: UCX does not let go of a link before the end.
  bool let_go(const bootstrap::Peer &peer);

  // For as long as this thread goes on with what has come for that rank. Without a rank: with what has come for all ranks for which no caller waits,
  // whatever rank is named inside.
  class Driving {
   public:
    Driving() noexcept;  // the progress thread
    explicit Driving(const LocalRank &rank) noexcept;
    ~Driving();
    Driving(const Driving &) = delete;
    Driving &operator=(const Driving &) = delete;

   private:
    const LocalRank *const rank_;
    const bool all_;
  };

  // Moves what the links can move. True if something moved. Where a frame has come for a rank with which another thread goes on, the doorbell rings
  // for that thread. It may sleep with the watch of the sockets, and hear nothing of a frame that was read before it looked.
  bool drive(LookAt links = LookAt::AllLinks) noexcept;
  // After this no link holds anything of that rank.
  void cancel(const LocalRank &rank);
  // Fails the ranks behind links that broke while the control connection of the peer goes on as if nothing were wrong.
  void report_broken() noexcept;

  // Sleeps until something may have happened: the doorbell, a socket (where `sockets`), at most `ns`. ready(LookAt) is asked once more
  // before the sleep.
  template <class Ready>
  void sleep(bool sockets, int64_t ns, Ready ready, SleepEnds ends = SleepEnds::Somewhat);
  // The same, where no socket matters. ready() is asked once more before the sleep.
  template <class Ready>
  void sleep_at_doorbell(int64_t ns, Ready ready) {
    Nap nap(arena_.doorbell());
    if (!ready()) nap.sleep(ns);
  }
  // How long to spin where sockets may end the wait: shorter while waits are longer than any spinning, and long again after a short wait.
  // (KVM does the same where it polls for an interrupt before it halts.)
  int64_t socket_spin_ns() const noexcept { return socket_spin_ns_.load(std::memory_order_relaxed); }
  void note_socket_wait(int64_t ns) noexcept;

  // As in link::FrameSink, called by the thread that has a link's turn. The frame goes to the rank that the frame names.
  link::Accept accept(const link::FrameHeader &h, int64_t since_ns, std::byte *&to);
  void received(const link::FrameHeader &h);

 private:
  // A link, and where it hands its frames. A link that breaks is only noted; see report_broken().
  struct LinkSlot final : link::FrameSink {
    explicit LinkSlot(Links &links) noexcept : all(links) {}
    link::Accept accept(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) override {
      return all.accept(h, since_ns, to);
    }
    void received(const link::FrameHeader &h) override { all.received(h); }
    void broken(const std::string &why) override;
    bool drive();                   // one try; true if something moved
    bool carries() const noexcept;  // by sockets, to a process that is not lost
    bool may_leave() noexcept;      // for let_leave(): nothing is owed any more, or nothing more of it gets through

    Links &all;
    bootstrap::Peer *peer = nullptr;
    std::unique_ptr<link::Link> link;
    link::ShmLink *shm = nullptr;
    link::UcxLink *ucx = nullptr;
    bool sockets = false;
    bool let_go = false;
    uint64_t ring = 0;  // of `shm`, in this process's arena
    Carrier carrier() const noexcept { return shm ? Carrier::Memory : ucx ? Carrier::Ucx : Carrier::Tcp; }
    std::string reason;  // why it is broken; published by broken_ns
    std::atomic<int64_t> broken_ns{0};
    struct {
      int64_t since_ns = 0, through = 0;  // since when no more has got through than that
    } leaving;
  };
  void make_memory_link(LinkSlot &slot) ISTHMUS_REQUIRES(mutex_);
  void make_ucx_link(bootstrap::Peer &peer, std::span<const std::byte> address);
  link::Link *add(std::unique_ptr<LinkSlot> slot) ISTHMUS_REQUIRES(mutex_);
  LinkSlot *find(const bootstrap::Peer *peer, Carrier carrier) ISTHMUS_REQUIRES(mutex_);
  void poll_sockets(int64_t ns, SleepEnds ends);
  link::Arena &arena_;
  const RankTable &ranks_;
  DataStreams &data_streams_;
  link::Hands &hands_;
  const Stores stores_;
  bootstrap::Mesh *mesh_ = nullptr;

  Mutex ucx_mutex_;                       // held while UCX begins, and while it makes a link
  std::unique_ptr<link::UcxWorker> ucx_;  // constant once made; outlives its links
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<LinkSlot>> links_ ISTHMUS_GUARDED_BY(mutex_);  // append only
  std::array<std::atomic<LinkSlot *>, 4096> link_table_{};                   // the same, to be read without the lock
  struct LinkCounts {
    std::atomic<uint32_t> made{0}, let_go{0};
  } counts_;
  std::atomic<bool> has_sockets_{false}, has_broken_{false}, need_driving_{false};
  // Rings that came before this process had made its link.
  std::vector<std::pair<bootstrap::Peer *, StreamRingBody>> early_rings_ ISTHMUS_GUARDED_BY(mutex_);

  SocketWatch watch_;
  net::PromptTimer timer_;  // of the thread that has the watch
  const int64_t spin_ns_;
  std::atomic<int64_t> socket_spin_ns_;
};

template <class Ready>
void Links::sleep(bool sockets, int64_t ns, Ready ready, SleepEnds ends) {
  const auto ready_at_all = [&] { return ready(LookAt::AllLinks); };
  if (!sockets || !has_sockets_.load(std::memory_order_acquire)) {
    if (ends == SleepEnds::Somewhat) return sleep_at_doorbell(ns, ready_at_all);
    const SocketWatch::Turn watch(watch_, SocketWatch::Turn::IfIdle{});
    if (!watch.mine()) return sleep_at_doorbell(ns, ready_at_all);
    const PollNap nap(arena_.doorbell());
    if (!ready_at_all()) poll_sockets(ns, ends);
    return;
  }
  SocketWatch::Turn watch(watch_);
  if (watch.mine()) {
    const PollNap nap(arena_.doorbell());
    if (!ready(LookAt::AllButSockets)) poll_sockets(ns, ends);
  } else {
    watch.sleep(ns, ready_at_all);
  }
}

}  // namespace isthmus::process
