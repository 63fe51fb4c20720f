// Parts of communicators that span vendors. Parts are made over the parent, without a rendezvous of their own. A part that one
// vendor's library can serve becomes that library's communicator. Where the parent was revoked, each part is made like an init,
// with an id that its first rank gives the others beside the parent's operations.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "handles.hpp"
#include "face_nccl.hpp"

namespace isthmus::bridge::nccl {
namespace {

using interpose::kInvalidArgument;
using interpose::kInvalidUsage;
using interpose::kSuccess;
using interpose::kSystemError;

constexpr const char *kSplit = "ncclCommSplit";

// The words of a rank in ncclCommSplit.
struct SplitChoice {
  RankRecord who;
  int32_t color, key;
};

// Gathers every rank's `mine`, over the parent.
template <class T>
Outcome all_gather(const CommPtr &parent, const T &mine, std::vector<T> &all) {
  all.resize(static_cast<size_t>(parent->traits().size));
  return outcome(isthmus_all_gather(parent->get(), &mine, all.data(), sizeof mine, ISTHMUS_UINT8, nullptr, nullptr));
}

std::vector<int> part_of(const std::vector<SplitChoice> &all, int color) {
  std::vector<int> ranks;
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r].color == color) ranks.push_back(static_cast<int>(r));
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key; });
  return ranks;
}

bool one_vendor(const std::vector<SplitChoice> &all, const std::vector<int> &part) {
  std::vector<RankRecord> who;
  for (const int r : part) who.push_back(all[static_cast<size_t>(r)].who);
  return one_island(who);
}

// Makes a part like an init of its ranks, with an id that one of them has made.
Result init_part(const char *call, const TargetPtr &target, const std::vector<int> &ranks, const UniqueId &id, int rank,
                 Config *config) {
  if (Tail tail; !read_tail(id.bytes, tail))
    return refused(kSystemError, call, "rank " + std::to_string(ranks[0]) + " could not make an id; its log says why");
  return init_as(call, target, static_cast<int>(ranks.size()), id, rank, config);
}

// One call of ncclCommSplit over a parent that was revoked. All of its ranks take part in the two exchanges.
Result split_revoked(const CommPtr &parent, int color, int key, const TargetPtr &target, Config *config) {
  std::vector<SplitChoice> all;
  if (const Outcome o = exchange(parent, all_ranks(parent), SplitChoice{{}, color, key}, all, Stale::Taken); !o.ok())
    return failed(kSplit, o);
  const std::vector<int> mine = color < 0 ? std::vector<int>{} : part_of(all, color);
  const int rank = static_cast<int>(std::find(mine.begin(), mine.end(), parent->traits().rank) - mine.begin());
  Result made = kSuccess;
  UniqueId id{};
  if (!mine.empty() && rank == 0 && (made = get_unique_id(&id)) != kSuccess) id = {};
  std::vector<UniqueId> ids;
  if (const Outcome o = exchange(parent, all_ranks(parent), id, ids, Stale::Dropped); !o.ok()) return failed(kSplit, o);
  if (mine.empty() || made != kSuccess) return made;
  return init_part(kSplit, target, mine, ids[static_cast<size_t>(mine[0])], rank, config);
}

