//! Anonymous memory for large pinned segments: reserved, placed, touched, and given back to the system.
//!
//! The driver's own call touches pages one by one on one thread, which is most of what it costs. Here several threads do (DESIGN.md, what the driver
//! costs), on huge pages where the system has them, which are fewer to touch and to register. Only Linux is known; elsewhere there are no such pages
//! and the driver's call serves. This file does not know the driver.
//!
//! A value does not give its memory back when it is dropped: memory that the driver did not unregister must stay.

use core::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// A huge page: the alignment of the memory, and the unit in which it is divided among threads.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;
/// Every page's size is a multiple of this: one byte in each is touched.
const PAGE: usize = 4096;
/// More threads touch no faster (H200 machine, 16 cores).
const MOST_THREADS: usize = 8;
/// What one thread touches in the time that another one takes to start, many times over.
const LEAST_PART: usize = 8 << 20;

/// What a context has learnt of registering pages.
#[derive(Default)]
pub(super) struct Registering {
    /// The driver said that it never registers memory: nothing is touched in vain again.
    pub(super) refused: AtomicBool,
    /// Whether the device has registered memory at the CPU's address, once it was queried.
    pub(super) same_address: OnceLock<bool>,
    /// The memory node near the device.
    pub(super) node: OnceLock<Option<u32>>,
}

/// A range of anonymous memory, from a multiple of 2 MiB on.
#[derive(Debug)]
pub(super) struct Pages {
    at: NonNull<u8>,
    bytes: usize,
}

#[allow(unsafe_code, reason = "memory that has one owner")]
// SAFETY: the memory is the value's own, as a box's is.
unsafe impl Send for Pages {}

impl Pages {
    pub(super) fn at(&self) -> NonNull<u8> {
        self.at
    }
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "calls of the system")]
impl Pages {
    /// Reserves memory near a node, if one is known, of which no page is there yet; `None` if the system has none.
    ///
    /// A child that the process forks does not have it. Otherwise the parent's next write would move its page, and the device would go on with the
    /// child's: systems since 2021 prevent that for pages that drivers pin as they should, older ones do not.
    pub(super) fn reserve(bytes: usize, node: Option<u32>) -> Option<Pages> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?;
        let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let room = bytes.checked_add(HUGE)?;
        // SAFETY: new memory at an address of the system's choice.
        let found = unsafe { libc::mmap(core::ptr::null_mut(), room, access, how, -1, 0) };
        if found == libc::MAP_FAILED {
            return None;
        }
        let found = NonNull::new(found.cast::<u8>())?;
        // What lies in front of the first huge page, and what is left behind the last page.
        let front = found.addr().get().next_multiple_of(HUGE) - found.addr().get();
        // SAFETY: less than a huge page further on, which the room has besides the bytes.
        let at = unsafe { found.add(front) };
        let pages = Pages { at, bytes };
        // SAFETY: all but the bytes, of memory that nobody has seen.
        unsafe {
            if front > 0 {
                libc::munmap(found.as_ptr().cast(), front);
            }
            libc::munmap(at.add(bytes).as_ptr().cast(), HUGE - front);
        }
        // A system that knows no such advice has the memory all the same, and is slower.
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTFORK] {
            // SAFETY: memory of this value; neither changes what is in it.
            let _ = unsafe { libc::madvise(at.as_ptr().cast(), bytes, advice) };
        }
        if let Some(node) = node {
            pages.prefer(node);
        }
        Some(pages)
    }

    /// Places pages on a node as long as it has some. Not by force: on a full node that would end a process, where others have memory.
    fn prefer(&self, node: u32) {
        const WORDS: usize = 16;
        let mut nodes = [0_u64; WORDS];
        let Some(word) = nodes.get_mut(node as usize / 64) else { return };
        *word = 1 << (node % 64);
        // SAFETY: memory of this value, and a set of nodes that the kernel reads: so many bits, and one more by its own way of counting.
        unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.at.as_ptr(),
                self.bytes,
                libc::MPOL_PREFERRED,
                nodes.as_ptr(),
                WORDS * 64 + 1,
                0,
            )
        };
    }

    /// Has the system put a page of zeroes behind every address, by several threads, which have ended when this returns.
    pub(super) fn touch(&self) {
        let part = part_of(self.bytes, std::thread::available_parallelism().map_or(1, usize::from));
        let parts = (0..self.bytes).step_by(part).map(|from| {
            // SAFETY: inside the memory.
            let at = unsafe { self.at.add(from) };
            Part { at, bytes: part.min(self.bytes - from) }
        });
        std::thread::scope(|scope| {
            let (mut here, mut threads) = (None, Vec::new());
            for part in parts {
                // One is left for this thread. A thread that cannot be had leaves its part too.
                let part = match here {
                    None => here.replace(part),
                    Some(_) => Some(part),
                };
                let Some(part) = part else { continue };
                let thread = std::thread::Builder::new().name("millpond pins".into());
                match thread.spawn_scoped(scope, move || part.touch()) {
                    Ok(thread) => threads.push(thread),
                    Err(_) => part.touch(),
                }
            }
            if let Some(part) = here {
                part.touch();
            }
            // The scope waits for what they do; this, for the threads themselves: a child that is forked has nothing of them.
            for thread in threads {
                let _ = thread.join();
            }
        });
    }

    /// Gives the memory back to the system.
    ///
    /// # Safety
    /// Nothing uses it: neither a reference nor a device.
    pub(super) unsafe fn unmap(self) {
        // SAFETY: a whole range of `reserve`; the value ends here. It can only fail for a range that is none.
        let _ = unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code, reason = "as elsewhere")]
