//! Access to the stand-in driver for tests: loads it by its path, so that code which loads `libcuda.so` later gets it, and
//! controls it by its control functions. Included by the tests that need it; knows no test.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

#[path = "age.rs"]
pub mod age;

use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// When the stand-in's device runs queued work.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// At once.
    Earliest,
    /// As late as legal.
    Latest,
    /// At random, with this seed.
    Random(u64),
}

/// The stand-in, which one test holds at a time, because a process has one driver.
pub struct Fake {
    library: &'static Library,
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());
static LIBRARY: LazyLock<Option<Library>> = LazyLock::new(|| {
    let path = path()?;
    // This variable makes millpond's backend load the stand-in even where there is a real driver.
    #[allow(unsafe_code, reason = "the environment belongs to all threads")]
    // SAFETY: Rust's own accesses to the environment take a lock, and nothing else in a test reads it.
    unsafe {
        std::env::set_var("MILLPOND_LIBCUDA", &path);
    }
    #[allow(unsafe_code, reason = "loading a library runs its initialisers")]
    // SAFETY: the stand-in has no initialisers beyond Rust's.
    let library = unsafe { Library::new(path) };
    Some(library.expect("the stand-in is there and must load"))
});

impl Drop for Fake {
    /// Resets the driver, so that nothing of a test is left for the next one, or for a check for leaks of the process.
    fn drop(&mut self) {
        self.reset(0, 0, When::Earliest);
    }
}

/// The path of the stand-in: the one in `MILLPOND_FAKE_LIBCUDA`, or the one beside this test, where cargo builds it. One that is older than
/// its sources is refused, unless the variable names it, as the checks do, which build it in a folder of their own.
pub fn path() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("MILLPOND_FAKE_LIBCUDA") {
        return Some(named.into());
    }
    let found = beside()?;
    // The sources are in this test's package or in its parent folder. If there are none, as on a GPU machine, the stand-in is not checked.
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Some(root) = [here, &here.join("..")].into_iter().find(|root| root.join(SOURCE).exists()) {
        let sources = [SOURCE, "sim/src", "driver/src"].map(|folder| root.join(folder));
        age::is_fresh(&found, &sources.each_ref().map(PathBuf::as_path));
    }
    Some(found)
}

/// The sources of the stand-in; those of the simulated device are beside them.
const SOURCE: &str = "tests/fake_libcuda/src";

fn beside() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let beside = exe.parent()?;
    [beside.join("libfake_libcuda.so"), beside.join("../libfake_libcuda.so")].into_iter().find(|p| p.exists())
}

/// Prints a whole line past the test harness, which hides what a passing test prints.
pub fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints why a test was skipped.
pub fn skipped(why: &str) {
    say(&format!("SKIPPED: {why}"));
}

/// Prints that a test was skipped because there is no stand-in.
pub fn not_built() {
    skipped("the stand-in driver is not built: run .ci/fake-cuda, or cargo test --workspace");
}

/// The stand-in with fresh devices, or `None` if it was not built.
pub fn fake(capacity: u64, devices: u32, when: When) -> Option<Fake> {
    let library = LIBRARY.as_ref()?;
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fake = Fake { library, _turn: turn };
    fake.reset(capacity, devices, when);
    Some(fake)
}

/// The same, and prints a line if it was not built.
pub fn fake_or_skip(capacity: u64, devices: u32, when: When) -> Option<Fake> {
    let fake = fake(capacity, devices, when);
    if fake.is_none() {
        not_built();
    }
    fake
}

