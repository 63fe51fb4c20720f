/* The second of the newest HCCL's two libraries, made for one test. */
#include "hccl_like.h"

uint32_t HcclGetCommConfigCapability(void) { return 93; }
int HcclBarrier(void *comm, void *stream) { return comm == stream ? 21 : 0; }
long HcomGetRankId(long a, long b);
long HcomGetRankId(long a, long b) { return a * 100 + b; }
