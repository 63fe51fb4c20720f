// What a rank knows of the speed of its host and device, from the profile that `isthmus tune` wrote.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace isthmus::topology {

enum class Rate : uint8_t {
  Copy,            // memory, one core: bytes copied
  ReduceFloat32,   // one core, two sources: bytes of the result
  ReduceBFloat16,  // likewise
  Memory,          // two processes through shared memory, each way
  Tcp,             // two processes over TCP on the loopback interface, each way
  DeviceToHost,    // to pinned memory. Only of a rank that works on a device
  HostToDevice,    // from it
  Count
};
inline constexpr size_t kRates = static_cast<size_t>(Rate::Count);

// Bytes a second that a profile may hold.
inline constexpr double kLeastRate = 1, kMostRate = 1e15;
constexpr bool sound_rate(double rate) noexcept { return rate >= kLeastRate && rate <= kMostRate; }

struct Rates {
  std::array<double, kRates> values{};  // bytes a second; 0: not known
  bool simulated = false;               // measured in a rehearsal, so they say nothing of hardware
  double operator[](Rate r) const noexcept { return values[static_cast<size_t>(r)]; }
  double &operator[](Rate r) noexcept { return values[static_cast<size_t>(r)]; }
};

// The largest message, in bytes, for which a profile's fleet found the leader exchange (docs/explain/plans.md) no slower than pieces. `memory`
// and `tcp` say what lay between the fleet's islands. -1: not measured.
inline constexpr int64_t kMostLeaderBytes = 256 * 1024;
struct LeaderBytes {
  int64_t memory = -1, tcp = -1;
};
constexpr bool sound_leader_bytes(int64_t bytes) noexcept { return bytes >= -1 && bytes <= kMostLeaderBytes; }

}  // namespace isthmus::topology
