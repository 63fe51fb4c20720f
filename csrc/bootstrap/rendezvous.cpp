// The kinds of exchange: by TCP at an address, and by a unique id. And the job key.
#include "bootstrap/rendezvous.hpp"

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>

#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "net/siphash.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr double kBindSeconds = 5;  // the port may still belong to the attempt before this one, which is just ending
constexpr size_t kMaxPendingIds = 256;

// Listeners of unique ids that no rank 0 has taken yet.
struct PendingIds {
  Mutex mutex;
  std::map<Bytes16, std::vector<UniqueFd>> by_key ISTHMUS_GUARDED_BY(mutex);
};
PerProcess<PendingIds> the_pending;

struct ProcessId {
  Mutex mutex;
  std::optional<Bytes16> id ISTHMUS_GUARDED_BY(mutex);  // constant once made
};
PerProcess<ProcessId> the_process;

// Somebody listens at our address. If the listener is another rank 0 of this job, the two learn of each other in the rendezvous.
void meet_other_root(const std::string &address, int world, const Bytes16 &key, Deadline deadline) {
  try {
    client_exchange({address}, 0, world, key)->all_gather({}, deadline);
  } catch (const Error &e) {
    if (e.code() == Code::Mismatch || e.code() == Code::Interrupted) throw;
  }
}

Bytes16 hashed(const Bytes16 &label, std::span<const std::string> parts) {
  net::ByteVector all;
  for (const std::string &p : parts) net::Writer(all).number(uint64_t{p.size()}).bytes(net::as_bytes(p));
  return net::siphash128(label, all);
}

class Lone final : public Exchange {
 public:
  std::vector<Blob> all_gather(const Blob &mine, Deadline) override {
    check_blob(mine);
    return {mine};
  }
};

}  // namespace

int listen_all(const std::vector<net::Address> &addresses, std::vector<UniqueFd> &out) {
  int error = 0;
  for (const net::Address &a : addresses) {
    UniqueFd fd;
    const int e = net::try_listen_tcp(a, fd);
    if (e == 0) out.push_back(std::move(fd));
    if (e == EADDRINUSE) {
      out.clear();
      return e;
    }
    if (e != 0) error = e;
  }
  return out.empty() ? error : 0;
}

std::vector<UniqueFd> listen_reachable(const Settings &settings, const char *what) {
  const PortRange ports = settings.ports(Setting::Ports);
  std::vector<UniqueFd> out;
  int error = 0;
  for (const net::Address &a : reachable_addresses(settings.text(Setting::Interface))) {
    UniqueFd fd;
    const int e = net::try_listen_tcp(a, ports, 0, fd);
    if (e == EADDRINUSE && !ports.any() && out.empty()) fail(Code::Resource, "{}: {}", what, net::used_up_text(ports, a));
    if (e == 0) out.push_back(std::move(fd));
    else error = e;
  }
  if (out.empty())
    fail(system_code(error), "{}; set ISTHMUS_INTERFACE", system_text(formatted("{}: cannot listen", what).c_str(), error));
  return out;
}

std::vector<net::Address> reachable_addresses(const std::string &interface) {
  auto addresses = net::local_addresses(interface, "");
  std::erase_if(addresses, [](const net::Address &a) { return a.link_local() && a.family() == AF_INET6; });
  return addresses;
}

const Bytes16 &rendezvous_process() noexcept {
  ProcessId &own = *the_process;
  const Lock lock(own.mutex);
  if (!own.id) own.id = net::random16();
  return *own.id;
}

std::unique_ptr<Exchange> lone_exchange() { return std::make_unique<Lone>(); }

void check_rank(int rank, int world) {
  if (world < 1) fail(Code::Argument, "world size {}: it must be at least 1", world);
  if (rank < 0 || rank >= world) fail(Code::Argument, "rank {} is outside 0 to {} (world size {})", rank, world - 1, world);
}

void check_blob(const Blob &mine) {
  if (mine.size() > kMaxBlob)
    fail(Code::Argument, "a blob of {} bytes in the rendezvous; at most {}", mine.size(), kMaxBlob);
}

