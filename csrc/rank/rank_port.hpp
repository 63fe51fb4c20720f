// RankPort is one rank as its process sees the rank. RankPort passes to the rank's rooms what comes from the links, the control thread, the
// progress thread and the device workers.
#pragma once

#include "rank/names.hpp"
#include "process/local_rank.hpp"

namespace isthmus::rank {

class Rank;

class RankPort final : public process::LocalRank {
 public:
  explicit RankPort(Rank &rank) noexcept : rank_(rank) {}

  int rank() const noexcept override;
  int world() const noexcept override;
  uint32_t index() const noexcept override;
  uint32_t epoch() const noexcept override;
  std::weak_ptr<process::LocalRank> itself() noexcept override;
  bool give_idle_staging() noexcept override;
  bool has_lent_staging() const noexcept override;

  link::Accept accept_frame(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) override;
  void received_frame(const link::FrameHeader &h) override;
  void link_broken(const link::Link *link, const std::string &why) noexcept override;
  process::PathTo path_to(int rank) const noexcept override;

  void credit(uint32_t rank, uint64_t granted) noexcept override;
  void peer_left(uint32_t rank, uint64_t done, uint64_t sent, Leaving how) noexcept override;
  void peer_ends_library(uint32_t rank, Leaving how) noexcept override;
  void came_out_of_band(const process::OutOfBandHead &head, std::span<const std::byte> bytes) override;
  void withdrawn_out_of_band(uint32_t rank, uint64_t number) override;
  void came_of_agreement(const process::AgreeHead &head, std::span<const std::byte> ranks) override;
  void peer_lost(bootstrap::Peer &process, const std::string &why) noexcept override;
  void fail(Failure why, Tell whom) noexcept override;
  void raised(std::string_view what, bool first) noexcept override;
  Failure why() const override;
  Answer answer(const process::RankQuestion &question) const noexcept override;
  std::string inside_text() const override;
  std::string waiting_text() const override;

  bool has_work() const noexcept override;
  uint32_t waiters() const noexcept override;
  bool drive(LookAt links) noexcept override;
  int64_t check_deadlines(int64_t now) noexcept override;
  bool polls_device() const noexcept override;

  device::Runtime *runtime() const noexcept override;
  int device() const noexcept override;
  bool carry_messages() noexcept override;
  void look_at_device() noexcept override;
  void stop_stream() noexcept override;

 private:
  Rank &rank_;
};

}  // namespace isthmus::rank
