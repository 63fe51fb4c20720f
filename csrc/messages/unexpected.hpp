// Unexpected messages have come, or have been announced, before a receive for them was called. The messages stand in the order of their coming,
// so the messages of one rank stand in the order of their sends. Steady traffic allocates nothing: an entry that is taken out is used again.
//
// Thread rules: all calls under one lock (the match lock).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "messages/engine_names.hpp"
#include "link/frame.hpp"

namespace isthmus::messages {

struct UnexpectedMessage {
  int source = -1;
  int32_t tag = 0;
  uint8_t dtype = 0;
  uint64_t id = 0, total = 0, whole = 0;  // bytes of this part, and of the message
  uint32_t part = 0;
  bool announced = false;  // the message's data comes when this rank asks
  int32_t lies = -1;       // in this receive slot; -1: in none
  bool complete = false;   // `data` has all of it
  Operation *claimed =
      nullptr;  // the receive that takes the message, once the message is complete and the receive's place is free
  std::vector<std::byte> data;
  bool flows() const noexcept { return !announced && !complete && lies < 0; }  // into `data`
};

class UnexpectedMessages {
 public:
  static constexpr uint64_t kData = 16 * 1024;  // bytes of the largest message that comes with its data

  void prepare();  // before the first message: allocates what steady traffic needs
  UnexpectedMessage &add(const link::FrameHeader &h, Operation *claimed);
  void done(const UnexpectedMessage &message) noexcept;  // takes the message out
  // The first that no receive has claimed, and that `wanted` takes; or null.
  template <class Wanted>
  UnexpectedMessage *first(Wanted wanted) noexcept {
    for (const auto &m : messages_)
      if (!m->claimed && wanted(*m)) return m.get();
    return nullptr;
  }
  UnexpectedMessage *flowing(int source, uint64_t id) noexcept;  // the message whose data comes just now; or null
  UnexpectedMessage *claimed_by(const Operation *op) noexcept;   // or null
  // After a failure: takes out a claimed message, and returns the receive that has claimed the message. Null: no receive has claimed one.
  Operation *take_claim() noexcept;

 private:
  template <class Is>
  UnexpectedMessage *find(Is is) noexcept {
    for (const auto &m : messages_)
      if (is(*m)) return m.get();
    return nullptr;
  }
  static constexpr size_t kSpare = 8;
  std::vector<std::unique_ptr<UnexpectedMessage>> messages_, spare_;
};

}  // namespace isthmus::messages
