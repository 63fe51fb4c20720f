#include "ccl/nccl_handle.hpp"

#include <exception>
#include <utility>

#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "device/abandoned.hpp"

namespace isthmus::ccl::nccl {

void NcclHandle::kill() noexcept {
  try {
    killer_ = begin_own_thread([self = shared_from_this()] {
      // A thread that follows a call sees the abort, and leaves first.
      const Lock lock(self->calls);
      if (self->handle) self->library.f.CommAbort(self->handle);
      self->handle = nullptr;
      self->killed.store(true, std::memory_order_release);
    });
  } catch (const std::exception &) { killed.store(true); }  // no thread can be had: the communicator is left as it is
}

void NcclHandle::end(bool broken, int rank) noexcept {
  constexpr double kPatience = 10;
  try {
    const auto killer = std::make_shared<std::thread>(std::move(killer_));
    const Handle last = killer->joinable() ? nullptr : std::exchange(handle, nullptr);
    if (!killer->joinable() && !last) return;
    const auto ended = device::call_within(kPatience, [last, broken, functions = &library.f, killer] {
      if (killer->joinable()) killer->join();
      else broken ? functions->CommAbort(last) : functions->CommDestroy(last);
      return Status{};
    });
    if (!ended)
      ISTHMUS_WARN("{}: the communicator of rank {} did not end in {} s and is left behind, with the thread that ends it",
                   library.row->family, rank, kPatience);
  } catch (const std::exception &) {}
}

}  // namespace isthmus::ccl::nccl
