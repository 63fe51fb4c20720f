// A list of operations in order, linked through the operations themselves. An operation is in one list at a time.
//
// Thread rules: all calls under one lock (the match lock).
#pragma once

#include "base/assert.hpp"
#include "messages/engine_names.hpp"

namespace isthmus::messages {

struct OperationList {
  Operation *head = nullptr, **tail = &head;
  OperationList() = default;
  OperationList(const OperationList &) = delete;
  OperationList &operator=(const OperationList &) = delete;
  void append(Operation *op) noexcept {
    op->message.next = nullptr;
    *tail = op;
    tail = &op->message.next;
  }
  template <class M>
  Operation *take_first(M match) noexcept {  // unlinks and returns the first that matches, or nullptr
    for (Operation **at = &head; *at; at = &(*at)->message.next)
      if (Operation *op = *at; match(op)) {
        *at = op->message.next;
        if (!*at) tail = at;
        return op;
      }
    return nullptr;
  }
  uint32_t size() const noexcept {
    uint32_t count = 0;
    for (const Operation *o = head; o; o = o->message.next) ++count;
    return count;
  }
  bool has(const Operation *op) const noexcept {
    for (const Operation *o = head; o; o = o->message.next)
      if (o == op) return true;
    return false;
  }
  bool take(const Operation *op) noexcept {
    return take_first([op](const Operation *o) { return o == op; }) != nullptr;
  }
};

}  // namespace isthmus::messages
