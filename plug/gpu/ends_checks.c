/* Ends of processes, threads and libraries on the real driver: `ends_checks [quick]` runs every part in a process of its own, so that this
 * one has no CUDA context, and ends with 1 if one failed.
 *
 *   fork    children are forked with memory alive, work pending and threads inside calls: each call there returns an error with a message, whether the child
 *           leaves by _exit or by exit, and no byte of the parent's changes
 *   exit    a process ends with memory alive, work pending and threads inside calls: with its own code, in time, and prints nothing
 *   close   the library is closed with memory alive and work pending: nothing waits, no byte is corrupted; opened again it still has them
 *   leave   the same at the end of a process that has closed it
 *   after   then as much of the device is free as before
 *
 * Two programs: linked with the library it has the first two parts; with OPENED defined, and not linked, the next two, because what a program is
 * linked with is never closed. These open MILLPOND_LIBRARY, or libmillpond.so. Built against plug/millpond.h; the driver is loaded by name:
 * MILLPOND_LIBCUDA, or libcuda.so.1. Ends with 77 where there is none. `plug/tests/c.rs` runs both over the stand-in driver. */
#ifdef OPENED
#include "millpond.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#else
#include "../tests/forked.h"
#endif

#include <execinfo.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>

#include "driver.h"

#define FUNCTIONS(X) X(cuMemGetInfo_v2, size_t *, size_t *)
FUNCTIONS(DECLARE)

/* A call whose failure ends the program: without it the checks show nothing. */
#define MUST(call)                                                             \
  do {                                                                         \
    int code = (int)(call);                                                    \
    if (code) {                                                                \
      fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, code); \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)
#define EXPECT(condition)                                                      \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: expected: %s\n", __FILE__, __LINE__, #condition);  \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

#define CODE 7

static int quick, stand_in;
static handle context, stream;
#ifdef OPENED
static millpond_allocator pool;
#endif
static address delay;
static size_t delay_bytes;

static void begin(void) {
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuStreamCreate(&stream, 1));
  /* The stand-in writes byte by byte and as late as legal, so a short fill is enough there. */
  delay_bytes = stand_in ? MIB / 16 : 1024 * MIB;
  MUST(cuMemAlloc_v2(&delay, delay_bytes));
}

/* Work of about half a second, which delays everything behind it. */
static void queue_delay(void) {
  for (int i = 0; i < (stand_in ? 4 : 1500); i++) MUST(cuMemsetD8Async(delay, (unsigned char)i, delay_bytes, stream));
}

static int is_pending(void) {
  int code = cuStreamQuery(stream);
  EXPECT(code == 0 || code == 600);
  return code == 600;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int is_all(address of, size_t bytes, unsigned char value) {
  unsigned char *read = malloc(bytes);
  MUST(cuMemcpyDtoHAsync_v2(read, of, bytes, stream));
  MUST(cuStreamSynchronize(stream));
  size_t at = 0;
  while (at < bytes && read[at] == value) at++;
  free(read);
  return at == bytes;
}

#ifndef OPENED
/* ---- threads that call continuously */

/* The process exits: the driver ends before the threads do, and refuses their calls. */
static atomic_int leaving;
#define UNLESS_LEAVING(call)                                                   \
  do {                                                                         \
    int answer = (int)(call);                                                  \
    if (atomic_load(&leaving)) return NULL;                                    \
    if (answer) fprintf(stderr, "%s: %s\n", #call, millpond_last_error());     \
    MUST(answer);                                                              \
  } while (0)

#define BEGINS MUST(cuCtxSetCurrent(context))
#define GOES_WELL(call) UNLESS_LEAVING(call)
#define STREAM(i) ((i) % 2 ? OWN : NULL)
#define USES(block, i) UNLESS_LEAVING(cuMemsetD8Async((address)(block), (unsigned char)(i), 1000, STREAM(i)))
#define EVERY 64
#include "../tests/churn.h"

/* The same load on the driver alone. */
static void *churn_driver(void *number) {
  address block = 0;
  MUST(cuCtxSetCurrent(context));
  for (unsigned i = 0; !atomic_load(&stop); i++) {
    MUST(cuMemAlloc_v2(&block, 4096));
    MUST(cuMemsetD8Async(block, (unsigned char)i, 4096, OWN));
    MUST(cuStreamSynchronize(OWN));
    MUST(cuMemFree_v2(block));
    atomic_fetch_add(&calls[(size_t)number], 1);
  }
  return NULL;
}

/* ---- fork */

/* Prints where a child crashed. */
static void crashed(int signal) {
  void *frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), 2);
  _exit(128 + signal);
}

/* Whether children of a process that is busy with the driver can leave by exit, without this library: the driver itself may crash there. */
static int children_may_exit(pthread_t *threads) {
  int status = 0, children = 8;
  begin_threads(threads, churn_driver);
  for (int i = 0; i < children && status == 0; i++) {
    until_they_run();
    if (i % 4 == 0) queue_delay();
    pid_t child = fork();
    if (child == 0) alarm(20), exit(0);
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
  }
  end_threads(threads);
  if (status) printf("  no child leaves by exit: with the driver alone one ended with status %#x\n", (unsigned)status);
  return status == 0;
}

