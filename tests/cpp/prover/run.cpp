// The run: every list of every rank is an agent; agents take turns until all have ended or none can go on. One
// machine whose parts share all of their state, hence one file.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "base/error.hpp"
#include "expect.hpp"
#include "memory.hpp"
#include "prove.hpp"

namespace isthmus::prover {
namespace {

using plan::Memory;
using plan::Plan;
using plan::Step;
using plan::StepKind;

struct Objection {
  std::string text;
};
template <class... A>
[[noreturn]] void object(fmt::format_string<A...> format, A &&...args) {
  throw Objection{isthmus::formatted(format, std::forward<A>(args)...)};
}

struct Posted {
  uint64_t value;
  Snapshot snapshot;
  Epoch when;
};
struct Frame {
  std::vector<Piece> pieces;
  uint64_t bytes;
  bool partial, token;
  Snapshot snapshot;
  std::shared_ptr<LinkRead> read;
};

struct Place {
  MemoryMap *memory = nullptr;
  uint64_t at = 0;
};

struct Buffers {  // the user's, of one operation
  std::unique_ptr<MemoryMap> input = std::make_unique<MemoryMap>(), output = std::make_unique<MemoryMap>();
  bool alias_output = false, alias_input = false;  // in place: Output lies in Input, or Input in Output
  uint64_t alias_offset = 0;
};

struct RankState {
  std::unique_ptr<MemoryMap> ring, scratch, device;
  std::vector<Buffers> buffers;  // by operation, of those that have begun
  std::vector<std::shared_ptr<const Plan>> plans;
  std::vector<Blocks> blocks;
  std::vector<Posted> counters[plan::kCounters + plan::kLocalCounters];
  std::vector<size_t> ended;   // by operation: agents that ended it
  std::vector<Epoch> entered;  // by operation: the host list
  std::vector<Snapshot> came;  // and what it knew then
  struct Compared {
    Epoch when;
    std::vector<bool> with;  // by rank
  };
  std::vector<Compared> compared;  // by operation: sizes
};

struct Agent {
  Agent(int its_rank, bool on_device, Clock its_clock) : rank(its_rank), device(on_device), clock(std::move(its_clock)) {}
  int rank;
  bool device;
  Clock clock;                   // of the stream whose stage runs
  std::optional<Clock> resting;  // of a device's other stream
  bool beside = false;           // the second stream's stage runs
  bool early = false;            // the operation came early, and no step has stood on the first stream
  size_t operation = 0;
  bool entered = false, compared = false;
  uint32_t t = 0, stage = 0, step = 0;
  size_t calls = 0;                  // of this operation: calls of the library that have ended
  std::map<int, size_t> given, got;  // of those, sends and receives, by the other's position
  struct Sent {
    uint32_t chunk;
    std::shared_ptr<LinkRead> read;
  };
  std::vector<Sent> sends;  // of this operation
  // What the calls of the group touch in which it is, if it is in one.
  struct Touched {
    size_t call;
    const MemoryMap *memory;
    uint64_t begin, end;
    bool writes;
  };
  std::vector<Touched> group;
  std::vector<Snapshot> ends;
  std::string waits;  // for people, when stuck
};

// One call of a library: what each rank of the group came with.
struct Meeting {
  struct Arrival {
    std::vector<Piece> pieces;
    Snapshot snapshot;
  };
  IslandCall call = IslandCall::AllReduce;
  uint64_t bytes = 0;
  int root = 0, halvings = 0;
  std::unordered_map<int, Arrival> arrived;  // by position
};

// A send and a receive of a library: each ends when the other has begun.
struct Pair {
  std::optional<Meeting::Arrival> given;
  bool taken = false;
  uint64_t bytes = 0;  // whose side came first
};

class Run {
 public:
  Run(const topology::Topology &t, std::span<const Operation> operations, const Options &options)
      : topology_(t), operations_(operations), options_(options), world_(static_cast<size_t>(t.size())) {}

  Verdict verdict;

  void all() {
    prepare();
    for (bool more = true; more;) {
      more = false;
      bool finished = true;
      for (Agent &a : agents_) {
        while (a.operation < operations_.size() && advance(a)) more = true;
        finished = finished && a.operation == operations_.size();
      }
      if (finished) break;
      if (!more) deadlock();
    }
    for (const auto &[key, queue] : frames_)
      if (!queue.empty())
        object("operation {}: {} frames from rank {} to rank {} were sent and never received", key / (world_ * world_),
               queue.size(), key / world_ % world_, key % world_);
    volumes();
  }

 private:
  void prepare() {
    verdict.ranks.resize(world_);
    for (size_t o = 0; o < operations_.size(); ++o) {
      planned_.push_back(plan::planned_on(topology_, operations_[o].request));
      by_hosts_.push_back(meets_on_hosts(planned_[o], operations_[o]));
      any_order_.push_back(pieces_say_the_order(planned_[o], operations_[o]));
      framed_inside_.push_back(!no_frames_inside(planned_[o], operations_[o]));
      finished_.emplace_back(planned_[o].islands.size(), 0);
    }
    sent_.assign(operations_.size(), std::vector<uint64_t>(world_, 0));
    tokens_.assign(operations_.size(), 0);
    frame_count_.assign(operations_.size(), 0);
    ranks_.resize(world_);
    bool device = false;
    for (size_t r = 0; r < world_; ++r) {
      RankState &s = ranks_[r];
      s.ended.assign(operations_.size(), 0);
      for (size_t o = 0; o < operations_.size(); ++o) {
        plan::Request request = operations_[o].request;
        request.in_place = operations_[o].in_place;
        request.device = topology_.ranks[r].device != "host";
        if ((options_.reaching >> (r % 64) & 1) == 0) request.reach = 0;
        auto p = std::make_shared<Plan>(*plan::plan_collective(topology_, static_cast<int>(r), request));
        if (options_.mutate) options_.mutate(o, static_cast<int>(r), *p);
        device = device || !p->device.empty();
        s.plans.push_back(p);
        s.blocks.push_back(blocks_of(topology_, operations_[o], static_cast<int>(r)));
        agree(o, r, *p);
      }
      // Rings and scratch live as long as the communicator.
      s.ring = std::make_unique<MemoryMap>();
      s.scratch = std::make_unique<MemoryMap>();
      s.device = std::make_unique<MemoryMap>();
    }
    lists_ = device ? 2 : 1;
    const size_t clocks = world_ * (device ? 3 : 1);
    for (size_t i = 0; i < world_ * lists_; ++i)
      agents_.emplace_back(static_cast<int>(i / lists_), i % lists_ == 1, Clock(static_cast<int>(i), clocks));
    for (Agent &a : agents_)
      if (a.device) a.resting.emplace(static_cast<int>(world_ * lists_) + a.rank, clocks);
  }

