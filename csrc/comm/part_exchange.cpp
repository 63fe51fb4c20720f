#include "comm/part_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace isthmus::comm {
namespace {

using bootstrap::Blob;

// A blob travels in pieces of one size. Each piece has the size of the whole blob. Mostly there is one piece.
struct PieceHead {
  uint64_t size = 0;
};
constexpr size_t kMessage = rank::OutOfBand::kMostBytes, kPiece = kMessage - sizeof(PieceHead), kMostBlob = 1 << 20;

using Message = std::array<std::byte, kMessage>;

Message piece_of(const Blob &blob, size_t at) {
  Message out{};
  const PieceHead head{blob.size()};
  std::memcpy(out.data(), &head, sizeof head);
  if (at < blob.size()) std::memcpy(out.data() + sizeof head, blob.data() + at, std::min(kPiece, blob.size() - at));
  return out;
}

}  // namespace

PartExchange::PartExchange(rank::Rank &whole, std::string what, std::vector<int> members, WholeFailed ends)
    : whole_(whole), what_(std::move(what)), members_(std::move(members)), ends_(ends), ranks_(members_) {
  std::sort(ranks_.begin(), ranks_.end());
}

std::vector<Blob> PartExchange::gather(const Blob &mine, Deadline deadline) {
  std::vector<Blob> blobs(ranks_.size());
  std::vector<Message> all(ranks_.size());
  size_t longest = mine.size();
  for (size_t at = 0; at == 0 || at < longest; at += kPiece) {
    const Message piece = piece_of(mine, at);
    whole_.exchange().all_gather(what_.c_str(), ranks_, piece, all.front().data(), deadline, [this] { look(); });
    for (size_t i = 0; i < all.size(); ++i) {
      PieceHead head;
      std::memcpy(&head, all[i].data(), sizeof head);
      const std::byte *const bytes = all[i].data() + sizeof head;
      if (head.size > kMostBlob)
        fail(Code::Mismatch, "{}: rank {} announced a description of {} bytes", name(), ranks_[i], head.size);
      longest = std::max(longest, static_cast<size_t>(head.size));
      if (at < head.size)
        blobs[i].insert(blobs[i].end(), bytes, bytes + std::min(kPiece, static_cast<size_t>(head.size) - at));
    }
  }
  return blobs;
}

std::vector<Blob> PartExchange::all_gather(const Blob &mine, Deadline deadline) {
  std::vector<Blob> blobs;
  try {
    blobs = gather(mine, deadline);
  } catch (const Error &e) {
    give_up({e.code(), e.text()});
    // A rank that is gone may have said why before, and another rank may be the cause.
    if (e.code() == Code::PeerLost) hear_farewells();
    throw;
  }
  std::vector<Blob> out;
  for (const int r : members_)
    out.push_back(std::move(blobs[static_cast<size_t>(std::lower_bound(ranks_.begin(), ranks_.end(), r) - ranks_.begin())]));
  return out;
}

void PartExchange::give_up(const Status &why) noexcept {
  const size_t size = std::min(why.text.size(), kPiece);
  const auto code = static_cast<uint32_t>(why.code);
  Message out{};
  std::memcpy(out.data(), &code, sizeof code);
  std::memcpy(out.data() + sizeof code, why.text.data(), size);
  whole_.exchange().tell(what_.c_str(), ranks_, std::span(out).first(sizeof code + size));
}

void PartExchange::over() { whole_.exchange().forget(what_.c_str(), ranks_); }

void PartExchange::look() const {
  hear_farewells();
  if (ends_ == WholeFailed::IsKnown || !whole_.core().failed()) return;
  const Status why = whole_.core().failure();
  fail(why.code, "{}: {}", name(), why.text);
}

void PartExchange::hear_farewells() const {
  for (const int r : ranks_) {
    const auto said = whole_.exchange().hear(what_.c_str(), ranks_, r);
    uint32_t code = 0;
    if (!said || said->size() < sizeof code) continue;
    std::memcpy(&code, said->data(), sizeof code);
    const std::string why(reinterpret_cast<const char *>(said->data()) + sizeof code, said->size() - sizeof code);
    fail(code != 0 && code <= static_cast<uint32_t>(kLastCode) ? static_cast<Code>(code) : Code::Mismatch,
         "{}: rank {} has given up: {}", name(), r, why);
  }
}

std::string PartExchange::name() const {
  return formatted("{} of '{}' on rank {}", what_, whole_.id().name, whole_.id().rank);
}

}  // namespace isthmus::comm
