/* Isthmus: collectives over islands of ranks. The stable C ABI.
 *
 * Conventions
 *   - Every call returns an isthmus_result; isthmus_last_error() gives the text of the calling thread's last failure.
 *   - Counts are elements, sizes are bytes, times are seconds. All are 64-bit.
 *   - In place is what the comment of the call says; buffers that otherwise overlap are refused (ISTHMUS_ERR_ARGUMENT).
 *   - Arrays of counts and displacements are read before the call returns, inside a group and with a `work` too.
 *   - Structs begin with `size`: set it to sizeof(the struct). A newer library reads an older, shorter struct and takes what
 *     that lacks for zero. Zero (NULL) is the default of every member that may be left out, but of isthmus_call.scale: begin
 *     an isthmus_call with ISTHMUS_CALL_INIT.
 *   - A call whose `work` argument is NULL blocks until the operation is done. Otherwise it returns at once, *work is a new
 *     handle, and both buffers belong to the library until the work is done.
 *   - Operations of one communicator run in the order of the calls. That order must be the same on all ranks; so must be the
 *     order of operations on different communicators that are in flight together. If it is not, the operation ends in
 *     ISTHMUS_ERR_TIMEOUT or ISTHMUS_ERR_MISMATCH, never in a hang.
 *   - Any function may be called from any thread. Calls on ONE communicator from several threads are serialised in an order
 *     that only the caller can make equal on all ranks.
 *   - After an error was returned no thread and no peer touches the buffers. Their content is undefined, but for isthmus_call.keep.
 *   - A rank is named by its number: 0 to size - 1, without gaps, but where isthmus_comm_shrink_slots or isthmus_comm_reconfigure_slots
 *     has left holes. Then a rank's number is its slot. All arguments, results, texts and reports have slots; a root or peer that is a
 *     hole is ISTHMUS_ERR_ARGUMENT. Buffers with a block for each rank, and arrays of counts and displacements, have one for each slot:
 *     the block of a hole is neither read nor written. Where displacements are NULL the count of a hole is the room of its block;
 *     else neither is looked at. AVG divides by the number of ranks.
 *   - A forked child makes communicators of its own. Its parent's handles are of no use there (ISTHMUS_ERR_FORKED), and the
 *     fork does not harm them; destroying or releasing one there does nothing.
 */
#ifndef ISTHMUS_H
#define ISTHMUS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ISTHMUS_API __attribute__((visibility("default")))
#else
#define ISTHMUS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ISTHMUS_VERSION_MAJOR 0
#define ISTHMUS_VERSION_MINOR 1
#define ISTHMUS_VERSION_PATCH 0

typedef struct isthmus_comm *isthmus_comm_t; /* one rank's view of one communicator */
typedef struct isthmus_work *isthmus_work_t; /* one operation in flight */

typedef enum isthmus_result {
  ISTHMUS_OK = 0,
  ISTHMUS_ERR_ARGUMENT = 1,  /* a bad argument; nothing was started, the communicator is unharmed */
  ISTHMUS_ERR_CONFIG = 2,    /* a setting is unknown, malformed or out of range */
  ISTHMUS_ERR_MISMATCH = 3,  /* ranks disagree: settings at init, or different operations at one sequence number */
  ISTHMUS_ERR_TIMEOUT = 4,   /* a deadline passed; the text names the culprit */
  ISTHMUS_ERR_PEER_LOST = 5, /* a rank's process died or its connection broke */
  ISTHMUS_ERR_ABORTED = 6,   /* the communicator was aborted, here or by a peer, or its stream was stopped with another's work */
  ISTHMUS_ERR_RESOURCE = 7,  /* out of staging memory, descriptors, ... */
  ISTHMUS_ERR_SYSTEM = 8,    /* a system call failed */
  ISTHMUS_ERR_AUTH = 9,      /* a peer could not prove the job key */
  ISTHMUS_ERR_FORKED = 10,   /* the parent's, used in a forked child */
  ISTHMUS_ERR_INTERRUPTED = 11, /* the interrupt check (Ctrl-C) ended a blocking call; the communicator is aborted */
  ISTHMUS_ERR_UNSUPPORTED = 12, /* a combination that has no meaning, or that this build cannot do */
  ISTHMUS_IN_PROGRESS = 13,  /* isthmus_work_test: not done yet. Not an error. */
  ISTHMUS_ERR_INTERNAL = 14, /* a bug in Isthmus */
  ISTHMUS_ERR_DEVICE = 15    /* a device failed: a call of its runtime, or what ran on it; the text names the rank */
} isthmus_result;

typedef enum isthmus_dtype {
  ISTHMUS_INT8 = 0, ISTHMUS_UINT8 = 1, ISTHMUS_INT16 = 2, ISTHMUS_UINT16 = 3, ISTHMUS_INT32 = 4, ISTHMUS_UINT32 = 5,
  ISTHMUS_INT64 = 6, ISTHMUS_UINT64 = 7, ISTHMUS_BOOL = 8 /* one byte, 0 or not 0; results are 0 or 1 */,
  ISTHMUS_FLOAT16 = 9, ISTHMUS_BFLOAT16 = 10, ISTHMUS_FLOAT32 = 11, ISTHMUS_FLOAT64 = 12,
  ISTHMUS_FLOAT8_E4M3FN = 13, ISTHMUS_FLOAT8_E5M2 = 14, ISTHMUS_COMPLEX64 = 15, ISTHMUS_COMPLEX128 = 16,
  ISTHMUS_DTYPE_COUNT = 17
} isthmus_dtype;

