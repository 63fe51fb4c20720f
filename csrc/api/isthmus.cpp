// The functions of isthmus.h, the C ABI. Each function translates its arguments, and holds no algorithm. Each function catches every exception, and
// leaves the text of a failure for isthmus_last_error().
#include "isthmus/isthmus.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "api/call.hpp"
#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/log.hpp"
#include "bootstrap/rendezvous.hpp"
#include "collective/end_marks.hpp"
#include "comm/buffer_memory.hpp"
#include "comm/commit.hpp"
#include "comm/communicator.hpp"
#include "comm/grow.hpp"
#include "comm/reconfigure.hpp"
#include "engine/completions.hpp"
#include "net/wait.hpp"
#include "observe/dump.hpp"
#include "observe/dumper.hpp"
#include "observe/explain.hpp"
#include "observe/measure.hpp"
#include "observe/leader_exchange.hpp"

namespace i = isthmus;
using i::Code;
using i::Collective;
using i::api::CallHere;
using i::api::CallInside;
using i::api::EndOfCall;
using i::api::epoch_of;
using i::api::failed;
using i::api::go_over;
using i::api::guarded;
using i::comm::Communicator;
using i::engine::Operation;
using i::engine::OperationPool;

static_assert(static_cast<int>(Code::Internal) == ISTHMUS_ERR_INTERNAL &&
              static_cast<int>(Code::InProgress) == ISTHMUS_IN_PROGRESS);
static_assert(static_cast<int>(Code::Forked) == ISTHMUS_ERR_FORKED &&
              static_cast<int>(Code::Unsupported) == ISTHMUS_ERR_UNSUPPORTED);
static_assert(static_cast<int>(Code::Device) == ISTHMUS_ERR_DEVICE && i::kLastCode == Code::Device);
static_assert(i::kDTypeCount == ISTHMUS_DTYPE_COUNT && static_cast<int>(i::DType::Complex128) == ISTHMUS_COMPLEX128);
static_assert(i::kRedOpCount == ISTHMUS_REDOP_COUNT && static_cast<int>(i::RedOp::PremulSum) == ISTHMUS_PREMUL_SUM);

struct isthmus_meeting {
  std::unique_ptr<i::bootstrap::Exchange> exchange;
  double timeout;  // of each exchange, in seconds
  int world;
  const i::Birth birth = {};
  void check_ours(const char *what) const {
    if (!birth.here())
      i::fail(Code::Forked, "{}: the meeting belongs to the parent process, and a forked child cannot use it; join one here",
              what);
  }
};

