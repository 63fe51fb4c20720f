// How the ranks come to be: started here as processes, or found in a launcher's environment.
#pragma once

#include <string>

#include "options.hpp"

namespace isthmus::bench {

struct Place {
  int process = 0, processes = 1;
  std::string address;  // empty: the library finds the rendezvous in the environment
  std::string how;      // "torchrun", "mpirun", ...; empty: no launcher
};

// torchrun, Open MPI, MPICH or Slurm, from the environment. Throws std::runtime_error where it does not tell enough.
Place find_launcher();

// The calling thread keeps to one of the processors that it may use, a different one for each rank of this machine. False, and nothing
// done, where there are fewer than ranks.
bool bind_to_processor(int rank, int ranks) noexcept;

// "127.0.0.1:port" with a port that was free a moment ago.
std::string free_loopback_address();

// Starts this program `processes` times with --process i/N and waits for all. When one fails, the others get some seconds to
// notice and are then killed. Returns the first failure's exit status, or 0.
int run_processes(const Options &options, int processes);

}  // namespace isthmus::bench
