//! Divides the growth of the process among endpoints: how many bytes a response of each makes it grow.
//!
//! A window has a number of responses of each endpoint, and one growth. If it has responses of one endpoint only, it tells
//! the growth of that one; otherwise it is one equation with several unknowns, and over many windows, of which no two are
//! alike, each unknown is found. A Kalman filter of constant unknowns does that, which is least squares, a window at a
//! time: an endpoint is told apart from those that merely run beside it. The growth of a window is then divided in
//! proportion to what is known of each of its endpoints.

use std::mem;

/// What is not known at first, and how uncertain a measurement is, since the allocator keeps and returns memory as it
/// likes; squared, in bytes.
const UNKNOWN: f64 = (1_u64 << 40) as f64;
const NOISE: f64 = (1_u64 << 36) as f64;
/// How much of what is known may have changed with each window; squared, in bytes.
const CHANGE: f64 = (1_u64 << 20) as f64;
/// The least estimate in bytes, by which growth is divided among endpoints of which nothing is known.
const LEAST: f64 = 64.0;

/// See the module. An endpoint is a row, less than `rows`.
pub(crate) struct Attribution {
    rows: usize,
    /// Responses since the last window, by row; and the rows that have any.
    ended: Vec<u32>,
    touched: Vec<usize>,
    /// Rows that have ever had any.
    known: Vec<usize>,
    /// The bytes by which a response of each row makes the process grow.
    growth: Vec<f64>,
    /// How uncertain that is: a matrix of `rows` by `rows`. Empty before the first window.
    covariance: Vec<f64>,
}

/// What a row has of the growth of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) row: usize,
    pub(crate) responses: u32,
    pub(crate) bytes: f64,
}

impl Attribution {
    pub(crate) fn new(rows: usize) -> Self {
        Self {
            rows,
            ended: vec![0; rows],
            touched: Vec::new(),
            known: Vec::new(),
            growth: vec![0.0; rows],
            covariance: Vec::new(),
        }
    }

    /// A response of this row has ended.
    #[inline]
    pub(crate) fn note(&mut self, row: usize) {
        let Some(ended) = self.ended.get_mut(row) else { return };
        if *ended == 0 {
            self.touched.push(row);
        }
        *ended = ended.saturating_add(1);
    }

    /// The row has another endpoint from now on.
    pub(crate) fn forget(&mut self, row: usize) {
        self.growth[row] = 0.0;
        self.ended[row] = 0;
        self.touched.retain(|touched| *touched != row);
        if !self.covariance.is_empty() {
            for other in 0..self.rows {
                self.covariance[row * self.rows + other] = 0.0;
                self.covariance[other * self.rows + row] = 0.0;
            }
            self.covariance[row * self.rows + row] = UNKNOWN;
        }
    }

    /// A window ends. `bytes`: by how much the process has grown in it. Returns the shares of its rows.
    pub(crate) fn divide(&mut self, bytes: f64) -> Vec<Share> {
        if self.covariance.is_empty() {
            self.covariance = vec![0.0; self.rows * self.rows];
            (0..self.rows).for_each(|row| self.covariance[row * self.rows + row] = UNKNOWN);
        }
        let ended: Vec<(usize, u32)> =
            mem::take(&mut self.touched).into_iter().map(|row| (row, mem::take(&mut self.ended[row]))).collect();
        if ended.is_empty() {
            return Vec::new();
        }
        for (row, _) in &ended {
            if !self.known.contains(row) {
                self.known.push(*row);
            }
            self.covariance[row * self.rows + row] += CHANGE;
        }
        self.learn(&ended, bytes);
        let weight = |row: usize, responses: u32| f64::from(responses) * self.growth[row].max(LEAST);
        let total: f64 = ended.iter().map(|(row, responses)| weight(*row, *responses)).sum();
        let share = |(row, responses)| Share { row, responses, bytes: bytes * weight(row, responses) / total };
        ended.into_iter().map(share).collect()
    }

