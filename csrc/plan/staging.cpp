// Plans of ranks whose memory only their device can touch, and which no library serves: the plan of a host rank with shadows. A shadow is
// pinned host memory for the part of a chunk of a block that the host list touches. The device list copies a chunk in before the host list
// begins with the chunk, and copies the chunk out when the host list has done with it. What only goes from the user's input to the user's
// output never leaves the device.
//
// THROUGH THE RINGS. Where the device reaches the rings (Request::reach), no processor touches what is only moved. The device writes the rank's
// slot and reads the slots of the others; the host list only says when. The host list then differs from that of a host rank in four places:
//   - where the host would have copied into the slot, it waits for the device's copy;
//   - what its copies out of slots waited for comes before the gate;
//   - what it posted behind these copies comes when the device has taken the chunk;
//   - a frame of bytes that also lie in the rank's slot is sent from the slot, so nothing stands for these bytes. Before the slot is filled again
//     the links have taken what was sent of it (Taken).
//
// ORDER. Chunk c is copied in `ahead` chunks before it is copied out. The device is given, for every c in turn: copy out (c - ahead), copy in
// (c). As one queue, the device waits at the gate of chunk c - ahead having staged all chunks before c.
//
//   device    out(c-ahead) in(c)   out(c-ahead+1) in(c+1)   ...      out(x) waits at the gate of x, which the host opens with kReady
//   host      turn of c: waits for kStaged of c ... opens the gate of c in turn c + last
//
// 1. The host list opens the gate of chunk c - ahead `last` turns after it began with that chunk. For this it needs no chunk beyond
//    c - ahead + last. So ahead = last + 1 suffices.
// 2. Copies in stand on the second stream, each behind the copy out before it. So they are behind its gate, and what they fill was read. The
//    copy out of the next chunk may run beside them if its gate is opened meanwhile, in the turn of chunk c - 1. This takes ahead = last + 2.
// 3. With ahead = last + 2, a chunk that is a little late makes all chunks late that follow. One more gives the late chunk a turn's time. So
//    ahead = last + 3 where there are slots for it.
//
// REUSE. A shadow is used again `slots` chunks later, and ahead <= slots. So whoever fills the shadow again has passed the gate of the chunk
// that had it before. The device fills a slot again when its readers have done with chunk c - slots. That has to be known at the gate before, of
// chunk c - ahead, in turn c - ahead + last:
//   - A reader with a device says so in turn c - slots + ahead, which must be an earlier turn: slots > 2 * ahead - last.
//   - Other readers say so by turn c - slots + last: slots > ahead.
#include <algorithm>

#include "base/error.hpp"
#include "plan/builder.hpp"

