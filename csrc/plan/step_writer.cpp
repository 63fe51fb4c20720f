#include "plan/step_writer.hpp"

#include <algorithm>

namespace isthmus::plan {

PlanMemory::PlanMemory(const topology::Topology &t, const Clusters &all, int me, Plan &p)
    : Neighbourhood(t, all, me),
      plan(p),
      request(p.request),
      varying(is_varying(p.request.collective)),
      ratio(accumulator_ratio(p.request.dtype)) {}

Span PlanMemory::input(uint32_t block, uint64_t at) { return {Memory::Input, -1, block, at, 0, false}; }
Span PlanMemory::output(uint32_t block, uint64_t at) { return {Memory::Output, -1, block, at, 0, false}; }
Span PlanMemory::ring(int owner, uint64_t at) const { return {Memory::Ring, owner == rank ? -1 : owner, 0, at, 0, false}; }
Span PlanMemory::scratch(uint64_t at, bool partial) { return {Memory::Scratch, -1, 0, at, 0, partial}; }

bool PlanMemory::sends_partials(size_t of_cluster) const noexcept {
  return clusters.size(of_cluster) > 1 && !clusters.library[of_cluster];
}

Span PlanMemory::contribution(size_t of_cluster, Span s) const {
  if (clusters.library[of_cluster])
    s.weight = 1u << asked_of_library(request, clusters.size(of_cluster), others == 0).halvings;
  return s;
}

Span PlanMemory::with_stride(Span s) const {
  if (s.memory != Memory::Device) s.stride = s.memory == Memory::Input || s.memory == Memory::Output ? plan.chunk : 0;
  return s;
}

Extent PlanMemory::extent(Memory of, uint32_t block, Range r) const { return {of, block, r.begin, plan.chunk, r.size()}; }

Span PlanMemory::device(uint64_t at, uint64_t stride) { return {Memory::Device, -1, 0, at, stride, false}; }
uint64_t PlanMemory::need_device(uint64_t bytes) {
  const uint64_t at = plan.device_bytes;
  plan.device_bytes += (bytes + kLine - 1) / kLine * kLine;
  return at;
}
uint64_t PlanMemory::need_scratch(uint64_t bytes) {
  const uint64_t at = plan.scratch_stride;
  plan.scratch_stride += (bytes + kLine - 1) / kLine * kLine;
  return at;
}
void PlanMemory::need_ring(uint64_t bytes) { plan.slot_bytes = std::max(plan.slot_bytes, bytes); }

void StepWriter::stage(const char *name, uint32_t skew) {
  on_device_ = false;
  plan.host.push_back({name, skew, static_cast<uint32_t>(plan.steps.size()), 0});
}
void StepWriter::device_stage(const char *name, uint32_t skew, bool beside) {
  on_device_ = true;
  plan.device.push_back({name, skew, static_cast<uint32_t>(plan.steps.size()), 0, beside});
}
void StepWriter::together() { plan.device.back().together = true; }
Step &StepWriter::step(StepKind kind) {
  ++(on_device_ ? plan.device : plan.host).back().steps;
  plan.steps.emplace_back().kind = kind;
  return plan.steps.back();
}

void StepWriter::move(const Extent &e, Span from, Span to, bool scale, bool streamed) {
  if (e.length == 0) return;
  Step &s = step(StepKind::Move);
  s.extent = e;
  s.dst = with_stride(to);
  s.scaled = scale;
  s.stream = streamed;
  s.source = static_cast<uint32_t>(plan.sources.size());
  s.sources = 1;
  plan.sources.push_back(with_stride(from));
}

bool StepWriter::never(When when) const noexcept {
  return !varying && (when == When::FullChunk   ? request.bytes < plan.chunk
                      : when == When::PartChunk ? request.bytes % plan.chunk == 0
                                                : false);
}

void StepWriter::move_for(When when, const Extent &e, Span from, Span to) {
  if (e.length == 0 || never(when)) return;
  move(e, from, to);
  plan.steps.back().when = when;
}

void StepWriter::reduce(const Extent &e, const std::vector<Span> &from, const std::vector<uint32_t> &ends, Span to,
                        bool partial, const Span *second, bool streamed) {
  if (e.length == 0) return;
  Step &s = step(StepKind::Reduce);
  s.extent = e;
  s.dst = with_stride(to);
  s.partial = partial;
  s.divisor = partial ? 1 : divisor_of(request.op, world);
  if (second) {
    s.copy = with_stride(*second);
    s.has_copy = true;
    s.stream = streamed;
  }
  s.source = static_cast<uint32_t>(plan.sources.size());
  s.sources = static_cast<uint32_t>(from.size());
  for (const Span &f : from) plan.sources.push_back(with_stride(f));
  // Groups of one source each, or one group of all, add in the plain order.
  if (ends.size() > 1 && ends.size() < from.size()) {
    s.group = static_cast<uint32_t>(plan.group_ends.size());
    s.groups = static_cast<uint32_t>(ends.size());
    plan.group_ends.insert(plan.group_ends.end(), ends.begin(), ends.end());
  }
}

void StepWriter::send(int peer, const Extent &e, Span from) {
  if (e.length == 0) return;
  Step &s = step(StepKind::Send);
  s.peer = peer;
  s.extent = e;
  s.partial = from.partial;
  s.source = static_cast<uint32_t>(plan.sources.size());
  s.sources = 1;
  plan.sources.push_back(with_stride(from));
}
void StepWriter::recv(int peer, const Extent &e, Span to) {
  if (e.length == 0) return;
  Step &s = step(StepKind::Recv);
  s.peer = peer;
  s.extent = e;
  s.partial = to.partial;
  s.dst = with_stride(to);
}
void StepWriter::send_token(int peer, Extent e, Span from) {
  if (e.length == 0) return;
  e.length = std::min(e.length, kTokenBytes);
  send(peer, e, from);
  plan.steps.back().token = true;
}
void StepWriter::recv_token(int peer, Extent e, Span to) {
  if (e.length == 0) return;
  e.length = std::min(e.length, kTokenBytes);
  recv(peer, e, to);
  plan.steps.back().token = true;
}

void StepWriter::call(IslandCall call, When when, Extent e, Span from, Span to, int root) {
  if (when == When::PartChunk && !varying) {
    const uint64_t short_one = request.bytes % plan.chunk;
    e.length = std::min(e.length, short_one - std::min(e.base, short_one));
  }
  if (e.length == 0 || never(when)) return;
  Step &s = step(StepKind::Ccl);
  s.call = call;
  if (reduces(call)) {
    const Asked asked = asked_of_library(request, count, others == 0);
    s.op = asked.op;
    s.halvings = asked.halvings;
  }
  s.when = when;
  s.peer = root;
  s.extent = e;
  s.dst = with_stride(to);
  s.source = static_cast<uint32_t>(plan.sources.size());
  s.sources = 1;
  plan.sources.push_back(with_stride(from));
}

void StepWriter::taken() { step(StepKind::Taken); }

void StepWriter::post(uint8_t counter) {
  Step &s = step(StepKind::Post);
  s.counter = counter;
  s.mul = 1;
  s.add = 1;
}
void StepWriter::wait(int peer, uint8_t counter) {
  Step &s = step(StepKind::Wait);
  s.peer = peer;
  s.counter = counter;
  s.mul = 1;
  s.add = 1;
}
void StepWriter::wait(int peer, uint8_t counter, const Extent &guard) {
  if (guard.length == 0) return;
  wait(peer, counter);
  plan.steps.back().guarded = true;
  plan.steps.back().extent = guard;
}
void StepWriter::wait_reuse(int peer, uint8_t counter, uint32_t ahead) {
  if (!reuses()) return;
  wait(peer, counter);
  plan.steps.back().add = 1 + static_cast<int64_t>(ahead) - static_cast<int64_t>(plan.slots);
}
void StepWriter::wait_reuse(int peer, uint8_t counter, const Extent &guard) {
  if (!reuses() || guard.length == 0) return;
  wait(peer, counter, guard);
  plan.steps.back().add = 1 - static_cast<int64_t>(plan.slots);
}

void StepWriter::finish() {
  for (auto *list : {&plan.host, &plan.device}) {
    std::erase_if(*list, [](const Stage &s) { return s.steps == 0; });
    for (const Stage &s : *list) plan.max_skew = std::max(plan.max_skew, s.skew);
  }
  const auto slot = [](const Span &s) { return s.memory == Memory::Ring; };
  for (const Stage &stage : plan.host)
    for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
      const Step &s = plan.steps[i];
      bool touches = slot(s.dst) || (s.has_copy && slot(s.copy));
      for (uint32_t j = 0; j < s.sources; ++j) touches = touches || slot(plan.sources[s.source + j]);
      plan.host_in_slots = plan.host_in_slots || touches;
    }
  plan.uses_links = plan.sizes_by_links;
  const auto waits = [](const Step &s) { return s.kind == StepKind::Taken; };
  plan.waits_for_links = std::any_of(plan.steps.begin(), plan.steps.end(), waits);
  for (const Step &s : plan.steps) plan.uses_links = plan.uses_links || s.kind == StepKind::Send || s.kind == StepKind::Recv;
  if (plan.slot_bytes == 0 && plan.scratch_stride == 0) plan.slots = 0;
}

}  // namespace isthmus::plan
