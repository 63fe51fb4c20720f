#include "engine/context.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "device/abandoned.hpp"
#include "device/calling.hpp"
#include "device/host.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {
namespace {

// How long a broken data link waits for the control connection to say why: a peer that leaves, aborts or dies says so there, and is
// heard in the order in which it happened.
constexpr int64_t kLinkGraceNs = 500'000'000;

constexpr int64_t kLeastSpinNs = 4000;  // before a sleep that sockets end

constexpr size_t kLeastPinned = 4 << 20;  // of staging memory: a few slots

// Never destroyed: a thread of an init that nobody waits for may still use it while the process ends.
struct Current {
  Mutex mutex;  // guards how often a context is used, too
  std::weak_ptr<Context> context ISTHMUS_GUARDED_BY(mutex);
  bool held ISTHMUS_GUARDED_BY(mutex) = false;  // for good, see raised()
};
PerProcess<Current> the_current;

struct HostStreams {
  Mutex mutex;
  std::weak_ptr<device::Stream> stream ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<HostStreams> the_host_streams;

std::atomic<int> local_ranks{1};
thread_local bool own_thread = false;           // the progress or the control thread
thread_local const Context *watches = nullptr;  // whose sockets this thread watches
thread_local uint32_t sleeps_unwatching =
    0;  // how often, callbacks within callbacks, this thread sleeps for sockets without it

}  // namespace

thread_local Context::LinkSlot *Context::current_slot = nullptr;

const InChild Context::forgets_([](void *) noexcept {
  local_ranks.store(1, std::memory_order_relaxed);
  own_thread = false;
  watches = nullptr;
  sleeps_unwatching = 0;
  current_slot = nullptr;
});

int Context::processors() noexcept {
  static std::atomic<int> count{0};
  int counted = count.load(std::memory_order_relaxed);
  if (counted != 0) return counted;
  cpu_set_t set;
  counted = ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
  count.store(counted, std::memory_order_relaxed);
  return counted;
}

bool Context::oversubscribed() noexcept { return local_ranks.load(std::memory_order_relaxed) > processors(); }

void Context::want_helpers(int automatic) {
  const auto asked = static_cast<int>(settings_.integer(Setting::ReduceThreads));
  const int threads = asked < 0 ? automatic : asked;
  const Lock lock(reduce_pool_mutex_);
  if (threads <= 0 || reduce_pool_owner_) return;
  reduce_pool_owner_ = std::make_unique<ReducePool>(threads, spin_ns_);
  reduce_pool_.store(reduce_pool_owner_.get(), std::memory_order_release);
}

void Context::note_local_ranks(int ranks) noexcept {
  int seen = local_ranks.load(std::memory_order_relaxed);
  while (seen < ranks && !local_ranks.compare_exchange_weak(seen, ranks)) {}
  static_cast<void>(oversubscribed());  // counts the processors now, and not within an operation
}

Context::Use Context::acquire(const Settings &settings, const std::string &route_hint) {
  Current &now = *the_current;
  const Lock lock(now.mutex);
  std::shared_ptr<Context> c = now.context.lock();
  if (c) {
    c->settings_.check_process_settings(settings);
  } else {
    // The last reference may fall on one of the context's own threads, which cannot join itself.
    c = std::shared_ptr<Context>(new Context(settings, route_hint), [](Context *gone) {
      if (!gone->birth_.here()) return;  // its threads and memory are the parent's
      if (own_thread) std::thread([gone] { delete gone; }).detach();
      else delete gone;
    });
    now.context = c;
  }
  ++c->uses_;
  return Use(std::move(c));
}

Context::Use Context::Use::again() const {
  const Lock lock(the_current->mutex);
  ++context_->uses_;
  return Use(context_);
}

void Context::Use::end() noexcept {
  const std::shared_ptr<Context> c = std::move(context_);
  if (!c || !c->birth_.here()) return;
  Current &now = *the_current;
  const Lock lock(now.mutex);
  if (--c->uses_ == 0 && now.context.lock() == c) now.context.reset();
}

std::shared_ptr<Context> Context::current() {
  Current &now = *the_current;
  const Lock lock(now.mutex);
  return now.context.lock();
}

void Context::raised(std::string_view what) noexcept {
  const auto c = current();
  if (!c) return;
  {
    Current &now = *the_current;
    const Lock lock(now.mutex);
    if (c->uses_ == 0 || now.context.lock() != c) return;
    if (!std::exchange(now.held, true)) {
      ++c->uses_;
      static_cast<void>(new Use(c));  // never given back: see above
    }
  }
  const auto all = c->members();
  // What it raises may be what another's raising has come to here. Then that one is the first.
  const bool first = std::none_of(all.begin(), all.end(), [](const auto &m) {
    const Failure why = m->why();
    return why.raiser >= 0 && why.raiser != m->rank();
  });
  for (const auto &m : all) m->raised(what, first);
}

Context::Raiser Context::raiser() noexcept {
  constexpr int64_t kMomentNs = 10'000'000'000;
  const auto c = current();
  if (!c) return Raiser::None;
  Raiser found = Raiser::None;
  for (const auto &m : c->members()) {
    const Failure why = m->why();
    if (why.raiser < 0 || why.raiser >= m->world() || why.raiser == m->rank() || now_ns() - why.noted_ns > kMomentNs)
      continue;
    const bootstrap::Peer *process = m->peers()[static_cast<size_t>(why.raiser)].process;
    if (!process) continue;
    if (!process->lost.load(std::memory_order_acquire)) return Raiser::There;
    found = Raiser::Gone;
  }
  return found;
}

Context::Context(const Settings &settings, const std::string &route_hint)
    : settings_(settings),
      arena_(static_cast<size_t>(settings.integer(Setting::StagingBytes))),
      recorder_(static_cast<size_t>(settings.integer(Setting::RecorderEntries))),
      spin_ns_(settings.integer(Setting::SpinMicros) * 1000),
      stores_(stores_of(settings.text(Setting::Stores))),
      socket_spin_ns_(spin_ns_) {
  mesh_ = std::make_unique<bootstrap::Mesh>(settings, *this, arena_.fd(), arena_.bytes(), route_hint);
  try {
    progress_ = begin_own_thread([this] { progress_loop(); });
  } catch (const std::exception &e) { fail(Code::Resource, "cannot start the progress thread: {}", e.what()); }
}

Context::~Context() {
  stop_.store(true, std::memory_order_release);
  progress_bell_.wake();
  arena_.doorbell().wake();
  progress_.join();
  {
    const Lock lock(worker_mutex_);
    workers_end_ = true;
  }
  for (const auto &worker : workers_) {  // nobody makes one any more
    worker->called.notify_all();
    if (worker->thread.joinable()) worker->thread.join();
  }
  // What a device may still reach stays mapped, here and where a peer is forgotten.
  for (const OnDevice &d : devices_)
    for (const OnDevice::Reached &r : d.reached)
      if (!d.runtime->unregister_host(d.device, r.peer->arena.data() + r.offset)) r.peer->arena.keep();
  for (const OnDevice &d : devices_)
    if (d.there && !d.runtime->unregister_host(d.device, arena_.staging_begin())) arena_.keep_mapped();
  mesh_->shut_down();  // no more events; those that come until then still use mesh_
}

// ---- links ---------------------------------------------------------------------------------------------------------------------------

void Context::refuse_stuck(const device::Runtime &runtime, int device) {
  if (const char *call = runtime.stuck(device))
    fail(Code::System,
         "{}:{} hangs: {}, of a communicator that this process had before, has not come back from it; start a new process",
         runtime.vendor(), device, call);
}

void Context::ask(device::Runtime &runtime, int device, Deadline deadline, std::function<void()> calls) {
  refuse_stuck(runtime, device);
  const int64_t begun = now_ns();
  const auto vendor_call = std::make_shared<device::VendorCall>();
  const auto ended = device::call_within(
      static_cast<double>(deadline.left_ns()) * 1e-9,
      [vendor_call, calls = std::move(calls)] {
        struct Here {
          device::VendorCall *const outer;
          explicit Here(device::VendorCall *mine) : outer(std::exchange(device::vendor_call_here, mine)) {}
          ~Here() { device::vendor_call_here = outer; }
        } const here(vendor_call.get());
        calls();
        return Status{};
      },
      [&runtime, device] { runtime.came_back(device); }, [&] { return runtime.stuck(device) != nullptr; });
  if (ended) {
    if (!ended->ok()) throw Error(ended->code, ended->text);
    return;
  }
  const char *const before = runtime.stuck(device);
  const char *const call = vendor_call->inside() ? vendor_call->call.load(std::memory_order_relaxed) : nullptr;
  const char *const library = vendor_call->library.load(std::memory_order_relaxed);
  runtime.does_not_come_back(device, before ? before : call ? call : "a call of the last init");
  if (before) refuse_stuck(runtime, device);
  fail(Code::System, "{}:{} hangs: {}{}{}{} has not come back from it in {:.1f} s; start a new process", runtime.vendor(),
       device, call ? call : "what init asked of it", call ? " (" : "", call ? library : "", call ? ")" : "",
       static_cast<double>(now_ns() - begun) * 1e-9);
}

Context::OnDevice &Context::known(device::Runtime &runtime, int device) {
  const Lock lock(devices_mutex_);
  for (OnDevice &d : devices_)
    if (d.runtime == &runtime && d.device == device) return d;
  OnDevice &d = devices_.emplace_back();
  d.runtime = &runtime;
  d.device = device;
  return d;
}

void Context::begin(OnDevice &d) {
  if (!d.begun) d.runtime->begin(d.device);
  d.begun = true;
}

void Context::begin_on(device::Runtime &runtime, int device) {
  OnDevice &d = known(runtime, device);
  const Lock lock(d.mutex);
  begin(d);
}

std::shared_ptr<device::Stream> Context::device_stream(device::Runtime &runtime, int device, int number) {
  OnDevice &d = known(runtime, device);
  const Lock lock(d.mutex);
  begin(d);
  auto &streams = d.streams;
  if (streams.size() <= static_cast<size_t>(number)) streams.resize(static_cast<size_t>(number) + 1);
  auto &mine = streams[static_cast<size_t>(number)];
  if (auto stream = mine.lock()) return stream;
  std::shared_ptr<device::Stream> stream = runtime.make_stream(device, "isthmus");
  mine = stream;
  return stream;
}

std::shared_ptr<DeviceScratch> Context::device_scratch(device::Runtime &runtime, int device) {
  OnDevice &d = known(runtime, device);
  const Lock lock(d.mutex);
  std::shared_ptr<DeviceScratch> scratch = d.scratch.lock();
  if (!scratch) d.scratch = scratch = std::make_shared<DeviceScratch>(runtime, device);
  return scratch;
}

std::byte *Context::arena_on(device::Runtime &runtime, int device) {
  OnDevice &d = known(runtime, device);
  const Lock lock(d.mutex);
  begin(d);
  if (!d.there) {
    std::byte *const staging = arena_.staging_begin();
    const size_t wanted = arena_.staging_limit();
    // Where so much cannot be pinned, a smaller pool does the same work in more steps.
    for (size_t bytes = wanted;; bytes = bytes / 2 / 4096 * 4096) {
      try {
        runtime.register_host(device, staging, bytes);
      } catch (const Error &e) {
        if (e.code() == Code::Resource && bytes / 2 >= kLeastPinned) continue;
        throw Error(e.code(),
                    formatted("{}; {} bytes of staging cannot be pinned: lower ISTHMUS_STAGING_BYTES, or raise the "
                              "limit of locked memory (ulimit -l)",
                              e.text(), bytes));
      }
      if (bytes < wanted)
        ISTHMUS_WARN(
            "only {} of {} bytes of staging could be pinned for {}:{}; large operations take more steps, and more of "
            "them at once may be refused (ISTHMUS_STAGING_BYTES)",
            bytes, wanted, runtime.vendor(), device);
      arena_.staging_is_pinned(bytes);
      break;
    }
    d.there = static_cast<std::byte *>(runtime.device_address(device, staging)) - (staging - arena_.base());
  }
  return d.there;
}

std::byte *Context::reach(device::Runtime &runtime, int device, bootstrap::Peer *peer, uint64_t offset, uint64_t bytes) {
  try {
    if (!peer) return arena_on(runtime, device) + offset;
    OnDevice &d = known(runtime, device);
    const Lock lock(d.mutex);
    for (const OnDevice::Reached &r : d.reached)
      if (r.peer == peer && r.offset == offset && r.bytes == bytes) return r.there;
    std::byte *const memory = peer->arena.data() + offset;
    runtime.register_host(device, memory, bytes);
    auto *const there = static_cast<std::byte *>(runtime.device_address(device, memory));
    d.reached.push_back({peer, offset, bytes, there});
    return there;
  } catch (const Error &e) {
    ISTHMUS_WARN("{}:{} does not reach the slots of pid {}, so processors copy from them: {}", runtime.vendor(), device,
                 peer ? peer->endpoint.pid : 0, e.text());
    return nullptr;
  }
}

bool Context::staging_is_lent() const {
  for (const auto &share : message_staging_)
    if (share.load(std::memory_order_relaxed) != 0) return true;
  for (const auto &m : members())
    if (m->has_lent_staging()) return true;
  return false;
}

std::optional<uint64_t> Context::MessageStaging::allocate(uint64_t bytes) noexcept {
  for (bool again = false;; again = true) {
    try {
      return context_.arena().allocate_staging(bytes, false);
    } catch (const Error &) {}
    if (again || !context_.give_idle_staging()) return std::nullopt;  // slots that no operation has
  }
}

void Context::MessageStaging::free(uint64_t offset) noexcept { context_.arena().free_staging(offset); }

uint64_t Context::MessageStaging::limit() const noexcept { return context_.arena().staging_limit(); }

bool Context::give_idle_staging() {
  bool given = false;
  for (const auto &m : members()) given |= m->give_idle_staging();
  return given;
}

uint64_t Context::take_fixed_ring(uint64_t bytes, int part_of) noexcept {
  const Lock lock(spare_rings_mutex_);
  for (auto it = spare_rings_.begin(); it != spare_rings_.end(); ++it)
    if (it->second == bytes) {
      const uint64_t offset = it->first;
      spare_rings_.erase(it);
      return offset;
    }
  // The rest of it stays for messages, and for rings of other sizes.
  if (bytes == 0 || arena_.staging_used() + bytes > arena_.staging_limit() / static_cast<uint64_t>(part_of)) return 0;
  try {
    return arena_.allocate_staging(bytes);
  } catch (const Error &) { return 0; }
}

void Context::give_fixed_ring(uint64_t offset, uint64_t bytes) noexcept {
  const Lock lock(spare_rings_mutex_);
  spare_rings_.emplace_back(offset, bytes);
}

std::shared_ptr<device::Stream> Context::host_stream() {
  HostStreams &mine = *the_host_streams;
  const Lock lock(mine.mutex);
  std::shared_ptr<device::Stream> stream = mine.stream.lock();
  if (!stream || !stream->status().ok()) {
    stream = device::host_runtime().make_stream(0, "host");
    mine.stream = stream;
  }
  return stream;
}

bootstrap::Peer &Context::connect(const bootstrap::Endpoint &endpoint, const bootstrap::Bytes16 &key, bool shared,
                                  int streams, Deadline deadline) {
  const Lock one(connect_mutex_);
  bootstrap::Peer &peer = mesh_->connect(endpoint, key, shared, 0, deadline);
  if (streams > 0) {
    {
      const Lock lock(links_mutex_);
      for (auto &l : links_)
        if (l->peer == &peer && !l->shm) return peer;  // its streams belong to a link already
    }
    mesh_->connect(endpoint, key, shared, streams, deadline);
    link_to(&peer, false);
  }
  return peer;
}

// All rings together leave most of the staging memory to slots.
RingPlace Context::make_ring() {
  for (uint64_t capacity = link::ByteRing::kMostCapacity;; capacity /= 2) {
    const bool least = capacity == link::ByteRing::kLeastCapacity;
    if (!least && arena_.staging_used() + capacity > arena_.staging_limit() / 8) continue;
    try {
      const uint64_t offset = arena_.allocate_staging(link::ByteRing::bytes(capacity));
      new (arena_.base() + offset) link::ByteRing;
      return {offset, capacity};
    } catch (const Error &) {
      if (least) throw;
    }
  }
}

link::Link *Context::link_to(bootstrap::Peer *peer, bool memory) {
  const Lock lock(links_mutex_);
  for (auto &l : links_)
    if (l->peer == peer && (peer == nullptr || (l->shm != nullptr) == memory)) return l->link.get();
  if (links_.size() >= link_table_.size()) fail(Code::Resource, "more than {} links in one process", link_table_.size());
  auto slot = std::make_unique<LinkSlot>();
  slot->peer = peer;
  if (!peer) {
    slot->link = std::make_unique<link::LocalLink>(&arena_.doorbell());
  } else if (memory) {
    const RingPlace mine = make_ring();
    auto shm = std::make_unique<link::ShmLink>(link::ByteRing::at(arena_.base() + mine.offset), mine.capacity,
                                               &link::Arena::doorbell_of(peer->arena.data()), stores_);
    slot->shm = shm.get();
    slot->link = std::move(shm);
    for (const auto &[from, theirs] : early_rings_)
      if (from == peer) slot->shm->set_in(link::ByteRing::at(peer->arena.data() + theirs.offset), theirs.capacity);
    mesh_->send(*peer, static_cast<uint16_t>(Control::StreamRing), packed(mine));
  } else {
    slot->link = std::make_unique<link::TcpLink>(std::move(peer->data));
    slot->sockets = true;
    has_sockets_.store(true, std::memory_order_release);
  }
  link::Link *made = slot->link.get();
  const uint32_t n = link_count_.load(std::memory_order_relaxed);
  link_table_[n].store(slot.get(), std::memory_order_release);
  links_.push_back(std::move(slot));
  link_count_.store(n + 1, std::memory_order_release);
  return made;
}

bool Context::drive_slot(LinkSlot &slot) {
  if (!slot.link->try_turn()) return false;
  current_slot = &slot;
  bool moved = false;
  try {
    moved = slot.link->progress(*this);
  } catch (const std::exception &e) {  // out of memory for data that nobody has asked for yet
    broken(e.what());
  }
  current_slot = nullptr;
  slot.link->end_turn();
  return moved;
}

bool Context::drive_links(bool watched) noexcept {
  bool moved = false;
  if (inside_link()) return false;
  const uint32_t n = link_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; ++i) {
    LinkSlot &slot = *link_table_[i].load(std::memory_order_acquire);
    if ((!watched || !slot.sockets) && !slot.link->quiet()) moved |= drive_slot(slot);
  }
  if (moved && unwatching_.load(std::memory_order_seq_cst) > (sleeps_unwatching ? 1u : 0u)) wake();
  return moved;
}

