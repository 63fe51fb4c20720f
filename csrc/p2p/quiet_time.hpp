// QuietTime keeps apart, on one device of one process, what waits for other ranks and the times in which messages are settled for the vendor's library.
//
// A message of the library stands on the device until the other side's has come there. If something stood before it that waits for another rank, the
// ranks could wait in a circle. So a message is settled only while the device has nothing of ours that waits for another rank, and until the
// library has the message, nothing like that is given to the device:
//
//   thread A, settles a message              thread B, submits a collective
//   try_open(): nothing is there
//   settles the message                      enter(): false, there is a quiet time
//   gives it to the library                  waits until it is over
//   close()                                  submits
//                                            leave(), when the collective has ended
//
// Thread rules: any thread. At most one quiet time is open at a time.
#pragma once

#include <atomic>
#include <cstdint>

namespace isthmus::p2p {

class QuietTime {
 public:
  // Something is about to be given to the device that waits for another rank. False: the caller waits until is_open() is false.
  bool enter() noexcept {
    inside_.fetch_add(1, std::memory_order_seq_cst);
    return !is_open();
  }
  void leave() noexcept { inside_.fetch_sub(1, std::memory_order_seq_cst); }
  bool try_open() noexcept {  // false: something waits there, or another quiet time is open
    // Who enters while a try that fails is open would sleep for nothing, so what is there already is seen without opening.
    if (inside_.load(std::memory_order_seq_cst) != 0 || open_.exchange(true, std::memory_order_seq_cst)) return false;
    if (inside_.load(std::memory_order_seq_cst) == 0) return true;
    close();
    return false;
  }
  void close() noexcept { open_.store(false, std::memory_order_seq_cst); }
  bool is_open() const noexcept { return open_.load(std::memory_order_seq_cst); }

 private:
  std::atomic<uint32_t> inside_{0};
  std::atomic<bool> open_{false};
};

}  // namespace isthmus::p2p
