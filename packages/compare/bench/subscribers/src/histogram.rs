//! A histogram of latencies with fixed buckets: 32 for each power of two, so a percentile is at most 2.2 % too high.

const STEPS: f64 = 32.0;

pub struct Histogram {
    counts: [u64; 64 * STEPS as usize + 1],
    total: u64,
    pub max: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Self { counts: [0; _], total: 0, max: 0 }
    }

    pub fn add(&mut self, value: u64) {
        self.counts[((value.max(1) as f64).log2() * STEPS) as usize] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    /// The upper edge of the bucket that holds this share (0 to 1) of the values; 0 if there are none.
    pub fn percentile(&self, share: f64) -> u64 {
        let mut left = (self.total as f64 * share).ceil() as u64;
        let bucket = self.counts.iter().position(|&count| {
            left = left.saturating_sub(count);
            left == 0
        });
        bucket.map_or(0, |index| ((index + 1) as f64 / STEPS).exp2() as u64).min(self.max)
    }
}

#[test]
fn percentiles_are_those_of_the_values() {
    let mut times = Histogram::new();
    assert_eq!(times.percentile(0.5), 0);
    (0..=100_000).for_each(|value| times.add(value));
    for (share, exact) in [(0.001, 100), (0.5, 50_000), (0.99, 99_000)] {
        let found = times.percentile(share);
        assert!((exact..exact + exact / 40).contains(&found), "{found}");
    }
    assert_eq!(times.percentile(1.0), 100_000);
    times.add(u64::MAX);
    assert_eq!((times.percentile(1.0), times.max), (u64::MAX, u64::MAX));
}