  void agree(size_t o, size_t r, const Plan &p) {
    const Plan &first = *ranks_[0].plans[o];
    if (p.digest != first.digest) object("operation {}: ranks 0 and {} have different digests", o, r);
    if (p.chunk != first.chunk) object("operation {}: ranks 0 and {} have different chunks", o, r);
    for (size_t q = 0; q < r; ++q)
      if (planned_[o].flat || (by_hosts_[o] && shares(static_cast<int>(q), static_cast<int>(r))) ||
          (planned_[o].island_of[q] == planned_[o].island_of[r] &&
           planned_[o].islands[static_cast<size_t>(planned_[o].island_of[r])].ccl.empty())) {
        const Plan &other = *ranks_[q].plans[o];
        if (other.slot_bytes != p.slot_bytes || (p.slot_bytes && other.slots != p.slots))
          object("operation {}: ranks {} and {} share memory and have different slots", o, q, r);
        break;
      }
  }

  bool shares(int a, int b) const { return share(topology_, a, b); }
  uint64_t ratio(size_t o) const {
    const DType d = operations_[o].request.dtype;
    return dtype_size(accumulator(d)) / dtype_size(d);
  }
  const Plan &plan_of(const Agent &a) const { return *ranks_[static_cast<size_t>(a.rank)].plans[a.operation]; }
  plan::Operands operands_of(const Agent &a) const {
    return ranks_[static_cast<size_t>(a.rank)].blocks[a.operation].operands();
  }
  const std::vector<plan::Stage> &list_of(const Agent &a) const { return a.device ? plan_of(a).device : plan_of(a).host; }

  std::string where(const Agent &a) const {
    std::string text = isthmus::formatted("operation {} ({}), rank {}{}", a.operation,
                                          collective_name(operations_[a.operation].request.collective), a.rank,
                                          a.device ? ", device list" : "");
    const auto &list = list_of(a);
    if (a.stage < list.size())
      text += isthmus::formatted(", stage '{}', step {}, chunk {}", list[a.stage].name, a.step, a.t - list[a.stage].skew);
    return text;
  }

  void deadlock() const {
    std::string text = "deadlock:";
    int shown = 0;
    for (const Agent &a : agents_)
      if (a.operation < operations_.size() && shown++ < 4)
        text += isthmus::formatted(" [{} waits for {}]", where(a), a.waits);
    throw Objection{text};
  }

  // ---- the life of an operation on one rank
  bool enter(Agent &a) {
    RankState &s = ranks_[static_cast<size_t>(a.rank)];
    const size_t o = a.operation;
    const bool ahead = goes_ahead(a);
    if (!join_turn(a, ahead ? o - 1 : o)) return false;
    if (ahead) ++verdict.ahead;
    if (s.buffers.size() == o) make_buffers(a, s);
    if (!a.device) {
      s.entered.push_back(a.clock.now());
      s.came.push_back(a.clock.release());
    } else if (a.early = comes_early(a); a.early) {
      ++verdict.early;
      if (options_.early_waits) join_begin(a, *a.resting, o - 1);
    } else {
      a.resting->join(a.clock.release());
    }
    a.entered = true;
    return true;
  }

  // The turn of operation o has come: both lists of the one before have ended, and all that share memory have ended the last one before it that had
  // slots.
  bool join_turn(Agent &a, size_t o) {
    const RankState &s = ranks_[static_cast<size_t>(a.rank)];
    if (o > 0 && s.ended[o - 1] < lists_) return a.waits = "its other list", false;
    if (o > 0)
      for (size_t l = 0; l < lists_; ++l) a.clock.join(agents_[static_cast<size_t>(a.rank) * lists_ + l].ends[o - 1]);
    if (s.plans[o]->slot_bytes == 0) return true;
    size_t last = o;
    while (last > 0 && s.plans[last - 1]->slot_bytes == 0) --last;
    for (size_t q = 0; last > 0 && q < world_; ++q) {
      if (!shares(a.rank, static_cast<int>(q))) continue;
      if (ranks_[q].ended[last - 1] < lists_)
        return a.waits = isthmus::formatted("rank {} to end operation {}", q, last - 1), false;
      for (size_t l = 0; l < lists_; ++l) a.clock.join(agents_[q * lists_ + l].ends[last - 1]);
    }
    return true;
  }
  // The host list of an operation that comes early, where no two ranks share memory, begins when the turn of the one before has come, whose host list
  // has ended.
  bool goes_ahead(const Agent &a) const {
    if (a.device || !comes_early(a) || plan_of(a).pairwise_sizes) return false;
    for (size_t q = 0; q < world_; ++q)
      for (size_t r = 0; r < q; ++r)
        if (shares(static_cast<int>(q), static_cast<int>(r))) return false;
    return true;
  }
  bool comes_early(const Agent &a) const {
    const RankState &s = ranks_[static_cast<size_t>(a.rank)];
    const auto may = [&](size_t o) { return s.plans[o]->comes_early && chunks_of(*s.plans[o], s.blocks[o].operands()) > 1; };
    return options_.early && a.operation > 0 && may(a.operation) && may(a.operation - 1);
  }
  // That operation may begin here: all that share memory have ended the last one before it that had slots.
  void join_begin(const Agent &a, Clock &clock, size_t o) {
    for (size_t l = 0; o > 0 && l < lists_; ++l) clock.join(agents_[static_cast<size_t>(a.rank) * lists_ + l].ends[o - 1]);
    size_t last = o;
    while (last > 0 && ranks_[static_cast<size_t>(a.rank)].plans[last - 1]->slot_bytes == 0) --last;
    for (size_t q = 0; last > 0 && q < world_; ++q)
      for (size_t l = 0; shares(a.rank, static_cast<int>(q)) && l < lists_; ++l)
        clock.join(agents_[q * lists_ + l].ends[last - 1]);
  }

  // Ranks of my group as the topology has it, libraries and all.
  const topology::Island &island_of(int rank) const {
    return topology_.islands[static_cast<size_t>(topology_.island_of[static_cast<size_t>(rank)])];
  }

  // Sizes that two ranks know each: the host list goes on when it has seen those of all whom it compares with.
  bool compare(Agent &a) {
    const Plan &p = plan_of(a);
    if (a.device) return a.compared = true;
    const auto &mine = island_of(a.rank).ranks;
    std::vector<bool> with(world_, false);
    for (size_t q = 0; p.pairwise_sizes && q < world_; ++q) {
      const bool linked = p.sizes_by_links && std::find(mine.begin(), mine.end(), static_cast<int>(q)) != mine.end();
      if (!linked && !shares(a.rank, static_cast<int>(q))) continue;
      if (ranks_[q].entered.size() <= a.operation) return a.waits = isthmus::formatted("the sizes of rank {}", q), false;
      a.clock.join(ranks_[q].came[a.operation]);
      with[q] = true;
    }
    a.clock.release();
    ranks_[static_cast<size_t>(a.rank)].compared.push_back({a.clock.now(), std::move(with)});
    return a.compared = true;
  }

