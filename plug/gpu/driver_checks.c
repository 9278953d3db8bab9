/* The C interface on the real driver, for a machine with a GPU: `driver_checks [quick]` runs every part and ends with 1 if one failed.
 *
 *   threads   8,000 host threads start and end, each on its own default stream: few segments are reserved, few pools are open
 *   handles   streams are destroyed with work pending and made again, their handles are reused, and no byte is corrupted
 *   captures  graphs are captured in every mode, on streams of every kind that can be captured, beside threads that allocate, free, trim and
 *             pin: each capture survives and its graph replays correctly
 *
 * Prints times; only bytes, pools and values decide whether a check fails. Built against plug/millpond.h; the driver is loaded by name, so that
 * no header of CUDA's is needed: MILLPOND_LIBCUDA, or libcuda.so.1. Ends with 77 where there is none. `plug/tests/c.rs` runs it over the
 * stand-in driver, where graphs cannot be launched: there the replays are skipped, and printed as skipped. */
#include "millpond.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"

#define FUNCTIONS(X)                                                           \
  X(cuStreamDestroy_v2, handle)                                                \
  X(cuStreamBeginCapture_v2, handle, int)                                      \
  X(cuStreamEndCapture, handle, handle *)                                      \
  X(cuGraphDestroy, handle)
#define OPTIONAL(X)                                                            \
  X(cuGraphInstantiateWithFlags, handle *, handle, unsigned long long)         \
  X(cuGraphLaunch, handle, handle)                                             \
  X(cuGraphExecDestroy, handle)
FUNCTIONS(DECLARE)
OPTIONAL(DECLARE)

static handle context;
static millpond_allocator pool;
static int failed;

static void check(int passed, const char *what) {
  printf("%s %s\n", passed ? "PASS" : "FAIL", what);
  failed |= !passed;
}

/* A call whose failure ends the program: without it the checks show nothing. */
#define MUST(call)                                                                                                  \
  do {                                                                                                              \
    int code = (int)(call);                                                                                         \
    if (code) {                                                                                                     \
      fprintf(stderr, "%s:%d: %s returned %d; millpond: %s\n", __FILE__, __LINE__, #call, code, millpond_last_error()); \
      exit(1);                                                                                                      \
    }                                                                                                               \
  } while (0)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* The report; valid until the next call. */
static const char *stats(void) {
  static char *text;
  size_t needed = 0, room;
  do {
    MUST(millpond_stats_json(pool, NULL, 0, &needed));
    room = needed + 4096;
    free(text);
    text = malloc(room);
    MUST(millpond_stats_json(pool, text, room, &needed));
  } while (needed > room);
  return text;
}

static long long field(const char *in, const char *name) {
  char quoted[64];
  snprintf(quoted, sizeof quoted, "\"%s\":", name);
  /* Pools have fields of the same names: the allocator's own come after "releases", because the names are sorted. */
  const char *own = strstr(in, "\"releases\":");
  const char *at = strstr(own != NULL && strncmp(name, "reserved", 8) == 0 ? own : in, quoted);
  return at == NULL ? -1 : strtoll(at + strlen(quoted), NULL, 10);
}

static long long held_back(void) {
  const char *total = strstr(stats(), "\"total\":");
  return total == NULL ? -1 : field(total, "held_back");
}

static int pools(void) {
  int count = 0;
  for (const char *at = stats(); (at = strstr(at, "\"closed\":")) != NULL; at++) count++;
  return count;
}

static int begin(const char *options) { return millpond_create(0, options, &pool) == MILLPOND_STATUS_OK; }

/* Destroys the allocator and checks that nothing is reserved any more. */
static void end(const char *part) {
  double start = now();
  MUST(millpond_destroy(pool));
  printf("  destroy took %.0f us\n", now() - start);
  check(field(stats(), "reserved") == 0, part);
}

/* ---- threads */

static int number;
static double *times;

static void *one_thread(void *unused) {
  void *block = NULL;
  (void)unused;
  MUST(cuCtxSetCurrent(context));
  double start = now();
  MUST(millpond_alloc(pool, 4096, OWN, &block));
  times[number] = now() - start;
  /* Its work is pending when the block is freed and the thread ends. */
  MUST(cuMemsetD8Async((address)block, (unsigned char)number, 4096, OWN));
  MUST(millpond_free(pool, block));
  return NULL;
}

static int larger(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static double median(double *of, int count) {
  qsort(of, (size_t)count, sizeof *of, larger);
  return of[count / 2];
}

static void threads(int count) {
  if (!begin("")) exit(1);
  times = calloc((size_t)count, sizeof *times);
  for (number = 0; number < count; number++) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, one_thread, NULL));
    MUST(pthread_join(thread, NULL));
  }
  double first = median(times, 100), last = median(times + count - 100, 100);
  long long reserved = field(stats(), "reserved"), held = held_back();
  int open = pools();
  printf("  %d threads: an allocation took %.1f us in the first hundred and %.1f us in the last (medians; ratio %.2f); %.1f MiB reserved, "
         "%lld bytes held back, %d pools\n",
         count, first, last, last / first, (double)reserved / (double)MIB, held, open);
  check(reserved <= 32 * (long long)MIB, "threads: few segments are reserved");
  check(held == 0, "threads: nothing is held back");
  check(open <= 64, "threads: few pools are open");
  MUST(cuCtxSynchronize());
  end("threads: all memory went back to the device");
  free(times);
}

