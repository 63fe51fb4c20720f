#include "core/settings.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace rehearsal {
namespace {

[[noreturn]] void bad(const char *name, const char *value) {
  std::fprintf(stderr, "rehearsal: %s: cannot read \"%s\"\n", name, value);
  std::abort();
}

template <class T>
void number(const char *name, T &out, double least) {
  const char *text = std::getenv(name);
  if (!text || !*text) return;
  char *end = nullptr;
  errno = 0;
  const double value = std::strtod(text, &end);
  if (*end || errno || !(value >= least) || value > 1e15) bad(name, text);
  out = static_cast<T>(value);
}

void truth(const char *name, bool &out) {
  int value = out;
  number(name, value, 0);
  out = value != 0;
}

void faults(const char *name, std::vector<Fault> &out, bool with_number) {
  const char *text = std::getenv(name);
  if (!text) return;
  const std::string all = text;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find(',', at), all.size());
    const std::string one = all.substr(at, end - at);
    at = end + 1;
    char call[128];
    Fault f;
    int used = 0;
    const int got = std::sscanf(one.c_str(), "%127[^:]:%lu%n:%d%n", call, &f.nth, &used, &f.number, &used);
    if (got != (with_number ? 3 : 2) || static_cast<size_t>(used) != one.size() || f.nth == 0) bad(name, text);
    f.call = call;
    out.push_back(f);
  }
}

Settings read() {
  Settings s;
  number("REHEARSAL_DEVICES", s.devices, 0);
  number("REHEARSAL_MEMORY", s.memory, 0);
  number("REHEARSAL_PINNED", s.pinned, 0);
  number("REHEARSAL_QUEUES", s.queues, 1);
  number("REHEARSAL_QUEUE_DEPTH", s.queue_depth, 1);
  truth("REHEARSAL_LOCKING", s.locking);
  truth("REHEARSAL_SAME_ADDRESS", s.same_address);
  truth("REHEARSAL_OWN_MAPPING", s.own_mapping);
  truth("REHEARSAL_SCRIBBLE", s.scribble);
  number("REHEARSAL_COPY_GBPS", s.copy_gbps, 0);
  s.copy_out_gbps = s.copy_in_gbps = s.copy_gbps;
  number("REHEARSAL_COPY_OUT_GBPS", s.copy_out_gbps, 0);
  number("REHEARSAL_COPY_IN_GBPS", s.copy_in_gbps, 0);
  number("REHEARSAL_FABRIC_GBPS", s.fabric_gbps, 0);
  number("REHEARSAL_LATENCY_US", s.latency_us, 0);
  number("REHEARSAL_GATE_US", s.gate_us, 0);
  number("REHEARSAL_JITTER_US", s.jitter_us, 0);
  number("REHEARSAL_SEED", s.seed, 0);
  truth("REHEARSAL_ABORT_ON_MISUSE", s.abort_on_misuse);
  truth("REHEARSAL_QUIET", s.quiet);
  if (const char *path = std::getenv("REHEARSAL_TRACE")) s.trace = path;
  if (const char *path = std::getenv("REHEARSAL_MEET")) s.meet = path;
  number("REHEARSAL_NCCL_VERSION", s.nccl_version, 0);
  number("REHEARSAL_NCCL_GROUP_MS", s.nccl_group_ms, 0);
  faults("REHEARSAL_FAIL", s.fail, true);
  faults("REHEARSAL_FAIL_FOR_GOOD", s.fail_for_good, true);
  faults("REHEARSAL_FAIL_LATE", s.fail_late, true);
  faults("REHEARSAL_HANG", s.hang, false);
  faults("REHEARSAL_SLOW", s.slow, true);
  return s;
}

std::atomic<int> most_queues{std::numeric_limits<int>::max()};

}  // namespace

const Settings &settings() {
  static const Settings *const the = new Settings(read());  // never destroyed: threads may ask during an exit
  return *the;
}

void limit_queues(const char *name) {
  const char *text = std::getenv(name);
  const long most = text ? std::strtol(text, nullptr, 10) : 0;
  int now = most_queues.load();
  while (most > 0 && most < now && !most_queues.compare_exchange_weak(now, static_cast<int>(most))) {}
}

int hardware_queues() { return std::min(settings().queues, most_queues.load()); }

bool switched_on(const char *name) {
  bool on = false;
  truth(name, on);
  return on;
}

}  // namespace rehearsal