  void make_buffers(const Agent &a, RankState &s) {
    const size_t o = a.operation;
    const Operation &op = operations_[o];
    const Blocks &b = s.blocks[o];
    Buffers &made = s.buffers.emplace_back();
    const auto c = op.request.collective;
    if (op.in_place && (c == plan::Collective::AllGather || c == plan::Collective::AllGatherV)) {
      made.alias_input = true;
      made.alias_offset = b.output_displ[static_cast<size_t>(a.rank)];
    } else if (op.in_place) {
      made.alias_output = true;
      if (c == plan::Collective::ReduceScatter || c == plan::Collective::ReduceScatterV)
        made.alias_offset = b.input_displ[static_cast<size_t>(a.rank)];
    }
    const int leaf = symbols_.leaf(static_cast<int>(o), a.rank);
    for (size_t i = 0; i < b.input_bytes.size(); ++i) {
      const Place p = user_place(made, Memory::Input, b.input_displ[i]);
      p.memory->fill(p.at, b.input_bytes[i], {leaf, static_cast<uint32_t>(i), 0, 1, false}, {});
    }
  }

  static Place user_place(const Buffers &b, Memory m, uint64_t at) {
    if (m == Memory::Input) return b.alias_input ? Place{b.output.get(), b.alias_offset + at} : Place{b.input.get(), at};
    return b.alias_output ? Place{b.input.get(), b.alias_offset + at} : Place{b.output.get(), at};
  }

  static void to_stream(Agent &a, bool beside) {
    if (!a.device || a.beside == beside) return;
    std::swap(a.clock, *a.resting);
    a.beside = beside;
  }

  // An operation ends when the links read no span of it any more; only the sender knows that.
  bool leave(Agent &a) {
    for (const auto &sent : a.sends)
      if (!sent.read->ended) return a.waits = "a link to end reading", false;
    for (auto &sent : a.sends) sent.read->end = a.clock.now();
    a.sends.clear();
    to_stream(a, false);
    if (a.device) a.clock.join(a.resting->release());
    RankState &s = ranks_[static_cast<size_t>(a.rank)];
    if (operations_[a.operation].request.collective == plan::Collective::Barrier && !a.device)
      for (size_t q = 0; q < world_; ++q)
        if (ranks_[q].entered.size() <= a.operation || !a.clock.knows(ranks_[q].entered[a.operation]))
          object("{}: leaves the barrier and does not know that rank {} has come", where(a), q);
    a.ends.push_back(a.clock.release());
    if (++s.ended[a.operation] == lists_) check_result(a, s);
    ++a.operation;
    a.entered = a.compared = false;
    a.t = a.stage = a.step = 0;
    a.calls = 0;
    a.given.clear();
    a.got.clear();
    return true;
  }

  void check_result(const Agent &a, RankState &s) {
    const Operation &op = operations_[a.operation];
    const Blocks &b = s.blocks[a.operation];
    const bool any_order = any_order_[a.operation];
    for (uint32_t i = 0; i < b.output_bytes.size(); ++i) {
      const Expected e = expected_of(planned_[a.operation], op, static_cast<int>(a.operation), a.rank, i, symbols_);
      if (e.bytes != b.output_bytes[i]) object("{}: the definition gives block {} another size", where(a), i);
      if (e.bytes == 0) continue;
      const Place p = user_place(s.buffers[a.operation], Memory::Output, b.output_displ[i]);
      uint64_t at = 0;
      for (const Piece &piece : p.memory->peek(p.at, e.bytes)) {
        const Content want = advanced(e.content, at), &got = piece.content;
        const bool right = any_order ? symbols_.sorted(got.expression) == symbols_.sorted(want.expression)
                                     : got.expression == want.expression;
        if (!right || !got.same_place(want) || got.width > 1 || got.token)
          object("{}: wrong result in block {} at byte {}: {} of block {} at {}{}, not {} of block {} at {}", where(a), i,
                 at, got.expression < 0 ? "nothing" : symbols_.text(got.expression), got.block, got.position,
                 got.width > 1 ? " (unrounded)" : "", symbols_.text(want.expression), want.block, want.position);
        if (any_order) {
          for (uint64_t n = 0; n < piece.bytes; ++n) {  // the same on all ranks
            const int first = results_.try_emplace({a.operation, at + n}, got.expression).first->second;
            if (first != got.expression)
              object("{}: byte {} is {}, and {} on another rank", where(a), at + n, symbols_.text(got.expression),
                     symbols_.text(first));
          }
        }
        at += piece.bytes;
      }
    }
  }

  // ---- steps
  bool advance(Agent &a) {
    if (!a.entered && !enter(a)) return false;
    if (!a.compared && !compare(a)) return false;
    const Plan &p = plan_of(a);
    const auto &list = list_of(a);
    const plan::Operands operands = operands_of(a);
    const uint64_t chunks = chunks_of(p, operands);
    uint32_t skew = 0;
    for (const auto &stage : list) skew = std::max(skew, stage.skew);
    if (list.empty() || chunks == 0 || a.t >= chunks + skew) return leave(a);
    const plan::Stage &stage = list[a.stage];
    if (a.t >= stage.skew && a.t - stage.skew < chunks && a.step < stage.steps) {
      const auto c = a.t - stage.skew;
      to_stream(a, stage.beside);
      if (!stage.beside && options_.early_meets) a.early = false;
      if (stage.beside && a.step == 0 && options_.streams_meet && !a.early) a.clock.join(a.resting->release());
      const Step &s = p.steps[stage.step + a.step];
      if (a.step == 0 || s.kind != StepKind::Ccl) a.group.clear();
      const bool has_extent = s.kind != StepKind::Post && s.kind != StepKind::Wait && s.kind != StepKind::Taken;
      const uint64_t bytes = has_extent || s.guarded ? extent_bytes(s.extent, c, operands) : 0;
      if (((!has_extent && !s.guarded) || bytes > 0) && runs_for(p, s, c, operands)) {
        if (!execute(a, p, s, c, bytes, operands)) return false;
        ++verdict.steps;
      }
      ++a.step;
      return true;
    }
    a.step = 0;
    if (++a.stage == list.size()) {
      a.stage = 0;
      ++a.t;
    }
    return true;
  }

