// Huawei's HCCL: collectives of Ascend devices, ordered by a stream. It has no call that ends a communicator whose ranks do
// not come, and its calls make the connections that they need, so any of them may wait for the other ranks: in init, and in
// the first calls of a kind. So the calls of a communicator are made by a thread of its own, and whoever submits one waits
// until it has been made, or until the communicator is aborted. A thread that does not come out of the library is left
// behind, counted and named.
//
// What it reduces is a matter of the device; here it is what all of them do. What it only moves goes as bytes.
#pragma once

#include <memory>
#include <string>

#include "ccl/island_ccl.hpp"

namespace isthmus::ccl {

// Opens the library: the file `path`, or what the process has already, or what the loader finds where `path` is empty. Once
// a process; a later call gives the same library whatever it asks for. Throws Error(Unsupported) with one sentence that says
// what is missing and what to install.
std::shared_ptr<Library> open_hccl(const std::string &path);

}  // namespace isthmus::ccl
