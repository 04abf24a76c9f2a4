//! The page with the files of a folder: finding them, sorting them, and their HTML.
//!
//! Decisions:
//! - The server sorts, by links (`?sort=size&order=desc`), so the page needs no script, and its
//!   Content-Security-Policy allows none.
//! - A name is shown if a request for it would be answered with a file or a folder: dot files, names that are not UTF-8
//!   or have control characters, and links that are not followed are left out.
//! - A name that could make others look different shows its characters for the direction of text by their numbers.
//! - Each link begins with `./`, so that no name is taken for a scheme.
//! - Nothing is kept: a page of 10,000 files takes 75 ms, and `turns.rs` bounds how many are made at once.
//!
//! [`rows`] blocks on the disk; the rest are pure functions.

use std::fmt::Write;
use std::io;
use std::os::fd::BorrowedFd;

use jiff::Timestamp;
use tailrace_http::static_path::{DotFiles, RelativePath, decode, encode};

use crate::os::folder::names;
use crate::os::resolve::{Found, Metadata, Root};

/// Names of a folder that are looked at.
const MOST_NAMES: usize = 100_000;
/// Of these, those that are shown.
const MOST_ROWS: usize = 10_000;
/// Bytes of a page, about: no client makes the server hold more. Names can be long.
const MOST_BYTES: usize = 4 << 20;

const STYLE: &str = include_str!("listing.css");
/// With the hash of [`STYLE`], which a test computes.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'sha256-xK5YAs5rz9tB3hBVk121uRiR9ta26dPE3bxAAr3Rgmg='; \
                                 img-src data:; base-uri 'none'; form-action 'none'";

/// A file or a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    name: String,
    /// `None`: a folder.
    size: Option<u64>,
    /// In seconds since 1970.
    modified: i64,
}

/// What is in a folder.
pub(super) struct Rows {
    rows: Vec<Row>,
    /// There is more than that.
    is_cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    Size,
    Date,
}

/// How the rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    key: Key,
    is_descending: bool,
}

impl Order {
    /// That of the request's query. What is unknown in it counts as not given.
    pub(super) fn of(query: &[u8]) -> Self {
        let mut order = Self { key: Key::Name, is_descending: false };
        for pair in query.split(|&byte| byte == b'&') {
            match pair {
                b"sort=name" => order.key = Key::Name,
                b"sort=size" => order.key = Key::Size,
                b"sort=date" => order.key = Key::Date,
                b"order=asc" => order.is_descending = false,
                b"order=desc" => order.is_descending = true,
                _ => {}
            }
        }
        order
    }

    fn sort(self, rows: &mut [Row]) {
        // Of two rows that are equal otherwise the name decides. Folders come first in both directions.
        rows.sort_by_cached_key(|row| (row.name.to_lowercase(), row.name.clone()));
        let compared = |a: &Row, b: &Row| match self.key {
            Key::Name => std::cmp::Ordering::Equal,
            Key::Size => a.size.cmp(&b.size),
            Key::Date => a.modified.cmp(&b.modified),
        };
        if self.is_descending && self.key == Key::Name {
            rows.reverse();
        } else {
            rows.sort_by(|a, b| if self.is_descending { compared(b, a) } else { compared(a, b) });
        }
        rows.sort_by_key(|row| row.size.is_some());
    }
}

/// What can be served of a folder, up to [`MOST_ROWS`], the first by their names. path: that of the folder below the
/// root.
///
/// # Errors
/// The folder cannot be listed.
pub(super) fn rows(root: &Root, path: &RelativePath, folder: BorrowedFd<'_>, dot_files: DotFiles) -> io::Result<Rows> {
    let mut found = names(folder, MOST_NAMES)?;
    found.names.sort_unstable();
    let above = if path.as_str().is_empty() { String::new() } else { format!("/{}", encode(path.as_str())) };
    let mut rows = Vec::new();
    for name in found.names {
        let Ok(name) = String::from_utf8(name) else { continue };
        // As a request would name it.
        let Ok(path) = decode(format!("{above}/{}", encode(&name)).as_bytes(), dot_files) else { continue };
        let (size, modified) = match root.resolve(&path) {
            Ok(Found::File { metadata: Metadata { size, modified, .. }, .. }) => (Some(size), modified),
            Ok(Found::Directory { metadata, .. }) => (None, metadata.modified),
            Err(_) => continue,
        };
        if rows.len() == MOST_ROWS {
            return Ok(Rows { rows, is_cut: true });
        }
        rows.push(Row { name, size, modified });
    }
    Ok(Rows { rows, is_cut: found.is_cut })
}

