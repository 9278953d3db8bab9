//! Reads from a module's text the names of its kernels and the lengths of their parameters.
//!
//! It understands just enough PTX for that: `.entry name ( .param .u64 first, .param .u32 second )`. It does not know what
//! kernels do.

/// A kernel as its text declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The length of each parameter in bytes.
    pub(crate) parameters: Vec<usize>,
}

/// The length in bytes of a type such as `.u64`.
fn length(kind: &str) -> Option<usize> {
    let bits: usize = kind.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
    (kind.starts_with('.') && matches!(bits, 8 | 16 | 32 | 64)).then_some(bits / 8)
}

/// The text without `//` comments.
fn without_comments(text: &str) -> String {
    text.lines().map(|l| l.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// All kernels of a module, or `None` if the text is not PTX.
pub(crate) fn entries(text: &str) -> Option<Vec<Entry>> {
    let text = without_comments(text);
    if !text.trim_start().starts_with(".version") {
        return None;
    }
    let mut found = Vec::new();
    for piece in text.split(".entry").skip(1) {
        let head = piece.split('{').next()?;
        let (name, rest) = head.split_once('(').unwrap_or((head, ""));
        let list = rest.split(')').next().unwrap_or("");
        let mut parameters = Vec::new();
        for parameter in list.split(',').filter(|p| !p.trim().is_empty()) {
            parameters.push(parameter.split_whitespace().find_map(length)?);
        }
        found.push(Entry { name: name.trim().to_owned(), parameters });
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_parameters_are_read() {
        let text = "// a comment with .entry in it\n.version 7.0\n.target sm_70\n.address_size 64\n\n\
            .visible .entry fill(\n\t.param .u64 fill_param_0,\n\t.param .u32 fill_param_1\n)\n{\n ret;\n}\n\
            .visible .entry nothing()\n.maxntid 256\n{ ret; }\n.entry last(.param .align 8 .b64 a) { ret; }";
        let entry = |name: &str, p: &[usize]| Entry { name: name.into(), parameters: p.to_vec() };
        let expected = [entry("fill", &[8, 4]), entry("nothing", &[]), entry("last", &[8])];
        assert_eq!(entries(text).expect("it is PTX"), expected);
    }

    #[test]
    fn what_is_no_module_is_refused() {
        assert_eq!(entries("\u{7f}ELF"), None);
        assert_eq!(
            entries(".version 7.0\n.entry f(.param .texref t) {}"),
            None,
            "a parameter of unknown length"
        );
    }
}
