// The simulated machine: devices, their streams and events, and the work that a stream can be given.
//
// A device has one or several queues (queue.hpp). A queue is a thread. Each stream belongs to a queue, and a queue may have several
// streams.
//
//   thread of the program                    thread of the queue
//     enter(): takes the device's lock
//     copy(): checks the addresses
//     pushes an item                  ---->
//     gives the lock back                      runs the item when the items before it are done
//     synchronize(): sleeps                    counts the item in Stream::done
//     returns                         <----    announce(): wakes all who sleep for this device
//
// Thread rules: any thread, unless a function says otherwise.
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

// What a record of an event leaves in a queue.
struct Marker {
  std::atomic<bool> done{false};
  std::atomic<int64_t> at_ns{0};  // when the queue came to the record, by the queue's clock
};

// A capture: streams that record into one graph.
struct Capture {
  uint64_t graph = 0;
  Stream *origin = nullptr;  // where the capture began, and must end
  int mode = 0;              // 0: global, no thread may make an unsafe call meanwhile; 1: thread-local; 2: relaxed
  std::atomic<bool> invalid{false};
  std::atomic<size_t> items{0};  // recorded so far
  Mutex mutex;
  std::vector<std::shared_ptr<Stream>> streams ISTHMUS_GUARDED_BY(mutex);
};

// How a stream and the null stream of NVIDIA and AMD wait for each other:
//
//   Apart      never
//   Blocking   work of the stream waits for all work that the null stream has been given
//   Null       is the null stream. Its work waits for all work that Blocking streams have been given.
enum class Kind { Apart, Blocking, Null };

// A stream: work in the order of its calls. `own`: the program made the stream, not the device.
class REHEARSAL_API Stream {
 public:
  Stream(Device &d, Queue &q, unsigned f, int p, bool own, Kind k = Kind::Apart)
      : device(d), queue(q), flags(f), priority(p), special(!own), kind(k) {}
  Device &device;
  Queue &queue;
  const unsigned flags;
  const int priority;
  const bool special;  // the device made the stream, not the program
  const Kind kind;
  std::atomic<uint64_t> submitted{0}, done{0};  // numbers of items
  std::shared_ptr<Capture> capture() const;     // null: the stream does not capture
  void capture(std::shared_ptr<Capture> c);
  // Items that have been submitted and have not begun will not run. An item that runs and waits is let go. Later items run.
  void cancel() noexcept { cancelled_.store(submitted.load(std::memory_order_relaxed), std::memory_order_release); }
  // Whether the item that runs, or else the next one, was cancelled. Called by the queue's thread.
  bool cancelled() const noexcept {
    return done.load(std::memory_order_relaxed) < cancelled_.load(std::memory_order_acquire);
  }
  bool given_up() const noexcept;  // cancelled, or the device has failed
  // Returns when the first `items` items are done, or when the device has failed.
  void wait_done(uint64_t items) const;
  bool idle() const noexcept { return done.load(std::memory_order_acquire) >= submitted.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> cancelled_{0};  // the first so many items are cancelled
  mutable Mutex mutex_;
  std::shared_ptr<Capture> capture_ ISTHMUS_GUARDED_BY(mutex_);
};
using StreamPtr = std::shared_ptr<Stream>;

struct Event {
  int device = 0;
  bool timing = true;
  Mutex mutex;
  std::shared_ptr<Marker> marker ISTHMUS_GUARDED_BY(mutex);    // of the last record outside of captures
  std::shared_ptr<Capture> capture ISTHMUS_GUARDED_BY(mutex);  // in which the last record stands; null: in none
};
using EventPtr = std::shared_ptr<Event>;

// A thread is inside of a device as long as its Entered lives: the thread holds the device's lock. REHEARSAL_LOCKING=0 takes the locks of
// devices away. So a device's lock guards no field, and clang's analysis does not see an Entered. A function whose caller must be inside
// takes the Entered as the proof.
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

// The direction of a copy: from a device to the host, from the host to a device, and all others.
enum class Way { Out, In, Inside };

class REHEARSAL_API Device {
 public:
  explicit Device(int ordinal);
  int ordinal() const noexcept { return ordinal_; }
  const StreamPtr &null_stream() const noexcept { return null_; }
  StreamPtr thread_stream();             // the calling thread's default stream; made at the first call
  std::vector<StreamPtr> own_streams();  // the null stream, and the default streams of all threads
  void add_blocking(const StreamPtr &s);
  std::vector<Reached> behind(const Stream &s);  // what the next item of `s` has to wait for in other queues (Kind)
  Queue &next_queue();                           // for a new stream: the queues in turn
  CopyEngine &engine(Way way) noexcept { return engines_[static_cast<size_t>(way)]; }

