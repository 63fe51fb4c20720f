#include "ccl/nccl_library.hpp"

namespace isthmus::ccl::nccl {

int type_number(DType t) noexcept {
  switch (t) {
    case DType::Int8: return kInt8;
    case DType::UInt8: return kUInt8;
    case DType::Int32: return kInt32;
    case DType::UInt32: return kUInt32;
    case DType::Int64: return kInt64;
    case DType::UInt64: return kUInt64;
    case DType::Float16: return kFloat16;
    case DType::Float32: return kFloat32;
    case DType::Float64: return kFloat64;
    case DType::BFloat16: return kBFloat16;
    case DType::Float8E4M3FN: return kFloat8e4m3;
    case DType::Float8E5M2: return kFloat8e5m2;
    default: return -1;
  }
}

int op_number(RedOp op) noexcept {
  switch (op) {
    case RedOp::Sum: return kSum;
    case RedOp::Prod: return kProd;
    case RedOp::Max: return kMax;
    case RedOp::Min: return kMin;
    case RedOp::Avg: return kAvg;
    default: return -1;
  }
}

bool reduces_there(const NcclLibrary &o, DType dtype, Reduction by) noexcept {
  const int t = type_number(dtype);
  if (t < 0 || (t >= kFloat8e4m3 && (o.row->float8 == 0 || o.version < o.row->float8))) return false;
  if (by.op != RedOp::PremulSum) return op_number(by.op) >= 0;
  return by.has_factor || (is_short_ranged(dtype) && by.halvings >= 0 && by.halvings <= most_halvings(dtype));
}

Status outcome(const NcclLibrary &o, const char *call, Result r, Handle handle) {
  if (r == kSuccess || r == kInProgress) return {};
  const char *text = o.f.GetErrorString ? o.f.GetErrorString(r) : nullptr;
  const char *last = o.f.GetLastError ? o.f.GetLastError(handle) : nullptr;
  return {r == kDeviceFailed ? Code::Device : Code::System,
          formatted("{} {}: {} ({}){}{}", o.row->family, call, text ? text : "unknown result", r, last && *last ? ": " : "",
                    last && *last ? last : "")};
}

}  // namespace isthmus::ccl::nccl
