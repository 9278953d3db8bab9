// A program that catches PyTorch's exceptions (tests/c10.hpp), as PyTorch does.
#include "c10.hpp"
#include "millpond.h"

#include <cstdio>

int main() {
  // So that the library is linked, and none of it is optimised away.
  try {
    throw c10::Error({}, "an error of the program");
  } catch (const c10::Error &e) {
    std::puts(e.what());
  }
  for (int round = 0; round < 100; round++) {
    try {
      millpond_torch_alloc(size_t(1) << 40, 0, nullptr);
      return 1;
    } catch (const c10::OutOfMemoryError &e) {
      if (!e.is_whole()) return 2;
      if (round == 0) std::printf("caught c10::OutOfMemoryError: %s\n", e.what());
    }
    try {
      millpond_torch_alloc(1 << 20, 99, nullptr);
      return 3;
    } catch (const c10::OutOfMemoryError &) {
      return 4;
    } catch (const c10::Error &e) {
      if (!e.is_whole()) return 5;
      if (round == 0) std::printf("caught c10::Error: %s\n", e.what());
    }
  }
  return 0;
}