/// The page. path: that of the folder, decoded, with a slash at its end. has_parent: the folder around it is served,
/// too.
pub(super) fn page(path: &str, has_parent: bool, found: Rows, order: Order) -> String {
    let Rows { mut rows, mut is_cut } = found;
    order.sort(&mut rows);
    let mut table = String::new();
    let (mut folders, mut files) = (0, 0);
    if has_parent {
        table.push_str("<tr><td><a href=\"../\">../</a><td><td>\n");
    }
    for row in &rows {
        if table.len() > MOST_BYTES {
            is_cut = true;
            break;
        }
        *(if row.size.is_some() { &mut files } else { &mut folders }) += 1;
        add_row(&mut table, row);
    }
    let shown = shown(path);
    let heads: String = [(Key::Name, "Name"), (Key::Size, "Size"), (Key::Date, "Modified<small> (UTC)</small>")]
        .into_iter()
        .map(|(key, label)| heading(key, label, order))
        .collect();
    let cut = if is_cut { " More entries are not shown." } else { "" };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{shown}</title>\n<style>{STYLE}</style>\n\
         <h1><bdi>{shown}</bdi></h1>\n<p>{}, {}.{cut}</p>\n\
         <table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{table}</tbody>\n</table>\n</html>\n",
        counted(folders, "folder"),
        counted(files, "file"),
    )
}

fn add_row(table: &mut String, row: &Row) {
    let slash = if row.size.is_none() { "/" } else { "" };
    let href = escaped(&encode(&row.name));
    // Writing to a string does not fail.
    let _ = write!(table, "<tr><td><a href=\"./{href}{slash}\"><bdi>{}</bdi>{slash}</a>", shown(&row.name));
    let _ = match row.size {
        Some(size) => write!(table, "<td title=\"{}\">{}", counted(size, "byte"), readable(size)),
        None => write!(table, "<td>"),
    };
    let _ = match Timestamp::from_second(row.modified).map(|moment| moment.to_string()) {
        Ok(date) if date.len() == 20 => {
            let (day, minute) = (&date[..10], &date[11..16]);
            writeln!(table, "<td><time datetime=\"{date}\" title=\"{date}\">{day}<span> {minute}</span></time>")
        }
        // Before the year 0.
        _ => writeln!(table, "<td>"),
    };
}

/// The head of a column: a link that sorts by it, or the other way round if it is sorted by already.
fn heading(key: Key, label: &str, order: Order) -> String {
    let is_current = order.key == key;
    let name = match key {
        Key::Name => "name",
        Key::Size => "size",
        Key::Date => "date",
    };
    let next = if is_current && !order.is_descending { "desc" } else { "asc" };
    let (state, arrow) = match (is_current, order.is_descending) {
        (false, _) => ("", ""),
        (true, false) => (" aria-sort=\"ascending\"", " <span aria-hidden=\"true\">\u{2191}</span>"),
        (true, true) => (" aria-sort=\"descending\"", " <span aria-hidden=\"true\">\u{2193}</span>"),
    };
    format!("<th scope=\"col\"{state}><a href=\"?sort={name}&amp;order={next}\">{label}{arrow}</a>")
}

/// Text for HTML, also in attributes.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            other => html.push(other),
        }
    }
    html
}

/// A name for HTML. Characters that change the direction or the lines of the text are shown by their numbers.
fn shown(name: &str) -> String {
    let mut html = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
                let _ = write!(html, "[U+{:04X}]", u32::from(character));
            }
            other => html.push(other),
        }
    }
    escaped(&html)
}

/// `1 file`, `12,345 bytes`.
fn counted(number: u64, noun: &str) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    let plural = if number == 1 { "" } else { "s" };
    format!("{text} {noun}{plural}")
}

