// The identity of this host, and the text by which messages name a process.
#pragma once

#include <string>

#include "bootstrap/mesh.hpp"

namespace isthmus::bootstrap {

inline constexpr double kConnectSeconds = 3;  // how long a dialer tries one address

Bytes16 host_identity();  // boot id and network namespace, hashed
std::string host_name();
std::string process_text(const Endpoint &e);  // "process 4711 on host a (10.0.0.1:40001)"

}  // namespace isthmus::bootstrap
