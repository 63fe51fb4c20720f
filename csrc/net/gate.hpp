// The gate: listeners and the clients that are inside the handshake. Whoever comes out has proved a key. Bounded in clients,
// bytes and time; refused clients are logged (a few, then one a second) and harm nobody: where the gate is full, newcomers
// wait in the kernel's queue. Sleeps in its own epoll set, whose descriptor the owner adds to its loop.
#pragma once

#include <atomic>
#include <map>

#include "base/lock.hpp"
#include "net/fork_guard.hpp"
#include "net/handshake.hpp"

namespace isthmus::net {

struct Guest {  // a client that has proved `key`
  UniqueFd fd;
  Hello hello;  // hello.version may differ from ours: the client has been told, the owner decides
  Bytes16 key{};
  bool local = false;  // came by a Unix socket, and belongs to our user
  std::string from;    // for messages
};

class Gate {
 public:
  // What a proof that fits no key means: Refuse at once, or Wait for a later add_key until the handshake's deadline (a peer
  // may have learnt a new world's key a moment before us).
  enum class UnknownKey { Refuse, Wait };

  Gate(const Bytes16 &process, UnknownKey policy);
  void add_listener(UniqueFd fd);  // owner's thread
  // any thread; counted, so each add needs its drop. Wake the owner: service() looks again.
  void add_key(const Bytes16 &key);
  void drop_key(const Bytes16 &key) noexcept;
  void set_job(const Bytes16 &job) { job_ = job; }  // before the first client: what a refused one is told
  int fd() const noexcept { return epoll_.get(); }  // readable when service() has work
  int64_t next_deadline_ns() const noexcept;        // when service() must run at the latest; INT64_MAX: never
  void service(std::vector<Guest> &guests);         // owner's thread; never blocks
  size_t half_open() const noexcept { return clients_.size(); }
  int descriptors() const noexcept { return descriptors_.load(std::memory_order_relaxed); }
  uint64_t refused() const noexcept { return refused_; }
  const std::string &last_refused() const noexcept {
    return last_refused_;
  }  // "10.0.0.7:5123: it did not prove the job key"
  // Where the last client came from that said it was this rank of a rendezvous and did not prove the job key; empty: there was none. It
  // may be anybody.
  std::string keyless(uint32_t rank) const {
    const auto at = keyless_.find(rank);
    return at == keyless_.end() ? std::string() : at->second;
  }

 private:
  struct Client {
    UniqueFd fd;
    Acceptor acceptor;
    Deadline deadline;
    std::string from;
    bool local;
    std::array<std::byte, kHelloBytes> buffer{};
    size_t have = 0;
  };
  void accept_some();
  bool advance(Client &client, std::vector<Guest> &guests);  // false: out of the gate, one way or the other
  bool prove(Client &client, std::vector<Guest> &guests);
  void refuse(const std::string &from, const std::string &why);
  void listen(bool on);

  const Bytes16 process_;
  const UnknownKey policy_;
  GuardedFd epoll_;
  std::vector<UniqueFd> listeners_;
  bool listening_ = true;
  int64_t resume_ns_ = 0;               // not listening until then: accept() failed for want of descriptors
  std::map<uint64_t, Client> clients_;  // by number; a client's epoll data
  uint64_t next_client_ = 1'000'000;    // above every listener's number
  Mutex keys_mutex_;
  std::vector<Bytes16> keys_ ISTHMUS_GUARDED_BY(keys_mutex_);
  std::atomic<bool> keys_changed_{false};
  std::atomic<int> descriptors_{0};
  Bytes16 job_{};
  std::map<uint32_t, std::string> keyless_;  // at most kMostKeyless
  uint64_t refused_ = 0;
  std::string last_refused_;
  int64_t next_log_ns_ = 0;
  uint64_t unlogged_ = 0;
};

}  // namespace isthmus::net
