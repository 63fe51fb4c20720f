// Messages out of band: what ranks tell each other beside the operations, over the control connections. Such messages pass on communicators that
// have failed or were aborted. So the ranks that are left can agree on what to do next.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/lock.hpp"

namespace isthmus::rank {

// The messages that have come, and that no thread has taken yet. Thread-safe.
class OutOfBand {
 public:
  static constexpr size_t kMostBytes = 4096;  // of a message
  static constexpr size_t kMostForgotten = 64;
  static constexpr size_t kMostKept = 16;  // of one rank; then the oldest withdrawn message is dropped, or else the oldest
  struct Message {
    uint64_t about = 0, number = 0;
    std::vector<std::byte> bytes;
    bool withdrawn = false;
  };
  explicit OutOfBand(int world) : world_(static_cast<size_t>(world)), from_(world_) {}

  // `about` names the exchange of the message; `number` counts the messages of the sender. What does not fit is dropped.
  void came(uint32_t from, uint64_t about, uint64_t number, std::span<const std::byte> bytes);
  void withdrawn(uint32_t from, uint64_t number);  // the sender has given up: the message is not taken any more
  // The oldest message of rank `from` about `about`. Waits at most until `until_ns`.
  std::optional<Message> take(int from, uint64_t about, int64_t until_ns);
  bool has(int from, uint64_t about);         // a message that take() would give
  void give_back(int from, Message message);  // the taker has given up now: the message is the oldest again
  void forget(uint64_t about);                // what has come about it, and what still comes, is dropped
  bool has_other(int from, uint64_t about);   // a message about something else, withdrawn or not

 private:
  struct MessagesFrom {
    std::deque<Message> kept;
    std::deque<uint64_t> given_up;  // numbers of messages that had been taken when they were withdrawn, the last of them
  };
  static void make_room(std::deque<Message> &kept);
  const size_t world_;
  Mutex mutex_;
  Condition changed_;
  std::vector<MessagesFrom> from_ ISTHMUS_GUARDED_BY(mutex_);
  std::deque<uint64_t> forgotten_ ISTHMUS_GUARDED_BY(mutex_);  // at most kMostForgotten, the last
};

}  // namespace isthmus::rank
