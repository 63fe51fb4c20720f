// The simulated libhccl.so: communicators.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "ascend/hccl_abi.hpp"

namespace rehearsal::hccl {
namespace {

constexpr Library kLibrary = library_named("HCCL");
enum class Root : unsigned char { Alone, OfSeveral };  // the byte behind an id: OfSeveral of HcclGetRootInfoScalable

Handles<Comm> &comms() {
  static Handles<Comm> *const the_comms = new Handles<Comm>(4);
  return *the_comms;
}

// How long an init waits for the other ranks: HCCL_CONNECT_TIMEOUT, in seconds; 120 if not set.
std::chrono::milliseconds patience() {
  const char *text = std::getenv("HCCL_CONNECT_TIMEOUT");
  const long seconds = text ? std::atol(text) : 0;
  return std::chrono::seconds(seconds > 0 ? seconds : 120);
}

Result outcome(Met met, const Comm &c) {
  switch (met) {
    case Met::Ok: return kSuccess;
    case Met::Stopped: return c.device.broken() ? kRuntime : kTimeout;
    case Met::System: return kConnect;
    case Met::Mismatch:
    case Met::DuplicateDevice:
    case Met::OtherLibrary: return kParameter;
  }
  return kInternal;
}

std::string name_of(const Token &token) {
  std::string name = "rehearsal_";
  for (const unsigned char c : token) {
    name += "0123456789abcdef"[c >> 4];
    name += "0123456789abcdef"[c & 15];
  }
  return name;
}

// Joins the other ranks. If the join fails, the communicator is gone.
Result join(const char *call, const CommPtr &c, CommHandle *out, bool patient) {
  const Result r = outcome(c->join(call, c->token, patience(), patient), *c);
  if (r) {
    c->destroy(call, false);
    return r;
  }
  c->handle = pointer(comms().add(c));
  born(Live::Communicator);
  *out = c->handle;
  return kSuccess;
}

// A rank's place in a communicator.
struct Seat {
  int rank, size;
};

// Makes a communicator and joins the other ranks, at the end of the group in a group. `patient`: as for Communicator::join().
Result start(const Entry &e, CommHandle *out, Device &d, Seat seat, const Token &token, const Config *config, bool patient) {
  *out = nullptr;
  const auto c = std::make_shared<Comm>(kLibrary, d, seat.rank, seat.size);
  c->token = token;
  c->cut_off = kInternal;
  c->late_ms = e.extras().slow_ms;
  c->name = config && config->size >= sizeof(Config) && config->name[0]
                ? std::string(config->name, ::strnlen(config->name, kNameBytes - 1))
                : name_of(token);
  const char *call = e.name();
  const auto run = [call, c, out, patient] { return join(call, c, out, patient); };
  return in_group() ? defer_init(run) : run();
}

Result check(const Config *config) {
  if (!config) return kNullPointer;
  if (config->size < offsetof(Config, buffer_megabytes) || config->magic != kConfigMagic || config->version < 1)
    return kParameter;
  if (config->size < offsetof(Config, name)) return kSuccess;
  if (config->buffer_megabytes == 0) return kParameter;
  return config->deterministic > 2 && config->deterministic != kNotSet ? kParameter : kSuccess;
}

Result make(RootInfo *root, Root kind) {
  if (!root) return kNullPointer;
  if (!current_device()) return kRuntime;
  guard_forks();
  Token token;
  if (!new_rendezvous(kLibrary, &token)) return kSystem;
  *root = {};
  write_id(kLibrary, {}, token, root->bytes);
  root->bytes[kIdBytes] = static_cast<unsigned char>(kind);
  return kSuccess;
}

Result read(const Entry &e, const RootInfo &root, Root wanted, Token *token) {
  std::string why;
  if (!read_id(e.name(), kLibrary, root.bytes, token, &why)) return kParameter;
  return static_cast<Result>(root.bytes[kIdBytes] == static_cast<unsigned char>(wanted) ? kSuccess : kParameter);
}

Result init(const Entry &e, uint32_t size, const RootInfo *root, uint32_t rank, const Config *config, CommHandle *out,
            Root kind = Root::Alone) {
  if (!root || !out) return note(kNullPointer);
  if (size < 1 || size > 32768 || rank >= size) return note(kParameter);
  Device *d = current_device();
  if (!d || d->broken()) return note(kRuntime);
  Token token;
  if (const Result r = read(e, *root, kind, &token)) return note(r);
  return note(start(e, out, *d, {static_cast<int>(rank), static_cast<int>(size)}, token, config, false));
}

Result check_part(const Comm &c, const uint32_t *ranks, uint32_t count, uint32_t mine) {
  if (count < 1 || count > static_cast<uint32_t>(c.size) || mine >= count) return kParameter;
  const std::set<uint32_t> different(ranks, ranks + count);
  if (different.size() != count || *different.rbegin() >= static_cast<uint32_t>(c.size)) return kParameter;
  return ranks[mine] == static_cast<uint32_t>(c.rank) ? kSuccess : kParameter;
}

std::atomic<int32_t> deterministic{0};

}  // namespace

Result find(const Entry &e, CommHandle h, CommPtr *out) {
  if (!h) return note(kNullPointer);
  *out = comms().find(word(h));
  if (*out) return kSuccess;
  misuse(e.name(), Code::BadHandle, "communicator %p %s", h, comms().why_not(word(h)));
  return note(kParameter);
}

Result find_ready(const Entry &e, CommHandle h, CommPtr *out) {
  if (const Result r = find(e, h, out)) return r;
  return note((*out)->suspended.load() ? static_cast<Result>(kSuspended) : (*out)->state.load());
}

Result check_device(const Entry &e, const Comm &c) {
  const Device *d = current_device();
  if (!d) return note(kRuntime);
  if (d == &c.device) return kSuccess;
  misuse(e.name(), Code::NoContext, "device %d is current in this thread, the communicator's is %d", d->ordinal(),
         c.device.ordinal());
  return note(kRuntime);
}

}  // namespace rehearsal::hccl

