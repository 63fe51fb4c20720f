// The face of NCCL and RCCL: their numbers, and their ways of making communicators. What the files of this face share.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "abi.hpp"
#include "calls_nccl.hpp"
#include "config.hpp"
#include "group.hpp"
#include "target.hpp"

namespace isthmus::bridge::nccl {

using interpose::Config;
using interpose::UniqueId;
using Handle = interpose::Comm;

constexpr uint32_t kConfigMagic = 0xcafebeef;  // of the vendors' structures

Face &face();
// Functions of the face, by short names.
template <class Function, class... Arguments>
Result call_real(const char *name, Arguments... arguments) {
  return bridge::call_real<Function>(face(), name, arguments...);
}
inline const FrontDoor &door() { return face().door(); }
inline Devices &devices() { return face().devices(); }
inline bool in_group() { return face().in_group(); }
inline Result note(Result r) { return face().note(r); }
inline Result failed(const char *call, const Outcome &o) { return face().failed(call, o); }
inline Result refused(Result code, const char *call, const std::string &text) { return face().refused(code, call, text); }
template <auto Function>
using Caught = GuardedCall<&face, Function>;

const char *keep(const std::string &text);  // for good
Result no_comm(const char *call);           // the communicator has ended
Result no_handle(const char *call);         // there are too many
Result aborted(const char *call);           // by the program, before its group ended
// An element of this type at `p`: as an integer of the type's width, and as a number where the type is a float.
uint64_t bits_of(isthmus_dtype type, const void *p);
double number_at(isthmus_dtype type, const void *p);
// Reads the factor of the operation, where the factor lies on the device: its value when the stream comes to the operation.
// So the function waits for the stream.
Outcome read_factor(const Comm &comm, BridgedCall &operation);

// NCCL's numbers of types and reductions, in their order.
constexpr isthmus_dtype kTypes[] = {ISTHMUS_INT8,    ISTHMUS_UINT8,    ISTHMUS_INT32,         ISTHMUS_UINT32,
                                    ISTHMUS_INT64,   ISTHMUS_UINT64,   ISTHMUS_FLOAT16,       ISTHMUS_FLOAT32,
                                    ISTHMUS_FLOAT64, ISTHMUS_BFLOAT16, ISTHMUS_FLOAT8_E4M3FN, ISTHMUS_FLOAT8_E5M2};
constexpr isthmus_redop kOps[] = {ISTHMUS_SUM, ISTHMUS_PROD, ISTHMUS_MAX, ISTHMUS_MIN, ISTHMUS_AVG};
constexpr int kTypeCount = 12, kOpCount = 5;

// What a program asked for when it made a communicator.
struct CommRequest {
  bool blocking = true;
  std::string name;
};
bool read(const Config *config, CommRequest &request);  // false: it is no configuration

// A copy of a configuration. The texts to which it points are copies that stay for good: since NCCL 2.27 the library reads the
// name of a communicator as long as the communicator lives.
class KeptConfig {
 public:
  explicit KeptConfig(const Config *config);
  Config *get() noexcept { return reinterpret_cast<Config *>(copy_.data()); }