/* Numbers (docs/explain/numbers.md): contributions are added islands in order, ranks in order; float16, bfloat16 and float8 are
 * accumulated in float32 and rounded once. AVG divides the sum by the world size before that rounding; integers divide toward
 * zero. BOOL: SUM is "or", PROD is "and". MIN and MAX propagate NaN. No AVG or PREMUL_SUM on BOOL, no MIN/MAX on complex,
 * bitwise operations on integers and BOOL only, PREMUL_SUM on integers and floating types only. */
typedef enum isthmus_redop {
  ISTHMUS_SUM = 0, ISTHMUS_AVG = 1, ISTHMUS_PROD = 2, ISTHMUS_MIN = 3, ISTHMUS_MAX = 4, ISTHMUS_BAND = 5, ISTHMUS_BOR = 6,
  ISTHMUS_BXOR = 7, ISTHMUS_PREMUL_SUM = 8 /* each rank's data times that rank's isthmus_call.scale, then SUM */,
  ISTHMUS_REDOP_COUNT = 9
} isthmus_redop;

typedef struct isthmus_unique_id { char bytes[128]; } isthmus_unique_id; /* root address and job key; pass it by any means */

/* All-gather of opaque blobs: `send` has `bytes` bytes, `recv` has world_size*bytes; returns 0, or not 0 on failure. Used when
 * the caller has a rendezvous of its own (torch's Store, MPI). Called a bounded number of times, only inside isthmus_init. A function that
 * polls asks isthmus_exchange_check() now and then. */
typedef int (*isthmus_exchange_fn)(void *context, const void *send, void *recv, size_t bytes);

typedef struct isthmus_options {
  size_t size;            /* sizeof(isthmus_options) */
  int rank, world_size;   /* 0 <= rank < world_size */
  /* The rendezvous, first that is set: exchange, id, address, else the environment (MASTER_ADDR and MASTER_PORT, ...). */
  isthmus_exchange_fn exchange;
  void *exchange_context;
  const isthmus_unique_id *id;
  const char *address;    /* "host:port" of rank 0, which listens there; IPv6 as "[::1]:port" */
  const char *name;       /* of the communicator, for messages; may be NULL */
  const char *island;     /* label; NULL: ISTHMUS_ISLAND, else one island */
  const char *bridge;     /* "auto", "shm", "tcp" or "ucx"; NULL: ISTHMUS_BRIDGE */
  double timeout;         /* default deadline of operations and of init; 0: ISTHMUS_TIMEOUT */
  const char *settings;   /* further settings, "NAME=value;NAME=value" with the names of `isthmus doctor --settings`; or NULL */
  /* Whom this rank takes for the members, as text ("global ranks 0,3"; at most 1 KiB): where ranks say unlike texts init fails on all of
   * them with ISTHMUS_ERR_MISMATCH and names two. NULL: it says nothing, and all must do so. */
  const char *members;
} isthmus_options;

/* How the user's stream and the operation are ordered (isthmus_call.on_stream). */
typedef enum isthmus_stream_order {
  ISTHMUS_STREAM_NONE = 0,  /* no stream is given */
  ISTHMUS_STREAM_BOTH = 1,  /* the operation begins behind what the stream holds now; what it is given later runs behind the operation */
  ISTHMUS_STREAM_BEFORE = 2 /* it begins behind what the stream holds now; isthmus_work_order() orders what comes later. Not of a send */
} isthmus_stream_order;

/* Which buffers the caller says are memory of a device (isthmus_call.device_memory). */
typedef enum isthmus_memory_claim {
  ISTHMUS_MEMORY_UNCLAIMED = 0, ISTHMUS_MEMORY_SEND = 1, ISTHMUS_MEMORY_RECV = 2, ISTHMUS_MEMORY_BOTH = 3
} isthmus_memory_claim;

/* What becomes of the communicator whose ranks go on without some (isthmus_comm_shrink). */
typedef enum isthmus_shrink_mode {
  ISTHMUS_SHRINK_KEEP = 0, /* its operations go on; a communicator that has failed is refused */
  ISTHMUS_SHRINK_ABORT = 1, /* it is aborted first, which is how the ranks go on that have lost others */
  ISTHMUS_SHRINK_AGREE = 2  /* the same, and the ranks that live agree on who is left, so that lists may be unlike or empty */
} isthmus_shrink_mode;