/* ---- handles */

static void handles(int rounds, size_t delay_bytes) {
  size_t bytes = MIB / 4;
  address results = 0, delay = 0;
  handle last = NULL;
  int handles_reused = 0, pending = 0, blocks_reused = 0, wrong = 0;
  void *before = NULL;
  if (!begin("limit=64MiB")) exit(1);
  MUST(cuMemAlloc_v2(&results, bytes * (size_t)rounds));
  MUST(cuMemAlloc_v2(&delay, delay_bytes));
  for (int i = 0; i < rounds; i++) {
    handle stream = NULL;
    void *block = NULL;
    MUST(cuStreamCreate(&stream, 1));
    handles_reused += stream == last;
    last = stream;
    MUST(millpond_alloc(pool, bytes, stream, &block));
    blocks_reused += block == before;
    before = block;
    /* The copy below runs late: if these bytes are reused too early, the next fill overwrites them first. */
    MUST(cuMemsetD8Async((address)block, (unsigned char)(i % 251 + 1), bytes, stream));
    for (int n = 0; n < 8; n++) MUST(cuMemsetD8Async(delay, (unsigned char)n, delay_bytes, stream));
    MUST(cuMemcpyDtoDAsync_v2(results + bytes * (size_t)i, (address)block, bytes, stream));
    pending += cuStreamQuery(stream) == 600;
    switch (i % 4) {
      case 0: MUST(millpond_free(pool, block)); break;
      case 1: MUST(millpond_free_unknown(pool, block)); break;
      case 2: MUST(millpond_free_after(pool, block, &stream, 1)); break;
      default: MUST(millpond_free_on(pool, block, stream));
    }
    MUST(cuStreamDestroy_v2(stream));
    /* Memory of streams that could not be marked comes back when the device is idle: well before the limit. */
    if (i % 64 == 63) MUST(millpond_synchronize(pool));
  }
  MUST(cuCtxSynchronize());
  unsigned char *read = malloc(bytes);
  for (int i = 0; i < rounds; i++) {
    MUST(cuMemcpyDtoHAsync_v2(read, results + bytes * (size_t)i, bytes, NULL));
    MUST(cuStreamSynchronize(NULL));
    size_t at = 0;
    while (at < bytes && read[at] == (unsigned char)(i % 251 + 1)) at++;
    wrong += at < bytes;
  }
  free(read);
  printf("  %d streams: %d had the handle of the previous one, %d were destroyed with work pending, %d blocks had the address of the previous one; "
         "%d results wrong\n",
         rounds, handles_reused, pending, blocks_reused, wrong);
  check(wrong == 0, "handles: no byte is corrupted");
  check(pending > rounds / 2, "handles: the work was pending");
  check(handles_reused > 0, "handles: some were reused");
  MUST(cuMemFree_v2(results));
  MUST(cuMemFree_v2(delay));
  MUST(millpond_synchronize(pool));
  check(held_back() == 0, "handles: nothing is held back on an idle device");
  end("handles: all memory went back to the device");
}

/* ---- captures */

static atomic_int stop, ready, thread_count;

/* Streams are made before any capture begins, so that all threads begin at once. A driver does not refuse it beside a capture in the global mode, nor does it
 * end the capture (streams and events made and destroyed outside a relaxed batch: 12 cases, H200, driver 580.159.04). */
