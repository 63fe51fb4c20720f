#include "comm/join/agreement.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "ccl/libraries.hpp"
#include "net/address.hpp"
#include "topology/profile.hpp"

namespace isthmus::comm::join {
namespace {

std::vector<RankBlob> gather(const Invitation &invitation, const Offer &offer) {
  const auto blobs = invitation.exchange.all_gather(pack(offer.blob), invitation.deadline);
  std::vector<RankBlob> ranks;
  for (size_t r = 0; r < blobs.size(); ++r) ranks.push_back(unpack(blobs[r], static_cast<int>(r)));
  return ranks;
}

// The log names the ranks of this process.
void note_ranks_here(const std::vector<RankBlob> &ranks, const RankBlob &mine) {
  std::vector<int> here;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].info.process == mine.info.process && ranks[r].info.host == mine.info.host)
      here.push_back(ranks[r].number.slot);
  note_log_ranks(here, LogRanks::All);
}

// Of rank `r` against the ranks before it. Where some ranks keep their numbers and others close the gaps, they are named as they were before.
void compare_numbers(const std::vector<RankBlob> &ranks, size_t r) {
  const SlotOffer &first = ranks[0].number, &before = ranks[r - 1].number, &mine = ranks[r].number;
  const auto named = [](const SlotOffer &b) { return b.was < 0 ? b.slot : b.was; };
  if (mine.keeps != first.keeps && mine.was >= 0 && first.was >= 0) {
    const auto wants = [](const SlotOffer &b) {
      return b.keeps ? "keep their numbers" : "are numbered without gaps (dense)";
    };
    fail(Code::Mismatch, "on rank {} the ranks {}, on rank {} they {}: give all ranks the same `dense`", named(first),
         wants(first), named(mine), wants(mine));
  }
  if (mine.slots != first.slots || mine.slot <= before.slot)
    fail(
        Code::Mismatch,
        "ranks that met here number the communicator in two ways: rank {} of {}, and rank {} of {}; give all ranks the same "
        "list, in the same order",
        mine.slots != first.slots ? first.slot : before.slot, first.slots, mine.slot, mine.slots);
}

// Every rank must be able to take part, run the same protocol, and have the same settings of those that must agree. The text names the rank that
// differs.
void compare(const std::vector<RankBlob> &ranks) {
  for (const auto &rank : ranks)
    if (!rank.trouble.ok()) throw Error(rank.trouble.code, rank.trouble.text);
  for (size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].protocol != ranks[0].protocol)
      fail(Code::Mismatch,
           "rank {} speaks protocol version {}, rank {} version {}; install the same version of Isthmus everywhere",
           ranks[0].number.slot, ranks[0].protocol, ranks[r].number.slot, ranks[r].protocol);
    if (ranks[r].members != ranks[0].members || (!ranks[0].members.empty() && ranks[r].name != ranks[0].name)) {
      const auto said = [](const RankBlob &b) {
        return formatted("'{}' of {}", b.name, b.members.empty() ? "unnamed members" : b.members);
      };
      fail(
          Code::Mismatch,
          "ranks that met here are not of one communicator: rank {} is to make {}; rank {} is to make {}. Look at the calls "
          "that make groups (new_group, shrink, init): every rank has to make them in the same order, with the same ranks "
          "in "
          "the same order",
          ranks[0].number.slot, said(ranks[0]), ranks[r].number.slot, said(ranks[r]));
    }
    compare_numbers(ranks, r);
    if (ranks[r].settings != ranks[0].settings)
      fail(Code::Mismatch, "settings that must be equal on all ranks differ: {}", differing(ranks[0], ranks[r]));
  }
}

topology::Bridge bridge_of(const Settings &settings) {
  const std::string &text = settings.text(Setting::Bridge);
  return text == "tcp"   ? topology::Bridge::Tcp
         : text == "ucx" ? topology::Bridge::Ucx
         : text == "shm" ? topology::Bridge::Shm
                         : topology::Bridge::Auto;
}

// The entries of `rates` for the islands of `t`. A communicator made by split need not have all islands.
std::string part_of_rates(const topology::Topology &t, std::string_view rates) {
  std::string out;
  while (!rates.empty()) {
    const size_t comma = rates.find(',');
    const std::string_view entry = rates.substr(0, comma), label = entry.substr(0, entry.rfind(':'));
    rates = comma == std::string_view::npos ? std::string_view{} : rates.substr(comma + 1);
    if (std::none_of(t.ranks.begin(), t.ranks.end(), [&](const auto &r) { return topology::island_name(r) == label; }))
      continue;
    if (!out.empty()) out += ',';
    out += entry;
  }
  return out;
}

