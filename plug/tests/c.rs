//! The header from C and C++: programs that are compiled here against the built library. Needs a C compiler, as Rust itself does; without a
//! C++ compiler the C++ part prints that it is skipped.

#[path = "../../testkit/src/effort.rs"]
#[allow(dead_code, unreachable_pub, reason = "a module of tests")]
mod effort;
mod fresh;
#[path = "../../tests/fake_libcuda/remote.rs"]
mod remote;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder for this process alone, deleted when the test ends.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Room {
        let at = std::env::temp_dir().join(format!("millpond-plug-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&at).expect("a folder");
        std::fs::copy(fresh::library(), at.join("libmillpond.so")).expect("copied");
        // The name by which a program that was linked with it finds it.
        std::fs::copy(fresh::library(), at.join(env!("MILLPOND_SONAME"))).expect("copied");
        Room(at)
    }
}
impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn compiler(named: &str, usual: &[&str]) -> Option<String> {
    let candidates = std::env::var(named).into_iter().chain(usual.iter().map(|&u| u.to_owned()));
    candidates
        .into_iter()
        .find(|c| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()))
}

fn done(mut command: Command) -> String {
    let run = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{command:?} ended with {}:\n{said}", run.status);
    said.into_owned()
}

/// Compiles a program against the library; with `MILLPOND_STATIC`, against a static one that was made for `AddressSanitizer`.
fn compile(with: &str, room: &Room, source: &str, flags: &[&str]) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = room.0.join(Path::new(source).file_stem().expect("a name"));
    let mut command = Command::new(with);
    command.args(["-Wall", "-Wextra", "-Werror", "-g", "-I"]).arg(here).arg(here.join("tests").join(source));
    command.arg("-o").arg(&out).arg("-L").arg(&room.0);
    match std::env::var_os("MILLPOND_STATIC") {
        Some(library) => {
            command.args(flags.iter().filter(|&&f| f != "-lmillpond")).arg(library);
            command.args(["-fsanitize=address", "-lm", "-lpthread", "-ldl", "-lgcc_s"]);
        }
        None => {
            command.args(flags);
        }
    }
    done(command);
    out
}

fn run(program: &Path, room: &Room, driver: &Path) -> String {
    done(over(program, room, driver))
}

/// The command that runs a program over the stand-in.
fn over(program: &Path, room: &Room, driver: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", &room.0).env("MILLPOND_LIBCUDA", driver).env("MILLPOND_LIMIT", "64MiB");
    // As late as legal: queued work is pending until the host waits for it.
    command.env("MILLPOND_FAKE_SCHEDULE", "latest");
    command
}

