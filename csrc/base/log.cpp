#define FMT_HEADER_ONLY 1
#ifndef SPDLOG_HEADER_ONLY
#define SPDLOG_HEADER_ONLY 1
#endif
#ifndef SPDLOG_FMT_EXTERNAL
#define SPDLOG_FMT_EXTERNAL 1
#endif
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "base/log.hpp"

namespace isthmus {
namespace {

spdlog::logger &log() {
  // Never destroyed: the control thread may log while static destructors run.
  static spdlog::logger *logger = [] {
    auto *l = new spdlog::logger("isthmus", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    l->set_pattern("[isthmus %P %H:%M:%S.%e %l] %v");
    l->set_level(spdlog::level::trace);  // log_on() has looked
    l->flush_on(spdlog::level::warn);
    return l;
  }();
  return *logger;
}

}  // namespace

void set_log_level(const char *level) noexcept {
  log_level_now.store(static_cast<int>(spdlog::level::from_str(level)), std::memory_order_relaxed);
}

void log_values(LogLevel level, fmt::string_view format, fmt::format_args values) noexcept {
  try {
    log().log(static_cast<spdlog::level::level_enum>(level), format_values(format, values));
  } catch (...) {}
}

}  // namespace isthmus
