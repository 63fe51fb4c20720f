#include "comm/communicator.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "ccl/libraries.hpp"
#include "comm/blob.hpp"
#include "comm/launcher.hpp"
#include "comm/profile.hpp"
#include "device/host.hpp"
#include "device/runtimes.hpp"
#include "net/address.hpp"
#include "net/protocol.hpp"
#include "topology/profile.hpp"

namespace isthmus::comm {
namespace {

using bootstrap::Blob;

std::string host_id(const bootstrap::Endpoint &e) { return hex(e.host); }

// Outputs are written past the caches where those of the host's ranks are twice its last cache. Measured: a quarter of it costs half the
// speed, since the reader then finds nothing there.
uint64_t stream_threshold(int local_ranks) {
  // What one processor sees of it, in KiB; sysconf() tells the sum of a socket's, of which a core reaches a twelfth on some.
  uint64_t kib = 0;
  std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kib;
  const uint64_t bytes = kib > 0 ? std::clamp<uint64_t>(kib << 10, 8 << 20, 512 << 20) : 32 << 20;
  return 2 * bytes / static_cast<uint64_t>(std::max(local_ranks, 1));
}

// The entries of `rates` for islands that are in `t`: a communicator made by split need not have them all.
std::string part_of_rates(const topology::Topology &t, std::string_view rates) {
  std::string out;
  while (!rates.empty()) {
    const size_t comma = rates.find(',');
    const std::string_view entry = rates.substr(0, comma), label = entry.substr(0, entry.rfind(':'));
    rates = comma == std::string_view::npos ? std::string_view{} : rates.substr(comma + 1);
    if (std::none_of(t.ranks.begin(), t.ranks.end(), [&](const auto &r) { return topology::island_of(r) == label; }))
      continue;
    if (!out.empty()) out += ',';
    out += entry;
  }
  return out;
}

// Takes what the profile that the settings name says of this rank; nothing where they name none. Throws Error(Config).
void read_rates(const Settings &settings, topology::RankInfo &info) {
  const std::string &path = settings.text(Setting::Profile);
  if (path.empty()) return;
  const topology::Profile profile = topology::parse_profile(read_profile(path), path);
  if (profile.host != info.hostname)
    ISTHMUS_WARN("ISTHMUS_PROFILE={}: it was measured on {}, and this is {}", path, profile.host, info.hostname);
  info.rates = topology::rates_of(profile, info.device);
  info.star = profile.star;
}

// What a rank's settings say of the star; -1: nothing.
int64_t given_star(const Settings &settings) {
  const int64_t star = settings.integer(Setting::StarBytes);
  return star < 0 && settings.is_set(Setting::EagerBytes) ? settings.integer(Setting::EagerBytes) : star;
}

// Declared rates, else those of the profiles. `part`: `t` need not have all islands that were declared.
void weigh_bridges(topology::Topology &t, const std::string &declared, bool part) {
  if (declared.empty()) topology::apply_profiles(t);
  else topology::apply_rates(t, part ? part_of_rates(t, declared) : declared);
}

// A profile that some ranks have and others have not changes nothing, which nobody would notice.
void note_missing_profiles(const topology::Topology &t, const std::string &name) {
  const int missing = topology::unmeasured_rank(t);
  const bool some = std::any_of(t.ranks.begin(), t.ranks.end(), [](const topology::RankInfo &r) {
    return r.rates[topology::Rate::Memory] > 0 || r.rates[topology::Rate::Tcp] > 0;
  });
  if (missing < 0 || !some) return;
  const topology::RankInfo &info = t.ranks[static_cast<size_t>(missing)];
  ISTHMUS_WARN(
      "communicator '{}': rank {} ({} on {}) has no profile with its bridge's rates (ISTHMUS_PROFILE): none is used", name,
      missing, info.device, info.hostname);
}

constexpr uint64_t kLeastPart = 32 * 1024;  // of a message in a window; smaller ones travel with their frames

uint32_t random32() {
  const bootstrap::Bytes16 bytes = bootstrap::random_bytes16();
  uint32_t number;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// Every rank must be able to take part, run the same protocol and the same agreed settings; the text names who differs.
void compare(const std::vector<RankBlob> &ranks) {
  for (const auto &rank : ranks)
    if (!rank.trouble.ok()) throw Error(rank.trouble.code, rank.trouble.text);
  for (size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].protocol != ranks[0].protocol)
      fail(Code::Mismatch,
           "rank 0 speaks protocol version {}, rank {} version {}; install the same version of Isthmus everywhere",
           ranks[0].protocol, r, ranks[r].protocol);
    if (ranks[r].members != ranks[0].members || (!ranks[0].members.empty() && ranks[r].name != ranks[0].name)) {
      const auto said = [](const RankBlob &b) {
        return formatted("'{}' of {}", b.name, b.members.empty() ? "unnamed members" : b.members);
      };
      fail(Code::Mismatch,
           "ranks that met here are not of one communicator: rank 0 is to make {}; rank {} is to make {}. Look at the calls "
           "that "
           "make groups (new_group, shrink, init): every rank has to make them in the same order, with the same ranks in "
           "the same "
           "order",
           said(ranks[0]), r, said(ranks[r]));
    }
    if (ranks[r].settings != ranks[0].settings)
      fail(Code::Mismatch, "settings that must be equal on all ranks differ: {}",
           differing(ranks[0].settings, ranks[r].settings, r));
  }
}

// What a rank says at the end of a step of init.
struct Ballot {
  enum class Vote : uint8_t { Fine = 1, NoMemory = 2, Failed = 3 };
  Vote vote = Vote::Fine;
  Status trouble;
  Blob extra;  // for the next step

