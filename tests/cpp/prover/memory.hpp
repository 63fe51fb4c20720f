// Vector clocks, and memory as a map of intervals that knows what every byte is, who wrote it and who reads it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "symbols.hpp"

namespace isthmus::prover {

struct Epoch {
  int agent = -1;
  uint32_t clock = 0;
};

// Released by a Post or a Send: everything that the agent knew. `base` is shared by releases with no join between them.
struct Snapshot {
  std::shared_ptr<const std::vector<uint32_t>> base;
  Epoch own;
};

class Clock {
 public:
  Clock(int agent, size_t agents) : agent_(agent), known_(agents, 0) { known_[static_cast<size_t>(agent)] = 1; }
  Epoch now() const { return {agent_, known_[static_cast<size_t>(agent_)]}; }
  bool knows(Epoch e) const { return e.agent < 0 || e.agent == agent_ || known_[static_cast<size_t>(e.agent)] >= e.clock; }
  Snapshot release() {
    if (!base_) base_ = std::make_shared<const std::vector<uint32_t>>(known_);
    const Snapshot s{base_, now()};
    ++known_[static_cast<size_t>(agent_)];
    return s;
  }
  void join(const Snapshot &s) {
    if (knows(s.own)) return;  // a clock is only ever passed on with all that its agent knew at that time
    for (size_t i = 0; i < known_.size(); ++i)
      if ((*s.base)[i] > known_[i] && static_cast<int>(i) != agent_) known_[i] = (*s.base)[i];
    if (known_[static_cast<size_t>(s.own.agent)] < s.own.clock) known_[static_cast<size_t>(s.own.agent)] = s.own.clock;
    base_.reset();
  }

 private:
  int agent_;
  std::vector<uint32_t> known_;
  std::shared_ptr<const std::vector<uint32_t>> base_;
};

// A read that a link makes: it ends when the receiver has received, or when the sending operation has ended.
struct LinkRead {
  bool ended = false;
  Epoch end;
};

struct Reader {
  Epoch epoch;
  std::shared_ptr<const LinkRead> link;
};

class MemoryMap {
 public:
  // The bytes, or nothing where some were never written or an earlier write is not known to be over; `why` says which.
  std::optional<std::vector<Piece>> read(uint64_t begin, uint64_t bytes, const Clock &clock,
                                         std::shared_ptr<const LinkRead> link, std::string &why);
  bool write(uint64_t begin, const std::vector<Piece> &pieces, const Clock &clock, std::string &why);
  std::vector<Piece> peek(uint64_t begin, uint64_t bytes) const;  // what lies there, expression -1 where nothing does
  void fill(uint64_t begin, uint64_t bytes, const Content &content, Epoch writer);

 private:
  struct Cell {
    uint64_t end;
    Content content;
    Epoch writer;
    std::vector<Reader> readers;
  };
  void cut(uint64_t at);
  std::map<uint64_t, Cell> cells_;
};

}  // namespace isthmus::prover
