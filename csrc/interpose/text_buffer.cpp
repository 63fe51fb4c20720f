#include "text_buffer.hpp"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace isthmus::interpose {
namespace {

Level wanted() {
  static constexpr const char *kNames[] = {"trace", "debug", "info", "warn", "error", "off"};
  if (const char *set = getenv("ISTHMUS_LOG"))
    for (int i = 0; i < 6; ++i)
      if (strcmp(set, kNames[i]) == 0) return static_cast<Level>(i);
  return Level::Warn;
}

}  // namespace

bool said(Level level) noexcept { return level >= wanted(); }

void say(Level level, const char *text) noexcept {
  if (!said(level)) return;
  char line[5000];
  TextBuffer(line, sizeof line - 1) << "[isthmus " << static_cast<int>(getpid())
                                    << (level >= Level::Warn ? " warning" : " info") << "] interpose: " << text;
  size_t bytes = strlen(line);
  line[bytes++] = '\n';
  // The line goes out in one piece. Where stderr takes no more, nobody can be told.
  if (write(STDERR_FILENO, line, bytes) < 0) return;
}

void write_version(TextBuffer &out, int code) noexcept {
  if (code <= 0) out << "of an unknown version";
  else if (code < 10000)
    out << code / 1000 << "." << code / 100 % 10 << "." << code % 100;  // NCCL before 2.9 wrote 2.8.3 as 2803
  else out << code / 10000 << "." << code / 100 % 100 << "." << code % 100;
}

}  // namespace isthmus::interpose
