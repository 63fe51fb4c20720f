#include "neighbours.hpp"

#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "objects.hpp"
#include "real.hpp"

namespace isthmus::interpose {
namespace {

struct LibraryNames {
  const char *stem, *soname;
};
constexpr LibraryNames kSameFunctions[] = {{"libnccl.so", "libnccl.so.2"}, {"librccl.so", "librccl.so.1"}};

struct NeighboursFound {
  const LibraryNames *other;
  const char *preloaded;  // LD_PRELOAD
  char door[4096];        // of the other vendor, preloaded
  char user[4096];        // the file that is linked against the other vendor's library, or "the program"
  bool ours;              // something is linked against this vendor's
};

bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

int look(dl_phdr_info *object, size_t, void *data) {
  auto *found = static_cast<NeighboursFound *>(data);
  const char *slash = strrchr(object->dlpi_name, '/'), *name = slash ? slash + 1 : object->dlpi_name;
  if (has_our_note(*object)) {
    if (strcmp(name, found->other->soname) == 0 && strstr(found->preloaded, name))
      TextBuffer(found->door, sizeof found->door) << object->dlpi_name;
    return 0;
  }
  found->ours |= any_needed(*object, [](const char *needed) { return begins(needed, vendor().stem); });
  if (!*found->user && any_needed(*object, [found](const char *needed) { return begins(needed, found->other->stem); }))
    TextBuffer(found->user, sizeof found->user) << (*object->dlpi_name ? object->dlpi_name : "the program");
  return 0;
}

}  // namespace

void describe_neighbours(TextBuffer &out, const char *before) noexcept {
  NeighboursFound found{};
  const auto is_this = [](const LibraryNames &names) { return strcmp(names.soname, vendor().soname) == 0; };
  if (is_this(kSameFunctions[0])) found.other = &kSameFunctions[1];
  else if (is_this(kSameFunctions[1])) found.other = &kSameFunctions[0];
  else return;
  const char *preloaded = getenv("LD_PRELOAD");
  found.preloaded = preloaded ? preloaded : "";
  dl_iterate_phdr(look, &found);
  if (*found.door)
    out << before << "Two front doors are preloaded, this one for " << vendor().soname << " and " << found.door
        << ", and the first takes the calls of both: preload one, that of the library which the program uses";
  else if (*found.user && !found.ours)
    out << before << found.user << " is linked against " << found.other->soname << " and comes here, to the front door for "
        << vendor().soname << ": preload the one for " << found.other->soname << " instead";
}

void warn_of_neighbours() noexcept {
  char text[8192];
  TextBuffer buffer(text, sizeof text);
  describe_neighbours(buffer, "");
  if (*text) say(Level::Warn, text);
}

}  // namespace isthmus::interpose
