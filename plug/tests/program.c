/* A C program that uses the header: every function once, and every mistake once. */
#include "forked.h"

#include <pthread.h>
#include <sys/wait.h>

#define EXPECT(condition)                                                                     \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, millpond_last_error()); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

static millpond_allocator pool;

static void *churn(void *unused) {
  (void)unused;
  for (int i = 0; i < 2000; i++) {
    void *block = NULL;
    EXPECT(millpond_alloc(pool, (size_t)(i % 50 + 1) * 1000, NULL, &block) == MILLPOND_STATUS_OK);
    EXPECT(millpond_free(pool, block) == MILLPOND_STATUS_OK);
  }
  return NULL;
}

/* A call without a place for its result does nothing. */
static void no_place_for_the_result(void) {
  void *begin = &begin, *block = NULL;
  size_t bytes = 99;
  millpond_allocator torch = 99;
  EXPECT(millpond_create(0, "policy=footprint", NULL) == MILLPOND_STATUS_BAD_ARGUMENT);
  EXPECT(millpond_torch_allocator(0, "policy=footprint", NULL) == MILLPOND_STATUS_BAD_ARGUMENT);
  EXPECT(millpond_torch_allocator(0, "policy=\xff", &torch) == MILLPOND_STATUS_BAD_ARGUMENT && torch == 99);
  millpond_torch_memory_fraction(-1.0, 0);
  millpond_torch_free(&torch, 1, 0, NULL);
  millpond_torch_free(NULL, 0, 0, NULL);
  EXPECT(millpond_torch_untold() == 2);
  EXPECT(millpond_torch_allocator(0, "growth=exact", &torch) == MILLPOND_STATUS_OK && torch != 0);
  EXPECT(millpond_alloc(torch, 512, NULL, NULL) == MILLPOND_STATUS_BAD_ARGUMENT);
  EXPECT(millpond_alloc_pinned(torch, 512, NULL) == MILLPOND_STATUS_BAD_ARGUMENT);
  EXPECT(millpond_alloc(torch, 512, NULL, &block) == MILLPOND_STATUS_OK);
  EXPECT(millpond_find(torch, block, &begin, NULL) == MILLPOND_STATUS_BAD_ARGUMENT && begin == &begin);
  EXPECT(millpond_find(torch, block, NULL, &bytes) == MILLPOND_STATUS_BAD_ARGUMENT && bytes == 99);
  void *streams[3] = {NULL, (void *)1, (void *)2};
  EXPECT(millpond_free_after(torch, block, NULL, 1) == MILLPOND_STATUS_BAD_ARGUMENT);
  EXPECT(millpond_free_after(torch, block, streams, (size_t)-1) == MILLPOND_STATUS_BAD_ARGUMENT);
  EXPECT(millpond_free_after(torch, (char *)block + 512, streams, 3) == MILLPOND_STATUS_UNKNOWN_POINTER);
  EXPECT(millpond_free_after(99, block, streams, 3) == MILLPOND_STATUS_UNKNOWN_ALLOCATOR);
  EXPECT(millpond_free_after(torch, block, streams, 3) == MILLPOND_STATUS_OK);
  EXPECT(millpond_free_after(torch, block, streams, 0) == MILLPOND_STATUS_UNKNOWN_POINTER);
  EXPECT(millpond_free_after(torch, NULL, NULL, 0) == MILLPOND_STATUS_OK);
  EXPECT(millpond_destroy(torch) == MILLPOND_STATUS_OK);
}

/* How many driver calls there were. */
static uint64_t driver_calls(void) {
  void *driver = dlopen(getenv("MILLPOND_LIBCUDA"), RTLD_NOW);
  EXPECT(driver != NULL);
  return ((uint64_t(*)(const char *))(size_t)dlsym(driver, "millpond_fake_calls"))(NULL);
}

/* In a forked child: how many driver calls there were at its beginning. */
static uint64_t before;
static int is_child;

/* The first function that is registered with atexit, and so the last that runs. */
static void nothing_was_called(void) {
  if (is_child && driver_calls() != before) {
    fprintf(stderr, "a forked child made %d driver calls\n", (int)(driver_calls() - before));
    _exit(5);
  }
}

/* A forked child of a process with an allocator: every call returns that it is one and makes no driver call, nor does the child's end, and the
 * parent's memory is unchanged. */
static void fork_is_refused(void *block) {
  void *more = NULL, *pinned = NULL;
  size_t bytes = 0;
  EXPECT(millpond_alloc_pinned(pool, 4096, &pinned) == MILLPOND_STATUS_OK);
  before = driver_calls();
  EXPECT(before > 0);
  pid_t child = fork();
  if (child == 0) {
    is_child = 1;
    every_call_is_refused(pool, block, pinned);
    exit(0);
  }
  int status = -1;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  EXPECT(millpond_find(pool, block, &more, &bytes) == MILLPOND_STATUS_OK && more == block);
  EXPECT(millpond_free_pinned(pool, pinned) == MILLPOND_STATUS_OK);
}

