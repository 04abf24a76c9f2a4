//! A uwsgi packet gives the same head whole and octet by octet, no octets cause a panic, and no field of the head can
//! end its line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tailrace_http::framing::{BodyLength, RequestFraming, packet_framing};
use tailrace_http::head::HeadStep;
use tailrace_http::limits::{Limits, Refusal};
use tailrace_http::request_head::RequestHead;
use tailrace_http::uwsgi::{client, is_https, name_fields, parse};

type Outcome = Option<Result<(RequestHead, RequestFraming), Refusal>>;

fn read(bytes: &[u8], cuts: impl IntoIterator<Item = usize>, limits: &Limits) -> Outcome {
    let mut head = RequestHead::default();
    for end in cuts.into_iter().chain([bytes.len()]) {
        match parse(&bytes[..end], limits, &mut head) {
            HeadStep::NeedMore => {}
            HeadStep::Refused(refusal) => return Some(Err(refusal)),
            HeadStep::Complete => {
                let mut packet = bytes[..head.length].to_vec();
                name_fields(&mut packet, &head);
                let values = head.fields.iter().flat_map(|field| field.value.of(&packet));
                assert!(values.clone().all(|byte| !matches!(byte, b'\r' | b'\n' | 0)));
                let _ = (client(&packet, &head), is_https(&packet, &head));
                return Some(packet_framing(&packet, &head, limits).map(|framing| (head, framing)));
            }
        }
    }
    None
}

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { request_line: 200, header_bytes: 1_500, header_count: 10, body: 300 };
    let whole = read(bytes, [], &limits);
    assert_eq!(whole, read(bytes, 0..bytes.len(), &limits));
    if let Some(Ok((_, framing))) = whole {
        assert!(matches!(framing.body, BodyLength::None | BodyLength::Known(0..=300)) && !framing.keep_alive);
    }
});