/// A size with at least two figures: `512 B`, `1.5 KiB`, `12 MiB`.
fn readable(size: u64) -> String {
    let (mut unit, mut tenths) = ("B", size.saturating_mul(10));
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if tenths < 10_240 {
            break;
        }
        (unit, tenths) = (larger, tenths.div_ceil(1_024));
    }
    if unit == "B" || tenths >= 100 {
        format!("{} {unit}", tenths / 10)
    } else {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, Order, Row, Rows, counted, page, readable};

    fn row(name: &str, size: Option<u64>, modified: i64) -> Row {
        Row { name: name.to_owned(), size, modified }
    }

    fn sorted(query: &str) -> Vec<String> {
        let mut rows = vec![
            row("b", Some(1), 30),
            row("z", None, 40),
            row("A", Some(3), 20),
            row("c", Some(2), 10),
            row("y", None, 50),
        ];
        Order::of(query.as_bytes()).sort(&mut rows);
        rows.into_iter().map(|row| row.name).collect()
    }

    fn of(rows: Vec<Row>) -> String {
        page("/a/", true, Rows { rows, is_cut: false }, Order { key: Key::Name, is_descending: false })
    }

    #[test]
    fn folders_come_first_in_every_order() {
        for (query, wanted) in [
            ("", ["y", "z", "A", "b", "c"]),
            ("sort=name&order=desc", ["z", "y", "c", "b", "A"]),
            ("sort=size", ["y", "z", "b", "c", "A"]),
            ("order=desc&sort=size", ["y", "z", "A", "c", "b"]),
            ("sort=date&order=asc", ["z", "y", "c", "A", "b"]),
            ("sort=date&order=desc", ["y", "z", "b", "A", "c"]),
            ("sort=<script>&order=up", ["y", "z", "A", "b", "c"]),
        ] {
            assert_eq!(sorted(query), wanted, "{query}");
        }
    }

    #[test]
    fn names_are_text_and_their_links_are_paths() {
        let html = of(vec![
            row("<script>alert(1)", Some(1), 0),
            row("\"onclick='x'&amp;", Some(1), 0),
            row("javascript:alert(1)", Some(1), 0),
            row("a?b#c %", None, 0),
            row("evil\u{202e}gpj.exe", Some(1), 0),
        ]);
        for part in [
            "<a href=\"./%3Cscript%3Ealert(1)\"><bdi>&lt;script&gt;alert(1)</bdi></a>",
            "<a href=\"./%22onclick=&#39;x&#39;&amp;amp;\"><bdi>&quot;onclick=&#39;x&#39;&amp;amp;</bdi></a>",
            "<a href=\"./javascript:alert(1)\">",
            "<a href=\"./a%3Fb%23c%20%25/\"><bdi>a?b#c %</bdi>/</a>",
            "<a href=\"./evil%E2%80%AEgpj.exe\"><bdi>evil[U+202E]gpj.exe</bdi></a>",
        ] {
            assert!(html.contains(part), "{part}\n{html}");
        }
        assert!(!html.contains("<script") && !html.contains('\u{202e}'));
    }

    #[test]
    fn sizes_and_dates_are_readable_and_exact() {
        let html = of(vec![row("a", Some(1_234_567), 1_700_000_000), row("b", Some(0), i64::MIN)]);
        assert!(html.contains(
            "<td title=\"1,234,567 bytes\">1.2 MiB<td><time datetime=\"2023-11-14T22:13:20Z\" \
             title=\"2023-11-14T22:13:20Z\">2023-11-14<span> 22:13</span></time>"
        ));
        assert!(html.contains("<td title=\"0 bytes\">0 B<td>\n"));
        assert!(html.contains("<p>0 folders, 2 files.</p>"));
        assert_eq!((counted(1, "file"), counted(123, "file")), (String::from("1 file"), String::from("123 files")));
        for (size, wanted) in [
            (1_023, "1023 B"),
            (1_024, "1.0 KiB"),
            (1_536, "1.5 KiB"),
            (20_000, "19 KiB"),
            (1 << 20, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (3 << 50, "3072 TiB"),
        ] {
            assert_eq!(readable(size), wanted);
        }
        assert!(!readable(u64::MAX).is_empty());
    }

    #[test]
    fn a_page_is_bounded_and_says_so() {
        let long = "<".repeat(255);
        let html = of((0..10_000).map(|_| row(&long, Some(1), 0)).collect());
        assert!(html.len() < 5 << 20, "{}", html.len());
        assert!(html.contains("More entries are not shown."));
    }

    #[test]
    fn the_heads_of_the_columns_sort() {
        let head =
            |query: &str| page("/", false, Rows { rows: Vec::new(), is_cut: false }, Order::of(query.as_bytes()));
        let html = head("sort=size");
        assert!(html.contains("aria-sort=\"ascending\"><a href=\"?sort=size&amp;order=desc\">Size"));
        assert!(html.contains("<th scope=\"col\"><a href=\"?sort=name&amp;order=asc\">Name</a>"));
        assert!(
            head("sort=size&order=desc").contains("aria-sort=\"descending\"><a href=\"?sort=size&amp;order=asc\">")
        );
        assert!(!html.contains("../"));
    }
}
