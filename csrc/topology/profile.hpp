// The profile of a host: what `isthmus tune` measured there, as JSON. Pure: whoever has the text calls it.
//
//   {"schema": 1, "isthmus": "0.1.0", "host": "node-a", "date": "2026-01-31T12:00:00Z", "simulated": false,
//    "entries": [{"name": "tcp_loopback", "unit": "bytes/s", "median": 3.1e9, "min": 2.9e9, "max": 3.2e9, "repetitions": 9}, ...],
//    "star": {"tcp": {"bytes": 32768, "min": 16384, "max": 65536, "repetitions": 9}, "memory": {...}}}
//
// "star" is the leader exchange. The member may be absent, and so may either member of it: no fleet was measured with such a bridge.
// Members that are not named here are for people.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "topology/rates.hpp"

namespace isthmus::topology {

inline constexpr int kProfileSchema = 1;
inline constexpr size_t kMostProfileBytes = 1 << 20, kMostProfileEntries = 4096;

struct Profile {
  std::string host, date;                 // where and when it was made
  bool simulated = false;                 // in a rehearsal
  std::map<std::string, double> medians;  // by name; bytes a second
  LeaderBytes leader_bytes;
};

// Throws Error(Config) that names `path`, the place in the text and what was expected there. Bounded: text of at most
// kMostProfileBytes and kMostProfileEntries, nested no deeper than a profile is.
Profile parse_profile(std::string_view text, std::string_view path);

// Those of a rank that works on `device` ("host", "cuda:0"); 0 what the profile does not have.
Rates rates_of(const Profile &profile, std::string_view device);

}  // namespace isthmus::topology
