// The inside of the mesh: what its caller-side half (mesh.cpp, mesh_connect.cpp) and its control thread (mesh_loop.cpp,
// mesh_greeting.cpp) share.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <thread>

#include "base/lock.hpp"
#include "base/log.hpp"
#include "bootstrap/arena_offer.hpp"
#include "bootstrap/control_wire.hpp"
#include "bootstrap/mesh.hpp"
#include "net/fork_guard.hpp"
#include "net/gate.hpp"

namespace isthmus::bootstrap {

struct Peer::State {
  mutable Mutex mutex;                             // held over sends, which do not wait
  UniqueFd control ISTHMUS_GUARDED_BY(mutex);      // written by any sender, read and closed by the control thread
  net::GuardedFd pidfd ISTHMUS_GUARDED_BY(mutex);  // empty where the peer is not on this host
  net::ByteVector out ISTHMUS_GUARDED_BY(mutex);   // queued, not yet taken by the kernel, from `sent` on
  size_t sent ISTHMUS_GUARDED_BY(mutex) = 0;
  int send_error ISTHMUS_GUARDED_BY(mutex) = 0;  // errno of the send that found the connection broken
  bool full_logged ISTHMUS_GUARDED_BY(mutex) = false;
  std::string why ISTHMUS_GUARDED_BY(mutex);  // once lost

  net::FrameReader reader;  // control thread only, as the next two
  bool bye = false;
  bool ended = false;  // its pidfd says so
};

struct Known {
  std::unique_ptr<Peer> peer;
  PeerArena shared;  // mapped, but connect() was not asked for it yet
  bool has_data = false;
  bool unshared_logged = false;
};

// A control connection that is through the handshake and the greeting, waiting for connect() to claim it.
struct Arrival {
  UniqueFd fd;
  Endpoint endpoint;
  bool local = false;
  PeerArena arena;
  net::FrameReader reader;  // may already hold messages
};

struct DataArrivals {
  uint32_t count = 0;         // that the dialer announced
  std::vector<UniqueFd> fds;  // by index
};

struct Greeting {  // accepted and authenticated, not yet complete; control thread only
  net::Guest guest;
  Deadline deadline;
  net::FrameReader reader;
  UniqueFd passed;
  std::optional<Intro> intro;
  PeerArena arena;
};

struct Mesh::State {
  State(const Settings &settings, MeshEvents &handler, int arena_fd, size_t arena_bytes, const std::string &route_hint);
  ~State();

  // ---- constant after construction
  MeshEvents &events;
  const int64_t heartbeat_ns;
  Endpoint self;
  ArenaOffer arena;

  // ---- shared
  Mutex mutex;  // taken before a Peer::State::mutex; never held while a callback runs
  Condition changed;
  std::deque<Known> peers ISTHMUS_GUARDED_BY(mutex);  // by index; only grows
  std::map<Bytes16, Peer *> by_process ISTHMUS_GUARDED_BY(mutex);
  std::set<Bytes16> connecting ISTHMUS_GUARDED_BY(mutex);  // a connect() is under way
  std::map<Bytes16, Arrival> arrivals ISTHMUS_GUARDED_BY(mutex);
  std::map<Bytes16, DataArrivals> data_arrivals ISTHMUS_GUARDED_BY(mutex);
  // claimed; the control thread looks at what was read along with the greeting
  std::vector<Peer *> fresh ISTHMUS_GUARDED_BY(mutex);

  net::Gate gate;  // add_key and drop_key from any thread, the rest on the control thread
  net::GuardedFd epoll, wake_fd;
  std::atomic<bool> stop{false};
  std::atomic<int> greeting_count{0};
  std::map<uint64_t, Greeting> greetings;  // control thread only, as the next
  uint64_t next_greeting = 0;
  std::thread thread;

  void wake() const noexcept;
  void shut_down();
  Peer *find(uint32_t index);

  // ---- caller's threads (mesh_connect.cpp)
  Peer *claim(Arrival &&arrival) ISTHMUS_REQUIRES(mutex);
  Arrival dial_control(const Endpoint &e, const Bytes16 &key, Deadline deadline);
  Arrival dial_local(const Endpoint &e, const Bytes16 &key, UniqueFd fd, Deadline deadline);
  Peer *await_control(const Endpoint &e, Deadline deadline) ISTHMUS_REQUIRES(mutex);
  std::vector<UniqueFd> dial_data(Peer &peer, const Bytes16 &key, int streams, Deadline deadline);
  std::vector<UniqueFd> await_data(Peer &peer, int streams, Deadline deadline) ISTHMUS_REQUIRES(mutex);
  bool gone(const Endpoint &e) const;  // nobody listens there any more

  // ---- control thread (mesh_loop.cpp, mesh_greeting.cpp)
  void run() noexcept;
  void admit(net::Guest &&guest);
  bool advance(Greeting &g);  // false: complete or refused
  bool on_greeting_frame(Greeting &g, uint16_t type, std::span<const std::byte> body);
  void arrived(Greeting &g);
  void refuse(const Greeting &g, const std::string &why);
  // gives the kernel what it takes; `index`: of the peer
  void queue(Peer::State &p, uint32_t index, uint16_t type, std::span<const std::byte> body) ISTHMUS_REQUIRES(p.mutex);
  void flush(Peer::State &p) ISTHMUS_REQUIRES(p.mutex);
  void on_readable(Peer &peer);
  void on_writable(Peer &peer);
  void on_ended(Peer &peer);
  void lose(Peer &peer, const std::string &why);
  void beat();
  void farewell() noexcept;
};

// epoll data: what a descriptor is, and its number
enum class Tag : uint64_t { Wake, Gate, Greeting, Control, Pid };
constexpr uint64_t tagged(Tag tag, uint64_t number) noexcept { return static_cast<uint64_t>(tag) << 56 | number; }
void watch(int epoll, int operation, int fd, uint32_t events, uint64_t data);  // throws Error(System)

inline constexpr size_t kMaxQueued = 16 * 1024 * 1024;  // control messages of one peer that it does not take

}  // namespace isthmus::bootstrap
