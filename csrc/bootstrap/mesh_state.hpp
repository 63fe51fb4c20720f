// The inside of the mesh: what its caller-side half (mesh.cpp, mesh_connect.cpp) and its control thread (mesh_loop.cpp) share.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/lock.hpp"
#include "base/log.hpp"
#include "bootstrap/absence.hpp"
#include "bootstrap/arena_offer.hpp"
#include "bootstrap/control_epoll.hpp"
#include "bootstrap/control_wire.hpp"
#include "bootstrap/ending_wait.hpp"
#include "bootstrap/mesh.hpp"
#include "bootstrap/mesh_dial.hpp"
#include "bootstrap/mesh_greeting.hpp"
#include "bootstrap/outbox.hpp"
#include "bootstrap/silence.hpp"
#include "bootstrap/unconfirmed.hpp"
#include "net/fork_guard.hpp"
#include "net/gate.hpp"

namespace isthmus::bootstrap {

struct Peer::State {
  mutable Mutex mutex;                             // held over sends, which do not wait
  UniqueFd control ISTHMUS_GUARDED_BY(mutex);      // any sender writes; the control thread alone reads and closes
  net::GuardedFd pidfd ISTHMUS_GUARDED_BY(mutex);  // empty where the peer is not on this host
  Outbox out ISTHMUS_GUARDED_BY(mutex);
  bool full_logged ISTHMUS_GUARDED_BY(mutex) = false;
  std::string why ISTHMUS_GUARDED_BY(mutex);  // once lost

  // Where both processes have several addresses the control connection can be carried over to another one (mesh_carry.cpp).
  bool movable ISTHMUS_GUARDED_BY(mutex) = false;
  bool held ISTHMUS_GUARDED_BY(mutex) = false;         // until the peer has said on `control` what had come there
  UniqueFd before ISTHMUS_GUARDED_BY(mutex);           // held: the connection before it, which nobody reads any more
  UniqueFd next ISTHMUS_GUARDED_BY(mutex);             // has reached the peer, and the control thread has yet to take it
  uint32_t connections ISTHMUS_GUARDED_BY(mutex) = 0;  // the number of the last one that was tried or taken
  uint32_t puts ISTHMUS_GUARDED_BY(mutex) = 0;         // how often `control` has been another one
  Unconfirmed unconfirmed ISTHMUS_GUARDED_BY(mutex);   // movable: sent, and not confirmed

  int64_t held_since = 0;  // control thread only, as are the next six, but for what any thread asks
  uint64_t had = 0;        // messages of the mesh's user that have come
  net::FrameReader reader;
  struct {
    int64_t interval_ns = 0;         // of the peer's, as it says
    std::atomic<uint64_t> heard{0};  // any thread asks
    int unheard = 0;                 // sent since something came from the peer
    bool rest = false;               // the peer's host has all, and the kernel probes it in place of heartbeats
  } beats;
  bool bye = false;  // the peer has said farewell
  struct {
    bool ended = false;        // by the peer's pidfd
    bool unreachable = false;  // by the error of the control connection
  } kernel_says;
  std::atomic<bool> surely{false};  // the peer has ended, and not only the way to it. Any thread asks

  bool silent() const ISTHMUS_REQUIRES(mutex);
  bool unheard() const ISTHMUS_REQUIRES(mutex) { return movable && (control ? silent() : held); }
  // The rest is for the control thread, whose epoll it is.
  void put(UniqueFd fd, uint32_t index, int epoll, int64_t heartbeat_ns) ISTHMUS_REQUIRES(mutex);
  void take_next(const Peer &peer, int epoll, int64_t heartbeat_ns);
  bool go_on(const Peer &peer, uint64_t count, int epoll);  // the peer has said what had come there. False: that cannot be
  bool drop_held(int epoll);                                // false: the control connection is not held
  bool held_too_long(int64_t heartbeat_ns) const;
  void rest(int64_t heartbeat_ns) ISTHMUS_REQUIRES(mutex);  // where the peer's host has all that was sent
  void end_rest(int fd, int64_t heartbeat_ns) noexcept;     // the peer has been heard on its control connection, `fd`
};

inline constexpr int64_t kHeldBeats = 100;  // as many heartbeats as may be unacknowledged
void limit_unanswered(
    int fd, int64_t ns) noexcept;  // a connection fails where the other host has not answered for so long: it has vanished
bool is_silent(const net::Answers &a) noexcept;  // a connection to another host, to be carried over to another address

struct Known {
  std::unique_ptr<Peer> peer;
  PeerArena shared;  // mapped, while no connect() has asked for it yet
  bool has_data = false;
  bool let_go = false;  // control thread only
  Absence absence{};
  std::vector<net::Address> ways{};  // where this process has dialled the data streams: the address of each
  bool unshared_logged = false;
};

struct DataArrivals {
  uint32_t count = 0;         // how many the dialer announced
  std::vector<UniqueFd> fds;  // by index
  std::vector<Bytes16> tokens;
};

struct Losses {
  Silence silence;
  // Who has ended, and why they are lost. Once more all that has come is heard first: another's word of an abort may say why one has ended.
  std::vector<std::pair<Peer *, std::string>> ended;
  EndingWait ending{};
  bool unread = false;               // of a peer more has come than was read in this turn
  std::atomic<int64_t> heard_ns{0};  // Mesh::has_heard(): any thread reads it
  bool has_ended(const Peer &peer) const noexcept {
    return std::any_of(ended.begin(), ended.end(), [&](const auto &e) { return e.first == &peer; });
  }
};

struct Mesh::State final : GreetingEvents {
  State(const Settings &settings, MeshEvents &handler, int arena_fd, size_t arena_bytes, const std::string &route_hint);
  ~State() override;

