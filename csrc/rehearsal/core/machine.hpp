// The simulated machine: devices with their lock, streams, events, and what can be submitted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/lock.hpp"
#include "core/memory.hpp"
#include "core/queue.hpp"

namespace rehearsal {

// What a record of an event left in a queue.
struct Marker {
  std::atomic<bool> done{false};
  std::atomic<int64_t> at_ns{0};  // by the queue's clock
};

// Streams that record into one graph.
struct Capture {
  uint64_t graph = 0;
  Stream *origin = nullptr;
  int mode = 0;  // 0: no thread may make an unsafe call meanwhile
  std::atomic<bool> invalid{false};
  std::atomic<size_t> items{0};
  Mutex mutex;
  std::vector<std::shared_ptr<Stream>> streams ISTHMUS_GUARDED_BY(mutex);
};

// What the null stream of NVIDIA's and AMD's has to do with a stream: its work waits for all that blocking ones have been given, and theirs
// for all that it has been given.
enum class Kind { Apart, Blocking, Null };

class REHEARSAL_API Stream {
 public:
  Stream(Device &d, Queue &q, unsigned f, int p, bool own, Kind k = Kind::Apart)
      : device(d), queue(q), flags(f), priority(p), special(!own), kind(k) {}
  Device &device;
  Queue &queue;
  const unsigned flags;
  const int priority;
  const bool special;  // belongs to the device, not to the program
  const Kind kind;
  std::atomic<uint64_t> submitted{0}, done{0};
  std::shared_ptr<Capture> capture() const;
  void capture(std::shared_ptr<Capture> c);
  // What has not begun yet will not run, and what stands is let go. Later work is done again.
  void cancel() noexcept { cancelled_.store(submitted.load(std::memory_order_relaxed), std::memory_order_release); }
  // Asked by its queue's thread: whether that is so of what is next, or running.
  bool cancelled() const noexcept {
    return done.load(std::memory_order_relaxed) < cancelled_.load(std::memory_order_acquire);
  }
  bool given_up() const noexcept;  // that, or the device failed
  // Returns when the first so many items are done, or will not be.
  void wait_done(uint64_t items) const;
  bool idle() const noexcept { return done.load(std::memory_order_acquire) >= submitted.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> cancelled_{0};  // so many of the first items
  mutable Mutex mutex_;
  std::shared_ptr<Capture> capture_ ISTHMUS_GUARDED_BY(mutex_);
};
using StreamPtr = std::shared_ptr<Stream>;

struct Event {
  int device = 0;
  bool timing = true;
  Mutex mutex;
  std::shared_ptr<Marker> marker ISTHMUS_GUARDED_BY(mutex);    // of the last record
  std::shared_ptr<Capture> capture ISTHMUS_GUARDED_BY(mutex);  // of a record while capturing
};
using EventPtr = std::shared_ptr<Event>;

// A thread inside of a device, as long as this lives: it holds the device's lock. REHEARSAL_LOCKING=0 takes the locks of devices away, so
// they guard no field, and clang's analysis sees nothing of this. A function whose caller must be inside takes an Entered as the proof.
class Entered {
 public:
  explicit Entered(Mutex *lock) ISTHMUS_UNCHECKED : lock_(lock) {
    if (lock_) lock_->lock();
  }
  Entered(Entered &&from) noexcept : lock_(std::exchange(from.lock_, nullptr)) {}
  ~Entered() ISTHMUS_UNCHECKED {
    if (lock_) lock_->unlock();
  }
  Entered &operator=(Entered &&) = delete;

 private:
  Mutex *lock_;
};

// A copy's, by what it begins and ends at.
enum class Way { Out, In, Inside };

class REHEARSAL_API Device {
 public:
  explicit Device(int ordinal);
  int ordinal() const noexcept { return ordinal_; }
  const StreamPtr &null_stream() const noexcept { return null_; }
  StreamPtr thread_stream();             // the calling thread's own
  std::vector<StreamPtr> own_streams();  // the null one, and those of all threads
  void add_blocking(const StreamPtr &s);
  std::vector<Reached> behind(const Stream &s);  // what its next work waits for, by what the two are
  Queue &next_queue();
  CopyEngine &engine(Way way) noexcept { return engines_[static_cast<size_t>(way)]; }