// A profile that some ranks have and other ranks lack changes nothing. Without a word in the log nobody would notice.
void note_missing_profiles(const topology::Topology &t, const std::string &name) {
  const int missing = topology::unmeasured_rank(t);
  const bool some = std::any_of(t.ranks.begin(), t.ranks.end(), [](const topology::RankInfo &r) {
    return r.rates[topology::Rate::Memory] > 0 || r.rates[topology::Rate::Tcp] > 0;
  });
  if (missing < 0 || !some) return;
  const topology::RankInfo &info = t.ranks[static_cast<size_t>(missing)];
  ISTHMUS_WARN(
      "communicator '{}': rank {} ({} on {}) has no profile with its bridge's rates (ISTHMUS_PROFILE): none is used", name,
      t.number(missing), info.device, info.hostname);
}

void refuse_threads(const topology::Topology &t, const topology::Island &g) {
  if (ccl::serves_threads(g.ccl)) return;
  for (size_t i = 0; i < g.ranks.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const auto &a = t.ranks[static_cast<size_t>(g.ranks[j])], &b = t.ranks[static_cast<size_t>(g.ranks[i])];
      if (a.process == b.process && a.host == b.host)
        fail(Code::Unsupported,
             "{}: ranks {} and {} are threads of one process (pid {} on {}), and the library serves one rank a process; "
             "start a process for each rank, or set ISTHMUS_CCL=none",
             g.ccl, t.number(g.ranks[j]), t.number(g.ranks[i]), a.pid, a.hostname);
    }
}

// The island of `rank` that a library serves. Throws where the library cannot serve two ranks of an island in one process.
std::optional<topology::Island> served_island(const topology::Topology &t, int rank) {
  std::optional<topology::Island> mine;
  for (const auto &g : t.islands) {
    if (g.ccl.empty() || g.ranks.size() < 2) continue;
    refuse_threads(t, g);
    if (std::find(g.ranks.begin(), g.ranks.end(), rank) != g.ranks.end()) mine = g;
  }
  return mine;
}

}  // namespace

Map make_map(const std::vector<topology::RankInfo> &infos, topology::Bridge bridge, const Settings &settings, MapOf what) {
  Map map;
  map.topology = topology::make_topology(infos, bridge);
  // Declared rates, else those of the profiles.
  const std::string &rates = settings.text(Setting::BridgeRates);
  if (rates.empty()) topology::apply_profiles(map.topology);
  else topology::apply_rates(map.topology, what == MapOf::Part ? part_of_rates(map.topology, rates) : rates);
  map.memory = topology::dissolve(map.topology, {});
  return map;
}

Agreement agree(const Invitation &invitation, const Offer &offer) {
  Agreement a;
  a.ranks = gather(invitation, offer);
  note_ranks_here(a.ranks, offer.blob);
  compare(a.ranks);
  const auto &context = invitation.context;
  const bootstrap::Bytes16 key = a.ranks[0].key;
  context->mesh().add_key(key);
  a.key = Rollback([context, key] { context->mesh().drop_key(key); });
  a.bridge = bridge_of(invitation.settings);
  for (const RankBlob &r : a.ranks) {
    a.infos.push_back(r.info);
    a.infos.back().slot = r.number.slot;
    if (!r.endpoint.tcp.empty()) a.infos.back().address = net::split_host_port(r.endpoint.tcp.front()).host;
  }
  a.map = make_map(a.infos, a.bridge, invitation.settings, invitation.parent || invitation.grown ? MapOf::Part : MapOf::Job);
  if (invitation.rank == 0 && !invitation.parent && !invitation.grown &&
      invitation.settings.text(Setting::BridgeRates).empty())
    note_missing_profiles(a.map.topology, invitation.name);
  a.island = served_island(a.map.topology, invitation.rank);
  if (a.island) {
    std::vector<collective::LibraryPlace> places;
    for (const int q : a.island->ranks) places.push_back(a.ranks[static_cast<size_t>(q)].library);
    a.library_goes_on = collective::goes_on(places);
  }
  return a;
}

}  // namespace isthmus::comm::join
