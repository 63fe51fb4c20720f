#include "net/handshake.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "net/siphash.hpp"
#include "net/socket.hpp"

namespace isthmus::net {
namespace {

constexpr std::array<std::byte, 4> kMagic{std::byte{'I'}, std::byte{'S'}, std::byte{'T'}, std::byte{'H'}};

Bytes16 mac(const Bytes16 &key, std::string_view label, std::span<const std::byte> transcript) {
  ByteVector message;
  Writer(message).bytes(as_bytes(label)).bytes(transcript);
  return siphash128(key, message);
}

std::string acceptor_label(Verdict v) { return std::string{'A', static_cast<char>(v)}; }

bool has_magic(Reader &r) {
  bool same = true;
  for (const std::byte b : kMagic) same &= static_cast<std::byte>(r.number<uint8_t>()) == b;
  return same;
}

std::string printable(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes.first(std::min<size_t>(bytes.size(), 24))) {
    const char c = static_cast<char>(b);
    out += c >= 32 && c < 127 ? c : '.';
  }
  return out;
}

}  // namespace

Bytes16 random16() {
  Bytes16 out;
  size_t have = 0;
  while (have < out.size()) {
    const ssize_t n = ::getrandom(out.data() + have, out.size() - have, 0);
    if (n < 0 && errno != EINTR) fail_system("getrandom", errno);
    if (n > 0) have += static_cast<size_t>(n);
  }
  return out;
}

std::string version_text(uint16_t theirs, uint16_t ours) {
  return formatted("protocol version {}, where this process speaks version {}; install the same Isthmus everywhere", theirs,
                   ours);
}

ByteVector encode(const Hello &m) {
  ByteVector out;
  Writer w(out);
  w.bytes(kMagic)
      .number(m.version)
      .number(static_cast<uint16_t>(m.ticket))
      .number(static_cast<uint8_t>(m.role))
      .number(uint8_t{0})
      .number(static_cast<uint16_t>(m.ticket >> 16));
  w.number(m.index).number(m.count).bytes16(m.nonce).bytes16(m.process);
  return out;
}

ByteVector encode(const Challenge &m) {
  ByteVector out;
  Writer(out).bytes(kMagic).number(m.version).number(uint16_t{0}).bytes16(m.nonce).bytes16(m.process);
  return out;
}

std::optional<Hello> parse_hello(std::span<const std::byte> bytes, std::string &why) {
  Reader r(bytes);
  Hello m;
  if (!has_magic(r)) {
    why = formatted("it does not speak our protocol (it sent '{}')", printable(bytes));
    return {};
  }
  m.version = r.number<uint16_t>();
  m.ticket = r.number<uint16_t>();
  const uint8_t role = r.number<uint8_t>();
  r.number<uint8_t>();
  m.ticket |= uint32_t{r.number<uint16_t>()} << 16;
  m.role = static_cast<Role>(role);
  m.index = r.number<uint32_t>();
  m.count = r.number<uint32_t>();
  m.nonce = r.bytes16();
  m.process = r.bytes16();
  if (!r.done()) {
    why = "a malformed hello";
    return {};
  }
  if (role < 1 || role > 3) {
    why = formatted("a hello with the unknown role {}", role);
    return {};
  }
  return m;
}

std::optional<Challenge> parse_challenge(std::span<const std::byte> bytes, std::string &why) {
  Reader r(bytes);
  Challenge m;
  if (!has_magic(r)) {
    why = formatted("it does not speak our protocol (it sent '{}')", printable(bytes));
    return {};
  }
  m.version = r.number<uint16_t>();
  r.number<uint16_t>();
  m.nonce = r.bytes16();
  m.process = r.bytes16();
  if (!r.done()) {
    why = "a malformed challenge";
    return {};
  }
  return m;
}

Acceptor::Acceptor(const Bytes16 &process, uint16_t version) {
  challenge_.version = version;
  challenge_.process = process;
  challenge_.nonce = random16();
}

size_t Acceptor::wants() const noexcept {
  return state_ == State::Hello ? kHelloBytes : state_ == State::Proof ? kProofBytes : 0;
}