  // ---- constant after construction
  MeshEvents &events;
  const int64_t heartbeat_ns;
  Endpoint self;
  ArenaOffer arena;
  const Dialer dialer;

  // ---- shared
  Mutex mutex;  // taken before a Peer::State::mutex; never held while a callback runs
  Condition changed;
  std::deque<Known> peers ISTHMUS_GUARDED_BY(mutex);  // by index; only grows
  std::map<Bytes16, Peer *> by_process ISTHMUS_GUARDED_BY(mutex);
  std::set<Bytes16> connecting ISTHMUS_GUARDED_BY(mutex);  // a connect() is under way
  std::map<Bytes16, Arrival> arrivals ISTHMUS_GUARDED_BY(mutex);
  std::map<Bytes16, DataArrivals> data_arrivals ISTHMUS_GUARDED_BY(mutex);
  // Claimed, and the control thread has yet to look at what was read along with the greeting; or with a next connection.
  std::vector<Peer *> fresh ISTHMUS_GUARDED_BY(mutex);

  net::Gate gate;  // add_key() and drop_key() from any thread, the rest on the control thread
  net::GuardedFd epoll, wake_fd;
  std::atomic<bool> stop{false};
  std::optional<Greetings> greetings;  // control thread only, but count()
  Losses losses;                       // control thread only
  std::thread thread;

  void wake() const noexcept;
  void shut_down();
  Peer *find(uint32_t index);

  // ---- caller's threads (mesh_connect.cpp)
  Peer *claim(Arrival &&arrival) ISTHMUS_REQUIRES(mutex);
  Peer *await_control(const Endpoint &e, Deadline deadline, const Look &look) ISTHMUS_REQUIRES(mutex);
  std::vector<UniqueFd> await_data(Peer &peer, int streams, Deadline deadline, const Look &look) ISTHMUS_REQUIRES(mutex);

  // ---- control thread (mesh_loop.cpp)
  void run() noexcept;
  void serve(const epoll_event &ready);
  bool connected(const Bytes16 &process) override;
  void arrived(Arrival arrival) override;
  void data_arrived(const net::Hello &hello, const StreamIntro &intro, UniqueFd fd) override;
  void resumed(const net::Hello &hello, const Resume &resume, UniqueFd fd) override;
  // Adds a message and gives the kernel what the kernel takes. `index`: of the peer.
  void queue(Peer::State &p, uint32_t index, uint16_t type, std::span<const std::byte> body, Goes goes = Goes::AtOnce)
      ISTHMUS_REQUIRES(p.mutex);
  // What the peer says to the mesh itself. The end of a sentence on why the peer is lost; empty: it is not.
  std::string hear(Peer &peer, uint16_t type, std::span<const std::byte> body);
  void on_readable(Peer &peer);
  void on_writable(Peer &peer);
  void on_ended(Peer &peer);
  // Whether the peer was told why, or finds its connection reset where it lives.
  enum class Told : bool { No, Yes };
  void lose(Peer &peer, const std::string &why, Told told = Told::No);
  void end_earlier(const Peer &peer) ISTHMUS_REQUIRES(mutex);  // what this process was before it came again
  void beat(Peer &peer);
  void give_up_unheard(Peer &peer);  // where its control connection is silent, and it has ended or takes no other one
  void leave_out_the_silent();
  void farewell() noexcept;
};

void refuse_stranger();  // in the log: a data connection without the token of its pair

inline constexpr size_t kMaxQueued = 16 * 1024 * 1024;  // bytes of control messages that one peer does not take

}  // namespace isthmus::bootstrap
