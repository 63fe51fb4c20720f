#include "comm/join/offer.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "ccl/libraries.hpp"
#include "comm/join/vote.hpp"
#include "comm/launcher.hpp"
#include "comm/profile.hpp"
#include "device/runtimes.hpp"
#include "engine/mailbox.hpp"
#include "net/address.hpp"
#include "net/protocol.hpp"
#include "rank/rank.hpp"
#include "topology/profile.hpp"

namespace isthmus::comm::join {
namespace {

// For so long the operations of the epoch that ends have to end. A device's work that does not end by then leaves nothing to the next epoch.
constexpr int64_t kQuietNs = 500'000'000;

uint32_t random32() {
  const bootstrap::Bytes16 bytes = bootstrap::random_bytes16();
  uint32_t number;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

// What a rank's settings say of the leader exchange. -1: nothing.
int64_t given_leader_bytes(const Settings &settings) {
  const int64_t leader_bytes = settings.integer(Setting::LeaderBytes);
  return leader_bytes < 0 && settings.is_set(Setting::EagerBytes) ? settings.integer(Setting::EagerBytes) : leader_bytes;
}

// What is known of this rank without asking its device.
RankBlob describe(const Invitation &invitation) {
  const Settings &settings = invitation.settings;
  const bootstrap::Endpoint &self = invitation.context->mesh().self();
  RankBlob mine;
  mine.protocol = net::kProtocolVersion;
  mine.endpoint = self;
  mine.info.host = hex(self.host);
  mine.info.hostname = self.hostname;
  mine.info.island = settings.text(Setting::Island);
  mine.info.process = hex(self.process);
  mine.info.pid = ::getpid();
  mine.settings = settings.agreed_text();
  mine.name = invitation.name;
  mine.members = invitation.members;
  mine.leader_bytes = given_leader_bytes(settings);
  mine.number.slot = invitation.number();
  mine.number.slots = invitation.slots < 0 ? invitation.world : invitation.slots;
  mine.number.was = invitation.parent ? invitation.parent->info.slot : -1;
  mine.number.keeps = invitation.keeps;
  mine.epoch = random32();
  mine.key = invitation.parent ? invitation.parent->key : bootstrap::random_bytes16();
  return mine;
}

// Error(Config): the text names no device. Error(Unsupported): something is missing, and the error's text says what.
Device find_device(const Settings &settings) {
  const std::string &text = settings.text(Setting::Device);
  if (text == "host") return {};
  const std::string vendor = text.substr(0, text.find(':')), number = text.substr(std::min(vendor.size() + 1, text.size()));
  const bool digits = !number.empty() && number.size() < 6 && std::all_of(number.begin(), number.end(), ::isdigit);
  const std::vector<std::string> known = device::vendors();
  if (std::find(known.begin(), known.end(), vendor) == known.end() || (vendor.size() < text.size() && !digits)) {
    std::string names = "host";
    for (const std::string &name : known) names += ", " + name;
    fail(Code::Config, "ISTHMUS_DEVICE={}: must be {}, or one of these with :N, N from 0", text, names);
  }
  Device found{&device::open_runtime(vendor), 0};
  const int count = found.runtime->devices();
  found.number = digits ? std::stoi(number) : std::max(local_rank(), 0) % count;
  if (found.number >= count)
    fail(Code::Config, "ISTHMUS_DEVICE={}: this process sees {} device{} of that vendor (0 to {})", text, count,
         count == 1 ? "" : "s", count - 1);
  return found;
}

void open_device(const Invitation &invitation, const Device &device, topology::RankInfo &info) {
  if (device.host()) return;
  struct About {
    std::string name;
    int numa;
    device::Float8 float8;
  };
  const auto about = asked<About>(device, invitation.deadline, [context = invitation.context, on = device] {
    context->devices().begin(*on.runtime, on.number);
    return About{on.runtime->describe(on.number), on.runtime->numa(on.number), on.runtime->float8(on.number)};
  });
  info.device = device.text();
  info.maker = device.runtime->maker();
  info.device_name = about.name;
  info.numa = about.numa;
  info.fnuz = about.float8 == device::Float8::Fnuz;
}

// Takes what the profile says of this rank. Nothing, where the settings name no profile. Throws Error(Config). A part of a communicator takes
// what its parent has: the file may be gone by now, or be another file.
void read_rates(const Invitation &invitation, topology::RankInfo &info) {
  if (invitation.parent) {
    info.rates = invitation.parent->info.rates;
    info.leader_bytes = invitation.parent->info.leader_bytes;
    return;
  }
  const std::string &path = invitation.settings.text(Setting::Profile);
  if (path.empty()) return;
  const topology::Profile profile = topology::parse_profile(read_profile(path), path);
  if (profile.host != info.hostname)
    ISTHMUS_WARN("ISTHMUS_PROFILE={}: it was measured on {}, and this is {}", path, profile.host, info.hostname);
  info.rates = topology::rates_of(profile, info.device);
  info.leader_bytes = profile.leader_bytes;
}

// The library that the settings ask for, or null. Error(Unsupported): something is missing, and the error's text says what.
std::shared_ptr<ccl::Library> open_library(const Settings &settings, const bootstrap::Endpoint &self, const Device &device) {
  const std::string &wanted = settings.text(Setting::Ccl), &path = settings.text(Setting::CclLibrary);
  if (wanted == "none" || (wanted == "auto" && device.host())) return nullptr;
  if (!device.host()) {
    const std::string vendor = device.runtime->vendor(), family = wanted == "auto" ? ccl::family_for(vendor) : wanted;
    if (family.empty()) return nullptr;
    if (ccl::vendor_of(family) != vendor)
      fail(Code::Config, "ISTHMUS_CCL={} does not serve ranks on {} (ISTHMUS_DEVICE)", wanted, device.text());
    try {
      return ccl::open_library(family, path, "");
    } catch (const Error &e) {
      if (wanted != "auto" || !path.empty()) throw;
      ISTHMUS_WARN("{}; this rank goes on without a library", e.text());
      return nullptr;
    }
  }
  if (ccl::vendor_of(wanted) != "host")
    fail(Code::Config, "ISTHMUS_CCL={} serves ranks with a device, and this one works on the host: set ISTHMUS_DEVICE",
         wanted);
  // The library's connections take the same network interface as Isthmus' connections.
  return ccl::open_library(wanted, path, self.tcp.empty() ? std::string() : net::interface_of(self.tcp.front()));
}

void describe_library(const ccl::Library &library, topology::RankInfo &info) {
  if (const Status s = library.usable(); !s.ok()) throw Error(s.code, s.text);
  info.ccl = library.family();
  info.ccl_version = library.version();
  info.ccl_table = ccl::table_of(library);
}

}  // namespace

uint64_t mailbox_bytes(const Invitation &invitation) {
  return engine::Mailbox::bytes(static_cast<uint64_t>(invitation.settings.integer(Setting::EagerBytes)), invitation.world);
}

Offer make_offer(const Invitation &invitation) {
  const auto &context = invitation.context;
  context->ranks().sweep();
  Offer offer;
  RankBlob &mine = offer.blob = describe(invitation);
  if (rank::Rank *const ends = invitation.parent ? invitation.parent->ends : nullptr) {
    offer.estate = ends->succession().estate(std::min(now_ns() + kQuietNs, invitation.deadline.ns()));
    mine.before = ends->id().rank;
    mine.quiet = offer.estate.quiet;
    if (offer.estate.library.communicator) mine.library = offer.estate.library.place;
  }
  mine.index = context->ranks().reserve();
  offer.index = Rollback([context, index = mine.index] { context->ranks().release(index); });
  Attempts attempt(invitation);
  attempt([&] {
    if (invitation.settings.text(Setting::Bridge) == "ucx") mine.ucx = context->links().ucx_address();
  });
  attempt([&] {
    context->ranks().sweep();
    mine.mailbox = context->arena().allocate_mailbox(mailbox_bytes(invitation));
    offer.mailbox = Rollback([context, at = mine.mailbox] { context->arena().free_mailbox(at); });
  });
  attempt([&] {
    offer.device = find_device(invitation.settings);
    open_device(invitation, offer.device, mine.info);
    read_rates(invitation, mine.info);
    offer.library = open_library(invitation.settings, mine.endpoint, offer.device);
    if (!offer.library) return;
    describe_library(*offer.library, mine.info);
    mine.library_terms = offer.library->terms();
  });
  mine.trouble = attempt.trouble();
  return offer;
}

}  // namespace isthmus::comm::join
