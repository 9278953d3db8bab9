//! Rust's lexical shape: what of a source is code, what comment, what test. The program that counts lines (xtask) reads by it too.

/// The source with comments, strings and character literals blanked, so that every line and column stays where it was.
pub(crate) fn code_only(source: &str) -> String {
    blanked(source, true)
}

/// The source with its comments blanked, and literals too where they are to be.
fn blanked(source: &str, with_literals: bool) -> String {
    let text: Vec<char> = source.chars().collect();
    let mut out = text.clone();
    let at = |i: usize| text.get(i).copied().unwrap_or('\0');
    let mut i = 0;
    while i < text.len() {
        let end = match (text[i], at(i + 1)) {
            ('/', '/') => (i..text.len()).find(|&j| text[j] == '\n').unwrap_or(text.len()),
            ('/', '*') => end_of_block_comment(&text, i),
            ('"', _) => end_of_string(&text, i),
            ('r', '"' | '#') if !(i > 0 && is_word(text[i - 1]) && text[i - 1] != 'b') => {
                end_of_raw_string(&text, i)
            }
            // 'x' and '\n' are characters; 'a on its own is a lifetime.
            ('\'', '\\') => (i + 3..text.len()).find(|&j| text[j] == '\'').map_or(text.len(), |j| j + 1),
            ('\'', _) if at(i + 2) == '\'' => i + 3,
            _ => i,
        };
        if text[i] == '/' || with_literals {
            for slot in &mut out[i..end] {
                if *slot != '\n' {
                    *slot = ' ';
                }
            }
        }
        i = end.max(i + 1);
    }
    out.into_iter().collect()
}

/// Whether a character may be part of a name.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn end_of_block_comment(text: &[char], start: usize) -> usize {
    let (mut i, mut depth) = (start + 2, 1);
    while i < text.len() && depth > 0 {
        match (text[i], text.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 1),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 1),
            _ => {}
        }
        i += 1;
    }
    i.min(text.len())
}

fn end_of_string(text: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < text.len() && text[i] != '"' {
        i += if text[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(text.len())
}

/// `r"…"`, `r#"…"#` and so on; `start` itself where it is no string but a raw name such as `r#type`.
fn end_of_raw_string(text: &[char], start: usize) -> usize {
    let hashes = text[start + 1..].iter().take_while(|&&c| c == '#').count();
    if text.get(start + 1 + hashes) != Some(&'"') {
        return start;
    }
    let closes =
        |j: &usize| text[*j] == '"' && text[j + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
    (start + 2 + hashes..text.len()).find(closes).map_or(text.len(), |j| j + 1 + hashes)
}

/// Where tests begin: an item behind one of these is built for them alone.
const TEST: [&str; 2] = ["#[cfg(test)]", "#[cfg(all(test,"];

/// The code of a file without its tests: each item behind `#[cfg(test)]` is blanked, lines stay where they were.
pub(crate) fn without_tests(source: &str) -> String {
    let mut code = code_only(source);
    while let Some(start) = TEST.iter().filter_map(|test| code.find(test)).min() {
        let item = &code[start..];
        // The item ends with its braces, or with a semicolon before any.
        let (mut depth, mut end) = (0_usize, item.len());
        for (i, c) in item.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 && (c == '}' || c == ';') {
                end = i + 1;
                break;
            }
        }
        let blank: String = item[..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        code.replace_range(start..start + end, &blank);
    }
    code
}

/// How many lines of a source are code: neither blank nor comment nor test. A line within a string is code.
pub(crate) fn code_lines(source: &str) -> usize {
    let (all, code) = (blanked(source, false), code_only(source));
    let kept = without_tests(source);
    let (mut lines, mut in_test) = (0, false);
    for ((text, code), kept) in all.lines().zip(code.lines()).zip(kept.lines()) {
        let (has_code, is_kept) = (!code.trim().is_empty(), !kept.trim().is_empty());
        // Lines that are all literal belong to what stands before them.
        in_test = if has_code { !is_kept } else { in_test };
        lines += usize::from(!text.trim().is_empty() && !in_test);
    }
    lines
}