  // Every call that touches the device goes through here; a call that allocates stands in it until the device is idle.
  Entered enter();
  Entered enter_and_wait();
  void wait_idle();      // of what is submitted by now, without the lock
  void wait_all_idle();  // the queues are empty

  void announce();  // something was done
  template <class Ready>
  void wait(Ready ready) {
    Lock lock(done_mutex_);
    done_.wait(lock, ready);
  }
  template <class Ready>
  bool wait_for(std::chrono::milliseconds most, Ready ready) {
    Lock lock(done_mutex_);
    return done_.wait_for(lock, most, ready);
  }

  int broken() const noexcept { return broken_.load(std::memory_order_acquire); }  // a vendor's code that sticks; 0: well
  void break_down(int code);
  // Likewise, and calls that work on the device give that code from now on. What ends something still ends it, as a real one's end would.
  void break_down_for_good(int code);
  int fails() const noexcept { return for_good_.load(std::memory_order_acquire) ? broken() : 0; }

  Mutex context_mutex;
  int retained ISTHMUS_GUARDED_BY(context_mutex) = 0;  // of the primary context
  std::atomic<bool> ended{false};                      // that context, by a reset, until somebody retains it again
  std::atomic<unsigned> resets{0};

 private:
  const int ordinal_;
  Mutex lock_;
  std::vector<std::unique_ptr<Queue>> queues_;
  CopyEngine engines_[3];
  std::atomic<size_t> dealt_{0};
  StreamPtr null_;
  Mutex blocking_mutex_;
  std::vector<std::weak_ptr<Stream>> blocking_ ISTHMUS_GUARDED_BY(blocking_mutex_);
  Mutex done_mutex_;
  Condition done_;
  std::atomic<int> broken_{0};
  std::atomic<bool> for_good_{false};
};

// Handles that are no pointers and never come twice, so that a handle that was destroyed is known for one.
template <class T>
class Handles {
 public:
  explicit Handles(uint64_t kind) : base_(uint64_t{0x80} << 48 | kind << 40) {}
  uint64_t add(std::shared_ptr<T> object) {
    const Lock lock(mutex_);
    const uint64_t h = base_ + (++count_ << 4);
    map_.emplace(h, std::move(object));
    return h;
  }
  std::shared_ptr<T> find(uint64_t h) const {
    const Lock lock(mutex_);
    const auto it = map_.find(h);
    return it == map_.end() ? nullptr : it->second;
  }
  std::shared_ptr<T> remove(uint64_t h) {
    const Lock lock(mutex_);
    const auto it = map_.find(h);
    if (it == map_.end()) return nullptr;
    auto object = std::move(it->second);
    map_.erase(it);
    return object;
  }
  const char *why_not(uint64_t h) const {
    const Lock lock(mutex_);
    if (lost_.count(h)) return "was lost when its device was reset";
    return h > base_ && h <= base_ + (count_ << 4) && (h & 15) == 0 ? "was destroyed" : "never existed";
  }
  template <class Which>
  std::vector<std::shared_ptr<T>> all(Which which) const {
    const Lock lock(mutex_);
    std::vector<std::shared_ptr<T>> found;
    for (const auto &[h, object] : map_)
      if (which(*object)) found.push_back(object);
    return found;
  }
  // What goes with a reset. Their handles are known for that; how many there were.
  template <class Which>
  size_t lose(Which which) {
    const Lock lock(mutex_);
    return std::erase_if(map_, [&](const auto &entry) ISTHMUS_REQUIRES(mutex_) {
      if (!which(*entry.second)) return false;
      lost_.insert(entry.first);
      return true;
    });
  }
  bool lost(uint64_t h) const {
    const Lock lock(mutex_);
    return lost_.count(h) != 0;
  }

