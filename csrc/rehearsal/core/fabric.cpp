#include "core/fabric.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "core/ledger.hpp"
#include "core/queue.hpp"

namespace rehearsal {
namespace {

constexpr size_t kHalf =
    size_t{512} << 10;  // bytes of half a rank's buffer: one half is filled while the other is still read
constexpr size_t kSlot = size_t{64} << 10;  // bytes; a channel has two slots

using Word = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free);

// What a rank calls, for the others to compare.
struct Description {
  int32_t kind, type, reduction, root;
  uint64_t count, factor;
};
struct alignas(64) Line {
  Word value;
};
struct Half {
  Description what;
  alignas(64) std::byte data[kHalf];
};
struct Split {
  Line published, token_published;
  int32_t color, key;
  Token token;
};
struct Member {
  Line posted, taken;
  Split splits[2];
  Half halves[2];
};
struct Slot {
  uint64_t total, offset, bytes;
  std::byte data[kSlot];
};
struct Channel {  // from one rank to another
  Line sent, taken;
  Slot slots[2];
};

// The segment: a Line that counts the ranks that have arrived, a Member for each rank, and a Channel for each pair of ranks and direction.
Line &arrivals(std::byte *base) { return *reinterpret_cast<Line *>(base); }
Member &member(std::byte *base, int rank) { return reinterpret_cast<Member *>(base + sizeof(Line))[rank]; }
Channel &channel(std::byte *base, int size, int from, int to) {
  auto *first = reinterpret_cast<Channel *>(base + sizeof(Line) + sizeof(Member) * static_cast<size_t>(size));
  return first[from * size + to];
}

bool reached(const Word &w, uint32_t step) { return static_cast<int32_t>(w.load(std::memory_order_acquire) - step) >= 0; }

// False: stop() was true.
template <class Ready>
bool wait_or_stop(Ready ready, const Fabric::Stop &stop) {
  bool stopped = false;
  poll_until([&] { return ready() || (stopped = stop()); });
  return !stopped;
}

// Sleeps as long as the bytes would travel (REHEARSAL_FABRIC_GBPS).
void travel(size_t bytes) {
  const double rate = settings().fabric_gbps;
  if (rate > 0) sleep_us(static_cast<double>(bytes) / (rate * 1000));
}

}  // namespace

size_t segment_bytes(int size) {
  const auto n = static_cast<size_t>(size);
  return sizeof(Line) + n * sizeof(Member) + n * n * sizeof(Channel);
}

Fabric::Fabric(const Library &library, void *base, size_t bytes, int rank, int size)
    : library_(library),
      base_(static_cast<std::byte *>(base)),
      bytes_(bytes),
      rank_(rank),
      size_(size),
      sent_(static_cast<size_t>(size)),
      received_(static_cast<size_t>(size)) {}

Fabric::~Fabric() { ::munmap(base_, bytes_); }

Met Fabric::join(const Library &library, const Token &token, int rank, int size, int device, const Stop &stop,
                 std::shared_ptr<Fabric> *out, bool patient) {
  int fd = -1;
  const Met met = meet(library, token, rank, size, device, stop, &fd, patient);
  if (met != Met::Ok) return met;
  const size_t bytes = segment_bytes(size);
  void *base = fd < 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) ::close(fd);
  if (base == MAP_FAILED) return Met::System;
  std::shared_ptr<Fabric> fabric(new Fabric(library, base, bytes, rank, size));
  Word &arrived = arrivals(fabric->base_).value;
  arrived.fetch_add(1, std::memory_order_acq_rel);
  if (!wait_or_stop([&] { return reached(arrived, static_cast<uint32_t>(size)); }, stop)) return Met::Stopped;
  *out = std::move(fabric);
  return Met::Ok;
}

const std::byte *Fabric::piece(int rank) const { return member(base_, rank).halves[step_ & 1].data; }

