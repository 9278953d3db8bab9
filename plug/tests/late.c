/* Threads whose memory is freed by the destructor of a pthread key. It runs after the destructors of the thread-local values of C++ and Rust, the
 * library's list of the thread's streams among them. */
#include "millpond.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                     \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, millpond_last_error()); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)
#define OWN ((void *)2)
/* A function of the driver, by its name and type. */
#define DRIVER(name, result, ...) ((result(*)(__VA_ARGS__))(size_t)dlsym(driver, #name))

static millpond_allocator pool;
/* `early` is made before the library has made its own keys, `later` after that: destructors of keys run in the order in which the keys were
 * made, so that the later one's runs after those of the library. */
static pthread_key_t early, later;
static pthread_key_t *key = &early;
static void *driver;
static int captures, is_first;

/* The first field of this name in the report, in bytes. */
static long field(const char *name) {
  static char text[1 << 18];
  char quoted[64];
  EXPECT(millpond_stats_json(pool, text, sizeof text, NULL) == MILLPOND_STATUS_OK);
  snprintf(quoted, sizeof quoted, "\"%s\":", name);
  /* Pools have figures of the same names: the allocator's own come after "releases", because the names are sorted. */
  const char *from = strncmp(name, "reserved", 8) == 0 ? strstr(text, "\"releases\":") : text;
  EXPECT(from != NULL);
  const char *at = strstr(from, quoted);
  EXPECT(at != NULL);
  return strtol(at + strlen(quoted), NULL, 10);
}

/* The sum over all pools: the report ends with it. */
static long held_back(void) {
  static char text[1 << 18];
  EXPECT(millpond_stats_json(pool, text, sizeof text, NULL) == MILLPOND_STATUS_OK);
  const char *total = strstr(text, "\"total\":");
  EXPECT(total != NULL);
  const char *at = strstr(total, "\"held_back\":");
  EXPECT(at != NULL);
  return strtol(at + strlen("\"held_back\":"), NULL, 10);
}

static void late(void *block) {
  void *another = NULL;
  if (is_first) {
    EXPECT(millpond_alloc(pool, 4096, OWN, &block) == MILLPOND_STATUS_OK);
    EXPECT(DRIVER(cuMemsetD8Async, int, size_t, unsigned char, size_t, void *)((size_t)block, 3, 4096, OWN) == 0);
    EXPECT(millpond_free(pool, block) == MILLPOND_STATUS_OK);
    return;
  }
  EXPECT(DRIVER(cuMemsetD8Async, int, size_t, unsigned char, size_t, void *)((size_t)block, 2, 4096, OWN) == 0);
  /* The stream still exists, so memory can be allocated on it. */
  if (!captures) EXPECT(millpond_alloc(pool, 4096, OWN, &another) == MILLPOND_STATUS_OK);
  EXPECT(millpond_free(pool, another) == MILLPOND_STATUS_OK);
  EXPECT(millpond_free(pool, block) == MILLPOND_STATUS_OK);
}

static void *thread(void *unused) {
  void *context = NULL, *block = NULL;
  (void)unused;
  EXPECT(DRIVER(cuDevicePrimaryCtxRetain, int, void **, int)(&context, 0) == 0);
  EXPECT(DRIVER(cuCtxSetCurrent, int, void *)(context) == 0);
  if (is_first) {
    EXPECT(pthread_setspecific(*key, &is_first) == 0);
    return NULL;
  }
  EXPECT(millpond_alloc(pool, 4096, OWN, &block) == MILLPOND_STATUS_OK);
  EXPECT(DRIVER(cuMemsetD8Async, int, size_t, unsigned char, size_t, void *)((size_t)block, 1, 4096, OWN) == 0);
  EXPECT(pthread_setspecific(*key, block) == 0);
  if (captures) EXPECT(DRIVER(cuStreamBeginCapture_v2, int, void *, int)(OWN, 2) == 0);
  return NULL;
}

static void on_a_thread(void) {
  pthread_t one;
  EXPECT(pthread_create(&one, NULL, thread, NULL) == 0 && pthread_join(one, NULL) == 0);
}

int main(void) {
  /* The device runs work at once, so reserved memory has no pending use. */
  EXPECT(setenv("MILLPOND_FAKE_SCHEDULE", "earliest", 1) == 0);
  driver = dlopen(getenv("MILLPOND_LIBCUDA"), RTLD_NOW);
  EXPECT(driver != NULL);
  EXPECT(millpond_create(0, "", &pool) == MILLPOND_STATUS_OK);
  EXPECT(pthread_key_create(&early, late) == 0);
  for (int i = 0; i < 64; i++) on_a_thread();
  EXPECT(pthread_key_create(&later, late) == 0);
  key = &later;
  for (int i = 0; i < 64; i++) on_a_thread();
  EXPECT(held_back() == 0);
  EXPECT(field("reserved") <= 2 << 20);
  /* The library does not notice the end of a thread whose very first call is made there, as the header says: what the thread freed is held back
   * until a synchronise. */
  is_first = 1;
  for (long i = 0, held = 0; i < 16; i++, held = held_back()) {
    on_a_thread();
    EXPECT(held_back() >= held + 4096);
  }
  EXPECT(millpond_synchronize(pool) == MILLPOND_STATUS_OK && held_back() == 0);
  EXPECT(millpond_trim(pool, NULL) == MILLPOND_STATUS_OK && field("reserved") == 0);
  is_first = 0;
  /* A stream that captures is not queried: the memory is held back until a synchronise. */
  captures = 1;
  on_a_thread();
  EXPECT(held_back() > 0);
  EXPECT(DRIVER(millpond_fake_verdict, const char *, void)() == NULL);
  puts("freed by a key's destructor");
  return 0;
}
