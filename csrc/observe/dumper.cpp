#include "observe/dumper.hpp"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/file_name.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "observe/dump.hpp"
#include "observe/report_file.hpp"

namespace isthmus::observe {
namespace {

struct Dumper {
  Dumper() { ::sem_init(&wanted, 0, 0); }

  sem_t wanted;                       // posted by signal handlers too
  std::atomic<uint64_t> requests{0};  // made so far
  Mutex watching;                     // held over one watch() or unwatch(), which waits for the thread; taken before `mutex`
  Mutex mutex;
  Condition changed;
  std::vector<std::weak_ptr<comm::Communicator>> communicators ISTHMUS_GUARDED_BY(mutex);
  std::string pattern ISTHMUS_GUARDED_BY(mutex);
  int rank ISTHMUS_GUARDED_BY(mutex) = -1;
  uint64_t taken ISTHMUS_GUARDED_BY(mutex) = 0;  // of the requests
  uint64_t written ISTHMUS_GUARDED_BY(mutex) = 0;
  int reading ISTHMUS_GUARDED_BY(mutex) = 0;     // threads that read the communicators
  bool other ISTHMUS_GUARDED_BY(mutex) = false;  // another thread than ours writes
  bool stop ISTHMUS_GUARDED_BY(mutex) = false;
  std::thread thread ISTHMUS_GUARDED_BY(watching);
};

// Never destroyed: a signal may come while static destructors run.
PerProcess<Dumper> the_dumper;
Dumper &dumper() { return *the_dumper; }
std::atomic<Dumper *> the_handlers{nullptr};  // set before the handler is installed
std::atomic<bool> handles{false};             // the handler is installed. A forked child has its parent's handler

// Wakes the thread. A signal handler may do no more.
void want() {
  const int before = errno;
  Dumper &d = *the_handlers.load(std::memory_order_acquire);
  d.requests.fetch_add(1, std::memory_order_acq_rel);
  ::sem_post(&d.wanted);
  errno = before;
}
void on_signal(int) { want(); }

// The communicators that are watched, for a thread that reads them. unwatch() waits for the end of this object.
struct Reading {
  explicit Reading(Dumper &d) : dumper(d) {
    const Lock lock(d.mutex);
    for (const auto &weak : d.communicators)
      if (auto comm = weak.lock()) all.push_back(std::move(comm));
    ++d.reading;
  }
  ~Reading() {
    all.clear();
    const Lock lock(dumper.mutex);
    --dumper.reading;
    dumper.changed.notify_all();
  }
  Reading(const Reading &) = delete;
  Reading &operator=(const Reading &) = delete;

