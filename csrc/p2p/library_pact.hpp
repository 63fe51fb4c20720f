// How two ranks of one host settle, message by message, whether their vendor's library carries what one sends to the other.
//
// A library's send holds up its stream until the receive has come. So a message goes by the library only where both sides will give it to the
// library, and both know that. The two sides count the messages of their pair in the order in which sends and receives match. A side that has
// come to message n says so in a cell of shared memory: it offers n, with the terms (size and type), or it passes n, which then goes by links. Who sees
// that the other side offers the same, writes into `decided` that the library has n:
//
//   sender                                     `decided`         receiver
//   offer(7)                                    6
//   look(7): Open, waits                                         offer(7)
//                                               7, library <---  look(7): Library
//   look(7): Library
//
//   sender                                     `decided`         receiver
//   offer(8)                                    7
//   close(8): Links, waits no more  -------->   8, links         offer(8)
//                                                                look(8): Links
//
// `decided` is changed by compare-and-swap alone, and rises. So both sides come to the same verdict, in whatever order their steps come, and a side
// that dies leaves nothing half done. The word has the last message that was decided, and how far before it the last one of the library lies: a
// side that is slow still finds the verdict on its own message when the other side has closed later ones.
//
// Nothing here knows a device, a library or a communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace isthmus::p2p {

// In shared memory, all zeros at first. One for each sender and receiver.
struct alignas(64) PactCell {
  struct Side {
    std::atomic<uint64_t> offered{0};  // written by that side alone
    std::atomic<uint64_t> terms{0};
    std::atomic<uint64_t> passed{0};
  };
  Side sender, receiver;
  std::atomic<uint64_t> decided{0};
};
static_assert(sizeof(PactCell) == 64);

// One side of a pair. One thread at a time offers, looks and closes. Any thread passes.
class PactSide {
 public:
  enum class Verdict : uint8_t { Open, Library, Links };

  PactSide() = default;
  PactSide(PactCell &cell, bool sends) noexcept
      : cell_(&cell), mine_(sends ? &cell.sender : &cell.receiver), theirs_(sends ? &cell.receiver : &cell.sender) {}
  bool any() const noexcept { return cell_ != nullptr; }

  // This side has come to message `first`, or to several from there on. `terms`: of all of them. Both sides must say the same.
  void offer(uint64_t first, uint64_t terms) noexcept {
    mine_->terms.store(terms, std::memory_order_release);
    mine_->offered.store(first, std::memory_order_seq_cst);
  }
  Verdict look(uint64_t first, uint64_t terms) noexcept;  // after offer(). Open: the other side has not come
  Verdict close(uint64_t first) noexcept;                 // waits no more: never Open
  // All messages up to that number are settled for this side: what is not the library's goes by links.
  void pass(uint64_t last) noexcept;
  bool is_awaited(uint64_t first) const noexcept {  // the other side offers that message, and may wait for this side
    return theirs_->offered.load(std::memory_order_seq_cst) == first && number(cell_->decided.load()) < first;
  }

 private:
  static constexpr int kBackBits = 24;
  static constexpr uint64_t kMostBack = (1 << kBackBits) - 1;  // so far back, or farther
  static constexpr uint64_t number(uint64_t decided) noexcept { return decided >> kBackBits; }
  static Verdict verdict(uint64_t decided, uint64_t first) noexcept;
  static uint64_t by_library(uint64_t first) noexcept { return first << kBackBits; }
  static uint64_t by_links(uint64_t decided, uint64_t first) noexcept;

  PactCell *cell_ = nullptr;
  PactCell::Side *mine_ = nullptr, *theirs_ = nullptr;
};

// The numbers of one rank's messages with each other rank, in the order in which they match. All calls under one lock.
class MessageNumbers {
 public:
  void resize(int ranks) { counts_.resize(static_cast<size_t>(ranks)); }
  uint64_t send(int to) noexcept { return ++of(to).sent; }  // a send is called
  // A receive from `source` is called. 0: the number is not known, because a receive from any rank waits, and may take a message of that rank first.
  uint64_t receive(int source) noexcept {
    const uint64_t number = ++of(source).received;
    return any_waiting_ == 0 ? number : 0;
  }
  void receive_any() noexcept { ++any_waiting_; }  // a receive from any rank is called, and
  void matched_any(int source) noexcept {          // has met a message
    --any_waiting_;
    ++of(source).received;
  }
  // At least so many messages of that rank belong to receives that were called.
  uint64_t received(int source) const noexcept { return counts_[static_cast<size_t>(source)].received; }

 private:
  struct MessageCounts {
    uint64_t sent = 0, received = 0;
  };
  MessageCounts &of(int rank) noexcept { return counts_[static_cast<size_t>(rank)]; }
  std::vector<MessageCounts> counts_;
  uint32_t any_waiting_ = 0;
};

}  // namespace isthmus::p2p
