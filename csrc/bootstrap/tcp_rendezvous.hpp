// The two ends of a rendezvous over TCP: rank 0 serves, the others ask.
#pragma once

#include "base/handles.hpp"
#include "bootstrap/rendezvous.hpp"
#include "net/address.hpp"

namespace isthmus::bootstrap {

// `where` is the address as messages show it. `job`: what names the job (job_name()), or zero.
std::unique_ptr<Exchange> root_exchange(std::vector<UniqueFd> listeners, std::string where, int world, const Bytes16 &key,
                                        const Bytes16 &job = {});
// Stands for no rank: all of them are clients, and the first that comes says how many. Returns when they have left. This thread alone.
void serve_exchange(std::vector<UniqueFd> listeners, std::string where, const Bytes16 &key);
// `addresses`: "host:port", tried in order. `served`: by serve_exchange(), not by rank 0.
std::unique_ptr<Exchange> client_exchange(std::vector<std::string> addresses, int rank, int world, const Bytes16 &key,
                                          bool served = false, const Bytes16 &job = {});
// Of a world of one.
std::unique_ptr<Exchange> lone_exchange();

// Listens at every one of the addresses, each at its port; returns 0 or the errno that matters.
int listen_all(const std::vector<net::Address> &addresses, std::vector<UniqueFd> &out);
// At what others reach this host by, at ports that are free; ISTHMUS_INTERFACE and ISTHMUS_PORTS say which. `what` is for, in errors.
std::vector<UniqueFd> listen_reachable(const Settings &settings, const char *what);
// What others reach this host by; in no scope, for an id has none. `interface`: ISTHMUS_INTERFACE.
std::vector<net::Address> reachable_addresses(const std::string &interface);

void check_rank(int rank, int world);          // throws Error(Argument)
void check_blob(const Blob &mine);             // throws Error(Argument)
const Bytes16 &rendezvous_process() noexcept;  // this process in rendezvous handshakes; random

}  // namespace isthmus::bootstrap
