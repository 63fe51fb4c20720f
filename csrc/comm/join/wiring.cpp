#include "comm/join/wiring.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "bootstrap/streams_over.hpp"
#include "device/host.hpp"
#include "process/connections.hpp"
#include "process/processors.hpp"

namespace isthmus::comm::join {
namespace {

using bootstrap::Blob;

// How many ranks before this one work on the same device in this process.
int ordinal_of(const Agreement &agreement, int rank) {
  const topology::RankInfo &mine = agreement.infos[static_cast<size_t>(rank)];
  return static_cast<int>(std::count_if(agreement.infos.begin(), agreement.infos.begin() + rank, [&](const auto &info) {
    return info.process == mine.process && info.device == mine.device;
  }));
}

// Ranks that are threads on one device have streams of their own. A rank's communicators share two, but for those whose ranks one library serves: their
// work is the library's alone, or nearly so, and would wait behind the gates of the others for nothing. A stream that `served` has stays.
void open_streams(const Invitation &invitation, const Device &device, const Agreement &agreement,
                  collective::DeviceExecutorSetup &served) {
  const auto &context = invitation.context;
  if (device.host()) {
    served.runtime = &device::host_runtime();
    if (!served.stream) served.stream = process::OpenDevices::host_stream();
    served.arena.base = context->arena().base();
    return;
  }
  struct Ours {
    std::shared_ptr<device::Stream> stream, beside;
    std::shared_ptr<process::DeviceScratch> scratch;
    std::byte *arena;
  };
  served.runtime = device.runtime;
  const int ordinal = ordinal_of(agreement, invitation.rank);
  const std::shared_ptr<device::Stream> kept = served.stream;  // the library's communicator stands on it
  const bool alone = agreement.island && agreement.island->ranks.size() == agreement.ranks.size();
  const auto ours = asked<Ours>(device, invitation.deadline, [context, on = device, ordinal, alone, kept] {
    // The second first. Of the streams that share a hardware queue with the device's default stream it may be one, if streams take queues by turns: what
    // the default stream has to tell then comes behind copies in, and not behind a gate of the first stream.
    const auto beside = context->devices().stream(*on.runtime, on.number, 2 * ordinal + 1);
    return Ours{kept    ? kept
                : alone ? context->devices().own_stream(*on.runtime, on.number, ordinal)
                        : context->devices().stream(*on.runtime, on.number, 2 * ordinal),
                beside, context->devices().scratch(*on.runtime, on.number),
                context->devices().arena_on(*on.runtime, on.number)};
  });
  served.stream = ours.stream;
  served.beside = ours.beside;
  served.scratch = ours.scratch;
  served.arena.base = ours.arena;
}

std::vector<ccl::IslandMember> members_of(const Agreement &agreement) {
  std::vector<ccl::IslandMember> members;
  for (const int q : agreement.island->ranks) {
    const RankBlob &theirs = agreement.ranks[static_cast<size_t>(q)];
    members.push_back({theirs.info.host, theirs.info.pid, theirs.library_terms});
  }
  return members;
}

// Before the look whether the process is lost: who lets go of a lost one looks whether somebody holds it.
void hold(bootstrap::Peer &process, Wiring &wiring) {
  wiring.holds.push_back(process.take_hold());
  if (process.lost.load(std::memory_order_acquire)) fail(Code::PeerLost, "{}", process.lost_text());
}

// What a rank's ballot carries. From the first rank of an island the library's id follows.
struct Means {
  uint64_t staging = 0;        // bytes of the rank's staging memory
  uint64_t round_trip_us = 0;  // to the rank that is farthest from this one, by TCP; 0: there is none
};

Blob pack(const Means &mine, const Blob &id) {
  Blob out(sizeof mine);
  std::memcpy(out.data(), &mine, sizeof mine);
  out.insert(out.end(), id.begin(), id.end());
  return out;
}

uint64_t longest_round_trip_us(std::span<bootstrap::Peer *const> processes) {
  int64_t longest = 0;
  for (const auto *process : processes)
    if (process) longest = std::max(longest, process->round_trip_ns.load(std::memory_order_relaxed));
  return static_cast<uint64_t>(longest / 1000);
}

void read_ballots(const Invitation &invitation, const Agreement &agreement, std::vector<Ballot> ballots, Wiring &wiring) {
  wiring.least_staging = UINT64_MAX;
  std::string without;  // memory
  for (size_t q = 0; q < ballots.size(); ++q) {
    Blob &extra = ballots[q].extra;
    Means theirs;
    if (extra.size() < sizeof theirs)
      fail(Code::Mismatch, "init of '{}': rank {} did not say what staging memory it has", invitation.name,
           agreement.number(q));
    std::memcpy(&theirs, extra.data(), sizeof theirs);
    wiring.least_staging = std::min(wiring.least_staging, theirs.staging);
    wiring.round_trip_us = std::max(wiring.round_trip_us, theirs.round_trip_us);
    if (agreement.island && static_cast<size_t>(agreement.island->ranks[0]) == q)
      wiring.library_id.assign(extra.begin() + sizeof theirs, extra.end());
    if (ballots[q].vote == Ballot::Vote::NoMemory)
      without += formatted("{}{}", without.empty() ? "" : ", ", agreement.number(q));
  }
  wiring.all_share_memory = without.empty();
  if (!wiring.all_share_memory && agreement.bridge == topology::Bridge::Shm)
    fail(Code::Config,
         "init of '{}': ISTHMUS_BRIDGE=shm, and rank {} cannot share memory with others of its host, whose log says why; "
         "ISTHMUS_BRIDGE=auto takes TCP there",
         invitation.name, without);
}

// Looks whether a rank has gone that this rank is connected with. A rank that gives up because of another one shuts Isthmus down. So a rank that
// has only said farewell is the cause when no other has been found for some time. So is `own`, the trouble of this rank, which may have no
// connection with the rank that has gone.
class WatchOverPeers {
 public:
  WatchOverPeers(const Invitation &invitation, const Agreement &agreement, const Wiring &wiring, const Status &own)
      : name_(invitation.name), rank_(invitation.number()) {
    if (own.code == Code::PeerLost) own_ = own;
    for (size_t q = 0; q < wiring.processes.size(); ++q) {
      const topology::RankInfo &theirs = agreement.ranks[q].info;
      if (const auto *process = wiring.processes[q])
        peers_.push_back({process, formatted("rank {} (pid {} on {})", agreement.number(q), theirs.pid, theirs.hostname)});
    }
  }
  Status operator()() {
    const WatchedPeer *left = nullptr;
    for (const WatchedPeer &w : peers_) {
      if (!w.process->lost.load()) continue;
      if (!w.process->said_farewell()) return gone(w);
      if (!left) left = &w;
    }
    if (!left && own_.ok()) return {};
    if (left_since_ns_ == 0) left_since_ns_ = now_ns();
    if (now_ns() - left_since_ns_ < kOthersMayFollowNs) return {};
    return own_.ok() ? gone(*left) : own_;
  }

