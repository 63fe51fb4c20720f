// Tickets. Any process makes them, and one thread of that process serves the exchanges of all.
#include <memory>

#include "base/fork.hpp"
#include "base/lock.hpp"
#include "bootstrap/newcomers.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "bootstrap/ticket_server.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr size_t kMostServers = 64;  // sets of addresses for which one process makes tickets

// Where the tickets of one server are for. Interfaces and settings may be others for a later ticket.
struct TicketPlace {
  std::vector<std::string> hosts;
  uint16_t first_port = 0, last_port = 0;
  friend bool operator==(const TicketPlace &, const TicketPlace &) = default;
};

struct TicketServers {
  Mutex mutex;  // held while a server begins to listen
  std::vector<std::pair<TicketPlace, std::unique_ptr<TicketServer>>> all ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<TicketServers> the_ticket_servers;

TicketPlace place_of(const Settings &settings) {
  TicketPlace place;
  for (const net::Address &a : reachable_addresses(settings.text(Setting::Interface))) place.hosts.push_back(a.host());
  const PortRange ports = settings.ports(Setting::Ports);
  place.first_port = ports.first;
  place.last_port = ports.last;
  return place;
}

TicketServer &server_at(const TicketPlace &place, const Settings &settings) {
  TicketServers &servers = *the_ticket_servers;
  const Lock lock(servers.mutex);
  for (const auto &[where, server] : servers.all)
    if (where == place) return *server;
  if (servers.all.size() >= kMostServers)
    fail(Code::Resource,
         "ticket: this process made tickets for {} sets of addresses, and for no more; see ISTHMUS_INTERFACE", kMostServers);
  TicketPlace where = place;
  servers.all.reserve(kMostServers);  // nothing fails between the server's beginning and its place here
  auto server = std::make_unique<TicketServer>(listen_reachable(settings, "ticket"));
  servers.all.emplace_back(std::move(where), std::move(server));
  return *servers.all.back().second;
}

}  // namespace

void create_ticket(const Settings &settings, std::span<std::byte, kTicketBytes> ticket) {
  pack_ticket(server_at(place_of(settings), settings).make(), ticket);
}

void watch_listener(std::span<const std::byte, kTicketBytes> bytes, int listener) {
  const Ticket ticket = unpack_ticket(bytes);
  TicketServers &servers = *the_ticket_servers;
  const Lock lock(servers.mutex);
  for (const auto &[where, server] : servers.all)
    if (const auto status = server->watch(ticket, listener)) {
      if (!status->ok()) fail(status->code, "the listener of a ticket is not watched: {}", status->text);
      return;
    }
  fail(Code::Argument, "the listener of a ticket is not watched: this process did not make the ticket");
}

namespace {

// The server that made the ticket, in this process. Servers are never destroyed.
TicketServer *server_of(const Ticket &ticket, uint64_t &number) {
  TicketServers &servers = *the_ticket_servers;
  const Lock lock(servers.mutex);
  for (const auto &[where, server] : servers.all)
    if (const auto found = server->number_of(ticket)) {
      number = *found;
      return server.get();
    }
  return nullptr;
}

}  // namespace

Ticket create_entry(const Settings &settings, double seconds) {
  const Bytes16 job_key = entry_job_key(settings);
  return server_at(place_of(settings), settings).make_entry(job_key, now_ns() + seconds_to_ns(seconds));
}

bool made_here(const Ticket &ticket) {
  uint64_t number = 0;
  return server_of(ticket, number) != nullptr;
}

size_t waiting(const Ticket &ticket) {
  uint64_t number = 0;
  TicketServer *const server = server_of(ticket, number);
  return server ? server->rooms().waiting(number) : 0;
}

Newcomers::Newcomers(const Ticket &ticket, const std::vector<int> &slots, Deadline deadline, const Look &look) {
  uint64_t number = 0;
  TicketServer *const server = server_of(ticket, number);
  if (!server) fail(Code::Argument, "the ticket was not made by this process");
  all_ = server->rooms().take(number, slots, deadline, look);
}

std::unique_ptr<Exchange> ticket_exchange(std::span<const std::byte, kTicketBytes> bytes, int rank, int world) {
  check_rank(rank, world);
  const Ticket ticket = unpack_ticket(bytes);
  std::vector<std::string> addresses;
  for (const net::Address &a : ticket.addresses) addresses.push_back(a.text());
  return client_exchange(std::move(addresses), rank, world, ticket.key, ticket.number);
}

}  // namespace isthmus::bootstrap