namespace {

constexpr std::size_t kMembersBytes = 1024;  // of isthmus_options.members

// Aborts the epoch there is while another thread is in isthmus_comm_reconfigure, which then waits no longer for operations. False: none is.
bool abort_meanwhile(isthmus_comm_t comm, const char *reason, Communicator::Words words) {
  if (!comm || !comm->birth.here() || !comm->changing.load(std::memory_order_seq_cst)) return false;
  if (const auto epoch = epoch_of(comm)) epoch->abort(reason ? reason : "", words);
  return true;
}

Operation *op_of(isthmus_work_t work) { return reinterpret_cast<Operation *>(work); }

void check_ours(const Operation *op, const char *what) {
  if (op->birth.here()) return;
  i::fail(Code::Forked,
          "{}: the operation belongs to the parent process, and a forked child never sees its end; wait in the parent",
          what);
}

isthmus_result result_of(Operation *op) {
  if (op->end.result == Code::Ok) return ISTHMUS_OK;
  return failed(op->end.result, op->end.text, op->end.ranks);
}

char *copy_text(const std::string &s) {
  char *p = static_cast<char *>(std::malloc(s.size() + 1));
  if (!p) throw std::bad_alloc();
  std::memcpy(p, s.c_str(), s.size() + 1);
  return p;
}

// Programs that were compiled when these types were numbers have an int in their place.
static_assert(sizeof(isthmus_stream_order) == sizeof(int) && sizeof(isthmus_memory_claim) == sizeof(int) &&
              sizeof(isthmus_shrink_mode) == sizeof(int));
static_assert(sizeof(void *) != 8 || (offsetof(isthmus_call, on_stream) == 32 && offsetof(isthmus_call, stream) == 40 &&
                                      offsetof(isthmus_call, device_memory) == 56 && offsetof(isthmus_call, keep) == 64 &&
                                      offsetof(isthmus_call, commit) == 72 && sizeof(isthmus_call) == 80));

// A struct that begins with its size. A member that an older caller's struct does not have reads as 0.
template <class T>
T versioned(const T *given, const char *what) {
  T out{};
  if (!given) return out;
  if (given->size < sizeof(size_t) * 2 || given->size > 4096)
    i::fail(Code::Argument, "{}.size is {}: set it to sizeof({})", what, given->size, what);
  std::memcpy(&out, given, std::min(given->size, sizeof(T)));
  return out;
}

// The environment's settings, overlaid by the caller's.
i::Settings settings_of(const isthmus_options &o) {
  i::Settings settings = i::Settings::from_environment();
  if (o.settings) settings.apply(o.settings);
  if (o.island) settings.set("ISTHMUS_ISLAND", o.island);
  if (o.bridge) settings.set("ISTHMUS_BRIDGE", o.bridge);
  if (o.timeout != 0) settings.set("ISTHMUS_TIMEOUT", i::formatted("{}", o.timeout));
  return settings;
}

void read_call(i::comm::CallRequest &r, const isthmus_call &given) {
  const isthmus_call c = versioned(&given, "isthmus_call");
  r.timeout = c.timeout;
  r.scale = c.scale;
  r.factor = c.factor;
  r.label = c.label;
  r.on_stream = c.on_stream != ISTHMUS_STREAM_NONE;
  r.order_later = c.on_stream == ISTHMUS_STREAM_BEFORE;
  if (r.order_later && i::comm::group_open())
    i::fail(Code::Argument, "{}: in a group nothing can be ordered later (ISTHMUS_STREAM_BEFORE)",
            i::collective_name(r.collective));
  r.commit = c.commit != 0;
  r.keep = c.keep != 0 || r.commit;
  if (r.commit && i::comm::group_open())
    i::fail(Code::Unsupported, "{}: in a group no operation is done on all ranks or on none (isthmus_call.commit)",
            i::collective_name(r.collective));
  if (r.keep && i::comm::group_open())
    i::fail(Code::Unsupported, "{}: in a group no memory is kept (isthmus_call.keep)", i::collective_name(r.collective));
  r.stream = c.stream;
  r.device_memory = c.device_memory;
}

isthmus_result submit(isthmus_comm_t comm, i::comm::CallRequest &r, const isthmus_call *call, isthmus_work_t *work,
                      int *source = nullptr) noexcept {
  if (work) *work = nullptr;
  const EndOfCall end_of_call;
  try {
    const bool blocking = !work && !i::comm::group_open();
    if (call) read_call(r, *call);
    if (r.commit && work)
      i::fail(Code::Unsupported,
              "{}: an operation that is done on all ranks or on none blocks (isthmus_call.commit): call it without a work, "
              "and without async_op",
              i::collective_name(r.collective));
    const CallInside inside(comm, r.collective);
    Communicator &communicator = *inside;
    auto &local = communicator.local();
    const auto prepare = [&](Operation &op) {
      i::comm::by_slots(communicator.terms().numbering, [&] {
        communicator.prepare(r, op);
        if (!i::comm::group_open()) communicator.make_ready(op);
        if (r.keep) op.keep_output();
      });
    };
    if (blocking) {
      Operation *op = local.inline_operation().take();
      const bool inline_op = op != nullptr;
      if (!op) op = OperationPool::instance().take();
      struct Give {
        i::rank::Rank &local;
        Operation *op;
        bool inline_op;
        ~Give() { inline_op ? local.inline_operation().give(op) : OperationPool::instance().release(op); }
      } give{local, op, inline_op};
      prepare(*op);
      if (r.commit) {
        i::Status end = i::comm::commit(communicator, *op);
        return end.ok() ? ISTHMUS_OK
                        : failed(end.code, std::move(end.text), communicator.terms().numbering.slots_of(end.ranks));
      }
      local.run(op);
      local.driver().wait(op, INT64_MAX);
      if (source) *source = local.id().number(op->message.source);
      return result_of(op);
    }
    Operation *op = OperationPool::instance().take();
    try {
      prepare(*op);
    } catch (...) {
      OperationPool::instance().release(op);
      throw;
    }
    if (i::comm::group_open()) {
      i::comm::group_add(comm->communicator, op);
    } else {
      local.run(op);
      // A small operation that the peers have begun too is over in a moment: look, before another thread is woken for it.
      for (int looks = 0; looks < 200 && !op->over() && !op->plan; ++looks) local.driver().drive();
      if (op->call.by_call) local.driver().wait(op, INT64_MAX);
      else if (!op->over()) local.context().progress().activate(local.port());
    }
    if (work) *work = reinterpret_cast<isthmus_work_t>(op);
    else OperationPool::instance().release(op);
    return ISTHMUS_OK;
  } catch (const i::Error &e) {
    i::comm::group_fail(e);
    return failed(e.code(), e.text(), e.ranks());
  } catch (const std::exception &e) {
    i::comm::group_fail(i::Error(Code::Internal, e.what()));
    return failed(Code::Internal, e.what());
  }
}

i::comm::CallRequest request(Collective c, const void *send, void *recv, uint64_t count, isthmus_dtype dtype, int op = 0,
                             int root = 0) {
  i::comm::CallRequest r;
  r.collective = c;
  r.send = send;
  r.recv = recv;
  r.count = count;
  r.dtype = static_cast<int>(dtype);
  r.op = op;
  r.root = root;
  return r;
}

std::vector<int> listed(const int *numbers, int count) {
  return numbers && count > 0 ? std::vector<int>(numbers, numbers + count) : std::vector<int>();
}

isthmus_result shrink(isthmus_comm_t comm, const int *excluded, int count, isthmus_shrink_mode mode, const char *name,
                      i::comm::Numbers numbers, isthmus_comm_t *result) noexcept {
  return guarded([&] {
    if (!result) i::fail(Code::Argument, "shrink: result must not be NULL");
    *result = nullptr;
    if (count < 0 || (count > 0 && !excluded))
      i::fail(Code::Argument, "shrink: {} excluded ranks and no list of them", count);
    if (mode < ISTHMUS_SHRINK_KEEP || mode > ISTHMUS_SHRINK_AGREE)
      i::fail(Code::Argument, "shrink: there is no mode {}", static_cast<int>(mode));
    auto handle = std::make_unique<isthmus_comm>();
    const CallInside inside(comm, "shrink");
    const std::vector<int> gone = inside->terms().numbering.ranks_of("shrink", listed(excluded, count));
    handle->communicator = i::comm::by_slots(inside->terms().numbering, [&] {
      return inside->shrink(gone, static_cast<Communicator::Shrink>(mode), name ? name : "", numbers);
    });
    i::observe::watch(handle->communicator);
    *result = handle.release();
    return ISTHMUS_OK;
  });
}

isthmus_result reconfigure(isthmus_comm_t comm, const int *excluded, int count, const char *ticket, int newcomers,
                           const int *slots, i::comm::Numbers numbers) noexcept {
  return guarded([&] {
    if (count < 0 || (count > 0 && !excluded))
      i::fail(Code::Argument, "reconfigure: {} excluded ranks and no list of them", count);
    i::comm::ReconfigureRequest request{{}, ticket ? ticket : "", newcomers, listed(slots, newcomers), numbers};
    const CallInside inside(comm, "reconfigure");
    inside.close();
    struct Opens {
      const CallInside &inside;
      ~Opens() { inside.open(); }
    } const opens{inside};
    request.excluded = inside->terms().numbering.ranks_of("reconfigure", listed(excluded, count));
    i::comm::Reconfigured made =
        i::comm::by_slots(inside->terms().numbering, [&] { return i::comm::reconfigure(*inside, request); });
    i::observe::watch(made.epoch);
    const std::shared_ptr<Communicator> old = go_over(comm, made.epoch);
    i::api::settle_dumps();
    i::observe::unwatch(*old);
    old->destroy();
    i::observe::write_trace(*old);
    if (comm->destroyed.load(std::memory_order_seq_cst)) {  // meanwhile, and perhaps it was the old epoch that destroy saw
      i::observe::unwatch(*made.epoch);
      made.epoch->destroy();
      i::fail(Code::Argument, "reconfigure: the communicator was destroyed meanwhile");
    }
    if (made.newcomers.ok()) return ISTHMUS_OK;
    return failed(made.newcomers.code, made.newcomers.text, made.epoch->terms().numbering.slots_of(made.newcomers.ranks));
  });
}

}  // namespace

