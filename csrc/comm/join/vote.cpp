#include "comm/join/vote.hpp"

#include <cstring>

namespace isthmus::comm::join {
namespace {

// So long the others have to come to the vote of a rank that has failed for certain: then all hear all reasons. Who lacks another rank
// waits longer, as that one may know more.
constexpr double kOthersComeSeconds = 10;

bool certain(const Status &trouble) {
  return !trouble.ok() && trouble.code != Code::Timeout && trouble.code != Code::PeerLost;
}

// Whose trouble is only that another rank did not come, or left, yields to one that says what is wrong.
bool yields(const Status &to, const Status &mine) {
  const auto waited = [](const Status &s) { return s.code == Code::Timeout; };
  const bool settles = certain(to) && to.code != Code::System && to.code != Code::Device && to.code != Code::Internal;
  return (waited(mine) && !waited(to)) || (mine.code == Code::PeerLost && settles);
}

bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

}  // namespace

using bootstrap::Blob;

Blob Ballot::pack() const {
  Blob out{static_cast<std::byte>(vote), std::byte{static_cast<uint8_t>(trouble.code)}, std::byte{}, std::byte{}};
  const std::string text = trouble.text.substr(0, 4096);
  const auto length = static_cast<uint16_t>(text.size());
  std::memcpy(out.data() + 2, &length, sizeof length);
  const auto *bytes = reinterpret_cast<const std::byte *>(text.data());
  out.insert(out.end(), bytes, bytes + text.size());
  out.insert(out.end(), extra.begin(), extra.end());
  return out;
}

Ballot Ballot::unpack(const Blob &blob, const std::string &name, size_t rank) {
  uint16_t length = 0;
  if (blob.size() >= 4) std::memcpy(&length, blob.data() + 2, sizeof length);
  if (blob.size() < size_t{4} + length)
    fail(Code::Mismatch, "init of '{}': rank {} sent a vote that cannot be read", name, rank);
  const auto *text = reinterpret_cast<const char *>(blob.data()) + 4;
  return {static_cast<Vote>(blob[0]),
          {static_cast<Code>(blob[1]), std::string(text, length)},
          Blob(blob.begin() + 4 + length, blob.end())};
}

std::vector<Ballot> vote(const Invitation &invitation, Ballot mine) {
  Status &trouble = mine.trouble;
  if (!trouble.ok()) mine.vote = Ballot::Vote::Failed;
  std::vector<Blob> votes;
  try {
    Deadline deadline = invitation.deadline;
    const bool tells = !trouble.ok() && invitation.exchange.give_reason(trouble);
    if (const Deadline soon(kOthersComeSeconds); tells && certain(trouble) && soon.ns() < deadline.ns()) deadline = soon;
    votes = invitation.exchange.all_gather(mine.pack(), deadline);
  } catch (const Error &e) {
    if (trouble.ok()) throw;
    // A rank that waited in vain knows no cause. Nor does a rank whose library failed because another rank had gone.
    // Nor does a rank that lacks another one, where that one has left for what the rendezvous knows.
    const bool library = trouble.code == Code::System && e.code() == Code::PeerLost;
    const bool follows = trouble.code == Code::PeerLost && e.code() != Code::Timeout;
    if (trouble.code == Code::Timeout || library || follows) {
      trouble.code = e.code();
      trouble.ranks = e.ranks();
    }
    // The rendezvous may know the rank that went first. That may be this one, or the rendezvous may have ended the work of this one.
    const bool nobody_came = certain(trouble) && e.code() == Code::Timeout;  // which says nothing of its own trouble
    if (!nobody_came && !contains(trouble.text, e.text()) && !contains(e.text(), trouble.text))
      trouble.text += "; the rendezvous ended with: " + e.text();
  }
  std::vector<Ballot> out;
  const Status *cause = trouble.ok() ? nullptr : &trouble;
  for (size_t r = 0; r < votes.size(); ++r) out.push_back(Ballot::unpack(votes[r], invitation.name, r));
  for (const Ballot &b : out)
    if (b.vote == Ballot::Vote::Failed && (!cause || yields(b.trouble, *cause))) cause = &b.trouble;
  if (cause) throw Error(*cause);
  return out;
}

}  // namespace isthmus::comm::join