 private:
  const uint64_t base_;
  mutable Mutex mutex_;
  uint64_t count_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, std::shared_ptr<T>> map_ ISTHMUS_GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> lost_ ISTHMUS_GUARDED_BY(mutex_);
};

struct Graph {
  size_t items = 0;
};

class REHEARSAL_API Machine {
 public:
  static bool started() noexcept;
  static Machine &get();  // starts it
  int devices() const noexcept { return static_cast<int>(devices_.size()); }
  Device *device(int ordinal) noexcept;
  Handles<Stream> streams{1};
  Handles<Event> events{2};
  Handles<Graph> graphs{3};
  std::atomic<int> global_captures{0};
  std::atomic<int> illegal_address{1};       // the vendor's number for a device that touched what it may not
  std::atomic<bool> always_a_device{false};  // a thread that has chosen none has the first
  std::atomic<bool> blocking{false};         // a call that gives the device work returns when that has ended

 private:
  Machine();
  std::vector<std::unique_ptr<Device>> devices_;
};

// The stack of the thread's devices; the last one is current. An empty one: none is, or the first.
REHEARSAL_API std::vector<Device *> &device_stack();
REHEARSAL_API Device *current_device();

// ---- what a skin does ----

REHEARSAL_API Code allocate(const Entry &e, Device &d, size_t bytes, uintptr_t *address);
REHEARSAL_API Code release(const Entry &e, Device &d, uintptr_t address);
REHEARSAL_API Code allocate_host(const Entry &e, Device &d, size_t bytes, void **host, Pinned pinned = Pinned::Allocated);
REHEARSAL_API Code release_host(const Entry &e, Device &d, void *host, Pinned pinned = Pinned::Allocated);
REHEARSAL_API Code enter_host(const Entry &e, Device &d, void *host, size_t bytes);
REHEARSAL_API Code leave_host(const Entry &e, Device &d, void *host);
// All that the program has on the device is gone: streams, events, memory, registrations. What was submitted is dropped and what runs is
// let go, unless `waits`: then it is done before.
REHEARSAL_API void reset(Device &d, bool waits);

// What a side of a copy may be.
enum class Side {
  Known,     // of a device or registered
  Device,    // an address of the device
  Host,      // registered
  Pageable,  // of the host, registered or not
  Any
};

REHEARSAL_API Code copy(const Entry &e, const StreamPtr &s, uintptr_t to, Side to_side, uintptr_t from, Side from_side,
                        size_t bytes);
// The same of bytes that the engine takes at the call, so that the program has its memory back before they have arrived.
REHEARSAL_API Code copy_taken(const Entry &e, const StreamPtr &s, uintptr_t to, const void *from, size_t bytes);
// Whether both are memory of the host.
REHEARSAL_API bool between_hosts(uintptr_t to, uintptr_t from);
REHEARSAL_API Code fill(const Entry &e, const StreamPtr &s, uintptr_t to, unsigned char value, size_t bytes);

enum class Compare {
  GreaterEqual,  // on a circle: the difference is not negative
  Equal,
  And,
  Nor,
  SignedGreaterEqual  // of numbers of 64 bits; narrower ones are positive
};
REHEARSAL_API Code wait_value(const Entry &e, const StreamPtr &s, uintptr_t address, uint64_t value, Compare how, bool wide);
REHEARSAL_API Code write_value(const Entry &e, const StreamPtr &s, uintptr_t address, uint64_t value, bool wide);
REHEARSAL_API Code host_function(const Entry &e, const StreamPtr &s, void (*function)(void *), void *argument);

REHEARSAL_API Code record(const Entry &e, const EventPtr &event, const StreamPtr &s);
REHEARSAL_API Code wait_event(const Entry &e, const StreamPtr &s, const EventPtr &event);
REHEARSAL_API Code query(const EventPtr &event);
REHEARSAL_API Code synchronize(const EventPtr &event);
REHEARSAL_API Code query(const StreamPtr &s);
REHEARSAL_API Code synchronize(const StreamPtr &s);

// A body of the skin's own. `inside`: the stream's device. While the stream captures it is recorded, not run.
// `awaited`: with blocking launches the call returns when it has ended. Not so what only makes a stream wait or marks a point of it.
REHEARSAL_API Code submit_locked(const Entered &inside, const Entry &e, const StreamPtr &s, std::function<void()> body,
                                 bool quick = false, const Extras *extras = nullptr, bool awaited = false);

REHEARSAL_API Code begin_capture(const Entry &e, const StreamPtr &s, int mode);
REHEARSAL_API Code end_capture(const Entry &e, const StreamPtr &s, uint64_t *graph);

}  // namespace rehearsal
