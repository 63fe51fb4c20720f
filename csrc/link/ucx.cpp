#include "link/ucx.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/copy.hpp"
#include "base/error.hpp"
#include "net/siphash.hpp"

namespace isthmus::link {
namespace {

using namespace ucx_abi;

constexpr size_t kPlaces = 8;           // in each direction
constexpr uint64_t kSmall = 8 * 1024;   // bytes; a larger payload waits at the sender until it is fetched
constexpr int64_t kAskAgain = 250'000;  // a deferred frame is offered again after so long
constexpr int64_t kUnwatched = 20'000;  // likewise, where nobody could watch for the sleeper
// Seconds. A peer answers a flush when its progress thread looks at its links (process/progress.cpp), or has ended, which UCX tells.
constexpr double kMostFlushing = 0.03, kMostClosing = 1;

// The direction `from` -> `to` of a pair.
uint64_t token_of(std::span<const uint8_t, 16> from, std::span<const uint8_t, 16> to) {
  std::byte both[32];
  std::memcpy(both, from.data(), 16);
  std::memcpy(both + 16, to.data(), 16);
  const net::Bytes16 hash = net::siphash128({}, both);
  uint64_t token;
  std::memcpy(&token, hash.data(), sizeof token);
  return token;
}

struct WireHeader {
  UcxHeader ucx;
  FrameHeader frame;
};
static_assert(sizeof(WireHeader) == 80);

}  // namespace

// A piece that UCX is sending.
struct UcxLink::SendPlace {
  State *state = nullptr;
  std::byte *memory = nullptr;
  bool busy = false;
  Outgoing *out = nullptr;  // nullptr while `busy`: the operation was cancelled, and owns nothing here
  WireHeader header;
};

// A piece that UCX is fetching, or has fetched.
struct UcxLink::FetchPlace {
  State *state = nullptr;
  std::byte *memory = nullptr;
  bool busy = false;     // an arrival has it
  bool pending = false;  // UCX has it
  ucx_abi::Status status = kOk;
};

struct UcxLink::UcxArrival {
  uint64_t number = 0;
  FrameHeader header;
  void *held = nullptr;         // data that UCX keeps until they are released
  bool waits = false;           // they are still at the sender's
  FetchPlace *place = nullptr;  // where they come to, or have come to
  std::vector<std::byte> own;   // a copy, where UCX does not keep them
  int64_t since = 0;            // when the sink first deferred the frame; 0: never
};

// What has come and is not at its place, by number.
class UcxLink::Arrivals {
 public:
  bool empty() const noexcept { return first_ == all_.size(); }
  UcxArrival &front() noexcept { return *all_[first_]; }
  std::span<std::unique_ptr<UcxArrival>> all() noexcept { return std::span(all_).subspan(first_); }
  // An arrival without an owner, to be filled and added.
  std::unique_ptr<UcxArrival> fresh() {
    if (spare_.empty()) return std::make_unique<UcxArrival>();
    auto a = std::move(spare_.back());
    spare_.pop_back();
    return a;
  }
  void add(std::unique_ptr<UcxArrival> a) {
    auto at = all_.end();
    while (at != all_.begin() + first() && (*std::prev(at))->number > a->number) --at;
    all_.insert(at, std::move(a));
  }
  void pop() {
    spare_.push_back(std::move(all_[first_++]));
    if (first_ >= 64 && 2 * first_ >= all_.size()) all_.erase(all_.begin(), all_.begin() + first()), first_ = 0;
    if (empty()) all_.clear(), first_ = 0;
  }

