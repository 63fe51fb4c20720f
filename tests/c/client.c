/* Every function of isthmus.h, from C99, on two ranks that are processes. "client" alone: shared memory; "client tcp": two
 * islands with TCP between them. Prints what failed and ends with 1, or prints nothing. */
#define _POSIX_C_SOURCE 200809L

#include <isthmus/isthmus.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORLD = 2, N = 1000 };

static int rank, other, failures, interrupted;
static volatile int callbacks;

#define CHECK(condition)                                                                                       \
  do {                                                                                                         \
    if (!(condition)) {                                                                                        \
      fprintf(stderr, "rank %d, line %d: %s\n    last error: %s\n", rank, __LINE__, #condition, isthmus_last_error()); \
      ++failures;                                                                                              \
    }                                                                                                          \
  } while (0)
#define OK(call) CHECK((call) == ISTHMUS_OK)

static float send_buffer[WORLD * N], recv_buffer[WORLD * N];

static void fill(void) { /* element i of rank r is 100 r + i % 50: sums of two are exact */
  int i;
  for (i = 0; i < WORLD * N; ++i) send_buffer[i] = (float)(100 * rank + i % 50), recv_buffer[i] = -1;
}

static int equal(const float *at, int from, int count, int of_rank, int sum) {
  int i;
  for (i = 0; i < count; ++i) {
    const float one = (float)((from + i) % 50);
    if (at[i] != (sum ? 2 * one + 100 : one + (float)(100 * of_rank))) return 0;
  }
  return 1;
}

static void text_and_names(isthmus_comm_t comm) {
  char *json = NULL;
  {
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", ISTHMUS_VERSION_MAJOR, ISTHMUS_VERSION_MINOR, ISTHMUS_VERSION_PATCH);
    CHECK(strcmp(isthmus_version(), version) == 0);
  }
  CHECK(strlen(isthmus_result_name(ISTHMUS_ERR_TIMEOUT)) > 0);
  CHECK(isthmus_dtype_size(ISTHMUS_COMPLEX128) == 16 && isthmus_dtype_size(ISTHMUS_BFLOAT16) == 2);
  CHECK(isthmus_dtype_size((isthmus_dtype)ISTHMUS_DTYPE_COUNT) == 0);
  CHECK(strcmp(isthmus_dtype_name(ISTHMUS_FLOAT32), "float32") == 0);
  CHECK(strcmp(isthmus_redop_name(ISTHMUS_SUM), "sum") == 0);
  CHECK(isthmus_comm_rank(comm) == rank && isthmus_comm_size(comm) == WORLD);
  OK(isthmus_settings(&json));
  CHECK(json && strstr(json, "ISTHMUS_TIMEOUT"));
  isthmus_free(json);
  OK(isthmus_context_stats(&json));
  CHECK(json && strstr(json, "threads"));
  isthmus_free(json);
  OK(isthmus_comm_topology(comm, &json));
  CHECK(json && strstr(json, "links"));
  isthmus_free(json);
  OK(isthmus_comm_explain(comm, "all_reduce", 1 << 20, ISTHMUS_FLOAT32, ISTHMUS_SUM, 0, &json));
  CHECK(json && strstr(json, "text"));
  isthmus_free(json);
  OK(isthmus_comm_dump(comm, &json));
  CHECK(json && strstr(json, "entries"));
  isthmus_free(json);
}

static void collectives(isthmus_comm_t comm) {
  const uint64_t counts[WORLD] = {300, 700}, displs[WORLD] = {700, 0};
  uint64_t back[WORLD], mine[WORLD];
  isthmus_call call = ISTHMUS_CALL_INIT;
  isthmus_work_t committed = NULL;
  const uint64_t before = isthmus_comm_sequence(comm);
  call.timeout = 60;
  call.label = "step";

  fill();
  OK(isthmus_all_reduce(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_SUM, NULL, NULL));
  CHECK(equal(recv_buffer, 0, N, 0, 1));
  CHECK(isthmus_comm_sequence(comm) == before + 1);

  fill();
  OK(isthmus_all_reduce(comm, send_buffer, send_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_SUM, &call, NULL));
  CHECK(equal(send_buffer, 0, N, 0, 1));

  fill(); /* on both ranks or on neither: it blocks */
  call.commit = 1;
  OK(isthmus_all_reduce(comm, send_buffer, send_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_SUM, &call, NULL));
  CHECK(equal(send_buffer, 0, N, 0, 1));
  OK(isthmus_barrier(comm, &call, NULL));
  CHECK(isthmus_barrier(comm, &call, &committed) == ISTHMUS_ERR_UNSUPPORTED && !committed);
  CHECK(isthmus_last_error_ranks(NULL, 0) == 0);
  OK(isthmus_group_begin());
  CHECK(isthmus_barrier(comm, &call, NULL) == ISTHMUS_ERR_UNSUPPORTED);
  CHECK(isthmus_group_end(NULL) == ISTHMUS_ERR_UNSUPPORTED);
  call.commit = 0;

  fill();
  OK(isthmus_all_reduce(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_PREMUL_SUM, &call, NULL));
  CHECK(equal(recv_buffer, 0, N, 0, 1)); /* by ISTHMUS_CALL_INIT the factor is 1 */

  fill();
  call.scale = rank == 0 ? 0.0 : 2.0;
  OK(isthmus_all_reduce(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_PREMUL_SUM, &call, NULL));
  CHECK(recv_buffer[0] == 200 && recv_buffer[49] == 298);

  fill();
  OK(isthmus_reduce(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_SUM, 1, NULL, NULL));
  CHECK(rank == 1 ? equal(recv_buffer, 0, N, 0, 1) : recv_buffer[0] == -1);

  fill();
  OK(isthmus_broadcast(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, 1, NULL, NULL));
  CHECK(equal(recv_buffer, 0, N, 1, 0));

  fill();
  OK(isthmus_all_gather(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, NULL, NULL));
  CHECK(equal(recv_buffer, 0, N, 0, 0) && equal(recv_buffer + N, 0, N, 1, 0));

  fill(); /* rank 0's 300 land behind rank 1's 700 */
  OK(isthmus_all_gather_v(comm, send_buffer, recv_buffer, counts, displs, ISTHMUS_FLOAT32, NULL, NULL));
  CHECK(equal(recv_buffer, 0, 700, 1, 0) && equal(recv_buffer + 700, 0, 300, 0, 0));

  fill();
  OK(isthmus_reduce_scatter(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_SUM, NULL, NULL));
  CHECK(equal(recv_buffer, rank * N, N, 0, 1));

  fill();
  OK(isthmus_reduce_scatter_v(comm, send_buffer, recv_buffer, counts, NULL, ISTHMUS_FLOAT32, ISTHMUS_SUM, NULL, NULL));
  CHECK(equal(recv_buffer, rank * 300, (int)counts[rank], 0, 1) && recv_buffer[counts[rank]] == -1);

  fill();
  OK(isthmus_all_to_all(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, NULL, NULL));
  CHECK(equal(recv_buffer, rank * N, N, 0, 0) && equal(recv_buffer + N, rank * N, N, 1, 0));

  fill(); /* rank r sends 10 (r + 1) (d + 1) elements to rank d */
  mine[0] = 10 * (uint64_t)(rank + 1), mine[1] = 2 * mine[0];
  back[0] = 10 * (uint64_t)(rank + 1), back[1] = 2 * back[0];
  OK(isthmus_all_to_all_v(comm, send_buffer, mine, NULL, recv_buffer, back, NULL, ISTHMUS_FLOAT32, NULL, NULL));
  CHECK(equal(recv_buffer, rank * 10, (int)back[0], 0, 0));
  CHECK(equal(recv_buffer + back[0], rank * 20, (int)back[1], 1, 0));
  CHECK(recv_buffer[back[0] + back[1]] == -1);

  fill();
  OK(isthmus_gather(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, 0, NULL, NULL));
  CHECK(rank == 0 ? equal(recv_buffer, 0, N, 0, 0) && equal(recv_buffer + N, 0, N, 1, 0) : recv_buffer[0] == -1);

  fill();
  OK(isthmus_gather_v(comm, send_buffer, recv_buffer, counts, NULL, ISTHMUS_FLOAT32, 1, NULL, NULL));
  CHECK(rank == 1 ? equal(recv_buffer, 0, 300, 0, 0) && equal(recv_buffer + 300, 0, 700, 1, 0) : recv_buffer[0] == -1);

  fill();
  OK(isthmus_scatter(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, 1, NULL, NULL));
  CHECK(equal(recv_buffer, rank * N, N, 1, 0));

  fill();
  OK(isthmus_scatter_v(comm, send_buffer, recv_buffer, counts, displs, ISTHMUS_FLOAT32, 0, NULL, NULL));
  CHECK(equal(recv_buffer, rank == 0 ? 700 : 0, (int)counts[rank], 0, 0));

  OK(isthmus_barrier(comm, NULL, NULL));
}

static void count_callback(void *context, isthmus_result result, const char *text) {
  (void)text;
  callbacks += result == ISTHMUS_OK ? *(int *)context : 1000;
}

static void point_to_point(isthmus_comm_t comm) {
  isthmus_work_t work = NULL, second = NULL;
  isthmus_result tested;
  int source = -7, one = 1;

  fill();
  if (rank == 0) {
    OK(isthmus_send(comm, send_buffer, N, ISTHMUS_FLOAT32, other, 5, NULL, NULL));
    OK(isthmus_recv(comm, recv_buffer, N, ISTHMUS_FLOAT32, other, 6, &source, NULL, NULL));
  } else {
    OK(isthmus_recv(comm, recv_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_ANY_SOURCE, 5, &source, NULL, NULL));
    OK(isthmus_send(comm, send_buffer, N, ISTHMUS_FLOAT32, other, 6, NULL, NULL));
  }
  CHECK(source == other && equal(recv_buffer, 0, N, other, 0));

  fill(); /* a group: both send first, which no order of blocking calls could do for any size */
  OK(isthmus_group_begin());
  OK(isthmus_send(comm, send_buffer, N, ISTHMUS_FLOAT32, other, 0, NULL, NULL));
  OK(isthmus_recv(comm, recv_buffer, N, ISTHMUS_FLOAT32, other, 0, NULL, NULL, NULL));
  OK(isthmus_group_end(NULL));
  CHECK(equal(recv_buffer, 0, N, other, 0));

  fill(); /* an asynchronous group */
  OK(isthmus_group_begin());
  OK(isthmus_recv(comm, recv_buffer, N, ISTHMUS_FLOAT32, other, 1, NULL, NULL, NULL));
  OK(isthmus_send(comm, send_buffer, N, ISTHMUS_FLOAT32, other, 1, NULL, NULL));
  OK(isthmus_group_end(&work));
  OK(isthmus_work_wait(work, 20));
  isthmus_work_release(work);
  CHECK(equal(recv_buffer, 0, N, other, 0));

  fill(); /* asynchronous, both ways */
  OK(isthmus_recv(comm, recv_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_ANY_SOURCE, 2, NULL, NULL, &work));
  CHECK(isthmus_work_wait(work, 0.02) == ISTHMUS_ERR_TIMEOUT && isthmus_work_test(work) == ISTHMUS_IN_PROGRESS);
  CHECK(isthmus_work_duration(work) < 0 && isthmus_work_source(work) == -1);
  OK(isthmus_work_on_done(work, count_callback, &one));
  OK(isthmus_barrier(comm, NULL, NULL)); /* nobody sends before both have looked */
  OK(isthmus_send(comm, send_buffer, N, ISTHMUS_FLOAT32, other, 2, NULL, &second));
  OK(isthmus_work_wait(second, 0));
  while ((tested = isthmus_work_test(work)) == ISTHMUS_IN_PROGRESS) continue;
  CHECK(tested == ISTHMUS_OK);
  CHECK(isthmus_work_source(work) == other && isthmus_work_duration(work) >= 0);
  CHECK(equal(recv_buffer, 0, N, other, 0));
  OK(isthmus_work_on_done(second, count_callback, &one)); /* done already: at once */
  OK(isthmus_work_wait(work, 0)); /* and for its callback */
  isthmus_work_release(work);
  isthmus_work_release(second);
  isthmus_work_release(NULL);
  CHECK(callbacks == 2);

  OK(isthmus_all_reduce(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, ISTHMUS_MAX, NULL, &work));
  CHECK(isthmus_work_sequence(work) == isthmus_comm_sequence(comm));
  OK(isthmus_work_wait(work, 0));
  isthmus_work_release(work);
  CHECK(equal(recv_buffer, 0, N, 1, 0));
}

static void bad_arguments(isthmus_comm_t comm) {
  isthmus_options options;
  isthmus_comm_t none = NULL;
  CHECK(isthmus_all_reduce(NULL, send_buffer, recv_buffer, 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(strlen(isthmus_last_error()) > 0);
  CHECK(isthmus_all_reduce(comm, NULL, recv_buffer, 1, ISTHMUS_FLOAT32, ISTHMUS_SUM, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_all_reduce(comm, send_buffer, recv_buffer, (uint64_t)-5, ISTHMUS_FLOAT32, ISTHMUS_SUM, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_all_reduce(comm, send_buffer, recv_buffer, 1, (isthmus_dtype)99, ISTHMUS_SUM, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_all_reduce(comm, send_buffer, recv_buffer, 1, ISTHMUS_FLOAT32, ISTHMUS_BXOR, NULL, NULL) == ISTHMUS_ERR_UNSUPPORTED);
  CHECK(isthmus_broadcast(comm, send_buffer, recv_buffer, 1, ISTHMUS_FLOAT32, WORLD, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_send(comm, send_buffer, 1, ISTHMUS_FLOAT32, -1, 0, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_send(comm, send_buffer, 1, ISTHMUS_FLOAT32, other, -1, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_work_wait(NULL, 0) == ISTHMUS_ERR_ARGUMENT && isthmus_work_test(NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_group_end(NULL) == ISTHMUS_ERR_ARGUMENT); /* without a begin */
  OK(isthmus_group_begin()); /* a call that fails cancels its group */
  OK(isthmus_send(comm, send_buffer, 1, ISTHMUS_FLOAT32, other, 0, NULL, NULL));
  CHECK(isthmus_send(comm, send_buffer, 1, ISTHMUS_FLOAT32, 77, 0, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_group_end(NULL) == ISTHMUS_ERR_ARGUMENT);
  memset(&options, 0, sizeof options);
  CHECK(isthmus_init(&options, &none) == ISTHMUS_ERR_ARGUMENT && none == NULL); /* no size */
  options.size = sizeof options;
  options.rank = 5, options.world_size = 2, options.address = "127.0.0.1:1";
  CHECK(isthmus_init(&options, &none) == ISTHMUS_ERR_ARGUMENT);
  options.rank = 0, options.settings = "TIMEOUT=never";
  CHECK(isthmus_init(&options, &none) == ISTHMUS_ERR_CONFIG && strstr(isthmus_last_error(), "never"));
  CHECK(isthmus_comm_set_timeout(comm, -1) == ISTHMUS_ERR_ARGUMENT);
  int64_t number = 7;
  CHECK(isthmus_comm_dlpack(comm, 2, 0, NULL, NULL, &number) == ISTHMUS_ERR_UNSUPPORTED && number == 7);
  CHECK(isthmus_comm_dlpack(NULL, 2, 0, NULL, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_comm_order(comm, NULL, NULL) == ISTHMUS_ERR_ARGUMENT && strstr(isthmus_last_error(), "host memory"));
  CHECK(isthmus_comm_order(NULL, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
  OK(isthmus_comm_error(comm)); /* unharmed by all that */
  OK(isthmus_barrier(comm, NULL, NULL));
}

static int interrupt(void) { return interrupted; }

static void ends(isthmus_comm_t comm) {
  isthmus_comm_t half = NULL, none = comm, doomed = NULL, swapped = NULL;
  OK(isthmus_comm_split(comm, rank, 0, "half", &half));
  CHECK(isthmus_comm_size(half) == 1 && isthmus_comm_rank(half) == 0);
  OK(isthmus_barrier(half, NULL, NULL));
  OK(isthmus_comm_destroy(half));
  OK(isthmus_comm_split(comm, rank == 0 ? 0 : -1, 0, NULL, &none));
  CHECK((rank == 0) == (none != NULL));
  OK(isthmus_comm_destroy(none)); /* NULL on rank 1 */
  OK(isthmus_comm_split(comm, 0, -rank, NULL, &swapped)); /* the other way round */
  CHECK(isthmus_comm_rank(swapped) == other);
  OK(isthmus_comm_destroy(swapped));

  OK(isthmus_comm_split(comm, 0, 0, "doomed", &doomed));
  OK(isthmus_comm_set_timeout(doomed, 60));
  if (rank == 0) OK(isthmus_comm_abort(doomed, "on purpose"));
  CHECK(isthmus_barrier(doomed, NULL, NULL) == ISTHMUS_ERR_ABORTED && strstr(isthmus_last_error(), "on purpose"));
  CHECK(isthmus_comm_error(doomed) == ISTHMUS_ERR_ABORTED);
  OK(isthmus_comm_destroy(doomed));

  OK(isthmus_comm_split(comm, 0, 0, "interrupted", &doomed));
  isthmus_set_interrupt_check(interrupt);
  interrupted = 1;
  CHECK(isthmus_recv(doomed, recv_buffer, 1, ISTHMUS_FLOAT32, other, 3, NULL, NULL, NULL) != ISTHMUS_OK);
  interrupted = 0;
  isthmus_set_interrupt_check(NULL);
  OK(isthmus_comm_destroy(doomed));
  OK(isthmus_barrier(comm, NULL, NULL));
}

/* Rank 0 alone makes a communicator and a ticket, and rank 1 comes with the ticket, into slot 0. */
static void grows(isthmus_comm_t comm, const isthmus_options *options) {
  isthmus_comm_t alone = NULL, grown = NULL, refused = NULL;
  char ticket[200] = {0}, *made = NULL;
  int count = -1;
  const int slot = 0;
  OK(isthmus_comm_split(comm, rank == 0 ? 0 : -1, 0, "alone", &alone));
  if (rank == 0) {
    OK(isthmus_comm_ticket(alone, 60, &made));
    CHECK(made && strlen(made) < sizeof ticket);
    strncpy(ticket, made, sizeof ticket - 1);
    isthmus_free(made);
    OK(isthmus_comm_joiners(alone, ticket, &count));
    CHECK(count == 0);
  }
  OK(isthmus_broadcast(comm, ticket, ticket, sizeof ticket, ISTHMUS_UINT8, 0, NULL, NULL));
  if (rank == 0) OK(isthmus_comm_grow(alone, ticket, 1, &slot, "grown", &grown));
  else OK(isthmus_join(ticket, slot, options, &grown));
  CHECK(isthmus_comm_size(grown) == 2 && isthmus_comm_rank(grown) == other);
  OK(isthmus_barrier(grown, NULL, NULL));
  OK(isthmus_barrier(comm, NULL, NULL));
  if (rank == 0) CHECK(isthmus_comm_grow(alone, ticket, 1, NULL, NULL, &refused) == ISTHMUS_ERR_ARGUMENT);
  else CHECK(isthmus_join(ticket, -1, options, &refused) == ISTHMUS_ERR_ARGUMENT && strstr(isthmus_last_error(), "was used"));
  CHECK(isthmus_join(NULL, -1, options, &refused) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_comm_grow(NULL, ticket, 1, NULL, NULL, &refused) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_comm_ticket(grown, 60, NULL) == ISTHMUS_ERR_ARGUMENT);
  CHECK(isthmus_comm_joiners(grown, "no ticket", &count) == ISTHMUS_ERR_ARGUMENT);
  /* Rank 0's own part goes over to an epoch of the same ranks: the handle stays. */
  if (rank == 0) {
    OK(isthmus_comm_reconfigure(alone, NULL, 0, NULL, 0, NULL));
    CHECK(isthmus_comm_size(alone) == 1 && isthmus_comm_rank(alone) == 0);
    CHECK(isthmus_comm_reconfigure(alone, &slot, 1, NULL, 0, NULL) == ISTHMUS_ERR_ARGUMENT);
    CHECK(isthmus_comm_reconfigure(alone, NULL, 0, NULL, 1, NULL) == ISTHMUS_ERR_ARGUMENT);
    OK(isthmus_barrier(alone, NULL, NULL));
  }
  CHECK(isthmus_comm_reconfigure(NULL, NULL, 0, NULL, 0, NULL) == ISTHMUS_ERR_ARGUMENT);
  OK(isthmus_comm_reconfigure(grown, NULL, 0, NULL, 0, NULL));
  CHECK(isthmus_comm_size(grown) == 2 && isthmus_comm_rank(grown) == other);
  OK(isthmus_barrier(grown, NULL, NULL));
  /* Its rank 1 goes on without rank 0, and keeps its number: slot 0 is a hole, whose block nobody touches. */
  CHECK(isthmus_comm_members(grown, NULL, 0) == 2 && isthmus_comm_members(NULL, NULL, 0) < 0);
  if (other == 1) {
    isthmus_comm_t holed = NULL;
    int members[2] = {-1, -1};
    const unsigned char mine = 7;
    unsigned char all[2] = {9, 9};
    OK(isthmus_comm_shrink_slots(grown, &slot, 1, ISTHMUS_SHRINK_KEEP, "holed", &holed));
    CHECK(isthmus_comm_size(holed) == 2 && isthmus_comm_rank(holed) == 1);
    CHECK(isthmus_comm_members(holed, members, 2) == 1 && members[0] == 1 && members[1] == -1);
    OK(isthmus_all_gather(holed, &mine, all, 1, ISTHMUS_UINT8, NULL, NULL));
    CHECK(all[0] == 9 && all[1] == 7);
    CHECK(isthmus_send(holed, &mine, 1, ISTHMUS_UINT8, 0, 0, NULL, NULL) == ISTHMUS_ERR_ARGUMENT);
    CHECK(strstr(isthmus_last_error(), "slot 0 is a hole") != NULL);
    OK(isthmus_comm_reconfigure_slots(holed, NULL, 0, NULL, 0, NULL));
    CHECK(isthmus_comm_size(holed) == 2 && isthmus_comm_rank(holed) == 1);
    OK(isthmus_comm_reconfigure(holed, NULL, 0, NULL, 0, NULL));
    CHECK(isthmus_comm_size(holed) == 1 && isthmus_comm_rank(holed) == 0);
    OK(isthmus_comm_destroy(holed));
  }
  OK(isthmus_comm_destroy(grown));
  OK(isthmus_comm_destroy(alone)); /* NULL on rank 1 */
  OK(isthmus_barrier(comm, NULL, NULL));
}

/* The exchange of the second communicator: an all-gather by the first one. */
static int exchange(void *context, const void *send, void *recv, size_t bytes) {
  return isthmus_all_gather((isthmus_comm_t)context, send, recv, bytes, ISTHMUS_UINT8, NULL, NULL) != ISTHMUS_OK;
}

static void one_all_reduce(isthmus_comm_t comm, const isthmus_call *call, isthmus_redop op, float expected) {
  fill();
  recv_buffer[0] = -1;
  OK(isthmus_all_reduce(comm, send_buffer, recv_buffer, N, ISTHMUS_FLOAT32, op, call, NULL));
  CHECK(recv_buffer[0] == expected);
}

/* Structs of a caller that was built with an older header end before the last fields, and what lies behind them is not the
 * library's; those of a newer header go on behind what the library knows. */
static void struct_sizes(const isthmus_options *options) {
  struct {
    isthmus_options known;
    char unknown[300];
  } newer;
  struct {
    isthmus_call known;
    char unknown[300];
  } newer_call;
  isthmus_options older;
  isthmus_call call;
  isthmus_comm_t comm = NULL;

  memset(&older, 0xa5, sizeof older);
  memcpy(&older, options, offsetof(isthmus_options, settings));
  older.size = offsetof(isthmus_options, settings);
  OK(isthmus_init(&older, &comm));
  CHECK(isthmus_comm_size(comm) == WORLD);
  memset(&call, 0xa5, sizeof call);
  call.size = offsetof(isthmus_call, label);
  call.timeout = 20, call.scale = 2;
  one_all_reduce(comm, &call, ISTHMUS_PREMUL_SUM, 200);
  call.size = offsetof(isthmus_call, scale); /* no factor: 0, which is a factor like any other */
  one_all_reduce(comm, &call, ISTHMUS_PREMUL_SUM, 0);
  call.size = offsetof(isthmus_call, timeout);
  CHECK(isthmus_barrier(comm, &call, NULL) == ISTHMUS_ERR_ARGUMENT && strstr(isthmus_last_error(), "isthmus_call.size"));
  OK(isthmus_comm_error(comm));
  OK(isthmus_comm_destroy(comm));

  memset(&older, 0xa5, sizeof older); /* the shortest there can be: a size, a rank, a world of one */
  older.size = offsetof(isthmus_options, exchange);
  older.rank = 0, older.world_size = 1;
  OK(isthmus_init(&older, &comm));
  CHECK(isthmus_comm_size(comm) == 1);
  OK(isthmus_barrier(comm, NULL, NULL));
  OK(isthmus_comm_destroy(comm));

  memset(&newer, 0xa5, sizeof newer);
  newer.known = *options;
  newer.known.size = sizeof newer;
  OK(isthmus_init(&newer.known, &comm));
  CHECK(isthmus_comm_size(comm) == WORLD);
  memset(&newer_call, 0xa5, sizeof newer_call);
  newer_call.known.size = sizeof newer_call;
  newer_call.known.timeout = 20, newer_call.known.scale = 3, newer_call.known.label = "newer";
  newer_call.known.on_stream = ISTHMUS_STREAM_NONE, newer_call.known.stream = NULL;
  one_all_reduce(comm, &newer_call.known, ISTHMUS_PREMUL_SUM, 300);
  OK(isthmus_comm_destroy(comm));

  older = *options; /* what was never set is not taken for a size */
  older.size = sizeof(size_t);
  CHECK(isthmus_init(&older, &comm) == ISTHMUS_ERR_ARGUMENT && strstr(isthmus_last_error(), "isthmus_options.size"));
  older.size = (size_t)1 << 40;
  CHECK(isthmus_init(&older, &comm) == ISTHMUS_ERR_ARGUMENT && comm == NULL);
}

static int run(int tcp, const int pipes[2]) {
  isthmus_unique_id id;
  isthmus_options options;
  isthmus_comm_t comm = NULL, second = NULL;
  if (rank == 0) {
    OK(isthmus_unique_id_create(&id));
    CHECK(write(pipes[1], &id, sizeof id) == (ssize_t)sizeof id);
  } else {
    CHECK(read(pipes[0], &id, sizeof id) == (ssize_t)sizeof id);
  }
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.rank = rank;
  options.world_size = WORLD;
  options.id = &id;
  options.name = "c client";
  options.timeout = 60;
  options.settings = "EAGER_BYTES=2K;SPIN_US=50";
  options.island = tcp ? (rank == 0 ? "a" : "b") : NULL;
  options.bridge = tcp ? "tcp" : "auto";
  if (isthmus_init(&options, &comm) != ISTHMUS_OK) {
    fprintf(stderr, "rank %d: init: %s\n", rank, isthmus_last_error());
    return 1;
  }
  text_and_names(comm);
  collectives(comm);
  point_to_point(comm);
  bad_arguments(comm);
  ends(comm);
  grows(comm, &options);

  options.id = NULL;
  options.exchange = exchange;
  options.exchange_context = comm;
  options.name = "second";
  OK(isthmus_init(&options, &second));
  collectives(second);
  OK(isthmus_comm_destroy(second));
  struct_sizes(&options);
  OK(isthmus_barrier(comm, NULL, NULL));
  OK(isthmus_comm_destroy(comm));
  CHECK(isthmus_barrier(comm, NULL, NULL) == ISTHMUS_ERR_ARGUMENT); /* use after destroy */
  OK(isthmus_comm_destroy(NULL));
  return failures != 0;
}

int main(int argc, char **argv) {
  const int tcp = argc > 1 && strcmp(argv[1], "tcp") == 0;
  int pipes[2], status = 0, mine;
  pid_t child;
  if (pipe(pipes) != 0) return 2;
  child = fork();
  if (child < 0) return 2;
  rank = child == 0;
  other = 1 - rank;
  mine = run(tcp, pipes);
  if (child == 0) return mine;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) mine = 1;
  return mine;
}
