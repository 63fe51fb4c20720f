// The face of NCCL and RCCL: their numbers, their groups, their ways of making communicators. What its files share.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi.hpp"
#include "census.hpp"
#include "comm.hpp"
#include "calls_nccl.hpp"
#include "target.hpp"

namespace isthmus::bridge::nccl {

using interpose::Config;
using interpose::FrontDoor;
using interpose::Result;
using interpose::UniqueId;
using Handle = interpose::Comm;

constexpr uint32_t kConfigMagic = 0xcafebeef;  // of the vendors' structures

const FrontDoor &door() noexcept;
Devices &devices();

// A function of the real library; null: it has none of that name.
template <class Function>
Function *real(const char *name) {
  return reinterpret_cast<Function *>(door().look_up(name));
}
Result lacks(const char *name);  // it has none

enum class Level { Info = 2, Warn = 3 };
void say(Level level, const std::string &text);
const char *keep(const std::string &text);         // for good
Result failed(const char *call, const Outcome &);  // its number; the text is ncclGetLastError's now. Ok: success
Result refused(Result code, const char *call, const std::string &text);
Result thrown(const std::exception &) noexcept;  // by the standard library: no memory, no thread. Noted
Result no_handle(const char *call);              // there are too many
Result aborted(const char *call);                // by the program, before its group ended

// What a program asked for when it made a communicator.
struct Asked {
  bool blocking = true;
  std::string name;
};
// A copy of a configuration that lives as long as it is needed: the caller's bytes, and the texts that it points to.
class KeptConfig {
 public:
  explicit KeptConfig(const Config *config);
  Config *get() noexcept { return bytes_.empty() ? nullptr : reinterpret_cast<Config *>(bytes_.data()); }

 private:
  std::vector<unsigned long long> bytes_;
  std::string texts_[2];
};
bool read(const Config *config, Asked &asked);  // false: it is none

using TargetPtr = std::shared_ptr<Target>;
// One rank that is on its way into a communicator, inside of a group or not.
struct Init {
  const char *call = "";
  TargetPtr target;
  Asked asked;
  std::shared_ptr<KeptConfig> config;
  Place place;
  std::function<Result(Handle *)> real;  // makes the call of the real library as the program made it
  std::vector<isthmus_ticket> others;    // of meetings that nobody will come to
  Arrival arrival;
  CommPtr comm;  // where it spans
  bool begun = false;
};
Result begin(std::unique_ptr<Init> init);

// What was called between the outermost GroupStart and its GroupEnd and waits for that.
struct Pending {
  std::vector<std::unique_ptr<Init>> inits;
  Operations operations;
  struct Later {
    CommPtr parent;
    std::function<Result()> act;  // collective over that; on a thread that works where the parent does
  };
  std::vector<Later> laters;
  Result failure = interpose::kSuccess;
  const char *why = nullptr;  // the text of that
};
bool in_group() noexcept;
Pending &pending();                // of this thread's group
bool failure(Result r);            // and not an operation in progress
Result note(Result r);             // the first failure inside a group is the group's
void tell_again(const char *why);  // likewise, when the real library has had a failure since; null: nothing
const char *last_told() noexcept;  // the newest text, of any thread's failure
// What is still to be found out before an operation can begin.
Outcome resolve(const Comm &comm, Operation &operation);
// Now, or when the group ends. What is collective over one communicator is done in the order of the calls.
Result act_or_defer(const CommPtr &parent, std::function<Result()> act);

// ---- the functions -----------------------------------------------------------------------------------------------------------------
Result get_unique_id(UniqueId *id);
Result init_all(Handle *out, int count, const int *devices);
Result init_rank(Handle *out, int size, UniqueId id, int rank);
Result init_rank_config(Handle *out, int size, UniqueId id, int rank, Config *config);
// The library's call: a null configuration is none.
Result init_real(Handle *out, int size, const UniqueId &id, int rank, Config *config);
// With that name in errors and records.
Result init_as(const char *call, const TargetPtr &target, int size, const UniqueId &id, int rank, Config *config);
Result init_rank_scalable(Handle *out, int size, int rank, int ids, UniqueId *id, Config *config);
Result init_rank_multi(Handle *out, int size, UniqueId id, int rank, int number);
Result split(Handle comm, int color, int key, Handle *out, Config *config);
Result shrink(Handle comm, int *excluded, int count, Handle *out, Config *config, int flags);
Result group_end();
void group_forget();

}  // namespace isthmus::bridge::nccl