typedef struct isthmus_call { /* per-call options; a NULL pointer means all defaults. Begin with ISTHMUS_CALL_INIT */
  size_t size;                /* sizeof(isthmus_call) */
  double timeout;             /* seconds; 0: the communicator's */
  double scale;               /* PREMUL_SUM's factor of this rank; 0 is a factor like any other. 1 by ISTHMUS_CALL_INIT, and where the call is NULL */
  const char *label;          /* shown in errors and records in place of the collective's name; copied; or NULL */
  /* Device buffers (ISTHMUS_DEVICE): where on_stream is not ISTHMUS_STREAM_NONE, `stream` is a stream of the device's runtime (a CUstream or cudaStream_t;
   * NULL: the default stream). The operation begins behind what the stream holds now, and what it is given later runs behind the
   * operation. Else the buffers must be ready when the call is made, but for what the device's default stream still holds (a vendor's
   * copy from pageable memory or its fill may return before it is done): the operation begins behind that. A stream that is being
   * captured is refused. Pinned memory that the device reaches is ordered likewise in a collective that a library serves, or whose other
   * buffer is the device's. All other host memory with a stream: the call waits until the stream has come so far, and returns when the
   * operation is over; a group's end does so for all of its operations.
   * With ISTHMUS_STREAM_BEFORE nothing on the device waits for what the program does not wait for yet: kernels run beside the operation, and an
   * operation can begin while the one before still ends. What the program does with the memory before isthmus_work_order() is a race. */
  isthmus_stream_order on_stream;
  void *stream;
  /* PREMUL_SUM of integers: this rank's factor as one element of the data's type, read in the call; products wrap. NULL: `scale`, which must
   * then be a whole number. Other types do not look at it. */
  const void *factor;
  /* Memory that the device's runtime does not know is host memory, unless the caller says here that it is a device's: then it is
   * ISTHMUS_ERR_ARGUMENT. Pinned memory that the runtime knows is taken in any case. */
  isthmus_memory_claim device_memory;
  /* Not 0: where the operation fails, the memory that it writes holds what it held before the call, so it can be done again from the same
   * input, also in place. The call copies that memory first: as many bytes, until the operation is over. So no operation that is still in
   * flight may write there. Memory of the host and collectives alone, and not in a group: else ISTHMUS_ERR_UNSUPPORTED. */
  uint64_t keep;
  /* Not 0: the operation is done on all ranks, or on none that lives. It has `keep`; behind it the ranks agree (as by
   * isthmus_comm_agree) whether it has ended well on all. Where it has not, or a rank is lost, the communicator has failed on all, the
   * memory is as before, and all get an error: isthmus_last_error_ranks() are those that are out. All ranks give it, or none. The call
   * blocks, and threads of one rank have one such call at a time: with a work, or in a group, it is ISTHMUS_ERR_UNSUPPORTED. A rank that
   * does not come to it by the deadline is left out; so the call takes up to three times its timeout (each of the two agreements has 3 s
   * at least). Where it hears no answer, the text says that what the others have is not known. */
  uint64_t commit;
} isthmus_call;
/* Every default: isthmus_call call = ISTHMUS_CALL_INIT; */
#define ISTHMUS_CALL_INIT {sizeof(isthmus_call), 0, 1, NULL, ISTHMUS_STREAM_NONE, NULL, NULL, ISTHMUS_MEMORY_UNCLAIMED, 0, 0}

/* ---- life of a communicator ---------------------------------------------------------------------------------------- */
ISTHMUS_API const char *isthmus_version(void);
ISTHMUS_API const char *isthmus_last_error(void); /* valid until the calling thread's next call */
/* Which ranks the calling thread's last failure is about, as far as that is known: who is lost, or has left (ISTHMUS_ERR_PEER_LOST), who did
 * not come (ISTHMUS_ERR_TIMEOUT), whose device has failed (ISTHMUS_ERR_DEVICE), or who is out of memory or descriptors
 * (ISTHMUS_ERR_RESOURCE). So after an operation, after isthmus_work_wait and _test of one that has ended, after isthmus_comm_error, _agree,
 * _exchange, and after the calls that make another communicator. Returns how many, and writes at most `most` of them, ascending: numbers of the
 * communicator that was called (after isthmus_comm_reconfigure: that it has now). 0 where the failure is another one, where a rank has come and
 * is slow, and in an agreement where the rank that leads it has called: that one knows who has not, and says so by the next call. A rank hears
 * of the failure of another one with at most 64 of them. A callback of
 * isthmus_work_on_done has them by isthmus_work_test. Valid as long as isthmus_last_error(), and like that the calling thread's. */
ISTHMUS_API int isthmus_last_error_ranks(int *ranks, int most);
ISTHMUS_API const char *isthmus_result_name(isthmus_result result);
ISTHMUS_API isthmus_result isthmus_unique_id_create(isthmus_unique_id *id); /* starts listening; call in ONE process, which must hold rank 0 */
/* Collective. options NULL: rank, world size and address are the launcher's (torchrun, mpirun, srun, `isthmus launch`). */
ISTHMUS_API isthmus_result isthmus_init(const isthmus_options *options, isthmus_comm_t *comm);
/* For an isthmus_exchange_fn, on the thread in which isthmus_init calls it; cheap. ISTHMUS_ERR_PEER_LOST: a rank with which this one was
 * connected is gone, and isthmus_last_error() says which. Then no blob is worth waiting for, unless it is there by now: the function returns
 * not 0, and isthmus_init fails with this error. Anywhere else ISTHMUS_OK. */
ISTHMUS_API isthmus_result isthmus_exchange_check(void);
/* Collective over `comm`. Ranks with one color >= 0 form a communicator, ordered by (key, rank); color < 0: none, *result = NULL.
 * A color that cannot be made on one rank fails on all ranks of that color, at once, and the error names the rank. `comm` and the other
 * colors go on. `name` NULL: "world/split" of "world", and "world/split 2" where it is the second split of that communicator. */
ISTHMUS_API isthmus_result isthmus_comm_split(isthmus_comm_t comm, int color, int key, const char *name, isthmus_comm_t *result);
/* Collective over the ranks that are left: all but the `count` in `excluded` (the same list on all of them; those need not live, nor call).
 * *result has them in the same order. `comm` is still to be destroyed, before or after. Where a further rank is lost meanwhile, all that
 * are left get an error, and may call again with a longer list. With ISTHMUS_SHRINK_AGREE they begin again by themselves, until all that are
 * left have the new communicator. A rank that does not answer is ISTHMUS_ERR_TIMEOUT (isthmus_last_error_ranks); call again and name it.
 * The new communicator has the timeout that `comm` has now on this rank; so have those that come of split and grow. */
ISTHMUS_API isthmus_result isthmus_comm_shrink(isthmus_comm_t comm, const int *excluded, int count, isthmus_shrink_mode mode,
                                               const char *name, isthmus_comm_t *result);
/* The same, and each rank that is left keeps its slot: the new communicator has as many slots as `comm`, and those of the ranks that are out are
 * holes. All ranks call this function, or all the other one: else ISTHMUS_ERR_MISMATCH, which names two. isthmus_comm_shrink closes holes. */
