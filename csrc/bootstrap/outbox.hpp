// The control messages that wait for one peer: framed, in order, not yet taken by the kernel. The caller holds the peer's lock.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

#include "net/frame.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap {

class Outbox {
 public:
  bool empty() const noexcept { return sent_ == bytes_.size(); }
  // Nothing waits for the kernel: the box is empty, or has only what goes along with the next message.
  bool idle() const noexcept { return empty() || only_later_; }
  size_t waiting() const noexcept { return bytes_.size() - sent_; }
  // errno of the send that found the connection broken; 0: no send did.
  int error() const noexcept { return error_; }

  void add(uint16_t type, std::span<const std::byte> body) {
    begin();
    net::append_frame(bytes_, type, body);
    only_later_ = false;
  }
  void add_for_later(uint16_t type, std::span<const std::byte> body) {
    const bool only = idle();
    add(type, body);
    only_later_ = only;
  }
  void add_framed(std::span<const std::byte> messages) {
    begin();
    net::append(bytes_, messages);
    only_later_ = false;
  }
  // Gives the kernel what the kernel takes. Does not wait. A broken connection empties the box.
  void flush(int socket) {
    only_later_ = false;
    while (!empty()) {
      const ssize_t n = net::send_some(socket, std::span<const std::byte>(bytes_).subspan(sent_));
      if (n < 0) {  // the reader learns that the connection is broken
        error_ = errno;
        sent_ = bytes_.size();
      }
      if (n <= 0) break;
      sent_ += static_cast<size_t>(n);
    }
    if (sent_ > kDead) {
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(sent_));
      sent_ = 0;
    }
  }
  void clear() noexcept {  // the memory goes too
    bytes_ = {};
    sent_ = 0;
    error_ = 0;
    only_later_ = false;
  }

 private:
  void begin() {
    if (!empty()) return;
    bytes_.clear();  // the memory is kept
    sent_ = 0;
  }
  static constexpr size_t kDead = 1024 * 1024;  // more sent bytes than this at the front are cut off
  net::ByteVector bytes_;
  size_t sent_ = 0;
  int error_ = 0;
  bool only_later_ = false;
};

}  // namespace isthmus::bootstrap
