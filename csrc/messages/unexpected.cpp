#include "messages/unexpected.hpp"

#include <algorithm>

#include "base/assert.hpp"

namespace isthmus::messages {

void UnexpectedMessages::prepare() {
  if (messages_.capacity() >= kSpare) return;
  messages_.reserve(4 * kSpare);
  spare_.reserve(4 * kSpare);
  for (size_t i = 0; i < kSpare; ++i) {
    spare_.push_back(std::make_unique<UnexpectedMessage>());
    spare_.back()->data.reserve(kData);
  }
}

UnexpectedMessage &UnexpectedMessages::add(const link::FrameHeader &h, Operation *claimed) {
  std::unique_ptr<UnexpectedMessage> m;
  if (spare_.empty()) {
    m = std::make_unique<UnexpectedMessage>();
    m->data.reserve(kData);
  } else {
    m = std::move(spare_.back());
    spare_.pop_back();
  }
  m->source = static_cast<int>(h.source);
  m->tag = h.tag;
  m->dtype = h.dtype;
  m->id = h.id;
  m->total = h.total;
  m->whole = h.digest;
  m->part = h.part;
  m->announced = h.kind == link::FrameKind::RequestToSend;
  m->lies = h.kind == link::FrameKind::Placed ? h.slot : -1;
  m->complete = false;
  m->claimed = claimed;
  if (m->flows()) m->data.resize(std::max<uint64_t>(h.total, 1));
  messages_.push_back(std::move(m));
  return *messages_.back();
}

void UnexpectedMessages::done(const UnexpectedMessage &message) noexcept {
  const auto at = std::find_if(messages_.begin(), messages_.end(), [&](const auto &m) { return m.get() == &message; });
  ISTHMUS_ASSERT(at != messages_.end(), "a message is taken out once");
  spare_.push_back(std::move(*at));
  messages_.erase(at);
}

UnexpectedMessage *UnexpectedMessages::flowing(int source, uint64_t id) noexcept {
  return find([&](const UnexpectedMessage &m) { return m.source == source && m.id == id && m.flows(); });
}

UnexpectedMessage *UnexpectedMessages::claimed_by(const Operation *op) noexcept {
  return find([op](const UnexpectedMessage &m) { return m.claimed == op; });
}

Operation *UnexpectedMessages::take_claim() noexcept {
  UnexpectedMessage *const m = find([](const UnexpectedMessage &one) { return one.claimed != nullptr; });
  if (!m) return nullptr;
  Operation *const op = m->claimed;
  done(*m);
  return op;
}

}  // namespace isthmus::messages