/* Invalid options do not reach the driver: a child that is forked after such a call may create an allocator. */
static void fork_before_the_first(void) {
  millpond_allocator first = 99;
  EXPECT(millpond_create(0, "policy=best", &first) == MILLPOND_STATUS_BAD_ARGUMENT);
  pid_t child = fork();
  if (child == 0) {
    EXPECT(millpond_create(0, NULL, &first) == MILLPOND_STATUS_OK);
    exit(0);
  }
  int status = -1;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
  EXPECT(atexit(nothing_was_called) == 0);
  EXPECT(strlen(millpond_version()) > 0);
  fork_before_the_first();
  no_place_for_the_result();
  EXPECT(millpond_create(0, "policy=footprint", &pool) == MILLPOND_STATUS_OK);

  void *block = NULL, *other = NULL, *begin = NULL;
  size_t bytes = 0, needed = 0;
  EXPECT(millpond_alloc(pool, 1 << 20, NULL, &block) == MILLPOND_STATUS_OK && block != NULL);
  EXPECT(millpond_alloc(pool, 1 << 20, NULL, &other) == MILLPOND_STATUS_OK && other != block);
  EXPECT(millpond_find(pool, (char *)block + 77, &begin, &bytes) == MILLPOND_STATUS_OK);
  EXPECT(begin == block && bytes == 1 << 20);
  fork_is_refused(block);
  EXPECT(millpond_record_use(pool, block, NULL) == MILLPOND_STATUS_OK);
  EXPECT(millpond_declare_permanent(pool, NULL) == MILLPOND_STATUS_OK);
  EXPECT(millpond_free_on(pool, block, NULL) == MILLPOND_STATUS_OK);
  EXPECT(millpond_free(pool, block) == MILLPOND_STATUS_UNKNOWN_POINTER);
  EXPECT(strstr(millpond_last_error(), "no live allocation") != NULL);
  EXPECT(millpond_free_unknown(pool, other) == MILLPOND_STATUS_OK);

  EXPECT(millpond_alloc_pinned(pool, 5000, &other) == MILLPOND_STATUS_OK && other != NULL);
  memset(other, 1, 5000);
  EXPECT(millpond_record_pinned_use(pool, other, NULL) == MILLPOND_STATUS_OK);
  EXPECT(millpond_free_pinned(pool, (char *)other + 512) == MILLPOND_STATUS_UNKNOWN_POINTER);
  EXPECT(millpond_free(pool, other) == MILLPOND_STATUS_UNKNOWN_POINTER);
  EXPECT(millpond_free_pinned_unknown(pool, other) == MILLPOND_STATUS_OK);
  EXPECT(millpond_free_pinned(pool, other) == MILLPOND_STATUS_UNKNOWN_POINTER);
  EXPECT(millpond_record_pinned_use(pool, other, NULL) == MILLPOND_STATUS_UNKNOWN_POINTER);

  int here = 0;
  EXPECT(millpond_free(pool, &here) == MILLPOND_STATUS_UNKNOWN_POINTER);
  EXPECT(millpond_alloc(pool, (size_t)-1, NULL, &block) == MILLPOND_STATUS_OUT_OF_MEMORY && block == NULL);
  EXPECT(millpond_alloc(pool, 65 << 20, NULL, &block) == MILLPOND_STATUS_OUT_OF_MEMORY && block == NULL);
  EXPECT(millpond_set_limit(pool, "40%") == MILLPOND_STATUS_OK);
  EXPECT(millpond_set_limit(pool, "\xff") == MILLPOND_STATUS_BAD_ARGUMENT);

  pthread_t threads[4];
  for (int i = 0; i < 4; i++) EXPECT(pthread_create(&threads[i], NULL, churn, NULL) == 0);
  for (int i = 0; i < 4; i++) EXPECT(pthread_join(threads[i], NULL) == 0);

  EXPECT(millpond_synchronize(pool) == MILLPOND_STATUS_OK);
  EXPECT(millpond_reset_peaks(pool) == MILLPOND_STATUS_OK);
  EXPECT(millpond_trim(pool, &bytes) == MILLPOND_STATUS_OK && bytes > 0);
  EXPECT(millpond_stats_json(pool, NULL, 0, &needed) == MILLPOND_STATUS_OK && needed > 100);
  char *text = malloc(needed);
  EXPECT(millpond_stats_json(pool, text, needed, &needed) == MILLPOND_STATUS_OK && strlen(text) + 1 == needed);
  char little[8];
  memset(little, 'x', sizeof little);
  EXPECT(millpond_report(pool, little, sizeof little, NULL) == MILLPOND_STATUS_OK && strlen(little) == 7);
  free(text);

  EXPECT(millpond_destroy(pool) == MILLPOND_STATUS_OK);
  EXPECT(millpond_destroy(pool) == MILLPOND_STATUS_UNKNOWN_ALLOCATOR);
  EXPECT(millpond_alloc(pool, 1, NULL, &block) == MILLPOND_STATUS_UNKNOWN_ALLOCATOR);
  puts("all as the header says");
  return 0;
}
