// What carries collectives between the ranks of a communicator: a segment of memory that all of them map. The queues' threads run it, one
// item at a time, and wait for each other by looking.
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

struct Work {
  Collective kind = Collective::AllReduce;
  Type type = Type::I8;
  Reduction reduction = Reduction::Sum;
  uint64_t factor = 0;
  int root = 0;
  uint64_t count = 0;  // elements of the smaller side
  const std::byte *from = nullptr;
  std::byte *to = nullptr;
};

struct Message {
  bool sends = false;
  int peer = 0;
  std::byte *at = nullptr;
  uint64_t bytes = 0;
};

class REHEARSAL_API Fabric {
 public:
  using Stop = std::function<bool()>;

  // Returns when all ranks have it.
  static Met join(const Library &library, const Token &token, int rank, int size, int device, const Stop &stop,
                  std::shared_ptr<Fabric> *out, bool patient = false);
  ~Fabric();
  Fabric(const Fabric &) = delete;
  Fabric &operator=(const Fabric &) = delete;

  // These return early when told to stop; what is written then is anybody's guess, and the fabric is of no further use.
  void run(const char *call, const Work &w, const Stop &stop);
  // `until_taken`: does not return before the others have received what this rank sends.
  void run(const char *call, const std::vector<Message> &messages, const Stop &stop, bool until_taken = false);

  // Parts the ranks by color, in the order of key and rank. False: stopped.
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
