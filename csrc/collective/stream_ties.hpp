// The events that put a device's streams in order: the user's stream and the first of ours, and the first of ours and the second.
//
//   user's stream      our first stream              our second stream
//   earlier work
//        +------------>  the operation's begin
//        `..........................................>  what comes early (plan.hpp, entry rule)
//                        `------------------------->  stages that say `beside`
//                        other stages                 |
//                        rejoin()  <------------------'
//                        the operation's end
//   later work <---------'
#pragma once

#include <memory>

#include "device/runtime.hpp"

namespace isthmus::collective {

class StreamTies {
 public:
  void make_second(device::Runtime &runtime, int device);  // the events between our two streams

  // The user's stream of that handle. The last one that was used is kept.
  device::Stream &user(device::Runtime &runtime, int device, void *handle);
  void behind_user(device::Stream &ours);  // behind what the user's stream holds now
  void behind_default(device::Runtime &runtime, device::Stream &ours);
  // The second stream of ours goes on behind the same as the first, whichever of the two was asked for last. False: there is nothing to ask for.
  bool also(device::Stream &second);
  void user_behind(device::Stream &ours);

  // The second stream goes on behind what the first was given so far.
  void fork(device::Stream &first, device::Stream &second);
  void part() noexcept { parted_ = true; }  // the second stream is given work
  // The first stream goes on when the second has ended what the second was given.
  void rejoin(device::Stream &first, device::Stream *second);

 private:
  std::unique_ptr<device::Stream> user_;
  std::unique_ptr<device::Event> before_, after_;
  std::unique_ptr<device::Event> forth_, back_;  // from the first of our streams to the second, and back
  bool parted_ = false;                          // the second was given work since the first last waited for it
};

}  // namespace isthmus::collective
