//! Descriptors that stand for simulated memory: files without a name that hold a few words.
//!
//! It does not know what the words mean.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a descriptor says.
pub(super) type Words = [u64; 4];

/// A descriptor that says this.
pub(super) fn write(words: &Words) -> io::Result<OwnedFd> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("millpond-sim-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all_at(&bytes, 0)?;
    Ok(file.into())
}

/// What this descriptor says.
pub(super) fn read(from: BorrowedFd<'_>) -> io::Result<Words> {
    let mut bytes = [0; size_of::<Words>()];
    File::from(from.try_clone_to_owned()?).read_exact_at(&mut bytes, 0)?;
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?);
    }
    Ok(words)
}