  Blob pack() const {
    Blob out{static_cast<std::byte>(vote), std::byte{static_cast<uint8_t>(trouble.code)}, std::byte{}, std::byte{}};
    const std::string text = trouble.text.substr(0, 4096);
    const auto length = static_cast<uint16_t>(text.size());
    std::memcpy(out.data() + 2, &length, sizeof length);
    const auto *bytes = reinterpret_cast<const std::byte *>(text.data());
    out.insert(out.end(), bytes, bytes + text.size());
    out.insert(out.end(), extra.begin(), extra.end());
    return out;
  }
  static Ballot unpack(const Blob &blob, const std::string &name, size_t rank) {
    uint16_t length = 0;
    if (blob.size() >= 4) std::memcpy(&length, blob.data() + 2, sizeof length);
    if (blob.size() < size_t{4} + length)
      fail(Code::Mismatch, "init of '{}': rank {} sent a vote that cannot be read", name, rank);
    const auto *text = reinterpret_cast<const char *>(blob.data()) + 4;
    return {static_cast<Vote>(blob[0]),
            {static_cast<Code>(blob[1]), std::string(text, length)},
            Blob(blob.begin() + 4 + length, blob.end())};
  }
};

// Ends a step of init on all ranks alike: each says whether it could do its part, and where one could not, all throw that one's reason,
// so that nobody takes its end for the cause. Nor is who waited in vain the cause where another has failed. Returns the ballots.
std::vector<Ballot> vote(bootstrap::Exchange &exchange, const std::string &name, Status trouble, bool no_memory, Blob extra,
                         Deadline deadline) {
  using Vote = Ballot::Vote;
  const Ballot mine{!trouble.ok() ? Vote::Failed : no_memory ? Vote::NoMemory : Vote::Fine, trouble, std::move(extra)};
  std::vector<Blob> votes;
  try {
    votes = exchange.all_gather(mine.pack(), deadline);
  } catch (const Error &e) {
    if (trouble.ok()) throw;
    if (trouble.code == Code::Timeout) trouble.code = e.code();  // who waited in vain knows no cause
    trouble.text += "; the rendezvous ended with: " + e.text();  // it may know who went first
  }
  std::vector<Ballot> out;
  const Status *cause = trouble.ok() ? nullptr : &trouble;
  const auto waited = [](const Status &s) { return s.code == Code::Timeout; };
  for (size_t r = 0; r < votes.size(); ++r) out.push_back(Ballot::unpack(votes[r], name, r));
  for (const Ballot &b : out)
    if (b.vote == Ballot::Vote::Failed && (!cause || (waited(*cause) && !waited(b.trouble)))) cause = &b.trouble;
  if (cause) throw Error(cause->code, cause->text);
  return out;
}

// The device that the settings name: its runtime and number; no runtime: the host.
struct Device {
  device::Runtime *runtime = nullptr;
  int number = 0;
  bool host() const noexcept { return runtime == nullptr; }
  std::string text() const { return host() ? "host" : formatted("{}:{}", runtime->vendor(), number); }
};

// In seconds: short of the vote's deadline, so that all hear how it ended.
double early(Deadline deadline) { return 0.8 * static_cast<double>(deadline.left_ns()) * 1e-9; }

// What asks a device may be held up for ever by one that hangs: see Context::ask().
template <class T, class F>
T asked(const Device &device, Deadline deadline, F calls) {
  if (device.host()) return calls();
  return engine::Context::asked<T>(*device.runtime, device.number, Deadline(early(deadline)), std::move(calls));
}

// Throws Error(Config) for what names no device, Error(Unsupported) that says what is missing.
Device find_device(const Settings &settings) {
  const std::string &text = settings.text(Setting::Device);
  if (text == "host") return {};
  const std::string vendor = text.substr(0, text.find(':')), number = text.substr(std::min(vendor.size() + 1, text.size()));
  const bool digits = !number.empty() && number.size() < 6 && std::all_of(number.begin(), number.end(), ::isdigit);
  const std::vector<std::string> known = device::vendors();
  if (std::find(known.begin(), known.end(), vendor) == known.end() || (vendor.size() < text.size() && !digits)) {
    std::string names = "host";
    for (const std::string &name : known) names += ", " + name;
    fail(Code::Config, "ISTHMUS_DEVICE={}: must be {}, or one of these with :N, N from 0", text, names);
  }
  Device found{&device::open_runtime(vendor), 0};
  const int count = found.runtime->devices();
  found.number = digits ? std::stoi(number) : std::max(local_rank(), 0) % count;
  if (found.number >= count)
    fail(Code::Config, "ISTHMUS_DEVICE={}: this process sees {} device{} of that vendor (0 to {})", text, count,
         count == 1 ? "" : "s", count - 1);
  return found;
}

// The library that the settings ask for, or null. Throws Error(Unsupported) that says what is missing.
std::shared_ptr<ccl::Library> open_library(const Settings &settings, const bootstrap::Endpoint &self, const Device &device) {
  const std::string &wanted = settings.text(Setting::Ccl), &path = settings.text(Setting::CclLibrary);
  if (wanted == "none" || (wanted == "auto" && device.host())) return nullptr;
  if (!device.host()) {
    const std::string vendor = device.runtime->vendor(), family = wanted == "auto" ? ccl::family_for(vendor) : wanted;
    if (family.empty()) return nullptr;
    if (ccl::vendor_of(family) != vendor)
      fail(Code::Config, "ISTHMUS_CCL={} does not serve ranks on {} (ISTHMUS_DEVICE)", wanted, device.text());
    try {
      return ccl::open_library(family, path, "");
    } catch (const Error &e) {
      if (wanted != "auto" || !path.empty()) throw;
      ISTHMUS_WARN("{}; this rank goes on without a library", e.text());
      return nullptr;
    }
  }
  if (ccl::vendor_of(wanted) != "host")
    fail(Code::Config, "ISTHMUS_CCL={} serves ranks with a device, and this one works on the host: set ISTHMUS_DEVICE",
         wanted);
  // The library's connections take the way that ours take.
  return ccl::open_library(wanted, path, self.tcp.empty() ? std::string() : net::interface_of(self.tcp.front()));
}

// The group of `rank` that a library serves, or null. Throws where the library cannot serve two ranks of it in one process.
const topology::Group *served_group(const topology::Topology &t, int rank) {
  const topology::Group *mine = nullptr;
  for (const auto &g : t.groups) {
    if (g.ccl.empty() || g.ranks.size() < 2) continue;
    for (size_t i = 0; i < g.ranks.size() && !ccl::serves_threads(g.ccl); ++i)
      for (size_t j = 0; j < i; ++j) {
        const auto &a = t.ranks[static_cast<size_t>(g.ranks[j])], &b = t.ranks[static_cast<size_t>(g.ranks[i])];
        if (a.process == b.process && a.host == b.host)
          fail(Code::Unsupported,
               "{}: ranks {} and {} are threads of one process (pid {} on {}), and the library serves one rank a process; "
               "start a process for each rank, or set ISTHMUS_CCL=none",
               g.ccl, g.ranks[j], g.ranks[i], a.pid, a.hostname);
      }
    if (std::find(g.ranks.begin(), g.ranks.end(), rank) != g.ranks.end()) mine = &g;
  }
  return mine;
}

}  // namespace

