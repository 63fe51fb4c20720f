#include "ccl/front_door.hpp"

#include <dlfcn.h>
#include <link.h>

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
  struct Question {
    const char *file;
    std::vector<std::string> found;
  } question{file, {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info *object, size_t, void *data) {
        auto *q = static_cast<Question *>(data);
        const char *slash = std::strrchr(object->dlpi_name, '/');
        const std::string stem(q->file, std::strstr(q->file, ".so") + 3);
        if (slash && std::strncmp(slash + 1, stem.c_str(), stem.size()) == 0) q->found.emplace_back(object->dlpi_name);
        return 0;
      },
      &question);
  for (const std::string &path : question.found) {
    void *library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    const void *found = library ? ::dlsym(library, function) : nullptr;
    if (found && !is_front_door(found)) return path;
  }
  return {};
}

}  // namespace isthmus::ccl
