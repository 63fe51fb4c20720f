#include "link/frame.hpp"

namespace isthmus::link {

const char *frame_fault(const FrameHeader &h) noexcept {
  if (h.magic != FrameHeader::kMagic) return "not a frame";
  const auto kind = static_cast<uint8_t>(h.kind);
  if (kind < 1 || kind > 6) return "unknown frame kind";
  if (h.bytes > kMaxPayload) return "payload too large";
  if (h.total > (uint64_t{1} << 56)) return "total too large";
  if (h.offset > h.total || h.bytes > h.total - h.offset) return "payload outside its message";
  if (is_bare(h.kind) && h.bytes != 0) return "payload on a bare frame";
  return nullptr;
}

}  // namespace isthmus::link
