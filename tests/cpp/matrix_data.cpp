// One thread's arithmetic on memory of its own: a shared library without the sanitizers, so that their builds spend their time on Isthmus.
#include "matrix_data.hpp"

#include "reduce_data.hpp"
#include "reduce_reference.hpp"

namespace matrix {
namespace {

// Each element times the rank's factor in the accumulator type, rounded to the dtype.
void scale(DType t, Data &data, size_t count, int rank, Factors factors) {
  const auto multiply = [&]<class T>(T) {
    const auto by = static_cast<uint64_t>(kWhole[static_cast<size_t>(rank) % kFactors]);
    for (size_t i = 0; i < count; ++i)
      reference::store(data.data(), i, static_cast<T>(uint64_t{reference::load<T>(data.data(), i)} * by));
  };
  if (isthmus::is_integer(t)) {
    switch (isthmus::dtype_size(t)) {
      case 1: return multiply(uint8_t{});
      case 2: return multiply(uint16_t{});
      case 4: return multiply(uint32_t{});
      default: return multiply(uint64_t{});
    }
  }
  const double by = factor(rank, factors);
  for (size_t i = 0; i < count; ++i) {
    if (t == DType::Float64) {
      reference::store(data.data(), i, reference::load<double>(data.data(), i) * by);
    } else if (t == DType::Float32) {
      reference::store(data.data(), i, reference::load<float>(data.data(), i) * static_cast<float>(by));
    } else {
      const auto f = reference::format_of(t);
      const bool one = f.width() == 8;
      const uint32_t code = one ? reference::load<uint8_t>(data.data(), i) : reference::load<uint16_t>(data.data(), i);
      const uint32_t scaled = reference::encode(f, reference::decode(f, code) * static_cast<float>(by));
      one ? reference::store(data.data(), i, static_cast<uint8_t>(scaled))
          : reference::store(data.data(), i, static_cast<uint16_t>(scaled));
    }
  }
}

}  // namespace

Data reduced(const std::vector<std::vector<int>> &islands, DType t, RedOp op, std::vector<Data> given, size_t elements,
             Factors factors) {
  std::vector<isthmus::reduce::Source> sources;
  std::vector<uint32_t> ends;
  for (const auto &island : islands) {
    for (const int r : island) {
      Data &d = given[static_cast<size_t>(r)];
      if (op == RedOp::PremulSum) scale(t, d, elements, r, factors);
      sources.push_back({d.data(), false});
    }
    ends.push_back(static_cast<uint32_t>(sources.size()));
  }
  Data out(elements * isthmus::dtype_size(t));
  isthmus::reduce::LocalReduction task{t, op, sources, ends};
  task.dst = out.data();
  task.divisor = op == RedOp::Avg ? given.size() : 1;
  reference::reduce(task, elements);
  return out;
}

void fill(DType t, Data &data, std::mt19937_64 &random) {
  reduce_test::fill(t, data.data(), data.size() / isthmus::dtype_size(t), random);
}

void fill_exactly(DType t, RedOp op, Data &data, std::mt19937_64 &random) {
  const size_t size = dtype_size(t);
  const bool complex = t == DType::Complex64 || t == DType::Complex128;
  if (!complex && !reference::is_narrow(t) && t != DType::Float32 && t != DType::Float64) return fill(t, data, random);
  const uint64_t largest = t == DType::Float8E5M2 ? 1 : t == DType::Float8E4M3FN ? 2 : 31;
  const size_t parts = complex ? 2 : 1;
  for (size_t i = 0; i < data.size() / (size / parts); ++i) {
    const auto v = static_cast<double>(op == RedOp::Prod ? 1 + random() % 2 : random() % (largest + 1));
    if (size / parts == 8) reference::store(data.data(), i, v);
    else if (!reference::is_narrow(t)) reference::store(data.data(), i, static_cast<float>(v));
    else if (const uint32_t code = reference::encode(reference::format_of(t), static_cast<float>(v)); size == 1)
      reference::store(data.data(), i, static_cast<uint8_t>(code));
    else reference::store(data.data(), i, static_cast<uint16_t>(code));
  }
}

}  // namespace matrix
