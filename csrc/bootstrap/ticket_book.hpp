// What a server knows of its tickets: how many it made, and what became of the newest of them.
//
// A ticket's key follows from its number and from a secret of the book. So a ticket that nobody has used costs one byte.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "net/protocol.hpp"

namespace isthmus::bootstrap {

using net::Bytes16;

class TicketBook {
 public:
  static constexpr size_t kRemembered =
      1 << 20;                              // tickets, a byte each. An older one serves no more, whether it was used or not
  static constexpr size_t kReasons = 1024;  // failures of which the text is known, the newest

  explicit TicketBook(size_t remembered = kRemembered, size_t reasons = kReasons);

  uint64_t make();                                        // the number of a new ticket; they count from 0
  uint64_t dropped() const noexcept { return dropped_; }  // tickets that were too old before they had been used
  // The newest ticket of which these are the lower 32 bits of the number. Empty: there is none.
  std::optional<uint64_t> find(uint32_t low) const noexcept;
  Bytes16 key(uint64_t number) const;
  // Its meeting has ended. `failure` Ok: all ranks came and left. The first end counts.
  void note_over(uint64_t number, const Status &failure);
  // What a client is told that comes now. Empty: the ticket serves.
  std::optional<Status> over(uint64_t number) const;

 private:
  enum class Fate : uint8_t { Serves, Met, Failed };
  bool remembers(uint64_t number) const noexcept { return number < made_ && made_ - number <= remembered_; }

  const size_t remembered_, reasons_;
  const Bytes16 secret_;
  uint64_t made_ = 0, dropped_ = 0;
  std::vector<Fate> fates_;              // a ring: of ticket n at n % remembered_
  std::map<uint64_t, Status> failures_;  // at most reasons_
  std::deque<uint64_t> failed_;          // their tickets, in the order of the failures
};

}  // namespace isthmus::bootstrap
