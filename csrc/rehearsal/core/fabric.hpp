// Fabric carries the data of collectives and messages between the ranks of a communicator. A fabric is a segment of shared memory that all
// ranks map. The queues' threads run it, and wait for each other by looking at counters in the segment.
//
// A collective goes in steps. In a step every rank posts one piece of its data, up to 512 KiB:
//
//   rank 0                                        rank 1
//     waits: all have taken step n-2                waits: all have taken step n-2
//     writes its piece into half n & 1              writes its piece into half n & 1
//     posted = n                                    posted = n
//     waits: all have posted n                      waits: all have posted n
//     reads all pieces, reduces or copies           reads all pieces, reduces or copies
//     taken = n                                     taken = n
//
// Messages have a channel of two slots of 64 KiB for each pair of ranks and direction.
//
// Thread rules: one item of a communicator at a time calls run().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/arithmetic.hpp"
#include "core/rendezvous.hpp"

namespace rehearsal {

enum class Collective { AllReduce, Reduce, Broadcast, AllGather, ReduceScatter };

// A collective.
struct Work {
  Collective kind = Collective::AllReduce;
  Type type = Type::I8;
  Reduction reduction = Reduction::Sum;
  uint64_t factor = 0;  // of ScaledSum: Contribution::factor
  int root = 0;
  uint64_t count = 0;  // elements of the smaller side
  const std::byte *from = nullptr;
  std::byte *to = nullptr;
};

// A message to or from a rank.
struct Message {
  bool sends = false;
  int peer = 0;
  std::byte *at = nullptr;
  uint64_t bytes = 0;
};

class REHEARSAL_API Fabric {
 public:
  using Stop = std::function<bool()>;

  // Meets the other ranks (rendezvous.hpp), and returns when all ranks have mapped the segment. Stopped: stop() was true.
  static Met join(const Library &library, const Token &token, int rank, int size, int device, const Stop &stop,
                  std::shared_ptr<Fabric> *out, bool patient = false);
  ~Fabric();
  Fabric(const Fabric &) = delete;
  Fabric &operator=(const Fabric &) = delete;

  // run() returns when the work is done, or when stop() is true. After a stop the results are undefined, and the fabric cannot be used
  // again. It is a misuse by `call` if the ranks call different collectives, or if a send and its receive have different sizes. Messages
  // from one rank to another meet in the order of the calls.
  void run(const char *call, const Work &w, const Stop &stop);
  // `until_taken`: returns after the peers have received what this rank sends.
  void run(const char *call, const std::vector<Message> &messages, const Stop &stop, bool until_taken = false);

  // Called by all ranks. Ranks of one color become a new group, in the order of key, then rank. A negative color is in no group. `token`:
  // by which the group's ranks meet. False: stopped, or no token could be made.
  bool split(int color, int key, const Stop &stop, Token *token, int *new_rank, int *new_size);

 private:
  struct Shared;
  Fabric(const Library &library, void *base, size_t bytes, int rank, int size);
  bool exchange(const char *call, const Work &w, const Stop &stop, const std::function<void(std::byte *)> &put,
                const std::function<void()> &take, size_t bytes);
  const std::byte *piece(int rank) const;

  const Library library_;
  std::byte *const base_;
  const size_t bytes_;
  const int rank_, size_;
  uint32_t step_ = 0, splits_ = 0;
  std::vector<uint32_t> sent_, received_;
};

}  // namespace rehearsal
