#include "real.hpp"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "neighbours.hpp"
#include "search.hpp"
#include "text_buffer.hpp"

namespace isthmus::interpose {
namespace {

constexpr size_t kTextBytes = 4096;

bool disabled() {
  const char *set = getenv("ISTHMUS_DISABLE");
  return set && strcmp(set, "1") == 0;
}

// A number that changes when the process loads an object, or asks for the library by a path for the first time.
unsigned long long loaded() {
  unsigned long long adds = 0;
  dl_iterate_phdr(
      [](dl_phdr_info *object, size_t, void *data) {
        *static_cast<unsigned long long *>(data) = object->dlpi_adds;
        return 1;
      },
      &adds);
  return adds + (asked_for() ? 1 : 0);
}

struct OpenedLibrary {
  Real real;
  unsigned long long loaded;  // the number of loaded() when the library was looked for
  char path[4096];
  char text[kTextBytes];
};

void open(OpenedLibrary &o) {
  o.real = {nullptr, false, disabled(), o.path, o.text};
  o.loaded = loaded();
  char tried[kTextBytes / 2];
  TextBuffer places(tried, sizeof tried);
  o.real.handle = open_real(places);
  TextBuffer text(o.text, sizeof o.text);
  if (!o.real.handle) {
    text << "Isthmus found no " << vendor().name << " to forward to; looked at " << tried << ". " << vendor().install
         << ", or set " << vendor().setting << " to the path of its " << vendor().soname;
    describe_neighbours(text, ". ");
    return;
  }
  link_map *map = nullptr;
  TextBuffer(o.path, sizeof o.path) << (dlinfo(o.real.handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "?");
}

std::atomic<const OpenedLibrary *> the_opened;
// While the library is opened, a constructor of the library may call one of its public functions. That call may come to this
// front door.
__thread bool opening;
constexpr Real kNotYet{nullptr, true, false, "", "called while Isthmus was opening the real library"};
constexpr Real kNoMemory{nullptr, false, false, "", "Isthmus has no memory to open the real library"};

}  // namespace

const Real &real() noexcept {
  const OpenedLibrary *known = the_opened.load(std::memory_order_acquire);
  // Where no library was found before, look again when an object was loaded since: that object may be the library, or lead to
  // the library.
  if (known && (known->real.handle || known->loaded == loaded())) return known->real;
  if (opening) return kNotYet;
  auto *made = static_cast<OpenedLibrary *>(calloc(1, sizeof(OpenedLibrary)));
  if (!made) return kNoMemory;
  opening = true;
  open(*made);
  opening = false;
  const OpenedLibrary *first = known;
  if (!the_opened.compare_exchange_strong(first, made, std::memory_order_acq_rel)) {
    free(made);
    return first->real;
  }
  // The OpenedLibrary before this one stays: a program may still read its text.
  if (!made->real.handle && known) return made->real;  // the log has this already
  if (made->real.handle && !made->real.disabled) warn_of_neighbours();
  if (!made->real.handle) say(Level::Warn, made->text);
  else if (!made->real.disabled && said(Level::Info)) {
    char text[kTextBytes];
    TextBuffer buffer(text, sizeof text);
    describe(buffer, made->real);
    say(Level::Info, text);
  }
  return made->real;
}

void describe(TextBuffer &out, const Real &r) noexcept {
  out << vendor().name;
  write_version_of(out, r.handle);
  out << " in " << r.path;
}

Result code_of(const Real &r) noexcept { return r.handle ? vendor().missing : r.early ? vendor().early : vendor().absent; }

void *look_up(const char *name) noexcept {
  const Real &r = real();
  void *found = r.handle ? dlsym(r.handle, name) : nullptr;
  // This call opens no part that the process has not loaded, and never closes one: the function that a caller gets must stay.
  if (r.handle && !found && vendor().part)
    if (void *part = dlopen(vendor().part, RTLD_LAZY | RTLD_NOLOAD)) found = dlsym(part, name);
  // dlsym also looks at the libraries that the real library needs. One of those may need a library of this door's SONAME, and
  // find this door.
  Dl_info theirs, ours;
  const bool own = found && dladdr(found, &theirs) && dladdr(reinterpret_cast<const void *>(&real), &ours) &&
                   theirs.dli_fbase == ours.dli_fbase;
  return own ? nullptr : found;
}

}  // namespace isthmus::interpose
