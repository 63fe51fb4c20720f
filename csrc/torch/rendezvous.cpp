#include "rendezvous.hpp"

#include <sys/random.h>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "base/lock.hpp"
#include "errors.hpp"
#include "interpreter.hpp"

namespace isthmus::torch_face {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kNonce = 16;
constexpr auto kLook = 250ms;                                   // how often a wait looks around
constexpr auto kPause = 10ms;                                   // between looks at a stale roster
constexpr Clock::duration kShortest = 200us, kLongest = 100ms;  // between two requests to the store
constexpr const char *kRoster = "isthmus/roster";

std::vector<std::uint8_t> random_bytes(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) raise(ISTHMUS_ERR_SYSTEM, "getrandom failed");
  return bytes;
}

std::string hex(const std::vector<std::uint8_t> &bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

// PrefixStore has its prefix as a protected field. A derived class may read the prefix.
struct Prefix : c10d::PrefixStore {
  static const std::string &of(const c10d::PrefixStore &store) { return store.*(&Prefix::prefix_); }
};

bool names_device(const std::string &prefix) {
  if (prefix.size() < 2 || prefix.back() != '/') return false;
  try {
    return !c10::Device(prefix.substr(0, prefix.size() - 1)).has_index();
  } catch (const c10::Error &) { return false; }
}

std::string listed(const std::vector<int> &ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < 16; ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > 16 ? text + " and " + std::to_string(ranks.size() - 16) + " more" : text;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> without_device_prefix(const c10::intrusive_ptr<c10d::Store> &store) {
  auto *prefixed = dynamic_cast<c10d::PrefixStore *>(store.get());
  return prefixed && names_device(Prefix::of(*prefixed)) ? prefixed->getUnderlyingStore() : store;
}

namespace {

struct Connection {
  c10::weak_intrusive_ptr<c10d::Store> theirs;
  c10::intrusive_ptr<c10d::Store> ours;
};
using Connections = Guarded<std::vector<Connection>>;  // held while a store is cloned, which connects
// Never destroyed: groups may be made until the interpreter ends.
std::atomic<Connections *> the_connections{new Connections};

c10::intrusive_ptr<c10d::Store> own_connection(const c10::intrusive_ptr<c10d::Store> &theirs) {
  // A FileStore holds up nobody. Its last user removes the file, and a clone would be one user more.
  if (dynamic_cast<c10d::FileStore *>(theirs.get())) return theirs;
  const auto all = the_connections.load(std::memory_order_acquire)->lock();
  std::erase_if(*all, [](const Connection &e) { return e.theirs.expired(); });
  for (const Connection &e : *all)
    if (e.theirs.lock() == theirs) return e.ours;
  c10::intrusive_ptr<c10d::Store> ours;
  try {
    ours = theirs->clone();
  } catch (const std::exception &) { return theirs; }  // written in Python, say
  if (ours != theirs) all->push_back({c10::weak_intrusive_ptr<c10d::Store>(theirs), ours});
  return ours;
}

}  // namespace

void forget_meeting_stores() noexcept { the_connections.store(new Connections, std::memory_order_release); }

c10::intrusive_ptr<c10d::Store> for_meetings(c10::intrusive_ptr<c10d::Store> store) {
  std::vector<std::string> prefixes;  // outermost first
  while (auto *prefixed = dynamic_cast<c10d::PrefixStore *>(store.get())) {
    prefixes.push_back(Prefix::of(*prefixed));
    store = prefixed->getUnderlyingStore();
  }
  store = own_connection(store);
  for (auto prefix = prefixes.rbegin(); prefix != prefixes.rend(); ++prefix)
    store = c10::make_intrusive<c10d::PrefixStore>(*prefix, std::move(store));
  return store;
}

StoreExchange::StoreExchange(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                             std::chrono::milliseconds timeout, std::string group)
    : store_(size > 1 ? for_meetings(store) : store),
      rank_(rank),
      size_(size),
      timeout_(timeout),
      deadline_(Clock::now() + timeout),
      group_(std::move(group)),
      nonce_(random_bytes(kNonce)),
      probe_(random_bytes(kNonce)) {}

std::string StoreExchange::hello(int rank) const { return "isthmus/hello/" + std::to_string(rank); }
std::string StoreExchange::in_attempt(const std::string &name) const { return "isthmus/" + attempt_ + "/" + name; }
std::string StoreExchange::blob(int round, int rank) const {
  return in_attempt(std::to_string(round) + "/" + std::to_string(rank));
}

bool StoreExchange::await(const std::vector<std::string> &keys, const std::vector<int> &ranks, const char *what,
                          c10::function_ref<bool()> look) {
  // Asks the store again and again. Store::wait cannot be interrupted, and a TCPStore prints a warning for each wait that
  // times out.
  const auto begin = Clock::now();
  auto looked = begin;
  std::size_t next = 0;  // the first key that was not there
  while (true) {
    if (store_->check({keys.begin() + static_cast<std::ptrdiff_t>(next), keys.end()})) return true;
    while (next < keys.size() && store_->check({keys[next]})) ++next;
    if (next == keys.size()) return true;
    while (!store_->check({keys[next]})) {
      const auto now = Clock::now();
      if (now > deadline_) break;
      if (now - looked > kLook) {
        if (interpreter::interrupted()) interpreter::raise_interrupt();
        if (look()) return false;
        looked = now;
      }
      // The pause is a tenth of the time waited so far: few requests to the store, and little time lost.
      std::this_thread::sleep_for(std::clamp<Clock::duration>((now - begin) / 10, kShortest, kLongest));
    }
    if (Clock::now() < deadline_) continue;
    std::vector<int> missing;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!store_->check({keys[i]})) missing.push_back(ranks[i]);
    }
    if (missing.empty()) return true;
    raise(ISTHMUS_ERR_TIMEOUT, c10::str("rendezvous of group ", group_, ": ", listed(missing), " did not ", what, " within ",
                                        static_cast<double>(timeout_.count()) / 1e3, " s (this is rank ", rank_, " of ",
                                        size_, "). Is it running, and with the same world size and store?"));
  }
}

