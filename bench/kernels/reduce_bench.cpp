// Google Benchmark of reduce/: bytes a second that are read and written, by dtype, op, size, sources and target.
//   build/release/bench/kernels/reduce_bench --benchmark_filter=float32
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "reduce/reduce.hpp"

namespace {

using isthmus::DType;
using isthmus::RedOp;
namespace reduce = isthmus::reduce;

// Whole pages, touched, with contents 0, which every type adds without an assist of the processor. Each buffer lies one
// cache line further than the one before, as buffers of a program may: equal low bits of addresses make some processors see
// dependencies where there are none.
class Memory {
 public:
  Memory(size_t bytes, size_t line) : bytes_(bytes + 4096) {
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    std::memset(base_, 0, bytes_);
    data_ = static_cast<char *>(base_) + line * 64;
  }
  ~Memory() { munmap(base_, bytes_); }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  void *data() const { return data_; }

 private:
  size_t bytes_;
  void *base_;
  char *data_;
};

enum class Second { None, Copy, Stream };

void run_reduce(benchmark::State &state, const std::string &target, DType t, RedOp op, size_t sources, Second second) {
  if (!reduce::force_target(target.c_str())) return state.SkipWithError("not on this processor");
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<reduce::Source> in;
  for (size_t k = 0; k < sources; ++k) {
    memory.push_back(std::make_unique<Memory>(bytes, k));
    in.push_back({memory.back()->data(), false});
  }
  const Memory dst(bytes, sources), copy(bytes, sources + 1);
  const reduce::LocalReduction task{
      t, op, in, {}, dst.data(), second == Second::None ? nullptr : copy.data(), false, 1, second == Second::Stream};
  for (auto _ : state) reduce::reduce(task, bytes / isthmus::dtype_size(t));
  const size_t passes = sources + 1 + (second == Second::None ? 0 : 1);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * passes * bytes));
  reduce::force_target(nullptr);
}

void run_copy(benchmark::State &state, int kind) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const Memory from(bytes, 0), to(bytes, 1);
  for (auto _ : state) {
    if (kind == 2) {
      std::memcpy(to.data(), from.data(), bytes);
      benchmark::ClobberMemory();
    } else {
      reduce::copy(to.data(), from.data(), bytes, kind == 1);
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 2 * bytes));
}

void sizes(auto *b) {  // Google Benchmark's class for this has changed its name
  for (const int64_t n : {8, 1024, 16 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20}) b->Arg(n);
}

}  // namespace

int main(int argc, char **argv) {
  for (const char *target : {"avx512", "avx2", "sse4", "neon", "scalar"}) {
    if (!reduce::force_target(target)) continue;
    const auto add = [&](DType t, RedOp op, size_t sources, Second second) {
      const char *what[] = {"", "+copy", "+stream"};
      const std::string name = std::string(target) + "/" + isthmus::dtype_name(t) + "/" + isthmus::redop_name(op) + "/" +
                               std::to_string(sources) + what[static_cast<int>(second)];
      sizes(benchmark::RegisterBenchmark(
          name.c_str(), [=, on = std::string(target)](benchmark::State &s) { run_reduce(s, on, t, op, sources, second); }));
    };
    for (const size_t sources : {2, 3, 4, 8}) add(DType::Float32, RedOp::Sum, sources, Second::None);
    add(DType::Float32, RedOp::Sum, 2, Second::Copy);
    add(DType::Float32, RedOp::Sum, 2, Second::Stream);
    for (const DType t : {DType::Float64, DType::Int32, DType::Int8, DType::Float16, DType::BFloat16, DType::Float8E4M3FN,
                          DType::Float8E5M2, DType::Complex64})
      add(t, RedOp::Sum, 2, Second::None);
    for (const RedOp op : {RedOp::Max, RedOp::Prod, RedOp::Avg}) add(DType::Float32, op, 2, Second::None);
  }
  reduce::force_target(nullptr);
  const char *copies[] = {"copy", "copy+stream", "memcpy"};
  for (int kind = 0; kind < 3; ++kind)
    sizes(benchmark::RegisterBenchmark(copies[kind], [=](benchmark::State &s) { run_copy(s, kind); }));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
