// The face of HCCL: its numbers, its root infos, its ways of making communicators. What its files share.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi_hccl.hpp"
#include "calls_hccl.hpp"
#include "census.hpp"
#include "comm.hpp"

namespace isthmus::bridge::hccl {

using interpose::FrontDoor;
using interpose::Result;
using interpose::hccl::Config;
using interpose::hccl::RootInfo;
using Handle = interpose::hccl::Comm;

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
// HCCL has no last error: the text is a line of the log, the first time that it comes.
Result failed(const char *call, const Outcome &);  // its number. Ok: success
Result refused(Result code, const char *call, const std::string &text);
Result thrown(const std::exception &) noexcept;  // by the standard library: no memory, no thread

// One rank that is on its way into a communicator.
struct Init {
  const char *call = "";
  Handle *out = nullptr;  // written when it is known whose the communicator is: in a group when that ends, as HCCL has it
  std::string name;
  Place place;
  std::function<Result()> real;  // makes the call of the real library as the program made it
  std::vector<Tail> tails;       // of all root infos, where there are several
  Arrival arrival;
};
// The census of its ranks. Meetings of further root infos end.
void arrive(Init &init);
// Says in the log what the census found.
void tell(const Init &init);
// Makes the communicator that spans vendors.
Result build(Init &init);

// What was called between the outermost HcclGroupStart and its HcclGroupEnd and waits for that.
struct Pending {
  std::vector<std::unique_ptr<Init>> inits;
  Operations operations;
  Result failure = interpose::hccl::kSuccess;
};
bool in_group() noexcept;
Pending &pending();     // of this thread's group
Result note(Result r);  // the first failure inside a group is the group's
Result group_end();
// What is to be done before an operation begins: a barrier of Isthmus is the host's, and HCCL's is one of streams, so its stream has come so
// far then.
Outcome settle(const Comm &comm, Operation &operation);

// ---- the functions that make communicators -----------------------------------------------------------------------------------------
Result get_root_info(RootInfo *root);
Result init(uint32_t size, const RootInfo *root, uint32_t rank, Handle *out);
Result get_root_info_scalable(RootInfo *root);
Result init_config(uint32_t size, const RootInfo *root, uint32_t rank, const Config *config, Handle *out);
// `further` is for what HCCL has not yet, and is 0.
Result init_scalable(uint32_t size, uint32_t count, const RootInfo *roots, uint32_t rank, uint32_t further,
                     const Config *config, Handle *out);
Result create_part(Handle *whole, uint32_t count, uint32_t *ranks, uint64_t number, uint32_t mine, Config *config,
                   Handle *out);

}  // namespace isthmus::bridge::hccl
