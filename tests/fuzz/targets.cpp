#include "targets.hpp"

#include <sys/mman.h>
#include <sys/socket.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "bootstrap/control_wire.hpp"
#include "bootstrap/newcomers.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/ticket_wire.hpp"
#include "comm/blob.hpp"
#include "link/arena.hpp"
#include "link/memory.hpp"
#include "link/stream_book.hpp"
#include "link/tcp.hpp"
#include "net/address.hpp"
#include "net/frame.hpp"
#include "net/handshake.hpp"
#include "process/control_wire.hpp"
#include "topology/profile.hpp"

namespace isthmus::fuzz {
namespace {

using net::ByteVector;

void must(bool holds) {
  if (!holds) std::abort();
}

std::span<const std::byte> view(const uint8_t *data, size_t size) { return std::as_bytes(std::span(data, size)); }
Bytes seed(std::span<const std::byte> b) {
  Bytes out(b.size());
  if (!b.empty()) std::memcpy(out.data(), b.data(), b.size());
  return out;
}

// The first byte chooses the pieces in which the rest arrives.
void frames(const uint8_t *data, size_t size) {
  if (size == 0) return;
  const size_t piece = data[0] + size_t{1};
  auto in = view(data + 1, size - 1);
  constexpr size_t kMax = 4096;
  net::FrameReader reader(kMax);
  size_t bytes = 0;
  ByteVector again;
  while (!in.empty()) {
    auto space = reader.space();
    must(!space.empty() && space.size() <= 2 * kMax + net::kFrameHeader);
    const size_t n = std::min({piece, in.size(), space.size()});
    std::memcpy(space.data(), in.data(), n);
    reader.received(n);
    in = in.subspan(n);
    uint16_t type = 0;
    std::span<const std::byte> body;
    net::FrameReader::Result r;
    while ((r = reader.next(type, body)) == net::FrameReader::Result::Frame) {
      must(body.size() <= kMax);
      bytes += net::kFrameHeader + body.size();
      net::append_frame(again, type, body);
    }
    must(reader.missing() >= 1 && reader.missing() <= kMax + net::kFrameHeader);
    if (r == net::FrameReader::Result::Bad) {
      must(!reader.why().empty());
      must(reader.next(type, body) == net::FrameReader::Result::Bad);
      break;
    }
  }
  must(bytes <= size - 1 && again.size() == bytes && (bytes == 0 || std::memcmp(again.data(), data + 1, bytes) == 0));
}

std::vector<Bytes> frame_seeds() {
  ByteVector v{std::byte{6}};
  net::append_frame(v, 7, net::as_bytes("hello"));
  net::append_frame(v, 0xff00, {});
  net::append_frame(v, 9, ByteVector(300));
  ByteVector large{std::byte{255}};
  net::append_frame(large, 1, ByteVector(4096));
  return {seed(v), seed(large)};
}

void handshake(const uint8_t *data, size_t size) {
  const auto in = view(data, size);
  std::string why;
  if (const auto h = net::parse_hello(in, why))
    must(size == net::kHelloBytes && net::parse_hello(net::encode(*h), why).has_value());
  else must(!why.empty());
  why.clear();
  if (!net::parse_challenge(in, why)) must(!why.empty());
  // Whatever a client sends, it is not proved.
  net::Acceptor a({1});
  ByteVector reply;
  auto rest = in;
  while (a.wants() != 0 && !rest.empty()) {
    const auto piece = rest.first(std::min(a.wants(), rest.size()));
    if (piece.size() < a.wants() && a.plausible(piece)) break;
    rest = rest.subspan(piece.size());
    a.feed(piece, reply);
  }
  must(a.state() != net::Acceptor::State::Done && !a.try_key({2}, reply));
}

std::vector<Bytes> handshake_seeds() {
  net::Hello h;
  h.role = net::Role::Data;
  h.index = 3;
  h.count = 4;
  auto hello = net::encode(h);
  auto with_proof = hello;
  net::Writer(with_proof).bytes16({5});
  return {seed(hello), seed(with_proof), seed(net::encode(net::Challenge{}))};
}

void endpoint(const uint8_t *data, size_t size) {
  try {
    const auto e = bootstrap::Endpoint::unpack(view(data, size));
    const auto packed = e.pack();
    must(packed.size() == size && std::memcmp(packed.data(), data, size) == 0);
  } catch (const Error &error) { must(error.code() == Code::Mismatch); }
}

bootstrap::Endpoint an_endpoint() { return {{1}, {2}, "host", "isthmus-1-name", {"127.0.0.1:1", "[::1]:2"}, 4711}; }
std::vector<Bytes> endpoint_seeds() { return {seed(an_endpoint().pack()), seed(bootstrap::Endpoint{}.pack())}; }

void greeting(const uint8_t *data, size_t size) {
  const auto in = view(data, size);
  if (const auto m = bootstrap::parse_intro(in)) must(bootstrap::encode(*m).size() == size);
  if (const auto m = bootstrap::parse_attach(in)) must(bootstrap::encode(*m).size() == size);
  if (const auto m = bootstrap::parse_ready(in)) must(bootstrap::encode(*m).size() == size);
  if (const auto m = bootstrap::parse_stream_intro(in)) must(bootstrap::encode(*m).size() == size);
  if (const auto m = bootstrap::parse_elapsed(in)) must(bootstrap::encode(*m).size() == size);
  if (const auto m = bootstrap::parse_beat(in)) must(bootstrap::encode(*m).size() == size);
  if (const auto m = bootstrap::parse_resume(in)) must(bootstrap::encode(*m).size() == size);
  if (const auto m = bootstrap::parse_count(in)) must(bootstrap::encode_count(*m).size() == size);
}

std::vector<Bytes> greeting_seeds() {
  return {seed(bootstrap::encode(bootstrap::Intro{4096, {1, 2}, an_endpoint()})),
          seed(bootstrap::encode(bootstrap::Attach{4096, {3}, "why"})), seed(bootstrap::encode(bootstrap::Ready{{4}, ""})),
          seed(bootstrap::encode(bootstrap::Elapsed{400}))};
}

void rendezvous(const uint8_t *data, size_t size) {
  const auto in = view(data, size);
  if (const auto m = bootstrap::parse_join(in)) must(m->hostname.size() <= 255);
  if (const auto m = bootstrap::parse_contribution(in))
    must(m->blob.size() + 16 == size && m->patience.alike <= m->blob.size() && m->patience.ns >= 0);
  if (const auto m = bootstrap::parse_give_up(in)) must(m->why.text.size() + 8 == size && m->why.text.size() <= 1024);
  if (const auto m = bootstrap::parse_result(in)) must(m->blob.size() + 8 == size);
  if (const auto m = bootstrap::parse_failure(in)) must(!m->ok());
  if (const auto m = bootstrap::parse_enter(in)) must(m->slot >= bootstrap::kAnySlot && m->hostname.size() <= 255);
  if (const auto m = bootstrap::parse_welcome(in))
    must(m->rank >= 0 && m->rank < m->world && m->rank <= m->slot && m->slot < m->slots && m->world <= m->slots &&
         m->making_ns <= m->whole_ns);
  std::array<std::byte, 128> id{};
  std::memcpy(id.data(), data, std::min(size, id.size()));
  try {
    const auto u = bootstrap::unpack_unique_id(id);
    must(!u.addresses.empty() && u.addresses.size() <= 4);
  } catch (const Error &error) { must(error.code() == Code::Argument || error.code() == Code::Mismatch); }
}

std::vector<Bytes> rendezvous_seeds() {
  std::vector<Bytes> out;
  const auto add = [&](const ByteVector &frame) { out.push_back(seed(std::span(frame).subspan(net::kFrameHeader))); };
  ByteVector join, contribution, give_up, result, failure;
  bootstrap::append_join(join, {4711, "host"});
  bootstrap::append_contribution(contribution, 1, net::as_bytes("blob"), {2, 60});
  bootstrap::append_give_up(give_up, 1, {Code::Config, "it could not reach its neighbour"});
  bootstrap::append_result(result, 1, 2, net::as_bytes("blob"));
  bootstrap::append_failure(failure, {Code::Timeout, "rank 2 of 3 did not arrive"});
  ByteVector enter, welcome;
  bootstrap::append_enter(enter, {4711, 2, "host"});
  bootstrap::append_welcome(welcome, {3, 4, 5, 6, 1000, 2000, "world/grow", "3 ranks of 'world' and 1 newcomers"});
  for (const auto *f : {&join, &contribution, &give_up, &result, &failure, &enter, &welcome}) add(*f);
  std::array<std::byte, 128> id;
  bootstrap::pack_unique_id({{7}, {"127.0.0.1:29501", "[::1]:29501"}}, id);
  out.push_back(seed(id));
  return out;
}

// As it is, and with the checksum that it would have, without which hardly any is read.
void ticket(const uint8_t *data, size_t size) {
  std::array<std::byte, bootstrap::kTicketBytes> bytes{};
  std::memcpy(bytes.data(), data, std::min(size, bytes.size()));
  for (int sealed = 0; sealed < 2; ++sealed) {
    if (sealed) bootstrap::seal_ticket(bytes);
    try {
      const auto t = bootstrap::unpack_ticket(bytes);
      must(!t.addresses.empty() && t.addresses.size() <= 6);
      std::array<std::byte, bootstrap::kTicketBytes> again;
      must(bootstrap::pack_ticket(t, again) == t.addresses.size() && again == bytes);
      const std::string text = bootstrap::entry_text(t);
      must(bootstrap::entry_text(bootstrap::parse_entry(text)) == text);
    } catch (const Error &error) { must(error.code() == Code::Argument || error.code() == Code::Mismatch); }
  }
  try {
    bootstrap::parse_entry(std::string(reinterpret_cast<const char *>(data), size));
  } catch (const Error &error) { must(error.code() == Code::Argument || error.code() == Code::Mismatch); }
}

std::vector<Bytes> ticket_seeds() {
  std::vector<Bytes> out;
  const auto add = [&](std::initializer_list<const char *> addresses) {
    bootstrap::Ticket t{0x12345678, {7}, {}};
    for (const char *a : addresses) t.addresses.push_back(net::numeric_address(a));
    std::array<std::byte, bootstrap::kTicketBytes> bytes;
    bootstrap::pack_ticket(t, bytes);
    out.push_back(seed(bytes));
  };
  add({"127.0.0.1:29501"});
  add({"10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3", "[fd00::1]:4"});
  add({"[fd00::1]:1", "[fd00::2]:65535"});
  bootstrap::Ticket t{0x12345678, {7}, {net::numeric_address("127.0.0.1:29501")}};
  out.push_back(seed(net::as_bytes(bootstrap::entry_text(t))));
  return out;
}

void address(const uint8_t *data, size_t size) {
  try {
    const auto hp = net::split_host_port({reinterpret_cast<const char *>(data), size});
    must(!hp.host.empty() && hp.port != 0);
  } catch (const Error &error) { must(error.code() == Code::Argument); }
}

std::vector<Bytes> address_seeds() {
  return {seed(net::as_bytes("127.0.0.1:29501")), seed(net::as_bytes("[::1]:1")), seed(net::as_bytes("host.example:65535"))};
}

void blob(const uint8_t *data, size_t size) {
  try {
    const comm::RankBlob b = comm::unpack(view(data, size), 3);
    for (const int64_t leader_bytes : {b.info.leader_bytes.memory, b.info.leader_bytes.tcp, b.leader_bytes})
      must(topology::sound_leader_bytes(leader_bytes));
    const auto packed = comm::pack(b);
    must(packed.size() == size && std::memcmp(packed.data(), data, size) == 0);
  } catch (const Error &error) { must(error.code() == Code::Mismatch && !error.text().empty()); }
}

std::vector<Bytes> blob_seeds() {
  comm::RankBlob b;
  b.protocol = 1;
  b.endpoint = an_endpoint();
  b.info.host = "host";
  b.info.hostname = "hostname";
  b.info.island = "island";
  b.info.device = "cuda:1";
  b.info.device_name = "a device";
  b.info.process = "00112233445566778899aabbccddeeff";
  b.info.pid = 4711;
  b.info.numa = 1;
  b.info.ccl = "oneccl";
  b.info.ccl_version = "2022.2.0";
  b.info.fnuz = true;
  b.info.ccl_table.allow(IslandCall::AllReduce, DType::Float32, RedOp::Max);
  b.info.rates[topology::Rate::Tcp] = 3.25e9;
  b.info.rates.simulated = true;
  b.info.leader_bytes = {.memory = 0, .tcp = 65536};
  b.leader_bytes = topology::kMostLeaderBytes;
  b.settings = "ISTHMUS_CHUNK_BYTES=131072 ";
  b.name = "world";
  b.index = 1;
  b.epoch = 2;
  b.mailbox = 4096;
  b.key = {5};
  b.number.slot = 2;
  b.number.slots = 4;
  b.number.was = 1;
  b.number.keeps = true;
  return {seed(comm::pack(b)), seed(comm::pack({}))};
}

void profile(const uint8_t *data, size_t size) {
  const std::string_view text{reinterpret_cast<const char *>(data), size};
  try {
    const auto p = topology::parse_profile(text, "/a/profile");
    must(p.medians.size() <= topology::kMostProfileEntries);
    for (const auto &[name, rate] : p.medians) must(!name.empty() && name.size() <= 256 && topology::sound_rate(rate));
    const auto rates = topology::rates_of(p, "cuda:0");
    for (const double rate : rates.values) must(rate == 0 || topology::sound_rate(rate));
    must(topology::sound_leader_bytes(p.leader_bytes.memory) && topology::sound_leader_bytes(p.leader_bytes.tcp));
  } catch (const Error &error) {
    must(error.code() == Code::Config && error.text().starts_with("ISTHMUS_PROFILE=/a/profile: ") &&
         error.text().size() < 1000);
  }
}

std::vector<Bytes> profile_seeds() {
  constexpr std::string_view kText =
      R"({"schema": 1, "isthmus": "0.1.0", "host": "node", "date": "2026-01-31", "simulated": false,
 "entries": [{"name": "tcp_loopback", "unit": "bytes/s", "median": 3.5e9, "min": 3e9, "max": 4000000000, "repetitions": 9},
 {"name": "cuda:0/device_to_host", "unit": "bytes/s", "median": 2, "min": 1, "max": 3, "repetitions": 5, "note": "\u00e9"}],
 "star": {"tcp": {"bytes": 8192, "min": 0, "max": 262144, "repetitions": 9, "sizes": [1024, 2048]},
 "memory": {"bytes": 0, "min": 0, "max": 0, "repetitions": 5}}})";
  return {seed(net::as_bytes(kText)),
          seed(net::as_bytes(R"({"schema": 1, "host": "", "date": "", "simulated": true, "entries": []})")),
          Bytes(3000, '[')};
}

