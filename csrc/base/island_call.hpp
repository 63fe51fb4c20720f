// The calls that Isthmus makes to a vendor's collective library, and what a library can do of them: shared by the planner, which
// decides on them, and the adapters, which make them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"

namespace isthmus {

enum class IslandCall : uint8_t { AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, AllToAll, AllToAllV, Send, Recv };
inline constexpr int kIslandCalls = 9;
const char *island_call_name(IslandCall call) noexcept;  // "all_reduce", ...
constexpr bool reduces(IslandCall call) noexcept {
  return call == IslandCall::AllReduce || call == IslandCall::Reduce || call == IslandCall::ReduceScatter;
}

// By call and dtype: bit `op` says that the library has that reduction of it; of a move, bit 0.
struct IslandTable {
  std::array<std::array<uint16_t, kDTypeCount>, kIslandCalls> ops{};

  bool can(IslandCall call, DType dtype, RedOp op) const noexcept {
    return (row(call)[static_cast<size_t>(dtype)] >> bit(call, op) & 1) != 0;
  }
  void allow(IslandCall call, DType dtype, RedOp op) noexcept {
    ops[static_cast<size_t>(call)][static_cast<size_t>(dtype)] |= static_cast<uint16_t>(1u << bit(call, op));
  }
  void keep(const IslandTable &other) noexcept {  // only what both can do
    for (size_t c = 0; c < ops.size(); ++c)
      for (size_t t = 0; t < ops[c].size(); ++t) ops[c][t] &= other.ops[c][t];
  }
  bool operator==(const IslandTable &) const = default;

 private:
  static int bit(IslandCall call, RedOp op) noexcept { return reduces(call) ? static_cast<int>(op) : 0; }
  const std::array<uint16_t, kDTypeCount> &row(IslandCall call) const noexcept { return ops[static_cast<size_t>(call)]; }
};

}  // namespace isthmus
