// The Python module isthmus._torch.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include <pthread.h>

#include <isthmus/isthmus.h>

#include "backend.hpp"
#include "coalescing.hpp"
#include "completer.hpp"
#include "errors.hpp"
#include "fork.hpp"
#include "interpreter.hpp"
#include "rendezvous.hpp"

namespace py = pybind11;

namespace isthmus::torch_face {

namespace {

using OptionsPtr = c10::intrusive_ptr<GroupOptions>;
using BackendPtr = c10::intrusive_ptr<Backend>;

OptionsPtr make_options(std::string island, std::string bridge, std::string settings, std::chrono::milliseconds timeout) {
  auto options = c10::make_intrusive<GroupOptions>();
  options->island = std::move(island);
  options->bridge = std::move(bridge);
  options->settings = std::move(settings);
  options->timeout = timeout;
  return options;
}

OptionsPtr copy_of(const GroupOptions &options) { return c10::make_intrusive<GroupOptions>(options); }

// `options` is copied: torch may hand one object to several groups.
BackendPtr create(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::chrono::milliseconds timeout,
                  const std::string &group, const std::vector<uint64_t> &global_ranks,
                  const std::optional<OptionsPtr> &options) {
  OptionsPtr own = options ? copy_of(**options) : c10::make_intrusive<GroupOptions>();
  own->timeout = timeout;
  own->group_name = group;
  own->global_ranks_in_group = global_ranks;
  return c10::make_intrusive<Backend>(store, rank, size, own, group);
}

std::string json_of(isthmus_result (*get)(char **)) {
  char *json = nullptr;
  check(get(&json));
  std::string text = json;
  isthmus_free(json);
  return text;
}

}  // namespace

}  // namespace isthmus::torch_face

PYBIND11_MODULE(_torch, m) {
  using namespace isthmus::torch_face;
  using interpreter::WithoutGil;
  m.doc() = "The c10d backend `isthmus`; use it through isthmus.torch";
  py::module_::import("torch._C._distributed_c10d");  // the base classes
  interpreter::install_interrupt_check();
  ::pthread_atfork(nullptr, nullptr, [] {
    forks.fetch_add(1, std::memory_order_relaxed);
    coalescing::forked();
    Completer::forked();
    forget_meeting_stores();
    Backend::forked();
  });

  py::class_<GroupOptions, OptionsPtr, c10d::Backend::Options>(m, "Options")
      .def(py::init(&make_options), py::kw_only(), py::arg("island") = "", py::arg("bridge") = "", py::arg("settings") = "",
           py::arg("timeout") = kBackendDefaultTimeout)
      .def_readwrite("island", &GroupOptions::island)
      .def_readwrite("bridge", &GroupOptions::bridge)
      .def_readwrite("settings", &GroupOptions::settings)
      .def_readwrite("device", &GroupOptions::device)
      .def("__copy__", &copy_of)
      .def("__deepcopy__", [](const GroupOptions &self, const py::dict &) { return copy_of(self); });

  py::class_<Backend, BackendPtr, c10d::Backend>(m, "Backend")
      .def_property_readonly("options", &Backend::options)
      .def(
          "perform_nocolor_split", [](Backend &, const py::object &) {}, py::arg("device"))
      .def("topology", &Backend::topology, py::call_guard<WithoutGil>())
      .def("explain", &Backend::explain, py::arg("collective"), py::arg("count"), py::arg("dtype"), py::arg("op"),
           py::arg("root"), py::call_guard<WithoutGil>())
      .def("get_error", &Backend::getError, py::call_guard<WithoutGil>())
      .def("failure", &Backend::failure, py::call_guard<WithoutGil>())
      .def("dump", &Backend::dump, py::call_guard<WithoutGil>());

  m.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("group"),
        py::arg("global_ranks"), py::arg("options"), py::call_guard<WithoutGil>());
  m.def("shutdown_all", &Backend::shutdown_all);
  m.def("context_stats", [] { return json_of(isthmus_context_stats); });
  m.def("version", [] { return std::string(isthmus_version()); });
}
