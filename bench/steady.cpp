// A seccomp filter shows the system calls:
//
//   thread                       kernel                            handler of SIGSYS
//   a system call       -------> filter: not futex, sched_yield
//                                raises SIGSYS            -------> counts the call
//                                filter: lets pass        <------- issues the call again, from one known instruction
//
// Functions of this program stand before the C library's allocation functions, and count the allocations.
#include "steady.hpp"

#include <stdlib.h>

#include <atomic>
#include <stdexcept>

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BENCH_STEADY 1
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#endif

namespace isthmus::bench {

#if BENCH_STEADY
namespace {

constexpr int kNumbers = 512;
std::atomic<bool> g_counting{false};
std::atomic<uint64_t> g_calls[kNumbers], g_own{0}, g_elsewhere{0};
thread_local bool t_caller = false;

void note_allocation() {
  if (g_counting.load(std::memory_order_relaxed)) (t_caller ? g_own : g_elsewhere).fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

extern "C" {
long bench_system_call(long number, long a, long b, long c, long d, long e, long f);
extern const char bench_after_system_call[];
}
asm(R"(
.text
.globl bench_system_call
.hidden bench_system_call
.globl bench_after_system_call
.hidden bench_after_system_call
bench_system_call:
  mov %rdi, %rax
  mov %rsi, %rdi
  mov %rdx, %rsi
  mov %rcx, %rdx
  mov %r8, %r10
  mov %r9, %r8
  mov 8(%rsp), %r9
  syscall
bench_after_system_call:
  ret
)");

namespace {

void on_filtered(int, siginfo_t *info, void *context) {
  auto *registers = static_cast<ucontext_t *>(context)->uc_mcontext.gregs;
  const int number = info->si_syscall;
  if (g_counting.load(std::memory_order_relaxed) && number >= 0 && number < kNumbers)
    g_calls[number].fetch_add(1, std::memory_order_relaxed);
  registers[REG_RAX] = bench_system_call(number, registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                                         registers[REG_R10], registers[REG_R8], registers[REG_R9]);
}

void install_filter() {
  struct sigaction action {};
  action.sa_sigaction = on_filtered;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  const auto address = reinterpret_cast<uint64_t>(bench_after_system_call);
  const auto low = static_cast<uint32_t>(address), high = static_cast<uint32_t>(address >> 32);
  constexpr uint32_t kPointer = offsetof(seccomp_data, instruction_pointer), kNumber = offsetof(seccomp_data, nr);
  // New threads and signal returns cannot be issued from the handler; they pass uncounted (no operation does either).
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kPointer),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, low, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kPointer + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_yield, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  };
  const sock_fprog filter{static_cast<unsigned short>(sizeof program / sizeof program[0]), program};
  if (sigaction(SIGSYS, &action, nullptr) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    throw std::runtime_error("--steady: the kernel does not let a seccomp filter be set");
}

}  // namespace

bool steady_supported() { return true; }

void steady_start() {
  thread_local bool installed = false;
  if (!installed) install_filter();
  installed = t_caller = true;
  for (auto &n : g_calls) n.store(0);
  g_own.store(0);
  g_elsewhere.store(0);
  g_counting.store(true);
}

SteadyCounts steady_stop() {
  g_counting.store(false);
  SteadyCounts counts{0, g_own.load(), g_elsewhere.load(), ""};
  for (int i = 0; i < kNumbers; ++i)
    if (const uint64_t n = g_calls[i].load()) {
      counts.system_calls += n;
      counts.system_call_numbers +=
          (counts.system_call_numbers.empty() ? "" : ", ") + std::to_string(i) + " x" + std::to_string(n);
    }
  return counts;
}

#else

bool steady_supported() { return false; }
void steady_start() {
  throw std::runtime_error("--steady: this build cannot count (x86-64 and glibc, without a sanitizer)");
}
SteadyCounts steady_stop() { return {}; }

#endif

}  // namespace isthmus::bench

#if BENCH_STEADY
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the C library's own names
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
// NOLINTEND(bugprone-reserved-identifier)

// The program's definitions stand before the C library's for every shared object of the process.
void *malloc(size_t n) {
  isthmus::bench::note_allocation();
  return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
  isthmus::bench::note_allocation();
  return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
  isthmus::bench::note_allocation();
  return __libc_realloc(p, n);
}
void *aligned_alloc(size_t alignment, size_t n) {
  isthmus::bench::note_allocation();
  return __libc_memalign(alignment, n);
}
int posix_memalign(void **p, size_t alignment, size_t n) {
  isthmus::bench::note_allocation();
  *p = __libc_memalign(alignment, n);
  return *p ? 0 : ENOMEM;
}
}
#endif