 private:
  std::ptrdiff_t first() const noexcept { return static_cast<std::ptrdiff_t>(first_); }
  std::vector<std::unique_ptr<UcxArrival>> all_, spare_;
  size_t first_ = 0;
};

// What UCX may touch until it has ended every request. It outlives the link where UCX does not end them in time (UcxWorker::leave).
struct UcxLink::State {
  UcxLink *link = nullptr;  // null once the link is gone
  UcxWorker *worker = nullptr;
  Endpoint endpoint = nullptr;
  bool force = false;  // it may be closed without the peer
  Memory memory = nullptr;
  std::array<SendPlace, kPlaces> sends;
  std::array<FetchPlace, kPlaces> fetches;
  uint64_t next_out = 0, next_in = 0;  // numbers of messages
  Arrivals arrivals;
  ucx_abi::Status failure = kOk;  // of the endpoint, or of a piece
  const char *fault = nullptr;    // how the peer breaks the protocol

  ~State() {
    if (memory) worker->unmap(memory);
  }
  bool quiet() const {
    return std::none_of(sends.begin(), sends.end(), [](const SendPlace &p) { return p.busy; }) &&
           std::none_of(fetches.begin(), fetches.end(), [](const FetchPlace &p) { return p.pending; });
  }
  // The peer breaks the protocol. Returns what UCX is to be told: its data are of no use.
  ucx_abi::Status breach(const char *how) noexcept {
    if (!fault) fault = how;
    return kOk;
  }
  void failed(ucx_abi::Status status) noexcept {
    if (failure == kOk) failure = status;
  }
};

// ---- the two ends of its life --------------------------------------------------------------------------------------------

UcxLink::UcxLink(UcxWorker &worker, std::span<const std::byte> address, const UcxPair &pair, std::span<std::byte> memory)
    : worker_(worker),
      piece_(memory.size() / (2 * kPlaces)),
      cut_(piece_),
      token_out_(token_of(pair.mine, pair.theirs)),
      token_in_(token_of(pair.theirs, pair.mine)),
      state_(std::make_shared<State>()) {
  State &s = *state_;
  s.link = this;
  s.worker = &worker_;
  std::byte *at = memory.data();
  for (SendPlace &p : s.sends) p.state = &s, p.memory = std::exchange(at, at + piece_);
  for (FetchPlace &p : s.fetches) p.state = &s, p.memory = std::exchange(at, at + piece_);
  const UcxWorker::Hold turn(worker_);
  EndpointParams params;
  params.fields = kEndpointAddress | kEndpointErrorMode | kEndpointOnError;
  params.address = address.data();
  params.error_mode = kPeerErrors;
  params.on_error = [](void *state, Endpoint, ucx_abi::Status status) { static_cast<State *>(state)->failed(status); };
  params.on_error_argument = &s;
  s.memory = worker_.map(memory);
  ucx_abi::Status status = worker_.ucx()->ep_create(worker_.worker(), &params, &s.endpoint);
  // Not all transports tell of a peer that has ended, shared memory among them. The control connection tells in any case.
  if (status == kUnreachable) {
    params.error_mode = kNoErrors;
    status = worker_.ucx()->ep_create(worker_.worker(), &params, &s.endpoint);
  }
  s.force = params.error_mode == kPeerErrors;
  if (status != kOk) {
    state_.reset();  // unmaps, with the turn
    fail(Code::Unsupported, "ucx: no way from here to it: {}; UCX_TLS must leave both a transport that reaches the other",
         worker_.ucx().text(status));
  }
  worker_.attach(token_in_, *this);
  SendPlace &place = s.sends[0];
  place.header.ucx = {token_out_, piece_};
  place.busy = true;
  in_work_.store(1, std::memory_order_relaxed);
  send(place, UcxWorker::kHello, sizeof(UcxHeader), 0, kSendEager);
}

UcxLink::~UcxLink() {
  const UcxLibrary &ucx = worker_.ucx();
  const UcxWorker::Hold turn(worker_);
  worker_.detach(token_in_);
  State &s = *state_;
  s.link = nullptr;
  const auto until = [&](StatusPointer request, const Deadline &most) {  // it has ended
    if (!request || is_failure(request)) return true;
    while (ucx->request_check_status(request) == kInProgress) {
      if (most.passed()) return false;
      if (!worker_.progress()) ::sched_yield();
    }
    ucx->request_free(request);
    return true;
  };
  for (const auto &a : s.arrivals.all())
    if (a->held && !a->waits) ucx->am_data_release(worker_.worker(), a->held);  // else the sender would take it for received
  const RequestParams plain{};
  // What was sent must reach the peer, which may be waiting for it. A flush that does not end in time ends with the endpoint.
  if (s.failure == kOk && !dead_.load(std::memory_order_relaxed))
    until(ucx->ep_flush_nbx(s.endpoint, &plain), Deadline(kMostFlushing));
  RequestParams close;
  close.fields = kRequestFlags;
  close.flags = s.force ? kCloseForce : 0;
  const Deadline deadline(s.force ? kMostClosing : kMostFlushing);
  bool ended = until(ucx->ep_close_nbx(s.endpoint, &close), deadline);
  while (!s.quiet() && !deadline.passed())
    if (!worker_.progress()) ::sched_yield();
  if (!ended || !s.quiet()) worker_.leave(std::move(state_));
  state_.reset();  // it unmaps its memory, with the turn
}

// ---- sending -------------------------------------------------------------------------------------------------------------

void UcxLink::post(Outgoing &out) noexcept {
  out.cut = 0;
  out.pieces = 0;
  queue_.push(out);
}

void UcxLink::send(SendPlace &place, unsigned id, size_t header_bytes, size_t bytes, uint32_t flags) {
  RequestParams params;
  params.fields = kRequestCallback | kRequestUserData | kRequestFlags | (flags == kSendRendezvous ? kRequestMemory : 0);
  params.flags = flags;
  params.sent = [](void *request, ucx_abi::Status status, void *user_data) {
    SendPlace &p = *static_cast<SendPlace *>(user_data);
    const UcxLibrary &ucx = p.state->worker->ucx();
    sent(p, status);
    ucx->request_free(request);
  };
  params.user_data = &place;
  params.memory = state_->memory;
  const void *data = bytes != 0 ? place.memory : nullptr;
  const StatusPointer r =
      worker_.ucx()->am_send_nbx(state_->endpoint, id, &place.header, header_bytes, data, bytes, &params);
  if (!r) sent(place, kOk);
  else if (is_failure(r)) sent(place, failure_of(r));
}

// UCX is done with a piece.
void UcxLink::sent(SendPlace &place, ucx_abi::Status status) {
  place.busy = false;
  Outgoing *out = std::exchange(place.out, nullptr);
  State &s = *place.state;
  if (status != kOk) s.failed(status);
  if (!s.link) return;
  s.link->in_work_.fetch_sub(1, std::memory_order_release);
  if (!out || --out->pieces != 0 || out->cut != out->header.total) return;
  if (s.failure == kOk) finish(*out);
  else s.link->unsent_.push(*out);  // it has not succeeded, and waits for the cancel() of the member that fails
}

bool UcxLink::push() {
  bool moved = false;
  State &s = *state_;
  while (Outgoing *out = queue_.front()) {
    const auto place = std::find_if(s.sends.begin(), s.sends.end(), [](const SendPlace &p) { return !p.busy; });
    if (place == s.sends.end() || s.failure != kOk) break;
    push_piece(*out, *place);
    moved = true;
  }
  return moved;
}

void UcxLink::push_piece(Outgoing &out, SendPlace &place) {
  FrameHeader &h = place.header.frame;
  h = out.header;
  const bool bare = is_bare(h.kind);
  const uint64_t rest = bare ? 0 : h.total - out.cut;
  const uint64_t n = std::min<uint64_t>(rest, cut_.load(std::memory_order_relaxed));
  h.offset = bare ? 0 : out.cut;
  h.bytes = static_cast<uint32_t>(n);
  place.header.ucx = {token_out_, state_->next_out++};
  if (n != 0) copy_bytes(place.memory, out.data + out.cut, n);
  out.cut = bare ? h.total : out.cut + n;
  ++out.pieces;
  place.out = &out;
  place.busy = true;
  in_work_.fetch_add(1, std::memory_order_relaxed);
  bytes_sent.fetch_add(n + sizeof(FrameHeader), std::memory_order_relaxed);
  if (n == rest) queue_.pop();  // before it may be finished
  send(place, UcxWorker::kData, sizeof(WireHeader), n, n > kSmall ? kSendRendezvous : kSendEager);
}

// ---- receiving -----------------------------------------------------------------------------------------------------------

ucx_abi::Status UcxLink::arrived(const UcxHeader &header, std::span<const std::byte> rest, void *data, size_t bytes,
                                 uint64_t attributes) {
  State &s = *state_;
  to_read_.store(true, std::memory_order_release);
  if (rest.size() != sizeof(FrameHeader) || header.number < s.next_in) return s.breach("a message of another protocol");
  FrameHeader frame;
  std::memcpy(&frame, rest.data(), sizeof frame);
  if (const char *fault = frame_fault(frame)) return s.breach(fault);
  if (frame.bytes != bytes || bytes > piece_) return s.breach("payload of another size than was agreed");
  try {
    auto a = s.arrivals.fresh();
    a->number = header.number;
    a->header = frame;
    a->waits = bytes != 0 && (attributes & kArrivalWaits) != 0;
    const bool stays = a->waits || (bytes != 0 && (attributes & kArrivalMayStay) != 0);
    a->held = stays ? data : nullptr;
    a->place = nullptr;
    a->since = 0;
    const auto *begin = static_cast<const std::byte *>(data);
    if (stays) a->own.clear();
    else a->own.assign(begin, begin + bytes);
    s.arrivals.add(std::move(a));
    return stays ? kInProgress : kOk;
  } catch (const std::exception &) { return s.breach("no memory for what has come"); }
}

// Fetches what waits at the sender, in the order of the numbers: a later piece must not take the place that an earlier one needs.
void UcxLink::fetch() {
  State &s = *state_;
  uint64_t number = s.next_in;
  for (const auto &a : s.arrivals.all()) {
    if (a->number != number++) return;
    if (!a->waits || a->place) continue;
    const auto place = std::find_if(s.fetches.begin(), s.fetches.end(), [](const FetchPlace &p) { return !p.busy; });
    if (place == s.fetches.end()) return;
    a->place = &*place;
    place->busy = place->pending = true;
    place->status = kOk;
    RequestParams params;
    params.fields = kRequestCallback | kRequestUserData | kRequestMemory;
    params.received = [](void *request, ucx_abi::Status status, size_t, void *user_data) {
      FetchPlace &p = *static_cast<FetchPlace *>(user_data);
      p.status = status;
      p.pending = false;
      if (p.state->link) p.state->link->to_read_.store(true, std::memory_order_release);
      p.state->worker->ucx()->request_free(request);
    };
    params.user_data = &*place;
    params.memory = s.memory;
    const StatusPointer r =
        worker_.ucx()->am_recv_data_nbx(worker_.worker(), a->held, place->memory, a->header.bytes, &params);
    a->held = nullptr;  // UCX has it back
    if (r && !is_failure(r)) continue;
    place->pending = false;
    if (r) place->status = failure_of(r);
  }
}

// Brings the frame that is next to its place. False: not yet.
bool UcxLink::bring(UcxArrival &a, FrameSink &sink) {
  State &s = *state_;
  if (a.waits) {
    if (!a.place || a.place->pending) return false;
    if (a.place->status != kOk) {
      s.failed(a.place->status);
      return false;
    }
  }
  std::byte *to = nullptr;
  const Accept answer = sink.accept(a.header, a.since, to);
  deferred_.store(answer == Accept::Defer, std::memory_order_relaxed);
  if (answer == Accept::Defer) {
    if (a.since == 0) a.since = now_ns();
    return false;
  }
  const std::byte *from = a.waits ? a.place->memory : a.held ? static_cast<std::byte *>(a.held) : a.own.data();
  if (answer == Accept::Take && a.header.bytes != 0) copy_bytes(to, from, a.header.bytes);
  if (a.held) worker_.ucx()->am_data_release(worker_.worker(), std::exchange(a.held, nullptr));
  if (a.place) a.place->busy = false;
  bytes_received.fetch_add(a.header.bytes + sizeof(FrameHeader), std::memory_order_relaxed);
  if (answer == Accept::Take) sink.received(a.header);
  return true;
}

bool UcxLink::pull(FrameSink &sink) {
  State &s = *state_;
  bool moved = false;
  to_read_.store(false, std::memory_order_relaxed);  // set again below UCX alone, which the caller's turn keeps out
  fetch();
  while (!s.arrivals.empty() && s.arrivals.front().number == s.next_in && bring(s.arrivals.front(), sink)) {
    ++s.next_in;
    s.arrivals.pop();
    moved = true;
    fetch();
  }
  return moved;
}

bool UcxLink::progress(FrameSink &sink) {
  if (dead_.load(std::memory_order_relaxed) || !worker_.try_turn()) return false;
  watched_.store(false, std::memory_order_relaxed);
  bool moved = false, mine = false;  // mine: something of this link has happened
  try {
    moved = worker_.progress();
    mine = to_read_.load(std::memory_order_relaxed);
    mine |= pull(sink), mine |= push();
  } catch (...) {  // no memory
    worker_.end_turn();
    throw;
  }
  // What came before the peer's end is brought first. What happens on other links does not count, as they may always be busy.
  const bool waits = mine || deferred_.load(std::memory_order_relaxed),
             over = state_->fault || (state_->failure != kOk && !waits);
  if (over) die();
  worker_.end_turn();
  if (over) sink.broken(trouble());
  return moved || mine;
}

// ---- ends ----------------------------------------------------------------------------------------------------------------

void UcxLink::die() {
  dead_.store(true, std::memory_order_relaxed);
  // What UCX has in work has not succeeded, so nothing is finished here.
  for (SendPlace &p : state_->sends)
    if (Outgoing *out = std::exchange(p.out, nullptr); out && --out->pieces == 0 && out->cut == out->header.total)
      unsent_.push(*out);
}

std::string UcxLink::trouble() const {
  const State &s = *state_;
  if (s.fault) return formatted("protocol error: {}", s.fault);
  return s.failure == kOk ? std::string() : "UCX: " + worker_.ucx().text(s.failure);
}

void UcxLink::cancel(uint32_t, uint32_t theirs, uint32_t epoch, uint32_t source) {
  const UcxWorker::Hold turn(worker_);
  const auto of_member = [&](const Outgoing &o) {
    return o.header.member == theirs && o.header.epoch == epoch && o.header.source == source;
  };
  // UCX goes on with the copies of pieces that it has, so each such frame comes whole or is not finished.
  for (SendPlace &p : state_->sends)
    if (p.out && of_member(*p.out)) {
      Outgoing *out = std::exchange(p.out, nullptr);
      if (--out->pieces == 0 && out->cut == out->header.total) finish(*out);
    }
  for (OutQueue *queue : {&queue_, &unsent_}) queue->remove_if(of_member, [](Outgoing &o) { finish(o); });
}

// ---- sleeping ------------------------------------------------------------------------------------------------------------

int64_t UcxLink::descriptors(std::vector<pollfd> &fds) const {
  if (dead_.load(std::memory_order_relaxed)) return kAnyTime;
  const int fd = worker_.fd();
  if (std::none_of(fds.begin(), fds.end(), [fd](const pollfd &p) { return p.fd == fd; })) fds.push_back({fd, POLLIN, 0});
  if (to_read_.load(std::memory_order_acquire)) return 0;
  if (!watched_.load(std::memory_order_relaxed)) return kUnwatched;
  return deferred_.load(std::memory_order_relaxed) ? kAskAgain : kAnyTime;
}

void UcxLink::before_sleep() {
  if (dead_.load(std::memory_order_relaxed) || !worker_.try_turn()) return;
  watched_.store(worker_.watch(), std::memory_order_relaxed);
  worker_.end_turn();
}

}  // namespace isthmus::link