namespace isthmus::plan {
namespace {

bool of_user(const Span &s) { return s.memory == Memory::Input || s.memory == Memory::Output; }
bool reads(const Step &s) { return s.kind == StepKind::Move || s.kind == StepKind::Reduce || s.kind == StepKind::Send; }
bool writes(const Step &s) { return s.kind == StepKind::Move || s.kind == StepKind::Reduce || s.kind == StepKind::Recv; }

// A copy inside the device: from input to output, where the host list does nothing else with that block of the output.
bool inside(const Plan &p, const Step &s) {
  if (s.kind != StepKind::Move || s.scaled || p.sources[s.source].memory != Memory::Input || s.dst.memory != Memory::Output)
    return false;
  for (const Step &x : p.steps) {
    if (&x == &s) continue;
    const auto touches = [&](const Span &y) { return y.memory == Memory::Output && y.block == s.dst.block; };
    if (writes(x) && (touches(x.dst) || (x.has_copy && touches(x.copy)))) return false;
    for (uint32_t i = 0; reads(x) && i < x.sources; ++i)
      if (touches(p.sources[x.source + i])) return false;
  }
  return true;
}

bool into_slot(const Plan &p, const Step &s) {
  return s.kind == StepKind::Move && !s.scaled && p.sources[s.source].memory == Memory::Input &&
         s.dst.memory == Memory::Ring;
}
bool out_of_slot(const Plan &p, const Step &s) {
  return s.kind == StepKind::Move && !s.scaled && p.sources[s.source].memory == Memory::Ring &&
         s.dst.memory == Memory::Output;
}
bool for_reuse(const Step &s) { return s.kind == StepKind::Wait && s.add <= 0; }

// A result goes to the slot, and the device takes it from there.
bool result_in_slot(const Step &s) {
  return s.kind == StepKind::Reduce && !s.partial && s.has_copy && s.dst.memory == Memory::Ring &&
         s.copy.memory == Memory::Output;
}

// Where bytes of the user's memory also lie in this rank's slot when frames are sent: those that are copied into the slot, or come out of it.
class InSlot {
 public:
  explicit InSlot(const Plan &p) {
    for (const Step &s : p.steps) {
      if (into_slot(p, s)) places_.push_back({p.sources[s.source], s.dst.base, s.extent.length});
      else if (out_of_slot(p, s) && p.sources[s.source].rank < 0)
        places_.push_back({s.dst, p.sources[s.source].base, s.extent.length});
      else if (result_in_slot(s)) places_.push_back({s.copy, s.dst.base, s.extent.length});
    }
  }
  // Lets the frames that can be sent from the slot be sent from there.
  void send_from_there(Plan &p) const {
    for (const Step &s : p.steps) {
      if (s.kind != StepKind::Send || s.token) continue;
      Span &from = p.sources[s.source];
      const auto at = std::find_if(places_.begin(), places_.end(), [&](const InSlotPlace &x) {
        return x.user.memory == from.memory && x.user.block == from.block && x.user.base <= from.base &&
               from.base + s.extent.length <= x.user.base + x.bytes;
      });
      if (at != places_.end()) from = {Memory::Ring, -1, 0, at->slot + (from.base - at->user.base), 0, false};
    }
  }

 private:
  struct InSlotPlace {
    Span user;
    uint64_t slot, bytes;
  };
  std::vector<InSlotPlace> places_;
};

// What the device does with the rings, taken out of the host list.
struct Direct {
  std::vector<Step> in, out, reuse, after;
};

// Takes the moves through slots out of the host list, with what was posted behind them.
Direct take_out(Plan &p) {
  Direct d;
  InSlot(p).send_from_there(p);
  std::vector<Step> steps;
  const bool fills = std::any_of(p.steps.begin(), p.steps.end(), [&](const Step &s) { return into_slot(p, s); });
  for (Stage &stage : p.host) {
    const auto begin = static_cast<uint32_t>(steps.size());
    bool taken = false;
    for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
      Step s = p.steps[i];
      if (into_slot(p, s)) {
        d.in.push_back(s);
      } else if (out_of_slot(p, s)) {
        d.out.push_back(s);
        taken = true;
      } else if (fills && for_reuse(s)) {
        d.reuse.push_back(s);
      } else if (taken && s.kind == StepKind::Post && s.counter == kConsumed) {
        d.after.push_back(s);
      } else {
        if (result_in_slot(s)) {
          Step &out = d.out.emplace_back();
          out.kind = StepKind::Move;
          out.extent = s.extent;
          out.dst = s.copy;
          out.source = static_cast<uint32_t>(p.sources.size());
          out.sources = 1;
          const Span slot = s.dst;
          p.sources.push_back(slot);
          s.has_copy = s.stream = false;
          s.copy = {};
        }
        steps.push_back(s);
      }
    }
    stage.step = begin;
    stage.steps = static_cast<uint32_t>(steps.size()) - begin;
  }
  p.steps = std::move(steps);
  return d;
}

// The pinned memory that stands for the part of each block of the user's that the host list touches.
class Shadows {
 public:
  struct Shadow {
    Memory memory = Memory::Input;
    uint32_t block = 0;
    uint64_t begin = 0, end = 0;  // of a chunk
    uint64_t at = 0;              // in a slot of scratch
    bool written = false;

