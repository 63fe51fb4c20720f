// All kernels of one instruction set. The build compiles this file once for each instruction set, with its flags and with
// ISTHMUS_REDUCE_TABLE and ISTHMUS_REDUCE_NAME set. Only the table has external linkage (checked by tests/cpp/reduce_symbols.sh). With
// -ffp-contract=off a product and a sum do not become one instruction on some processors only.
#include "reduce/kernels.hpp"

#include "reduce/codec.hpp"
#include "reduce/ops.hpp"

namespace isthmus::reduce {
namespace {

#define ISTHMUS_UNROLL _Pragma("GCC unroll 4")

// One pass over the data: reads every source once, writes dst and copy.
template <class Post, class First, class Rest, class Out, class Op, unsigned K>
struct Pass {
  using T = typename First::Acc;
  const uint8_t *source[K];
  uint8_t *dst, *copy;
  size_t count;
  typename Post::template Of<T> post;
  // Whether two vectors are taken at once, elements at even places in one of them: the codec says that this is cheaper. What is rounded
  // that way must be made of contributions of the codec's: so the codec knows what a NaN in it looks like.
  static constexpr bool kPairs = Paired<First> && Paired<Rest> && Paired<Out> && Rest::kBytes < sizeof(T) &&
                                 (First::kBytes < sizeof(T) || Out::kBytes == sizeof(T));

  explicit Pass(const Job &job)
      : dst(static_cast<uint8_t *>(job.dst)), copy(static_cast<uint8_t *>(job.copy)), count(job.count), post(job.number) {
    for (unsigned k = 0; k < K; ++k) source[k] = static_cast<const uint8_t *>(job.source[k]);
  }

  // U vectors from lane i on. All are read before any is written: dst may be a source.
  template <unsigned U, class D>
  HWY_INLINE void step(D d, size_t i) const {
    if constexpr (U == 2 && kPairs)
      if (pair(d, i)) return;
    constexpr size_t n = hn::MaxLanes(D());
    hn::Vec<D> v[U];
    ISTHMUS_UNROLL for (unsigned u = 0; u < U; ++u) {
      v[u] = First::load(d, source[0] + (i + u * n) * First::kBytes);
      ISTHMUS_UNROLL for (unsigned k = 1; k < K; ++k) v[u] =
          Op::apply(d, v[u], Rest::load(d, source[k] + (i + u * n) * Rest::kBytes));
      v[u] = post.apply(d, v[u]);
    }
    ISTHMUS_UNROLL for (unsigned u = 0; u < U; ++u) Out::store(d, v[u], dst + (i + u * n) * Out::kBytes);
    if (copy) ISTHMUS_UNROLL for (unsigned u = 0; u < U; ++u) Out::store(d, v[u], copy + (i + u * n) * Out::kBytes);
  }

  // False: one of the contributions is none that the codec takes in pairs, and nothing is written.
  template <class D>
  HWY_INLINE bool pair(D d, size_t i) const {
    using Watch = typename Rest::template Watch<D>;
    if constexpr (!Watch::kWatches || Post::kKeepsFinite) {
      hn::Vec<D> even, odd, e, o;
      Watch watch;
      First::load_pair(d, source[0] + i * First::kBytes, even, odd, watch);
      ISTHMUS_UNROLL for (unsigned k = 1; k < K; ++k) {
        Rest::load_pair(d, source[k] + i * Rest::kBytes, e, o, watch);
        even = Op::apply(d, even, e);
        odd = Op::apply(d, odd, o);
      }
      if (HWY_UNLIKELY(!watch.all_usual())) return false;
      even = Out::kBytes == sizeof(T) ? post.apply(d, even) : post.number_applied(d, even);
      odd = Out::kBytes == sizeof(T) ? post.apply(d, odd) : post.number_applied(d, odd);
      Out::store_pair(d, even, odd, dst + i * Out::kBytes);
      if (copy) Out::store_pair(d, even, odd, copy + i * Out::kBytes);
      return true;
    }
    return false;
  }

