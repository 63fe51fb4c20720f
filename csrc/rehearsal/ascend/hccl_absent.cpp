// The simulated libhccl.so: functions that are there, because the real library has them, and that no rehearsal has a use for.
#include "ascend/hccl_abi.hpp"

using namespace rehearsal;
using namespace rehearsal::hccl;

#define ABSENT(name) \
  HCCL_CALL(name);   \
  return kNotSupported

// Communicators out of a file that says where every rank is.
EXPORT Result HcclCommInitClusterInfo(const char *, uint32_t, CommHandle *) { ABSENT("HcclCommInitClusterInfo"); }
EXPORT Result HcclCommInitClusterInfoConfig(const char *, uint32_t, Config *, CommHandle *) {
  ABSENT("HcclCommInitClusterInfoConfig");
}

// Memory that a communicator is told of before it is used.
EXPORT Result HcclCommSetMemoryRange(CommHandle, void *, size_t, size_t, uint64_t) { ABSENT("HcclCommSetMemoryRange"); }
EXPORT Result HcclCommUnsetMemoryRange(CommHandle, void *) { ABSENT("HcclCommUnsetMemoryRange"); }
EXPORT Result HcclCommActivateCommMemory(CommHandle, void *, size_t, size_t, void *, uint64_t) {
  ABSENT("HcclCommActivateCommMemory");
}
EXPORT Result HcclCommDeactivateCommMemory(CommHandle, void *) { ABSENT("HcclCommDeactivateCommMemory"); }
EXPORT Result HcclCommRegister(CommHandle, void *, uint64_t, void **, uint32_t) { ABSENT("HcclCommRegister"); }
EXPORT Result HcclCommDeregister(CommHandle, void *) { ABSENT("HcclCommDeregister"); }
EXPORT Result HcclCommExchangeMem(CommHandle, void *, uint32_t *, uint32_t) { ABSENT("HcclCommExchangeMem"); }

// What only real networks and real operators have.
EXPORT Result HcclCommWorkingDevNicSet(CommHandle, uint32_t *, bool *, uint32_t) { ABSENT("HcclCommWorkingDevNicSet"); }
EXPORT Result HcclSetCommConfig(CommHandle, int, Setting) { ABSENT("HcclSetCommConfig"); }
EXPORT Result HcclGetCommConfig(CommHandle, int, Setting *) { ABSENT("HcclGetCommConfig"); }
