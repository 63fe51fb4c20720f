// Tickets. Any process makes one, and a thread of that process serves the ticket's exchange.
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/fork.hpp"
#include "base/log.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "net/siphash.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr uint32_t kTicketMagic = 0x544b5449;  // "ITKT"
constexpr size_t kBody = kTicketBytes - 8;     // behind the body stands a checksum
constexpr int kMostServed = 1024;              // unused tickets and exchanges that go on, together

std::atomic<int> served{0};
const InChild forgets_served([](void *) noexcept { served.store(0, std::memory_order_relaxed); });

uint64_t checksum(std::span<const std::byte> body) {
  const Bytes16 h = net::siphash128({}, body);
  return net::Reader(std::as_bytes(std::span(h))).number<uint64_t>();
}

// As many of the addresses as a ticket has room for, the best first.
std::vector<std::string> pack(const Bytes16 &key, const std::vector<net::Address> &addresses,
                              std::span<std::byte, kTicketBytes> out) {
  net::ByteVector list;
  std::vector<std::string> packed;
  constexpr size_t kRoom = kBody - 24;
  for (const net::Address &a : addresses) {
    const bool v4 = a.family() == AF_INET;
    if (list.size() + (v4 ? 7 : 19) > kRoom) continue;
    const auto *at = v4 ? reinterpret_cast<const std::byte *>(&reinterpret_cast<const sockaddr_in *>(a.raw())->sin_addr)
                        : reinterpret_cast<const std::byte *>(&reinterpret_cast<const sockaddr_in6 *>(a.raw())->sin6_addr);
    net::Writer(list).number(static_cast<uint8_t>(v4 ? 4 : 6)).number(a.port()).bytes({at, v4 ? size_t{4} : size_t{16}});
    packed.push_back(a.text());
  }
  net::ByteVector body;
  net::Writer(body)
      .number(kTicketMagic)
      .number(net::kProtocolVersion)
      .number(static_cast<uint16_t>(packed.size()))
      .bytes16(key)
      .bytes(list);
  body.resize(kBody);
  net::Writer(body).number(checksum(std::span(body).first(kBody)));
  std::copy(body.begin(), body.end(), out.begin());
  return packed;
}

UniqueId unpack(std::span<const std::byte, kTicketBytes> bytes) {
  net::Reader r(bytes.first(kBody));
  const bool magic = r.number<uint32_t>() == kTicketMagic;
  const uint16_t version = r.number<uint16_t>();
  if (magic && version != net::kProtocolVersion)
    fail(Code::Mismatch, "the ticket was made for {}", net::version_text(version, net::kProtocolVersion));
  const size_t count = r.number<uint16_t>();
  UniqueId id;
  id.key = r.bytes16();
  const bool sound =
      magic && count >= 1 && net::Reader(bytes.subspan(kBody)).number<uint64_t>() == checksum(bytes.first(kBody));
  for (size_t i = 0; sound && i < count && r.ok(); ++i) {
    const bool v4 = r.number<uint8_t>() == 4;
    const uint16_t port = r.number<uint16_t>();
    sockaddr_in four{};
    sockaddr_in6 six{};
    four.sin_family = AF_INET;
    six.sin6_family = AF_INET6;
    auto *at = v4 ? reinterpret_cast<uint8_t *>(&four.sin_addr) : reinterpret_cast<uint8_t *>(&six.sin6_addr);
    for (int b = 0; b < (v4 ? 4 : 16); ++b) at[b] = r.number<uint8_t>();
    const net::Address a = v4 ? net::Address(reinterpret_cast<const sockaddr *>(&four), sizeof four)
                              : net::Address(reinterpret_cast<const sockaddr *>(&six), sizeof six);
    id.addresses.push_back(a.with_port(port).text());
  }
  if (!sound || !r.ok())
    fail(Code::Argument, "this is not a ticket: pass the {} bytes of isthmus_meeting_create on, unchanged, to every rank",
         kTicketBytes);
  return id;
}

void serve(std::vector<UniqueFd> listeners, const std::string &where, const Bytes16 &key) noexcept {
  ::pthread_setname_np(::pthread_self(), "isthmus-meeting");
  try {
    serve_exchange(std::move(listeners), where, key);
  } catch (const std::exception &e) { ISTHMUS_WARN("the meeting at {} ended: {}", where, e.what()); }
  served.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

void create_ticket(const Settings &settings, std::span<std::byte, kTicketBytes> ticket) {
  std::vector<UniqueFd> listeners = listen_reachable(settings, "ticket");
  std::vector<net::Address> addresses;
  for (const UniqueFd &fd : listeners) addresses.push_back(net::local_address(fd.get()));
  const Bytes16 key = net::random16();
  const std::vector<std::string> packed = pack(key, addresses, ticket);
  std::string where;
  for (const std::string &a : packed) where += (where.empty() ? "" : ", ") + a;
  std::erase_if(listeners, [&](const UniqueFd &fd) {  // for which the ticket has no room
    return std::find(packed.begin(), packed.end(), net::local_address(fd.get()).text()) == packed.end();
  });
  if (served.fetch_add(1, std::memory_order_relaxed) >= kMostServed) {
    served.fetch_sub(1, std::memory_order_relaxed);
    fail(Code::Resource, "{} tickets were made and not used up; make one for each meeting, and use it", kMostServed);
  }
  // Signals are for the program's own threads, so this thread starts with all of them blocked.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([fds = std::move(listeners), where, key]() mutable { serve(std::move(fds), where, key); }).detach();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  } catch (const std::system_error &e) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    served.fetch_sub(1, std::memory_order_relaxed);
    fail(Code::Resource, "ticket: no thread to serve it: {}", e.what());
  }
}

std::unique_ptr<Exchange> ticket_exchange(std::span<const std::byte, kTicketBytes> ticket, int rank, int world) {
  check_rank(rank, world);
  UniqueId u = unpack(ticket);
  return client_exchange(std::move(u.addresses), rank, world, u.key, true);
}

}  // namespace isthmus::bootstrap
