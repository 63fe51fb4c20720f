#include "core/machine.hpp"

namespace rehearsal {
namespace {

std::atomic<bool> the_machine_runs{false};

}  // namespace

std::shared_ptr<Capture> Stream::capture() const {
  const Lock lock(mutex_);
  return capture_;
}
void Stream::capture(std::shared_ptr<Capture> c) {
  const Lock lock(mutex_);
  capture_ = std::move(c);
}

bool Stream::given_up() const noexcept { return cancelled() || device.broken(); }

void Stream::wait_done(uint64_t items) const {
  device.wait([&] { return done.load(std::memory_order_acquire) >= items || device.broken(); });
}

// ---- devices --------------------------------------------------------------------------------------------------------------

Device::Device(int ordinal) : ordinal_(ordinal) {
  for (int i = 0; i < hardware_queues(); ++i) queues_.push_back(std::make_unique<Queue>(*this, i));
  null_ = std::make_shared<Stream>(*this, *queues_[0], 0u, 0, false, Kind::Null);
}

StreamPtr Device::thread_stream() {
  static thread_local std::unordered_map<Device *, StreamPtr> streams;  // an item keeps its stream when the thread has ended
  StreamPtr &mine = streams[this];
  if (!mine) add_blocking(mine = std::make_shared<Stream>(*this, next_queue(), 0u, 0, false, Kind::Blocking));
  return mine;
}

std::vector<StreamPtr> Device::own_streams() {
  std::vector<StreamPtr> found{null_};
  const Lock lock(blocking_mutex_);
  for (const auto &known : blocking_)
    if (StreamPtr one = known.lock(); one && one->special) found.push_back(std::move(one));
  return found;
}

void Device::add_blocking(const StreamPtr &s) {
  const Lock lock(blocking_mutex_);
  std::erase_if(blocking_, [](const auto &known) { return known.expired(); });
  blocking_.push_back(s);
}

std::vector<Reached> Device::behind(const Stream &s) {
  std::vector<Reached> found;
  const auto add = [&](const StreamPtr &other) {  // two streams of one queue need no wait
    if (&other->queue != &s.queue && !other->idle()) found.push_back({other, other->submitted.load()});
  };
  if (s.kind == Kind::Blocking) add(null_);
  if (s.kind != Kind::Null) return found;
  const Lock lock(blocking_mutex_);
  for (const auto &known : blocking_)
    if (const StreamPtr other = known.lock()) add(other);
  return found;
}

Queue &Device::next_queue() { return *queues_[dealt_.fetch_add(1) % queues_.size()]; }

Entered Device::enter() { return Entered(settings().locking ? &lock_ : nullptr); }

Entered Device::enter_and_wait() {
  Entered lock = enter();
  if (settings().locking) wait_all_idle();
  return lock;
}

void Device::wait_all_idle() {
  for (const auto &q : queues_) q->wait_idle();
}

void Device::wait_idle() {
  std::vector<uint64_t> pushed;
  for (const auto &q : queues_) pushed.push_back(q->pushed());
  for (size_t i = 0; i < queues_.size(); ++i) queues_[i]->wait_done(pushed[i]);
}

void Device::announce() {
  { const Lock lock(done_mutex_); }  // a thread that has looked and is about to sleep, sleeps by now
  done_.notify_all();
}

void Device::break_down(int code) {
  int well = 0;
  broken_.compare_exchange_strong(well, code);
  announce();
}

void Device::break_down_for_good(int code) {
  break_down(code);
  for_good_.store(true, std::memory_order_release);
}

Machine::Machine() {
  guard_forks();
  for (int i = 0; i < settings().devices; ++i) devices_.push_back(std::make_unique<Device>(i));
  the_machine_runs.store(true);
}

bool Machine::started() noexcept { return the_machine_runs.load(std::memory_order_acquire); }

Machine &Machine::get() {
  static Machine *const the_machine = new Machine;  // never destroyed: the queues' threads run until the process ends
  return *the_machine;
}

Device *Machine::device(int ordinal) noexcept {
  return ordinal >= 0 && ordinal < devices() ? devices_[static_cast<size_t>(ordinal)].get() : nullptr;
}

std::vector<Device *> &device_stack() {
  static thread_local std::vector<Device *> stack;
  return stack;
}
Device *current_device() {
  if (!device_stack().empty()) return device_stack().back();
  return Machine::started() && Machine::get().always_a_device.load() ? Machine::get().device(0) : nullptr;
}

// ---- memory ---------------------------------------------------------------------------------------------------------------

Code allocate(const Entry &, Device &d, size_t bytes, uintptr_t *address) {
  const auto lock = d.enter_and_wait();
  return map_device_memory(d.ordinal(), bytes, address);
}
Code release(const Entry &e, Device &d, uintptr_t address) {
  const auto lock = d.enter_and_wait();
  return unmap_device_memory(e.name(), address);
}
Code allocate_host(const Entry &, Device &d, size_t bytes, void **host, Pinned pinned) {
  const auto lock = d.enter_and_wait();
  return map_host_memory(d.ordinal(), bytes, pinned, host);
}
Code release_host(const Entry &e, Device &d, void *host, Pinned pinned) {
  const auto lock = d.enter_and_wait();
  return unmap_host_memory(e.name(), pinned, host);
}
Code enter_host(const Entry &e, Device &d, void *host, size_t bytes) {
  const auto lock = d.enter_and_wait();
  return register_host_memory(e.name(), d.ordinal(), host, bytes);
}
Code leave_host(const Entry &, Device &d, void *host) {
  const auto lock = d.enter_and_wait();
  return unregister_host_memory(host);
}

// ---- events and streams ---------------------------------------------------------------------------------------------------

Code record(const Entry &e, const EventPtr &event, const StreamPtr &s) {
  const auto lock = s->device.enter();
  const auto marker = std::make_shared<Marker>();
  const std::shared_ptr<Capture> capture = s->capture();
  {
    const Lock mine(event->mutex);
    event->capture = capture;
    if (!capture) event->marker = marker;
  }
  return submit_locked(
      lock, e, s,
      [marker, &q = s->queue] {
        q.end_at(q.ready_ns());
        marker->at_ns.store(q.ready_ns(), std::memory_order_relaxed);  // not when this thread woke up
        marker->done.store(true, std::memory_order_release);
      },
      true);
}

Code wait_event(const Entry &e, const StreamPtr &s, const EventPtr &event) {
  const auto lock = s->device.enter();
  std::shared_ptr<Marker> marker;
  {
    const Lock mine(event->mutex);
    marker = event->marker;
    if (event->capture && !s->capture()) {  // the stream joins the capture of the event's stream
      s->capture(event->capture);
      const Lock members(event->capture->mutex);
      event->capture->streams.push_back(s);
    }
    if (event->capture) marker = nullptr;
  }
  if (!marker && !s->capture()) return Code::Ok;  // never recorded
  return submit_locked(
      lock, e, s,
      [marker, s] { poll_until([&] { return !marker || marker->done.load(std::memory_order_acquire) || s->given_up(); }); },
      true);
}

Code query(const EventPtr &event) {
  Device &d = *Machine::get().device(event->device);
  const auto lock = d.enter();
  const Lock mine(event->mutex);
  if (event->capture) return Code::CapturedEvent;
  if (d.broken()) return Code::Broken;
  return !event->marker || event->marker->done.load(std::memory_order_acquire) ? Code::Ok : Code::NotReady;
}

Code synchronize(const EventPtr &event) {
  Device &d = *Machine::get().device(event->device);
  std::shared_ptr<Marker> marker;
  {
    const auto lock = d.enter();
    const Lock mine(event->mutex);
    if (event->capture) return Code::CapturedEvent;
    marker = event->marker;
  }
  if (marker) d.wait([&] { return marker->done.load(std::memory_order_acquire) || d.broken(); });
  return d.broken() ? Code::Broken : Code::Ok;
}

namespace {
Code invalidated(const StreamPtr &s) {
  const auto capture = s->capture();
  if (!capture) return Code::Ok;
  capture->invalid.store(true);
  return Code::CaptureUnsupported;
}
}  // namespace

Code query(const StreamPtr &s) {
  const auto lock = s->device.enter();
  if (const Code c = invalidated(s); c != Code::Ok) return c;
  if (s->device.broken()) return Code::Broken;
  return s->idle() ? Code::Ok : Code::NotReady;
}

Code synchronize(const StreamPtr &s) {
  uint64_t until = 0;
  {
    const auto lock = s->device.enter();
    if (const Code c = invalidated(s); c != Code::Ok) return c;
    until = s->submitted.load(std::memory_order_relaxed);
  }
  s->wait_done(until);
  return s->device.broken() ? Code::Broken : Code::Ok;
}

// ---- capture --------------------------------------------------------------------------------------------------------------

Code begin_capture(const Entry &e, const StreamPtr &s, int mode) {
  const auto lock = s->device.enter();
  if (s == s->device.null_stream()) return Code::CaptureUnsupported;
  if (s->capture()) return misuse(e.name(), Code::IllegalState, "the stream captures already");
  const auto capture = std::make_shared<Capture>();
  capture->origin = s.get();
  capture->mode = mode;
  {
    const Lock members(capture->mutex);
    capture->streams.push_back(s);
  }
  if (mode == 0) Machine::get().global_captures.fetch_add(1);
  s->capture(capture);
  return Code::Ok;
}

Code end_capture(const Entry &e, const StreamPtr &s, uint64_t *graph) {
  const auto lock = s->device.enter();
  const std::shared_ptr<Capture> capture = s->capture();
  *graph = 0;
  if (!capture) return misuse(e.name(), Code::IllegalState, "the stream does not capture");
  if (capture->origin != s.get()) return misuse(e.name(), Code::CaptureUnmatched, "the capture began on another stream");
  {
    const Lock members(capture->mutex);
    for (const StreamPtr &member : capture->streams) member->capture(nullptr);
  }
  if (capture->mode == 0) Machine::get().global_captures.fetch_sub(1);
  if (capture->invalid.load()) return Code::CaptureInvalidated;
  const auto made = std::make_shared<Graph>();
  made->items = capture->items;
  *graph = Machine::get().graphs.add(made);
  return Code::Ok;
}

}  // namespace rehearsal
