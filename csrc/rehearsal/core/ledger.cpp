#include "core/ledger.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/journal.hpp"
#include "core/lock.hpp"

namespace rehearsal {

struct Counter {
  std::string name;
  std::atomic<unsigned long> calls{0};  // since the last reset
  std::atomic<unsigned long> all{0};    // since the beginning; a fault names one by this number
  bool watched = false;                 // a fault of the settings names the function
};

namespace {

constexpr std::array<const char *, 5> kLive = {"allocation", "registration", "stream", "event", "communicator"};

struct Ledger {
  Guarded<std::map<std::string, std::unique_ptr<Counter>>> counters;
  std::atomic<unsigned long> misuses{0};
  std::array<std::atomic<unsigned long>, 2> carried{};  // bytes to devices, and from them
  std::array<std::atomic<unsigned long>, 2> busy{};     // nanoseconds of their copy engines
  std::array<std::atomic<long>, kLive.size()> live{};
  std::atomic<int> groups{0};
  std::atomic<bool> child{false}, forgiven{false};
  pid_t process = ::getpid();
};

void at_exit();

Ledger &ledger() {
  static Ledger *const the_ledger = [] {
    auto *l = new Ledger;  // never destroyed: threads of the queues may count while the program exits
    settings();
    std::atexit(at_exit);
    return l;
  }();
  return *the_ledger;
}

// cuMemAlloc and cuMemAlloc_v2 are counted as one function.
std::string plain(const char *name) {
  std::string s = name;
  if (s.size() > 3 && s.compare(s.size() - 3, 3, "_v2") == 0) s.resize(s.size() - 3);
  return s;
}

void write_trace(Ledger &l) {
  std::string text = "{\"pid\": " + std::to_string(::getpid()) + ", \"calls\": {";
  const char *comma = "";
  const auto counters = l.counters.lock();
  for (const auto &[name, c] : *counters) {
    text += comma + ("\"" + name + "\": ") + std::to_string(c->all.load());
    comma = ", ";
  }
  text += "}, \"misuses\": " + std::to_string(l.misuses.load()) + ", \"live\": {";
  comma = "";
  for (size_t i = 0; i < kLive.size(); ++i) {
    text += comma + (std::string("\"") + kLive[i] + "\": ") + std::to_string(l.live[i].load());
    comma = ", ";
  }
  text += "}}\n";
  const int fd = ::open(settings().trace.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    std::fprintf(stderr, "rehearsal: REHEARSAL_TRACE: cannot write %s\n", settings().trace.c_str());
  if (fd >= 0) ::close(fd);
}

void at_exit() {
  Ledger &l = ledger();
  if (::getpid() != l.process) return;
  if (!settings().trace.empty()) write_trace(l);
  if (const int open = l.groups.load(); open > 0) misuse("exit", Code::Invalid, "%d group(s) of calls left open", open);
}

}  // namespace

Counter &counter(const char *name) {
  const std::string key = plain(name);
  const auto counters = ledger().counters.lock();
  std::unique_ptr<Counter> &c = (*counters)[key];
  if (!c) {
    c = std::make_unique<Counter>();
    c->name = key;
    for (const auto *list :
         {&settings().fail, &settings().fail_for_good, &settings().fail_late, &settings().hang, &settings().slow})
      for (const Fault &f : *list) c->watched |= plain(f.call.c_str()) == key;
  }
  return *c;
}

Entry::Entry(Counter &c) : name_(c.name.c_str()), in_child_(ledger().child.load(std::memory_order_relaxed)) {
  if (in_child_) return;
  note_call(name_);
  c.calls.fetch_add(1, std::memory_order_relaxed);
  const unsigned long nth = c.all.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!c.watched || ledger().forgiven.load(std::memory_order_relaxed)) return;
  const auto chosen = [&](const std::vector<Fault> &list) {
    for (const Fault &f : list)
      if (f.nth == nth && plain(f.call.c_str()) == c.name) return &f;
    return static_cast<const Fault *>(nullptr);
  };
  if (const Fault *f = chosen(settings().fail)) fault_ = f->number;
  if (const Fault *f = chosen(settings().fail_for_good)) {
    fault_ = f->number;
    for_good_ = true;
  }
  if (const Fault *f = chosen(settings().fail_late)) extras_.late = f->number;
  if (const Fault *f = chosen(settings().slow)) extras_.slow_ms = f->number;
  extras_.hang = chosen(settings().hang) != nullptr;
}

Code misuse(const char *call, Code code, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "rehearsal: misuse: %s: %s\n", call, text);
  std::fflush(stderr);
  ledger().misuses.fetch_add(1);
  if (settings().abort_on_misuse) std::abort();
  return code;
}

void born(Live what) noexcept { ledger().live[static_cast<size_t>(what)].fetch_add(1); }
void died(Live what) noexcept { ledger().live[static_cast<size_t>(what)].fetch_sub(1); }
void note_carried(bool out, unsigned long bytes, int64_t busy_ns) noexcept {
  ledger().carried[out].fetch_add(bytes);
  ledger().busy[out].fetch_add(static_cast<unsigned long>(busy_ns));
}
std::atomic<int> &open_groups() noexcept { return ledger().groups; }

bool &in_host_function() noexcept {
  static thread_local bool inside = false;
  return inside;
}

void guard_forks() {
  static std::once_flag once;
  std::call_once(once,
                 [] { ::pthread_atfork(nullptr, nullptr, [] { ledger().child.store(true, std::memory_order_relaxed); }); });
}

}  // namespace rehearsal

using rehearsal::ledger;

unsigned long rehearsal_calls(const char *name) {
  const auto counters = ledger().counters.lock();
  const auto found = counters->find(rehearsal::plain(name));
  return found == counters->end() ? 0 : found->second->calls.load();
}
void rehearsal_reset_calls() {
  const auto counters = ledger().counters.lock();
  for (const auto &[name, c] : *counters) c->calls.store(0);
  for (auto &bytes : ledger().carried) bytes.store(0);
  for (auto &ns : ledger().busy) ns.store(0);
}
unsigned long rehearsal_carried(int out) { return ledger().carried[out != 0].load(); }
unsigned long rehearsal_busy(int out) { return ledger().busy[out != 0].load(); }
void rehearsal_forgive() { ledger().forgiven.store(true); }
unsigned long rehearsal_misuses() { return ledger().misuses.load(); }
size_t rehearsal_live(const char *what) {
  for (size_t i = 0; i < rehearsal::kLive.size(); ++i)
    if (rehearsal::kLive[i] == std::string(what)) return static_cast<size_t>(std::max(0L, ledger().live[i].load()));
  return 0;
}
