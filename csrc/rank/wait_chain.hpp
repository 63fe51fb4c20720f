// WaitChain follows who waits for whom over several ranks, from one rank to the rank that keeps the others waiting. A rank waits for another one in a
// collective, or in a message.
//
//   hops   rank 0 in #41 ---> rank 1 in send to rank 2 ---> rank 2 in #41
//   said   rank 1 has not called #41: it is in send to rank 2, which rank 2 has not received
//
// Thread rules: with the right to execute.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "rank/names.hpp"

namespace isthmus::rank {

// How long a search for a culprit waits for the answer of a process whose heartbeats still come: seconds. Several that are asked at once have that
// time together.
inline constexpr double kBlamePatience = 2.5;
inline constexpr int kAnswerMs = 150;  // for a process that is well

process::ControlRoom::Inquiry ask(const RankCore &core, int q, const process::RankQuestion &question);

struct Culprit {
  Code code = Code::Timeout;  // what the operation fails with
  // Who has not come, or is gone; empty for one that is there, and is slow or does something else.
  std::vector<int> ranks{};
};

class WaitChain {
 public:
  // `served_in`: see Blame. `op`: what is late here.
  WaitChain(RankCore &core, const std::vector<int> &served_in, const Operation &op, Culprit &found);
  // What is said of the rank that keeps `op` waiting. The chain begins with rank `first`, for which this rank waits.
  std::string follow(int first) noexcept;

 private:
  enum class Kind : uint8_t {
    Collective,
    Island,   // a collective, for a rank of the same island
    Message,  // a thread waits for the message
    Pending,  // a message that is not over, and for which no thread waits
  };
  struct Hop {  // `rank` waits for rank `next`, or with -1 for any rank
    int rank, next;
    Kind kind;
    process::MessageSide side = process::MessageSide::None;
    int tag = 0;
    uint64_t sequence = 0;
    uint32_t turn = 0;
    bool of_message() const noexcept { return kind == Kind::Message || kind == Kind::Pending; }
  };
  struct Seen {  // a rank that has answered
    int rank;
    std::string who, busy, heard;
    Answer said;
  };

  // What is said of rank `q`. Or nothing: then the chain has one hop more.
  std::optional<std::string> look_at(int q) noexcept;
  std::optional<std::string> look_at_message(const Seen &q) noexcept;
  std::optional<std::string> look_at_collective(const Seen &q) noexcept;
  std::string waits_for_nobody(const Seen &q, int &next) noexcept;
  std::string ends_where_it_began(const Seen &q) noexcept;

  std::string stands_in_message(const Seen *next) noexcept;
  std::string no_other_side(const Seen &q) noexcept;
  std::string mutual(const Seen &q) noexcept;
  std::string crossed(const Hop &message) const;
  std::string not_called(const Seen &q) noexcept;

  bool has_seen(int rank) const noexcept;
  bool has_next(const Seen &q) const noexcept;  // the rank waits for one that is not in the chain yet
  std::string number(int rank) const { return formatted("rank {}", core_.id.number(rank)); }
  std::string it() const;  // the collective for which the chain waits
  std::string chain(size_t without_last = 0) const;
  std::string text(const Hop &hop) const;
  std::string message_text(const Hop &hop, bool in_brackets) const;
  std::string way_text(int a, int b) const;
  bool many_communicators() const;

  RankCore &core_;
  const std::vector<int> &served_in_;
  const Operation &op_;
  Culprit &found_;
  const Deadline end_;     // behind it no question has the time that a slow process needs
  uint64_t collective_;    // for whose call a rank of the chain waits; 0: for that of none
  std::vector<Hop> hops_;  // the first is this rank's
};

}  // namespace isthmus::rank