// One step. put() writes this rank's piece, and take() reads the pieces of all ranks. False: stopped.
bool Fabric::exchange(const char *call, const Work &w, const Stop &stop, const std::function<void(std::byte *)> &put,
                      const std::function<void()> &take, size_t bytes) {
  const uint32_t step = ++step_;
  const auto all = [&](Line Member::*line, uint32_t at) {
    for (int r = 0; r < size_; ++r)
      if (!reached((member(base_, r).*line).value, at)) return false;
    return true;
  };
  if (!wait_or_stop([&] { return all(&Member::taken, step - 2); }, stop)) return false;
  Member &mine = member(base_, rank_);
  Half &half = mine.halves[step & 1];
  half.what = {static_cast<int32_t>(w.kind),
               static_cast<int32_t>(w.type),
               static_cast<int32_t>(w.reduction),
               w.root,
               w.count,
               w.factor};
  put(half.data);
  travel(bytes);
  mine.posted.value.store(step, std::memory_order_release);
  if (!wait_or_stop([&] { return all(&Member::posted, step); }, stop)) return false;
  for (int r = 0; r < size_; ++r) {
    const Description &d = member(base_, r).halves[step & 1].what;
    if (std::tie(d.kind, d.type, d.reduction, d.root, d.count) !=
        std::tie(half.what.kind, half.what.type, half.what.reduction, half.what.root, half.what.count))
      misuse(call, Code::Invalid,
             "rank %d calls collective %d (type %d, op %d, root %d, %lu elements), rank %d collective %d "
             "(type %d, op %d, root %d, %lu elements)",
             rank_, half.what.kind, half.what.type, half.what.reduction, half.what.root,
             static_cast<unsigned long>(half.what.count), r, d.kind, d.type, d.reduction, d.root,
             static_cast<unsigned long>(d.count));
  }
  take();
  mine.taken.value.store(step, std::memory_order_release);
  return true;
}

void Fabric::run(const char *call, const Work &w, const Stop &stop) {
  const size_t width = type_size(w.type);
  const bool scatters = w.kind == Collective::ReduceScatter;
  const auto n = static_cast<size_t>(size_);
  const uint64_t most = kHalf / width / (scatters ? n : 1);
  std::vector<Contribution> parts(n);
  for (uint64_t at = 0; at < w.count; at += most) {
    const uint64_t count = std::min<uint64_t>(most, w.count - at);
    const size_t bytes = count * width, offset = at * width;
    const auto put = [&](std::byte *half) {
      if (scatters)
        for (size_t r = 0; r < n; ++r) std::memcpy(half + r * bytes, w.from + (r * w.count + at) * width, bytes);
      else if (w.kind != Collective::Broadcast || w.root == rank_) std::memcpy(half, w.from + offset, bytes);
    };
    const auto take = [&] {
      // What is in its place already is not written: others may read it meanwhile.
      const auto take_piece = [&](int r, std::byte *to) {
        if (r != rank_ || to != w.from + offset) std::memcpy(to, piece(r), bytes);
      };
      switch (w.kind) {
        case Collective::Broadcast: take_piece(w.root, w.to + offset); return;
        case Collective::AllGather:
          for (size_t r = 0; r < n; ++r) take_piece(static_cast<int>(r), w.to + r * w.count * width + offset);
          return;
        case Collective::Reduce:
          if (w.root != rank_) return;
          [[fallthrough]];
        case Collective::AllReduce:
        case Collective::ReduceScatter:
          for (size_t r = 0; r < n; ++r) {
            parts[r].data = piece(static_cast<int>(r)) + (scatters ? static_cast<size_t>(rank_) * bytes : 0);
            parts[r].factor = member(base_, static_cast<int>(r)).halves[step_ & 1].what.factor;
          }
          reduce(w.type, w.reduction, parts.data(), size_, w.to + offset, count);
      }
    };
    if (!exchange(call, w, stop, put, take, scatters ? n * bytes : bytes)) return;
  }
}