static void part_fork(void) {
  size_t bytes = 4 * MIB;
  pthread_t threads[THREADS];
  void *block = NULL, *pinned = NULL, *again = NULL;
  int pending = 0, children = quick ? 4 : 20, status = -1;
  begin();
  int may_exit = children_may_exit(threads);
  MUST(millpond_create(0, "pinned_limit=64MiB", &pool));
  MUST(millpond_alloc(pool, bytes, stream, &block));
  MUST(millpond_alloc_pinned(pool, 4096, &pinned));
  memset(pinned, 5, 4096);
  begin_threads(threads, churn);
  for (int i = 0; i < children; i++) {
    until_they_run();
    if (i % 4 == 0) queue_delay();
    MUST(cuMemsetD8Async((address)block, (unsigned char)(i + 1), bytes, stream));
    pending += is_pending();
    pid_t child = fork();
    if (child == 0) {
      alarm(60);
      signal(SIGSEGV, crashed);
      every_call_is_refused(pool, block, pinned);
      if (i % 2 && may_exit) exit(0);
      _exit(0);
    }
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fprintf(stderr, "child %d, which leaves by %s, ended with status %#x%s\n", i, i % 2 && may_exit ? "exit" : "_exit", (unsigned)status,
              WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? ": it hung" : "");
      _exit(1);
    }
    EXPECT(is_all((address)block, bytes, (unsigned char)(i + 1)));
  }
  end_threads(threads);
  EXPECT(((unsigned char *)pinned)[4095] == 5);
  MUST(millpond_alloc(pool, bytes, stream, &again));
  EXPECT(again != block);
  MUST(millpond_free(pool, again));
  MUST(millpond_free(pool, block));
  EXPECT(millpond_free(pool, block) == MILLPOND_STATUS_UNKNOWN_POINTER);
  MUST(millpond_free_pinned(pool, pinned));
  MUST(millpond_destroy(pool));
  printf("  %d children, %d of them with work pending\n", children, pending);
  EXPECT(pending > 0);
  exit(CODE);
}

/* ---- exit */

static void part_exit(void) {
  pthread_t threads[THREADS];
  void *block = NULL, *freed = NULL, *pinned = NULL;
  begin();
  MUST(millpond_create(0, "", &pool));
  MUST(millpond_alloc(pool, 4 * MIB, stream, &block));
  MUST(millpond_alloc(pool, 4 * MIB, stream, &freed));
  MUST(millpond_alloc_pinned(pool, 4096, &pinned));
  begin_threads(threads, churn);
  until_they_run();
  /* Other threads trim, for which the driver may wait for the device. */
  int tries = 0;
  do {
    queue_delay();
    MUST(cuMemsetD8Async((address)block, 1, 4 * MIB, stream));
    MUST(cuMemcpyDtoHAsync_v2(pinned, (address)block, 4096, stream));
    if (freed != NULL) MUST(millpond_free(pool, freed));
    freed = NULL;
  } while (!is_pending() && ++tries < 20);
  EXPECT(tries < 20);
  atomic_store(&leaving, 1);
  exit(CODE);
}

#else
/* ---- close */

/* A function of the opened library, by its name and type. */
#define CALL(library, name, ...) ((__typeof__(&name))(size_t)dlsym(library, #name))(__VA_ARGS__)

static void *library;
static void *block, *pinned;
static address copied;

/* Every call is made on a thread that has ended when the library is closed: a thread's own values would keep it open. */
static void *uses(void *unused) {
  (void)unused;
  MUST(cuCtxSetCurrent(context));
  MUST(CALL(library, millpond_create, 0, "", &pool));
  MUST(CALL(library, millpond_alloc, pool, 4 * MIB, stream, &block));
  MUST(CALL(library, millpond_alloc_pinned, pool, 4096, &pinned));
  queue_delay();
  MUST(cuMemsetD8Async((address)block, 3, 4 * MIB, stream));
  MUST(cuMemcpyDtoDAsync_v2(copied, (address)block, 4 * MIB, stream));
  MUST(cuMemcpyDtoHAsync_v2(pinned, (address)block, 4096, stream));
  return NULL;
}

static void *frees(void *unused) {
  void *other = NULL;
  (void)unused;
  MUST(cuCtxSetCurrent(context));
  MUST(CALL(library, millpond_free_on, pool, block, stream));
  EXPECT(CALL(library, millpond_free, pool, block) == MILLPOND_STATUS_UNKNOWN_POINTER);
  MUST(CALL(library, millpond_alloc, pool, MIB, stream, &other));
  MUST(CALL(library, millpond_free_on, pool, other, stream));
  MUST(CALL(library, millpond_free_pinned_unknown, pool, pinned));
  MUST(CALL(library, millpond_destroy, pool));
  return NULL;
}

static void on_a_thread(void *(*calls)(void *)) {
  pthread_t thread;
  MUST(pthread_create(&thread, NULL, calls, NULL));
  MUST(pthread_join(thread, NULL));
}

