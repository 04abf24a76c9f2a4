//! Makes uwsgi packets.
#![allow(dead_code, unreachable_pub)]

/// A variable.
pub fn pair(name: &[u8], value: &[u8]) -> Vec<u8> {
    let length = |text: &[u8]| u16::try_from(text.len()).unwrap().to_le_bytes();
    [&length(name), name, &length(value), value].concat()
}

/// A packet with this block of variables.
pub fn packed(block: &[u8]) -> Vec<u8> {
    let [low, high] = u16::try_from(block.len()).unwrap().to_le_bytes();
    [&[0, low, high, 0], block].concat()
}

/// A packet with these variables.
pub fn packet<N: AsRef<[u8]>, V: AsRef<[u8]>>(variables: &[(N, V)]) -> Vec<u8> {
    packed(&variables.iter().flat_map(|(name, value)| pair(name.as_ref(), value.as_ref())).collect::<Vec<_>>())
}
