// Whether two declarations of one function mean the same to a caller of its binary: as many parameters, and each of them, and the
// result, of one size and class. Names of types do not matter: an int of ours stands for an enum of the vendor's.
#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>

namespace vendor {

template <class T>
inline constexpr bool is_number = std::is_integral_v<T> || std::is_enum_v<T>;

template <class T>
inline constexpr bool is_struct = std::is_class_v<T> || std::is_union_v<T>;

template <class A, class B>
constexpr bool same_value();

// What the pointers point to is compared as far as both say it: void and structs stand for anything.
template <class A, class B>
constexpr bool same_pointee() {
  if constexpr (std::is_function_v<A> || std::is_function_v<B>) return std::is_function_v<A> == std::is_function_v<B>;
  else if constexpr (std::is_void_v<A> || std::is_void_v<B> || is_struct<A> || is_struct<B>) return true;
  else return same_value<A, B>();
}

template <class A, class B>
constexpr bool same_value() {
  using X = std::remove_cv_t<A>;
  using Y = std::remove_cv_t<B>;
  if constexpr (std::is_pointer_v<X> && std::is_pointer_v<Y>)
    return same_pointee<std::remove_cv_t<std::remove_pointer_t<X>>, std::remove_cv_t<std::remove_pointer_t<Y>>>();
  else if constexpr (std::is_void_v<X> || std::is_void_v<Y>) return std::is_void_v<X> && std::is_void_v<Y>;
  else if constexpr (is_number<X> && is_number<Y>) return sizeof(X) == sizeof(Y);
  else if constexpr (std::is_floating_point_v<X> && std::is_floating_point_v<Y>) return sizeof(X) == sizeof(Y);
  else if constexpr (is_struct<X> && is_struct<Y>)
    return sizeof(X) == sizeof(Y) && alignof(X) == alignof(Y) && std::is_trivially_copyable_v<X> &&
           std::is_trivially_copyable_v<Y>;
  else return false;
}

template <class A, class B>
struct Signatures : std::false_type {};  // another number of parameters, or no function
template <class A, class... As, class B, class... Bs>
requires(sizeof...(As) == sizeof...(Bs)) struct Signatures<A (*)(As...), B (*)(Bs...)>
    : std::bool_constant<same_value<A, B>() && (same_value<As, Bs>() && ...)> {
};

template <class A, class B>
constexpr bool same_shape() {
  return Signatures<A, B>::value;
}

// The test of the test: what must not pass does not.
struct Eight {
  char bytes[8];
};
union Four {
  int value;
};
enum Kind : int {};
static_assert(same_shape<int (*)(void *, int), Kind (*)(struct Unknown *, Kind)>());
static_assert(same_shape<int (*)(int *, Eight), int (*)(Kind *, Eight)>());
static_assert(!same_shape<int (*)(int), int (*)(int, int)>());
static_assert(!same_shape<int (*)(int), int (*)(long)>());
static_assert(!same_shape<int (*)(int), int (*)(float)>());
static_assert(!same_shape<int (*)(void *), int (*)(unsigned long)>());
static_assert(!same_shape<int (*)(int *), int (*)(long *)>());
static_assert(!same_shape<int (*)(int *), int (*)(void **)>());
static_assert(!same_shape<int (*)(Eight), int (*)(Eight *)>());
static_assert(!same_shape<int (*)(Eight), int (*)(long)>());
static_assert(same_shape<int (*)(Four), int (*)(Four)>());
static_assert(!same_shape<int (*)(Four), int (*)(int)>());
static_assert(!same_shape<int (*)(Four), int (*)(Eight)>());
static_assert(!same_shape<void (*)(int), int (*)(int)>());

}  // namespace vendor
