// What oneCCL's transport (libfabric's provider for shared memory) leaves in /dev/shm where a process did not come to end its
// communicators: files of 64 MiB, named PID:DOMAIN:ENDPOINT.
#pragma once

namespace isthmus::ccl {

// Removes those of this process, and those of the same user that no process has mapped and whose process is gone. The latter only in the
// first process namespace, from which all processes are seen; elsewhere a number says nothing about who is alive.
void remove_leftovers(bool own) noexcept;

}  // namespace isthmus::ccl
