#include "observe/buffers.hpp"

#include <sched.h>

#include <cstring>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace isthmus::observe {

void wait(device::Event &event, const device::Stream &stream) {
  const int64_t until = now_ns() + seconds_to_ns(kPatience);
  for (int64_t look = now_ns() + 1'000'000; !event.reached(); ::sched_yield()) {
    const int64_t now = now_ns();
    if (now < look) continue;
    look = now + 1'000'000;
    if (const Status s = stream.status(); !s.ok()) throw Error(s.code, s.text);
    if (now > until) fail(Code::Timeout, "the device did nothing for {:.0f} s", kPatience);
  }
}

Buffers::Buffers(device::Runtime &runtime, int device, size_t size) : bytes(size), runtime_(runtime), device_(device) {
  try {
    for (int i = 0; i < 2; ++i) {
      streams[i] = runtime.make_stream(device, "tune");
      events[i] = runtime.make_event(device);
      there[i] = runtime.allocate(device, bytes);
    }
    page_ = ::mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page_ == MAP_FAILED) fail(Code::Resource, "no memory for {} bytes", 2 * bytes);
    std::memset(page_, 1, 2 * bytes);
    runtime.register_host(device, page_, 2 * bytes);
    registered_ = true;
    for (int i = 0; i < 2; ++i) {
      here[i] = static_cast<std::byte *>(page_) + static_cast<size_t>(i) * bytes;
      pinned[i] = runtime.device_address(device, here[i]);
    }
  } catch (...) {
    end();
    throw;
  }
}

void Buffers::submit(int lane, void *to, const void *from) {
  try {
    runtime_.copy(*streams[lane], to, from, bytes);
  } catch (...) {
    lost_ = true;
    throw;
  }
}

void Buffers::finish(int lane) {
  events[lane]->record(*streams[lane]);
  try {
    wait(*events[lane], *streams[lane]);
  } catch (...) {
    lost_ = true;
    throw;
  }
}

void Buffers::end() noexcept {
  if (lost_) {
    for (int i = 0; i < 2; ++i) {
      (void)streams[i].release();
      (void)events[i].release();
    }
    return;
  }
  if (registered_) runtime_.unregister_host(device_, page_);
  if (page_ != MAP_FAILED) ::munmap(page_, 2 * bytes);
  for (void *memory : there)
    if (memory) runtime_.release(device_, memory);
}

}  // namespace isthmus::observe
