#define FMT_HEADER_ONLY 1
#ifndef SPDLOG_HEADER_ONLY
#define SPDLOG_HEADER_ONLY 1
#endif
#ifndef SPDLOG_FMT_EXTERNAL
#define SPDLOG_FMT_EXTERNAL 1
#endif
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>

#include "base/error.hpp"
#include "base/file_name.hpp"
#include "base/handles.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"

namespace isthmus {
namespace {

constexpr const char *kFileSetting = "ISTHMUS_LOG_FILE";
constexpr int kPatienceMs = 200;  // of one line, until somebody reads what is before it

// Writes what fits; -1 and EAGAIN: nothing does. A pipe that has room has room for PIPE_BUF bytes. Other writers may fill it behind the look whether it
// has, so the kernel is asked not to wait for it, where it can: from Linux 6.5 on.
ssize_t write_some(int fd, const char *text, size_t bytes) noexcept {
  struct stat is;
  const bool pipe = ::fstat(fd, &is) == 0 && S_ISFIFO(is.st_mode);
  const iovec part{const_cast<char *>(text), pipe ? std::min<size_t>(bytes, PIPE_BUF) : bytes};
  if (pipe) {
    const ssize_t n = ::pwritev2(fd, &part, 1, -1, RWF_NOWAIT);
    if (n >= 0 || errno == EAGAIN || errno == EINTR) return n;
  }
  return ::write(fd, part.iov_base, part.iov_len);
}

// stderr, or the file that the setting names. A line is one write, to the end of the file, so those of several processes do not mix.
//
// Whoever logs may have a job to keep alive, the control thread above all. So nobody waits for long where stderr is a pipe or a terminal that is not
// read: the first line waits kPatienceMs, and then lines are lost, and counted, until there is room.
class Sink final : public spdlog::sinks::sink {
 public:
  Sink() { set_pattern({}); }

  void log(const spdlog::details::log_msg &msg) override {
    const Lock lock(mutex_);
    const int fd = file();
    write(fd >= 0 ? fd : STDERR_FILENO, msg);
  }
  void flush() override {}
  void set_pattern(const std::string &) override {
    auto formatter =
        std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);  // the hosts of a job agree on it
    formatter->add_flag<RankFlag>('*', *this).set_pattern("[isthmus %P%* %Y-%m-%dT%H:%M:%S.%eZ %l] %v");
    set_formatter(std::move(formatter));
  }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    const Lock lock(mutex_);
    formatter_ = std::move(formatter);
  }

  void set_file(std::string_view pattern) {
    const Lock lock(mutex_);
    if (pattern == pattern_) return;
    pattern_ = pattern;
    close();
  }
  void forget_rank() {
    const Lock lock(mutex_);
    rank_ = -1;
    certain_ = false;
  }
  void note_ranks(std::span<const int> ranks, bool certain) {
    const Lock lock(mutex_);
    if (ranks.empty() || certain_ || (rank_ >= 0 && !certain)) return;
    if (rank_ < 0) {
      rank_ = ranks.front();
      if (has_rank(pattern_)) close();
    }
    certain_ = certain;
    prefix_ = ranks.size() == 1 ? " rank " : " ranks ";
    for (size_t i = 0; i < ranks.size(); ++i) prefix_ += formatted("{}{}", i == 0 ? "" : ",", ranks[i]);
  }

  // Held across a fork, so the child finds the sink whole.
  void before_fork() noexcept ISTHMUS_ACQUIRE(mutex_) { mutex_.lock(); }
  void in_parent() noexcept ISTHMUS_RELEASE(mutex_) { mutex_.unlock(); }
  void begin_in_child() noexcept ISTHMUS_RELEASE(mutex_) {
    rank_ = -1;  // that was the parent's
    certain_ = false;
    mutex_.unlock();
  }

