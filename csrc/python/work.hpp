// Operations in flight as Python sees them, and the arrays that they must keep alive. Everything here needs the GIL.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "array.hpp"
#include "errors.hpp"

namespace isthmus::python {

class PythonCommunicator;

// What an operation uses until it is done: its arrays, and the communicator.
struct HeldArrays {
  std::vector<Array> arrays;
  py::object communicator;
};

class Work {
 public:
  Work(isthmus_work_t handle, HeldArrays held, py::object result);
  ~Work();  // an operation still in flight becomes an orphan: its arrays live on until it is done
  Work(const Work &) = delete;
  Work &operator=(const Work &) = delete;

  py::object wait(py::object timeout);  // the result; raises what the operation ended in
  bool done();
  py::object exception();  // None while running and after success
  py::object source();     // sender of a finished receive, else None
  py::object result();     // of a finished operation
  uint64_t sequence() const { return isthmus_work_sequence(handle_); }
  py::object duration() const;

 private:
  isthmus_result test();
  isthmus_work_t handle_;
  HeldArrays held_;
  py::object result_;
  isthmus_result outcome_ = ISTHMUS_IN_PROGRESS;
  std::string text_;  // of a failure
};

// Releases the arrays of orphans that are done. Called now and then; costs one load when there are none.
void sweep_orphans();

// The calling thread's open group: keeps the arrays of recorded operations alive until its end.
struct CallGroup {
  int depth = 0;
  HeldArrays held;  // of all operations recorded; `communicator` is unused
  std::vector<py::object> communicators;
};
CallGroup &this_thread_group() noexcept;
void forget_group() noexcept;  // in a forked child: an open one is the parent's

void group_begin();
// Ends the innermost group. With `async_op` the result is a Work for all of it, which only the outermost group may ask for.
py::object group_end(bool async_op);
// Ends the innermost group and submits nothing of it, nor of the groups around it.
void group_cancel();

}  // namespace isthmus::python