static void until_all_are_ready(void) {
  atomic_fetch_add(&ready, 1);
  while (atomic_load(&ready) < atomic_load(&thread_count)) sched_yield();
}

static atomic_ulong allocator_rounds;
static int rounds_each, capture_mode;
static atomic_int lost, wrong_values, replayed;

static void *allocate_and_free(void *which) {
  handle own = NULL, other = NULL;
  void *kept[8] = {NULL};
  MUST(cuCtxSetCurrent(context));
  MUST(cuStreamCreate(&own, 1));
  MUST(cuStreamCreate(&other, 1));
  until_all_are_ready();
  for (unsigned i = (unsigned)(size_t)which; !atomic_load(&stop); i++) {
    void **block = &kept[i % 8], *pinned = NULL;
    handle stream = i % 3 == 2 ? OWN : own;
    /* With unknown users only now and then, and no large blocks: those are held back during captures. */
    if (i % 24 == 2) {
      MUST(millpond_free_unknown(pool, *block));
    } else if (i % 3 == 0) {
      MUST(millpond_free(pool, *block));
    } else {
      MUST(millpond_free_on(pool, *block, other));
    }
    *block = NULL;
    /* Large ones now and then, so that memory is reserved and given back during the captures. */
    millpond_status status = millpond_alloc(pool, i % 40 == 0 ? 24 * MIB : (size_t)(i % 50 + 1) * 2048, stream, block);
    /* Memory that is held back during captures cannot be reused, so the limit may be reached. */
    if (status != MILLPOND_STATUS_OK && status != MILLPOND_STATUS_OUT_OF_MEMORY) MUST(status);
    if (*block != NULL) {
      MUST(cuMemsetD8Async((address)*block, (unsigned char)i, 2048, stream));
      if (i % 5 == 0) MUST(millpond_record_use(pool, *block, other));
    }
    if (i % 16 == 0) {
      MUST(millpond_alloc_pinned(pool, 4096, &pinned));
      MUST(millpond_free_pinned(pool, pinned));
    }
    if (i % 64 == 0) MUST(millpond_trim(pool, NULL));
    atomic_fetch_add(&allocator_rounds, 1);
  }
  for (int i = 0; i < 8; i++) MUST(millpond_free_on(pool, kept[i], own));
  MUST(cuStreamSynchronize(own));
  MUST(cuStreamDestroy_v2(own));
  MUST(cuStreamDestroy_v2(other));
  return NULL;
}

/* The streams that are captured, by how the allocator knows them. */
enum kind { UNDECLARED, PERMANENT, BLOCKING, PER_THREAD, KINDS };

static void *capture(void *of) {
  enum kind kind = (enum kind)(size_t)of;
  handle stream = OWN, side = NULL;
  void *x = NULL, *y = NULL;
  size_t bytes = 64 << 10;
  unsigned char *read = malloc(bytes);
  MUST(cuCtxSetCurrent(context));
  if (kind != PER_THREAD) MUST(cuStreamCreate(&stream, kind != BLOCKING));
  MUST(cuStreamCreate(&side, 1));
  if (kind == PERMANENT) MUST(millpond_declare_permanent(pool, stream));
  MUST(millpond_alloc(pool, bytes, stream, &x));
  MUST(millpond_alloc(pool, bytes, stream, &y));
  until_all_are_ready();
  for (int i = 0; i < rounds_each; i++) {
    handle graph = NULL, runs = NULL;
    void *between = NULL;
    unsigned char value = (unsigned char)(i % 251 + 1);
    unsigned long before = atomic_load(&allocator_rounds);
    MUST(cuStreamBeginCapture_v2(stream, capture_mode));
    MUST(cuMemsetD8Async((address)x, value, bytes, stream));
    /* By the capturing thread itself, on another stream. */
    millpond_status status = millpond_alloc(pool, bytes, side, &between);
    if (status == MILLPOND_STATUS_OK) {
      MUST(cuMemsetD8Async((address)between, 0, bytes, side));
      MUST(millpond_free_on(pool, between, side));
    } else if (status != MILLPOND_STATUS_OUT_OF_MEMORY) {
      MUST(status);
    }
    MUST(cuMemcpyDtoDAsync_v2((address)y, (address)x, bytes, stream));
    /* Each of the other threads allocates and frees meanwhile. */
    while (atomic_load(&allocator_rounds) < before + 8) sched_yield();
    int code = cuStreamEndCapture(stream, &graph);
    if (code != 0 || graph == NULL) {
      atomic_fetch_add(&lost, 1);
      continue;
    }
    if (cuGraphLaunch != NULL && cuGraphExecDestroy != NULL && cuGraphInstantiateWithFlags != NULL) {
      MUST(cuGraphInstantiateWithFlags(&runs, graph, 0));
      MUST(cuMemsetD8Async((address)y, 0, bytes, stream));
      MUST(cuGraphLaunch(runs, stream));
      MUST(cuMemcpyDtoHAsync_v2(read, (address)y, bytes, stream));
      MUST(cuStreamSynchronize(stream));
      size_t at = 0;
      while (at < bytes && read[at] == value) at++;
      atomic_fetch_add(&wrong_values, at < bytes);
      atomic_fetch_add(&replayed, 1);
      MUST(cuGraphExecDestroy(runs));
    }
    MUST(cuGraphDestroy(graph));
  }
  MUST(millpond_free_on(pool, x, stream));
  MUST(millpond_free_on(pool, y, stream));
  /* Not waited for, because another thread may still capture. A permanent stream is not destroyed. */
  if (kind == UNDECLARED || kind == BLOCKING) MUST(cuStreamDestroy_v2(stream));
  MUST(cuStreamDestroy_v2(side));
  free(read);
  return NULL;
}