using namespace rehearsal;
using namespace rehearsal::hccl;
using rehearsal::hccl::find;

EXPORT Result HcclGetRootInfo(RootInfo *root) {
  HCCL_CALL("HcclGetRootInfo");
  return make(root, Root::Alone);
}

EXPORT Result HcclGetRootInfoScalable(RootInfo *root) {
  HCCL_CALL("HcclGetRootInfoScalable");
  return make(root, Root::OfSeveral);
}

// All ranks meet at the first root. Rank i ends the rendezvous of root i, to which no rank will come.
EXPORT Result HcclCommInitRootInfoScalable(uint32_t size, uint32_t count, const RootInfo *roots, uint32_t rank,
                                           uint32_t further, const Config *config, CommHandle *out) {
  HCCL_CALL("HcclCommInitRootInfoScalable");
  if (!roots || !out || !config) return note(kNullPointer);
  if (const Result r = check(config)) return note(r);
  if (count < 1 || count > size || further != 0) return note(kParameter);
  Token token;
  for (uint32_t n = 0; n < count; ++n)
    if (const Result r = read(entry, roots[n], Root::OfSeveral, &token)) return note(r);
  if (rank > 0 && rank < count) {
    read(entry, roots[rank], Root::OfSeveral, &token);
    if (!end_rendezvous(kLibrary, token)) return note(kConnect);
  }
  return init(entry, size, roots, rank, config, out, Root::OfSeveral);
}

EXPORT Result HcclCommInitRootInfo(uint32_t size, const RootInfo *root, uint32_t rank, CommHandle *out) {
  HCCL_CALL("HcclCommInitRootInfo");
  return init(entry, size, root, rank, nullptr, out);
}

EXPORT Result HcclCommInitRootInfoConfig(uint32_t size, const RootInfo *root, uint32_t rank, const Config *config,
                                         CommHandle *out) {
  HCCL_CALL("HcclCommInitRootInfoConfig");
  if (const Result r = check(config)) return note(r);
  return init(entry, size, root, rank, config, out);
}

EXPORT Result HcclCommInitAll(uint32_t count, int32_t *devices, CommHandle *out) {
  HCCL_CALL("HcclCommInitAll");
  if (!devices || !out) return kNullPointer;
  if (count < 1 || !Machine::started() || in_group()) return kParameter;
  for (uint32_t i = 0; i < count; ++i)
    if (!Machine::get().device(devices[i])) return kParameter;
  Token token;
  if (!new_rendezvous(kLibrary, &token)) return kSystem;
  std::vector<Result> results(count);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      const Seat seat{static_cast<int>(i), static_cast<int>(count)};
      results[i] = start(entry, &out[i], *Machine::get().device(devices[i]), seat, token, nullptr, false);
    });
  for (std::thread &t : threads) t.join();
  const auto failed = std::find_if(results.begin(), results.end(), [](Result r) { return r != kSuccess; });
  return failed == results.end() ? static_cast<Result>(kSuccess) : *failed;
}

