//! An allocator's options, as text. It does not know their effect.

use crate::status::{Failure, MillpondStatus as Status};
use hashbrown::HashMap;
use pond::Config;
use pond::allocator::Variable;

/// Whether captures are expected, which is no option of the allocator's but of the device's.
const CAPTURES: &str = "MILLPOND_CAPTURES";

/// The variables of all options.
fn variables() -> impl Iterator<Item = &'static str> {
    Config::VARIABLES.iter().map(Variable::name).chain([CAPTURES])
}

/// Options as text, `limit=40%,policy=footprint`, over the environment's; and whether captures are expected.
pub(super) fn config(options: &str) -> Result<(Config, bool), Failure> {
    let mut given = HashMap::new();
    for option in options.split(',').map(str::trim).filter(|o| !o.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let name = format!("MILLPOND_{}", name.trim().to_ascii_uppercase());
        if !variables().any(|known| known == name) || value.trim().is_empty() {
            let known: Vec<_> =
                variables().map(|v| v.trim_start_matches("MILLPOND_").to_ascii_lowercase()).collect();
            let known = known.join(", ");
            let message = format!(
                "{option:?} is no option: options are NAME=VALUE, separated by commas; the names are {known}"
            );
            return Err(Failure::new(Status::BadArgument, message));
        }
        given.insert(name, value.trim().to_owned());
    }
    let said = match given.get(CAPTURES) {
        Some(said) => said.clone(),
        None => std::env::var_os(CAPTURES).unwrap_or_default().into_string().map_err(|raw| {
            pond::Error::Config {
                name: CAPTURES,
                found: raw.to_string_lossy().into(),
                expected: "text in UTF-8",
            }
        })?,
    };
    let captures = match said.trim() {
        "" | "expected" => true,
        "none" => false,
        other => {
            let message = format!("captures is {other:?}: it is expected or none");
            return Err(Failure::new(Status::BadArgument, message));
        }
    };
    Ok((Config::from_env_and(|name| given.get(name).cloned())?, captures))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written for users of each language names every option.
    #[test]
    fn the_documents_have_the_names() {
        let refused = config("no such").unwrap_err();
        for document in [
            include_str!("../ffi.rs"),
            include_str!("../../millpond.h"),
            include_str!("../../README.md"),
            include_str!("../../python/millpond/__init__.py"),
            include_str!("../../python/millpond/__init__.pyi"),
        ] {
            for name in variables() {
                let name = name.trim_start_matches("MILLPOND_").to_ascii_lowercase();
                assert!(document.contains(&name) && refused.message.contains(&name), "{name}");
            }
        }
    }
}
