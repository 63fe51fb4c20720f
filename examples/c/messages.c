/* Every rank sends a line of numbers to every other rank, all messages in one group.
 *
 *     cc messages.c $(isthmus-config --cflags --libs) -o messages
 *     isthmus launch --ranks 3 -- ./messages */
#include <isthmus/isthmus.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 1000 };

static void check(isthmus_result result, const char *what) {
  if (result == ISTHMUS_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, isthmus_result_name(result), isthmus_last_error());
  exit(1);
}

int main(void) {
  isthmus_comm_t comm = NULL;
  check(isthmus_init(NULL, &comm), "init"); /* NULL: the launcher says rank, world size and address */
  const int rank = isthmus_comm_rank(comm), size = isthmus_comm_size(comm);

  int64_t *out = calloc((size_t)size * N, sizeof *out), *in = calloc((size_t)size * N, sizeof *in);
  if (!out || !in) return 1;
  for (int i = 0; i < size * N; ++i) out[i] = 1000 * rank + i / N; /* the block for rank p holds 1000 * rank + p */

  /* Between begin and end calls are only recorded; end submits them together and waits for all. So no rank has to think of an
   * order in which sends and receives do not wait for each other. */
  check(isthmus_group_begin(), "group_begin");
  for (int peer = 0; peer < size; ++peer) {
    check(isthmus_send(comm, out + peer * N, N, ISTHMUS_INT64, peer, 0, NULL, NULL), "send");
    check(isthmus_recv(comm, in + peer * N, N, ISTHMUS_INT64, peer, 0, NULL, NULL, NULL), "recv");
  }
  check(isthmus_group_end(NULL), "group_end");

  for (int peer = 0; peer < size; ++peer)
    if (in[peer * N] != 1000 * peer + rank || in[peer * N + N - 1] != 1000 * peer + rank) return 1;
  if (rank == 0) printf("%d ranks: every rank has a message of every rank\n", size);
  free(out);
  free(in);
  check(isthmus_comm_destroy(comm), "destroy");
  return 0;
}