ISTHMUS_API isthmus_result isthmus_comm_shrink_slots(isthmus_comm_t comm, const int *excluded, int count, isthmus_shrink_mode mode,
                                                     const char *name, isthmus_comm_t *result);
/* A ticket, by which processes come into this communicator, or into one that is made from it (isthmus_join). Any rank makes one, and the others
 * need not know. *ticket: printable text, to be freed with isthmus_free; who has it may come, and where ISTHMUS_JOB_KEY is set has to
 * have that key too. It is for one isthmus_comm_grow, within `timeout` seconds (0: 600), and while this process lives. A process has at
 * most 256 tickets that are neither used nor expired. */
ISTHMUS_API isthmus_result isthmus_comm_ticket(isthmus_comm_t comm, double timeout, char **ticket);
/* How many processes have come with the ticket and wait. 0 on ranks that did not make it. Local, does not wait. */
ISTHMUS_API isthmus_result isthmus_comm_joiners(isthmus_comm_t comm, const char *ticket, int *count);
/* Collective: *result has the ranks of `comm` and `newcomers` (1 to 64) processes that come with the ticket; it waits for them up to two
 * thirds of the timeout. slots: which ranks the newcomers are, so many numbers; NULL: those behind the old ranks. The old ranks have the
 * others, in their order. Where `comm` has holes its ranks keep their slots: slots are holes or numbers behind the last slot, NULL: the lowest
 * holes, then slots behind all others. All ranks give the same; name NULL: "<name>/grow". All have the new communicator or none has it, and then
 * the error says why. It stands beside the operations of `comm`, which goes on and is still to be destroyed. What its processes share
 * (connections, staging memory, devices) serves both. A communicator that has failed, or lost a rank, is shrunk first. */
ISTHMUS_API isthmus_result isthmus_comm_grow(isthmus_comm_t comm, const char *ticket, int newcomers, const int *slots, const char *name,
                                             isthmus_comm_t *result);
/* Collective over the ranks that stay: the handle goes over to a new epoch of the communicator, and the old one ends in the call. Out are the
 * ranks that are gone and those that any rank names in the `count` of `excluded` (they may live, and do not call). With a ticket (all ranks or
 * none) `newcomers` processes come in, as by isthmus_comm_grow; slots NULL: behind the others. Name, timeout and order of the ranks stay; their
 * numbers are dense. What did not change goes on: connections, memory that devices have registered, and the library's communicator of each
 * island that has the same processes, if nothing stands in it. Operations have to end before: the call waits for those of this rank. Meanwhile
 * other calls on the handle are ISTHMUS_ERR_ARGUMENT, but for abort, revoke and destroy. Works on a communicator that has failed. Where it
 * fails, the handle is as it was, and aborted if ranks were out or no ticket was given; where only the newcomers could not come in, it has gone over to the ranks that were left,
 * on all of them, and the text says so. */
ISTHMUS_API isthmus_result isthmus_comm_reconfigure(isthmus_comm_t comm, const int *excluded, int count, const char *ticket, int newcomers,
                                                    const int *slots);
/* The same, and each rank that stays keeps its slot; slots that nobody has are holes. Newcomers have the slots that are given, which are
 * holes or behind the last slot; slots NULL: the lowest holes, then slots behind all others. All ranks call this function, or all the other one: else
 * ISTHMUS_ERR_MISMATCH, which names two. isthmus_comm_reconfigure closes holes. */
ISTHMUS_API isthmus_result isthmus_comm_reconfigure_slots(isthmus_comm_t comm, const int *excluded, int count, const char *ticket,
                                                          int newcomers, const int *slots);
/* In a process that comes with a ticket: waits until the members let it in. slot: the rank that it wants to be, or -1; refused where a rank
 * lives there or another process has come for it. options: island, bridge, timeout and settings count; the members have chosen the
 * name, and the ranks. */
ISTHMUS_API isthmus_result isthmus_join(const char *ticket, int slot, const isthmus_options *options, isthmus_comm_t *comm);
/* Collective over the ranks that live: they agree, whoever is lost meanwhile, also on a communicator that has failed or was aborted.
 * flags: in, this rank's; out, the AND of those of all ranks that are not out. out: a byte for each slot, 0 for a hole; in, not 0 for a rank without which
 * this rank wants to go on (it may live, but not answer); out, 1 for those with which the ranks do not go on, that are gone or were named.
 * The same answer on all ranks that get one. A rank that is out, and lives, gets ISTHMUS_ERR_ABORTED and takes part in no more agreements.
 * ISTHMUS_ERR_TIMEOUT: a rank has not called. ISTHMUS_ERR_PEER_LOST: the ranks that are left are no more than half of those that were not
 * out before, and a missing one may live: then the others may have agreed as well. allow_minority, the same on all, goes on in spite of it.
 * A call that fails does not count, as far as no other rank has heard it: the next one goes on with the same agreement.
 * timeout: seconds; 0: the communicator's. */
ISTHMUS_API isthmus_result isthmus_comm_agree(isthmus_comm_t comm, uint64_t *flags, uint8_t *out, int allow_minority, double timeout);
/* All-gather of `bytes` (1 to 4096, the same on all) of host memory among some ranks: `ranks`, ascending, the caller's among them, the same
 * list on all of them. recv: count * bytes, in their order. It goes over the control connections, beside all operations, and works on a
 * communicator that has failed or was aborted, so that the ranks which are left can agree on what they do next. Not for bulk data. Calls with
 * the same list meet in their order. Any thread. timeout: seconds; 0: the communicator's. Where it has failed on one rank (lost, late) it may
 * have succeeded on another. That rank's next call with this list and size is then the same exchange: it ends with what the others have got,
 * which in this rank's place is what the call that failed had sent. */
