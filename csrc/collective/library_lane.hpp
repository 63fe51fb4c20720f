// LibraryLane gives messages to the library of the rank's island, on the stream of the rank's collectives. One order of the library's calls and the
// collectives on the stream is the same on both sides of each message: docs/explain/islands.md says why.
#pragma once

#include "collective/engine_names.hpp"
#include "collective/succession.hpp"
#include "engine/island_lane.hpp"

namespace isthmus::collective {

class DeviceSide;

class LibraryLane final : public engine::IslandLane {
 public:
  explicit LibraryLane(DeviceSide &side) noexcept : side_(side) {}
  bool carries() const noexcept override;
  bool serves(int rank) const noexcept override;
  bool takes_several() const noexcept override;
  void exchange(std::span<Operation *const> messages, uint64_t ticket) override;
  uint64_t exchanged() const noexcept override;
  bool sound(const Operation &op) noexcept override;

  // What the next epoch may have of the library; empty where it is not whole. With the collective lock, as let_go(): after that the library's
  // communicator is the next epoch's.
  LibraryEstate estate() const;
  void let_go() noexcept;
  bool has_library() const noexcept;

 private:
  void give(std::span<Operation *const> messages);
  void end(uint64_t ticket) noexcept;
  DeviceSide &side_;
};

}  // namespace isthmus::collective
