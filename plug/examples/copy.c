/* Two buffers on a stream, filled and copied there, and freed before the work is done: their memory serves again behind it. */
#include <cuda.h>
#include <millpond.h>
#include <stdio.h>
#include <stdlib.h>

static void must(millpond_status code) {
  if (code != MILLPOND_STATUS_OK) {
    fprintf(stderr, "%s\n", millpond_last_error());
    exit(1);
  }
}

int main(void) {
  CUdevice device;
  CUcontext context;
  CUstream stream;
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context) ||
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) {
    fprintf(stderr, "there is no CUDA device\n");
    return 1;
  }
  millpond_allocator gpu;
  must(millpond_create(0, "limit=40%", &gpu));
  /* This stream lives as long as the program: no call has to query its id. */
  must(millpond_declare_permanent(gpu, stream));

  void *from, *to;
  must(millpond_alloc(gpu, 1 << 20, stream, &from));
  must(millpond_alloc(gpu, 1 << 20, stream, &to));
  if (cuMemsetD8Async((CUdeviceptr)from, 7, 1 << 20, stream) ||
      cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, 1 << 20, stream)) {
    return 1;
  }
  /* At once, with the copy still to come: who gets these bytes next gets them behind it. */
  must(millpond_free(gpu, from));
  must(millpond_free(gpu, to));

  char report[4096];
  size_t needed;
  must(millpond_report(gpu, report, sizeof report, &needed));
  puts(report);
  must(millpond_destroy(gpu));
  return 0;
}
