// Text in a buffer of fixed size, and lines of the log made of such text. A front door has no run time of C++. Nor does a
// front door allocate for a text: the program around the door may be failing for want of memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::interpose {

// Appends to a buffer that the caller owns. The text always ends with a zero. Text that finds no room is left out.
class TextBuffer {
 public:
  TextBuffer(char *buffer, size_t bytes) noexcept : at_(buffer), end_(buffer + bytes - 1) { *at_ = 0; }
  TextBuffer(const TextBuffer &) = delete;
  TextBuffer &operator=(const TextBuffer &) = delete;
  TextBuffer &operator<<(const char *text) noexcept {
    while (*text && at_ < end_) *at_++ = *text++;
    *at_ = 0;
    return *this;
  }
  TextBuffer &operator<<(int number) noexcept {
    char digits[12];
    char *d = digits + sizeof digits - 1;
    *d = 0;
    auto rest = number < 0 ? 0U - static_cast<unsigned>(number) : static_cast<unsigned>(number);
    do *--d = static_cast<char>('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *--d = '-';
    return *this << static_cast<const char *>(d);
  }

 private:
  char *at_, *end_;
};

enum class Level { Trace, Debug, Info, Warn, Error, Off };
bool said(Level level) noexcept;  // whether ISTHMUS_LOG asks for lines of this level
// Writes one line to stderr, if ISTHMUS_LOG asks for lines of this level.
void say(Level level, const char *text) noexcept;

// Writes "2.29.3" for the code 22903, and "of an unknown version" for 0.
void write_version(TextBuffer &out, int code) noexcept;

}  // namespace isthmus::interpose
