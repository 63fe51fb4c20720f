// Logging: one spdlog logger to stderr. ISTHMUS_LOG sets the level; the macros format nothing when the level is off.
#pragma once

#define FMT_HEADER_ONLY 1
#ifndef SPDLOG_HEADER_ONLY
#define SPDLOG_HEADER_ONLY 1
#endif
#ifndef SPDLOG_FMT_EXTERNAL
#define SPDLOG_FMT_EXTERNAL 1
#endif
#include <spdlog/spdlog.h>

namespace isthmus {

spdlog::logger &log();  // made at the first call; thread-safe; outlives every static destructor of ours
void set_log_level(const char *level) noexcept;  // "trace" "debug" "info" "warn" "error" "off"

}  // namespace isthmus

#define ISTHMUS_LOG_AT(level, ...)                        \
  do {                                                    \
    auto &l_ = ::isthmus::log();                          \
    if (l_.should_log(level)) l_.log(level, __VA_ARGS__); \
  } while (0)
#define ISTHMUS_DEBUG(...) ISTHMUS_LOG_AT(::spdlog::level::debug, __VA_ARGS__)
#define ISTHMUS_INFO(...) ISTHMUS_LOG_AT(::spdlog::level::info, __VA_ARGS__)
#define ISTHMUS_WARN(...) ISTHMUS_LOG_AT(::spdlog::level::warn, __VA_ARGS__)
#define ISTHMUS_ERROR(...) ISTHMUS_LOG_AT(::spdlog::level::err, __VA_ARGS__)
