// From a call of a simulated collective library to the queue: what the program's buffers are, the order of a communicator's work, groups.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/communicator.hpp"

namespace rehearsal {

// One call, from the moment it is made until the outermost group ends: a collective, or messages. One without either only orders streams.
struct Operation {
  Entry entry;
  std::shared_ptr<Communicator> comm;
  StreamPtr stream;
  std::function<void(Fabric &, const Fabric::Stop &)> collective;
  std::vector<Message> messages;
  bool until_taken = false;  // a message is sent when it was received
  bool awaited = true;       // with blocking launches, the call returns when it has ended
  std::vector<std::shared_ptr<Block>> touches;
};

// A buffer of the communicator's device: where the engine finds it. `host_too`: or memory of the host, at the address that the device has for it.
REHEARSAL_API Code find_buffer(Operation &o, const char *role, const void *p, uint64_t bytes, std::byte **out,
                               bool host_too);

// The number, for whatever fails late, with which the device breaks down; 0: only the communicator hears of it, and the work stands.
using BreaksDevice = int (*)(int late);

// All calls of a group on one communicator: its collectives in order, then all its messages at once. NoMemory, Broken, or Ok.
REHEARSAL_API Code launch(const std::vector<Operation> &operations, BreaksDevice breaks_device);

// The calls that a thread makes between the start and the end of a group. Numbers are the library's, and 0 is success.
struct REHEARSAL_API Group {
  int depth = 0;
  int failure = 0;  // the first one inside
  std::vector<Operation> operations;
  std::vector<std::function<int()>> inits;

  int note(int result);
  void forget();
  int end(int (*launch)(const std::vector<Operation> &), int (*mixed)());
};

}  // namespace rehearsal
