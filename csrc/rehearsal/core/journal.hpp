// Who called what, and what went to which stream, while somebody wants to know: a test opens the journal, does something, and reads it.
#pragma once

#include "core/settings.hpp"

namespace rehearsal {

class Stream;

void note_call(const char *name);                          // on the thread that calls
void note_submission(const char *name, const Stream *to);  // likewise; behind its call

}  // namespace rehearsal

extern "C" {
REHEARSAL_API void rehearsal_journal_open(void);  // empty
// Closes it. Its text, as much as there is room for, ended by a zero; returns how long the whole is. A line for each call and for each thing
// that was submitted to a stream: "thread's number, its name, function, stream", tabs between; the stream is "-" for a call, and for what
// was submitted what rehearsal_stream() says of it.
REHEARSAL_API size_t rehearsal_journal_read(char *text, size_t bytes);
REHEARSAL_API uint64_t rehearsal_stream(void *handle);  // the number of a program's stream; 0: of a device's own
}
