// The face of HCCL: its numbers, its root infos, its ways of making communicators. What its files share.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "abi_hccl.hpp"
#include "calls_hccl.hpp"
#include "census.hpp"
#include "comm.hpp"

namespace isthmus::bridge::hccl {

using interpose::Door;
using interpose::Result;
using interpose::hccl::Config;
using interpose::hccl::RootInfo;
using Handle = interpose::hccl::Comm;

const Door &door() noexcept;
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

// What was called between the outermost HcclGroupStart and its HcclGroupEnd and waits for that.
struct Pending {
  std::vector<std::pair<CommPtr, Operation>> operations;
  Result failure = interpose::hccl::kSuccess;
};
bool in_group() noexcept;
Pending &pending();     // of this thread's group
Result note(Result r);  // the first failure inside a group is the group's

// ---- the functions that make communicators -----------------------------------------------------------------------------------------
Result get_root_info(RootInfo *root);
Result init(uint32_t size, const RootInfo *root, uint32_t rank, Handle *out);
Result init_config(uint32_t size, const RootInfo *root, uint32_t rank, const Config *config, Handle *out);
Result create_part(Handle *whole, uint32_t count, uint32_t *ranks, uint64_t number, uint32_t mine, Config *config,
                   Handle *out);

}  // namespace isthmus::bridge::hccl
