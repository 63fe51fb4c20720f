// Who is where: what every rank tells the others, and the islands that follow from it. Pure data.
//
// An *island* is what the planner treats as one unit: the ranks on one host that share memory and have one label. Ranks without a label
// are told apart by the names of their islands only where the bridge is "tcp" or "ucx", which part those. Where the ranks stand on several hosts and
// the bridge is "auto" or "shm", labels part nothing: ranks of one host share memory, whatever else the communicator holds, so they are one island.
// Islands are ordered by their lowest rank, ranks in an island by number. When every rank of the communicator shares memory
// with every other (one host, bridge "auto" or "shm"), the plan is flat: all ranks read each other's slots, and islands only say
// the order of the sums.
//
// Ranks with one vendor's collective library and one label are one island, on however many hosts: that library serves them, and
// nothing is known of memory that they might share. Such a topology is not flat. What a library cannot do is planned on the
// topology without it (dissolve), where its ranks are as others.
//
// Every rank has the *name* of its island: its label, or the maker of its device where it has no label ("host" without a device). Ranks
// of one name on several hosts without a library are several islands. Ranks without a label share an island and may have several names.
// Reports list the ranks by name as "islands", and the islands of this header as "groups".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/island_call.hpp"
#include "topology/rates.hpp"

namespace isthmus::topology {

struct RankInfo {
  std::string host;      // identity of the host (equal text: same host, as confirmed by a shared-memory link or nominated)
  std::string hostname;  // for people
  std::string address;   // for people: where other hosts reach it, without a port; may be empty
  std::string island;    // label, may be empty
  std::string device = "host";  // "host", or the device whose memory it works on ("cuda:0")
  std::string device_name;      // for people
  std::string process;          // 32 hex digits: identity of the process; ranks that are threads share it
  int64_t pid = 0;
  int numa = -1;
  std::string ccl;             // family of the collective library that the rank has for its island ("oneccl"), or empty
  std::string ccl_version;     // for people
  IslandTable ccl_table;       // what it can do
  bool fnuz = false;           // its arithmetic takes 8-bit floating point for the kind without infinities and negative zero
  Rates rates;                 // of its host's profile; all 0 where it has none
  LeaderBytes leader_bytes;    // likewise
  std::string maker = "host";  // of its device ("nvidia"): the name of its island where it has no label
  int slot = -1;               // its number for people, where numbers have gaps; -1: its rank
};

struct Island {
  std::string label;       // of all its ranks, may be empty
  std::string host;        // of its first rank; all of them are on it where it has no library
  std::vector<int> ranks;  // ascending
  std::string ccl;         // family of the library that serves it, or empty
  IslandTable ccl_table;   // what all its ranks' can do
};

enum class Bridge : uint8_t { Auto, Shm, Tcp, Ucx };
// Whether the bridge goes by connections also between islands of one host.
constexpr bool parts(Bridge bridge) noexcept { return bridge == Bridge::Tcp || bridge == Bridge::Ucx; }

struct Topology {
  std::vector<RankInfo> ranks;  // by rank
  std::vector<Island> islands;  // ordered by lowest rank
  std::vector<int> island_of;   // rank -> index into islands
  std::vector<int> index_of;    // rank -> index inside its island
  std::vector<int> memory_of;   // rank -> the first rank that shares memory with it, whatever libraries serve the two
  bool flat = true;             // every two ranks share memory and the bridge may use it
  std::vector<double>
      weights;            // by island: relative rate of its bridge, all 1 unless measured or declared; agreed on all ranks
  bool measured = false;  // the weights come from the ranks' profiles
  Bridge bridge = Bridge::Auto;
  uint64_t digest = 0;  // of everything above that plans depend on
  int size() const noexcept { return static_cast<int>(ranks.size()); }
  // The number by which people know the rank. All texts and reports have it. Of what is no rank: the same number.
  int number(int rank) const noexcept {
    const int slot = rank >= 0 && rank < size() ? ranks[static_cast<size_t>(rank)].slot : -1;
    return slot < 0 ? rank : slot;
  }
  std::vector<int> numbers(std::vector<int> of) const noexcept {  // in the order of `of`
    for (int &rank : of) rank = number(rank);
    return of;
  }
};

// The name of the rank's island.
inline const std::string &island_name(const RankInfo &r) noexcept { return r.island.empty() ? r.maker : r.island; }

// The digest of `t`: to be taken again by whoever changes `weights` after make_topology.
uint64_t digest_of(const Topology &t) noexcept;

// Throws Error(Config) where bridge is Shm and ranks of two islands are on different hosts.
Topology make_topology(std::vector<RankInfo> ranks, Bridge bridge);
// `t` without the libraries of the islands for which keep[island] is false: what their ranks share makes the new islands, as of ranks
// that never had a library. Those have the least weight of the islands that their ranks come from.
Topology dissolve(const Topology &t, const std::vector<bool> &keep);
// Whether an island of `t` is served by a library.
bool has_libraries(const Topology &t) noexcept;
// Whether the two ranks share memory and the bridge may use it, whatever libraries serve them.
inline bool share_memory(const Topology &t, int a, int b) noexcept {
  return t.memory_of[static_cast<size_t>(a)] == t.memory_of[static_cast<size_t>(b)];
}
// The same of every two ranks.
bool one_memory(const Topology &t) noexcept;
// Whether the memory of a rank of `t` is that of a device.
bool has_devices(const Topology &t) noexcept;
// Bytes a second that `rank` can carry across a bridge, each way: the least rate that its profile has of the way. The way is the link: TCP where
// hosts or a forced bridge part the islands, else shared memory. For a rank on a device the way also is the copies from and to the device. 0: the
// profile does not say.
double bridge_rate(const Topology &t, int rank) noexcept;
// Bytes a second of the slowest island's bridge, each way: its slowest rank's bridge_rate() times its size, since they carry equal parts. 0: some rank's
// rate is not known.
double slowest_bridge(const Topology &t) noexcept;
// The first rank whose bridge_rate() is not known, or -1.
int unmeasured_rank(const Topology &t) noexcept;
// Where the ranks of an island have their library in several versions: "rank 0 has nccl 2.29.3, rank 2 has nccl 2.27.5", the first rank of each
// version. Else empty.
std::string unequal_versions(const Topology &t, const Island &island);
// The largest message that takes the leader exchange by the profiles, for what lies between the islands of `t`: the least of all ranks' numbers.
// -1: some rank's profile does not say.
int64_t measured_leader_bytes(const Topology &t) noexcept;
// Sets the weights from the profiles, where every rank's rate is known: an island's slowest rank times its size, since they carry equal parts,
// relative to the slowest island. Takes the digest again. They are made of exchanged values alone, so they are the same bits everywhere.
void apply_profiles(Topology &t);
// Sets the weights from "name:rate,name:rate" (the setting BridgeRates), islands not named keep 1, and takes the digest again. An island of
// several names takes the least of their rates. Throws Error(Config): a name that no rank's island has, a rate that is not above 0 and at most
// 1e6, anything else that cannot be read.
void apply_rates(Topology &t, std::string_view rates);
// {"world", "flat", "hosts": [{"host", "hostname", "ranks"}], "islands": [{"name", "label", "ranks", "host", "hosts"}],
//  "groups": [{"name" (empty where it has several), "island" (its label), "host", "ranks", "weight"}],
//  "ranks": [{"rank" (its number for people), "host", "hostname", "address", "island", "device", "maker" (of the device; "host" where it has none), "pid", ..}]}
std::string to_json(const Topology &t);

}  // namespace isthmus::topology
