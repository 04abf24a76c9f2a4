//! Accept-Encoding (RFC 9110 section 12.5.3).

use tailrace_http::coding::Coding::{self, Brotli, Gzip, Identity, Zstd};
use tailrace_http::coding::preferred;

fn chosen(fields: &[&str], available: &[Coding]) -> Coding {
    preferred(fields.iter().map(|field| field.as_bytes()), available)
}

#[test]
fn the_coding_that_the_client_prefers() {
    let all = [Brotli, Zstd, Gzip];
    let cases: [(&[&str], &[Coding], Coding); 33] = [
        (&[], &all, Identity),
        (&[""], &all, Identity),
        (&["gzip"], &all, Gzip),
        (&["gzip, deflate, br, zstd"], &all, Brotli),
        (&["gzip, deflate, br, zstd"], &[Zstd, Gzip], Zstd),
        (&["gzip, deflate"], &[Brotli], Identity),
        (&["gzip", "br"], &all, Brotli),
        (&["GZIP"], &all, Gzip),
        (&["x-gzip"], &all, Gzip),
        (&["br;q=0.5, gzip;q=0.6"], &all, Gzip),
        (&["br;q=0.501, gzip;q=0.500"], &all, Brotli),
        (&["br ; q=0.5 , gzip;Q=1.000"], &all, Gzip),
        (&["br;q=0"], &all, Identity),
        (&["br;q=0, gzip"], &all, Gzip),
        (&["br;q=0.000, *"], &all, Zstd),
        (&["*"], &all, Brotli),
        (&["*;q=0"], &all, Identity),
        (&["*;q=0, gzip;q=0.1"], &all, Gzip),
        (&["identity"], &all, Identity),
        (&["identity, gzip"], &all, Gzip),
        (&["identity, gzip;q=0.9"], &all, Identity),
        (&["identity;q=0.5, gzip;q=0.9"], &all, Gzip),
        (&["identity;q=0"], &all, Identity),
        (&["gzip;q=0.1"], &all, Gzip),
        (&["gzip;q=1"], &all, Gzip),
        (&["gzip;q=1.001"], &all, Identity),
        (&["gzip;q=0.1234"], &all, Identity),
        (&["gzip;q=2"], &all, Identity),
        (&["gzip;q="], &all, Identity),
        (&["gzip;q=.5"], &all, Identity),
        (&["gzip;level=5"], &all, Identity),
        (&["gzip;q=0.5;q=1, br;q=0.x"], &all, Identity),
        (&[",;,, ;q=1, gzip"], &all, Gzip),
    ];
    for (fields, available, expected) in cases {
        assert_eq!(chosen(fields, available), expected, "{fields:?}");
    }
}

#[test]
fn names_are_those_of_the_registry() {
    assert_eq!([Identity, Gzip, Brotli, Zstd].map(Coding::name), ["identity", "gzip", "br", "zstd"]);
}
