// The simulated libhccl.so: functions of the real library that the simulation does not have. All return kNotSupported.
#include "ascend/hccl_abi.hpp"

using namespace rehearsal;
using namespace rehearsal::hccl;

#define ABSENT(name) \
  HCCL_CALL(name);   \
  return kNotSupported

// Communicators from a file with the place of every rank.
EXPORT Result HcclCommInitClusterInfo(const char *, uint32_t, CommHandle *) { ABSENT("HcclCommInitClusterInfo"); }
EXPORT Result HcclCommInitClusterInfoConfig(const char *, uint32_t, Config *, CommHandle *) {
  ABSENT("HcclCommInitClusterInfoConfig");
}

// Memory that is registered with a communicator.
EXPORT Result HcclCommSetMemoryRange(CommHandle, void *, size_t, size_t, uint64_t) { ABSENT("HcclCommSetMemoryRange"); }
EXPORT Result HcclCommUnsetMemoryRange(CommHandle, void *) { ABSENT("HcclCommUnsetMemoryRange"); }
EXPORT Result HcclCommActivateCommMemory(CommHandle, void *, size_t, size_t, void *, uint64_t) {
  ABSENT("HcclCommActivateCommMemory");
}
EXPORT Result HcclCommDeactivateCommMemory(CommHandle, void *) { ABSENT("HcclCommDeactivateCommMemory"); }
EXPORT Result HcclCommRegister(CommHandle, void *, uint64_t, void **, uint32_t) { ABSENT("HcclCommRegister"); }
EXPORT Result HcclCommDeregister(CommHandle, void *) { ABSENT("HcclCommDeregister"); }
EXPORT Result HcclCommExchangeMem(CommHandle, void *, uint32_t *, uint32_t) { ABSENT("HcclCommExchangeMem"); }

// Network interfaces, and settings of a communicator.
EXPORT Result HcclCommWorkingDevNicSet(CommHandle, uint32_t *, bool *, uint32_t) { ABSENT("HcclCommWorkingDevNicSet"); }
EXPORT Result HcclSetCommConfig(CommHandle, int, Setting) { ABSENT("HcclSetCommConfig"); }
EXPORT Result HcclGetCommConfig(CommHandle, int, Setting *) { ABSENT("HcclGetCommConfig"); }
