#include "reduce/reduce.hpp"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/copy.hpp"
#include "reduce/control_word.hpp"
#include "reduce/target.hpp"

namespace isthmus::reduce {
namespace {

// Partial results of one block stay in the first-level cache (32 KiB at least): two buffers of this size, and the sources.
constexpr size_t kBlockBytes = 8192;
constexpr size_t kLine = 64;
// Below this the fence after non-temporal stores (100 to 150 ns on Zen 5) costs more than they save.
constexpr size_t kLeastStream = 16384;

// How a dtype and an op are carried out.
struct KernelShape {
  Lane lane;
  Prim prim;
  size_t lanes;      // per element: 2 for complex; bitwise operations go byte by byte
  size_t bytes;      // of a lane of the dtype
  size_t acc_bytes;  // of a lane of the accumulator
  bool narrow;       // the accumulator is another type than the dtype
  bool grouped;      // the grouping changes the result
  bool divides;      // AVG of integers: a step of its own
};

Lane lane_of(DType t) noexcept {
  static_assert(static_cast<int>(DType::Float8E5M2) == static_cast<int>(Lane::E5M2) && kLanes == 15);
  return t == DType::Complex64 ? Lane::F32 : t == DType::Complex128 ? Lane::F64 : static_cast<Lane>(t);
}

Prim prim_of(DType t, RedOp op) noexcept {
  const bool boolean = t == DType::Bool;
  switch (op) {
    case RedOp::Sum:
    case RedOp::Avg:
    case RedOp::PremulSum: return boolean ? Prim::Or : Prim::Sum;
    case RedOp::Prod: return boolean ? Prim::And : is_complex(t) ? Prim::ComplexProd : Prim::Prod;
    case RedOp::Min: return boolean ? Prim::And : Prim::Min;
    case RedOp::Max: return boolean ? Prim::Or : Prim::Max;
    case RedOp::BAnd: return Prim::And;
    case RedOp::BOr: return Prim::Or;
    case RedOp::BXor: return Prim::Xor;
  }
  return Prim::Sum;
}

KernelShape shape_of(DType t, RedOp op) noexcept {
  KernelShape s{};
  s.lane = lane_of(t);
  s.prim = prim_of(t, op);
  s.lanes = is_complex(t) ? 2 : 1;
  s.bytes = dtype_size(t) / s.lanes;
  s.narrow = accumulator(t) != t;
  s.acc_bytes = s.narrow ? sizeof(float) : s.bytes;
  s.grouped = (is_float(t) || is_complex(t)) &&
              (op == RedOp::Sum || op == RedOp::Avg || op == RedOp::Prod || op == RedOp::PremulSum);
  s.divides = is_integer(t) && op == RedOp::Avg;
  if (is_integer(t) && (op == RedOp::BAnd || op == RedOp::BOr || op == RedOp::BXor)) {
    s.lane = Lane::U8;
    s.lanes = s.bytes;
    s.bytes = s.acc_bytes = 1;
  }
  return s;
}

void fence() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

uint8_t *at(void *p, size_t offset) noexcept { return static_cast<uint8_t *>(p) + offset; }
const uint8_t *at(const void *p, size_t offset) noexcept { return static_cast<const uint8_t *>(p) + offset; }

// Where a pass writes.
struct Destinations {
  void *dst, *copy;
  double divisor;
};

// One call of reduce(). Ranges are in lanes.
class Reducer {
 public:
  Reducer(const LocalReduction &task, const KernelShape &shape, const Table &table) noexcept
      : task_(task),
        shape_(shape),
        table_(table),
        kernel_(table.reduce[static_cast<int>(shape.lane)][static_cast<int>(shape.prim)]),
        partial_out_(shape.narrow && task.partial),
        out_bytes_(partial_out_ ? shape.acc_bytes : shape.bytes),
        divisor_(task.op == RedOp::Avg && !task.partial && task.divisor > 1 ? static_cast<double>(task.divisor) : 0),
        divides_(shape.divides && divisor_ != 0),
        direct_(is_direct()) {}

