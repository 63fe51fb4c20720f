// The binary operations on vectors, and what is done to the result before it is written. Included by kernels.cpp only.
#pragma once

#include <hwy/highway.h>

namespace isthmus::reduce {
namespace {

template <class T>
inline constexpr bool kIsFloat = static_cast<T>(0.5) != static_cast<T>(0);

struct Sum {
  static constexpr size_t kLeast = 1;   // lanes that belong together
  static constexpr bool kCheap = true;  // much less work than the reading and writing
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Add(a, b);
  }
};

struct Prod {
  static constexpr size_t kLeast = 1;
  static constexpr bool kCheap = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Mul(a, b);
  }
};

// The processors' own minima differ in what they do with NaN and with zeros of both signs, so only comparisons are used.
// Equal floats differ at most in a zero's sign: "or" of the two is the lesser, "and" the greater.
struct Min {
  static constexpr size_t kLeast = 1;
  static constexpr bool kCheap = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (kIsFloat<hn::TFromD<D>>) {
      const auto lesser = hn::IfThenElse(hn::Lt(a, b), a, b);  // b where one is NaN
      return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), lesser));
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max {
  static constexpr size_t kLeast = 1;
  static constexpr bool kCheap = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (kIsFloat<hn::TFromD<D>>) {
      const auto greater = hn::IfThenElse(hn::Lt(a, b), b, a);  // a where one is NaN
      return hn::IfThenElse(hn::IsNaN(b), b, hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), greater));
    } else {
      return hn::Max(a, b);
    }
  }
};

struct And {
  static constexpr size_t kLeast = 1;
  static constexpr bool kCheap = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::And(a, b);
  }
};

struct Or {
  static constexpr size_t kLeast = 1;
  static constexpr bool kCheap = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Or(a, b);
  }
};

struct Xor {
  static constexpr size_t kLeast = 1;
  static constexpr bool kCheap = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Xor(a, b);
  }
};

#if HWY_TARGET != HWY_SCALAR
// Pairs (re, im): the schoolbook formula, each product and each sum rounded by itself.
struct ComplexProd {
  static constexpr size_t kLeast = 2;
  static constexpr bool kCheap = false;
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D d, hn::Vec<D> a, hn::Vec<D> b) {
    const auto real = hn::Mul(hn::DupEven(a), b);                       // ar*br, ar*bi
    const auto imaginary = hn::Mul(hn::DupOdd(a), hn::Reverse2(d, b));  // ai*bi, ai*br
    return hn::OddEven(hn::Add(real, imaginary), hn::Sub(real, imaginary));
  }
};
#endif

template <class D>
HWY_INLINE hn::Vec<D> canonical(D d, hn::Vec<D> v) {
  if constexpr (kIsFloat<hn::TFromD<D>>) {
    const hn::RebindToUnsigned<D> du;
    using U = hn::TFromD<decltype(du)>;
    const auto nan =
        hn::BitCast(d, hn::Set(du, sizeof(U) == 4 ? static_cast<U>(0x7fc00000) : static_cast<U>(0x7ff8000000000000)));
    return hn::IfThenElse(hn::IsNaN(v), nan, v);
  } else {
    return v;
  }
}

// After the last operation: divide (unless the number is 0), then make NaN canonical.
struct Divide {
  static constexpr bool kKeepsFinite = true;
  template <class T>
  struct Of {
    T number;
    bool divides;  // asked in every step, so it is no comparison of floats
    explicit Of(double n) : number(static_cast<T>(n)), divides(n != 0) {}
    template <class D>
    HWY_INLINE hn::Vec<D> number_applied(D d, hn::Vec<D> v) const {
      if constexpr (kIsFloat<T>)
        if (divides) v = hn::Div(v, hn::Set(d, number));
      return v;
    }
    template <class D>
    HWY_INLINE hn::Vec<D> apply(D d, hn::Vec<D> v) const {
      return canonical(d, number_applied(d, v));
    }
  };
};

struct Multiply {
  static constexpr bool kKeepsFinite = false;
  template <class T>
  struct Of {
    T number;
    explicit Of(double n) : number(static_cast<T>(n)) {
      if (n != n) number = static_cast<T>(__builtin_nan(""));  // whatever the caller's NaN had in its lower bits
    }
    template <class D>
    HWY_INLINE hn::Vec<D> number_applied(D d, hn::Vec<D> v) const {
      return hn::Mul(v, hn::Set(d, number));
    }
    template <class D>
    HWY_INLINE hn::Vec<D> apply(D d, hn::Vec<D> v) const {
      return canonical(d, number_applied(d, v));
    }
  };
};

}  // namespace
}  // namespace isthmus::reduce
