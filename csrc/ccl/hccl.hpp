// Huawei's HCCL: collectives of Ascend devices, ordered by a stream.
//
// HCCL has no call that ends a communicator whose ranks do not come. Its calls make the connections that they need. So init may wait for the
// other ranks, and so may the first calls of a kind. Therefore each communicator has a thread that makes its calls (hccl_thread.hpp). A caller
// waits until the thread has made the call, or until the communicator is aborted. A thread that does not come out of the library is left
// behind, counted and named.
//
// Devices differ in what HCCL reduces on them. The adapter offers what all of them reduce. What HCCL only moves goes as bytes.
#pragma once

#include <memory>
#include <string>

#include "ccl/island_ccl.hpp"

namespace isthmus::ccl {

// Opens the library: the file `path`. Where `path` is empty: the file that the process has already, or else the one that the loader finds. A process
// opens one library; a later call gives the same one, whatever it asks for. Throws Error(Unsupported) with one sentence that says what is
// missing and what to install.
std::shared_ptr<Library> open_hccl(const std::string &path);

}  // namespace isthmus::ccl