size_t Communicator::ShapeHash::operator()(const Shape &s) const noexcept {
  uint64_t h = s.bytes * 0x9e3779b97f4a7c15ull;
  h ^= static_cast<uint64_t>(s.collective) << 32 ^ static_cast<uint64_t>(s.dtype) << 24 ^ static_cast<uint64_t>(s.op) << 16 ^
       static_cast<uint64_t>(s.in_place) << 8 ^ static_cast<uint64_t>(s.device) << 9 ^
       static_cast<uint64_t>(static_cast<uint32_t>(s.root)) << 40;
  h ^= s.small_bytes << 12;
  h ^= h >> 29;
  return static_cast<size_t>(h * 0xbf58476d1ce4e5b9ull);
}

std::shared_ptr<Communicator> Communicator::init(const InitOptions &o) {
  const Launch launch = from_environment(o.settings);
  const int rank = o.rank >= 0 ? o.rank : launch.rank, world = o.world >= 0 ? o.world : launch.world;
  if (rank < 0 || world < 0)
    fail(Code::Argument,
         "no rank or world size: start the program with torchrun, mpirun or srun, or give rank, world size and address");
  if (world == 0 || rank >= world)
    fail(Code::Argument, "rank {} of {}: the rank must be from 0 to world size - 1", rank, world);
  set_log_level(o.settings.text(Setting::Log).c_str());
  if (const auto there = engine::Context::current(); !there) {
    set_log_file(o.settings.text(Setting::LogFile));
    forget_log_rank();
  }
  note_log_ranks(std::span(&rank, 1), false);
  const Deadline deadline(o.settings.real(Setting::Timeout));
  std::unique_ptr<bootstrap::Exchange> exchange;
  std::string hint;
  if (o.exchange) {
    exchange = bootstrap::callback_exchange(o.exchange, o.exchange_context, rank, world);
  } else if (o.unique_id) {
    exchange = bootstrap::id_exchange(std::span<const std::byte, 128>(o.unique_id, 128), rank, world, o.settings, deadline);
  } else {
    const std::string address = !o.address.empty() ? o.address : launch.address;
    if (address.empty() && world > 1)
      fail(Code::Argument,
           "no rendezvous address: give address=\"host:port\" (rank 0 listens there) or set ISTHMUS_ADDRESS{}",
           launch.launcher.empty() ? "" : "; " + launch.launcher + " did not say where rank 0 is");
    hint = address;
    if (world > 1) {
      std::vector<std::string> parts = launch.key_parts;
      if (!o.address.empty() || parts.empty()) parts = {"address", address};
      exchange = bootstrap::tcp_exchange(address, rank, world, bootstrap::derive_key(o.settings, parts), o.settings,
                                         deadline, bootstrap::job_name(parts));
    }
  }
  engine::Context::Use use;
  try {
    use = engine::Context::acquire(o.settings, hint);
  } catch (const Error &e) { throw Error(e.code(), formatted("rank {} of {}: {}", rank, world, e.text())); }
  if (world == 1 && !exchange) {
    struct Alone final : bootstrap::Exchange {
      std::vector<Blob> all_gather(const Blob &mine, Deadline) override { return {mine}; }
    };
    exchange = std::make_unique<Alone>();
  }
  return make(*exchange, rank, world, {o.name.empty() ? o.settings.text(Setting::Name) : o.name, o.members}, o.settings,
              std::move(use), nullptr, deadline);
}

