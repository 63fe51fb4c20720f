// What can be read of an object that the process has loaded, while the loader holds its lock.
#pragma once

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace isthmus::interpose {

// Whether the object is a front door. A door has an ELF note that says so. Neither the name of the file nor a symbol is
// needed.
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

// Whether `matches` holds for one of the names in the object's DT_NEEDED.
template <class Matches>
bool any_needed(const dl_phdr_info &object, const Matches &matches) noexcept {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    if (object.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto *dynamic = reinterpret_cast<const ElfW(Dyn) *>(object.dlpi_addr + object.dlpi_phdr[i].p_vaddr);
    const char *texts = nullptr;
    for (const auto *d = dynamic; d->d_tag != DT_NULL; ++d)
      if (d->d_tag == DT_STRTAB) texts = reinterpret_cast<const char *>(d->d_un.d_ptr);
    // The loader has made an address of the entry. The kernel's own object (vDSO) is the exception: the loader may not write
    // into that object, so the entry is as in the file. The vDSO needs nothing.
    if (!texts || reinterpret_cast<uintptr_t>(texts) < object.dlpi_addr) return false;
    for (const auto *d = dynamic; d->d_tag != DT_NULL; ++d)
      if (d->d_tag == DT_NEEDED && matches(texts + d->d_un.d_val)) return true;
  }
  return false;
}

}  // namespace isthmus::interpose
