/* An ordinary program of NCCL and the CUDA driver. It has never heard of Isthmus.
 *
 *     cc all_reduce.c -lnccl -lcuda -o all_reduce
 *     RANK=0 WORLD_SIZE=2 ./all_reduce id.bin &  RANK=1 WORLD_SIZE=2 ./all_reduce id.bin      (bare: NCCL alone)
 *
 * docs/start/nccl-program.md runs it behind the front door, on simulated devices, in two islands. The file id.bin carries NCCL's
 * unique id from rank 0 to the others: every program of NCCL has some way to do that, often MPI. */
#include <cuda.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 1 << 20 };

static void cuda(CUresult code, const char *what) {
  if (code != CUDA_SUCCESS) fprintf(stderr, "%s: CUDA error %d\n", what, (int)code), exit(1);
}
static void nccl(ncclResult_t code, const char *what) {
  if (code != ncclSuccess) fprintf(stderr, "%s: %s: %s\n", what, ncclGetErrorString(code), ncclGetLastError(NULL)), exit(1);
}
static int number(const char *name) {
  const char *text = getenv(name);
  if (!text) fprintf(stderr, "%s is not set\n", name), exit(1);
  return atoi(text);
}

static ncclUniqueId shared_id(int rank, const char *path) {
  ncclUniqueId id;
  char part[4096];
  if (rank == 0) {
    nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "wb");
    if (!file || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) || rename(part, path)) perror(path), exit(1);
    return id;
  }
  FILE *file = NULL;
  while (!(file = fopen(path, "rb"))) usleep(10000);
  if (fread(&id, sizeof id, 1, file) != 1) perror(path), exit(1);
  fclose(file);
  return id;
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: all_reduce FILE\n"), 2;
  const int rank = number("RANK"), size = number("WORLD_SIZE");

  int devices = 0;
  CUdevice device;
  CUcontext context;
  cuda(cuInit(0), "cuInit");
  cuda(cuDeviceGetCount(&devices), "cuDeviceGetCount");
  cuda(cuDeviceGet(&device, getenv("LOCAL_RANK") ? number("LOCAL_RANK") % devices : 0), "cuDeviceGet");
  cuda(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  cuda(cuCtxSetCurrent(context), "cuCtxSetCurrent");

  ncclComm_t comm;
  nccl(ncclCommInitRank(&comm, size, shared_id(rank, argv[1]), rank), "ncclCommInitRank");

  float *host = malloc(N * sizeof *host);
  if (!host) return 1;
  for (int i = 0; i < N; ++i) host[i] = (float)(rank + 1);
  CUdeviceptr x;
  CUstream stream;
  cuda(cuMemAlloc(&x, N * sizeof *host), "cuMemAlloc");
  cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  cuda(cuMemcpyHtoD(x, host, N * sizeof *host), "cuMemcpyHtoD");
  cuda(cuStreamSynchronize(NULL), "cuStreamSynchronize"); /* a copy from pageable memory may return before it is done */
  nccl(ncclAllReduce((void *)x, (void *)x, N, ncclFloat, ncclSum, comm, (cudaStream_t)stream), "ncclAllReduce");
  cuda(cuStreamSynchronize(stream), "cuStreamSynchronize");
  cuda(cuMemcpyDtoH(host, x, N * sizeof *host), "cuMemcpyDtoH");

  for (int i = 0; i < N; ++i)
    if (host[i] != (float)(size * (size + 1) / 2)) return fprintf(stderr, "rank %d: element %d is wrong\n", rank, i), 1;
  printf("rank %d of %d: the sum is %g\n", rank, size, host[0]);
  nccl(ncclCommDestroy(comm), "ncclCommDestroy");
  cuda(cuStreamDestroy(stream), "cuStreamDestroy");
  cuda(cuMemFree(x), "cuMemFree");
  free(host);
  return 0;
}