std::unique_ptr<Exchange> tcp_exchange(const std::string &address, int rank, int world, const Bytes16 &key,
                                       const Settings &settings, Deadline deadline, const Bytes16 &job) {
  check_rank(rank, world);
  const net::HostPort hp = net::split_host_port(address);
  if (world == 1) return lone_exchange();
  if (rank != 0) return client_exchange({address}, rank, world, key, {}, job);

  std::vector<UniqueFd> listeners;
  const Deadline bind_until = Deadline::at_ns(std::min(deadline.ns(), Deadline(kBindSeconds).ns()));
  auto addresses = net::resolve(hp.host, hp.port);
  std::string here = address;
  for (;;) {
    int error = listen_all(addresses, listeners);
    const std::string &interface = settings.text(Setting::Interface);
    // The name may lead here by a translation of addresses that this host does not see.
    if (error == EADDRNOTAVAIL && !interface.empty()) {
      addresses = net::local_addresses(interface, "");
      for (net::Address &a : addresses) a = a.with_port(hp.port);
      here = addresses.front().text();
      error = listen_all(addresses, listeners);
    }
    if (error == 0) return root_exchange(std::move(listeners), address, world, key, job);
    if (error == EADDRNOTAVAIL)
      fail(Code::Config,
           "rank 0: {} is not an address of this host; rank 0 must run where the address points, or set ISTHMUS_INTERFACE "
           "to the interface that its traffic reaches",
           address);
    if (error != EADDRINUSE)
      fail(system_code(error), "rank 0: {}", system_text(formatted("listening at {}", address).c_str(), error));
    meet_other_root(here, world, key, Deadline::at_ns(std::min(bind_until.ns(), Deadline(1.0).ns())));
    if (bind_until.passed())
      fail(Code::System, "rank 0: the address {} is in use by another program or job; choose another port{}", here,
           settings.ports(Setting::Ports).has(hp.port) ? ", or ISTHMUS_PORTS without it" : "");
    net::sleep_until(Deadline::at_ns(std::min(bind_until.ns(), Deadline(0.05).ns())));
  }
}

void create_unique_id(const Settings &settings, std::span<std::byte, 128> id) {
  std::vector<UniqueFd> listeners = listen_reachable(settings, "unique id");
  if (listeners.size() > kMaxIdAddresses) listeners.erase(listeners.begin() + kMaxIdAddresses, listeners.end());
  UniqueId u;
  u.key = net::random16();
  for (const UniqueFd &fd : listeners) u.addresses.push_back(net::local_address(fd.get()).text());
  pack_unique_id(u, id);
  PendingIds &pending = *the_pending;
  const Lock lock(pending.mutex);
  if (pending.by_key.size() >= kMaxPendingIds)
    fail(Code::Resource, "{} unique ids were created and not used; create one for each init", kMaxPendingIds);
  pending.by_key.emplace(u.key, std::move(listeners));
}

std::unique_ptr<Exchange> id_exchange(std::span<const std::byte, 128> id, int rank, int world, const Settings &, Deadline) {
  check_rank(rank, world);
  UniqueId u = unpack_unique_id(id);
  std::vector<UniqueFd> listeners;
  if (rank == 0) {
    PendingIds &pending = *the_pending;
    const Lock lock(pending.mutex);
    const auto at = pending.by_key.find(u.key);
    if (at == pending.by_key.end())
      fail(Code::Argument,
           "this unique id was created in another process (one that this was forked from is another), or was used before: "
           "rank 0 must run in the process that created it, and each init needs its own");
    listeners = std::move(at->second);
    pending.by_key.erase(at);
  }
  if (world == 1) return lone_exchange();
  if (rank != 0) return client_exchange(std::move(u.addresses), rank, world, u.key);
  std::string where;
  for (const std::string &a : u.addresses) where += (where.empty() ? "" : ", ") + a;
  return root_exchange(std::move(listeners), where, world, u.key);
}

Bytes16 derive_key(const Settings &settings, std::span<const std::string> parts) {
  const std::string &text = settings.text(Setting::JobKey);
  if (!text.empty()) {
    Bytes16 key{};
    const auto digit = [](char c) {
      return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    };
    bool sound = text.size() == 32;
    for (size_t i = 0; sound && i < key.size(); ++i) {
      const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
      sound = high >= 0 && low >= 0;
      key[i] = static_cast<uint8_t>((high & 15) << 4 | (low & 15));
    }
    if (!sound)
      fail(Code::Config, "ISTHMUS_JOB_KEY has {} characters; expected 32 hex digits, as `openssl rand -hex 16` prints them",
           text.size());
    return key;
  }
  constexpr Bytes16 label{'i', 's', 't', 'h', 'm', 'u', 's', ' ', 'j', 'o', 'b', ' ', 'k', 'e', 'y', '1'};
  return hashed(label, parts);
}

Bytes16 job_name(std::span<const std::string> parts) {
  constexpr Bytes16 label{'i', 's', 't', 'h', 'm', 'u', 's', ' ', 'j', 'o', 'b', ' ', 'n', 'a', 'm', '1'};
  return hashed(label, parts);
}

}  // namespace isthmus::bootstrap
