// One reduction, again and again, with nothing else in it: for programs that count instructions, and for a clock where Google Benchmark is
// not installed.
//   reduce_work TARGET DTYPE SOURCES BYTES TIMES    prints the nanoseconds that a reduction took: the median of nine turns, TIMES in each
// Contributions are ordinary numbers of both signs, no two alike.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "reduce/reduce.hpp"

namespace {

namespace reduce = isthmus::reduce;
using isthmus::DType;

// Floats between 2^-3 and 2^3: bits of the exponent in its middle, and any mantissa.
void fill(DType dtype, std::vector<uint8_t> &memory, uint64_t seed) {
  const bool brain = dtype == DType::BFloat16;
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i + 1 < memory.size(); i += 2) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto random = static_cast<uint16_t>(state >> 40);
    const unsigned width = brain || dtype == DType::Float32 ? 7 : 10, middle = width == 7 ? 124 : 12;
    uint16_t code =
        static_cast<uint16_t>((random & 0x8000u) | ((middle + random % 7) << width) | (random & ((1u << width) - 1)));
    if (dtype == DType::Float32 && i % 4 == 0) code = random;  // the lower half of a float32
    std::memcpy(memory.data() + i, &code, 2);
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: reduce_work TARGET DTYPE SOURCES BYTES TIMES\n");
    return 2;
  }
  DType dtype{};
  bool known = false;
  for (const DType each : {DType::Float32, DType::Float16, DType::BFloat16})
    if (std::strcmp(argv[2], isthmus::dtype_name(each)) == 0) dtype = each, known = true;
  const size_t sources = std::strtoul(argv[3], nullptr, 10), bytes = std::strtoul(argv[4], nullptr, 10);
  const size_t times = std::strtoul(argv[5], nullptr, 10);
  if (!known || sources < 1 || sources > 64 || bytes < 64 || times < 1) {
    std::fprintf(stderr,
                 "reduce_work: DTYPE is float32, float16 or bfloat16; SOURCES 1 to 64; BYTES 64 or more; TIMES 1 or more\n");
    return 2;
  }
  if (!reduce::force_target(argv[1])) {
    std::fprintf(stderr, "reduce_work: this processor has no %s\n", argv[1]);
    return 3;
  }
  std::vector<std::vector<uint8_t>> memory;
  std::vector<reduce::Source> in;
  for (size_t k = 0; k < sources; ++k) {
    fill(dtype, memory.emplace_back(bytes + 64 * k), k + 1);
    in.push_back({memory.back().data()});
  }
  std::vector<uint8_t> result(bytes);
  const reduce::LocalReduction task{dtype, isthmus::RedOp::Sum, in, {}, result.data()};
  std::array<double, 9> turns{};
  for (double &turn : turns) {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; i < times; ++i) reduce::reduce(task, bytes / isthmus::dtype_size(dtype));
    turn = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
           static_cast<double>(times);
  }
  std::sort(turns.begin(), turns.end());
  std::printf("%.1f\n", turns[turns.size() / 2]);
}
