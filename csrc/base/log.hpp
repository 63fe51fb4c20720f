// Logging: one spdlog logger to stderr, or to the file that ISTHMUS_LOG_FILE names. ISTHMUS_LOG sets the level; the macros format
// nothing when the level is off. Each line says which process and rank wrote it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/format.hpp"

namespace isthmus {

enum class LogLevel : int { Debug = 1, Info = 2, Warn = 3, Error = 4 };  // as spdlog numbers them

void set_log_level(const char *level) noexcept;  // "trace" "debug" "info" "warn" "error" "off"
// A pattern (base/file_name.hpp); empty: stderr. Where it holds %r, lines go to stderr until the rank is known. A forked child whose
// file has another name opens that.
void set_log_file(std::string_view pattern);
// The ranks that this process has in its first communicator, of which the first is %r. MaybeSome: there may be more of them. What comes
// later is another communicator's, and changes nothing until the rank is forgotten.
enum class LogRanks : uint8_t { All, MaybeSome };
void note_log_ranks(std::span<const int> ranks, LogRanks which);
void forget_log_rank();
inline std::atomic<int> log_level_now{static_cast<int>(LogLevel::Warn)};
inline bool log_on(LogLevel level) noexcept {
  return static_cast<int>(level) >= log_level_now.load(std::memory_order_relaxed);
}
// Thread-safe; what cannot be written is not.
void log_values(LogLevel level, fmt::string_view format, fmt::format_args values) noexcept;
template <class... A>
void log_at(LogLevel level, fmt::format_string<A...> format, A &&...values) noexcept {
  log_values(level, format, fmt::make_format_args(values...));
}

}  // namespace isthmus

#define ISTHMUS_LOG_AT(level, ...)                                       \
  do {                                                                   \
    if (::isthmus::log_on(level)) ::isthmus::log_at(level, __VA_ARGS__); \
  } while (0)
#define ISTHMUS_DEBUG(...) ISTHMUS_LOG_AT(::isthmus::LogLevel::Debug, __VA_ARGS__)
#define ISTHMUS_INFO(...) ISTHMUS_LOG_AT(::isthmus::LogLevel::Info, __VA_ARGS__)
#define ISTHMUS_WARN(...) ISTHMUS_LOG_AT(::isthmus::LogLevel::Warn, __VA_ARGS__)
#define ISTHMUS_ERROR(...) ISTHMUS_LOG_AT(::isthmus::LogLevel::Error, __VA_ARGS__)