EXPORT Result HcclCreateSubCommConfig(CommHandle *whole, uint32_t count, uint32_t *ranks, uint64_t number, uint32_t mine,
                                      Config *config, CommHandle *out) {
  HCCL_CALL("HcclCreateSubCommConfig");
  if (!whole) return note(kNullPointer);
  CommPtr c;
  if (const Result r = find_ready(entry, *whole, &c)) return r;
  if (!ranks && number == kNoSubCommunicator) return kSuccess;
  if (!ranks || !out) return note(kNullPointer);
  if (const Result r = check(config)) return note(r);
  if (const Result r = check_device(entry, *c)) return r;
  if (const Result r = check_part(*c, ranks, count, mine)) return note(r);
  {
    const Lock lock(c->mutex);
    if (!c->parts.insert(number).second) return note(kParameter);  // a number is used once
  }
  std::vector<uint64_t> words{number};
  words.insert(words.end(), ranks, ranks + count);
  const Token token = token_of_part(c->token, words);
  if (mine == 0 && !open_rendezvous(kLibrary, token)) return note(kSystem);
  const Seat seat{static_cast<int>(mine), static_cast<int>(count)};
  return note(start(entry, out, c->device, seat, token, config, true));
}

EXPORT Result HcclCommDestroy(CommHandle h) {
  HCCL_CALL("HcclCommDestroy");
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  if (const Result r = check_device(entry, *c)) return r;
  if (c->busy() && !c->device.broken()) {
    misuse(entry.name(), Code::IllegalState, "work of the communicator is not done");
    return kInternal;
  }
  if (comms().remove(word(h))) died(Live::Communicator);
  c->destroy(entry.name(), true);
  return kSuccess;
}

// A suspended communicator takes no new work. Work that was submitted goes on.
EXPORT Result HcclCommSuspend(CommHandle h) {
  HCCL_CALL("HcclCommSuspend");
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  c->suspended.store(true);
  return kSuccess;
}
EXPORT Result HcclCommResume(CommHandle h) {
  HCCL_CALL("HcclCommResume");
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  c->suspended.store(false);
  return kSuccess;
}

// ---- questions ------------------------------------------------------------------------------------------------------------

EXPORT Result HcclGetRankSize(CommHandle h, uint32_t *out) {
  HCCL_CALL("HcclGetRankSize");
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  if (!out) return kNullPointer;
  *out = static_cast<uint32_t>(c->size);
  return kSuccess;
}
EXPORT Result HcclGetRankId(CommHandle h, uint32_t *out) {
  HCCL_CALL("HcclGetRankId");
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  if (!out) return kNullPointer;
  *out = static_cast<uint32_t>(c->rank);
  return kSuccess;
}

EXPORT Result HcclGetCommName(CommHandle h, char *out) {
  HCCL_CALL("HcclGetCommName");
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  if (!out) return kNullPointer;
  std::strncpy(out, c->name.c_str(), kNameBytes);
  return kSuccess;
}

EXPORT Result HcclGetCommAsyncError(CommHandle h, Result *out) {
  HCCL_CALL("HcclGetCommAsyncError");
  CommPtr c;
  if (const Result r = find(entry, h, &c)) return r;
  if (!out) return kNullPointer;
  *out = c->lost() ? static_cast<Result>(kRuntime) : c->state.load();
  return kSuccess;
}

EXPORT uint32_t HcclGetCommConfigCapability() {
  static Counter &this_counter = counter("HcclGetCommConfigCapability");
  const Entry counted(this_counter);
  return kConfigCapability;
}

EXPORT Result HcclSetConfig(int which, Setting to) {
  HCCL_CALL("HcclSetConfig");
  if (which != kDeterministic) return kNotSupported;
  if (to.value < 0 || to.value > 2) return kParameter;
  deterministic.store(to.value);  // no effect: the simulation's sums are always the same
  return kSuccess;
}
EXPORT Result HcclGetConfig(int which, Setting *out) {
  HCCL_CALL("HcclGetConfig");
  if (!out) return kNullPointer;
  if (which != kDeterministic) return kNotSupported;
  out->value = deterministic.load();
  return kSuccess;
}

EXPORT const char *HcclGetErrorString(Result r) {
  static Counter &this_counter = counter("HcclGetErrorString");
  const Entry counted(this_counter);
  switch (r) {
    case kSuccess: return "no error";
    case kParameter: return "invalid parameter";
    case kNullPointer: return "null pointer";
    case kMemory: return "memory error";
    case kInternal: return "internal error";
    case kNotSupported: return "feature not supported";
    case kUnavailable: return "resource unavailable";
    case kSystem: return "system call failed";
    case kTimeout: return "timeout";
    case kConnect: return "connection failed";
    case kTransfer: return "transfer failed";
    case kRuntime: return "runtime error";
    case kDriver: return "driver error";
    case kNetwork: return "network error";
    case kAgain: return "try again";
    case kRemote: return "error completion of a remote operation";
    case kSuspended: return "communicator suspended";
    case kOutOfMemory: return "out of memory";
    default: return "unknown error";
  }
}
