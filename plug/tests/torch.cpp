// A program with PyTorch's exceptions in it (tests/c10.cpp), catching as PyTorch does.
#include "millpond.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace c10 {
struct SourceLocation {
  const char *function;
  const char *file;
  unsigned line;
};
class Error : public std::exception {
  std::string message;
  std::vector<std::string> context;
  std::shared_ptr<int> backtrace;

 public:
  Error(SourceLocation, std::string words);
  const char *what() const noexcept override;
  bool is_whole() const { return *backtrace == 7 && context.empty(); }
};
class OutOfMemoryError : public Error {
  using Error::Error;
  virtual void anchor();
};
}  // namespace c10

int main() {
  // So that the library is linked, and nothing of it is optimised away.
  try {
    throw c10::Error({}, "one of its own");
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
  }
  return 0;
}