  Place locate(const Agent &a, const Plan &p, const plan::Span &s, uint32_t c, uint64_t bytes, const plan::Operands &o,
               bool writes) {
    RankState &own = ranks_[static_cast<size_t>(a.rank)];
    const bool served = !p.device.empty();
    if (a.device && s.memory == Memory::Ring && s.rank >= 0 && p.slots * p.slot_bytes > p.request.reach)
      object("{}: the device touches another rank's ring", where(a));
    if (served && !a.device && (s.memory == Memory::Input || s.memory == Memory::Output))
      object("{}: the host touches the device's memory", where(a));
    constexpr uint64_t kOtherPlace = uint64_t{1} << 40;
    const bool lent = s.memory == Memory::Ring || s.memory == Memory::Scratch;
    const uint64_t at =
        span_offset(p, s, c, o) + (lent && options_.early && options_.two_places && a.operation % 2 != 0 ? kOtherPlace : 0);
    const uint64_t width = bytes * (s.partial ? ratio(a.operation) : 1);
    if (s.memory == Memory::Ring) {
      const int owner = s.rank < 0 ? a.rank : s.rank;
      if (writes && owner != a.rank) object("{}: writes to the ring of rank {}", where(a), owner);
      if (!shares(a.rank, owner)) object("{}: reads the ring of rank {}, which shares no memory with it", where(a), owner);
      if (s.partial) object("{}: partial results in a ring", where(a));
      if (s.base + width > p.slot_bytes)
        object("{}: outside of its slot: {} + {} of {}", where(a), s.base, width, p.slot_bytes);
      return {ranks_[static_cast<size_t>(owner)].ring.get(), at};
    }
    if (s.memory == Memory::Device) {
      if (!a.device) object("{}: the host touches the device's memory", where(a));
      if (at + width > p.device_bytes) object("{}: outside of the device's scratch", where(a));
      return {own.device.get(), at};
    }
    if (s.memory == Memory::Scratch) {
      if (s.base + width > p.scratch_stride)
        object("{}: outside of scratch: {} + {} of {}", where(a), s.base, width, p.scratch_stride);
      return {own.scratch.get(), at};
    }
    const bool input = s.memory == Memory::Input;
    const auto sizes = input ? o.input_bytes : o.output_bytes;
    if (writes && input) object("{}: writes to the input", where(a));
    if (s.block >= sizes.size() || s.base + s.stride * c + bytes > sizes[s.block])
      object("{}: outside of block {} of the {}", where(a), s.block, input ? "input" : "output");
    return user_place(own.buffers[a.operation], s.memory, at);
  }

  std::vector<Piece> read(Agent &a, const Place &p, uint64_t bytes, std::shared_ptr<const LinkRead> link = nullptr) {
    std::string why;
    auto got = p.memory->read(p.at, bytes, a.clock, std::move(link), why);
    if (!got) object("{}: {}", where(a), why);
    return *std::move(got);
  }
  void write(Agent &a, const Place &p, const std::vector<Piece> &pieces) {
    std::string why;
    if (!p.memory->write(p.at, pieces, a.clock, why)) object("{}: {}", where(a), why);
  }

  bool execute(Agent &a, const Plan &p, const Step &s, uint32_t c, uint64_t bytes, const plan::Operands &o) {
    RankStats &stats = verdict.ranks[static_cast<size_t>(a.rank)];
    if (a.device && (s.kind == StepKind::Reduce || s.kind == StepKind::Send || s.kind == StepKind::Recv ||
                     s.kind == StepKind::Taken || s.scaled))
      object("{}: a step that no device can run", where(a));
    if ((s.kind == StepKind::Post || s.kind == StepKind::Wait) && s.mul * c + s.add > 0) {
      const bool local = s.counter >= plan::kCounters, devices = s.counter < plan::kCounters + 2;
      if (a.device ? !local : local && p.device.empty())
        object("{}: the two lists of a rank meet in its local counters only", where(a));
      if (local && (s.kind == StepKind::Wait && s.peer != a.rank)) object("{}: waits for another's local counter", where(a));
      if (local && (s.kind == StepKind::Post) != (a.device == devices))
        object("{}: local counter {} is the other list's", where(a), s.counter);
    }
    switch (s.kind) {
      case StepKind::Move: {
        const Place from = locate(a, p, p.sources[s.source], c, bytes, o, false),
                    to = locate(a, p, s.dst, c, bytes, o, true);
        if (from.memory == to.memory && from.at == to.at && !s.scaled) return true;  // in place: no work
        if (from.memory == to.memory && from.at < to.at + bytes && to.at < from.at + bytes && from.at != to.at)
          object("{}: source and destination overlap", where(a));
        auto pieces = read(a, from, bytes);
        if (s.scaled)
          for (Piece &x : pieces) {
            if (symbols_.kind(x.content.expression) != Symbols::Kind::Leaf)
              object("{}: scales what is no contribution", where(a));
            x.content.expression = symbols_.scaled(x.content.expression);
          }
        write(a, to, pieces);
        stats.moved += bytes;
        return true;
      }
      case StepKind::Reduce: return reduce(a, p, s, c, bytes, o), true;
      case StepKind::Send: return send(a, p, s, c, bytes, o);
      case StepKind::Recv: return receive(a, p, s, c, bytes, o);
      case StepKind::Post: {
        const int64_t v = s.mul * c + s.add;
        if (v <= 0 || v >= int64_t{1} << plan::kValueBits || s.counter >= plan::kCounters + plan::kLocalCounters)
          object("{}: posts the value {}", where(a), v);
        auto &posts = ranks_[static_cast<size_t>(a.rank)].counters[s.counter];
        const uint64_t value = (static_cast<uint64_t>(a.operation + 1) << plan::kValueBits) + static_cast<uint64_t>(v);
        if (!posts.empty() && posts.back().value >= value) object("{}: counter {} does not rise", where(a), s.counter);
        // Whoever waits takes a value for all that is below it.
        if (!posts.empty() && !a.clock.knows(posts.back().when))
          object("{}: posts counter {} beside the last post", where(a), s.counter);
        const Epoch when = a.clock.now();
        posts.push_back({value, a.clock.release(), when});
        return true;
      }
      case StepKind::Wait: {
        const int64_t v = s.mul * c + s.add;
        if (v <= 0) return true;
        if (s.peer < 0 || static_cast<size_t>(s.peer) >= world_ || !shares(a.rank, s.peer))
          object("{}: waits for rank {}", where(a), s.peer);
        const auto &posts = ranks_[static_cast<size_t>(s.peer)].counters[s.counter];
        const uint64_t value = (static_cast<uint64_t>(a.operation + 1) << plan::kValueBits) + static_cast<uint64_t>(v);
        // The first post that satisfies it: no more than that is known.
        const auto at =
            std::lower_bound(posts.begin(), posts.end(), value, [](const Posted &x, uint64_t y) { return x.value < y; });
        if (at == posts.end())
          return a.waits = isthmus::formatted("counter {} of rank {} to reach {}", s.counter, s.peer, v), false;
        a.clock.join(at->snapshot);
        return true;
      }
      case StepKind::Ccl: return call(a, p, s, c, bytes, o);
      case StepKind::Taken:
        for (const auto &sent : a.sends)
          if (sent.chunk == c && !sent.read->ended) return a.waits = "a link to take a chunk", false;
        for (auto &sent : a.sends)
          if (sent.chunk == c) sent.read->end = a.clock.now();
        std::erase_if(a.sends, [c](const auto &sent) { return sent.chunk == c; });
        return true;
    }
    return true;
  }

