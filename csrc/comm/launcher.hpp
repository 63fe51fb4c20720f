// What the launcher said: rank, world size and rendezvous address. The words come from the variables of torchrun, mpirun and srun, or from
// Isthmus' own variables.
#pragma once

#include <string>
#include <vector>

#include "base/settings.hpp"

namespace isthmus::comm {

struct Launch {
  int rank = -1, world = -1;
  std::string address;  // host:port, or empty
  // What the launcher told every process of this attempt of this job, and no other process.
  std::vector<std::string> key_parts;
  std::string launcher;  // "torchrun", "mpirun", "srun", "" (none)
};
Launch from_environment(const Settings &settings);
// The rank's number among the ranks of its host, as the launcher says. -1: no launcher says the number.
int local_rank();

}  // namespace isthmus::comm
