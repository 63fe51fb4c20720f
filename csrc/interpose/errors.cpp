// The texts of NCCL's and RCCL's errors. A text is the real library's own, unless a call failed here after the real
// library's last failure.
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "abi.hpp"
#include "bridge.hpp"
#include "own.hpp"
#include "real.hpp"
#include "text_buffer.hpp"

namespace isthmus::interpose {
namespace {

// The last text, and a digest of the real library's last error at that time. Where the real library's last error has changed
// since, that error is the newer one.
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

}  // namespace

void keep(const char *reason) noexcept {
  const char *theirs = their_last_error(nullptr);
  theirs_then.store(digest(theirs), std::memory_order_relaxed);
  last.store(reason, std::memory_order_release);
}

Result refuse(const char *name, bool spans) noexcept {
  const Real &r = real();
  keep(reason_for(name, r, spans));
  return code_of(r);
}

const char *own_ncclGetLastError(Comm comm) noexcept {
  const Real &r = real();
  if (!r.handle) return r.text;
  if (ours(comm)) {
    const Comm known = behind(comm);
    if (const char *why = known ? nullptr : the_bridge()->last_error(comm)) return why;
    comm = known;  // null: the real library does not know the handle
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
