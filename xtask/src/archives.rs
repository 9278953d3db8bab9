//! The archives that cargo would publish: that there is one of each package, how large it is and what it must have in it.

use crate::Verdict;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// What each archive has at its root.
const WANTED: [&str; 4] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];
/// Bytes, at most.
const MOST: u64 = 1 << 20;

/// An archive: its file's name, its bytes, and the paths in it, a line each.
struct Archive {
    file: String,
    bytes: u64,
    paths: String,
}

impl Archive {
    /// Whether it is one of this package, whose name may begin another's.
    fn is_of(&self, package: &str) -> bool {
        let version = self.file.strip_prefix(package).and_then(|rest| rest.strip_prefix('-'));
        version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    }
}

/// The archives in cargo's folder, listed by tar, which has to be there.
fn read(folder: &Path) -> Result<Vec<Archive>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut archives = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "crate") {
            continue;
        }
        let listed = Command::new("tar").arg("-tzf").arg(&path).output().map_err(|e| format!("tar: {e}"))?;
        if !listed.status.success() {
            return Err(format!(
                "tar cannot read {}: {}",
                path.display(),
                String::from_utf8_lossy(&listed.stderr)
            ));
        }
        archives.push(Archive {
            file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            bytes: path.metadata().map_err(failed)?.len(),
            paths: String::from_utf8_lossy(&listed.stdout).into_owned(),
        });
    }
    Ok(archives)
}

/// A line for each package's archive, and one for each thing that is wrong with it.
fn verdict(archives: &[Archive], packages: &[String]) -> Verdict {
    let (mut text, mut is_good) = (String::new(), true);
    for package in packages {
        let of: Vec<&Archive> = archives.iter().filter(|archive| archive.is_of(package)).collect();
        let [archive] = of[..] else {
            let files: Vec<&str> = of.iter().map(|archive| archive.file.as_str()).collect();
            let _ = writeln!(text, "{package}: one archive is wanted, there are {}: {files:?}", of.len());
            is_good = false;
            continue;
        };
        let _ = writeln!(
            text,
            "{package}: {} KiB, {} files",
            archive.bytes / 1024,
            archive.paths.lines().count()
        );
        let root = archive.file.trim_end_matches(".crate");
        for wanted in WANTED {
            if !archive.paths.lines().any(|path| path == format!("{root}/{wanted}")) {
                let _ = writeln!(text, "{package} lacks {wanted}");
                is_good = false;
            }
        }
        if archive.bytes > MOST {
            let _ = writeln!(text, "{package} has {} bytes, and may have {MOST}", archive.bytes);
            is_good = false;
        }
    }
    Verdict { text, is_good }
}

/// What is in cargo's folder of archives, against what these packages must have.
pub(crate) fn judge(folder: &Path, packages: &[String]) -> Result<Verdict, String> {
    Ok(verdict(&read(folder)?, packages))
}

#[cfg(test)]
mod tests {
    use super::{Archive, MOST, judge, verdict};
    use std::path::Path;

    fn archive(file: &str, bytes: u64, names: &[&str]) -> Archive {
        let root = file.trim_end_matches(".crate");
        let paths = names.iter().fold(String::new(), |all, name| all + root + "/" + name + "\n");
        Archive { file: file.to_owned(), bytes, paths }
    }

    const ALL: [&str; 5] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"];

    fn judged(archives: &[Archive], packages: &[&str]) -> (String, bool) {
        let packages: Vec<String> = packages.iter().map(ToString::to_string).collect();
        let said = verdict(archives, &packages);
        (said.text, said.is_good)
    }

    #[test]
    fn an_archive_with_all_that_is_wanted_is_good() {
        let both = [archive("a-0.1.0.crate", MOST, &ALL), archive("a-b-0.1.0.crate", 2048, &ALL)];
        assert_eq!(
            judged(&both, &["a", "a-b"]),
            ("a: 1024 KiB, 5 files\na-b: 2 KiB, 5 files\n".to_owned(), true)
        );
    }

    #[test]
    fn one_that_is_large_or_lacks_a_file_at_its_root_is_not() {
        let said = judged(&[archive("a-0.1.0.crate", MOST + 1, &ALL)], &["a"]);
        assert!(!said.1 && said.0.contains("a has 1048577 bytes"), "{said:?}");
        let deeper = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "docs/README.md"];
        let said = judged(&[archive("a-0.1.0.crate", 1, &deeper)], &["a"]);
        assert!(!said.1 && said.0.ends_with("\na lacks README.md\n"), "{said:?}");
    }

    #[test]
    fn each_package_has_one_archive() {
        let old_and_new = [archive("a-0.1.0.crate", 1, &ALL), archive("a-0.2.0.crate", 1, &ALL)];
        let said = judged(&old_and_new, &["a"]);
        assert!(
            !said.1 && said.0.contains("there are 2: [\"a-0.1.0.crate\", \"a-0.2.0.crate\"]"),
            "{said:?}"
        );
        let said = judged(&[archive("a-b-0.1.0.crate", 1, &ALL)], &["a"]);
        assert!(!said.1 && said.0.contains("there are 0"), "{said:?}");
        assert!(judge(Path::new("no such folder"), &[]).is_err());
    }
}
