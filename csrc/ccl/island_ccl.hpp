// What Isthmus needs of a vendor's collective library: the collectives of one island, submitted to one stream of the island's device.
// An adapter holds no algorithm. What a library cannot do, can() says, and the planner plans around it.
//
// Calls of a communicator are made by one thread at a time, in the same order on all ranks of the island. Buffers are memory of the
// stream's device, counts are elements. Error(Unsupported) for what can() denies, Error(Argument) for a root or peer that is none; what
// goes wrong later is in status(), with the vendor, the call and its code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/island_call.hpp"
#include "device/runtime.hpp"

namespace isthmus::ccl {

using Call = IslandCall;

struct Capabilities {
  bool blocking = false;      // a call occupies the thread of the stream until the island's other ranks have made theirs
  bool groups = false;        // calls between group_begin() and group_end() go as one
  bool abort = false;         // abort() ends a call that waits; else the thread in it is left behind
  bool thread_ranks = false;  // ranks of one island may be threads of one process
  bool one_stream =
      false;  // all communicators of a process must share one stream, so their calls are in one order everywhere
  bool host_memory = false;  // calls take pinned memory of the host too, at the address that the device has for it
  size_t id_bytes = 0;       // of what make_id() gives
};

// What all_to_all_v gives to and takes from each rank of the island: bytes, whole elements, and where in the two buffers. Both sides must
// say the same of a block; libraries compare nothing. Read during the call only.
struct Blocks {
  std::span<const uint64_t> send_bytes, send_at, recv_bytes, recv_at;
};

// What a call reduces by. PremulSum: every contribution is multiplied by 2^-halvings, which the dtype must have (most_halvings), and then summed.
struct Reduction {
  RedOp op = RedOp::Sum;
  int halvings = 0;
  Reduction(RedOp of, int times = 0) : op(of), halvings(times) {}
};

class Communicator {
 public:
  // Ends the vendor's communicator. Ranks leave together, so not before the last call has ended on all of them, and the rank that made
  // the id after the others. After abort() what the library holds is left as it is where it would need the others to end it.
  virtual ~Communicator() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual device::Stream &stream() const noexcept = 0;
  virtual Status status() const = 0;  // the first failure of a call of this communicator; later ones are skipped

  virtual void all_reduce(const void *send, void *recv, uint64_t count, DType dtype,
                          Reduction by) = 0;  // in place: send == recv
  virtual void reduce(const void *send, void *recv, uint64_t count, DType dtype, Reduction by,
                      int root) = 0;  // recv: on root only
  virtual void broadcast(void *buffer, uint64_t count, DType dtype, int root) = 0;
  virtual void all_gather(const void *send, void *recv, uint64_t count, DType dtype) = 0;  // recv: size() * count
  virtual void reduce_scatter(const void *send, void *recv, uint64_t count, DType dtype,
                              Reduction by) = 0;                                           // send: size() * count
  virtual void all_to_all(const void *send, void *recv, uint64_t count, DType dtype) = 0;  // both: size() * count
  virtual void all_to_all_v(const void *send, void *recv, const Blocks &blocks) = 0;       // not in place
  virtual void send(const void *buffer, uint64_t count, DType dtype, int peer) = 0;
  virtual void recv(void *buffer, uint64_t count, DType dtype, int peer) = 0;

  // Any thread, at any time, more than once. Nothing more is begun. A call that waits for a peer ends, or where the library cannot end it,
  // is left behind by the destructor, with the stream that it blocks.
  virtual void abort() noexcept = 0;
  // After abort(): the library may still begin what was submitted before. Until this is false, or some time is up, what holds that back on
  // the stream should hold.
  virtual bool aborting() const noexcept { return false; }

  // Whether status() is not OK, or the stream runs no more; cheap.
  virtual bool failed() const noexcept = 0;
  // The call of this communicator that a thread is in now (static text), or nullptr. Only libraries whose calls block say so.
  virtual const char *inside() const noexcept { return nullptr; }
  // Whether the stream stands in a call of another communicator, so that what is submitted here does not even begin.
  virtual bool held_up() const noexcept { return false; }
  // For a call that does not end after abort(): the stream that it blocks runs nothing more.
  virtual void leave_behind() noexcept {}
};

struct Join {
  std::span<const std::byte> id;  // from make_id() of one rank of the island
  int rank = 0, size = 1;
  Deadline deadline{60};
  // Asked now and then while the library waits for the others; cheap. True: some rank of the island cannot join any more. May be empty.
  std::function<bool()> hopeless = {};

  bool in_vain() const { return hopeless && hopeless(); }
  // What a rank says that has waited for the others until the deadline, or in vain.
  Status waited(const char *family) const {
    const std::string why = in_vain() ? std::string("a rank of the island cannot join")
                                      : formatted("not all {} ranks of the island joined in time", size);
    return {Code::Timeout, formatted("{} init: {} (this is rank {} of it)", family, why, rank)};
  }
};

class Library {  // one vendor's, opened once a process; thread-safe
 public:
  virtual ~Library() = default;
  virtual const char *family() const noexcept = 0;  // "oneccl", ...: ranks of one island have the same
  virtual std::string version() const = 0;          // "2022.2.0"
  virtual std::string path() const = 0;             // of the file that was opened
  virtual Capabilities capabilities() const noexcept = 0;
  virtual bool can(Call call, DType dtype, RedOp op) const noexcept = 0;  // op: of reductions
  virtual Status usable() const { return {}; }  // not OK: no island can be joined from this process any more, and why
  virtual std::vector<std::byte> make_id(int device = 0) = 0;  // device: that of the rank that asks
  // Collective over the island. Error(Timeout) at the deadline, and soon after waiting is hopeless.
  virtual std::unique_ptr<Communicator> join(const Join &join, std::shared_ptr<device::Stream> stream) = 0;
};

// All that can() allows, to be told to the planner.
inline IslandTable table_of(const Library &library) noexcept {
  IslandTable table;
  for (int c = 0; c < kIslandCalls; ++c)
    for (int t = 0; t < kDTypeCount; ++t)
      for (int o = 0; o < (reduces(static_cast<Call>(c)) ? kRedOpCount : 1); ++o)
        if (library.can(static_cast<Call>(c), static_cast<DType>(t), static_cast<RedOp>(o)))
          table.allow(static_cast<Call>(c), static_cast<DType>(t), static_cast<RedOp>(o));
  return table;
}

}  // namespace isthmus::ccl