 private:
  struct RankFlag final : spdlog::custom_flag_formatter {
    explicit RankFlag(const Sink &s) : sink(s) {}
    void format(const spdlog::details::log_msg &, const std::tm &, spdlog::memory_buf_t &out) override {
      sink.mutex_.counts_as_held();  // by write(), which formats
      if (sink.rank_ >= 0) out.append(sink.prefix_);
    }
    std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<RankFlag>(sink); }
    const Sink &sink;
  };

  void close() noexcept ISTHMUS_REQUIRES(mutex_) {
    fd_.reset();
    opened_by_ = 0;
    path_.clear();
  }

  // The file's descriptor; -1: stderr, also where %r stands in its name and no rank is known yet.
  int file() ISTHMUS_REQUIRES(mutex_) {
    if (pattern_.empty() || (rank_ < 0 && has_rank(pattern_))) return -1;
    const pid_t self = ::getpid();
    if (opened_by_ == self) return fd_.get();
    opened_by_ = self;
    std::string path = file_name(pattern_, rank_);
    if (path == path_) return fd_.get();  // a forked child, and the pattern says that the file is its own as well
    path_ = std::move(path);
    fd_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!fd_) {
      const std::string text =
          formatted("{}: {}; the log goes on on stderr", kFileSetting, system_text(path_.c_str(), errno));
      write(STDERR_FILENO, spdlog::details::log_msg("isthmus", spdlog::level::err, text));
    }
    return fd_.get();
  }

  // Whether something can be written. Also true where the write will say why not.
  bool has_room(int fd) noexcept ISTHMUS_REQUIRES(mutex_) {
    pollfd p{fd, POLLOUT, 0};
    int n;
    while ((n = ::poll(&p, 1, lost_ == 0 ? kPatienceMs : 0)) < 0 && errno == EINTR) {}
    return n != 0;
  }

  void write(int fd, const spdlog::details::log_msg &msg) ISTHMUS_REQUIRES(mutex_) {
    if (lost_ != 0 && has_room(fd)) {
      const std::string text =
          formatted("{} line{} lost, since nobody has read the log", lost_, lost_ == 1 ? " was" : "s were");
      lost_ = 0;
      write_line(fd, spdlog::details::log_msg("isthmus", spdlog::level::warn, text));
    }
    write_line(fd, msg);
  }

  void write_line(int fd, const spdlog::details::log_msg &msg) ISTHMUS_REQUIRES(mutex_) {
    line_.clear();
    formatter_->format(msg, line_);
    for (size_t done = 0; done < line_.size();) {
      if (!has_room(fd)) {
        ++lost_;
        return;
      }
      const ssize_t n = write_some(fd, line_.data() + done, line_.size() - done);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n <= 0) return;  // there is nobody to tell
      done += static_cast<size_t>(n);
    }
  }

  Mutex mutex_;  // held over a write, so that lines come in their order
  std::unique_ptr<spdlog::formatter> formatter_ ISTHMUS_GUARDED_BY(mutex_);
  spdlog::memory_buf_t line_ ISTHMUS_GUARDED_BY(mutex_);
  std::string pattern_ ISTHMUS_GUARDED_BY(mutex_);
  std::string path_ ISTHMUS_GUARDED_BY(mutex_);
  std::string prefix_ ISTHMUS_GUARDED_BY(mutex_);
  UniqueFd fd_ ISTHMUS_GUARDED_BY(mutex_);
  pid_t opened_by_ ISTHMUS_GUARDED_BY(mutex_) = 0;  // the process that has looked for the file
  uint64_t lost_ ISTHMUS_GUARDED_BY(mutex_) = 0;    // lines, since the last one that was written
  int rank_ ISTHMUS_GUARDED_BY(mutex_) = -1;
  bool certain_ ISTHMUS_GUARDED_BY(mutex_) = false;
};

// Never destroyed: the control thread may log while static destructors run. Made when the library is loaded, so that no fork comes between.
Sink *const the_sink = [] {
  static constinit Sink *held = nullptr;
  held = new Sink;
  // Unchecked: what the first locks at a fork, the others unlock after it.
  ::pthread_atfork([]() ISTHMUS_UNCHECKED { held->before_fork(); }, []() ISTHMUS_UNCHECKED { held->in_parent(); },
                   []() ISTHMUS_UNCHECKED { held->begin_in_child(); });
  return held;
}();
Sink &sink() { return *the_sink; }

spdlog::logger *const the_logger = [] {
  auto *l = new spdlog::logger("isthmus", std::shared_ptr<spdlog::sinks::sink>(the_sink, [](spdlog::sinks::sink *) {}));
  l->set_level(spdlog::level::trace);  // log_on() has looked
  return l;
}();
spdlog::logger &log() { return *the_logger; }

}  // namespace

void set_log_level(const char *level) noexcept {
  log_level_now.store(static_cast<int>(spdlog::level::from_str(level)), std::memory_order_relaxed);
}

void set_log_file(std::string_view pattern) { sink().set_file(pattern); }
void forget_log_rank() { sink().forget_rank(); }
void note_log_ranks(std::span<const int> ranks, LogRanks which) { sink().note_ranks(ranks, which == LogRanks::All); }

void log_values(LogLevel level, fmt::string_view format, fmt::format_args values) noexcept {
  try {
    log().log(static_cast<spdlog::level::level_enum>(level), format_values(format, values));
  } catch (...) {}
}

}  // namespace isthmus
