#include "comm/join/seat.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/log.hpp"
#include "comm/join/library.hpp"
#include "engine/mailbox.hpp"
#include "process/processors.hpp"

namespace isthmus::comm::join {
namespace {

using bootstrap::Blob;

constexpr uint64_t kLeastPart = 32 * 1024;  // of a message in a receive slot; smaller ones travel with their frames

// For so long a rank waits to hear from those that are out. One that lives and has not left may still come to the ring.
constexpr int64_t kOutNs = 1'000'000'000;

// What the parts of this step share.
struct Making {
  const Invitation &invitation;
  Offer &offer;
  const Agreement &agreement;
  Wiring &wiring;
  Map map;
  Terms terms;

  process::Context &context() const { return *invitation.context; }
  size_t world() const { return agreement.ranks.size(); }
  // The ranks that share memory with `rank`, and itself.
  std::vector<int> sharing(int rank) const {
    std::vector<int> ranks;
    for (int q = 0; q < static_cast<int>(world()); ++q)
      if (topology::share_memory(map.memory, rank, q)) ranks.push_back(q);
    return ranks;
  }
  std::vector<int> sharing() const { return sharing(invitation.rank); }
  // How many ranks share memory where most do.
  size_t most_sharing() const {
    std::vector<size_t> ranks(world());
    for (const int first : map.memory.memory_of) ++ranks[static_cast<size_t>(first)];
    return *std::max_element(ranks.begin(), ranks.end());
  }
};

// Outputs are written past the caches where the outputs of the host's ranks are together twice the host's last cache. Measured: with a limit of a
// quarter of that the speed is half, since the reader then finds nothing in the cache.
uint64_t stream_threshold(int local_ranks) {
  // The last cache as one processor sees it, in KiB. sysconf() tells the sum of a socket's caches, and on some a core reaches a twelfth of them.
  uint64_t kib = 0;
  std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kib;
  const uint64_t bytes = kib > 0 ? std::clamp<uint64_t>(kib << 10, 8 << 20, 512 << 20) : 32 << 20;
  return 2 * bytes / static_cast<uint64_t>(std::max(local_ranks, 1));
}

// Where one pair of ranks cannot share memory, no rank shares memory: each process is a host of its own, and everything goes over TCP.
void share_no_memory(Making &m, Attempts &attempt) {
  const Invitation &invitation = m.invitation;
  ISTHMUS_WARN("communicator '{}': processes of one host cannot share memory (see above), so everything goes over TCP",
               invitation.name);
  std::vector<topology::RankInfo> infos = m.agreement.infos;
  for (auto &i : infos) i.host += "/" + i.process;
  const topology::Bridge bridge = m.agreement.bridge;
  m.map =
      make_map(infos, bridge == topology::Bridge::Shm ? topology::Bridge::Auto : bridge, invitation.settings, MapOf::Part);
  connect(invitation, m.offer, m.agreement, m.map, Reach::TcpAlone, m.wiring.processes, attempt);
  attempt([&] { await_links(invitation, m.agreement, m.wiring.processes); });
}

void settle_terms(Making &m, uint64_t far_us) {
  Terms &terms = m.terms;
  std::vector<int> members;
  for (const RankBlob &rank : m.agreement.ranks) members.push_back(rank.number.slot);
  terms.numbering = Numbering(std::move(members), m.agreement.ranks[0].number.slots);
  terms.choose_leader_bytes(m.agreement.ranks, m.map.topology);
  // Of UCX nobody knows the round trip.
  const bool ucx = m.agreement.carrier() == process::Carrier::Ucx && !m.wiring.all_share_memory;
  const uint64_t round_trip_us = m.wiring.round_trip_us;
  if (!ucx && (round_trip_us == 0 || round_trip_us < far_us)) terms.choose_pace(m.map.topology);
  terms.libraries = topology::has_libraries(m.map.topology);
  terms.devices = topology::has_devices(m.map.topology);
  const auto &infos = m.agreement.infos;
  const auto fnuz = std::find_if(infos.begin(), infos.end(), [](const topology::RankInfo &info) { return info.fnuz; });
  if (fnuz != infos.end()) terms.fnuz_rank = static_cast<int>(fnuz - infos.begin());
}

struct Ring {
  RingPlace place;
  uint64_t bytes = 0;    // of the ring and the receive slots behind the ring
  uint64_t part = 0;     // a longer message travels in several parts; 0: no rank works on a device's memory
  bool goes_on = false;  // it is the ring of the epoch that ends, which devices of other ranks have registered
  Rollback give_back;
};

// Whether the ring of the epoch that ends holds a ring of `most` bytes, and nothing comes to it any more. Devices of other ranks need not
// register it again.
bool ring_goes_on(const Making &m, uint64_t most) {
  const rank::Estate &estate = m.offer.estate;
  if (!estate.quiet || estate.ring == 0 || estate.ring_room < most) return false;
  rank::Rank &ends = *m.invitation.parent->ends;
  const auto world = static_cast<size_t>(ends.id().world);
  const auto quiet = std::make_unique<bool[]>(world);
  for (const RankBlob &theirs : m.agreement.ranks)
    if (theirs.before >= 0 && static_cast<size_t>(theirs.before) < world)
      quiet[static_cast<size_t>(theirs.before)] = theirs.quiet;
  return ends.succession().ring_is_free({quiet.get(), world}, std::min(now_ns() + kOutNs, m.invitation.deadline.ns()));
}

// Where some ranks work on devices, each rank that shares memory with others keeps a ring at a fixed place that devices reach. Behind the
// ring lie receive slots for each other rank that shares the memory, all together 1/32 of the staging memory. Parts of messages are as long on a
// host with few ranks as they are where most ranks share memory, since all must cut messages alike.
Ring take_ring(const Making &m) {
  Ring ring;
  if (!m.terms.devices) return ring;
  const uint64_t chunk = m.terms.chunk_bytes, staging = m.wiring.least_staging;
  ring.part = 8 * chunk;
  const uint64_t most = (plan::most_ring_bytes(chunk, plan::kDeviceSlots) + 4095) / 4096 * 4096;
  // The least staging memory of all ranks decides.
  const size_t most_ranks = m.most_sharing();
  if (most_ranks < 2 || most > most_fixed_ring(staging)) return ring;
  const uint64_t others = m.sharing().size() - 1, share = staging / 32 / (most_ranks - 1);
  uint64_t slots = 0;
  if (const uint64_t quarter = share / 4 / 4096 * 4096; quarter >= kLeastPart) {
    ring.part = std::min(ring.part / 4096 * 4096, quarter);
    slots = std::min<uint64_t>(share / ring.part, messages::kMostRecvSlots);
  }
  if (others == 0) return ring;
  if (ring_goes_on(m, most)) {
    const rank::Estate &estate = m.offer.estate;
    if (const uint64_t fit = std::min(slots, (estate.ring_room - most) / (others * ring.part)); fit > 0 || slots == 0) {
      ring.bytes = estate.ring_room;
      ring.place = {estate.ring, most, ring.bytes, fit};
      ring.goes_on = true;
      return ring;
    }
  }
  // Where one library serves all ranks, few operations need the ring: other communicators come first.
  const int part_of = m.agreement.island && m.agreement.island->ranks.size() == m.world() ? 4 : 2;
  ring.bytes = most + others * slots * ring.part;
  uint64_t at = m.context().staging().take_fixed_ring(ring.bytes, part_of);
  if (at == 0) {
    ring.bytes = most;
    slots = 0;
    at = m.context().staging().take_fixed_ring(ring.bytes, part_of);
  }
  if (at == 0) return ring;
  ring.place = {at, most, ring.bytes, slots};
  ring.give_back =
      Rollback([context = m.invitation.context, at, bytes = ring.bytes] { context->staging().give_fixed_ring(at, bytes); });
  return ring;
}

rank::RankSetup setup_of(Making &m, const Ring &ring) {
  const Settings &settings = m.invitation.settings;
  rank::RankSetup setup;
  setup.context = m.invitation.context;
  setup.topology = m.map.memory;
  setup.rank = m.invitation.rank;
  setup.index = m.offer.blob.index;
  setup.epoch = m.agreement.ranks[0].epoch;
  setup.name = m.invitation.name;
  setup.mailbox_offset = m.offer.blob.mailbox;
  setup.cell_bytes = m.terms.eager_bytes;
  setup.part_bytes = ring.part;
  setup.fixed_ring = ring.place.offset;
  setup.fixed_ring_bytes = ring.bytes;
  setup.island = std::move(m.wiring.served);
  for (const int g : m.map.topology.island_of) {
    const topology::Island &island = m.map.topology.islands[static_cast<size_t>(g)];
    setup.served_in.push_back(!island.ccl.empty() && island.ranks.size() > 1 ? g : -1);
  }
  setup.group_wait_ns = settings.integer(Setting::GroupWaitMs) * 1'000'000;
  setup.library_messages = settings.text(Setting::LibraryMessages) == "on";
  // Plans send up to four chunks ahead, in accumulator width (four times that of float8), chunks of up to four times the setting.
  setup.credit_window = std::max(static_cast<uint64_t>(settings.integer(Setting::TcpCreditBytes)),
                                 (m.terms.libraries || m.terms.devices || m.terms.far ? 256 : 64) * m.terms.chunk_bytes);
  return setup;
}

// Makes the Rank. From then on the Rank has the index, the mailbox and the ring, and gives them back.
void make_rank(Making &m, Ring &ring, Seat &seat) {
  const auto setup = std::make_shared<rank::RankSetup>(setup_of(m, ring));
  seat.rank = asked<std::shared_ptr<rank::Rank>>(m.offer.device, m.invitation.deadline,
                                                 [setup] { return std::make_shared<rank::Rank>(std::move(*setup)); });
  seat.rank->succession().borrowed({m.agreement.library_goes_on, ring.goes_on});
  seat.leave = Rollback([local = seat.rank, seconds = m.invitation.settings.real(Setting::Timeout)] {
    local->succession().give_back();
    local->leave(now_ns() + seconds_to_ns(seconds));
  });
  m.offer.index.keep();
  m.offer.mailbox.keep();
  ring.give_back.keep();
}

// Where this rank finds the mailbox of rank `q`, and the link by which frames go to rank `q`.
void reach_peer(const Making &m, size_t q, engine::PeerRank &p) {
  p.process = m.wiring.processes[q];
  if (p.process) p.hold = p.process->hold;
  p.their_index = m.agreement.ranks[q].index;
  auto &arena = m.context().arena();
  std::byte *base = p.process ? p.process->arena.data() : arena.base();
  const size_t size = p.process ? p.process->arena.size() : arena.bytes();
  if (base && !m.map.streamed(m.invitation.rank, static_cast<int>(q))) {
    const uint64_t at = m.agreement.ranks[q].mailbox, bytes = mailbox_bytes(m.invitation);
    if (at % 64 != 0 || bytes > size || at > size - bytes)
      fail(Code::Mismatch, "rank {} announced a mailbox outside its shared memory", m.agreement.number(q));
    p.arena = base;
    p.mail = std::launder(reinterpret_cast<engine::Mailbox *>(base + at));
    p.bell = &link::Arena::doorbell_of(base);
  }
  p.link = m.context().links().link_to(p.process, p.process && p.arena ? process::Carrier::Memory : m.agreement.carrier());
}

void reach_peers(Making &m, rank::Rank &local) {
  const RankBlob &mine = m.offer.blob;
  for (size_t q = 0; q < m.world(); ++q) reach_peer(m, q, local.peers()[q]);
  local.open_peers();
  const auto on_host =
      static_cast<int>(std::count_if(m.agreement.ranks.begin(), m.agreement.ranks.end(),
                                     [&](const RankBlob &theirs) { return theirs.info.host == mine.info.host; }));
  process::note_local_ranks(on_host);
  const auto here =
      static_cast<int>(std::count_if(m.agreement.ranks.begin(), m.agreement.ranks.end(), [&](const RankBlob &theirs) {
        return theirs.info.host == mine.info.host && theirs.info.process == mine.info.process;
      }));
  const int spare = process::spare_processors(here, on_host);
  m.context().helpers().want(m.terms.devices || m.context().data_streams().several() ? spare : 0);
  m.terms.stream_bytes = stream_threshold(on_host);
}

// What rank `q` has said of its ring. Throws Error(Mismatch) for a ring that is not in its shared memory.
RingPlace read_place(const Making &m, size_t q, const Blob &theirs, uint64_t part) {
  RingPlace p;
  if (theirs.size() != sizeof p)
    fail(Code::Mismatch, "init of '{}': rank {} sent no place of a ring", m.invitation.name, m.agreement.number(q));
  std::memcpy(&p, theirs.data(), sizeof p);
  const auto *process = m.wiring.processes[q];
  const size_t size = process ? process->arena.size() : m.context().arena().bytes();
  const uint64_t others = m.sharing().size() - 1;
  const uint64_t behind = p.slots <= messages::kMostRecvSlots ? others * p.slots * part : size;
  if (p.offset % 4096 != 0 || p.bytes > size || behind > size - p.bytes || p.room < p.bytes + behind || p.room > size ||
      p.offset > size - p.room)
    fail(Code::Mismatch, "rank {} announced a ring outside its shared memory", m.agreement.number(q));
  return p;
}

// Behind the vote. The other ranks have heard that all went well, so this rank tells them where it fails here.
void settle_rings(Making &m, const std::vector<Ballot> &ballots, uint64_t part, rank::Rank &local) {
  std::vector<int> sharing = m.sharing();
  if (!m.terms.devices || (sharing.size() < 2 && !m.map.memory.flat)) return;
  const Invitation &invitation = m.invitation;
  std::vector<RingPlace> places(m.world());
  for (const int q : sharing) {
    const auto at = static_cast<size_t>(q);
    places[at] = read_place(m, at, ballots[at].extra, part);
  }
  try {
    const bool guard = invitation.settings.text(Setting::GuardSlots) == "on";
    fix_rings(local, m.terms,
              {invitation.context, std::move(places), std::move(sharing), part, m.offer.device, invitation.deadline, guard});
  } catch (const Error &e) {
    const std::string text = formatted("init of '{}' on rank {}: {}", invitation.name, invitation.number(), e.text());
    local.core().fail(e.code(), text, process::Tell::Peers);
    throw Error(e.code(), text);
  }
}

// How many data connections this rank has with each of those that it reaches by TCP: "1", or "1 to 3".
std::string streams_text(const Making &m) {
  const auto &processes = m.wiring.processes;
  size_t least = SIZE_MAX, most = 0;
  for (const process::DataStreams::OfPeer &of : m.context().data_streams().report()) {
    if (std::find(processes.begin(), processes.end(), of.peer) == processes.end()) continue;
    least = std::min(least, of.streams.size());
    most = std::max(most, of.streams.size());
  }
  return least < most ? formatted("{} to {}", least, most) : std::to_string(most);
}

void note_made(const Making &m, const std::string &library) {
  const topology::RankInfo &mine = m.offer.blob.info;
  const Device &device = m.offer.device;
  const size_t islands = m.map.topology.islands.size();
  const bool flat = m.map.memory.flat, ucx = m.agreement.carrier() == process::Carrier::Ucx;
  ISTHMUS_INFO("communicator '{}': rank {} of {} on {}{}, {} island{}{}{}, {}{}; tcp streams {}", m.invitation.name,
               m.invitation.number(), m.offer.blob.number.slots, mine.hostname,
               device.host() ? "" : formatted(", {} ({})", device.text(), mine.device_name), islands,
               islands == 1 ? "" : "s", mine.island.empty() ? "" : " (this rank: " + mine.island + ")", library,
               flat  ? "all in shared memory"
               : ucx ? "shared memory inside, ucx between them"
                     : "shared memory inside, tcp between them",
               m.map.topology.measured ? ", bridges weighed by profiles" : "", flat || ucx ? "0" : streams_text(m));
}

}  // namespace

Seat take_seat(const Invitation &invitation, Offer &offer, const Agreement &agreement, Wiring wiring) {
  Making m{invitation, offer, agreement, wiring, agreement.map, {}};
  m.terms.eager_bytes = static_cast<uint64_t>(invitation.settings.integer(Setting::EagerBytes));
  m.terms.choose_chunk(m.context(), agreement.ranks, static_cast<uint64_t>(invitation.settings.integer(Setting::ChunkBytes)),
                       wiring.least_staging, wiring.all_share_memory ? m.most_sharing() : 1);
  const auto far_us = static_cast<uint64_t>(invitation.settings.integer(Setting::FarMicros));
  m.terms.choose_far(m.context(), invitation.name, wiring.round_trip_us, far_us, wiring.least_staging, agreement.ranks);
  Attempts attempt(invitation);
  if (agreement.island) join_library(invitation, offer, agreement, m.terms, wiring, attempt);
  if (!wiring.all_share_memory) share_no_memory(m, attempt);
  settle_terms(m, far_us);
  Seat seat;
  Ring ring;
  attempt([&] {
    ring = take_ring(m);
    make_rank(m, ring, seat);
    reach_peers(m, *seat.rank);
    m.context().ranks().set(offer.blob.index, seat.rank->port().itself().lock());
  });
  attempt([&] {
    if (!offer.device.host()) process::refuse_stuck(*offer.device.runtime, offer.device.number);
  });
  // No frame for this rank may come before all ranks have come to this point: a frame for an unknown index is dropped.
  Ballot mine{Ballot::Vote::Fine, attempt.trouble(), Blob(sizeof ring.place)};
  std::memcpy(mine.extra.data(), &ring.place, sizeof ring.place);
  const std::vector<Ballot> ballots = vote(invitation, std::move(mine));
  settle_rings(m, ballots, ring.part, *seat.rank);
  for (auto *peer : wiring.processes)
    if (peer && peer->lost.load()) seat.rank->events().lost(*peer, peer->lost_text());
  note_made(m, served_by(offer, agreement));
  seat.topology = std::move(m.map.topology);
  seat.terms = std::move(m.terms);
  return seat;
}

}  // namespace isthmus::comm::join
