#include "process/rank_table.hpp"

#include <utility>

namespace isthmus::process {

uint32_t RankTable::reserve() {
  const Lock lock(mutex_);
  if (!free_indices_.empty()) {
    const uint32_t i = free_indices_.back();
    free_indices_.pop_back();
    return i;
  }
  ranks_.emplace_back();
  return static_cast<uint32_t>(ranks_.size() - 1);
}

void RankTable::release(uint32_t index) {
  const Lock lock(mutex_);
  std::erase_if(joining_, [index](const Joining &j) { return j.index == index; });
  free_indices_.push_back(index);
}

void RankTable::set(uint32_t index, std::shared_ptr<LocalRank> rank) {
  const Lock lock(mutex_);
  std::erase_if(joining_, [index](const Joining &j) { return j.index == index; });
  ranks_[index] = std::move(rank);
}

std::shared_ptr<LocalRank> RankTable::take(uint32_t index) {
  const Lock lock(mutex_);
  return std::exchange(ranks_[index], nullptr);
}

std::shared_ptr<LocalRank> RankTable::at(uint32_t index) const {
  const Lock lock(mutex_);
  return index < ranks_.size() ? ranks_[index] : nullptr;
}

std::vector<std::shared_ptr<LocalRank>> RankTable::all() const {
  const Lock lock(mutex_);
  std::vector<std::shared_ptr<LocalRank>> out;
  for (const auto &rank : ranks_)
    if (rank) out.push_back(rank);
  return out;
}

std::shared_ptr<const std::atomic<bool>> RankTable::making(uint32_t index, uint32_t epoch) {
  auto failed = std::make_shared<std::atomic<bool>>(false);
  const Lock lock(mutex_);
  joining_.push_back({index, epoch, failed});
  return failed;
}

void RankTable::failed_while_making(uint32_t index, uint32_t epoch) {
  const Lock lock(mutex_);
  for (const Joining &j : joining_)
    if (j.index == index && j.epoch == epoch) j.failed->store(true);
}

void RankTable::retire(uint32_t index, uint32_t epoch, Gone gone, std::function<bool()> safe,
                       std::function<void()> free_it) {
  const Lock lock(retired_mutex_);
  retired_.push_back({index, epoch, std::move(gone), std::move(safe), std::move(free_it)});
}

void RankTable::has_gone(uint32_t index, uint32_t epoch, uint32_t rank) {
  const Lock lock(retired_mutex_);
  for (auto &r : retired_)
    if (r.index == index && r.epoch == epoch && rank < r.gone->size()) (*r.gone)[rank].store(true);
}

void RankTable::sweep() noexcept {
  std::vector<Retired> ready;
  const Lock alone(sweeping_mutex_);  // what another thread has taken out is free when this returns
  {
    const Lock lock(retired_mutex_);
    for (size_t i = 0; i < retired_.size();) {
      if (!retired_[i].safe()) {
        ++i;
        continue;
      }
      ready.push_back(std::move(retired_[i]));
      retired_[i] = std::move(retired_.back());
      retired_.pop_back();
    }
    freeing_ += static_cast<int>(ready.size());
  }
  for (auto &r : ready) {
    r.free_it();
    release(r.index);
    const Lock lock(retired_mutex_);
    --freeing_;
  }
}

int RankTable::leaving() const {
  const Lock lock(retired_mutex_);
  return static_cast<int>(retired_.size()) + freeing_;
}

}  // namespace isthmus::process
