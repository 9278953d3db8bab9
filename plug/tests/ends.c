/* A process that ends while its threads call the library, and one that is forked while they do: `ends exit` ends with 7, `ends fork`
 * with 0. */
#include "forked.h"

#include <signal.h>
#include <sys/wait.h>

#define EXPECT(condition)                                                                     \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, millpond_last_error()); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)
/* A child that is forked between two driver calls would not show that it makes one: of this many children, some are forked inside a call. */
#define FORKS 40

#define BEGINS (void)0
#define GOES_WELL(call) EXPECT((call) == MILLPOND_STATUS_OK)
#define STREAM(i) ((void *)(size_t)((i) % 3))
#define USES(block, i) (void)0
#define EVERY 16
#include "churn.h"

static void fork_beside_calls(void *block, void *pinned) {
  for (int i = 0; i < FORKS; i++) {
    until_they_run();
    pid_t child = fork();
    if (child == 0) {
      /* The driver's own lock may be held by a thread that the child does not have: a child that calls the driver would wait for ever. */
      alarm(60);
      every_call_is_refused(pool, block, pinned);
      exit(0);
    }
    int status = -1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fprintf(stderr, "child %d of %d ended with status %#x%s\n", i, FORKS, (unsigned)status,
              WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? ": it waits for a lock that no thread releases" : "");
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
  begin_threads(threads, churn);
  until_they_run();
  if (strcmp(words[1], "exit") == 0) exit(7);
  fork_beside_calls(block, pinned);
  /* The parent continues and ends without an error. */
  end_threads(threads);
  EXPECT(millpond_free(pool, block) == MILLPOND_STATUS_OK && millpond_free_pinned(pool, pinned) == MILLPOND_STATUS_OK);
  EXPECT(millpond_destroy(pool) == MILLPOND_STATUS_OK);
  puts("forked beside calls");
  return 0;
}
