#include "process/open_devices.hpp"

#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/log.hpp"
#include "device/host.hpp"

namespace isthmus::process {
namespace {

constexpr size_t kLeastPinned = 4 << 20;  // of staging memory: a few slots

struct HostStreams {
  Mutex mutex;
  std::weak_ptr<device::Stream> stream ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<HostStreams> the_host_streams;

}  // namespace

OpenDevices::OpenDevice &OpenDevices::known(device::Runtime &runtime, int device) {
  const Lock lock(mutex_);
  for (OpenDevice &d : devices_)
    if (d.runtime == &runtime && d.device == device) return d;
  OpenDevice &d = devices_.emplace_back();
  d.runtime = &runtime;
  d.device = device;
  return d;
}

void OpenDevices::begin(OpenDevice &d) {
  if (!d.begun) d.runtime->begin(d.device);
  d.begun = true;
}

void OpenDevices::begin(device::Runtime &runtime, int device) {
  OpenDevice &d = known(runtime, device);
  const Lock lock(d.mutex);
  begin(d);
}

std::shared_ptr<device::Stream> OpenDevices::stream(device::Runtime &runtime, int device, int number) {
  OpenDevice &d = known(runtime, device);
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

std::shared_ptr<device::Stream> OpenDevices::own_stream(device::Runtime &runtime, int device, int ordinal) {
  OpenDevice &d = known(runtime, device);
  const Lock lock(d.mutex);
  begin(d);
  std::erase_if(d.own, [](const OpenDevice::OwnStream &s) { return s.stream.expired(); });
  OpenDevice::OwnStream *least = nullptr;
  int many = 0;
  for (OpenDevice::OwnStream &s : d.own) {
    const auto stream = s.stream.lock();
    if (s.ordinal != ordinal || !stream || stream->cuts() != 0 || !stream->status().ok()) continue;
    ++many;
    if (!least || s.stream.use_count() < least->stream.use_count()) least = &s;
  }
  if (many >= kMostOwnStreams)
    if (auto stream = least->stream.lock()) return stream;
  std::shared_ptr<device::Stream> stream = runtime.make_stream(device, "isthmus");
  d.own.push_back({ordinal, stream});
  return stream;
}

std::shared_ptr<DeviceScratch> OpenDevices::scratch(device::Runtime &runtime, int device) {
  OpenDevice &d = known(runtime, device);
  const Lock lock(d.mutex);
  std::shared_ptr<DeviceScratch> scratch = d.scratch.lock();
  if (!scratch) d.scratch = scratch = std::make_shared<DeviceScratch>(runtime, device);
  return scratch;
}

// Where the whole staging memory cannot be pinned, a smaller pool does the same work in more steps.
std::pair<std::byte *, size_t> OpenDevices::pin_most(OpenDevice &d, std::byte *memory, size_t wanted) {
  for (size_t bytes = wanted;; bytes = bytes / 2 / 4096 * 4096) {
    try {
      d.runtime->register_host(d.device, memory, bytes);
    } catch (const Error &e) {
      if (e.code() == Code::Resource && bytes / 2 >= kLeastPinned) continue;
      throw Error(e.code(), formatted("{}; {} bytes of staging cannot be pinned: lower ISTHMUS_STAGING_BYTES, or raise the "
                                      "limit of locked memory (ulimit -l)",
                                      e.text(), bytes));
    }
    if (bytes < wanted)
      ISTHMUS_WARN(
          "only {} of {} bytes of staging could be pinned for {}:{}; large operations take more steps, and more of "
          "them at once may be refused (ISTHMUS_STAGING_BYTES)",
          bytes, wanted, d.runtime->vendor(), d.device);
    auto *const there = static_cast<std::byte *>(d.runtime->device_address(d.device, memory));
    return {there - (memory - arena_.base()), bytes};
  }
}

void OpenDevices::register_arena(OpenDevice &d) {
  const int node = d.runtime->numa(d.device);
  arena_.place_staging(node);
  arena_.is_pinned(link::Arena::Pinned::Staging, arena_.staging_limit());
  const auto [there, bytes] = pin_most(d, arena_.staging_begin(), arena_.staging_limit());
  arena_.is_pinned(link::Arena::Pinned::Staging, bytes);
  const link::StagingPages pages = arena_.staging_pages();
  if (const std::string lost = pages.lost(); !lost.empty() && !told_.exchange(true))
    ISTHMUS_INFO("staging memory for {}:{} works, and {}", d.runtime->vendor(), d.device, lost);
  if (node >= 0 && pages.node != node)
    ISTHMUS_INFO("staging memory for {}:{} was placed for a device before, on NUMA node {} and not on node {}, the device's",
                 d.runtime->vendor(), d.device, pages.node, node);
  d.there = there;
}

std::byte *OpenDevices::reserve_on(device::Runtime &runtime, int device) {
  OpenDevice &d = known(runtime, device);
  const Lock lock(d.mutex);
  if (d.reserve) return d.reserve;
  begin(d);
  arena_.is_pinned(link::Arena::Pinned::Reserve, arena_.reserve_limit());
  const auto [there, bytes] = pin_most(d, arena_.base() + arena_.reserve_offset(), arena_.reserve_limit());
  arena_.is_pinned(link::Arena::Pinned::Reserve, bytes);
  return d.reserve = there;
}

std::byte *OpenDevices::arena_on(device::Runtime &runtime, int device) {
  OpenDevice &d = known(runtime, device);
  const Lock lock(d.mutex);
  begin(d);
  if (!d.there) register_arena(d);
  return d.there;
}

std::byte *OpenDevices::reach(device::Runtime &runtime, int device, bootstrap::Peer *peer, uint64_t offset, uint64_t bytes) {
  try {
    if (!peer) return arena_on(runtime, device) + offset;
    OpenDevice &d = known(runtime, device);
    const Lock lock(d.mutex);
    for (const OpenDevice::Reached &r : d.reached)
      if (r.peer == peer && r.offset == offset && r.bytes == bytes) return r.there;
    std::byte *const memory = peer->arena.data() + offset;
    peer->pinned.store(true);
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

void OpenDevices::end() noexcept {
  for (const OpenDevice &d : devices_)
    for (const OpenDevice::Reached &r : d.reached)
      if (!d.runtime->unregister_host(d.device, r.peer->arena.data() + r.offset)) r.peer->arena.keep();
  for (const OpenDevice &d : devices_)
    for (const auto &[there, offset] :
         {std::pair(d.there, arena_.kStagingOffset), std::pair(d.reserve, arena_.reserve_offset())})
      if (there && !d.runtime->unregister_host(d.device, arena_.base() + offset)) arena_.keep_mapped();
}

std::shared_ptr<device::Stream> OpenDevices::host_stream() {
  HostStreams &mine = *the_host_streams;
  const Lock lock(mine.mutex);
  std::shared_ptr<device::Stream> stream = mine.stream.lock();
  if (!stream || !stream->status().ok()) {
    stream = device::host_runtime().make_stream(0, "host");
    mine.stream = stream;
  }
  return stream;
}

}  // namespace isthmus::process
