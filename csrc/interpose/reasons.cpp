// The reasons why a call is refused.
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "real.hpp"
#include "text_buffer.hpp"

namespace isthmus::interpose {
namespace {

// A reason. Made once for each name, and kept for good: a program may read the text that it was given at any time.
struct Reason {
  const Reason *next;
  const char *name;
  bool spans;  // the call had a communicator that spans vendors
  char text[4096];
};
std::atomic<const Reason *> reasons;

// What a program can do instead.
const char *instead_of(const char *name) noexcept {
  static constexpr const char *kInstead[][2] = {
      {"ncclCommSuspend", "To free what it holds, destroy it, and make it again when it is needed"},
      {"ncclCommResume", "It cannot have been suspended; destroy it instead, and make it again when it is needed"},
      {"HcclCommSuspend", "To stop what it does, destroy it, and make it again when it is needed"},
      {"HcclCommResume", "It cannot have been suspended; destroy it instead, and make it again when it is needed"},
      {"ncclAllReduceWithBias", "Call ncclAllReduce, and add the bias to its result"},
      {"ncclPutSignal", "Use ncclSend and ncclRecv"},
      {"ncclSignal", "Use ncclSend and ncclRecv of one element"},
      {"ncclWaitSignal", "Use ncclSend and ncclRecv of one element"},
      {"HcclCommRegister", "Its operations take any memory, registered or not"},
  };
  for (const auto &[function, words] : kInstead)
    if (strcmp(function, name) == 0) return words;
  return "docs/reference/interpose.md, \"Communicators that span vendors\", lists what it can do";
}

}  // namespace

const char *reason_for(const char *name, const Real &r, bool spans) noexcept {
  if (!r.handle) return r.text;
  for (const Reason *known = reasons.load(std::memory_order_acquire); known; known = known->next)
    if (known->spans == spans && strcmp(known->name, name) == 0) return known->text;
  auto *made = static_cast<Reason *>(calloc(1, sizeof(Reason)));
  if (!made) return "Isthmus has no memory to say why";
  made->name = name;
  made->spans = spans;
  TextBuffer buffer(made->text, sizeof made->text);
  if (spans) {
    buffer << name << ": this communicator spans several vendors or islands, and only " << vendor().name
           << " itself can do this, for ranks that are all its own. " << instead_of(name);
  } else {
    buffer << name << ": the real library has no such function; it is ";
    describe(buffer, r);
  }
  made->next = reasons.load(std::memory_order_relaxed);
  while (!reasons.compare_exchange_weak(made->next, made, std::memory_order_release, std::memory_order_relaxed)) {}
  if (!r.disabled) say(Level::Warn, made->text);
  return made->text;
}

}  // namespace isthmus::interpose
