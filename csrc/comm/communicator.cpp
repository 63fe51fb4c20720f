#include "comm/communicator.hpp"

#include "base/clock.hpp"
#include "base/log.hpp"
#include "comm/abort_watch.hpp"
#include "comm/join/seat.hpp"
#include "comm/launcher.hpp"
#include "net/wait.hpp"
#include "nlohmann/json.hpp"

namespace isthmus::comm {

void begin_log(const Settings &settings) {
  set_log_level(settings.text(Setting::Log).c_str());
  if (process::Context::current()) return;
  set_log_file(settings.text(Setting::LogFile));
  forget_log_rank();
}

std::shared_ptr<Communicator> Communicator::init(const InitOptions &o) {
  const Launch launch = from_environment(o.settings);
  const int rank = o.rank >= 0 ? o.rank : launch.rank, world = o.world >= 0 ? o.world : launch.world;
  if (rank < 0 || world < 0)
    fail(Code::Argument,
         "no rank or world size: start the program with torchrun, mpirun or srun, or give rank, world size and address");
  if (world == 0 || rank >= world)
    fail(Code::Argument, "rank {} of {}: the rank must be from 0 to world size - 1", rank, world);
  begin_log(o.settings);
  note_log_ranks(std::span(&rank, 1), LogRanks::MaybeSome);
  const Deadline deadline(o.settings.real(Setting::Timeout));
  std::unique_ptr<bootstrap::Exchange> exchange;
  std::string hint;
  if (o.exchange) {
    exchange = bootstrap::callback_exchange(o.exchange, o.exchange_context, rank, world);
  } else if (o.unique_id) {
    exchange = bootstrap::id_exchange(std::span<const std::byte, 128>(o.unique_id, 128), rank, world, o.settings, deadline);
  } else {
    const std::string address = !o.address.empty() ? o.address : launch.address;
    if (address.empty() && world > 1)
      fail(Code::Argument,
           "no rendezvous address: give address=\"host:port\" (rank 0 listens there) or set ISTHMUS_ADDRESS{}",
           launch.launcher.empty() ? "" : "; " + launch.launcher + " did not say where rank 0 is");
    hint = address;
    if (world > 1) {
      std::vector<std::string> parts = launch.key_parts;
      if (!o.address.empty() || parts.empty()) parts = {"address", address};
      exchange = bootstrap::tcp_exchange(address, rank, world, bootstrap::derive_key(o.settings, parts), o.settings,
                                         deadline, bootstrap::job_name(parts));
    }
  }
  process::Context::Lease use;
  try {
    use = process::Context::acquire(o.settings, hint);
  } catch (const Error &e) { throw Error(e.code(), formatted("rank {} of {}: {}", rank, world, e.text())); }
  if (world == 1 && !exchange) {
    struct Alone final : bootstrap::Exchange {
      std::vector<bootstrap::Blob> all_gather(const bootstrap::Blob &mine, Deadline) override { return {mine}; }
    };
    exchange = std::make_unique<Alone>();
  }
  const std::string &name = o.name.empty() ? o.settings.text(Setting::Name) : o.name;
  const auto context = use.context();
  return make({name, o.members, rank, world, o.settings, context, std::nullopt, *exchange, deadline}, std::move(use));
}

std::shared_ptr<Communicator> Communicator::make(const join::Invitation &invitation, process::Context::Lease use) {
  invitation.context->progress().stand_in();  // a callback may be what makes it, and wait here
  join::Offer offer = join::make_offer(invitation);
  join::Agreement agreement = join::agree(invitation, offer);
  join::Seat seat = join::take_seat(invitation, offer, agreement, join::wire(invitation, offer, agreement));
  auto comm = std::shared_ptr<Communicator>(new Communicator(invitation, agreement.ranks[0].key, seat));
  comm->use_ = std::move(use);
  comm->local_ = std::move(seat.rank);
  // destroy() gives these back from now on.
  seat.leave.keep();
  agreement.key.keep();
  for (const auto &peer : comm->local_->peers())
    if (int64_t never = 0; peer.process) peer.process->speaks_since_ns.compare_exchange_strong(never, now_ns());
  return comm;
}

Communicator::Communicator(const join::Invitation &invitation, const bootstrap::Bytes16 &key, join::Seat &seat)
    : context_(invitation.context),
      settings_(invitation.settings),
      key_(key),
      timeout_(invitation.parent ? invitation.parent->timeout : invitation.settings.real(Setting::Timeout)),
      topology_(std::move(seat.topology)),
      terms_(std::move(seat.terms)),
      plans_(topology_, terms_, seat.rank->id()) {}

Communicator::~Communicator() { destroy(); }

void Communicator::destroy() noexcept {
  if (!local_ || destroyed_.exchange(true)) return;
  if (split_mutex_.try_lock()) {  // else a call that makes the next epoch is under way, and hears of the end
    confirmation_.end(*this);
    split_mutex_.unlock();
  }
  local_->succession().give_back();
  local_->leave(now_ns() + seconds_to_ns(timeout()));
  context_->mesh().drop_key(key_);  // each communicator added the key once
  use_.end();
}

// Unchecked: a loop of try_lock.
void take_turn(Mutex &split_mutex, Communicator &of, const char *call, Deadline deadline) ISTHMUS_UNCHECKED {
  constexpr int64_t kLookNs = 5'000'000;
  const AbortWatch watch(of.local());
  const std::string name = formatted("{} of '{}' on rank {}", call, of.name(), own_slot(of));
  for (bool mine = split_mutex.try_lock(); !mine;) {
    watch.look(name);
    if (net::interrupt_wanted()) fail(Code::Interrupted, "{}: interrupted while another thread was in such a call", name);
    if (deadline.passed())
      fail(Code::Timeout,
           "{}: another thread of this rank is in split, shrink, grow, reconfigure or an operation with commit, and one "
           "goes on at a time",
           name);
    of.local().core().context->links().sleep_at_doorbell(kLookNs, [&] { return mine = split_mutex.try_lock(); });
  }
}

void Communicator::abort(const std::string &reason, Words words) noexcept {
  const std::string who =
      words == Words::Revoked ? "revoked by " + local_->id().text(rank()) : formatted("aborted on rank {}", own_slot(*this));
  local_->abort(formatted("{}{}{}", who, reason.empty() ? "" : ": ", reason));
}

void Communicator::set_timeout(double seconds) {
  if (!(seconds > 0)) fail(Code::Argument, "timeout {}: must be above 0 seconds", seconds);
  timeout_.store(seconds, std::memory_order_relaxed);
}

std::string Communicator::topology_json() const {
  auto json = nlohmann::ordered_json::parse(topology::to_json(topology_));
  json["name"] = name();
  json["rank"] = own_slot(*this);
  json["size"] = terms_.numbering.slots();
  json["members"] = terms_.numbering.members();
  json["bridge"] = settings_.text(Setting::Bridge);
  json["staging"] = {{"chunk_bytes", terms_.chunk_bytes},
                     {"ring_bytes", terms_.ring_bytes},
                     {"recv_slots", terms_.recv_slots},
                     {"lost", terms_.lost}};
  json["round_trip_us"] = terms_.round_trip_us;
  json["far"] = terms_.far;
  const messages::LibraryMessages &by_library = local_->messages().library();
  json["library_messages"] = {{"may", by_library.any()}, {"messages", by_library.messages()}, {"bytes", by_library.bytes()}};
  auto links = nlohmann::ordered_json::array();
  const auto &peers = const_cast<rank::Rank &>(*local_).peers();
  for (int q = 0; q < size(); ++q) {
    const auto &p = peers[static_cast<size_t>(q)];
    const char *kind = q == rank() ? "self" : p.mail ? "memory" : p.link->name();
    nlohmann::ordered_json link{{"from", own_slot(*this)}, {"to", terms_.numbering.slot(q)}, {"kind", kind}};
    if (q != rank()) {  // in shared memory the numbers count messages alone: what collectives exchange lies in slots
      link["bytes_sent"] = p.link->bytes_sent.load();
      link["bytes_received"] = p.link->bytes_received.load();
      link["bytes_helped"] = p.link->bytes_helped.load();
    }
    links.push_back(std::move(link));
  }
  json["links"] = std::move(links);
  return json.dump(2);
}

}  // namespace isthmus::comm
