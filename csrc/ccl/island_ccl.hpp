// What Isthmus needs of a vendor's collective library: the collectives of one island, submitted to one stream of the rank's device. An adapter
// holds no algorithm. can() says what a library can do, and the planner plans around the rest.
//
// One thread at a time calls a communicator. All ranks of the island make their calls in the same order. Buffers are memory of the stream's
// device. Counts are elements. A call throws Error(Unsupported) for what can() denies, and Error(Argument) for a root or a peer that is no
// rank of the island. What goes wrong later is in status(), with the vendor, the call and its code.
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

struct LibraryCapabilities {
  bool blocking = false;  // a call occupies the thread of the stream until the island's other ranks have made their calls
  bool groups = false;    // the library takes several calls as one
  bool abort = false;     // abort() ends a call that waits; else the thread in the call is left behind
  bool thread_ranks = false;  // ranks of one island may be threads of one process
  bool one_stream =
      false;  // all communicators of a process must share one stream, so their calls are in one order on all ranks
  bool host_memory = false;  // calls take pinned memory of the host too, at the address by which the device finds it
  size_t id_bytes = 0;       // the size of what make_id() gives
};

// What all_to_all_v() gives to each rank of the island and takes from each: bytes, of whole elements, and their places in the two buffers. Both
// sides of a block must say the same size; libraries compare nothing. The spans are read during the call only.
struct Blocks {
  std::span<const uint64_t> input_bytes, input_at, output_bytes, output_at;
};

// The operation by which a call reduces. PremulSum multiplies every contribution and sums: by the rank's own factor, or by 2^-halvings, which the
// dtype must have as a number (most_halvings).
struct Reduction {
  RedOp op = RedOp::Sum;
  int halvings = 0;
  bool has_factor = false;
  uint64_t factor = 0;  // the bits that the number has in the dtype
  Reduction(RedOp of, int times = 0) : op(of), halvings(times) {}
  static Reduction multiplied(uint64_t factor) {
    Reduction by(RedOp::PremulSum);
    by.has_factor = true;
    by.factor = factor;
    return by;
  }
};

class IslandCommunicator {
 public:
  // Ends the vendor's communicator. Ranks leave together: not before the last call has ended on all of them, and the rank that made the id
  // leaves after the others. After abort() the library keeps what it would need the other ranks to end.
  virtual ~IslandCommunicator() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual device::Stream &stream() const noexcept = 0;
  // The first failure of a call of this communicator; later calls are skipped. Where that is a failure of the device, the first to ask gives the
  // driver up to 2 s to say more of it.
  virtual Status status() const = 0;

  virtual void all_reduce(const void *input, void *output, uint64_t count, DType dtype,
                          Reduction by) = 0;  // in place: input == output
  virtual void reduce(const void *input, void *output, uint64_t count, DType dtype, Reduction by,
                      int root) = 0;  // output: on root only
  virtual void broadcast(void *buffer, uint64_t count, DType dtype, int root) = 0;
  virtual void all_gather(const void *input, void *output, uint64_t count, DType dtype) = 0;  // output: size() * count
  virtual void reduce_scatter(const void *input, void *output, uint64_t count, DType dtype,
                              Reduction by) = 0;                                              // input: size() * count
  virtual void all_to_all(const void *input, void *output, uint64_t count, DType dtype) = 0;  // both: size() * count
  virtual void all_to_all_v(const void *input, void *output, const Blocks &blocks) = 0;       // not in place
  virtual void send(const void *buffer, uint64_t count, DType dtype, int peer) = 0;
  virtual void recv(void *buffer, uint64_t count, DType dtype, int peer) = 0;

  // Makes the calls that `calls` makes as one group of the library's, on all ranks that take part. The calls end in any order, so none of
  // them touches what another one writes. There is at most one message each way with each rank. Where the library has no groups of such calls, they
  // are made one after the other. `calls` is always called, once.
  using Calls = void (*)(void *context);
  virtual void together(Calls calls, void *context) { calls(context); }

  // Any thread, at any time, more than once. Nothing more is begun. A call that waits for a peer ends. Where the library cannot end the call, the
  // destructor leaves the call behind, with the stream that the call blocks.
  virtual void abort() noexcept = 0;
  // After abort() the library may still begin what was submitted before. The caller keeps holding it back on the stream until aborting() is false,
  // or some time is up.
  virtual bool aborting() const noexcept { return false; }

  // Whether status() is not OK, or the stream runs no more. Cheap.
  virtual bool failed() const noexcept = 0;
  // The call of this communicator in which a thread is now (static text), or nullptr. Only libraries whose calls block say so.
  virtual const char *inside() const noexcept { return nullptr; }
  // Whether the stream stands in a call of another communicator. Then what is submitted here does not even begin.
  virtual bool held_up() const noexcept { return false; }
  // Called where a call does not end after abort(). The stream that the call blocks runs nothing more.
  virtual void leave_behind() noexcept {}
};

// What an island's ranks know of each other before any of them uses the library.
struct IslandMember {
  std::string host;  // opaque: equal on one host
  int64_t pid = 0;
  std::vector<std::byte> terms;  // Library::terms() of the rank's process
};

struct IslandJoin {
  std::span<const std::byte> id;  // from make_id() of one rank of the island
  int rank = 0, size = 1;
  Deadline deadline{60};
  // Asked now and then while the library waits for the other ranks. Cheap. True: some rank of the island cannot join any more. May be empty.
  std::function<bool()> hopeless = {};

  bool in_vain() const { return hopeless && hopeless(); }
  // The failure of a rank that has waited for the others until the deadline, or in vain.
  Status waited(const char *family) const {
    const std::string why = in_vain() ? std::string("a rank of the island cannot join")
                                      : formatted("not all {} ranks of the island joined in time", size);
    return {Code::Timeout, formatted("{} init: {} (this is rank {} of it)", family, why, rank)};
  }
};

class Library {  // a vendor's library, opened once in a process; thread-safe
 public:
  virtual ~Library() = default;
  virtual const char *family() const noexcept = 0;  // "oneccl", ...: the ranks of an island have the same
  virtual std::string version() const = 0;          // "2022.2.0"
  virtual std::string path() const = 0;             // of the file that was opened
  virtual LibraryCapabilities capabilities() const noexcept = 0;
  virtual bool can(Call call, DType dtype, RedOp op) const noexcept = 0;  // op: of reductions
  virtual Status usable() const { return {}; }  // not OK: this process can join no island any more, and why
  // What the other ranks of an island must know of this process: at most 64 bytes, which the library alone reads.
  virtual std::vector<std::byte> terms() const { return {}; }
  // Each rank calls this with the island's members in their order, before make_id() and join(). Throws where they cannot be one island.
  virtual void settle(std::span<const IslandMember>) {}
  virtual std::vector<std::byte> make_id(int device = 0) = 0;  // device: of the rank that asks
  // Collective over the island. Error(Timeout) at the deadline, or soon after waiting has become hopeless.
  virtual std::unique_ptr<IslandCommunicator> join(const IslandJoin &join, std::shared_ptr<device::Stream> stream) = 0;
};

// All that can() allows, as the planner takes it.
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
