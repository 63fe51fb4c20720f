// What the launcher said: rank, world size and rendezvous address from the variables of torchrun, mpirun and srun, or our own.
#pragma once

#include <string>
#include <vector>

#include "base/settings.hpp"

namespace isthmus::comm {

struct Launch {
  int rank = -1, world = -1;
  std::string address;                 // host:port, or empty
  std::vector<std::string> key_parts;  // what every process of this attempt of this job was told, and others were not
  std::string launcher;                // "torchrun", "mpirun", "srun", "" (none)
};
Launch from_environment(const Settings &settings);
// The rank's number among those of its host, as the launcher says it; -1 where none does.
int local_rank();

}  // namespace isthmus::comm