ISTHMUS_API isthmus_result isthmus_comm_exchange(isthmus_comm_t comm, const int *ranks, int count, const void *send, void *recv,
                                                 size_t bytes, double timeout);
/* Waits for pending operations up to the communicator's timeout, then frees. Not collective; never hangs. NULL is allowed.
 * In the interrupt check (isthmus_set_interrupt_check), inside a call on the communicator itself, destroy does not wait: it aborts the
 * communicator, pending operations end in ISTHMUS_ERR_ABORTED, the call in that or in ISTHMUS_ERR_INTERRUPTED, and the communicator is freed when
 * the call returns. */
ISTHMUS_API isthmus_result isthmus_comm_destroy(isthmus_comm_t comm);
/* Local, idempotent, does not block: every pending and later operation on every rank ends in ISTHMUS_ERR_ABORTED. A call of another
 * thread of this rank that makes another communicator of it, and waits for other ranks, ends too, also where the communicator had failed
 * before; so does isthmus_comm_exchange. isthmus_comm_agree goes on. */
ISTHMUS_API isthmus_result isthmus_comm_abort(isthmus_comm_t comm, const char *reason);
/* The same, by the name that fault-tolerant MPI has for it. The error on every rank says which rank has revoked it, and the reason. Any
 * thread. The ranks go on by isthmus_comm_agree and isthmus_comm_shrink. */
ISTHMUS_API isthmus_result isthmus_comm_revoke(isthmus_comm_t comm, const char *reason);
ISTHMUS_API isthmus_result isthmus_comm_error(isthmus_comm_t comm); /* ISTHMUS_OK, or why it can no longer be used (text: last_error) */
ISTHMUS_API isthmus_result isthmus_comm_set_timeout(isthmus_comm_t comm, double seconds);
ISTHMUS_API double isthmus_comm_timeout(isthmus_comm_t comm); /* in seconds, as given at first or set last; < 0: a bad handle */
ISTHMUS_API int isthmus_comm_rank(isthmus_comm_t comm); /* its slot, where there are holes; < 0: a bad handle */
ISTHMUS_API int isthmus_comm_size(isthmus_comm_t comm); /* the number of slots: of ranks and of holes; < 0: a bad handle */
/* The slots that have a rank. Returns how many, which is the number of ranks, and writes at most `most` of them, ascending; slots may be NULL.
 * < 0: a bad handle, and isthmus_last_error() says why. Local, any thread. */
ISTHMUS_API int isthmus_comm_members(isthmus_comm_t comm, int *slots, int most);
ISTHMUS_API int isthmus_comm_device(isthmus_comm_t comm); /* the number of the device that this rank works on; -1: the host */
/* 1: no stream of that device waits for the host, so a call that gives a stream returns when what it waits for has come, and one thread that
 * makes the calls of several such ranks in one group waits for itself. */
ISTHMUS_API int isthmus_comm_blocks(isthmus_comm_t comm);
/* 1: this process has operations in flight on other communicators. For work that gives way to them. 0: it has none, or a bad handle. */
ISTHMUS_API int isthmus_comm_others_busy(isthmus_comm_t comm);
/* For programs that take arrays by DLPack: whether memory that it says lies on a device of that type (DLDeviceType) and number is
 * memory of this rank's device. If not, last_error() is what this rank works on. `memory`, where it is not NULL, must be known to the
 * device's driver. *stream_number, where it is not NULL, is what the protocol calls `stream` (as in isthmus_call), for the producer of
 * the array; -1: it has no numbers for streams of such devices. */
ISTHMUS_API isthmus_result isthmus_comm_dlpack(isthmus_comm_t comm, int type, int number, const void *memory, void *stream,
                                               int64_t *stream_number);
/* What the stream `after` is given from now on runs behind what `before` holds now (both as in isthmus_call), and nobody waits on the
 * host: for arrays that are ready behind another stream than that of the call. */
ISTHMUS_API isthmus_result isthmus_comm_order(isthmus_comm_t comm, void *before, void *after);
ISTHMUS_API uint64_t isthmus_comm_sequence(isthmus_comm_t comm); /* collectives submitted so far */
/* For a process that ends by an error which nobody in it has caught: `what` that is, in one line ("ValueError: no such file"), of which the
 * ranks of all communicators of the process hear. Their operations end in ISTHMUS_ERR_PEER_LOST, "rank 1 (...) raised ...", and this
 * process's connections stay until it has ended. Does nothing where there is no communicator. exit() waits until the other hosts have it;
 * settle does so for a process that ends by a signal, by abort() or by _exit(): it waits 4 s at most. */
ISTHMUS_API isthmus_result isthmus_raised(const char *what);
ISTHMUS_API isthmus_result isthmus_raised_settle(void);
/* The same for one communicator, whose use ends by an error that something else in the process may still catch. */
ISTHMUS_API isthmus_result isthmus_comm_raised(isthmus_comm_t comm, const char *what);
/* 1: a communicator of this process had failed in the ten seconds before `waited` seconds ago because another rank raised, and that one's
 * process is still there, and was heard in the last five; 2: it has ended; 0: there is none. A supervisor that takes the first process which ends for the culprit takes the right one where the
 * others end after it. */
ISTHMUS_API int isthmus_raiser(double waited);
/* For who writes the flight records of the process in the library's place (ISTHMUS_DUMP). next: waits until one is wanted and puts the name
 * of the file into path; ISTHMUS_ERR_ABORTED once there is no communicator that wants any. With bytes 0 it only takes over, and does not
 * wait. records: what the library itself would write, JSON, to be freed with isthmus_free: what isthmus_comm_dump gives, of each communicator
 * of the process that names a file. written: the file is there. settle: waits until what is wanted is written, at most so many seconds. */
