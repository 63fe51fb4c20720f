#include "comm/plan_cache.hpp"

namespace isthmus::comm {

PlanCache::PlanCache(const topology::Topology &topology, const Terms &terms, const rank::Identity &own)
    : topology_(topology), terms_(terms), own_(own), apart_(own.number(own.world - 1) - own.number(0) != own.world - 1) {
  for (auto &f : flat_) f.store(-1, std::memory_order_relaxed);
}

size_t PlanCache::PlanKeyHash::operator()(const PlanKey &k) const noexcept {
  const Shape &s = k.shape;
  uint64_t h = s.bytes * 0x9e3779b97f4a7c15ull;
  h ^= static_cast<uint64_t>(s.collective) << 32 ^ static_cast<uint64_t>(s.dtype) << 24 ^ static_cast<uint64_t>(s.op) << 16 ^
       static_cast<uint64_t>(s.in_place) << 8 ^ static_cast<uint64_t>(s.device) << 9 ^
       static_cast<uint64_t>(static_cast<uint32_t>(s.root)) << 40;
  h ^= k.small_bytes << 12 ^ static_cast<uint64_t>(k.by_cells) << 10;
  h ^= h >> 29;
  return static_cast<size_t>(h * 0xbf58476d1ce4e5b9ull);
}

// Libraries serve what they can, of any size, and the planner knows what they can. Of the size only one thing matters: whether the size is small.
bool PlanCache::planned_flat(const plan::Request &r) const {
  const size_t key = ((static_cast<size_t>(r.collective) * kDTypeCount + static_cast<size_t>(r.dtype)) * kRedOpCount +
                      static_cast<size_t>(r.op)) *
                         2 +
                     (r.bytes <= r.small_bytes);
  int8_t flat = flat_[key].load(std::memory_order_relaxed);
  if (flat < 0) flat_[key].store(flat = plan::planned_on(topology_, r).flat, std::memory_order_relaxed);
  return flat != 0;
}

// The same on all ranks, whatever memory each of them has given: a device's rank takes part by copies that are its own affair.
bool PlanCache::goes_by_cells(const Shape &shape, const plan::Request &r) const {
  const Collective c = shape.collective;
  const auto world = static_cast<uint64_t>(own_.world);
  const bool each = traits(c).input == Blocks::OnePerRank;
  if (!own_.topology.flat || world < 2 || is_varying(c) || shape.bytes > terms_.eager_bytes ||
      (each && shape.bytes * world > terms_.eager_bytes))
    return false;
  if (!terms_.libraries) return true;
  // A library moves the blocks of devices that stay in its island (plan::inside_of).
  if (terms_.devices && (is_exchange(c) || gathers_to_root(c) || scatters_from_root(c))) return false;
  return planned_flat(r);
}

PlanChoice PlanCache::choose(const Shape &shape) const {
  const Collective c = shape.collective;
  const bool flat = own_.topology.flat;
  plan::Request p;
  p.collective = c;
  p.dtype = shape.dtype;
  p.op = shape.op;
  p.root = shape.root;
  p.bytes = shape.bytes;
  p.chunk_bytes = terms_.chunk_bytes;
  p.small_bytes = terms_.leader_bytes;
  p.small_from = terms_.leader_bytes_from;
  p.apart = apart_ && !is_single_block(c) && !is_varying(c);
  p.in_place = shape.in_place;
  p.device = shape.device;
  // The size is not known, so chunks are small. Slots of more chunks are as large together as those of a long message.
  if (is_varying(c) && flat && !terms_.devices) p.max_slots = 16;
  if (terms_.fixed_rings || (terms_.devices && !flat)) p.max_slots = plan::kDeviceSlots;
  p.paced_bytes = terms_.paced_bytes;
  p.far = terms_.far;
  if (p.far) p.way_bytes = terms_.way_bytes();
  if (shape.device) p.reach = terms_.reach;
  p.stream_bytes = terms_.stream_bytes;
  return {p, goes_by_cells(shape, p) ? Path::OneHop : Path::Plan};
}

std::shared_ptr<const plan::Plan> PlanCache::plan_for(const plan::Request &r) { return kept(r, false); }

std::shared_ptr<const plan::Plan> PlanCache::by_cells(const plan::Request &r) { return kept(r, true); }

std::shared_ptr<const plan::Plan> PlanCache::kept(const plan::Request &r, bool by_cells) {
  const PlanKey key{{r.collective, r.dtype, r.op, r.root, r.bytes, r.in_place, r.device}, r.small_bytes, by_cells};
  const Lock lock(mutex_);
  if (const auto it = plans_.find(key); it != plans_.end()) return it->second;
  auto plan = by_cells ? plan::plan_by_cells(topology_, own_.rank, r) : plan::plan_collective(topology_, own_.rank, r);
  if (plans_.size() >= 512) plans_.clear();  // shapes that never come back must not pile up
  plans_.emplace(key, plan);
  return plan;
}

}  // namespace isthmus::comm
