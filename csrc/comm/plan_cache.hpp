// From the shape of a call to its plan, or to one hop. Plans are kept: the next call of the same shape takes the same plan.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <unordered_map>

#include "base/lock.hpp"
#include "comm/terms.hpp"
#include "plan/plan.hpp"
#include "rank/rank.hpp"

namespace isthmus::comm {

// What of a call its plan depends on, beside the terms on which the ranks have agreed.
struct Shape {
  plan::Collective collective = plan::Collective::Barrier;
  DType dtype = DType::UInt8;
  RedOp op = RedOp::Sum;
  int root = 0;
  uint64_t bytes = 0;  // of one block
  bool in_place = false;
  bool device = false;  // the call's memory is a device's
  bool operator==(const Shape &) const = default;
};

enum class Path : uint8_t { OneHop, Plan };  // OneHop: each rank writes a cell, and reads the other ranks' cells
struct PlanChoice {
  plan::Request request;
  Path path = Path::Plan;
};

class PlanCache {
 public:
  // Of the rank `own` in a communicator of this topology and these terms. All three outlive the cache and stay as they are.
  PlanCache(const topology::Topology &topology, const Terms &terms, const rank::Identity &own);

  // The request that a call of this shape would be planned for, and whether cells serve the call instead.
  PlanChoice choose(const Shape &shape) const;
  // The kept plan of the request, or a new one.
  std::shared_ptr<const plan::Plan> plan_for(const plan::Request &request);
  // The same, for the device's part of a call that cells serve (plan::plan_by_cells).
  std::shared_ptr<const plan::Plan> by_cells(const plan::Request &request);

 private:
  bool planned_flat(const plan::Request &r) const;
  std::shared_ptr<const plan::Plan> kept(const plan::Request &r, bool by_cells);
  bool goes_by_cells(const Shape &shape, const plan::Request &r) const;

  const topology::Topology &topology_;
  const Terms &terms_;
  const rank::Identity &own_;
  const bool apart_;  // holes lie between the ranks' slots, and so between the blocks of a buffer
  // By collective, dtype, op and size class: whether a request is planned flat although libraries serve islands. -1: not known yet.
  mutable std::array<std::atomic<int8_t>, size_t{kCollectiveCount} * kDTypeCount * kRedOpCount * 2> flat_;

  struct PlanKey {
    Shape shape;
    uint64_t small_bytes;
    bool by_cells = false;
    bool operator==(const PlanKey &) const = default;
  };
  struct PlanKeyHash {
    size_t operator()(const PlanKey &k) const noexcept;
  };
  Mutex mutex_;
  std::unordered_map<PlanKey, std::shared_ptr<const plan::Plan>, PlanKeyHash> plans_ ISTHMUS_GUARDED_BY(mutex_);
};

}  // namespace isthmus::comm
