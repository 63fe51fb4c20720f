#include "observe/explain.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace isthmus::observe {
namespace {

using nlohmann::ordered_json;

constexpr const char *kWords =
    "  words   t-1: on the chunk of one turn before; slot: memory that ranks of a host share; post, wait for: a counter in "
    "it (docs/explain/plans.md)\n";

std::string time_text(double seconds) {
  return seconds < 1e-3 ? formatted("{:.1f} us", seconds * 1e6)
         : seconds < 1  ? formatted("{:.2f} ms", seconds * 1e3)
                        : formatted("{:.3f} s", seconds);
}

// "predicted": null, or the parts of the prediction. Adds the prediction's line to the text.
ordered_json predicted(const plan::Prediction &p, std::string &text) {
  if (p.none) return nullptr;
  if (!p.unknown.empty()) {
    text += formatted("  predicted unknown: {}\n", p.unknown);
    return nullptr;
  }
  text += formatted("  predicted {}{}: slowest of", time_text(p.seconds),
                    p.simulated ? " (by rates of a rehearsal, which are no measurement)" : "");
  text +=
      formatted(" this rank's thread {} (copies {}, reductions {}, links {})", time_text(p.copies + p.reductions + p.links),
                time_text(p.copies), time_text(p.reductions), time_text(p.links));
  if (p.bridge > 0) text += formatted(", the busiest bridge {}", time_text(p.bridge));
  if (p.device > 0) text += formatted(", its device's copies {}", time_text(p.device));
  text += formatted("; and {} that nothing overlaps. Not in it: waiting, latency, calls of libraries\n", time_text(p.fill));
  return {{"seconds", p.seconds}, {"copies", p.copies},      {"reductions", p.reductions},
          {"links", p.links},     {"bridge", p.bridge},      {"device", p.device},
          {"fill", p.fill},       {"simulated", p.simulated}};
}

// "last": null, or the last call that `is_one` takes and that ended well, if the flight recorder still has that call.
template <class F>
ordered_json last_of(comm::Communicator &comm, std::string &text, F is_one, const char *what) {
  auto &local = comm.local();
  const std::vector<Record> records = local.context().recorder().read();
  const Record *found = nullptr;
  for (const Record &x : records)
    if (x.communicator == local.id().serial && static_cast<Code>(x.result) == Code::Ok && is_one(x) &&
        (!found || x.submitted_ns > found->submitted_ns))
      found = &x;
  if (!found) {
    text += formatted("  last      unknown: the flight recorder has no such {} that ended well\n", what);
    return nullptr;
  }
  const double seconds = static_cast<double>(found->ended_ns - found->submitted_ns) * 1e-9;
  text += formatted("  last      {}, ", time_text(seconds));
  return {{"seconds", seconds}, {"sequence", found->sequence}, {"bytes", found->bytes}};
}

ordered_json last(comm::Communicator &comm, const plan::Request &r, std::string &text) {
  const bool barrier = r.collective == Collective::Barrier, varying = is_varying(r.collective);
  auto out = last_of(
      comm, text,
      [&](const Record &x) {
        return x.collective == static_cast<uint8_t>(r.collective) &&
               (barrier || (x.dtype == static_cast<uint8_t>(r.dtype) && (varying || x.bytes == r.bytes) &&
                            (!is_reduction(r.collective) || x.op == static_cast<uint8_t>(r.op)) &&
                            (!has_root(r.collective) || x.peer_or_root == r.root)));
      },
      "call");
  if (!out.is_null())
    text += formatted("call {} on this rank, from its submission to its end{}\n", out["sequence"].get<uint64_t>(),
                      varying ? formatted(", largest block {} bytes", out["bytes"].get<uint64_t>()) : "");
  return out;
}

// Which way messages go between this rank and `peer`.
struct Way {
  std::string link;  // "shared memory", "TCP"
  std::string how;   // for people
  const char *path;  // for programs
  uint64_t parts = 1, part = 0;
  bool slot = false;
};

// Whether a message of so many bytes with tag 0 lies in a receive slot on its way, as far as this rank knows. Where no slot is free at the time,
// the message goes by the link.
bool would_take_slot(rank::Rank &local, bool send, int peer, uint64_t bytes) {
  const messages::PartSizes &sizes = local.messages().sizes();
  if (sizes.bytes() == 0 || !sizes.take_slot(0, std::min(bytes, sizes.bytes()))) return false;
  return send ? local.messages().sends().reaches(peer) : local.messages().slots().written_by(peer);
}

Way way_of(comm::Communicator &comm, bool send, int peer, DType dtype, uint64_t bytes) {
  rank::Rank &local = comm.local();
  const engine::PeerRank &p = local.peers()[static_cast<size_t>(peer)];
  Way way;
  way.link = peer == local.id().rank ? "this rank's memory" : p.mail ? "shared memory" : "TCP";
  const uint64_t part = local.messages().sizes().of(dtype);
  way.part = part != 0 && bytes > part ? part : bytes;
  way.parts = way.part != 0 ? (bytes + way.part - 1) / way.part : 1;
  way.slot = would_take_slot(local, send, peer, bytes);
  if (way.slot) {
    way.path = "slot";
    way.how = "in receive slots, where the sender's device writes it";
  } else if (bytes <= messages::UnexpectedMessages::kData) {
    way.path = "at once";
    way.how = "sent at once, put aside where no receive waits for it yet";
  } else {
    way.path = "asked for";
    way.how = "announced, and sent when the receive is there";
  }
  return way;
}

// The time of a message: all parts through the slowest of the ways that they pass, and one part through each of the other ways.
ordered_json predicted_message(const topology::Topology &t, int from, int to, const Way &way, uint64_t bytes, bool memory,
                               std::string &text) {
  using topology::Rate;
  const auto unknown = [&](const std::string &why) {
    text += formatted("  predicted unknown: {}\n", why);
    return ordered_json(nullptr);
  };
  const auto &sender = t.ranks[static_cast<size_t>(from)], &receiver = t.ranks[static_cast<size_t>(to)];
  if (t.flat && memory && !(sender.rates[Rate::Memory] > 0 && receiver.rates[Rate::Memory] > 0)) return nullptr;
  if (bytes <= messages::UnexpectedMessages::kData)
    return unknown("what is small is a matter of latency, which no profile holds");
  const struct {
    const char *name;
    int rank;
    const topology::RankInfo &info;
    Rate rate;
    bool used;
  } stages[] = {{"out", from, sender, Rate::DeviceToHost, sender.device != "host"},
                {"link", from, sender, memory ? Rate::Memory : Rate::Tcp, !way.slot},
                {"link", to, receiver, memory ? Rate::Memory : Rate::Tcp, !way.slot},
                {"in", to, receiver, Rate::HostToDevice, receiver.device != "host"}};
  ordered_json out{{"seconds", 0.0}, {"out", 0.0}, {"link", 0.0}, {"in", 0.0}, {"simulated", false}};
  double most = 0, sum = 0;
  for (const auto &s : stages) {
    if (!s.used) continue;
    const double rate = s.info.rates[s.rate];
    if (!(rate > 0))
      return unknown(
          formatted("rank {} has no profile with the rates of its part (isthmus tune makes one for ISTHMUS_PROFILE)",
                    t.number(s.rank)));
    out[s.name] = std::max(out[s.name].get<double>(), static_cast<double>(bytes) / rate);
    if (s.info.rates.simulated) out["simulated"] = true;
  }
  for (const char *name : {"out", "link", "in"}) {
    most = std::max(most, out[name].get<double>());
    sum += out[name].get<double>();
  }
  out["seconds"] = most + (sum - most) / static_cast<double>(way.parts);
  text += formatted("  predicted {}{}: ", time_text(out["seconds"]),
                    out["simulated"] ? " (by rates of a rehearsal, which are no measurement)" : "");
  text += formatted("out of the sender's device {}, link {}, into the receiver's {}. Not in it: waiting, latency\n",
                    time_text(out["out"]), time_text(out["link"]), time_text(out["in"]));
  return out;
}

}  // namespace