static void captures(int rounds) {
  static const char *names[3] = {"global", "thread-local", "relaxed"};
  static const char *kinds[KINDS] = {"an undeclared stream", "a permanent stream", "a blocking stream", "the thread's own default stream"};
  if (!begin("limit=1GiB")) exit(1);
  for (int i = 0; i < 3 * KINDS; i++) {
    int mode = i / KINDS;
    enum kind kind = (enum kind)(i % KINDS);
    /* In the global mode one thread's capture forbids another thread's instantiation and waits. */
    int capturing = mode == 0 ? 1 : 2, made = capturing * rounds;
    pthread_t all[5];
    char what[128];
    atomic_store(&stop, 0), atomic_store(&lost, 0), atomic_store(&wrong_values, 0), atomic_store(&replayed, 0);
    atomic_store(&allocator_rounds, 0), atomic_store(&ready, 0), atomic_store(&thread_count, 3 + capturing);
    capture_mode = mode, rounds_each = rounds;
    for (int i = 0; i < 3; i++) MUST(pthread_create(&all[i], NULL, allocate_and_free, (void *)(size_t)(i * 1000)));
    for (int i = 0; i < capturing; i++) MUST(pthread_create(&all[3 + i], NULL, capture, (void *)(size_t)kind));
    for (int i = 0; i < capturing; i++) MUST(pthread_join(all[3 + i], NULL));
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++) MUST(pthread_join(all[i], NULL));
    printf("  %s, %s: %d captures beside %lu rounds of the other threads, %d lost, %d replayed, %d wrong\n", names[mode], kinds[kind], made, atomic_load(&allocator_rounds),
           atomic_load(&lost), atomic_load(&replayed), atomic_load(&wrong_values));
    snprintf(what, sizeof what, "captures, %s, %s: each survives", names[mode], kinds[kind]);
    check(atomic_load(&lost) == 0, what);
    snprintf(what, sizeof what, "captures, %s, %s: each replays correctly", names[mode], kinds[kind]);
    if (atomic_load(&replayed) > 0) {
      check(atomic_load(&wrong_values) == 0 && atomic_load(&replayed) == made, what);
    } else {
      printf("SKIPPED %s: this driver launches no graphs\n", what);
    }
    MUST(millpond_synchronize(pool));
  }
  check(held_back() == 0, "captures: nothing is held back on an idle device");
  end("captures: all memory went back to the device");
}

int main(int count, char **words) {
  int quick = count > 1 && strcmp(words[1], "quick") == 0;
  void *driver = open_driver();
  if (driver == NULL) return 77;
  if (find_common(driver)) return 1;
#define LOOK(name, ...) *(void **)&name = dlsym(driver, #name);
  FUNCTIONS(FIND)
  OPTIONAL(LOOK)
  setvbuf(stdout, NULL, _IOLBF, 0);
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  threads(quick ? 400 : 8000);
  handles(quick ? 100 : 600, quick ? MIB / 16 : 256 * MIB);
  captures(quick ? 5 : 75);
  puts(failed ? "some part failed" : "every part passed");
  return failed;
}
