/* A process that ends while its threads call the library, and one that is forked while they do: `ends exit` ends with 7, `ends fork`
 * with 0. */
#include "forked.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define EXPECT(condition)                                                                     \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, millpond_last_error()); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)
#define THREADS 3
/* A child of a moment between two driver calls would not show that it made one: of so many, some are of a moment inside. */
#define FORKS 40

static millpond_allocator pool;
static atomic_ulong calls[THREADS];
static atomic_int stop;

static void *churn(void *number) {
  for (unsigned i = 0; !atomic_load(&stop); i++) {
    void *block = NULL, *pinned = NULL, *stream = (void *)(size_t)(i % 3);
    EXPECT(millpond_alloc(pool, (size_t)(i % 50 + 1) * 1000, stream, &block) == MILLPOND_STATUS_OK);
    EXPECT(millpond_free_on(pool, block, (void *)2) == MILLPOND_STATUS_OK);
    EXPECT(millpond_alloc_pinned(pool, 512, &pinned) == MILLPOND_STATUS_OK);
    EXPECT(millpond_free_pinned(pool, pinned) == MILLPOND_STATUS_OK);
    /* What goes back to the device is made anew: so that the driver is called, too. */
    if (i % 16 == 0) EXPECT(millpond_trim(pool, NULL) == MILLPOND_STATUS_OK);
    atomic_fetch_add(&calls[(size_t)number], 1);
  }
  return NULL;
}

/* All threads are in the middle of it: each has come round again. */
static void until_they_run(void) {
  for (int i = 0; i < THREADS; i++) {
    unsigned long before = atomic_load(&calls[i]);
    while (atomic_load(&calls[i]) < before + 2) sched_yield();
  }
}

static void fork_beside_calls(void *block, void *pinned) {
  for (int i = 0; i < FORKS; i++) {
    until_they_run();
    pid_t child = fork();
    if (child == 0) {
      /* The driver's own lock may be held by a thread that is not here: a child that calls the driver waits for ever. */
      alarm(60);
      every_call_is_refused(pool, block, pinned);
      exit(0);
    }
    int status = -1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fprintf(stderr, "child %d of %d ended with status %#x%s\n", i, FORKS, (unsigned)status,
              WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? ": it waits for a lock that nobody has" : "");
      _exit(1);
    }
  }
}

int main(int count, char **words) {
  pthread_t threads[THREADS];
  void *block = NULL, *pinned = NULL;
  EXPECT(count == 2);
  EXPECT(millpond_create(0, "limit=none,pinned_limit=1MiB", &pool) == MILLPOND_STATUS_OK);
  EXPECT(millpond_alloc(pool, 4096, NULL, &block) == MILLPOND_STATUS_OK);
  EXPECT(millpond_alloc_pinned(pool, 4096, &pinned) == MILLPOND_STATUS_OK);
  for (size_t i = 0; i < THREADS; i++) EXPECT(pthread_create(&threads[i], NULL, churn, (void *)i) == 0);
  until_they_run();
  if (strcmp(words[1], "exit") == 0) exit(7);
  fork_beside_calls(block, pinned);
  /* The parent goes on, and ends well. */
  atomic_store(&stop, 1);
  for (int i = 0; i < THREADS; i++) EXPECT(pthread_join(threads[i], NULL) == 0);
  EXPECT(millpond_free(pool, block) == MILLPOND_STATUS_OK && millpond_free_pinned(pool, pinned) == MILLPOND_STATUS_OK);
  EXPECT(millpond_destroy(pool) == MILLPOND_STATUS_OK);
  puts("forked beside calls");
  return 0;
}