/// The library under test is the one that was just built: a left-over one, older than any file of the source, is refused.
#[test]
fn an_older_library_is_refused() {
    use std::time::{Duration, SystemTime};
    let room = Room::new("older");
    let (folder, library) = (room.0.join("src/deep"), room.0.join("libmillpond.so"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let source = folder.join("lib.rs");
    std::fs::write(&source, "").expect("written");
    std::fs::write(room.0.join("src/old.rs"), "").expect("written");
    let dated = |path: &Path, at: SystemTime| {
        let file = std::fs::File::options().write(true).open(path).expect("it is there");
        file.set_modified(at).expect("dated");
    };
    let (now, second) = (SystemTime::now(), Duration::from_secs(1));
    let answer = |built: SystemTime| {
        dated(&library, built);
        let (library, sources) = (library.clone(), room.0.join("src"));
        std::panic::catch_unwind(move || fresh::is_fresh(&library, &[&sources]))
    };
    dated(&room.0.join("src/old.rs"), now - 10 * second);
    dated(&source, now);
    answer(now).expect("as new as its source");
    answer(now + second).expect("newer");
    let said = answer(now - second).expect_err("older than one file of the source");
    let said = said.downcast_ref::<String>().expect("words");
    assert!(
        said.contains("is older than the source") && said.contains("another build put it there"),
        "{said}"
    );
    assert!(said.contains("deep/lib.rs"), "{said}");
    // Files for tests alone are not part of the library.
    dated(&source, now - 10 * second);
    std::fs::create_dir_all(room.0.join("src/tests")).expect("a folder");
    let planted = (!cfg!(millpond_mutants)).then_some("src/mutant.rs");
    for test in ["src/tests/some.rs", "src/tests.rs"].into_iter().chain(planted) {
        std::fs::write(room.0.join(test), "").expect("written");
    }
    answer(now - second).expect("newer than all that it is made from");
}

/// The packages that the library is made from, by the manifests: a package that is split off another one is included.
#[test]
fn the_library_is_made_from_every_package_that_it_depends_on() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("it is there");
    let packages = fresh::packages(&root.join("plug"));
    let named: Vec<_> = packages.iter().map(|p| p.strip_prefix(&root).expect("inside").to_owned()).collect();
    assert_eq!(
        named,
        ["", "core", "cuda", "driver", "plug", "trace"].map(PathBuf::from),
        "and no package for tests alone"
    );
    assert!(packages.iter().all(|p| p.join("src/lib.rs").exists()), "{packages:?}");
}

#[test]
fn a_c_program_uses_the_header() {
    let Some(driver) = remote::path() else {
        remote::not_built();
        return;
    };
    let room = Room::new("c");
    let cc = compiler("CC", &["cc", "gcc"]).expect("a C compiler, which Rust needs too");
    let program = compile(&cc, &room, "program.c", &["-std=c11", "-lmillpond", "-ldl", "-lpthread"]);
    let said = run(&program, &room, &driver);
    assert!(said.contains("all as the header says"), "{said}");
}

/// `dlclose` and the end of a process, with work pending, live memory, and threads that still remember streams. Skipped for a library
/// that is linked into the program.
#[test]
fn the_library_is_closed_with_work_pending_and_memory_alive() {
    let Some(driver) = remote::path() else {
        remote::not_built();
        return;
    };
    if std::env::var_os("MILLPOND_STATIC").is_some() {
        return;
    }
    let room = Room::new("unload");
    let cc = compiler("CC", &["cc", "gcc"]).expect("a C compiler, which Rust needs too");
    let program = compile(&cc, &room, "unload.c", &["-std=gnu11", "-ldl", "-lpthread"]);
    let said = run(&program, &room, &driver);
    assert!(said.contains("closed with work pending and memory alive"), "{said}");
}

/// `forked.h` makes every call of the header, those that were added later included.
#[test]
fn a_forked_child_tries_every_function() {
    let read = |name: &str| {
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("it is there")
    };
    let (header, child) = (read("millpond.h"), read("tests/forked.h"));
    let declared = header.lines().filter(|line| !line.starts_with([' ', '/', '#', '}']));
    let names: Vec<&str> = declared
        .filter_map(|line| line.split_once('(').and_then(|(before, _)| before.rsplit([' ', '*']).next()))
        .filter(|name| name.starts_with("millpond_"))
        .collect();
    assert!(names.len() > 25, "{names:?}");
    let missed: Vec<&&str> = names.iter().filter(|name| !child.contains(&format!("{name}("))).collect();
    assert!(missed.is_empty(), "plug/tests/forked.h does not try {missed:?}");
}

/// A process that ends, and one that forks, while other threads are inside calls.
#[test]
fn a_process_ends_and_forks_beside_calling_threads() {
    let Some(driver) = remote::path() else {
        remote::not_built();
        return;
    };
    let room = Room::new("ends");
    let cc = compiler("CC", &["cc", "gcc"]).expect("a C compiler, which Rust needs too");
    let program = compile(&cc, &room, "ends.c", &["-std=gnu11", "-lmillpond", "-ldl", "-lpthread"]);
    // What the threads hold when the process exits or forks is not a leak.
    let quiet = ("ASAN_OPTIONS", "detect_leaks=0");
    // What happens depends on the machine's speed, so there are several runs.
    for _ in 0..8 {
        let mut command = over(&program, &room, &driver);
        command.env(quiet.0, quiet.1);
        let run = command.arg("exit").output().expect("it starts");
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.code() == Some(7) && said.is_empty(), "{}: {said}", run.status);
    }
    let mut command = over(&program, &room, &driver);
    command.arg("fork").env(quiet.0, quiet.1);
    assert!(done(command).contains("forked beside calls"));
}

