#include "communicator.hpp"

#include <unistd.h>

#include <cstring>
#include <set>

#include "arguments.hpp"
#include "array.hpp"
#include "dtypes.hpp"
#include "work.hpp"

namespace isthmus::python {
namespace {

std::set<PythonCommunicator *> &open_communicators() {  // guarded by the GIL; never destroyed: used until the process ends
  static auto *all = new std::set<PythonCommunicator *>;
  return *all;
}

// An isthmus_exchange_fn that calls a Python callable. The callable's exception is kept, and raised when isthmus_init has
// returned.
struct PythonExchange {
  py::object callable;
  int world_size;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;

  static int call(void *context, const void *send, void *recv, size_t bytes) {
    auto *self = static_cast<PythonExchange *>(context);
    const PyGILState_STATE state = PyGILState_Ensure();
    int failed = 1;
    PyObject *mine = PyBytes_FromStringAndSize(static_cast<const char *>(send), static_cast<Py_ssize_t>(bytes));
    PyObject *joined = mine ? PyObject_CallOneArg(self->callable.ptr(), mine) : nullptr;
    Py_XDECREF(mine);
    if (joined) {
      char *data = nullptr;
      Py_ssize_t size = 0;
      if (PyBytes_AsStringAndSize(joined, &data, &size) == 0) {
        const size_t expected = bytes * static_cast<size_t>(self->world_size);
        if (static_cast<size_t>(size) == expected) {
          std::memcpy(recv, data, expected);
          failed = 0;
        } else {
          raise_argument("exchange: %zd bytes were gathered, not %zu", size, expected);
        }
      }
      Py_DECREF(joined);
    }
    if (failed) PyErr_Fetch(&self->type, &self->value, &self->trace);
    PyGILState_Release(state);
    return failed;
  }
};

const char *text(const std::optional<std::string> &s) { return s ? s->c_str() : nullptr; }

std::string take_json(isthmus_result result, char *json) {
  check(result);
  std::string out(json ? json : "");
  isthmus_free(json);
  return out;
}

}  // namespace

isthmus_options joining_options(const InitArguments &given) {
  isthmus_options options = {};
  options.size = sizeof options;
  options.island = text(given.island);
  options.bridge = text(given.bridge);
  options.settings = text(given.settings);
  options.timeout = given.timeout;
  return options;
}

PythonCommunicator::PythonCommunicator(const InitArguments &given) {
  isthmus_options options = joining_options(given);
  options.rank = given.rank;
  options.world_size = given.world_size;
  PythonExchange exchange{given.exchange, given.world_size};
  if (!given.exchange.is_none()) {
    options.exchange = PythonExchange::call;
    options.exchange_context = &exchange;
  }
  isthmus_unique_id id = {};
  if (given.unique_id) {
    if (given.unique_id->size() != sizeof id.bytes) {
      raise_argument("init: unique_id has %zu bytes; isthmus.unique_id() makes one of %zu", given.unique_id->size(),
                     sizeof id.bytes);
      throw PythonError();
    }
    std::memcpy(id.bytes, given.unique_id->data(), sizeof id.bytes);
    options.id = &id;
  }
  options.address = text(given.address);
  options.name = text(given.name);
  isthmus_comm_t handle = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_init(&options, &handle);
  }
  if (exchange.type) {
    PyErr_Restore(exchange.type, exchange.value, exchange.trace);
    throw PythonError();
  }
  check(result);
  adopt(handle);
  if (PyErr_Occurred()) throw PythonError();  // Ctrl-C at the last moment
}

PythonCommunicator::PythonCommunicator(isthmus_comm_t handle) { adopt(handle); }

void PythonCommunicator::adopt(isthmus_comm_t handle) {
  handle_ = handle;
  open_ = true;
  rank_ = isthmus_comm_rank(handle);
  size_ = isthmus_comm_size(handle);
  pid_ = getpid();
  open_communicators().insert(this);
}

PythonCommunicator::~PythonCommunicator() {
  open_communicators().erase(this);
  if (pid_ != getpid()) return;  // a forked child: the parent owns the handle
  free_handle();
}

