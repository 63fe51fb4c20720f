#include "work.hpp"

#include <algorithm>
#include <cmath>

#include "arguments.hpp"

namespace isthmus::python {
namespace {

struct Orphan {
  isthmus_work_t handle;
  HeldArrays held;
};

// The orphans are never destroyed: at the process's end an operation may still write into their arrays.
std::vector<Orphan> &orphans() {
  static auto *list = new std::vector<Orphan>;
  return *list;
}

}  // namespace

void sweep_orphans() {
  auto &list = orphans();
  if (list.empty()) return;
  std::vector<Orphan> working;  // the list is taken away while the GIL is free, or others would sweep the same entries
  working.swap(list);
  std::vector<Orphan> finished;
  {
    NoGil nogil;
    const auto running = [](const Orphan &o) { return isthmus_work_test(o.handle) == ISTHMUS_IN_PROGRESS; };
    const auto middle = std::stable_partition(working.begin(), working.end(), running);
    std::move(middle, working.end(), std::back_inserter(finished));
    working.erase(middle, working.end());
    for (auto &o : finished) isthmus_work_release(o.handle);
  }
  std::move(working.begin(), working.end(), std::back_inserter(list));
}

Work::Work(isthmus_work_t handle, HeldArrays held, py::object result)
    : handle_(handle), held_(std::move(held)), result_(std::move(result)) {}

Work::~Work() {
  if (outcome_ == ISTHMUS_IN_PROGRESS && test() == ISTHMUS_IN_PROGRESS) {
    orphans().push_back({handle_, std::move(held_)});
    return;
  }
  NoGil nogil;
  isthmus_work_release(handle_);
}

isthmus_result Work::test() {
  if (outcome_ != ISTHMUS_IN_PROGRESS) return outcome_;
  isthmus_result now;
  {
    NoGil nogil;
    now = isthmus_work_test(handle_);
  }
  if (now != ISTHMUS_IN_PROGRESS && outcome_ == ISTHMUS_IN_PROGRESS) {
    if (now != ISTHMUS_OK) {
      text_ = isthmus_last_error();
      ranks_ = last_ranks();
    }
    outcome_ = now;
    const HeldArrays released = std::move(held_);
    held_ = HeldArrays();
  }
  return outcome_;
}

bool Work::done() { return test() != ISTHMUS_IN_PROGRESS; }

py::object Work::wait(py::object timeout) {
  double seconds = 0;
  if (!read_timeout(timeout.ptr(), "wait", &seconds)) throw PythonError();
  if (outcome_ == ISTHMUS_IN_PROGRESS) {
    isthmus_result waited;
    {
      NoGil nogil;
      waited = isthmus_work_wait(handle_, seconds);
    }
    const std::string text = waited == ISTHMUS_OK ? "" : isthmus_last_error();
    if (test() == ISTHMUS_IN_PROGRESS) {  // the wait ended, and the operation did not
      raise(waited, text.c_str());
      throw PythonError();
    }
    if (PyErr_Occurred()) throw PythonError();  // Ctrl-C
  }
  if (outcome_ != ISTHMUS_OK) {
    raise(make_error(outcome_, text_.c_str(), ranks_));
    throw PythonError();
  }
  return result_;
}

py::object Work::exception() {
  const isthmus_result now = test();
  return now == ISTHMUS_OK || now == ISTHMUS_IN_PROGRESS ? py::none() : make_error(now, text_.c_str(), ranks_);
}

py::object Work::source() {
  const int rank = done() ? isthmus_work_source(handle_) : -1;
  return rank < 0 ? py::object(py::none()) : py::object(py::int_(rank));
}

py::object Work::result() {
  const isthmus_result now = test();
  if (now == ISTHMUS_IN_PROGRESS) {
    raise_argument("result: the operation is still running; call wait() first");
    throw PythonError();
  }
  if (now != ISTHMUS_OK) {
    raise(make_error(now, text_.c_str(), ranks_));
    throw PythonError();
  }
  return result_;
}

py::object Work::duration() const {
  const double seconds = isthmus_work_duration(handle_);
  return seconds < 0 ? py::object(py::none()) : py::object(py::float_(seconds));
}

// ---- groups

CallGroup &this_thread_group() noexcept {
  static thread_local auto *group = new CallGroup;  // never freed: the thread may end after the interpreter
  return *group;
}

void forget_group() noexcept {
  CallGroup &group = this_thread_group();
  if (group.depth > 0) ::new (&group) CallGroup;  // the arrays of the parent's group are kept for ever
}

void group_begin() {
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_group_begin();
  }
  check(result);
  ++this_thread_group().depth;
}

py::object group_end(bool async_op) {
  CallGroup &group = this_thread_group();
  if (group.depth == 0) {
    raise_argument("group: its end without a beginning on this thread");
    throw PythonError();
  }
  const bool outermost = --group.depth == 0;
  if (async_op && !outermost) {
    ++group.depth;
    group_cancel();
    raise_argument("group: async_op belongs to the outermost group; the inner one is only a part of it");
    throw PythonError();
  }
  isthmus_work_t handle = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_group_end(async_op ? &handle : nullptr);
  }
  CallGroup ended;
  if (outermost) std::swap(ended, group);
  check(result);
  if (!async_op) return py::none();
  py::list communicators;
  for (auto &c : ended.communicators) communicators.append(c);
  ended.held.communicator = std::move(communicators);
  return py::cast(new Work(handle, std::move(ended.held), py::none()), py::return_value_policy::take_ownership);
}

void group_cancel() {
  CallGroup &group = this_thread_group();
  if (group.depth == 0) return;
  CallGroup ended;
  const bool outermost = --group.depth == 0;
  {
    NoGil nogil;
    isthmus_barrier(nullptr, nullptr,
                    nullptr);    // isthmus.h: a call that fails inside a group cancels the group; this one must fail
    isthmus_group_end(nullptr);  // gives that failure, which is not news
  }
  if (outermost) std::swap(ended, group);
}

}  // namespace isthmus::python
