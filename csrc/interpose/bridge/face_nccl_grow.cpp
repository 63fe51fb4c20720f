// Communicators that span vendors, and get further ranks. What is made is like an init of all ranks, old and new:
//
//   ncclCommGetUniqueId     one of the old ranks makes an id. No vendor's library made it: it has nothing but a ticket for the meeting
//                           of all ranks, old and new.
//   the program             carries the id to the new ranks
//   ncclCommGrow            the old ranks hear the id from the one that has it, beside the operations of their communicator. The new
//                           ones, of whatever vendor, have it from the program. All come to the meeting.
//
// The old ranks keep their numbers. Their communicator stays as it was, however the call ends.
#include <cstring>

#include "face_nccl.hpp"
#include "handles.hpp"

namespace isthmus::bridge::nccl {
namespace {

using interpose::kInvalidArgument;
using interpose::kSuccess;

constexpr const char *kGrow = "ncclCommGrow";

bool is_ours(const UniqueId *id) {
  Tail tail;
  return id && read_tail(id->bytes, tail) && tail.maker == kNoVendor[0];
}

// What an old rank says to the others.
struct GrowWord {
  int32_t size, has_id;
  UniqueId id;
};

// Finds the id, and whether all ranks ask for the same. All ranks come to the same result.
Outcome agreed(const std::vector<GrowWord> &all, UniqueId &id) {
  const auto named = [](size_t rank) { return "rank " + std::to_string(rank); };
  size_t root = all.size();
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].size != all[0].size)
      return {ISTHMUS_ERR_MISMATCH, named(0) + " asks for " + std::to_string(all[0].size) + " ranks, and " + named(r) +
                                        " for " + std::to_string(all[r].size) + ": give all the same number"};
    if (!all[r].has_id) continue;
    if (root < all.size())
      return {ISTHMUS_ERR_MISMATCH,
              named(root) + " and " + named(r) + " both give an id: one old rank gives it, the others NULL"};
    root = r;
  }
  if (root == all.size())
    return {ISTHMUS_ERR_MISMATCH,
            "none of the old ranks gives the id: the one that has it from ncclCommGetUniqueId gives it, the others NULL"};
  id = all[root].id;
  return {};
}

// In an old rank.
Result grow_from(Handle handle, int size, const UniqueId *id, int rank, Handle *out, Config *config) {
  const CommPtr parent = bridge::find(handle);
  if (!parent) return note(no_comm(kGrow));
  const Traits &t = parent->traits();
  CommRequest request;
  if (!out) return note(refused(kInvalidArgument, kGrow, "newcomm is NULL"));
  if (rank != -1)
    return note(refused(kInvalidArgument, kGrow, "rank " + std::to_string(rank) + ": old ranks keep theirs, and give -1"));
  if (size <= t.size)
    return note(
        refused(kInvalidArgument, kGrow,
                std::to_string(size) + " ranks: there must be more than the " + std::to_string(t.size) + " that there are"));
  if (id && !is_ours(id))
    return note(refused(kInvalidArgument, kGrow,
                        "the id is not of ncclCommGetUniqueId of a communicator that spans vendors or islands"));
  if (!read(config, request)) return note(refused(kInvalidArgument, kGrow, "the configuration was not initialised"));
  if (const Outcome o = serves_parts(*parent); !o.ok()) return note(not_ready(kGrow, o));
  if (const Result r = silent_rank(kGrow, parent, all_ranks(parent))) return note(r);
  const auto kept = inherited(parent, config);
  const TargetPtr target = target_of(out, t.place, config ? request.blocking : t.blocking, t.name + "/grow");
  if (!target) return note(no_handle(kGrow));
  const GrowWord mine{size, id != nullptr, id ? *id : UniqueId{}};
  return act_or_defer(parent, [=] {
    std::vector<GrowWord> all;
    if (const Outcome o = exchange(parent, all_ranks(parent), mine, all, Stale::Taken); !o.ok()) return failed(kGrow, o);
    UniqueId common{};
    if (const Outcome o = agreed(all, common); !o.ok()) return failed(kGrow, o);
    return init_as(kGrow, target, size, common, parent->traits().rank, kept->get());
  });
}

// In a new rank, with an id of ours. In a group it comes when the group ends, beside what the group makes of communicators: one
// thread may drive old and new ranks.
Result come(int size, const UniqueId &id, int rank, Handle *out, Config *config) {
  CommRequest request;
  if (!out) return note(refused(kInvalidArgument, kGrow, "newcomm is NULL"));
  if (rank < 0 || rank >= size)
    return note(
        refused(kInvalidArgument, kGrow, "rank " + std::to_string(rank) + " is not in 0 to " + std::to_string(size - 1)));
  if (!read(config, request)) return note(refused(kInvalidArgument, kGrow, "the configuration was not initialised"));
  DevicePlace place;
  if (const Outcome o = devices().current(place); !o.ok()) return note(failed(kGrow, o));
  const TargetPtr target = target_of(out, place, request.blocking, "grow");
  if (!target) return note(no_handle(kGrow));
  if (!in_group()) return init_as(kGrow, target, size, id, rank, config);
  const auto kept = std::make_shared<KeptConfig>(config);
  face().pending().deferred.push_back({nullptr, place, [=] { return init_as(kGrow, target, size, id, rank, kept->get()); }});
  return kSuccess;
}

}  // namespace

Result get_grow_id(Handle handle, UniqueId *id) {
  constexpr const char *kCall = "ncclCommGetUniqueId";
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm(kCall);
  if (!id) return refused(kInvalidArgument, kCall, "uniqueId is NULL");
  if (const Outcome o = serves_parts(*comm); !o.ok()) return not_ready(kCall, o);
  isthmus_ticket ticket;
  if (const Outcome o = outcome(isthmus_meeting_create(&ticket)); !o.ok()) return failed(kCall, o);
  *id = {};
  write_tail(id->bytes, kNoVendor, ticket);
  return kSuccess;
}

Result grow(Handle handle, int size, const UniqueId *id, int rank, Handle *out, Config *config) {
  if (handle) return grow_from(handle, size, id, rank, out, config);
  if (is_ours(id)) return come(size, *id, rank, out, config);
  return call_real<Result(Handle, int, const UniqueId *, int, Handle *, Config *)>(kGrow, handle, size, id, rank, out,
                                                                                   config);
}

}  // namespace isthmus::bridge::nccl
