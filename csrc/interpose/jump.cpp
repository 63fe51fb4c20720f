#include "jump.hpp"

#include "real.hpp"

namespace isthmus::interpose {

extern "C" const void *isthmus_bind_jump(Jump *jump, long *code) noexcept {
  const void *f = look_up(jump->name);
  if (f) jump->to.store(f, std::memory_order_release);
  else *code = refuse(jump->name);
  return f;
}

}  // namespace isthmus::interpose

// The first jump. The code keeps every register that may hold an argument, while the function is looked up.
#if defined(__x86_64__)
__asm__(R"(
.pushsection .text
.p2align 4
.globl isthmus_first_jump
.hidden isthmus_first_jump
.type isthmus_first_jump, %function
isthmus_first_jump:
  .cfi_startproc
  endbr64
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  andq $-16, %rsp
  subq $208, %rsp
  movq %rdi, (%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movq %rax, 48(%rsp)
  movq %r10, 56(%rsp)
  movaps %xmm0, 64(%rsp)
  movaps %xmm1, 80(%rsp)
  movaps %xmm2, 96(%rsp)
  movaps %xmm3, 112(%rsp)
  movaps %xmm4, 128(%rsp)
  movaps %xmm5, 144(%rsp)
  movaps %xmm6, 160(%rsp)
  movaps %xmm7, 176(%rsp)
  movq %r11, %rdi
  leaq 192(%rsp), %rsi
  call isthmus_bind_jump
  movq %rax, %r11
  testq %r11, %r11
  je 1f
  movq (%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  movq 48(%rsp), %rax
  movq 56(%rsp), %r10
  movaps 64(%rsp), %xmm0
  movaps 80(%rsp), %xmm1
  movaps 96(%rsp), %xmm2
  movaps 112(%rsp), %xmm3
  movaps 128(%rsp), %xmm4
  movaps 144(%rsp), %xmm5
  movaps 160(%rsp), %xmm6
  movaps 176(%rsp), %xmm7
  leave
  .cfi_remember_state
  .cfi_def_cfa %rsp, 8
  jmp *%r11
1:
  .cfi_restore_state
  movq 192(%rsp), %rax
  leave
  .cfi_def_cfa %rsp, 8
  ret
  .cfi_endproc
.size isthmus_first_jump, .-isthmus_first_jump
.popsection
)");
#elif defined(__aarch64__)
__asm__(R"(
.pushsection .text
.p2align 4
.globl isthmus_first_jump
.hidden isthmus_first_jump
.type isthmus_first_jump, %function
isthmus_first_jump:
  .cfi_startproc
  hint #34
  stp x29, x30, [sp, #-240]!
  .cfi_def_cfa_offset 240
  .cfi_offset 29, -240
  .cfi_offset 30, -232
  mov x29, sp
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  str x8, [sp, #80]
  stp q0, q1, [sp, #96]
  stp q2, q3, [sp, #128]
  stp q4, q5, [sp, #160]
  stp q6, q7, [sp, #192]
  mov x0, x16
  add x1, sp, #224
  bl isthmus_bind_jump
  mov x16, x0
  cbz x16, 1f
  ldp x0, x1, [sp, #16]
  ldp x2, x3, [sp, #32]
  ldp x4, x5, [sp, #48]
  ldp x6, x7, [sp, #64]
  ldr x8, [sp, #80]
  ldp q0, q1, [sp, #96]
  ldp q2, q3, [sp, #128]
  ldp q4, q5, [sp, #160]
  ldp q6, q7, [sp, #192]
  ldp x29, x30, [sp], #240
  .cfi_remember_state
  .cfi_def_cfa_offset 0
  .cfi_restore 29
  .cfi_restore 30
  br x16
1:
  .cfi_restore_state
  ldr x0, [sp, #224]
  ldp x29, x30, [sp], #240
  .cfi_def_cfa_offset 0
  .cfi_restore 29
  .cfi_restore 30
  ret
  .cfi_endproc
.size isthmus_first_jump, .-isthmus_first_jump
.popsection
)");
#endif