  // A buffer of a call: of one rank's count, or of the counts of the whole group, which then lie back to back.
  Place buffer(const Agent &a, const Plan &p, const plan::Span &s, uint32_t c, uint64_t bytes, const plan::Operands &o,
               bool writes) {
    if (s.memory == Memory::Device) {
      const uint64_t at = span_offset(p, s, c, o);
      if (at + bytes > p.device_bytes) object("{}: a call outside of the device's scratch", where(a));
      return {ranks_[static_cast<size_t>(a.rank)].device.get(), at};
    }
    if (s.memory != Memory::Input && s.memory != Memory::Output) object("{}: a call on memory of the host", where(a));
    const bool input = s.memory == Memory::Input;
    const auto sizes = input ? o.input_bytes : o.output_bytes, displ = input ? o.input_displ : o.output_displ;
    const uint64_t at = span_offset(p, s, c, o);
    uint64_t end = at;  // of the blocks that lie back to back from there on
    for (bool more = true; more && end < at + bytes;) {
      more = false;
      for (size_t i = 0; i < sizes.size(); ++i)
        if (displ[i] <= end && end < displ[i] + sizes[i]) {
          end = displ[i] + sizes[i];
          more = true;
        }
    }
    if (end < at + bytes)
      object("{}: a call outside of the buffer: {} + {}, and the blocks there end at {}", where(a), at, bytes, end);
    if (writes && s.memory == Memory::Input) object("{}: a call writes to the input", where(a));
    return user_place(ranks_[static_cast<size_t>(a.rank)].buffers[a.operation], s.memory, at);
  }

  bool call(Agent &a, const Plan &p, const Step &s, uint32_t c, uint64_t bytes, const plan::Operands &o) {
    // Blocks that stay in a group are moved by its library where the rest of the operation has none.
    const bool inside = !inside_of(topology_, a.rank, operations_[a.operation].request).empty();
    const topology::Topology &t = inside ? topology_ : planned_[a.operation];
    const auto g = static_cast<size_t>(t.island_of[static_cast<size_t>(a.rank)]);
    const auto size = t.islands[g].ranks.size();
    const int me = t.index_of[static_cast<size_t>(a.rank)];
    if (!a.device || t.islands[g].ccl.empty()) object("{}: a call of a library that does not serve this rank", where(a));
    const bool rooted = s.call == IslandCall::Reduce || s.call == IslandCall::Broadcast;
    if (rooted && (s.peer < 0 || static_cast<size_t>(s.peer) >= size)) object("{}: root {}", where(a), s.peer);
    const RedOp op = operations_[a.operation].request.op;
    const bool smaller = overflows(operations_[a.operation].request, t.islands.size());
    if (reduces(s.call) && s.op != (smaller ? RedOp::PremulSum : op == RedOp::Avg && t.islands.size() > 1 ? RedOp::Sum : op))
      object("{}: the library is asked for {}", where(a), redop_name(s.op));
    if (smaller && reduces(s.call) ? uint64_t{1} << s.halvings < size : s.halvings != 0)
      object("{}: the library is asked for a sum of {} times 2^-{}", where(a), size, s.halvings);
    if (!t.islands[g].ccl_table.can(s.call, operations_[a.operation].request.dtype, s.op))
      object("{}: the library has no such call", where(a));
    if (s.call == IslandCall::Send || s.call == IslandCall::Recv)
      return pair(a, p, s, c, bytes, o, {a.operation, g}, me, size);
    Meeting &m = meetings_[(a.operation * world_ + g) << 32 | a.calls];
    if (s.call == IslandCall::AllToAllV) return exchange(a, p, s, c, o, m, t.islands[g].ranks, me);
    const bool exchanges = s.call == IslandCall::AllToAll;
    const uint64_t input_bytes = bytes * (s.call == IslandCall::ReduceScatter || exchanges ? size : 1);
    const uint64_t output_bytes = bytes * (s.call == IslandCall::AllGather || exchanges ? size : 1);
    const bool reads = s.call != IslandCall::Broadcast || me == s.peer,
               writes = s.call != IslandCall::Reduce ? !stays_in_place(s, p, me) : me == s.peer;
    if (!m.arrived.contains(me)) {
      if (m.arrived.empty()) {
        m.call = s.call;
        m.bytes = bytes;
        m.root = s.peer;
        m.halvings = s.halvings;
      }
      if (m.halvings != s.halvings) object("{}: another rank calls with another factor", where(a));
      if (m.call != s.call || m.bytes != bytes || (rooted && m.root != s.peer))
        object("{}: calls {} of {} bytes, root {}; another rank calls {} of {}, root {}", where(a), island_call_name(s.call),
               bytes, s.peer, island_call_name(m.call), m.bytes, m.root);
      const plan::Span &source = p.sources[s.source];
      if (reads && writes) {
        const Place from = buffer(a, p, source, c, input_bytes, o, false),
                    to = buffer(a, p, s.dst, c, output_bytes, o, true);
        const uint64_t own = static_cast<uint64_t>(me) * bytes;
        const bool in_place = s.call == IslandCall::ReduceScatter ? from.at + own == to.at
                              : s.call == IslandCall::AllGather   ? to.at + own == from.at
                              : exchanges                         ? false
                                                                  : from.at == to.at;
        if (from.memory == to.memory && from.at < to.at + output_bytes && to.at < from.at + input_bytes && !in_place)
          object("{}: source and destination of a call overlap", where(a));
      }
      if (list_of(a)[a.stage].together) {
        if (reads) in_group(a, buffer(a, p, source, c, input_bytes, o, false), input_bytes, false);
        if (writes) in_group(a, buffer(a, p, s.dst, c, output_bytes, o, true), output_bytes, true);
      }
      Meeting::Arrival arrival;
      if (reads) arrival.pieces = read(a, buffer(a, p, source, c, input_bytes, o, false), input_bytes);
      arrival.snapshot = a.clock.release();
      m.arrived.emplace(me, std::move(arrival));
    }
    if (m.arrived.size() < size)
      return a.waits = isthmus::formatted("{} of {} ranks of its group to call {}", size - m.arrived.size(), size,
                                          island_call_name(s.call)),
             false;
    if (writes) {
      for (auto &[position, arrival] : m.arrived)
        if (s.call != IslandCall::Broadcast || position == s.peer) a.clock.join(arrival.snapshot);
      std::vector<Piece> out;
      if (s.call == IslandCall::Broadcast) out = m.arrived.at(s.peer).pieces;
      else if (s.call == IslandCall::AllGather)
        for (size_t j = 0; j < size; ++j) {
          const auto &pieces = m.arrived.at(static_cast<int>(j)).pieces;
          out.insert(out.end(), pieces.begin(), pieces.end());
        }
      else if (exchanges)
        for (size_t j = 0; j < size; ++j)
          slice(m.arrived.at(static_cast<int>(j)).pieces, static_cast<uint64_t>(me) * bytes, bytes, out);
      else out = island_sum(a, m, s.call == IslandCall::ReduceScatter ? static_cast<uint64_t>(me) * bytes : 0, bytes);
      write(a, buffer(a, p, s.dst, c, output_bytes, o, true), out);
    }
    ++a.calls;
    return true;
  }

