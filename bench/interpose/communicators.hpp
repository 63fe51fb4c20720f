// The communicators of interpose_bench, made through the door of NCCL.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <chrono>
#include <thread>
#include <vector>

#include "rows.hpp"

constexpr int kSuccess = 0, kInProgress = 7;

struct UniqueId {
  unsigned char bytes[128];
};
struct Config {  // its beginning: `size` says that there is no more
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0, unused = INT_MIN;
};
using GetUniqueId = int(UniqueId *);
using InitRank = int(void **, int, UniqueId, int);
using InitRankConfig = int(void **, int, UniqueId, int, Config *);
using GetAsyncError = int(void *, int *);
using Destroy = int(void *);

class Communicators {
 public:
  explicit Communicators(void *door)
      : make_id_(find<GetUniqueId>(door, "ncclGetUniqueId")),
        init_(find<InitRank>(door, "ncclCommInitRank")),
        init_apart_(find<InitRankConfig>(door, "ncclCommInitRankConfig")),
        ask_(find<GetAsyncError>(door, "ncclCommGetAsyncError")),
        destroy_(find<Destroy>(door, "ncclCommDestroy")) {}

  bool complete() const { return make_id_ && init_ && init_apart_ && ask_ && destroy_; }

  // A communicator that spans vendors: two ranks of this process, which say two labels of islands. Stays until the end.
  bool span() const {
    UniqueId id{};
    void *ranks[2] = {};
    if (make_id_(&id) != kSuccess) return false;
    for (int rank = 0; rank < 2; ++rank) {
      Config config;
      ::setenv("ISTHMUS_ISLAND", rank ? "b" : "a", 1);
      if (init_apart_(&ranks[rank], 2, id, rank, &config) != kInProgress) return false;
    }
    ::unsetenv("ISTHMUS_ISLAND");
    return is_made(ranks[0]) && is_made(ranks[1]);
  }

  // The library's own handle, from an init whose id was made without Isthmus.
  bool add_own(Handles &to) const {
    void *comm = nullptr;
    if (init_(&comm, 1, UniqueId{}, 0) != kSuccess) return false;
    to.bare.push_back(comm);
    to.door.push_back(comm);
    return true;
  }

  // A copy of the handle that an init gave which does not block, beside the library's own handle.
  bool add_alias(Handles &to) const {
    for (int tries = 0; tries < 20; ++tries) {
      UniqueId id{};
      void *volatile comm = nullptr;
      Config config;
      if (make_id_(&id) != kSuccess || init_apart_(const_cast<void **>(&comm), 1, id, 0, &config) != kInProgress)
        return false;
      void *const copy = comm;  // the variable gets the library's own handle when the init is done
      if (!is_made(copy)) return false;
      if (until(std::chrono::seconds(1), [&] { return comm != copy; })) {
        void *const own = comm;
        to.bare.push_back(own);
        to.door.push_back(copy);
        return true;
      }
      destroy_(copy);  // it was done before the copy was taken
    }
    return false;
  }

  // By one handle and by the other, in turns: each ends both.
  bool destroy_all(const Handles &h) const {
    for (size_t i = 0; i < h.door.size(); ++i)
      if (destroy_(i % 2 ? h.bare[i] : h.door[i]) != kSuccess) return false;
    return true;
  }

 private:
  template <class Time, class Holds>
  static bool until(Time time, const Holds &holds) {
    using Clock = std::chrono::steady_clock;
    for (const auto end = Clock::now() + time; !holds() && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    return holds();
  }
  bool is_made(void *comm) const {
    int state = kInProgress;
    return until(std::chrono::seconds(60), [&] { return ask_(comm, &state) != kSuccess || state != kInProgress; }) &&
           state == kSuccess;
  }

  GetUniqueId *const make_id_;
  InitRank *const init_;
  InitRankConfig *const init_apart_;
  GetAsyncError *const ask_;
  Destroy *const destroy_;
};