/// The program that checks the same on a GPU, as far as the stand-in can: it launches no graphs. The schedule is random, so that work is
/// pending for a while and not for ever.
#[test]
fn the_checks_for_a_real_driver_end_well_over_the_stand_in() {
    let Some(driver) = remote::path() else {
        remote::not_built();
        return;
    };
    let room = Room::new("driver");
    let cc = compiler("CC", &["cc", "gcc"]).expect("a C compiler, which Rust needs too");
    let source = "../gpu/driver_checks.c";
    let program = compile(&cc, &room, source, &["-std=gnu11", "-lmillpond", "-ldl", "-lpthread"]);
    for seed in effort::ordinary_or_full(&["1"][..], &["1", "2"]) {
        let mut command = over(&program, &room, &driver);
        command.arg("quick").env("MILLPOND_FAKE_SCHEDULE", "random").env("MILLPOND_FAKE_SEED", seed);
        let said = done(command);
        assert!(said.contains("every part passed") && !said.contains("FAIL"), "{said}");
        assert_eq!(said.matches("PASS").count(), 23, "{said}");
    }
}

/// The program that checks ends of processes and libraries on a GPU, as far as the stand-in can: it runs work as late as legal, so that all queued
/// work is pending.
#[test]
fn the_ends_for_a_real_driver_end_well_over_the_stand_in() {
    let Some(driver) = remote::path() else {
        remote::not_built();
        return;
    };
    // A library that is linked into the program is never closed, and children of a process under a sanitizer are not tested here.
    if std::env::var_os("MILLPOND_STATIC").is_some() {
        return;
    }
    let cc = compiler("CC", &["cc", "gcc"]).expect("a C compiler, which Rust needs too");
    let both: [(&str, &[&str]); 2] = [
        ("ends_linked", &["-std=gnu11", "-lmillpond", "-ldl", "-lpthread"]),
        ("ends_opened", &["-std=gnu11", "-DOPENED", "-ldl", "-lpthread"]),
    ];
    for (name, flags) in both {
        let room = Room::new(name);
        let program = compile(&cc, &room, "../gpu/ends_checks.c", flags);
        let mut command = over(&program, &room, &driver);
        let said = done({
            command.arg("quick");
            command
        });
        assert!(said.contains("every part passed") && !said.contains("FAIL"), "{said}");
        assert_eq!(said.matches("PASS").count(), 3, "{said}");
    }
}

/// Memory that a thread's later destructors free is reused, as is what the thread freed before its end.
#[test]
fn what_a_keys_destructor_frees_serves_others() {
    let Some(driver) = remote::path() else {
        remote::not_built();
        return;
    };
    let room = Room::new("late");
    let cc = compiler("CC", &["cc", "gcc"]).expect("a C compiler, which Rust needs too");
    let program = compile(&cc, &room, "late.c", &["-std=gnu11", "-lmillpond", "-ldl", "-lpthread"]);
    let mut command = over(&program, &room, &driver);
    // If a thread's very first call is made by a key's destructor, the library does not notice the thread's end: 128 bytes for each thread, of the C
    // library's and ours, are not freed.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    let said = done(command);
    assert!(said.contains("freed by a key's destructor"), "{said}");
}

/// An allocation that fails throws: a standard exception in a program without `PyTorch`, and, where libraries have the names and symbols of
/// `PyTorch`, its own exception with our message.
#[test]
fn a_failed_allocation_throws_what_pytorch_knows() {
    let Some(driver) = remote::path() else {
        remote::not_built();
        return;
    };
    let Some(cxx) = compiler("CXX", &["c++", "g++", "clang++"]) else {
        remote::skipped("there is no C++ compiler");
        return;
    };
    let room = Room::new("cpp");
    let plain = compile(&cxx, &room, "plain.cpp", &["-std=c++17", "-lmillpond", "-ldl"]);
    let said = run(&plain, &room, &driver);
    assert!(
        said.contains("caught bad_alloc") && said.contains("caught runtime_error: 99 is no device"),
        "{said}"
    );
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut library = Command::new(&cxx);
    library
        .args(["-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libc10.so", "-o"])
        .arg(room.0.join("libc10.so"));
    done({
        library.arg(here.join("tests/c10.cpp"));
        library
    });
    let torch = compile(&cxx, &room, "torch.cpp", &["-std=c++17", "-lmillpond", "-lc10", "-ldl"]);
    let said = run(&torch, &room, &driver);
    assert!(
        said.contains("caught c10::OutOfMemoryError") && said.contains("above the limit of 64.0 MiB"),
        "{said}"
    );
    assert!(said.contains("caught c10::Error: 99 is no device"), "{said}");
}
