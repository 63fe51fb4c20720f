#include "comm/launcher.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"

namespace isthmus::comm {
namespace {

std::string variable(const char *name) {
  const char *v = std::getenv(name);
  return v ? v : "";
}

int number(const char *name) {  // -1 where unset
  const std::string text = variable(name);
  if (text.empty()) return -1;
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0)
    fail(Code::Config, "{}={}: expected a number from 0 upward", name, text);
  return value;
}

// A port that all processes of one job compute alike, from what names the job. The port is of ISTHMUS_PORTS. Without that setting the port is
// above the ports of services and below the ephemeral ports.
int port_of(const Settings &s, const std::string &job) {
  uint32_t h = 2166136261u;
  for (const char c : job) h = (h ^ static_cast<uint8_t>(c)) * 16777619u;
  const PortRange ports = s.ports(Setting::Ports);
  return ports.any() ? 20000 + static_cast<int>(h % 12000) : ports.first + static_cast<int>(h % ports.count());
}

// Where rank 0 listens under torchrun: one port above MASTER_PORT, where the launcher's own store listens. Where the launcher was given MASTER_PORT by
// the system, the next one is of those that the system gives to any connection of any program; so it is another port then.
int port_beside(const Settings &s, int master) {
  constexpr int kFirstGiven = 32768;  // by Linux, where nobody has changed it
  return master < kFirstGiven ? master + 1 : port_of(s, "torchrun" + std::to_string(master));
}

// The first host of a Slurm node list: "node7", "a[3-5,9],b" -> "a3", "rack[1-2]_blade[3-4]" -> "rack1_blade3".
std::string first_host(std::string_view list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t close = std::min(list.find(']', i), list.size()), end = std::min(list.find_first_of("-,]", i), close);
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  return host;
}

}  // namespace

int local_rank() {
  for (const char *name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"})
    if (const int local = number(name); local >= 0) return local;
  return -1;
}

Launch from_environment(const Settings &s) {
  Launch l;
  if (number("RANK") >= 0 && number("WORLD_SIZE") >= 0) {
    l = {number("RANK"), number("WORLD_SIZE"), "", {}, "torchrun"};
    const std::string host = variable("MASTER_ADDR");
    const int port = number("MASTER_PORT");
    if (!host.empty() && port > 0)
      l.address = formatted("{}:{}", host.find(':') == std::string::npos ? host : "[" + host + "]", port_beside(s, port));
    l.key_parts = {"torchrun", variable("TORCHELASTIC_RUN_ID"), variable("TORCHELASTIC_RESTART_COUNT"), host,
                   std::to_string(port)};
  } else if (number("OMPI_COMM_WORLD_RANK") >= 0) {
    l = {number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_SIZE"), "", {}, "mpirun"};
    const std::string job = variable("PMIX_NAMESPACE");
    if (number("OMPI_COMM_WORLD_LOCAL_SIZE") == l.world) l.address = formatted("127.0.0.1:{}", port_of(s, "mpirun" + job));
    l.key_parts = {"mpirun", job};
  } else if (number("SLURM_PROCID") >= 0) {
    l = {number("SLURM_PROCID"), number("SLURM_NTASKS"), "", {}, "srun"};
    const std::string job = variable("SLURM_JOB_ID") + "." + variable("SLURM_STEP_ID");
    std::string nodes = variable("SLURM_STEP_NODELIST");
    if (nodes.empty()) nodes = variable("SLURM_JOB_NODELIST");
    if (!nodes.empty()) l.address = formatted("{}:{}", first_host(nodes), port_of(s, "srun" + job));
    l.key_parts = {"srun", job};
  }
  if (s.integer(Setting::Rank) >= 0) l.rank = static_cast<int>(s.integer(Setting::Rank));
  if (s.integer(Setting::WorldSize) >= 0) l.world = static_cast<int>(s.integer(Setting::WorldSize));
  if (!s.text(Setting::Address).empty()) {
    l.address = s.text(Setting::Address);
    if (l.key_parts.empty()) l.key_parts = {"address", l.address};
  }
  return l;
}

}  // namespace isthmus::comm
