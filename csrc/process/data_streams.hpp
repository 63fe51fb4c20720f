// The data streams of the TCP links: which were lost and which are back, as the log says it, and the thread that connects lost ones again.
//
//   a link loses a stream                the control thread, at its next tick
//                                          look(): says so in the log
//                                          on the side that dials: wakes the thread
//   the thread: connects it, offer()     came(): the other side, told by the mesh: offer()
//   whoever drives the links takes up the offer
//
// The thread begins with the first stream that is lost, and then lives as long as the links. It sleeps while all streams are well.
//
// Thread rules. Any thread may call; end() is the last call.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/doorbell.hpp"
#include "base/lock.hpp"
#include "bootstrap/mesh.hpp"
#include "link/tcp.hpp"
#include "net/socket.hpp"

namespace isthmus::process {

class DataStreams {
 public:
  explicit DataStreams(Doorbell &bell) noexcept : bell_(bell) {}  // wakes whoever sleeps on links
  ~DataStreams() { end(); }

  void begin(bootstrap::Mesh &mesh) noexcept { mesh_ = &mesh; }
  void add(bootstrap::Peer &peer, link::TcpLink &link);  // the link outlives end()
  // A key of a communicator with that peer, for streams that are connected again.
  void use_key(const bootstrap::Peer &peer, const bootstrap::Bytes16 &key);
  bool let_go(const bootstrap::Peer
                  &peer);  // it is lost, and nobody has its link any more. False: later, it is being dialed just now
  void look() noexcept;
  void came(bootstrap::Peer &peer, uint32_t stream, uint32_t generation, UniqueFd socket);
  void end() noexcept;  // waits for an attempt that is under way, at most kAttemptSeconds
  bool stopped() const noexcept;
  int threads() const noexcept;

  struct OfPeer {
    const bootstrap::Peer *peer;
    std::vector<link::StreamReport> streams;
    std::vector<net::Traffic> connections;  // that there are, in the order of the streams
  };
  std::vector<OfPeer> report() const;
  bool several() const;  // some link has more than one

 private:
  static constexpr double kAttemptSeconds = 1;
  struct WatchedLink {
    bootstrap::Peer *peer;
    link::TcpLink *link;
    std::vector<bootstrap::Bytes16> keys{};  // of communicators with the peer; the mesh knows which live
    std::vector<link::StreamReport> told{};  // as the log has it
    bool wanted = false;                     // some streams are to be connected again
    bool silent = false;                     // the control connection is to be carried over
    bool dialed = false;                     // just now, without the lock
  };
  // True: the thread has something to do. `news`: what the log is to say.
  bool look(WatchedLink &w, std::vector<std::string> &news) ISTHMUS_REQUIRES(mutex_);
  void loop() noexcept;
  void carry_over(const WatchedLink &w);
  bool dial(const WatchedLink &w);  // false: the link has all its streams, or needs none any more

  Doorbell &bell_;
  bootstrap::Mesh *mesh_ = nullptr;
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<std::unique_ptr<WatchedLink>> links_ ISTHMUS_GUARDED_BY(mutex_);  // append only
  bool stop_ ISTHMUS_GUARDED_BY(mutex_) = false;
  std::thread thread_ ISTHMUS_GUARDED_BY(mutex_);
};

}  // namespace isthmus::process
