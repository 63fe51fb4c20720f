#include "comm/blob.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace isthmus::comm {
namespace {

constexpr int32_t kMostSlots = 16'777'216;

class BlobWriter {
 public:
  template <class T>
  void number(T v) {
    const auto *p = reinterpret_cast<const std::byte *>(&v);
    out.insert(out.end(), p, p + sizeof v);
  }
  void bytes(const void *data, size_t n) {
    number(static_cast<uint32_t>(n));
    const auto *p = static_cast<const std::byte *>(data);
    out.insert(out.end(), p, p + n);
  }
  void text(const std::string &s) { bytes(s.data(), s.size()); }
  std::vector<std::byte> out;
};

class BlobReader {
 public:
  BlobReader(std::span<const std::byte> data, int rank) : data_(data), rank_(rank) {}
  template <class T>
  void number(T &v) {
    need(sizeof v);
    std::memcpy(&v, data_.data(), sizeof v);
    data_ = data_.subspan(sizeof v);
  }
  std::span<const std::byte> bytes(size_t limit) {
    uint32_t n = 0;
    number(n);
    if (n > limit) broken();
    need(n);
    const auto out = data_.first(n);
    data_ = data_.subspan(n);
    return out;
  }
  void text(std::string &s) {
    const auto b = bytes(65536);
    s.assign(reinterpret_cast<const char *>(b.data()), b.size());
  }
  void must(bool holds) {
    if (!holds) broken();
  }
  void end() { must(data_.empty()); }

 private:
  void need(size_t n) {
    if (data_.size() < n) broken();
  }
  [[noreturn]] void broken() {
    fail(Code::Mismatch,
         "rank {} sent a description of itself that cannot be read; do all ranks run the same version of Isthmus?", rank_);
  }
  std::span<const std::byte> data_;
  int rank_;
};

}  // namespace

std::vector<std::byte> pack(const RankBlob &b) {
  BlobWriter w;
  w.number(b.protocol);
  const auto endpoint = b.endpoint.pack();
  w.bytes(endpoint.data(), endpoint.size());
  for (const std::string *s : {&b.info.host, &b.info.hostname, &b.info.island, &b.info.device, &b.info.maker,
                               &b.info.device_name, &b.info.process, &b.settings, &b.name, &b.members, &b.trouble.text})
    w.text(*s);
  w.number(static_cast<uint32_t>(b.trouble.code));
  w.number(static_cast<uint8_t>(b.info.fnuz));
  w.text(b.info.ccl);
  w.text(b.info.ccl_version);
  for (const auto &call : b.info.ccl_table.ops)
    for (const uint16_t ops : call) w.number(ops);
  for (const double rate : b.info.rates.values) w.number(rate);
  w.number(static_cast<uint8_t>(b.info.rates.simulated));
  for (const int64_t leader_bytes : {b.info.leader_bytes.memory, b.info.leader_bytes.tcp, b.leader_bytes})
    w.number(leader_bytes);
  w.number(b.info.pid);
  w.number(static_cast<int32_t>(b.info.numa));
  w.number(b.index);
  w.number(b.epoch);
  w.number(b.mailbox);
  w.bytes(b.library_terms.data(), b.library_terms.size());
  w.bytes(b.ucx.data(), b.ucx.size());
  w.bytes(b.key.data(), b.key.size());
  w.number(b.before);
  w.number(static_cast<uint8_t>(b.quiet));
  w.number(b.library);
  for (const int32_t number : {b.number.slot, b.number.slots, b.number.was}) w.number(number);
  w.number(static_cast<uint8_t>(b.number.keeps));
  return std::move(w.out);
}

