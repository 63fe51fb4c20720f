// What identifies this host, and how messages name a process.
#pragma once

#include <string>

#include "bootstrap/mesh.hpp"

namespace isthmus::bootstrap {

inline constexpr double kConnectSeconds = 3;  // how long one address is tried

Bytes16 host_identity();  // boot id and network namespace, hashed
std::string host_name();
std::string process_text(const Endpoint &e);  // "process 4711 on host a (10.0.0.1:40001)"

}  // namespace isthmus::bootstrap
