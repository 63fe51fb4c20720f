// How a device's stream comes to its end: by running all that was submitted, or after a failure. After a failure nothing more begins, and all
// gates open; what the library or the device does not end is left behind.
//
//   who drives                                 stream, or the library's thread
//                                              stands at a gate, in a copy or in a call of the library
//   abort(): cancels; the library aborts
//            |                                 the library's call ends, where the library can end the call
//   abort(): opens all gates       -------->   runs what is left: cancelled copies are skipped
//   settled(): false
//            |                                 signals the last operation's end
//   settled(): true                <--------
//
//   or, where no such signal comes in time:
//   wants_stop(): only stopping the stream helps (StreamStop); then died()
//   settled(): true, when patience is over: thread and queue are left behind, with all that they use
#pragma once

#include <atomic>
#include <cstdint>

#include "base/seen_time.hpp"
#include "collective/queued_work.hpp"

namespace isthmus::collective {

class DeviceEnding {
 public:
  explicit DeviceEnding(QueuedWork &work) noexcept : work_(work) {}
  void watch(
      bool
          endless) noexcept;  // before the first submission. `endless`: the library has no call that ends what waits on its stream

  // By the thread that submits: before an operation's list is begun, and when the list is about to be given to the stream.
  void begin(uint64_t bytes) noexcept;
  void submits(uint64_t sequence) noexcept { last_.store(sequence); }
  void exchanges(uint64_t ticket) noexcept { exchanges_.store(ticket); }  // the same of messages
  void unfinished() noexcept { unfinished_.store(true); }  // the end of what was submitted cannot be signalled

  // The stream has run to the end of what was submitted.
  bool idle() const noexcept { return (has_ended() && !unfinished_.load()) || dead_.load(std::memory_order_acquire); }
  // All that was submitted has ended on a device that works, and nothing was left behind.
  bool quiet() const noexcept {
    return has_ended() && !unfinished_.load() && !left_behind_.load() && !dead_.load(std::memory_order_acquire);
  }
  bool library_aborted() const noexcept { return library_aborted_.load(); }
  bool stopped() const noexcept { return work_.stream->cuts() != cuts_.load(); }  // the stream, with work of ours

  // After abort() nothing more is begun, and no gate holds as soon as the library keeps to that too. So abort() is called again until settled(),
  // which says whether nothing of ours runs on the stream any more. After some time settled() gives up: a thread that is stuck in the library is
  // then left behind. Any thread.
  // `spare`: the library's communicator stays as it is, for the next epoch. Only where nothing of ours stands on the stream, and nothing more is
  // submitted.
  enum class Spare : uint8_t { Nothing, Library };
  void abort(Spare spare = Spare::Nothing) noexcept;
  void hand_over() noexcept {
    handed_over_.store(true);
  }  // the next epoch has the library's communicator: abort() spares it from now on
  // `alone`: some rank of the group will not make the call that may run now, so the call need not be given time to end. `refused`: the stream
  // cannot be stopped.
  bool settled(int64_t now_ns, bool alone, bool refused) noexcept;
  // After abort(): only stopping the stream ends what may still stand there, because the library cannot, and the library has had its time.
  // A thread that frees memory would wait for the stream for ever. Once the stream was stopped, died() is called.
  bool wants_stop(int64_t now_ns) const noexcept;
  // The thread that submits does not come back, so what was submitted does not come to its end.
  void leave_behind() noexcept;
  // The device has failed, or its stream was stopped: the device does nothing any more of what the device was given.
  void died() noexcept { dead_.store(true, std::memory_order_release); }
  void let_go_if_aborted() noexcept;  // opens all gates for good

 private:
  bool has_ended() const noexcept {
    return work_.signals.ended(last_.load()) && work_.signals.exchanged() >= exchanges_.load();
  }

  QueuedWork &work_;
  bool endless_ = false;
  std::atomic<uint64_t> cuts_{0};       // Stream::cuts() at the last submission to a stream that had no work of ours
  std::atomic<uint64_t> last_{0};       // sequence of the last operation whose list was submitted
  std::atomic<uint64_t> exchanges_{0};  // ticket of the last messages that the library was given
  std::atomic<uint64_t> last_bytes_{0};
  std::atomic<int64_t> aborted_ns_{0};
  SeenTime waited_;  // since then, by settled()
  std::atomic<bool> left_behind_{false}, unfinished_{false}, dead_{false}, library_aborted_{false};
  std::atomic<bool> handed_over_{false};
};

}  // namespace isthmus::collective
