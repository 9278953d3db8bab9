//! The binary as a person or a script meets it: what it prints, where, and its exit status.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/traces")
}

/// A directory of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MILLPOND_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn millpond(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn out(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}
fn err(o: &Output) -> String {
    String::from_utf8(o.stderr.clone()).unwrap()
}

/// A small log: two streams, two threads, blocks of odd sizes, one alive at the end.
const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,1,1000,0\n1,5,allocate,2,70000,7\n\
    2,9,free,1,1000,0\n2,12,allocate,3,3000000,0\n1,20,free,2,70000,7\n1,21,allocate,4,5,7\n1,22,free,4,5,7\n";

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn replay_prints_that_nothing_was_violated() {
    let log = file(&folder("text"), "small.csv", LOG);
    let o = millpond(&["replay", &log, "--uses", "100%"]);
    let text = out(&o);
    assert_eq!(o.status.code(), Some(0), "{text}{}", err(&o));
    let head = text.lines().next().unwrap();
    assert!(
        head.starts_with("small   8 calls over 2 streams and 2 threads   ordering: 0 violations in "),
        "{head}"
    );
    assert!(head.ends_with("accesses (oracle on)"));
    for part in ["device 0", "cached", "miss ladder", "cuMemAlloc", "ratio"] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "no escapes into a pipe");
    assert_eq!(err(&o), "", "no progress bar into a pipe");
}

