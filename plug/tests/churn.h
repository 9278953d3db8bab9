/* Threads that call the library all the time, for programs that end or fork meanwhile. A program that includes this defines:
 *
 *   BEGINS          what a thread does first
 *   GOES_WELL(call) a call that has to return 0
 *   STREAM(i)       the handle on which the ith block is allocated
 *   USES(block, i)  what is done with it, or nothing
 *   EVERY           after how many blocks a thread trims: then memory is allocated from the device again, so that the driver is called, too */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define THREADS 3

static millpond_allocator pool;
static atomic_ulong calls[THREADS];
static atomic_int stop;

static void *churn(void *number) {
  BEGINS;
  for (unsigned i = 0; !atomic_load(&stop); i++) {
    void *block = NULL, *pinned = NULL;
    GOES_WELL(millpond_alloc(pool, (size_t)(i % 50 + 1) * 1000, STREAM(i), &block));
    USES(block, i);
    GOES_WELL(millpond_free_on(pool, block, (void *)2));
    GOES_WELL(millpond_alloc_pinned(pool, 512, &pinned));
    GOES_WELL(millpond_free_pinned(pool, pinned));
    if (i % EVERY == 0) GOES_WELL(millpond_trim(pool, NULL));
    atomic_fetch_add(&calls[(size_t)number], 1);
  }
  return NULL;
}

/* Waits until every thread is in its loop. */
static void until_they_run(void) {
  for (int i = 0; i < THREADS; i++) {
    unsigned long before = atomic_load(&calls[i]);
    while (atomic_load(&calls[i]) < before + 2) sched_yield();
  }
}

static void begin_threads(pthread_t *threads, void *(*run)(void *)) {
  for (size_t i = 0; i < THREADS; i++)
    if (pthread_create(&threads[i], NULL, run, (void *)i)) abort();
}

static void end_threads(pthread_t *threads) {
  atomic_store(&stop, 1);
  for (int i = 0; i < THREADS; i++)
    if (pthread_join(threads[i], NULL)) abort();
  atomic_store(&stop, 0);
}
