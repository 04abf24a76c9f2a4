//! Divides the growth of the process among endpoints: how many bytes a response of each makes it grow.
//!
//! A window has a number of responses of each endpoint, and one growth. If it has responses of one endpoint only, it tells
//! the growth of that one; otherwise it is one equation with several unknowns, and over many windows, of which no two are
//! alike, each unknown is found. A Kalman filter of constant unknowns does that, which is least squares, a window at a
//! time: it separates an endpoint from those that merely run at the same time. The current estimate for an endpoint
//! applies to all its responses, including those measured earlier. The uncertainty follows from how far the growth of
//! each window is from the expected growth.

use std::mem;

/// What is not known at first, and how uncertain a measurement is, since the allocator keeps and returns memory as it
/// likes; squared, in bytes.
const UNKNOWN: f64 = (1_u64 << 40) as f64;
const NOISE: f64 = (1_u64 << 36) as f64;
/// How much of what is known may have changed with each window; squared, in bytes.
const CHANGE: f64 = (1_u64 << 12) as f64;
/// A young process imports modules, starts threads and fills caches. Its first window is this many times as uncertain
/// as a late one; for the windows that follow, this factor falls with the square of their number.
const EARLY: f64 = 256.0;
/// Maximum number of windows over which the uncertainty is averaged, and the number at the beginning.
const AVERAGED: u32 = 60;
const AVERAGED_EARLY: u32 = 8;
/// Minimum fraction of [`NOISE`]: windows that are alike by chance do not make an estimate certain.
const MIN_SCALE: f64 = 0.25;

/// An endpoint is a row, less than `rows`.
pub(crate) struct Attribution {
    rows: usize,
    /// Responses since the last window, by row; and the rows that have any.
    ended: Vec<u32>,
    touched: Vec<usize>,
    /// Rows that have ever had any.
    known: Vec<usize>,
    /// The bytes by which a response of each row makes the process grow.
    growth: Vec<f64>,
    /// The covariance of `growth`, in units of `scale`: a matrix of `rows` by `rows`. Empty before the first window.
    covariance: Vec<f64>,
    scale: f64,
    windows: u32,
    /// The share of each row as last reported.
    told: Vec<GrowthShare>,
}

/// Largest growth in bytes, and largest variance in KiB² (a standard error of 32 GiB), that is reported: the numbers of all
/// processes are added.
const MAX_BYTES: f64 = (1u64 << 50) as f64;
const MAX_VARIANCE: f64 = (1u64 << 50) as f64;

