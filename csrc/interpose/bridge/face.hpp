// What the faces share. A face is the bridge as the programs of one vendor see the bridge: with the names, the numbers and
// the groups of that vendor's library.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "comm.hpp"
#include "devices.hpp"
#include "front_door.hpp"
#include "handles.hpp"
#include "outcome.hpp"

namespace isthmus::interpose {
enum Result : int;  // its numbers are each vendor's own
}

namespace isthmus::bridge {

using interpose::FrontDoor;
using interpose::Result;

constexpr Result kOk{0};  // of every vendor
constexpr const char *kNoHandle =
    "too many communicators that span vendors are in use, or there is no memory for their handles";

enum class Level { Info = 2, Warn = 3 };  // as FrontDoor::say has them
// When the operations of a group are checked. `Late`: when every communicator that the group makes is there. `EarlyAndLate`:
// also before anything of the group is made. What the operations wait for is then waited for again, behind the real
// library's part.
enum class GroupCheck { Late, EarlyAndLate };

// Waits for the real library's part of a group. Hears of communicators that the program aborts as long as the object lives.
class GroupWait {
 public:
  GroupWait() = default;
  virtual ~GroupWait() = default;
  GroupWait(const GroupWait &) = delete;
  GroupWait &operator=(const GroupWait &) = delete;
  // Until all of the group is on its streams. `ours`: whether to go on waiting.
  virtual Outcome wait(const std::function<Outcome()> &ours) = 0;
};

// The points in which the interfaces of the vendors differ.
struct FaceRules {
  const char *group_end;  // the name of the function that ends a group
  // Numbers: a wrong argument; a pointer that is NULL; the real library lacks the function; no handle is free; no memory, no
  // thread.
  Result argument, null, missing, no_handle, system;
  // The number that is no failure: the call has returned, and its work goes on. kOk: the vendor has no such number.
  Result in_progress;
  bool has_last_error;  // a program can ask for the last failure's text; else texts are lines of the log
  GroupCheck group_check;
  // Where the end of the real library's group may give `in_progress`: what waits for the thread's group. Made before that
  // group ends.
  std::unique_ptr<GroupWait> (*group_wait)() = nullptr;
};

struct PendingGroup;

// One object for each face, which stays for good. Any thread may call any function.
class Face {
 public:
  explicit Face(const FaceRules &r) noexcept : rules(r) {}
  virtual ~Face() = default;
  Face(const Face &) = delete;
  Face &operator=(const Face &) = delete;

  // Takes the door, for good. False: the door was built with another list of calls, or the face serves the door of another
  // vendor.
  bool serve(const FrontDoor *door, uint32_t digest);
  const FrontDoor &door() const noexcept { return *door_; }
  Devices &devices() const { return bridge::devices(door().device, door().look_up); }

  // A function of the real library; null: the library has none of that name.
  template <class Function>
  Function *real(const char *name) const {
    return reinterpret_cast<Function *>(door().look_up(name));
  }

  // Each of these tells the program why a call fails, and gives the vendor's number of the failure.
  Result lacks(const char *name);                           // the real library has no such function
  Result failed(const char *call, const Outcome &outcome);  // success, where the outcome is a success
  Result refused(Result code, const char *call, const std::string &text);
  Result thrown(const std::exception &e) noexcept;  // the standard library threw: no memory, no thread. Notes it, too
  void say(Level level, const std::string &text) const { door().say(static_cast<int>(level), text.c_str()); }
  Result number_of(const Outcome &o) const noexcept { return o.vendors ? Result(o.vendors) : number_of(o.code); }
  bool failure(Result r) const noexcept { return r != kOk && r != rules.in_progress; }
  // The first failure of the two. Work in progress counts less than any failure.
  Result worse(Result first, Result next) const noexcept {
    return first == kOk || (first == rules.in_progress && next != kOk) ? next : first;
  }

  // The group that is open on this thread.
  bool in_group() const noexcept { return door().thread()->depth > 0; }
  PendingGroup &pending() const;
  PendingGroup *take_pending() const noexcept;  // null: nothing is pending
  Result note(Result r) const;                  // the first failure inside a group is the group's

  // What each vendor does in a way of its own.
  virtual Result number_of(isthmus_result code) const noexcept = 0;
  virtual void tell(const std::string &text) = 0;
  virtual void tell_thrown(const char *what) noexcept = 0;
  virtual Outcome prepare(const Comm &comm, BridgedCall &operation) = 0;  // what an operation needs before it can begin
  virtual void spoil_group() {}  // makes the real library's open group fail when it ends, where the vendor's groups can fail
  // The text of this thread's newest failure, and the way to make a text the newest again: of this thread, and of all in the
  // eyes of the program. Only where has_last_error.
  virtual const char *last_told() const noexcept { return nullptr; }
  virtual void tell_again(const char *) {}

  const FaceRules rules;

 private:
  void listen_where_told() const;

  std::once_flag served_;
  const FrontDoor *door_ = nullptr;
};

// Calls a function of the real library. Where the library has none of that name, the call fails.
template <class Function, class... Arguments>
Result call_real(Face &face, const char *name, Arguments... arguments) {
  auto *f = face.real<Function>(name);
  return f ? f(arguments...) : face.lacks(name);
}

// Asks something of a communicator that is ready. The answer goes to `out`. `no_comm` fails the call where there is no
// communicator.
template <class Answer>
Result ask(Face &face, Result (*no_comm)(const char *), const char *call, const void *handle, const void *out,
           Answer answer) {
  const CommPtr comm = find(handle);
  if (!comm) return no_comm(call);
  if (!out) return face.refused(face.rules.null, call, "an argument is NULL");
  if (const Outcome o = comm->status(); o.code == ISTHMUS_IN_PROGRESS)
    return face.refused(face.rules.argument, call, o.text);
  return answer(*comm);
}

// What a front door that opens the bridge gets: the calls, made once for all doors. Null: serve() is false, or there is no
// room for handles.
template <class Calls>
const Calls *open_face(Face &face, const FrontDoor *door, uint32_t digest, Calls (*make_calls)()) {
  if (!face.serve(door, digest)) return nullptr;
  static const Calls calls = make_calls();
  return calls.handles ? &calls : nullptr;
}

// A function of a face as a front door calls the function. Nothing is thrown into a door, or into the program before the
// door: a lack of memory or of threads is a failure like any other.
template <auto FaceOf, auto Function>
struct GuardedCall;
template <auto FaceOf, class... Arguments, Result (*Function)(Arguments...)>
struct GuardedCall<FaceOf, Function> {
  static Result call(Arguments... arguments) noexcept {
    try {
      return Function(arguments...);
    } catch (const std::exception &e) { return FaceOf().thrown(e); }
  }
};

}  // namespace isthmus::bridge
