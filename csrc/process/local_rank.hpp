// One rank of this process in one communicator, as the process sees the rank. The process knows nothing else of a communicator.
//
// A process has several threads, and each knows a rank by one side:
//
//   FrameReceiver    the thread that has a link's turn: frames that came for the rank, and the links that the rank uses
//   ControlReceiver  the control thread: control messages, lost processes, questions of other processes
//   Drivable         the progress thread: operations for which no caller waits
//   DeviceWork       the device workers: calls of the device's runtime
//
// LocalRank is all four, with the names of the rank and its part of the staging memory. RankPort (rank/rank_port.hpp) implements LocalRank.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "bootstrap/mesh.hpp"
#include "device/runtime.hpp"
#include "link/frame.hpp"
#include "process/control_wire.hpp"
#include "process/failure.hpp"

namespace isthmus::process {

// How a rank reaches another rank of its communicator.
struct PathTo {
  bootstrap::Peer *process;  // null: a rank of this process
  link::Link *link;          // for frames; null: none is needed
  uint32_t their_index;      // the communicator's index in that process
};

// As link::FrameSink, for one rank.
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;
  virtual link::Accept accept_frame(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) = 0;
  virtual void received_frame(const link::FrameHeader &h) = 0;
  // The link broke a while ago, and its process has neither left nor died. Any thread.
  virtual void link_broken(const link::Link *link, const std::string &why) noexcept = 0;
  virtual PathTo path_to(int rank) const noexcept = 0;
};

class ControlReceiver {
 public:
  virtual ~ControlReceiver() = default;
  // Bodies of control_wire.hpp. `rank` is the sender; a rank that the communicator does not have is ignored.
  virtual void credit(uint32_t rank, uint64_t granted) noexcept = 0;
  virtual void peer_left(uint32_t rank, uint64_t done, uint64_t sent, Leaving how) noexcept = 0;
  virtual void peer_ends_library(uint32_t rank, Leaving how) noexcept = 0;  // is_of_library(how)
  virtual void came_out_of_band(const OutOfBandHead &head, std::span<const std::byte> bytes) = 0;
  virtual void withdrawn_out_of_band(uint32_t rank, uint64_t number) = 0;
  virtual void came_of_agreement(const AgreeHead &head, std::span<const std::byte> ranks) = 0;
  virtual void peer_lost(bootstrap::Peer &process, const std::string &why) noexcept = 0;
  // The communicator fails on this rank. The first failure counts. Any thread.
  virtual void fail(Failure why, Tell whom) noexcept = 0;
  // The program has not caught the error `what`. `first`: the error does not follow from the error of another rank.
  virtual void raised(std::string_view what, bool first) noexcept = 0;
  virtual Failure why() const = 0;  // code Ok: the communicator has not failed
  virtual Answer answer(const RankQuestion &question) const noexcept = 0;
  virtual std::string inside_text() const = 0;   // the vendor's call in which a thread gives the device work, or empty
  virtual std::string waiting_text() const = 0;  // "#3 all_reduce (...) of 'world', waiting for rank 2", or empty
};

// The links that a thread moves. A thread that is about to poll the sockets hears from them, and leaves out the links over sockets.
enum class LookAt : uint8_t { AllLinks, AllButSockets };

class Drivable {
 public:
  virtual ~Drivable() = default;
  virtual bool has_work() const noexcept = 0;     // operations that are not over
  virtual uint32_t waiters() const noexcept = 0;  // callers that wait, and drive the rank meanwhile
  // One non-blocking try to move the operations and the links. True if something moved.
  virtual bool drive(LookAt links) noexcept = 0;
  virtual int64_t check_deadlines(int64_t now) noexcept = 0;  // ends what is late
  virtual bool polls_device() const noexcept = 0;             // the rank waits for a device, which wakes no thread
  // A device signals without waking a thread, so a thread that waits for a device looks again after a part of the time that the thread has
  // waited: a sixteenth, or where processors are to spare a sixty-fourth. So the thread is late by little, and a long wait is cheap. A shorter
  // nap than the shortest would be a spin: to sleep and wake takes some microseconds. The longest nap makes up for the many short ones before
  // it, so that a second's wait takes no more looks where processors are to spare.
  static int64_t device_nap(int64_t waited_ns, bool spare) noexcept {
    return spare ? std::clamp<int64_t>(waited_ns / 64, 5'000, 300'000)
                 : std::clamp<int64_t>(waited_ns / 16, 30'000, 200'000);
  }

 private:
  friend class Progress;
  std::atomic<bool> active_{false};  // listed with the progress thread
};

class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  virtual device::Runtime *runtime() const noexcept = 0;  // of the device that the rank works on, or null
  virtual int device() const noexcept = 0;
  // Submits the copies of messages that no other thread submits. True: some copies wait for pinned memory, so the worker calls again.
  virtual bool carry_messages() noexcept = 0;
  virtual void look_at_device() noexcept = 0;  // whether the device has failed; does nothing where no thread has asked
  virtual void stop_stream() noexcept = 0;     // by the worker that stops streams
};

class LocalRank : public FrameReceiver, public ControlReceiver, public Drivable, public DeviceWork {
 public:
  virtual int rank() const noexcept = 0;
  virtual int world() const noexcept = 0;
  virtual uint32_t index() const noexcept = 0;  // of the communicator in this process
  virtual uint32_t epoch() const noexcept = 0;  // tells communicators of one index apart
  virtual std::weak_ptr<LocalRank> itself() noexcept = 0;
  // Of the staging memory. Any thread.
  virtual bool give_idle_staging() noexcept = 0;       // gives back what no operation of the rank has; false: nothing
  virtual bool has_lent_staging() const noexcept = 0;  // operations have some, which they will give back
};

}  // namespace isthmus::process
