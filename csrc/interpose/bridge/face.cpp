#include "face.hpp"

#include <cstring>
#include <utility>

#include "group.hpp"

namespace isthmus::bridge {

// Two vendors whose functions have the same names share a face. A process has a door of one of the two vendors.
bool Face::serve(const FrontDoor *door, uint32_t digest) {
  std::call_once(served_, [&] {
    if (door->digest == digest) door_ = door;
  });
  return door_ && std::strcmp(door->family, door_->family) == 0;
}

Result Face::lacks(const char *name) {
  return refused(rules.missing, name, std::string("the library at ") + door().path + " has no such function");
}
Result Face::failed(const char *call, const Outcome &o) { return o.ok() ? kOk : refused(number_of(o.code), call, o.text); }
Result Face::refused(Result code, const char *call, const std::string &text) {
  tell(std::string(call) + ": " + text);
  return code;
}
Result Face::thrown(const std::exception &e) noexcept {
  tell_thrown(e.what());
  try {
    return note(rules.system);
  } catch (const std::exception &) { return rules.system; }  // no memory to note it: nothing of the group is ours yet
}

PendingGroup &Face::pending() const {
  interpose::ThreadState &t = *door().thread();
  if (!t.pending) t.pending = new PendingGroup;
  return *static_cast<PendingGroup *>(t.pending);
}
PendingGroup *Face::take_pending() const noexcept {
  return static_cast<PendingGroup *>(std::exchange(door().thread()->pending, nullptr));
}
Result Face::note(Result r) const {
  if (failure(r) && in_group() && pending().failure == kOk) {
    pending().failure = r;
    pending().why = last_told();
  }
  return r;
}

}  // namespace isthmus::bridge
