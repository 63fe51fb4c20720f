#include "membership.hpp"

#include <algorithm>

namespace isthmus::python {

std::string make_ticket(PythonCommunicator &comm, std::optional<double> timeout) {
  isthmus_comm_t c = comm.handle("ticket");
  if (!c) throw PythonError();
  const PythonCommunicator::ActiveCall use(&comm);
  char *ticket = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_ticket(c, timeout.value_or(0), &ticket);
  }
  check(result);
  std::string text(ticket);
  isthmus_free(ticket);
  return text;
}

double timeout(PythonCommunicator &comm) {
  isthmus_comm_t c = comm.handle("timeout");
  if (!c) throw PythonError();
  const PythonCommunicator::ActiveCall use(&comm);
  const NoGil nogil;
  return isthmus_comm_timeout(c);
}

py::tuple members(PythonCommunicator &comm) {
  isthmus_comm_t c = comm.handle("members");
  if (!c) throw PythonError();
  const PythonCommunicator::ActiveCall use(&comm);
  std::vector<int> slots(static_cast<size_t>(comm.size()));
  const int count = isthmus_comm_members(c, slots.data(), comm.size());
  if (count < 0) {
    raise_last(ISTHMUS_ERR_ARGUMENT);
    throw PythonError();
  }
  py::tuple out(std::min(static_cast<size_t>(count), slots.size()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = slots[i];
  return out;
}

int joiners(const PythonCommunicator &comm, const std::string &ticket) {
  isthmus_comm_t c = comm.handle("joiners");
  if (!c) throw PythonError();
  int count = 0;
  check(isthmus_comm_joiners(c, ticket.c_str(), &count));
  return count;
}

py::object grow(PythonCommunicator &comm, const std::string &ticket, int n, const std::optional<std::vector<int>> &slots,
                const std::optional<std::string> &name) {
  isthmus_comm_t c = comm.handle("grow");
  if (!c) throw PythonError();
  if (slots && static_cast<int>(slots->size()) != n) {
    raise_argument("grow: %zu slots for %d newcomers; give one for each, or none", slots->size(), n);
    throw PythonError();
  }
  const PythonCommunicator::ActiveCall use(&comm);
  isthmus_comm_t child = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result =
        isthmus_comm_grow(c, ticket.c_str(), n, slots ? slots->data() : nullptr, name ? name->c_str() : nullptr, &child);
  }
  check(result);
  return py::capsule(static_cast<void *>(child), kHandleCapsule);
}

py::object join(const std::string &ticket, int slot, const InitArguments &given) {
  const isthmus_options options = joining_options(given);
  isthmus_comm_t made = nullptr;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_join(ticket.c_str(), slot, &options, &made);
  }
  check(result);
  return py::capsule(static_cast<void *>(made), kHandleCapsule);
}

}  // namespace isthmus::python
