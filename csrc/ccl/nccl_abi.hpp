// The interface that NVIDIA's collective library has and others share, declared in our own words: names, numbers, signatures. tests/vendor
// compares them with the vendor's published header. Every function returns 0 for success.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace isthmus::ccl::nccl_abi {

inline constexpr size_t kIdBytes = 128;
struct Id {
  char bytes[kIdBytes];
};
using Result = int;
using Handle = void *;  // a communicator
using Queue = void *;   // a stream of the device's runtime
inline constexpr Result kSuccess = 0, kDeviceFailed = 1, kInProgress = 7;
enum Type : int {
  kInt8,
  kUInt8,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat8e4m3,
  kFloat8e5m2
};
enum ReduceOp : int { kSum, kProd, kMax, kMin, kAvg };
inline constexpr int kScalarOnHost = 1;  // the call that makes an operation reads the factor

// The beginning of the configuration. `size` says where the beginning ends, and `version` says how much of the configuration we know. So the
// library takes the rest as it is by default.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 1;
  int unused = INT_MIN;  // cgaClusterSize, not set
};

constexpr int version_code(int major, int minor, int patch) { return major * 10000 + minor * 100 + patch; }

// name without its prefix, arguments
#define ISTHMUS_NCCL_FUNCTIONS(F)                                                      \
  F(GetVersion, (int *))                                                               \
  F(GetUniqueId, (Id *))                                                               \
  F(CommInitRankConfig, (Handle *, int ranks, Id, int rank, Config *))                 \
  F(CommDestroy, (Handle))                                                             \
  F(CommAbort, (Handle))                                                               \
  F(CommGetAsyncError, (Handle, Result *))                                             \
  F(CommCount, (Handle, int *))                                                        \
  F(GroupStart, ())                                                                    \
  F(GroupEnd, ())                                                                      \
  F(AllReduce, (const void *, void *, size_t, int type, int op, Handle, Queue))        \
  F(Reduce, (const void *, void *, size_t, int type, int op, int root, Handle, Queue)) \
  F(Broadcast, (const void *, void *, size_t, int type, int root, Handle, Queue))      \
  F(AllGather, (const void *, void *, size_t, int type, Handle, Queue))                \
  F(ReduceScatter, (const void *, void *, size_t, int type, int op, Handle, Queue))    \
  F(RedOpCreatePreMulSum, (int *op, void *factor, int type, int residence, Handle))    \
  F(RedOpDestroy, (int op, Handle))                                                    \
  F(Send, (const void *, size_t, int type, int peer, Handle, Queue))                   \
  F(Recv, (void *, size_t, int type, int peer, Handle, Queue))

struct Functions {
#define ISTHMUS_DECLARE(name, arguments) Result(*name) arguments = nullptr;
  ISTHMUS_NCCL_FUNCTIONS(ISTHMUS_DECLARE)
#undef ISTHMUS_DECLARE
  const char *(*GetErrorString)(Result) = nullptr;
  const char *(*GetLastError)(Handle) = nullptr;  // not in all versions
};

}  // namespace isthmus::ccl::nccl_abi
