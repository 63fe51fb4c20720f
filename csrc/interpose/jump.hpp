// Entry points of functions whose parameters are not ours to know: the vendor promises none of them, or they are C++. All registers and
// the stack are handed on as they came, and so is what comes back.
#pragma once

#include <atomic>

namespace isthmus::interpose {

struct Jump {
  std::atomic<const void *> to;  // the real function, once the first call has found it
  const char *name;
};
static_assert(sizeof(Jump) == 2 * sizeof(void *));

// Finds it, or null: then what the call returns is in `code`.
extern "C" __attribute__((visibility("hidden"))) const void *isthmus_bind_jump(Jump *, long *code) noexcept;
// Where a jump goes to until then. No function to be called from C.
extern "C" __attribute__((visibility("hidden"))) const char isthmus_first_jump[];

}  // namespace isthmus::interpose

// `record` is the Jump's name. It is handed on in a register that a linkage table may change, too.
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