    /// One step of the filter.
    fn learn(&mut self, ended: &[(usize, u32)], bytes: f64) {
        let sum = |of: &dyn Fn(usize) -> f64| -> f64 {
            ended.iter().map(|(row, responses)| f64::from(*responses) * of(*row)).sum()
        };
        let toward: Vec<f64> =
            self.known.iter().map(|row| sum(&|other| self.covariance[row * self.rows + other])).collect();
        let mut by_row = vec![0.0; self.rows];
        self.known.iter().zip(&toward).for_each(|(row, value)| by_row[*row] = *value);
        let uncertain = NOISE + sum(&|row| by_row[row]);
        let missing = bytes - sum(&|row| self.growth[row]);
        for (row, value) in self.known.iter().zip(&toward) {
            let gain = value / uncertain;
            self.growth[*row] += gain * missing;
            for (other, value) in self.known.iter().zip(&toward) {
                self.covariance[row * self.rows + other] -= gain * value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Attribution, LEAST, Share};

    const LEAK: f64 = 1_048_576.0;

    /// A number from 0 to `below`, by an ordinary generator.
    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    /// Bytes and responses of ten rows, the fourth of which leaks. `most`: responses of a window at most.
    fn simulated(windows: usize, most: u64, noise: u64) -> (Vec<f64>, Vec<f64>) {
        let mut attribution = Attribution::new(16);
        let (mut state, mut bytes, mut responses) = (7, vec![0.0; 10], vec![0.0; 10]);
        for _ in 0..windows {
            let mut grown = random(&mut state, noise) as f64 - (noise / 2) as f64;
            for _ in 0..=random(&mut state, most) {
                let row = random(&mut state, 10) as usize;
                attribution.note(row);
                grown += if row == 3 { LEAK } else { 0.0 };
            }
            for share in attribution.divide(grown) {
                bytes[share.row] += share.bytes;
                responses[share.row] += f64::from(share.responses);
            }
        }
        (bytes, responses)
    }

    #[test]
    fn growth_is_found_at_the_row_that_causes_it_while_others_run() {
        for most in [1, 8, 50, 200] {
            let (bytes, responses) = simulated(1_000, most, 400 << 10);
            for (row, (bytes, responses)) in bytes.iter().zip(&responses).enumerate() {
                let expected = if row == 3 { LEAK } else { 0.0 };
                let found = bytes / responses;
                assert!((found - expected).abs() < LEAK / 12.0, "up to {most} at once, row {row}: {found}");
            }
        }
    }

    #[test]
    fn without_a_leak_nobody_is_blamed() {
        let mut attribution = Attribution::new(16);
        let (mut state, mut bytes) = (3, vec![0.0; 10]);
        for _ in 0..1_000 {
            (0..=random(&mut state, 8)).for_each(|_| attribution.note(random(&mut state, 10) as usize));
            let noise = random(&mut state, 400 << 10) as f64 - f64::from(200 << 10);
            attribution.divide(noise).iter().for_each(|share| bytes[share.row] += share.bytes);
        }
        assert!(bytes.iter().all(|bytes| bytes.abs() < 10.0 * LEAK), "{bytes:?}");
    }

    #[test]
    fn a_window_of_one_row_is_its_own_and_one_without_responses_is_nobodys() {
        let mut attribution = Attribution::new(4);
        assert_eq!(attribution.divide(5e9), []);
        attribution.note(2);
        attribution.note(2);
        attribution.note(9);
        assert_eq!(attribution.divide(-1000.0), [Share { row: 2, responses: 2, bytes: -1000.0 }]);
        assert_eq!(attribution.divide(1000.0), []);
    }

    #[test]
    fn a_row_that_gets_another_endpoint_in_a_window_has_nothing_of_its_growth() {
        let mut attribution = Attribution::new(4);
        attribution.note(1);
        attribution.note(1);
        attribution.note(2);
        attribution.forget(1);
        attribution.note(1);
        let shares = attribution.divide(2.0 * LEAK);
        assert_eq!(shares.iter().map(|share| (share.row, share.responses)).collect::<Vec<_>>(), [(2, 1), (1, 1)]);
        attribution.note(1);
        attribution.forget(1);
        assert_eq!(attribution.divide(LEAK), []);
    }

    #[test]
    fn a_row_with_another_endpoint_begins_anew() {
        let mut attribution = Attribution::new(4);
        for _ in 0..20 {
            attribution.note(1);
            attribution.divide(LEAK);
        }
        assert!((attribution.growth[1] - LEAK).abs() < LEAK / 20.0);
        attribution.forget(1);
        attribution.note(1);
        attribution.note(2);
        assert!(attribution.growth[1] < LEAST);
        let shares = attribution.divide(2.0 * LEAK);
        assert!((shares[0].bytes - shares[1].bytes).abs() < LEAK / 20.0, "{shares:?}");
    }
}