  template <unsigned U, class D>
  HWY_INLINE size_t steps(D d, size_t i) const {
    constexpr size_t n = U * hn::MaxLanes(D());
    for (; i + n <= count; i += n) step<U>(d, i);
    return i;
  }

  // The tail goes through ever shorter vectors with the same operations, so its results cannot differ from the body's.
  void run() const {
    const hn::ScalableTag<T> full;
    const hn::CappedTag<T, 16 / sizeof(T)> quarter;
    const hn::CappedTag<T, Op::kLeast> least;
    // Sums of whole lanes run at the speed of the cache; the others have work enough in two vectors.
    constexpr unsigned unroll = First::kBytes == sizeof(T) && Op::kCheap && !kPairs ? 4 : 2;
    size_t i = steps<unroll>(full, 0);
    i = steps<1>(full, i);
    if constexpr (hn::MaxLanes(full) > hn::MaxLanes(quarter)) i = steps<1>(quarter, i);
    if constexpr (hn::MaxLanes(quarter) > hn::MaxLanes(least)) steps<1>(least, i);
  }
};

template <class Codec, class Op>
void reduce(const Job &job) noexcept {
  switch (job.sources) {
    case 1: return Pass<Divide, Codec, Codec, Codec, Op, 1>(job).run();
    case 2: return Pass<Divide, Codec, Codec, Codec, Op, 2>(job).run();
    case 3: return Pass<Divide, Codec, Codec, Codec, Op, 3>(job).run();
    default: return Pass<Divide, Codec, Codec, Codec, Op, 4>(job).run();
  }
}
template <class Codec, class Op>
void accumulate(const Job &job) noexcept {
  Pass<Divide, Plain<float>, Codec, Plain<float>, Op, 2>(job).run();
}
// Sums of several contributions in one pass, each of which is read once and none of which is rounded.
template <class Codec>
void gather(const Job &job) noexcept {
  switch (job.sources) {
    case 2: return Pass<Divide, Codec, Codec, Plain<float>, Sum, 2>(job).run();
    case 3: return Pass<Divide, Codec, Codec, Plain<float>, Sum, 3>(job).run();
    default: return Pass<Divide, Codec, Codec, Plain<float>, Sum, 4>(job).run();
  }
}
template <class Codec>
void add(const Job &job) noexcept {
  switch (job.sources) {
    case 2: return accumulate<Codec, Sum>(job);
    case 3: return Pass<Divide, Plain<float>, Codec, Plain<float>, Sum, 3>(job).run();
    default: return Pass<Divide, Plain<float>, Codec, Plain<float>, Sum, 4>(job).run();
  }
}
template <class Codec>
void widen(const Job &job) noexcept {
  Pass<Divide, Codec, Codec, Plain<float>, Sum, 1>(job).run();
}
template <class Codec>
void finish(const Job &job) noexcept {
  Pass<Divide, Plain<float>, Codec, Codec, Sum, 1>(job).run();
}
template <class Codec>
void scale(const Job &job) noexcept {
  Pass<Multiply, Codec, Codec, Codec, Sum, 1>(job).run();
}

template <class T>
HWY_INLINE T read(const void *p, size_t i) {
  T v;
  __builtin_memcpy(&v, static_cast<const uint8_t *>(p) + i * sizeof(T), sizeof(T));
  return v;
}
template <class T>
HWY_INLINE void write(void *p, size_t i, T v) {
  __builtin_memcpy(static_cast<uint8_t *>(p) + i * sizeof(T), &v, sizeof(T));
}

// 64-bit products: most instruction sets have none in vectors.
void reduce_prod64(const Job &job) noexcept {
  for (size_t i = 0; i < job.count; ++i) {
    uint64_t v = read<uint64_t>(job.source[0], i);
    for (unsigned k = 1; k < job.sources; ++k) v *= read<uint64_t>(job.source[k], i);
    write(job.dst, i, v);
    if (job.copy) write(job.copy, i, v);
  }
}

// Division toward zero. Up to 32 bits the float64 quotient, cut, is exact: its error is less than its distance from the next
// integer.
template <class T>
HWY_INLINE T quotient(T v, double divisor) {
  if constexpr (sizeof(T) < 4) {
    return static_cast<T>(static_cast<int32_t>(v / divisor));
  } else {
    return static_cast<T>(v / divisor);
  }
}
template <>
HWY_INLINE uint64_t quotient(uint64_t v, double divisor) {
  return v / static_cast<uint64_t>(divisor);
}
template <>
HWY_INLINE int64_t quotient(int64_t v, double divisor) {
  const uint64_t magnitude = v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  const uint64_t q = magnitude / static_cast<uint64_t>(divisor);
  return static_cast<int64_t>(v < 0 ? 0 - q : q);
}

template <class T>
void divide(const Job &job) noexcept {
  for (size_t i = 0; i < job.count; ++i) write(job.dst, i, quotient(read<T>(job.source[0], i), job.number));
  if (job.copy) __builtin_memcpy(job.copy, job.dst, job.count * sizeof(T));
}

template <class T>  // unsigned: products are the same for both signs
void multiply(const Job &job) noexcept {
  const auto factor = static_cast<T>(job.whole);
  for (size_t i = 0; i < job.count; ++i) write(job.dst, i, static_cast<T>(1u * read<T>(job.source[0], i) * factor));
}

#if HWY_TARGET == HWY_SCALAR
// One lane holds no pair, so the scalar kernels have their own loop.
template <class T>
void reduce_complex(const Job &job) noexcept {
  const Divide::Of<T> post(job.number);
  const hn::CappedTag<T, 1> d;
  for (size_t i = 0; i + 1 < job.count; i += 2) {
    T re = read<T>(job.source[0], i), im = read<T>(job.source[0], i + 1);
    for (unsigned k = 1; k < job.sources; ++k) {
      const T r = read<T>(job.source[k], i), m = read<T>(job.source[k], i + 1);
      const T real = re * r - im * m;
      im = re * m + im * r;
      re = real;
    }
    re = hn::GetLane(post.apply(d, hn::Set(d, re)));
    im = hn::GetLane(post.apply(d, hn::Set(d, im)));
    write(job.dst, i, re), write(job.dst, i + 1, im);
    if (job.copy) write(job.copy, i, re), write(job.copy, i + 1, im);
  }
}
#else
template <class T>
void reduce_complex(const Job &job) noexcept {
  reduce<Plain<T>, ComplexProd>(job);
}
#endif

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_NEON
constexpr auto kStream = static_cast<void (*)(void *, const void *, size_t) noexcept>(nullptr);
#else
void stream(void *dst, const void *src, size_t bytes) noexcept {
  auto *to = static_cast<uint8_t *>(dst);
  auto *from = static_cast<const uint8_t *>(src);
  const size_t head = (0 - reinterpret_cast<uintptr_t>(to)) & 63;  // whole cache lines, or write combining is lost
  if (bytes < 256 + head) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  __builtin_memcpy(to, from, head);
  const hn::ScalableTag<uint8_t> d;
  constexpr size_t n = hn::MaxLanes(d);
  size_t i = head;
  for (; i + 4 * n <= bytes; i += 4 * n) {
    const auto a = hn::LoadU(d, from + i), b = hn::LoadU(d, from + i + n);
    const auto c = hn::LoadU(d, from + i + 2 * n), e = hn::LoadU(d, from + i + 3 * n);
    hn::Stream(a, d, to + i);
    hn::Stream(b, d, to + i + n);
    hn::Stream(c, d, to + i + 2 * n);
    hn::Stream(e, d, to + i + 3 * n);
  }
  __builtin_memcpy(to + i, from + i, bytes - i);
}
constexpr auto kStream = stream;
#endif

#define ISTHMUS_FLOAT(codec) \
  { reduce<codec, Sum>, reduce<codec, Prod>, reduce<codec, Min>, reduce<codec, Max>, nullptr, nullptr, nullptr, nullptr }
#define ISTHMUS_REAL(T)                                                                                                     \
  {                                                                                                                         \
    reduce<Plain<T>, Sum>, reduce<Plain<T>, Prod>, reduce<Plain<T>, Min>, reduce<Plain<T>, Max>, nullptr, nullptr, nullptr, \
        reduce_complex<T>                                                                                                   \
  }
#define ISTHMUS_ACCUMULATE(codec) \
  { accumulate<codec, Sum>, accumulate<codec, Prod>, accumulate<codec, Min>, accumulate<codec, Max> }
// Sums and products of signed integers wrap, as those of unsigned ones.
#define ISTHMUS_INTEGER(S, U, prod) \
  { reduce<Plain<U>, Sum>, prod, reduce<Plain<S>, Min>, reduce<Plain<S>, Max> }
#define ISTHMUS_NONE \
  {}

}  // namespace

extern const Table ISTHMUS_REDUCE_TABLE = {
    ISTHMUS_REDUCE_NAME,
    {
        ISTHMUS_INTEGER(int8_t, uint8_t, (reduce<WideByte, Prod>)),
        {reduce<Plain<uint8_t>, Sum>, reduce<WideByte, Prod>, reduce<Plain<uint8_t>, Min>, reduce<Plain<uint8_t>, Max>,
         reduce<Plain<uint8_t>, And>, reduce<Plain<uint8_t>, Or>, reduce<Plain<uint8_t>, Xor>},
        ISTHMUS_INTEGER(int16_t, uint16_t, (reduce<Plain<uint16_t>, Prod>)),
        ISTHMUS_INTEGER(uint16_t, uint16_t, (reduce<Plain<uint16_t>, Prod>)),
        ISTHMUS_INTEGER(int32_t, uint32_t, (reduce<Plain<uint32_t>, Prod>)),
        ISTHMUS_INTEGER(uint32_t, uint32_t, (reduce<Plain<uint32_t>, Prod>)),
        ISTHMUS_INTEGER(int64_t, uint64_t, reduce_prod64),
        ISTHMUS_INTEGER(uint64_t, uint64_t, reduce_prod64),
        {nullptr, nullptr, nullptr, nullptr, reduce<Truth, And>, reduce<Truth, Or>, reduce<Truth, Xor>},
        ISTHMUS_FLOAT(Float16),
        ISTHMUS_FLOAT(BFloat16),
        ISTHMUS_REAL(float),
        ISTHMUS_REAL(double),
        ISTHMUS_FLOAT(Float8E4M3),
        ISTHMUS_FLOAT(Float8E5M2),
    },
    {ISTHMUS_NONE, ISTHMUS_NONE, ISTHMUS_NONE, ISTHMUS_NONE, ISTHMUS_NONE, ISTHMUS_NONE, ISTHMUS_NONE, ISTHMUS_NONE,
     ISTHMUS_NONE, ISTHMUS_ACCUMULATE(Float16), ISTHMUS_ACCUMULATE(BFloat16), ISTHMUS_NONE, ISTHMUS_NONE,
     ISTHMUS_ACCUMULATE(Float8E4M3), ISTHMUS_ACCUMULATE(Float8E5M2)},
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, gather<Float16>, gather<BFloat16>},
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, add<Float16>, add<BFloat16>},
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, widen<Float16>, widen<BFloat16>,
     nullptr, nullptr, widen<Float8E4M3>, widen<Float8E5M2>},
    {divide<int8_t>, divide<uint8_t>, divide<int16_t>, divide<uint16_t>, divide<int32_t>, divide<uint32_t>, divide<int64_t>,
     divide<uint64_t>, nullptr, finish<Float16>, finish<BFloat16>, nullptr, nullptr, finish<Float8E4M3>, finish<Float8E5M2>},
    {multiply<uint8_t>, multiply<uint8_t>, multiply<uint16_t>, multiply<uint16_t>, multiply<uint32_t>, multiply<uint32_t>,
     multiply<uint64_t>, multiply<uint64_t>, nullptr, scale<Float16>, scale<BFloat16>, scale<Plain<float>>,
     scale<Plain<double>>, scale<Float8E4M3>, scale<Float8E5M2>},
    kStream,
};

}  // namespace isthmus::reduce
