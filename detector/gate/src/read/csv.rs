//! A line of comma-separated values, with quotes as in RFC 4180.

/// Returns the cells of a line.
pub(super) fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => {
                cell.push('"');
                chars.next();
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(std::mem::take(&mut cell)),
            c => cell.push(c),
        }
    }
    cells.push(cell);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_commas() {
        assert_eq!(cells("a,\"b,\"\"c\"\"\",,d"), ["a", "b,\"c\"", "", "d"]);
        assert_eq!(cells(""), [""]);
    }
}
