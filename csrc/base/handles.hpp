// Ownership of descriptors and mappings.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <utility>

namespace isthmus {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd &operator=(UniqueFd &&other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }
  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// Makes the kernel's table of this process's descriptors large enough for so many, or for as many as the process may have. Where a process has
// several threads, the kernel lets each growth of that table (at 64 descriptors, 128, and so on) wait for a grace period of its RCU, some 10 ms in
// which no thread opens a descriptor (expand_fdtable() in its fs/file.c). So it grows once, at a time when nobody waits.
void make_room_for_descriptors(int count) noexcept;

// Makes the pages of that range of a shared mapping exist at once, at a fraction of what a fault for each costs. A hint: where the system
// cannot (Linux before 5.14), they come when they are touched.
void prefault(const std::byte *data, size_t bytes) noexcept;

class Mapping {  // a shared mapping; never inherited by a forked child
 public:
  Mapping() = default;
  // Maps `bytes` of `fd` (PROT_READ|WRITE, MAP_SHARED) with MADV_DONTFORK. Throws Error(System), Error(Resource).
  Mapping(int fd, size_t bytes);
  Mapping(Mapping &&o) noexcept
      : base_(std::exchange(o.base_, nullptr)), bytes_(std::exchange(o.bytes_, 0)), kept_(std::exchange(o.kept_, false)) {}
  Mapping &operator=(Mapping &&o) noexcept {
    if (this != &o) {
      reset();
      base_ = std::exchange(o.base_, nullptr);
      bytes_ = std::exchange(o.bytes_, 0);
      kept_ = std::exchange(o.kept_, false);
    }
    return *this;
  }
  ~Mapping() { reset(); }
  std::byte *data() const noexcept { return static_cast<std::byte *>(base_); }
  size_t size() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return base_ != nullptr; }
  void reset() noexcept {
    if (base_ && !kept_) ::munmap(base_, bytes_);
    base_ = nullptr;
    bytes_ = 0;
    kept_ = false;
  }
  // Gives the memory back and keeps the addresses: whoever looks there late finds zeros.
  void vacate() noexcept;
  // It stays until the process ends, for somebody who may still write there.
  void keep() noexcept { kept_ = true; }

 private:
  void *base_ = nullptr;
  size_t bytes_ = 0;
  bool kept_ = false;
};

}  // namespace isthmus
