// What a collective is: one row each, which all else asks. Sends and receives have rows too, as calls of the one rank that makes them.
#pragma once

#include <cstdint>
#include <string_view>

namespace isthmus {

enum class Collective : uint8_t {
  AllReduce,
  Reduce,
  Broadcast,
  AllGather,
  AllGatherV,
  ReduceScatter,
  ReduceScatterV,
  AllToAll,
  AllToAllV,
  Gather,
  GatherV,
  Scatter,
  ScatterV,
  Barrier,
  Send,
  Recv,
};
inline constexpr int kCollectiveCount = 16;

enum class Blocks : uint8_t { None, One, OnePerRank };  // of a buffer
enum class Who : uint8_t { Nobody, Root, Everybody };

struct CollectiveTraits {
  const char *name;      // "all_reduce", ...
  bool has_root;         // a rank of the communicator, the same on all; the peer of a message is none
  bool reduces;          // contributions are combined by an op
  bool varying;          // the sizes are operands of the launch: one list of counts for each side of OnePerRank
  Blocks input, output;  // how many blocks the input and the output have
  Who reads, writes;     // which ranks read their input, and write their output; the buffer of the others is not used
};

inline constexpr CollectiveTraits kCollectives[kCollectiveCount] = {
    // name, has_root, reduces, varying, input, output, reads, writes
    {"all_reduce", false, true, false, Blocks::One, Blocks::One, Who::Everybody, Who::Everybody},
    {"reduce", true, true, false, Blocks::One, Blocks::One, Who::Everybody, Who::Root},
    {"broadcast", true, false, false, Blocks::One, Blocks::One, Who::Root, Who::Everybody},
    {"all_gather", false, false, false, Blocks::One, Blocks::OnePerRank, Who::Everybody, Who::Everybody},
    {"all_gather_v", false, false, true, Blocks::One, Blocks::OnePerRank, Who::Everybody, Who::Everybody},
    {"reduce_scatter", false, true, false, Blocks::OnePerRank, Blocks::One, Who::Everybody, Who::Everybody},
    {"reduce_scatter_v", false, true, true, Blocks::OnePerRank, Blocks::One, Who::Everybody, Who::Everybody},
    {"all_to_all", false, false, false, Blocks::OnePerRank, Blocks::OnePerRank, Who::Everybody, Who::Everybody},
    {"all_to_all_v", false, false, true, Blocks::OnePerRank, Blocks::OnePerRank, Who::Everybody, Who::Everybody},
    {"gather", true, false, false, Blocks::One, Blocks::OnePerRank, Who::Everybody, Who::Root},
    {"gather_v", true, false, true, Blocks::One, Blocks::OnePerRank, Who::Everybody, Who::Root},
    {"scatter", true, false, false, Blocks::OnePerRank, Blocks::One, Who::Root, Who::Everybody},
    {"scatter_v", true, false, true, Blocks::OnePerRank, Blocks::One, Who::Root, Who::Everybody},
    {"barrier", false, false, false, Blocks::None, Blocks::None, Who::Nobody, Who::Nobody},
    {"send", false, false, false, Blocks::One, Blocks::None, Who::Everybody, Who::Nobody},
    {"recv", false, false, false, Blocks::None, Blocks::One, Who::Nobody, Who::Everybody},
};

// Of one of the above, and of no other number.
constexpr const CollectiveTraits &traits(Collective c) noexcept { return kCollectives[static_cast<int>(c)]; }
constexpr bool has_root(Collective c) noexcept { return traits(c).has_root; }
constexpr bool is_reduction(Collective c) noexcept { return traits(c).reduces; }
constexpr bool is_varying(Collective c) noexcept { return traits(c).varying; }
// A send or a receive: of two ranks, and no part of the order of collectives.
constexpr bool is_message(Collective c) noexcept { return c == Collective::Send || c == Collective::Recv; }
// One block of a size that all ranks know, on each side that there is.
constexpr bool is_single_block(Collective c) noexcept {
  return traits(c).input != Blocks::OnePerRank && traits(c).output != Blocks::OnePerRank;
}
// The root collects a block of each rank; the root gives each rank a block.
constexpr bool gathers_to_root(Collective c) noexcept {
  return traits(c).writes == Who::Root && traits(c).output == Blocks::OnePerRank;
}
constexpr bool scatters_from_root(Collective c) noexcept {
  return traits(c).reads == Who::Root && traits(c).input == Blocks::OnePerRank;
}
// Every rank gives every rank a block.
constexpr bool is_exchange(Collective c) noexcept {
  return traits(c).input == Blocks::OnePerRank && traits(c).output == Blocks::OnePerRank;
}

constexpr bool is_among(Who who, int rank, int root) noexcept {
  return who == Who::Everybody || (who == Who::Root && rank == root);
}
constexpr bool reads_input(Collective c, int rank, int root) noexcept { return is_among(traits(c).reads, rank, root); }
constexpr bool writes_output(Collective c, int rank, int root) noexcept { return is_among(traits(c).writes, rank, root); }
constexpr uint32_t block_count(Blocks blocks, int world) noexcept {
  return blocks == Blocks::None ? 0 : blocks == Blocks::One ? 1 : static_cast<uint32_t>(world);
}

constexpr const char *collective_name(Collective c) noexcept {  // of any number
  return static_cast<unsigned>(c) < kCollectiveCount ? traits(c).name : "unknown collective";
}
constexpr bool collective_from_name(std::string_view name, Collective &out) noexcept {
  for (int i = 0; i < kCollectiveCount; ++i)
    if (name == kCollectives[i].name) return out = static_cast<Collective>(i), true;
  return false;
}

}  // namespace isthmus
