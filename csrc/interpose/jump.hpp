// Entry points of functions whose parameters are not known here: the vendor promises no parameters, or the functions are C++.
// Such an entry point hands on all registers and the stack as they came. The result of the real function goes back in the
// same way.
#pragma once

#include <atomic>

namespace isthmus::interpose {

struct Jump {
  std::atomic<const void *> to;  // the real function, once the first call has found it
  const char *name;
};
static_assert(sizeof(Jump) == 2 * sizeof(void *));

// Finds the real function. Null: there is no such function, and the call returns `code`.
extern "C" __attribute__((visibility("hidden"))) const void *isthmus_bind_jump(Jump *, long *code) noexcept;
// Where a jump goes until its real function is found. Not a function to be called from C.
extern "C" __attribute__((visibility("hidden"))) const char isthmus_first_jump[];

}  // namespace isthmus::interpose

// `record` is the name of the Jump. Its address goes on in a register that a linkage table, too, may change between two
// functions.
#if defined(__x86_64__)
#define ISTHMUS_JUMP_CODE(record) "  endbr64\n  leaq " record "(%rip), %r11\n  jmp *(%r11)\n"
#elif defined(__aarch64__)
#define ISTHMUS_JUMP_CODE(record) \
  "  hint #34\n  adrp x16, " record "\n  add x16, x16, :lo12:" record "\n  ldar x17, [x16]\n  br x17\n"
#else
#error "entry points without known parameters are written for x86-64 and AArch64"
#endif

#define ISTHMUS_JUMP(name)                                                                       \
  extern "C" {                                                                                   \
  __attribute__((visibility("hidden"), used)) constinit isthmus::interpose::Jump jump_##name{    \
      isthmus::interpose::isthmus_first_jump, #name};                                            \
  }                                                                                              \
  __asm__(".pushsection .text\n.p2align 4\n.globl " #name "\n.type " #name ", %function\n" #name \
          ":\n" ISTHMUS_JUMP_CODE("jump_" #name) ".size " #name ", .-" #name "\n.popsection\n");
