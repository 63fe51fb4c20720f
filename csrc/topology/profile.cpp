#include "topology/profile.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace isthmus::topology {
namespace {

using nlohmann::json;

constexpr int kMostDepth = 4;  // the profile, its entries, an entry; and one more, for what later versions may add
constexpr size_t kMostText = 256;
constexpr const char *kTop = "the profile";

std::string below(const std::string &place, const char *name) { return place == kTop ? name : place + "." + name; }

// What the parser says, which may quote any part of the text.
std::string quoted(const char *what) {
  std::string out = std::string(what).substr(0, 160);
  for (char &c : out) c = c >= ' ' && c <= '~' ? c : '?';
  return out;
}

class ProfileReader {
 public:
  explicit ProfileReader(std::string_view path) : path_(path) {}

  template <class... A>
  [[noreturn]] void broken(const std::string &place, fmt::format_string<A...> expected, A &&...values) const {
    fail(Code::Config, "ISTHMUS_PROFILE={}: {}: {}. `isthmus tune --output FILE` writes a profile", path_, place,
         formatted(expected, std::forward<A>(values)...));
  }

  json parse(std::string_view text) const {
    if (text.size() > kMostProfileBytes)
      broken(formatted("{} bytes", text.size()), "a profile has at most {}", kMostProfileBytes);
    try {
      return json::parse(text.begin(), text.end(), [this](int depth, json::parse_event_t, const json &) {
        if (depth > kMostDepth) broken("the text", "lists within lists, {} deep; expected at most {}", depth, kMostDepth);
        return true;
      });
    } catch (const json::parse_error &e) {
      broken(formatted("byte {} of {}", e.byte, text.size()), "expected JSON; {}", quoted(e.what()));
    } catch (const json::exception &e) { broken("the text", "expected JSON; {}", quoted(e.what())); }
  }

  const json &member(const json &of, const std::string &place, const char *name) const {
    const auto it = of.find(name);
    if (it == of.end()) broken(place, "has no \"{}\"", name);
    return *it;
  }
  std::string text(const json &of, const std::string &place, const char *name) const {
    const json &value = member(of, place, name);
    if (!value.is_string() || value.get_ref<const std::string &>().size() > kMostText)
      broken(below(place, name), "expected a text of at most {} bytes", kMostText);
    return value.get<std::string>();
  }
  double rate(const json &of, const std::string &place, const char *name) const {
    const json &value = member(of, place, name);
    if (!value.is_number() || !sound_rate(value.get<double>()))
      broken(below(place, name), "expected bytes a second, a number from {:g} to {:g}", kLeastRate, kMostRate);
    return value.get<double>();
  }
  // Bytes of the leader exchange in a fleet of `link`; -1 where there are none.
  int64_t leader_bytes(const json &all, const char *link) const {
    const auto found = all.find("star");
    if (found == all.end()) return -1;
    if (!found->is_object()) broken("star", "expected an object of JSON");
    const auto entry = found->find(link);
    if (entry == found->end()) return -1;
    const std::string place = formatted("star.{}", link);
    if (!entry->is_object()) broken(place, "expected an object of JSON");
    const auto bytes = [&](const char *name) {
      const json &value = member(*entry, place, name);
      if (!value.is_number_integer() || value < 0 || value > kMostLeaderBytes)
        broken(below(place, name), "expected bytes, a whole number from 0 to {}", kMostLeaderBytes);
      return value.get<int64_t>();
    };
    const int64_t median = bytes("bytes");
    if (bytes("min") > median || median > bytes("max")) broken(place, "expected min <= bytes <= max");
    repetitions(*entry, place);
    return median;
  }
  void repetitions(const json &of, const std::string &place) const {
    const json &value = member(of, place, "repetitions");
    if (!value.is_number_integer() || value < 1) broken(below(place, "repetitions"), "expected a whole number above 0");
  }

 private:
  std::string_view path_;
};

}  // namespace

Profile parse_profile(std::string_view text, std::string_view path) {
  const ProfileReader reader(path);
  const json all = reader.parse(text);
  const std::string top = kTop;
  if (!all.is_object()) reader.broken(top, "expected an object of JSON");
  const json &schema = reader.member(all, top, "schema");
  if (!schema.is_number_integer() || schema != kProfileSchema)
    reader.broken("schema", "this version of Isthmus reads profiles of schema {}; make it anew", kProfileSchema);
  Profile out;
  out.host = reader.text(all, top, "host");
  out.date = reader.text(all, top, "date");
  const json &simulated = reader.member(all, top, "simulated");
  if (!simulated.is_boolean()) reader.broken("simulated", "expected true or false");
  out.simulated = simulated.get<bool>();
  const json &entries = reader.member(all, top, "entries");
  if (!entries.is_array() || entries.size() > kMostProfileEntries)
    reader.broken("entries", "expected a list of at most {}", kMostProfileEntries);
  for (size_t i = 0; i < entries.size(); ++i) {
    const json &entry = entries[i];
    const std::string place = formatted("entries[{}]", i);
    if (!entry.is_object()) reader.broken(place, "expected an object of JSON");
    const std::string name = reader.text(entry, place, "name");
    if (name.empty()) reader.broken(place + ".name", "expected the name of what was measured");
    if (reader.text(entry, place, "unit") != "bytes/s") reader.broken(place + ".unit", "expected \"bytes/s\"");
    const double median = reader.rate(entry, place, "median"), least = reader.rate(entry, place, "min"),
                 most = reader.rate(entry, place, "max");
    if (least > median || median > most) reader.broken(place, "expected min <= median <= max");
    reader.repetitions(entry, place);
    if (!out.medians.emplace(name, median).second) reader.broken(place + ".name", "'{}' is there twice", name);
  }
  out.leader_bytes = {reader.leader_bytes(all, "memory"), reader.leader_bytes(all, "tcp")};
  return out;
}

Rates rates_of(const Profile &profile, std::string_view device) {
  constexpr const char *kNames[] = {"memory_copy", "reduce_float32", "reduce_bfloat16", "shm_exchange", "tcp_loopback"};
  Rates out;
  const auto find = [&](Rate rate, const std::string &name) {
    if (const auto it = profile.medians.find(name); it != profile.medians.end()) out[rate] = it->second;
  };
  for (size_t i = 0; i < std::size(kNames); ++i) find(static_cast<Rate>(i), kNames[i]);
  if (device != "host") {
    find(Rate::DeviceToHost, std::string(device) + "/device_to_host");
    find(Rate::HostToDevice, std::string(device) + "/host_to_device");
  }
  out.simulated = profile.simulated;
  return out;
}

}  // namespace isthmus::topology