// One call of ncclCommSplit; `number` counts such calls of the parent. All ranks of the parent take part in steps 1 to 3:
// 1. Every rank hears what every rank chose. So it knows of every part whether one vendor's library serves that part.
// 2. Where one vendor's library serves a part, the part's first rank sends a unique id.
// 3. Where a part spans vendors, Isthmus splits the parent. A rank of a vendor's part takes no color in that split.
// 4. This rank makes its part.
Result split_now(const CommPtr &parent, int number, int color, int key, Target &target,
                 const std::shared_ptr<KeptConfig> &config, const CommRequest &request) {
  const Comm::InCall in_call(*parent);
  const Traits &t = parent->traits();
  std::vector<SplitChoice> all;
  if (const Outcome o = all_gather(parent, SplitChoice{record_of(door().family, door().version), color, key}, all); !o.ok())
    return failed(kSplit, o);
  bool any_vendors = false, any_spans = false;
  for (const SplitChoice &one : all)
    if (one.color >= 0) (one_vendor(all, part_of(all, one.color)) ? any_vendors : any_spans) = true;
  const std::vector<int> mine = color < 0 ? std::vector<int>{} : part_of(all, color);
  const bool vendors = !mine.empty() && one_vendor(all, mine);
  const int rank = static_cast<int>(std::find(mine.begin(), mine.end(), t.rank) - mine.begin());
  Result result = kSuccess;
  UniqueId id{};
  if (any_vendors) {
    if (vendors && rank == 0) result = call_real<Result(UniqueId *)>("ncclGetUniqueId", &id);
    if (result != kSuccess) id = {};
    std::vector<UniqueId> ids;
    if (const Outcome o = all_gather(parent, id, ids); !o.ok()) return failed(kSplit, o);
    if (vendors) id = ids[static_cast<size_t>(mine[0])];
  }
  isthmus_comm_t part = nullptr;
  const std::string name = !request.name.empty() ? request.name
                           : number == 0         ? t.name + "/split"
                                                 : t.name + "/split " + std::to_string(number + 1);
  if (any_spans) {
    const Outcome o = outcome(isthmus_comm_split(parent->get(), vendors ? -1 : color, key, name.c_str(), &part));
    if (!o.ok()) return failed(kSplit, o);
  }
  if (mine.empty()) return kSuccess;
  face().say(Level::Info, std::string(kSplit) + ", rank " + std::to_string(rank) + " of " + std::to_string(mine.size()) +
                              ": " + (vendors ? door().name : "Isthmus") +
                              (vendors ? " gets the part" : " carries the part"));
  if (vendors) {
    if (result != kSuccess) return result;
    constexpr UniqueId kNone{};
    if (std::memcmp(&id, &kNone, sizeof id) == 0)
      return refused(kSystemError, kSplit, "rank " + std::to_string(mine[0]) + " got no unique id from its library");
    Handle *out = target.vendors();
    if (!out) return aborted(kSplit);
    return make_theirs(target.handle(), request.blocking, t.place,
                       [&] { return init_real(out, static_cast<int>(mine.size()), id, rank, config->get()); });
  }
  const std::string ranks_key = t.local_ranks->key + "/" + std::to_string(number) + "/" + std::to_string(color);
  const auto comm = std::make_shared<Comm>(
      Traits{rank, static_cast<int>(mine.size()), t.place, request.blocking, name, LocalRanks::of(ranks_key), config});
  comm->adopt(part);
  const bool given_up = target.given_up();
  if (target.put(comm)) return kSuccess;
  comm->abort();
  return given_up ? aborted(kSplit) : no_handle(kSplit);
}

}  // namespace

std::shared_ptr<KeptConfig> inherited(const CommPtr &parent, const Config *config) {
  return config ? std::make_shared<KeptConfig>(config) : std::static_pointer_cast<KeptConfig>(parent->traits().config);
}

Result not_ready(const char *call, const Outcome &o) {
  return o.code == ISTHMUS_IN_PROGRESS ? refused(kInvalidArgument, call, o.text) : failed(call, o);
}

Result act_or_defer(const CommPtr &parent, std::function<Result()> act) {
  const DevicePlace &place = parent->traits().place;
  if (in_group()) {
    face().pending().deferred.push_back({parent, place, std::move(act)});
    return kSuccess;
  }
  const DeviceGuard guard(devices());
  devices().enter(place);
  return act();
}

TargetPtr target_of(Handle *out, const DevicePlace &place, bool blocking, const std::string &name) {
  auto target = std::make_shared<Target>(out);
  *out = nullptr;
  return !in_group() || target->promise(place, blocking, name) ? target : nullptr;
}

Result silent_rank(const char *call, const CommPtr &parent, const std::vector<int> &ranks) {
  const std::string vendors = *parent->vendors.lock();
  for (const int r : ranks)
    if (static_cast<size_t>(r) < vendors.size() && std::strchr("nr", vendors[static_cast<size_t>(r)]) == nullptr)
      return refused(
          kInvalidUsage, call,
          "rank " + std::to_string(r) + " is of a vendor whose interface has no such call, so the others would wait for it");
  return kSuccess;
}

// A communicator has no deadline unless the program sets one. Who makes another from it waits for the others as long as in an init.
double exchange_seconds() {
  constexpr double kAsInit = 300;  // the default of ISTHMUS_TIMEOUT
  return std::getenv("ISTHMUS_TIMEOUT") ? 0 : kAsInit;
}

uint64_t next_call() {
  static std::atomic<uint64_t> calls{0};
  return ++calls;
}

