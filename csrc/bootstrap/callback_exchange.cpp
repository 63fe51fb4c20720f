// An exchange over the caller's own all-gather of equal sizes. The ranks gather their sizes first, then blobs padded to the largest.
#include <algorithm>
#include <cstring>
#include <utility>

#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/tcp_rendezvous.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr uint32_t kHeadMagic = 0x58434849;  // "IHCX"
constexpr size_t kHead = 32;                 // magic, version, 0, rank, world, round, size

// What looks while the calling thread is in a caller's function.
thread_local const std::function<Status()> *the_watch = nullptr;

class WatchedCall {  // the function may join another communicator, and a function of C++ may throw
 public:
  explicit WatchedCall(const std::function<Status()> &look) : outer_(std::exchange(the_watch, &look)) {}
  ~WatchedCall() { the_watch = outer_; }
  WatchedCall(const WatchedCall &) = delete;
  WatchedCall &operator=(const WatchedCall &) = delete;

 private:
  const std::function<Status()> *outer_;
};

class Callback final : public Exchange {
 public:
  Callback(ExchangeFn fn, void *context, int rank, int world) : fn_(fn), context_(context), rank_(rank), world_(world) {}

  void watch(std::function<Status()> look) override { watch_ = std::move(look); }

  std::vector<Blob> all_gather(const Blob &mine, Deadline deadline) override {
    check_blob(mine);
    if (deadline.passed()) fail(Code::Timeout, "rank {}: no time is left for the exchange of addresses", rank_);
    net::ByteVector head;
    net::Writer(head)
        .number(kHeadMagic)
        .number(net::kProtocolVersion)
        .number(uint16_t{0})
        .number(static_cast<uint32_t>(rank_))
        .number(static_cast<uint32_t>(world_))
        .number(uint64_t{round_})
        .number(uint64_t{mine.size()});
    const net::ByteVector heads = call(head);
    const size_t world = static_cast<size_t>(world_);
    std::vector<size_t> sizes(world);
    for (size_t r = 0; r < world; ++r) sizes[r] = check_head(std::span(heads).subspan(r * kHead, kHead), r);
    ++round_;
    const size_t largest = *std::max_element(sizes.begin(), sizes.end());
    std::vector<Blob> blobs(world);
    if (largest == 0) return blobs;
    net::ByteVector padded = mine;
    padded.resize(largest);
    const net::ByteVector all = call(padded);
    for (size_t r = 0; r < world; ++r) {
      const auto blob = std::span(all).subspan(r * largest, sizes[r]);
      blobs[r].assign(blob.begin(), blob.end());
    }
    return blobs;
  }

 private:
  net::ByteVector call(const net::ByteVector &send) {
    net::ByteVector recv(send.size() * static_cast<size_t>(world_));
    const int result = [&] {
      const WatchedCall watched(watch_);
      return fn_(context_, send.data(), recv.data(), send.size());
    }();
    if (result == 0) return recv;
    if (const Status vain = watch_ ? watch_() : Status{}; !vain.ok()) throw Error(vain.code, vain.text);
    fail(Code::System, "rank {}: the caller's exchange function failed ({})", rank_, result);
  }

  size_t check_head(std::span<const std::byte> bytes, size_t position) const {
    net::Reader r(bytes);
    const bool magic = r.number<uint32_t>() == kHeadMagic;
    const uint16_t version = r.number<uint16_t>();
    r.number<uint16_t>();
    const uint32_t rank = r.number<uint32_t>(), world = r.number<uint32_t>();
    const uint64_t round = r.number<uint64_t>(), size = r.number<uint64_t>();
    if (!magic)
      fail(Code::Mismatch, "rank {} sent something else into the exchange; do all ranks call isthmus_init together?",
           position);
    if (version != net::kProtocolVersion)
      fail(Code::Mismatch,
           "rank {} speaks protocol version {}, rank {} speaks version {}; install the same Isthmus everywhere", position,
           version, rank_, net::kProtocolVersion);
    if (world != static_cast<uint32_t>(world_))
      fail(Code::Mismatch, "rank {} was started with world size {}, rank {} with {}; give all ranks the same", position,
           world, rank_, world_);
    if (rank != position)
      fail(Code::Mismatch,
           "the process at place {} of the exchange says it is rank {}; two processes have one rank, or the exchange "
           "function does not keep the order of ranks",
           position, rank);
    if (round != round_ || size > kMaxBlob)
      fail(Code::Mismatch,
           "rank {} is at exchange {} with {} bytes, rank {} at exchange {}; do all ranks call isthmus_init together?",
           position, round, size, rank_, round_);
    return size;
  }

  const ExchangeFn fn_;
  void *const context_;
  const int rank_, world_;
  uint64_t round_ = 0;
  std::function<Status()> watch_;
};

}  // namespace

Status watched_exchange() { return the_watch && *the_watch ? (*the_watch)() : Status{}; }

std::unique_ptr<Exchange> callback_exchange(ExchangeFn fn, void *context, int rank, int world) {
  check_rank(rank, world);
  if (!fn) fail(Code::Argument, "the exchange function is NULL");
  if (world == 1) return lone_exchange();
  return std::make_unique<Callback>(fn, context, rank, world);
}

}  // namespace isthmus::bootstrap
