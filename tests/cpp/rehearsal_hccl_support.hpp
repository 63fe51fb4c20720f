// Ranks that call the simulated HCCL, one thread each, and numbers of every type that it has.
#pragma once

#include <algorithm>
#include <cmath>

#include "rehearsal_acl_support.hpp"

namespace rehearsed::ascend {

struct RootInfo {
  unsigned char bytes[4108];
};

inline Handle join(int n, const RootInfo &root, int me, int expected = 0) {
  Handle comm = nullptr;
  IS(hc("CommInitRootInfo", static_cast<uint32_t>(n), static_cast<const void *>(&root), static_cast<uint32_t>(me), &comm),
     expected);
  return comm;
}
inline RootInfo new_root() {
  RootInfo root;
  IS(hc("GetRootInfo", static_cast<void *>(&root)), 0);
  return root;
}

// One thread a rank, each with a device of its own.
inline void ranks(int n, const std::function<void(int rank, Handle comm, Handle stream)> &body) {
  use(0);
  const RootInfo root = new_root();
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      use(r);
      const Handle comm = join(n, root, r), s = new_stream();
      body(r, comm, s);
      IS(wait_for(s), 0);
      IS(hc("CommDestroy", comm), 0);
      end_stream(s);
    });
  for (std::thread &t : threads) t.join();
  for (const char *what : {"allocation", "registration", "stream", "event", "communicator"}) IS(live(what), 0u);
}

enum : int { kI8, kI16, kI32, kF16, kF32, kI64, kU64, kU8, kU16, kU32, kF64, kBF16, kI128, kHif8 = 14, kE4M3, kE5M2, kE8M0 };
constexpr size_t kWidth[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2, 16, 0, 1, 1, 1, 1};
constexpr int kReduced[] = {kI8, kI16, kI32, kI64, kU64, kF16, kF32, kF64, kBF16};
constexpr int kOnlyMoved[] = {kU8, kU16, kU32, kHif8, kE4M3, kE5M2, kE8M0};

// Bits of a small whole number.
inline uint64_t bits_of(int type, double v) {
  const auto small = [&](int exponent, int mantissa) -> uint64_t {
    int e = 0;
    const double m = std::frexp(v, &e);
    return (static_cast<uint64_t>(e - 2 + (1 << (exponent - 1))) << mantissa) +
           static_cast<uint64_t>(std::ldexp(2 * m - 1, mantissa));
  };
  uint64_t bits = 0;
  const auto single = static_cast<float>(v);
  switch (type) {
    case kF16: return small(5, 10);
    case kBF16: return small(8, 7);
    case kF32: std::memcpy(&bits, &single, 4); return bits;
    case kF64: std::memcpy(&bits, &v, 8); return bits;
    default: return static_cast<uint64_t>(v);
  }
}
using Bytes = std::vector<unsigned char>;
inline Bytes packed(int type, size_t n, const std::function<double(size_t)> &value) {
  Bytes out(n * kWidth[type]);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t b = bits_of(type, value(i));
    std::memcpy(out.data() + i * kWidth[type], &b, kWidth[type]);
  }
  return out;
}
inline double contribution(int rank, size_t i) { return (i * 5 + static_cast<size_t>(rank) * 3 + i / 7) % 2 ? 2 : 1; }
inline double reduced(int n, size_t i, int op) {
  double v = contribution(0, i);
  for (int r = 1; r < n; ++r) {
    const double w = contribution(r, i);
    v = op == 1 ? v * w : op == 2 ? std::max(v, w) : op == 3 ? std::min(v, w) : v + w;
  }
  return v;
}

// A buffer on the device, and what it must hold when the stream has come so far.
inline void check(Handle s, const char *a, const Bytes &expected, const char *what, int type) {
  Bytes got(expected.size());
  IS(wait_for(s), 0);
  if (got.empty()) return;
  copy(got.data(), a, got.size(), kFromDevice);
  const auto differ = std::mismatch(got.begin(), got.end(), expected.begin());
  if (differ.first == got.end()) return;
  std::fprintf(stderr, "%s: type %d: byte %td is %d, not %d\n", what, type, differ.first - got.begin(), *differ.first,
               *differ.second);
  ::_exit(3);
}
inline char *filled(const Bytes &with) {
  char *a = allocate(with.size());
  copy(a, with.data(), with.size(), kToDevice);
  return a;
}

}  // namespace rehearsed::ascend
