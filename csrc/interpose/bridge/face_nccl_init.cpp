// How NCCL's and RCCL's communicators come to be: the census of their ranks, then the real library's call as the program
// made it, or Isthmus.
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "base/lock.hpp"
#include "face_nccl.hpp"
#include "handles.hpp"
#include "in_parallel.hpp"

namespace isthmus::bridge::nccl {
namespace {

using interpose::ConfigHead;
using interpose::kInProgress;
using interpose::kSuccess;

constexpr uint32_t kNamesSince = 22700;
constexpr size_t kMaxConfig = 4096;

// Up to NCCL 2.26 an init that does not block leaves its job in the thread-local memory of the caller (ncclGroupJobMain,
// ncclAsyncJobs). The library's own thread writes there, and the end of the communicator looks there. So the caller must live
// until the library's destroy or abort has returned.
bool binds_maker() {
  constexpr int kFreeSince = 22700;
  return door().version < kFreeSince;  // 0, unknown, too
}

class NcclInit final : public Init {
 public:
  NcclInit(const char *name_of_call, TargetPtr target) : Init(face(), name_of_call), target_(std::move(target)) {}
  // Makes the steps. In a group the steps wait for the group's end. An init that does not block makes the steps on a thread of
  // its own.
  Result begin();

  Result arrive() override;
  Result make_real() override;
  Result open() override;
  Result start() override { return blocking ? build() : apart(&NcclInit::build); }
  Result not_started(const std::string &why) override;
  Result promise() override { return target_->promise(place, blocking, full_name()) ? kSuccess : no_handle(call); }
  bool given_up() const override { return target_->given_up(); }
  void clear() noexcept override { target_->clear(); }

  bool blocking = true;
  std::shared_ptr<KeptConfig> config;
  std::function<Result(Handle *)> real_init;  // makes the call of the real library as the program made it
  std::vector<isthmus_ticket> others;         // of the meetings of further ids that this rank ends
  std::vector<UniqueId> ids;

 private:
  Result build();
  Result all_steps();
  Result made_by_real();
  Result none(Outcome why);
  Result apart(Result (NcclInit::*act)());