  // The root of a broadcast in place has nothing to write.
  static bool stays_in_place(const Step &s, const Plan &p, int me) {
    const plan::Span &from = p.sources[s.source];
    return s.call == IslandCall::Broadcast && me == s.peer && from.memory == s.dst.memory && from.block == s.dst.block &&
           from.base == s.dst.base && from.stride == s.dst.stride;
  }

  // Calls of a group run in any order, so none touches what another one writes.
  void in_group(Agent &a, const Place &place, uint64_t bytes, bool writes) const {
    for (const Agent::Touched &x : a.group)
      if (x.call != a.calls && x.memory == place.memory && x.begin < place.at + bytes && place.at < x.end &&
          (writes || x.writes))
        object("{}: a call touches what another one of its group writes", where(a));
    a.group.push_back({a.calls, place.memory, place.at, place.at + bytes, writes});
  }

  // Appends [begin, begin + bytes) of the pieces.
  static void slice(const std::vector<Piece> &pieces, uint64_t begin, uint64_t bytes, std::vector<Piece> &out) {
    uint64_t at = 0;
    for (const Piece &piece : pieces) {
      const uint64_t from = std::max(at, begin), to = std::min(at + piece.bytes, begin + bytes);
      if (from < to) out.push_back({to - from, advanced(piece.content, from - at)});
      at += piece.bytes;
    }
  }

  // Blocks of the ranks of the group: the call has their sizes from the operands.
  bool exchange(Agent &a, const Plan &p, const Step &s, uint32_t c, const plan::Operands &o, Meeting &m,
                const std::vector<int> &group, int me) {
    const plan::Span &source = p.sources[s.source];
    if (source.memory != Memory::Input && source.memory != Memory::Device) object("{}: blocks of neither buffer", where(a));
    if (s.dst.memory != Memory::Output || c != 0) object("{}: blocks are not moved whole, to the output", where(a));
    RankState &own = ranks_[static_cast<size_t>(a.rank)];
    if (m.arrived.empty()) m.call = s.call;
    if (m.call != s.call) object("{}: another rank calls {}", where(a), island_call_name(m.call));
    if (!m.arrived.contains(me)) {
      Meeting::Arrival arrival;
      uint64_t at = source.base;
      for (const int q : group) {
        // Only whoever has compared them knows that they fit.
        if (varies(operations_[a.operation].request.collective) &&
            (own.compared.size() <= a.operation || !own.compared[a.operation].with[static_cast<size_t>(q)] ||
             !a.clock.knows(own.compared[a.operation].when)))
          object("{}: sizes are given to the library that were not compared with those of rank {}", where(a), q);
        const auto block = static_cast<uint32_t>(q);
        const uint64_t bytes = o.input_bytes[block];
        plan::Span from = source;
        if (source.memory == Memory::Input) from.block = block;
        else from.base = at;
        if (bytes > 0) {
          const auto pieces = read(a, buffer(a, p, from, 0, bytes, o, false), bytes);
          arrival.pieces.insert(arrival.pieces.end(), pieces.begin(), pieces.end());
        }
        at += bytes;
      }
      arrival.snapshot = a.clock.release();
      m.arrived.emplace(me, std::move(arrival));
    }
    if (m.arrived.size() < group.size())
      return a.waits = isthmus::formatted("{} of {} ranks of its group to exchange", group.size() - m.arrived.size(),
                                          group.size()),
             false;
    for (size_t j = 0; j < group.size(); ++j) {
      const auto block = static_cast<uint32_t>(group[j]);
      const uint64_t bytes = o.output_bytes[block];
      const Meeting::Arrival &arrival = m.arrived.at(static_cast<int>(j));
      a.clock.join(arrival.snapshot);
      const plan::Operands theirs = ranks_[block].blocks[a.operation].operands();
      uint64_t before = 0;
      for (int i = 0; i < me; ++i) before += theirs.input_bytes[static_cast<size_t>(group[static_cast<size_t>(i)])];
      if (theirs.input_bytes[static_cast<size_t>(a.rank)] != bytes)
        object("{}: rank {} gives another size", where(a), block);
      if (bytes == 0) continue;
      std::vector<Piece> out;
      slice(arrival.pieces, before, bytes, out);
      plan::Span to = s.dst;
      to.block = block;
      if (source.memory == Memory::Input && own.buffers[a.operation].alias_output)
        object("{}: no library does this in place", where(a));
      write(a, buffer(a, p, to, 0, bytes, o, true), out);
    }
    ++a.calls;
    return true;
  }

  bool pair(Agent &a, const Plan &p, const Step &s, uint32_t c, uint64_t bytes, const plan::Operands &o,
            std::pair<size_t, size_t> group, int me, size_t size) {
    const bool gives = s.call == IslandCall::Send;
    if (s.peer < 0 || static_cast<size_t>(s.peer) >= size || s.peer == me) object("{}: peer {}", where(a), s.peer);
    size_t &number = (gives ? a.given : a.got)[s.peer];
    Pair &m = pairs_[{group.first, group.second, gives ? me : s.peer, gives ? s.peer : me, number}];
    if (!m.given && !m.taken) m.bytes = bytes;
    if (m.bytes != bytes)
      object("{}: {} of {} bytes; the other side has {}", where(a), island_call_name(s.call), bytes, m.bytes);
    if (gives) {
      if (!m.given) {
        auto pieces = read(a, buffer(a, p, p.sources[s.source], c, bytes, o, false), bytes);
        m.given = Meeting::Arrival{std::move(pieces), a.clock.release()};
      }
      if (!m.taken) return a.waits = isthmus::formatted("position {} of its group to receive", s.peer), false;
    } else {
      m.taken = true;
      if (!m.given) return a.waits = isthmus::formatted("position {} of its group to send", s.peer), false;
      a.clock.join(m.given->snapshot);
      write(a, buffer(a, p, s.dst, c, bytes, o, true), m.given->pieces);
    }
    ++number;
    ++a.calls;
    return true;
  }

