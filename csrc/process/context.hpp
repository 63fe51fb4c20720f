// What a process owns once: the arena, the mesh of control connections, the flight recorder, and one room for each of its tasks. Made by
// the first communicator, gone with the last.
//
//   ranks()     the ranks of this process, by index
//   links()     the links to other processes
//   data_streams()   what their TCP streams are at: lost, tried again, back
//   devices()   streams, registered memory and lent memory of each device
//   staging()   who has the staging memory
//   control()   control messages
//   progress()  the thread for operations without a waiting caller
//   workers()   threads that may call a device's runtime
//   helpers()   threads that help with large sums and copies
//
// Each room has its own file, locks and thread rules. A room knows a rank of a communicator as a LocalRank, and nothing else of
// communicators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/fork.hpp"
#include "base/streaming_copy.hpp"
#include "base/recorder.hpp"
#include "base/settings.hpp"
#include "bootstrap/mesh.hpp"
#include "link/arena.hpp"
#include "process/control_room.hpp"
#include "process/device_workers.hpp"
#include "process/links.hpp"
#include "process/open_devices.hpp"
#include "process/progress.hpp"
#include "process/rank_table.hpp"
#include "process/helpers.hpp"
#include "process/staging_book.hpp"

namespace isthmus::process {

class Context final {
 public:
  // A communicator's lease of the context, from its making to its destruction. When the last lease has ended, the next acquire() makes a new
  // context. The old one may live a moment longer, held by an operation that is over or by one of the context's threads.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease &&) noexcept = default;
    Lease &operator=(Lease &&other) noexcept {
      end();
      context_ = std::move(other.context_);
      return *this;
    }
    ~Lease() { end(); }
    const std::shared_ptr<Context> &context() const noexcept { return context_; }
    // One more, for a communicator that is made from this one's. Error(Aborted): end() was called, maybe by another thread at this moment.
    Lease again() const;
    void end() noexcept;

   private:
    friend class Context;
    explicit Lease(std::shared_ptr<Context> context) noexcept : context_(std::move(context)) {}
    std::shared_ptr<Context> context_;
  };
  // The process's context, made with these settings if there is none in use. Throws Error.
  static Lease acquire(const Settings &settings, const std::string &route_hint);
  static std::shared_ptr<Context> current();  // null if there is none
  Context(const Settings &settings, const std::string &route_hint);
  ~Context();
  Context(const Context &) = delete;
  Context &operator=(const Context &) = delete;

  link::Arena &arena() noexcept { return arena_; }
  bootstrap::Mesh &mesh() noexcept { return *mesh_; }
  Recorder &recorder() noexcept { return recorder_; }
  StepRing *steps() noexcept { return steps_.get(); }  // null: none is noted (ISTHMUS_TRACE)
  int64_t spin_ns() const noexcept { return spin_ns_; }
  Stores stores() const noexcept { return stores_; }  // into memory that other ranks read
  void wake() noexcept { arena_.doorbell().ring(); }  // the threads of this process that sleep for something

  RankTable &ranks() noexcept { return ranks_; }
  Links &links() noexcept { return links_; }
  const DataStreams &data_streams() const noexcept { return data_streams_; }
  OpenDevices &devices() noexcept { return devices_; }
  StagingBook &staging() noexcept { return staging_; }
  ControlRoom &control() noexcept { return control_; }
  Progress &progress() noexcept { return progress_; }
  DeviceWorkers &workers() noexcept { return workers_; }
  Helpers &helpers() noexcept { return helpers_; }

  // Takes a rank out of the rooms. After this no thread of the context is inside the rank on behalf of a link, and no link holds anything
  // of the rank.
  void remove(uint32_t index);

  // This process ends by an error that its program has not caught: `what`. All its communicators fail, on all ranks. Its connections stay
  // until the process has ended, so that the others see its end.
  static void raised(std::string_view what) noexcept;
  // Behind raised(): waits until the others have heard of it, 4 s at most. exit() calls it, once the error has been printed.
  static void await_heard() noexcept;
  // Whether a communicator of this process had failed in the ten seconds before `waited` seconds ago because another rank raised, and whether the process
  // of that rank is there, and was heard in the last five seconds, or in these.
  enum class Raiser { None, There, Gone };
  static Raiser raiser(double waited) noexcept;

  struct Stats {
    int threads, descriptors, peers, links, members;
    int leaving;     // ranks that were destroyed, whose slots peers may still read
    int rings_lost;  // rings to which a device may still write, and that no operation gets until the context ends
    size_t staging_used, staging_limit;
    uint64_t heartbeats;  // heard, of all processes
  };
  Stats stats() const;

 private:
  const Birth birth_;
  Settings settings_;
  int uses_ = 0;  // under the lock of acquire()
  link::Arena arena_;
  Recorder recorder_;
  const std::unique_ptr<StepRing> steps_;
  const int64_t spin_ns_;
  const Stores stores_;
  // Made last, as its thread calls the rooms, and destroyed behind the rooms, as links and devices use the memory of its peers.
  std::unique_ptr<bootstrap::Mesh> mesh_;
  OpenDevices devices_;
  RankTable ranks_;
  Helpers helpers_;
  Links links_;
  DataStreams data_streams_;  // its thread uses links and the mesh, so it goes before them
  StagingBook staging_;
  ControlRoom control_;
  Progress progress_;
  DeviceWorkers workers_;
};

}  // namespace isthmus::process