  // A call that touches the device is made inside. enter_and_wait() returns inside, when all queues are empty. Calls that allocate or free
  // memory use enter_and_wait(): with the vendors, too, such a call holds the device's lock until the device is idle. With
  // REHEARSAL_LOCKING=0 enter_and_wait() does not wait.
  Entered enter();
  Entered enter_and_wait();
  void wait_idle();      // for the items that have been submitted by now. The caller is not inside.
  void wait_all_idle();  // until all queues are empty

  // announce() says that something was done. wait() returns when ready() is true. wait() looks at the beginning and after each announce().
  // ready() is called with a lock held and must not wait. wait_for() returns false when the time is over.
  void announce();
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

  // The vendor's code with which the device failed; 0: the device works. The first code stays.
  int broken() const noexcept { return broken_.load(std::memory_order_acquire); }
  void break_down(int code);
  // As break_down(). Calls that work on the device also return the code from now on. Calls that end something still end it.
  void break_down_for_good(int code);
  // The code of break_down_for_good(); 0: none.
  int fails() const noexcept { return for_good_.load(std::memory_order_acquire) ? broken() : 0; }

  Mutex context_mutex;
  int retained ISTHMUS_GUARDED_BY(context_mutex) = 0;  // of the primary context
  std::atomic<bool> ended{false};                      // a reset ended that context, and nobody has retained it since
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

// Handles of streams, events and so on. A handle is a number and no pointer, and no number comes twice. So a handle that was destroyed is
// known for what it was. `kind`: a number for each sort of handle.
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
  // Why find() has nothing for this handle, as the end of a sentence about the handle.
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
  // A reset takes all objects for which which() is true. Their handles count as lost. Returns how many there were.
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
  static Machine &get();  // the first call starts the machine
  int devices() const noexcept { return static_cast<int>(devices_.size()); }
  Device *device(int ordinal) noexcept;  // null: there is no such device
  Handles<Stream> streams{1};
  Handles<Event> events{2};
  Handles<Graph> graphs{3};
  std::atomic<int> global_captures{0};       // captures of mode 0 that have begun and not ended
  std::atomic<int> illegal_address{1};       // the vendor's code of a device that touched freed memory
  std::atomic<bool> always_a_device{false};  // a thread that has chosen no device has device 0
  std::atomic<bool> blocking{false};         // a call that submits work returns when the work is done

