// The control messages that one peer has not confirmed, oldest first: those go again where the control connection is carried over to another
// address. Heartbeats say how many messages have come in all. The caller holds the peer's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bootstrap/outbox.hpp"
#include "net/frame.hpp"

namespace isthmus::bootstrap {

class Unconfirmed {
 public:
  void add(uint16_t type, std::span<const std::byte> body) {
    net::append_frame(bytes_, type, body);
    sizes_.push_back(static_cast<uint32_t>(net::kFrameHeader + body.size()));
  }
  // So many messages of this session have come there, in all. False: more than were sent, or fewer than it has said before.
  bool confirm(uint64_t count) {
    if (count < confirmed_ || count - confirmed_ > sizes_.size() - first_) return false;
    for (; confirmed_ < count; ++confirmed_) begin_ += sizes_[first_++];
    if (begin_ == bytes_.size() || begin_ > kDead) {  // the memory is kept
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(begin_));
      sizes_.erase(sizes_.begin(), sizes_.begin() + static_cast<ptrdiff_t>(first_));
      begin_ = first_ = 0;
    }
    return true;
  }
  uint64_t count() const noexcept { return confirmed_ + (sizes_.size() - first_); }  // that were sent, in all
  uint64_t confirmed() const noexcept { return confirmed_; }                         // of them
  size_t waiting() const noexcept { return bytes_.size() - begin_; }
  void send_again(Outbox &out) const { out.add_framed(std::span(bytes_).subspan(begin_)); }
  void clear() noexcept {
    bytes_ = {};
    sizes_ = {};
    begin_ = first_ = 0;
  }

 private:
  static constexpr size_t kDead = 1024 * 1024;  // more confirmed bytes than this at the front are cut off
  net::ByteVector bytes_;                       // framed
  std::vector<uint32_t> sizes_;
  size_t begin_ = 0, first_ = 0;
  uint64_t confirmed_ = 0;
};

}  // namespace isthmus::bootstrap