ISTHMUS_API isthmus_result isthmus_dump_next(char *path, size_t bytes);
ISTHMUS_API isthmus_result isthmus_dump_records(char **json);
ISTHMUS_API isthmus_result isthmus_dump_written(void);
ISTHMUS_API isthmus_result isthmus_dump_settle(double seconds);
/* JSON, NUL-terminated, to be freed with isthmus_free. topology: hosts, islands, ranks, links. explain: the plan of this rank
 * and the reading form of it, the time that profiles predict and that of the last such call; of "send" and "recv", whose `root` is the peer, their way. dump: the flight recorder of the
 * communicator; with ISTHMUS_TRACE also the steps of its collectives ("steps": sequence, what, stage, chunk, peer, bytes, begun_us, duration_us). */
ISTHMUS_API isthmus_result isthmus_comm_topology(isthmus_comm_t comm, char **json);
ISTHMUS_API isthmus_result isthmus_comm_explain(isthmus_comm_t comm, const char *collective, uint64_t count, isthmus_dtype dtype,
                                                isthmus_redop op, int root, char **json);
ISTHMUS_API isthmus_result isthmus_comm_dump(isthmus_comm_t comm, char **json);
/* From now on the default of a setting, for the whole process, in place of the one that isthmus_settings shows. A value in the environment
 * or in isthmus_options.settings counts before it. What exists already stays as it is. */
ISTHMUS_API isthmus_result isthmus_setting_default(const char *name, const char *value);
ISTHMUS_API isthmus_result isthmus_settings(char **json); /* every setting: name, type, default, range, meaning, value */
/* The vendors' collective libraries that can serve islands, as far as this process finds them (ISTHMUS_CCL_LIBRARY, else the loader):
 * [{"family", "found", "version", "path", "text": why not}]. Opens them. */
ISTHMUS_API isthmus_result isthmus_libraries(char **json);
/* UCX, which ISTHMUS_BRIDGE=ucx needs, as far as this process finds it: {"found", "version", "path", "transports": ["tcp/eth0", ..] as
 * UCX_TLS has them, "rdma": whether one of them goes through an RDMA device, "text": why not}. Opens it. */
ISTHMUS_API isthmus_result isthmus_ucx(char **json);
/* The vendors' devices that this process sees (ISTHMUS_DEVICE): [{"vendor", "found", "version", "devices": [{"number", "name", "numa",
 * "gates": whether a stream can wait for the host}], "text": why not}]. Opens the vendors' drivers. */
ISTHMUS_API isthmus_result isthmus_devices(char **json);
/* What `isthmus tune` measures inside a process, for about so many seconds: reductions, and copies and the library of the devices that
 * ISTHMUS_DEVICE names ("host": of all devices): {"entries": [{"name", "samples": bytes a second, "note"}], "missing": [{"name", "text"}]}.
 * Blocks; nothing else should run on the host meanwhile. */
ISTHMUS_API isthmus_result isthmus_measure(double seconds, char **json);
/* Collective, like it: up to which size an all_reduce of this communicator that crosses between islands is better sent whole, from one rank
 * of each, than in pieces: {"link": "memory" or "tcp", "bytes", "min", "max", "repetitions", "ranks", "islands", "sizes", "star_us",
 * "pieces_us"}, the same on all ranks. ISTHMUS_ERR_UNSUPPORTED where nothing crosses. */
ISTHMUS_API isthmus_result isthmus_comm_measure_star(isthmus_comm_t comm, double seconds, char **json);
ISTHMUS_API isthmus_result isthmus_context_stats(char **json); /* threads, descriptors, staging bytes, links, communicators; those
 * destroyed that peers may still read ("leaving"), and slots that a device may still write to, which nobody gets ("rings_lost");
 * "staging_pages": null until a device has pinned staging memory, then the NUMA node that was asked for ("numa", -1: none), how many pages
 * were looked at, how many of them are on another node ("elsewhere"), the bytes in huge pages, and what was lost and why ("lost", or "");
 * "streams": for each process that is reached by TCP {"hostname", "pid", "streams": [{"connected", how often it was "lost" and "back",
 * "why" the last time}], "connections": [{"from", "to", "round_trip_us",
 * "least_round_trip_us", "segments" of data, how many of them were "sent_again", "rate": bytes a second that arrived of late}]}; "heartbeats": how many were heard, of all processes */
ISTHMUS_API void isthmus_free(void *p);
ISTHMUS_API size_t isthmus_dtype_size(isthmus_dtype dtype); /* bytes; 0 for a bad value */
ISTHMUS_API const char *isthmus_dtype_name(isthmus_dtype dtype);
ISTHMUS_API const char *isthmus_redop_name(isthmus_redop op);
/* Called about every 50 ms by the thread that waits in a blocking call or isthmus_work_wait; not 0 ends the wait with
 * ISTHMUS_ERR_INTERRUPTED. For the whole process. It must not wait for a call of another thread on the same communicator. */
ISTHMUS_API void isthmus_set_interrupt_check(int (*check)(void));

/* ---- meetings: processes that have to agree on something before they know whether they form a communicator ------------- */
#define ISTHMUS_TICKET_BYTES 72
typedef struct isthmus_ticket { char bytes[ISTHMUS_TICKET_BYTES]; } isthmus_ticket; /* address and key; pass it by any means */
typedef struct isthmus_meeting *isthmus_meeting_t; /* one rank's place in one meeting */
/* For one meeting, while this process lives: one thread of it serves all its tickets. Each rank, rank 0 too, may be in any process. Who comes
 * when the meeting is over is told so. Of more than a million tickets the oldest are forgotten. */