bool Acceptor::plausible(std::span<const std::byte> beginning) const {
  if (state_ != State::Hello) return true;
  const size_t n = std::min(beginning.size(), kMagic.size());
  return std::equal(kMagic.begin(), kMagic.begin() + static_cast<ptrdiff_t>(n), beginning.begin());
}

void Acceptor::feed(std::span<const std::byte> bytes, ByteVector &reply) {
  if (state_ == State::Hello) {
    const auto hello = parse_hello(bytes, why_);
    if (!hello) {
      state_ = State::Refused;
      return;
    }
    hello_ = *hello;
    reply = encode(challenge_);
    Writer(transcript_).bytes(bytes).bytes(reply);
    state_ = State::Proof;
  } else if (state_ == State::Proof) {
    proof_ = Reader(bytes).bytes16();
    state_ = State::Unproved;
  }
}

bool Acceptor::try_key(const Bytes16 &key, ByteVector &reply) {
  if (state_ != State::Unproved || !equal_constant_time(proof_, mac(key, "D", transcript_))) return false;
  const Verdict v = hello_.version == challenge_.version ? Verdict::Welcome : Verdict::OtherVersion;
  Writer(reply)
      .bytes(kMagic)
      .number(challenge_.version)
      .number(static_cast<uint16_t>(v))
      .bytes16(mac(key, acceptor_label(v), transcript_));
  state_ = State::Done;
  return true;
}

void Acceptor::refuse(ByteVector &reply, const Bytes16 &job) {
  Writer(reply).bytes(kMagic).number(challenge_.version).number(static_cast<uint16_t>(Verdict::UnknownKey)).bytes16(job);
  why_ = "it did not prove the job key";
  state_ = State::Refused;
}

Dialed dial(int fd, Hello hello, const Bytes16 &key, const std::string &to, Deadline deadline) {
  const auto check = [&](Io io, const char *step) {
    if (io == Io::Ok) return;
    if (io == Io::Timeout) fail(Code::Timeout, "{} accepted the connection but did not answer in time (step: {})", to, step);
    fail(Code::PeerLost, "{} closed the connection inside the handshake (step: {})", to, step);
  };
  hello.nonce = random16();
  ByteVector transcript = encode(hello);
  check(send_all(fd, transcript, deadline), "hello");

  std::array<std::byte, kChallengeBytes> challenge_bytes;
  // The magic is read first, alone: a foreign server may send less than a challenge and then wait.
  check(recv_exact(fd, std::span(challenge_bytes).first(kMagic.size()), deadline), "challenge");
  std::string why;
  if (!std::equal(kMagic.begin(), kMagic.end(), challenge_bytes.begin())) {
    parse_challenge(std::span(challenge_bytes).first(kMagic.size()), why);
    fail(Code::Auth, "{} is another program: {}", to, why);
  }
  check(recv_exact(fd, std::span(challenge_bytes).subspan(kMagic.size()), deadline), "challenge");
  const auto challenge = parse_challenge(challenge_bytes, why);
  if (!challenge) fail(Code::Auth, "{}: {}", to, why);
  Writer(transcript).bytes(challenge_bytes);

  const Bytes16 proof = mac(key, "D", transcript);
  check(send_all(fd, std::as_bytes(std::span(proof)), deadline), "proof");

  std::array<std::byte, kVerdictBytes> verdict_bytes;
  check(recv_exact(fd, verdict_bytes, deadline), "verdict; it may not hold our job key");
  Reader r(verdict_bytes);
  has_magic(r);
  r.number<uint16_t>();
  const auto verdict = static_cast<Verdict>(r.number<uint16_t>());
  if (verdict == Verdict::UnknownKey)
    throw KeyError(
        formatted("{} does not know our job key; check that all processes belong to one job (ISTHMUS_JOB_KEY, job id, "
                  "address)",
                  to),
        challenge->process, r.bytes16());
  if (!equal_constant_time(r.bytes16(), mac(key, acceptor_label(verdict), transcript)))
    fail(Code::Auth, "{} did not prove the job key; check that all processes belong to one job", to);
  if (verdict == Verdict::OtherVersion || challenge->version != hello.version)
    fail(Code::Mismatch, "{} speaks {}", to, version_text(challenge->version, hello.version));
  return {challenge->process, challenge->version};
}

}  // namespace isthmus::net
