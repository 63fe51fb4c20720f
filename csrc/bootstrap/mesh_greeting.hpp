// The accepting side of a new connection, between the gate and connect(): the guest introduces itself, and the sides exchange arenas.
// mesh_dial.hpp shows the messages of both sides.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/clock.hpp"
#include "bootstrap/arena_offer.hpp"
#include "bootstrap/control_wire.hpp"
#include "bootstrap/mesh_dial.hpp"
#include "net/frame.hpp"
#include "net/gate.hpp"

namespace isthmus::bootstrap {

class GreetingEvents {  // called on the control thread
 public:
  virtual ~GreetingEvents() = default;
  virtual bool connected(const Bytes16 &process) = 0;  // whether that process has its control connection already
  virtual void arrived(Arrival arrival) = 0;
  // A connection that is to take the place of the control connection of a process that has one.
  virtual void resumed(const net::Hello &hello, const Resume &resume, UniqueFd fd) = 0;
  virtual void data_arrived(const net::Hello &hello, const StreamIntro &intro, UniqueFd fd) = 0;
};

// The authenticated guests whose greeting is not complete. A refused guest is logged and closed. Control thread only, except count().
class Greetings {
 public:
  Greetings(const ArenaOffer &ours, int epoll, GreetingEvents &events) : ours_(ours), epoll_(epoll), events_(events) {}
  void admit(net::Guest &&guest);
  void on_readable(uint64_t number);  // the number of Tag::Greeting
  // Refuses those whose deadline has passed.
  void expire();
  int64_t next_deadline_ns() const noexcept;  // INT64_MAX: there is none
  // As of the last expire().
  int count() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  struct Greeting {
    net::Guest guest;
    Deadline deadline;
    net::FrameReader reader;
    UniqueFd passed;  // the memfd that came along
    std::optional<Intro> intro;
    PeerArena arena;
  };
  bool advance(Greeting &g);  // false: complete or refused
  bool on_frame(Greeting &g, uint16_t type, std::span<const std::byte> body);
  void arrived(Greeting &g);
  static void refuse(const Greeting &g, const std::string &why);

  const ArenaOffer &ours_;
  const int epoll_;
  GreetingEvents &events_;
  std::map<uint64_t, Greeting> open_;
  uint64_t next_ = 0;
  std::atomic<int> count_{0};
};

}  // namespace isthmus::bootstrap