  void run(size_t count) noexcept {
    const size_t lanes = count * shape_.lanes;
    const bool large = table_.stream && lanes * out_bytes_ >= kLeastStream;
    const bool stream_dst = large && task_.stream_dst, stream_copy = large && task_.copy && task_.stream_copy;
    const bool stream = stream_dst || stream_copy;
    if (direct_ && !stream) return block(0, lanes, task_.dst, task_.copy);
    // Blocks end where what is streamed begins a new cache line.
    const size_t most = kBlockBytes / shape_.acc_bytes;
    size_t first = most;
    if (stream) {
      const size_t odd = reinterpret_cast<uintptr_t>(stream_dst ? task_.dst : task_.copy) % kLine;
      if (odd % out_bytes_ == 0) first -= odd / out_bytes_ / shape_.lanes * shape_.lanes;
    }
    for (size_t begin = 0, n = std::min(first, lanes); begin < lanes; begin += n, n = std::min(most, lanes - begin)) {
      const size_t offset = begin * out_bytes_, bytes = n * out_bytes_;
      void *const dst = at(task_.dst, offset), *const copy = task_.copy ? at(task_.copy, offset) : nullptr;
      // What is not streamed is written by the kernel itself, and what is streamed is read from there, or from a block in cache.
      void *const made = !stream_dst ? dst : copy && !stream_copy ? copy : streamed_;
      block(begin, n, made, stream ? nullptr : copy);
      if (stream_dst) table_.stream(dst, made, bytes);
      if (stream_copy) table_.stream(copy, made, bytes);
    }
    if (stream) fence();
  }

 private:
  size_t sources() const noexcept { return task_.sources.size(); }
  bool widened(size_t k) const noexcept { return shape_.narrow && task_.sources[k].partial; }
  size_t source_bytes(size_t k) const noexcept { return widened(k) ? shape_.acc_bytes : shape_.bytes; }
  uint32_t weight(size_t k) const noexcept { return shape_.narrow ? task_.sources[k].weight : 1; }
  const void *source(size_t k, size_t begin) const noexcept { return at(task_.sources[k].data, begin * source_bytes(k)); }

  // Whether one pass of one kernel does everything.
  bool is_direct() const noexcept {
    if (sources() > kMaxSources || divides_ || partial_out_) return false;
    if (shape_.grouped && task_.groups.size() > 1 && sources() > 2) return false;
    for (size_t k = 0; k < sources(); ++k)
      if (widened(k) || weight(k) != 1) return false;
    return true;
  }

  void block(size_t begin, size_t n, void *dst, void *copy) noexcept {
    const Destinations sink{dst, copy, divisor_};
    if (direct_) {
      chain(0, sources(), begin, n, nullptr, nullptr, sink);
    } else if (shape_.narrow) {
      narrow(begin, n, sink);
    } else if (divides_) {
      const void *sum = chain(0, sources(), begin, n, nullptr, total_, {total_, nullptr, 0});
      table_.finish[static_cast<int>(shape_.lane)](job(sum, sink, n));
    } else {
      wide(begin, n, sink);
    }
  }

  static Job job(const void *source, const Destinations &sink, size_t n) noexcept {
    return {{source}, 1, sink.dst, sink.copy, n, sink.divisor};
  }

  // start op source[lo] op ... source[hi-1] into `sink`, by way of `scratch` where one pass is not enough. Returns sink.dst.
  const void *chain(size_t lo, size_t hi, size_t begin, size_t n, const void *start, void *scratch,
                    const Destinations &sink) noexcept {
    Job pass{{start}, start ? 1u : 0u, nullptr, nullptr, n, 0};
    for (;;) {
      while (pass.sources < kMaxSources && lo < hi) pass.source[pass.sources++] = source(lo++, begin);
      const bool last = lo == hi;
      pass.dst = last ? sink.dst : scratch;
      if (last) pass.copy = sink.copy, pass.number = sink.divisor;
      kernel_(pass);
      if (last) return sink.dst;
      pass.source[0] = scratch;
      pass.sources = 1;
    }
  }

  // Accumulator and dtype are one type.
  void wide(size_t begin, size_t n, const Destinations &sink) noexcept {
    const void *sum = nullptr;
    for_groups([&](size_t lo, size_t hi, bool last) {
      const Destinations out = last ? sink : Destinations{total_, nullptr, 0};
      if (!sum || hi - lo == 1) {
        sum = chain(lo, hi, begin, n, sum, total_, out);
      } else {
        chain(lo, hi, begin, n, nullptr, group_, {group_, nullptr, 0});
        kernel_({{sum, group_}, 2, out.dst, out.copy, n, out.divisor});
        sum = out.dst;
      }
    });
  }

  // float16, bfloat16, float8: everything in float32, then one rounding (or none, for a partial result).
  void narrow(size_t begin, size_t n, const Destinations &sink) noexcept {
    const void *sum = nullptr;
    for_groups([&](size_t lo, size_t hi, bool) {
      if (!sum || hi - lo == 1) {
        sum = accumulate(lo, hi, begin, n, sum, total_);
      } else {
        sum = add(sum, accumulate(lo, hi, begin, n, nullptr, group_), n, total_);
      }
    });
    if (partial_out_) {
      table_.reduce[static_cast<int>(Lane::F32)][static_cast<int>(shape_.prim)](job(sum, sink, n));
    } else {
      table_.finish[static_cast<int>(shape_.lane)](job(sum, sink, n));
    }
  }