 private:
  Machine();
  std::vector<std::unique_ptr<Device>> devices_;
};

// The calling thread's stack of devices. The last device is current. With an empty stack no device is current, or device 0
// (Machine::always_a_device).
REHEARSAL_API std::vector<Device *> &device_stack();
REHEARSAL_API Device *current_device();  // null: none

// ---- what a skin does -----------------------------------------------------------------------------------------------------
//
// A skin is one simulated library of a vendor. `e` is the call that the program has made of the library. All sizes are in bytes. An outcome
// is in no vendor's words (Code). The functions may report a misuse, which ends the process unless REHEARSAL_ABORT_ON_MISUSE=0.

// Memory. Each returns when the device is idle and the memory is allocated, freed, registered or unregistered.
REHEARSAL_API Code allocate(const Entry &e, Device &d, size_t bytes, uintptr_t *address);
REHEARSAL_API Code release(const Entry &e, Device &d, uintptr_t address);
REHEARSAL_API Code allocate_host(const Entry &e, Device &d, size_t bytes, void **host, Pinned pinned = Pinned::Allocated);
REHEARSAL_API Code release_host(const Entry &e, Device &d, void *host, Pinned pinned = Pinned::Allocated);
REHEARSAL_API Code enter_host(const Entry &e, Device &d, void *host, size_t bytes);
REHEARSAL_API Code leave_host(const Entry &e, Device &d, void *host);
// A reset takes all that the program has on the device: streams, events, memory, registrations. `waits`: the items that were submitted
// before the call are done first. Else waiting items are dropped, and an item that runs and waits is let go.
REHEARSAL_API void reset(Device &d, bool waits);

// What a side of a copy may be.
enum class Side {
  Known,     // memory of a device, or registered memory of the host
  Device,    // an address of the device
  Host,      // registered memory of the host
  Pageable,  // memory of the host, registered or not
  Any
};

// The functions below submit work to a stream, and return Broken if the device has failed. They check addresses when they are called, and
// once more when the work runs: memory that was freed meanwhile is a misuse, and the device fails.
REHEARSAL_API Code copy(const Entry &e, const StreamPtr &s, uintptr_t to, Side to_side, uintptr_t from, Side from_side,
                        size_t bytes);
// A copy to a device of bytes that are read during the call. The program has its memory back when the call returns.
REHEARSAL_API Code copy_taken(const Entry &e, const StreamPtr &s, uintptr_t to, const void *from, size_t bytes);
// Whether both addresses are memory of the host.
REHEARSAL_API bool between_hosts(uintptr_t to, uintptr_t from);
REHEARSAL_API Code fill(const Entry &e, const StreamPtr &s, uintptr_t to, unsigned char value, size_t bytes);

enum class Compare {
  GreaterEqual,  // word - value, as a signed number of the word's width, is not negative
  Equal,
  And,                // some bit is set in both
  Nor,                // some bit is set in neither
  SignedGreaterEqual  // as signed numbers of 64 bits; a word of 32 bits is positive
};
// `address`: a word of 8 bytes if `wide`, else of 4, aligned. The stream waits until the word compares with `value`.
REHEARSAL_API Code wait_value(const Entry &e, const StreamPtr &s, uintptr_t address, uint64_t value, Compare how, bool wide);
REHEARSAL_API Code write_value(const Entry &e, const StreamPtr &s, uintptr_t address, uint64_t value, bool wide);
REHEARSAL_API Code host_function(const Entry &e, const StreamPtr &s, void (*function)(void *), void *argument);

// Events and streams. query() returns Ok if the event's record or all items of the stream are done, else NotReady. synchronize() waits for
// what was recorded or submitted before the call. An event that was never recorded counts as done. All return Broken if the device has
// failed, CapturedEvent for an event of a capture, and CaptureUnsupported for a stream that captures, which makes the capture invalid.
REHEARSAL_API Code record(const Entry &e, const EventPtr &event, const StreamPtr &s);
REHEARSAL_API Code wait_event(const Entry &e, const StreamPtr &s, const EventPtr &event);
REHEARSAL_API Code query(const EventPtr &event);
REHEARSAL_API Code synchronize(const EventPtr &event);
REHEARSAL_API Code query(const StreamPtr &s);
REHEARSAL_API Code synchronize(const StreamPtr &s);

// Submits an item with a body of the skin's own. A stream that captures records the item, and the body never runs.
//
//   inside    the stream's device
//   quick     the item is a mark: it takes no time, and runs even if the device has failed
//   extras    what the settings have in store for the item; null: what they have for the call `e`
//   awaited   with Machine::blocking the call returns when the item is done. Not for items that make a stream wait or mark a point in it.
REHEARSAL_API Code submit_locked(const Entered &inside, const Entry &e, const StreamPtr &s, std::function<void()> body,
                                 bool quick = false, const Extras *extras = nullptr, bool awaited = false);

// A capture ends on the stream on which it began. end_capture() returns CaptureInvalidated if an unsafe call has come meanwhile, and sets
// *graph to the handle of a graph, or to 0.
REHEARSAL_API Code begin_capture(const Entry &e, const StreamPtr &s, int mode);
REHEARSAL_API Code end_capture(const Entry &e, const StreamPtr &s, uint64_t *graph);

}  // namespace rehearsal
