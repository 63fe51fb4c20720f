// How communicators come to be: the census of their ranks, then the real library's call as the program made it, or Isthmus.
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "handles.hpp"
#include "face_nccl.hpp"

namespace isthmus::bridge::nccl {
namespace {

using interpose::ConfigHead;
using interpose::kInProgress;
using interpose::kInvalidArgument;
using interpose::kSuccess;
using interpose::kSystemError;

constexpr uint32_t kConfigMagic = 0xcafebeef;
constexpr uint32_t kNamesSince = 22700;
constexpr size_t kMostConfig = 4096;

std::span<const unsigned char> bytes_of(const UniqueId &id) { return id.bytes; }

// The meeting's settings and ours: the device that the thread works on, and the library that the door found.
std::string settings(const Place &place) {
  std::string text = "ISTHMUS_DEVICE=" + std::string(door().device) + ":" + std::to_string(place.device);
  if (!std::getenv("ISTHMUS_CCL_LIBRARY")) text += ";ISTHMUS_CCL_LIBRARY=" + std::string(door().path);
  return text;
}

void tell(const Init &i) {
  const Arrival &a = i.arrival;
  const std::string rank = "rank " + std::to_string(a.rank) + " of " + std::to_string(a.world);
  if (a.verdict == Verdict::Failed) return;
  const std::string who = " (" + describe(a.ranks) + ")";
  if (!a.outcome.ok())
    say(Level::Warn, std::string(i.call) + ", " + rank + ": not all ranks came to the census" + who +
                         "; taken for ranks without Isthmus, so " + door().name + " gets the communicator. " +
                         a.outcome.text);
  else if (a.verdict == Verdict::Vendor)
    say(Level::Info, std::string(i.call) + ", " + rank + ": " + door().name + " gets the communicator" + who);
  else say(Level::Info, std::string(i.call) + ", " + rank + ": Isthmus carries the communicator" + who);
}

// Gives the program its handle; what becomes of it follows.
Result open(Init &i) {
  const Arrival &a = i.arrival;
  if (const Outcome o = devices().current(i.place); !o.ok()) return failed(i.call, o);
  const std::string name = i.asked.name.empty() ? name_of(a.tail.ticket) : i.asked.name;
  i.comm = std::make_shared<Comm>(
      Traits{a.rank, a.world, i.place, i.asked.blocking, name, Family::of(name_of(a.tail.ticket)), i.config});
  *i.out = give_handle(i.comm);
  return *i.out ? kSuccess
                : refused(kSystemError, i.call,
                          "too many communicators that span vendors are in use, or there is no memory for their handles");
}

// What is the vendor's business is done; the rest on this thread.
Result build(Init &i) {
  const Outcome o = i.comm->init(i.arrival.meeting, settings(i.place));
  isthmus_meeting_leave(i.arrival.meeting);
  i.arrival.meeting = nullptr;
  if (o.ok()) return kSuccess;
  const Result r = failed(i.call, o);
  if (i.asked.blocking) {
    take_back(*i.out);
    i.comm->abort();
    *i.out = nullptr;
  } else {
    say(Level::Warn, std::string(i.call) + ": " + o.text);
  }
  return r;
}

Result start(std::unique_ptr<Init> i) {
  if (i->asked.blocking) return build(*i);
  std::thread([init = std::shared_ptr<Init>(std::move(i))] {
    interpose::Thread &t = *door().thread();
    ++t.inside;
    build(*init);
  }).detach();
  return kInProgress;
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

Result begin(std::unique_ptr<Init> i) {
  if (in_group()) {
    if (const Outcome o = devices().current(i->place); !o.ok()) return note(failed(i->call, o));
    *i->out = nullptr;
    pending().inits.push_back(std::move(i));
    return kSuccess;
  }
  meet(i->arrival);
  tell(*i);
  if (i->arrival.verdict == Verdict::Vendor) return i->real();
  *i->out = nullptr;
  if (i->arrival.verdict == Verdict::Failed) return failed(i->call, i->arrival.outcome);
  if (const Result r = open(*i)) return r;
  return start(std::move(i));
}

namespace {

// `real` is called with the configuration that it is given.
Result init(const char *call, Handle *out, int size, const UniqueId *id, int rank, const Config *config,
            const std::function<Result(Config *)> &real) {
  auto i = std::make_unique<Init>();
  // Of what is wrong the real library tells.
  if (!out || !id || size < 1 || rank < 0 || rank >= size || !read_tail(bytes_of(*id), i->arrival.tail) ||
      !read(config, i->asked))
    return real(const_cast<Config *>(config));
  i->call = call;
  i->out = out;
  i->arrival.mine = record_of(door().family, door().version);
  i->arrival.rank = rank;
  i->arrival.world = size;
  i->config = std::make_shared<KeptConfig>(config);
  if (in_group()) i->real = [real, kept = i->config] { return real(kept->get()); };
  else i->real = [&real, config] { return real(const_cast<Config *>(config)); };
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

Result init_as(const char *call, Handle *out, int size, const UniqueId &id, int rank, Config *config) {
  return init(call, out, size, &id, rank, config, [=](Config *c) { return init_real(out, size, id, rank, c); });
}

Result init_rank(Handle *out, int size, UniqueId id, int rank) {
  return init_as("ncclCommInitRank", out, size, id, rank, nullptr);
}

Result init_rank_config(Handle *out, int size, UniqueId id, int rank, Config *config) {
  return init("ncclCommInitRankConfig", out, size, &id, rank, config, [=](Config *c) {
    auto *f = real<Result(Handle *, int, UniqueId, int, Config *)>("ncclCommInitRankConfig");
    return f ? f(out, size, id, rank, c) : lacks("ncclCommInitRankConfig");
  });
}

Result init_rank_scalable(Handle *out, int size, int rank, int count, UniqueId *ids, Config *config) {
  const auto kept = std::make_shared<std::vector<UniqueId>>();
  if (ids && count > 0) kept->assign(ids, ids + count);
  return init("ncclCommInitRankScalable", out, size, kept->empty() ? nullptr : kept->data(), rank, config, [=](Config *c) {
    auto *f = real<Result(Handle *, int, int, int, UniqueId *, Config *)>("ncclCommInitRankScalable");
    return f ? f(out, size, rank, count, kept->empty() ? ids : kept->data(), c) : lacks("ncclCommInitRankScalable");
  });
}

Result init_rank_multi(Handle *out, int size, UniqueId id, int rank, int number) {
  return init("ncclCommInitRankMulti", out, size, &id, rank, nullptr, [=](Config *) {
    auto *f = real<Result(Handle *, int, UniqueId, int, int)>("ncclCommInitRankMulti");
    return f ? f(out, size, id, rank, number) : lacks("ncclCommInitRankMulti");
  });
}

// ---- groups ------------------------------------------------------------------------------------------------------------------------

namespace {

// Each on a thread of its own, for they wait for each other.
void at_once(size_t count, const std::function<void(size_t)> &act) {
  if (count == 1) return act(0);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      interpose::Thread &t = *door().thread();
      ++t.inside;
      act(i);
      --t.inside;
    });
  for (std::thread &t : threads) t.join();
}

}  // namespace

void group_forget() { delete static_cast<Pending *>(std::exchange(door().thread()->pending, nullptr)); }

Result group_end() {
  interpose::Thread &t = *door().thread();
  const std::unique_ptr<Pending> p(static_cast<Pending *>(std::exchange(t.pending, nullptr)));
  auto *end = real<Result()>("ncclGroupEnd");
  if (!end) return lacks("ncclGroupEnd");
  Result first = p->failure;
  const auto keep_first = [&](Result r) {
    if (r != kSuccess && (first == kSuccess || first == kInProgress)) first = r;
  };
  if (first == kSuccess) at_once(p->inits.size(), [&](size_t i) { meet(p->inits[i]->arrival); });
  std::vector<std::unique_ptr<Init>> ours;
  if (first == kSuccess && !p->inits.empty()) {
    const Moved moved;
    for (auto &i : p->inits) {
      tell(*i);
      devices().enter(i->place);
      if (i->arrival.verdict == Verdict::Vendor) {  // the real library's group is still open
        keep_first(i->real());
      } else if (i->arrival.verdict == Verdict::Failed) {
        keep_first(failed(i->call, i->arrival.outcome));
      } else {
        ours.push_back(std::move(i));
      }
    }
  }
  keep_first(end());
  // Nothing of ours begins before the real library's part is on its way, nor where that failed.
  if (first != kSuccess && first != kInProgress) return first;
  if (!ours.empty()) {
    const Moved moved;
    std::vector<std::unique_ptr<Init>> opened;
    for (auto &i : ours) {
      devices().enter(i->place);
      if (const Result r = open(*i)) keep_first(r);
      else opened.push_back(std::move(i));
    }
    std::vector<Result> results(opened.size(), kSuccess);
    at_once(opened.size(), [&](size_t i) { results[i] = start(std::move(opened[i])); });
    for (const Result r : results) keep_first(r);
  }
  if (!p->laters.empty()) {
    const Moved moved;
    // Those of one communicator one after the other: on another rank's threads another one might come first.
    std::vector<std::vector<size_t>> lines;
    for (size_t n = 0; n < p->laters.size(); ++n) {
      const auto same = [&](const auto &line) { return p->laters[line.front()].parent == p->laters[n].parent; };
      const auto known = std::find_if(lines.begin(), lines.end(), same);
      if (known == lines.end()) lines.push_back({n});
      else known->push_back(n);
    }
    std::vector<Result> results(p->laters.size(), kSuccess);
    at_once(lines.size(), [&](size_t i) {
      devices().enter(p->laters[lines[i].front()].parent->traits().place);
      for (const size_t n : lines[i]) results[n] = p->laters[n].act();
    });
    for (const Result r : results) keep_first(r);
  }
  if (first != kSuccess && first != kInProgress) return first;
  for (auto &[comm, operation] : p->operations)
    if (const Outcome o = resolve(*comm, operation); !o.ok()) return failed("ncclGroupEnd", o);
  keep_first(failed("ncclGroupEnd", run_group(p->operations)));
  return first;
}

}  // namespace isthmus::bridge::nccl
