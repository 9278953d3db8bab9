//! Values in TOML files: versions that a script needs.

/// The text at a path of keys, `workspace.package.rust-version`.
pub(crate) fn at(file: &str, path: &str) -> Result<String, String> {
    let mut value = toml::Value::Table(file.parse().map_err(|e: toml::de::Error| e.to_string())?);
    for key in path.split('.') {
        value = value.get(key).cloned().ok_or_else(|| format!("it has no {path}"))?;
    }
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{path} is no text: {value}"))
}

/// The version of a package in a Cargo.lock.
pub(crate) fn locked(lock: &str, package: &str) -> Result<String, String> {
    let lock: toml::Table = lock.parse().map_err(|e: toml::de::Error| e.to_string())?;
    let packages = lock.get("package").and_then(toml::Value::as_array).ok_or("it has no packages")?;
    let mut versions = packages
        .iter()
        .filter(|p| p.get("name").and_then(toml::Value::as_str) == Some(package))
        .filter_map(|p| p.get("version").and_then(toml::Value::as_str));
    match (versions.next(), versions.next()) {
        (Some(version), None) => Ok(version.to_owned()),
        (Some(one), Some(other)) => Err(format!("it has {package} twice: {one} and {other}")),
        (None, _) => Err(format!("it has no {package}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{at, locked};

    #[test]
    fn a_value_is_found_by_its_keys() {
        let file = "[workspace.package]\nrust-version = \"1.95\"\nnumber = 3\n";
        assert_eq!(at(file, "workspace.package.rust-version").unwrap(), "1.95");
        for path in ["workspace.package.version", "rust-version", "workspace.package.number", ""] {
            assert!(at(file, path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_locked_version_is_the_only_one() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n[[package]]\nname = \"b\"\nversion = \"1.0.0\"\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\n";
        assert_eq!(locked(lock, "a").unwrap(), "1.2.3");
        assert!(locked(lock, "b").unwrap_err().contains("twice: 1.0.0 and 2.0.0"));
        assert!(locked(lock, "c").is_err());
        assert!(locked("", "a").is_err());
    }
}
