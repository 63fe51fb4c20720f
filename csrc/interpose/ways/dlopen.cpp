// The hook before dlopen and dlmopen, for a program that opens the vendor's library by its path and takes the functions from
// there. Such a program does not meet a door that is preloaded alone. The hook is preloaded beside the door, on request. It
// jumps to the C library's function, with the stack and the return address as they came: that function finds its caller by
// the return address, because the caller's RPATH and RUNPATH count.
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "ways/door.hpp"

namespace isthmus::interpose {
namespace {

// Whether the caller is libisthmus.so, which opens the vendor's library for its islands.
bool is_libisthmus(const void *caller) {
  struct Question {
    uintptr_t address;
    bool yes;
  } question{reinterpret_cast<uintptr_t>(caller), false};
  dl_iterate_phdr(
      [](dl_phdr_info *object, size_t, void *data) {
        auto *q = static_cast<Question *>(data);
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr) &p = object->dlpi_phdr[i];
          if (p.p_type != PT_LOAD || q->address - (object->dlpi_addr + p.p_vaddr) >= p.p_memsz) continue;
          const char *slash = strrchr(object->dlpi_name, '/');
          constexpr char kName[] = "libisthmus.so";  // and its version: libisthmus.so.0.1
          constexpr size_t kLength = sizeof kName - 1;
          q->yes = slash && strncmp(slash + 1, kName, kLength) == 0 && (!slash[1 + kLength] || slash[1 + kLength] == '.');
          return 1;
        }
        return 0;
      },
      &question);
  return question.yes;
}

void *nothing() { return nullptr; }  // in place of a function that the C library lacks

// The function behind this one: the C library's, or a tool's that is preloaded, too.
void *next(std::atomic<void *> &slot, const char *name) {
  void *found = slot.load(std::memory_order_acquire);
  if (found) return found;
  found = dlsym(RTLD_NEXT, name);
  if (!found) return reinterpret_cast<void *>(&nothing);
  slot.store(found, std::memory_order_release);
  return found;
}

// For each door: the first path for which a program got the door. The path is of the library that the program would have had.
struct AskedPath {
  std::atomic<const char *> door;  // the door that was given; null: the entry is free
  std::atomic<bool> written;
  char path[PATH_MAX];
};
constinit AskedPath asked_paths[8]{};

void remember(const char *asked, const char *door) {
  if (!strchr(asked, '/') || strcmp(asked, door) == 0) return;
  for (AskedPath &entry : asked_paths) {
    const char *nobodys = nullptr;
    if (entry.door.compare_exchange_strong(nobodys, door)) {
      if (realpath(asked, entry.path)) entry.written.store(true, std::memory_order_release);
      return;
    }
    if (nobodys == door) return;
  }
}

const char *chosen(const char *asked, const void *caller) {
  const char *door = door_for(asked);
  if (!door || is_libisthmus(caller)) return asked;
  say_given(asked, door);
  remember(asked, door);
  return door;
}

}  // namespace

// The hook's answer, returned in two registers. The jump takes the answer from there.
struct Route {
  const char *file;
  void *next;
};
static_assert(sizeof(Route) == 16);

extern "C" {
__attribute__((visibility("hidden"), used)) Route isthmus_route_dlopen(const char *asked, const void *caller) noexcept {
  static std::atomic<void *> slot;
  return {chosen(asked, caller), next(slot, "dlopen")};
}
__attribute__((visibility("hidden"), used)) Route isthmus_route_dlmopen(const char *asked, const void *caller) noexcept {
  static std::atomic<void *> slot;
  return {chosen(asked, caller), next(slot, "dlmopen")};
}

// For the front door of this SONAME: the path by which a program asked for the vendor's library. Null: no program did so.
__attribute__((visibility("default"))) const char *isthmus_asked_for(const char *soname) noexcept {
  for (const AskedPath &entry : asked_paths) {
    if (!entry.written.load(std::memory_order_acquire)) continue;
    const char *door = entry.door.load(std::memory_order_relaxed), *slash = strrchr(door, '/');
    if (strcmp(slash ? slash + 1 : door, soname) == 0) return entry.path;
  }
  return nullptr;
}
}

}  // namespace isthmus::interpose

