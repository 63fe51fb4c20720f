// The prover as a function from JSON to JSON, for tests in other languages.
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "prove.hpp"

namespace isthmus::prover {
namespace {

using json = nlohmann::ordered_json;

topology::Topology topology_of(const json &j) {
  std::vector<topology::RankInfo> ranks;
  for (const auto &r : j.at("ranks")) {
    topology::RankInfo info;
    info.host = info.hostname = r.value("host", "h");
    info.island = r.value("island", "");
    info.device = r.value("device", "host");
    ranks.push_back(info);
  }
  const std::string bridge = j.value("bridge", "auto");
  auto t = topology::make_topology(ranks, bridge == "tcp"   ? topology::Bridge::Tcp
                                          : bridge == "shm" ? topology::Bridge::Shm
                                                            : topology::Bridge::Auto);
  if (j.contains("weights")) {
    const auto weights = j.at("weights").get<std::vector<double>>();
    for (size_t g = 0; g < t.islands.size() && !weights.empty(); ++g) t.weights[g] = weights[g % weights.size()];
    t.digest = topology::digest_of(t);
  }
  return t;
}

plan::Request request_of(const json &j) {
  plan::Request r;
  if (!collective_from_name(j.at("collective").get<std::string>(), r.collective)) fail(Code::Argument, "unknown collective");
  if (!dtype_from_name(j.value("dtype", "float32"), r.dtype)) fail(Code::Argument, "unknown dtype");
  if (!redop_from_name(j.value("op", "sum"), r.op)) fail(Code::Argument, "unknown op");
  r.root = j.value("root", 0);
  r.bytes = j.value("bytes", uint64_t{0});
  r.chunk_bytes = j.value("chunk_bytes", r.chunk_bytes);
  r.max_slots = j.value("max_slots", r.max_slots);
  r.far = j.value("far", r.far);
  r.way_bytes = j.value("way_bytes", r.way_bytes);
  r.small_bytes = j.value("small_bytes", r.small_bytes);
  r.in_place = j.value("in_place", false);
  return r;
}

}  // namespace

std::string prove_json(const std::string &request) {
  json out;
  try {
    const json j = json::parse(request);
    const auto t = topology_of(j);
    if (j.contains("explain")) {  // the plan of one rank, instead of a proof
      const auto plan = plan::plan_collective(t, j.at("explain").get<int>(), request_of(j.at("operations").at(0)));
      return plan::explain_json(*plan, t);
    }
    if (j.contains("topology")) return topology::to_json(t);
    std::vector<Operation> operations;
    for (const auto &o : j.at("operations")) {
      Operation op;
      op.request = request_of(o);
      op.in_place = op.request.in_place;
      op.counts = o.value("counts", std::vector<uint64_t>{});
      op.matrix = o.value("matrix", std::vector<std::vector<uint64_t>>{});
      operations.push_back(std::move(op));
    }
    Options options;
    options.credit_chunks = j.value("credit_chunks", options.credit_chunks);
    const Verdict v = prove(t, operations, options);
    out = {{"ok", v.ok},
           {"text", v.text},
           {"steps", v.steps},
           {"link_bytes", v.link_bytes},
           {"token_bytes", v.token_bytes},
           {"ranks", json::array()}};
    for (const RankStats &r : v.ranks)
      out["ranks"].push_back(
          {{"moved", r.moved}, {"reduced", r.reduced}, {"finished", r.finished}, {"sent", r.sent}, {"frames", r.frames}});
  } catch (const std::exception &e) { out = {{"ok", false}, {"text", std::string("error: ") + e.what()}}; }
  return out.dump();
}

}  // namespace isthmus::prover

extern "C" __attribute__((visibility("default"))) const char *isthmus_prove(const char *request) {
  static thread_local std::string answer;  // valid until the calling thread's next call
  answer = isthmus::prover::prove_json(request);
  return answer.c_str();
}