extern "C" {

#define ISTHMUS_TEXT_OF(x) #x
#define ISTHMUS_TEXT(x) ISTHMUS_TEXT_OF(x)
const char *isthmus_version(void) {
  return ISTHMUS_TEXT(ISTHMUS_VERSION_MAJOR) "." ISTHMUS_TEXT(ISTHMUS_VERSION_MINOR) "." ISTHMUS_TEXT(ISTHMUS_VERSION_PATCH);
}
const char *isthmus_last_error(void) { return i::api::last_error().c_str(); }
int isthmus_last_error_ranks(int *ranks, int most) {
  const std::vector<int> &last_ranks = i::api::last_error_ranks();
  for (int n = 0; ranks && n < most && n < static_cast<int>(last_ranks.size()); ++n)
    ranks[n] = last_ranks[static_cast<size_t>(n)];
  return static_cast<int>(last_ranks.size());
}
const char *isthmus_result_name(isthmus_result result) { return i::code_name(static_cast<Code>(result)); }
void isthmus_free(void *p) { std::free(p); }
size_t isthmus_dtype_size(isthmus_dtype t) {
  return static_cast<unsigned>(t) < i::kDTypeCount ? i::dtype_size(static_cast<i::DType>(t)) : 0;
}
const char *isthmus_dtype_name(isthmus_dtype t) { return i::dtype_name(static_cast<i::DType>(t)); }
const char *isthmus_redop_name(isthmus_redop op) { return i::redop_name(static_cast<i::RedOp>(op)); }
void isthmus_set_interrupt_check(int (*check)(void)) { i::net::set_interrupt_check(check); }

isthmus_result isthmus_unique_id_create(isthmus_unique_id *id) {
  return guarded([&] {
    if (!id) i::fail(Code::Argument, "unique_id_create: id must not be NULL");
    i::bootstrap::create_unique_id(i::Settings::from_environment(),
                                   std::span<std::byte, 128>(reinterpret_cast<std::byte *>(id->bytes), 128));
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_exchange_check(void) {
  return guarded([] {
    const i::Status status = i::bootstrap::watched_exchange();
    return status.ok() ? ISTHMUS_OK : failed(status.code, status.text);
  });
}

isthmus_result isthmus_init(const isthmus_options *options, isthmus_comm_t *comm) {
  return guarded([&] {
    if (!comm) i::fail(Code::Argument, "init: comm must not be NULL");
    *comm = nullptr;
    const isthmus_options o = versioned(options, "isthmus_options");
    i::comm::InitOptions init;
    init.settings = settings_of(o);
    if (options) {
      init.rank = o.rank;
      init.world = o.world_size > 0 ? o.world_size : -1;
      if (o.world_size <= 0 && o.rank == 0) init.rank = -1;  // an all-zero struct: the environment says
    }
    if (init.world > 0 && (init.rank < 0 || init.rank >= init.world))
      if (init.rank != -1)
        i::fail(Code::Argument, "init: rank {} of {}: the rank must be from 0 to world_size - 1", init.rank, init.world);
    init.exchange = o.exchange;
    init.exchange_context = o.exchange_context;
    init.unique_id = o.id ? reinterpret_cast<const std::byte *>(o.id->bytes) : nullptr;
    if (o.address) init.address = o.address;
    if (o.name) init.name = o.name;
    if (o.members && ::strnlen(o.members, kMembersBytes + 1) > kMembersBytes)
      i::fail(Code::Argument, "init: the text of members is longer than {} bytes", kMembersBytes);
    if (o.members) init.members = o.members;
    auto handle = std::make_unique<isthmus_comm>();
    handle->communicator = Communicator::init(init);
    i::observe::watch(handle->communicator);
    *comm = handle.release();
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_split(isthmus_comm_t comm, int color, int key, const char *name, isthmus_comm_t *result) {
  return guarded([&] {
    if (!result) i::fail(Code::Argument, "split: result must not be NULL");
    *result = nullptr;
    const CallInside inside(comm, "split");
    auto part = i::comm::by_slots(inside->terms().numbering, [&] { return inside->split(color, key, name ? name : ""); });
    if (part) {
      auto handle = std::make_unique<isthmus_comm>();
      handle->communicator = std::move(part);
      i::observe::watch(handle->communicator);
      *result = handle.release();
    }
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_shrink(isthmus_comm_t comm, const int *excluded, int count, isthmus_shrink_mode mode,
                                   const char *name, isthmus_comm_t *result) {
  return shrink(comm, excluded, count, mode, name, i::comm::Numbers::Dense, result);
}

isthmus_result isthmus_comm_shrink_slots(isthmus_comm_t comm, const int *excluded, int count, isthmus_shrink_mode mode,
                                         const char *name, isthmus_comm_t *result) {
  return shrink(comm, excluded, count, mode, name, i::comm::Numbers::Kept, result);
}

isthmus_result isthmus_comm_ticket(isthmus_comm_t comm, double timeout, char **ticket) {
  return guarded([&] {
    if (!ticket) i::fail(Code::Argument, "ticket: the text's place must not be NULL");
    *ticket = copy_text(i::comm::make_ticket(*CallInside(comm, "ticket"), timeout));
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_joiners(isthmus_comm_t comm, const char *ticket, int *count) {
  return guarded([&] {
    if (!ticket || !count) i::fail(Code::Argument, "joiners: ticket and count must not be NULL");
    const CallInside inside(comm, "joiners");
    *count = i::comm::joiners(ticket);
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_grow(isthmus_comm_t comm, const char *ticket, int newcomers, const int *slots, const char *name,
                                 isthmus_comm_t *result) {
  return guarded([&] {
    if (!ticket || !result) i::fail(Code::Argument, "grow: ticket and result must not be NULL");
    *result = nullptr;
    i::comm::GrowRequest request{ticket, newcomers, {}, name ? name : ""};
    if (slots && newcomers > 0) request.slots.assign(slots, slots + newcomers);
    auto handle = std::make_unique<isthmus_comm>();
    const CallInside inside(comm, "grow");
    handle->communicator = i::comm::by_slots(inside->terms().numbering, [&] { return i::comm::grow(*inside, request); });
    i::observe::watch(handle->communicator);
    *result = handle.release();
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_reconfigure(isthmus_comm_t comm, const int *excluded, int count, const char *ticket,
                                        int newcomers, const int *slots) {
  return reconfigure(comm, excluded, count, ticket, newcomers, slots, i::comm::Numbers::Dense);
}

isthmus_result isthmus_comm_reconfigure_slots(isthmus_comm_t comm, const int *excluded, int count, const char *ticket,
                                              int newcomers, const int *slots) {
  return reconfigure(comm, excluded, count, ticket, newcomers, slots, i::comm::Numbers::Kept);
}

isthmus_result isthmus_join(const char *ticket, int slot, const isthmus_options *options, isthmus_comm_t *comm) {
  return guarded([&] {
    if (!ticket || !comm) i::fail(Code::Argument, "join: ticket and comm must not be NULL");
    *comm = nullptr;
    const isthmus_options o = versioned(options, "isthmus_options");
    auto handle = std::make_unique<isthmus_comm>();
    handle->communicator = i::comm::join_by_ticket({ticket, slot, settings_of(o)});
    i::observe::watch(handle->communicator);
    *comm = handle.release();
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_exchange(isthmus_comm_t comm, const int *ranks, int count, const void *send, void *recv,
                                     size_t bytes, double timeout) {
  return guarded([&] {
    if (count < 1 || !ranks) i::fail(Code::Argument, "exchange: {} ranks and no list of them", count);
    const CallInside inside(comm, "exchange");
    i::comm::by_slots(inside->terms().numbering, [&] {
      inside->exchange({ranks, ranks + count}, {static_cast<const std::byte *>(send), bytes}, static_cast<std::byte *>(recv),
                       timeout);
    });
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_agree(isthmus_comm_t comm, uint64_t *flags, uint8_t *out, int allow_minority, double timeout) {
  return guarded([&] {
    if (!flags || !out) i::fail(Code::Argument, "agree: flags and out must not be NULL");
    const CallInside inside(comm, "agree");
    if (timeout < 0)
      i::fail(Code::Argument, "agree: timeout {}: must be above 0 seconds, or 0 for the communicator's", timeout);
    const i::comm::Numbering &numbering = inside->terms().numbering;
    std::vector<int> suspects;
    for (int slot = 0; slot < numbering.slots(); ++slot)
      if (out[slot]) suspects.push_back(numbering.rank_of("agree", slot));
    if (out[i::comm::own_slot(*inside)]) i::fail(Code::Argument, "agree: rank {} names itself", i::comm::own_slot(*inside));
    const i::rank::Verdict verdict = i::comm::by_slots(numbering, [&] {
      return i::comm::agree(*inside, *flags, suspects, allow_minority != 0,
                            i::Deadline(timeout > 0 ? timeout : inside->timeout()));
    });
    *flags = verdict.flags;
    for (int slot = 0; slot < numbering.slots(); ++slot) {
      const int rank = numbering.rank(slot);
      out[slot] = rank >= 0 && verdict.out.has(rank);
    }
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_destroy(isthmus_comm_t comm) {
  return guarded([&] {
    if (!comm) return ISTHMUS_OK;
    if (!comm->birth.here()) return ISTHMUS_OK;  // the parent's; nothing of the communicator exists here
    i::api::destroy(comm);
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_raised(const char *what) {
  return guarded([&] {
    if (!what) i::fail(Code::Argument, "raised: the text must not be NULL");
    i::process::Context::raised(what);
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_raised_settle(void) {
  return guarded([] {
    i::process::Context::await_heard();
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_raised(isthmus_comm_t comm, const char *what) {
  return guarded([&] {
    if (!what) i::fail(Code::Argument, "raised: the text must not be NULL");
    CallInside(comm)->local().port().raised(what, true);
    return ISTHMUS_OK;
  });
}

int isthmus_raiser(double waited) { return static_cast<int>(i::process::Context::raiser(waited)); }

isthmus_result isthmus_dump_next(char *path, size_t bytes) {
  return guarded([&] {
    if (bytes == 0) {
      i::observe::take_over_dumps();
      return ISTHMUS_OK;
    }
    if (!path) i::fail(Code::Argument, "dump_next: path must not be NULL");
    std::string name;
    if (!i::observe::next_dump(name)) i::fail(Code::Aborted, "there is no communicator with ISTHMUS_DUMP any more");
    if (name.size() >= bytes) {
      i::observe::dump_written();
      i::fail(Code::Argument, "dump_next: the path has {} bytes, and there is room for {}", name.size() + 1, bytes);
    }
    std::memcpy(path, name.c_str(), name.size() + 1);
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_dump_records(char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "dump_records: json must not be NULL");
    *json = copy_text(i::observe::dump_records());
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_dump_written(void) {
  i::observe::dump_written();
  return ISTHMUS_OK;
}

isthmus_result isthmus_dump_settle(double seconds) {
  i::observe::settle_dumps(seconds);
  return ISTHMUS_OK;
}

isthmus_result isthmus_comm_abort(isthmus_comm_t comm, const char *reason) {
  return guarded([&] {
    if (!abort_meanwhile(comm, reason, Communicator::Words::Aborted)) CallInside(comm, "abort")->abort(reason ? reason : "");
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_revoke(isthmus_comm_t comm, const char *reason) {
  return guarded([&] {
    if (!abort_meanwhile(comm, reason, Communicator::Words::Revoked))
      CallInside(comm, "revoke")->abort(reason ? reason : "", Communicator::Words::Revoked);
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_error(isthmus_comm_t comm) {
  return guarded([&] {
    const CallInside inside(comm, "error");
    const i::Status s = inside->local().core().failure();
    return s.ok() ? ISTHMUS_OK : failed(s.code, s.text, inside->terms().numbering.slots_of(s.ranks));
  });
}

isthmus_result isthmus_comm_set_timeout(isthmus_comm_t comm, double seconds) {
  return guarded([&] {
    CallInside(comm, "set_timeout")->set_timeout(seconds);
    return ISTHMUS_OK;
  });
}

double isthmus_comm_timeout(isthmus_comm_t comm) {
  double seconds = -1;
  guarded([&] { return seconds = CallInside(comm, "timeout")->timeout(), ISTHMUS_OK; });
  return seconds;
}

int isthmus_comm_rank(isthmus_comm_t comm) {
  int rank = -1;
  guarded([&] { return rank = i::comm::own_slot(*CallInside(comm)), ISTHMUS_OK; });
  return rank;
}
int isthmus_comm_size(isthmus_comm_t comm) {
  int size = -1;
  guarded([&] { return size = CallInside(comm)->terms().numbering.slots(), ISTHMUS_OK; });
  return size;
}
int isthmus_comm_members(isthmus_comm_t comm, int *slots, int most) {
  int count = -1;
  guarded([&] {
    const CallInside inside(comm, "members");
    const std::vector<int> &members = inside->terms().numbering.members();
    count = static_cast<int>(members.size());
    for (int n = 0; slots && n < std::min(count, most); ++n) slots[n] = members[static_cast<size_t>(n)];
    return ISTHMUS_OK;
  });
  return count;
}
int isthmus_comm_device(isthmus_comm_t comm) {
  int device = -1;
  guarded([&] {
    device = CallInside(comm)->local().device().number;
    return ISTHMUS_OK;
  });
  return device;
}
int isthmus_comm_blocks(isthmus_comm_t comm) {
  int blocks = 0;
  guarded([&] {
    const i::rank::Rank &local = CallInside(comm)->local();
    if (const i::device::Runtime *runtime = local.device().runtime)
      blocks = runtime->capabilities(local.device().number).gate == i::device::GateKind::None;
    return ISTHMUS_OK;
  });
  return blocks;
}
int isthmus_comm_others_busy(isthmus_comm_t comm) {
  int busy = 0;
  guarded([&] {
    const CallInside inside(comm, "others_busy");
    i::rank::Rank &local = inside->local();
    const uint32_t own = local.id().epoch;  // of all ranks of this communicator, those of this process too
    for (const auto &rank : local.context().ranks().all()) busy |= rank->epoch() != own && rank->has_work();
    return ISTHMUS_OK;
  });
  return busy;
}
isthmus_result isthmus_comm_dlpack(isthmus_comm_t comm, int type, int number, const void *memory, void *stream,
                                   int64_t *stream_number) {
  return guarded([&] {
    const CallInside inside(comm, "dlpack");
    i::comm::BufferMemory(inside->local()).check_lent(type, number, memory);
    if (stream_number) *stream_number = inside->local().device().runtime->dlpack_stream(stream);
    return ISTHMUS_OK;
  });
}
isthmus_result isthmus_comm_order(isthmus_comm_t comm, void *before, void *after) {
  return guarded([&] {
    CallInside(comm, "order_streams")->order_streams(before, after);
    return ISTHMUS_OK;
  });
}
uint64_t isthmus_comm_sequence(isthmus_comm_t comm) {
  uint64_t sequence = 0;
  guarded([&] { return sequence = CallInside(comm)->local().collectives().queue().sequence(), ISTHMUS_OK; });
  return sequence;
}

isthmus_result isthmus_comm_topology(isthmus_comm_t comm, char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "topology: json must not be NULL");
    *json = copy_text(CallInside(comm, "topology")->topology_json());
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_explain(isthmus_comm_t comm, const char *collective, uint64_t count, isthmus_dtype dtype,
                                    isthmus_redop op, int root, char **json) {
  return guarded([&] {
    if (!json || !collective) i::fail(Code::Argument, "explain: collective and json must not be NULL");
    Collective c;
    if (!i::collective_from_name(collective, c)) i::fail(Code::Argument, "explain: '{}' is not a collective", collective);
    if (static_cast<unsigned>(dtype) >= i::kDTypeCount || static_cast<unsigned>(op) >= i::kRedOpCount)
      i::fail(Code::Argument, "explain: unknown dtype or op");
    const CallInside communicator(comm, "explain");
    const i::comm::Numbering &numbering = communicator->terms().numbering;
    // Where there are no holes the planner refuses what is no rank.
    if (i::is_message(c) ? root >= 0 && root < numbering.slots() : i::has_root(c) && numbering.has_holes())
      root = numbering.rank_of("explain", root);
    if (i::is_message(c)) {
      const uint64_t size = i::dtype_size(static_cast<i::DType>(dtype));
      if (count > UINT64_MAX / size) i::fail(Code::Argument, "explain: {} elements are more than memory can hold", count);
      *json =
          copy_text(i::observe::explain_message_json(*communicator, c, root, static_cast<i::DType>(dtype), count * size));
      return ISTHMUS_OK;
    }
    const auto type = static_cast<i::DType>(dtype);
    const i::comm::Shape shape{c,
                               type,
                               static_cast<i::RedOp>(op),
                               root,
                               count * i::dtype_size(type),
                               false,
                               communicator->local().device().runtime != nullptr};
    const auto [request, path] = communicator->plans().choose(shape);
    const auto plan = communicator->plans().plan_for(request);
    *json = copy_text(i::observe::explain_json(*communicator, *plan, path == i::comm::Path::OneHop));
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_dump(isthmus_comm_t comm, char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "dump: json must not be NULL");
    *json = copy_text(i::observe::dump_json(*CallInside(comm, "dump")));
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_setting_default(const char *name, const char *value) {
  return guarded([&] {
    if (!name || !value) i::fail(Code::Argument, "setting_default: name and value must not be NULL");
    i::Settings::set_default(name, value);
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_settings(char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "settings: json must not be NULL");
    *json = copy_text(i::Settings::from_environment().to_json());
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_libraries(char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "libraries: json must not be NULL");
    *json = copy_text(i::observe::libraries_json(i::Settings::from_environment()));
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_ucx(char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "ucx: json must not be NULL");
    *json = copy_text(i::observe::ucx_json());
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_devices(char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "devices: json must not be NULL");
    *json = copy_text(i::observe::devices_json());
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_measure(double seconds, char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "measure: json must not be NULL");
    *json = copy_text(i::observe::measure_json(i::Settings::from_environment(), seconds));
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_comm_measure_star(isthmus_comm_t comm, double seconds, char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "measure: json must not be NULL");
    *json = copy_text(i::observe::measure_leader_exchange_json(*CallInside(comm), seconds));
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_context_stats(char **json) {
  return guarded([&] {
    if (!json) i::fail(Code::Argument, "context_stats: json must not be NULL");
    *json = copy_text(i::observe::context_json());
    return ISTHMUS_OK;
  });
}

// ---- meetings ------------------------------------------------------------------------------------------------------------------------

isthmus_result isthmus_meeting_create(isthmus_ticket *ticket) {
  return guarded([&] {
    if (!ticket) i::fail(Code::Argument, "meeting_create: ticket must not be NULL");
    i::bootstrap::create_ticket(i::Settings::from_environment(), std::as_writable_bytes(std::span(ticket->bytes)));
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_meeting_watch(const isthmus_ticket *ticket, int listener) {
  return guarded([&] {
    if (!ticket) i::fail(Code::Argument, "meeting_watch: ticket must not be NULL");
    i::bootstrap::watch_listener(std::as_bytes(std::span(ticket->bytes)), listener);
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_meeting_join(const isthmus_ticket *ticket, int rank, int world_size, double timeout,
                                    isthmus_meeting_t *meeting) {
  return guarded([&] {
    if (!ticket || !meeting) i::fail(Code::Argument, "meeting_join: ticket and meeting must not be NULL");
    *meeting = nullptr;
    i::Settings settings = i::Settings::from_environment();
    if (timeout != 0) settings.set("ISTHMUS_TIMEOUT", i::formatted("{}", timeout));
    i::set_log_level(settings.text(i::Setting::Log).c_str());
    i::set_log_file(settings.text(i::Setting::LogFile));
    auto exchange = i::bootstrap::ticket_exchange(std::as_bytes(std::span(ticket->bytes)), rank, world_size);
    *meeting = new isthmus_meeting{std::move(exchange), settings.real(i::Setting::Timeout), world_size};
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_meeting_exchange(isthmus_meeting_t meeting, const void *send, void *recv, size_t bytes) {
  return guarded([&] {
    if (!meeting) i::fail(Code::Argument, "meeting_exchange: the meeting is NULL");
    meeting->check_ours("meeting_exchange");
    if (bytes && (!send || !recv)) i::fail(Code::Argument, "meeting_exchange: send and recv must not be NULL");
    const auto *from = static_cast<const std::byte *>(send);
    const auto deliver = [&](const std::vector<i::bootstrap::Blob> &blobs) {
      for (size_t r = 0; bytes != 0 && r < blobs.size(); ++r)
        if (blobs[r].size() == bytes) std::memcpy(static_cast<std::byte *>(recv) + r * bytes, blobs[r].data(), bytes);
    };
    try {
      const auto blobs = meeting->exchange->all_gather({from, from + bytes}, i::Deadline(meeting->timeout));
      for (size_t r = 0; r < blobs.size(); ++r)
        if (blobs[r].size() != bytes)
          i::fail(Code::Mismatch, "meeting_exchange: rank {} gave {} bytes, and this rank {}", r, blobs[r].size(), bytes);
      deliver(blobs);
    } catch (const i::Error &e) {
      if (e.code() == Code::Timeout && bytes) {
        std::memset(recv, 0, bytes * static_cast<size_t>(meeting->world));
        deliver(meeting->exchange->came());
      }
      throw;
    }
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_meeting_patience(isthmus_meeting_t meeting, size_t alike, double seconds) {
  return guarded([&] {
    if (!meeting) i::fail(Code::Argument, "meeting_patience: the meeting is NULL");
    meeting->check_ours("meeting_patience");
    i::Settings settings = i::Settings::from_environment();
    if (seconds != 0) settings.set("ISTHMUS_CENSUS", i::formatted("{}", seconds));
    if (alike > UINT32_MAX) i::fail(Code::Argument, "meeting_patience: {} bytes are more than a block has", alike);
    const int64_t ns = i::seconds_to_ns(settings.real(i::Setting::Census));
    meeting->exchange->be_patient({static_cast<uint32_t>(alike), ns});
    return ISTHMUS_OK;
  });
}

void isthmus_meeting_leave(isthmus_meeting_t meeting) {
  if (meeting && meeting->birth.here()) delete meeting;
}

// ---- collectives ---------------------------------------------------------------------------------------------------------------------

isthmus_result isthmus_all_reduce(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
                                  isthmus_redop op, const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::AllReduce, send, recv, count, dtype, op);
  return submit(comm, r, call, work);
}

isthmus_result isthmus_reduce(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
                              isthmus_redop op, int root, const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::Reduce, send, recv, count, dtype, op, root);
  return submit(comm, r, call, work);
}

isthmus_result isthmus_broadcast(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
                                 int root, const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::Broadcast, send, recv, count, dtype, 0, root);
  return submit(comm, r, call, work);
}

isthmus_result isthmus_all_gather(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
                                  const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::AllGather, send, recv, count, dtype);
  return submit(comm, r, call, work);
}

isthmus_result isthmus_all_gather_v(isthmus_comm_t comm, const void *send, void *recv, const uint64_t *counts,
                                    const uint64_t *displs, isthmus_dtype dtype, const isthmus_call *call,
                                    isthmus_work_t *work) {
  auto r = request(Collective::AllGatherV, send, recv, 0, dtype);
  r.recv_counts = counts;
  r.recv_displs = displs;
  return submit(comm, r, call, work);
}

isthmus_result isthmus_reduce_scatter(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
                                      isthmus_redop op, const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::ReduceScatter, send, recv, count, dtype, op);
  return submit(comm, r, call, work);
}

isthmus_result isthmus_reduce_scatter_v(isthmus_comm_t comm, const void *send, void *recv, const uint64_t *counts,
                                        const uint64_t *displs, isthmus_dtype dtype, isthmus_redop op,
                                        const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::ReduceScatterV, send, recv, 0, dtype, op);
  r.send_counts = counts;
  r.send_displs = displs;
  return submit(comm, r, call, work);
}

isthmus_result isthmus_all_to_all(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
                                  const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::AllToAll, send, recv, count, dtype);
  return submit(comm, r, call, work);
}

isthmus_result isthmus_all_to_all_v(isthmus_comm_t comm, const void *send, const uint64_t *send_counts,
                                    const uint64_t *send_displs, void *recv, const uint64_t *recv_counts,
                                    const uint64_t *recv_displs, isthmus_dtype dtype, const isthmus_call *call,
                                    isthmus_work_t *work) {
  auto r = request(Collective::AllToAllV, send, recv, 0, dtype);
  r.send_counts = send_counts;
  r.send_displs = send_displs;
  r.recv_counts = recv_counts;
  r.recv_displs = recv_displs;
  return submit(comm, r, call, work);
}

isthmus_result isthmus_gather(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
                              int root, const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::Gather, send, recv, count, dtype, 0, root);
  return submit(comm, r, call, work);
}

isthmus_result isthmus_gather_v(isthmus_comm_t comm, const void *send, void *recv, const uint64_t *counts,
                                const uint64_t *displs, isthmus_dtype dtype, int root, const isthmus_call *call,
                                isthmus_work_t *work) {
  auto r = request(Collective::GatherV, send, recv, 0, dtype, 0, root);
  r.recv_counts = counts;
  r.recv_displs = displs;
  return submit(comm, r, call, work);
}

isthmus_result isthmus_scatter(isthmus_comm_t comm, const void *send, void *recv, uint64_t count, isthmus_dtype dtype,
                               int root, const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::Scatter, send, recv, count, dtype, 0, root);
  return submit(comm, r, call, work);
}

isthmus_result isthmus_scatter_v(isthmus_comm_t comm, const void *send, void *recv, const uint64_t *counts,
                                 const uint64_t *displs, isthmus_dtype dtype, int root, const isthmus_call *call,
                                 isthmus_work_t *work) {
  auto r = request(Collective::ScatterV, send, recv, 0, dtype, 0, root);
  r.send_counts = counts;
  r.send_displs = displs;
  return submit(comm, r, call, work);
}

isthmus_result isthmus_barrier(isthmus_comm_t comm, const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::Barrier, nullptr, nullptr, 0, ISTHMUS_UINT8);
  return submit(comm, r, call, work);
}

isthmus_result isthmus_send(isthmus_comm_t comm, const void *buffer, uint64_t count, isthmus_dtype dtype, int peer, int tag,
                            const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::Send, buffer, nullptr, count, dtype, 0, peer);
  r.tag = tag;
  return submit(comm, r, call, work);
}

isthmus_result isthmus_recv(isthmus_comm_t comm, void *buffer, uint64_t count, isthmus_dtype dtype, int peer, int tag,
                            int *source, const isthmus_call *call, isthmus_work_t *work) {
  auto r = request(Collective::Recv, nullptr, buffer, count, dtype, 0, peer);
  r.tag = tag;
  if (source) *source = -1;
  return submit(comm, r, call, work, source);
}

isthmus_result isthmus_group_begin(void) {
  i::comm::group_begin();
  return ISTHMUS_OK;
}

isthmus_result isthmus_group_end(isthmus_work_t *work) {
  if (work) *work = nullptr;
  return guarded([&] {
    Operation *parent = i::comm::group_end(work == nullptr);
    if (!parent) return ISTHMUS_OK;
    if (work) {
      *work = reinterpret_cast<isthmus_work_t>(parent);
      return ISTHMUS_OK;
    }
    const CallHere here(parent->core);
    if (parent->rank) parent->rank->driver().wait(parent, INT64_MAX);
    const isthmus_result r = result_of(parent);
    OperationPool::instance().release(parent);
    return r;
  });
}

// ---- work ----------------------------------------------------------------------------------------------------------------------------

isthmus_result isthmus_work_wait(isthmus_work_t work, double timeout) {
  return guarded([&] {
    Operation *op = op_of(work);
    if (!op) i::fail(Code::Argument, "wait: the work is NULL");
    const int64_t until = timeout > 0 ? i::now_ns() + i::seconds_to_ns(timeout) : INT64_MAX;
    if (!op->over()) {
      check_ours(op, "wait");
      if (!op->rank) i::fail(Code::Argument, "wait: the operation is in a group that has not ended");
      const CallHere here(op->core);
      if (!op->rank->driver().wait(op, until))
        i::fail(Code::Timeout, "wait: the operation is still running after {:g} s: {}", timeout, op->core->describe(*op));
    }
    i::engine::Completions::wait(*op, until);
    return result_of(op);
  });
}

isthmus_result isthmus_work_test(isthmus_work_t work) {
  return guarded([&] {
    Operation *op = op_of(work);
    if (!op) i::fail(Code::Argument, "test: the work is NULL");
    if (!op->over()) {
      check_ours(op, "test");
      if (op->rank) op->rank->driver().drive();
    }
    return op->over() ? result_of(op) : ISTHMUS_IN_PROGRESS;
  });
}

int isthmus_work_source(isthmus_work_t work) {
  if (!work || !op_of(work)->over()) return -1;
  const Operation &op = *op_of(work);
  return op.core ? op.core->id.number(op.message.source) : op.message.source;
}
uint64_t isthmus_work_sequence(isthmus_work_t work) { return work ? op_of(work)->sequence : 0; }
double isthmus_work_duration(isthmus_work_t work) {
  const Operation *op = op_of(work);
  return op && op->over() ? static_cast<double>(op->time.ended_ns - op->time.submitted_ns) * 1e-9 : -1;
}

isthmus_result isthmus_work_on_done(isthmus_work_t work, void (*done)(void *, isthmus_result, const char *), void *context) {
  return guarded([&] {
    Operation *op = op_of(work);
    if (!op || !done) i::fail(Code::Argument, "on_done: work and callback must not be NULL");
    if (!op->over()) check_ours(op, "on_done");
    op->end.lock.lock();
    const bool over = op->over();
    if (!over) {
      op->end.done = reinterpret_cast<void (*)(void *, int, const char *)>(done);
      op->end.callback.store(i::engine::Callback::Due, std::memory_order_relaxed);
      op->end.context = context;
    }
    op->end.lock.unlock();
    if (over) done(context, static_cast<isthmus_result>(op->end.result), op->end.text.c_str());
    return ISTHMUS_OK;
  });
}

isthmus_result isthmus_work_order(isthmus_work_t work, void *stream) {
  return guarded([&] {
    if (!work) i::fail(Code::Argument, "work_order: work must not be NULL");
    Operation *op = op_of(work);
    if (!op->rank && !op->over()) i::fail(Code::Argument, "work_order: the operation is in a group that has not ended");
    check_ours(op, "work_order");
    if (!op->over() && op->call.order_later) {
      const CallHere here(op->core);
      if (op->is_p2p()) op->rank->messages().streams().order(op, stream);
      else i::collective::order_behind(*op->core, op->rank->collectives().device(), op, stream);
    }
    if (op->over()) return result_of(op);
    if (op->core->failed()) {
      const i::Status why = op->core->failure();
      throw i::Error(why.code, why.text, op->core->id.topology.numbers(why.ranks));
    }
    return ISTHMUS_OK;
  });
}

void isthmus_work_release(isthmus_work_t work) {
  if (work && op_of(work)->birth.here()) OperationPool::instance().release(op_of(work));
}

}  // extern "C"
