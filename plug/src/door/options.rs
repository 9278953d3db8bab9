//! An allocator's options, as text. It does not know their effect.

use crate::status::{Failure, MillpondStatus as Status};
use hashbrown::HashMap;
use pond::Config;

/// Options as text, `limit=40%,policy=footprint`, over the environment's; and whether captures are expected.
pub(super) fn config(options: &str) -> Result<(Config, bool), Failure> {
    const NAMES: [&str; 9] = [
        "limit",
        "pinned_limit",
        "policy",
        "reuse",
        "growth",
        "deterministic",
        "scrub",
        "wait_ms",
        "captures",
    ];
    const CAPTURES: &str = "MILLPOND_CAPTURES";
    let mut given = HashMap::new();
    for option in options.split(',').map(str::trim).filter(|o| !o.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let name = name.trim().to_ascii_lowercase();
        if !NAMES.contains(&name.as_str()) || value.trim().is_empty() {
            let known = NAMES.join(", ");
            let message = format!(
                "{option:?} is no option: options are NAME=VALUE, separated by commas; the names are {known}"
            );
            return Err(Failure::new(Status::BadArgument, message));
        }
        given.insert(format!("MILLPOND_{}", name.to_ascii_uppercase()), value.trim().to_owned());
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
