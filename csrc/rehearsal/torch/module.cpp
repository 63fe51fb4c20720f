// The Python module isthmus/rehearsal/_torch_device. Programs use it through isthmus.rehearsal_torch.
#include <c10/core/CachingDeviceAllocator.h>
#include <ATen/core/CachingHostAllocator.h>

#include <pybind11/pybind11.h>

#include "device.hpp"

namespace py = pybind11;

PYBIND11_MODULE(_torch_device, m) {
  using namespace rehearsal_torch;
  m.doc() = "A simulated device for torch; use it through isthmus.rehearsal_torch";
  api();  // throws now if there is no simulated vendor
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  m.def("vendor", [] { return api().vendor(); });
  m.def("device_count", &device_count);
  m.def("device_name", [](int device) { return api().name(device); });
  m.def("current_device", &current_device);
  m.def("set_device", &set_current_device);
  m.def("in_forked_child", &in_forked_child);
  m.def(
      "synchronize",
      [](int device) {
        const On on(device);
        api().synchronize();
      },
      unlocked);
  m.def(
      "empty_cache",
      [] {
        device_memory().emptyCache({0, 0});
        pinned_memory().empty_cache();
      },
      unlocked);
}
