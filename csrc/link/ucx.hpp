// The UCX link: frames as active messages of UCX between two processes, over the fastest transport that both have (RDMA, shared memory,
// TCP). UCX is found at run time (link/ucx_library.hpp).
//
// Payloads pass memory of the link's own, which is registered with the devices once: UCX may go on reading or writing for as long as a peer
// is slow, and an operation that is cancelled must have its buffers back at once. A piece of a large frame is fetched by the receiver when
// it has a place for it; what is small goes along with its header.
//
//   sending process                                      receiving process
//     post(), any thread: the frame waits in a queue
//     with the turn, progress():
//       copies a piece, ucp_am_send_nbx        -------->    arrived(): notes it, by its number
//                                                           with the turn, progress():
//                                                             small: the data are there
//                                              <========      large: fetches the piece into a place of the link's
//                                                             the next by number: sink.accept(), copies it out, sink.received()
//       UCX is done with a piece: its place is free; with the last one: finish()
//
// A link is of use once the hello of its peer has come: await that before the first post().
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "link/frame.hpp"
#include "link/ucx_worker.hpp"

namespace isthmus::link {

// What the two ends of a link know each other by: 16 bytes of each process, random, that only processes of its jobs know.
struct UcxPair {
  std::span<const uint8_t, 16> mine, theirs;
};

class UcxLink final : public Link, private UcxReceiver {
 public:
  static constexpr size_t kMostMemory = 2 << 20, kLeastMemory = 256 << 10;

  // `address`: of the peer's worker. `memory`: kLeastMemory to kMostMemory bytes, a power of two, for pieces that come and go. `worker` and
  // `memory` outlive the link. Throws Error(Unsupported): UCX has no way to the peer.
  UcxLink(UcxWorker &worker, std::span<const std::byte> address, const UcxPair &pair, std::span<std::byte> memory);
  ~UcxLink() override;
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  Left left() const noexcept override {
    return {!queue_.empty() || in_work_.load(std::memory_order_acquire) != 0,
            static_cast<int64_t>(bytes_sent.load(std::memory_order_relaxed))};
  }
  int64_t descriptors(std::vector<pollfd> &fds) const override;
  void before_sleep() override;
  const char *name() const noexcept override { return "ucx"; }

  bool ready() const noexcept { return greeted_.load(std::memory_order_acquire); }  // the peer's hello has come
  std::string trouble() const;  // why the link is dead; empty: it is not. With the turn

 private:
  struct State;
  struct SendPlace;
  struct FetchPlace;
  struct UcxArrival;
  class Arrivals;

  ucx_abi::Status arrived(const UcxHeader &header, std::span<const std::byte> rest, void *data, size_t bytes,
                          uint64_t attributes) override;
  void greeted(uint64_t piece) override {  // the two ends may have places of unlike sizes
    if (piece < piece_) cut_.store(std::max<uint64_t>(piece, 4096), std::memory_order_relaxed);
    greeted_.store(true, std::memory_order_release);
  }
  void send(SendPlace &place, unsigned id, size_t header_bytes, size_t bytes, uint32_t flags);
  static void sent(SendPlace &place, ucx_abi::Status status);
  bool push();
  void push_piece(Outgoing &out, SendPlace &place);
  bool pull(FrameSink &sink);
  void fetch();
  bool bring(UcxArrival &arrival, FrameSink &sink);
  void die();

  UcxWorker &worker_;
  const size_t piece_;       // bytes of a place
  std::atomic<size_t> cut_;  // bytes of a piece that is sent: no more than the peer's places hold
  const uint64_t token_out_, token_in_;
  OutQueue queue_, unsent_;  // unsent_: what UCX had in work when the link died
  std::shared_ptr<State> state_;
  std::atomic<bool> greeted_{false}, dead_{false};
  std::atomic<bool> deferred_{false};  // the sink has deferred the frame that is next; read by sleepers
  std::atomic<bool> to_read_{false};   // something has come that no progress() has looked at; read by sleepers
  std::atomic<bool> watched_{false};   // a sleeper will hear of what comes
  std::atomic<uint32_t> in_work_{0};   // pieces that UCX has
};

}  // namespace isthmus::link
