// Groups: operations that a thread records, and submits together at the end of its group.
#include <algorithm>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "comm/communicator.hpp"

namespace isthmus::comm {
namespace {

struct OpenGroup {
  using Operations = std::vector<std::pair<std::shared_ptr<Communicator>, engine::Operation *>>;
  int depth = 0;
  Operations ops;
  Status failure;
};
thread_local OpenGroup group;
thread_local std::vector<engine::Operation *> messages_of_group;  // room for a list
// The groups of this thread that end just now, the innermost first.
struct EndingGroup {
  const OpenGroup::Operations &ops;
  const EndingGroup *const outer = std::exchange(innermost, this);
  explicit EndingGroup(const OpenGroup::Operations &of) noexcept : ops(of) {}
  EndingGroup(const EndingGroup &) = delete;
  EndingGroup &operator=(const EndingGroup &) = delete;
  ~EndingGroup() { innermost = outer; }
  static thread_local const EndingGroup *innermost;
};
thread_local const EndingGroup *EndingGroup::innermost = nullptr;
// In a forked child: an open group is the parent's, and the child lets go of nothing that the group holds.
const InChild forgets_group([](void *) noexcept {
  if (group.depth > 0) ::new (&group) OpenGroup;
});

// The messages of a group whose messages are all of one communicator. Of several, each would wait in turn for other ranks' groups.
void by_library(const OpenGroup::Operations &ops) {
  // Taken out as the list of group_end(): while these are agreed on, the program's interrupt check may open a group.
  std::vector<engine::Operation *> messages = std::move(messages_of_group);
  struct Restore {
    std::vector<engine::Operation *> &list;
    ~Restore() {
      list.clear();
      messages_of_group = std::move(list);
    }
  } const restore{messages};
  rank::Rank *one = nullptr;
  for (const auto &[comm, op] : ops) {
    if (!op->is_p2p()) continue;
    if (one && one != &comm->local()) return;
    one = &comm->local();
    messages.push_back(op);
  }
  if (one) rank::exchange_by_library(*one, messages);
}

}  // namespace

void group_begin() { ++group.depth; }
bool group_open() noexcept { return group.depth > 0; }

bool group_ends_here(const Communicator &communicator) noexcept {
  for (const EndingGroup *ends = EndingGroup::innermost; ends; ends = ends->outer)
    for (const auto &[comm, op] : ends->ops)
      if (comm.get() == &communicator) return true;
  return false;
}

void group_add(std::shared_ptr<Communicator> comm, engine::Operation *op) {
  engine::OperationPool::retain(op);
  group.ops.emplace_back(std::move(comm), op);
}

void group_fail(const Error &error) noexcept {
  if (group.depth > 0 && group.failure.ok()) group.failure = {error.code(), error.text()};
}

engine::Operation *group_end(bool waits) {
  if (group.depth == 0) fail(Code::Argument, "group_end without group_begin on this thread");
  if (--group.depth > 0) return nullptr;
  // The list is taken out, so a callback may open another group. At the end the list is given back, so the thread's next group allocates nothing.
  auto ops = std::move(group.ops);
  struct Restore {
    decltype(ops) &list;
    ~Restore() {
      list.clear();
      if (group.ops.empty()) group.ops = std::move(list);
    }
  } restore{ops};
  const EndingGroup ends(ops);
  Status failure = std::exchange(group.failure, {});
  // Before anything is submitted: a stream may wait for what the group is about to do.
  try {
    for (auto &[comm, op] : ops)
      if (failure.ok()) by_slots(comm->terms().numbering, [&of = *comm, &given = *op] { of.make_ready(given); });
  } catch (const Error &e) { failure = e.why(); }
  auto &pool = engine::OperationPool::instance();
  if (!failure.ok()) {
    for (auto &[comm, op] : ops) {
      // Handles given out inside the group must end too.
      op->rank = &comm->local();
      op->core = &op->rank->core();
      op->keep = comm->local().shared_from_this();
      op->end.ranks = failure.ranks;
      engine::finish_operation(op, failure.code, "the group was cancelled: " + failure.text, now_ns());
    }
    throw Error(failure);
  }
  engine::Operation *parent = pool.take();
  parent->end.children.store(static_cast<uint32_t>(ops.size()) + 1, std::memory_order_relaxed);
  engine::OperationPool::retain(parent);  // the engine's, dropped when the last child ends
  if (!ops.empty()) {
    parent->rank = &ops.front().first->local();
    parent->core = &parent->rank->core();
    parent->keep = parent->rank->shared_from_this();
  }
  // The order of submission:
  //   1. sends         a receive of device memory may hold up the device until its message has come, so sends go before receives
  //   2. receives
  //   3. collectives   sends and receives move on their own, and so a collective that completes at once does not keep them waiting
  const auto turn = [](const engine::Operation &op) {
    return !op.is_p2p() ? 2 : op.call.collective == plan::Collective::Recv ? 1 : 0;
  };
  for (auto &[comm, op] : ops) op->end.parent = parent;
  by_library(ops);
  for (auto &[comm, op] : ops)
    if (!messages::LibraryMessages::by_library(*op)) comm->local().messages().slots().announce(op);
  const bool several = std::any_of(ops.begin(), ops.end(), [&](const auto &o) { return &o.first->local() != parent->rank; });
  // On the device no collective stands before the copy of a send that waits for its slot, nor before what a peer needs to come to the collective.
  for (int pass = 0; pass < 3; ++pass) {
    if (pass == 2) messages::StreamOrder::settle();
    for (auto &[comm, op] : ops) {
      if (turn(*op) != pass || messages::LibraryMessages::by_library(*op)) continue;
      comm->local().submit(op);
      // A caller that waits drives its only communicator itself: no other thread is woken for that communicator. Of several communicators each
      // has to go on while the caller submits to another one, where the caller may wait for room on the device.
      if (!waits || several) comm->local().context().progress().activate(comm->local().port());
    }
  }
  for (auto &[comm, op] : ops) {
    if (op->call.by_call) comm->local().driver().wait(op, INT64_MAX);
    pool.release(op);
  }
  if (parent->end.children.fetch_sub(1, std::memory_order_acq_rel) == 1)
    engine::finish_operation(parent, parent->end.result, std::string(parent->end.text), now_ns());
  return parent;
}

}  // namespace isthmus::comm
