// Configurations of the vendors' interfaces, as bytes. Each configuration begins with its size. The size says how much of
// the structure the program knows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace isthmus::bridge {

inline size_t size_of_config(const void *config) noexcept {
  size_t size = 0;
  std::memcpy(&size, config, sizeof size);
  return size;
}

// The beginning of a configuration. Where the configuration is too short for a member, the member keeps its value in `head`.
template <class Head>
Head read_head(const void *config, Head head = {}) noexcept {
  std::memcpy(&head, config, std::min(size_of_config(config), sizeof head));
  return head;
}

// A copy of a configuration, for calls that are made when the program's own configuration is gone. A copy of no
// configuration is null.
class ConfigCopy {
 public:
  explicit ConfigCopy(const void *config) {
    if (!config) return;
    const size_t bytes = size_of_config(config);
    words_.resize((bytes + sizeof words_[0] - 1) / sizeof words_[0]);
    std::memcpy(words_.data(), config, bytes);
  }
  unsigned char *data() noexcept { return words_.empty() ? nullptr : reinterpret_cast<unsigned char *>(words_.data()); }
  const unsigned char *data() const noexcept { return const_cast<ConfigCopy *>(this)->data(); }
  bool holds(size_t at, size_t bytes) const noexcept { return data() && size_of_config(data()) >= at + bytes; }

 private:
  std::vector<uint64_t> words_;  // so that the copy is aligned
};

}  // namespace isthmus::bridge
