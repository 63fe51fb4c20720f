/* Stands before the C library in a program for which a thread cannot be made: refuse_thread(0) is of the next one. Likewise refuse_memory, of
 * the caller's thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

static int left = -1;

void refuse_thread(int after);
void refuse_thread(int after) { __atomic_store_n(&left, after, __ATOMIC_SEQ_CST); }

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  int (*make)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
      (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
  if (__atomic_load_n(&left, __ATOMIC_SEQ_CST) >= 0 && __atomic_fetch_sub(&left, 1, __ATOMIC_SEQ_CST) == 0) return EAGAIN;
  return make ? make(thread, attributes, run, argument) : EAGAIN;
}

static __thread int memory_left __attribute__((tls_model("initial-exec"))) = -1;

void refuse_memory(int after);
void refuse_memory(int after) { memory_left = after; }

void *__libc_malloc(size_t bytes);
void *malloc(size_t bytes) { return memory_left >= 0 && memory_left-- == 0 ? NULL : __libc_malloc(bytes); }