impl Pages {
    pub(super) fn reserve(_: usize, _: Option<u32>) -> Option<Pages> {
        None
    }
    pub(super) fn touch(&self) {}
    /// # Safety
    /// There are none here.
    pub(super) unsafe fn unmap(self) {}
}

/// How many bytes a thread touches: whole huge pages, so that no two threads meet in one.
#[cfg(target_os = "linux")]
fn part_of(bytes: usize, cores: usize) -> usize {
    let threads = (bytes / LEAST_PART).clamp(1, cores.clamp(1, MOST_THREADS));
    bytes.div_ceil(threads).next_multiple_of(HUGE)
}

/// What one thread touches.
#[derive(Clone, Copy)]
struct Part {
    at: NonNull<u8>,
    bytes: usize,
}

#[allow(unsafe_code, reason = "each thread has a part of its own")]
// SAFETY: parts are disjoint, and of memory that nobody else has seen.
unsafe impl Send for Part {}

impl Part {
    #[allow(unsafe_code, reason = "memory that is not there until it is written")]
    fn touch(self) {
        let value = if mutant!(CudaDirtyPages) { 0xD1 } else { 0 };
        for page in (0..self.bytes).step_by(PAGE) {
            // SAFETY: inside the part, which is readable and writable. Volatile, because a zero where zeroes are is no change.
            unsafe { self.at.add(page).write_volatile(value) };
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn parts_are_whole_huge_pages_and_few() {
        for bytes in [1, 64 * MIB, 65 * MIB + 512, 1 << 30, 5 << 30] {
            for cores in [0, 1, 2, 7, 8, 200] {
                let part = part_of(bytes, cores);
                assert!(part > 0 && part.is_multiple_of(HUGE));
                assert!(bytes.div_ceil(part) <= cores.clamp(1, MOST_THREADS), "{bytes} by {cores}: {part}");
            }
        }
        assert_eq!(part_of(64 * MIB, 16), 8 * MIB);
        assert_eq!(part_of(16 * MIB, 16), 8 * MIB, "fewer threads for less");
        assert_eq!(part_of(1 << 30, 16), 128 * MIB);
    }

    #[test]
    #[allow(unsafe_code, reason = "memory by its address")]
    fn memory_is_aligned_zero_and_writable_to_its_last_byte() {
        for (bytes, node) in [(512, None), (3 * MIB + 512, Some(0)), (40 * MIB, Some(5000))] {
            let pages = Pages::reserve(bytes, node).expect("a machine has a few MiB");
            pages.touch();
            assert!(pages.at().addr().get().is_multiple_of(HUGE) && pages.bytes() >= bytes);
            // SAFETY: the memory is live and has no other reference.
            let all = unsafe { core::slice::from_raw_parts_mut(pages.at().as_ptr(), pages.bytes()) };
            assert!(all.iter().all(|&b| b == 0));
            all.fill(7);
            // SAFETY: the reference ended above.
            unsafe { pages.unmap() };
        }
        assert!(Pages::reserve(usize::MAX, None).is_none() && Pages::reserve(usize::MAX / 2, None).is_none());
    }
}
