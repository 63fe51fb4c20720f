// What of a group Isthmus carries, when the group ends: operations of several communicators, of one thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "at_once.hpp"
#include "comm.hpp"

namespace isthmus::bridge {

// They are submitted in lines that do not wait for one another: a thread can make one line's calls one after the other, though they wait for
// the exchange where a device's streams do not wait for the host. Where all streams do, there is one line, and the calling thread's.
class Lines {
 public:
  using Prepare = Outcome (*)(const Comm &, Operation &);

  // `one`: what is still to be done with an operation before it can begin.
  Lines(const interpose::FrontDoor &door, Devices &devices, Prepare one)
      : door_(door), devices_(devices), prepare_one_(one) {}
  ~Lines();
  Lines(const Lines &) = delete;
  Lines &operator=(const Lines &) = delete;

  void take(Operations operations);  // of communicators that are ready
  bool empty() const noexcept { return lines_.empty(); }
  std::string text_of_half() const { return bridge::text_of_half(door_, lines_); }

  Outcome prepare();
  // Prepares them, and says whether they could begin. `last`: nothing else has to be before they do, so what is recorded for it is kept
  // where it can be.
  Outcome check(bool last);
  // Begins them. `told` makes a vendor's number of what became of each line; `thrown` as in at_once.
  std::vector<interpose::Result> launch(const std::function<interpose::Result(const Outcome &)> &told,
                                        interpose::Result (*thrown)(const std::exception &) noexcept);

 private:
  const interpose::FrontDoor &door_;
  Devices &devices_;
  const Prepare prepare_one_;
  // What stands for a stream that only the calling thread can name, where another makes the calls.
  struct StandIn {
    Place place;
    void *theirs = nullptr, *ours = nullptr;
  };
  Outcome stand_in();
  Outcome stand_back();

  std::vector<Operations> lines_;
  std::vector<StandIn> stand_ins_;
  OperationGroup recorded_;  // the only line, where that is kept
  bool kept_ = false;
};

}  // namespace isthmus::bridge
