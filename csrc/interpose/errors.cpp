// Texts for calls that fail here: the real library's own, as long as this one has not failed after it.
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "bridge.hpp"
#include "own.hpp"
#include "real.hpp"
#include "words.hpp"

namespace isthmus::interpose {
namespace {

// Why a function has no real one: made once a name, kept for good, because whoever was given the text may read it at any time.
struct Reason {
  const Reason *next;
  const char *name;
  bool spans;  // it was called with a communicator that spans vendors
  char text[4096];
};
std::atomic<const Reason *> reasons;
// The last one, and what the real library's last error was then: if that has changed since, the real one's is the newer.
std::atomic<const char *> last;
std::atomic<uint64_t> theirs_then;

uint64_t digest(const char *text) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325;
  for (; text && *text; ++text) h = (h ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
  return h;
}

using GetLastError = const char *(Comm);
using GetErrorString = const char *(Result);
const char *their_last_error(Comm comm) {
  auto *get = reinterpret_cast<GetLastError *>(look_up("ncclGetLastError"));
  return get ? get(comm) : nullptr;
}

const char *reason_for(const char *name, const Real &r, bool spans) {
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

}  // namespace

void keep(const char *reason) noexcept {
  const char *theirs = their_last_error(nullptr);
  theirs_then.store(digest(theirs), std::memory_order_relaxed);
  last.store(reason, std::memory_order_release);
}

Result refuse(const char *name, bool spans) noexcept {
  const Real &r = real();
  keep(reason_for(name, r, spans));
  return r.handle ? kInvalidUsage : r.code;
}

const char *own_ncclGetLastError(Comm comm) noexcept {
  const Real &r = real();
  if (!r.handle) return r.text;
  if (ours(comm)) {
    if (const char *why = the_bridge()->last_error(comm)) return why;
    comm = nullptr;  // the real library does not know it
  }
  const char *theirs = their_last_error(comm);
  const char *ours = r.disabled && theirs ? nullptr : last.load(std::memory_order_acquire);
  if (ours && (!theirs || digest(theirs) == theirs_then.load(std::memory_order_relaxed))) return ours;
  return theirs ? theirs : "";
}

const char *own_ncclGetErrorString(Result code) noexcept {
  static std::atomic<GetErrorString *> slot;
  if (auto *f = slot.load(std::memory_order_acquire)) return f(code);
  if (auto *f = reinterpret_cast<GetErrorString *>(look_up("ncclGetErrorString"))) {
    slot.store(f, std::memory_order_release);
    return f(code);
  }
  return code == kSuccess ? "no error" : real().text;
}

}  // namespace isthmus::interpose
