// Intel oneCCL for CPUs: the C interface of libccl.so.2 on host memory.
//
// Calls of oneCCL block and have no abort. So the thread of a host stream makes them. One thread serves all communicators, because two threads must
// not use the library. A process can be one rank of an island. oneCCL has no average, no float8 and no usable groups. Where a peer has
// died, the thread waits inside the library for ever. Then the thread is left behind, and the library serves this process no more.
#pragma once

#include <memory>
#include <string>

#include "ccl/island_ccl.hpp"

namespace isthmus::ccl {

// Opens the library: the file `path`, or where `path` is empty libccl.so.2 as the loader finds it. A process opens one library; a later call gives
// the same one, whatever it asks for. Throws Error(Unsupported) with one sentence that says what is missing and what to install.
//
// oneCCL takes its settings from the environment only. open_oneccl() sets those that oneCCL needs on shared cores, where the user has not:
//   CCL_WORKER_OFFLOAD=0          no polling threads of oneCCL's own
//   CCL_ATL_SHM=1
//   CCL_LOG_LEVEL=error           oneCCL would warn of its own defaults
//   FI_PROVIDER_PATH              where a folder `prov` lies beside the library
//   CCL_KVS_IFACE, FI_TCP_IFACE   `interface`, where it is not empty: the interface by which all ranks are reached. The library would take
//                                 the host's first one.
// settle() adds FI_PROVIDER=^shm where the shared memory of oneCCL's transport does not work (oneccl_sharing.hpp).
std::shared_ptr<Library> open_oneccl(const std::string &path, const std::string &interface);

}  // namespace isthmus::ccl
