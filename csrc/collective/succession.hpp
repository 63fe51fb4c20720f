// What a rank leaves to the rank of the next epoch in its process, of the library that serves it.
//
// The library's communicator goes from one epoch to the next where its island has the same processes in the same order, and nothing of the old epoch
// stands in it on any of them. Each rank says what it knows (LibraryPlace), and all decide alike from what all have said (goes_on).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "ccl/island_ccl.hpp"
#include "device/runtime.hpp"

namespace isthmus::collective {

// The struct travels as it is.
struct LibraryPlace {
  std::array<uint8_t, 16>
      made{};  // names the library's communicator; all 0: there is none, or not all that it was given has ended well
  uint32_t position = 0, size = 0;
  uint64_t calls = 0;  // that all ranks of the island make; one that has made fewer has not come to the last
  // What this rank has sent, less what it has received, each message weighed by its pair of ranks. Over the island the sum is 0 where each message
  // has had both its calls.
  uint64_t messages = 0;

  bool any() const noexcept { return made != decltype(made){}; }
  void sends_to(uint32_t peer) noexcept { messages += weight(position, peer); }
  void receives_from(uint32_t peer) noexcept { messages -= weight(peer, position); }

 private:
  static uint64_t weight(uint32_t from, uint32_t to) noexcept {
    uint64_t w = (uint64_t{from} << 32 | to) + 0x9e3779b97f4a7c15;
    w = (w ^ w >> 30) * 0xbf58476d1ce4e5b9;
    w = (w ^ w >> 27) * 0x94d049bb133111eb;
    return w ^ w >> 31;
  }
};

// `island`: what its ranks have said, in the order in which they are to stand there.
inline bool goes_on(std::span<const LibraryPlace> island) noexcept {
  uint64_t messages = 0;
  for (size_t i = 0; i < island.size(); ++i) {
    const LibraryPlace &p = island[i];
    if (!p.any() || p.made != island[0].made || p.position != i || p.size != island.size() || p.calls != island[0].calls)
      return false;
    messages += p.messages;
  }
  return !island.empty() && messages == 0;
}

struct LibraryEstate {
  LibraryPlace place;
  std::shared_ptr<ccl::IslandCommunicator> communicator;  // null: none that could go on
  std::shared_ptr<device::Stream> stream;                 // on which it stands
};

}  // namespace isthmus::collective
