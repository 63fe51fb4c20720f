// Communicator is one rank's part of a communicator of a simulated library.
//
// A rank's work is a list of items in queues of its device. The queues' threads of all ranks do the work together, over a Fabric.
//
//   program's thread of rank 0       queue's thread of rank 0       queue's thread of rank 1       program's thread of rank 1
//     join()           <- - - - - - -  the ranks meet (rendezvous.hpp)  - - - - - - - - - - - - ->     join()
//     submit_locked()       ---->      fabric: posts its piece        fabric: posts its piece   <----  submit_locked()
//                                      waits for rank 1's piece       waits for rank 0's piece
//     finish(): sleeps                 reduces, item is done          reduces, item is done
//     returns               <----
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
  std::atomic<int> state{0};       // the vendor's code: success, in progress, or an error
  std::atomic<bool> ready{false};  // join() has succeeded
  // `state` after work was cancelled on its stream, because the ranks no longer agree what comes next. 0: `state` stays.
  int cut_off = 0;
  long late_ms = 0;  // join() begins so much later
  Mutex submission;
  StreamPtr last ISTHMUS_GUARDED_BY(submission);  // the stream of the last work

  // Allocates memory on the device, as the vendors' libraries do, and then waits for the other ranks. `most`: so long; 0: for ever.
  // `patient`: the rank whose thread gathers the ranks may come later than this one.
  Met join(const char *call, const Token &token, std::chrono::milliseconds most = {}, bool patient = false);
  bool split(int color, int key, Token *token, int *new_rank, int *new_size);  // Fabric::split()

  // Submits work to a stream of the device. `inside`: the device. `breaks_device`: the code with which the device fails, if the settings
  // want this work to fail late; 0: the work waits until it is aborted, and only the communicator has the error. `awaited`: as with
  // submit_locked() of the machine.
  Code submit_locked(const Entered &inside, const Entry &e, const StreamPtr &s,
                     std::function<void(Fabric &, const Fabric::Stop &)> work, const Extras &extras, int breaks_device,
                     bool awaited);
  // Allocates what the first work needs, when the device is idle. Later calls do nothing. The caller is not inside the device.
  Code prepare(const char *call);

  void finish();                               // returns when all work that was submitted is done
  void abort();                                // returns when no work runs. Work that waits in queues will not run.
  void revoke();                               // as abort(), but returns when no work is left, and the ranks can still split
  void destroy(const char *call, bool waits);  // frees the memory on the device. `waits`: when the device is idle.
  bool busy();                                 // some work that was submitted is not done
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  bool cancelled() const noexcept { return aborted() || revoking_.load(std::memory_order_acquire); }  // work is not to run
  // The device has been reset since the communicator was made.
  bool lost() const noexcept { return device.resets.load(std::memory_order_acquire) != resets_; }

 private:
  Fabric::Stop stop();
  Code scratch(size_t bytes);

  const unsigned resets_;
  std::atomic<bool> aborted_{false}, revoking_{false};
  std::shared_ptr<Fabric> fabric_;
  Mutex mutex_;
  Condition changed_;
  size_t pending_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  size_t running_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  bool prepared_ ISTHMUS_GUARDED_BY(mutex_) = false;
  std::vector<uintptr_t> scratch_ ISTHMUS_GUARDED_BY(mutex_);
};

}  // namespace rehearsal