static void open_library(void) {
  const char *name = getenv("MILLPOND_LIBRARY");
  library = dlopen(name != NULL ? name : "libmillpond.so", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
}

static int is_there(void) {
  const char *name = getenv("MILLPOND_LIBRARY");
  void *still = dlopen(name != NULL ? name : "libmillpond.so", RTLD_NOW | RTLD_NOLOAD);
  return still != NULL && dlclose(still) == 0;
}

static void closes(void) {
  begin();
  MUST(cuMemAlloc_v2(&copied, 4 * MIB));
  open_library();
  on_a_thread(uses);
  EXPECT(is_pending());
  double start = now();
  EXPECT(dlclose(library) == 0);
  printf("  the close took %.0f us%s\n", 1e6 * (now() - start), is_there() ? ", and the library stays" : "");
  EXPECT(is_pending());
}

static void part_close(void) {
  closes();
  /* The library's fork handler is still there. */
  pid_t child = fork();
  if (child == 0) _exit(CODE);
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == CODE);
  EXPECT(is_all(copied, 4 * MIB, 3) && is_all((address)block, 4 * MIB, 3));
  EXPECT(((unsigned char *)pinned)[4095] == 3);
  open_library();
  on_a_thread(frees);
  EXPECT(dlclose(library) == 0);
  exit(CODE);
}

static void part_leave(void) {
  closes();
  exit(CODE);
}

#endif
/* ---- after: how much memory of the device is free */

static size_t free_bytes(void) {
  size_t some = 0, all = 0;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemGetInfo_v2(&some, &all));
  return some;
}

/* ---- each part is a process of its own */

/* Runs this program with a part's name; returns its exit status. */
static int runs(char **words, const char *part, int seconds, char *said, size_t room) {
  int two[2], status = -1;
  EXPECT(pipe(two) == 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(two[1], 1), dup2(two[1], 2), close(two[0]), close(two[1]);
    alarm((unsigned)seconds);
    execl("/proc/self/exe", words[0], quick ? "quick" : "whole", part, (char *)NULL);
    _exit(99);
  }
  close(two[1]);
  size_t got = 0;
  for (ssize_t n; got + 1 < room && (n = read(two[0], said + got, room - 1 - got)) > 0;) got += (size_t)n;
  said[got] = 0;
  close(two[0]);
  EXPECT(child > 0 && waitpid(child, &status, 0) == child);
  return status;
}

int main(int count, char **words) {
  static const struct {
    const char *name, *what;
    void (*run)(void);
  } parts[] = {
#ifndef OPENED
      {"fork", "fork, beside calls and with work pending: every call of a child is refused, the parent goes on", part_fork},
      {"exit", "exit with memory alive, work pending and threads inside calls", part_exit},
#else
      {"close", "dlclose with memory alive and work pending, and opened again", part_close},
      {"leave", "exit behind a dlclose with memory alive and work pending", part_leave},
#endif
  };
  const size_t of_parts = sizeof parts / sizeof parts[0];
  const char *part = count > 2 ? words[2] : "";
  quick = count > 1 && strcmp(words[1], "quick") == 0;
  void *driver = open_driver();
  if (driver == NULL) return 77;
  if (find_common(driver)) return 1;
  FUNCTIONS(FIND)
  stand_in = dlsym(driver, "millpond_fake_calls") != NULL;
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (size_t i = 0; i < of_parts; i++)
    if (strcmp(part, parts[i].name) == 0) parts[i].run();
  if (strcmp(part, "free") == 0) {
    printf("%zu\n", free_bytes());
    return CODE;
  }
  static char said[1 << 14];
  int failed = 0, rounds = quick ? 2 : 5, seconds = 90;
  int status = runs(words, "free", seconds, said, sizeof said);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == CODE);
  double before = strtod(said, NULL), after = 0;
  for (size_t i = 0; i < of_parts; i++) {
    for (int round = 0; round < rounds; round++) {
      double start = now();
      status = runs(words, parts[i].name, seconds, said, sizeof said);
      /* A part indents what it prints; any other output is an error. */
      int right = WIFEXITED(status) && WEXITSTATUS(status) == CODE && (said[0] == 0 || said[0] == ' ');
      if (!right || round == 0) printf("%s", said);
      if (!right || round == rounds - 1)
        printf("%s %s, round %d of %d, %.1f s, status %#x\n", right ? "PASS" : "FAIL", parts[i].what, round + 1, rounds, now() - start,
               (unsigned)status);
      failed |= !right;
      if (!right) break;
    }
  }
  status = runs(words, "free", seconds, said, sizeof said);
  after = strtod(said, NULL);
  int right = WIFEXITED(status) && WEXITSTATUS(status) == CODE && after >= before - 64.0 * (double)MIB;
  printf("%s after: %.0f MiB of the device are free, %.0f before\n", right ? "PASS" : "FAIL", after / (double)MIB, before / (double)MIB);
  failed |= !right;
  puts(failed ? "some part failed" : "every part passed");
  return failed;
}