 private:
  struct WatchedPeer {
    const bootstrap::Peer *process;
    std::string who;
  };
  static constexpr int64_t kOthersMayFollowNs = 1'000'000'000;

  Status gone(const WatchedPeer &w) const {
    return {Code::PeerLost,
            formatted("init of '{}' on rank {}: {} is gone: {}", name_, rank_, w.who, w.process->lost_text())};
  }

  std::string name_;
  int rank_;
  Status own_;
  std::vector<WatchedPeer> peers_;
  int64_t left_since_ns_ = 0;
};

// Ranks that are threads of one process count once.
class ProcessesOnHosts {
 public:
  explicit ProcessesOnHosts(const Agreement &agreement) {
    for (const RankBlob &one : agreement.ranks) all_ += hosts_[one.info.host].insert(one.info.process).second;
  }
  bootstrap::NearWay between(const RankBlob &mine, const RankBlob &theirs) const {
    if (mine.info.host == theirs.info.host) return {};  // nothing between them passes an interface
    return {mine.endpoint.rate, theirs.endpoint.rate, std::max(on(mine.info.host), process::noted_local_ranks()),
            on(theirs.info.host), all_};
  }

 private:
  int on(const std::string &host) const { return static_cast<int>(hosts_.at(host).size()); }
  std::map<std::string, std::set<std::string>> hosts_;
  int all_ = 0;
};

}  // namespace

void connect(const Invitation &invitation, const Offer &offer, const Agreement &agreement, const Map &map, Reach most,
             std::vector<bootstrap::Peer *> &processes, Attempts &attempt) {
  std::vector<process::Wanted> wanted;
  std::vector<size_t> ranks;  // of the same place
  const auto asked = static_cast<int>(invitation.settings.integer(Setting::TcpStreams));
  const ProcessesOnHosts on_hosts(agreement);
  for (size_t q = 0; q < agreement.ranks.size(); ++q) {
    const RankBlob &theirs = agreement.ranks[q];
    if (theirs.info.process == offer.blob.info.process) continue;
    process::Wanted one{
        &theirs.endpoint, most == Reach::MemoryToo && theirs.info.host == offer.blob.info.host, {}, nullptr, {}};
    if (map.streamed(invitation.rank, static_cast<int>(q)))
      one.streams.emplace(process::Streams{
          agreement.carrier(), {asked, bootstrap::streams_near(on_hosts.between(offer.blob, theirs))}, theirs.ucx});
    wanted.push_back(std::move(one));
    ranks.push_back(q);
  }
  attempt.any_way([&] {
    process::Context &context = *invitation.context;
    process::connect_all(context.links(), context.mesh(), wanted, agreement.ranks[0].key, invitation.deadline,
                         [&] { invitation.exchange.look(); });
  });
  for (size_t i = 0; i < wanted.size(); ++i) {
    processes[ranks[i]] = wanted[i].peer;
    if (wanted[i].why)
      attempt.any_way([&] {
        try {
          std::rethrow_exception(wanted[i].why);
        } catch (const Error &e) {  // the mesh names a process, and users know ranks
          const RankBlob &theirs = agreement.ranks[ranks[i]];
          throw Error(e.code(), formatted("rank {} (pid {} on {}): {}", theirs.number.slot, theirs.info.pid,
                                          theirs.info.hostname, e.text()));
        }
      });
  }
}

void await_links(const Invitation &invitation, const Agreement &agreement, std::span<bootstrap::Peer *const> processes) {
  if (agreement.carrier() != process::Carrier::Ucx) return;
  bool looks = false;  // what a look throws is not about the rank that is waited for
  const auto look = [&] {
    looks = true;
    invitation.exchange.look();
    looks = false;
  };
  for (size_t q = 0; q < processes.size(); ++q) try {
      if (processes[q]) invitation.context->links().await_ucx(*processes[q], invitation.deadline, look);
    } catch (const Error &e) {
      if (looks) throw;
      const topology::RankInfo &theirs = agreement.ranks[q].info;
      throw Error(e.code(),
                  formatted("rank {} (pid {} on {}): {}", agreement.number(q), theirs.pid, theirs.hostname, e.text()));
    }
}

Wiring wire(const Invitation &invitation, const Offer &offer, const Agreement &agreement) {
  const auto &context = invitation.context;
  const Device &device = offer.device;
  Wiring wiring;
  Attempts attempt(invitation);
  Ballot mine;
  Blob id;
  const bool new_library = agreement.island && !agreement.library_goes_on;
  if (agreement.library_goes_on) wiring.served.stream = offer.estate.library.stream;
  attempt([&] {
    if (new_library) offer.library->settle(members_of(agreement));
  });
  attempt([&] {
    if (new_library && agreement.island->ranks[0] == invitation.rank)
      id = asked<Blob>(device, invitation.deadline,
                       [library = offer.library, number = device.number] { return library->make_id(number); });
  });
  wiring.processes.assign(agreement.ranks.size(), nullptr);
  connect(invitation, offer, agreement, agreement.map, Reach::MemoryToo, wiring.processes, attempt);
  for (size_t q = 0; q < wiring.processes.size(); ++q) {
    bootstrap::Peer *const process = wiring.processes[q];
    if (!process) continue;
    attempt([&] { hold(*process, wiring); });
    if (agreement.ranks[q].info.host == offer.blob.info.host && !process->arena) mine.vote = Ballot::Vote::NoMemory;
  }
  attempt([&] { await_links(invitation, agreement, wiring.processes); });
  invitation.exchange.watch(WatchOverPeers(invitation, agreement, wiring, attempt.trouble()));
  // Before the vote: a rank that waits inside a library would take a rank without a stream for late.
  attempt([&] {
    if (agreement.island || !device.host()) open_streams(invitation, device, agreement, wiring.served);
  });
  // From here on the other ranks can tell this rank that they fail. A rank that has the ballots knows that all ranks listen.
  wiring.failed_elsewhere = context->ranks().making(offer.blob.index, agreement.ranks[0].epoch);
  mine.trouble = attempt.trouble();
  // A device may have pinned less of the staging memory than was wanted.
  mine.extra = pack(Means{context->arena().staging_limit(), longest_round_trip_us(wiring.processes)}, id);
  read_ballots(invitation, agreement, vote(invitation, std::move(mine)), wiring);
  return wiring;
}

}  // namespace isthmus::comm::join
