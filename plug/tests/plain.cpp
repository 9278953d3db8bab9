// A C++ program without PyTorch: a failed allocation by PyTorch's function throws a standard exception.
#include "millpond.h"

#include <cstdio>
#include <new>
#include <stdexcept>

int main() {
  void *block = millpond_torch_alloc(1 << 20, 0, nullptr);
  millpond_torch_free(block, 1 << 20, 0, nullptr);
  try {
    millpond_torch_alloc(size_t(1) << 40, 0, nullptr);
  } catch (const std::bad_alloc &) {
    std::puts("caught bad_alloc");
  }
  try {
    millpond_torch_alloc(1 << 20, 99, nullptr);
  } catch (const std::runtime_error &e) {
    std::printf("caught runtime_error: %s\n", e.what());
  }
  return 0;
}
