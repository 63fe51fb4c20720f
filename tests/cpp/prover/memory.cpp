#include "memory.hpp"

namespace isthmus::prover {

void MemoryMap::cut(uint64_t at) {
  auto it = cells_.upper_bound(at);
  if (it == cells_.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Cell right = it->second;
  right.content = advanced(right.content, at - it->first);
  it->second.end = at;
  cells_.emplace_hint(std::next(it), at, std::move(right));
}

std::optional<std::vector<Piece>> MemoryMap::read(uint64_t begin, uint64_t bytes, const Clock &clock,
                                                  std::shared_ptr<const LinkRead> link, std::string &why) {
  cut(begin);
  cut(begin + bytes);
  std::vector<Piece> out;
  uint64_t at = begin;
  auto it = cells_.lower_bound(begin);
  for (; at < begin + bytes && it != cells_.end() && it->first == at; ++it) {
    Cell &c = it->second;
    if (!clock.knows(c.writer)) {
      why = "race: reads what agent " + std::to_string(c.writer.agent) + " writes, unordered";
      return std::nullopt;
    }
    if (c.content.token) break;  // a token is no data
    const Epoch now = clock.now();
    if (!link && !c.readers.empty() && !c.readers.back().link && c.readers.back().epoch.agent == now.agent)
      c.readers.back().epoch = now;
    else c.readers.push_back({now, link});
    out.push_back({c.end - at, c.content});
    at = c.end;
  }
  if (at < begin + bytes) {
    why = "reads unwritten bytes at " + std::to_string(at);
    return std::nullopt;
  }
  return out;
}

bool MemoryMap::write(uint64_t begin, const std::vector<Piece> &pieces, const Clock &clock, std::string &why) {
  uint64_t end = begin;
  for (const Piece &p : pieces) end += p.bytes;
  cut(begin);
  cut(end);
  auto it = cells_.lower_bound(begin);
  while (it != cells_.end() && it->first < end) {
    const Cell &c = it->second;
    if (!clock.knows(c.writer)) {
      why = "race: overwrites what agent " + std::to_string(c.writer.agent) + " writes, unordered";
      return false;
    }
    for (const Reader &r : c.readers) {
      const bool over = r.link ? r.link->ended && clock.knows(r.link->end) : clock.knows(r.epoch);
      if (!over) {
        why = std::string("race: overwrites what ") + (r.link ? "a link reads for agent " : "agent ") +
              std::to_string(r.epoch.agent) + (r.link ? "" : " reads") + ", unordered, at " + std::to_string(it->first);
        return false;
      }
    }
    it = cells_.erase(it);
  }
  for (const Piece &p : pieces) {
    cells_.emplace_hint(it, begin, Cell{begin + p.bytes, p.content, clock.now(), {}});
    begin += p.bytes;
  }
  return true;
}

std::vector<Piece> MemoryMap::peek(uint64_t begin, uint64_t bytes) const {
  std::vector<Piece> out;
  uint64_t at = begin;
  auto it = cells_.upper_bound(begin);
  if (it != cells_.begin()) --it;
  for (; at < begin + bytes;) {
    while (it != cells_.end() && it->second.end <= at) ++it;
    const uint64_t stop = begin + bytes;
    if (it == cells_.end() || it->first >= stop) {
      out.push_back({stop - at, {}});
      break;
    }
    if (it->first > at) {
      out.push_back({it->first - at, {}});
      at = it->first;
    }
    const uint64_t to = it->second.end < stop ? it->second.end : stop;
    out.push_back({to - at, advanced(it->second.content, at - it->first)});
    at = to;
  }
  return out;
}

void MemoryMap::fill(uint64_t begin, uint64_t bytes, const Content &content, Epoch writer) {
  if (bytes) cells_.insert_or_assign(begin, Cell{begin + bytes, content, writer, {}});
}

}  // namespace isthmus::prover
