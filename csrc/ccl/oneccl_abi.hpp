// What Isthmus uses of oneCCL 2022.1 and later, declared in our own words: names, numbers, signatures of the C interface. tests/vendor compares
// them with the vendor's published headers. Every function returns 0 for success.
#pragma once

#include <cstddef>

namespace isthmus::ccl::oneccl_abi {

inline constexpr size_t kIdBytes = 4096;
struct Id {
  char bytes[kIdBytes];
};
using Result = int;
using Handle = void *;  // a communicator
using Queue = void *;   // null: buffers in host memory, and the call returns when it is done
inline constexpr Result kSuccess = 0;
enum Type : int { kInt8, kUInt8, kInt32, kUInt32, kInt64, kUInt64, kFloat16, kFloat32, kFloat64, kBFloat16 };
enum ReduceOp : int { kSum, kProd, kMax, kMin };

// What the results mean, from result 0 on.
inline constexpr const char *kResultTexts[] = {
    "success",           "error",       "system error", "internal error", "invalid argument", "invalid usage",
    "still in progress", "GPU failure", "CPU failure",  "no host memory", "no device memory", "exception in the plugin",
    "not implemented"};

constexpr int version_code(int major, int minor, int patch) { return major * 10000 + minor * 100 + patch; }
inline constexpr int kLeastVersion = version_code(2022, 1, 0);

// name without its prefix, arguments
#define ISTHMUS_ONECCL_FUNCTIONS(F)                                                    \
  F(GetVersion, (int *))                                                               \
  F(GetUniqueId, (Id *))                                                               \
  F(CommInitRank, (Handle *, size_t ranks, Id, int rank))                              \
  F(CommDestroy, (Handle))                                                             \
  F(AllReduce, (void *, void *, size_t, int type, int op, Handle, Queue))              \
  F(Reduce, (const void *, void *, size_t, int type, int op, int root, Handle, Queue)) \
  F(Broadcast, (const void *, void *, size_t, int type, int root, Handle, Queue))      \
  F(AllGather, (const void *, void *, size_t, int type, Handle, Queue))                \
  F(ReduceScatter, (const void *, void *, size_t, int type, int op, Handle, Queue))    \
  F(AllToAll, (const void *, void *, size_t, int type, Handle, Queue))                 \
  F(Send, (const void *, size_t, int type, int peer, Handle, Queue))                   \
  F(Recv, (void *, size_t, int type, int peer, Handle, Queue))

struct Functions {
#define ISTHMUS_DECLARE(name, arguments) Result(*name) arguments = nullptr;
  ISTHMUS_ONECCL_FUNCTIONS(ISTHMUS_DECLARE)
#undef ISTHMUS_DECLARE
  const char *(*GetLastError)(Handle) = nullptr;  // not in all versions
};

}  // namespace isthmus::ccl::oneccl_abi
