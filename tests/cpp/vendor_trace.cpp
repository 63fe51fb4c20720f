// Notes each call that a program makes of a vendor's runtime, and what the call returns: a library for LD_PRELOAD. The program must find the
// vendor's functions by dlsym, as Isthmus does. scripts/vendor_trace.py runs programs so, and compares a driver with its simulation.
//
// A line for each call, in the file that VENDOR_TRACE names: the thread, the function, its first six arguments in hexadecimal digits, what it
// returned, and of functions that are known to write one number into memory that number.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Word = uint64_t;
// No function of a runtime has more arguments, those that go by the stack included. What a door reads and passes on beyond a function's own
// arguments lies in the caller's frame, and nobody looks at it.
using Function = Word (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);
using Find = void *(*)(void *, const char *);

constexpr size_t kDoors = 512;
struct Door {
  char name[64] = "";
  Function function = nullptr;
};
std::array<Door, kDoors> the_doors;
std::atomic<size_t> the_count{0};
std::mutex the_mutex;

Find found_by_libc() {
  for (const char *version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"})
    if (void *f = ::dlvsym(RTLD_NEXT, "dlsym", version)) return reinterpret_cast<Find>(f);
  std::fputs("vendor_trace: this C library has no dlsym that is known\n", stderr);
  std::abort();
}

// Whether the name is one of a vendor's runtime: cuInit, hipInit, aclInit.
bool of_a_vendor(const char *name) {
  for (const char *prefix : {"cu", "hip", "acl"}) {
    const size_t length = std::strlen(prefix);
    if (std::strncmp(name, prefix, length) != 0) continue;
    const char *rest = name + length;
    if (!std::strncmp(rest, "rt", 2)) rest += 2;  // aclrt
    if (*rest >= 'A' && *rest <= 'Z') return true;
  }
  return false;
}

// The argument behind which the function leaves an int, where that is known.
int number_at(const char *name) {
  constexpr struct {
    const char *name;
    int argument;
  } kNumbers[] = {{"cuDeviceGetAttribute", 0}, {"cuDeviceGetCount", 0},      {"cuDriverGetVersion", 0},
                  {"cuStreamIsCapturing", 1},  {"hipDeviceGetAttribute", 0}, {"hipGetDeviceCount", 0},
                  {"hipRuntimeGetVersion", 0}, {"hipStreamIsCapturing", 1}};
  for (const auto &one : kNumbers)
    if (!std::strcmp(one.name, name)) return one.argument;
  return -1;
}

int file() {
  static const int fd = [] {
    const char *path = std::getenv("VENDOR_TRACE");
    return path ? ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  }();
  return fd;
}

void note(const char *name, const Word (&a)[6], Word result) {
  const int at = number_at(name);
  char line[256], number[16] = "-";
  if (at >= 0 && static_cast<int32_t>(result) == 0 && a[at])
    std::snprintf(number, sizeof number, "%d", *reinterpret_cast<const int *>(a[at]));
  const int length = std::snprintf(line, sizeof line, "%ld %s %lx %lx %lx %lx %lx %lx %d %s\n", ::syscall(SYS_gettid), name,
                                   a[0], a[1], a[2], a[3], a[4], a[5], static_cast<int32_t>(result), number);
  if (file() >= 0 && ::write(file(), line, static_cast<size_t>(length)) != length) std::abort();
}

template <size_t I>
Word door(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, Word j, Word k, Word l) {
  const Word result = the_doors[I].function(a, b, c, d, e, f, g, h, i, j, k, l);
  note(the_doors[I].name, {a, b, c, d, e, f}, result);
  return result;
}
template <size_t... I>
constexpr std::array<Function, kDoors> doors(std::index_sequence<I...>) {
  return {door<I>...};
}
constexpr std::array<Function, kDoors> kEntrances = doors(std::make_index_sequence<kDoors>());

}  // namespace

EXPORT void *dlsym(void *__restrict handle, const char *__restrict name) noexcept {
  static const Find find = found_by_libc();
  void *const function = find(handle, name);
  if (!function || !of_a_vendor(name) || std::strlen(name) >= sizeof Door::name) return function;
  const std::lock_guard lock(the_mutex);
  for (size_t i = 0; i < the_count; ++i)
    if (the_doors[i].function == reinterpret_cast<Function>(function) && !std::strcmp(the_doors[i].name, name))
      return reinterpret_cast<void *>(kEntrances[i]);
  if (the_count == kDoors) return function;
  Door &mine = the_doors[the_count];
  std::strcpy(mine.name, name);
  mine.function = reinterpret_cast<Function>(function);
  return reinterpret_cast<void *>(kEntrances[the_count++]);
}
