#include "base/dtype.hpp"

#include "base/island_call.hpp"

namespace isthmus {
namespace {
constexpr const char *kDTypes[kDTypeCount] = {"int8",    "uint8",         "int16",       "uint16",    "int32",     "uint32",
                                              "int64",   "uint64",        "bool",        "float16",   "bfloat16",  "float32",
                                              "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"};
constexpr const char *kRedOps[kRedOpCount] = {"sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum"};
constexpr const char *kIslandCallNames[kIslandCalls] = {
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "send", "recv"};
}  // namespace

const char *dtype_name(DType t) noexcept {
  return static_cast<unsigned>(t) < kDTypeCount ? kDTypes[static_cast<int>(t)] : "unknown dtype";
}
const char *redop_name(RedOp op) noexcept {
  return static_cast<unsigned>(op) < kRedOpCount ? kRedOps[static_cast<int>(op)] : "unknown op";
}
const char *island_call_name(IslandCall call) noexcept {
  return static_cast<unsigned>(call) < kIslandCalls ? kIslandCallNames[static_cast<int>(call)] : "unknown call";
}
bool dtype_from_name(std::string_view name, DType &out) noexcept {
  for (int i = 0; i < kDTypeCount; ++i)
    if (name == kDTypes[i]) return out = static_cast<DType>(i), true;
  return false;
}
bool redop_from_name(std::string_view name, RedOp &out) noexcept {
  for (int i = 0; i < kRedOpCount; ++i)
    if (name == kRedOps[i]) return out = static_cast<RedOp>(i), true;
  return false;
}

}  // namespace isthmus
