/* What compiling for a default stream of each thread does to a program: CUDA_API_PER_THREAD_DEFAULT_STREAM, -fgpu-default-stream=per-thread. */
#ifdef AMD
#define hipMemcpy hipMemcpy_spt
#define hipMemcpyAsync hipMemcpyAsync_spt
#define hipStreamSynchronize hipStreamSynchronize_spt
#define hipStreamBeginCapture hipStreamBeginCapture_spt
#define hipStreamEndCapture hipStreamEndCapture_spt
#else
#define cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds
#define cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds
#define cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz
#define cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz
#define cuStreamSynchronize cuStreamSynchronize_ptsz
#define cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz
#define cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz
#define cuStreamEndCapture cuStreamEndCapture_ptsz
#endif