 private:
  ConfigCopy copy_;
};

using TargetPtr = std::shared_ptr<Target>;

// ---- the functions -----------------------------------------------------------------------------------------------------------------
Result get_unique_id(UniqueId *id);
Result init_all(Handle *out, int count, const int *devices);
Result init_rank(Handle *out, int size, UniqueId id, int rank);
Result init_rank_config(Handle *out, int size, UniqueId id, int rank, Config *config);
Result init_rank_scalable(Handle *out, int size, int rank, int ids, UniqueId *id, Config *config);
Result init_rank_multi(Handle *out, int size, UniqueId id, int rank, int number);
// The real library's init. A null configuration: the init without one.
Result init_real(Handle *out, int size, const UniqueId &id, int rank, Config *config);
// Makes the real library's call for a communicator that is behind the alias `handle`. Where the call does not block, and the
// thread that makes the call must outlive the communicator (binds_maker), and this thread does not, on a thread that does.
Result make_theirs(const void *handle, bool blocking, const DevicePlace &place, const std::function<Result()> &call);
// An init. Errors and records call the init by the name `call`.
Result init_as(const char *call, const TargetPtr &target, int size, const UniqueId &id, int rank, Config *config);
Result split(Handle comm, int color, int key, Handle *out, Config *config);
Result shrink(Handle comm, int *excluded, int count, Handle *out, Config *config, int flags);
Result get_grow_id(Handle comm, UniqueId *id);
Result grow(Handle comm, int size, const UniqueId *id, int rank, Handle *out, Config *config);
Result create_premul_sum(interpose::Op *op, void *scalar, interpose::Type type, int residence, Handle comm);
Result destroy_op(interpose::Op op, Handle comm);
void add_collectives(interpose::Calls &calls);
// ---- what is made from a communicator (face_nccl_split.cpp, face_nccl_grow.cpp) ------------------------------------------------------
// The configuration of what is made: the program's, or, as at NCCL, the parent's where the program gives none.
std::shared_ptr<KeptConfig> inherited(const CommPtr &parent, const Config *config);
// A call is refused while its parent is being made: an answer "in progress" would leave the program nothing to ask later.
Result not_ready(const char *call, const Outcome &o);
// Makes the call now, or when the group ends. Calls over one communicator are made in the order of the program.
Result act_or_defer(const CommPtr &parent, std::function<Result()> act);
// The place of the handle that the program has when the call returns. Null: there is no handle.
TargetPtr target_of(Handle *out, const DevicePlace &place, bool blocking, const std::string &name);
// Refuses the call where one of these ranks, all of which have to make it, cannot: HCCL's interface has no such calls.
Result silent_rank(const char *call, const CommPtr &parent, const std::vector<int> &ranks);
std::vector<int> all_ranks(const CommPtr &parent);
double exchange_seconds();  // how long ranks wait for each other; 0: as the communicator says
// Gathers `mine` of each of these ranks, beside the parent's operations, and also where those have failed or were revoked. A rank that had given up before
// gets what the others have ended the exchange with. It takes that, where it had said the same then (Stale::Taken; else the exchange fails), or it comes to
// the next exchange of the others (Stale::Dropped).
enum class Stale : uint8_t { Taken, Dropped };
uint64_t next_call();  // of this process
template <class T>
Outcome exchange(const CommPtr &parent, const std::vector<int> &ranks, const T &mine, std::vector<T> &all, Stale stale) {
  struct Word {
    uint64_t call;
    T said;
  };
  const Word word{next_call(), mine};
  std::vector<Word> words(ranks.size());
  const size_t own = static_cast<size_t>(std::find(ranks.begin(), ranks.end(), parent->traits().rank) - ranks.begin());
  for (bool met = false; !met;) {
    if (Outcome o = outcome(isthmus_comm_exchange(parent->get(), ranks.data(), static_cast<int>(ranks.size()), &word,
                                                  words.data(), sizeof word, exchange_seconds()));
        !o.ok())
      return o;
    met = stale == Stale::Taken || words[own].call == word.call;
  }
  all.clear();
  for (const Word &one : words) all.push_back(one.said);
  if (words[own].call == word.call || std::memcmp(&all[own], &mine, sizeof mine) == 0) return {};
  return {ISTHMUS_ERR_MISMATCH,
          "the other ranks have ended this call with what an earlier call of this rank, which had failed, asked for: call "
          "it again"};
}
// ---- waits for the library's own communicators (face_nccl_waits.cpp) ---------------------------------------------------------------
std::unique_ptr<GroupWait> group_wait();
void wait_until_made(Handle comm);  // or failed, or about to end by another thread
void stop_asking(Handle comm);      // the communicator is about to end

}  // namespace isthmus::bridge::nccl
