// The reading form of a plan, as text and as JSON.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "plan/clusters.hpp"
#include "plan/plan.hpp"

namespace isthmus::plan {
namespace {

constexpr const char *kCounterNames[kCounters + kLocalCounters] = {"copied in", "reduced", "consumed", "spare",
                                                                   "staged",    "taken",   "ready"};

std::string size_text(uint64_t bytes) {
  if (bytes >= 10u << 20) return formatted("{:.0f} MiB", static_cast<double>(bytes) / (1 << 20));
  if (bytes >= 1u << 20) return formatted("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  if (bytes >= 1u << 10) return formatted("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
  return formatted("{} B", bytes);
}

std::string count_text(uint64_t count, const char *what) { return formatted("{} {}{}", count, what, count == 1 ? "" : "s"); }

std::string ranks_text(std::vector<int> ranks) {  // "0-3,7"
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string out;
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    out += formatted("{}{}", out.empty() ? "" : ",", ranks[i]);
    if (j > i) out += formatted("{}{}", j > i + 1 ? "-" : ",", ranks[j]);
    i = j + 1;
  }
  return out;
}

const char *memory_text(const Span &s) {
  switch (s.memory) {
    case Memory::Input: return "input";
    case Memory::Output: return "output";
    case Memory::Ring: return s.rank < 0 ? "own slot" : "slot";
    case Memory::Scratch: return "scratch";
    case Memory::Device: return "device scratch";
  }
  return "";
}

// " (0 times 2, 2 times 4)": which sources of a reduction are multiplied.
std::string weights_text(const Plan &p, const Step &s) {
  std::string out;
  for (uint32_t i = 0; i < s.sources; ++i)
    if (const uint32_t by = p.sources[s.source + i].weight; by != 1)
      out += formatted("{}{} times {}", out.empty() ? " (" : ", ", i, by);
  return out.empty() ? out : out + ")";
}

struct Volume {
  uint64_t moved = 0, reduced = 0, sent = 0, received = 0;
};

uint64_t wire_bytes(const Plan &p, const Step &s) {
  return s.extent.length * (s.partial ? accumulator_ratio(p.request.dtype) : 1);
}

bool moves_whole_blocks(const Plan &p) { return p.chunk == kWholeBlocks; }
// Of blocks whose size is that of a call.
bool unsized(const Plan &p, const Step &s) { return moves_whole_blocks(p) || s.extent.length >= kWholeBlocks; }

// Steps of one kind that follow each other are one phrase.
bool same_phrase(const Plan &p, const Step &a, const Step &b, bool together) {
  if (a.kind != b.kind || a.counter != b.counter || a.partial != b.partial || a.token != b.token || a.add != b.add)
    return false;
  if (a.when != b.when) return false;
  const bool many = together || a.when == When::PartChunk || unsized(p, a);
  if (a.kind == StepKind::Ccl && (a.call != b.call || a.when != b.when || !many)) return false;
  if (a.kind != StepKind::Move) return a.kind != StepKind::Post;
  return a.dst.memory == b.dst.memory && p.sources[a.source].memory == p.sources[b.source].memory;
}

std::string phrase(const Plan &p, const topology::Topology &t, const std::string &library, uint32_t from, uint32_t to,
                   bool together) {
  const Step &s = p.steps[from];
  std::vector<int> peers;  // by their numbers for people
  uint64_t bytes = 0;
  for (uint32_t i = from; i < to; ++i) {
    const Step &x = p.steps[i];
    bytes += x.kind == StepKind::Send || x.kind == StepKind::Recv ? wire_bytes(p, x) : x.extent.length;
    peers.push_back(t.number(x.kind == StepKind::Move ? p.sources[x.source].rank : x.peer));
  }
  const std::string amount = !unsized(p, s)  ? size_text(bytes)
                             : to - from > 1 ? formatted("{} blocks", to - from)
                                             : std::string("a block");
  const char *once = s.when == When::FirstChunk  ? " (once)"
                     : s.when == When::FullChunk ? " (full chunks)"
                     : s.when == When::PartChunk ? " (a shorter last chunk)"
                                                 : "";
  const char *what = s.token ? " (acknowledgement)" : s.partial ? " of partial results" : "";
  switch (s.kind) {
    case StepKind::Move: {
      const Span &source = p.sources[s.source];
      const std::string whose = source.memory == Memory::Ring && source.rank >= 0 ? "s of " + ranks_text(peers) : "";
      return formatted("{} {}, {}{} to {}{}", s.scaled ? "scale" : "copy", amount, memory_text(source), whose,
                       memory_text(s.dst), once);
    }
    case StepKind::Reduce:
      return formatted("reduce {} of {}{} to {}{}{}{}", amount, count_text(s.sources, "source"), weights_text(p, s),
                       memory_text(s.dst), s.has_copy ? std::string(" and ") + memory_text(s.copy) : "",
                       s.partial ? " as a partial result" : "",
                       s.groups ? formatted(", {} in order", count_text(s.groups, "group")) : "");
    case StepKind::Send: return formatted("send {}{} to {}", amount, what, ranks_text(peers));
    case StepKind::Recv: return formatted("receive {}{} from {}", amount, what, ranks_text(peers));
    case StepKind::Taken: return "wait until what was sent is taken";
    case StepKind::Post: return formatted("post {}", kCounterNames[s.counter]);
    case StepKind::Wait:
      if (s.counter >= kCounters) return formatted("wait for {}", kCounterNames[s.counter]);
      return s.add > 0 ? formatted("wait for {}: {}", ranks_text(peers), kCounterNames[s.counter])
                       : formatted("wait for {}: {} {} ago", ranks_text(peers), kCounterNames[s.counter],
                                   count_text(static_cast<uint64_t>(1 - s.add), "chunk"));
    case StepKind::Ccl: {
      if (s.call == IslandCall::AllToAllV)
        return formatted("{} {} of the group's blocks, whole{}", library, island_call_name(s.call), once);
      const bool rooted = s.call == IslandCall::Reduce || s.call == IslandCall::Broadcast;
      const bool paired = s.call == IslandCall::Send || s.call == IslandCall::Recv;
      return formatted("{} {} of {}{}{}{}", library, island_call_name(s.call), amount,
                       s.halvings                 ? formatted(" times 1/{}", 1u << s.halvings)
                       : s.op == RedOp::PremulSum ? std::string(" times the rank's factor")
                                                  : std::string(),
                       to - from > 1      ? formatted(", {} calls{}", to - from, together ? " together" : "")
                       : rooted || paired ? formatted(", {} {} of the group", rooted ? "root" : "peer", s.peer)
                                          : "",
                       once);
    }
  }
  return "";
}

std::vector<std::string> phrases(const Plan &p, const topology::Topology &t, const std::string &library,
                                 const Stage &stage) {
  std::vector<std::string> out;
  for (uint32_t i = stage.step; i < stage.step + stage.steps;) {
    uint32_t j = i + 1;
    while (j < stage.step + stage.steps && same_phrase(p, p.steps[i], p.steps[j], stage.together)) ++j;
    out.push_back(phrase(p, t, library, i, j, stage.together));
    i = j;
  }
  return out;
}

Volume volume_of(const Plan &p, const Stage &stage) {
  Volume v;
  for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
    const Step &s = p.steps[i];
    if (s.when == When::FirstChunk) continue;                             // inside the island
    if (s.kind == StepKind::Move && s.when == When::PartChunk) continue;  // what full chunks have in one copy
    switch (s.kind) {
      case StepKind::Move: v.moved += s.extent.length; break;
      case StepKind::Reduce: v.reduced += s.extent.length * s.sources; break;
      case StepKind::Send: v.sent += wire_bytes(p, s); break;
      case StepKind::Recv: v.received += wire_bytes(p, s); break;
      default: break;
    }
  }
  return v;
}

// The family of the library that serves this rank, or empty.
std::string library_of(const Plan &p, const topology::Topology &t) {
  return t.islands[static_cast<size_t>(t.island_of[static_cast<size_t>(p.rank)])].ccl;
}

// Of the plan's calls: where blocks stay in an island that its library serves, the plan's topology has no libraries.
std::string called_library(const Plan &p, const topology::Topology &planned, const topology::Topology &whole) {
  return library_of(p, inside_of(whole, p.rank, p.request).empty() ? planned : whole);
}

// Whether ranks read each other's slots on each of several hosts, whatever islands they are of.
bool meets_on_hosts(const Plan &p, const topology::Topology &t) {
  return by_hosts(t, p.request.collective) && !takes_leader_exchange(t, p.request);
}

std::string bridged_text(const Plan &p, const topology::Topology &t) {
  const std::string library = library_of(p, t);
  return formatted("{}: {} groups, mine has {}{}",
                   by_shared_slots(t, p.request.collective) ? "slots that all read"
                   : meets_on_hosts(p, t)                   ? "slots inside each host, TCP between hosts"
                   : t.bridge == topology::Bridge::Ucx      ? "bridged by UCX"
                                                            : "bridged by TCP",
                   t.islands.size(),
                   count_text(t.islands[static_cast<size_t>(t.island_of[static_cast<size_t>(p.rank)])].ranks.size(), "rank"),
                   library.empty() ? "" : ", served by " + library);
}

const char *from_name(LeaderBytesFrom from) {
  return from == LeaderBytesFrom::Setting ? "setting" : from == LeaderBytesFrom::Profile ? "profile" : "default";
}

bool rehearsed(const topology::Topology &t) {
  return std::any_of(t.ranks.begin(), t.ranks.end(), [](const auto &rank) { return rank.rates.simulated; });
}

// Which of its forms a message takes between islands, up to which size it has that one, and who said so.
std::string form_line(const Plan &p, const topology::Topology &t) {
  const Request &r = p.request;
  if (!has_leader_exchange(t, r.collective) || r.bytes == 0) return "";
  const char *says = r.small_from == LeaderBytesFrom::Setting   ? "set (ISTHMUS_LEADER_BYTES, ISTHMUS_EAGER_BYTES)"
                     : r.small_from == LeaderBytesFrom::Default ? "the default; no profile has it for all ranks"
                     : rehearsed(t)                             ? "by the profile of a rehearsal, which is no measurement"
                                                                : "measured (ISTHMUS_PROFILE)";
  if (takes_leader_exchange(t, r))
    return formatted("  form    leader exchange: whole, by one rank of each group, up to {}: {}\n", size_text(r.small_bytes),
                     says);
  const uint64_t most = most_one_way_bytes(t, r);
  if (takes_one_way(t, r))
    return formatted("  form    whole, by each group, one way{}: far apart (ISTHMUS_FAR_US)\n",
                     most == UINT64_MAX ? "" : ", up to " + size_text(most));
  if (most > r.small_bytes)
    return formatted("  form    pieces, as above {}: a way is worth no more bytes (ISTHMUS_FAR_US)\n", size_text(most));
  return formatted("  form    pieces, as above {}: {}\n", size_text(r.small_bytes), says);
}

// As what numbers of a sum cross between the groups, in the frames of such steps: partial sums of ranks of the host in the type that they are added
// in, and what a library has summed, a rank's own data and results in the type of the call. Slots hold nothing else than the type of the call.
std::vector<std::string> crossing(const Plan &p, const topology::Topology &t, StepKind kind) {
  std::vector<std::string> out;
  if (!is_reduction(p.request.collective) || t.flat || t.islands.size() < 2) return out;
  const DType type = p.request.dtype, wide = accumulator(type);
  const auto any = [&](bool partial) {
    return std::any_of(p.steps.begin(), p.steps.end(),
                       [&](const Step &s) { return s.kind == kind && !s.token && (s.partial && wide != type) == partial; });
  };
  if (any(true)) out.emplace_back(dtype_name(wide));
  if (any(false) || by_shared_slots(t, p.request.collective)) out.emplace_back(dtype_name(type));
  return out;
}

std::string crossing_line(const Plan &p, const topology::Topology &t) {
  std::string text;
  for (const auto kind : {StepKind::Send, StepKind::Recv}) {
    std::string types;
    for (const std::string &type : crossing(p, t, kind))
      types += formatted("{}{}{}", types.empty() ? "" : " and ", type,
                         type != dtype_name(p.request.dtype) ? " (partial sums)" : "");
    if (!types.empty())
      text += formatted("{}{} {}", text.empty() ? "" : ", ", kind == StepKind::Send ? "sends" : "receives", types);
  }
  return text.empty() ? text : formatted("  crosses {}\n", text);
}

std::string heading(const Plan &p, const topology::Topology &t, const topology::Topology &whole) {
  const Request &r = p.request;
  std::string text = formatted("{}, rank {} of {}", collective_name(r.collective), whole.number(p.rank), p.world);
  if (r.collective != Collective::Barrier)
    text += is_varying(r.collective) ? formatted(", {}, sizes by call", dtype_name(r.dtype))
                                     : formatted(", {} of {}{}", size_text(r.bytes), dtype_name(r.dtype),
                                                 is_reduction(r.collective) ? formatted(", {}", redop_name(r.op)) : "");
  if (has_root(r.collective)) text += formatted(", root {}", whole.number(r.root));
  const bool reaches = !p.device.empty() && p.slot_bytes > 0 && p.slots * p.slot_bytes <= r.reach &&
                       (!topology::has_libraries(t) || by_shared_slots(t, r.collective) || meets_on_hosts(p, t));
  const char *reached = !reaches                  ? ""
                        : topology::one_memory(t) ? ", and the device reaches all slots"
                                                  : ", and the device reaches the slots of its host";
  text += formatted(
      "\n  path    {}\n",
      t.flat ? formatted("flat: {}{}", p.world == 1 ? "a rank alone" : formatted("{} ranks share memory", p.world), reached)
      : t.islands.size() == 1 ? formatted("island: {} serves {}", library_of(p, t),
                                          p.world == 1 ? "the one rank" : formatted("all {} ranks", p.world))
                              : bridged_text(p, t) + reached);
  if (const std::vector<int> inside = inside_of(whole, p.rank, r); !inside.empty())
    text +=
        formatted("  inside  {} moves what stays among ranks {}\n", library_of(p, whole), ranks_text(whole.numbers(inside)));
  text += form_line(p, t) + crossing_line(p, t);
  text += moves_whole_blocks(p)      ? std::string("  chunks  none: whole blocks")
          : is_varying(r.collective) ? formatted("  chunks  of {}", size_text(p.chunk))
                                     : formatted("  chunks  {} of {}", p.chunks, size_text(p.chunk));
  if (p.paced) text += formatted(" (the slowest bridge carries {} in 1 ms)", size_text(r.paced_bytes));
  if (p.slot_bytes) text += formatted(", {} slot{} of {}", p.slots, p.slots == 1 ? "" : "s", size_text(p.slot_bytes));
  if (p.device_bytes) text += formatted(", {} on the device", size_text(p.device_bytes));
  if (p.scratch_stride) text += formatted(", {} of scratch", size_text(p.scratch_stride * std::max(p.slots, 1u)));
  return text + formatted("\n  digest  {:016x}\n", p.digest);
}

// What the plan costs this rank, and where a bridge is crossed what no plan can beat.
std::string cost_line(const Plan &p, const topology::Topology &t, const Volume &chunk) {
  if (moves_whole_blocks(p)) return "  cost    by the sizes of a call\n";
  const bool varying = is_varying(p.request.collective);
  const uint64_t n = varying ? 1 : p.chunks;
  std::string text =
      formatted("  cost    {}copies {}, reduces {}, sends {}", varying ? "a chunk: " : "", size_text(chunk.moved * n),
                size_text(chunk.reduced * n), size_text(varying ? chunk.sent : p.link_bytes));
  if (!t.flat && t.islands.size() > 1 && p.request.collective == Collective::AllReduce &&
      !by_shared_slots(t, p.request.collective) && !meets_on_hosts(p, t))
    text += formatted("; all links together at least {} ({} groups), time at least T* = {:.3g} x {} / rate",
                      size_text(2 * (t.islands.size() - 1) * p.request.bytes), t.islands.size(), bridge_time(t.weights),
                      size_text(p.request.bytes));
  return text + "\n";
}

}  // namespace

