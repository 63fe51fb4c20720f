// Sets the calling thread's floating-point control word to IEEE defaults (round to nearest even, subnormals kept, nothing
// traps) for the life of the object. Reading it costs a few cycles; it is written only where it differs.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "isthmus supports x86-64 and AArch64"
#endif

namespace isthmus::reduce {

class ControlWord {
 public:
  explicit ControlWord(bool wanted) noexcept {
    if (!wanted) return;
    saved_ = read();
    if ((saved_ & kControl) == kDefault) return;
    changed_ = true;
    write(kDefault);
  }
  ~ControlWord() {
    if (changed_) write(saved_);
  }
  ControlWord(const ControlWord &) = delete;
  ControlWord &operator=(const ControlWord &) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;
  static constexpr Word kDefault = 0x1f80, kControl = 0xffc0;  // the low six bits are sticky flags
  static Word read() noexcept { return _mm_getcsr(); }
  static void write(Word w) noexcept { _mm_setcsr(w); }
#else
  using Word = uint64_t;
  static constexpr Word kDefault = 0, kControl = ~Word{0};
  static Word read() noexcept {
    Word w;
    asm volatile("mrs %0, fpcr" : "=r"(w));
    return w;
  }
  static void write(Word w) noexcept { asm volatile("msr fpcr, %0" ::"r"(w) : "memory"); }
#endif

  Word saved_ = 0;
  bool changed_ = false;
};

}  // namespace isthmus::reduce