ISTHMUS_API isthmus_result isthmus_meeting_create(isthmus_ticket *ticket);
/* In the process that made the ticket: `listener` is a listening TCP socket of somebody else in this process, to which ranks connect that
 * will not come to the meeting. Where ranks are missing and others connected there, the first exchange ends in ISTHMUS_ERR_TIMEOUT, 1 s
 * after the last of either came where as many connected as are missing, else 20 s after, and the text says so. The socket stays its
 * owner's, and is not kept open. ISTHMUS_ERR_UNSUPPORTED: the system cannot tell who connects. */
ISTHMUS_API isthmus_result isthmus_meeting_watch(const isthmus_ticket *ticket, int listener);
/* Does not wait. timeout: seconds, of each exchange; 0: ISTHMUS_TIMEOUT. A forked child may take part. */
ISTHMUS_API isthmus_result isthmus_meeting_join(const isthmus_ticket *ticket, int rank, int world_size, double timeout,
                                                isthmus_meeting_t *meeting);
/* Collective, any number of times: recv has world_size * bytes (at most 1 MiB each), by rank. As isthmus_options.exchange it makes
 * those who met a communicator. After ISTHMUS_ERR_TIMEOUT the blocks of ranks that came are in recv, and the others' are 0. */
ISTHMUS_API isthmus_result isthmus_meeting_exchange(isthmus_meeting_t meeting, const void *send, void *recv, size_t bytes);
/* Of the next exchange: where the blocks of all ranks that came begin with the same `alike` bytes (0: as usual, wait for all), and no other
 * came for so many seconds (0: ISTHMUS_CENSUS), it ends in ISTHMUS_ERR_TIMEOUT. For ranks that may never come. */
ISTHMUS_API isthmus_result isthmus_meeting_patience(isthmus_meeting_t meeting, size_t alike, double seconds);
ISTHMUS_API void isthmus_meeting_leave(isthmus_meeting_t meeting); /* NULL is allowed */

/* ---- collectives (count: elements that the comment names; `call` and `work` may be NULL) ------------------------------ */
/* recv[count] = op over all ranks of send[count]. In place: send == recv. */
ISTHMUS_API isthmus_result isthmus_all_reduce(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
    isthmus_redop op, const isthmus_call *call, isthmus_work_t *work);
/* recv is used on root only. In place: send == recv on root. */
ISTHMUS_API isthmus_result isthmus_reduce(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
    isthmus_redop op, int root, const isthmus_call *call, isthmus_work_t *work);
/* send is used on root only; on root recv may equal send or be another buffer, which is then filled too. */
ISTHMUS_API isthmus_result isthmus_broadcast(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
    int root, const isthmus_call *call, isthmus_work_t *work);
/* recv[world*count], rank r's send[count] at r*count. In place: send == recv + rank*count. */
ISTHMUS_API isthmus_result isthmus_all_gather(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
    const isthmus_call *call, isthmus_work_t *work);
/* Rank r gives counts[r] elements, which land at recv + displs[r]; displs NULL: back to back. counts equal on all ranks. In
 * place: send == recv + displs[rank]. */
ISTHMUS_API isthmus_result isthmus_all_gather_v(isthmus_comm_t comm, const void *send, void *recv, const uint64_t *counts,
    const uint64_t *displs, isthmus_dtype dtype, const isthmus_call *call, isthmus_work_t *work);
/* send[world*count]; recv[count] = op over ranks of their block `rank`. In place: recv == send + rank*count. */
ISTHMUS_API isthmus_result isthmus_reduce_scatter(isthmus_comm_t comm, const void *send, void *recv, uint64_t count,
    isthmus_dtype dtype, isthmus_redop op, const isthmus_call *call, isthmus_work_t *work);
/* send has counts[r] elements for each rank r at send + displs[r]; displs NULL: back to back. recv[counts[rank]]. counts equal
 * on all ranks, displs need not be. In place: recv is the block of this rank in send. */
ISTHMUS_API isthmus_result isthmus_reduce_scatter_v(isthmus_comm_t comm, const void *send, void *recv, const uint64_t *counts,
    const uint64_t *displs, isthmus_dtype dtype, isthmus_redop op, const isthmus_call *call, isthmus_work_t *work);
/* send[world*count], recv[world*count]: block d of rank s lands as block s of rank d. In place: send == recv (staged). */
ISTHMUS_API isthmus_result isthmus_all_to_all(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
    const isthmus_call *call, isthmus_work_t *work);
/* Counts and displacements per peer, elements; displs NULL: back to back. send_counts[d] here == recv_counts[rank] on d. Not in
 * place: send == recv is ISTHMUS_ERR_UNSUPPORTED. */
ISTHMUS_API isthmus_result isthmus_all_to_all_v(isthmus_comm_t comm, const void *send, const uint64_t *send_counts,
    const uint64_t *send_displs, void *recv, const uint64_t *recv_counts, const uint64_t *recv_displs, isthmus_dtype dtype,
    const isthmus_call *call, isthmus_work_t *work);
/* root's recv[world*count], rank r's send[count] at r*count; recv is used on root only. In place, on root: send == recv +
 * rank*count. */
ISTHMUS_API isthmus_result isthmus_gather(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
    int root, const isthmus_call *call, isthmus_work_t *work);
/* The same with counts[r] elements of rank r at recv + displs[r]; displs (NULL: back to back) is used on root only, counts are
 * equal on all ranks. In place, on root: send == recv + displs[rank]. */