std::shared_ptr<Communicator> Communicator::make(bootstrap::Exchange &exchange, int rank, int world, const Title &title,
                                                 const Settings &settings, engine::Context::Use use,
                                                 const Communicator *parent, Deadline deadline) {
  const std::string &name = title.name;
  auto comm = std::shared_ptr<Communicator>(new Communicator);
  comm->settings_ = settings;
  const std::shared_ptr<engine::Context> context = use.context();
  comm->use_ = std::move(use);
  comm->context_ = context;
  comm->eager_bytes_ = static_cast<uint64_t>(settings.integer(Setting::EagerBytes));
  comm->chunk_bytes_ = static_cast<uint64_t>(settings.integer(Setting::ChunkBytes));
  comm->timeout_ = settings.real(Setting::Timeout);
  context->sweep();

  auto &mesh = context->mesh();
  RankBlob mine;
  mine.protocol = net::kProtocolVersion;
  mine.endpoint = mesh.self();
  mine.info.host = host_id(mesh.self());
  mine.info.hostname = mesh.self().hostname;
  mine.info.island = settings.text(Setting::Island);
  mine.info.process = hex(mesh.self().process);
  mine.info.pid = ::getpid();
  mine.settings = settings.agreed_text();
  mine.name = name;
  mine.members = title.members;
  mine.star = given_star(settings);
  mine.epoch = random32();
  mine.key = parent ? parent->key_ : bootstrap::random_bytes16();
  mine.index = context->reserve_index();
  const uint64_t mailbox_bytes = engine::Mailbox::bytes(comm->eager_bytes_, world);
  bool made = false;
  struct Undo {
    engine::Context &context;
    RankBlob &mine;
    bool &made;
    const bootstrap::Bytes16 &key;
    bool mailbox = false, key_added = false;
    uint64_t ring = 0, ring_bytes = 0;
    ~Undo() {
      if (made) return;
      if (mailbox) context.arena().free_mailbox(mine.mailbox);
      if (ring) context.give_fixed_ring(ring, ring_bytes);
      context.release_index(mine.index);
      if (key_added) context.mesh().drop_key(key);
    }
  } undo{*context, mine, made, comm->key_};

  // What goes wrong on this rank is kept until the vote that ends the step, where all hear of it.
  Status trouble;
  const auto attempt = [&](const auto &part) {
    if (!trouble.ok()) return;
    try {
      part();
    } catch (const Error &e) {
      trouble = {e.code(), formatted("init of '{}' on rank {}: {}", name, rank, e.text())};
    } catch (const std::exception &e) {  // no memory, no thread
      trouble = {Code::Resource, formatted("init of '{}' on rank {}: {}", name, rank, e.what())};
    }
  };
  attempt([&] {
    mine.mailbox = context->arena().allocate_mailbox(mailbox_bytes);
    undo.mailbox = true;
  });
  std::shared_ptr<ccl::Library> library;
  Device device;
  attempt([&] {
    device = find_device(settings);
    if (!device.host()) {
      struct About {
        std::string name;
        int numa;
        device::Float8 float8;
      };
      const auto about = asked<About>(device, deadline, [context, on = device] {
        context->begin_on(*on.runtime, on.number);
        return About{on.runtime->describe(on.number), on.runtime->numa(on.number), on.runtime->float8(on.number)};
      });
      mine.info.device = device.text();
      mine.info.maker = device.runtime->maker();
      mine.info.device_name = about.name;
      mine.info.numa = about.numa;
      mine.info.fnuz = about.float8 == device::Float8::Fnuz;
    }
    // A part of a communicator has the parent's: the file may be gone by now, or be another one.
    if (parent) {
      const topology::RankInfo &known = parent->topology_.ranks[static_cast<size_t>(parent->rank())];
      mine.info.rates = known.rates;
      mine.info.star = known.star;
    } else {
      read_rates(settings, mine.info);
    }
    library = open_library(settings, mesh.self(), device);
    if (!library) return;
    if (const Status s = library->usable(); !s.ok()) throw Error(s.code, s.text);
    mine.info.ccl = library->family();
    mine.info.ccl_version = library->version();
    mine.info.ccl_table = ccl::table_of(*library);
  });
  mine.trouble = trouble;  // said before anybody waits for a connection with this rank

  std::vector<RankBlob> ranks;
  const auto blobs = exchange.all_gather(pack(mine), deadline);
  for (size_t r = 0; r < blobs.size(); ++r) ranks.push_back(unpack(blobs[r], static_cast<int>(r)));
  std::vector<int> here;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].info.process == mine.info.process && ranks[r].info.host == mine.info.host)
      here.push_back(static_cast<int>(r));
  note_log_ranks(here, true);
  compare(ranks);
  comm->key_ = ranks[0].key;
  mesh.add_key(comm->key_);
  undo.key_added = true;

  // Connections. Which pairs need memory and which need streams follows from what all ranks know.
  const topology::Bridge bridge = settings.text(Setting::Bridge) == "tcp"   ? topology::Bridge::Tcp
                                  : settings.text(Setting::Bridge) == "shm" ? topology::Bridge::Shm
                                                                            : topology::Bridge::Auto;
  std::vector<topology::RankInfo> infos;
  for (const auto &r : ranks) {
    infos.push_back(r.info);
    if (!r.endpoint.tcp.empty()) infos.back().address = net::split_host_port(r.endpoint.tcp.front()).host;
  }
  // Who shares memory with whom does not depend on libraries: what they cannot do is done as if they were not there.
  comm->topology_ = topology::make_topology(infos, bridge);
  const std::string &rates = settings.text(Setting::BridgeRates);
  weigh_bridges(comm->topology_, rates, parent != nullptr);
  if (rank == 0 && !parent && rates.empty()) note_missing_profiles(comm->topology_, name);
  topology::Topology topology = topology::dissolve(comm->topology_, {});
  const topology::Group *island = served_group(comm->topology_, rank);
  Blob id;
  attempt([&] {
    if (island && island->ranks[0] == rank)
      id = asked<Blob>(device, deadline, [library, number = device.number] { return library->make_id(number); });
  });
  const auto streamed = [&](int q) { return !topology.flat && topology.group_of[q] != topology.group_of[rank]; };
  std::vector<bootstrap::Peer *> processes(ranks.size(), nullptr);
  const int streams = static_cast<int>(settings.integer(Setting::TcpStreams));
  const auto connect = [&](int q, bool shared) {
    attempt([&] {
      try {
        processes[q] = &context->connect(ranks[q].endpoint, comm->key_, shared, streamed(q) ? streams : 0, deadline);
      } catch (const Error &e) {  // the mesh knows processes; users know ranks
        throw Error(e.code(),
                    formatted("rank {} (pid {} on {}): {}", q, ranks[q].info.pid, ranks[q].info.hostname, e.text()));
      }
    });
  };
  // The vote is also the proof that everybody is connected.
  bool no_memory = false;
  for (int q = 0; q < world; ++q) {
    if (ranks[q].info.process == mine.info.process) continue;
    const bool same_host = ranks[q].info.host == mine.info.host;
    connect(q, same_host);
    no_memory |= same_host && processes[q] && !processes[q]->arena;
  }
  // Before the vote: who waits inside a library for a rank that has no stream would take it for late.
  engine::IslandSetup served;
  if (island || !device.host())
    attempt([&] {
      served.runtime = device.host() ? &device::host_runtime() : device.runtime;
      int ordinal = 0;
      for (int q = 0; q < rank; ++q) ordinal += infos[q].process == mine.info.process && infos[q].device == mine.info.device;
      if (device.host()) {
        served.stream = engine::Context::host_stream();
      } else {  // two streams each
        struct Ours {
          std::shared_ptr<device::Stream> stream, beside;
          std::shared_ptr<engine::DeviceScratch> scratch;
          std::byte *arena;
        };
        const auto ours = asked<Ours>(device, deadline, [context, on = device, ordinal] {
          return Ours{context->device_stream(*on.runtime, on.number, 2 * ordinal),
                      context->device_stream(*on.runtime, on.number, 2 * ordinal + 1),
                      context->device_scratch(*on.runtime, on.number), context->arena_on(*on.runtime, on.number)};
        });
        served.stream = ours.stream;
        served.beside = ours.beside;
        served.scratch = ours.scratch;
        served.arena = ours.arena;
      }
      if (device.host()) served.arena = context->arena().base();
    });
  // From here on the others can tell this rank that they fail, and who has the ballots knows that they all listen.
  const auto failed_elsewhere = context->making(mine.index, ranks[0].epoch);
  const uint64_t staging = context->arena().staging_limit();  // of which a device may have pinned less than was wanted
  Blob first(sizeof staging);
  std::memcpy(first.data(), &staging, sizeof staging);
  first.insert(first.end(), id.begin(), id.end());
  std::vector<Ballot> ballots = vote(exchange, name, trouble, no_memory, std::move(first), deadline);
  uint64_t least_staging = UINT64_MAX;
  for (size_t q = 0; q < ballots.size(); ++q) {
    Blob &extra = ballots[q].extra;
    uint64_t theirs = 0;
    if (extra.size() < sizeof theirs)
      fail(Code::Mismatch, "init of '{}': rank {} did not say what staging memory it has", name, q);
    std::memcpy(&theirs, extra.data(), sizeof theirs);
    extra.erase(extra.begin(), extra.begin() + sizeof theirs);
    least_staging = std::min(least_staging, theirs);
  }
  comm->choose_chunk(ranks, least_staging);
  for (const Ballot &b : ballots) no_memory |= b.vote == Ballot::Vote::NoMemory;
  if (no_memory && bridge == topology::Bridge::Shm) {
    std::string who;
    for (size_t q = 0; q < ballots.size(); ++q)
      if (ballots[q].vote == Ballot::Vote::NoMemory) who += formatted("{}{}", who.empty() ? "" : ", ", q);
    fail(Code::Config,
         "init of '{}': ISTHMUS_BRIDGE=shm, and rank {} cannot share memory with others of its host, whose log says why; "
         "ISTHMUS_BRIDGE=auto takes TCP there",
         name, who);
  }
  std::string served_by;
  if (island) {
    served_by = formatted(", served by {} {} ({})", library->family(), library->version(), library->path());
    const std::string versions = topology::unequal_versions(comm->topology_, *island);
    if (!versions.empty() && rank == island->ranks[0] && !parent)
      ISTHMUS_WARN("communicator '{}': {} of one island: libraries of several versions may not understand each other", name,
                   versions);
    served.library = library;
    served.ranks = island->ranks;
    // Of what plans of islands keep on the device, the most is two chunks and a piece (islands.cpp).
    if (!device.host()) served.first_scratch = 48 * comm->chunk_bytes_;
    attempt([&] {
      const auto &by_leader = ballots[static_cast<size_t>(island->ranks[0])].extra;
      const int position = comm->topology_.index_of[static_cast<size_t>(rank)];
      // A join that never comes back must not keep the context.
      const auto hopeless = [while_there = std::weak_ptr(context), failed_elsewhere, processes, members = island->ranks] {
        const auto there = while_there.lock();
        return !there || failed_elsewhere->load() || std::any_of(members.begin(), members.end(), [&](int q) {
          const auto *peer = processes[static_cast<size_t>(q)];
          return peer && peer->lost.load();
        });
      };
      try {
        served.communicator = asked<std::unique_ptr<ccl::Communicator>>(
            device, deadline,
            [library, by_leader, position, size = static_cast<int>(island->ranks.size()), stream = served.stream,
             early = Deadline(0.9 * early(deadline)), hopeless] {
              return library->join({by_leader, position, size, early, hopeless}, stream);
            });
      } catch (const Error &e) {
        for (const int q : island->ranks)
          if (const auto *peer = processes[static_cast<size_t>(q)]; peer && peer->lost.load())
            throw Error(Code::PeerLost, formatted("{}; rank {} is gone: {}", e.text(), q, peer->lost_text()));
        if (versions.empty()) throw;
        throw Error(e.code(), formatted("{}; {}: install one version on all", e.text(), versions));
      }
    });
    if (!trouble.ok() && trouble.code != Code::Timeout)  // they may wait for this rank inside the library
      for (const int q : island->ranks) {
        const auto at = static_cast<size_t>(q);
        if (q != rank) context->tell_failure(processes[at], ranks[at].index, ranks[0].epoch, {trouble});
      }
  }
  if (no_memory) {  // where one pair could not share memory, nobody pretends to
    ISTHMUS_WARN("communicator '{}': processes of one host cannot share memory (see above), so everything goes over TCP",
                 name);
    for (auto &i : infos) i.host += "/" + i.process;
    comm->topology_ = topology::make_topology(infos, bridge == topology::Bridge::Shm ? topology::Bridge::Auto : bridge);
    weigh_bridges(comm->topology_, rates, true);
    topology = topology::dissolve(comm->topology_, {});
    for (int q = 0; q < world; ++q)
      if (processes[q]) connect(q, false);
  }

  std::vector<int64_t> stars;
  for (const RankBlob &r : ranks) stars.push_back(r.star);
  comm->choose_star(stars);
  comm->libraries_ = topology::has_libraries(comm->topology_);
  comm->devices_ = topology::has_devices(comm->topology_);
  for (int r = world - 1; r >= 0; --r)
    if (infos[static_cast<size_t>(r)].fnuz) comm->fnuz_rank_ = r;
  RingPlace place;
  uint64_t part = 0;
  attempt([&] {
    engine::MemberSetup setup;
    setup.context = context;
    setup.topology = topology;
    setup.rank = rank;
    setup.index = mine.index;
    setup.epoch = ranks[0].epoch;
    setup.name = name;
    setup.mailbox_offset = mine.mailbox;
    setup.cell_bytes = comm->eager_bytes_;
    if (comm->devices_) {  // where all share memory, all keep a ring at a fixed place, which devices reach
      part = 8 * comm->chunk_bytes_;
      const uint64_t most = (plan::most_ring_bytes(comm->chunk_bytes_, plan::kDeviceSlots) + 4095) / 4096 * 4096;
      if (topology.flat && world > 1 && most <= least_staging / 16) {  // the same on all, which must cut messages alike
        // Behind the ring a window for each other rank: all together 1/32 of the staging memory.
        const uint64_t others = static_cast<uint64_t>(world) - 1, window = least_staging / 32 / others;
        if (const uint64_t quarter = window / 4 / 4096 * 4096; quarter >= kLeastPart) {
          part = std::min(part / 4096 * 4096, quarter);
          place.slots = std::min<uint64_t>(window / part, engine::Member::kMostRecvSlots);
        }
        undo.ring_bytes = most + others * place.slots * part;
        // Where one library serves all ranks, few operations need it: the others come first.
        const int part_of = island && island->ranks.size() == static_cast<size_t>(world) ? 4 : 2;
        undo.ring = context->take_fixed_ring(undo.ring_bytes, part_of);
        if (undo.ring == 0) {
          undo.ring = context->take_fixed_ring(undo.ring_bytes = most, part_of);
          place.slots = 0;
        }
        if (undo.ring != 0) place = {undo.ring, most, place.slots};
      }
      setup.part_bytes = part;
      setup.fixed_ring = undo.ring;
      setup.fixed_ring_bytes = undo.ring_bytes;
    }
    setup.island = std::move(served);
    for (const int g : comm->topology_.group_of) {
      const topology::Group &group = comm->topology_.groups[static_cast<size_t>(g)];
      setup.served_in.push_back(!group.ccl.empty() && group.ranks.size() > 1 ? g : -1);
    }
    setup.group_wait_ns = settings.integer(Setting::GroupWaitMs) * 1'000'000;
    // Plans send up to four chunks ahead, in accumulator width (four times that of float8), chunks of up to four times the setting.
    setup.credit_window = std::max(static_cast<uint64_t>(settings.integer(Setting::TcpCreditBytes)),
                                   (comm->libraries_ || comm->devices_ ? 256 : 64) * comm->chunk_bytes_);
    const auto given = std::make_shared<engine::MemberSetup>(std::move(setup));
    comm->member_ = asked<std::shared_ptr<engine::Member>>(
        device, deadline, [given] { return std::make_shared<engine::Member>(std::move(*given)); });
    made = true;  // the ring is the member's to give back as well
    int local = 0;
    auto &arena = context->arena();
    for (int q = 0; q < world; ++q) {
      engine::PeerRank &p = comm->member_->peers()[q];
      local += ranks[q].info.host == mine.info.host;
      p.process = processes[q];
      p.their_index = ranks[q].index;
      std::byte *base = p.process ? p.process->arena.data() : arena.base();
      const size_t size = p.process ? p.process->arena.size() : arena.bytes();
      if (base && !streamed(q)) {
        if (ranks[q].mailbox % 64 != 0 || mailbox_bytes > size || ranks[q].mailbox > size - mailbox_bytes)
          fail(Code::Mismatch, "rank {} announced a mailbox outside its shared memory", q);
        p.arena = base;
        p.mail = std::launder(reinterpret_cast<engine::Mailbox *>(base + ranks[q].mailbox));
        p.bell = &link::Arena::doorbell_of(base);
      }
      p.link = context->link_to(p.process, p.process && p.arena);
    }
    engine::Context::note_local_ranks(local);
    context->want_helpers(device.host() ? 0 : std::clamp(engine::Context::processors() / local - 2, 0, 3));
    comm->stream_bytes_ = stream_threshold(local);
    context->set_member(mine.index, comm->member_);
  });
  attempt([&] {
    if (!device.host()) engine::Context::refuse_stuck(*device.runtime, device.number);
  });
  // No frame for us may come before this point is reached everywhere: what comes for an unknown index is dropped.
  Blob said(sizeof place);
  std::memcpy(said.data(), &place, sizeof place);
  const std::vector<Ballot> places = vote(exchange, name, trouble, false, std::move(said), deadline);
  if (comm->devices_ && topology.flat) {
    std::vector<RingPlace> rings;
    for (int q = 0; q < world; ++q) {
      const Blob &theirs = places[static_cast<size_t>(q)].extra;
      RingPlace p;
      if (theirs.size() != sizeof p) fail(Code::Mismatch, "init of '{}': rank {} sent no place of a ring", name, q);
      std::memcpy(&p, theirs.data(), sizeof p);
      const size_t size =
          processes[static_cast<size_t>(q)] ? processes[static_cast<size_t>(q)]->arena.size() : context->arena().bytes();
      const uint64_t windows =
          p.slots <= engine::Member::kMostRecvSlots ? static_cast<uint64_t>(world - 1) * p.slots * part : size;
      if (p.offset % 4096 != 0 || p.bytes > size || windows > size - p.bytes || p.offset > size - p.bytes - windows)
        fail(Code::Mismatch, "rank {} announced a ring outside its shared memory", q);
      rings.push_back(p);
    }
    try {
      comm->fix_rings(rings, part, device.runtime, device.number, deadline);
    } catch (const Error &e) {  // the others have heard that all went well
      const std::string text = formatted("init of '{}' on rank {}: {}", name, rank, e.text());
      comm->member_->fail(e.code(), text, true);
      throw Error(e.code(), text);
    }
  }
  for (auto *peer : processes)
    if (peer && peer->lost.load()) comm->member_->peer_lost(*peer, peer->lost_text());
  const size_t islands = comm->topology_.groups.size();
  ISTHMUS_INFO("communicator '{}': rank {} of {} on {}{}, {} island{}{}{}, {}{}; tcp streams {}", name, rank, world,
               mine.info.hostname, device.host() ? "" : formatted(", {} ({})", device.text(), mine.info.device_name),
               islands, islands == 1 ? "" : "s", mine.info.island.empty() ? "" : " (this rank: " + mine.info.island + ")",
               served_by, topology.flat ? "all in shared memory" : "shared memory inside, tcp between them",
               comm->topology_.measured ? ", bridges weighed by profiles" : "", topology.flat ? 0 : streams);
  return comm;
}