    Extent extent(uint64_t chunk) const { return {memory, block, begin, chunk, end - begin}; }
    Span user() const { return {memory, -1, block, begin, 0, false}; }
    Span scratch() const { return PlanMemory::scratch(at); }
  };

  // Reserves the shadows that these steps need, and lets the steps work on them.
  void stand_for(PlanMemory &memory, std::vector<Step> &steps) {
    std::vector<Span> &sources = memory.plan.sources;
    for (const Step &s : steps) {
      if (writes(s)) measure(s.dst, s.extent.length, true);
      if (writes(s) && s.has_copy) measure(s.copy, s.extent.length, true);
      for (uint32_t i = 0; reads(s) && i < s.sources; ++i) measure(sources[s.source + i], s.extent.length, false);
    }
    for (Shadow &s : shadows_) s.at = memory.need_scratch(s.end - s.begin);
    for (Step &s : steps) {
      if (writes(s)) {
        replace(s.dst);
        if (s.has_copy) replace(s.copy);
        s.stream = false;  // the device reads it at once
      }
      for (uint32_t i = 0; reads(s) && i < s.sources; ++i) replace(sources[s.source + i]);
    }
  }
  const std::vector<Shadow> &all() const noexcept { return shadows_; }

 private:
  std::vector<Shadow>::iterator of(const Span &s) {
    return std::find_if(shadows_.begin(), shadows_.end(),
                        [&](const Shadow &x) { return x.memory == s.memory && x.block == s.block; });
  }
  void measure(const Span &s, uint64_t bytes, bool written) {
    if (!of_user(s)) return;
    if (s.partial) fail(Code::Internal, "a plan keeps partial results in the user's memory");
    auto it = of(s);
    if (it == shadows_.end()) it = shadows_.insert(it, {s.memory, s.block, s.base, s.base + bytes, 0, false});
    it->begin = std::min(it->begin, s.base);
    it->end = std::max(it->end, s.base + bytes);
    it->written = it->written || written;
  }
  void replace(Span &s) {
    if (!of_user(s)) return;
    const auto it = of(s);
    s = {Memory::Scratch, -1, 0, it->at + (s.base - it->begin), 0, false};
  }

  std::vector<Shadow> shadows_;
};

// The copies inside the device, taken out of the host list. The steps that stay keep their order; stages are cut anew around them.
struct InsideCopies {
  std::vector<Step> steps;
  std::vector<Span> from;

  explicit InsideCopies(Plan &p) {
    std::vector<Step> stay;
    for (Stage &stage : p.host) {
      const auto begin = static_cast<uint32_t>(stay.size());
      for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
        const Step &s = p.steps[i];
        if (inside(p, s)) {
          steps.push_back(s);
          from.push_back(p.sources[s.source]);
        } else {
          stay.push_back(s);
        }
      }
      stage.step = begin;
      stage.steps = static_cast<uint32_t>(stay.size()) - begin;
    }
    p.steps = std::move(stay);
  }
};

// When the device works on a chunk, in turns of the host list (see above).
struct Turns {
  uint32_t last = 0;     // the host list has done with chunk c in turn c + last
  bool reuses = false;   // a slot is filled more than once
  bool through = false;  // the device copies through the rings
  bool answers = false;  // readers post that they have read a slot
  bool sends = false;    // links read shadows, or slots that the device fills

