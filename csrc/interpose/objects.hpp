// What can be told of an object that the process has loaded, while the loader holds its lock.
#pragma once

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace isthmus::interpose {

// A door has a note by which it is known, whatever file it is in and without a symbol.
inline bool has_our_note(const dl_phdr_info &object) noexcept {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr) &p = object.dlpi_phdr[i];
    if (p.p_type != PT_NOTE) continue;
    const auto *at = reinterpret_cast<const char *>(object.dlpi_addr + p.p_vaddr), *end = at + p.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      memcpy(&note, at, sizeof note);
      const char *name = at + sizeof note;
      if (note.n_namesz == 8 && name + 8 <= end && memcmp(name, "Isthmus", 8) == 0) return true;
      const auto whole = [](size_t n) { return (n + 3) & ~size_t{3}; };
      at = name + whole(note.n_namesz) + whole(note.n_descsz);
    }
  }
  return false;
}

// Whether one of the names in its DT_NEEDED is as `matches` says.
template <class Matches>
bool any_needed(const dl_phdr_info &object, const Matches &matches) noexcept {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    if (object.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto *dynamic = reinterpret_cast<const ElfW(Dyn) *>(object.dlpi_addr + object.dlpi_phdr[i].p_vaddr);
    const char *texts = nullptr;
    for (const auto *d = dynamic; d->d_tag != DT_NULL; ++d)
      if (d->d_tag == DT_STRTAB) texts = reinterpret_cast<const char *>(d->d_un.d_ptr);
    // An address, but for the kernel's own object: there the loader may not write, it is as in the file, and nothing is needed.
    if (!texts || reinterpret_cast<uintptr_t>(texts) < object.dlpi_addr) return false;
    for (const auto *d = dynamic; d->d_tag != DT_NULL; ++d)
      if (d->d_tag == DT_NEEDED && matches(texts + d->d_un.d_val)) return true;
  }
  return false;
}

}  // namespace isthmus::interpose