  // The sum of what all came with, in [begin, begin + bytes) of it.
  std::vector<Piece> island_sum(const Agent &a, const Meeting &m, uint64_t begin, uint64_t bytes) {
    const auto at_byte = [&](const std::vector<Piece> &pieces, uint64_t at, uint64_t &left) {
      for (const Piece &piece : pieces) {
        if (at < piece.bytes) return left = piece.bytes - at, advanced(piece.content, at);
        at -= piece.bytes;
      }
      object("{}: a call with too little", where(a));
    };
    const bool multiplied = operations_[a.operation].request.op == RedOp::PremulSum;  // each by its rank's factor
    std::vector<Piece> out;
    for (uint64_t at = begin; at < begin + bytes;) {
      uint64_t step = begin + bytes - at;
      std::vector<int> terms;
      Content first;
      for (const auto &[position, arrival] : m.arrived) {
        uint64_t left = 0;
        const Content content = at_byte(arrival.pieces, at, left);
        step = std::min(step, left);
        if (symbols_.kind(content.expression) != Symbols::Kind::Leaf)
          object("{}: the library sums what is no contribution: {}", where(a), symbols_.text(content.expression));
        if (!terms.empty() && !content.same_place(first)) object("{}: the library sums different places", where(a));
        first = content;
        terms.push_back(multiplied ? symbols_.scaled(content.expression) : content.expression);
      }
      first.expression = symbols_.island(std::move(terms));
      if (m.halvings) first.expression = symbols_.smaller(first.expression, m.halvings);
      out.push_back({step, first});
      at += step;
    }
    return out;
  }

  // A source of a reduction, times its weight.
  int weighted(const Agent &a, int expression, uint32_t by, uint32_t source) {
    const bool smaller = symbols_.kind(expression) == Symbols::Kind::Smaller;
    if (by != (smaller ? 1u << symbols_.halvings_of(expression) : 1u))
      object("{}: source {} is {}, and is multiplied by {}", where(a), source, symbols_.text(expression), by);
    return smaller ? symbols_.kept(symbols_.island_of(expression)) : expression;
  }

  void reduce(Agent &a, const Plan &p, const Step &s, uint32_t c, uint64_t bytes, const plan::Operands &o) {
    const uint64_t r = ratio(a.operation);
    const Place to = locate(a, p, s.dst, c, bytes, o, true);
    Place second;
    if (s.has_copy) second = locate(a, p, s.copy, c, bytes, o, true);
    std::vector<uint32_t> ends(p.group_ends.begin() + s.group, p.group_ends.begin() + s.group + s.groups);
    if (ends.empty()) ends.push_back(s.sources);
    if (ends.back() != s.sources) object("{}: groups end at {} of {} sources", where(a), ends.back(), s.sources);
    if (s.partial != s.dst.partial) object("{}: width of the destination", where(a));
    if (s.partial && s.divisor != 1) object("{}: a partial result is divided by {}", where(a), s.divisor);
    struct Cursor {
      std::vector<Piece> pieces;
      size_t at = 0;
      uint64_t used = 0;
      uint64_t width = 1;
    };
    std::vector<Cursor> cursors;
    for (uint32_t i = 0; i < s.sources; ++i) {
      const plan::Span &span = p.sources[s.source + i];
      const uint64_t width = span.partial ? r : 1;
      const Place from = locate(a, p, span, c, bytes, o, false);
      for (const Place &d : {to, second})
        if (d.memory == from.memory && from.at < d.at + bytes * (s.partial ? r : 1) && d.at < from.at + bytes * width &&
            !(from.at == d.at && width == (s.partial ? r : 1)))
          object("{}: source {} overlaps the destination", where(a), i);
      cursors.push_back({read(a, from, bytes * width), 0, 0, width});
    }
    std::vector<Piece> out;
    for (uint64_t at = 0; at < bytes;) {
      uint64_t step = bytes - at;
      for (const Cursor &x : cursors) step = std::min(step, (x.pieces[x.at].bytes - x.used) / x.width);
      if (step == 0) object("{}: sources cut inside of an element", where(a));
      std::vector<int> groups, terms;
      Content first;
      for (uint32_t i = 0, g = 0; i < s.sources; ++i) {
        Cursor &x = cursors[i];
        const Content content = advanced(x.pieces[x.at].content, x.used);
        const bool partial = symbols_.kind(content.expression) == Symbols::Kind::Sum;
        if (content.width != x.width) object("{}: source {} has the wrong width", where(a), i);
        if (partial != p.sources[s.source + i].partial)
          object("{}: source {} is {}a partial result", where(a), i, partial ? "" : "not ");
        if (i == 0) first = content;
        else if (!content.same_place(first)) object("{}: source {} is of another place than source 0", where(a), i);
        terms.push_back(weighted(a, content.expression, p.sources[s.source + i].weight, i));
        if (i + 1 == ends[g]) {
          groups.push_back(symbols_.sum(terms));
          terms.clear();
          ++g;
        }
        x.used += step * x.width;
        if (x.used == x.pieces[x.at].bytes) {
          ++x.at;
          x.used = 0;
        }
      }
      const int sum = symbols_.sum(groups);
      first.expression = s.partial ? sum : symbols_.final(sum, s.divisor);
      first.width = s.partial ? r : 1;
      out.push_back({step * (s.partial ? r : 1), first});
      at += step;
    }
    write(a, to, out);
    if (s.has_copy) write(a, second, out);
    verdict.ranks[static_cast<size_t>(a.rank)].reduced += bytes * s.sources;
    if (!s.partial) {
      verdict.ranks[static_cast<size_t>(a.rank)].finished += bytes;
      finished_[a.operation][static_cast<size_t>(planned_[a.operation].island_of[static_cast<size_t>(a.rank)])] += bytes;
    }
  }

  uint64_t key(size_t o, int from, int to) const {
    return (o * world_ + static_cast<size_t>(from)) * world_ + static_cast<size_t>(to);
  }

