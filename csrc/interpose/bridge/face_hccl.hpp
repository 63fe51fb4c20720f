// The face of HCCL: its numbers, its root infos, its ways of making communicators. What the files of this face share.
#pragma once

#include <string>

#include "abi_hccl.hpp"
#include "calls_hccl.hpp"
#include "group.hpp"

namespace isthmus::bridge::hccl {

using interpose::hccl::Config;
using interpose::hccl::RootInfo;
using Handle = interpose::hccl::Comm;

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

Result no_comm(const char *call);  // the communicator has ended

// ---- the functions -----------------------------------------------------------------------------------------------------------------
Result get_root_info(RootInfo *root);
Result get_root_info_scalable(RootInfo *root);
Result init(uint32_t size, const RootInfo *root, uint32_t rank, Handle *out);
Result init_config(uint32_t size, const RootInfo *root, uint32_t rank, const Config *config, Handle *out);
// `further` is for features that HCCL does not have yet, and is 0.
Result init_scalable(uint32_t size, uint32_t count, const RootInfo *roots, uint32_t rank, uint32_t further,
                     const Config *config, Handle *out);
Result create_part(Handle *whole, uint32_t count, uint32_t *ranks, uint64_t number, uint32_t mine, Config *config,
                   Handle *out);
void add_collectives(interpose::hccl::Calls &calls);

}  // namespace isthmus::bridge::hccl
