// The control mesh: one process's connections to its peer processes. Owns the listeners, the handshake, the control
// connections, liveness and ONE control thread that sleeps in epoll. Moves opaque messages; knows nothing of communicators.
//
// Every connection (control or data, Unix or TCP) starts with a mutual challenge-response that proves the job key;
// unauthenticated bytes, half-open connections and their age are bounded; a refused client is logged and harms nobody. Peers
// on the same host are reached by an abstract Unix socket (SO_PEERCRED must show our uid), over which both arenas' memfds
// are passed. Each side reads the header of the other's before it maps it, and the nonce in it must have been read back before
// memory counts as shared. A host's identity only nominates: where the socket is not here, TCP is tried. Deaths: pidfd (from
// SO_PEERCRED's pid) for shared peers, else the control connection's end; on it heartbeats are always on their way, so a host that vanishes
// is lost when nothing has been acknowledged for 100 of them. A forked child closes every descriptor in an atfork handler;
// it makes a mesh of its own, and its parent's is not to be used there.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/handles.hpp"
#include "base/settings.hpp"

namespace isthmus::bootstrap {

using Bytes16 = std::array<uint8_t, 16>;
Bytes16 random_bytes16();

struct Endpoint {     // how to reach a process; travels in blobs
  Bytes16 process{};  // random, one a process
  Bytes16 host{};     // boot id and network namespace, hashed: equality only nominates
  std::string hostname;
  std::string unix_name;         // abstract socket name without the leading NUL
  std::vector<std::string> tcp;  // "address:port", best first; IPv6 as "[..]:port"
  int64_t pid = 0;               // for messages only
  std::vector<std::byte> pack() const;
  static Endpoint unpack(std::span<const std::byte> bytes);  // bounded; throws Error(Mismatch) on garbage
};

class Peer {  // another process. Lives as long as the mesh.
 public:
  Endpoint endpoint;
  uint32_t index = 0;  // dense, local
  Mapping arena;       // the peer's arena where memory is shared, else empty
  // connected, non-blocking, TCP_NODELAY data sockets, agreed order; owned by the link after take
  std::vector<UniqueFd> data;
  std::atomic<int64_t> last_heard_ns{0};  // monotonic time of the last control message or heartbeat
  std::atomic<bool> lost{false};
  std::string lost_text() const;  // why, once lost
 private:
  friend class Mesh;
  struct State;
  std::shared_ptr<State> state_;
};

class MeshEvents {  // called on the control thread; must be short and must not call back into connect()
 public:
  virtual ~MeshEvents() = default;
  virtual void on_message(Peer &peer, uint16_t type, std::span<const std::byte> body) = 0;
  virtual void on_lost(Peer &peer, const std::string &why) = 0;  // once a peer
  virtual void on_tick() = 0;                                    // every heartbeat interval
};

class Mesh {
 public:
  // Starts listening and the control thread. `arena_fd` is this process's memfd (kept open by the caller), `arena_bytes` its
  // size; the first 64 bytes of the arena are the mesh's (it writes the nonce that peers read back). `route_hint`: host
  // whose route chooses the interface (the rendezvous address); may be empty. Throws Error.
  Mesh(const Settings &settings, MeshEvents &events, int arena_fd, size_t arena_bytes, const std::string &route_hint);
  ~Mesh();  // closes everything, joins the thread; bounded in time
  // Says farewell to the peers and joins the thread: no event comes after it, and nothing is sent. Idempotent; one thread.
  void shut_down() noexcept;
  const Endpoint &self() const noexcept;
  // Job keys of the worlds this process takes part in; connections must prove one of them.
  void add_key(const Bytes16 &key);
  void drop_key(const Bytes16 &key) noexcept;
  // The peer with this endpoint, connected: control connection, shared arena where `want_shared` and the host nominates it
  // (falls back to unshared, with a warning that says why), and `data_streams` TCP data connections where that is > 0 and
  // the peer has none yet. Both sides call it; the smaller process id dials, the other waits. Idempotent. Throws Error
  // naming the peer's host and address at the deadline.
  Peer &connect(const Endpoint &endpoint, const Bytes16 &key, bool want_shared, int data_streams, Deadline deadline);
  // Queues a control message (at most 64 KiB, types below 0xff00); thread-safe, does not block. False where the peer is
  // lost, or where it has not taken 16 MiB of earlier messages.
  bool send(Peer &peer, uint16_t type, std::span<const std::byte> body) noexcept;
  struct Counts {
    int threads, descriptors, peers;
  };
  Counts counts() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
  const Birth birth_;
};

}  // namespace isthmus::bootstrap
