// What oneCCL's transport (libfabric's provider for shared memory) leaves in /dev/shm where a process did not come to end its
// communicators: files of 64 MiB, named PID:DOMAIN:ENDPOINT.
#pragma once

namespace isthmus::ccl {

// A process's number says which files are its own only where all that share the folder count processes alike. Two containers that share
// /dev/shm may both have a process 1, and then what one of them removes by the number alone is what the other works with.

// Before the library is opened: remembers which files have this process's number already. They are another's, who is alive elsewhere or
// dead, and are not removed.
void note_earlier_files() noexcept;

// Removes those of this process: that came later and that it has mapped, as the transport has its own until it removes them itself.
void remove_own_leftovers() noexcept;

// Removes those of the same user that no process has mapped and whose process is gone. Only in the first process namespace, from which all
// processes are seen; elsewhere a number says nothing about who is alive.
void remove_leftovers_of_the_dead() noexcept;

}  // namespace isthmus::ccl
