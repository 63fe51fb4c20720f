// The rendezvous of isthmus_init over a torch Store.
//
// A store may hold what a dead attempt, or an earlier group of the same name, left behind. So ranks first agree on an
// attempt:
//
//   rank 0                             rank r
//      │◀──────── fresh nonce ────────────│     1. every rank writes a fresh nonce
//      │── roster, under an attempt id ──▶│     2. rank 0 collects the nonces into a roster under a fresh attempt id
//      │◀──────── acknowledged ───────────│     3. every rank acknowledges the roster that holds its own nonce
//      │──────── committed ──────────────▶│     4. rank 0 commits
//
// A stale nonce or roster is overwritten or ignored. All later keys carry the attempt id.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <c10/util/FunctionRef.h>

namespace isthmus::torch_face {

// `store` without the layer of keys that torch names after a device. So ranks with different devices meet under the same
// keys.
c10::intrusive_ptr<c10d::Store> without_device_prefix(const c10::intrusive_ptr<c10d::Store> &store);

// The same keys by a connection of Isthmus' own. So a thread of the program that waits in its store holds up nobody who
// meets. There is one connection to each store and process, however many groups are made, because a connection costs a name
// look-up. A store that cannot be cloned, and one in a file, is used unchanged.
c10::intrusive_ptr<c10d::Store> for_meetings(c10::intrusive_ptr<c10d::Store> store);
void forget_meeting_stores() noexcept;  // in a forked child: they are the parent's

class StoreExchange {
 public:
  // `group` is the name in messages; ranks of messages are those of the group.
  StoreExchange(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::chrono::milliseconds timeout,
                std::string group);

  // isthmus_exchange_fn; `context` is the StoreExchange.
  static int exchange(void *context, const void *send, void *recv, size_t bytes) noexcept;

  void clean_up() noexcept;  // after a successful init: the last rank to come removes what is left in the store
  std::exception_ptr error() const noexcept { return error_; }  // why exchange() failed

 private:
  using Bytes = std::vector<std::uint8_t>;

  void agree();
  void lead();
  void join();
  void all_gather(const void *send, void *recv, size_t bytes);

  // Waits for one key of each listed rank. `look` runs from time to time; true ends the wait early (returns false).
  bool await(const std::vector<std::string> &keys, const std::vector<int> &ranks, const char *what,
             c10::function_ref<bool()> look);
  void remove(const std::string &key);  // where the store can: what stays behind is recognised as stale
  std::vector<Bytes> read(const std::vector<std::string> &keys);
  Bytes read_if_there(const std::string &key);
  std::string hello(int rank) const;
  std::string in_attempt(const std::string &name) const;
  std::string blob(int round, int rank) const;

  c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::steady_clock::time_point deadline_;
  const std::string group_;
  Bytes nonce_;
  std::string attempt_;  // empty until agreed
  int rounds_ = 0;
  const Bytes probe_;
  bool can_remove_ = true, can_compare_ = true;
  std::exception_ptr error_;
};

}  // namespace isthmus::torch_face
