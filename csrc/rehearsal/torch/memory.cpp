// Memory of the devices and pinned memory of the host. Freed memory is kept for reuse, because the vendors' calls that allocate or free
// wait for the device. Torch's own allocators do the same.
//
// The pool takes segments from the vendor, and cuts each into blocks of one size. A block belongs to a stream. The life of a block:
//
//   take()    a free block of the same device, stream and size, or one of a new segment
//   use()     another stream uses the block, too
//   give()    no other stream used the block: the block is free
//             else: an event is recorded on each of those streams, and the block is marked
//   settle()  all events of a marked block are reached: the block is free
//   trim()    segments whose blocks are all free go back to the vendor
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <bit>
#include <list>
#include <map>
#include <tuple>
#include <vector>

#include "base/lock.hpp"

#include "device.hpp"

namespace rehearsal_torch {
namespace {

using isthmus::Lock;
using isthmus::Mutex;

constexpr size_t kSmallest = 512;     // the vendors' alignment
constexpr size_t kSmall = 128 << 10;  // bytes; smaller blocks share a segment with others of the same size
constexpr size_t kSegment = size_t{1} << 20;
constexpr int kAllDevices = -1;

// The size of the block for a request. A block only goes to requests that are rounded to its size.
size_t rounded(size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  if (bytes <= kSmall) return std::bit_ceil(bytes);
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

struct Segment {
  void *memory = nullptr;
  size_t bytes = 0;
  int device = 0;
  size_t in_use = 0;  // blocks of the segment that are not free
};

// An event behind the work of a stream.
struct Mark {
  Native event = nullptr;
  int device = 0;
};

struct CachedBlock {
  std::byte *memory = nullptr;
  size_t bytes = 0, asked = 0;
  int device = 0;
  c10::StreamId stream = 0;
  Segment *segment = nullptr;
  std::vector<c10::Stream> used_by;  // streams other than the block's own
  std::vector<Mark> marks;           // behind the last work of these streams, when the block has been given back
};

class Pool {
 public:
  explicit Pool(bool pinned) : pinned_(pinned) {}

  CachedBlock *take(int device, c10::StreamId stream, size_t bytes);
  void give(CachedBlock *block) noexcept;
  void use(CachedBlock *block, const c10::Stream &stream) {
    const Lock lock(mutex_);
    for (const c10::Stream &s : block->used_by)
      if (s == stream) return;
    block->used_by.push_back(stream);
  }
  void trim();

  struct Counts {
    c10::CachingAllocator::Stat blocks, bytes, asked, segments, reserved;
    int64_t allocated = 0, freed = 0;  // segments, since the beginning
    void each(void (c10::CachingAllocator::Stat::*what)()) {
      for (auto *s : {&blocks, &bytes, &asked, &segments, &reserved}) (s->*what)();
    }
  };
  Counts counts(int device) {
    const Lock lock(mutex_);
    return counts_[device];
  }
  void reset(int device, void (c10::CachingAllocator::Stat::*what)()) {
    const Lock lock(mutex_);
    counts_[device].each(what);
  }

 private:
  using Key = std::tuple<int, c10::StreamId, size_t>;
  static Key key(const CachedBlock &b) { return {b.device, b.stream, b.bytes}; }

  CachedBlock *find(const Key &k);
  bool grow(int device, c10::StreamId stream, size_t bytes);
  void settle(bool wait);

  const bool pinned_;
  Mutex mutex_;  // not held over a vendor's call, which may wait for the device
  // The block that was freed last is taken first. So a use after free soon meets the next owner's data, and is seen.
  std::map<Key, std::vector<CachedBlock *>> free_ ISTHMUS_GUARDED_BY(mutex_);
  std::vector<CachedBlock *> marked_ ISTHMUS_GUARDED_BY(mutex_);  // given back, and still in use by streams
  std::list<Segment> segments_ ISTHMUS_GUARDED_BY(mutex_);
  std::map<int, std::vector<Native>> spare_events_ ISTHMUS_GUARDED_BY(mutex_);
  std::map<int, Counts> counts_ ISTHMUS_GUARDED_BY(mutex_);
};

CachedBlock *Pool::find(const Key &k) {
  const Lock lock(mutex_);
  const auto found = free_.find(k);
  if (found == free_.end() || found->second.empty()) return nullptr;
  CachedBlock *block = found->second.back();
  found->second.pop_back();
  ++block->segment->in_use;
  return block;
}

// Adds a segment, cut into free blocks. False: the vendor has not enough memory left.
bool Pool::grow(int device, c10::StreamId stream, size_t bytes) {
  const size_t all = bytes <= kSmall ? kSegment : bytes;
  void *memory = nullptr;
  {
    const On on(device == kAllDevices ? current_device() : device);
    memory = pinned_ ? api().allocate_pinned(all) : api().allocate(all);
  }
  if (!memory) return false;
  const Lock lock(mutex_);
  Segment &segment = segments_.emplace_back(Segment{memory, all, device, 0});
  std::vector<CachedBlock *> &list = free_[{device, stream, bytes}];
  for (size_t at = all; at >= bytes; at -= bytes) {  // the block of the lowest address is taken first
    auto *block = new CachedBlock;
    block->memory = static_cast<std::byte *>(memory) + at - bytes;
    block->bytes = bytes;
    block->device = device;
    block->stream = stream;
    block->segment = &segment;
    list.push_back(block);
  }
  Counts &c = counts_[device];
  ++c.allocated;
  c.segments.increase(1);
  c.reserved.increase(all);
  return true;
}

CachedBlock *Pool::take(int device, c10::StreamId stream, size_t bytes) {
  const Key k{device, stream, rounded(bytes)};
  settle(false);
  CachedBlock *block = find(k);
  while (!block) {
    if (!grow(device, stream, std::get<2>(k))) {
      trim();
      TORCH_CHECK_WITH(OutOfMemoryError, grow(device, stream, std::get<2>(k)), "rehearsal: the simulated ",
                       pinned_ ? "host has no pinned memory" : "device has no memory", " left for ", bytes,
                       " bytes; --set MEMORY=<bytes> gives a device more");
    }
    block = find(k);  // null: another thread was faster
  }
  block->asked = bytes;
  const Lock lock(mutex_);
  Counts &c = counts_[device];
  c.blocks.increase(1);
  c.bytes.increase(block->bytes);
  c.asked.increase(bytes);
  return block;
}

void Pool::give(CachedBlock *block) noexcept {
  if (in_forked_child()) return;
  // `block` needs no lock: no other thread has the block now.
  try {
    for (const c10::Stream &s : block->used_by) {
      Mark mark{nullptr, s.device_index()};
      {
        const Lock lock(mutex_);
        std::vector<Native> &spare = spare_events_[mark.device];
        if (!spare.empty()) {
          mark.event = spare.back();
          spare.pop_back();
        }
      }
      const On on(mark.device);
      if (!mark.event) mark.event = api().new_event(false);
      block->marks.push_back(mark);
      api().record(mark.event, native(s));
    }
  } catch (const std::exception &e) {
    // The device has failed. The block is lost, and the next call that can throw reports the failure.
    TORCH_WARN_ONCE("rehearsal: memory is not freed: ", e.what());
    return;
  }
  block->used_by.clear();
  const Lock lock(mutex_);
  Counts &c = counts_[block->device];
  c.blocks.decrease(1);
  c.bytes.decrease(block->bytes);
  c.asked.decrease(block->asked);
  if (!block->marks.empty()) return marked_.push_back(block);
  --block->segment->in_use;
  free_[key(*block)].push_back(block);
}

// Marked blocks become free when all their events are reached. `wait`: waits for the events.
void Pool::settle(bool wait) {
  std::vector<CachedBlock *> marked;
  {
    const Lock lock(mutex_);
    marked.swap(marked_);
  }
  for (CachedBlock *block : marked) {
    std::vector<Mark> done;
    while (!block->marks.empty()) {
      const Mark mark = block->marks.back();
      const On on(mark.device);
      if (wait) api().synchronize_event(mark.event);
      else if (!api().done(mark.event)) break;
      done.push_back(mark);
      block->marks.pop_back();
    }
    const Lock lock(mutex_);
    for (const Mark &mark : done) spare_events_[mark.device].push_back(mark.event);
    if (!block->marks.empty()) {
      marked_.push_back(block);
      continue;
    }
    --block->segment->in_use;
    free_[key(*block)].push_back(block);
  }
}

void Pool::trim() {
  settle(true);
  std::vector<Segment> released;
  {
    const Lock lock(mutex_);
    for (auto &[k, list] : free_)
      std::erase_if(list, [](CachedBlock *b) {
        const bool goes = b->segment->in_use == 0;
        if (goes) delete b;
        return goes;
      });
    std::erase_if(free_, [](const auto &entry) { return entry.second.empty(); });
    for (const Segment &s : segments_) {
      if (s.in_use != 0) continue;
      released.push_back(s);
      Counts &c = counts_[s.device];
      ++c.freed;
      c.segments.decrease(1);
      c.reserved.decrease(s.bytes);
    }
    segments_.remove_if([](const Segment &s) { return s.in_use == 0; });
  }
  for (const Segment &s : released) {
    const On on(s.device == kAllDevices ? current_device() : s.device);
    if (pinned_) api().release_pinned(s.memory);
    else api().release(s.memory);
  }
}

// The pools are never destroyed: tensors of the interpreter may outlive everything else.
Pool &device_pool() {
  static Pool *const pool = new Pool(false);
  return *pool;
}
Pool &pinned_pool() {
  static Pool *const pool = new Pool(true);
  return *pool;
}

void free_device_block(void *block) { device_pool().give(static_cast<CachedBlock *>(block)); }
void free_pinned_block(void *block) { pinned_pool().give(static_cast<CachedBlock *>(block)); }

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current_device();
    const c10::Device place(kType, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, nullptr, &free_nothing, place};
    CachedBlock *block = device_pool().take(device, current_stream(device).id(), bytes);
    return {block->memory, block, &free_device_block, place};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void *to, const void *from, size_t bytes) const override {
    if (bytes == 0) return;
    const int device = api().device_of(to);
    const On on(device);
    api().copy_within(to, from, bytes, native(current_stream(device)));
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { device_pool().trim(); }
  void recordStream(const c10::DataPtr &data, c10::Stream stream) override { record_use(data, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Pool::Counts c = device_pool().counts(device);
    c10::CachingDeviceAllocator::DeviceStats all;
    all.allocation[0] = all.active[0] = c.blocks;
    all.segment[0] = c.segments;
    all.allocated_bytes[0] = all.active_bytes[0] = c.bytes;
    all.reserved_bytes[0] = c.reserved;
    all.requested_bytes[0] = c.asked;
    all.num_device_alloc = c.allocated;
    all.num_device_free = c.freed;
    return all;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    device_pool().reset(device, &c10::CachingAllocator::Stat::reset_accumulated);
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    device_pool().reset(device, &c10::CachingAllocator::Stat::reset_peak);
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t left = 0, all = 0;
    const On on(device);
    api().memory(&left, &all);
    return {left, all};
  }

 private:
  static void free_nothing(void *) {}
};

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_pinned_block_or_none, c10::DeviceType::CPU};
    CachedBlock *block = pinned_pool().take(kAllDevices, 0, bytes);
    return {block->memory, block, &free_pinned_block, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void *to, const void *from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  // `ctx`: the context of a DataPtr of this allocator, which is the CachedBlock.
  bool record_event(void *, void *ctx, c10::Stream stream) override {
    if (!ctx) return false;
    pinned_pool().use(static_cast<CachedBlock *>(ctx), stream);
    return true;
  }
  void empty_cache() override { pinned_pool().trim(); }
  at::HostStats get_stats() override {
    const Pool::Counts c = pinned_pool().counts(kAllDevices);
    at::HostStats all;
    all.active_requests = c.blocks;
    all.active_bytes = c.bytes;
    all.allocations = c.segments;
    all.allocated_bytes = c.reserved;
    all.num_host_alloc = c.allocated;
    all.num_host_free = c.freed;
    return all;
  }
  void reset_accumulated_stats() override {
    pinned_pool().reset(kAllDevices, &c10::CachingAllocator::Stat::reset_accumulated);
  }
  void reset_peak_stats() override { pinned_pool().reset(kAllDevices, &c10::CachingAllocator::Stat::reset_peak); }

 private:
  static void free_pinned_block_or_none(void *) {}
};

}  // namespace

c10::DeviceAllocator &device_memory() {
  static DeviceMemory *const memory = new DeviceMemory;
  return *memory;
}

at::HostAllocator &pinned_memory() {
  static PinnedMemory *const memory = new PinnedMemory;
  return *memory;
}

void record_use(const c10::DataPtr &data, const c10::Stream &stream) {
  auto *block = static_cast<CachedBlock *>(data.get_context());
  if (data.get_deleter() == &free_pinned_block) pinned_pool().use(block, stream);
  else if (data.get_deleter() == &free_device_block &&
           (block->device != stream.device_index() || block->stream != stream.id()))
    device_pool().use(block, stream);
}

}  // namespace rehearsal_torch