void StoreExchange::remove(const std::string &key) {
  if (!can_remove_) return;
  try {
    store_->deleteKey(key);
  } catch (const std::exception &) { can_remove_ = false; }
}

std::vector<StoreExchange::Bytes> StoreExchange::read(const std::vector<std::string> &keys) {
  if (store_->hasExtendedApi()) return store_->multiGet(keys);
  std::vector<Bytes> values;
  values.reserve(keys.size());
  for (const std::string &key : keys) values.push_back(store_->get(key));
  return values;
}

// get() waits for a key that was removed behind check(). compareSet() waits for none: of a key that is not there it gives back what was expected. The
// probe is nobody's value, so nothing is set.
StoreExchange::Bytes StoreExchange::read_if_there(const std::string &key) {
  if (can_compare_) {
    try {
      Bytes value = store_->compareSet(key, probe_, probe_);
      return value == probe_ ? Bytes{} : value;
    } catch (const std::exception &) { can_compare_ = false; }  // a store written in Python, say, that has no such call
  }
  return store_->check({key}) ? store_->get(key) : Bytes{};
}

void StoreExchange::agree() {
  if (rank_ == 0) lead();
  else join();
}

void StoreExchange::lead() {
  std::vector<std::string> hellos, acks;
  std::vector<int> ranks;
  for (int r = 1; r < size_; ++r) {
    ranks.push_back(r);
    hellos.push_back(hello(r));
  }
  await(hellos, ranks, "arrive", [] { return false; });
  while (true) {
    const std::vector<Bytes> nonces = read(hellos);
    attempt_ = hex(random_bytes(8));
    Bytes roster(attempt_.begin(), attempt_.end());
    roster.insert(roster.end(), nonce_.begin(), nonce_.end());
    acks.clear();
    for (int r = 1; r < size_; ++r) {
      Bytes nonce = nonces[static_cast<std::size_t>(r - 1)];
      nonce.resize(kNonce);
      roster.insert(roster.end(), nonce.begin(), nonce.end());
      acks.push_back(in_attempt("ack/" + std::to_string(r)));
    }
    store_->set(kRoster, roster);
    // The roster may hold the nonce of a rank's dead predecessor. That rank has replaced the nonce by now, and gets a new
    // roster.
    const bool all = await(acks, ranks, "confirm the rendezvous", [&] { return read(hellos) != nonces; });
    for (const std::string &key : acks) remove(key);
    if (!all) continue;
    // Nonces are removed before the commit: after it a fast rank may write its next one, for another group of this name. The roster is this rank's
    // own key, and stays until nobody looks at it any more (all_gather()).
    for (const std::string &key : hellos) remove(key);
    store_->set(in_attempt("commit"), Bytes{1});
    return;
  }
}