  Turns(const Builder &b, const Plan &p) {
    for (const Stage &s : p.host) last = std::max(last, s.skew);
    reuses = p.chunks == 0 || p.chunks > p.slots;
    const bool reaches = p.slot_bytes > 0 && p.slots * p.slot_bytes <= b.request.reach;
    answers = std::any_of(p.steps.begin(), p.steps.end(),
                          [](const Step &x) { return x.kind == StepKind::Post && x.counter == kConsumed; });
    through = reaches && (!reuses || p.slots >= last + (answers ? 3 : 2));
  }
  // After the moves through slots were taken out. One turn more gives the links time to take what they were given last, where there are
  // slots for it.
  void wait_for_links(const Plan &p) {
    for (const Step &s : p.steps) {
      if (s.kind != StepKind::Send || s.token) continue;
      const Span &from = p.sources[s.source];
      if (of_user(from) || (through && from.memory == Memory::Ring)) sends = true;
    }
    if (sends && reuses && last + 1 + (through ? answers ? 3 : 2 : 1) <= p.slots) ++last;
  }
  // By how many chunks the device copies in before it copies out.
  uint32_t ahead(const Plan &p) const {
    if (reuses && last + 1 > p.slots) fail(Code::Internal, "a plan of {} slots runs over {} turns", p.slots, last);
    uint32_t ahead = last + 1;
    const auto fits = [&](uint32_t a) {
      return !reuses || (!through ? a <= p.slots : answers ? 2 * a - last < p.slots : a < p.slots);
    };
    while (ahead < last + 3 && fits(ahead + 1)) ++ahead;
    return p.chunks > 0 ? std::min(ahead, p.chunks) : ahead;
  }
};

// What stands in the host list before everything else, and after it.
void add_gates(Builder &b, const Turns &turns, const Direct &direct, uint32_t ahead) {
  Plan &p = b.plan;
  b.stage("staged", 0);
  b.wait(b.rank, kStaged);
  std::rotate(p.host.begin(), p.host.end() - 1, p.host.end());
  b.stage("give", turns.last);
  if (turns.sends) b.taken();
  // Behind this gate the device fills the slot of a chunk that comes `ahead` later.
  for (const Step &s : direct.reuse) {
    Extent e = s.extent;
    e.base += e.stride * ahead;
    if (s.guarded) b.wait(s.peer, s.counter, e);
    else b.wait(s.peer, s.counter);
    p.steps.back().add = s.add + ahead;
  }
  b.post(kReady);
  if (direct.after.empty()) return;
  b.stage("taken", ahead);  // in this turn the device has staged a chunk that it copies in behind the one it copied out
  for (const Step &s : direct.after) b.post(s.counter);
}

}  // namespace

void stage_user_memory(Builder &b) {
  Plan &p = b.plan;
  if (p.host.empty() || !p.device.empty()) return;
  if (p.slots == 0) p.slots = std::clamp<uint32_t>(b.request.max_slots, 2, 64);
  Turns turns(b, p);
  const Direct direct = turns.through ? take_out(p) : Direct{};
  turns.wait_for_links(p);
  const InsideCopies copies(p);
  Shadows shadows;
  shadows.stand_for(b, p.steps);
  if (shadows.all().empty() && copies.steps.empty() && direct.in.empty() && direct.out.empty()) return;
  const uint32_t ahead = turns.ahead(p);
  const bool host = !p.steps.empty();
  if (host) add_gates(b, turns, direct, ahead);
  else p.host.clear();

  b.device_stage("copy out", ahead);
  if (host) b.wait(b.rank, kReady);
  for (const Shadows::Shadow &s : shadows.all())
    if (s.memory == Memory::Output && s.written) b.move(s.extent(p.chunk), s.scratch(), s.user());
  for (const Step &s : direct.out) b.move(s.extent, p.sources[s.source], s.dst);
  b.device_stage("copy in", 0, true);
  for (const Shadows::Shadow &s : shadows.all())
    if (s.memory == Memory::Input) b.move(s.extent(p.chunk), s.user(), s.scratch());
  for (const Step &s : direct.in) b.move(s.extent, p.sources[s.source], s.dst);
  for (size_t i = 0; i < copies.steps.size(); ++i) b.move(copies.steps[i].extent, copies.from[i], copies.steps[i].dst);
  if (host) b.post(kStaged);
  p.comes_early = host;
}

}  // namespace isthmus::plan
