#include "process/context.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/handles.hpp"
#include "base/lock.hpp"
#include "process/context_threads.hpp"

namespace isthmus::process {
namespace {

// CurrentContext is never destroyed: a thread of an init for which no thread waits may still use CurrentContext while the process ends.
struct CurrentContext {
  Mutex mutex;  // guards how often a context is used, too
  std::weak_ptr<Context> context ISTHMUS_GUARDED_BY(mutex);
  bool held ISTHMUS_GUARDED_BY(mutex) = false;  // for good, see raised()
};
PerProcess<CurrentContext> the_current;

// Contexts that are being deleted. Behind exit() the destructors of the libraries that a context uses run, UCX among them, while other threads go on:
// so exit() waits for what is under way, and behind that no other thread begins. What is left then goes with the process.
struct Endings {
  Mutex mutex;
  Condition changed;
  int going ISTHMUS_GUARDED_BY(mutex) = 0;
  bool exits ISTHMUS_GUARDED_BY(mutex) = false;  // on the thread `by`
  std::thread::id by ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<Endings> the_endings;
constexpr std::chrono::seconds kMostAtExit{Links::kMostLeaveSeconds + 12};
constexpr int kDescriptors = 4096;  // for some two thousand other processes, or four hundred by eight connections each

void await_endings() noexcept {
  Context::await_heard();
  Endings &endings = *the_endings;
  Lock lock(endings.mutex);
  endings.exits = true;
  endings.by = std::this_thread::get_id();
  endings.changed.wait_for(lock, kMostAtExit, [&]() ISTHMUS_REQUIRES(endings.mutex) { return endings.going == 0; });
}

bool begin_ending() noexcept {
  Endings &endings = *the_endings;
  const Lock lock(endings.mutex);
  if (endings.exits && endings.by != std::this_thread::get_id()) return false;
  ++endings.going;
  return true;
}

void ended() noexcept {
  Endings &endings = *the_endings;
  const Lock lock(endings.mutex);
  --endings.going;
  endings.changed.notify_all();
}

// The last reference may fall on one of the context's own threads, which cannot join itself: then another thread deletes it.
void end(Context *gone, const Birth &birth) {
  if (!birth.here() || !begin_ending()) return;  // the context's threads and memory are the parent's; or the process ends
  const auto all = [gone] {
    delete gone;
    ended();
  };
  if (on_context_thread()) std::thread(all).detach();
  else all();
}

}  // namespace

Context::Lease Context::acquire(const Settings &settings, const std::string &route_hint) {
  CurrentContext &now = *the_current;
  const Lock lock(now.mutex);
  std::shared_ptr<Context> c = now.context.lock();
  if (c) {
    c->settings_.check_process_settings(settings);
  } else {
    static const int registered = std::atexit(await_endings);
    static_cast<void>(registered);
    c = std::shared_ptr<Context>(new Context(settings, route_hint), [](Context *gone) { end(gone, gone->birth_); });
    now.context = c;
  }
  ++c->uses_;
  return Lease(std::move(c));
}

Context::Lease Context::Lease::again() const {
  const Lock lock(the_current->mutex);
  if (!context_) fail(Code::Aborted, "the communicator was destroyed here meanwhile");
  ++context_->uses_;
  return Lease(context_);
}

void Context::Lease::end() noexcept {
  if (!context_ || !context_->birth_.here()) return;
  std::shared_ptr<Context> c;  // let go of behind the lock
  CurrentContext &now = *the_current;
  const Lock lock(now.mutex);
  c = std::move(context_);
  if (--c->uses_ == 0 && now.context.lock() == c) now.context.reset();
}

std::shared_ptr<Context> Context::current() {
  CurrentContext &now = *the_current;
  const Lock lock(now.mutex);
  return now.context.lock();
}

Context::Context(const Settings &settings, const std::string &route_hint)
    : settings_(settings),
      arena_(static_cast<size_t>(settings.integer(Setting::StagingBytes))),
      recorder_(static_cast<size_t>(settings.integer(Setting::RecorderEntries))),
      steps_(settings.text(Setting::Trace).empty()
                 ? nullptr
                 : std::make_unique<StepRing>(static_cast<size_t>(settings.integer(Setting::TraceSteps)))),
      spin_ns_(settings.integer(Setting::SpinMicros) * 1000),
      stores_(stores_of(settings.text(Setting::Stores))),
      devices_(arena_),
      helpers_(static_cast<int>(settings.integer(Setting::ReduceThreads)), spin_ns_),
      links_(arena_, ranks_, data_streams_, helpers_, stores_, spin_ns_),
      data_streams_(arena_.doorbell()),
      staging_(arena_, ranks_),
      control_(arena_.doorbell(), ranks_, links_, data_streams_, settings.integer(Setting::HeartbeatMs) * 1'000'000),
      progress_(arena_, links_, spin_ns_) {
  make_room_for_descriptors(kDescriptors);  // while there is none of the threads
  mesh_ = std::make_unique<bootstrap::Mesh>(settings, control_, arena_.fd(), arena_.bytes(), route_hint);
  links_.begin(*mesh_);
  data_streams_.begin(*mesh_);
  control_.begin(*mesh_);
  try {
    progress_.begin();
  } catch (const std::exception &e) {
    mesh_->shut_down();  // the mesh's thread calls rooms that end before the mesh does
    fail(Code::Resource, "cannot start the progress thread: {}", e.what());
  }
}

Context::~Context() {
  progress_.end();
  workers_.end();
  devices_.end();
  links_.let_leave();
  data_streams_.end();  // until here, streams that were lost are connected again
  mesh_->shut_down();   // no more events; events that come until then still use the rooms
}

void Context::remove(uint32_t index) {
  const std::shared_ptr<LocalRank> gone = ranks_.take(index);
  if (!gone) return;
  links_.cancel(*gone);
  progress_.forget(gone);
}

void Context::raised(std::string_view what) noexcept {
  const auto c = current();
  if (!c) return;
  {
    CurrentContext &now = *the_current;
    const Lock lock(now.mutex);
    if (c->uses_ == 0 || now.context.lock() != c) return;
    if (!std::exchange(now.held, true)) {
      ++c->uses_;
      static_cast<void>(new Lease(c));  // never given back, as raised() says
    }
  }
  const auto all = c->ranks_.all();
  // The error of this process may follow from the error of another rank. Then the other rank is the first.
  const bool first = std::none_of(all.begin(), all.end(), [](const auto &rank) {
    const Failure why = rank->why();
    return why.raiser >= 0 && why.raiser != rank->rank();
  });
  for (const auto &rank : all) rank->raised(what, first);
}

void Context::await_heard() noexcept {
  const auto c = current();
  if (!c) return;
  {
    CurrentContext &now = *the_current;
    const Lock lock(now.mutex);
    if (!now.held) return;
  }
  c->mesh_->await_heard();
}

Context::Raiser Context::raiser(double waited) noexcept {
  constexpr int64_t kMomentNs = 10'000'000'000, kHeardNs = 5'000'000'000;
  const int64_t now = now_ns(), asked = now - static_cast<int64_t>(waited * 1e9);
  const auto c = current();
  if (!c) return Raiser::None;
  Raiser found = Raiser::None;
  for (const auto &rank : c->ranks_.all()) {
    const Failure why = rank->why();
    if (why.raiser < 0 || why.raiser >= rank->world() || why.raiser == rank->rank() || asked - why.noted_ns > kMomentNs)
      continue;
    const bootstrap::Peer *process = rank->path_to(why.raiser).process;
    if (!process) continue;
    if (process->lost.load(std::memory_order_acquire)) found = Raiser::Gone;
    else if (now - std::max(process->last_heard_ns.load(std::memory_order_relaxed), asked) < kHeardNs) return Raiser::There;
  }
  return found;
}

Context::Stats Context::stats() const {
  const auto c = mesh_->counts();
  return {c.threads + 1 + helpers_.threads() + data_streams_.threads(),
          c.descriptors + 3,
          c.peers,
          links_.count(),
          static_cast<int>(ranks_.all().size()),
          ranks_.leaving(),
          staging_.rings_lost(),
          arena_.staging_used(),
          arena_.staging_limit(),
          c.heartbeats};
}

}  // namespace isthmus::process
