#include "core/journal.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "core/lock.hpp"
#include "core/machine.hpp"

namespace rehearsal {
namespace {

struct Journal {
  std::atomic<bool> open{false};
  Guarded<std::string> text;
};
Journal &journal() {
  static auto *const the_journal = new Journal;  // never destroyed: threads may call while the program exits
  return *the_journal;
}

void note(const char *name, const std::string &stream) {
  Journal &j = journal();
  char thread[16] = {};
  ::prctl(PR_GET_NAME, thread);
  const std::string line = std::to_string(::syscall(SYS_gettid)) + '\t' + thread + '\t' + name + '\t' + stream + '\n';
  *j.text.lock() += line;
}

uint64_t number_of(const Stream *stream) { return !stream || stream->special ? 0 : reinterpret_cast<uint64_t>(stream); }

}  // namespace

void note_call(const char *name) {
  if (journal().open.load(std::memory_order_acquire)) note(name, "-");
}
void note_submission(const char *name, const Stream *to) {
  if (journal().open.load(std::memory_order_acquire)) note(name, std::to_string(number_of(to)));
}

}  // namespace rehearsal

using rehearsal::journal;

void rehearsal_journal_open() {
  journal().text.lock()->clear();
  journal().open.store(true, std::memory_order_release);
}
size_t rehearsal_journal_read(char *text, size_t bytes) {
  journal().open.store(false, std::memory_order_release);
  const auto all = journal().text.lock();
  if (bytes > 0) {
    const size_t some = std::min(bytes - 1, all->size());
    std::memcpy(text, all->data(), some);
    text[some] = 0;
  }
  return all->size();
}
uint64_t rehearsal_stream(void *handle) {
  return rehearsal::number_of(rehearsal::Machine::get().streams.find(reinterpret_cast<uint64_t>(handle)).get());
}
