#include "engine/operation_text.hpp"

#include <algorithm>

namespace isthmus::engine {
namespace {

// `peer`: its name, unless it is any rank.
std::string message_with(const Operation &op, const std::string &peer) {
  const Call &c = op.call;
  const bool send = c.collective == Collective::Send;
  const uint64_t bytes = op.cut.whole ? op.cut.whole : c.bytes;
  // A message without a tag is named without one. A message of bytes is named by its bytes.
  const std::string tag = c.tag == 0 ? std::string() : formatted("tag {}, ", c.tag),
                    what = c.dtype == DType::UInt8
                               ? formatted("{} bytes", bytes)
                               : formatted("{}, {} elements", dtype_name(c.dtype), bytes / dtype_size(c.dtype));
  return formatted("{} {} {} ({}{})", op.label.empty() ? (send ? "send" : "recv") : op.label, send ? "to" : "from",
                   c.root < 0 ? std::string("any rank") : peer, tag, what);
}

std::string path_text(const Identity &id, const Operation &op) {
  if (!op.plan) return "shared memory";
  const std::string bridge = !op.plan->uses_links || id.topology.flat      ? "shared memory"
                             : id.topology.bridge == topology::Bridge::Ucx ? "ucx"
                                                                           : "tcp";
  if (op.plan->device.empty()) return bridge;
  return op.plan->host.empty() && !op.plan->by_cells ? id.family : id.family + " and " + bridge;
}

}  // namespace

std::string describe(const Identity &id, uint64_t code, uint64_t bytes) {
  const auto c = static_cast<uint8_t>(code), t = static_cast<uint8_t>(code >> 8), o = static_cast<uint8_t>(code >> 16);
  const auto root = static_cast<int32_t>(code >> 32);
  const bool commit = (code >> 24 & 1) != 0;
  const bool known = c < kCollectiveCount;
  const auto collective = static_cast<Collective>(c);
  std::string text = known ? collective_name(collective) : "unknown";
  if (collective == Collective::Barrier) return text + (commit ? " (commit)" : "");
  text += formatted(" ({}", t < kDTypeCount ? dtype_name(static_cast<DType>(t)) : "?");
  if (known && is_reduction(collective))
    text += formatted(", {}", o < kRedOpCount ? redop_name(static_cast<RedOp>(o)) : "?");
  if (t < kDTypeCount) text += formatted(", {} elements", bytes / dtype_size(static_cast<DType>(t)));
  if (known && has_root(collective)) text += formatted(", root {}", id.number(root));
  return text + (commit ? ", commit)" : ")");
}

std::string message_text(const Identity &id, const Operation &op) {
  return message_with(op, formatted("rank {}", id.number(op.call.root)));
}

std::string describe(const Identity &id, const Operation &op) {
  if (op.is_p2p()) return formatted("{} on rank {} of '{}'", message_with(op, id.text(op.call.root)), id.number(), id.name);
  std::string progress;
  if (const uint32_t chunks = op.run.at.chunks(); op.plan && chunks > 1)
    progress = formatted(", chunk {} of {}", std::min(op.run.at.turn(), chunks), chunks);
  return formatted("{}#{} {} on rank {} of '{}' over {}{}", op.label.empty() ? "" : op.label + " ", op.sequence,
                   describe(id, code_of(op.call), op.call.bytes), id.number(), id.name, path_text(id, op), progress);
}

}  // namespace isthmus::engine
