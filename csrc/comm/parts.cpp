// Communicators that are made from others: parts, and what is left without some ranks.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "base/clock.hpp"
#include "comm/communicator.hpp"

namespace isthmus::comm {
namespace {

using bootstrap::Blob;

// Rendezvous by an existing communicator: sizes first, then the blobs padded to the largest.
class ParentExchange final : public bootstrap::Exchange {
 public:
  ParentExchange(Communicator &parent, std::vector<int> members) : parent_(parent), members_(std::move(members)) {}
  std::vector<Blob> all_gather(const Blob &mine, Deadline deadline) override {
    const auto world = static_cast<size_t>(parent_.size());
    const double left = static_cast<double>(deadline.left_ns()) * 1e-9;
    uint64_t size = mine.size();
    std::vector<uint64_t> sizes(world);
    gather(&size, sizes.data(), sizeof size, left);
    const uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
    if (largest > (uint64_t{1} << 20)) fail(Code::Mismatch, "a rank announced a description of {} bytes", largest);
    std::vector<std::byte> padded(mine), all(world * largest);
    padded.resize(largest);
    gather(padded.data(), all.data(), largest, left);
    std::vector<Blob> out;
    for (const int r : members_) {
      const auto *p = all.data() + static_cast<size_t>(r) * largest;
      out.emplace_back(p, p + sizes[static_cast<size_t>(r)]);
    }
    return out;
  }

 private:
  void gather(const void *in, void *out, uint64_t bytes, double timeout) {
    Request r;
    r.collective = plan::Collective::AllGather;
    r.send = in;
    r.recv = out;
    r.count = bytes;
    r.dtype = static_cast<int>(DType::UInt8);
    r.timeout = std::max(timeout, 0.001);
    r.label = "split";
    engine::Op *op = engine::OpPool::instance().take();
    struct Release {
      engine::Op *op;
      ~Release() { engine::OpPool::instance().release(op); }
    } release{op};
    parent_.prepare(r, *op);
    parent_.make_ready(*op);
    parent_.member().run(op);
    parent_.member().wait(op, INT64_MAX);
    const Code code = op->result;
    const std::string text = op->text;
    if (code != Code::Ok) throw Error(code, text);
  }
  Communicator &parent_;
  std::vector<int> members_;
};

}  // namespace

join::Invitation Communicator::invite(bootstrap::Exchange &exchange, int rank, int world, Deadline deadline) const {
  const join::Parent parent{key_, topology_.ranks[static_cast<size_t>(this->rank())]};
  return {{}, {}, rank, world, settings_, context_, parent, exchange, deadline};
}

std::shared_ptr<Communicator> Communicator::split(int color, int key, const std::string &name) {
  if (destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", this->name());
  std::lock_guard lock(split_mutex_);
  const Deadline deadline(timeout());
  struct Choice {
    int32_t color, key;
  } choice{color, key};
  std::vector<int> everybody(static_cast<size_t>(size()));
  for (int r = 0; r < size(); ++r) everybody[r] = r;
  Blob mine(sizeof choice);
  std::memcpy(mine.data(), &choice, sizeof choice);
  ParentExchange all(*this, everybody);
  const auto choices = all.all_gather(mine, deadline);
  std::vector<std::pair<int, int>> order;  // (key, rank) of my color
  for (int r = 0; r < size(); ++r) {
    Choice c;
    if (choices[r].size() != sizeof c) fail(Code::Mismatch, "rank {} did not take part in the split as expected", r);
    std::memcpy(&c, choices[r].data(), sizeof c);
    if (color >= 0 && c.color == color) order.emplace_back(c.key, r);
  }
  std::sort(order.begin(), order.end());
  std::vector<int> members;
  int rank = -1;
  for (const auto &[k, r] : order) {
    if (r == this->rank()) rank = static_cast<int>(members.size());
    members.push_back(r);
  }
  if (color < 0) {  // takes part in the parent's exchanges all the same: they are collective over the parent
    members.clear();
    ParentExchange others(*this, members);
    for (int i = 0; i < 3; ++i) others.all_gather({}, deadline);
    return nullptr;
  }
  ParentExchange exchange(*this, members);
  join::Invitation invitation = invite(exchange, rank, static_cast<int>(members.size()), deadline);
  invitation.name = name.empty() ? this->name() + "/split" : name;
  return make(invitation, use_.again());
}

void Communicator::exchange(const std::vector<int> &ranks, std::span<const std::byte> send, std::byte *recv,
                            double timeout) {
  if (destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", name());
  if (send.empty() || send.size() > engine::OutOfBand::kMostBytes || !send.data() || !recv)
    fail(Code::Argument, "exchange: {} bytes: give 1 to {}, and buffers for them", send.size(),
         engine::OutOfBand::kMostBytes);
  if (std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) != ranks.end() || ranks.empty() ||
      ranks.front() < 0 || ranks.back() >= size() || std::find(ranks.begin(), ranks.end(), rank()) == ranks.end())
    fail(Code::Argument, "exchange: the ranks must be ascending, from 0 to {}, and rank {} among them", size() - 1, rank());
  if (timeout < 0)
    fail(Code::Argument, "exchange: timeout {}: must be above 0 seconds, or 0 for the communicator's", timeout);
  member_->exchange("exchange", ranks, send, recv, Deadline(timeout > 0 ? timeout : this->timeout()));
}

std::shared_ptr<Communicator> Communicator::shrink(const std::vector<int> &excluded, bool abort, const std::string &name) {
  if (destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", this->name());
  std::vector<int> left;
  for (const int r : excluded)
    if (r < 0 || r >= size()) fail(Code::Argument, "shrink: rank {} of {} cannot be excluded", r, size());
  for (int r = 0; r < size(); ++r)
    if (std::find(excluded.begin(), excluded.end(), r) == excluded.end()) left.push_back(r);
  const auto mine = std::find(left.begin(), left.end(), rank());
  if (mine == left.end()) fail(Code::Argument, "shrink: rank {} is among those that are excluded", rank());
  if (abort) this->abort("shrink");
  else if (const Status s = member_->failure(); member_->failed())
    throw Error(s.code, s.text + "; a communicator that has failed is shrunk with abort");
  const std::lock_guard lock(split_mutex_);
  const Deadline deadline(timeout());
  // The first who is left gives the others an id: nothing is collective over a communicator from which ranks are gone.
  std::array<std::byte, 128> id{};
  std::vector<std::byte> ids(left.size() * id.size());
  if (mine == left.begin()) bootstrap::create_unique_id(settings_, id);
  member_->exchange("shrink", left, id, ids.data(), deadline);
  // Who has said its word and died would be waited for in vain.
  for (const int q : left)
    if (const auto *process = member_->peers()[static_cast<size_t>(q)].process; process && process->lost.load())
      fail(Code::PeerLost, "shrink of '{}' on rank {}: rank {} is gone: {}", this->name(), rank(), q, process->lost_text());
  std::memcpy(id.data(), ids.data(), id.size());
  const int number = static_cast<int>(mine - left.begin()), world = static_cast<int>(left.size());
  std::string said;
  for (const int r : left) said += formatted("{}{}", said.empty() ? "ranks " : ",", r);
  said += formatted(" of '{}'", this->name());
  const auto exchange = bootstrap::id_exchange(id, number, world, settings_, deadline);
  join::Invitation invitation = invite(*exchange, number, world, deadline);
  invitation.name = name.empty() ? this->name() + "/shrink" : name;
  invitation.members = said;
  return make(invitation, use_.again());
}

}  // namespace isthmus::comm
