// Writes the flight record of this process to the file that ISTHMUS_DUMP names, in two cases:
//   - an operation of one of the process's ranks meets its deadline
//   - the process gets SIGUSR1
// A thread of the library writes, while there is a communicator with that setting. The program may write in the thread's place:
//
//   signal or deadline   a record is wanted
//                                |
//                                v
//   the writing thread   next_dump() gives the path ... dump_records(), writes ... dump_written()
//                                                                                        |
//                                                                                        v
//   destroy              settle_dumps() waits, at most so long ......................... goes on
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// The record has this communicator from now on, until unwatch(). Nothing happens where the communicator's settings name no file.
void watch(const std::shared_ptr<comm::Communicator> &comm);
// Where a thread reads the communicators just now, unwatch() waits for that, for at most 2 s.
void unwatch(const comm::Communicator &comm) noexcept;
// For a thread that writes in the library's place, in another format. From take_over_dumps() on the library's thread writes nothing. next_dump()
// waits until a record is wanted, and gives the path. The record counts as written from dump_written() on. False: no communicator is watched any
// more.
void take_over_dumps() noexcept;
bool next_dump(std::string &path);
std::string dump_records();  // what the library's thread would write: JSON
void dump_written() noexcept;
// Waits until the records that are wanted are written, for at most `seconds`.
void settle_dumps(double seconds) noexcept;

}  // namespace isthmus::observe
