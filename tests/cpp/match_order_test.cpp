// Receives and messages in random order, of one to three senders: who meets whom.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "messages/match_order.hpp"

namespace isthmus::messages {
namespace {

constexpr int kTags = 3;
constexpr uint32_t kParts[kTags] = {1, 1, 3};  // of a message with that tag

// One receiver and its senders. A link keeps the order of its sender's messages, so they come from a queue.
class MatchModel {
 public:
  MatchModel(uint64_t seed, int senders) : random_(seed), senders_(senders), links_(static_cast<size_t>(senders)) {}

  void run(int messages) {
    for (int i = 0; i < messages; ++i) plan();
    while (!calls_.empty() || arriving()) {
      if (!calls_.empty() && (!arriving() || chance(2))) call_receive();
      else message_comes();
      check_nothing_waits_in_vain();
    }
  }
  void check_all_have_met() const {
    EXPECT_EQ(order_.posted.head, nullptr);
    EXPECT_EQ(met_, planned_);
  }

 private:
  bool chance(int of) { return std::uniform_int_distribution<int>(0, of - 1)(random_) == 0; }
  int below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }
  bool arriving() const {
    return std::any_of(links_.begin(), links_.end(), [](const auto &link) { return !link.empty(); });
  }
  struct Frame {
    int32_t tag;
    uint32_t part;
    uint64_t number;  // of the message, among those of its sender and tag
  };
  struct Receive {  // with its parts, or one alone
    Operation whole;
    std::vector<std::unique_ptr<Operation>> parts;
  };

  // A message and its receive. A receive from any rank of one tag would take messages that receives from one rank wait for, so a tag has one
  // kind of receive.
  void plan() {
    const int source = below(senders_), tag = below(kTags);
    const uint64_t number = sent_[{source, tag}]++;
    for (uint32_t part = 0; part < kParts[tag]; ++part) links_[static_cast<size_t>(source)].push_back({tag, part, number});
    calls_.emplace_back(any_[tag] ? -1 : source, tag);
    planned_ += kParts[tag];
  }

  void call_receive() {
    const auto at = calls_.begin() + below(static_cast<int>(std::min<size_t>(calls_.size(), 4)));
    const auto [source, tag] = *at;
    // Receives of one sender and tag keep their order: the first of them that is left is called.
    for (auto first = calls_.begin();; ++first)
      if (*first == *at) {
        calls_.erase(first);
        break;
      }
    Receive &receive = *receives_.emplace_back(std::make_unique<Receive>());
    for (uint32_t part = 0; part < kParts[tag]; ++part) {
      Operation &op = *receive.parts.emplace_back(std::make_unique<Operation>());
      op.call.collective = Collective::Recv;
      op.call.root = source;
      op.call.tag = tag;
      op.cut.part = part;
      if (kParts[tag] > 1) {
        op.cut.whole = kParts[tag];
        op.end.parent = &receive.whole;
      }
      called_[&op] = calls_made_++;
      if (UnexpectedMessage *const m = order_.message_for(op)) {
        meet(op, m->source, static_cast<uint32_t>(m->id));
        order_.unexpected.done(*m);
      } else {
        order_.posted.append(&op);
      }
    }
  }

  void message_comes() {
    size_t from;
    do from = static_cast<size_t>(below(senders_));
    while (links_[from].empty());
    const Frame frame = links_[from].front();
    links_[from].pop_front();
    const int source = static_cast<int>(from);
    if (Operation *const op = order_.take_receive_for(source, frame.tag, frame.part)) {
      meet(*op, source, static_cast<uint32_t>(frame.number));
      return;
    }
    link::FrameHeader h;
    h.kind = link::FrameKind::RequestToSend;
    h.source = static_cast<uint32_t>(source);
    h.tag = frame.tag;
    h.part = frame.part;
    h.id = frame.number;
    order_.unexpected.add(h, nullptr);
  }

  void meet(Operation &op, int source, uint32_t number) {
    MatchOrder::meet(op, source);
    ++met_;
    const int tag = op.call.tag;
    if (op.call.root >= 0) { EXPECT_EQ(op.call.root, source); }
    if (op.end.parent) { EXPECT_EQ(op.end.parent->cut.source, source) << "the parts of a message come from one rank"; }
    // Messages of one sender and tag, part by part, meet receives in the order of the calls.
    auto &[last_number, last_call] = last_[{source, tag, op.cut.part}];
    EXPECT_EQ(number, last_number++) << "messages of one rank with one tag meet receives in the order of their sends";
    EXPECT_GT(called_.at(&op) + 1, last_call)
        << "of two receives that fit the one that was called first is the first to meet";
    last_call = called_.at(&op) + 1;
  }

  // A receive is posted only while no message that fits is aside.
  void check_nothing_waits_in_vain() {
    for (Operation *o = order_.posted.head; o; o = o->message.next) EXPECT_EQ(order_.message_for(*o), nullptr);
  }

  std::mt19937_64 random_;
  const int senders_;
  MatchOrder order_;
  std::vector<std::deque<Frame>> links_;
  std::deque<std::pair<int, int>> calls_;
  std::vector<std::unique_ptr<Receive>> receives_;
  std::map<std::pair<int, int>, uint64_t> sent_;
  std::map<const Operation *, uint64_t> called_;
  std::map<std::tuple<int, int, uint32_t>, std::pair<uint64_t, uint64_t>> last_;
  bool any_[kTags] = {chance(2), chance(2), chance(2)};
  uint64_t calls_made_ = 0, planned_ = 0, met_ = 0;
};

TEST(MatchOrder, InEveryScheduleEachMessageMeetsTheReceiveThatMpiNames) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    MatchModel model(seed, 1 + static_cast<int>(seed % 3));
    model.run(30);
    model.check_all_have_met();
    if (HasFailure()) break;
  }
}

TEST(MatchOrder, OfTwoRanksTheFirstToComeMeetsAReceiveFromAnyRank) {
  MatchOrder order;
  Operation any;
  any.call.root = -1;
  any.call.tag = 7;
  order.posted.append(&any);
  EXPECT_EQ(order.take_receive_for(1, 6, 0), nullptr);
  EXPECT_EQ(order.take_receive_for(1, 7, 0), &any);
  EXPECT_EQ(order.take_receive_for(0, 7, 0), nullptr);
}

}  // namespace
}  // namespace isthmus::messages
