#include "face.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "group.hpp"
#include "interfaces.hpp"

namespace isthmus::bridge {

// Two vendors whose functions have the same names share a face. A process has a door of one of the two vendors.
bool Face::serve(const FrontDoor *door, uint32_t digest) {
  std::call_once(served_, [&] {
    if (door->digest != digest) return;
    door_ = door;
    listen_where_told();
  });
  return door_ && std::strcmp(door->family, door_->family) == 0;
}

// Isthmus listens where the program's own library was told to.
void Face::listen_where_told() const {
  const ChosenInterfaces chosen = chosen_interfaces(door().family, std::getenv, present_interfaces());
  if (chosen.variable.empty()) return;
  std::string list;
  for (const std::string &name : chosen.names) list += (list.empty() ? "" : ",") + name;
  if (list.empty())
    return say(Level::Warn,
               chosen.variable + " names no interface of this host that is up, so Isthmus listens at all of them");
  if (const Outcome o = outcome(isthmus_setting_default("ISTHMUS_INTERFACE", list.c_str())); !o.ok())
    return say(Level::Warn, chosen.variable + " is not followed: " + o.text);
  say(Level::Info, chosen.variable + ": Isthmus listens at " + list);
}

Result Face::lacks(const char *name) {
  return refused(rules.missing, name, std::string("the library at ") + door().path + " has no such function");
}
Result Face::failed(const char *call, const Outcome &o) { return o.ok() ? kOk : refused(number_of(o), call, o.text); }
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
