/* The driver's functions that these programs call, looked up at run time: no header of CUDA's and nothing to link with. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long address;
typedef void *handle;

#define MIB ((size_t)1 << 20)
/* The calling thread's own default stream. */
#define OWN ((handle)2)

#define COMMON(X)                                                              \
  X(cuInit, unsigned)                                                          \
  X(cuDevicePrimaryCtxRetain, handle *, int)                                   \
  X(cuCtxSetCurrent, handle)                                                   \
  X(cuCtxSynchronize, void)                                                    \
  X(cuStreamCreate, handle *, unsigned)                                        \
  X(cuStreamSynchronize, handle)                                               \
  X(cuStreamQuery, handle)                                                     \
  X(cuMemAlloc_v2, address *, size_t)                                          \
  X(cuMemFree_v2, address)                                                     \
  X(cuMemsetD8Async, address, unsigned char, size_t, handle)                   \
  X(cuMemcpyDtoDAsync_v2, address, address, size_t, handle)                    \
  X(cuMemcpyDtoHAsync_v2, void *, address, size_t, handle)
#define DECLARE(name, ...) static int (*name)(__VA_ARGS__);
COMMON(DECLARE)

/* For a function that returns 1 if the driver lacks one. */
#define FIND(name, ...)                                \
  *(void **)&name = dlsym(driver, #name);              \
  if (name == NULL) {                                  \
    fprintf(stderr, "the driver has no %s\n", #name);  \
    return 1;                                          \
  }

static int find_common(void *driver) {
  COMMON(FIND)
  return 0;
}

/* MILLPOND_LIBCUDA's or the system's; NULL, with a message, if there is none. */
static void *open_driver(void) {
  const char *name = getenv("MILLPOND_LIBCUDA");
  void *driver = dlopen(name != NULL ? name : "libcuda.so.1", RTLD_NOW);
  if (driver == NULL) printf("SKIPPED: %s\n", dlerror());
  return driver;
}
