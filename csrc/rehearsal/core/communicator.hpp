// A communicator of a simulated library, as one rank has it.
#pragma once

#include <chrono>
#include <map>

#include "core/fabric.hpp"
#include "core/lock.hpp"
#include "core/machine.hpp"

namespace rehearsal {

class REHEARSAL_API Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(const Library &l, Device &d, int r, int n)
      : library(l), device(d), rank(r), size(n), resets_(d.resets.load()) {}
  const Library library;
  Device &device;
  const int rank, size;
  std::atomic<int> state{0};  // the vendor's code: well, in progress, failed
  std::atomic<bool> ready{false};
  int cut_off = 0;   // the vendor's code after work was cancelled on its stream: the ranks no longer agree what comes next
  long late_ms = 0;  // join() begins so much later
  Mutex submission;
  StreamPtr last ISTHMUS_GUARDED_BY(submission);  // where its last work went

  // Allocates on the device, as the real ones do, then waits for the other ranks: so long, or for ever. `patient`: whoever listens for
  // them may come later.
  Met join(const char *call, const Token &token, std::chrono::milliseconds most = {}, bool patient = false);
  bool split(int color, int key, Token *token, int *new_rank, int *new_size);

  // `inside`: the device. `breaks_device`: the code that sticks to the device if the work is to fail late; 0: the work stands
  // until it is aborted, and only the communicator says why. `awaited`: see submit_locked() of the machine.
  Code submit_locked(const Entered &inside, const Entry &e, const StreamPtr &s,
                     std::function<void(Fabric &, const Fabric::Stop &)> work, const Extras &extras, int breaks_device,
                     bool awaited);
  // What the first work needs; waits until the device is idle.
  Code prepare(const char *call);

  void finish();  // waits for what was submitted
  void abort();   // what runs ends, what waits in queues will not run
  void destroy(const char *call, bool waits);
  bool busy();  // something of what was submitted is not done
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  bool lost() const noexcept {
    return device.resets.load(std::memory_order_acquire) != resets_;
  }  // by a reset of the device

 private:
  Fabric::Stop stop();
  Code scratch(size_t bytes);

  const unsigned resets_;
  std::atomic<bool> aborted_{false};
  std::shared_ptr<Fabric> fabric_;
  Mutex mutex_;
  Condition changed_;
  size_t pending_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  size_t running_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  bool prepared_ ISTHMUS_GUARDED_BY(mutex_) = false;
  std::vector<uintptr_t> scratch_ ISTHMUS_GUARDED_BY(mutex_);
};

}  // namespace rehearsal