  // Where ranks pass on blocks of others, or sum them, one rank sends another more than a block. These plans cut their chunks to what the engine
  // grants at the least.
  uint64_t credit(size_t o, const Plan &p) const {
    const plan::Collective c = operations_[o].request.collective;
    const bool many = c == plan::Collective::AllGather || c == plan::Collective::ReduceScatter;
    const bool wide = topology::has_devices(topology_) || topology::has_libraries(topology_);
    const bool far = operations_[o].request.far;
    const uint64_t granted = (wide || far ? 256 : 64) * operations_[o].request.chunk_bytes;
    return std::max(options_.credit_chunks * p.chunk * ratio(o), many || far ? granted : 0);
  }

  bool send(Agent &a, const Plan &p, const Step &s, uint32_t c, uint64_t bytes, const plan::Operands &o) {
    if (s.peer < 0 || static_cast<size_t>(s.peer) >= world_ || s.peer == a.rank)
      object("{}: sends to rank {}", where(a), s.peer);
    if (shares(a.rank, s.peer) && !framed_inside_[a.operation])
      object("{}: sends to rank {}, which shares memory with it", where(a), s.peer);
    const plan::Span &span = p.sources[s.source];
    if (span.partial != s.partial) object("{}: width of the frame", where(a));
    const uint64_t width = bytes * (s.partial ? ratio(a.operation) : 1);
    uint64_t &flying = flying_[key(0, a.rank, s.peer)];
    if (flying > 0 && flying + width > credit(a.operation, p))
      return a.waits = isthmus::formatted("credit of rank {}", s.peer), false;
    const Place from = locate(a, p, span, c, bytes, o, false);
    auto link = std::make_shared<LinkRead>();
    Frame f;
    if (s.token) {
      if (bytes > 8) object("{}: a token of {} bytes", where(a), bytes);
      f.pieces = {{width, {-1, 0, 0, 1, true}}};
      tokens_[a.operation] += width;
    } else {
      f.pieces = read(a, from, width, link);
      ++frame_count_[a.operation];
    }
    f.bytes = width;
    f.partial = s.partial;
    f.token = s.token;
    f.snapshot = a.clock.release();
    f.read = link;
    flying += width;
    frames_[key(a.operation, a.rank, s.peer)].push_back(std::move(f));
    a.sends.push_back({c, link});
    sent_[a.operation][static_cast<size_t>(a.rank)] += width;
    RankStats &stats = verdict.ranks[static_cast<size_t>(a.rank)];
    stats.sent += width;
    ++stats.frames;
    return true;
  }

  bool receive(Agent &a, const Plan &p, const Step &s, uint32_t c, uint64_t bytes, const plan::Operands &o) {
    auto &queue = frames_[key(a.operation, s.peer, a.rank)];
    if (queue.empty()) return a.waits = isthmus::formatted("a frame from rank {}", s.peer), false;
    Frame f = std::move(queue.front());
    queue.pop_front();
    const uint64_t width = bytes * (s.partial ? ratio(a.operation) : 1);
    if (f.bytes != width || f.partial != s.partial || f.token != s.token)
      object("{}: expects {} bytes{} from rank {}, which sent {}{}", where(a), width, s.token ? " (token)" : "", s.peer,
             f.bytes, f.token ? " (token)" : "");
    a.clock.join(f.snapshot);
    write(a, locate(a, p, s.dst, c, bytes, o, true), f.pieces);
    f.read->ended = true;
    f.read->end = a.clock.now();
    flying_[key(0, s.peer, a.rank)] -= width;
    return true;
  }

  // ---- the books
  void volumes() {
    for (size_t o = 0; o < operations_.size(); ++o) {
      uint64_t sum = 0;
      for (size_t r = 0; r < world_; ++r) {
        const Plan &p = *ranks_[r].plans[o];
        if (!varies(operations_[o].request.collective) && sent_[o][r] != p.link_bytes)
          object("operation {}: rank {} sent {} bytes and its plan states {}", o, r, sent_[o][r], p.link_bytes);
        sum += sent_[o][r];
      }
      const auto c = operations_[o].request.collective;
      uint64_t finished = 0;
      for (uint64_t f : finished_[o]) finished += f;
      const bool everywhere = !planned_[o].flat && finishes_everywhere(planned_[o], operations_[o]);
      const bool island = planned_[o].islands.size() == 1 && !planned_[o].islands[0].ccl.empty();
      if ((c == plan::Collective::AllReduce && !everywhere && !island && world_ > 1
               ? finished != operations_[o].request.bytes
               : false))
        object("operation {}: {} bytes were finished, not each once", o, finished);
      if (!planned_[o].flat && plan::takes_one_way(planned_[o], operations_[o].request))
        for (size_t g = 0; g < finished_[o].size(); ++g)
          if (finished_[o][g] != operations_[o].request.bytes)
            object("operation {}: group {} finished {} bytes, not all", o, g, finished_[o][g]);
      const uint64_t data = sum - tokens_[o], bound = bridge_bound(topology_, planned_[o], operations_[o], finished_[o]);
      if (by_hosts_[o] ? data > bound : data != bound)
        object("operation {}: {} bytes crossed the bridge, and the algorithm needs {}", o, data, bound);
      const uint64_t most = token_bound(planned_[o], operations_[o], frame_count_[o]);
      if (tokens_[o] > most) object("operation {}: {} bytes of tokens, at most {} are needed", o, tokens_[o], most);
      verdict.link_bytes += sum;
      verdict.token_bytes += tokens_[o];
    }
  }

  const topology::Topology &topology_;
  std::vector<topology::Topology> planned_;  // by operation
  // By operation: meets_on_hosts(), pieces_say_the_order(), and not no_frames_inside().
  std::vector<bool> by_hosts_, any_order_, framed_inside_;
  std::span<const Operation> operations_;
  const Options &options_;
  size_t world_, lists_ = 1;
  Symbols symbols_;
  std::vector<RankState> ranks_;
  std::vector<Agent> agents_;
  std::unordered_map<uint64_t, std::deque<Frame>> frames_;
  std::unordered_map<uint64_t, uint64_t> flying_;
  std::map<std::tuple<size_t, size_t, int, int, size_t>, Pair>
      pairs_;                                       // by operation and group, who sends, who gets, number
  std::unordered_map<uint64_t, Meeting> meetings_;  // by operation and group, and number of the call
  std::vector<std::vector<uint64_t>> finished_, sent_;
  std::map<std::pair<size_t, uint64_t>, int>
      results_;  // by operation and byte, where groups meet on hosts: of the first rank
  std::vector<uint64_t> tokens_, frame_count_;
};

}  // namespace

Verdict prove(const topology::Topology &t, std::span<const Operation> operations, const Options &options) {
  Run run(t, operations, options);
  try {
    run.all();
  } catch (const Objection &o) {
    run.verdict.ok = false;
    run.verdict.text = o.text;
  }
  return std::move(run.verdict);
}

}  // namespace isthmus::prover
