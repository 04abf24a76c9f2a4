//! The octet classes of the grammar, and scans over them. No state; any thread.

const TOKEN: u8 = 1;
const TARGET: u8 = 2;
const VALUE: u8 = 4;
const REG_NAME: u8 = 8;

/// The classes of each octet, as bits.
static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut octet = 0;
    while octet < 256 {
        let byte = octet as u8;
        let alphanumeric = byte.is_ascii_alphanumeric();
        // RFC 9110 section 5.6.2.
        if alphanumeric || in_list(byte, b"!#$%&'*+-.^_`|~") {
            table[octet] |= TOKEN;
        }
        // Visible ASCII without "#": RFC 9112 section 3.2 has no fragment, and RFC 3986 section 2 no other octets.
        if byte.is_ascii_graphic() && byte != b'#' {
            table[octet] |= TARGET;
        }
        // field-vchar, SP and HTAB, obs-text: RFC 9110 section 5.5.
        if byte == b'\t' || (byte >= b' ' && byte != 0x7f) {
            table[octet] |= VALUE;
        }
        // unreserved and sub-delims of RFC 3986, without the comma that joins two Host fields into one.
        if alphanumeric || in_list(byte, b"-._~!$&'()*+;=") {
            table[octet] |= REG_NAME;
        }
        octet += 1;
    }
    table
}

const fn in_list(byte: u8, list: &[u8]) -> bool {
    let mut index = 0;
    while index < list.len() {
        if list[index] == byte {
            return true;
        }
        index += 1;
    }
    false
}

fn has(byte: u8, class: u8) -> bool {
    CLASSES[usize::from(byte)] & class != 0
}

/// `tchar` of RFC 9110 section 5.6.2.
pub(crate) fn is_token(byte: u8) -> bool {
    has(byte, TOKEN)
}

/// What may stand in a field value, the whitespace inside it included.
pub(crate) fn is_value(byte: u8) -> bool {
    has(byte, VALUE)
}

/// What may stand in a `reg-name` without percent-encoding.
pub(crate) fn is_reg_name(byte: u8) -> bool {
    has(byte, REG_NAME)
}

/// SP or HTAB.
pub(crate) fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// The value of a hexadecimal digit.
pub(crate) fn hexadecimal(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

fn class_end(bytes: &[u8], from: usize, class: u8) -> usize {
    let mut at = from;
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        if eight.iter().fold(class, |all, &byte| all & CLASSES[usize::from(byte)]) == 0 {
            break;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| !has(byte, class)).unwrap_or(rest.len())
}

/// Where the token octets that start at `from` end.
pub(crate) fn token_end(bytes: &[u8], from: usize) -> usize {
    class_end(bytes, from, TOKEN)
}

/// Where the octets of a request target that start at `from` end.
pub(crate) fn target_end(bytes: &[u8], from: usize) -> usize {
    class_end(bytes, from, TARGET)
}

/// Where the SP and HTAB that start at `from` end.
pub(crate) fn blank_end(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().position(|&byte| !is_blank(byte)).unwrap_or(rest.len())
}

/// Where the octets of a field value that start at `from` end. Values are most of a head: eight octets at a time.
pub(crate) fn value_end(bytes: &[u8], from: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    let mut at = from;
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*eight);
        // Marks, by its high bit, each octet below 0x20 or equal to 0x7f. A borrow can mark others too, but only above
        // an octet that is rightly marked: the lowest mark is always right.
        let below = word.wrapping_sub(ONES * 0x20) & !word;
        let apart = word ^ (ONES * 0x7f);
        let delete = apart.wrapping_sub(ONES) & !apart;
        let stop = (below | delete) & HIGHS;
        if stop == 0 {
            at += 8;
            continue;
        }
        at += (stop.trailing_zeros() / 8) as usize;
        if bytes[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    class_end(bytes, at, VALUE)
}

/// `bytes` without the SP and HTAB at its start and end.
pub(crate) fn trim(bytes: &[u8]) -> &[u8] {
    let start = blank_end(bytes, 0);
    let end = bytes.iter().rposition(|&byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &bytes[start..end]
}

#[cfg(test)]
mod tests {
    use super::{VALUE, class_end, value_end};

    #[test]
    fn eight_at_a_time_stops_where_one_at_a_time_does() {
        for octet in 0..=255_u8 {
            for around in [b'a', b'\t', b' ', 0x80, 0xff] {
                for position in 0..19 {
                    let mut bytes = [around; 19];
                    bytes[position] = octet;
                    for from in 0..=19 {
                        assert_eq!(value_end(&bytes, from), class_end(&bytes, from, VALUE));
                    }
                }
            }
        }
    }
}
