// isthmus._core: isthmus.h as Python classes. The package isthmus wraps it; its types are in python/isthmus/_core.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <pthread.h>

#include "collectives.hpp"
#include "dtypes.hpp"
#include "membership.hpp"

namespace isthmus::python {
namespace {

using OptionalText = std::optional<std::string>;

void add_methods(py::handle type, PyMethodDef *methods) {
  for (PyMethodDef *m = methods; m->ml_name; ++m) {
    const auto method =
        py::reinterpret_steal<py::object>(PyDescr_NewMethod(reinterpret_cast<PyTypeObject *>(type.ptr()), m));
    if (!method) throw PythonError();
    type.attr(m->ml_name) = method;
  }
}

template <class Question>  // isthmus_result(char **json)
std::string json_of(Question question) {
  char *json = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = question(&json);
  }
  check(result);
  std::string out(json ? json : "");
  isthmus_free(json);
  return out;
}

std::optional<std::string> next_dump() {
  char path[4096];
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_dump_next(path, sizeof path);
  }
  if (result == ISTHMUS_ERR_ABORTED) return std::nullopt;
  check(result);
  return path;
}

std::unique_ptr<PythonCommunicator> make(int rank, int world_size, OptionalText address,
                                         const std::optional<py::bytes> &unique_id, OptionalText island, OptionalText bridge,
                                         py::object timeout, OptionalText name, OptionalText settings, py::object exchange) {
  InitArguments o;
  o.rank = rank;
  o.world_size = world_size;
  o.address = std::move(address);
  if (unique_id) o.unique_id = static_cast<std::string>(*unique_id);
  o.island = std::move(island);
  o.bridge = std::move(bridge);
  o.name = std::move(name);
  o.settings = std::move(settings);
  o.exchange = std::move(exchange);
  if (!read_timeout(timeout.ptr(), "init", &o.timeout)) throw PythonError();
  return std::make_unique<PythonCommunicator>(o);
}

py::object join_with(const std::string &ticket, int slot, OptionalText island, OptionalText bridge,
                     const py::object &timeout, OptionalText settings) {
  InitArguments o;
  o.island = std::move(island);
  o.bridge = std::move(bridge);
  o.settings = std::move(settings);
  if (!read_timeout(timeout.ptr(), "join", &o.timeout)) throw PythonError();
  return join(ticket, slot, o);
}

std::unique_ptr<PythonCommunicator> from_handle(const py::capsule &handle) {
  void *pointer = PyCapsule_GetPointer(handle.ptr(), kHandleCapsule);
  if (!pointer) throw PythonError();
  return std::make_unique<PythonCommunicator>(static_cast<isthmus_comm_t>(pointer));
}

void add_communicator(py::module_ &m) {
  auto type = py::class_<PythonCommunicator>(m, "Comm", "One rank of one communicator.");
  type.def(py::init(&make), py::kw_only(), py::arg("rank") = -1, py::arg("world_size") = -1, py::arg("address") = py::none(),
           py::arg("unique_id") = py::none(), py::arg("island") = py::none(), py::arg("bridge") = py::none(),
           py::arg("timeout") = py::none(), py::arg("name") = py::none(), py::arg("settings") = py::none(),
           py::arg("exchange") = py::none())
      .def(py::init(&from_handle), py::arg("handle"))
      .def_property_readonly("rank", &PythonCommunicator::rank,
                             "This process's rank, from 0: its slot, where ranks keep their numbers (shrink).")
      .def_property_readonly("size", &PythonCommunicator::size,
                             "The number of slots: of ranks, and of holes where ranks keep their numbers (shrink).")
      .def_property_readonly("members", &members,
                             "The slots that have a rank, ascending: range(size), where there are no holes.")
      .def_property_readonly("destroyed", &PythonCommunicator::destroyed, "Whether destroy() was called.")
      .def_property_readonly("sequence", &PythonCommunicator::sequence, "The number of collectives submitted so far.")
      .def_property_readonly("error", &PythonCommunicator::error,
                             "None while the communicator can be used, else the exception that says why not.")
      .def("destroy", &PythonCommunicator::destroy,
           "Waits for pending operations, at most for the communicator's timeout, and frees the communicator. Not "
           "collective. A second call does nothing.")
      .def("_raised", &PythonCommunicator::raised, py::arg("what"))
      .def("abort", &PythonCommunicator::abort, py::arg("reason") = "aborted by the program",
           "Ends every pending and later operation on every rank in AbortedError. Not collective. Does not block.")
      .def("revoke", &PythonCommunicator::revoke, py::arg("reason"),
           "abort() by the name that fault-tolerant MPI has for it: the AbortedError of every rank says which rank has "
           "revoked "
           "the communicator, and why. Local, any thread, does not block; a second call does nothing.")
      .def("set_timeout", &PythonCommunicator::set_timeout, py::arg("seconds"),
           "Sets the deadline of this rank's later operations, in seconds.")
      .def_property_readonly("timeout", &timeout,
                             "The deadline of this rank's operations, in seconds: as given at first, or set last.")
      .def("_split", &PythonCommunicator::split, py::arg("color"), py::arg("key"), py::arg("name"))
      .def("_shrink", &PythonCommunicator::shrink, py::arg("exclude"), py::arg("mode"), py::arg("dense"), py::arg("name"))
      .def("_reconfigure", &PythonCommunicator::reconfigure, py::arg("exclude"), py::arg("ticket"), py::arg("n"),
           py::arg("slots"), py::arg("dense"))
      .def("_others_busy", [](PythonCommunicator &c) { return isthmus_comm_others_busy(c.handle("others_busy")) != 0; })
      .def("_ticket", &make_ticket, py::arg("timeout"))
      .def("_joiners", &joiners, py::arg("ticket"))
      .def("_grow", &grow, py::arg("ticket"), py::arg("n"), py::arg("slots"), py::arg("name"))
      .def("_agree", &PythonCommunicator::agree, py::arg("flags"), py::arg("failed"), py::arg("allow_minority"),
           py::arg("timeout"))
      .def("_topology", &PythonCommunicator::topology)
      .def("_dump", &PythonCommunicator::dump)
      .def("_measure_leader_exchange", &measure_leader_exchange, py::arg("seconds"))
      .def("_explain", &PythonCommunicator::explain, py::arg("collective"), py::arg("count"), py::arg("dtype"),
           py::arg("op"), py::arg("root"));
  m.def("join", &join_with, py::arg("ticket"), py::arg("slot"), py::arg("island"), py::arg("bridge"), py::arg("timeout"),
        py::arg("settings"));
  add_methods(type, kCollectives);
  add_methods(type, kCollectivesV);
}