  Dumper &dumper;
  std::vector<std::shared_ptr<comm::Communicator>> all;
};

// What comm.dump() gives, of each communicator of the process.
std::string records(const Reading &now) {
  std::string text = "[";
  for (const auto &comm : now.all) text += (text.size() > 1 ? ",\n" : "\n") + dump_json(*comm);
  return text + "\n]\n";
}

// Whether there is a request that no thread has taken. This thread takes the request.
bool take(Dumper &d) ISTHMUS_REQUIRES(d.mutex) {
  const uint64_t all = d.requests.load(std::memory_order_acquire);
  return all != d.taken ? (d.taken = all, true) : false;
}

void note_written(Dumper &d) {
  const Lock lock(d.mutex);
  d.written = d.taken;
  d.changed.notify_all();
}

void await_request(Dumper &d) {
  while (::sem_wait(&d.wanted) != 0 && errno == EINTR) {}
}

void run(Dumper &d) {
  ::pthread_setname_np(::pthread_self(), "isthmus-dump");
  for (;;) {
    await_request(d);
    std::string path;
    {
      const Lock lock(d.mutex);
      if (d.stop) return;
      if (d.other) {  // the post was for the other thread
        ::sem_post(&d.wanted);
        return;
      }
      if (!take(d)) continue;
      path = file_name(d.pattern, d.rank);
    }
    try {
      const Reading now(d);
      if (!now.all.empty()) {  // else the last one ends just now: what stands in the file stays
        write_file(path, records(now));
        ISTHMUS_INFO("wrote the flight record to {}", path);
      }
    } catch (const std::exception &e) { ISTHMUS_ERROR("the flight record was not written (ISTHMUS_DUMP): {}", e.what()); }
    note_written(d);
  }
}

bool unhandled() {
  struct sigaction now = {};
  return ::sigaction(SIGUSR1, nullptr, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL;
}

}  // namespace

void watch(const std::shared_ptr<comm::Communicator> &comm) {
  name_trace(*comm);
  const std::string &pattern = comm->settings().text(Setting::Dump);
  if (pattern.empty()) return;
  Dumper &d = dumper();
  const Lock one(d.watching);
  const Lock lock(d.mutex);
  std::erase_if(d.communicators, [](const auto &weak) { return weak.expired(); });
  if (d.communicators.empty()) {
    d.pattern = pattern;
    d.rank = comm::own_slot(*comm);
    d.stop = false;
    d.taken = d.written = d.requests.load(std::memory_order_acquire);
    if (!d.thread.joinable()) d.thread = begin_own_thread([&d = d] { run(d); });
    the_handlers.store(&d, std::memory_order_release);
    engine::set_late_hook(&want);
    if (unhandled()) {
      struct sigaction ours = {};
      ours.sa_handler = on_signal;
      ours.sa_flags = SA_RESTART;
      handles = ::sigaction(SIGUSR1, &ours, nullptr) == 0;
    }
  }
  d.communicators.push_back(comm);
}

void unwatch(const comm::Communicator &comm) noexcept {
  if (comm.settings().text(Setting::Dump).empty()) return;
  Dumper &d = dumper();
  const Lock one(d.watching);
  {
    Lock lock(d.mutex);
    std::erase_if(d.communicators, [&](const auto &weak) {
      const auto there = weak.lock();
      return !there || there.get() == &comm;
    });
    constexpr std::chrono::seconds kRead{2};
    d.changed.wait_for(lock, kRead, [&]() ISTHMUS_REQUIRES(d.mutex) { return d.reading == 0; });
    if (!d.communicators.empty() || d.stop) return;
    d.stop = true;
    engine::set_late_hook(nullptr);
    struct sigaction now = {};
    if (handles.exchange(false) && ::sigaction(SIGUSR1, nullptr, &now) == 0 && now.sa_handler == on_signal) {
      now.sa_handler = SIG_DFL;
      ::sigaction(SIGUSR1, &now, nullptr);
    }
  }
  d.changed.notify_all();
  ::sem_post(&d.wanted);
  if (d.thread.joinable()) d.thread.join();
  const Lock lock(d.mutex);
  if (d.other) ::sem_post(&d.wanted);  // wakes the thread in next_dump(), too
}

void take_over_dumps() noexcept {
  Dumper &d = dumper();
  const Lock lock(d.mutex);
  d.other = true;
}

bool next_dump(std::string &path) {
  take_over_dumps();
  Dumper &d = dumper();
  for (;;) {
    {
      const Lock lock(d.mutex);
      if (d.stop || d.communicators.empty()) {
        d.other = false;
        // The thread for which unwatch() waits may sleep as well, and the post that woke this thread may have been for that one.
        ::sem_post(&d.wanted);
        return false;
      }
      if (take(d)) {
        path = file_name(d.pattern, d.rank);
        return true;
      }
    }
    await_request(d);
  }
}

std::string dump_records() {
  const Reading now(dumper());
  return records(now);
}

void dump_written() noexcept { note_written(dumper()); }

void settle_dumps(double seconds) noexcept {
  Dumper &d = dumper();
  Lock lock(d.mutex);
  if (d.communicators.empty()) return;
  d.changed.wait_for(lock, std::chrono::duration<double>(seconds), [&]() ISTHMUS_REQUIRES(d.mutex) {
    return d.stop || d.written >= d.requests.load(std::memory_order_acquire);
  });
}

}  // namespace isthmus::observe
