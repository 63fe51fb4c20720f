#include "comm/part_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace isthmus::comm {
namespace {

using bootstrap::Blob;

// A blob travels in pieces. Each piece has the size of the whole blob. Mostly there is one piece.
struct PieceHead {
  uint64_t size = 0;
};
constexpr size_t kMessage = rank::OutOfBand::kMostBytes, kPiece = kMessage - sizeof(PieceHead), kMostBlob = 1 << 20;

// What a rank says that gives up: why, and which ranks that is about. Their numbers follow, and then the text.
struct FarewellHead {
  uint32_t code = 0, ranks = 0;
};
constexpr size_t kMostNamed = 64;

size_t length_at(size_t blob, size_t at) { return at < blob ? std::min(kPiece, blob - at) : 0; }

Blob piece_of(const Blob &blob, size_t at) {
  const PieceHead head{blob.size()};
  Blob out(sizeof head + length_at(blob.size(), at));
  std::memcpy(out.data(), &head, sizeof head);
  if (at < blob.size()) std::memcpy(out.data() + sizeof head, blob.data() + at, out.size() - sizeof head);
  return out;
}

}  // namespace

PartExchange::PartExchange(rank::Rank &whole, std::string what, std::vector<int> members, WholeFailed ends,
                           const AbortWatch *watch)
    : whole_(whole), what_(std::move(what)), members_(std::move(members)), ends_(ends), watch_(watch), ranks_(members_) {
  std::sort(ranks_.begin(), ranks_.end());
}

std::vector<Blob> PartExchange::gather(const Blob &mine, Deadline deadline) {
  std::vector<Blob> blobs(ranks_.size());
  size_t longest = mine.size();
  for (size_t at = 0; at == 0 || at < longest; at += kPiece) {
    const auto all =
        whole_.exchange().gather(what_.c_str(), turn_++, ranks_, piece_of(mine, at), deadline, [this] { look(); });
    for (size_t i = 0; i < all.size(); ++i) {
      PieceHead head;
      if (all[i].size() >= sizeof head) std::memcpy(&head, all[i].data(), sizeof head);
      if (head.size > kMostBlob || all[i].size() != sizeof head + length_at(head.size, at))
        fail(Code::Mismatch, "{}: rank {} sent {} bytes of a description of {}", name(), whole_.id().number(ranks_[i]),
             all[i].size(), head.size);
      longest = std::max(longest, static_cast<size_t>(head.size));
      blobs[i].insert(blobs[i].end(), all[i].begin() + sizeof head, all[i].end());
    }
  }
  return blobs;
}

std::vector<Blob> PartExchange::all_gather(const Blob &mine, Deadline deadline) {
  std::vector<Blob> blobs;
  try {
    blobs = gather(mine, deadline);
  } catch (const Error &e) {
    give_up(e.why());
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
  const FarewellHead head{static_cast<uint32_t>(why.code), static_cast<uint32_t>(std::min(why.ranks.size(), kMostNamed))};
  const size_t named = head.ranks * sizeof(int32_t), size = std::min(why.text.size(), kMessage - sizeof head - named);
  std::array<std::byte, kMessage> out{};
  std::memcpy(out.data(), &head, sizeof head);
  if (named) std::memcpy(out.data() + sizeof head, why.ranks.data(), named);
  std::memcpy(out.data() + sizeof head + named, why.text.data(), size);
  whole_.exchange().tell(what_.c_str(), ranks_, std::span(out).first(sizeof head + named + size));
}

void PartExchange::over() { whole_.exchange().forget(what_.c_str(), ranks_); }

void PartExchange::look() {
  if (watch_) watch_->look(name());
  hear_farewells();
  if (ends_ == WholeFailed::IsKnown || !whole_.core().failed()) return;
  Status why = whole_.core().failure();
  throw Error(why.code, formatted("{}: {}", name(), why.text), std::move(why.ranks));
}

void PartExchange::hear_farewells() const {
  for (const int r : ranks_) {
    const auto said = whole_.exchange().hear(what_.c_str(), ranks_, r);
    FarewellHead head;
    if (!said || said->size() < sizeof head) continue;
    std::memcpy(&head, said->data(), sizeof head);
    if (head.ranks > kMostNamed || said->size() < sizeof head + head.ranks * sizeof(int32_t)) continue;
    std::vector<int> named(head.ranks);
    if (head.ranks) std::memcpy(named.data(), said->data() + sizeof head, head.ranks * sizeof(int32_t));
    std::erase_if(named, [&](int q) { return q < 0 || q >= whole_.id().world; });
    const size_t at = sizeof head + head.ranks * sizeof(int32_t);
    const std::string why(reinterpret_cast<const char *>(said->data()) + at, said->size() - at);
    heard_ = true;
    const bool known = head.code != 0 && head.code <= static_cast<uint32_t>(kLastCode);
    throw Error(known ? static_cast<Code>(head.code) : Code::Mismatch,
                formatted("{}: rank {} has given up: {}", name(), whole_.id().number(r), why), std::move(named));
  }
}

std::string PartExchange::name() const {
  return formatted("{} of '{}' on rank {}", what_, whole_.id().name, whole_.id().number());
}

}  // namespace isthmus::comm