  const TargetPtr target_;
  CommPtr comm_;  // where it spans
};

Result NcclInit::begin() {
  if (in_group()) return defer();
  if (blocking || target_->promised()) return make();
  target_->clear();
  if (const Outcome o = devices().current(place); !o.ok()) return failed(call, o);
  if (const Result r = open()) return r;
  return apart(&NcclInit::all_steps);
}

Result NcclInit::arrive() {
  if (given_up()) return aborted(call);
  meet(arrival);
  end_meetings(others);
  return kSuccess;
}

// The real library writes the handle to the program's variable, or behind the handle that the program was promised.
Result NcclInit::make_real() {
  Handle *out = target_->vendors();
  if (!out) return aborted(call);
  return make_theirs(target_->handle(), blocking, place, [&] { return real_init(out); });
}

// Gives the program its handle. The communicator behind the handle follows.
Result NcclInit::open() {
  Traits traits{arrival.rank, arrival.world, place, blocking, full_name(), LocalRanks::of(name_of(arrival.tail.ticket)),
                config};
  comm_ = std::make_shared<Comm>(std::move(traits));
  const bool was_given_up = given_up();
  if (target_->put(comm_)) return kSuccess;
  comm_->abort();
  return was_given_up ? aborted(call) : no_handle(call);
}

Result NcclInit::build() {
  Outcome o;
  try {
    o = comm_->init(arrival.meeting, settings_of(door(), place), vendors_of(arrival.ranks));
  } catch (const std::exception &e) {
    o = {ISTHMUS_ERR_SYSTEM, e.what()};
    comm_->fail(o);  // a thread that destroys the communicator waits for this
  }
  isthmus_meeting_leave(arrival.meeting);
  arrival.meeting = nullptr;
  for (const UniqueId &id : ids) end_root(id.bytes);
  if (o.ok()) return kSuccess;
  const Result r = failed(call, o);
  if (blocking) target_->withdraw();
  else face().say(Level::Warn, std::string(call) + ": " + o.text);
  return r;
}

// Nobody waits for the communicator any more, and the program has no handle.
Result NcclInit::not_started(const std::string &why) {
  comm_->fail({ISTHMUS_ERR_RESOURCE, "no thread to make the communicator: " + why});
  const Result r = failed(call, comm_->status());
  target_->withdraw();
  return r;
}

Result NcclInit::apart(Result (NcclInit::*act)()) {
  try {
    std::thread([this, act, self = shared_from_this()] {
      ++door().thread()->inside;
      try {
        (this->*act)();
      } catch (const std::exception &e) { face().thrown(e); }
    }).detach();
  } catch (const std::exception &e) { return not_started(e.what()); }
  return kInProgress;
}

// All steps of an init that does not block, on its own thread. The program has a handle already, and asks for the state.
Result NcclInit::all_steps() {
  if (const Result r = arrive(); r != kSuccess) return r;
  tell();
  if (arrival.verdict == Verdict::Spans) return build();
  return arrival.verdict == Verdict::Failed ? none(arrival.outcome) : made_by_real();
}

// The handle that the program has becomes another name of the real library's communicator.
Result NcclInit::made_by_real() {
  const Outcome gone{ISTHMUS_ERR_ABORTED, "the program gave the communicator up while its ranks met"};
  void *const handle = target_->handle();
  if (find(handle) != comm_) return none(gone);
  const DeviceGuard guard(devices());
  devices().enter(place);
  // Kept for good: a library that goes on (versions around NCCL 2.14) may still look there when this thread has ended.
  static auto *const all = new Guarded<std::deque<Handle>>;
  Handle &theirs = all->lock()->emplace_back(nullptr);
  const Result r = real_init(&theirs);
  if (face().failure(r) || !theirs) {
    auto *why = face().real<const char *(Handle)>("ncclGetLastError");
    const char *text = why ? why(nullptr) : nullptr;
    return none({ISTHMUS_ERR_SYSTEM,
                 std::string(door().name) + " did not make the communicator (" + std::to_string(r) + ")" +
                     (text && *text ? std::string(": ") + text : std::string()),
                 face().failure(r) ? r : 0});
  }
  const AliasEnd its_end(handle);
  if (become_alias(handle, comm_, theirs)) {
    comm_->pass_on();
    target_->resolve(theirs);
    if (binds_maker()) its_end.wait();
    return kSuccess;
  }
  if (auto *end = face().real<Result(Handle)>("ncclCommAbort")) end(theirs);
  return none(gone);
}

// There will be no communicator. The state of the handle says why.
Result NcclInit::none(Outcome why) {
  face().say(Level::Warn, std::string(call) + ": " + why.text);
  const Result r = face().number_of(why);
  comm_->fail(std::move(why));
  return r;
}

}  // namespace

// ---- configurations ----------------------------------------------------------------------------------------------------------------

bool read(const Config *config, CommRequest &request) {
  request = {};
  if (!config) return true;
  const size_t size = size_of_config(config);
  if (size < offsetof(ConfigHead, blocking) || size > kMaxConfig) return false;
  ConfigHead c{};
  c.blocking = INT_MIN;
  c = read_head(config, c);
  if (c.magic != kConfigMagic) return false;
  if (c.blocking != INT_MIN && c.blocking != 0 && c.blocking != 1) return false;
  request.blocking = c.blocking != 0;
  if (size >= sizeof c && c.version >= kNamesSince && c.commName) request.name = c.commName;
  return true;
}

KeptConfig::KeptConfig(const Config *config) : copy_(config) {
  static auto *const texts = new Guarded<std::set<std::string>>;  // a library may still read when the process ends
  for (const size_t place : {offsetof(ConfigHead, netName), offsetof(ConfigHead, commName)}) {
    const char *text = nullptr;
    if (!copy_.holds(place, sizeof text)) continue;
    std::memcpy(&text, copy_.data() + place, sizeof text);
    if (!text) continue;
    text = texts->lock()->emplace(text).first->c_str();
    std::memcpy(copy_.data() + place, &text, sizeof text);
  }
}

// ---- ids ---------------------------------------------------------------------------------------------------------------------------

Result get_unique_id(UniqueId *id) {
  auto *f = face().real<Result(UniqueId *)>("ncclGetUniqueId");
  if (!f) return face().lacks("ncclGetUniqueId");
  if (!id) return f(id);
  UniqueId made{};  // up to NCCL 2.22 the library leaves the bytes behind its own part as they were
  if (const Result r = f(&made)) return r;
  *id = made;
  // NCCL_COMM_ID says where the ranks meet. Each rank then makes the id for itself, and the ids must be equal.
  if (std::getenv("NCCL_COMM_ID")) {
    static std::once_flag told;
    std::call_once(told, [] {
      face().say(
          Level::Warn,
          "NCCL_COMM_ID is set, so every rank makes the unique id for itself, and the id has no ticket of Isthmus: what is "
          "made with it cannot span vendors. Without the variable one rank makes the id");
    });
    return kSuccess;
  }
  add_ticket(face(), id->bytes, has_room(made.bytes), "unique id");
  return kSuccess;
}

// ---- init --------------------------------------------------------------------------------------------------------------------------

namespace {

std::vector<Tail> tails_of(std::span<const UniqueId> ids) {
  std::vector<Tail> tails(ids.size());
  for (size_t n = 0; n < ids.size(); ++n)
    if (!read_tail(ids[n].bytes, tails[n])) tails[n] = {};
  return tails;
}

using RealInit = std::function<Result(Handle *, Config *)>;
// `real_init` gets a configuration: the program's, or a copy. The census is held with the first id.
Result init(const char *call, Handle *out, int size, std::span<const UniqueId> ids, int rank, const Config *config,
            const RealInit &real_init, TargetPtr target = nullptr) {
  CommRequest request;
  Tail tail{};
  // NCCL tells less of this, or nothing.
  if (!out) face().tell(std::string(call) + ": the address for the communicator is NULL");
  // The real library tells the program of every other fault.
  if (!out || ids.empty() || size < 1 || rank < 0 || rank >= size || !read_tail(ids[0].bytes, tail) ||
      !read(config, request))
    return real_init(out, const_cast<Config *>(config));
  const auto i = std::make_shared<NcclInit>(call, target ? std::move(target) : std::make_shared<Target>(out));
  i->name = request.name;
  i->blocking = request.blocking;
  i->ids.assign(ids.begin(), ids.end());
  i->others = share_of(tails_of(ids), static_cast<size_t>(rank), static_cast<size_t>(size));
  i->expect(tail, rank, size);
  i->config = std::make_shared<KeptConfig>(config);
  // Where the call is made later, the program's configuration may be gone by then.
  if (in_group() || !i->blocking)
    i->real_init = [real_init, kept = i->config](Handle *to) { return real_init(to, kept->get()); };
  else i->real_init = [&real_init, config](Handle *to) { return real_init(to, const_cast<Config *>(config)); };
  return i->begin();
}

RealInit plain(int size, const UniqueId &id, int rank) {
  return [=](Handle *out, Config *c) { return init_real(out, size, id, rank, c); };
}

Result init_real_config(Handle *out, int size, const UniqueId &id, int rank, Config *config) {
  return call_real<Result(Handle *, int, UniqueId, int, Config *)>("ncclCommInitRankConfig", out, size, id, rank, config);
}

}  // namespace

// All ranks are in one process, so of one vendor.
Result init_all(Handle *out, int count, const int *devices) {
  return call_real<Result(Handle *, int, const int *)>("ncclCommInitAll", out, count, devices);
}

Result init_real(Handle *out, int size, const UniqueId &id, int rank, Config *config) {
  if (config) return init_real_config(out, size, id, rank, config);
  return call_real<Result(Handle *, int, UniqueId, int)>("ncclCommInitRank", out, size, id, rank);
}

Result make_theirs(const void *handle, bool blocking, const DevicePlace &place, const std::function<Result()> &call) {
  if (blocking || !on_parallel_thread() || !binds_maker()) return call();
  using Made = std::pair<Result, const char *>;
  std::promise<Made> made;
  std::future<Made> result = made.get_future();
  std::thread([end = AliasEnd(handle), &place, &call, made = std::move(made)]() mutable {
    ++door().thread()->inside;
    Result r = kSuccess;
    try {
      devices().enter(place);
      r = call();
    } catch (const std::exception &e) { r = face().thrown(e); }
    made.set_value({r, face().last_told()});  // nothing of the caller's is there from here on
    if (!face().failure(r)) end.wait();
  }).detach();
  const auto [r, text] = result.get();
  if (face().failure(r)) face().tell_again(text);
  return r;
}

Result init_as(const char *call, const TargetPtr &target, int size, const UniqueId &id, int rank, Config *config) {
  return init(call, target->variable(), size, {&id, 1}, rank, config, plain(size, id, rank), target);
}

Result init_rank(Handle *out, int size, UniqueId id, int rank) {
  return init("ncclCommInitRank", out, size, {&id, 1}, rank, nullptr, plain(size, id, rank));
}

Result init_rank_config(Handle *out, int size, UniqueId id, int rank, Config *config) {
  return init("ncclCommInitRankConfig", out, size, {&id, 1}, rank, config,
              [=](Handle *to, Config *c) { return init_real_config(to, size, id, rank, c); });
}

Result init_rank_scalable(Handle *out, int size, int rank, int count, UniqueId *ids, Config *config) {
  constexpr const char *kCall = "ncclCommInitRankScalable";
  const auto kept = std::make_shared<std::vector<UniqueId>>();
  if (ids && count > 0) kept->assign(ids, ids + count);
  return init(kCall, out, size, *kept, rank, config, [=](Handle *to, Config *c) {
    UniqueId *all = kept->empty() ? ids : kept->data();
    return call_real<Result(Handle *, int, int, int, UniqueId *, Config *)>(kCall, to, size, rank, count, all, c);
  });
}

Result init_rank_multi(Handle *out, int size, UniqueId id, int rank, int number) {
  constexpr const char *kCall = "ncclCommInitRankMulti";
  return init(kCall, out, size, {&id, 1}, rank, nullptr, [=](Handle *to, Config *) {
    return call_real<Result(Handle *, int, UniqueId, int, int)>(kCall, to, size, id, rank, number);
  });
}

}  // namespace isthmus::bridge::nccl
