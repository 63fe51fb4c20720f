// Why a function has no real one.
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "real.hpp"
#include "words.hpp"

namespace isthmus::interpose {
namespace {

// Made once a name, kept for good, because whoever was given the text may read it at any time.
struct Reason {
  const Reason *next;
  const char *name;
  bool spans;  // it was called with a communicator that spans vendors
  char text[4096];
};
std::atomic<const Reason *> reasons;

}  // namespace

const char *reason_for(const char *name, const Real &r, bool spans) noexcept {
  if (!r.handle) return r.text;
  for (const Reason *known = reasons.load(std::memory_order_acquire); known; known = known->next)
    if (known->spans == spans && strcmp(known->name, name) == 0) return known->text;
  auto *made = static_cast<Reason *>(calloc(1, sizeof(Reason)));
  if (!made) return "Isthmus has no memory to say why";
  made->name = name;
  made->spans = spans;
  Words words(made->text, sizeof made->text);
  if (spans) {
    words << name
          << ": this communicator spans several vendors or islands, and what this function is for is there inside of "
          << vendor().name << " alone. docs/interpose.md lists what such a communicator can do";
  } else {
    words << name << ": the real library has no such function; it is ";
    describe(words, r);
  }
  made->next = reasons.load(std::memory_order_relaxed);
  while (!reasons.compare_exchange_weak(made->next, made, std::memory_order_release, std::memory_order_relaxed)) {}
  if (!r.disabled) say(Level::Warn, made->text);
  return made->text;
}

}  // namespace isthmus::interpose
