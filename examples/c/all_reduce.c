/* Sums an array over all ranks, blocking and in the background.
 *
 *     cc all_reduce.c $(isthmus-config --cflags --libs) -o all_reduce
 *     isthmus launch --ranks 4 --islands a:2,b:2 --bridge tcp -- ./all_reduce
 *
 * torchrun (with --no-python), mpirun and srun start it as well. */
#include <isthmus/isthmus.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1000000 };

/* Ends this process with the reason where a call has failed. */
static void check(isthmus_result result, const char *what) {
  if (result == ISTHMUS_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, isthmus_result_name(result), isthmus_last_error());
  exit(1);
}

int main(void) {
  isthmus_comm_t comm = NULL;
  check(isthmus_init(NULL, &comm), "init"); /* NULL: the launcher says rank, world size and address */
  const int rank = isthmus_comm_rank(comm), size = isthmus_comm_size(comm);

  static float x[N], y[N];
  for (int i = 0; i < N; ++i) x[i] = (float)(rank + 1);

  /* A call without a `work` returns when the result is there. In place: send and receive buffer are the same. */
  check(isthmus_all_reduce(comm, x, x, N, ISTHMUS_FLOAT32, ISTHMUS_SUM, NULL, NULL), "all_reduce");

  /* A call with a `work` returns at once. Both buffers belong to the library until the work is done. The call has a deadline and
   * a name of its own, which errors show. */
  isthmus_call call = ISTHMUS_CALL_INIT;
  call.timeout = 60;
  call.label = "average of the sums";
  isthmus_work_t work = NULL;
  check(isthmus_all_reduce(comm, x, y, N, ISTHMUS_FLOAT32, ISTHMUS_AVG, &call, &work), "all_reduce");
  /* ... compute something else here ... */
  check(isthmus_work_wait(work, 0), "wait");
  isthmus_work_release(work);

  if (rank == 0) printf("%d ranks: the sum is %g, the average of the sums %g\n", size, x[0], y[N - 1]);
  check(isthmus_comm_destroy(comm), "destroy");
  return 0;
}
