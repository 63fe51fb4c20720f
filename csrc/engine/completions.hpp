// The program's callbacks (Operation::done) that are due. One list for the process.
//
//   who ends an operation                     the progress thread
//   add(): puts the operation on the list
//   and rings                  ------>        takes the first whose rank has no callback running
//                                             runs the callback, with no lock held
//
// So a callback may submit, wait and destroy. A callback that waits on the progress thread has another thread take its place
// (Progress::stand_in), which runs the callbacks of other ranks meanwhile. The callbacks of one rank run one after the other, in the order in
// which its operations ended.
//
// No thread of the program runs a callback here: such a thread waits for one operation, and a callback may wait for what that thread does next.
// A thread that waits for an operation returns when the operation's callback has, so that it finds what the callback has done.
//
// Thread rules: any thread.
#pragma once

#include <cstdint>

#include "engine/operation.hpp"

namespace isthmus::engine {

class Completions {
 public:
  // The operation is over, and has a callback. Takes over a reference.
  static void add(Operation *op) noexcept;
  // Until all callbacks of that rank that were due have returned, or `until_ns`; in such a callback, at once.
  static void wait(const RankCore &core, int64_t until_ns) noexcept;
  static constexpr int64_t kMostNs = 5'000'000'000;
  // The operation is over: until its callback has returned, or `until_ns`, or for kMostNs. In a callback, and in a child that was
  // forked since, at once.
  static void wait(const Operation &op, int64_t until_ns) noexcept;

 private:
  static void deliver();  // by the progress thread
};

}  // namespace isthmus::engine
