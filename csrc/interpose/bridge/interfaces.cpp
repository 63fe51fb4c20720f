#include "interfaces.hpp"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <string_view>

namespace isthmus::bridge {
namespace {

struct InterfacePattern {
  bool excludes = false, whole = false;
  std::vector<std::string_view> words;

  bool means(std::string_view name) const {
    const bool named = std::any_of(words.begin(), words.end(),
                                   [&](std::string_view word) { return whole ? name == word : name.starts_with(word); });
    return named != excludes;
  }
};

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> words;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) words.push_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return words;
}

InterfacePattern vendors_pattern(std::string_view text) {
  InterfacePattern pattern;
  const auto take = [&](char sign) {
    const bool there = !text.empty() && text.front() == sign;
    if (there) text.remove_prefix(1);
    return there;
  };
  pattern.excludes = take('^');
  pattern.whole = take('=');
  pattern.words = split(text);
  return pattern;
}

}  // namespace

ChosenInterfaces chosen_interfaces(const std::string &family, const Environment &environment,
                                   const std::vector<std::string> &present) {
  const auto given = [&](const char *name) {
    const char *value = environment(name);
    return value && *value ? value : nullptr;
  };
  if (environment("ISTHMUS_INTERFACE")) return {};
  const char *const vendors = family == "hccl" ? "HCCL_SOCKET_IFNAME" : "NCCL_SOCKET_IFNAME", *const gloos =
                                                                                                  "GLOO_SOCKET_IFNAME";
  const char *const decides = given(vendors) ? vendors : given(gloos) ? gloos : nullptr;
  if (!decides) return {};
  const std::string_view text = given(decides);
  const InterfacePattern pattern = decides == vendors ? vendors_pattern(text) : InterfacePattern{false, true, split(text)};
  ChosenInterfaces chosen{std::string(decides) + "=" + std::string(text), {}};
  std::copy_if(present.begin(), present.end(), std::back_inserter(chosen.names),
               [&](const std::string &name) { return pattern.means(name) && (!pattern.excludes || name != "lo"); });
  return chosen;
}

std::vector<std::string> present_interfaces() {
  std::vector<std::string> names;
  ifaddrs *first = nullptr;
  if (::getifaddrs(&first) != 0) return names;
  for (const ifaddrs *i = first; i; i = i->ifa_next) {
    const bool up =
        i->ifa_addr && (i->ifa_flags & IFF_UP) && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
    if (up && std::find(names.begin(), names.end(), i->ifa_name) == names.end()) names.emplace_back(i->ifa_name);
  }
  ::freeifaddrs(first);
  return names;
}

}  // namespace isthmus::bridge