/// What lies where when most is live: with plain segments, and in windows, which say what is a hole.
#[test]
fn a_map_shows_ranges() {
    let log = file(&folder("map"), "small.csv", LOG);
    let of = |memory: &str| {
        let o = millpond(&["replay", &log, "--map", "--virtual", memory]);
        assert_eq!(o.status.code(), Some(0), "{}", err(&o));
        let text = out(&o);
        let map = text[text.find("map   ").expect("a map")..].to_owned();
        assert!(map.lines().all(|l| l.chars().count() <= 100), "{map}");
        // Addresses are the simulated device's.
        let places = map.lines().map(|l| match l.split_once(" at 0x") {
            Some((before, behind)) => format!("{before} {}", behind.split_once(": ").expect("an address").1),
            None => l.to_owned(),
        });
        places.collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(of("never"));
    insta::assert_snapshot!(of("always"));
    let o = millpond(&["replay", &log, "--map", "--json", "--virtual", "always"]);
    let v: Value = serde_json::from_str(&out(&o)).unwrap();
    let segments = v["map"]["segments"].as_array().unwrap();
    let is_live = |s: &Value| s["ranges"].as_array().unwrap().iter().any(|r| r["state"] == "live");
    assert!(segments.len() == 2 && segments.iter().all(|s| s["window"] == true && is_live(s)), "{v}");
    assert!(v["report"]["physical"]["handles"].as_u64().unwrap() >= 2);
    let program = file(
        &folder("map-program"),
        "p.trace",
        "millpond trace 1\nstreams 1\nalloc b0 3MiB on s0\nwrite b0 on s0\n",
    );
    assert!(out(&millpond(&["replay", &program, "--map"])).contains("live 3.00 MiB, free 17.0 MiB"));
    assert!(!out(&millpond(&["replay", &log])).contains("map   "), "only if it is requested");
    assert_eq!(millpond(&["replay", &log, "--map", "--racy"]).status.code(), Some(2));
}

#[test]
fn json_is_one_object_a_line_with_the_promised_keys() {
    let log = file(&folder("json"), "small.csv", LOG);
    let o = millpond(&["replay", &log, &log, "--json", "--uses", "1.0", "--repeat", "2", "--streams", "4"]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    let text = out(&o);
    assert_eq!(text.lines().count(), 2, "one line a trace");
    for line in text.lines() {
        let v: Value = serde_json::from_str(line).unwrap();
        for key in [
            "trace",
            "calls",
            "peak_requested_bytes",
            "peak_reserved_bytes",
            "taken_over_live",
            "reserved_over_requested",
            "violations",
            "accesses_checked",
            "hits",
            "misses",
            "migrations",
            "waits_inserted",
            "waits_beyond_need",
            "host_waits",
            "makespan_ratio",
            "driver_calls",
            "warm_ns_per_call",
            "report",
            "growths",
            "lost",
            "device",
        ] {
            assert!(!v[key].is_null(), "{key} is missing: {line}");
        }
        assert_eq!(v["trace"], "small");
        assert_eq!(v["calls"], 16);
        assert_eq!(v["violations"], 0);
        assert_eq!(v["peak_requested_bytes"], 3_070_000);
        assert!(v["accesses_checked"].as_u64().unwrap() > 16);
        assert!(v["driver_calls"]["cuLaunchKernel"].as_u64().unwrap() > 16);
        assert_eq!(v["report"]["device"], 0);
    }
}

#[test]
fn a_broken_program_is_shown_in_full_with_status_1() {
    let trace = traces().join("prefetch_multistream.csv.gz");
    let o =
        millpond(&["replay", trace.to_str().unwrap(), "--uses", "50%", "--break", "100%", "--streams", "4"]);
    assert_eq!(o.status.code(), Some(1));
    let text = out(&o);
    assert!(text.contains("VIOLATED"), "{text}");
    assert!(text.contains("none of them caused by the allocator"), "{text}");
    assert!(text.contains("\n   where: call ") && text.contains("\n   missing edge: "), "{text}");
    assert!(!text.contains(" 0 violations in"));
}

#[test]
fn a_failed_request_is_status_1_with_advice() {
    let log = file(&folder("limit"), "small.csv", LOG);
    let o = millpond(&["replay", &log, "--limit", "1MiB"]);
    assert_eq!(o.status.code(), Some(1));
    let text = out(&o);
    assert!(text.contains("FAILED") && text.contains("raise the limit"), "{text}");
    assert!(!text.contains("LOST"));
    let o = command(&["replay", &log]).env("MILLPOND_LIMIT", "1MiB").output().unwrap();
    assert_eq!(o.status.code(), Some(1), "the environment sets it too");
    let o = command(&["replay", &log, "--limit", "none"]).env("MILLPOND_LIMIT", "1MiB").output().unwrap();
    assert_eq!(o.status.code(), Some(0), "and the option goes above it");
}

#[test]
fn every_option_together() {
    let log = file(&folder("all"), "small.csv", LOG);
    for policy in ["latency", "footprint"] {
        for extra in [["--racy", "--legacy"], ["--deterministic", "--legacy"]] {
            let o = millpond(&[
                "replay",
                &log,
                "--device",
                "sim",
                "--check",
                "on",
                "--streams",
                "3",
                "--threads",
                "2",
                "--uses",
                "30%",
                "--break",
                "0",
                "--seed",
                "7",
                "--run-ahead",
                "3",
                "--schedule",
                "random",
                "--policy",
                policy,
                "--reuse",
                "ordered",
                "--growth",
                "exact",
                "--repeat",
                "2",
                "--limit",
                "50%",
                "--capacity",
                "1GiB",
                extra[0],
                extra[1],
            ]);
            assert_eq!(o.status.code(), Some(0), "{}{}", out(&o), err(&o));
        }
    }
}

#[test]
fn what_is_not_judged_says_so() {
    let log = file(&folder("null"), "small.csv", LOG);
    let o = millpond(&["replay", &log, "--device", "null", "--repeat", "3"]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    assert!(out(&o).contains("not judged (null device)") && out(&o).contains("ns a call"), "{}", out(&o));
    let o = millpond(&["replay", &log, "--check", "off"]);
    assert!(out(&o).contains("not judged (oracle off)"), "{}", out(&o));
    assert!(!out(&o).contains("0 violations"));
}

#[test]
fn bad_input_is_status_2_with_the_place_and_the_reason() {
    let f = folder("bad");
    let huge = LOG.replace("3000000", "99999999999999999999999");
    let freed = LOG.replace("2,9,free,1,1000,0", "2,9,free,55,1000,0");
    let cases: [(&str, &str, &[&str]); 6] = [
        ("garbage.csv", "\u{0}\u{1}\u{2} what is this", &["garbage.csv", "line 1"]),
        ("empty.csv", "", &["empty.csv", "the file is empty"]),
        ("huge.csv", &huge, &["line 5, column 17", "99999999999999999999999"]),
        ("freed.csv", &freed, &["line 4, column 10", "not alive"]),
        ("rule.trace", "millpond trace 1\nstreams 1\nfree b0\n", &["line 3", "b0 is not alive"]),
        ("cut.json", "{\"device_traces\": [[", &["cut.json"]),
    ];
    for (name, text, words) in cases {
        let path = file(&f, name, text);
        for args in
            [["replay", &path].as_slice(), &["trace", "info", &path], &["trace", "convert", &path, "x.bin"]]
        {
            let o = millpond(args);
            assert_eq!(o.status.code(), Some(2), "{args:?}: {}{}", out(&o), err(&o));
            let said = err(&o);
            assert!(words.iter().all(|w| said.contains(w)), "{args:?}: {said}");
            assert!(!said.contains("panicked"), "{said}");
        }
    }
    let o = millpond(&["replay", f.join("nowhere.csv").to_str().unwrap()]);
    assert_eq!(o.status.code(), Some(2));
    assert!(err(&o).contains("nowhere.csv"), "{}", err(&o));
    let o = millpond(&["replay", f.to_str().unwrap()]);
    assert_eq!(o.status.code(), Some(2), "a directory");
}

#[test]
fn one_bad_trace_does_not_hide_the_others() {
    let f = folder("mixed");
    let (good, bad) = (file(&f, "good.csv", LOG), file(&f, "bad.csv", "nonsense\n"));
    let o = millpond(&["replay", &bad, &good, "--json"]);
    assert_eq!(o.status.code(), Some(2));
    assert_eq!(out(&o).lines().count(), 1, "the good one is still replayed");
}

#[test]
fn absurd_requests_and_options() {
    let f = folder("absurd");
    let log = file(&f, "huge.csv", &LOG.replace("3000000", "9223372036854775808"));
    let o = millpond(&["replay", &log]);
    assert_eq!(o.status.code(), Some(1), "2^63 bytes: a failed request");
    assert!(out(&o).contains("FAILED") && out(&o).contains("9223372036854775808"), "{}", out(&o));
    let good = file(&f, "good.csv", LOG);
    for args in [
        ["--uses", "110%"],
        ["--uses", "some"],
        ["--streams", "0"],
        ["--streams", "4000000000"],
        ["--threads", "0"],
        ["--repeat", "0"],
        ["--capacity", "40%"],
        ["--capacity", "lots"],
        ["--limit", "-1"],
        ["--policy", "best"],
        ["--seed", "-1"],
        ["--run-ahead", "1e3"],
        ["--device", "gpu"],
    ] {
        let o = millpond(&["replay", &good, &format!("{}={}", args[0], args[1])]);
        assert_eq!(o.status.code(), Some(2), "{args:?}");
        let name = args[0].trim_start_matches('-');
        assert!(err(&o).contains(name), "{args:?} is not named: {}", err(&o));
    }
    for calls in ["3", "18446744073709551615"] {
        let o = millpond(&["replay", &good, "--run-ahead", calls]);
        assert_eq!(o.status.code(), Some(0), "{calls} calls ahead: {}", err(&o));
    }
    for limit in ["0", "1"] {
        let o = millpond(&["replay", &good, "--limit", limit]);
        assert_eq!(o.status.code(), Some(1), "a limit of {limit} bytes serves nothing");
    }
    let o = command(&["replay", &good]).env("MILLPOND_POLICY", "best").output().unwrap();
    assert_eq!(o.status.code(), Some(2));
    assert!(err(&o).contains("MILLPOND_POLICY"), "{}", err(&o));
}

#[test]
fn info_shows_a_table_and_json() {
    let f = folder("info");
    let log = file(&f, "small.csv", LOG);
    let program = file(&f, "p.trace", "millpond trace 1\nstreams 1\nalloc b0 5 on s0\nwrite b0 on s0\n");
    let o = millpond(&["trace", "info", &log, &program]);
    assert_eq!(o.status.code(), Some(0));
    let text = out(&o);
    assert!(text.lines().next().unwrap().contains("peak live"), "{text}");
    assert!(
        text.lines().any(|l| l.starts_with("small") && l.contains(" log ") && l.contains("2.93 MiB")),
        "{text}"
    );
    assert!(text.contains("p: 2 steps"), "{text}");
    let o = millpond(&["trace", "info", &log, "--json"]);
    let v: Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!((&v["calls"], &v["peak_live"], &v["kind"]), (&7.into(), &3_070_000.into(), &"log".into()));
}

#[test]
fn forms_convert_into_each_other_and_back() {
    let f = folder("convert");
    let log = file(&f, "small.csv", LOG);
    let at = |name: &str| f.join(name).to_str().unwrap().to_owned();
    let run = |from: &str, to: &str| {
        let o = millpond(&["trace", "convert", from, to]);
        assert_eq!(o.status.code(), Some(0), "{from} to {to}: {}", err(&o));
    };
    run(&log, &at("a.trace"));
    run(&at("a.trace"), &at("b.bin"));
    run(&at("b.bin"), &at("c.trace"));
    run(&at("c.trace"), &at("d.csv"));
    run(&at("d.csv"), &at("e.trace"));
    let read = |name| std::fs::read_to_string(f.join(name)).unwrap();
    assert_eq!(read("a.trace"), read("c.trace"), "through bytes and back");
    let steps = |text: String| text.lines().filter(|l| l.contains("alloc") || l.contains("free")).count();
    assert_eq!((steps(read("a.trace")), steps(read("e.trace"))), (7, 7), "through a log and back");
    let o = millpond(&["trace", "convert", &log, "-", "--to", "text"]);
    assert_eq!(out(&o), read("a.trace"), "to the standard output");
    let o = millpond(&["trace", "convert", &log, &at("x.unknown")]);
    assert_eq!(o.status.code(), Some(2));
    assert!(err(&o).contains("--to"), "{}", err(&o));
    for name in ["a.trace", "b.bin", "d.csv"] {
        let o = millpond(&["replay", &at(name)]);
        assert_eq!(o.status.code(), Some(0), "{name}: {}{}", out(&o), err(&o));
    }
    let o = millpond(&["replay", &at("a.trace"), "--streams", "4"]);
    assert_eq!(o.status.code(), Some(2), "a program has its own streams");
    assert!(err(&o).contains("--streams is for logs"), "{}", err(&o));
}

/// A workload that fails is kept as a program, which fails the same way and can be made small.
#[test]
fn a_workload_converts_to_the_program_that_replay_runs() {
    let f = folder("workload");
    let log = file(&f, "small.csv", LOG);
    let program = f.join("broken.trace").to_str().unwrap().to_owned();
    let broken = ["--uses", "100%", "--break", "100%", "--streams", "4", "--seed", "3"];
    let o = millpond(&[&["trace", "convert", &log, &program], broken.as_slice()].concat());
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    let of = |o: &Output| {
        let text = out(o);
        let ordering = text.lines().next().unwrap().split_once("ordering: ").expect("judged").1.to_owned();
        (o.status.code(), ordering)
    };
    let as_log = of(&millpond(&[&["replay", &log], broken.as_slice()].concat()));
    assert_eq!(as_log.0, Some(1), "{as_log:?}");
    assert_eq!(of(&millpond(&["replay", &program])), as_log);
    let o = millpond(&["trace", "shrink", &program]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    assert!(out(&o).lines().count() < 10, "{}", out(&o));
    let o = millpond(&["trace", "convert", &program, "-", "--to", "text", "--uses", "1%"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(err(&o).contains("--uses is for logs"), "{}", err(&o));
}

/// A seed alone would change nothing, though the user expects that it does.
#[test]
fn a_seed_without_a_choice_to_draw_is_refused() {
    let f = folder("seed");
    let log = file(&f, "small.csv", LOG);
    let program = file(&f, "p.trace", "millpond trace 1\nstreams 1\nalloc b0 1MiB on s0\nfree b0\n");
    for from in [&log, &program] {
        let o = millpond(&["trace", "convert", from, "-", "--to", "text", "--seed", "3"]);
        assert_eq!((o.status.code(), out(&o)), (Some(2), String::new()));
        assert!(err(&o).contains("--seed is what the choices of --streams"), "{}", err(&o));
    }
    // A replay draws its random schedule from it.
    let o = millpond(&["replay", &program, "--schedule", "random", "--seed", "3"]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
}

#[test]
fn a_failing_program_shrinks_to_its_core_and_fails_again() {
    let f = folder("shrink");
    let noise: Vec<String> = (10..40).map(|b| format!("alloc b{b} 4KiB on s0\nwrite b{b} on s0\n")).collect();
    let noise = noise.concat();
    let core = "alloc b0 1MiB on s1\nwrite b0 on s1\nread b0 on s0 unrecorded\n";
    let program = file(
        &f,
        "wrong.trace",
        &format!("millpond trace 1\nstreams 2\n{noise}{core}{}", "tick\n".repeat(20)),
    );
    let o = millpond(&["replay", &program]);
    assert_eq!(o.status.code(), Some(1));
    let small = f.join("small.trace");
    let o = millpond(&["trace", "shrink", &program, "-o", small.to_str().unwrap()]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    let text = std::fs::read_to_string(&small).unwrap();
    assert_eq!(text.lines().count(), 5, "a header and three steps:\n{text}");
    assert_eq!(millpond(&["replay", small.to_str().unwrap()]).status.code(), Some(1));
    let right = file(&f, "right.trace", "millpond trace 1\nstreams 1\nalloc b0 1 on s0\nwrite b0 on s0\n");
    let o = millpond(&["trace", "shrink", &right]);
    assert_eq!(o.status.code(), Some(2));
    assert!(err(&o).contains("does not fail"), "{}", err(&o));
    let log = file(&f, "log.csv", LOG);
    assert_eq!(millpond(&["trace", "shrink", &log]).status.code(), Some(2));
}

#[test]
fn bench_says_what_its_numbers_are() {
    let log = file(&folder("bench"), "small.csv", LOG);
    let o = millpond(&["bench", &log, "--calls", "2000", "--repeat", "2"]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    let text = out(&o);
    for part in
        ["wall time of this machine, not comparable", "cached pair", "1,000 live", "warm replay of small.csv"]
    {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let f = folder("pipe");
    // Far more than a pipe holds.
    let rows: Vec<String> = (2..20_000).map(|n| format!("1,{n},allocate,{n},512,0\n")).collect();
    let rows = rows.concat();
    let log = file(&f, "long.csv", &format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}"));
    let mut child = command(&["trace", "convert", &log, "-", "--to", "text"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let o = child.wait_with_output().unwrap();
    assert_eq!(err(&o), "");
    assert_eq!(o.status.code(), Some(0));
}

#[test]
fn help_names_every_option_and_explains_it() {
    let o = millpond(&["--help"]);
    assert_eq!(o.status.code(), Some(0));
    for verb in ["replay", "trace", "bench"] {
        assert!(out(&o).contains(verb), "{}", out(&o));
    }
    let help = out(&millpond(&["replay", "--help"]));
    for option in [
        "--device",
        "--check",
        "--streams",
        "--threads",
        "--uses",
        "--break",
        "--seed",
        "--run-ahead",
        "--policy",
        "--reuse",
        "--growth",
        "--repeat",
        "--limit",
        "--capacity",
        "--legacy",
        "--racy",
        "--deterministic",
        "--json",
        "--schedule",
        "Exit status",
        "MILLPOND_LIMIT",
    ] {
        assert!(help.contains(option), "{option} is missing:\n{help}");
    }
    let o = millpond(&[]);
    assert_eq!(o.status.code(), Some(2), "no command is a usage error");
    assert!(out(&millpond(&["--version"])).starts_with("millpond "));
}

#[test]
fn without_a_gpu_one_sentence_says_so() {
    let log = file(&folder("no-gpu"), "small.csv", LOG);
    let replay = |more: &[&str]| {
        let args = [&["replay", &log], more].concat();
        command(&args).env("MILLPOND_LIBCUDA", "/nowhere/libcuda.so").output().unwrap()
    };
    let o = replay(&["--device", "cuda:0"]);
    assert_eq!(o.status.code(), Some(2));
    assert_eq!(out(&o), "");
    let said = err(&o);
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(said.contains("no NVIDIA driver on this machine (tried /nowhere/libcuda.so)"), "{said}");
    let o = replay(&["--device", "cuda:0", "--run-ahead", "3"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(err(&o).contains("a GPU runs by itself"), "{}", err(&o));
    for bad in ["cuda:x", "cuda:-1", "gpu", ""] {
        let o = replay(&["--device", bad]);
        assert_eq!(o.status.code(), Some(2), "{bad:?}");
        assert!(err(&o).contains("expected sim, null, or cuda:N"), "{}", err(&o));
    }
    assert_eq!(replay(&["--device", "null"]).status.code(), Some(0), "no GPU was requested");
}

/// The stand-in driver, where `cargo build -p millpond-fake-libcuda` left it.
fn stand_in() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_millpond")).with_file_name("libfake_libcuda.so");
    if !path.exists() {
        eprintln!("SKIPPED: {} was not built", path.display());
    }
    path.exists().then_some(path)
}

#[test]
fn the_main_job_runs_on_the_cuda_backend() {
    let Some(driver) = stand_in() else { return };
    let log = file(&folder("cuda"), "small.csv", LOG);
    let replay = |more: &[&str]| {
        let args = [&["replay", &log, "--device", "cuda:0", "--uses", "100%"], more].concat();
        command(&args).env("MILLPOND_LIBCUDA", &driver).output().unwrap()
    };
    let o = replay(&[]);
    let text = out(&o);
    assert_eq!(o.status.code(), Some(0), "{text}{}", err(&o));
    let head = text.lines().next().unwrap();
    assert!(head.contains("ordering: by contents, 0 mismatches in "), "{head}");
    assert!(head.ends_with("checks (our kernels on the GPU)") && !head.contains(" in 0 checks"), "{head}");
    let o = replay(&["--json", "--check", "off"]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    let v: Value = serde_json::from_str(&out(&o)).unwrap();
    assert_eq!((v["device"].as_str(), v["accesses_checked"].as_u64()), (Some("cuda:0"), Some(0)));
    assert!(v["driver_calls"]["cuMemAlloc"].as_u64().unwrap() > 0, "{}", v["driver_calls"]);
    let missing =
        command(&["replay", &log, "--device", "cuda:9"]).env("MILLPOND_LIBCUDA", &driver).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(err(&missing).contains("device 9 was requested, there"), "{}", err(&missing));
}

/// The help promises it: a request that failed is no success, of a program either.
#[test]
fn a_program_with_refused_requests_fails() {
    let folder = folder("refused");
    let program = "millpond trace 1\nstreams 1\nalloc b0 1MiB on s0\nalloc b1 8MiB on s0\nfree b0\n";
    let path = file(&folder, "greedy.trace", program);
    let o = millpond(&["replay", &path]);
    assert_eq!(o.status.code(), Some(0), "{}{}", out(&o), err(&o));
    for json in [false, true] {
        let mut args = vec!["replay", &path, "--limit", "4MiB"];
        args.extend(json.then_some("--json"));
        let o = millpond(&args);
        assert_eq!(o.status.code(), Some(1), "{}{}", out(&o), err(&o));
        if json {
            assert_eq!(serde_json::from_str::<Value>(&out(&o)).unwrap()["refused"], 1);
        } else {
            assert!(out(&o).contains("refused     1 request"), "{}", out(&o));
        }
    }
}

/// The names of the variables that the library, its tools and its devices look up.
fn variables() -> BTreeSet<String> {
    fn read(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, names);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let quoted = text.split("\"MILLPOND_").skip(1).filter_map(|rest| rest.split('"').next());
                let is_name = |name: &&str| name.bytes().all(|b| b == b'_' || b.is_ascii_uppercase());
                names.extend(
                    quoted.filter(is_name).filter(|n| !n.is_empty()).map(|n| format!("MILLPOND_{n}")),
                );
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut names = BTreeSet::new();
    for room in ["src", "cli/src", "cuda/src", "driver/src", "plug/src", "replay/src", "sim/src", "trace/src"]
    {
        read(&root.join(room), &mut names);
    }
    names
}

/// A value that is no text is not the same as none. Every variable that the sources name is tried, here or where it is read.
#[cfg(unix)]
#[test]
fn a_variable_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let log = file(&folder("bytes"), "small.csv", LOG);
    let elsewhere = [
        // By the C interface: plug/tests/abi.rs.
        "MILLPOND_CAPTURES",
        // Below: a path need not be text.
        "MILLPOND_LIBCUDA",
        // Only where bugs are planted, which panics.
        "MILLPOND_PLANT",
    ];
    let names = variables();
    assert!(names.len() >= elsewhere.len() + 8, "{names:?}");
    for name in elsewhere {
        assert!(names.contains(name), "{name} is not read any more");
    }
    for name in names.iter().filter(|name| !elsewhere.contains(&name.as_str())) {
        let value = std::ffi::OsStr::from_bytes(b"1\xFFMiB");
        let o = command(&["replay", &log]).env(name, value).output().unwrap();
        assert_eq!(o.status.code(), Some(2), "{name}: {}{}", out(&o), err(&o));
        assert!(err(&o).contains(name) && err(&o).contains("expected text in UTF-8"), "{}", err(&o));
    }
}

/// A path need not be text: the driver that one names is the driver that is used, and no other.
#[cfg(unix)]
#[test]
fn the_driver_may_lie_at_a_path_that_is_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder("path");
    let log = file(&folder, "small.csv", LOG);
    let path = folder.join(std::ffi::OsStr::from_bytes(b"lib\xFFcuda.so"));
    let replay =
        || command(&["replay", &log, "--device", "cuda:0"]).env("MILLPOND_LIBCUDA", &path).output().unwrap();
    let o = replay();
    assert_eq!(o.status.code(), Some(2), "{}{}", out(&o), err(&o));
    assert!(err(&o).contains("(tried ") && err(&o).contains("lib\u{FFFD}cuda.so)"), "{}", err(&o));
    let Some(driver) = stand_in() else { return };
    std::fs::copy(driver, &path).unwrap();
    let o = replay();
    assert_eq!(o.status.code(), Some(0), "{}{}", out(&o), err(&o));
}

#[test]
fn a_program_of_too_many_threads_is_bad_input() {
    let lines = (0..65_536).map(|t| format!("t{t}: tick\n")).collect::<Vec<_>>().concat();
    let path = file(&folder("threads"), "many.trace", &format!("millpond trace 1\nstreams 0\n{lines}"));
    for args in [vec!["replay", &path], vec!["trace", "shrink", &path]] {
        let o = millpond(&args);
        assert_eq!(o.status.code(), Some(2), "{}", err(&o));
        assert!(err(&o).contains("threads is 65536; it can be at most 256"), "{}", err(&o));
    }
}

#[test]
fn a_log_of_no_calls_is_not_timed() {
    let log = file(&folder("bench-empty"), "empty.csv", "Thread,Time,Action,Pointer,Size,Stream\n");
    let o = millpond(&["bench", &log, "--calls", "2000", "--repeat", "2"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(err(&o).contains("no calls to time"), "{}", err(&o));
}

/// What `replay` fails by, `trace shrink` makes small.
#[test]
fn a_program_that_is_refused_a_request_shrinks_to_it() {
    let f = folder("shrink-refused");
    let program =
        "millpond trace 1\nstreams 1\nalloc b0 1MiB on s0\nwrite b0 on s0\nalloc b1 8MiB on s0\nfree b0\n";
    let (path, small) = (file(&f, "greedy.trace", program), f.join("small.trace"));
    let o = millpond(&["trace", "shrink", &path, "--limit", "4MiB", "-o", small.to_str().unwrap()]);
    assert_eq!(o.status.code(), Some(0), "{}", err(&o));
    assert!(err(&o).contains("fails by Refused"), "{}", err(&o));
    assert_eq!(std::fs::read_to_string(&small).unwrap().lines().count(), 3);
}
