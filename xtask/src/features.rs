//! The features of a package.

/// Their names in order, `default` left out, so that a check that goes through all forgets none.
pub(crate) fn of(manifest: &str) -> Result<Vec<String>, String> {
    let manifest: toml::Table = manifest.parse().map_err(|e: toml::de::Error| e.to_string())?;
    let features = manifest.get("features").and_then(toml::Value::as_table).ok_or("it has no [features]")?;
    Ok(features.keys().filter(|name| *name != "default").cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn features_are_the_keys_of_their_table() {
        let manifest = "[package]\nname = \"x\"\n[features]\ndefault = [\"a\"]\nb-c = [\n  \"dep:d\",\n]\na = []\n[dependencies]\nd = \"1\"\n";
        assert_eq!(of(manifest).unwrap(), ["a", "b-c"]);
        assert!(of("[package]\n").is_err());
        assert!(of("[features\n").is_err());
    }
}
