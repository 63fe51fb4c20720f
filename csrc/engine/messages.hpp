// The messages of one rank: sends and receives in host memory and in device memory. Those of device memory are brought to pinned memory or a
// receive slot before they are sent, and from there when they have come; longer ones are cut into parts. Matching and links are the same for
// all (matcher.hpp).
//
// Who submits the copies. A send's: the caller, inside the call. A receive's on a user's stream: the caller too, behind a gate that opens when
// the message has come. Where the device has no gates, or pinned memory is short for a large message, the call returns when the message has
// come. A receive's without a stream: the device worker, when the message has come. A gate there could stand, in the one queue of a device,
// before the copy of a send that the peer waits for.
//
// Thread rules: submit() and order() any thread, without a lock; drive(), settled(), end_all() with the right to execute; the rest any thread.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "engine/matcher.hpp"
#include "engine/message_copies.hpp"
#include "engine/message_places.hpp"
#include "engine/message_table.hpp"
#include "engine/slot_messages.hpp"
#include "engine/stream_order.hpp"

namespace isthmus::engine {

class Messages {
 public:
  // `copier`: of a rank with a device; else null.
  Messages(RankCore &core, std::unique_ptr<DeviceCopier> copier, uint64_t part_bytes, int64_t group_wait_ns);

  void submit(Operation *op) noexcept;  // fully described; the communicator may have failed
  // Goes on with what has come or is out. True: something was done.
  bool drive() noexcept;
  bool moving() const noexcept { return table_.moving() != 0; }
  uint64_t progress() const noexcept;  // another number whenever something has gone on
  // By the device worker: the copies that nobody else submits. True: some wait for pinned memory, so come again.
  bool carry() noexcept { return copies_.carry(); }
  void submit_before(const Operation *collective) noexcept { copies_.submit_before(collective); }

  link::Accept accept(const link::FrameHeader &h, std::byte *&to) { return matcher_.accept(h, to); }
  void received(const link::FrameHeader &h) { matcher_.received(h); }

  // After a failure.
  void pass_lock() noexcept { table_.lock(); }  // whoever saw no failure under the match lock has posted what it was about to post
  void forget_unplaced() noexcept { copies_.forget(); }
  bool settled() noexcept;  // no copy of ours runs any more, or there is no waiting for it
  void end_all(Code code) noexcept { matcher_.end_all(code); }
  void release(Operation &op, Code result) noexcept;  // see OperationSink

  // Whether nothing is pending here, and whether what is are receives for which nothing has come.
  bool empty() noexcept;
  uint32_t waiting_receives() noexcept;
  // For people: `look` gets each operation and the list that it is in, until it returns false. Under the match lock.
  template <class Look>
  void each(Look look) noexcept {
    const auto s = table_.lock();
    for (const OperationList *list : s->all)
      for (const Operation *o = list->head; o; o = o->match_next)
        if (!look(*o, *list, *s)) return;
  }

  // The end of the communicator: no copier any more, where no thread is stuck with it.
  void leave() noexcept;
  bool copying() const noexcept { return device_.copier && device_.copier->busy(); }
  bool free_spares() noexcept { return places_.free_spares(); }
  void touch_slots() noexcept { SlotMessages::touch(*table_.lock()); }
  bool written_by(int q) noexcept;    // rank `q`'s device may write to this rank's receive slots
  void forget() noexcept { (void)device_.copier.release(); }  // in a forked child: the parent's memory, and its threads

  SlotMessages &slots() noexcept { return slots_; }
  const SlotMessages &slots() const noexcept { return slots_; }
  StreamOrder &streams() noexcept { return streams_; }

 private:
  using Numbered = std::unique_lock<std::recursive_timed_mutex>;
  void submit_one(Operation *op) noexcept;
  void submit_parts(Operation *op) noexcept;
  Operation *make_part(Operation *op, uint32_t i, uint64_t size) noexcept;
  Numbered in_order(const Operation &op) noexcept;
  void send_from_device(Operation *op) noexcept;
  void recv_to_device(Operation *op) noexcept;
  bool expect(Operation *op) noexcept;  // a receive behind a gate; false: it has none
  bool start_next_send() noexcept;
  bool grant_next() noexcept;
  void open_gates() noexcept;
  bool end_next_landed() noexcept;

  RankCore &core_;
  MessageTable table_;
  MessageDevice device_;
  MessagePlaces places_;
  SlotMessages slots_;
  Matcher matcher_;
  MessageCopies copies_;
  StreamOrder streams_;
  std::recursive_timed_mutex order_[2];  // sends, receives: the order of their numbers is that of their calls
};

}  // namespace isthmus::engine
