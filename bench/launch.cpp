#include "launch.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

#include "free_port.hpp"
#include "limit.hpp"

namespace isthmus::bench {
namespace {

constexpr int kGraceSeconds = 15;  // the library names a lost peer in far less time

std::string env(const char *name) {
  const char *value = std::getenv(name);
  return value ? value : "";
}

// The first host of a Slurm node list: "n[003-9,12],m1" is n003.
std::string first_host(const std::string &list) {
  const size_t open = list.find_first_of("[,");
  if (open == std::string::npos || list[open] == ',') return list.substr(0, open);
  return list.substr(0, open) + list.substr(open + 1, list.find_first_of("-,]", open) - open - 1);
}

// Every process of a job derives the same port from the job's name.
std::string derived_port(const std::string &job) {
  uint32_t h = 2166136261u;  // FNV-1a
  for (const char c : job) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  return std::to_string(20000 + h % 12000);
}

std::string random_key() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) throw std::runtime_error("no random bytes for the job key");
  std::string hex;
  char two[3];
  for (const unsigned char b : bytes) {
    std::snprintf(two, sizeof two, "%02x", b);
    hex += two;
  }
  return hex;
}

int status_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

bool bind_to_processor(int rank, int ranks) noexcept {
  cpu_set_t allowed, own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < ranks) return false;
  for (int cpu = 0, skip = rank; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && skip-- == 0) CPU_SET(cpu, &own);
  return sched_setaffinity(0, sizeof own, &own) == 0;
}

std::string free_loopback_address() { return "127.0.0.1:" + std::to_string(free_port()); }

Place find_launcher() {
  struct Names {
    const char *how, *rank, *size;
  };
  constexpr Names known[] = {{"the environment", "ISTHMUS_RANK", "ISTHMUS_WORLD_SIZE"},
                             {"torchrun", "RANK", "WORLD_SIZE"},
                             {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                             {"mpirun", "PMI_RANK", "PMI_SIZE"},
                             {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  Place place;
  for (const auto &names : known) {
    const std::string rank = env(names.rank), size = env(names.size);
    if (rank.empty() || size.empty()) continue;
    place.how = names.how;
    place.process = std::atoi(rank.c_str());
    place.processes = std::atoi(size.c_str());
    break;
  }
  if (place.how.empty() || place.processes < 2 || !env("ISTHMUS_ADDRESS").empty() || !env("MASTER_ADDR").empty())
    return place;
  const std::string nodes = env(env("SLURM_STEP_NODELIST").empty() ? "SLURM_JOB_NODELIST" : "SLURM_STEP_NODELIST");
  if (!env("OMPI_COMM_WORLD_LOCAL_SIZE").empty() && env("OMPI_COMM_WORLD_LOCAL_SIZE") == env("OMPI_COMM_WORLD_SIZE"))
    place.address = "127.0.0.1:" + derived_port(env("PMIX_NAMESPACE"));
  else if (!nodes.empty())
    place.address = first_host(nodes) + ":" + derived_port(env("SLURM_JOB_ID") + "." + env("SLURM_STEP_ID"));
  else
    throw std::runtime_error("started by " + place.how +
                             ", which does not say where rank 0 is: set ISTHMUS_ADDRESS=host:port of rank 0 "
                             "on all ranks (mpirun -x ISTHMUS_ADDRESS=...)");
  return place;
}

int run_processes(const Options &options, int processes) {
  sigset_t watched, previous;
  sigemptyset(&watched);
  for (const int s : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&watched, s);
  signal(SIGCHLD, SIG_DFL);  // with an inherited "ignore" the kernel would reap the ranks before this program does
  sigprocmask(SIG_BLOCK, &watched, &previous);
  const std::string address = free_loopback_address(), key = random_key();
  if (env("ISTHMUS_JOB_KEY").empty()) setenv("ISTHMUS_JOB_KEY", key.c_str(), 1);

  std::vector<pid_t> alive;
  for (int i = 0; i < processes; ++i) {
    std::vector<std::string> words = options.command;
    for (const std::string &extra :
         {std::string("--process"), std::to_string(i) + "/" + std::to_string(processes), std::string("--address"), address})
      words.push_back(extra);
    std::vector<char *> argv;
    for (auto &w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0) throw std::runtime_error(std::string("cannot start a rank: ") + std::strerror(errno));
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      sigprocmask(SIG_SETMASK, &previous, nullptr);
      if (getppid() != parent) _exit(1);
      execv("/proc/self/exe", argv.data());
      std::fprintf(stderr, "isthmus-bench: cannot start a rank: %s\n", std::strerror(errno));
      _exit(127);
    }
    alive.push_back(pid);
  }

  int result = 0;
  double deadline = 0;  // set once something failed
  while (!alive.empty()) {
    timespec wait{kGraceSeconds, 0};
    const int caught = sigtimedwait(&watched, nullptr, &wait);
    if (caught == SIGINT || caught == SIGTERM) {
      for (const pid_t pid : alive) kill(pid, SIGTERM);
      result = result ? result : 128 + caught;
    }
    for (size_t i = 0; i < alive.size();) {
      int status = 0;
      const pid_t ended = waitpid(alive[i], &status, WNOHANG);
      if (ended == 0 || (ended < 0 && errno == EINTR)) {
        ++i;
        continue;
      }
      if (status_of(status) != 0 && result == 0) {
        result = status_of(status);
        if (WIFSIGNALED(status))
          std::fprintf(stderr, "isthmus-bench: a rank (pid %d) was killed by signal %d\n", alive[i], WTERMSIG(status));
      }
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (result != 0 && deadline == 0) deadline = now_seconds() + kGraceSeconds;
    if (deadline != 0 && now_seconds() >= deadline)
      for (const pid_t pid : alive) kill(pid, SIGKILL);
  }
  return result;
}

}  // namespace isthmus::bench
