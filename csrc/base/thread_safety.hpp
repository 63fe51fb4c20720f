// Words for clang's thread-safety analysis (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html); base/lock.hpp says how they are used.
#pragma once

#if defined(__clang__)
#define ISTHMUS_THREAD_SAFETY(words) __attribute__((words))
#else
#define ISTHMUS_THREAD_SAFETY(words)
#endif

#define ISTHMUS_CAPABILITY(name) ISTHMUS_THREAD_SAFETY(capability(name))
#define ISTHMUS_SCOPED_LOCK ISTHMUS_THREAD_SAFETY(scoped_lockable)
#define ISTHMUS_GUARDED_BY(lock) ISTHMUS_THREAD_SAFETY(guarded_by(lock))               // a field
#define ISTHMUS_POINTS_TO_GUARDED_BY(lock) ISTHMUS_THREAD_SAFETY(pt_guarded_by(lock))  // what a pointer points to
#define ISTHMUS_REQUIRES(...) ISTHMUS_THREAD_SAFETY(requires_capability(__VA_ARGS__))  // the caller holds it
#define ISTHMUS_REQUIRES_SHARED(...) ISTHMUS_THREAD_SAFETY(requires_shared_capability(__VA_ARGS__))
#define ISTHMUS_EXCLUDES(...) ISTHMUS_THREAD_SAFETY(locks_excluded(__VA_ARGS__))  // the caller does not hold it
#define ISTHMUS_ACQUIRE(...) ISTHMUS_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define ISTHMUS_ACQUIRE_SHARED(...) ISTHMUS_THREAD_SAFETY(acquire_shared_capability(__VA_ARGS__))
#define ISTHMUS_RELEASE(...) ISTHMUS_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define ISTHMUS_RELEASE_SHARED(...) ISTHMUS_THREAD_SAFETY(release_shared_capability(__VA_ARGS__))
#define ISTHMUS_TRY_ACQUIRE(...) ISTHMUS_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define ISTHMUS_ASSERTS_HELD(...) ISTHMUS_THREAD_SAFETY(assert_capability(__VA_ARGS__))  // from here on it counts as held
#define ISTHMUS_RETURNS_LOCK(lock) ISTHMUS_THREAD_SAFETY(lock_returned(lock))
#define ISTHMUS_UNCHECKED ISTHMUS_THREAD_SAFETY(no_thread_safety_analysis)  // a reason stands beside each use