std::string explain(const Plan &plan, const topology::Topology &whole) {
  const topology::Topology t = planned_on(whole, plan.request);
  std::string text = heading(plan, t, whole);
  Volume total;
  if (plan.host.empty() && plan.device.empty()) text += "  nothing to do\n";
  const bool two_streams =
      plan.device.size() > 1 && std::any_of(plan.device.begin(), plan.device.end(), [](const Stage &s) { return s.beside; });
  for (const auto *list : {&plan.device, &plan.host}) {
    if (!plan.device.empty() && !list->empty())
      text += list == &plan.host ? "  host\n" : two_streams ? "  device, each beside the other\n" : "  device\n";
    for (const Stage &stage : *list) {
      bool first = true;
      for (const std::string &line : phrases(plan, whole, called_library(plan, t, whole), stage)) {
        text +=
            formatted("  {:12} {}\n",
                      first ? formatted("{} t{}", stage.name, stage.skew ? formatted("-{}", stage.skew) : "") : "", line);
        first = false;
      }
      const Volume v = volume_of(plan, stage);
      total.moved += v.moved;
      total.reduced += v.reduced;
      total.sent += v.sent;
    }
  }
  return text + cost_line(plan, t, total);
}

std::string explain_json(const Plan &plan, const topology::Topology &whole) {
  using json = nlohmann::ordered_json;
  const topology::Topology t = planned_on(whole, plan.request);
  const Request &r = plan.request;
  const std::string library = called_library(plan, t, whole);
  json out = {{"collective", collective_name(r.collective)},
              {"dtype", dtype_name(r.dtype)},
              {"op", redop_name(r.op)},
              {"root", whole.number(r.root)},
              {"rank", whole.number(plan.rank)},
              {"world", plan.world},
              {"flat", t.flat},
              {"groups", t.islands.size()},
              {"ccl", library},
              {"digest", formatted("{:016x}", plan.digest)},
              {"bytes", r.bytes},
              {"chunk", moves_whole_blocks(plan) ? json(nullptr) : json(plan.chunk)},
              {"chunks", is_varying(r.collective) && !moves_whole_blocks(plan) ? 0 : plan.chunks},
              {"paced_bytes", plan.paced ? json(r.paced_bytes) : json(nullptr)},
              {"slots", plan.slots},
              {"slot_bytes", plan.slot_bytes},
              {"device_bytes", plan.device_bytes},
              {"scratch_bytes", plan.scratch_stride * std::max(plan.slots, 1u)},
              {"link_bytes", plan.link_bytes},
              {"stages", json::array()}};
  for (const auto *list : {&plan.host, &plan.device})
    for (const Stage &stage : *list) {
      const Volume v = moves_whole_blocks(plan) ? Volume{} : volume_of(plan, stage);
      std::vector<int> peers;
      for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i)
        if (const Step &s = plan.steps[i]; s.peer >= 0 && s.peer != plan.rank && s.kind != StepKind::Ccl)
          peers.push_back(whole.number(s.peer));
      std::sort(peers.begin(), peers.end());
      peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
      out["stages"].push_back(
          {{"name", stage.name},
           {"list", list == &plan.host ? "host" : "device"},
           {"beside", stage.beside},
           {"skew", stage.skew},
           {"steps", phrases(plan, whole, library, stage)},
           {"peers", peers},
           {"chunk_bytes",
            moves_whole_blocks(plan)
                ? json(nullptr)
                : json{{"copied", v.moved}, {"reduced", v.reduced}, {"sent", v.sent}, {"received", v.received}}}});
    }
  if (!t.flat && t.islands.size() > 1 && !by_shared_slots(t, plan.request.collective) && !meets_on_hosts(plan, t))
    out["bridge"] = {{"shares", bridge_shares(t.weights)}, {"time", bridge_time(t.weights)}};
  out["crosses"] = {{"sent", crossing(plan, t, StepKind::Send)}, {"received", crossing(plan, t, StepKind::Recv)}};
  if (has_leader_exchange(t, r.collective) && r.bytes > 0) {
    out["form"] = takes_leader_exchange(t, r) ? "leader exchange" : takes_one_way(t, r) ? "one way" : "pieces";
    out["leader_exchange"] = {{"bytes", r.small_bytes},
                              {"from", from_name(r.small_from)},
                              {"simulated", r.small_from == LeaderBytesFrom::Profile && rehearsed(t)}};
    const uint64_t most = most_one_way_bytes(t, r);
    if (most != 0) out["one_way"] = {{"bytes", most == UINT64_MAX ? json(nullptr) : json(most)}};
  } else {
    out["form"] = nullptr;
  }
  out["text"] = explain(plan, whole);
  return out.dump(2);
}

}  // namespace isthmus::plan