#[allow(unsafe_code, reason = "functions found by name")]
impl Fake {
    fn symbol<T>(&self, name: &str) -> Symbol<'static, T> {
        // SAFETY: every caller below names a function of the stand-in with its own type.
        unsafe { self.library.get(name.as_bytes()) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }
    fn text(&self, name: &str) -> Option<String> {
        let found = self.symbol::<extern "C" fn() -> *const c_char>(name)();
        Fake::read(found)
    }
    fn read(text: *const c_char) -> Option<String> {
        // SAFETY: null, or a text that stays until the function is called again; no other test uses the driver meanwhile.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
    /// Starts again with fresh devices.
    pub fn reset(&self, capacity: u64, devices: u32, when: When) {
        let (schedule, seed) = match when {
            When::Earliest => (0, 0),
            When::Latest => (1, 0),
            When::Random(seed) => (2, seed),
        };
        self.symbol::<extern "C" fn(u64, u32, u32, u64)>("millpond_fake_reset")(
            capacity, devices, schedule, seed,
        );
    }
    /// A context besides the device's primary one; it is current on this thread.
    pub fn second_context(&self, device: u32) -> u64 {
        type Create = extern "C" fn(*mut u64, *mut u8, u32, i32) -> u32;
        let mut context = 0;
        let answer = self.symbol::<Create>("cuCtxCreate_v4")(
            &raw mut context,
            std::ptr::null_mut(),
            0,
            device.cast_signed(),
        );
        assert_eq!(answer, 0, "the context is created");
        context
    }
    /// The oracle's verdict: the violation, if there is one.
    pub fn verdict(&self) -> Option<String> {
        self.text("millpond_fake_verdict")
    }
    /// What was not given back, one line each.
    pub fn leaks(&self) -> Option<String> {
        self.text("millpond_fake_leaks")
    }
    /// The reason of the last failed call.
    pub fn last_refusal(&self) -> Option<String> {
        self.text("millpond_fake_last_refusal")
    }
    /// How often a function was called.
    pub fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name");
        self.symbol::<extern "C" fn(*const c_char) -> u64>("millpond_fake_calls")(name.as_ptr())
    }
    /// How many calls there were.
    pub fn calls_total(&self) -> u64 {
        self.symbol::<extern "C" fn(*const c_char) -> u64>("millpond_fake_calls")(std::ptr::null())
    }
    /// The name of the call with this number.
    pub fn call_name(&self, number: u64) -> Option<String> {
        Fake::read(self.symbol::<extern "C" fn(u64) -> *const c_char>("millpond_fake_call_name")(number))
    }
    /// The call with this number fails.
    pub fn fail_call(&self, number: u64, code: u32) {
        self.symbol::<extern "C" fn(u64, u32)>("millpond_fake_fail_call")(number, code);
    }
    /// The `nth` call of a function from now on fails.
    pub fn fail_next(&self, name: &str, nth: u64, code: u32) {
        let name = CString::new(name).expect("a name");
        let plant = self.symbol::<extern "C" fn(*const c_char, u64, u32)>("millpond_fake_fail_next");
        plant(name.as_ptr(), nth, code);
    }
    /// The `nth` call of these functions from now on that the calling thread makes fails; 0 removes the fault.
    pub fn fail_here(&self, names: &[&str], nth: u64, code: u32) {
        let names = CString::new(names.join(",")).expect("names");
        let plant = self.symbol::<extern "C" fn(*const c_char, u64, u32)>("millpond_fake_fail_here_of");
        plant(names.as_ptr(), nth, code);
    }
    /// Runs this before the calling thread's next call of a function.
    pub fn before_here(&self, name: &str, what: extern "C" fn()) {
        let name = CString::new(name).expect("a name");
        self.symbol::<extern "C" fn(*const c_char, extern "C" fn())>("millpond_fake_before_here")(
            name.as_ptr(),
            what,
        );
    }
    /// The name of the call that the calling thread's last fault struck.
    pub fn struck_here(&self) -> Option<String> {
        self.text("millpond_fake_struck_here")
    }
    /// The next queries return "not ready".
    pub fn not_ready(&self, times: u32) {
        self.symbol::<extern "C" fn(u32)>("millpond_fake_not_ready")(times);
    }
    /// The next ranges of plain and of pinned memory are not aligned.
    pub fn askew(&self, times: u32) {
        self.symbol::<extern "C" fn(u32)>("millpond_fake_askew")(times);
    }
    /// After how many "not ready" results in a row a late device completes the queried work.
    pub fn patience(&self, times: u32) {
        self.symbol::<extern "C" fn(u32)>("millpond_fake_patience")(times);
    }
    /// The context is lost.
    pub fn lose_context(&self, code: u32) {
        self.symbol::<extern "C" fn(u32)>("millpond_fake_lose_context")(code);
    }
    /// The driver is shut down, as at the end of a process: every call returns 4.
    pub fn shut_down(&self) {
        self.symbol::<extern "C" fn()>("millpond_fake_shut_down")();
    }
    /// Sets the value that devices return for an attribute.
    pub fn attribute(&self, attribute: u32, value: i32) {
        self.symbol::<extern "C" fn(u32, i32)>("millpond_fake_attribute")(attribute, value);
    }
    /// Removes planted faults.
    pub fn clear_faults(&self) {
        self.symbol::<extern "C" fn()>("millpond_fake_clear_faults")();
    }
    /// Sets the version that the driver returns.
    pub fn driver_version(&self, version: u32) {
        self.symbol::<extern "C" fn(u32)>("millpond_fake_driver_version")(version);
    }
}