void StoreExchange::join() {
  store_->set(hello(rank_), nonce_);
  const std::size_t at = 16 + kNonce * static_cast<std::size_t>(rank_);
  // Rank 0 removes a nonce only after its owner has seen it in the roster.
  const auto check_own_nonce = [&] {
    if (read_if_there(hello(rank_)) == nonce_) return false;
    raise(ISTHMUS_ERR_MISMATCH, c10::str("rendezvous of group ", group_, ": another process is rank ", rank_,
                                         " too; give every process its own RANK"));
  };
  const auto begin = Clock::now();
  while (true) {
    await({kRoster}, {0}, "arrive", check_own_nonce);
    const Bytes roster = read_if_there(kRoster);
    const bool mine = roster.size() == 16 + kNonce * static_cast<std::size_t>(size_) &&
                      std::equal(nonce_.begin(), nonce_.end(), roster.begin() + static_cast<std::ptrdiff_t>(at));
    if (!mine) {
      check_own_nonce();
      if (interpreter::interrupted()) interpreter::raise_interrupt();
      if (Clock::now() > deadline_) {
        raise(ISTHMUS_ERR_TIMEOUT,
              c10::str("rendezvous of group ", group_, ": rank 0 did not admit rank ", rank_, " of ", size_, " within ",
                       static_cast<double>(timeout_.count()) / 1e3,
                       " s. Does it have the same world size, and is no other process rank ", rank_, "?"));
      }
      std::this_thread::sleep_for(std::clamp<Clock::duration>((Clock::now() - begin) / 10, kPause, kLongest));
      continue;
    }
    attempt_.assign(roster.begin(), roster.begin() + 16);
    store_->set(in_attempt("ack/" + std::to_string(rank_)), Bytes{1});
    // get() waits for a key that is removed behind check(), so rank 0 leaves this one until we are through.
    const auto replaced = [&] {
      const Bytes now = read_if_there(kRoster);
      return !now.empty() && now != roster;
    };
    if (await({in_attempt("commit")}, {0}, "confirm the rendezvous", replaced)) return;
  }
}

void StoreExchange::all_gather(const void *send, void *recv, size_t bytes) {
  if (size_ == 1) {
    std::memcpy(recv, send, bytes);
    return;
  }
  if (attempt_.empty()) agree();
  const int round = rounds_++;
  std::vector<std::string> keys;
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    keys.push_back(blob(round, r));
    ranks.push_back(r);
  }
  const auto *begin = static_cast<const std::uint8_t *>(send);
  store_->set(keys[static_cast<std::size_t>(rank_)], Bytes(begin, begin + bytes));
  const auto in_vain = [] { return isthmus_exchange_check() != ISTHMUS_OK; };
  // A rank may have written its blob and gone between two looks at the store.
  if (!await(keys, ranks, "take part in the exchange", in_vain) && !store_->check(keys)) {
    const isthmus_result result = isthmus_exchange_check();
    raise(result, c10::str("rendezvous of group ", group_, ": ", isthmus_last_error()));
  }
  if (round == 0 && rank_ == 0) remove(kRoster);  // all have written a blob, so all have seen the commit
  const std::vector<Bytes> values = read(keys);
  for (int r = 0; r < size_; ++r) {
    const Bytes &value = values[static_cast<std::size_t>(r)];
    if (value.size() != bytes) {
      raise(ISTHMUS_ERR_MISMATCH,
            c10::str("rendezvous of group ", group_, ": rank ", r, " sent ", value.size(), " bytes and rank ", rank_, " ",
                     bytes, "; do all ranks run the same version of isthmus?"));
    }
    std::memcpy(static_cast<std::uint8_t *>(recv) + static_cast<std::size_t>(r) * bytes, value.data(), bytes);
  }
  // All ranks have written in this round. So all ranks have read the round before.
  if (round > 0) remove(blob(round - 1, rank_));
}

int StoreExchange::exchange(void *context, const void *send, void *recv, size_t bytes) noexcept {
  auto *self = static_cast<StoreExchange *>(context);
  try {
    self->all_gather(send, recv, bytes);
    return 0;
  } catch (...) {
    self->error_ = std::current_exception();
    return 1;
  }
}

void StoreExchange::clean_up() noexcept {
  if (size_ == 1 || rounds_ == 0) return;
  try {
    if (store_->add(in_attempt("done"), 1) != size_) return;
    for (int r = 0; r < size_; ++r) remove(blob(rounds_ - 1, r));
    remove(in_attempt("commit"));
    remove(in_attempt("done"));
  } catch (const std::exception &e) {  // the group works; the store only keeps a few keys more
    TORCH_WARN_ONCE("isthmus: clearing the rendezvous keys of group ", group_, " failed: ", e.what());
  }
}

}  // namespace isthmus::torch_face
