// A device without one: its streams do nothing, and what it pins is counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/runtime.hpp"

namespace isthmus_test {

namespace device = isthmus::device;

struct PlainStream final : device::Stream {
  int device() const noexcept override { return 0; }
  isthmus::Status status() const override { return state; }
  bool capturing() const override { return false; }
  uint64_t cuts() const noexcept override { return stopped; }
  isthmus::Status state;
  uint64_t stopped = 0;
};

// A device with streams that do nothing, near a node of its own. All else is the host's.
class PlainRuntime final : public device::Runtime {
 public:
  explicit PlainRuntime(int node = -1) : node_(node) {}
  const char *maker() const noexcept override { return "plain"; }
  const char *vendor() const noexcept override { return "plain"; }
  std::string version() const override { return "1"; }
  int devices() const override { return 1; }
  device::Capabilities capabilities(int) const override { return {}; }
  std::string describe(int) const override { return "plain"; }
  int numa(int) const override { return node_; }
  std::unique_ptr<device::Stream> make_stream(int, const char *) override { return std::make_unique<PlainStream>(); }
  std::unique_ptr<device::Stream> adopt(int, void *) override { return nullptr; }
  std::unique_ptr<device::Event> make_event(int) override { return nullptr; }
  std::unique_ptr<device::StreamGate> make_gate(int) override { return nullptr; }
  std::unique_ptr<device::Signal> make_signal(int, device::Wake, void *) override { return nullptr; }
  void copy(device::Stream &, void *, const void *, size_t, const std::atomic<bool> *) override {}
  void *allocate(int, size_t) override { return nullptr; }
  void release(int, void *) noexcept override {}
  void register_host(int, void *, size_t bytes) override {
    registered += bytes;
    if (meanwhile) meanwhile();
  }
  bool unregister_host(int, void *) noexcept override { return true; }
  void *device_address(int, const void *memory) const override { return const_cast<void *>(memory); }
  device::PointerInfo find(const void *) const override { return {}; }
  size_t registered = 0;
  std::function<void()> meanwhile;  // what another thread does while the device pins

 private:
  const int node_;
};

}  // namespace isthmus_test
