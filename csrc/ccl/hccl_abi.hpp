// What Isthmus uses of Huawei's collective library, declared in our own words: names, numbers, signatures. tests/vendor compares them with the
// vendor's published headers. Every function returns 0 for success.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::ccl::hccl_abi {

inline constexpr size_t kIdBytes = 4108;
struct Id {
  char bytes[kIdBytes];
};
using Result = int;
using Handle = void *;  // a communicator
using Queue = void *;   // a stream of the device's runtime
inline constexpr Result kSuccess = 0, kNotSupported = 5, kRuntimeFailed = 15, kAgain = 20;
enum Type : int { kInt8 = 0, kInt16 = 1, kInt32 = 2, kFloat16 = 3, kFloat32 = 4, kBFloat16 = 11 };
enum ReduceOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };
struct BatchItem {  // one message of a batch, which has at most one each way with each rank
  int what;         // kSends, kReceives
  void *buffer;
  uint64_t count;
  int type;
  uint32_t peer;
};
static_assert(sizeof(BatchItem) == 32);
enum : int { kSends = 0, kReceives = 1 };
inline constexpr int kPackageHccl = 3;  // of aclsysGetCANNVersion

// name without its prefix, arguments
#define ISTHMUS_HCCL_FUNCTIONS(F)                                                                        \
  F(GetRootInfo, (Id *))                                                                                 \
  F(CommInitRootInfo, (uint32_t ranks, const Id *, uint32_t rank, Handle *))                             \
  F(CommDestroy, (Handle))                                                                               \
  F(AllReduce, (void *, void *, uint64_t, int type, int op, Handle, Queue))                              \
  F(Reduce, (void *, void *, uint64_t, int type, int op, uint32_t root, Handle, Queue))                  \
  F(Broadcast, (void *, uint64_t, int type, uint32_t root, Handle, Queue))                               \
  F(AllGather, (void *, void *, uint64_t, int type, Handle, Queue))                                      \
  F(ReduceScatter, (void *, void *, uint64_t, int type, int op, Handle, Queue))                          \
  F(AlltoAll, (const void *, uint64_t, int type, const void *, uint64_t, int type_there, Handle, Queue)) \
  F(Send, (void *, uint64_t, int type, uint32_t peer, Handle, Queue))                                    \
  F(Recv, (void *, uint64_t, int type, uint32_t peer, Handle, Queue))                                    \
  F(BatchSendRecv, (BatchItem *, uint32_t items, Handle, Queue))

struct Functions {
#define ISTHMUS_DECLARE(name, arguments) Result(*name) arguments = nullptr;
  ISTHMUS_HCCL_FUNCTIONS(ISTHMUS_DECLARE)
#undef ISTHMUS_DECLARE
  Result (*GetCommAsyncError)(Handle, Result *) = nullptr;  // not all versions have these two
  const char *(*GetErrorString)(Result) = nullptr;
};

}  // namespace isthmus::ccl::hccl_abi
