#include "core/communicator.hpp"

#include <cstdio>
#include <optional>

namespace rehearsal {
namespace {

constexpr size_t kFirstScratch = 4096, kSecondScratch = 64 << 10;

}  // namespace

Fabric::Stop Communicator::stop() {
  return [this] { return aborted() || device.broken() || lost(); };
}

Code Communicator::scratch(size_t bytes) {
  uintptr_t address = 0;
  const auto lock = device.enter_and_wait();
  const Code code = map_device_memory(device.ordinal(), bytes, &address);
  if (code == Code::Ok) {
    const Lock mine(mutex_);
    scratch_.push_back(address);
  }
  return code;
}

Met Communicator::join(const char *call, const Token &token, std::chrono::milliseconds most, bool patient) {
  if (scratch(kFirstScratch) != Code::Ok) return Met::System;
  std::shared_ptr<Fabric> fabric;
  const int64_t until = now_us() + std::chrono::microseconds(most).count();
  const auto stopped = [this, until, most] { return aborted() || device.broken() || (most.count() && now_us() > until); };
  const int64_t begin = now_us() + late_ms * 1000;
  poll_until([&] { return now_us() >= begin || stopped(); });
  const Met met = Fabric::join(library, token, rank, size, device.ordinal(), stopped, &fabric, patient);
  if (met == Met::Ok) {
    fabric_ = std::move(fabric);
    ready.store(true, std::memory_order_release);
  }
  if (met == Met::OtherLibrary) {
    std::fprintf(stderr, "rehearsal: %s: a rank of another library came, and no rank of %.4s can meet it\n", call,
                 library.data());
    std::fflush(stderr);
  }
  return met;
}

bool Communicator::split(int color, int key, Token *token, int *new_rank, int *new_size) {
  return fabric_->split(color, key, stop(), token, new_rank, new_size);
}

Code Communicator::prepare(const char *) {
  {
    const Lock lock(mutex_);
    if (prepared_ || lost()) return Code::Ok;
    prepared_ = true;
  }
  return scratch(kSecondScratch);
}

Code Communicator::submit_locked(const Entered &inside, const Entry &e, const StreamPtr &s,
                                 std::function<void(Fabric &, const Fabric::Stop &)> work, const Extras &extras,
                                 int breaks_device, bool awaited) {
  if (device.broken() || lost()) return Code::Broken;
  const auto self = shared_from_this();
  {
    const Lock lock(mutex_);
    ++pending_;
  }
  // The queue lets go of `pending` after the work, and also where the work did not run.
  const std::shared_ptr<void> pending(nullptr, [self, s](void *) {
    if (self->cut_off && s->cancelled()) self->state.store(self->cut_off);
    {
      const Lock lock(self->mutex_);
      --self->pending_;
    }
    self->changed_.notify_all();
  });
  const auto body = [self, s, pending, extras, breaks_device, work = std::move(work)] {
    {
      const Lock lock(self->mutex_);
      if (self->cancelled()) return;
      ++self->running_;
    }
    const Fabric::Stop stopped = [self, s] { return self->cancelled() || s->given_up(); };
    if (extras.late) {
      if (breaks_device) self->device.break_down(breaks_device);
      self->state.store(extras.late);  // the library finds out what has happened
    }
    if (extras.late || extras.hang) poll_until(stopped);
    else work(*self->fabric_, stopped);
    {
      const Lock lock(self->mutex_);
      --self->running_;
    }
    self->changed_.notify_all();
  };
  Extras slow;
  slow.slow_ms = extras.slow_ms;
  return rehearsal::submit_locked(inside, e, s, body, false, &slow, awaited);
}

void Communicator::finish() {
  Lock lock(mutex_);
  changed_.wait(lock, [&]() ISTHMUS_REQUIRES(mutex_) { return pending_ == 0; });
}

bool Communicator::busy() {
  const Lock lock(mutex_);
  return pending_ != 0;
}

void Communicator::abort() {
  Lock lock(mutex_);
  aborted_.store(true, std::memory_order_release);
  changed_.wait(lock, [&]() ISTHMUS_REQUIRES(mutex_) { return running_ == 0; });
}

void Communicator::revoke() {
  Lock lock(mutex_);
  revoking_.store(true, std::memory_order_release);
  changed_.wait(lock, [&]() ISTHMUS_REQUIRES(mutex_) { return pending_ == 0; });
  revoking_.store(false, std::memory_order_release);
}

void Communicator::destroy(const char *call, bool waits) {
  std::optional<Entered> lock;
  if (waits) lock.emplace(device.enter_and_wait());
  std::vector<uintptr_t> mine;
  {
    const Lock guard(mutex_);
    mine.swap(scratch_);
  }
  if (lost()) return;  // the reset has taken the memory, too
  for (const uintptr_t address : mine) unmap_device_memory(call, address);
}

}  // namespace rehearsal
