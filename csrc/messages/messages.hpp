// Messages is the messages of one rank: sends and receives in host memory and in device memory. On their way, messages of device memory lie in pinned
// memory or a receive slot. Matching and links are the same for all messages (matcher.hpp).
//
// Thread rules: submit() any thread, without a lock. drive() and settled() with the right to execute. The rest any thread.
#pragma once

#include <memory>

#include "messages/library_messages.hpp"
#include "messages/matcher.hpp"
#include "messages/message_copies.hpp"
#include "messages/message_places.hpp"
#include "messages/message_submission.hpp"
#include "messages/message_table.hpp"
#include "messages/slot_messages.hpp"
#include "messages/stream_order.hpp"

namespace isthmus::messages {

class Messages {
 public:
  // `copier`: of a rank with a device; else null. `part_bytes`: see PartSizes. `group_wait_ns`: how long a send that ends a group waits for the call
  // of its receive.
  Messages(RankCore &core, std::unique_ptr<DeviceCopier> copier, uint64_t part_bytes, int64_t group_wait_ns);

  void submit(Operation *op) noexcept {
    if (!library_.take(op)) submission_.submit(op);
  }
  bool drive() noexcept;  // goes on with what has come or is out. True: something was done
  bool moving() const noexcept { return table_.moving() != 0; }
  uint64_t progress() const noexcept;                 // another number whenever something has gone on
  void release(Operation &op, Code result) noexcept;  // see OperationSink

  // After a failure. True: no copy of ours runs any more, or the wait for the copies is given up.
  bool settled() noexcept;
  // The end of the communicator. The copier ends, where no thread is stuck with the copier.
  void leave() noexcept;
  bool copying() const noexcept { return device_.copier && device_.copier->busy(); }
  void forget() noexcept { (void)device_.copier.release(); }  // in a forked child: the parent's memory, and its threads

  // For people. `look` gets each operation, the operation's list and the state, until `look` returns false. Under the match lock.
  template <class Look>
  void each(Look look) noexcept {
    const auto s = table_.lock();
    for (const OperationList *list : s->all)
      for (const Operation *o = list->head; o; o = o->message.next)
        if (!look(*o, *list, *s)) return;
  }

  MessageTable &table() noexcept { return table_; }
  MessagePlaces &places() noexcept { return places_; }
  SlotSends &sends() noexcept { return sends_; }
  SlotReceives &slots() noexcept { return slots_; }
  LibraryMessages &library() noexcept { return library_; }
  Matcher &matcher() noexcept { return matcher_; }
  MessageCopies &copies() noexcept { return copies_; }
  StreamOrder &streams() noexcept { return streams_; }
  const PartSizes &sizes() const noexcept { return sizes_; }

 private:
  bool start_next_send() noexcept;
  bool grant_next() noexcept;
  void open_gates() noexcept;
  bool end_next_landed() noexcept;

  RankCore &core_;
  const PartSizes sizes_;
  MessageTable table_;
  MessageDevice device_;
  LibraryMessages library_;
  MessagePlaces places_;
  SlotSends sends_;
  SlotReceives slots_;
  Matcher matcher_;
  MessageCopies copies_;
  StreamOrder streams_;
  MessageSubmission submission_;
};

}  // namespace isthmus::messages
