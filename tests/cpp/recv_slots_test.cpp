// Receive slots: a model of senders and one receiver, whose steps come in random order, and the rules one by one.
#include "p2p/recv_slots.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace isthmus::p2p {
namespace {

constexpr uint64_t kSlotBytes = 64;

struct Words {
  std::atomic<uint64_t> asked{0}, landed{0};
};

// One rank receives from several. Its device has one queue, so whatever is submitted waits for what was submitted before. A step is the
// smallest thing that a thread does in one go; which comes next, chance decides. The model checks what lies in a slot whenever it is written
// or read, and that everything ends.
class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed) {
    const int senders = pick(1, 3);
    const auto slots = static_cast<uint32_t>(pick(1, 4));
    words_ = std::vector<Words>(static_cast<size_t>(senders));
    recv_.resize(senders, slots, kSlotBytes);
    for (int s = 0; s < senders; ++s) {
      Words &w = words_[static_cast<size_t>(s)];
      recv_.open(s, 1 + static_cast<uint64_t>(s) * slots * kSlotBytes, w.asked, w.landed);
      Sender &sender = senders_.emplace_back();
      sender.slots.open(slots, memory_, kSlotBytes, w.asked, w.landed);
      sender.lies.assign(slots, 0);
      sender.to_send = pick(0, 12);
    }
    to_receive_ = pick(0, 30);
    groups_ = pick(0, 1) != 0;
  }

  // Empty: everything has ended, and every message is where it belongs.
  std::string run() {
    for (int idle = 0; fault_.empty();) {
      if (step()) {
        idle = 0;
        continue;
      }
      if (over()) return {};
      now_ += kPatience;  // nobody can go on: those who wait for a slot lose their patience
      if (++idle > 100) return "nothing goes on: " + state();
    }
    return fault_;
  }

 private:
  static constexpr int64_t kPatience = 1000;
  enum class Way { Waits, InSlot, ByLink };
  struct Message {
    uint64_t number = 0;
    Way way = Way::Waits;
    int64_t called = 0;
    bool grouped = false, out = false;  // its frame is
  };
  struct Sender {
    SendSlots slots;
    std::vector<uint64_t> lies;  // in each slot: the number of the message; 0: it is empty
    std::vector<Message> messages;
    std::deque<uint64_t> frames;  // on their way; the number is all that they say of the message
    int to_send = 0;
  };
  enum class Kind { Host, Worker, Gated };
  struct Receive {
    SlotUse use;
    int source = RecvSlots::kAnySource, sender = -1;
    Kind kind = Kind::Host;
    bool own = false;                    // it has memory of its own
    bool brought = false;                // a processor has to bring its message from the slot
    bool granted = false, held = false;  // by the link; it waits for its slot
    bool arrived = false, submitted = false, over = false;
    uint64_t has = 0;  // the message in the memory of its own, or in the user's
  };

  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  void fail(const std::string &what) {
    if (fault_.empty()) fault_ = what;
  }
  Sender &sender(int s) { return senders_[static_cast<size_t>(s)]; }
  uint64_t &lies(int s, uint64_t number) { return sender(s).lies[recv_.slot(number)]; }

  bool step() {
    using Step = bool (Model::*)();
    Step steps[] = {&Model::call_send, &Model::advance_send, &Model::emit,  &Model::call_receive, &Model::take_frame,
                    &Model::order,     &Model::bring,        &Model::grant, &Model::submit,       &Model::run_device};
    std::shuffle(std::begin(steps), std::end(steps), random_);
    for (const Step one : steps)
      if ((this->*one)()) return true;
    return call_missing();
  }

  // ---- the senders
  bool call_send() {
    for (int s = pick(0, count() - 1), i = 0; i < count(); ++i, s = (s + 1) % count())
      if (sender(s).to_send > 0) return send(s), true;
    return false;
  }
  void send(int s) {
    --sender(s).to_send;
    Message m;
    m.number = sender(s).slots.number();
    m.called = now_;
    m.grouped = groups_;
    sender(s).messages.push_back(m);
  }
  bool advance_send() {
    for (int s = pick(0, count() - 1), i = 0; i < count(); ++i, s = (s + 1) % count())
      for (Message &m : sender(s).messages) {
        if (m.way != Way::Waits) continue;
        SendSlots &slots = sender(s).slots;
        if (slots.free(m.number)) {
          slots.took(now_);
          if (lies(s, m.number) != 0) fail("a message is written over another");
          lies(s, m.number) = m.number;
          m.way = Way::InSlot;
          return true;
        }
        if (slots.worth_waiting(m.number, {now_, kPatience, m.grouped, m.called, kPatience / 2})) continue;
        m.way = Way::ByLink;
        return true;
      }
    return false;
  }
  bool emit() {  // frames keep the order of the sends
    for (int s = pick(0, count() - 1), i = 0; i < count(); ++i, s = (s + 1) % count()) {
      const auto next =
          std::find_if(sender(s).messages.begin(), sender(s).messages.end(), [](const Message &m) { return !m.out; });
      if (next == sender(s).messages.end() || next->way == Way::Waits) continue;
      next->out = true;
      sender(s).frames.push_back(next->number);
      return true;
    }
    return false;
  }

  // ---- the receiver
  int count() const { return static_cast<int>(senders_.size()); }
  bool call_receive() {
    if (to_receive_ <= 0) return false;
    receive(pick(0, 3) == 0 ? RecvSlots::kAnySource : pick(0, count() - 1));
    return true;
  }
  void receive(int source) {
    --to_receive_;
    Receive &r = *receives_.emplace_back(std::make_unique<Receive>());
    r.source = source;
    r.kind = static_cast<Kind>(pick(0, 2));
    if (r.source >= 0 && pick(0, 3) == 0) {  // it was promised at the head of its group
      recv_.promise(r.source, 1);
      r.use.promised = true;
    }
    const bool gated = r.kind == Kind::Gated;
    r.own = r.kind != Kind::Host && (gated ? !recv_.claimable(r.source) || pick(0, 3) == 0 : pick(0, 3) == 0);
    recv_.claim(r.use, r.source, gated, r.own);
    if (gated) gate(r);
    const auto waits = std::find_if(unexpected_.begin(), unexpected_.end(),
                                    [&](const auto &m) { return r.source < 0 || r.source == m.first; });
    if (waits == unexpected_.end()) return posted_.push_back(&r);
    const auto [from, number] = *waits;
    unexpected_.erase(waits);
    meet(r, from, number);
  }
  void gate(Receive &r) {
    r.submitted = true;
    queue_.push_back(&r);
  }
  bool take_frame() {
    for (int s = pick(0, count() - 1), i = 0; i < count(); ++i, s = (s + 1) % count()) {
      if (sender(s).frames.empty()) continue;
      const uint64_t number = sender(s).frames.front();
      sender(s).frames.pop_front();
      const auto first =
          std::find_if(posted_.begin(), posted_.end(), [s](const Receive *r) { return r->source < 0 || r->source == s; });
      if (first == posted_.end()) return unexpected_.emplace_back(s, number), true;
      Receive &r = **first;
      posted_.erase(first);
      return meet(r, s, number), true;
    }
    return false;
  }
  void meet(Receive &r, int s, uint64_t number) {
    recv_.match(r.use, r.source, s);
    r.sender = s;
    if (r.use.number != number) fail("the two sides have not counted alike");
    if (!RecvSlots::as_expected(r.use)) fail("a receive got another message than it had been told");
    if (sender(s).messages[number - 1].way == Way::InSlot) {
      if (lies(s, number) != number) fail("a message does not lie in its slot");
      if (r.kind == Kind::Host || r.own) return (void)(r.brought = true);
      r.use.in_slot = true;
      r.arrived = true;
      return;
    }
    r.granted = true;
    if (r.use.in_slot) return (void)(r.held = true);  // grant() writes it there
    recv_.leave(r.use, s);
    r.has = number;
    come(r);
  }
  void come(Receive &r) { r.kind == Kind::Host ? r.over = true : r.arrived = true; }
  bool order() {  // a stream is to come behind a receive that has begun without one
    for (Receive *r : posted_) {
      if (r->kind != Kind::Worker || pick(0, 1) == 0) continue;
      r->kind = Kind::Gated;
      if (!r->own && !recv_.take_slot(r->use, r->source)) {
        r->own = true;
        recv_.stand_apart(r->use, r->source);
      } else if (r->own) {
        recv_.stand_apart(r->use, r->source);
      }
      return gate(*r), true;
    }
    return false;
  }
  bool bring() {
    for (const auto &r : receives_) {
      if (!r->brought) continue;
      r->brought = false;
      r->has = std::exchange(lies(r->sender, r->use.number), 0);
      recv_.leave(r->use, r->sender);
      return come(*r), true;
    }
    return false;
  }
  bool grant() {
    for (const auto &r : receives_) {
      if (!r->held || !recv_.may_come(r->use, r->sender)) continue;
      r->held = false;
      if (lies(r->sender, r->use.number) != 0) fail("a link writes over a message");
      lies(r->sender, r->use.number) = r->use.number;
      return r->arrived = true;
    }
    return false;
  }
  bool submit() {
    for (const auto &r : receives_) {
      if (!r->arrived || r->submitted || pick(0, 1) == 0) continue;
      if (r->use.in_slot) recv_.submitted(r->sender, r->use.number);
      return gate(*r), true;
    }
    return false;
  }
  bool run_device() {
    if (queue_.empty() || !queue_.front()->arrived) return false;  // a gate stands before everything
    Receive &r = *queue_.front();
    queue_.pop_front();
    if (r.use.in_slot) {
      const uint64_t number = r.use.number;
      r.has = std::exchange(lies(r.sender, number), 0);
      if (r.has != number) fail("a device reads another message from a slot");
      recv_.leave(r.use, r.sender);
    }
    return r.over = true;
  }

  // What is left over has no other side yet.
  bool call_missing() {
    if (!posted_.empty() && std::all_of(senders_.begin(), senders_.end(), [](const Sender &s) { return s.to_send <= 0; })) {
      const int s = posted_.front()->source >= 0 ? posted_.front()->source : 0;
      const auto going =
          std::any_of(sender(s).messages.begin(), sender(s).messages.end(), [](const Message &m) { return !m.out; });
      if (!going) return send(s), true;
    }
    if (posted_.empty() && !unexpected_.empty() && to_receive_ <= 0) return receive(unexpected_.front().first), true;
    return false;
  }
  bool over() const {
    return posted_.empty() && unexpected_.empty() &&
           std::all_of(receives_.begin(), receives_.end(), [](const auto &r) { return r->over && r->has != 0; }) &&
           std::all_of(senders_.begin(), senders_.end(), [](const Sender &s) {
             return s.frames.empty() &&
                    std::all_of(s.messages.begin(), s.messages.end(), [](const Message &m) { return m.out; }) &&
                    std::all_of(s.lies.begin(), s.lies.end(), [](uint64_t n) { return n == 0; });
           });
  }
  std::string state() const {
    std::string text = std::to_string(posted_.size()) + " posted, " + std::to_string(unexpected_.size()) + " unexpected, " +
                       std::to_string(queue_.size()) + " in the queue";
    for (const auto &r : receives_)
      if (!r->over)
        text += "; from " + std::to_string(r->source) + " kind " + std::to_string(static_cast<int>(r->kind)) + " number " +
                std::to_string(r->use.number) + (r->own ? " own" : "") + (r->use.in_slot ? " in slot" : "") +
                (r->held ? " held" : "") + (r->arrived ? " arrived" : "");
    return text;
  }

  std::mt19937_64 random_;
  RecvSlots recv_;
  std::vector<Words> words_;
  std::vector<Sender> senders_;
  int to_receive_ = 0;
  bool groups_ = false;
  int64_t now_ = 1;
  std::vector<std::unique_ptr<Receive>> receives_;
  std::vector<Receive *> posted_;                     // in the order of the calls
  std::vector<std::pair<int, uint64_t>> unexpected_;  // in the order of their coming
  std::deque<Receive *> queue_;                       // of the device
  std::string fault_;
  std::byte memory_[4 * kSlotBytes];
};

