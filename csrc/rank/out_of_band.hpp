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
  static constexpr size_t kMostBytes = 4096;         // that a rank contributes to an exchange, or tells
  static constexpr size_t kMostMessage = 56 * 1024;  // of a message: of what all ranks have contributed, for example
  static constexpr size_t kMostForgotten = 64;
  static constexpr uint64_t kOfOneSize = uint64_t{1} << 63;  // of a subject: all ranks contribute as many bytes
  struct About {
    uint64_t subject = 0;  // the exchange
    uint64_t turn = 0;     // of the exchanges that have this subject
    About(uint64_t s = 0, uint64_t t = 0) : subject(s), turn(t) {}
    bool operator==(const About &) const = default;
  };
  struct Message {
    About about;
    uint64_t number = 0;
    std::vector<std::byte> bytes;
    bool withdrawn = false;
    bool note = false;  // it replaces what was said about that before
  };
  explicit OutOfBand(int world)
      : world_(static_cast<size_t>(world)),
        most_kept_(kFew + world_ * (kMostBytes + 2 * sizeof(uint64_t)) / kMostMessage),
        from_(world_) {}
  // Messages of one rank: some, beside those of the contributions of all ranks. Then the oldest withdrawn one is dropped, or else the oldest note, or
  // else the oldest.
  size_t most_kept() const noexcept { return most_kept_; }

  // `number` counts the messages of the sender. What does not fit is dropped.
  void came(uint32_t from, About about, uint64_t number, std::span<const std::byte> bytes);
  void replace(uint32_t from, About about, uint64_t number,
               std::span<const std::byte> bytes);  // what it has said about that
  void withdrawn(uint32_t from, uint64_t number);  // the sender has given up: the message is not taken any more
  bool was_withdrawn(int from, const Message &taken);
  // The oldest message of rank `from` about `about`. Waits at most until `until_ns`.
  std::optional<Message> take(int from, About about, int64_t until_ns);
  bool has(int from, About about);            // a message that take() would give
  void give_back(int from, Message message);  // the taker has given up now: the message is the oldest again
  void forget(uint64_t subject);              // what has come about it, and what still comes, is dropped
  void drop_turns(uint64_t subject, uint64_t before);
  bool has_other(int from,
                 std::span<const uint64_t> than);  // a message about another subject that is kOfOneSize, withdrawn or not

 private:
  struct MessagesFrom {
    std::deque<Message> kept;
    std::deque<uint64_t> given_up;  // numbers of messages that had been taken when they were withdrawn: the last of them
  };
  static constexpr size_t kFew = 16;
  void make_room(std::deque<Message> &kept) const;
  void add(std::deque<Message> &kept, About about, uint64_t number, std::span<const std::byte> bytes) const;
  bool wanted(uint32_t from, About about, size_t bytes) const ISTHMUS_REQUIRES(mutex_);
  const size_t world_, most_kept_;
  Mutex mutex_;
  Condition changed_;
  std::vector<MessagesFrom> from_ ISTHMUS_GUARDED_BY(mutex_);
  std::deque<uint64_t> forgotten_ ISTHMUS_GUARDED_BY(mutex_);  // at most kMostForgotten, the last
};

}  // namespace isthmus::rank