std::vector<int> all_ranks(const CommPtr &parent) {
  std::vector<int> ranks(static_cast<size_t>(parent->traits().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Result split(Handle handle, int color, int key, Handle *out, Config *config) {
  const CommPtr parent = bridge::find(handle);
  if (!parent) return note(refused(kInvalidArgument, kSplit, "the communicator was destroyed or aborted"));
  CommRequest request;
  if (!out || color < -1)
    return note(refused(kInvalidArgument, kSplit, "newcomm is NULL, or the color is negative and not NCCL_SPLIT_NOCOLOR"));
  if (!read(config, request)) return note(refused(kInvalidArgument, kSplit, "the configuration was not initialised"));
  if (!config) request.blocking = parent->traits().blocking;
  if (const Outcome o = serves_parts(*parent); !o.ok()) return note(not_ready(kSplit, o));
  if (const Result r = silent_rank(kSplit, parent, all_ranks(parent))) return note(r);
  const auto kept = inherited(parent, config);
  const Traits &t = parent->traits();
  const TargetPtr target = color < 0 ? nullptr : target_of(out, t.place, request.blocking, t.name + "/part");
  if (color < 0) *out = nullptr;
  else if (!target) return note(no_handle(kSplit));
  const int number = parent->next_part();
  return act_or_defer(parent, [=] {
    if (parent->revoked()) return split_revoked(parent, color, key, target, kept->get());
    Target none(out);
    return split_now(parent, number, color, key, target ? *target : none, kept, request);
  });
}

Result shrink(Handle handle, int *excluded, int count, Handle *out, Config *config, int flags) {
  constexpr const char *kCall = "ncclCommShrink";
  constexpr int kDefault = 0, kAbort = 1;
  const CommPtr parent = bridge::find(handle);
  if (!parent) return note(refused(kInvalidArgument, kCall, "the communicator was destroyed or aborted"));
  if (!out || !excluded || count < 1)
    return note(refused(kInvalidArgument, kCall, "an argument is NULL, or no rank is excluded"));
  for (int i = 0; i < count; ++i)
    if (excluded[i] < 0 || excluded[i] >= parent->traits().size)
      return note(
          refused(kInvalidArgument, kCall,
                  "rank " + std::to_string(excluded[i]) + " is not in 0 to " + std::to_string(parent->traits().size - 1)));
  CommRequest request;
  if (!read(config, request)) return note(refused(kInvalidArgument, kCall, "the configuration was not initialised"));
  if (flags != kDefault && flags != kAbort)
    return note(refused(kInvalidArgument, kCall,
                        "flags " + std::to_string(flags) + ": neither NCCL_SHRINK_DEFAULT nor NCCL_SHRINK_ABORT"));
  const isthmus_comm_t over = parent->get();
  // A parent whose ranks have failed or are gone is what NCCL_SHRINK_ABORT is for, and a revoke.
  if (const Outcome o = serves_parts(*parent); !o.ok() && (flags == kDefault || !over)) return note(not_ready(kCall, o));
  std::vector<int> left;
  for (int r = 0; r < parent->traits().size; ++r)
    if (std::find(excluded, excluded + count, r) == excluded + count) left.push_back(r);
  const int mine = static_cast<int>(std::find(left.begin(), left.end(), parent->traits().rank) - left.begin());
  if (mine == static_cast<int>(left.size()))
    return note(refused(kInvalidArgument, kCall, "this rank is among those that are excluded"));
  if (const Result r = silent_rank(kCall, parent, left)) return note(r);
  const auto kept = inherited(parent, config);
  const Traits &t = parent->traits();
  const TargetPtr target = target_of(out, t.place, config ? request.blocking : t.blocking, t.name + "/part");
  if (!target) return note(no_handle(kCall));
  if (flags == kAbort) isthmus_comm_abort(over, "ncclCommShrink with NCCL_SHRINK_ABORT");
  return act_or_defer(parent, [=] {
    // The ranks that are excluded do not call, and may be gone, so nothing is collective over the parent. The first rank that
    // remains gives the others an id.
    std::vector<UniqueId> ids;
    UniqueId id{};
    if (mine == 0)
      if (const Result r = get_unique_id(&id)) return r;
    if (const Outcome o = exchange(parent, left, id, ids, Stale::Taken); !o.ok()) return failed(kCall, o);
    return init_part(kCall, target, left, ids[0], mine, kept->get());
  });
}

}  // namespace isthmus::bridge::nccl
