//! Nanoseconds to open a file below a folder by a path of three names, and to find that there is none:
//! `cargo run --release -p tailrace-files --example resolve_speed`. The best of several rounds: other load on the
//! machine can only add time.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use tailrace_files::resolve::{Links, Root};
use tailrace_http::static_path::{DotFiles, decode};

fn main() {
    let folder = std::env::temp_dir().join(format!("tailrace-speed-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("css/themes")).unwrap();
    std::fs::write(folder.join("css/themes/dark.css"), "body {}").unwrap();
    let path = |text: &str| decode(text.as_bytes(), DotFiles::WellKnown).unwrap();
    let file = path("/css/themes/dark.css");
    let directory = path("/css/themes/");
    let missing = path("/css/themes/none.css");
    let nanoseconds = best(200_000, || {
        black_box(decode(black_box(b"/css/themes/dark.css"), DotFiles::WellKnown)).unwrap();
    });
    println!("decode                      {nanoseconds:>7.0} ns");
    for links in [Links::Beneath, Links::Never, Links::Follow] {
        let open = || Root::open(&folder, links).unwrap();
        for (name, root) in [("kernel", open()), ("walk", open().without_openat2())] {
            // There is no other way to follow all links than the kernel's.
            if links == Links::Follow && name == "walk" {
                continue;
            }
            for (what, path) in [("file", &file), ("folder", &directory), ("none", &missing)] {
                let nanoseconds = best(20_000, || drop(black_box(root.resolve(black_box(path)))));
                println!("{:<8} {name:<8} {what:<8} {nanoseconds:>9.0} ns", format!("{links:?}"));
            }
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

fn best(count: u32, mut call: impl FnMut()) -> f64 {
    let mut round = || {
        let start = Instant::now();
        (0..count).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    };
    (0..9).map(|_| round()).fold(f64::INFINITY, f64::min)
}