// `given`: what the settings of each rank say of it, -1: nothing. They go before the profiles, and of several the least counts, so that
// ranks agree which do not say the same.
void Communicator::choose_star(const std::vector<int64_t> &given) {
  int64_t bytes = -1;
  for (const int64_t said : given)
    if (said >= 0) bytes = bytes < 0 ? said : std::min(bytes, said);
  star_from_ = plan::StarFrom::Setting;
  if (bytes < 0) {
    bytes = topology::measured_star(topology_);
    star_from_ = plan::StarFrom::Profile;
  }
  if (bytes < 0) {
    bytes = plan::kDefaultStar;
    star_from_ = plan::StarFrom::Default;
  }
  star_bytes_ = std::min(static_cast<uint64_t>(bytes), plan::most_star(chunk_bytes_));
}

// The same on all ranks. Slots of host ranks are some dozens of chunks; with those that devices copy through, and slots of islands, they are
// up to 170, beside what messages between processes pass through.
void Communicator::choose_chunk(std::span<const RankBlob> ranks, uint64_t staging) {
  const bool devices = std::any_of(ranks.begin(), ranks.end(),
                                   [](const RankBlob &r) { return r.info.device != "host" || !r.info.ccl.empty(); });
  const uint64_t messages = (ranks.size() - 1) * 3 * link::ByteRing::kLeastCapacity / 2;
  const uint64_t most = devices ? (staging - std::min(messages, staging / 8 * 7)) / 192 : staging / 64;
  const uint64_t chunk = std::min(chunk_bytes_, std::max<uint64_t>(most / 4096 * 4096, 4096));
  if (chunk < chunk_bytes_)
    lose(ranks[0].name, kSmallChunks,
         formatted("chunks of {} bytes and not {} (ISTHMUS_CHUNK_BYTES), because the least staging memory of its "
                   "processes is {} bytes (ISTHMUS_STAGING_BYTES): large operations take more steps",
                   chunk, chunk_bytes_, staging));
  chunk_bytes_ = chunk;
}

