// What ranks tell each other beside the operations, over the control connections: it works on communicators that have failed or were aborted,
// so that the ranks that are left can agree on what to do next.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/lock.hpp"

namespace isthmus::rank {

// What has come and nobody has taken yet. Thread-safe.
class OutOfBand {
 public:
  static constexpr size_t kMostBytes = 4096;  // of a message
  static constexpr size_t kMostKept =
      16;  // of one rank; then the oldest is dropped, of those that were withdrawn where there are such
  struct Message {
    uint64_t about = 0, number = 0;
    std::vector<std::byte> bytes;
    bool withdrawn = false;
  };
  explicit OutOfBand(int world) : world_(static_cast<size_t>(world)), from_(world_) {}

  // `about`: which exchange it belongs to; `number`: of its sender's. What does not fit is dropped.
  void came(uint32_t from, uint64_t about, uint64_t number, std::span<const std::byte> bytes);
  void withdrawn(uint32_t from, uint64_t number);  // its sender has given up: it is not taken any more
  // The oldest of that rank about that, waiting at most until `until_ns`.
  std::optional<Message> take(int from, uint64_t about, int64_t until_ns);
  bool has(int from, uint64_t about);         // one that take() would give
  void give_back(int from, Message message);  // it was taken by whoever has given up now: it is the oldest again
  bool has_other(int from, uint64_t about);   // there is, or was until it was withdrawn, one about something else

 private:
  struct From {
    std::deque<Message> kept;
    std::deque<uint64_t> given_up;  // numbers of messages that had been taken when they were withdrawn, the last of them
  };
  static void make_room(std::deque<Message> &kept);
  const size_t world_;
  Mutex mutex_;
  Condition changed_;
  std::vector<From> from_ ISTHMUS_GUARDED_BY(mutex_);
};

}  // namespace isthmus::rank