RankBlob unpack(std::span<const std::byte> bytes, int rank) {
  BlobReader r(bytes, rank);
  RankBlob b;
  r.number(b.protocol);
  b.endpoint = bootstrap::Endpoint::unpack(r.bytes(65536));
  for (std::string *s : {&b.info.host, &b.info.hostname, &b.info.island, &b.info.device, &b.info.maker, &b.info.device_name,
                         &b.info.process, &b.settings, &b.name, &b.members, &b.trouble.text})
    r.text(*s);
  uint32_t code = 0;
  r.number(code);
  r.must(code <= static_cast<uint32_t>(kLastCode) && (code == 0) == b.trouble.text.empty());
  b.trouble.code = static_cast<Code>(code);
  uint8_t fnuz = 0;
  r.number(fnuz);
  r.must(fnuz <= 1);
  b.info.fnuz = fnuz != 0;
  r.text(b.info.ccl);
  r.text(b.info.ccl_version);
  for (auto &call : b.info.ccl_table.ops)
    for (uint16_t &ops : call) r.number(ops);
  for (double &rate : b.info.rates.values) {
    r.number(rate);
    r.must(rate == 0 || topology::sound_rate(rate));
  }
  uint8_t simulated = 0;
  r.number(simulated);
  r.must(simulated <= 1);
  b.info.rates.simulated = simulated != 0;
  for (int64_t *leader_bytes : {&b.info.leader_bytes.memory, &b.info.leader_bytes.tcp, &b.leader_bytes}) {
    r.number(*leader_bytes);
    r.must(topology::sound_leader_bytes(*leader_bytes));
  }
  r.number(b.info.pid);
  int32_t numa = -1;
  r.number(numa);
  b.info.numa = numa;
  r.number(b.index);
  r.number(b.epoch);
  r.number(b.mailbox);
  const auto terms = r.bytes(64);
  b.library_terms.assign(terms.begin(), terms.end());
  const auto ucx = r.bytes(65536);
  b.ucx.assign(ucx.begin(), ucx.end());
  const auto key = r.bytes(16);
  r.must(key.size() == b.key.size());
  std::memcpy(b.key.data(), key.data(), b.key.size());
  r.number(b.before);
  r.must(b.before >= -1);
  uint8_t quiet = 0;
  r.number(quiet);
  r.must(quiet <= 1);
  b.quiet = quiet != 0;
  r.number(b.library);
  for (int32_t *number : {&b.number.slot, &b.number.slots, &b.number.was}) r.number(*number);
  r.must(b.number.slot >= 0 && b.number.slot < b.number.slots && b.number.slots <= kMostSlots && b.number.was >= -1);
  uint8_t keeps = 0;
  r.number(keeps);
  r.must(keeps <= 1);
  b.number.keeps = keeps != 0;
  r.end();
  return b;
}

std::string differing(const RankBlob &first, const RankBlob &other) {
  const auto read = [](const std::string &text) {
    std::vector<std::pair<std::string, std::string>> rows;
    constexpr std::string_view kBegin = "ISTHMUS_";
    for (size_t at = text.find(kBegin); at != std::string::npos;) {
      const size_t equals = text.find('=', at), next = text.find(" ISTHMUS_", at);
      const size_t end = next == std::string::npos ? text.find_last_not_of(' ') + 1 : next;
      if (equals == std::string::npos || equals > end) break;
      rows.emplace_back(text.substr(at, equals - at), text.substr(equals + 1, end - equals - 1));
      at = next == std::string::npos ? next : next + 1;
    }
    return rows;
  };
  const auto theirs = read(other.settings);
  std::string out;
  for (const auto &[name, value] : read(first.settings)) {
    const auto found = std::find_if(theirs.begin(), theirs.end(), [&n = name](const auto &row) { return row.first == n; });
    const std::string there = found == theirs.end() ? "unknown" : found->second.empty() ? "(empty)" : found->second;
    if (found == theirs.end() || found->second != value)
      out += formatted("{}{} is {} on rank {} and {} on rank {}", out.empty() ? "" : ", ", name,
                       value.empty() ? "(empty)" : value, first.number.slot, there, other.number.slot);
  }
  return out.empty() ? formatted("rank {} has {}; rank {} has {}", first.number.slot, first.settings, other.number.slot,
                                 other.settings)
                     : out;
}

}  // namespace isthmus::comm
