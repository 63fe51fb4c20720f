// The two ends of a rendezvous over TCP: the root serves, and the clients ask.
#pragma once

#include <optional>

#include "base/handles.hpp"
#include "bootstrap/rendezvous.hpp"
#include "net/address.hpp"

namespace isthmus::bootstrap {

// `where` is the address as messages show it. `job`: what names the job (job_name()), or zero.
std::unique_ptr<Exchange> root_exchange(std::vector<UniqueFd> listeners, std::string where, int world, const Bytes16 &key,
                                        const Bytes16 &job = {});
// `addresses`: "host:port", tried side by side. `ticket`: the number of the ticket with which the client comes. Then the root is the server of
// the tickets of some process, and stands for no rank. Empty: the root is rank 0.
std::unique_ptr<Exchange> client_exchange(std::vector<std::string> addresses, int rank, int world, const Bytes16 &key,
                                          std::optional<uint32_t> ticket = {}, const Bytes16 &job = {});
// The exchange of a world of one.
std::unique_ptr<Exchange> lone_exchange();

// Listens at every one of the addresses, each at its port. Returns 0 or the errno that matters.
int listen_all(const std::vector<net::Address> &addresses, std::vector<UniqueFd> &out);
// Listens where others reach this host, at free ports. ISTHMUS_INTERFACE and ISTHMUS_PORTS say where. `what` says in errors what the
// listeners are for.
std::vector<UniqueFd> listen_reachable(const Settings &settings, const char *what);
// The addresses by which others reach this host. None has a scope, because an id has no place for one. `interface`: ISTHMUS_INTERFACE.
std::vector<net::Address> reachable_addresses(const std::string &interface);

void check_rank(int rank, int world);          // throws Error(Argument)
void check_blob(const Blob &mine);             // throws Error(Argument)
const Bytes16 &rendezvous_process() noexcept;  // names this process in rendezvous handshakes; random

}  // namespace isthmus::bootstrap
