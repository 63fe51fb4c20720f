/* What the clients of these tests call of NVIDIA's driver, with -DAMD of AMD's runtime, or with -DASCEND of Huawei's, in one form. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define UNUSED __attribute__((unused))

static void die(const char *what, long code) {
  fprintf(stderr, "%s gave %ld\n", what, code);
  exit(3);
}
#define OK(call)                       \
  do {                                 \
    const long ok_ = (long)(call);     \
    if (ok_ != 0) die(#call, ok_);     \
  } while (0)

#if defined(ASCEND)
int aclInit(const char *settings);
int aclrtSetDevice(int32_t device);
int aclrtMalloc(void **p, size_t bytes, int policy);
int aclrtMemcpy(void *to, size_t room, const void *from, size_t bytes, int kind);
int aclrtCreateStream(void **stream);
int aclrtSynchronizeStream(void *stream);
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t bytes, int kind, void *stream);
int aclrtHostRegisterV2(void *p, uint64_t bytes, uint32_t flags);
int aclrtLaunchHostFunc(void *stream, void (*function)(void *), void *argument);
int aclmdlRICaptureBegin(void *stream, int mode);
int aclmdlRICaptureEnd(void *stream, void **graph);
static void here(int device) { OK(aclrtSetDevice(device)); }
static void *allocate(size_t bytes) {
  void *p = NULL;
  OK(aclrtMalloc(&p, bytes, 0));
  return p;
}
static void copy_in(void *to, const void *from, size_t bytes) { OK(aclrtMemcpy(to, bytes, from, bytes, 1)); }
static void copy_out(void *to, const void *from, size_t bytes) { OK(aclrtMemcpy(to, bytes, from, bytes, 2)); }
static void *stream(void) {
  void *s = NULL;
  OK(aclrtCreateStream(&s));
  return s;
}
static void wait_for(void *s) { OK(aclrtSynchronizeStream(s)); }
static void start(void) { OK(aclInit(NULL)); }
UNUSED static void copy_later(void *to, const void *from, size_t bytes, void *s) {
  OK(aclrtMemcpyAsync(to, bytes, from, bytes, 1, s));
}
UNUSED static void copy_there(void *to, const void *from, size_t bytes, void *s) { OK(aclrtMemcpyAsync(to, bytes, from, bytes, 3, s)); }
UNUSED static void *stream_of_kind(int kind) { return kind < 0 ? NULL : stream(); } /* it has one kind */
UNUSED static void pin(void *p, size_t bytes) { OK(aclrtHostRegisterV2(p, bytes, 0x10000000)); }
/* A word that a stream can wait for, by a function that it calls. */
UNUSED static volatile uint64_t *word_to_wait_for(void) { return calloc(1, 8); }
UNUSED static void until_set(void *word) {
  while (!__atomic_load_n((volatile uint64_t *)word, __ATOMIC_ACQUIRE)) {}
}
UNUSED static void hold(void *s, volatile uint64_t *word) { OK(aclrtLaunchHostFunc(s, until_set, (void *)word)); }
UNUSED static void begin_capture(void *s) { OK(aclmdlRICaptureBegin(s, 2)); }
UNUSED static void end_capture(void *s) {
  void *graph = NULL;
  aclmdlRICaptureEnd(s, &graph);
}
#elif defined(AMD)
int hipInit(unsigned flags);
int hipSetDevice(int device);
int hipMalloc(void **p, size_t bytes);
int hipMemcpy(void *to, const void *from, size_t bytes, int kind);
int hipStreamCreate(void **stream);
int hipStreamCreateWithFlags(void **stream, unsigned flags);
int hipStreamSynchronize(void *stream);
int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int hipHostRegister(void *p, size_t bytes, unsigned flags);
int hipExtMallocWithFlags(void **p, size_t bytes, unsigned flags);
int hipStreamWaitValue64(void *stream, void *p, uint64_t value, unsigned flags, uint64_t mask);
int hipStreamBeginCapture(void *stream, int mode);
int hipStreamEndCapture(void *stream, void **graph);
static void here(int device) { OK(hipSetDevice(device)); }
static void *allocate(size_t bytes) {
  void *p = NULL;
  OK(hipMalloc(&p, bytes));
  return p;
}
static void copy_in(void *to, const void *from, size_t bytes) { OK(hipMemcpy(to, from, bytes, 1)); }
static void copy_out(void *to, const void *from, size_t bytes) { OK(hipMemcpy(to, from, bytes, 2)); }
static void *stream(void) {
  void *s = NULL;
  OK(hipStreamCreate(&s));
  return s;
}
static void wait_for(void *s) { OK(hipStreamSynchronize(s)); }
static void start(void) { OK(hipInit(0)); }
UNUSED static void copy_later(void *to, const void *from, size_t bytes, void *s) { OK(hipMemcpyAsync(to, from, bytes, 1, s)); }
UNUSED static void copy_there(void *to, const void *from, size_t bytes, void *s) { OK(hipMemcpyAsync(to, from, bytes, 3, s)); }
UNUSED static void *stream_of_kind(int kind) {
  void *s = (void *)(uintptr_t)kind;
  if (kind > 2) OK(hipStreamCreateWithFlags(&s, kind == 4));
  return s;
}
UNUSED static void pin(void *p, size_t bytes) { OK(hipHostRegister(p, bytes, 2)); }
/* A word that a stream can wait for: it goes on when that is not 0. */
UNUSED static volatile uint64_t *word_to_wait_for(void) {
  void *word = NULL;
  OK(hipExtMallocWithFlags(&word, 8, 2));
  *(volatile uint64_t *)word = 0;
  return word;
}
UNUSED static void hold(void *s, volatile uint64_t *word) { OK(hipStreamWaitValue64(s, (void *)word, 1, 0, ~(uint64_t)0)); }
UNUSED static void begin_capture(void *s) { OK(hipStreamBeginCapture(s, 2)); }
UNUSED static void end_capture(void *s) {
  void *graph = NULL;
  hipStreamEndCapture(s, &graph);
}
#else
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *p, size_t bytes);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags);
int cuMemHostGetDevicePointer_v2(uint64_t *there, void *p, unsigned flags);
int cuStreamWaitValue64_v2(void *stream, uint64_t p, uint64_t value, unsigned flags);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
static void here(int device) {
  void *context = NULL;
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
}
static void *allocate(size_t bytes) {
  uint64_t p = 0;
  OK(cuMemAlloc_v2(&p, bytes));
  return (void *)(uintptr_t)p;
}
static void copy_in(void *to, const void *from, size_t bytes) {
  OK(cuMemcpyHtoD_v2((uintptr_t)to, from, bytes));
  OK(cuStreamSynchronize(NULL)); /* the driver comes back before the device has it, and another stream may come next */
}
static void copy_out(void *to, const void *from, size_t bytes) { OK(cuMemcpyDtoH_v2(to, (uintptr_t)from, bytes)); }
static void *stream(void) {
  void *s = NULL;
  OK(cuStreamCreate(&s, 1));
  return s;
}
static void wait_for(void *s) { OK(cuStreamSynchronize(s)); }
static void start(void) { OK(cuInit(0)); }
UNUSED static void copy_later(void *to, const void *from, size_t bytes, void *s) { OK(cuMemcpyHtoDAsync_v2((uintptr_t)to, from, bytes, s)); }
UNUSED static void copy_there(void *to, const void *from, size_t bytes, void *s) {
  OK(cuMemcpyDtoDAsync_v2((uintptr_t)to, (uintptr_t)from, bytes, s));
}
UNUSED static void *stream_of_kind(int kind) {
  void *s = (void *)(uintptr_t)kind;
  if (kind > 2) OK(cuStreamCreate(&s, kind == 4));
  return s;
}
UNUSED static void pin(void *p, size_t bytes) { OK(cuMemHostRegister_v2(p, bytes, 2)); }
/* A word that a stream can wait for: it goes on when that is not 0. */
UNUSED static volatile uint64_t *word_to_wait_for(void) {
  uint64_t *word = aligned_alloc(4096, 4096);
  *word = 0;
  pin(word, 4096);
  return word;
}
UNUSED static void hold(void *s, volatile uint64_t *word) {
  uint64_t there = 0;
  OK(cuMemHostGetDevicePointer_v2(&there, (void *)word, 0));
  OK(cuStreamWaitValue64_v2(s, there, 1, 0));
}
UNUSED static void begin_capture(void *s) { OK(cuStreamBeginCapture_v2(s, 2)); }
UNUSED static void end_capture(void *s) {
  void *graph = NULL;
  cuStreamEndCapture(s, &graph);
}
#endif