  // start op source[lo] op ... in float32; the result is `buffer`, or a partial source itself.
  const void *accumulate(size_t lo, size_t hi, size_t begin, size_t n, const void *start, void *buffer) noexcept {
    const int lane = static_cast<int>(shape_.lane);
    const void *sum = start;
    for (size_t k = lo; k < hi; ++k) {
      if (const size_t more = run_of_plain(k, hi, sum ? kMaxSources - 1 : kMaxSources); more > 1) {
        Job pass{{sum}, sum ? 1u : 0u, buffer, nullptr, n, 0};
        for (size_t i = 0; i < more; ++i) pass.source[pass.sources++] = source(k + i, begin);
        (sum ? table_.add : table_.gather)[lane](pass);
        sum = buffer;
        k += more - 1;
        continue;
      }
      const void *next = source(k, begin);
      if (weight(k) != 1) {
        next = weighted(k, next, n, sum ? weighted_ : buffer);
        sum = sum ? add(sum, next, n, buffer) : next;
      } else if (!sum && widened(k)) {
        sum = next;
      } else if (!sum) {
        table_.widen[lane](job(next, {buffer, nullptr, 0}, n));
        sum = buffer;
      } else if (widened(k)) {
        sum = add(sum, next, n, buffer);
      } else {
        table_.accumulate[lane][static_cast<int>(shape_.prim)]({{sum, next}, 2, buffer, nullptr, n, 0});
        sum = buffer;
      }
    }
    return sum;
  }

  // How many of the sources from k on, `most` at most, one pass adds up as they are.
  size_t run_of_plain(size_t k, size_t hi, size_t most) const noexcept {
    if (shape_.prim != Prim::Sum || !table_.gather[static_cast<int>(shape_.lane)]) return 0;
    size_t run = 0;
    while (run < most && k + run < hi && !widened(k + run) && weight(k + run) == 1) ++run;
    return run;
  }

  const void *weighted(size_t k, const void *from, size_t n, void *buffer) noexcept {
    if (!widened(k)) {
      table_.widen[static_cast<int>(shape_.lane)](job(from, {buffer, nullptr, 0}, n));
      from = buffer;
    }
    table_.scale[static_cast<int>(Lane::F32)]({{from}, 1, buffer, nullptr, n, static_cast<double>(weight(k))});
    return buffer;
  }

  const void *add(const void *a, const void *b, size_t n, void *buffer) noexcept {
    table_.reduce[static_cast<int>(Lane::F32)][static_cast<int>(shape_.prim)]({{a, b}, 2, buffer, nullptr, n, 0});
    return buffer;
  }

  // f(first source, past the last, whether it is the last group), empty groups left out.
  template <class F>
  void for_groups(F f) noexcept {
    if (!shape_.grouped || task_.groups.empty()) return f(size_t{0}, sources(), true);
    size_t lo = 0;
    for (const uint32_t hi : task_.groups) {
      if (hi > lo) f(lo, size_t{hi}, hi == sources());
      lo = hi;
    }
  }

  const LocalReduction &task_;
  const KernelShape &shape_;
  const Table &table_;
  const Kernel kernel_;
  const bool partial_out_;
  const size_t out_bytes_;
  const double divisor_;
  const bool divides_;
  const bool direct_;
  alignas(kLine) uint8_t total_[kBlockBytes];  // left uninitialised: small calls never touch them
  alignas(kLine) uint8_t group_[kBlockBytes];
  alignas(kLine) uint8_t weighted_[kBlockBytes];
  alignas(kLine) uint8_t streamed_[kBlockBytes];
};

}  // namespace

void reduce(const LocalReduction &task, size_t count) noexcept {
  if (count == 0 || task.sources.empty()) return;
  const KernelShape shape = shape_of(task.dtype, task.op);
  const ControlWord ieee(is_float(task.dtype) || is_complex(task.dtype) || task.op == RedOp::Avg);
  Reducer(task, shape, active()).run(count);
}

void scale(void *dst, const void *src, size_t count, DType dtype, double factor) noexcept {
  if (count == 0) return;
  const ControlWord ieee(true);
  active().scale[static_cast<int>(lane_of(dtype))]({{src}, 1, dst, nullptr, count, factor, 0});
}

void scale_integers(void *dst, const void *src, size_t count, DType dtype, uint64_t factor) noexcept {
  if (count != 0) active().scale[static_cast<int>(lane_of(dtype))]({{src}, 1, dst, nullptr, count, 1, factor});
}

void copy(void *dst, const void *src, size_t bytes, bool stream) noexcept {
  if (bytes == 0) return;
  const Table &table = active();
  if (!stream || !table.stream || bytes < kLeastStream) {
    copy_bytes(dst, src, bytes);
    return;
  }
  table.stream(dst, src, bytes);
  fence();
}

}  // namespace isthmus::reduce