TEST(RecvSlots, EveryMessageReachesItsReceiveInAnyOrderOfSteps) {
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    const std::string fault = Model(seed).run();
    ASSERT_TRUE(fault.empty()) << "seed " << seed << ": " << fault;
  }
}

struct One {  // a receiver with `slots` slots for rank 0
  explicit One(uint32_t slots) {
    recv.resize(1, slots, kSlotBytes);
    recv.open(0, 8, words.asked, words.landed);
  }
  SlotUse called(bool gated = false, bool own = false, int source = 0) {
    SlotUse use;
    recv.claim(use, source, gated, own);
    return use;
  }
  Words words;
  RecvSlots recv;
};

TEST(RecvSlots, AReceiveKnowsItsNumberUnlessOneFromAnyRankWaits) {
  One one(2);
  EXPECT_EQ(one.called().expected, 1u);
  SlotUse any = one.called(false, false, RecvSlots::kAnySource);
  EXPECT_EQ(one.called().expected, 0u);
  EXPECT_FALSE(one.recv.claimable(0));
  one.recv.match(any, RecvSlots::kAnySource, 0);
  EXPECT_EQ(any.number, 1u);
  EXPECT_EQ(one.called().expected, 4u);
}

TEST(RecvSlots, AGateStandsAtASlotOnlyWhereAllBeforeItHaveLeftTheirsOrAreSubmitted) {
  One one(4);
  SlotUse first = one.called();
  EXPECT_FALSE(one.recv.claimable(0));
  one.recv.match(first, 0, 0);
  one.recv.submitted(0, 1);
  EXPECT_TRUE(one.recv.claimable(0));
  EXPECT_TRUE(one.called(true).in_slot);
  EXPECT_TRUE(one.recv.claimable(0));  // its own copy is submitted
}

