#include "base/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

namespace isthmus {

spdlog::logger &log() {
  // Never destroyed: the control thread may log while static destructors run.
  static spdlog::logger *logger = [] {
    auto *l = new spdlog::logger("isthmus", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    l->set_pattern("[isthmus %P %H:%M:%S.%e %l] %v");
    l->set_level(spdlog::level::warn);
    l->flush_on(spdlog::level::warn);
    return l;
  }();
  return *logger;
}

void set_log_level(const char *level) noexcept { log().set_level(spdlog::level::from_str(level)); }

}  // namespace isthmus
