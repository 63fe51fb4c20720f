// The journal: which thread called which function, and what was submitted to which stream. A test opens the journal, does something, and
// reads the journal. Nothing is noted while the journal is closed.
#pragma once

#include "core/settings.hpp"

namespace rehearsal {

class Stream;

// Called on the thread of the program's call. The line of a submission comes behind the line of its call.
void note_call(const char *name);
void note_submission(const char *name, const Stream *to);

}  // namespace rehearsal

extern "C" {
REHEARSAL_API void rehearsal_journal_open(void);  // makes the journal empty, and opens it
// Closes the journal and copies its text, up to `bytes` - 1 bytes, with a zero at the end. Returns the length of the whole text. A line has
// four words with tabs between: the thread's number (gettid), the thread's name, the function, the stream. There is a line for each call,
// with the stream "-", and a line for each submission, with the number that rehearsal_stream() has for the stream.
REHEARSAL_API size_t rehearsal_journal_read(char *text, size_t bytes);
REHEARSAL_API uint64_t rehearsal_stream(void *handle);  // the number of a stream; 0: the device made it
}