// Memory that ends where a payload must end. Behind it a pattern, which AddressSanitizer guards too, and a page without access.
class Payload {
 public:
  Payload() {
    void *p = ::mmap(nullptr, kBytes + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(p != MAP_FAILED);
    end_ = static_cast<std::byte *>(p) + kBytes;
    must(::mprotect(end_ + kPage, kPage, PROT_NONE) == 0);
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(end_, kPage);
#endif
  }
  std::byte *of(size_t bytes) const {
    must(bytes <= kBytes);
    return end_ - bytes;
  }
  // The system writes without asking the sanitizer, and stops at a page without access: the pattern tells.
  bool intact() const {
#if !defined(__SANITIZE_ADDRESS__)
    for (size_t i = 0; i < 64; ++i)
      if (end_[i] != std::byte{0}) return false;
#endif
    return true;
  }

 private:
  static constexpr size_t kPage = 65536;  // a multiple of every page size
  static constexpr size_t kBytes = link::kMaxPayload;
  std::byte *end_ = nullptr;
};

// Takes, drops and defers as the frames' sources say, and compares what comes with what was sent.
class Reader final : public link::FrameSink {
 public:
  explicit Reader(std::span<const std::byte> sent) : rest_(sent) {}
  link::Accept accept(const link::FrameHeader &h, int64_t, std::byte *&to) override {
    must(!broken_ && !inside_ && link::frame_fault(h) == nullptr);
    must(h.bytes <= link::kMaxPayload && h.offset <= h.total && h.bytes <= h.total - h.offset);
    must(rest_.size() >= sizeof h && std::memcmp(rest_.data(), &h, sizeof h) == 0);
    if (h.source % 4 == 3 && !deferred_) {
      deferred_ = true;
      return link::Accept::Defer;
    }
    deferred_ = false;
    rest_ = rest_.subspan(sizeof h);
    if (h.source % 4 == 2) {
      rest_ = rest_.subspan(std::min<size_t>(h.bytes, rest_.size()));
      return link::Accept::Drop;
    }
    inside_ = true;
    to = payload().of(h.bytes);
    return link::Accept::Take;
  }
  void received(const link::FrameHeader &h) override {
    must(!broken_ && std::exchange(inside_, false) && rest_.size() >= h.bytes && payload().intact());
    must(h.bytes == 0 || std::memcmp(payload().of(h.bytes), rest_.data(), h.bytes) == 0);
    rest_ = rest_.subspan(h.bytes);
  }
  void broken(const std::string &why) override {
    must(!broken_ && !why.empty() && payload().intact());
    broken_ = true;
    if (why.find("protocol error") == std::string::npos) return;
    link::FrameHeader h;
    must(!inside_ && rest_.size() >= sizeof h);
    std::memcpy(&h, rest_.data(), sizeof h);
    must(link::frame_fault(h) != nullptr);
  }
  bool ended() const { return broken_; }

