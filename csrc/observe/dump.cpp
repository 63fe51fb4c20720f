#include "observe/dump.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/clock.hpp"
#include "base/file_name.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "base/small_file.hpp"
#include "ccl/libraries.hpp"
#include "device/abandoned.hpp"
#include "device/host.hpp"
#include "device/runtimes.hpp"
#include "link/ucx_library.hpp"
#include "observe/report_file.hpp"
#include "reduce/reduce.hpp"

namespace isthmus::observe {
namespace {

// The data streams of each TCP link: how many are there, and what has become of them.
nlohmann::ordered_json streams_json(const process::DataStreams &all) {
  auto out = nlohmann::ordered_json::array();
  for (const auto &[peer, streams, connections] : all.report()) {
    auto each = nlohmann::ordered_json::array();
    for (const auto &s : streams)
      each.push_back({{"connected", s.connected}, {"lost", s.lost}, {"back", s.back}, {"why", s.why}});
    auto there = nlohmann::ordered_json::array();
    for (const net::Traffic &t : connections)
      there.push_back({{"from", t.from},
                       {"to", t.to},
                       {"round_trip_us", t.round_trip_us},
                       {"least_round_trip_us", t.least_round_trip_us},
                       {"segments", t.segments},
                       {"sent_again", t.sent_again},
                       {"rate", t.rate}});
    out.push_back({{"hostname", peer->endpoint.hostname},
                   {"pid", peer->endpoint.pid},
                   {"streams", std::move(each)},
                   {"connections", std::move(there)}});
  }
  return out;
}

}  // namespace

namespace {

constexpr const char *kTracedNames[] = {"copy", "reduce", "rank", "data", "room", "sent", "device", "earlier", "memory"};
static_assert(std::size(kTracedNames) == static_cast<size_t>(Traced::Count));

template <class T>
uint64_t lost(const StampedRing<T> &ring) noexcept {
  return ring.total() - std::min<uint64_t>(ring.total(), ring.size());
}

nlohmann::ordered_json steps_json(rank::Rank &local, const StepRing &ring) {
  auto steps = nlohmann::ordered_json::array();
  for (const StepRecord &s : ring.read()) {
    if (s.communicator != static_cast<uint32_t>(local.id().serial)) continue;
    auto step = nlohmann::ordered_json::array();
    for (auto &&field : std::initializer_list<nlohmann::ordered_json>{
             s.sequence, kTracedNames[static_cast<size_t>(s.what)], s.stage ? s.stage : "", s.chunk,
             s.peer < 0 ? -1 : local.id().number(s.peer), s.bytes, static_cast<double>(s.begun_ns) / 1000.0,
             static_cast<double>(s.ended_ns - s.begun_ns) / 1000.0})
      step.push_back(field);
    steps.push_back(std::move(step));
  }
  return steps;
}

// The file of this process, named by the rank of its first communicator.
struct TraceFile {
  Mutex mutex;
  std::string path ISTHMUS_GUARDED_BY(mutex);
  bool begun ISTHMUS_GUARDED_BY(mutex) = false;
  std::set<uint64_t> written ISTHMUS_GUARDED_BY(mutex);  // the ranks of which it has a line, by their serial numbers
};
PerProcess<TraceFile> trace_file;

}  // namespace

std::string dump_json(comm::Communicator &comm, int indent) {
  using nlohmann::ordered_json;
  auto &local = comm.local();
  const int64_t now = now_ns() / 1000;
  const auto of_day = std::chrono::system_clock::now().time_since_epoch();
  ordered_json out{{"communicator", comm.name()},
                   {"rank", comm::own_slot(comm)},
                   {"size", comm.terms().numbering.slots()},
                   {"members", comm.terms().numbering.members()},
                   {"epoch", local.id().epoch},
                   {"boot", read_small_file("/proc/sys/kernel/random/boot_id")},
                   {"host", local.context().mesh().self().hostname},
                   {"pid", ::getpid()},
                   {"now_us", now},
                   {"unix_us", std::chrono::duration_cast<std::chrono::microseconds>(of_day).count()}};
  if (const char *fleet = std::getenv("REHEARSAL_FLEET"))
    out["rehearsal"] = fleet;  // no time of it is a measurement of a device
  const Status why = local.core().failure();
  out["failure"] = why.ok() ? ordered_json(nullptr) : ordered_json{{"code", code_name(why.code)}, {"text", why.text}};
  const std::string waiting = local.events().waiting_text();
  out["waiting"] = waiting.empty() ? ordered_json(nullptr) : ordered_json(waiting);
  auto entries = ordered_json::array();
  const auto add = [&](const Record &r) {
    const auto c = static_cast<Collective>(r.collective);
    const bool p2p = is_message(c);
    const auto result = static_cast<Code>(r.result);
    ordered_json e{{"sequence", r.sequence},
                   {"collective", collective_name(c)},
                   {"dtype", dtype_name(static_cast<DType>(r.dtype))},
                   {"op", redop_name(static_cast<RedOp>(r.op))},
                   {"bytes", r.bytes},
                   {p2p ? "peer" : "root", local.id().number(r.peer_or_root)},
                   {"state", result == Code::InProgress ? "running" : "ended"},
                   {"submitted_us", static_cast<double>(r.submitted_ns) / 1000.0}};
    if (p2p) e["tag"] = r.tag;
    if (result != Code::InProgress) {
      e["duration_us"] = static_cast<double>(r.ended_ns - r.submitted_ns) / 1000.0;
      e["result"] = code_name(result);
    }
    entries.push_back(std::move(e));
  };
  for (const auto &r : local.records()) add(r);
  out["entries"] = std::move(entries);
  if (const StepRing *const steps = local.context().steps()) {
    out["steps"] = steps_json(local, *steps);
    out["streams"] = streams_json(local.context().data_streams());
    out["steps_lost"] = lost(*steps);
    out["entries_lost"] = lost(local.context().recorder());
  }
  return out.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void name_trace(const comm::Communicator &comm) {
  const std::string &pattern = comm.settings().text(Setting::Trace);
  if (pattern.empty()) return;
  TraceFile &file = *trace_file;
  const Lock lock(file.mutex);
  if (file.path.empty()) file.path = file_name(pattern, comm::own_slot(comm));
}

void write_trace(comm::Communicator &comm) noexcept {
  const std::string &pattern = comm.settings().text(Setting::Trace);
  if (pattern.empty()) return;
  try {
    TraceFile &file = *trace_file;
    const Lock lock(file.mutex);
    if (!file.written.insert(comm.local().id().serial).second) return;
    const bool anew = !std::exchange(file.begun, true) && (has_rank(pattern) || has_process(pattern));
    append_to_file(file.path, dump_json(comm, -1) + "\n", anew);
  } catch (const std::exception &e) { ISTHMUS_ERROR("the trace was not written (ISTHMUS_TRACE): {}", e.what()); }
}

std::string ucx_json() {
  nlohmann::ordered_json out{{"found", false}, {"version", ""},
                             {"path", ""},     {"transports", nlohmann::ordered_json::array()},
                             {"rdma", false},  {"text", ""}};
  try {
    const link::UcxLibrary &ucx = link::UcxLibrary::open();
    out["version"] = ucx.version();
    out["path"] = ucx.path();
    const auto context = ucx.make_context();
    const std::vector<std::string> transports = ucx.transports(context);
    ucx->cleanup(context);
    out["transports"] = transports;
    out["rdma"] = std::any_of(transports.begin(), transports.end(), link::is_rdma);
    out["found"] = true;
  } catch (const Error &e) { out["text"] = e.text(); }
  return out.dump(2);
}

std::string libraries_json(const Settings &settings) {
  const std::string &wanted = settings.text(Setting::Ccl), &path = settings.text(Setting::CclLibrary);
  const std::string &device = settings.text(Setting::Device);
  const std::string own = ccl::family_for(device.substr(0, device.find(':')));  // the library that "auto" takes
  auto out = nlohmann::ordered_json::array();
  for (const std::string &family : ccl::families()) {
    nlohmann::ordered_json one{{"family", family}, {"found", false}, {"version", ""}, {"path", ""}, {"text", ""}};
    const std::string where = wanted == family || (wanted == "auto" && family == own) ? path : "";
    try {
      const auto library = ccl::open_library(family, where, "");
      one["found"] = true;
      one["version"] = library->version();
      one["path"] = library->path();
    } catch (const Error &e) { one["text"] = e.text(); }
    out.push_back(std::move(one));
  }
  return out.dump(1);
}

std::string devices_json() {
  auto out = nlohmann::ordered_json::array();
  for (const std::string &vendor : device::vendors()) {
    nlohmann::ordered_json one{
        {"vendor", vendor}, {"found", false}, {"version", ""}, {"devices", nlohmann::ordered_json::array()}, {"text", ""}};
    try {
      const device::Runtime &runtime = device::open_runtime(vendor);
      one["found"] = true;
      one["version"] = runtime.version();
      for (int d = 0; d < runtime.devices(); ++d) {
        const bool gates = runtime.capabilities(d).gate == device::GateKind::HostStore;
        one["devices"].push_back(
            {{"number", d}, {"name", runtime.describe(d)}, {"numa", runtime.numa(d)}, {"gates", gates}});
      }
    } catch (const Error &e) { one["text"] = e.text(); }
    out.push_back(std::move(one));
  }
  return out.dump(1);
}

namespace {

nlohmann::ordered_json pages_of(const link::StagingPages &pages) {
  if (!pages.asked) return nullptr;
  return {{"numa", pages.node},
          {"looked_at", pages.looked},
          {"elsewhere", pages.elsewhere},
          {"huge_bytes", pages.huge_bytes},
          {"lost", pages.lost()}};
}

}  // namespace

std::string context_json() {
  nlohmann::ordered_json out{
      {"active", false}, {"simd", reduce::target()}, {"abandoned_threads", device::abandoned_threads()}};
  if (const auto c = process::Context::current()) {
    const auto s = c->stats();
    out = {{"active", true},
           {"simd", reduce::target()},
           {"threads", s.threads},
           {"abandoned_threads", device::abandoned_threads()},
           {"descriptors", s.descriptors},
           {"peers", s.peers},
           {"heartbeats", s.heartbeats},
           {"links", s.links},
           {"communicators", s.members},
           {"leaving", s.leaving},
           {"rings_lost", s.rings_lost},
           {"staging_used", s.staging_used},
           {"staging_limit", s.staging_limit},
           {"staging_pages", pages_of(c->arena().staging_pages())},
           {"streams", streams_json(c->data_streams())},
           {"endpoint", {{"hostname", c->mesh().self().hostname}, {"tcp", c->mesh().self().tcp}}}};
  }
  return out.dump(1);
}

}  // namespace isthmus::observe
