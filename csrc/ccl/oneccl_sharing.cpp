#include "ccl/oneccl_sharing.hpp"

#include <string>
#include <string_view>

#include "base/error.hpp"

namespace isthmus::ccl::oneccl {
namespace {

constexpr const char *kWayOut =
    "set FI_PROVIDER=^shm for all ranks (oneCCL's traffic then goes by TCP), or ISTHMUS_CCL=none";

Sharing read(const IslandMember &member) {
  if (member.terms.size() != 1 || member.terms[0] > static_cast<std::byte>(Sharing::LeftOut))
    fail(Code::Mismatch, "oneccl: process {} on {} does not say whether it uses shared memory", member.pid, member.host);
  return static_cast<Sharing>(member.terms[0]);
}

size_t digits(int64_t pid) { return std::to_string(pid).size(); }

// Two members of one host whose process ids have unlike numbers of digits; null: there are none.
struct Unlike {
  const IslandMember *one = nullptr, *other = nullptr;
};
Unlike unlike(std::span<const IslandMember> island) {
  for (const IslandMember &a : island)
    for (const IslandMember &b : island)
      if (a.host == b.host && digits(a.pid) < digits(b.pid)) return {&a, &b};
  return {};
}

}  // namespace

Sharing sharing_of(const char *fi_provider) noexcept {
  if (!fi_provider) return Sharing::Undecided;
  if (!*fi_provider) return Sharing::Used;  // it leaves nothing out, and it is set
  const std::string_view text(fi_provider);
  const bool names = text.find("shm") != std::string_view::npos, excludes = text.front() == '^';
  return names != excludes ? Sharing::Used : Sharing::LeftOut;
}

std::vector<std::byte> terms_of(Sharing sharing) { return {static_cast<std::byte>(sharing)}; }

Sharing decide(std::span<const IslandMember> island) {
  const IslandMember *uses = nullptr, *leaves = nullptr;
  for (const IslandMember &member : island) {
    const Sharing sharing = read(member);
    if (sharing == Sharing::Used) uses = &member;
    if (sharing == Sharing::LeftOut) leaves = &member;
  }
  if (uses && leaves)
    fail(Code::Unsupported, "oneccl: process {} on {} uses oneCCL's shared memory and process {} on {} does not; {}",
         uses->pid, uses->host, leaves->pid, leaves->host, kWayOut);
  if (leaves) return Sharing::LeftOut;
  const auto [one, other] = unlike(island);
  if (!one) return Sharing::Used;
  if (uses)
    fail(Code::Unsupported,
         "oneccl: its shared memory does not work between processes {} and {} on {}, whose numbers are not of one length, "
         "and "
         "process {} uses it by now; {}",
         one->pid, other->pid, one->host, uses->pid, kWayOut);
  return Sharing::LeftOut;
}

}  // namespace isthmus::ccl::oneccl
