// The search for the real library. The search opens the real library by the path of its file, never by its name: for its
// SONAME the loader would give this front door. The places are those of the loader, in the loader's order, and two of our own:
// 1. the objects that the process has loaded;
// 2. the folders of every object that was linked against the library;
// 3. the loader's cache;
// 4. the system's folders;
// 5. the folders where Python packages and vendors put the library.
#include "search.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "objects.hpp"
#include "real.hpp"
#include "ways/as_it_is.hpp"

// A note that tells a copy of this front door from the vendor's library. The note needs neither a name of the file nor a
// symbol. Without the note two copies would take each other for the real library.
__asm__(
    ".pushsection .note.isthmus, \"a\", %note\n"
    ".balign 4\n"
    ".long 8, 0, 1\n"
    ".asciz \"Isthmus\"\n"
    ".popsection\n");

namespace isthmus::interpose {
namespace {

bool is_ours(void *handle) {
  link_map *map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return false;
  struct Question {
    ElfW(Addr) base;
    bool ours;
  } question{map->l_addr, false};
  dl_iterate_phdr(
      [](dl_phdr_info *object, size_t, void *data) {
        auto *q = static_cast<Question *>(data);
        if (object->dlpi_addr != q->base) return 0;
        q->ours = has_our_note(*object);
        return 1;
      },
      &question);
  return question.ours;
}

// Whether malloc is not the C library's: a sanitizer's, or another allocator's.
bool malloc_is_replaced() {
  Dl_info malloc_of, libc;
  return !dladdr(dlsym(RTLD_DEFAULT, "malloc"), &malloc_of) || !dladdr(dlsym(RTLD_DEFAULT, "gnu_get_libc_version"), &libc) ||
         malloc_of.dli_fbase != libc.dli_fbase;
}

// With RTLD_DEEPBIND the library's calls of its own public functions stay inside of the library. But its calls of free()
// would then reach the C library's, and other libraries may have allocated the memory with a replaced malloc. A sanitizer
// ends a program for that flag.
int flags() { return RTLD_NOW | RTLD_LOCAL | (malloc_is_replaced() ? 0 : RTLD_DEEPBIND); }

using AskedFor = const char *(const char *);
AskedFor *hook() { return reinterpret_cast<AskedFor *>(dlsym(RTLD_DEFAULT, "isthmus_asked_for")); }

// Whether a hook or an auditor replaces the vendor's file by a front door.
bool somebody_replaces() { return hook() || getenv("LD_AUDIT"); }

// Null: there is no such file, or the file is not the vendor's library. `tried` has a word about the second case only.
void *try_file(const char *path, TextBuffer &tried) {
  char whole[PATH_MAX + sizeof kAsItIs];
  if (!realpath(path, whole)) return nullptr;
  if (somebody_replaces()) spell_as_it_is(whole);
  void *handle = dlopen(whole, flags());
  if (!handle) {
    const char *why = dlerror();
    tried << ", " << path << " (" << (why ? why : "cannot be opened") << ")";
    return nullptr;
  }
  const bool ours = is_ours(handle);
  if (!ours && dlsym(handle, vendor().mark)) return handle;
  tried << ", " << path << " (";
  if (ours) tried << "is Isthmus' own)";
  else tried << "has no " << vendor().mark << ")";
  dlclose(handle);
  return nullptr;
}

void *try_folder(const char *folder, TextBuffer &tried) {
  char path[PATH_MAX];
  TextBuffer(path, sizeof path) << folder << "/" << vendor().soname;
  return try_file(path, tried);
}

bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

// Names of the objects that matter here. The names are noted down while the loader holds its lock, and looked at afterwards.
struct Objects {
  static constexpr int kMost = 64;
  char *files[kMost];  // whose names are those of the vendor's library
  char *users[kMost];  // that were linked against the vendor's library; "" is the program
  int file_count, user_count;
};

bool needs_it(const dl_phdr_info &object) {
  return any_needed(object, [](const char *name) { return strcmp(name, vendor().soname) == 0; });
}

int note_down(dl_phdr_info *object, size_t, void *data) {
  auto *all = static_cast<Objects *>(data);
  const char *slash = strrchr(object->dlpi_name, '/');
  if (slash && begins(slash + 1, vendor().stem) && all->file_count < Objects::kMost)
    if (char *name = strdup(object->dlpi_name)) all->files[all->file_count++] = name;
  if (all->user_count < Objects::kMost && needs_it(*object))
    if (char *name = strdup(object->dlpi_name)) all->users[all->user_count++] = name;
  return 0;
}

// Whether the folder is one of the system's folders, where the loader looks after its cache.
bool is_systems(const char *folder) {
  return begins(folder, "/lib/") || begins(folder, "/usr/lib/") || begins(folder, "/lib64") ||
         begins(folder, "/usr/lib64") || strcmp(folder, "/lib") == 0 || strcmp(folder, "/usr/lib") == 0;
}

// Looks where the loader looks for the libraries that this object needs. `systems`: in the system's folders, which come last.
// Else in the other folders: RPATH, LD_LIBRARY_PATH, RUNPATH.
void *try_folders_of(const char *object, bool systems, TextBuffer &tried) {
  void *handle = dlopen(*object ? object : nullptr, RTLD_LAZY | RTLD_NOLOAD), *found = nullptr;
  if (!handle) return nullptr;
  Dl_serinfo size;
  if (dlinfo(handle, RTLD_DI_SERINFOSIZE, &size) == 0) {
    if (auto *info = static_cast<Dl_serinfo *>(calloc(1, size.dls_size))) {
      info->dls_size = size.dls_size;
      info->dls_cnt = size.dls_cnt;
      if (dlinfo(handle, RTLD_DI_SERINFO, info) == 0) {
        unsigned own = info->dls_cnt;
        while (own > 0 && is_systems(info->dls_serpath[own - 1].dls_name)) --own;
        for (unsigned i = systems ? own : 0, end = systems ? info->dls_cnt : own; i < end && !found; ++i)
          found = try_folder(info->dls_serpath[i].dls_name, tried);
      }
      free(info);
    }
  }
  dlclose(handle);
  return found;
}

// The file that ldconfig writes, in the form of glibc 2.2 and newer: a header, entries of fixed size, texts.
struct CacheHeader {
  char magic[20];
  uint32_t entries, text_bytes, unused[5];
};
struct CacheEntry {
  int32_t kind;
  uint32_t name, path;  // offsets from the header
  uint32_t unused[3];
};
static_assert(sizeof(CacheHeader) == 48 && sizeof(CacheEntry) == 24);

void *try_cache(const char *begin, size_t bytes, TextBuffer &tried) {
  constexpr char kMagic[] = "glibc-ld.so.cache1.1";
  const auto *header = static_cast<const char *>(memmem(begin, bytes, kMagic, sizeof kMagic - 1));
  if (!header) return nullptr;
  const auto left = static_cast<size_t>(begin + bytes - header);
  CacheHeader h;
  if (left < sizeof h) return nullptr;
  memcpy(&h, header, sizeof h);
  if (h.entries > (left - sizeof h) / sizeof(CacheEntry)) return nullptr;
  const auto text = [&](uint32_t at) -> const char * {
    return at < left && memchr(header + at, 0, left - at) ? header + at : "";
  };
  void *found = nullptr;
  for (uint32_t i = 0; i < h.entries && !found; ++i) {
    CacheEntry e;
    memcpy(&e, header + sizeof h + i * sizeof e, sizeof e);
    // The cache has files for other processors, too. The loader refuses those.
    if (strcmp(text(e.name), vendor().soname) == 0) found = try_file(text(e.path), tried);
  }
  return found;
}

void *try_cache(TextBuffer &tried) {
  const int file = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  void *found = nullptr;
  struct stat s;
  if (fstat(file, &s) == 0 && s.st_size > 0) {
    const auto bytes = static_cast<size_t>(s.st_size);
    void *p = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    if (p != MAP_FAILED) {
      found = try_cache(static_cast<const char *>(p), bytes, tried);
      munmap(p, bytes);
    }
  }
  close(file);
  return found;
}

// Of "$HOME/x": writes the value of the variable, and the text behind the variable. False: the value is no absolute path.
bool write_set_folder(TextBuffer &out, const char *folder) {
  char name[64] = "";
  const char *rest = strchr(folder, '/');
  const auto bytes = static_cast<size_t>(rest - folder) - 1;
  if (bytes < sizeof name) memcpy(name, folder + 1, bytes);
  const char *set = secure_getenv(name);
  if (!set || *set != '/') return false;
  out << set << rest;
  return true;
}

// This file is <packages>/isthmus/interpose/<SONAME>.
void *try_installations(TextBuffer &tried) {
  char packages[PATH_MAX] = "";
  Dl_info self;
  if (dladdr(reinterpret_cast<const void *>(&open_real), &self) && realpath(self.dli_fname, packages))
    for (int up = 0; up < 3; ++up)
      if (char *slash = strrchr(packages, '/')) *slash = 0;
  for (const char *const *folder = vendor().folders; *folder; ++folder) {
    char path[PATH_MAX];
    TextBuffer buffer(path, sizeof path);
    if (**folder == '/') buffer << *folder;
    else if (**folder != '$') buffer << packages << "/" << *folder;
    else if (!write_set_folder(buffer, *folder)) continue;
    tried << ", " << path;
    if (void *found = try_folder(path, tried)) return found;
  }
  return nullptr;
}

}  // namespace

const char *asked_for() noexcept {
  AskedFor *ask = hook();
  return ask ? ask(vendor().soname) : nullptr;
}

void *open_real(TextBuffer &tried) noexcept {
  // secure_getenv: the user of a privileged program does not choose what the program loads.
  if (const char *set = secure_getenv(vendor().setting); set && *set) {
    tried << vendor().setting << "=" << set;
    if (!strchr(set, '/')) {
      tried << " (is not a path)";
      return nullptr;
    }
    void *found = try_file(set, tried);
    if (!found && access(set, F_OK) != 0) tried << " (no such file)";
    return found;
  }
  if (const char *path = asked_for()) {
    tried << path << ", ";
    if (void *found = try_file(path, tried)) return found;
  }
  Objects all{};
  dl_iterate_phdr(note_down, &all);
  void *found = nullptr;
  tried << "what is loaded";
  for (int i = 0; i < all.file_count && !found; ++i) found = try_file(all.files[i], tried);
  const auto folders = [&](bool systems) {
    bool program = false;
    for (int i = 0; i < all.user_count && !found; ++i) {
      program |= !*all.users[i];
      found = try_folders_of(all.users[i], systems, tried);
    }
    if (!found && !program) found = try_folders_of("", systems, tried);
  };
  if (!found) tried << ", the loader's folders";
  folders(false);
  if (!found) tried << ", its cache";
  if (!found) found = try_cache(tried);
  if (!found) folders(true);
  if (!found) found = try_installations(tried);
  for (int i = 0; i < all.file_count; ++i) free(all.files[i]);
  for (int i = 0; i < all.user_count; ++i) free(all.users[i]);
  return found;
}

}  // namespace isthmus::interpose
