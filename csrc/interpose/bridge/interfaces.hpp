// Which network interfaces the program's own library was told to use. Isthmus listens there, too.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace isthmus::bridge {

// The variable that decides, and the names of interfaces that are meant. Both empty: no variable decides.
struct ChosenInterfaces {
  std::string variable;            // "NCCL_SOCKET_IFNAME=^eth"
  std::vector<std::string> names;  // those of `present` that the variable means; empty: the variable means none of them
};
using Environment = std::function<const char *(const char *name)>;  // as std::getenv

// `family`: of the front door. `present`: the interfaces of this host, each once. The first variable that is set decides:
// 1. ISTHMUS_INTERFACE. The core reads that one, so the result is empty.
// 2. NCCL_SOCKET_IFNAME, or HCCL_SOCKET_IFNAME for HCCL: the beginnings of names, separated by commas. A ^ in front of all
//    means all interfaces but these, and a = in front of all (behind the ^) means whole names.
// 3. GLOO_SOCKET_IFNAME: whole names, separated by commas.
ChosenInterfaces chosen_interfaces(const std::string &family, const Environment &environment,
                                   const std::vector<std::string> &present);

std::vector<std::string> present_interfaces();  // of this host, those that are up

}  // namespace isthmus::bridge
