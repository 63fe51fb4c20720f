#include "ccl/nccl_handle.hpp"

#include <exception>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "device/abandoned.hpp"

namespace isthmus::ccl::nccl {
namespace {

// The library gives a thread back the device that the thread had when it called. In a thread that has none that is device 0, and the library makes a
// context there: hundreds of megabytes on a device that may be another rank's. So each call that ends a communicator is made with its device.
template <class F>
void on_its_device(const device::Stream &stream, F call) noexcept {
  std::optional<device::Entered> entered;
  try {
    entered.emplace(stream);
  } catch (const Error &) {}  // the program has reset the device: the communicator ends all the same
  call();
}

}  // namespace

void NcclHandle::kill() noexcept {
  try {
    killer_ = begin_own_thread([self = shared_from_this()] {
      // A thread that follows a call sees the abort, and leaves first.
      const Lock lock(self->calls);
      if (const Handle last = self->handle) on_its_device(*self->stream, [&] { self->library.f.CommAbort(last); });
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
    const auto ended = device::call_within(kPatience, [last, broken, functions = &library.f, on = stream, killer] {
      if (killer->joinable()) killer->join();
      else on_its_device(*on, [&] { broken ? functions->CommAbort(last) : functions->CommDestroy(last); });
      return Status{};
    });
    if (!ended)
      ISTHMUS_WARN("{}: the communicator of rank {} did not end in {} s and is left behind, with the thread that ends it",
                   library.row->family, rank, kPatience);
  } catch (const std::exception &) {}
}

}  // namespace isthmus::ccl::nccl
