// The simulated libcuda.so.1: the functions for programs that are compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM. For these functions a
// null stream is the calling thread's default stream. All else is as in the functions of the plain names.
#include "nvidia/cuda_abi.hpp"

using namespace rehearsal;
using namespace rehearsal::cuda;

#define OF_THREAD(name, suffix, parameters, ...) \
  EXPORT Result name parameters;                 \
  EXPORT Result name##suffix parameters {        \
    const ThreadDefault null_is_the_threads;     \
    return name(__VA_ARGS__);                    \
  }

OF_THREAD(cuStreamQuery, _ptsz, (StreamHandle stream), stream)
OF_THREAD(cuStreamSynchronize, _ptsz, (StreamHandle stream), stream)
OF_THREAD(cuStreamWaitEvent, _ptsz, (StreamHandle stream, EventHandle event, unsigned flags), stream, event, flags)
OF_THREAD(cuStreamGetCtx, _ptsz, (StreamHandle stream, Context *out), stream, out)
OF_THREAD(cuStreamIsCapturing, _ptsz, (StreamHandle stream, int *out), stream, out)
OF_THREAD(cuStreamBeginCapture_v2, _ptsz, (StreamHandle stream, int mode), stream, mode)
OF_THREAD(cuStreamEndCapture, _ptsz, (StreamHandle stream, GraphHandle *out), stream, out)
OF_THREAD(cuStreamWaitValue32_v2, _ptsz, (StreamHandle stream, Address address, uint32_t value, unsigned flags), stream,
          address, value, flags)
OF_THREAD(cuStreamWaitValue64_v2, _ptsz, (StreamHandle stream, Address address, uint64_t value, unsigned flags), stream,
          address, value, flags)
OF_THREAD(cuStreamWriteValue32_v2, _ptsz, (StreamHandle stream, Address address, uint32_t value, unsigned flags), stream,
          address, value, flags)
OF_THREAD(cuStreamWriteValue64_v2, _ptsz, (StreamHandle stream, Address address, uint64_t value, unsigned flags), stream,
          address, value, flags)
OF_THREAD(cuLaunchHostFunc, _ptsz, (StreamHandle stream, void (*function)(void *), void *argument), stream, function,
          argument)
OF_THREAD(cuEventRecord, _ptsz, (EventHandle event, StreamHandle stream), event, stream)
OF_THREAD(cuMemcpyAsync, _ptsz, (Address to, Address from, size_t bytes, StreamHandle stream), to, from, bytes, stream)
OF_THREAD(cuMemcpyHtoDAsync_v2, _ptsz, (Address to, const void *from, size_t bytes, StreamHandle stream), to, from, bytes,
          stream)
OF_THREAD(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, Address from, size_t bytes, StreamHandle stream), to, from, bytes, stream)
OF_THREAD(cuMemcpyDtoDAsync_v2, _ptsz, (Address to, Address from, size_t bytes, StreamHandle stream), to, from, bytes,
          stream)
OF_THREAD(cuMemsetD8Async, _ptsz, (Address to, unsigned char value, size_t count, StreamHandle stream), to, value, count,
          stream)
OF_THREAD(cuMemcpy, _ptds, (Address to, Address from, size_t bytes), to, from, bytes)
OF_THREAD(cuMemcpyHtoD_v2, _ptds, (Address to, const void *from, size_t bytes), to, from, bytes)
OF_THREAD(cuMemcpyDtoH_v2, _ptds, (void *to, Address from, size_t bytes), to, from, bytes)
OF_THREAD(cuMemcpyDtoD_v2, _ptds, (Address to, Address from, size_t bytes), to, from, bytes)
OF_THREAD(cuMemsetD8_v2, _ptds, (Address to, unsigned char value, size_t count), to, value, count)
