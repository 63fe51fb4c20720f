#include "bridge.hpp"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "real.hpp"
#include "text_buffer.hpp"

namespace isthmus::interpose {
namespace {

constexpr const char *kFile = "libisthmus_bridge.so";
constexpr uintptr_t kNowhere = uintptr_t{1} << (sizeof(uintptr_t) * 8 - 1);  // no program's memory is there

__thread ThreadState the_thread;
std::atomic<bool> none;  // the bridge could not be opened

void say_as_told(int level, const char *text) { say(static_cast<Level>(level), text); }
void *look_up_for_bridge(const char *name) { return look_up(name); }
ThreadState *thread_for_bridge() { return &the_thread; }
void keep_for_bridge(const char *reason) { keep(reason); }

const Bridged *give_up(const char *why) {
  if (none.exchange(true)) return nullptr;
  char text[PATH_MAX];
  TextBuffer(text, sizeof text) << kFile << " cannot be used (" << why
                                << "): communicators of one vendor alone, as if Isthmus were not there";
  say(Level::Warn, text);
  return nullptr;
}

const Bridged *open_first(const Real &r) {
  Dl_info self;
  char path[PATH_MAX];
  if (!dladdr(reinterpret_cast<const void *>(&open_bridge), &self) || !realpath(self.dli_fname, path))
    return give_up("this file is not found");
  char *slash = strrchr(path, '/');
  if (!slash || static_cast<size_t>(slash - path) + sizeof "/libisthmus_bridge.so" > sizeof path)
    return give_up("its path is too long");
  strcpy(slash + 1, kFile);
  static const Vendor &v = vendor();
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    return give_up(why ? why : "no reason given");
  }
  auto *open = reinterpret_cast<OpenBridge *>(dlsym(library, v.bridge));
  if (!open) return give_up("it is another library");
  // The FrontDoor stays for good. Two threads that come at once make two equal ones, and the bridge keeps the first.
  auto *door = static_cast<FrontDoor *>(calloc(1, sizeof(FrontDoor)));
  if (!door) return give_up("no memory");
  *door = {v.calls,       v.family,           v.device,          v.name,          r.path,
           version_of(r), look_up_for_bridge, thread_for_bridge, keep_for_bridge, say_as_told};
  const Bridged *calls = open(door);
  if (!calls)
    return give_up(
        "it was built with another version of this file, serves another front door of this process, or has no memory");
  the_handles.store(calls->handles, std::memory_order_relaxed);
  the_calls.store(calls, std::memory_order_release);
  return calls;
}

}  // namespace

constinit std::atomic<uintptr_t> the_handles{kNowhere};
constinit std::atomic<const Bridged *> the_calls{nullptr};

ThreadState &thread() noexcept { return the_thread; }

Result refuse_operation(const char *name) noexcept {
  const Result code = refuse(name, true);
  return the_calls.load(std::memory_order_acquire)->fail_group(code, reason_for(name, real(), true));
}

const Bridged *open_bridge() noexcept {
  if (const Bridged *known = the_calls.load(std::memory_order_acquire)) return known;
  if (none.load(std::memory_order_relaxed)) return nullptr;
  const Real &r = real();
  return r.handle && !r.disabled ? open_first(r) : nullptr;
}

}  // namespace isthmus::interpose