// Once a process for each of them: what one communicator has lost, those after it mostly lose as well.
void Communicator::lose(const std::string &name, unsigned path, std::string what) {
  if (!context_->note_lost(path))
    ISTHMUS_WARN("communicator '{}': {}. It holds for others like it; topology() says which", name, what);
  lost_.push_back(std::move(what));
}

// Rings have their fixed places where all that share memory have one. The device of this rank uses them where it reaches them all; that
// is its own affair, since it changes neither what the others find in a slot nor when.
void Communicator::fix_rings(const std::vector<RingPlace> &places, uint64_t part, device::Runtime *runtime, int device,
                             Deadline deadline) {
  uint64_t bytes = UINT64_MAX;
  for (const RingPlace &p : places) bytes = std::min(bytes, p.bytes);
  if (bytes == 0) {
    lose(
        name(), kNoRing,
        formatted("no ring in the staging memory at a place that devices know (each rank needs {} bytes, of at most 1/16 of "
                  "ISTHMUS_STAGING_BYTES, with all others at most half of it; smaller with a smaller ISTHMUS_CHUNK_BYTES): "
                  "processors copy what the devices of other ranks would read, two copies more of each byte",
                  plan::most_ring_bytes(chunk_bytes_, plan::kDeviceSlots)));
    return member_->fix_rings(0, {});  // some rank has no room
  }
  fixed_rings_ = true;
  std::vector<std::byte *> rings(places.size(), nullptr);
  const auto windows = [&](size_t q) { return (places.size() - 1) * places[q].slots * part; };
  bool all = runtime != nullptr;
  for (size_t q = 0; all && q < places.size(); ++q) {
    rings[q] = asked<std::byte *>(
        {runtime, device}, deadline,
        [context = context_, runtime, device, process = member_->peers()[q].process, offset = places[q].offset,
         bytes = places[q].bytes + windows(q)] { return context->reach(*runtime, device, process, offset, bytes); });
    all = rings[q] != nullptr;
  }
  std::vector<engine::Member::TheirSlots> theirs;
  for (size_t q = 0; q < places.size(); ++q) {
    const uint64_t at = places[q].bytes + engine::Member::slots_of(static_cast<int>(q), rank()) * places[q].slots * part;
    theirs.push_back({static_cast<uint32_t>(places[q].slots), all ? rings[q] + at : nullptr});
  }
  const RingPlace &mine = places[static_cast<size_t>(rank())];
  const auto fewest =
      std::min_element(places.begin(), places.end(), [](const auto &a, const auto &b) { return a.slots < b.slots; });
  window_slots_ = fewest->slots;
  ring_bytes_ = bytes;
  if (window_slots_ == 0 && places.size() > 1)
    lose(name(), kNoWindows,
         formatted("no window for messages on rank {}, whose staging memory has no room for it (ISTHMUS_STAGING_BYTES): "
                   "processors copy messages of device memory, two copies more of each byte",
                   fewest - places.begin()));
  member_->fix_slots(mine.offset + mine.bytes, static_cast<uint32_t>(mine.slots), theirs);
  member_->fix_rings(bytes, all ? std::move(rings) : std::vector<std::byte *>{});
  reach_ = all ? bytes : 0;
  if (all && settings_.text(Setting::GuardSlots) == "on") {
    std::vector<std::span<std::byte>> slots, closed;
    for (size_t q = 0; q < places.size(); ++q) {
      std::byte *const at = member_->peers()[q].arena + places[q].offset;
      slots.emplace_back(at, places[q].bytes);
      if (windows(q) != 0) closed.emplace_back(at + places[q].bytes, windows(q));
    }
    member_->guard(std::move(slots));
    member_->guard_recv_slots(std::move(closed));
  }
}

