// Communicators that gain ranks: tickets, grow and join, for isthmus.Comm.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "communicator.hpp"

namespace isthmus::python {

std::string make_ticket(PythonCommunicator &comm, std::optional<double> timeout);
double timeout(PythonCommunicator &comm);     // of its operations, in seconds
py::tuple members(PythonCommunicator &comm);  // the slots that have a rank, ascending
int joiners(const PythonCommunicator &comm, const std::string &ticket);
// A capsule.
py::object grow(PythonCommunicator &comm, const std::string &ticket, int n, const std::optional<std::vector<int>> &slots,
                const std::optional<std::string> &name);
py::object join(const std::string &ticket, int slot, const InitArguments &given);  // a capsule

}  // namespace isthmus::python
