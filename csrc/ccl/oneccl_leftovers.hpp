// The leftovers of oneCCL's transport (libfabric's provider for shared memory) in /dev/shm. Where a process did not come to end its communicators,
// the transport leaves files of 64 MiB, named PID:DOMAIN:ENDPOINT.
#pragma once

namespace isthmus::ccl {

// The number of a process says which files are its own only where all that share the folder count processes alike. Two containers that share
// /dev/shm may both have a process 1. A file that one of them removed by the number alone would be a file with which the other works.

// Called before the library is opened. Remembers the files that have this process's number already. They belong to another process, alive elsewhere
// or dead, and are not removed.
void note_earlier_files() noexcept;

// Removes the files of this process: those that came later and that the process has mapped. The transport has its files mapped until it removes
// them itself.
void remove_own_leftovers() noexcept;

// Removes the files of the same user that no process has mapped and whose process is gone. Only in the first process namespace, from which all
// processes are seen. In another namespace a number says nothing about who is alive.
void remove_leftovers_of_the_dead() noexcept;

}  // namespace isthmus::ccl
