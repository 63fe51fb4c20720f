// Intel oneCCL for CPUs: the C interface of libccl.so.2 on host memory. Its calls block and have no abort, so they run on the thread of
// a host stream, one thread for all its communicators, because it is not safe to use from two; one process can be one rank of an island;
// it has no average, no float8 and no usable groups. Where a peer has died, that thread waits inside the library for ever: it is left
// behind, and the library serves this process no more.
#pragma once

#include <memory>
#include <string>

#include "ccl/island_ccl.hpp"

namespace isthmus::ccl {

// Opens the library: the file `path`, or libccl.so.2 as the loader finds it where that is empty. Once a process; a later call gives the
// same library whatever it asks for. Throws Error(Unsupported) with one sentence that says what is missing and what to install.
//
// oneCCL takes its settings from the environment only. Those that it needs to work beside others on shared cores are set where the user
// did not set them: CCL_WORKER_OFFLOAD=0 (no polling threads of its own), CCL_ATL_SHM=1, CCL_LOG_LEVEL=error (it warns of its own defaults), and
// FI_PROVIDER_PATH where a folder `prov` lies beside the library. `interface`, where it is not empty, is the one that all ranks are
// reached by: CCL_KVS_IFACE and FI_TCP_IFACE name it, since the library would take the host's first one.
std::shared_ptr<Library> open_oneccl(const std::string &path, const std::string &interface);

}  // namespace isthmus::ccl
