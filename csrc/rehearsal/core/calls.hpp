// From a call of a simulated collective library to the queue: checks of the program's buffers, groups of calls, the order of a
// communicator's work.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/communicator.hpp"

namespace rehearsal {

// One call of the program, from the call until the outermost group ends: a collective, or messages. An operation without either only makes
// streams wait for each other.
struct Operation {
  Entry entry;
  std::shared_ptr<Communicator> comm;
  StreamPtr stream;
  std::function<void(Fabric &, const Fabric::Stop &)> collective;
  std::vector<Message> messages;
  bool until_taken = false;                     // a send is done when the peer has received the message
  bool awaited = true;                          // with Machine::blocking the call returns when the operation is done
  std::vector<std::shared_ptr<Block>> touches;  // memory that the operation reads or writes
};

// Where the engine finds a buffer of the program, which must be memory of the communicator's device. `host_too`: the buffer may also be
// registered memory of the host, by its address on the device. Everything else is a misuse. `role`: the buffer's name in the message.
REHEARSAL_API Code find_buffer(Operation &o, const char *role, const void *p, uint64_t bytes, std::byte **out,
                               bool host_too);

// For the code with which an operation is to fail late: the code with which the device fails. 0: only the communicator has the error, and
// the operation waits until it is aborted.
using BreaksDevice = int (*)(int late);

// Submits the operations of a group on one communicator to the stream of the first: the collectives in their order, then all messages as
// one item. Other streams of the group wait, and are waited for. Returns Ok, NoMemory or Broken.
REHEARSAL_API Code launch(const std::vector<Operation> &operations, BreaksDevice breaks_device);

// The calls that one thread makes between the start and the end of a group. Results are the library's numbers; 0: success.
struct REHEARSAL_API Group {
  int depth = 0;    // groups are nested; 0: no group is open
  int failure = 0;  // the first failure of a call in the group
  std::vector<Operation> operations;
  std::vector<std::function<int()>> inits;  // of communicators. They run at the end of the group, each in a thread.

  int note(int result);  // keeps a first failure; returns `result`
  void forget();
  // Ends the outermost group: runs the inits, then launches the operations, a communicator at a time. `mixed`: the result of a group that
  // has both. Returns the first failure.
  int end(int (*launch)(const std::vector<Operation> &), int (*mixed)());
};

}  // namespace rehearsal