#if defined(__x86_64__)
__asm__(
    ".pushsection .text\n"
    ".globl dlopen\n"
    ".type dlopen, @function\n"
    "dlopen:\n"  // (file rdi, mode rsi)
    ".cfi_startproc\n"
    "  endbr64\n"
    "  pushq %rsi\n"
    ".cfi_adjust_cfa_offset 8\n"
    "  movq 8(%rsp), %rsi\n"
    "  call isthmus_route_dlopen\n"
    "  popq %rsi\n"
    ".cfi_adjust_cfa_offset -8\n"
    "  movq %rax, %rdi\n"
    "  jmp *%rdx\n"
    ".cfi_endproc\n"
    ".size dlopen, . - dlopen\n"
    ".globl dlmopen\n"
    ".type dlmopen, @function\n"
    "dlmopen:\n"  // (namespace rdi, file rsi, mode rdx)
    ".cfi_startproc\n"
    "  endbr64\n"
    "  pushq %rdi\n"
    ".cfi_adjust_cfa_offset 8\n"
    "  pushq %rdx\n"
    ".cfi_adjust_cfa_offset 8\n"
    "  subq $8, %rsp\n"
    ".cfi_adjust_cfa_offset 8\n"
    "  movq %rsi, %rdi\n"
    "  movq 24(%rsp), %rsi\n"
    "  call isthmus_route_dlmopen\n"
    "  addq $8, %rsp\n"
    ".cfi_adjust_cfa_offset -8\n"
    "  movq %rdx, %r11\n"
    "  movq %rax, %rsi\n"
    "  popq %rdx\n"
    ".cfi_adjust_cfa_offset -8\n"
    "  popq %rdi\n"
    ".cfi_adjust_cfa_offset -8\n"
    "  jmp *%r11\n"
    ".cfi_endproc\n"
    ".size dlmopen, . - dlmopen\n"
    ".popsection\n");
#elif defined(__aarch64__)
__asm__(
    ".pushsection .text\n"
    ".globl dlopen\n"
    ".type dlopen, %function\n"
    "dlopen:\n"  // (file x0, mode x1)
    ".cfi_startproc\n"
    "  hint #34\n"  // bti c
    "  stp x29, x30, [sp, #-32]!\n"
    ".cfi_def_cfa_offset 32\n"
    ".cfi_offset 29, -32\n"
    ".cfi_offset 30, -24\n"
    "  mov x29, sp\n"
    "  str x1, [sp, #16]\n"
    "  mov x1, x30\n"
    "  bl isthmus_route_dlopen\n"
    "  mov x16, x1\n"
    "  ldr x1, [sp, #16]\n"
    "  ldp x29, x30, [sp], #32\n"
    ".cfi_restore 30\n"
    ".cfi_restore 29\n"
    ".cfi_def_cfa_offset 0\n"
    "  br x16\n"
    ".cfi_endproc\n"
    ".size dlopen, . - dlopen\n"
    ".globl dlmopen\n"
    ".type dlmopen, %function\n"
    "dlmopen:\n"  // (namespace x0, file x1, mode x2)
    ".cfi_startproc\n"
    "  hint #34\n"
    "  stp x29, x30, [sp, #-32]!\n"
    ".cfi_def_cfa_offset 32\n"
    ".cfi_offset 29, -32\n"
    ".cfi_offset 30, -24\n"
    "  mov x29, sp\n"
    "  stp x0, x2, [sp, #16]\n"
    "  mov x0, x1\n"
    "  mov x1, x30\n"
    "  bl isthmus_route_dlmopen\n"
    "  mov x16, x1\n"
    "  mov x1, x0\n"
    "  ldp x0, x2, [sp, #16]\n"
    "  ldp x29, x30, [sp], #32\n"
    ".cfi_restore 30\n"
    ".cfi_restore 29\n"
    ".cfi_def_cfa_offset 0\n"
    "  br x16\n"
    ".cfi_endproc\n"
    ".size dlmopen, . - dlmopen\n"
    ".popsection\n");
#else
#error "the jump to the C library's dlopen is written for x86-64 and AArch64"
#endif
