//! Where the executables are that cargo has built: what a script cannot read out of cargo's messages without guessing at their shape.

use serde_json::Value;

/// The path of each target's executable, in the order of the names, from what cargo wrote with `--message-format=json`. A name that no
/// executable has, or two have, is an error: a script that goes on would run less, or another's.
pub(crate) fn of(messages: &str, names: &[String]) -> Result<Vec<String>, String> {
    let mut built: Vec<(String, String)> = Vec::new();
    for (number, line) in messages.lines().enumerate().filter(|(_, line)| line.starts_with('{')) {
        let message: Value =
            serde_json::from_str(line).map_err(|e| format!("message {}: {e}", number + 1))?;
        if message["reason"] != "compiler-artifact" {
            continue;
        }
        if let (Some(path), Some(name)) = (message["executable"].as_str(), message["target"]["name"].as_str())
        {
            built.push((name.to_owned(), path.to_owned()));
        }
    }
    let path_of = |name: &String| {
        let mut paths = built.iter().filter(|(built, _)| built == name).map(|(_, path)| path);
        match (paths.next(), paths.next()) {
            (Some(path), None) => Ok(path.clone()),
            (Some(one), Some(other)) => Err(format!("two executables are named {name}: {one}, {other}")),
            (None, _) => {
                let there: Vec<&str> = built.iter().map(|(name, _)| name.as_str()).collect();
                Err(format!("cargo built no executable {name}; it built {there:?}"))
            }
        }
    };
    names.iter().map(path_of).collect()
}

#[cfg(test)]
mod tests {
    use super::of;

    const MESSAGES: &str = r#"   Compiling millpond
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"millpond"},"executable":null}
{"reason":"build-script-executed","package_id":"x"}
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"millpond"},"executable":"/t/debug/deps/millpond-1"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"soak"},"executable":"/t/debug/deps/soak-2"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"soak"},"executable":"/t/debug/deps/soak-3"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"abi"},"executable":"/a folder/abi-4"}
{"reason":"build-finished","success":true}
"#;

    fn asked(names: &[&str]) -> Result<Vec<String>, String> {
        of(MESSAGES, &names.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn executables_come_in_the_order_of_their_names() {
        assert_eq!(asked(&["abi", "millpond"]).unwrap(), ["/a folder/abi-4", "/t/debug/deps/millpond-1"]);
    }

    #[test]
    fn one_that_is_missing_or_there_twice_is_an_error() {
        assert!(asked(&["abi", "gone"]).unwrap_err().contains("no executable gone; it built [\"millpond\""));
        assert!(asked(&["soak"]).unwrap_err().contains("soak-2, /t/debug/deps/soak-3"));
        assert!(of("{\"reason\":", &[]).is_err());
    }
}
