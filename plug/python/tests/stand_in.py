"""A test's hand on the stand-in driver, which MILLPOND_LIBCUDA names: streams, captures and writes of the program's own, what
the oracle says, and tests in processes of their own, because a driver and the library's allocators last as long as one.
"""

import ctypes
import functools
import os
import pathlib
import re
import subprocess
import sys

MIB = 1 << 20
_libraries = []


def _packages(package):
    """The folders of a Rust package and of all that it depends on by path, as the manifests say."""
    found, left = [], [package]
    while left:
        package = left.pop().resolve()
        if package in found:
            continue
        found.append(package)
        sections = re.split(r"^\[", (package / "Cargo.toml").read_text(), flags=re.MULTILINE)
        mine = [s for s in sections if re.match(r"(target\..*\.)?dependencies\]", s)]
        left += [package / path for section in mine for path in re.findall(r'path = "(.*?)"', section)]
    return found


def is_fresh(library, packages):
    """Fails if a library is older than a source of these packages."""
    built = os.stat(library).st_mtime
    for folder in (package / "src" for package in packages):
        for source in folder.rglob("*.rs"):
            # What no ordinary library is made from: tests, and the list of planted bugs.
            left_out = {"tests", "mutant"} & {source.stem, *source.relative_to(folder).parts}
            if not left_out and source.stat().st_mtime > built:
                raise RuntimeError(f"{library} is older than {source}, which it is made from: build it anew, by `cargo build` or plug/python/dist")


def _is_of_these_sources():
    """In a repository these tests are of its sources: what lies about from an earlier build is refused. Elsewhere there are none."""
    root = pathlib.Path(__file__).resolve().parents[3]
    if (root / "plug/Cargo.toml").exists():
        import millpond

        is_fresh(millpond.library_path(), _packages(root / "plug"))
        if there():
            is_fresh(os.environ["MILLPOND_LIBCUDA"], [root / of for of in ("tests/fake_libcuda", "sim", "driver")])


def there():
    """Whether there is one."""
    return os.path.exists(os.environ.get("MILLPOND_LIBCUDA", ""))


def _driver():
    if not _libraries:
        _libraries.append(ctypes.CDLL(os.environ["MILLPOND_LIBCUDA"]))
    return _libraries[0]


def call(name, *arguments):
    """A call of the driver's, which must succeed."""
    code = getattr(_driver(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name} answered {code}: {_text('millpond_fake_last_refusal')}")


def _text(name):
    function = getattr(_driver(), name)
    function.restype = ctypes.c_char_p
    said = function()
    return said and said.decode()


def verdict():
    """What was violated, if anything."""
    return _text("millpond_fake_verdict")


def calls(name=None):
    """How often a function was called, or how many calls there were in all."""
    function = _driver().millpond_fake_calls
    function.restype = ctypes.c_uint64
    return function(name and name.encode())


def fail_next(name, code, nth=1):
    """The next call of a function fails, or the nth."""
    _driver().millpond_fake_fail_next(name.encode(), ctypes.c_uint64(nth), ctypes.c_uint32(code))


def bind(device=0):
    """Makes a device's primary context this thread's."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


def made(name, *arguments):
    """What a call makes, as a number."""
    value = ctypes.c_void_p()
    call(name, ctypes.byref(value), *arguments)
    return value.value


def stream(flags=1):
    return made("cuStreamCreate", ctypes.c_uint(flags))


def write(stream, pointer, size, value=1):
    """Queues a write of the program's own."""
    call("cuMemsetD8Async", ctypes.c_uint64(pointer), ctypes.c_ubyte(value), ctypes.c_size_t(size), ctypes.c_void_p(stream))


def order(first, then):
    """What is queued on `then` from now on waits for what `first` holds."""
    event = made("cuEventCreate", ctypes.c_uint(2))
    call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(first))
    call("cuStreamWaitEvent", ctypes.c_void_p(then), ctypes.c_void_p(event), 0)


def begin_capture(stream):
    call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 2)


def end_capture(stream):
    """Fails if other code ended the capture."""
    graph = ctypes.c_void_p()
    call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    return graph.value


def run(source, **environment):
    """Runs a program in a process of its own; its end, with all that it said."""
    here = os.path.dirname(os.path.abspath(__file__))
    said = {k: str(v) for k, v in environment.items()}
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "MILLPOND_FAKE_SCHEDULE": "latest", "PYTHONPATH": path, **said}
    return subprocess.run([sys.executable, *source], env=environment, capture_output=True, text=True, timeout=120)


def alone(**environment):
    """Runs a test in a process of its own, with the driver as the environment says."""

    def decorate(test):
        @functools.wraps(test)
        def runs(self):
            name = f"{type(self).__name__}.{test.__name__}"
            if os.environ.get("MILLPOND_ALONE") == name:
                return test(self)
            if not there():
                self.skipTest("MILLPOND_LIBCUDA names no stand-in driver")
            file = sys.modules[type(self).__module__].__file__
            done = run([file, name], MILLPOND_ALONE=name, **environment)
            self.assertTrue(done.returncode == 0 and "Ran 1 test" in done.stderr and "skipped" not in done.stderr, done.stdout + done.stderr)

        return runs

    return decorate


_is_of_these_sources()