void Context::note_socket_wait(int64_t ns) noexcept {
  const int64_t spin = socket_spin_ns_.load(std::memory_order_relaxed);
  if (ns > spin_ns_) socket_spin_ns_.store(std::max(spin / 2, std::min(spin_ns_, kLeastSpinNs)), std::memory_order_relaxed);
  else if (ns > spin) socket_spin_ns_.store(std::min(spin * 4, spin_ns_), std::memory_order_relaxed);
}

Context::Watch::Watch(Context &context) noexcept : context_(context) {
  again_ = watches == &context;
  if (again_) return;
  const auto take = [&] { return taken_ = !context_.watched_.exchange(true, std::memory_order_seq_cst); };
  if (!take()) {
    context_.unwatching_.fetch_add(1, std::memory_order_seq_cst);
    // Whoever gave it up since the first try did not see us.
    if (take()) context_.unwatching_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (taken_) watches = &context;
  else ++sleeps_unwatching;
}

Context::Watch::~Watch() {
  if (again_) return;
  if (!taken_) {
    --sleeps_unwatching;
    context_.unwatching_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  watches = nullptr;
  context_.watched_.store(false, std::memory_order_seq_cst);
  if (context_.unwatching_.load(std::memory_order_seq_cst) != 0) context_.wake();
}

void Context::cancel_on_links(Member &member) {
  for (auto &p : member.peers()) {
    if (!p.link) continue;
    while (!p.link->try_turn()) ::sched_yield();  // one burst at most
    p.link->cancel(member.index(), p.their_index, member.epoch(), static_cast<uint32_t>(member.rank()));
    p.link->end_turn();
  }
}

void Context::poll_sockets(int64_t ns) {
  thread_local std::vector<pollfd> fds;
  fds.clear();
  fds.push_back({arena_.bell_socket().fd(), POLLIN, 0});
  const uint32_t n = link_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; ++i) {
    link::Link &link = *link_table_[i].load(std::memory_order_acquire)->link;
    if (link.try_turn()) {
      link.before_sleep();
      link.end_turn();
    }
    ns = std::min(ns, link.descriptors(fds));
  }
  const timespec t{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  if (::ppoll(fds.data(), fds.size(), &t, nullptr) > 0 && fds[0].revents != 0) arena_.bell_socket().answer();
}

// ---- members -------------------------------------------------------------------------------------------------------------------------

uint32_t Context::reserve_index() {
  const Lock lock(members_mutex_);
  if (!free_indices_.empty()) {
    const uint32_t i = free_indices_.back();
    free_indices_.pop_back();
    return i;
  }
  members_.emplace_back();
  return static_cast<uint32_t>(members_.size() - 1);
}

void Context::release_index(uint32_t index) {
  const Lock lock(members_mutex_);
  std::erase_if(making_, [index](const Making &m) { return m.index == index; });
  free_indices_.push_back(index);
}

void Context::set_member(uint32_t index, std::shared_ptr<Member> member) {
  const Lock lock(members_mutex_);
  std::erase_if(making_, [index](const Making &m) { return m.index == index; });
  members_[index] = std::move(member);
}

std::shared_ptr<const std::atomic<bool>> Context::making(uint32_t index, uint32_t epoch) {
  auto failed = std::make_shared<std::atomic<bool>>(false);
  const Lock lock(members_mutex_);
  making_.push_back({index, epoch, failed});
  return failed;
}

std::shared_ptr<Member> Context::member_at(uint32_t index) const {
  const Lock lock(members_mutex_);
  return index < members_.size() ? members_[index] : nullptr;
}

std::vector<std::shared_ptr<Member>> Context::members() const {
  const Lock lock(members_mutex_);
  std::vector<std::shared_ptr<Member>> out;
  for (const auto &m : members_)
    if (m) out.push_back(m);
  return out;
}

void Context::remove_member(uint32_t index) {
  std::shared_ptr<Member> gone;
  {
    const Lock lock(members_mutex_);
    gone = std::exchange(members_[index], nullptr);
  }
  if (!gone) return;
  cancel_on_links(*gone);
  const Lock lock(active_mutex_);
  std::erase(active_, gone);
  active_version_.fetch_add(1, std::memory_order_release);
}

void Context::retire(uint32_t index, uint32_t epoch, Gone gone, std::function<bool()> safe, std::function<void()> free_it) {
  {
    const Lock lock(retired_mutex_);
    retired_.push_back({index, epoch, std::move(gone), std::move(safe), std::move(free_it)});
  }
}

void Context::sweep() noexcept {
  std::vector<Retired> ready;
  {
    const Lock lock(retired_mutex_);
    for (size_t i = 0; i < retired_.size();) {
      if (!retired_[i].safe()) {
        ++i;
        continue;
      }
      ready.push_back(std::move(retired_[i]));
      retired_[i] = std::move(retired_.back());
      retired_.pop_back();
    }
    freeing_ += static_cast<int>(ready.size());
  }
  for (auto &r : ready) {
    r.free_it();
    release_index(r.index);
    const Lock lock(retired_mutex_);
    --freeing_;
  }
}

void Context::activate(Member &member) {
  if (!member.active.exchange(true, std::memory_order_acq_rel)) {
    auto shared = member.weak_from_this().lock();
    if (!shared) return;
    const Lock lock(active_mutex_);
    // The progress thread may be about to take it out, and will see that it has work again.
    if (std::find(active_.begin(), active_.end(), shared) == active_.end()) active_.push_back(std::move(shared));
    active_version_.fetch_add(1, std::memory_order_release);
  }
  progress_bell_.ring();
}

void Context::call_worker(Member &member, bool stops) {
  auto shared = member.weak_from_this();
  const Lock lock(worker_mutex_);
  try {
    auto mine = std::find_if(workers_.begin(), workers_.end(), [&](const auto &c) {
      return c->runtime == member.runtime() && c->device == member.device() && c->stops == stops;
    });
    if (mine == workers_.end()) {
      workers_.push_back(std::make_unique<DeviceWorker>());
      mine = workers_.end() - 1;
      (*mine)->runtime = member.runtime();
      (*mine)->device = member.device();
      (*mine)->stops = stops;
    }
    DeviceWorker &worker = **mine;
    worker.jobs.push_back(std::move(shared));
    if (!worker.thread.joinable()) worker.thread = begin_own_thread([this, &worker] { worker_loop(worker); });
    worker.called.notify_one();
  } catch (const std::exception &e) {
    member.fail(Code::Resource, formatted("cannot start the thread that carries messages to devices: {}", e.what()), true);
  }
}

void Context::worker_loop(DeviceWorker &worker) {
  enter_own_thread();
  ::pthread_setname_np(::pthread_self(), "isthmus-worker");
  std::vector<std::weak_ptr<Member>> jobs, again;
  for (;;) {
    {
      Lock lock(worker_mutex_);
      const auto called = [&]() ISTHMUS_REQUIRES(worker_mutex_) { return workers_end_ || !worker.jobs.empty(); };
      if (again.empty()) worker.called.wait(lock, called);
      else worker.called.wait_for(lock, std::chrono::milliseconds(1), called);
      if (workers_end_) return;
      jobs.swap(worker.jobs);
    }
    for (auto &job : again) jobs.push_back(std::move(job));
    again.clear();
    for (const auto &job : jobs) {
      const auto member = job.lock();
      const auto same = [&](const auto &other) { return !other.owner_before(member) && !member.owner_before(other); };
      if (!member) continue;
      if (worker.stops) {
        member->stop_stream();
        continue;
      }
      member->look_at_device();
      if (std::none_of(again.begin(), again.end(), same) && member->carry_messages()) again.push_back(member);
    }
    jobs.clear();
  }
}

void Context::progress_loop() {
  own_thread = true;
  ::pthread_setname_np(::pthread_self(), "isthmus-engine");
  std::vector<std::shared_ptr<Member>> mine;
  uint64_t version = ~uint64_t{0};
  int64_t idle_since = 0, looked = 0;
  uint32_t busy = 0;
  while (!stop_.load(std::memory_order_acquire)) {
    if (const uint64_t v = active_version_.load(std::memory_order_acquire); v != version) {
      const Lock lock(active_mutex_);
      version = active_version_.load(std::memory_order_relaxed);
      mine = active_;
    }
    bool work = false, waited_for = true, moved = false;
    for (auto &m : mine) {
      if (!m->has_work()) {
        m->active.store(false, std::memory_order_release);
        const Lock lock(active_mutex_);
        // Work may have come since: activate() then saw `active` set, or will find it unset.
        if (m->has_work()) {
          m->active.store(true, std::memory_order_release);
        } else if (!m->active.load(std::memory_order_acquire)) {
          std::erase(active_, m);
          active_version_.fetch_add(1, std::memory_order_release);
          continue;
        }
      }
      work = true;
      if (m->waiters() == 0) {
        waited_for = false;
        moved |= m->drive();
      }
    }
    if (moved) {
      idle_since = 0;
      if (++busy % 1024 != 0) continue;  // traffic must not keep it from the clock
    }
    const int64_t now = now_ns();
    if (work && now - looked > 1'000'000) {
      looked = now;
      for (auto &m : mine)
        if (m->has_work()) m->check_deadlines(now);
    }
    if (!work) {
      mine.clear();  // members must not live on here
      version = ~uint64_t{0};
      Nap nap(progress_bell_);
      if (!stop_.load(std::memory_order_acquire)) {
        bool any;
        {
          const Lock lock(active_mutex_);
          any = !active_.empty();
        }
        if (!any) nap.sleep(1'000'000'000);
      }
      idle_since = 0;
      continue;
    }
    if (waited_for) {  // the waiter drives; be there soon after it has gone
      Nap nap(progress_bell_);
      nap.sleep(1'000'000);
      continue;
    }
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < std::min<int64_t>(spin_ns_, 20'000)) {
      ::sched_yield();
      continue;
    }
    const bool polls = std::any_of(mine.begin(), mine.end(), [](const auto &m) { return m->polls_device(); });
    const int64_t nap_ns = polls ? Member::device_nap(now - idle_since) : 5'000'000;
    sleep(has_links(), nap_ns, [&](bool watched) {
      for (auto &m : mine)
        if (m->has_work() && m->waiters() == 0 && m->drive(watched)) return true;
      return active_version_.load(std::memory_order_acquire) != version || stop_.load(std::memory_order_acquire);
    });
  }
}

// ---- frames --------------------------------------------------------------------------------------------------------------------------

link::Accept Context::accept(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) {
  const auto m = member_at(h.member);
  return m ? m->accept_frame(h, since_ns, to) : link::Accept::Drop;
}

void Context::received(const link::FrameHeader &h) {
  if (const auto m = member_at(h.member); m && m->epoch() == h.epoch) m->received_frame(h);
}

void Context::enter_own_thread() noexcept { own_thread = true; }

void Context::broken(const std::string &why) {
  LinkSlot *slot = current_slot;
  if (!slot || !slot->peer) return;
  slot->why = why;
  slot->broken_ns.store(now_ns(), std::memory_order_release);
  has_broken_.store(true, std::memory_order_release);
}

void Context::report_broken(int64_t now) noexcept {
  if (!has_broken_.load(std::memory_order_acquire)) return;
  const uint32_t n = link_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; ++i) {
    LinkSlot &slot = *link_table_[i].load(std::memory_order_acquire);
    const int64_t since = slot.broken_ns.load(std::memory_order_acquire);
    if (since == 0 || now - since < kLinkGraceNs || slot.peer->lost.load(std::memory_order_acquire)) continue;
    for (const auto &m : members()) m->link_broken(slot.link.get(), slot.why);
  }
}

Context::Stats Context::stats() const {
  const auto c = mesh_->counts();
  const ReducePool *const pool = reduce_pool_.load(std::memory_order_acquire);
  const int leaving = [&] {
    const Lock lock(retired_mutex_);
    return static_cast<int>(retired_.size()) + freeing_;
  }();
  return {c.threads + 1 + (pool ? pool->threads() : 0),
          c.descriptors + 2,
          c.peers,
          static_cast<int>(link_count_.load()),
          static_cast<int>(members().size()),
          leaving,
          rings_lost_.load(std::memory_order_relaxed),
          arena_.staging_used(),
          arena_.staging_limit()};
}

}  // namespace isthmus::engine
