// Writes a plan: the memory that its steps work on, and the steps. Internal to the planner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/clusters.hpp"
#include "plan/plan.hpp"

namespace isthmus::plan {

inline constexpr uint64_t kTokenBytes = 8;
enum Counter : uint8_t { kCopied = 0, kReduced = 1, kConsumed = 2, kSpare = 3 };

// The memory of one rank's plan: names its parts as spans, and reserves what a slot, scratch and the device need.
class PlanMemory : public Neighbourhood {
 public:
  PlanMemory(const topology::Topology &t, const Clusters &all, int me, Plan &p);

  Plan &plan;
  const Request &request;
  const bool varying;    // v-collective: sizes are operands of the launch
  const uint64_t ratio;  // bytes of a partial result for each byte of data

  Range whole() const noexcept { return {0, plan.chunk}; }
  // Whether what a rank of that cluster sends of a sum is a partial result: neither its raw data, nor what a library has rounded. Bytes of that, for
  // each byte of data.
  bool sends_partials(size_t of_cluster) const noexcept;
  uint64_t wide(size_t of_cluster) const noexcept { return sends_partials(of_cluster) ? ratio : 1; }
  bool reuses() const noexcept { return varying || plan.chunks > plan.slots; }  // a slot is filled more than once

  static Span input(uint32_t block, uint64_t at);
  static Span output(uint32_t block, uint64_t at);
  static Span scratch(uint64_t at, bool partial = false);
  static Span device(uint64_t at, uint64_t stride = 0);
  Span ring(int owner, uint64_t at) const;
  // `s` as a source of a reduction: what a library made of the numbers of that cluster, or what one of its ranks had.
  Span contribution(size_t of_cluster, Span s) const;
  Extent extent(Memory of, uint32_t block, Range r) const;
  uint64_t need_device(uint64_t bytes);   // reserves, returns the offset
  uint64_t need_scratch(uint64_t bytes);  // reserves, returns the offset
  void need_ring(uint64_t bytes);         // the least bytes of a slot

 protected:
  Span with_stride(Span s) const;  // spans of the user's memory go on by a chunk
};

// The steps of one rank's plan. A step is appended to the last stage.
class StepWriter : public PlanMemory {
 public:
  using PlanMemory::PlanMemory;

  void stage(const char *name, uint32_t skew);  // of the host list
  void device_stage(const char *name, uint32_t skew, bool beside = false);
  void together();  // the calls of the stage that was begun last are one group of the library's
  void move(const Extent &e, Span from, Span to, bool scale = false, bool streamed = false);
  void move_for(When when, const Extent &e, Span from, Span to);  // a copy of the device's
  void reduce(const Extent &e, const std::vector<Span> &from, const std::vector<uint32_t> &ends, Span to, bool partial,
              const Span *second = nullptr, bool streamed = false);
  void send(int peer, const Extent &e, Span from);
  void recv(int peer, const Extent &e, Span to);
  void send_token(int peer, Extent e, Span from);
  void recv_token(int peer, Extent e, Span to);
  void call(IslandCall call, When when, Extent e, Span from, Span to, int root = 0);
  void taken();                                               // no link reads what was sent of this chunk any more
  void post(uint8_t counter);                                 // the value c + 1
  void wait(int peer, uint8_t counter);                       // for c + 1
  void wait(int peer, uint8_t counter, const Extent &guard);  // the same, where there is something to wait for
  // For c + 1 + ahead - slots: the last use is over of the slot of the chunk that comes `ahead` later.
  void wait_reuse(int peer, uint8_t counter, uint32_t ahead = 0);
  void wait_reuse(int peer, uint8_t counter, const Extent &guard);
  void finish();  // drops empty stages; sets max_skew, uses_links, host_in_slots, waits_for_links and slots

 private:
  bool never(When when) const noexcept;  // no chunk is such a one
  Step &step(StepKind kind);
  bool on_device_ = false;  // steps go to the device list
};

}  // namespace isthmus::plan
