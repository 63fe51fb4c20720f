// How the ranks begin: this program starts them as processes, or a launcher's environment names them.
#pragma once

#include <string>

#include "options.hpp"

namespace isthmus::bench {

struct Place {
  int process = 0, processes = 1;
  std::string address;  // empty: the library finds the rendezvous in the environment
  std::string how;      // "torchrun", "mpirun", ...; empty: no launcher
};

// This rank's place as torchrun, Open MPI, MPICH or Slurm says it in the environment. Throws std::runtime_error where the
// environment does not say enough.
Place find_launcher();

// Binds the calling thread to one of the processors that it may use, another one for each rank of this machine. False, and
// no binding, where there are fewer processors than ranks.
bool bind_to_processor(int rank, int ranks) noexcept;

// "127.0.0.1:port", as free_port() finds it.
std::string free_loopback_address();

// Starts this program `processes` times with --process i/N, and waits for all processes. When one process fails, the others
// get 15 s to notice, and are then killed. Returns the first failure's exit status, or 0.
int run_processes(const Options &options, int processes);

}  // namespace isthmus::bench
