#include "base/settings.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.hpp"
#include "base/file_name.hpp"
#include "base/log.hpp"

extern char **environ;

namespace isthmus {
namespace {

using K = SettingKind;
constexpr double kTiB = 1099511627776.0;

constexpr SettingRow kSettings[] = {
    {Setting::Address, "ISTHMUS_ADDRESS", K::Text, "", 0, 0, "", false,
     "host:port where rank 0 listens for the rendezvous; empty: MASTER_ADDR and MASTER_PORT + 1, or with a MASTER_PORT from "
     "32768 on, which the system gave, a port from 20000 to 31999 or of ISTHMUS_PORTS that all ranks compute alike"},
    {Setting::Bridge, "ISTHMUS_BRIDGE", K::Choice, "auto", 0, 0, "auto|shm|tcp|ucx", true,
     "link between islands. auto: shared memory inside a host, TCP between hosts. shm: an error where ranks share no "
     "memory. "
     "tcp: TCP between islands, also inside a host; ranks without a label are then one island for each vendor of devices, "
     "and "
     "one for the ranks on host memory. ucx: as tcp, by UCX, for RDMA, over what UCX_TLS allows"},
    {Setting::BridgeRates, "ISTHMUS_BRIDGE_RATES", K::Text, "", 0, 0, "", true,
     "relative rates of the islands' bridges, as \"a:10,nvidia:1\" by label, or by the devices' vendor (nvidia, amd, "
     "ascend) "
     "or host where they have none; a faster one carries more. Empty: by the ranks' profiles (ISTHMUS_PROFILE), else all "
     "alike"},
    {Setting::Ccl, "ISTHMUS_CCL", K::Choice, "auto", 0, 0, "auto|none|oneccl|nccl|rccl|hccl", false,
     "collective library that serves this rank's island; ranks with the same library and label form one. auto: the device's "
     "own, if it is there; none for host ranks"},
    {Setting::CclLibrary, "ISTHMUS_CCL_LIBRARY", K::Text, "", 0, 0, "", false,
     "path of that library's file; empty: where the loader finds it", true},
    {Setting::Census, "ISTHMUS_CENSUS", K::Real, "300", 0.001, 1e9, "", false,
     "seconds for which an init behind a front door waits for the next rank. Where none comes for so "
     "long, "
     "and all that came have one vendor and one label, the missing ranks are taken for ranks without Isthmus, and the "
     "vendor's library makes the communicator. Other inits wait for ISTHMUS_TIMEOUT, all of them at most. An init whose "
     "missing ranks have gone to the library's own listener waits for 1 s, or 20 s where not as many went there as are "
     "missing"},
    {Setting::ChunkBytes, "ISTHMUS_CHUNK_BYTES", K::Bytes, "0", 4096, 67108864, "", true,
     "chunk of a pipelined message; 0: 128 KiB, or up to 512 KiB where a rank has a device and all ranks share memory. Long "
     "messages, ranks with a device and islands with a library take a multiple of it (docs/howto/tune.md has the table). At "
     "most 1/64 of the least ISTHMUS_STAGING_BYTES of all ranks is taken, about "
     "1/192 where a rank has a device or a library, and about 1/800 where a rank has a device and ranks share memory"},
    {Setting::Device, "ISTHMUS_DEVICE", K::Text, "host", 0, 0, "", false,
     "whose memory this rank works on: host, cuda:N, hip:N or acl:N; without :N the launcher's local rank. The default is "
     "that "
     "of isthmus.init() and of C; where it is not set, the PyTorch backend takes torch's device (docs/howto/torch.md)"},
    {Setting::Disable, "ISTHMUS_DISABLE", K::Integer, "0", 0, 1, "", false,
     "1: the interposer only forwards to the vendor's library; read by the process's first call into it", true},
    {Setting::Dump, "ISTHMUS_DUMP", K::Pattern, "", 0, 0, "", false,
     "file that this rank's flight record is written to when an operation of any rank meets its deadline, and when the "
     "process gets SIGUSR1 and the program has no handler of its own for that; empty: none is written",
     true},
    {Setting::EagerBytes, "ISTHMUS_EAGER_BYTES", K::Bytes, "8K", 0, 65536, "", true,
     "largest contribution of one rank that takes the one-hop path"},
    {Setting::FarMicros, "ISTHMUS_FAR_US", K::Integer, "1000", 0, 60000000, "", true,
     "round trip by TCP, in us, from which on a link counts as far. A link carries no more in a round trip than is under "
     "way. "
     "So over a far link up to 32 chunks of an operation of host memory are under way at once, instead of 1; an all_reduce "
     "may go in one exchange instead of two; and chunks that devices copy are as long as for a fast bridge. 0: always"},
    {Setting::GroupWaitMs, "ISTHMUS_GROUP_WAIT_MS", K::Integer, "2", 0, 60000, "", false,
     "how long the end of a group of messages waits for the other sides to come to their own groups: to have the vendor's "
     "library carry what may go by it (ISTHMUS_LIBRARY_MESSAGES), and where the group sends more device memory on a stream "
     "than the receive slots hold; what has no slot by then goes by the link"},
    {Setting::GuardSlots, "ISTHMUS_GUARD_SLOTS", K::Choice, "off", 0, 0, "off|on", false,
     "on: slots are without access for this process while an operation runs in which only devices touch them, so that a "
     "touch ends it; a check, for processes of one rank"},
    {Setting::HeartbeatMs, "ISTHMUS_HEARTBEAT_MS", K::Integer, "100", 10, 60000, "", false,
     "interval of heartbeats between processes; a peer on another host whose network acknowledges none of 100 is lost",
     true},
    {Setting::Interface, "ISTHMUS_INTERFACE", K::Text, "", 0, 0, "", false,
     "network interfaces or addresses to listen on, separated by commas, the best first; empty: the one that routes to the "
     "rendezvous address, else that of the default route and all others that are up",
     true},
    {Setting::Interpose, "ISTHMUS_INTERPOSE", K::Choice, "auto", 0, 0, "auto|nccl|rccl|hccl", false,
     "whose front door `isthmus run` and `import isthmus.interpose` take; auto: that of the library which the "
     "program or the installed packages use, else of what this machine has",
     true},
    {Setting::Island, "ISTHMUS_ISLAND", K::Text, "", 0, 0, "", false,
     "label of this rank's island. Ranks with one label are one island on each host, or one on all hosts where one vendor's "
     "library serves them. Ranks without a label on devices of one vendor are an island likewise"},
    {Setting::JobKey, "ISTHMUS_JOB_KEY", K::Text, "", 0, 0, "", false,
     "32 hex digits that every process of the job knows; empty: derived from the launcher's job id and address"},
    {Setting::LeaderBytes, "ISTHMUS_LEADER_BYTES", K::Bytes, "-1", -1, 262144, "", true,
     "largest all_reduce, reduce or broadcast that crosses between islands whole, from one rank of each (leader exchange). "
     "-1: "
     "ISTHMUS_EAGER_BYTES where that is given, else what the ranks' profiles measured, else 8192. Never more than 4 times "
     "ISTHMUS_CHUNK_BYTES"},
    {Setting::LibraryMessages, "ISTHMUS_LIBRARY_MESSAGES", K::Choice, "on", 0, 0, "off|on", false,
     "on: messages of groups between ranks of one host that a vendor's library serves go by that library, where both sides "
     "are in such a group at one time (docs/explain/islands.md); off: they go by the host. The same on all ranks"},
    {Setting::Log, "ISTHMUS_LOG", K::Choice, "warn", 0, 0, "trace|debug|info|warn|error|off", false,
     "level of the log, which goes to stderr"},
    {Setting::LogFile, "ISTHMUS_LOG_FILE", K::Pattern, "", 0, 0, "", false,
     "file to which the log is added, instead of stderr. Where %r stands in its name, lines of before the rank is known go "
     "to stderr; so does everything where the file cannot be opened, and what the front doors say",
     true},
    {Setting::Name, "ISTHMUS_NAME", K::Text, "world", 0, 0, "", false, "name of the first communicator in messages"},
    {Setting::Ports, "ISTHMUS_PORTS", K::Ports, "", 0, 0, "", false,
     "TCP ports to listen at, as 29600-29663: each process takes one that is free, one more for each unique id that it "
     "made, "
     "until all ranks have met, and one for all ids that it made behind a front door. Not MASTER_PORT, nor the port of "
     "ISTHMUS_ADDRESS: those stay. "
     "Empty: what the system gives",
     true},
    {Setting::Profile, "ISTHMUS_PROFILE", K::Text, "", 0, 0, "", false,
     "path of this host's profile, which `isthmus tune` wrote: where all ranks have one, faster bridges carry more. Empty: "
     "none"},
    {Setting::Rank, "ISTHMUS_RANK", K::Integer, "-1", -1, 16777215, "", false, "rank, where no launcher says it"},
    {Setting::RealHccl, "ISTHMUS_REAL_HCCL", K::Text, "", 0, 0, "", false,
     "path of the HCCL that the interposer forwards to; empty: where a program without it would find it", true},
    {Setting::RealNccl, "ISTHMUS_REAL_NCCL", K::Text, "", 0, 0, "", false,
     "path of the NCCL that the interposer forwards to; empty: where a program without it would find it", true},
    {Setting::RealRccl, "ISTHMUS_REAL_RCCL", K::Text, "", 0, 0, "", false,
     "path of the RCCL that the interposer forwards to; empty: where a program without it would find it", true},
    {Setting::RecorderEntries, "ISTHMUS_RECORDER_ENTRIES", K::Integer, "2048", 16, 1048576, "", false,
     "operations that the flight recorder of a process keeps", true},
    {Setting::ReduceThreads, "ISTHMUS_REDUCE_THREADS", K::Integer, "-1", -1, 64, "", false,
     "threads that help with large sums and copies of host memory, and with the data connections where two processes have "
     "several (ISTHMUS_TCP_STREAMS), for the whole process; -1: up to 7 where a rank of the communicator works on a device "
     "or the process has several such connections, and the host has more than 2 processors for each of its ranks, else none",
     true},
    {Setting::SilenceMs, "ISTHMUS_SILENCE_MS", K::Integer, "0", 0, 3600000, "", false,
     "ms without a heartbeat of a process after which the others take it for lost, as one that is stopped; at least 3 "
     "times ISTHMUS_HEARTBEAT_MS. 0: such a rank is named at an operation's deadline",
     true},
    {Setting::SpinMicros, "ISTHMUS_SPIN_US", K::Integer, "100", 0, 1000000, "", false,
     "how long a waiter polls before it sleeps on a futex; it yields early when ranks outnumber cores", true},
    {Setting::StagingBytes, "ISTHMUS_STAGING_BYTES", K::Bytes, "512M", 1048576, kTiB, "", false,
     "host memory for slots, for the whole process", true},
    {Setting::Stores, "ISTHMUS_STORES", K::Choice, "auto", 0, 0, "auto|cached|streamed", false,
     "how data for another rank of the host is stored: through the caches or past them; auto: as measured now and then",
     true},
    {Setting::TcpCongestion, "ISTHMUS_TCP_CONGESTION", K::Text, "", 0, 0, "", false,
     "the kernel's congestion control for what this process sends by TCP data connections, as cubic, reno, bbr or dctcp; "
     "empty: the system's (net.ipv4.tcp_congestion_control)",
     true},
    {Setting::TcpCreditBytes, "ISTHMUS_TCP_CREDIT_BYTES", K::Bytes, "16M", 65536, 1073741824, "", true,
     "bytes a peer may send on one communicator ahead of what was received"},
    {Setting::TcpStreams, "ISTHMUS_TCP_STREAMS", K::Integer, "-1", -1, 16, "", true,
     "TCP data connections for each pair of processes, spread over the addresses that both have (ISTHMUS_INTERFACE names "
     "several interfaces); with two or more, one may be lost. 0: one for each such address. -1: up to 8 to one address, by "
     "the rate and the round trip: one for each 25 gigabits a second of a process' part of the slower of the two "
     "interfaces, "
     "as their drivers say, fewer where there are more than 16 processes; and over a long round trip at least as many as "
     "have enough under way (net.ipv4.tcp_wmem) for a gigabyte a second together",
     true},
    {Setting::Timeout, "ISTHMUS_TIMEOUT", K::Real, "300", 0.001, 1e9, "", false,
     "seconds: deadline of init and of each operation. Where it is not set, an operation of a PyTorch group has the group's "
     "timeout (30 minutes), and one behind a front door has what docs/explain/failure.md says"},
    {Setting::Trace, "ISTHMUS_TRACE", K::Pattern, "", 0, 0, "", false,
     "file to which each communicator of this process adds a line when it is destroyed: its last operations, and the steps "
     "and waits of its collectives with their times, for `isthmus trace`; flight records (ISTHMUS_DUMP) have the steps "
     "then, "
     "too; empty: no step is noted",
     true},
    {Setting::TraceSteps, "ISTHMUS_TRACE_STEPS", K::Integer, "65536", 256, 16777216, "", false,
     "steps that ISTHMUS_TRACE keeps of a process, 64 bytes each; older ones are lost", true},
    {Setting::WorldSize, "ISTHMUS_WORLD_SIZE", K::Integer, "-1", -1, 16777216, "", false,
     "world size, where no launcher says it"},
};
static_assert(std::size(kSettings) == kSettingCount);

// Names that settings had before. A former name is taken until the next minor version; the log says the name of today.
struct FormerName {
  const char *former, *name;
};
constexpr FormerName kFormerNames[] = {{"ISTHMUS_STAR_BYTES", "ISTHMUS_LEADER_BYTES"}};

// "ISTHMUS_EAGER_BYTES", "EAGER_BYTES" and "eager_bytes" are one name: the first.
std::string full_name(std::string_view name) {
  std::string full(name);
  for (char &c : full) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return full.rfind("ISTHMUS_", 0) == 0 ? full : full.insert(0, "ISTHMUS_");
}

const FormerName *former_name(const std::string &full) {
  for (const FormerName &known : kFormerNames)
    if (full == known.former) return &known;
  return nullptr;
}

// Once in a process for each name, as every rank of the process reads the same environment.
void warn_of(const FormerName &known) {
  static std::atomic<bool> warned[std::size(kFormerNames)];
  if (warned[&known - kFormerNames].exchange(true, std::memory_order_relaxed)) return;
  ISTHMUS_WARN("{} is now called {}; the next minor version does not know the former name", known.former, known.name);
}

const SettingRow *find(const std::string &full) {
  for (const auto &row : kSettings) {
    if (full == row.name) return &row;
  }
  return nullptr;
}

size_t distance(std::string_view a, std::string_view b) {  // Levenshtein, for "did you mean"
  std::vector<size_t> d(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) d[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = d[0];
    d[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t up = d[j];
      d[j] = std::min({up + 1, d[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = up;
    }
  }
  return d[b.size()];
}

std::string range_text(const SettingRow &row) {
  switch (row.kind) {
    case K::Integer:
    case K::Bytes: return formatted("{:.0f} to {:.0f}", row.min, row.max);
    case K::Real: return formatted("{:g} to {:g}", row.min, row.max);
    case K::Choice: return row.choices;
    case K::Ports: return "first-last, each from 1 to 65535";
    case K::Pattern: return kPatternText;
    case K::Text: break;
  }
  return "any text";
}

[[noreturn]] void bad(const SettingRow &row, std::string_view value) {
  fail(Code::Config, "{}={}: not allowed; expected {}{} (default {}). {}.", row.name, value,
       row.kind == K::Choice  ? "one of "
       : row.kind == K::Bytes ? "bytes, with K, M or G if wanted, "
                              : "",
       range_text(row), *row.fallback ? row.fallback : "empty", row.meaning);
}

// "29600-29663"; empty: any port.
bool read_ports(std::string_view text, PortRange &out) {
  out = {};
  if (text.empty()) return true;
  const char *last = text.data() + text.size();
  PortRange range;
  const auto [dash, first_error] = std::from_chars(text.data(), last, range.first);
  if (first_error != std::errc{} || dash == last || *dash != '-') return false;
  const auto [end, last_error] = std::from_chars(dash + 1, last, range.last);
  if (last_error != std::errc{} || end != last || range.first == 0 || range.last < range.first) return false;
  out = range;
  return true;
}

}  // namespace

std::span<const SettingRow> setting_rows() noexcept { return kSettings; }

Settings::Settings() {
  for (const auto &row : kSettings) {
    set(row.name, row.fallback);
    values_[static_cast<int>(row.id)].given = false;
  }
}

namespace {

// What the process has set. A map stays as it is, and for good: another thread may read it, and a forked child has it as well.
struct Defaults {
  std::map<std::string, std::string> values;
  const Defaults *before;
};
std::atomic<const Defaults *> the_defaults{nullptr};

}  // namespace

void Settings::set(std::string_view name, std::string_view value) {
  std::string full = full_name(name);
  if (const FormerName *known = former_name(full)) {
    warn_of(*known);
    full = known->name;
  }
  const SettingRow *row = find(full);
  if (!row) {
    const SettingRow *near =
        &*std::min_element(std::begin(kSettings), std::end(kSettings),
                           [&](const auto &a, const auto &b) { return distance(full, a.name) < distance(full, b.name); });
    fail(Code::Config, "{}: no such setting; did you mean {}? `isthmus doctor --settings` lists them all.", name,
         near->name);
  }
  Value v;
  v.text = value;
  v.given = true;
  const char *first = value.data(), *last = first + value.size();
  switch (row->kind) {
    case K::Text: break;
    case K::Ports:
      if (!read_ports(value, v.ports)) bad(*row, value);
      break;
    case K::Pattern:
      if (const std::string fault = pattern_fault(value); !fault.empty())
        fail(Code::Config, "{}={}: {}; expected {} (default empty). {}.", row->name, value, fault, kPatternText,
             row->meaning);
      break;
    case K::Choice: {
      std::string_view rest = row->choices;
      bool found = false;
      while (!rest.empty() && !found) {
        const size_t bar = rest.find('|');
        found = rest.substr(0, bar) == value;
        rest = bar == std::string_view::npos ? std::string_view{} : rest.substr(bar + 1);
      }
      if (!found) bad(*row, value);
      break;
    }
    case K::Integer:
    case K::Bytes: {
      auto [end, error] = std::from_chars(first, last, v.integer);
      if (error != std::errc{}) bad(*row, value);
      int shift = 0;
      if (row->kind == K::Bytes && end != last) {
        shift = *end == 'K' || *end == 'k' ? 10 : *end == 'M' || *end == 'm' ? 20 : *end == 'G' || *end == 'g' ? 30 : -1;
        if (shift > 0) ++end;
      }
      if (end != last || shift < 0) bad(*row, value);
      const double scaled = std::ldexp(static_cast<double>(v.integer), shift);
      // What stands for "not said" may lie outside.
      if ((scaled < row->min || scaled > row->max) && value != row->fallback) bad(*row, value);
      v.integer <<= shift;
      v.real = scaled;
      break;
    }
    case K::Real: {
      const auto [end, error] = std::from_chars(first, last, v.real);
      if (error != std::errc{} || end != last || !(v.real >= row->min && v.real <= row->max)) bad(*row, value);
      break;
    }
  }
  values_[static_cast<int>(row->id)] = std::move(v);
}

void Settings::set_default(std::string_view name, std::string_view value) {
  Settings().set(name, value);  // throws
  const std::string full = full_name(name);
  const FormerName *const known = former_name(full);
  const Defaults *before = the_defaults.load(std::memory_order_acquire);
  for (;;) {
    auto next = std::make_unique<Defaults>();
    if (before) next->values = before->values;
    next->before = before;
    next->values.insert_or_assign(known ? known->name : full, std::string(value));
    if (the_defaults.compare_exchange_weak(before, next.get(), std::memory_order_acq_rel)) return (void)next.release();
  }
}

Settings Settings::from_environment() {
  Settings s;
  if (const Defaults *defaults = the_defaults.load(std::memory_order_acquire))
    for (const auto &[name, value] : defaults->values) s.set(name, value);
  for (Value &v : s.values_) v.given = false;
  for (const bool former : {true, false})  // where a setting is given under both names, the name of today counts
    for (char **e = environ; e && *e; ++e) {
      const std::string_view entry = *e;
      if (!entry.starts_with("ISTHMUS_")) continue;
      const size_t eq = entry.find('=');
      if (eq == std::string_view::npos) continue;
      const std::string_view name = entry.substr(0, eq);
      if ((former_name(full_name(name)) != nullptr) == former) s.set(name, entry.substr(eq + 1));
    }
  return s;
}

void Settings::apply(std::string_view list) {
  while (!list.empty()) {
    const size_t end = list.find(';');
    const std::string_view entry = list.substr(0, end);
    list = end == std::string_view::npos ? std::string_view{} : list.substr(end + 1);
    if (entry.empty()) continue;
    const size_t eq = entry.find('=');
    if (eq == std::string_view::npos) fail(Code::Config, "settings: '{}' is not NAME=value", entry);
    set(entry.substr(0, eq), entry.substr(eq + 1));
  }
}

void Settings::check_process_settings(const Settings &later) const {
  for (const auto &row : kSettings) {
    if (!row.process || !later.is_set(row.id)) continue;
    const bool number = row.kind == K::Integer || row.kind == K::Bytes;
    if (number ? integer(row.id) == later.integer(row.id) : text(row.id) == later.text(row.id)) continue;
    fail(Code::Config,
         "{}={}: this process has used {} since its first communicator, and the setting belongs to the process; give the "
         "same value everywhere, or destroy all communicators first",
         row.name, later.text(row.id), text(row.id).empty() ? "the default" : text(row.id));
  }
}

std::string Settings::agreed_text() const {
  std::string out;
  for (const auto &row : kSettings)
    if (row.agreed)
      out += formatted("{}={} ", row.name,
                       row.kind == K::Integer || row.kind == K::Bytes ? std::to_string(integer(row.id)) : text(row.id));
  return out;
}

std::string Settings::to_json() const {
  static constexpr const char *kinds[] = {"text", "integer", "bytes", "real", "choice", "ports", "pattern"};
  auto all = nlohmann::ordered_json::array();
  for (const auto &row : kSettings)
    all.push_back({{"name", row.name},
                   {"kind", kinds[static_cast<int>(row.kind)]},
                   {"default", row.fallback},
                   {"range", range_text(row)},
                   {"agreed", row.agreed},
                   {"process", row.process},
                   {"meaning", row.meaning},
                   {"value", row.id == Setting::JobKey && is_set(row.id) ? "(set)" : text(row.id)},
                   {"given", is_set(row.id)}});
  return all.dump(2);
}

}  // namespace isthmus
