// The two ends of a rendezvous over TCP: rank 0 serves, the others ask.
#pragma once

#include "base/handles.hpp"
#include "bootstrap/rendezvous.hpp"

namespace isthmus::bootstrap {

// `where` is the address as messages show it.
std::unique_ptr<Exchange> root_exchange(std::vector<UniqueFd> listeners, std::string where, int world, const Bytes16 &key);
// `addresses`: "host:port", tried in order.
std::unique_ptr<Exchange> client_exchange(std::vector<std::string> addresses, int rank, int world, const Bytes16 &key);
// Of a world of one.
std::unique_ptr<Exchange> lone_exchange();

void check_rank(int rank, int world);          // throws Error(Argument)
void check_blob(const Blob &mine);             // throws Error(Argument)
const Bytes16 &rendezvous_process() noexcept;  // this process in rendezvous handshakes; random

}  // namespace isthmus::bootstrap