std::string explain_json(comm::Communicator &comm, const plan::Plan &plan, bool one_hop) {
  auto out = nlohmann::ordered_json::parse(plan::explain_json(plan, comm.topology()));
  out["path"] = one_hop ? "one hop" : "plan";
  if (one_hop)
    out["text"] = formatted(
        "small message: one hop. Every rank writes its contribution into its cell in shared memory and combines all cells "
        "itself{}; the result is that of this plan:\n{}",
        plan.request.device ? " (memory of the device goes through pinned memory)" : "", out.value("text", ""));
  std::string text = out.value("text", "");
  plan::Prediction prediction = plan::predict(plan, comm.topology());
  if (one_hop && prediction.unknown.empty())
    prediction.unknown = "what is small is a matter of latency, which no profile holds";
  out["predicted"] = predicted(prediction, text);
  out["last"] = last(comm, plan.request, text);
  if (!plan.host.empty() || !plan.device.empty()) text += kWords;
  out["text"] = std::move(text);
  return out.dump(2);
}

std::string explain_message_json(comm::Communicator &comm, Collective c, int peer, DType dtype, uint64_t bytes) {
  const bool send = c == Collective::Send;
  const char *name = collective_name(c);
  rank::Rank &local = comm.local();
  const int me = local.id().rank, world = local.id().world;
  if (peer < (send ? 0 : -1) || peer >= world)
    fail(Code::Argument, "explain: {}: peer {} is not a rank of '{}' (0 to {}{})", name, peer, comm.name(),
         comm.terms().numbering.slots() - 1, send ? "" : ", or -1 for any");
  const topology::Topology &t = comm.topology();
  const int number = t.number(me), their_number = t.number(peer);
  ordered_json out{{"collective", name}, {"dtype", dtype_name(dtype)}, {"rank", number},
                   {"world", world},     {"peer", their_number},       {"bytes", bytes},
                   {"flat", t.flat}};
  std::string text = formatted("{}, rank {} of {}, {} bytes of {} {} {}\n", name, number, world, bytes, dtype_name(dtype),
                               send ? "to" : "from", peer < 0 ? "any rank" : formatted("rank {}", their_number));
  if (peer < 0) {
    out["path"] = out["link"] = out["predicted"] = nullptr;
    text += "  path    that of the rank whose message comes first\n  predicted unknown: the sender is\n";
  } else {
    const Way way = way_of(comm, send, peer, dtype, bytes);
    out["path"] = way.path;
    out["link"] = way.link;
    out["parts"] = way.parts;
    out["part_bytes"] = way.part;
    text += formatted("  path    {}: {}{}\n", way.link, way.how,
                      way.parts > 1 ? formatted("; {} parts of up to {} bytes", way.parts, way.part) : "");
    const bool by_library = bytes != 0 && local.messages().library().with(peer);
    out["in_groups"] = by_library ? ordered_json(local.id().family) : ordered_json(nullptr);
    if (by_library)
      text += formatted("  groups  by {}, whole, of device memory with tag 0, where rank {} is in a group with it too\n",
                        local.id().family, their_number);
    const bool memory = peer == me || local.peers()[static_cast<size_t>(peer)].mail != nullptr;
    out["predicted"] = predicted_message(t, send ? me : peer, send ? peer : me, way, bytes, memory, text);
  }
  out["last"] = last_of(
      comm, text,
      [&](const Record &x) {
        return x.collective == static_cast<uint8_t>(c) && x.dtype == static_cast<uint8_t>(dtype) && x.bytes == bytes &&
               x.peer_or_root == peer;
      },
      "message");
  if (!out["last"].is_null()) {
    out["last"].erase("sequence");  // messages have no sequence number
    text += "from its submission to its end\n";
  }
  out["text"] = std::move(text);
  return out.dump(2);
}

}  // namespace isthmus::observe
