#include "ccl/front_door.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace isthmus::ccl {

bool is_front_door(const void *function) noexcept {
  struct Question {
    uintptr_t at;
    bool door;
  } question{reinterpret_cast<uintptr_t>(function), false};
  ::dl_iterate_phdr(
      [](dl_phdr_info *object, size_t, void *data) {
        auto *q = static_cast<Question *>(data);
        bool inside = false;
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr) &p = object->dlpi_phdr[i];
          inside |= p.p_type == PT_LOAD && q->at - (object->dlpi_addr + p.p_vaddr) < p.p_memsz;
        }
        for (int i = 0; inside && i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr) &p = object->dlpi_phdr[i];
          constexpr char kNote[] = "\x08\0\0\0\0\0\0\0\x01\0\0\0Isthmus";
          q->door |= p.p_type == PT_NOTE && ::memmem(reinterpret_cast<const void *>(object->dlpi_addr + p.p_vaddr),
                                                     p.p_memsz, kNote, sizeof kNote) != nullptr;
        }
        return inside ? 1 : 0;
      },
      &question);
  return question.door;
}

std::string loaded_behind_door(const char *file, const char *function) {
  std::vector<std::string> loaded;
  ::dl_iterate_phdr(
      [](dl_phdr_info *object, size_t, void *data) {
        if (std::strchr(object->dlpi_name, '/'))
          static_cast<std::vector<std::string> *>(data)->emplace_back(object->dlpi_name);
        return 0;
      },
      &loaded);
  // Files of the library's own name come first. A setting may have named a file that is called something else.
  const std::string stem(file, std::strstr(file, ".so") + 3);
  std::stable_partition(loaded.begin(), loaded.end(),
                        [&](const std::string &path) { return path.compare(path.rfind('/') + 1, stem.size(), stem) == 0; });
  for (const std::string &path : loaded) {
    void *library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    const void *found = library ? ::dlsym(library, function) : nullptr;
    Dl_info where{};
    if (found && !is_front_door(found) && ::dladdr(found, &where) != 0 && where.dli_fname) return where.dli_fname;
  }
  return {};
}

}  // namespace isthmus::ccl