void add_work(py::module_ &m) {
  py::class_<Work>(m, "Work",
                   "An operation in flight. A Work keeps the operation's arrays alive until the operation is done.")
      .def("wait", &Work::wait, py::arg("timeout") = py::none(),
           "Waits until the operation is done, and returns the result. Raises the error in which the operation ended. After "
           "`timeout` seconds the wait ends in TimeoutError, and the operation goes on.")
      .def_property_readonly("done", &Work::done,
                             "Whether the operation has ended, well or not. Never blocks, and drives the operation on.")
      .def_property_readonly("exception", &Work::exception,
                             "The error in which the operation ended. None while the operation runs, and after success.")
      .def_property_readonly("source", &Work::source, "The sender's rank, of a finished receive. Else None.")
      .def_property_readonly(
          "result", &Work::result,
          "What the blocking call would have returned; of a receive its array (the sender is `source`). Available "
          "when the operation is done.")
      .def_property_readonly("sequence", &Work::sequence, "The operation's number in the communicator.")
      .def_property_readonly("duration", &Work::duration,
                             "Seconds from the operation's submission to its end. None while the operation runs.");
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C interface of Isthmus, isthmus.h, for the package isthmus.";
  add_communicator(m);
  add_work(m);
  m.def("version", &isthmus_version);
  m.def("unique_id", [] {
    isthmus_unique_id id = {};
    isthmus_result result;
    {
      NoGil nogil;
      result = isthmus_unique_id_create(&id);
    }
    check(result);
    return py::bytes(id.bytes, sizeof id.bytes);
  });
  m.def("settings", [] { return json_of(isthmus_settings); });
  m.def("devices", [] { return json_of(isthmus_devices); });
  m.def("ucx", [] { return json_of(isthmus_ucx); });
  m.def("libraries", [] { return json_of(isthmus_libraries); });
  m.def(
      "measure", [](double seconds) { return json_of([seconds](char **json) { return isthmus_measure(seconds, json); }); },
      py::arg("seconds"));
  m.def("context_stats", [] { return json_of(isthmus_context_stats); });
  m.def(
      "dtype_size",
      [](const py::object &dtype) {
        isthmus_dtype type;
        if (!dtype_from_object(dtype.ptr(), "dtype_size", &type)) throw PythonError();
        return isthmus_dtype_size(type);
      },
      py::arg("dtype"));
  m.def("dtypes", [] {
    py::list names;
    for (int i = 0; i < ISTHMUS_DTYPE_COUNT; ++i) names.append(isthmus_dtype_name(static_cast<isthmus_dtype>(i)));
    return names;
  });
  m.def("ops", [] {
    py::list names;
    for (int i = 0; i < ISTHMUS_REDOP_COUNT; ++i) names.append(isthmus_redop_name(static_cast<isthmus_redop>(i)));
    return names;
  });
  m.def("group_begin", &group_begin);
  m.def("group_end", &group_end, py::arg("async_op") = false);
  m.def("group_cancel", &group_cancel);
  m.def(
      "raised", [](const std::string &what) { check(isthmus_raised(what.c_str())); }, py::arg("what"),
      py::call_guard<NoGil>());
  m.def(
      "raised_settle", [] { check(isthmus_raised_settle()); }, py::call_guard<NoGil>());
  m.def("raiser", &isthmus_raiser);
  m.def("take_over_dumps", [] { check(isthmus_dump_next(nullptr, 0)); });
  m.def("next_dump", &next_dump);
  m.def("dump_records", [] { return json_of(isthmus_dump_records); });
  m.def("dump_written", [] { isthmus_dump_written(); });
  m.def(
      "settle_dumps", [](double seconds) { isthmus_dump_settle(seconds); }, py::arg("seconds"), py::call_guard<NoGil>());
  m.def("destroy_all", &PythonCommunicator::destroy_all, py::arg("seconds"));
  m.attr("ANY_SOURCE") = ISTHMUS_ANY_SOURCE;
  install_interrupt_check();
  ::pthread_atfork(nullptr, nullptr, forget_group);
}

}  // namespace isthmus::python
