//! Finds figures by their names in the text that `millpond_stats_json` writes. It does not know what they mean.

/// The number of the first field of this name; `None` for null.
pub(crate) fn number(text: &str, name: &str) -> Option<u64> {
    let (_, rest) = text.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name} in {text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The same for the whole report: what the allocator has reserved comes after the pools' fields of that name.
pub(crate) fn field(stats: &str, name: &str) -> u64 {
    // The names are sorted.
    let (_, behind_pools) = stats.split_once("\"releases\":").expect("a field");
    let of = if name.starts_with("reserved") { behind_pools } else { stats };
    number(of, name).unwrap_or_else(|| panic!("{name} is a number in {stats}"))
}