isthmus_comm_t PythonCommunicator::handle(const char *call) const {
  if (!open_) raise_argument("%s: the communicator was destroyed", call);
  return open_ ? handle_ : nullptr;
}

void PythonCommunicator::free_handle() {
  isthmus_comm_t handle = handle_;
  handle_ = nullptr;
  open_ = false;
  if (!handle) return;
  {
    NoGil nogil;
    isthmus_comm_destroy(handle);
  }
  sweep_orphans();  // its operations have ended, also those that nobody has a Work of: their arrays go back to the program
}

void PythonCommunicator::leave() {
  if (--active_ == 0 && !open_ && handle_) {  // destroy() left the freeing to the last call inside
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    free_handle();
    PyErr_Restore(type, value, trace);
  }
}

void PythonCommunicator::destroy() {
  if (!open_) return;
  open_communicators().erase(this);
  open_ = false;
  if (active_ == 0) {
    free_handle();
    return;
  }
  // A call is inside the library: another thread's, or this thread's own (a signal handler runs inside a blocking call). The
  // handle cannot be freed under that call. So the abort ends the calls, and the last call to leave frees the handle. This
  // call counts too.
  //
  //   this thread: destroy()           another thread: all_reduce()
  //                                    active_ = 1, inside the library
  //   active_ = 2, aborts              ends in AbortedError
  //   leaves: active_ = 1              leaves: active_ = 0, frees the handle
  const ActiveCall use(this);
  NoGil nogil;
  isthmus_comm_abort(handle_, "destroyed while a call was inside");
}

void PythonCommunicator::end(const char *call, isthmus_result (*how)(isthmus_comm_t, const char *), const std::string &why) {
  isthmus_comm_t c = handle(call);
  if (!c) throw PythonError();
  const ActiveCall use(this);
  isthmus_result result;
  {
    NoGil nogil;
    result = how(c, why.c_str());
  }
  check(result);
}
void PythonCommunicator::abort(const std::string &reason) { end("abort", isthmus_comm_abort, reason); }
void PythonCommunicator::revoke(const std::string &reason) { end("revoke", isthmus_comm_revoke, reason); }
void PythonCommunicator::raised(const std::string &what) { end("raised", isthmus_comm_raised, what); }

void PythonCommunicator::set_timeout(py::object seconds) {
  isthmus_comm_t c = handle("set_timeout");
  double value = 0;
  if (!c || !read_timeout(seconds.ptr(), "set_timeout", &value)) throw PythonError();
  if (value <= 0) {
    raise_argument("set_timeout: seconds are needed");
    throw PythonError();
  }
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_set_timeout(c, value);
  }
  check(result);
}

uint64_t PythonCommunicator::sequence() {
  isthmus_comm_t c = handle("sequence");
  if (!c) throw PythonError();
  const ActiveCall use(this);
  NoGil nogil;
  return isthmus_comm_sequence(c);
}

py::object PythonCommunicator::error() {
  if (!open_) return make_error(ISTHMUS_ERR_ARGUMENT, "the communicator was destroyed");
  const ActiveCall use(this);
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_error(handle_);
  }
  return result == ISTHMUS_OK ? py::object(py::none()) : make_error(result, isthmus_last_error(), last_ranks());
}

py::object PythonCommunicator::split(int color, int key, const std::optional<std::string> &name) {
  isthmus_comm_t c = handle("split");
  if (!c) throw PythonError();
  const ActiveCall use(this);
  isthmus_comm_t child = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_split(c, color, key, text(name), &child);
  }
  check(result);
  if (!child) return py::none();
  return py::capsule(static_cast<void *>(child), kHandleCapsule);
}

py::object PythonCommunicator::shrink(const std::vector<int> &exclude, int mode, bool dense,
                                      const std::optional<std::string> &name) {
  isthmus_comm_t c = handle("shrink");
  if (!c) throw PythonError();
  const ActiveCall use(this);
  isthmus_comm_t child = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = (dense ? isthmus_comm_shrink : isthmus_comm_shrink_slots)(
        c, exclude.data(), static_cast<int>(exclude.size()), static_cast<isthmus_shrink_mode>(mode), text(name), &child);
  }
  check(result);
  return py::capsule(static_cast<void *>(child), kHandleCapsule);
}

