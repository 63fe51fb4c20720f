// What the functions of isthmus.h are made of: the handle of a communicator, a call inside the communicator, and the end of a call.
#pragma once

#include "isthmus/isthmus.h"

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "base/lock.hpp"
#include "comm/communicator.hpp"

// A handle is small, and stays valid memory after destroy. So a use after destroy is an error and not a crash.
struct isthmus_comm {
  std::shared_ptr<isthmus::comm::Communicator> communicator;  // null once destroyed and left by all
  std::atomic<bool> destroyed{false};
  std::atomic<uint32_t> inside{0};  // calls that use the communicator just now
  std::atomic<bool> left{false};    // destroy waits no longer for those calls: the last of them lets go of the communicator
  std::atomic<bool> changing{false};  // its communicator is about to be another one (reconfigure)
  isthmus::Mutex swap;                // guards `communicator` where a call does not wait for reconfigure: abort, destroy
  isthmus_comm *next = nullptr;       // in the list of destroyed handles
  const isthmus::Birth birth;
};

namespace isthmus::api {

// For isthmus_last_error() of this thread.
isthmus_result failed(Code code, std::string text, std::vector<int> ranks = {}) noexcept;
const std::string &last_error() noexcept;
const std::vector<int> &last_error_ranks() noexcept;

// Destroys what isthmus_comm_destroy() was given, once. In the interrupt check, inside a call that works for the communicator, it aborts the
// communicator instead, which is freed at the end of that call: the check runs wherever the call waits, and there the call has what the end needs.
void destroy(isthmus_comm_t comm);

// The end of a function of isthmus.h: frees what the interrupt check inside it has destroyed.
class EndOfCall {
 public:
  EndOfCall() = default;
  ~EndOfCall() {
    if (!waiting_.empty()) end();
  }
  EndOfCall(const EndOfCall &) = delete;
  EndOfCall &operator=(const EndOfCall &) = delete;

 private:
  friend void destroy(isthmus_comm_t comm);
  struct Destroyed {
    isthmus_comm_t comm;
    std::shared_ptr<comm::Communicator> communicator;
  };
  static void end() noexcept;
  static thread_local std::vector<Destroyed> waiting_;
};

template <class F>
isthmus_result guarded(F f) noexcept {
  const EndOfCall end_of_call;
  try {
    return f();
  } catch (const Error &e) { return failed(e.code(), e.text(), e.ranks()); } catch (const std::bad_alloc &) {
    return failed(Code::Resource, "out of memory");
  } catch (const std::exception &e) { return failed(Code::Internal, e.what()); } catch (...) {
    return failed(Code::Internal, "unknown exception");
  }
}

// This thread works for a communicator, in a function of isthmus.h. Others may be around it: the interrupt check may call such functions.
class CallHere {
 public:
  explicit CallHere(const engine::RankCore *of) noexcept : of_(of), outer_(innermost_) { innermost_ = this; }
  ~CallHere() { innermost_ = outer_; }
  CallHere(const CallHere &) = delete;
  CallHere &operator=(const CallHere &) = delete;
  static bool is_for(comm::Communicator &communicator) noexcept;  // also in a group that ends
  static bool innermost_is_for(comm::Communicator &communicator) noexcept;

 private:
  const engine::RankCore *const of_;
  const CallHere *const outer_;
  static thread_local const CallHere *innermost_;
};

// A call inside a communicator. While there is such a call, destroy does not let go of the communicator. The two threads meet so:
//
//   a call    inside += 1 | destroyed? no: goes on ... inside -= 1 | left, and inside is 0? lets go
//                         |
//   destroy               | destroyed = true ... waits for inside == 0, at most 2 s | left = true | inside is 0? lets go
//
// All these accesses are sequentially consistent. So the call sees `destroyed`, or destroy sees the call. Exactly one thread lets go: the one that
// takes `left` back.
class CallInside {
 public:
  // `what`: the name of the call, or the collective of the call.
  template <class What = const char *>
  explicit CallInside(isthmus_comm_t comm, What what = "this call")
      : comm_(entered(comm, text_of(what))), here_(&comm->communicator->local().core()) {}
  ~CallInside() { leave(comm_); }
  CallInside(const CallInside &) = delete;
  CallInside &operator=(const CallInside &) = delete;
  static void let_go(isthmus_comm_t comm) noexcept;
  // From here on no call but abort, revoke and destroy comes in, until the end of this one. Waits for those that are inside.
  void close() const;
  void open() const noexcept { comm_->changing.store(false, std::memory_order_seq_cst); }
  comm::Communicator *operator->() const noexcept { return comm_->communicator.get(); }
  comm::Communicator &operator*() const noexcept { return *comm_->communicator; }

 private:
  static const char *text_of(const char *what) noexcept { return what; }
  static const char *text_of(Collective c) noexcept { return collective_name(c); }
  static isthmus_comm_t entered(isthmus_comm_t comm, const char *what);
  static void leave(isthmus_comm_t comm) noexcept {
    if (comm->inside.fetch_sub(1, std::memory_order_seq_cst) == 1) let_go(comm);
  }
  const isthmus_comm_t comm_;
  const CallHere here_;
};

// The communicator there is. Null: it was let go of.
std::shared_ptr<comm::Communicator> epoch_of(isthmus_comm_t comm);
// Puts another in its place, and returns the old one.
std::shared_ptr<comm::Communicator> go_over(isthmus_comm_t comm, std::shared_ptr<comm::Communicator> epoch);
void settle_dumps() noexcept;  // flight records that are wanted, for as long as they may hold up destroy

}  // namespace isthmus::api
