// A library with the names and symbols of PyTorch's exceptions: not PyTorch's code, only what the linker sees.
#include "c10.hpp"

#include <utility>

namespace c10 {
Error::Error(SourceLocation, std::string words) : message(std::move(words)) {}
const char *Error::what() const noexcept { return message.c_str(); }
void OutOfMemoryError::anchor() {}
}  // namespace c10
