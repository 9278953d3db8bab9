/* A library is closed with work pending and live memory, and then the process ends. Every call is made on a thread that has ended when the
 * library is closed, because a thread's own values would keep it open. */
#include "millpond.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition)                                                    \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);        \
      exit(1);                                                               \
    }                                                                        \
  } while (0)
/* A function of a library, by its name and type. */
#define FIND(library, name, result, ...) ((result(*)(__VA_ARGS__))(size_t)dlsym(library, #name))

static void *library;
static millpond_allocator pool;
static void *block, *pinned;
/* Events after the copies, for which no call waits. */
static void *copies[2];
static int copied;

static void *begin(void *unused) {
  (void)unused;
  void *driver = dlopen(getenv("MILLPOND_LIBCUDA"), RTLD_NOW), *context = NULL;
  EXPECT(driver != NULL);
  EXPECT(FIND(library, millpond_create, millpond_status, int, const char *, millpond_allocator *)(
             0, "pinned_limit=1MiB", &pool) == MILLPOND_STATUS_OK);
  EXPECT(FIND(library, millpond_alloc, millpond_status, millpond_allocator, size_t, void *, void **)(
             pool, 4096, (void *)2, &block) == MILLPOND_STATUS_OK);
  EXPECT(FIND(library, millpond_alloc_pinned, millpond_status, millpond_allocator, size_t, void **)(
             pool, 4096, &pinned) == MILLPOND_STATUS_OK);
  EXPECT(FIND(driver, cuDevicePrimaryCtxRetain, int, void **, int)(&context, 0) == 0);
  EXPECT(FIND(driver, cuCtxSetCurrent, int, void *)(context) == 0);
  EXPECT(FIND(driver, cuMemcpyHtoDAsync_v2, int, size_t, void *, size_t, void *)((size_t)block, pinned, 4096,
                                                                                 (void *)2) == 0);
  EXPECT(FIND(driver, cuEventCreate, int, void **, unsigned)(&copies[copied], 2) == 0);
  EXPECT(FIND(driver, cuEventRecord, int, void *, void *)(copies[copied], (void *)2) == 0);
  copied++;
  return NULL;
}

/* Expects that this many copies are pending: closing the library waited for none. */
static void are_pending(int count) {
  void *driver = dlopen(getenv("MILLPOND_LIBCUDA"), RTLD_NOW), *context = NULL;
  EXPECT(driver != NULL && copied == count);
  EXPECT(FIND(driver, cuDevicePrimaryCtxRetain, int, void **, int)(&context, 0) == 0);
  EXPECT(FIND(driver, cuCtxSetCurrent, int, void *)(context) == 0);
  for (int i = 0; i < count; i++) EXPECT(FIND(driver, cuEventQuery, int, void *)(copies[i]) == 600);
}

/* Closed and opened again, it is the same library: live memory is still live. */
static void *again(void *unused) {
  (void)unused;
  EXPECT(FIND(library, millpond_free_unknown, millpond_status, millpond_allocator, void *)(pool, block) ==
         MILLPOND_STATUS_OK);
  EXPECT(FIND(library, millpond_free_unknown, millpond_status, millpond_allocator, void *)(pool, block) ==
         MILLPOND_STATUS_UNKNOWN_POINTER);
  EXPECT(FIND(library, millpond_alloc, millpond_status, millpond_allocator, size_t, void *, void **)(
             pool, 4096, (void *)2, &block) == MILLPOND_STATUS_OK);
  return NULL;
}

/* A thread that has used the library ends after it was closed; then what the thread remembers is dropped. */
static pthread_barrier_t used, closed;
static void *late(void *unused) {
  begin(unused);
  pthread_barrier_wait(&used);
  pthread_barrier_wait(&closed);
  return NULL;
}

static void on_a_thread(void *(*calls)(void *)) {
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, calls, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

int main(void) {
  library = dlopen("libmillpond.so", RTLD_NOW | RTLD_LOCAL);
  EXPECT(library != NULL);
  on_a_thread(begin);
  EXPECT(dlclose(library) == 0);
  are_pending(1);
  /* A child that is forked now runs the library's handlers for forks. */
  pid_t child = fork();
  if (child == 0) _exit(7);
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
  library = dlopen("libmillpond.so", RTLD_NOW | RTLD_LOCAL);
  EXPECT(library != NULL);
  on_a_thread(again);

  EXPECT(pthread_barrier_init(&used, NULL, 2) == 0 && pthread_barrier_init(&closed, NULL, 2) == 0);
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, late, NULL) == 0);
  pthread_barrier_wait(&used);
  EXPECT(dlclose(library) == 0 && dlclose(library) == 0);
  pthread_barrier_wait(&closed);
  EXPECT(pthread_join(thread, NULL) == 0);
  are_pending(2);
  puts("closed with work pending and memory alive");
  return 0;
}
