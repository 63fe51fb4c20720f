// Control messages sent and taken (control_wire.hpp), and what the control thread hears of other processes.
//
// A body that does not fit is dropped: its sender has proved the job key, so the sender can only be of another version, which the handshake
// refuses.
//
// A question and its answer:
//
//   asking process                        asked process
//   ask(): sends Query with a number      control thread: answer_query(), sends Reply
//   answered(): waits, while heartbeats still come
//   control thread: keeps the answer
//   answered(): takes the answer of its number
//
// Thread rules. Any thread may send and ask. The functions of MeshEvents are the control thread's, and end soon.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/doorbell.hpp"
#include "base/lock.hpp"
#include "bootstrap/mesh.hpp"
#include "process/control_wire.hpp"
#include "process/failure.hpp"
#include "process/links.hpp"
#include "process/rank_table.hpp"

namespace isthmus::process {

class ControlRoom final : public bootstrap::MeshEvents {
 public:
  // `bell` wakes the threads that wait for what a message brings.
  ControlRoom(Doorbell &bell, RankTable &ranks, Links &links, DataStreams &streams, int64_t heartbeat_ns);
  void begin(bootstrap::Mesh &mesh) noexcept {
    mesh_.store(&mesh, std::memory_order_release);
  }  // before the first message is sent

  // Sends a control message. peer null: this process, delivered at once. False: the message cannot be sent (Mesh::send).
  bool tell(bootstrap::Peer *peer, Control type, std::span<const std::byte> body,
            bootstrap::Goes goes = bootstrap::Goes::AtOnce) noexcept;
  // Tells the process of a rank that this rank fails. The communicator has the index `their_index` there.
  bool tell_failure(bootstrap::Peer *peer, uint32_t their_index, uint32_t epoch, const Failure &why) noexcept;
  // Asks the process of a rank what the rank of index `their_index` does. The answer comes later, so that several processes can be asked before the
  // first answer is waited for.
  class Inquiry {
   public:
    Inquiry(Inquiry &&of) noexcept
        : by_(std::exchange(of.by_, nullptr)), peer_(of.peer_), number_(of.number_), own_(of.own_) {}
    ~Inquiry() {
      if (by_ && number_ != 0) by_->forget(number_);
    }
    // False: no answer within `ms`. While heartbeats of that process still come, the wait goes on until `patience` ends: a process that is merely
    // late is not taken for stopped.
    bool answered(int ms, Deadline patience, Answer &answer);

   private:
    friend class ControlRoom;
    Inquiry(ControlRoom &by, bootstrap::Peer *peer) : by_(&by), peer_(peer) {}
    ControlRoom *by_;
    bootstrap::Peer *peer_;
    uint64_t number_ = 0;        // 0: it was not sent
    std::optional<Answer> own_;  // of this process
  };
  Inquiry ask(bootstrap::Peer *peer, uint32_t their_index, uint32_t epoch, const RankQuestion &question);

  // Whether what had come until then from other processes has been taken (Mesh::has_heard).
  bool has_heard(int64_t until_ns) const noexcept {
    const bootstrap::Mesh *const mesh = mesh_.load(std::memory_order_acquire);
    return mesh ? mesh->has_heard(until_ns) : now_ns() >= until_ns;
  }

  void on_message(bootstrap::Peer &peer, uint16_t type, std::span<const std::byte> body) override;
  void on_lost(bootstrap::Peer &peer, const std::string &why) override;
  void on_tick() override;
  void on_stream(bootstrap::Peer &peer, uint32_t stream, uint32_t generation, UniqueFd socket) override;

 private:
  void take_abort(std::span<const std::byte> body);
  void take_credit(std::span<const std::byte> body);
  void take_leave(std::span<const std::byte> body);
  void take_out_of_band(std::span<const std::byte> body);
  void take_agree(std::span<const std::byte> body);
  void take(Control type, std::span<const std::byte> body);  // what a rank of this process is told
  Answer answer_query(uint32_t index, uint32_t epoch, const RankQuestion &question) const;
  bool await(bootstrap::Peer &peer, uint64_t number, int ms, Deadline patience, Answer &answer);
  void forget(uint64_t number);

  Doorbell &bell_;
  RankTable &ranks_;
  Links &links_;
  DataStreams &data_streams_;
  const int64_t silent_ns_;
  std::atomic<bootstrap::Mesh *> mesh_{nullptr};
  std::atomic<int64_t> ticked_ns_{0};  // when the control thread had last read what had come
  Mutex mutex_;
  Condition answered_;
  uint64_t next_ ISTHMUS_GUARDED_BY(mutex_) = 0;                                    // the number of the last question
  std::map<uint64_t, std::optional<Answer>> questions_ ISTHMUS_GUARDED_BY(mutex_);  // by number: those that are asked now
};

}  // namespace isthmus::process