void PythonCommunicator::reconfigure(const std::vector<int> &exclude, const std::optional<std::string> &ticket, int n,
                                     const std::optional<std::vector<int>> &slots, bool dense) {
  isthmus_comm_t c = handle("reconfigure");
  if (!c) throw PythonError();
  if (slots && static_cast<int>(slots->size()) != n) {
    raise_argument("reconfigure: %zu slots for %d newcomers; give one for each, or none", slots->size(), n);
    throw PythonError();
  }
  const ActiveCall use(this);
  isthmus_result result;
  int rank, size;  // also where it fails: the newcomers alone may not have come in
  {
    NoGil nogil;
    result = (dense ? isthmus_comm_reconfigure : isthmus_comm_reconfigure_slots)(
        c, exclude.data(), static_cast<int>(exclude.size()), text(ticket), n, slots ? slots->data() : nullptr);
    rank = isthmus_comm_rank(c);
    size = isthmus_comm_size(c);
  }
  if (rank >= 0) {
    rank_ = rank;
    size_ = size;
  }
  if (result == ISTHMUS_OK) return;
  raise_last(result);
  throw PythonError();
}

py::tuple PythonCommunicator::agree(uint64_t flags, const std::vector<int> &failed, bool allow_minority,
                                    std::optional<double> timeout) {
  isthmus_comm_t c = handle("agree");
  if (!c) throw PythonError();
  const ActiveCall use(this);
  std::vector<uint8_t> out(static_cast<size_t>(isthmus_comm_size(c)));
  for (const int rank : failed) {
    if (rank < 0 || static_cast<size_t>(rank) >= out.size()) {
      raise_argument("agree: there is no rank %d among %zu", rank, out.size());
      throw PythonError();
    }
    out[static_cast<size_t>(rank)] = 1;
  }
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_agree(c, &flags, out.data(), allow_minority, timeout.value_or(0));
  }
  check(result);
  py::list gone;
  for (size_t rank = 0; rank < out.size(); ++rank)
    if (out[rank]) gone.append(rank);
  return py::make_tuple(flags, gone);
}

std::string PythonCommunicator::topology() {
  isthmus_comm_t c = handle("topology");
  if (!c) throw PythonError();
  const ActiveCall use(this);
  char *json = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_topology(c, &json);
  }
  return take_json(result, json);
}

std::string PythonCommunicator::dump() {
  isthmus_comm_t c = handle("dump");
  if (!c) throw PythonError();
  const ActiveCall use(this);
  char *json = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_dump(c, &json);
  }
  return take_json(result, json);
}

std::string PythonCommunicator::explain(const std::string &collective, uint64_t count, py::object dtype, py::object op,
                                        int root) {
  isthmus_comm_t c = handle("explain");
  isthmus_dtype type;
  isthmus_redop redop = ISTHMUS_SUM;
  if (!c || !dtype_from_object(dtype.ptr(), "explain", &type) || !read_op(op.ptr(), "explain", &redop)) throw PythonError();
  const ActiveCall use(this);
  char *json = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_explain(c, collective.c_str(), count, type, redop, root, &json);
  }
  return take_json(result, json);
}

std::string measure_leader_exchange(PythonCommunicator &comm, double seconds) {
  isthmus_comm_t c = comm.handle("measure");
  if (!c) throw PythonError();
  const PythonCommunicator::ActiveCall use(&comm);
  char *json = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_measure_star(c, seconds, &json);
  }
  return take_json(result, json);
}

void PythonCommunicator::destroy_all(double seconds) {
  const std::set<PythonCommunicator *> all = open_communicators();
  for (PythonCommunicator *c : all) {
    if (!open_communicators().contains(c) || c->pid_ != getpid()) continue;
    if (c->active_ == 0) {
      NoGil nogil;
      isthmus_comm_set_timeout(c->handle_, seconds);
    }
    c->destroy();
  }
}

}  // namespace isthmus::python