 private:
  static const Payload &payload() {
    static const Payload one;
    return one;
  }
  std::span<const std::byte> rest_;  // not yet seen in a frame
  bool inside_ = false, deferred_ = false, broken_ = false;
};

// The first byte chooses the pieces in which the rest arrives; then the peer is gone.
void data_stream(const uint8_t *data, size_t size) {
  if (size == 0) return;
  const size_t piece = data[0] * size_t{16} + 1;
  auto in = view(data + 1, size - 1);
  int fds[2];
  must(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  UniqueFd peer(fds[0]);
  std::vector<UniqueFd> sockets;
  sockets.emplace_back(fds[1]);
  link::TcpLink link(std::move(sockets));
  Reader reader(in);
  while (!in.empty() && !reader.ended()) {
    const ssize_t n = ::send(peer.get(), in.data(), std::min(piece, in.size()), MSG_NOSIGNAL);
    must(n > 0);
    in = in.subspan(static_cast<size_t>(n));
    while (link.progress(reader)) {}
  }
  peer.reset();
  for (int i = 0; i < 100'000 && !reader.ended(); ++i) link.progress(reader);
  must(reader.ended() && !link.progress(reader));
}

// Notes of a peer about the streams of a link: whatever it says, no more is confirmed than was given, and each piece once.
void notes(const uint8_t *data, size_t size) {
  constexpr size_t kStreams = 3;
  link::StreamBook book(kStreams);
  std::array<link::Outgoing, 12> outs;
  for (size_t i = 0; i < outs.size(); ++i) {
    outs[i].header.total = 1 << 20;
    link::OwedPiece piece;
    piece.header = outs[i].header;
    piece.header.id = i;
    piece.out = &outs[i];
    book.give(i % kStreams, piece, 0);
  }
  std::array<bool, outs.size()> done{};
  for (uint32_t generation = 1; size >= sizeof(link::FrameHeader) + 1; ++generation) {
    const size_t by = data[0] % kStreams;
    link::FrameHeader note;
    std::memcpy(&note, data + 1, sizeof note);
    data += sizeof note + 1;
    size -= sizeof note + 1;
    if (!link::is_note(note) || !book.connected(by)) continue;
    const auto heard = book.heard(by, note, generation, [&](const link::OwedPiece &p) {
      must(p.header.id < done.size() && !std::exchange(done[p.header.id], true));
    });
    if (heard == link::StreamBook::Heard::Fault) return;
    if (heard == link::StreamBook::Heard::Ended) must(note.slot < kStreams && !book.connected(note.slot));
    for (size_t s = 0; s < kStreams; ++s) {
      link::FrameHeader answer;
      for (int most = 0; book.next_note(s, answer); ++most) must(most < 8 && link::is_note(answer));
      while (book.has_room(s) && book.again(s, generation)) {}
      if (size > 0 && data[0] % 2 == 0 && !book.connected(s)) book.come(s, book.generation(s) + generation);
    }
  }
}

std::vector<Bytes> note_seeds() {
  const auto append = [](Bytes &b, uint8_t by, uint8_t kind, uint16_t slot, uint64_t id, uint64_t offset, uint32_t upto) {
    link::FrameHeader h;
    h.kind = static_cast<link::FrameKind>(kind);
    h.slot = slot;
    h.id = id;
    h.offset = offset;
    h.epoch = upto;
    b.push_back(by);
    const auto *p = reinterpret_cast<const uint8_t *>(&h);
    b.insert(b.end(), p, p + sizeof h);
  };
  std::vector<Bytes> out(2);
  append(out[0], 0, link::kNoteGot, 0, 2, 0, 0);
  append(out[0], 1, link::kNoteLost, 0, 0, 3, 1);
  append(out[0], 2, link::kNoteLost, 1, 0, 0, 1);
  append(out[1], 0, link::kNoteLost, 2, 0, 1, 1);
  append(out[1], 0, link::kNoteLost, 2, 5, 0, 6);
  append(out[1], 1, link::kNoteGot, 0, 4, 0, 0);
  return out;
}

std::vector<Bytes> data_stream_seeds() {
  const auto append = [](Bytes &b, link::FrameHeader h, uint64_t total) {
    h.total = total;
    const bool bare = h.kind == link::FrameKind::RequestToSend || h.kind == link::FrameKind::ClearToSend;
    for (uint64_t at = 0; at == 0 || (at < total && !bare); at += h.bytes) {
      h.offset = at;
      h.bytes = bare ? 0 : static_cast<uint32_t>(std::min<uint64_t>(total - at, 3000));
      const auto *p = reinterpret_cast<const uint8_t *>(&h);
      b.insert(b.end(), p, p + sizeof h);
      for (uint32_t i = 0; i < h.bytes; ++i) b.push_back(static_cast<uint8_t>(at + i));
      if (h.bytes == 0) break;
    }
  };
  std::vector<Bytes> out{{255}, {3}, {40}};
  for (uint32_t source = 0; source < 8; ++source) {
    link::FrameHeader h;
    h.kind = static_cast<link::FrameKind>(1 + source % 5);
    h.source = source;
    append(out[0], h, 100 + source * 1000);
    append(out[1], h, source % 2 ? 17 : 0);
    append(out[2], h, source % 3 * 4000);
  }
  return out;
}

// A body is as many bytes as its struct, and what is left of the message is what lies behind it.
template <class T>
std::optional<T> control_struct(std::span<const std::byte> in) {
  auto rest = in;
  const auto got = process::unpack<T>(rest);
  must(got.has_value() == (in.size() >= sizeof(T)));
  must(rest.size() == (got ? in.size() - sizeof(T) : in.size()) && rest.data() + rest.size() == in.data() + in.size());
  if (!got) return got;
  if constexpr (std::is_same_v<T, process::ReplyBody>) must(std::memchr(got->answer.busy, 0, sizeof got->answer.busy));
  else must(std::memcmp(process::packed(*got).data(), in.data(), sizeof(T)) == 0);
  return got;
}

void control(const uint8_t *data, size_t size) {
  // In memory of its own length, so that a sanitizer sees a read behind its end.
  const ByteVector own(view(data, size).begin(), view(data, size).end());
  const std::span<const std::byte> in(own);
  control_struct<process::CreditBody>(in);
  control_struct<process::AbortHead>(in);
  control_struct<process::QueryBody>(in);
  control_struct<process::ReplyBody>(in);
  control_struct<process::LeaveBody>(in);
  control_struct<process::OutOfBandHead>(in);
  constexpr uint64_t kArena = 8 << 20;
  if (const auto ring = control_struct<process::StreamRingBody>(in); ring && process::lies_in(*ring, kArena))
    must(ring->offset >= link::Arena::kHeader && ring->offset + link::ByteRing::bytes(ring->capacity) <= kArena);
  if (const auto m = process::unpack_abort(in)) {
    const size_t texts = size - sizeof(process::AbortHead) - m->ranks.size();
    must(m->numbers().size() == m->head.ranks && m->numbers().size() <= process::kMostFailureRanks);
    must(m->subject.size() + m->rest.size() == texts);
    must(m->subject.size() <= m->head.subject && m->subject.data() + m->subject.size() == m->rest.data());
    must(m->rest.data() + m->rest.size() == reinterpret_cast<const char *>(in.data() + in.size()));
    std::string text(m->subject);  // all of it is there to be read
    text += m->rest;
    must(text.size() == texts);
  }
}

std::vector<Bytes> control_seeds() {
  std::array<std::byte, 128> room;
  const auto text = net::as_bytes("all_reduce #3 of 'world': rank 2 is late");
  process::ReplyBody reply{7, {}};
  std::fill(std::begin(reply.answer.busy), std::end(reply.answer.busy), 'x');
  return {seed(process::packed(process::CreditBody{1, 2, 3, 0, 4096})),
          seed(process::pack(process::AbortHead{1, 2, 4, 40, 23, 0, -1, 1, 3, 0, 0}, text, room)),
          seed(process::pack(process::AbortHead{1, 2, 4, 32, 23, 0, -1, 1, 3, 2, 0}, text,
                             room)),  // the text's beginning as ranks
          seed(process::packed(
              process::QueryBody{1, 2, 3, {.sequence = 4, .rank = 1, .tag = 5, .side = process::MessageSide::Send}})),
          seed(process::packed(reply)),
          seed(process::packed(process::StreamRingBody{link::Arena::kHeader, link::ByteRing::kLeastCapacity})),
          seed(process::packed(process::LeaveBody{1, 2, 3, process::Leaving::Broken, 5, 6})),
          seed(process::pack(process::OutOfBandHead{1, 2, 3, 0, 5, 6, 7}, text, room))};
}

}  // namespace

const std::vector<Target> &targets() {
  static const std::vector<Target> all{{"frames", frames, frame_seeds},
                                       {"handshake", handshake, handshake_seeds},
                                       {"endpoint", endpoint, endpoint_seeds},
                                       {"greeting", greeting, greeting_seeds},
                                       {"rendezvous", rendezvous, rendezvous_seeds},
                                       {"ticket", ticket, ticket_seeds},
                                       {"address", address, address_seeds},
                                       {"blob", blob, blob_seeds},
                                       {"profile", profile, profile_seeds, 15'000},
                                       {"data_stream", data_stream, data_stream_seeds},
                                       {"notes", notes, note_seeds},
                                       {"control", control, control_seeds}};
  return all;
}

}  // namespace isthmus::fuzz
