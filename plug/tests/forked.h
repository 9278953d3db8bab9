/* Every function of the header in a forked child: each returns that it was forked, and none calls the driver. A test compares this list with the
 * header. */
#include "millpond.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The child ends at once, without running what is registered for its exit. */
#define REFUSED(call)                                                                              \
  do {                                                                                             \
    millpond_status status = (call);                                                               \
    if (status != MILLPOND_STATUS_FORKED || strstr(millpond_last_error(), "forked") == NULL) {     \
      fprintf(stderr, "%s:%d: %s returns %d: %s\n", __FILE__, __LINE__, #call, (int)status, millpond_last_error()); \
      _exit(1);                                                                                    \
    }                                                                                              \
  } while (0)

static void every_call_is_refused(millpond_allocator pool, void *block, void *pinned) {
  millpond_allocator other = 99;
  void *more = NULL, *streams[2] = {NULL, (void *)2};
  size_t bytes = 0;
  char text[64];
  REFUSED(millpond_create(0, NULL, &other));
  REFUSED(millpond_alloc(pool, 512, NULL, &more));
  REFUSED(millpond_record_use(pool, block, streams[1]));
  REFUSED(millpond_free(pool, block));
  REFUSED(millpond_free(pool, NULL));
  REFUSED(millpond_free_on(pool, block, streams[1]));
  REFUSED(millpond_free_unknown(pool, block));
  REFUSED(millpond_free_after(pool, block, streams, 2));
  REFUSED(millpond_alloc_pinned(pool, 512, &more));
  REFUSED(millpond_record_pinned_use(pool, pinned, NULL));
  REFUSED(millpond_free_pinned(pool, pinned));
  REFUSED(millpond_free_pinned_unknown(pool, pinned));
  REFUSED(millpond_declare_permanent(pool, streams[1]));
  REFUSED(millpond_find(pool, block, &more, &bytes));
  REFUSED(millpond_trim(pool, &bytes));
  REFUSED(millpond_set_limit(pool, "1MiB"));
  REFUSED(millpond_synchronize(pool));
  REFUSED(millpond_reset_peaks(pool));
  REFUSED(millpond_stats_json(pool, text, sizeof text, &bytes));
  REFUSED(millpond_report(pool, text, sizeof text, &bytes));
  REFUSED(millpond_release(pool));
  REFUSED(millpond_destroy(pool));
  REFUSED(millpond_torch_allocator(0, NULL, &other));
  REFUSED(millpond_torch_allocator(0, "policy=footprint", &other));
  /* Functions without a code count the failure. */
  uint64_t unreported = millpond_torch_untold();
  millpond_torch_free(block, 512, 0, NULL);
  millpond_torch_record_stream(block, streams[1]);
  millpond_torch_memory_fraction(0.5, 0);
  if (millpond_torch_untold() != unreported + 3 || millpond_torch_base(block, &bytes) != NULL) _exit(2);
  millpond_torch_empty_cache();
  /* If C++'s library is loaded the allocation throws, and this program cannot catch that. */
  if (dlopen("libstdc++.so.6", RTLD_NOLOAD | RTLD_LAZY) == NULL && millpond_torch_alloc(512, 0, NULL) != NULL) _exit(3);
  if (more != NULL || bytes != 0 || strlen(millpond_version()) == 0) _exit(4);
}
