#include "ways/door.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "ways/as_it_is.hpp"
#include "text_buffer.hpp"

namespace isthmus::interpose {
namespace {

// A vendor's collective library, for which there is a front door.
struct VendorLibrary {
  const char *stem;    // how the names of the vendor's files begin
  const char *soname;  // of the library, and of its front door
};
constexpr VendorLibrary kVendorLibraries[] = {
    {"libnccl.so", "libnccl.so.2"}, {"librccl.so", "librccl.so.1"}, {"libhccl.so", "libhccl.so"}};
constexpr int kCount = sizeof kVendorLibraries / sizeof *kVendorLibraries;

// The vendor of a base name: of "libnccl.so" and "libnccl.so.2.27", but not of "libnccl.so_old" or "libnccl-net.so". -1: no
// vendor's.
int vendor_of(const char *name) {
  for (int i = 0; i < kCount; ++i) {
    const size_t bytes = strlen(kVendorLibraries[i].stem);
    if (strncmp(name, kVendorLibraries[i].stem, bytes) == 0 && (name[bytes] == 0 || name[bytes] == '.')) return i;
  }
  return -1;
}

bool read_at(int file, uint64_t offset, void *to, size_t bytes) {
  return pread(file, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// Reads the SONAME of the object in this file. False: the object has no SONAME, or is not of the usual form. In the usual form
// the headers are in the first 4 KiB, and the table of texts is in a loaded segment.
bool read_soname(int file, char (&soname)[64]) {
  alignas(ElfW(Ehdr)) char head[4096];
  const ssize_t got = pread(file, head, sizeof head, 0);
  ElfW(Ehdr) elf;
  if (got < static_cast<ssize_t>(sizeof elf)) return false;
  memcpy(&elf, head, sizeof elf);
  const auto room = static_cast<uint64_t>(got);
  if (memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_phentsize != sizeof(ElfW(Phdr)) || elf.e_phoff > room ||
      elf.e_phnum > (room - elf.e_phoff) / sizeof(ElfW(Phdr)))
    return false;
  const auto header = [&](int i) {
    ElfW(Phdr) p;
    memcpy(&p, head + elf.e_phoff + static_cast<size_t>(i) * sizeof p, sizeof p);
    return p;
  };
  uint64_t texts = 0, name = 0;
  bool has_texts = false, has_name = false;
  for (int i = 0; i < elf.e_phnum; ++i) {
    const auto p = header(i);
    if (p.p_type != PT_DYNAMIC) continue;
    for (uint64_t at = 0; at + sizeof(ElfW(Dyn)) <= p.p_filesz; at += sizeof(ElfW(Dyn))) {
      ElfW(Dyn) d;
      if (!read_at(file, p.p_offset + at, &d, sizeof d) || d.d_tag == DT_NULL) break;
      if (d.d_tag == DT_STRTAB) texts = d.d_un.d_ptr, has_texts = true;
      if (d.d_tag == DT_SONAME) name = d.d_un.d_val, has_name = true;
    }
  }
  if (!has_texts || !has_name) return false;
  for (int i = 0; i < elf.e_phnum; ++i) {
    const auto p = header(i);
    if (p.p_type != PT_LOAD || texts < p.p_vaddr || texts - p.p_vaddr >= p.p_filesz) continue;
    const ssize_t bytes =
        pread(file, soname, sizeof soname - 1, static_cast<off_t>(p.p_offset + (texts - p.p_vaddr) + name));
    soname[bytes > 0 ? bytes : 0] = 0;
    return bytes > 0;
  }
  return false;
}

// The vendor of the file that a program asks for. -1: no vendor's. A path may be a link of any name to the library, so its
// SONAME counts. The loader looks for a bare name, so only the name is known.
int asked_for(const char *asked) {
  const char *slash = strrchr(asked, '/');
  const int by_name = vendor_of(slash ? slash + 1 : asked);
  if (!slash) return by_name;
  if (by_name >= 0) return access(asked, F_OK) == 0 ? by_name : -1;
  const int file = open(asked, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return -1;
  char soname[64];
  const int by_soname = read_soname(file, soname) ? vendor_of(soname) : -1;
  close(file);
  return by_soname;
}

// The path of a front door. Two threads that come at once write the same bytes.
const char *path_of(int door) {
  static std::atomic<bool> known[kCount];
  static char paths[kCount][PATH_MAX];
  char *path = paths[door];
  if (known[door].load(std::memory_order_acquire)) return path;
  Dl_info self;
  if (!dladdr(reinterpret_cast<const void *>(&door_for), &self) || !self.dli_fname) return nullptr;
  // This library was loaded by a path from the folder that the program was in then. A preloaded door still answers to its
  // SONAME.
  if (*self.dli_fname != '/') return kVendorLibraries[door].soname;
  const size_t folder = static_cast<size_t>(strrchr(self.dli_fname, '/') - self.dli_fname) + 1,
               bytes = strlen(kVendorLibraries[door].soname);
  if (folder + bytes >= PATH_MAX) return nullptr;
  memcpy(path, self.dli_fname, folder);
  memcpy(path + folder, kVendorLibraries[door].soname, bytes + 1);
  if (access(path, R_OK) != 0) return nullptr;
  known[door].store(true, std::memory_order_release);
  return path;
}

const char *find(const char *asked) {
  const int door = asked_for(asked);
  if (door < 0) return nullptr;
  if (!environ) return nullptr;  // the C library has not begun, so ISTHMUS_DISABLE cannot be read
  const char *off = getenv("ISTHMUS_DISABLE");
  if (off && strcmp(off, "1") == 0) return nullptr;
  return path_of(door);
}

}  // namespace

const char *door_for(const char *asked) noexcept {
  if (!asked || strstr(asked, kAsItIs)) return nullptr;
  const int before = errno;
  const char *found = find(asked);
  errno = before;
  return found;
}

void say_given(const char *asked, const char *door) noexcept {
  if (!said(Level::Info)) return;
  const int before = errno;
  char text[4096];
  TextBuffer(text, sizeof text) << asked << " was asked for, and " << door << " is given";
  say(Level::Info, text);
  errno = before;
}

}  // namespace isthmus::interpose
