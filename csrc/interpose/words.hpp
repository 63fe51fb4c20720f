// Text in a buffer of fixed size: this library has neither C++'s run time nor a wish to allocate inside of a failing program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::interpose {

class Words {
 public:
  Words(char *buffer, size_t bytes) noexcept : at_(buffer), end_(buffer + bytes - 1) { *at_ = 0; }
  Words(const Words &) = delete;
  Words &operator=(const Words &) = delete;
  Words &operator<<(const char *text) noexcept {  // what finds no room is left out
    while (*text && at_ < end_) *at_++ = *text++;
    *at_ = 0;
    return *this;
  }
  Words &operator<<(int number) noexcept {
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
bool said(Level level) noexcept;  // whether ISTHMUS_LOG asks for it
// One line to stderr, if it does.
void say(Level level, const char *text) noexcept;

// "2.29.3" of 22903, "of an unknown version" of 0.
void write_version(Words &out, int code) noexcept;

}  // namespace isthmus::interpose
