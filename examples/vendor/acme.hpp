// An imaginary vendor, Acme, whose library is this file. It stands in the place of a real vendor's header and library, so that skeleton.hpp
// can be compiled and tested anywhere. An adapter for a real vendor does not need it: it opens the vendor's library with dlopen.
//
// Acme has one device. Its memory is memory of the host, and a stream is a thread that does one thing after another.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace acme {

using Code = int;  // 0: well
constexpr Code kOutOfMemory = 2, kUnknownMemory = 3;

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {  // behind what it still holds
    push(nullptr);
    thread_.join();
  }
  void push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (!work) return;
      work();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

// What was recorded last, and what of it has been reached. Streams share it: it may end before they come to it.
struct Event {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0;
  };
  std::shared_ptr<State> state = std::make_shared<State>();
};

inline std::mutex memory_mutex;
inline std::map<const std::byte *, size_t> device_memory;

inline Code device_count(int *count) { return *count = 1, 0; }
inline Code stream_create(Stream **stream) { return *stream = new Stream, 0; }
inline Code stream_destroy(Stream *stream) { return delete stream, 0; }
inline Code event_create(Event **event) { return *event = new Event, 0; }
inline Code event_destroy(Event *event) { return delete event, 0; }

inline Code event_record(Event *event, Stream *stream) {
  const std::lock_guard lock(event->state->mutex);
  stream->push([state = event->state, number = ++event->state->recorded] {
    const std::lock_guard inside(state->mutex);
    state->reached = std::max(state->reached, number);
    state->changed.notify_all();
  });
  return 0;
}
inline Code stream_wait_event(Stream *stream, Event *event) {
  const std::lock_guard lock(event->state->mutex);
  stream->push([state = event->state, number = event->state->recorded] {
    std::unique_lock inside(state->mutex);
    state->changed.wait(inside, [&] { return state->reached >= number; });
  });
  return 0;
}
inline Code event_query(Event *event, bool *reached) {
  const std::lock_guard lock(event->state->mutex);
  return *reached = event->state->reached == event->state->recorded, 0;
}
inline Code launch_host_function(Stream *stream, void (*function)(void *), void *argument) {
  stream->push([=] { function(argument); });
  return 0;
}
inline Code copy_async(void *to, const void *from, size_t bytes, Stream *stream) {
  stream->push([=] { std::memmove(to, from, bytes); });
  return 0;
}
inline Code allocate(void **memory, size_t bytes) {
  if (bytes > size_t{1} << 40) return kOutOfMemory;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!*memory) return kOutOfMemory;
  const std::lock_guard lock(memory_mutex);
  device_memory[static_cast<const std::byte *>(*memory)] = bytes;
  return 0;
}
inline Code release(void *memory) {
  const std::lock_guard lock(memory_mutex);
  if (device_memory.erase(static_cast<const std::byte *>(memory)) == 0) return kUnknownMemory;
  std::free(memory);
  return 0;
}
inline Code is_device_memory(const void *memory, bool *yes) {
  const std::lock_guard lock(memory_mutex);
  const auto *const at = static_cast<const std::byte *>(memory);
  auto next = device_memory.upper_bound(at);
  *yes = next != device_memory.begin() && (--next, at < next->first + next->second);
  return 0;
}
inline Code register_host(void *, size_t) { return 0; }
inline Code unregister_host(void *) { return 0; }

}  // namespace acme