ISTHMUS_API isthmus_result isthmus_gather_v(isthmus_comm_t comm, const void *send, void *recv, const uint64_t *counts,
    const uint64_t *displs, isthmus_dtype dtype, int root, const isthmus_call *call, isthmus_work_t *work);
/* root's send[world*count]; rank r's recv[count] is its block r; send is used on root only. In place, on root: recv == send +
 * rank*count. */
ISTHMUS_API isthmus_result isthmus_scatter(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
    int root, const isthmus_call *call, isthmus_work_t *work);
/* The same with counts[r] elements for rank r at send + displs[r]; displs (NULL: back to back) is used on root only, counts are
 * equal on all ranks. In place, on root: recv == send + displs[rank]. */
ISTHMUS_API isthmus_result isthmus_scatter_v(isthmus_comm_t comm, const void *send, void *recv, const uint64_t *counts,
    const uint64_t *displs, isthmus_dtype dtype, int root, const isthmus_call *call, isthmus_work_t *work);
/* Of the threads that call: it looks at no stream, and orders none. */
ISTHMUS_API isthmus_result isthmus_barrier(isthmus_comm_t comm, const isthmus_call *call, isthmus_work_t *work);

/* ---- point to point: matched by (source, tag) in the order sent; tag is any int >= 0 -------------------------------------- */
#define ISTHMUS_ANY_SOURCE (-1)
ISTHMUS_API isthmus_result isthmus_send(isthmus_comm_t comm, const void *buffer, uint64_t count, isthmus_dtype dtype, int peer,
    int tag, const isthmus_call *call, isthmus_work_t *work);
/* peer may be ISTHMUS_ANY_SOURCE; *source (may be NULL) is then the sender, for a blocking call; else isthmus_work_source. The
 * message's size and dtype must equal the receive's, else ISTHMUS_ERR_MISMATCH names both. */
ISTHMUS_API isthmus_result isthmus_recv(isthmus_comm_t comm, void *buffer, uint64_t count, isthmus_dtype dtype, int peer, int tag,
    int *source, const isthmus_call *call, isthmus_work_t *work);

/* Between begin and end (per thread, may nest) every operation, blocking or not, is only recorded; end submits them together
 * and, where work is NULL, waits for all. Sends and receives of a group complete in any order. A call that fails inside a
 * group fails at once and cancels the group: nothing of it was submitted, and end returns the first failure. */
ISTHMUS_API isthmus_result isthmus_group_begin(void);
ISTHMUS_API isthmus_result isthmus_group_end(isthmus_work_t *work);

/* ---- work ------------------------------------------------------------------------------------------------------------------- */
/* Waits up to `timeout` seconds (<= 0: the operation's own deadline). Returns the operation's result. ISTHMUS_ERR_TIMEOUT with
 * the operation still running is told from the operation's own timeout by isthmus_work_test() == ISTHMUS_IN_PROGRESS. */
ISTHMUS_API isthmus_result isthmus_work_wait(isthmus_work_t work, double timeout);
ISTHMUS_API isthmus_result isthmus_work_test(isthmus_work_t work); /* never blocks, makes progress; ISTHMUS_IN_PROGRESS if not done */
ISTHMUS_API int isthmus_work_source(isthmus_work_t work);          /* sender of a finished receive, else -1 */
ISTHMUS_API uint64_t isthmus_work_sequence(isthmus_work_t work);
ISTHMUS_API double isthmus_work_duration(isthmus_work_t work);     /* seconds from submission to the end; < 0 while running */
/* `done(context, result, text)` runs exactly once, when the operation is over: on a thread of Isthmus, or at once, in this call, if the operation
 * is over already. isthmus_work_wait returns when the callback has, and isthmus_comm_destroy when all have; each waits 5 s for them at most,
 * and not at all when called in a callback. Isthmus holds no lock while a callback runs, so a callback may submit operations, wait for them, and
 * destroy the communicator. The callbacks of one communicator that run on a thread of Isthmus run one after the other, in the order in which its
 * operations ended, that of a group behind those of its operations; one that waits holds up those behind it. A callback that does not return
 * and is in no call of Isthmus holds up all others. At most one callback per work. */
ISTHMUS_API isthmus_result isthmus_work_on_done(isthmus_work_t work, void (*done)(void *context, isthmus_result result, const char *text),
    void *context);
/* What the stream, of this rank's device, is given from now on comes behind an operation that was made with ISTHMUS_STREAM_BEFORE. Any number of
 * streams. Of a receive, where the device cannot wait for the host, or pinned memory is short, the call returns when the message has come. Other
 * operations were ordered when they were made. A failure is the operation's: isthmus_work_test. */
ISTHMUS_API isthmus_result isthmus_work_order(isthmus_work_t work, void *stream);
ISTHMUS_API void isthmus_work_release(isthmus_work_t work); /* drops the handle; the operation goes on. NULL is allowed. */

/* ---- programs of NCCL's interface behind the interposer: nothing of this library is called, or linked ------------------------ */
/* Of one operation, through NCCL's own interface (2.31 and newer): a ncclConfigExt_t with this vendorId in the `ext` list of the
 * ncclCollConfig_t that a ncclAllReduceConfig, ... is given. On a communicator that Isthmus carries they are what they are in
 * isthmus_call; ranks may differ in them. NCCL's own passes them by, so on one of its own communicators they do nothing. */
#define ISTHMUS_NCCL_VENDOR 0x697374
typedef enum isthmus_nccl_option {
  ISTHMUS_NCCL_TIMEOUT = 1, /* val.i: deadline of the operation, in milliseconds, 1 or more */
  ISTHMUS_NCCL_LABEL = 2    /* val.s: shown in errors and records in place of the collective's name; copied */
} isthmus_nccl_option;

#ifdef __cplusplus
}
#endif
#endif
