// Writes the flight record of this process where ISTHMUS_DUMP says: when an operation of one of its ranks meets its deadline, and on
// SIGUSR1. A thread writes, while there is a communicator with that setting.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// From now on, until unwatch(). Nothing where its settings name no file.
void watch(const std::shared_ptr<comm::Communicator> &comm);
void unwatch(const comm::Communicator &comm) noexcept;
// For who writes in the library's place, in another format, from take_over_dumps() on: waits until a record is wanted and says where, until dump_written(). False:
// no communicator is watched any more.
void take_over_dumps() noexcept;
bool next_dump(std::string &path);
void dump_written() noexcept;
// Waits until what is wanted is written, at most so long.
void settle_dumps(double seconds) noexcept;

}  // namespace isthmus::observe
