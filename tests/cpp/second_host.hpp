// Ranks of a fleet on several hosts, for tests in C++.
//
// The simulated libraries meet by Unix sockets and share memory, so they do not reach another host. Hence the ranks all run
// here, and the test's rendezvous says otherwise: what a rank hears of one that stands on another host carries another host's
// identity. To Isthmus that rank is elsewhere, and even the control connection goes by TCP; to the simulated library it is as
// near as ever.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/format.hpp"
#include "bootstrap/host.hpp"
#include "patience.hpp"

namespace isthmus_test {

// Memory of all processes of the fleet, over which their ranks exchange what they say. Made before they are.
class Board {
 public:
  static constexpr size_t kMost = 64 * 1024;  // of what one rank says at once
  static constexpr size_t kMostRanks = 6;

  Board() {
    void *const at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::abort();
    shared_ = new (at) Shared;
  }
  ~Board() { ::munmap(shared_, sizeof(Shared)); }
  Board(const Board &) = delete;
  Board &operator=(const Board &) = delete;

  // Round `round` of an all-gather; false: somebody has not come. Two places a rank are enough: whoever writes in round n + 2
  // has seen everybody come to round n + 1, and so done with n.
  bool all_gather(size_t rank, size_t world, uint64_t round, const void *send, void *recv, size_t bytes) {
    if (bytes > kMost || world > kMostRanks) return false;
    auto &said = shared_->said[round % 2];
    std::memcpy(said[rank], send, bytes);
    shared_->arrived.fetch_add(1, std::memory_order_acq_rel);
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(2 * soon());
    while (shared_->arrived.load(std::memory_order_acquire) < world * (round + 1)) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    for (size_t q = 0; q < world; ++q) std::memcpy(static_cast<char *>(recv) + q * bytes, said[q], bytes);
    return true;
  }

 private:
  struct Shared {
    std::atomic<uint64_t> arrived{0};  // of all ranks, in all rounds
    unsigned char said[2][kMostRanks][kMost];
  };
  Shared *shared_;
};

// How often `from` was there; `to`, which is as long, is in its place then.
inline size_t replace_all(std::span<char> in, std::string_view from, std::string_view to) {
  size_t times = 0;
  for (auto at = std::search(in.begin(), in.end(), from.begin(), from.end()); at != in.end();
       at = std::search(at, in.end(), from.begin(), from.end())) {
    at = std::copy(to.begin(), to.end(), at);
    ++times;
  }
  return times;
}

// What a rank hears of the others.
class Hearing {
 public:
  Hearing(Board &board, const std::vector<int> &hosts, size_t rank) : board_(board), hosts_(hosts), rank_(rank) {}
  static int all_gather(void *context, const void *send, void *recv, size_t bytes) {
    return static_cast<Hearing *>(context)->hear(send, static_cast<char *>(recv), bytes) ? 0 : 1;
  }
  // How often it has heard another host's identity than this one's.
  size_t changed() const { return changed_; }

 private:
  bool hear(const void *send, char *recv, size_t bytes) {
    if (!board_.all_gather(rank_, hosts_.size(), round_++, send, recv, bytes)) return false;
    const isthmus::bootstrap::Bytes16 here = isthmus::bootstrap::host_identity();
    isthmus::bootstrap::Bytes16 elsewhere = here;
    elsewhere[0] ^= 0xff;
    const auto raw = [](const auto &id) { return std::string_view(reinterpret_cast<const char *>(id.data()), id.size()); };
    for (size_t q = 0; q < hosts_.size(); ++q) {
      if (hosts_[q] == hosts_[rank_]) continue;
      const std::span<char> theirs(recv + q * bytes, bytes);
      // It says it as text, which the topology is made of, and as it is, in its address, which the mesh dials.
      changed_ += replace_all(theirs, isthmus::hex(here), isthmus::hex(elsewhere));
      changed_ += replace_all(theirs, raw(here), raw(elsewhere));
    }
    return true;
  }

  Board &board_;
  const std::vector<int> hosts_;
  const size_t rank_;
  uint64_t round_ = 0;
  size_t changed_ = 0;
};

}  // namespace isthmus_test
