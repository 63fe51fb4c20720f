// The control mesh: the connections of one process to its peer processes. The mesh moves opaque messages and knows nothing of
// communicators. A mesh owns the listeners, the handshake, the control connections, liveness, and ONE control thread, which sleeps in
// epoll.
//
// Every connection (control or data, Unix or TCP) starts with a mutual challenge and response that proves the job key
// (net/handshake.hpp). Unauthenticated bytes, half-open connections and their age are bounded (net/gate.hpp). A refused client is logged
// and harms nobody.
//
// Two processes of one host connect by an abstract Unix socket, whose SO_PEERCRED must show our uid. Over the socket each side passes the
// memfd of its arena. Each side reads the header of the other's arena before it maps the arena. Memory counts as shared only when each
// nonce has been read back (mesh_dial.hpp has the messages). A host's identity only nominates: where the peer's socket is not on this
// host, the dialer tries TCP.
//
// How the mesh learns that a peer has died:
//
//   peer on this host                peer on another host                 host of the peer vanishes
//     dies                             dies                                 (says nothing)
//     pidfd is readable                its kernel ends the connection       Heartbeat --> x   no acknowledgement
//     what it said is read             the end is read                      Heartbeat --> x
//     on_lost("... ended")             on_lost("... closed its control        ... the time of 100 heartbeats
//                                      connection ...")                     ETIMEDOUT: on_lost("... is unreachable ...")
//
// The pidfd is of SO_PEERCRED's pid. The kernel of a peer that is merely stopped still acknowledges, so such a peer is not lost, but where
// ISTHMUS_SILENCE_MS says how long a peer may say nothing (silence.hpp): then the peer is told so, for when it goes on, and lost. A heartbeat
// goes out every interval on every connection that has no message waiting, so bytes are always on their way.
//
// A control connection that falls silent while both processes have several addresses is carried over to another one, within that time
// (mesh_carry.cpp). One that ends is no such case: whoever ends a connection has ended, or wants no more of it.
//
// A forked child closes every descriptor in an atfork handler (net/fork_guard.hpp). The child makes a mesh of its own, and must not use the
// mesh of its parent.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
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

// Called now and then by whoever waits. Throws where the wait is in vain.
using Look = std::function<void()>;
inline constexpr int64_t kLookNs = 20'000'000;  // between two calls, about

inline constexpr int kMostStreams = 16;  // data connections of two processes
// In the place of their number: the side that dials opens as many as the way's length asks for (streams_over()), to one address.
inline constexpr int kStreamsByDistance = -1;

// How many data connections two processes are to have.
struct StreamCount {
  constexpr StreamCount(int of) noexcept : count(of) {}  // NOLINT(google-explicit-constructor): of a number alone
  constexpr StreamCount(int of, int at_least) noexcept : count(of), least(at_least) {}
  int count;      // 0: none; or kStreamsByDistance
  int least = 1;  // where the distance decides
};

struct Endpoint {     // how others reach a process. Travels in blobs.
  Bytes16 process{};  // random, one for each process
  Bytes16 host{};     // boot id and network namespace, hashed. Equality only nominates.
  std::string hostname;
  std::string unix_name;         // abstract socket name without the leading NUL
  std::vector<std::string> tcp;  // "address:port", best first; IPv6 as "[..]:port"
  int64_t pid = 0;               // for messages only
  uint32_t delay_us = 0;         // how long the kernel delays an answer at most (net::longest_delay_ns); 0: it does not say
  uint32_t rate = 0;             // of the interface of its first address, in megabits a second; 0: not known
  // How many ways two processes have to each other: the addresses of one family that both have at least; 1 at least. The same from both sides.
  int ways_to(const Endpoint &other) const noexcept;
  std::vector<std::byte> pack() const;
  static Endpoint unpack(std::span<const std::byte> bytes);  // bounded; throws Error(Mismatch) on garbage
};

class Peer {  // another process. Lives as long as the mesh.
 public:
  Endpoint endpoint;
  uint32_t index = 0;  // dense, of this process alone
  int pid = 0;         // as this process sees it; 0: it is on another host, or is not to be seen
  Mapping arena;       // the peer's arena where memory is shared, else empty
  // The data sockets, connected, non-blocking, TCP_NODELAY, in the order that both sides have agreed. A link that takes them owns them.
  std::vector<UniqueFd> data;
  // The shortest round trip of its data connections when they were made, as the kernel saw it; 0: there are none, or it does not say.
  std::atomic<int64_t> round_trip_ns{0};
  Bytes16 token{};                        // that every data connection of the two processes shows
  std::atomic<int64_t> last_heard_ns{0};  // monotonic time of the last control message or heartbeat
  // Since when the process speaks for certain, also where its first heartbeat has not come: it has made a communicator with this one. 0: not yet.
  std::atomic<int64_t> speaks_since_ns{0};
  std::atomic<bool> lost{false};
  // Whoever works with the peer, or with its memory, holds a copy. A peer that is lost and that nobody holds is let go of.
  const std::shared_ptr<const void> hold = std::make_shared<char>();
  std::atomic<bool> pinned{false};  // a device knows its memory, so the memory stays
  std::shared_ptr<const void>
  take_hold();                    // who looks behind this and finds the peer not lost has it for as long as the copy lives
  std::string lost_text() const;  // why, once lost
  bool said_farewell() const;     // once lost: it shut Isthmus down, as a process does that gives up or ends well
  // Once lost: the process has ended or shut Isthmus down, and not merely the way to it. A peer of another host counts as ended where it has
  // closed the connection in order, and not where the connection was reset.
  bool surely_ended() const;
  // Once lost: nobody has closed the connection, but nothing comes through any more. The process may live.
  bool is_unreachable() const;
  // Whether it may yet turn out that the process has ended: it is not lost, or its end is still watched.
  bool end_may_come() const;
  // Once lost: the kernel of this host takes the process apart. That lasts where the process had much memory, or a device.
  bool is_ending() const;

