// The simulated libnccl.so.2 and librccl.so.1: communicators.
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "nccl/nccl_abi.hpp"

namespace rehearsal::nccl {
namespace {

constexpr int kVersion = REHEARSAL_NCCL_VERSION;
constexpr int kClearsIds = 22304;  // from this version on the library writes all bytes of an id

// All communicators, and the texts of errors.
struct CommBooks {
  Mutex mutex;
  std::map<CommHandle, CommPtr> live ISTHMUS_GUARDED_BY(mutex);
  std::set<CommHandle> all ISTHMUS_GUARDED_BY(mutex);
  // A text is never changed or freed: a program may still read the text of one error when the next error comes.
  std::deque<std::string> errors ISTHMUS_GUARDED_BY(mutex);
  std::atomic<const char *> last_error{""};
};
CommBooks &books() {
  static CommBooks *const the_books = new CommBooks;
  return *the_books;
}

CommPtr add(const CommPtr &comm) {
  CommBooks &b = books();
  const Lock lock(b.mutex);
  comm->handle = new Handle;
  b.live[comm->handle] = comm;
  b.all.insert(comm->handle);
  born(Live::Communicator);
  return comm;
}
void forget(CommHandle h) {
  CommBooks &b = books();
  const Lock lock(b.mutex);
  if (b.live.erase(h)) died(Live::Communicator);
}

Result outcome(Met met, const Comm &c) {
  switch (met) {
    case Met::Ok: return kSuccess;
    case Met::Stopped: return c.device.broken() ? say(kUnhandledCuda, "the device failed") : say(kRemote, "aborted");
    case Met::System: return say(kSystem, "no connection to the root of the communicator");
    case Met::Mismatch: return say(kInvalidUsage, "a rank came twice, or with another number of ranks");
    case Met::DuplicateDevice: return say(kInvalidUsage, "Duplicate GPU detected : two ranks on one device");
    case Met::OtherLibrary: return say(kInvalidUsage, "a rank of another library came to the communicator");
  }
  return kInternal;
}

// Joins the other ranks, and sets the communicator's state. If the join of a blocking communicator fails, the communicator is gone.
Result join(const char *call, const CommPtr &c, const Token &token, const RootAddress &root) {
  const Met met = greet_root(root, c->rank, c->size) ? c->join(call, token, {}, c->patient) : Met::System;
  const Result r = outcome(met, *c);
  if (r != kSuccess && (c->blocking || c->aborted())) c->destroy(call, false);
  if (r != kSuccess && c->blocking) forget(c->handle);
  if (!c->aborted()) c->state.store(r);
  return r;
}

Result read(const Entry &e, const UniqueId &id, Token *token, RootAddress *root) {
  std::string why;
  return read_id(e.name(), kLibrary, id.bytes, token, &why, root) ? static_cast<Result>(kSuccess)
                                                                  : say(kInvalidArgument, "%s", why.c_str());
}

}  // namespace

// Makes a communicator and joins the other ranks: in a thread for a non-blocking communicator, at the end of the group in a group, else
// now.
Result start(const Entry &e, CommHandle *out, Device &d, int size, const Token &token, int rank, bool blocking, bool patient,
             const RootAddress &root) {
  const CommPtr c = add(std::make_shared<Comm>(kLibrary, d, rank, size));
  c->blocking = blocking;
  c->token = token;
  c->patient = patient;
  c->late_ms = e.extras().slow_ms;
  *out = c->handle;
  c->state.store(kInProgress);
  const char *call = e.name();
  if (!blocking) {
    std::thread([call, c, token, root] { join(call, c, token, root); }).detach();
    return kInProgress;
  }
  if (in_group()) {
    defer_init([call, c, token, root, out] {
      const Result r = join(call, c, token, root);
      if (r != kSuccess) *out = nullptr;
      return r;
    });
    return kSuccess;
  }
  const Result r = join(call, c, token, root);
  if (r != kSuccess) *out = nullptr;
  return r;
}

Result read(const Config *config, bool *blocking) {
  *blocking = true;
  if (!config) return kSuccess;
  if (config->size < 16 || config->magic != kConfigMagic)
    return say(kInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  if (config->size < sizeof(int32_t) + offsetof(Config, blocking) || config->blocking == kUndefined) return kSuccess;
  if (config->blocking != 0 && config->blocking != 1) return say(kInvalidArgument, "blocking is %d", config->blocking);
  *blocking = config->blocking == 1;
  return kSuccess;
}

// NCCL leaves the calling thread on the device that it was on. A thread that has chosen none is left on device 0, where a context is made for it. Such
// calls for another device are counted as ncclWithoutDevice.
void needs_device(const Comm &c) {
  if (device_stack().empty() && current_device() != &c.device) const Entry counted(counter("ncclWithoutDevice"));
}

// `further`: the other ids of ncclCommInitRankScalable. All ranks meet at the first id. Rank i ends the rendezvous of further[i], to which
// no rank will come.
Result init(const Entry &e, CommHandle *out, int size, const UniqueId &id, int rank, const Config *config,
            std::span<const UniqueId> further) {
  Device *d = current_device();
  if (!d) {
    misuse(e.name(), Code::NoContext, "no context is current in this thread");
    return note(kUnhandledCuda);
  }
  if (d->broken()) return note(kUnhandledCuda);
  if (!out) return note(kInvalidArgument);
  *out = nullptr;
  if (size < 1 || rank < 0 || rank >= size) return note(say(kInvalidArgument, "rank %d of %d", rank, size));
  Token token, other;
  RootAddress root, others;
  if (const Result r = read(e, id, &token, &root)) return note(r);
  for (const UniqueId &one : further)
    if (const Result r = read(e, one, &other, &others)) return note(r);
  bool blocking = true;
  if (const Result r = read(config, &blocking)) return note(r);
  if (static_cast<size_t>(rank) < further.size()) {
    read(e, further[static_cast<size_t>(rank)], &other, &others);
    if (!greet_root(others, 0, 1) || !end_rendezvous(kLibrary, other))
      return note(say(kSystem, "no connection to the root of the communicator"));
  }
  return start(e, out, *d, size, token, rank, blocking, false, root);
}

Result say(Result r, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  CommBooks &b = books();
  const Lock lock(b.mutex);
  b.last_error.store(b.errors.emplace_back(text).c_str(), std::memory_order_release);
  return r;
}

Result find(const Entry &e, CommHandle h, CommPtr *out) {
  if (!h) return note(say(kInvalidArgument, "comm argument is NULL"));
  bool known = false;
  {
    CommBooks &b = books();
    const Lock lock(b.mutex);
    const auto it = b.live.find(h);
    if (it != b.live.end()) {
      *out = it->second;
      return kSuccess;
    }
    known = b.all.count(h) != 0;
  }
  misuse(e.name(), Code::BadHandle, "communicator %p %s", static_cast<void *>(h), known ? "was destroyed" : "never existed");
  return note(say(kInvalidArgument, "not a communicator"));
}

Result find_ready(const Entry &e, CommHandle h, CommPtr *out) {
  if (const Result r = find(e, h, out)) return r;
  const Result state = (*out)->now();
  if (state == kInProgress) return note(say(kInvalidArgument, "the communicator is not ready"));
  complete_job(e, **out);
  return note(state);
}

int version() { return settings().nccl_version ? settings().nccl_version : kVersion; }

}  // namespace rehearsal::nccl

using namespace rehearsal;
using namespace rehearsal::nccl;
using rehearsal::nccl::find;

EXPORT Result ncclGetVersion(int *version) {
  NCCL_CALL("ncclGetVersion");
  if (!version) return kInvalidArgument;
  *version = rehearsal::nccl::version();
  return kSuccess;
}

EXPORT Result ncclGetUniqueId(UniqueId *id) {
  NCCL_CALL("ncclGetUniqueId");
  if (!id) return kInvalidArgument;
  guard_forks();
  Token token;
  RootAddress root;
  if (!new_rendezvous(kLibrary, &token) || !open_root(&root)) return say(kSystem, "no socket");
  if (kVersion >= kClearsIds) *id = {};
  write_id(kLibrary, root, token, id->bytes);
  return kSuccess;
}

EXPORT const char *ncclGetErrorString(Result r) {
  static Counter &this_counter = counter("ncclGetErrorString");
  const Entry entry(this_counter);
  switch (r) {
    case kSuccess: return "no error";
    case kUnhandledCuda: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case kSystem: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case kInternal: return "internal error - please report this issue to the NCCL developers";
    case kInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case kInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case kRemote: return "remote process exited or there was a network error";
    case kInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

EXPORT const char *ncclGetLastError(CommHandle) {
  static Counter &this_counter = counter("ncclGetLastError");
  const Entry entry(this_counter);
  return books().last_error.load(std::memory_order_acquire);
}

EXPORT Result ncclCommInitRank(CommHandle *out, int size, UniqueId id, int rank) {
  NCCL_CALL("ncclCommInitRank");
  return init(entry, out, size, id, rank, nullptr);
}

EXPORT Result ncclCommInitRankConfig(CommHandle *out, int size, UniqueId id, int rank, const Config *config) {
  NCCL_CALL("ncclCommInitRankConfig");
  return init(entry, out, size, id, rank, config);
}

#if REHEARSAL_NCCL_VERSION >= 22300
EXPORT Result ncclCommInitRankScalable(CommHandle *out, int size, int rank, int count, UniqueId *ids, const Config *config) {
  NCCL_CALL("ncclCommInitRankScalable");
  if (!ids || count < 1 || count > size) return note(say(kInvalidArgument, "%d ids for %d ranks", count, size));
  return init(entry, out, size, ids[0], rank, config, {ids + 1, static_cast<size_t>(count - 1)});
}
#endif

EXPORT Result ncclCommInitAll(CommHandle *out, int count, const int *devices) {
  NCCL_CALL("ncclCommInitAll");
  if (!out || count < 1 || !Machine::started()) return kInvalidArgument;
  Token token;
  if (!new_rendezvous(kLibrary, &token)) return kSystem;
  for (int i = 0; i < count; ++i)
    if (!Machine::get().device(devices ? devices[i] : i))
      return say(kInvalidArgument, "no device %d", devices ? devices[i] : i);
  std::vector<Result> results(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      Device &d = *Machine::get().device(devices ? devices[i] : i);
      results[static_cast<size_t>(i)] = start(entry, &out[i], d, count, token, i, true);
    });
  for (std::thread &t : threads) t.join();
  for (const Result r : results)
    if (r != kSuccess) return r;
  return kSuccess;
}

EXPORT Result ncclCommSplit(CommHandle h, int color, int key, CommHandle *out, const Config *config) {
  NCCL_CALL("ncclCommSplit");
  CommPtr c;
  if (const Result r = find_ready(entry, h, &c)) return r;
  if (!out || color < -1) return kInvalidArgument;
  *out = nullptr;
  bool blocking = true;
  if (const Result r = read(config, &blocking)) return r;
  Token token{};
  int rank = 0, size = 0;
  if (!c->split(color, key, &token, &rank, &size)) return say(kRemote, "aborted");
  return color < 0 ? static_cast<Result>(kSuccess) : start(entry, out, c->device, size, token, rank, blocking);
}

EXPORT Result ncclCommFinalize(CommHandle h) {
  NCCL_CALL("ncclCommFinalize");
  CommPtr c;
  if (const Result r = find_ready(entry, h, &c)) return r;
  if (c->revoked) return say(kInvalidUsage, "the communicator was revoked");
  if (c->blocking) {
    c->finish();
    return kSuccess;
  }
  c->state.store(kInProgress);
  std::thread([c] {
    c->finish();
    int expected = kInProgress;
    c->state.compare_exchange_strong(expected, kSuccess);
  }).detach();
  return kInProgress;
}

EXPORT Result ncclCommDestroy(CommHandle h) {
  NCCL_CALL("ncclCommDestroy");
  if (!h) return kSuccess;
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  needs_device(*c);
  if (!c->ready.load() && c->state.load() == kInProgress) {
    misuse(entry.name(), Code::IllegalState, "the communicator is not ready yet");
    return kInvalidUsage;
  }
  complete_job(entry, *c);
  c->finish();
  c->destroy(entry.name(), true);
  forget(h);
  return kSuccess;
}

EXPORT Result ncclCommAbort(CommHandle h) {
  NCCL_CALL("ncclCommAbort");
  if (!h) return kSuccess;
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  needs_device(*c);
  complete_job(entry, *c);
  forget(h);
  c->abort();
  c->destroy(entry.name(), false);
  return kSuccess;
}

EXPORT Result ncclCommGetAsyncError(CommHandle h, Result *out) {
  NCCL_CALL("ncclCommGetAsyncError");
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  if (!out) return kInvalidArgument;
  *out = c->now();
  return kSuccess;
}

namespace {
Result answer(const Entry &e, CommHandle h, int *out, int (*of)(const Comm &)) {
  CommPtr c;
  if (const Result r = find_ready(e, h, &c)) return r;
  if (!out) return kInvalidArgument;
  *out = of(*c);
  return kSuccess;
}
}  // namespace

EXPORT Result ncclCommCount(CommHandle h, int *out) {
  NCCL_CALL("ncclCommCount");
  return answer(entry, h, out, [](const Comm &c) { return c.size; });
}
EXPORT Result ncclCommUserRank(CommHandle h, int *out) {
  NCCL_CALL("ncclCommUserRank");
  return answer(entry, h, out, [](const Comm &c) { return c.rank; });
}
EXPORT Result ncclCommCuDevice(CommHandle h, int *out) {
  NCCL_CALL("ncclCommCuDevice");
  return answer(entry, h, out, [](const Comm &c) { return c.device.ordinal(); });
}

EXPORT Result ncclMemAlloc(void **out, size_t bytes) {
  NCCL_CALL("ncclMemAlloc");
  Device *d = current_device();
  if (!d) {
    misuse(entry.name(), Code::NoContext, "no context is current in this thread");
    return kUnhandledCuda;
  }
  if (!out || !bytes) return kInvalidArgument;
  uintptr_t address = 0;
  if (allocate(entry, *d, bytes, &address) != Code::Ok) return kUnhandledCuda;
  *out = reinterpret_cast<void *>(address);
  return kSuccess;
}

EXPORT Result ncclMemFree(void *p) {
  NCCL_CALL("ncclMemFree");
  if (!p) return kSuccess;
  const auto address = reinterpret_cast<uintptr_t>(p);
  const Place place = find_place(address);
  Device *d = place.found() ? Machine::get().device(place.block->device) : current_device();
  return d && release(entry, *d, address) == Code::Ok ? kSuccess : kInvalidArgument;
}
