//! The machine that the process runs on: its memory, what a container allows of it, and which part of it is near a device.
//!
//! Read from Linux's files; elsewhere, and where a file is missing or says something unknown, the answer is that it is not known.
//! It does not know the driver, nor who takes the memory.

use millpond_driver::HostMemory;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where version 2 of control groups is mounted, and beneath which name version 1 has memory.
const GROUPS: &str = "/sys/fs/cgroup";

/// The machine's memory and the container's limit, read once a process.
pub(super) fn memory() -> Option<HostMemory> {
    static MEMORY: OnceLock<Option<HostMemory>> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let physical = kib(&text("/proc/meminfo")?, "MemTotal:")?;
        let limits = groups(&text("/proc/self/cgroup").unwrap_or_default(), Path::new(GROUPS));
        let limit = limits.iter().filter_map(|group| number(&group.limit)).min();
        // Version 1 says a huge number where there is no limit.
        Some(HostMemory::new(physical, limit.filter(|&limit| limit < physical)))
    })
}

/// How many bytes can be touched now without the system having to take memory from somebody: what is free, and files' pages that can go.
pub(super) fn available() -> Option<u64> {
    let machine = kib(&text("/proc/meminfo")?, "MemAvailable:")?;
    let limits = groups(&text("/proc/self/cgroup").unwrap_or_default(), Path::new(GROUPS));
    let rooms = limits.iter().filter_map(|group| {
        let used = number(&group.used)?;
        let cache = field(&text(&group.shares).unwrap_or_default(), group.inactive).unwrap_or(0);
        Some(number(&group.limit)?.saturating_sub(used.saturating_sub(cache)))
    });
    Some(rooms.fold(machine, u64::min))
}

/// The memory node that a device at this address of the PCI bus is near; `None` where there is one node only, or none is known.
pub(super) fn node_of(domain: i32, bus: i32, device: i32) -> Option<u32> {
    let path = format!("/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node");
    text(path)?.trim().parse().ok()
}

/// A control group's files.
#[derive(PartialEq, Eq, Debug)]
struct Group {
    limit: PathBuf,
    used: PathBuf,
    shares: PathBuf,
    /// The field of `shares` with the bytes of files that were not used lately.
    inactive: &'static str,
}

/// The groups that limit the process's memory: its own and those above it, of both versions. In a container its own is often the mount's root.
fn groups(of_process: &str, mount: &Path) -> Vec<Group> {
    let mut found = Vec::new();
    for line in of_process.lines() {
        // `0::/path` in version 2, `7:memory:/path` in version 1.
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let v2 = number == "0" && controllers.is_empty();
        if !v2 && controllers.split(',').all(|name| name != "memory") {
            continue;
        }
        let root = if v2 { mount.to_owned() } else { mount.join("memory") };
        let own = root.join(path.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&root));
        found.extend(folders.map(|folder| Group {
            limit: folder.join(if v2 { "memory.max" } else { "memory.limit_in_bytes" }),
            used: folder.join(if v2 { "memory.current" } else { "memory.usage_in_bytes" }),
            shares: folder.join("memory.stat"),
            inactive: if v2 { "inactive_file" } else { "total_inactive_file" },
        }));
    }
    found
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    if cfg!(target_os = "linux") { std::fs::read_to_string(path).ok() } else { None }
}

/// A file's number; `None` for `max` too.
fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_whitespace);
    words.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

/// The same, of a line in KiB.
fn kib(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       24689656 kB\nMemFree:          100 kB\nMemAvailable:   24000000 kB\n";
        assert_eq!(kib(text, "MemTotal:"), Some(24_689_656 << 10));
        assert_eq!(kib(text, "MemAvailable:"), Some(24_000_000 << 10));
        assert_eq!(
            (kib(text, "Mem"), kib("", "MemTotal:"), kib("MemTotal:\n", "MemTotal:")),
            (None, None, None)
        );
        assert_eq!(field("anon 5\ninactive_file 77\nactive_file 8", "inactive_file"), Some(77));
    }

    /// A limit of any group above the process's own binds it too.
    #[test]
    fn all_groups_above_count() {
        let limits = |of_process: &str| -> Vec<String> {
            let groups = groups(of_process, Path::new("/g"));
            groups.iter().map(|group| group.limit.display().to_string()).collect()
        };
        assert_eq!(limits("0::/a/b\n"), ["/g/a/b/memory.max", "/g/a/memory.max", "/g/memory.max"]);
        assert_eq!(limits("0::/\n"), ["/g/memory.max"]);
        let v1 = "9:cpu,cpuacct:/x\n7:memory:/docker/1\n0::/\n";
        assert_eq!(
            limits(v1),
            [
                "/g/memory/docker/1/memory.limit_in_bytes",
                "/g/memory/docker/memory.limit_in_bytes",
                "/g/memory/memory.limit_in_bytes",
                "/g/memory.max"
            ]
        );
        assert!(limits("").is_empty() && limits("nonsense").is_empty() && limits("3:cpu:/a").is_empty());
    }

    #[test]
    fn this_machine_says_something_plausible() {
        if !cfg!(target_os = "linux") {
            assert_eq!(memory(), None);
            return;
        }
        let memory = memory().expect("Linux has /proc/meminfo");
        assert!(memory.bytes() > 64 << 20 && memory.bytes() <= memory.physical, "{memory}");
        assert!(available().expect("known") <= memory.physical);
    }
}
