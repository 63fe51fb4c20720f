// The UCX worker of a process, which all its UCX links share: one thread at a time is inside of UCX, and has the worker's turn.
//
// What comes for a link is handed to the link by arrived(), with the worker's turn. The link keeps it until a thread has the link's own turn
// (link/frame.hpp).
//
//   thread A, has the turn of link 1           thread B, sleeps on fd()
//     try_turn() of the worker                   before: watch() arms fd()
//     progress(): a frame for link 1,
//                 a frame for link 2             fd() is readable, as thread A has signalled it: what A has taken
//     end_turn()                                 out of UCX no longer makes fd() readable
//     link 1 reads its frame                     link 2 reads its frame
//
// A thread whose try_turn() fails goes on with something else: the thread that has the turn will be through soon, and signals sleepers.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "link/ucx_library.hpp"

namespace isthmus::link {

// At the front of each active message.
struct UcxHeader {
  uint64_t token = 0;  // of the link: what the receiver expects from that peer alone (Ucx::token)
  uint64_t number =
      0;  // of the message on its link. UCX does not promise the order of active messages. Of a hello: the sender's pieces, in bytes
};

class UcxReceiver {
 public:
  virtual ~UcxReceiver() = default;
  // With the worker's turn. Returns what UCX is to be told of the data (ucx_abi::OnArrival).
  virtual ucx_abi::Status arrived(const UcxHeader &header, std::span<const std::byte> rest, void *data, size_t bytes,
                                  uint64_t attributes) = 0;
  virtual void greeted(uint64_t piece) = 0;  // the peer's link is there, and takes pieces of so many bytes
};

class UcxWorker {
 public:
  static constexpr unsigned kData = 0, kHello = 1;  // ids of active messages

  UcxWorker();  // throws Error(Unsupported)
  ~UcxWorker();
  UcxWorker(const UcxWorker &) = delete;
  UcxWorker &operator=(const UcxWorker &) = delete;

  const UcxLibrary &ucx() const noexcept { return ucx_; }
  const std::vector<std::byte> &address() const noexcept { return address_; }  // what peers need to reach this worker
  int fd() const noexcept { return fd_; }  // readable when progress() may find something; see watch()

  bool try_turn() noexcept { return !turn_.test_and_set(std::memory_order_acquire); }
  void end_turn() noexcept { turn_.clear(std::memory_order_release); }
  // The turn, after a wait that is bounded by one progress().
  class Hold {
   public:
    explicit Hold(UcxWorker &worker) noexcept;
    ~Hold() { worker_.end_turn(); }
    Hold(const Hold &) = delete;
    Hold &operator=(const Hold &) = delete;

   private:
    UcxWorker &worker_;
  };

  // ---- with the turn
  ucx_abi::Worker worker() const noexcept { return worker_; }
  bool progress() noexcept;  // true: something has happened
  // The calling thread is about to sleep on fd(). False: something has happened already, so it must not.
  bool watch() noexcept;
  void attach(uint64_t token, UcxReceiver &receiver);
  void detach(uint64_t token) noexcept;
  ucx_abi::Memory map(std::span<std::byte> memory);  // registers it with the devices. Throws Error(Resource)
  void unmap(ucx_abi::Memory memory) noexcept;
  // What UCX may still touch: it is destroyed once UCX' worker is gone.
  void leave(std::shared_ptr<void> leftover) { leftovers_.push_back(std::move(leftover)); }

 private:
  static ucx_abi::Status on_data(void *self, const void *header, size_t header_bytes, void *data, size_t bytes,
                                 const ucx_abi::ArrivalParams *params);
  static ucx_abi::Status on_hello(void *self, const void *header, size_t header_bytes, void *data, size_t bytes,
                                  const ucx_abi::ArrivalParams *params);
  void make_worker();

  const UcxLibrary &ucx_;
  ucx_abi::Context context_ = nullptr;
  ucx_abi::Worker worker_ = nullptr;
  int fd_ = -1;  // UCX' own
  std::vector<std::byte> address_;
  std::atomic_flag turn_;
  // With the turn.
  std::map<uint64_t, UcxReceiver *> receivers_;  // by token
  std::map<uint64_t, uint64_t> early_;  // hellos that came before their links were made: token, and the peer's pieces
  std::vector<std::shared_ptr<void>> leftovers_;
  const void *watcher_ = nullptr;  // the thread that may sleep on fd(), and has not been signalled
};

}  // namespace isthmus::link
