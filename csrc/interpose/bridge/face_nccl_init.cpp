// How communicators come to be: the census of their ranks, then the real library's call as the program made it, or Isthmus.
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "in_parallel.hpp"
#include "face_nccl.hpp"
#include "handles.hpp"
#include "launch_batches.hpp"

namespace isthmus::bridge::nccl {
namespace {

using interpose::ConfigHead;
using interpose::kInProgress;
using interpose::kInvalidArgument;
using interpose::kSuccess;
using interpose::kSystemError;

constexpr uint32_t kNamesSince = 22700;
constexpr size_t kMostConfig = 4096;

void tell(const Init &i) {
  const Finding found = finding(i.call, door().name, i.arrival);
  if (!found.text.empty()) say(found.doubtful ? Level::Warn : Level::Info, found.text);
}

// Gives the program its handle; what becomes of it follows.
Result open(Init &i) {
  const Arrival &a = i.arrival;
  const std::string name = i.asked.name.empty() ? name_of(a.tail.ticket) : i.asked.name;
  i.comm = std::make_shared<Comm>(
      Traits{a.rank, a.world, i.place, i.asked.blocking, name, LocalRanks::of(name_of(a.tail.ticket)), i.config});
  const bool given_up = i.target->given_up();
  if (i.target->put(i.comm)) return kSuccess;
  i.comm->abort();
  return given_up ? aborted(i.call) : no_handle(i.call);
}

// What is the vendor's business is done; the rest on this thread.
Result build(Init &i) {
  Outcome o;
  try {
    o = i.comm->init(i.arrival.meeting, settings_of(door(), i.place));
  } catch (const std::exception &e) {
    o = {ISTHMUS_ERR_SYSTEM, e.what()};
    i.comm->fail(o);  // whoever destroys it waits for this
  }
  isthmus_meeting_leave(i.arrival.meeting);
  i.arrival.meeting = nullptr;
  if (o.ok()) return kSuccess;
  const Result r = failed(i.call, o);
  if (i.asked.blocking) i.target->withdraw();
  else say(Level::Warn, std::string(i.call) + ": " + o.text);
  return r;
}

// It will not be: nobody waits for it any more, and the program has no handle.
Result not_begun(Init &i, const std::string &why) {
  i.comm->fail({ISTHMUS_ERR_RESOURCE, "no thread to make the communicator: " + why});
  const Result r = failed(i.call, i.comm->status());
  i.target->withdraw();
  return r;
}

template <class Act>
Result apart(const std::shared_ptr<Init> &i, Act act) {
  try {
    std::thread([i, act] {
      ++door().thread()->inside;
      try {
        act(*i);
      } catch (const std::exception &e) { thrown(e); }
    }).detach();
  } catch (const std::exception &e) { return not_begun(*i, e.what()); }
  return kInProgress;
}

Result start(const std::shared_ptr<Init> &i) { return i->asked.blocking ? build(*i) : apart(i, build); }

// The real library's call. Where it writes the handle: the program's variable, or behind what the program was promised.
Result make_real(Init &i) {
  Handle *out = i.target->vendors();
  return out ? i.real(out) : aborted(i.call);
}

Result arrive(Init &i) {
  if (i.target->given_up()) return aborted(i.call);
  meet(i.arrival);
  end_meetings(i.others, [&](bool doubtful, const std::string &text) {
    say(doubtful ? Level::Warn : Level::Info, std::string(i.call) + ": " + text);
  });
  return kSuccess;
}

// Of an init that does not block: the census and what follows, on a thread of its own. The program has a handle, and asks for its state.
void carry_on(Init &i) {
  arrive(i);
  tell(i);
  if (i.arrival.verdict == Verdict::Spans) {
    build(i);
    return;
  }
  const auto none = [&](Outcome why) {
    say(Level::Warn, std::string(i.call) + ": " + why.text);
    i.comm->fail(std::move(why));
  };
  if (i.arrival.verdict == Verdict::Failed) return none(i.arrival.outcome);
  const Outcome given_up{ISTHMUS_ERR_ABORTED, "the program gave the communicator up while its ranks met"};
  void *const handle = i.target->handle();
  if (find(handle) != i.comm) return none(given_up);
  const DeviceGuard guard(devices());
  devices().enter(i.place);
  Handle theirs = nullptr;
  const Result r = i.real(&theirs);
  if (failure(r) || !theirs) {
    auto *why = real<const char *(Handle)>("ncclGetLastError");
    const char *text = why ? why(nullptr) : nullptr;
    return none({ISTHMUS_ERR_SYSTEM, std::string(door().name) + " did not make the communicator (" + std::to_string(r) +
                                         ")" + (text && *text ? std::string(": ") + text : std::string())});
  }
  if (become_alias(handle, i.comm, theirs)) return i.comm->pass_on();
  if (auto *end = real<Result(Handle)>("ncclCommAbort")) end(theirs);
  none(given_up);
}

}  // namespace

// ---- configurations ----------------------------------------------------------------------------------------------------------------

bool read(const Config *config, Asked &asked) {
  asked = {};
  if (!config) return true;
  size_t size = 0;
  std::memcpy(&size, config, sizeof size);
  if (size < offsetof(ConfigHead, blocking) || size > kMostConfig) return false;
  ConfigHead c{};
  c.blocking = INT_MIN;
  std::memcpy(&c, config, std::min(size, sizeof c));
  if (c.magic != kConfigMagic) return false;
  if (c.blocking != INT_MIN && c.blocking != 0 && c.blocking != 1) return false;
  asked.blocking = c.blocking != 0;
  if (size >= sizeof c && c.version >= kNamesSince && c.commName) asked.name = c.commName;
  return true;
}

KeptConfig::KeptConfig(const Config *config) {
  if (!config) return;
  size_t size = 0;
  std::memcpy(&size, config, sizeof size);
  bytes_.resize((size + sizeof bytes_[0] - 1) / sizeof bytes_[0]);
  auto *at = reinterpret_cast<unsigned char *>(bytes_.data());
  std::memcpy(at, config, size);
  const size_t places[] = {offsetof(ConfigHead, netName), offsetof(ConfigHead, commName)};
  for (int i = 0; i < 2; ++i) {
    const char *text = nullptr;
    if (size < places[i] + sizeof text) continue;
    std::memcpy(&text, at + places[i], sizeof text);
    if (!text) continue;
    texts_[i] = text;
    text = texts_[i].c_str();
    std::memcpy(at + places[i], &text, sizeof text);
  }
}

// ---- ids ---------------------------------------------------------------------------------------------------------------------------

Result get_unique_id(UniqueId *id) {
  auto *f = real<Result(UniqueId *)>("ncclGetUniqueId");
  if (!f) return lacks("ncclGetUniqueId");
  if (!id) return f(id);
  UniqueId made{};  // up to NCCL 2.22 what lies behind the library's own part stays as it was
  if (const Result r = f(&made)) return r;
  *id = made;
  // Where NCCL_COMM_ID says where the ranks meet, each makes the id for itself, and they must be alike.
  if (std::getenv("NCCL_COMM_ID")) return kSuccess;
  isthmus_ticket ticket;
  std::string why;
  if (!has_room(made.bytes)) why = std::string("it leaves no room for it in ") + door().path;
  else if (const Outcome o = outcome(isthmus_meeting_create(&ticket)); !o.ok()) why = o.text;
  if (why.empty()) write_tail(id->bytes, door().family, ticket);
  else say(Level::Warn, "the unique id has no ticket of Isthmus, so what is made with it cannot span vendors: " + why);
  return kSuccess;
}

// ---- init --------------------------------------------------------------------------------------------------------------------------

namespace {

Result begin_apart(const std::shared_ptr<Init> &i) {
  i->target->clear();
  if (const Outcome o = devices().current(i->place); !o.ok()) return failed(i->call, o);
  if (const Result r = open(*i)) return r;
  return apart(i, carry_on);
}

}  // namespace

Result begin(std::unique_ptr<Init> i) {
  if (in_group()) {
    if (const Outcome o = devices().current(i->place); !o.ok()) return note(failed(i->call, o));
    const std::string name = i->asked.name.empty() ? name_of(i->arrival.tail.ticket) : i->asked.name;
    if (!i->target->promise(i->place, i->asked.blocking, name)) return note(no_handle(i->call));
    pending().inits.push_back(std::move(i));
    return kSuccess;
  }
  if (!i->asked.blocking && !i->target->promised()) return begin_apart(std::move(i));
  if (const Result r = arrive(*i)) return r;
  tell(*i);
  if (i->arrival.verdict == Verdict::Vendor) return make_real(*i);
  i->target->clear();
  if (i->arrival.verdict == Verdict::Failed) return failed(i->call, i->arrival.outcome);
  if (const Outcome o = devices().current(i->place); !o.ok()) return failed(i->call, o);
  if (const Result r = open(*i)) return r;
  return start(std::move(i));
}

namespace {

std::vector<Tail> tails_of(std::span<const UniqueId> ids) {
  std::vector<Tail> tails(ids.size());
  for (size_t n = 0; n < ids.size(); ++n)
    if (!read_tail(ids[n].bytes, tails[n])) tails[n] = {};
  return tails;
}

using RealInit = std::function<Result(Handle *, Config *)>;
// `real` is called with the configuration that it is given, the program's or a copy. The first id is that of the census.
Result init(const char *call, Handle *out, int size, std::span<const UniqueId> ids, int rank, const Config *config,
            const RealInit &real, TargetPtr target = nullptr) {
  auto i = std::make_unique<Init>();
  if (!out)
    tell_again(keep(std::string(call) + ": the address for the communicator is NULL"));  // NCCL says less, or nothing
  // Of what is wrong the real library tells.
  if (!out || ids.empty() || size < 1 || rank < 0 || rank >= size || !read_tail(ids[0].bytes, i->arrival.tail) ||
      !read(config, i->asked))
    return real(out, const_cast<Config *>(config));
  i->call = call;
  i->target = target ? std::move(target) : std::make_shared<Target>(out);
  i->others = share_of(tails_of(ids), static_cast<size_t>(rank), static_cast<size_t>(size));
  i->arrival.mine = record_of(door().family, door().version);
  i->arrival.rank = rank;
  i->arrival.world = size;
  i->config = std::make_shared<KeptConfig>(config);
  if (in_group() || !i->asked.blocking) i->real = [real, kept = i->config](Handle *to) { return real(to, kept->get()); };
  else i->real = [&real, config](Handle *to) { return real(to, const_cast<Config *>(config)); };
  return begin(std::move(i));
}

}  // namespace

Result init_all(Handle *out, int count, const int *devices) {  // of one process, so of one vendor
  auto *f = real<Result(Handle *, int, const int *)>("ncclCommInitAll");
  return f ? f(out, count, devices) : lacks("ncclCommInitAll");
}

Result init_real(Handle *out, int size, const UniqueId &id, int rank, Config *config) {
  if (config) {
    auto *f = real<Result(Handle *, int, UniqueId, int, Config *)>("ncclCommInitRankConfig");
    return f ? f(out, size, id, rank, config) : lacks("ncclCommInitRankConfig");
  }
  auto *f = real<Result(Handle *, int, UniqueId, int)>("ncclCommInitRank");
  return f ? f(out, size, id, rank) : lacks("ncclCommInitRank");
}

namespace {

RealInit plain(int size, const UniqueId &id, int rank) {
  return [=](Handle *out, Config *c) { return init_real(out, size, id, rank, c); };
}

}  // namespace

Result init_as(const char *call, const TargetPtr &target, int size, const UniqueId &id, int rank, Config *config) {
  return init(call, target->variable(), size, {&id, 1}, rank, config, plain(size, id, rank), target);
}

Result init_rank(Handle *out, int size, UniqueId id, int rank) {
  return init("ncclCommInitRank", out, size, {&id, 1}, rank, nullptr, plain(size, id, rank));
}

Result init_rank_config(Handle *out, int size, UniqueId id, int rank, Config *config) {
  return init("ncclCommInitRankConfig", out, size, {&id, 1}, rank, config, [=](Handle *to, Config *c) {
    auto *f = real<Result(Handle *, int, UniqueId, int, Config *)>("ncclCommInitRankConfig");
    return f ? f(to, size, id, rank, c) : lacks("ncclCommInitRankConfig");
  });
}

Result init_rank_scalable(Handle *out, int size, int rank, int count, UniqueId *ids, Config *config) {
  const auto kept = std::make_shared<std::vector<UniqueId>>();
  if (ids && count > 0) kept->assign(ids, ids + count);
  return init("ncclCommInitRankScalable", out, size, *kept, rank, config, [=](Handle *to, Config *c) {
    auto *f = real<Result(Handle *, int, int, int, UniqueId *, Config *)>("ncclCommInitRankScalable");
    return f ? f(to, size, rank, count, kept->empty() ? ids : kept->data(), c) : lacks("ncclCommInitRankScalable");
  });
}

Result init_rank_multi(Handle *out, int size, UniqueId id, int rank, int number) {
  return init("ncclCommInitRankMulti", out, size, {&id, 1}, rank, nullptr, [=](Handle *to, Config *) {
    auto *f = real<Result(Handle *, int, UniqueId, int, int)>("ncclCommInitRankMulti");
    return f ? f(to, size, id, rank, number) : lacks("ncclCommInitRankMulti");
  });
}

// ---- groups ------------------------------------------------------------------------------------------------------------------------

namespace {

Result worse(Result first, Result next) {
  return first == kSuccess || (first == kInProgress && next != kSuccess) ? next : first;
}

// The first failure.
Result worst(const std::vector<Result> &results) {
  Result first = kSuccess;
  for (const Result r : results) first = worse(first, r);
  return first;
}
Result all_in_parallel(size_t count, const std::function<Result(size_t)> &act) {
  return worst(in_parallel(door(), count, act, thrown));
}

// The real library's group then ends as where one of its own calls fails in it, so nothing of it is launched: for that it gets such a call.
// RCCL looks into a communicator before it looks whether it is one.
void spoil() {
  constexpr int kFloat = 7, kSum = 0;
  if (std::strcmp(door().family, "rccl") == 0) {
    Handle none = nullptr;
    if (auto *f = real<Result(Handle *, int, UniqueId, int)>("ncclCommInitRank")) f(&none, 1, UniqueId{}, 1);
  } else if (auto *f = real<Result(const void *, void *, size_t, int, int, Handle, void *)>("ncclAllReduce")) {
    f(nullptr, nullptr, 0, kFloat, kSum, nullptr, nullptr);
  }
}

}  // namespace

void group_forget() { delete static_cast<Pending *>(std::exchange(door().thread()->pending, nullptr)); }

namespace {

Result end_group(Pending *p, LaunchBatches &batches, RealGroup &group) {
  Result first = p->failure;
  const char *why = p->why;
  const auto keep_first = [&](Result r) {
    if (const Result before = std::exchange(first, worse(first, r)); before != first) why = last_told();
  };
  // Where nothing has to be made before they can begin, operations are checked before the real library's are on their way.
  const bool alone = p->inits.empty() && p->laters.empty();
  if (first == kSuccess && alone) keep_first(failed("ncclGroupEnd", batches.check(true)));
  if (first == kSuccess) keep_first(all_in_parallel(p->inits.size(), [&](size_t i) { return arrive(*p->inits[i]); }));
  std::vector<std::shared_ptr<Init>> ours;
  bool theirs = false;  // the failure
  if (first == kSuccess && !p->inits.empty()) {
    const DeviceGuard guard(devices());
    for (auto &i : p->inits) {
      tell(*i);
      devices().enter(i->place);
      if (i->arrival.verdict == Verdict::Vendor) {  // the real library's group is still open
        const bool mine = i->target->given_up();
        const Result r = make_real(*i);
        theirs = theirs || (failure(r) && !mine);
        keep_first(r);
      } else if (i->arrival.verdict == Verdict::Failed) {
        keep_first(failed(i->call, i->arrival.outcome));
      } else {
        ours.push_back(std::move(i));
      }
    }
  }
  if (failure(first)) {
    if (!theirs) spoil();
    const bool launched = !failure(group.end());
    p->inits.clear();
    if (launched) tell_again(keep((why ? why : "ncclGroupEnd") + batches.text_of_half()));
    else if (!theirs) tell_again(why);
    return first;
  }
  keep_first(group.end());
  p->inits.clear();  // what is the vendor's has its handles now
  // Nothing of ours begins before the real library's part is on its way, nor where that failed.
  if (failure(first)) return first;
  if (!ours.empty()) {
    const DeviceGuard guard(devices());
    std::vector<std::shared_ptr<Init>> opened;
    for (auto &i : ours) {
      if (const Result r = open(*i)) keep_first(r);
      else opened.push_back(std::move(i));
    }
    keep_first(all_in_parallel(opened.size(), [&](size_t i) {
      opened[i]->begun = true;
      devices().enter(opened[i]->place);
      return start(opened[i]);
    }));
    for (const auto &i : opened)
      if (!i->begun) not_begun(*i, "there are not enough for all of the group");
  }
  if (!p->laters.empty()) {
    const DeviceGuard guard(devices());
    // Those of one communicator one after the other: on another rank's threads another one might come first.
    std::vector<std::vector<size_t>> parents;
    for (size_t n = 0; n < p->laters.size(); ++n) {
      const auto same = [&](const auto &one) { return p->laters[one.front()].parent == p->laters[n].parent; };
      const auto known = std::find_if(parents.begin(), parents.end(), same);
      if (known == parents.end()) parents.push_back({n});
      else known->push_back(n);
    }
    keep_first(all_in_parallel(parents.size(), [&](size_t i) {
      devices().enter(p->laters[parents[i].front()].parent->traits().place);
      Result first_of_it = kSuccess;
      for (const size_t n : parents[i]) try {
          first_of_it = worse(first_of_it, p->laters[n].act());
        } catch (const std::exception &e) {
          first_of_it = worse(first_of_it, thrown(e));
        }  // the other ranks go on with the next
      return first_of_it;
    }));
    p->laters.clear();
  }
  // What became of operations, when the rest of the group is on its way.
  const auto half = [&](Outcome o) {
    if (!o.ok()) o.text += batches.text_of_half();
    return failed("ncclGroupEnd", o);
  };
  if (failure(first)) {
    if (!batches.empty()) tell_again(keep((why ? why : "ncclGroupEnd") + batches.text_of_half()));
    return first;
  }
  if (!alone)
    if (Outcome ready = batches.check(true); !ready.ok()) return half(std::move(ready));
  if (!batches.empty()) keep_first(worst(batches.launch(half, thrown)));
  return first;
}

}  // namespace

Result group_end() {
  interpose::Thread &t = *door().thread();
  const std::unique_ptr<Pending> p(static_cast<Pending *>(std::exchange(t.pending, nullptr)));
  auto *end = real<Result()>("ncclGroupEnd");
  if (!end) return lacks("ncclGroupEnd");
  RealGroup group(end);
  LaunchBatches batches(door(), devices(), resolve);
  try {
    batches.take(std::move(p->operations));
    return end_group(p.get(), batches, group);
  } catch (const std::exception &e) {
    if (group.open()) spoil();
    const bool launched = !failure(group.end());
    const Result r = thrown(e);
    p->inits.clear();
    if (launched) tell_again(keep(last_told() + batches.text_of_half()));
    return r;
  }
}

}  // namespace isthmus::bridge::nccl
