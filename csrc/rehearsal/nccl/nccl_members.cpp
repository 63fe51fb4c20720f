// The simulated libnccl.so.2 and librccl.so.1: communicators that lose or get ranks.
#include <set>
#include <thread>
#include <vector>

#include "nccl/nccl_abi.hpp"

using namespace rehearsal;
using namespace rehearsal::nccl;
using rehearsal::nccl::find;  // NOLINT(misc-unused-using-decls): used below, where the version has it

#if REHEARSAL_NCCL_VERSION >= 22700
// Called by the ranks that remain, and by no other rank. The first of them opens a rendezvous for all, so the others may have to wait for
// the first.
EXPORT Result ncclCommShrink(CommHandle h, int *excluded, int count, CommHandle *out, const Config *config, int flags) {
  NCCL_CALL("ncclCommShrink");
  CommPtr c;
  if (const Result r = find_ready(entry, h, &c)) return r;
  if (!out || !excluded || count < 1 || count >= c->size || (flags & ~kShrinkAbort))
    return note(say(kInvalidArgument, "%d ranks of %d to exclude, flags %#x", count, c->size, static_cast<unsigned>(flags)));
  *out = nullptr;
  const std::set<int> gone(excluded, excluded + count);
  if (*gone.begin() < 0 || *gone.rbegin() >= c->size || gone.count(c->rank))
    return note(say(kInvalidArgument, "rank %d of %d excludes itself, or a rank that there is not", c->rank, c->size));
  bool blocking = true;
  if (const Result r = read(config, &blocking)) return note(r);
  if (flags & kShrinkAbort) {
    c->abort();
  } else if (c->busy()) {
    misuse(entry.name(), Code::IllegalState, "work of the communicator is not done");
    return note(kInvalidUsage);
  }
  std::vector<uint64_t> words(gone.begin(), gone.end());
  {
    const Lock lock(c->mutex);
    words.push_back(c->shrinks[gone]++);
  }
  int rank = 0, first = 0;
  for (int r = 0; r < c->rank; ++r) rank += !gone.count(r);
  while (gone.count(first)) ++first;
  const Token token = token_of_part(c->token, words);
  if (c->rank == first && !open_rendezvous(kLibrary, token)) return note(say(kSystem, "no socket"));
  const int size = c->size - static_cast<int>(gone.size());
  return note(start(entry, out, c->device, size, token, rank, blocking, true));
}
#endif

#if REHEARSAL_NCCL_VERSION >= 22807
// Local. The communicator is in progress until its work has been cancelled.
EXPORT Result ncclCommRevoke(CommHandle h, int flags) {
  NCCL_CALL("ncclCommRevoke");
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  if (flags != 0) return say(kInvalidArgument, "flags %d", flags);
  if (!c->ready.load()) return say(kInvalidArgument, "the communicator is not ready");
  if (c->revoked.exchange(true)) return kSuccess;
  c->state.store(kInProgress);
  std::thread([c] {
    c->revoke();
    int expected = kInProgress;
    c->state.compare_exchange_strong(expected, kSuccess);
  }).detach();
  return kSuccess;
}
#endif

#if REHEARSAL_NCCL_VERSION >= 22902
namespace {
// All ranks of the communicator know the token of its next grow. The new ranks have the token from the id.
Token token_of_grow(const Comm &c, uint64_t number) {
  constexpr uint64_t kGrow = ~uint64_t{0};  // no rank that a shrink excludes
  return token_of_part(c.token, {kGrow, number});
}
}  // namespace

EXPORT Result ncclCommGetUniqueId(CommHandle h, UniqueId *id) {
  NCCL_CALL("ncclCommGetUniqueId");
  CommPtr c;
  if (const Result r = find_ready(entry, h, &c)) return r;
  if (!id) return say(kInvalidArgument, "uniqueId is NULL");
  const Lock lock(c->mutex);
  if (c->promised_grow) return say(kInvalidUsage, "the last id has not been used");
  guard_forks();
  const Token token = token_of_grow(*c, c->grows);
  if (!open_rendezvous(kLibrary, token)) return say(kSystem, "no socket");
  c->promised_grow = true;
  *id = {};
  write_id(kLibrary, {}, token, id->bytes);
  return kSuccess;
}

// Old ranks keep their ranks. They give -1, and one of them the id.
EXPORT Result ncclCommGrow(CommHandle h, int size, const UniqueId *id, int rank, CommHandle *out, const Config *config) {
  NCCL_CALL("ncclCommGrow");
  if (!h) return id ? init(entry, out, size, *id, rank, config) : note(say(kInvalidArgument, "neither comm nor uniqueId"));
  CommPtr c;
  if (const Result r = find_ready(entry, h, &c)) return r;
  if (!out || size <= c->size || rank != -1)
    return note(say(kInvalidArgument, "rank %d, %d ranks of %d", rank, size, c->size));
  *out = nullptr;
  bool blocking = c->blocking;
  if (config)
    if (const Result r = read(config, &blocking)) return note(r);
  Token token;
  {
    const Lock lock(c->mutex);
    if ((id != nullptr) != c->promised_grow)
      return note(say(kInvalidArgument, "the rank that has made the id gives it, and no other"));
    token = token_of_grow(*c, c->grows++);
    c->promised_grow = false;
  }
  return note(start(entry, out, c->device, size, token, c->rank, blocking, true));
}
#endif
