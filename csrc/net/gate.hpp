// The gate: listeners, and the clients that are inside the handshake. A client that comes out of the gate has proved a key.
//
//   listener --accept--> client: Hello ... Proof --a key fits--> Guest, to the owner
//                          |           |
//                          |           +--no key fits--> parked (UnknownKey::Wait) until add_key() or the deadline
//                          +--malformed, late, left--> refused, logged
//
// Clients, bytes and time are bounded (net/protocol.hpp). Where the gate is full, newcomers wait in the kernel's queue. A refused client
// is logged and harms nobody: the log has the first few refusals, then one line a second. The gate has an epoll set of its own, and the
// owner adds the set's descriptor to the owner's loop.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>

#include "base/lock.hpp"
#include "net/fork_guard.hpp"
#include "net/handshake.hpp"

namespace isthmus::net {

struct Guest {  // a client that has proved `key`
  UniqueFd fd;
  Hello hello;  // hello.version may differ from ours: the client has been told so, and the owner decides
  Bytes16 key{};
  bool local = false;  // the client came by a Unix socket, and belongs to our user
  std::string from;    // for messages
};

class Gate {
 public:
  // What the gate does with a proof that fits no key. Refuse: at once. Wait: the client is parked until a later add_key() or the
  // handshake's deadline, because a peer may have learnt a new world's key a moment before us.
  enum class UnknownKey { Refuse, Wait };

  Gate(const Bytes16 &process, UnknownKey policy);
  void add_listener(UniqueFd fd);  // owner's thread
  // Any thread. Keys are counted: each add needs its drop. The caller wakes the owner after an add, and service() looks again.
  void add_key(const Bytes16 &key);
  void drop_key(const Bytes16 &key) noexcept;
  bool has_key(const Bytes16 &key) const noexcept;
  // Before the first client. A gate with very many keys finds the one that a hello means, and tries no other. Empty: no key is meant.
  using KeyOf = std::function<std::optional<Bytes16>(const Hello &)>;
  void find_keys(KeyOf key_of) { key_of_ = std::move(key_of); }
  void set_job(const Bytes16 &job) { job_ = job; }  // before the first client; a refused client is told the job
  int fd() const noexcept { return epoll_.get(); }  // readable when service() has work
  int64_t next_deadline_ns() const noexcept;        // when service() must run at the latest; INT64_MAX: never
  void service(std::vector<Guest> &guests);         // owner's thread; never blocks
  size_t half_open() const noexcept { return clients_.size(); }
  int descriptors() const noexcept { return descriptors_.load(std::memory_order_relaxed); }
  uint64_t refused() const noexcept { return refused_; }
  const std::string &last_refused() const noexcept {
    return last_refused_;
  }  // "10.0.0.7:5123: it did not prove the job key"
  // The address of the last client without the job key that said it was this rank of a rendezvous. Such a client may be anybody. Empty:
  // there was none.
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
  bool advance(Client &client, std::vector<Guest> &guests);  // false: the client is out of the gate, as a guest or refused
  std::vector<Bytes16> keys_for(const Hello &hello);
  bool prove(Client &client, std::vector<Guest> &guests);
  void refuse(const std::string &from, const std::string &why);
  void warn(const std::string &text, bool at_once);  // in the log; not at once: at most one line a second
  void listen(bool on);

  const Bytes16 process_;
  const UnknownKey policy_;
  GuardedFd epoll_;
  std::vector<UniqueFd> listeners_;
  bool listening_ = true;
  int64_t resume_ns_ = 0;               // the gate does not listen until then: accept() had no descriptors; 0: no such pause
  std::map<uint64_t, Client> clients_;  // by number, which is the client's epoll data
  uint64_t next_client_ = 1'000'000;    // above every listener's number
  mutable Mutex keys_mutex_;
  std::vector<Bytes16> keys_ ISTHMUS_GUARDED_BY(keys_mutex_);
  std::atomic<bool> keys_changed_{false};
  KeyOf key_of_;  // empty: the keys are those of add_key()
  std::atomic<int> descriptors_{0};
  Bytes16 job_{};
  std::map<uint32_t, std::string> keyless_;  // at most kMostKeyless
  uint64_t refused_ = 0;
  std::string last_refused_;
  int64_t next_log_ns_ = 0;
  uint64_t unlogged_ = 0;
};

}  // namespace isthmus::net
