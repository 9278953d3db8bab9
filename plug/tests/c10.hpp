// The classes of PyTorch's exceptions, as its headers declare them for programs that link or catch them; not PyTorch's code.
#pragma once

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
  std::shared_ptr<int> backtrace = std::make_shared<int>(7);

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