TEST(RecvSlots, AMessageThatHasLeftItsSlotStandsBeforeNoGate) {
  One one(4);
  SlotUse first = one.called();
  EXPECT_FALSE(one.recv.claimable(0));
  one.recv.match(first, 0, 0);
  one.recv.leave(first, 0);
  EXPECT_TRUE(one.recv.claimable(0));
}

TEST(RecvSlots, ASlotIsFreeOnceAllMessagesBeforeItHaveLeft) {
  One one(2);
  SendSlots send;
  std::byte memory[2 * kSlotBytes];
  send.open(2, memory, kSlotBytes, one.words.asked, one.words.landed);
  for (int i = 0; i < 4; ++i) send.number();
  EXPECT_TRUE(send.free(2));
  EXPECT_FALSE(send.free(3));
  SlotUse first = one.called(), second = one.called();
  one.recv.match(first, 0, 0);
  one.recv.match(second, 0, 0);
  one.recv.leave(second, 0);
  EXPECT_FALSE(send.free(3));
  one.recv.leave(first, 0);
  EXPECT_TRUE(send.free(4));
  EXPECT_EQ(send.place(4), memory + kSlotBytes);
}

TEST(RecvSlots, ASenderWaitsForItsSlotOnlyWhereTheReceiveIsCalledAndNeedsIt) {
  One one(1);
  SendSlots send;
  std::byte memory[kSlotBytes];
  send.open(1, memory, kSlotBytes, one.words.asked, one.words.landed);
  for (int i = 0; i < 2; ++i) send.number();
  const SendSlots::Wait wait{10, 100};
  EXPECT_FALSE(send.worth_waiting(2, wait));
  one.called();
  EXPECT_FALSE(send.worth_waiting(2, wait));
  SlotUse second = one.called();
  EXPECT_TRUE(send.worth_waiting(2, wait));
  EXPECT_FALSE(send.worth_waiting(2, {200, 100}));
  one.recv.stand_apart(second, 0);  // it gets memory of its own, behind a gate
  EXPECT_EQ(one.words.asked, 1u);
  EXPECT_FALSE(send.worth_waiting(2, {20, 100}));
}

TEST(RecvSlots, AReceiveThatIsPromisedCountsAsCalled) {
  One one(1);
  one.recv.promise(0, 2);
  EXPECT_EQ(one.words.asked, 2u);
  SlotUse use;
  use.promised = true;
  one.recv.claim(use, 0, false, false);
  EXPECT_EQ(one.words.asked, 2u);
  EXPECT_FALSE(use.promised);
}

}  // namespace
}  // namespace isthmus::p2p
