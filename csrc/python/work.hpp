// Operations in flight as Python sees them, and the arrays that they must keep alive. Everything here needs the GIL.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "array.hpp"
#include "errors.hpp"

namespace isthmus::python {

class PythonCommunicator;

// The objects that an operation uses until the operation is done: its arrays, and the communicator.
struct HeldArrays {
  std::vector<Array> arrays;
  py::object communicator;
};

class Work {
 public:
  Work(isthmus_work_t handle, HeldArrays held, py::object result);
  ~Work();  // an operation still in flight becomes an orphan: its arrays live on until the operation is done
  Work(const Work &) = delete;
  Work &operator=(const Work &) = delete;

  py::object wait(py::object timeout);  // the result; raises the error in which the operation ended
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
  std::string text_;  // of a failure; and whom it is about
  std::vector<int> ranks_;
};

// Releases the arrays of orphans that are done. Called now and then. Without orphans the call costs one load.
void sweep_orphans();

// The calling thread's open group. The group keeps the arrays of recorded operations alive until the group ends.
struct CallGroup {
  int depth = 0;
  HeldArrays held;  // the arrays of all recorded operations; held.communicator is not used while operations are recorded
  std::vector<py::object> communicators;
};
CallGroup &this_thread_group() noexcept;
void forget_group() noexcept;  // called in a forked child, where an open group is the parent's

void group_begin();
// Ends the innermost group. With `async_op` the result is one Work for the whole group. Only the outermost group may ask for
// a Work.
py::object group_end(bool async_op);
// Ends the innermost group. No operation of that group, or of the groups around it, is submitted.
void group_cancel();

}  // namespace isthmus::python