void Fabric::run(const char *call, const std::vector<Message> &messages, const Stop &stop, bool until_taken) {
  struct Line_ {  // the messages to or from one peer, in their order
    std::deque<Message> left;
    uint64_t at = 0;
  };
  std::map<std::pair<bool, int>, Line_> lines;
  for (const Message &m : messages)
    if (m.bytes) lines[{m.sends, m.peer}].left.push_back(m);
  const auto advance = [&](bool sends, int peer, Line_ &line) {
    const Message &m = line.left.front();
    const auto p = static_cast<size_t>(peer);
    Channel &c = sends ? channel(base_, size_, rank_, peer) : channel(base_, size_, peer, rank_);
    uint64_t moved = 0;
    if (sends) {
      if (!reached(c.taken.value, sent_[p] - 1)) return false;  // both slots are full
      Slot &slot = c.slots[sent_[p] & 1];
      moved = std::min<uint64_t>(kSlot, m.bytes - line.at);
      slot.total = m.bytes;
      slot.offset = line.at;
      slot.bytes = moved;
      std::memcpy(slot.data, m.at + line.at, moved);
      travel(moved);
      c.sent.value.store(++sent_[p], std::memory_order_release);
    } else {
      if (!reached(c.sent.value, received_[p] + 1)) return false;
      const Slot &slot = c.slots[received_[p] & 1];
      moved = std::min<uint64_t>(slot.bytes, m.bytes - line.at);
      if (slot.total != m.bytes || slot.offset != line.at)
        misuse(call, Code::Invalid, "rank %d receives %lu bytes where rank %d sends %lu", rank_,
               static_cast<unsigned long>(m.bytes), peer, static_cast<unsigned long>(slot.total));
      std::memcpy(m.at + line.at, slot.data, moved);
      c.taken.value.store(++received_[p], std::memory_order_release);
    }
    line.at += moved;
    if (line.at >= m.bytes) {
      line.left.pop_front();
      line.at = 0;
    }
    return true;
  };
  while (!lines.empty()) {
    const bool going = wait_or_stop(
        [&] {
          bool some = false;
          for (auto it = lines.begin(); it != lines.end();) {
            some |= advance(it->first.first, it->first.second, it->second);
            it = it->second.left.empty() ? lines.erase(it) : std::next(it);
          }
          return some;
        },
        stop);
    if (!going) return;
  }
  if (!until_taken) return;
  const auto taken = [&](const Message &m) {
    const auto p = static_cast<size_t>(m.peer);
    return !m.sends || !m.bytes || reached(channel(base_, size_, rank_, m.peer).taken.value, sent_[p]);
  };
  wait_or_stop([&] { return std::all_of(messages.begin(), messages.end(), taken); }, stop);
}

bool Fabric::split(int color, int key, const Stop &stop, Token *token, int *new_rank, int *new_size) {
  const uint32_t number = ++splits_;
  const auto of = [&](int r) -> Split & { return member(base_, r).splits[number & 1]; };
  Split &mine = of(rank_);
  mine.color = color;
  mine.key = key;
  mine.published.value.store(number, std::memory_order_release);
  std::vector<std::pair<int, int>> order;  // key, rank
  for (int r = 0; r < size_; ++r) {
    if (!wait_or_stop([&] { return reached(of(r).published.value, number); }, stop)) return false;
    if (of(r).color == color) order.emplace_back(of(r).key, r);
  }
  std::sort(order.begin(), order.end());
  *new_size = static_cast<int>(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i].second == rank_) *new_rank = static_cast<int>(i);
  if (color < 0) return true;
  const int leader = order.front().second;
  if (leader == rank_) {
    if (!new_rendezvous(library_, &mine.token)) return false;
    mine.token_published.value.store(number, std::memory_order_release);
  }
  if (!wait_or_stop([&] { return reached(of(leader).token_published.value, number); }, stop)) return false;
  *token = of(leader).token;
  return true;
}

}  // namespace rehearsal