Communicator::~Communicator() { destroy(); }

void Communicator::destroy() noexcept {
  if (!member_ || destroyed_.exchange(true)) return;
  member_->leave(now_ns() + seconds_to_ns(timeout()));
  context_->mesh().drop_key(key_);  // each communicator added it once
  use_.end();
}

void Communicator::abort(const std::string &reason) noexcept {
  member_->abort(formatted("aborted on rank {}{}{}", rank(), reason.empty() ? "" : ": ", reason));
}

void Communicator::set_timeout(double seconds) {
  if (!(seconds > 0)) fail(Code::Argument, "timeout {}: must be above 0 seconds", seconds);
  timeout_.store(seconds, std::memory_order_relaxed);
}

std::shared_ptr<const plan::Plan> Communicator::plan_for(const plan::Request &r) {
  const Shape shape{r.collective, r.dtype, r.op, r.root, r.bytes, r.small_bytes, r.in_place, r.device};
  std::lock_guard lock(plans_mutex_);
  if (const auto it = plans_.find(shape); it != plans_.end()) return it->second;
  auto plan = plan::plan_collective(topology_, rank(), r);
  if (plans_.size() >= 512) plans_.clear();  // shapes that never come back must not pile up
  plans_.emplace(shape, plan);
  return plan;
}

}  // namespace isthmus::comm
