// Plans of ranks whose memory only their device can touch, and which no library serves: the plan of a host rank, with a shadow in pinned
// host memory for every chunk of a block that the host list touches. The device list copies a chunk in before the host list begins with
// it and copies it out when the host list has done with it; what only goes from the user's input to the user's output never leaves the
// device.
//
// Order. The device works in the one order copy out (c - ahead), copy in (c): as one queue it waits at the gate of chunk c - ahead having
// staged all chunks before c. The host list opens that gate `last` turns after it began with the chunk, for which it needs no chunk beyond
// c - ahead + last: ahead = last + 1 suffices. A shadow is used again `slots` chunks later, and ahead <= slots, so whoever fills it again
// has passed the gate of the chunk that had it before.
#include <algorithm>

#include "base/error.hpp"
#include "plan/builder.hpp"

namespace isthmus::plan {
namespace {

struct Shadow {
  Memory memory = Memory::Input;
  uint32_t block = 0;
  uint64_t at = 0;  // in a slot of scratch
  bool written = false;
};

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

}  // namespace

void stage_user_memory(Builder &b) {
  Plan &p = b.plan;
  if (p.host.empty() || !p.device.empty()) return;
  uint32_t last = 0;
  for (const Stage &s : p.host) last = std::max(last, s.skew);
  if (p.slots == 0) p.slots = std::clamp<uint32_t>(b.request.max_slots, 2, 64);
  const bool reuses = p.chunks == 0 || p.chunks > p.slots;
  // One turn more gives the links time to take what they were given last, where there are slots for it.
  bool sends = false;
  for (const Step &s : p.steps)
    if (s.kind == StepKind::Send && !s.token && of_user(p.sources[s.source])) sends = true;
  if (sends && reuses && last + 2 <= p.slots) ++last;

  std::vector<Shadow> shadows;
  const auto shadow = [&](Span &s, bool written) {
    if (!of_user(s)) return;
    if (s.partial) fail(Code::Internal, "a plan keeps partial results in the user's memory");
    auto it = std::find_if(shadows.begin(), shadows.end(),
                           [&](const Shadow &x) { return x.memory == s.memory && x.block == s.block; });
    if (it == shadows.end()) it = shadows.insert(it, {s.memory, s.block, b.need_scratch(p.chunk), false});
    it->written = it->written || written;
    s = {Memory::Scratch, -1, 0, it->at + s.base, 0, false};
  };
  std::vector<Step> copies;
  std::vector<Span> copied_from;
  // The steps that stay keep their order; stages are cut anew around them.
  std::vector<Step> steps;
  for (Stage &stage : p.host) {
    const uint32_t begin = static_cast<uint32_t>(steps.size());
    for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
      if (inside(p, p.steps[i])) {
        copies.push_back(p.steps[i]);
        copied_from.push_back(p.sources[p.steps[i].source]);
      } else {
        steps.push_back(p.steps[i]);
      }
    }
    stage.step = begin;
    stage.steps = static_cast<uint32_t>(steps.size()) - begin;
  }
  for (Step &s : steps) {
    if (writes(s)) {
      shadow(s.dst, true);
      if (s.has_copy) shadow(s.copy, true);
      s.stream = false;  // the device reads it at once
    }
    for (uint32_t i = 0; reads(s) && i < s.sources; ++i) shadow(p.sources[s.source + i], false);
  }
  p.steps = std::move(steps);
  if (shadows.empty() && copies.empty()) return;
  if (reuses && last + 1 > p.slots) fail(Code::Internal, "a plan of {} slots runs over {} turns", p.slots, last);
  const bool host = !p.steps.empty();
  if (!host) p.host.clear();

  // Before everything else of the host's, and after it.
  if (host) {
    b.stage("staged", 0);
    b.wait(b.rank, kStaged);
    std::rotate(p.host.begin(), p.host.end() - 1, p.host.end());
    b.stage("give", last);
    if (sends) b.taken();
    b.post(kReady);
  }

  const auto whole = [&](const Shadow &s) { return Extent{s.memory, s.block, 0, p.chunk, p.chunk}; };
  const auto user = [](const Shadow &s) { return Span{s.memory, -1, s.block, 0, 0, false}; };
  uint32_t ahead = last + 1;
  if (p.chunks > 0) ahead = std::min(ahead, p.chunks);
  b.device_stage("copy out", ahead);
  if (host) b.wait(b.rank, kReady);
  for (const Shadow &s : shadows)
    if (s.memory == Memory::Output && s.written) b.move(whole(s), Builder::scratch(s.at), user(s));
  b.device_stage("copy in", 0);
  for (const Shadow &s : shadows)
    if (s.memory == Memory::Input) b.move(whole(s), user(s), Builder::scratch(s.at));
  for (size_t i = 0; i < copies.size(); ++i) b.move(copies[i].extent, copied_from[i], copies[i].dst);
  if (host) b.post(kStaged);
}

}  // namespace isthmus::plan
