#include "init.hpp"

#include <sys/socket.h>

#include <set>

#include "group.hpp"
#include "listener.hpp"

namespace isthmus::bridge {

void Init::expect(const Tail &tail, int rank, int world) {
  arrival.tail = tail;
  arrival.mine = record_of(face_.door().family, face_.door().version);
  arrival.rank = rank;
  arrival.world = world;
}

Result Init::make() {
  if (const Result r = arrive(); r != kOk) return r;
  tell();
  if (arrival.verdict == Verdict::Vendor) return make_real();
  clear();
  if (arrival.verdict == Verdict::Failed) return face_.failed(call, arrival.outcome);
  if (const Outcome o = face_.devices().current(place); !o.ok()) return face_.failed(call, o);
  if (const Result r = open(); r != kOk) return r;
  return start();
}

Result Init::defer() {
  if (const Outcome o = face_.devices().current(place); !o.ok()) return face_.note(face_.failed(call, o));
  if (const Result r = promise(); r != kOk) return face_.note(r);
  face_.pending().inits.push_back(shared_from_this());
  return kOk;
}

void Init::tell() const {
  const Finding found = finding(call, face_.door().name, arrival);
  if (!found.text.empty()) face_.say(found.doubtful ? Level::Warn : Level::Info, found.text);
}

void Init::end_meetings(const std::vector<isthmus_ticket> &tickets) const {
  bridge::end_meetings(tickets, [&](bool doubtful, const std::string &text) {
    face_.say(doubtful ? Level::Warn : Level::Info, std::string(call) + ": " + text);
  });
}

namespace {

// Where ranks without Isthmus cannot be seen, the others wait for them as for ranks that are late.
void watch_listener(const Face &face, std::span<const unsigned char> librarys, const isthmus_ticket &ticket,
                    const char *what) {
  const int listener = listener_of(librarys);
  const Outcome o = listener < 0 ? Outcome{ISTHMUS_ERR_UNSUPPORTED, "no socket of this process listens where it says"}
                                 : outcome(isthmus_meeting_watch(&ticket, listener));
  if (!o.ok())
    face.say(Level::Info, std::string("the ") + what + ": ranks without Isthmus that use it are not seen: " + o.text);
}

// Of the ids that this process has made. Another process's id may name a listener of this one: hosts may have equal addresses.
constexpr size_t kMostMade = 1 << 16;  // of ids that are not used yet, or never
Guarded<std::set<std::string>> &tickets_made() {
  static auto *const all = new Guarded<std::set<std::string>>;
  return *all;
}
std::string text_of(const isthmus_ticket &ticket) { return {ticket.bytes, sizeof ticket.bytes}; }

}  // namespace

void end_root(std::span<const unsigned char> id) {
  Tail tail;
  if (!read_tail(id, tail) || tickets_made().lock()->erase(text_of(tail.ticket)) == 0) return;
  const int listener = listener_of(id.first(id.size() - sizeof tail));
  if (listener >= 0) ::shutdown(listener, SHUT_RD);  // its owner's accept() fails, and the owner closes it
}

void add_ticket(Face &face, std::span<unsigned char> id, bool has_room, const char *what) {
  isthmus_ticket ticket;
  std::string why;
  if (!has_room) why = std::string("it leaves no room for it in ") + face.door().path;
  else if (const Outcome o = outcome(isthmus_meeting_create(&ticket)); !o.ok()) why = o.text;
  if (why.empty()) {
    write_tail(id, face.door().family, ticket);
    if (const auto made = tickets_made().lock(); made->size() < kMostMade) made->insert(text_of(ticket));
    return watch_listener(face, id.first(id.size() - sizeof(Tail)), ticket, what);
  }
  face.say(Level::Warn,
           std::string("the ") + what + " has no ticket of Isthmus, so what is made with it cannot span vendors: " + why);
}

}  // namespace isthmus::bridge
