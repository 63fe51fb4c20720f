#include "comm.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

namespace isthmus::bridge {
namespace {

// From an exchange that fails isthmus_init gets a number only. The text is kept here.
struct MeetingExchange {
  isthmus_meeting_t meeting;
  Outcome failure;
};
int exchange(void *context, const void *send, void *recv, size_t bytes) {
  auto *e = static_cast<MeetingExchange *>(context);
  const isthmus_result r = isthmus_meeting_exchange(e->meeting, send, recv, bytes);
  if (r != ISTHMUS_OK) e->failure = outcome(r);
  return r;
}

const uint64_t *data(const std::vector<uint64_t> &v) { return v.empty() ? nullptr : v.data(); }

constexpr double kNoDeadline = 1e9;  // seconds: the longest that Isthmus takes

}  // namespace

Outcome submit(isthmus_comm_t c, const BridgedCall &o, isthmus_work_t *work) {
  isthmus_call call{};
  call.size = sizeof call;
  call.timeout = o.timeout;
  call.scale = o.factor.number;
  call.factor = &o.factor.bits;
  if (!o.label.empty()) call.label = o.label.c_str();
  call.on_stream = ISTHMUS_STREAM_BOTH;
  call.stream = o.stream;
  call.device_memory = ISTHMUS_MEMORY_BOTH;  // the vendors' interfaces take device memory only
  switch (o.call) {
    case OperationKind::AllReduce:
      return outcome(isthmus_all_reduce(c, o.send, o.recv, o.count, o.dtype, o.op, &call, work));
    case OperationKind::Reduce:
      return outcome(isthmus_reduce(c, o.send, o.recv, o.count, o.dtype, o.op, o.root, &call, work));
    case OperationKind::Broadcast:
      return outcome(isthmus_broadcast(c, o.send, o.recv, o.count, o.dtype, o.root, &call, work));
    case OperationKind::AllGather: return outcome(isthmus_all_gather(c, o.send, o.recv, o.count, o.dtype, &call, work));
    case OperationKind::ReduceScatter:
      return outcome(isthmus_reduce_scatter(c, o.send, o.recv, o.count, o.dtype, o.op, &call, work));
    case OperationKind::AllGatherV:
      return outcome(
          isthmus_all_gather_v(c, o.send, o.recv, data(o.recv_counts), data(o.recv_displs), o.dtype, &call, work));
    case OperationKind::ReduceScatterV:
      return outcome(
          isthmus_reduce_scatter_v(c, o.send, o.recv, data(o.send_counts), data(o.send_displs), o.dtype, o.op, &call, work));
    case OperationKind::AllToAll: return outcome(isthmus_all_to_all(c, o.send, o.recv, o.count, o.dtype, &call, work));
    case OperationKind::AllToAllV:
      return outcome(isthmus_all_to_all_v(c, o.send, data(o.send_counts), data(o.send_displs), o.recv, data(o.recv_counts),
                                          data(o.recv_displs), o.dtype, &call, work));
    case OperationKind::Gather: return outcome(isthmus_gather(c, o.send, o.recv, o.count, o.dtype, o.root, &call, work));
    case OperationKind::Scatter: return outcome(isthmus_scatter(c, o.send, o.recv, o.count, o.dtype, o.root, &call, work));
    case OperationKind::Send: return outcome(isthmus_send(c, o.send, o.count, o.dtype, o.root, 0, &call, work));
    case OperationKind::Recv: return outcome(isthmus_recv(c, o.recv, o.count, o.dtype, o.root, 0, nullptr, &call, work));
    case OperationKind::Barrier: return outcome(isthmus_barrier(c, &call, work));
  }
  return {ISTHMUS_ERR_INTERNAL, "no such call"};
}

bool as_bytes(BridgedCall &o) {
  const bool fits = !__builtin_mul_overflow(o.count, uint64_t{isthmus_dtype_size(o.dtype)}, &o.count);
  o.dtype = ISTHMUS_UINT8;
  return fits;
}

Outcome OperationGroup::record(const BridgedCalls &operations) {
  if (operations.empty()) return {};
  for (const auto &[comm, operation] : operations) {
    if (Outcome o = takes_operations(*comm); !o.ok()) return o;
    auto part = std::find_if(parts_.begin(), parts_.end(), [&mine = comm](const Part &one) { return one.comm == mine; });
    if (part == parts_.end()) part = parts_.insert(part, Part{comm, std::make_unique<Comm::InCall>(*comm), {}, {}});
    auto &streams = part->streams;
    if (std::find(streams.begin(), streams.end(), operation.stream) == streams.end()) streams.push_back(operation.stream);
  }
  isthmus_group_begin();
  open_ = true;
  for (const auto &[comm, operation] : operations) {
    isthmus_work_t work = nullptr;
    Outcome o = submit(comm->get(), operation, parts_.size() > 1 ? &work : nullptr);
    if (!o.ok()) return o;  // the failing call gives up the group
    if (!work) continue;
    const auto part =
        std::find_if(parts_.begin(), parts_.end(), [&mine = comm](const Part &one) { return one.comm == mine; });
    part->works.push_back(std::make_shared<LaunchedWork>(work));
  }
  waits_ = std::any_of(operations.begin(), operations.end(),
                       [](const auto &one) { return one.second.call == OperationKind::Barrier; });
  return {};
}

// All streams of a communicator wait for each other, through the first of them.
Outcome OperationGroup::join_streams() const {
  for (const Part &part : parts_) {
    const auto &streams = part.streams;
    for (size_t i = 1; i < streams.size(); ++i)
      if (Outcome o = outcome(isthmus_comm_order(part.comm->get(), streams[i], streams[0])); !o.ok()) return o;
    for (size_t i = 1; i < streams.size(); ++i)
      if (Outcome o = outcome(isthmus_comm_order(part.comm->get(), streams[0], streams[i])); !o.ok()) return o;
  }
  return {};
}

Outcome OperationGroup::launch() {
  if (!open_) return {};
  if (Outcome o = join_streams(); !o.ok()) return o;  // the destructor gives up the group
  open_ = false;
  isthmus_work_t handle = nullptr;
  Outcome ended = outcome(isthmus_group_end(waits_ ? nullptr : &handle));
  if (!ended.ok()) return ended;
  const auto whole = std::make_shared<LaunchedWork>(handle);
  for (Part &part : parts_) {
    if (part.works.empty()) part.works.push_back(whole);
    for (const auto &work : part.works) {
      part.comm->note(work);
      if (ended.ok()) ended = part.comm->known(*work);
    }
  }
  if (Outcome joined = join_streams(); ended.ok()) ended = std::move(joined);
  return ended;
}

OperationGroup::~OperationGroup() {
  if (!open_) return;
  isthmus_barrier(nullptr, nullptr, nullptr);  // a call that fails gives up the open group
  isthmus_work_t none = nullptr;
  isthmus_group_end(&none);
}

Outcome run_group(const BridgedCalls &operations) {
  OperationGroup group;
  if (Outcome o = group.record(operations); !o.ok()) return o;
  return group.launch();
}

std::string settings_of(const interpose::FrontDoor &door, const DevicePlace &place) {
  std::string text = "ISTHMUS_DEVICE=" + std::string(door.device) + ":" + std::to_string(place.device);
  if (!std::getenv("ISTHMUS_CCL_LIBRARY")) text += ";ISTHMUS_CCL_LIBRARY=" + std::string(door.path);
  return text;
}

std::shared_ptr<LocalRanks> LocalRanks::of(const std::string &key) {
  static auto *const all_ranks = new Guarded<std::map<std::string, std::weak_ptr<LocalRanks>>>;
  const auto all = all_ranks->lock();
  std::erase_if(*all, [](const auto &entry) { return entry.second.expired(); });
  std::weak_ptr<LocalRanks> &known = (*all)[key];
  std::shared_ptr<LocalRanks> ranks = known.lock();
  if (!ranks) known = ranks = std::make_shared<LocalRanks>(key);
  return ranks;
}
LocalRanks::~LocalRanks() {
  for (std::thread &thread : leaving_) thread.join();
}
void LocalRanks::joined() {
  const Lock lock(mutex_);
  ++living_;
}
void LocalRanks::leave(std::function<void()> act) {
  {
    const Lock lock(mutex_);
    if (--living_ > 0) try {
        leaving_.emplace_back(act);
        return;
      } catch (const std::exception &) {}  // no thread: this one then waits a while for the other ranks
  }
  act();
  std::vector<std::thread> leaving;
  {
    const Lock lock(mutex_);
    leaving.swap(leaving_);
  }
  for (std::thread &thread : leaving) thread.join();
}

Comm::~Comm() {
  if (comm_) isthmus_comm_destroy(comm_);
}

void Comm::settle(isthmus_comm_t comm, Outcome outcome) {
  // The deadlines of operations are the program's: NCCL has none, and PyTorch has a watchdog.
  if (comm && !traits_.deadlines && !std::getenv("ISTHMUS_TIMEOUT")) isthmus_comm_set_timeout(comm, kNoDeadline);
  Lock lock(mutex_);
  starting_ = false;
  failure_ = std::move(outcome);
  comm_ = comm;
  settled_.notify_all();
  if (!aborted_ || !comm) return;
  comm_ = nullptr;
  lock.unlock();
  isthmus_comm_abort(comm, "aborted while it was made");
  isthmus_comm_destroy(comm);
}

Outcome Comm::init(isthmus_meeting_t meeting, const std::string &settings, std::string of_vendors) {
  *vendors.lock() = std::move(of_vendors);
  MeetingExchange over{meeting, {}};
  isthmus_options options{};
  options.size = sizeof options;
  options.rank = traits_.rank;
  options.world_size = traits_.size;
  options.exchange = exchange;
  options.exchange_context = &over;
  options.name = traits_.name.c_str();
  options.settings = settings.c_str();
  isthmus_comm_t comm = nullptr;
  Outcome done = outcome(isthmus_init(&options, &comm));
  if (!done.ok() && !over.failure.ok()) done = {over.failure.code, done.text + ": " + over.failure.text};
  settle(comm, done);
  return done;
}

void Comm::adopt(isthmus_comm_t comm) { settle(comm, {}); }
void Comm::fail(Outcome why) { settle(nullptr, std::move(why)); }
// The communicator goes to the vendor's library. A thread that has just found the handle still hears that the communicator is
// being made.
void Comm::pass_on() {
  {
    const Lock lock(mutex_);
    gone_ = true;
    settled_.notify_all();
  }
  traits_.local_ranks->leave([] {});
}

Outcome Comm::status() {
  isthmus_comm_t comm = nullptr;
  {
    const Lock lock(mutex_);
    if (aborted_) return {ISTHMUS_ERR_ABORTED, "communicator '" + traits_.name + "' was aborted"};
    if (starting_) return {ISTHMUS_IN_PROGRESS, "communicator '" + traits_.name + "' is not ready yet"};
    if (!failure_.ok()) return failure_;
    if (!(comm = comm_)) return {ISTHMUS_ERR_ARGUMENT, "communicator '" + traits_.name + "' was destroyed"};
    if (revoked_) {
      const bool over = in_calls_ == 0 && std::all_of(works_.begin(), works_.end(), [](const auto &w) { return w->over(); });
      if (over) return {};
      return {ISTHMUS_IN_PROGRESS, "communicator '" + traits_.name + "' was revoked, and has operations in flight"};
    }
  }
  return outcome(isthmus_comm_error(comm));
}

isthmus_comm_t Comm::get() noexcept {
  const Lock lock(mutex_);
  return comm_;
}

bool Comm::blocks() noexcept {
  if (blocks_ < 0)
    if (isthmus_comm_t comm = get()) blocks_ = isthmus_comm_blocks(comm) != 0;
  return blocks_ > 0;
}

Outcome Comm::open() {
  const Lock lock(mutex_);
  if (revoked_)
    return {ISTHMUS_ERR_UNSUPPORTED,
            "communicator '" + traits_.name +
                "' was revoked: it takes no more operations. Make another one from it, or destroy it"};
  if (!finalized_) return {};
  return {ISTHMUS_ERR_ARGUMENT, "communicator '" + traits_.name + "' was finalized: it takes no more operations"};
}

Outcome Comm::run(const BridgedCall &operation) {
  if (Outcome o = open(); !o.ok()) return o;
  const InCall in_call(*this);
  isthmus_comm_t comm = get();
  if (!comm)
    if (Outcome o = status(); !o.ok()) return o;
  isthmus_work_t work = nullptr;
  Outcome o = submit(comm, operation, operation.call == OperationKind::Barrier ? nullptr : &work);
  if (!o.ok()) return o;
  const auto begun = std::make_shared<LaunchedWork>(work);
  note(begun);
  return known(*begun);
}

Outcome Comm::known(const LaunchedWork &work) {
  if (!blocks()) return {};
  Outcome now = work.outcome_now();
  if (now.code == ISTHMUS_IN_PROGRESS && revoked())
    return {ISTHMUS_ERR_ABORTED, "communicator '" + traits_.name + "' was revoked meanwhile"};
  // Work that has not ended will fail, where its communicator has failed.
  return now.code == ISTHMUS_IN_PROGRESS ? status() : now;
}

void Comm::note(std::shared_ptr<LaunchedWork> work) {
  const Lock lock(mutex_);
  while (!works_.empty() && works_.front()->over()) works_.pop_front();
  works_.push_back(std::move(work));
}

Outcome Comm::finalize() {
  std::deque<std::shared_ptr<LaunchedWork>> works;
  {
    const Lock lock(mutex_);
    finalized_ = true;
    works = works_;  // an abort meanwhile must see them
  }
  Outcome first;
  for (const auto &work : works)
    if (Outcome o = work->wait(); !o.ok() && first.ok()) first = o;
  return first;
}

Outcome Comm::drain() {
  {
    Lock lock(mutex_);
    settled_.wait(lock, [&]() ISTHMUS_REQUIRES(mutex_) { return !starting_ || gone_; });  // init has a deadline
  }
  return finalize();
}

Outcome Comm::destroy() {
  Outcome ended = drain();
  isthmus_comm_t comm = nullptr;
  {
    const Lock lock(mutex_);
    works_.clear();
    comm = std::exchange(comm_, nullptr);
  }
  traits_.local_ranks->leave([comm] { isthmus_comm_destroy(comm); });
  return revoked() ? Outcome{} : ended;  // a revoke has ended the operations as it was to do
}

// Once comm_ is null no call begins work any more, and a call that has begun work has noted it before it is no longer inside.
void Comm::abort() {
  isthmus_comm_t comm = nullptr;
  {
    const Lock lock(mutex_);
    aborted_ = gone_ = true;
    comm = std::exchange(comm_, nullptr);
    settled_.notify_all();
  }
  bool quiet = in_calls_ == 0;
  std::deque<std::shared_ptr<LaunchedWork>> works;
  {
    const Lock lock(mutex_);
    works.swap(works_);
  }
  // The program may have waited for its stream alone, and the end of an operation comes a moment behind that.
  constexpr double kGraceSeconds = 2;
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(kGraceSeconds);
  const auto ended = [&](const auto &work) {
    return work->over_within(std::chrono::duration<double>(until - Clock::now()).count());
  };
  quiet = quiet && std::all_of(works.begin(), works.end(), ended);
  if (comm && quiet) isthmus_comm_set_timeout(comm, kGraceSeconds);  // whatever is left then fails
  else if (comm) isthmus_comm_abort(comm, "the program called abort");
  works.clear();
  traits_.local_ranks->leave([comm] { isthmus_comm_destroy(comm); });
}

Outcome Comm::revoke() {
  isthmus_comm_t comm = nullptr;
  {
    const Lock lock(mutex_);
    if (revoked_) return {};
    if (starting_) return {ISTHMUS_IN_PROGRESS, "communicator '" + traits_.name + "' is not ready yet"};
    if (!failure_.ok()) return failure_;
    if (!(comm = comm_)) return {ISTHMUS_ERR_ARGUMENT, "communicator '" + traits_.name + "' was destroyed"};
    revoked_ = true;
  }
  return outcome(isthmus_comm_abort(comm, "the program revoked the communicator"));
}

Outcome takes_operations(Comm &comm) {
  if (!comm.revoked())
    if (Outcome o = comm.status(); !o.ok()) return o;
  return comm.open();
}
Outcome serves_parts(Comm &comm) { return comm.revoked() ? Outcome{} : comm.status(); }

int Comm::add(const Factor &factor) {
  const Lock lock(mutex_);
  factors_[next_factor_] = factor;
  return next_factor_++;
}
bool Comm::find(int number, Factor &factor) {
  const Lock lock(mutex_);
  const auto at = factors_.find(number);
  if (at == factors_.end()) return false;
  factor = at->second;
  return true;
}
bool Comm::remove(int number) {
  const Lock lock(mutex_);
  return factors_.erase(number) > 0;
}

}  // namespace isthmus::bridge