 private:
  friend class Mesh;
  struct State;
  std::shared_ptr<State> state_;
  std::atomic<uint32_t> fenced_{0};
};

class MeshEvents {  // called on the control thread: each call must be short, and must not call connect()
 public:
  virtual ~MeshEvents() = default;
  virtual void on_message(Peer &peer, uint16_t type, std::span<const std::byte> body) = 0;
  // Once for each peer, and once more where it turns out later that the process has ended.
  virtual void on_lost(Peer &peer, const std::string &why) = 0;
  virtual void on_tick() = 0;  // every heartbeat interval
  // A data stream, which the peer has connected again (connect_again).
  virtual void on_stream(Peer &peer, uint32_t stream, uint32_t generation, UniqueFd socket) = 0;
};

enum class Goes : uint8_t { AtOnce, Along };  // a control message

class Mesh {
 public:
  // Starts to listen, and starts the control thread. `arena_fd` is this process's memfd, which the caller keeps open; `arena_bytes` is its
  // size. The first 64 bytes of the arena are the mesh's: the mesh writes the nonce there that peers read back. `route_hint`: the host
  // whose route chooses the interface (the rendezvous address); may be empty. Throws Error.
  Mesh(const Settings &settings, MeshEvents &events, int arena_fd, size_t arena_bytes, const std::string &route_hint);
  ~Mesh();  // closes everything and joins the thread, in bounded time
  // Says farewell to the peers and joins the thread. Afterwards no event comes and nothing is sent. Idempotent; one thread calls it.
  void shut_down() noexcept;
  // Waits until the peers on other hosts, or their kernels, have what this process has said so far: at most 4 s. Any thread.
  void await_heard() noexcept;
  const Endpoint &self() const noexcept;
  // The job keys of the worlds in which this process takes part. A connection must prove one of them.
  void add_key(const Bytes16 &key);
  void drop_key(const Bytes16 &key) noexcept;
  bool has_key(const Bytes16 &key) const noexcept;
  // The peer with this endpoint, connected by:
  //   - the control connection;
  //   - the shared arena, where `want_shared` and the host nominates the peer. Where that fails, a warning says why, and memory is unshared;
  //   - `data_streams` TCP data connections, where the peer has none yet. 0: none. kStreamsByDistance: as the side that dials has it.
  // Both sides call connect(). The side with the smaller process id dials, and the other waits. Idempotent. Any thread; where another one connects
  // with that process, this one waits for it. Throws Error that names the peer's host and address at the deadline. `look` is asked every 20 ms
  // while the other side has not come.
  Peer &connect(const Endpoint &endpoint, const Bytes16 &key, bool want_shared, StreamCount data_streams, Deadline deadline,
                const Look &look = {});
  // Whether connect() would dial this process: the other side waits, and there is no connection yet; `data`: or there are no data connections yet.
  bool must_dial(const Endpoint &endpoint, bool data) const;
  // Whether all that had come until then on control connections, and the end of every process that had ended, has been given to the events. Where that
  // time is over and it has not, the control thread is woken: ask again. Any thread.
  bool has_heard(int64_t until_ns) const noexcept;
  // The side that dials connects a data stream again, at the address where the stream was connected before. The peer's side gets on_stream().
  // `generation` counts the stream's connections. Blocks until the deadline. Throws Error.
  bool dials(const Peer &peer) const noexcept;
  UniqueFd connect_again(Peer &peer, const Bytes16 &key, uint32_t stream, uint32_t generation, Deadline deadline);
  // Whether the control connection of a peer has fallen silent, and this process is to carry it over to another address. Control thread.
  bool to_carry_over(const Peer &peer) const noexcept;
  // Reaches the peer at whichever of its addresses answers, and carries the control connection over there. Nothing is lost, and nothing comes
  // twice. Blocks until the deadline. Throws Error where no address answers.
  void carry_over(Peer &peer, const Bytes16 &key, Deadline deadline);
  // Queues a control message of at most 64 KiB and a type below 0xff00. Thread-safe. Does not block. False: the peer is lost, or has not
  // taken 16 MiB of earlier messages. `goes` along: with the next message to that peer, at the latest with the next heartbeat, so that the
  // two processes have no work with it alone. Messages keep their order.
  bool send(Peer &peer, uint16_t type, std::span<const std::byte> body, Goes goes = Goes::AtOnce) noexcept;
  // Gives back what this process keeps of peers that are gone, that nobody holds, and that cannot come to this process's memory any more.
  // `rest(peer)`: what the caller keeps; true once that is done. Control thread only.
  void let_go_of_the_gone(const std::function<bool(Peer &)> &rest);
  struct Counts {
    int threads, descriptors, peers;
    uint64_t heartbeats;  // heard, of all peers
  };
  Counts counts() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
  const Birth birth_;
};

}  // namespace isthmus::bootstrap