/// The growth that the responses of a row have caused, or its change since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GrowthShare {
    pub(crate) responses: u64,
    pub(crate) bytes: i64,
    /// The square of the standard error of `bytes`, in KiB².
    pub(crate) variance: i64,
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
            scale: 1.0,
            windows: 0,
            told: vec![GrowthShare::default(); rows],
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
        self.told[row] = GrowthShare::default();
        self.touched.retain(|touched| *touched != row);
        if !self.covariance.is_empty() {
            for other in 0..self.rows {
                self.covariance[row * self.rows + other] = 0.0;
                self.covariance[other * self.rows + row] = 0.0;
            }
            self.covariance[row * self.rows + row] = UNKNOWN;
        }
    }

    /// Ends a window in which the process has grown by `bytes`. Returns the changes of the rows' shares.
    pub(crate) fn divide(&mut self, bytes: f64) -> Vec<(usize, GrowthShare)> {
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
        self.windows = self.windows.saturating_add(1);
        self.learn(&ended, bytes);
        ended.iter().for_each(|(row, responses)| self.told[*row].responses += u64::from(*responses));
        let certainty = self.scale.max(MIN_SCALE) * self.early() / f64::from(1 << 20);
        let mut changes = Vec::with_capacity(self.known.len());
        for row in &self.known {
            let told = &mut self.told[*row];
            let responses = told.responses as f64;
            let variance = self.covariance[row * self.rows + row].max(0.0) * certainty * responses * responses;
            let bytes = (self.growth[*row] * responses).clamp(-MAX_BYTES, MAX_BYTES) as i64;
            let (before, variance) = (*told, variance.min(MAX_VARIANCE) as i64);
            *told = GrowthShare { bytes, variance, ..before };
            let of_window = ended.iter().find(|(each, _)| each == row).map_or(0, |(_, responses)| *responses);
            let change = GrowthShare {
                responses: u64::from(of_window),
                bytes: bytes - before.bytes,
                variance: variance - before.variance,
            };
            changes.push((*row, change));
        }
        changes
    }

    /// How many times as uncertain the window is as those of an old process.
    fn early(&self) -> f64 {
        1.0 + EARLY / f64::from(self.windows).powi(2)
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
        let uncertain = NOISE * self.early() + sum(&|row| by_row[row]);
        let missing = bytes - sum(&|row| self.growth[row]);
        let averaged = f64::from(self.windows.clamp(AVERAGED_EARLY, AVERAGED));
        self.scale += (missing * missing / uncertain - self.scale) / averaged;
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
    use super::{Attribution, GrowthShare};

    const LEAK: f64 = 1_048_576.0;

    /// A number from 0 to `below`, by an ordinary generator.
    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    /// The shares of rows after some windows; the last row belongs to no endpoint.
    struct Shown(Attribution, Vec<GrowthShare>);

    impl Shown {
        fn new(rows: usize) -> Self {
            Self(Attribution::new(rows), vec![GrowthShare::default(); rows])
        }

        fn window(&mut self, rows: impl IntoIterator<Item = usize>, grown: f64) {
            rows.into_iter().for_each(|row| self.0.note(row));
            for (row, change) in self.0.divide(grown) {
                let share = &mut self.1[row];
                share.responses += change.responses;
                share.bytes += change.bytes;
                share.variance += change.variance;
            }
        }

        fn each(&self, row: usize) -> f64 {
            self.1[row].bytes as f64 / self.1[row].responses as f64
        }

        /// How many standard errors the growth of the row is from `each` bytes of a response.
        fn errors(&self, row: usize, each: f64) -> f64 {
            let share = self.1[row];
            (share.bytes as f64 - each * share.responses as f64).abs() / (share.variance as f64).sqrt() / 1024.0
        }
    }

    /// Ten rows, the fourth of which leaks. `most`: maximum number of responses in a window.
    fn simulated(windows: usize, most: u64, noise: u64) -> Shown {
        let mut shown = Shown::new(16);
        let mut state = 7;
        for _ in 0..windows {
            let noise = random(&mut state, noise) as f64 - (noise / 2) as f64;
            let rows: Vec<usize> = (0..=random(&mut state, most)).map(|_| random(&mut state, 10) as usize).collect();
            let leaks = rows.iter().filter(|row| **row == 3).count();
            shown.window(rows, noise + leaks as f64 * LEAK);
        }
        shown
    }

    #[test]
    fn growth_is_found_at_the_row_that_causes_it_while_others_run() {
        for most in [1, 8, 50, 200] {
            let shown = simulated(1_000, most, 400 << 10);
            for row in 0..10 {
                let expected = if row == 3 { LEAK } else { 0.0 };
                let found = shown.each(row);
                assert!((found - expected).abs() < LEAK / 12.0, "up to {most} at once, row {row}: {found}");
                assert!(shown.errors(row, expected) < 4.0, "up to {most} at once, row {row}: {:?}", shown.1[row]);
            }
            assert!(shown.errors(3, 0.0) > 10.0);
        }
    }

    #[test]
    fn what_was_measured_before_a_row_was_known_is_charged_to_the_row_that_caused_it() {
        // The rows run together at first, and the process starts threads and fills caches.
        let mut shown = Shown::new(4);
        for window in 0..10 {
            shown.window([0, 1].into_iter().cycle().take(40), 20.0 * LEAK / 8.0 + 4.0 * LEAK / f64::from(window + 1));
        }
        assert!(shown.errors(0, 0.0) < 3.0 && shown.errors(1, 0.0) < 3.0, "{:?}", shown.1);
        for window in 0..60 {
            let leaking = 10 + window % 20;
            shown.window((0..40).map(|each| usize::from(each < leaking)), leaking as f64 * LEAK / 8.0);
        }
        assert!(shown.each(0).abs() < LEAK / 50.0 && (shown.each(1) - LEAK / 8.0).abs() < LEAK / 50.0, "{:?}", shown.1);
        assert!(shown.errors(1, 0.0) > 10.0 && shown.errors(0, 0.0) < 3.0, "{:?}", shown.1);
    }

    #[test]
    fn rows_that_always_run_together_remain_uncertain() {
        let mut shown = Shown::new(4);
        (0..200).for_each(|_| shown.window([0, 1], LEAK));
        assert!(shown.errors(0, 0.0) < 3.0 && shown.errors(1, 0.0) < 3.0, "{:?}", shown.1);
        assert!((shown.each(0) + shown.each(1) - LEAK).abs() < LEAK / 50.0);
    }

    #[test]
    fn growth_that_no_row_explains_makes_all_uncertain() {
        let quiet = simulated(300, 8, 100 << 10);
        let noisy = simulated(300, 8, 40 << 20);
        assert!(noisy.1[0].variance > 100 * quiet.1[0].variance);
        assert!((0..10).filter(|row| *row != 3).all(|row| noisy.errors(row, 0.0) < 4.0), "{:?}", noisy.1);
    }

    #[test]
    fn after_a_billion_responses_the_figures_of_many_processes_can_be_added() {
        let mut shown = Shown::new(1);
        shown.0.told[0].responses = 1 << 40;
        for grown in [1e12, -1e12, 1e12] {
            shown.window([0], grown);
            let GrowthShare { bytes, variance, .. } = shown.1[0];
            assert!((0..=1 << 50).contains(&variance) && bytes.abs() <= 1 << 50, "{:?}", shown.1);
        }
        assert_eq!(shown.1[0].variance, 1 << 50, "without a bound it would be more");
    }

    #[test]
    fn without_a_leak_nobody_is_blamed() {
        let mut shown = Shown::new(16);
        let mut state = 3;
        for _ in 0..1_000 {
            let rows: Vec<usize> = (0..=random(&mut state, 8)).map(|_| random(&mut state, 10) as usize).collect();
            shown.window(rows, random(&mut state, 400 << 10) as f64 - f64::from(200 << 10));
        }
        assert!((0..10).all(|row| shown.errors(row, 0.0) < 3.0), "{:?}", shown.1);
    }

    #[test]
    fn a_window_without_responses_is_nobodys() {
        let mut attribution = Attribution::new(4);
        assert_eq!(attribution.divide(5e9), []);
        attribution.note(2);
        attribution.note(2);
        attribution.note(9);
        let shares = attribution.divide(-1000.0);
        assert_eq!(shares.iter().map(|(row, share)| (*row, share.responses)).collect::<Vec<_>>(), [(2, 2)]);
        assert!(shares[0].1.bytes <= 0, "{shares:?}");
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
        assert_eq!(shares.iter().map(|(row, share)| (*row, share.responses)).collect::<Vec<_>>(), [(2, 1), (1, 1)]);
        attribution.note(1);
        attribution.forget(1);
        assert_eq!(attribution.divide(LEAK), []);
    }

    #[test]
    fn a_row_with_another_endpoint_begins_anew() {
        let mut shown = Shown::new(4);
        (0..20).for_each(|_| shown.window([1], LEAK));
        assert!((shown.each(1) - LEAK).abs() < LEAK / 20.0);
        shown.0.forget(1);
        shown.1[1] = GrowthShare::default();
        shown.window([1, 2], 2.0 * LEAK);
        assert_eq!(shown.1[1], shown.1[2]);
        assert_eq!(shown.1[1].responses, 1);
    }
}
