// The simulated libamdhip64.so: the functions for programs that are compiled with -fgpu-default-stream=per-thread. For these functions a
// null stream is the calling thread's default stream. All else is as in the functions of the plain names.
#include "amd/hip_abi.hpp"

using namespace rehearsal;
using namespace rehearsal::hip;

#define OF_THREAD(name, parameters, ...)     \
  EXPORT Result name parameters;             \
  EXPORT Result name##_spt parameters {      \
    const ThreadDefault null_is_the_threads; \
    return name(__VA_ARGS__);                \
  }

OF_THREAD(hipStreamQuery, (StreamHandle stream), stream)
OF_THREAD(hipStreamSynchronize, (StreamHandle stream), stream)
OF_THREAD(hipStreamWaitEvent, (StreamHandle stream, EventHandle event, unsigned flags), stream, event, flags)
OF_THREAD(hipMemcpy, (void *to, const void *from, size_t bytes, int direction), to, from, bytes, direction)
OF_THREAD(hipMemcpyAsync, (void *to, const void *from, size_t bytes, int direction, StreamHandle stream), to, from, bytes,
          direction, stream)
OF_THREAD(hipMemset, (void *to, int value, size_t bytes), to, value, bytes)
#if HIP_MAJOR >= 6  // version 5.2 does not have them yet
OF_THREAD(hipMemsetAsync, (void *to, int value, size_t bytes, StreamHandle stream), to, value, bytes, stream)
OF_THREAD(hipEventRecord, (EventHandle event, StreamHandle stream), event, stream)
OF_THREAD(hipStreamIsCapturing, (StreamHandle stream, int *out), stream, out)
OF_THREAD(hipStreamBeginCapture, (StreamHandle stream, int mode), stream, mode)
OF_THREAD(hipStreamEndCapture, (StreamHandle stream, GraphHandle *out), stream, out)
OF_THREAD(hipLaunchHostFunc, (StreamHandle stream, void (*function)(void *), void *argument), stream, function, argument)
#endif
