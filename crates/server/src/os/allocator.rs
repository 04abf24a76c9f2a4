//! The allocator: that of the C library, plus a reserve for when the C library has no memory.
//!
//! Most Rust code cannot report that a small allocation failed: the process aborts. So if the C library refuses a block
//! of up to `LARGEST` bytes, the block is taken from the reserve. Wherever a client decides the size, larger blocks
//! are requested with `try_reserve`, and the failure is handled. While much of the reserve is in use ([`is_short`]),
//! the server takes no further requests, and those in progress return their blocks.
//!
//! The reserve is zero-initialized static memory: pages that were never used cost only address space.
//!
//! Any thread. There is no lock: a child that the application forks could find it locked forever.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Size of the units of the reserve, in bytes: most long-lived blocks need one unit.
const UNIT: usize = 512;
/// Units per word. A word has a bit for each of its units, and a block lies within one word.
const WORD: usize = u64::BITS as usize;
const WORDS: usize = 128;
/// Size of the reserve.
const SIZE: usize = UNIT * WORD * WORDS;
/// Size of the largest block in the reserve.
const LARGEST: usize = UNIT * WORD;
/// With more than this in use, no further requests are accepted: a running request needs a few kilobytes of the
/// reserve.
const SHORT: usize = SIZE / 4;

static RESERVE: Reserve = Reserve::new();

/// True while a large part of the reserve is in use and the system has no memory.
#[inline]
pub fn is_short() -> bool {
    RESERVE.in_use.load(Ordering::Relaxed) > SHORT && !has_system_memory()
}

/// Blocks may stay in the reserve long after the system has memory again.
#[cold]
fn has_system_memory() -> bool {
    let Ok(layout) = Layout::from_size_align(2 * LARGEST, 1) else { return false };
    // SAFETY: the layout is not empty, and the block is freed with it. The reserve has no block of this size.
    unsafe {
        let block = std::alloc::alloc(layout);
        // Without it, the compiler would omit both calls.
        if std::hint::black_box(block).is_null() {
            return false;
        }
        std::alloc::dealloc(block, layout);
    }
    true
}

/// The global allocator of a program that serves: the wrapped allocator, and the reserve when that has no memory. See
/// the module.
pub struct WithReserve<S = System>(pub S);

// SAFETY: each block belongs either to the wrapped allocator or to the reserve, as its address shows. The functions
// return null or a block that fits the layout, and do not unwind.
unsafe impl<S: GlobalAlloc> GlobalAlloc for WithReserve<S> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as required of the caller.
        let block = unsafe { self.0.alloc(layout) };
        if block.is_null() { RESERVE.take(layout) } else { block }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as required of the caller.
        let block = unsafe { self.0.alloc_zeroed(layout) };
        if block.is_null() { RESERVE.take_zeroed(layout) } else { block }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if RESERVE.contains(block) {
            RESERVE.give_back(block, layout);
        } else {
            // SAFETY: as required of the caller; the block is not one of the reserve.
            unsafe { self.0.dealloc(block, layout) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if RESERVE.contains(block) {
            if RESERVE.resize(block, layout, size) {
                return block;
            }
        } else {
            // SAFETY: as required of the caller; the block is not one of the reserve.
            let new = unsafe { self.0.realloc(block, layout, size) };
            if !new.is_null() {
                return new;
            }
        }
        // SAFETY: as required of the caller.
        unsafe { self.move_block(block, layout, size) }
    }
}

impl<S: GlobalAlloc> WithReserve<S> {
    /// `realloc`, into the reserve or out of it.
    ///
    /// # Safety
    /// As `realloc`.
    #[cold]
    unsafe fn move_block(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller of `realloc` ensures that the size is valid with this alignment.
        let layout_after = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: the size is not 0, as required of the caller of `realloc`.
        let new = unsafe { self.alloc(layout_after) };
        if !new.is_null() {
            // SAFETY: two different blocks of at least this many bytes each; the old one is not used afterwards.
            unsafe {
                ptr::copy_nonoverlapping(block, new, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        new
    }
}

#[repr(align(4096))]
struct Memory(UnsafeCell<[u8; SIZE]>);

/// Blocks of memory that exist from the start.
struct Reserve {
    memory: Memory,
    /// A set bit is a unit in use.
    used: [AtomicU64; WORDS],
    /// Bytes in use.
    in_use: AtomicUsize,
}

// SAFETY: `used` is atomic, and gives each part of the memory to one block at a time.
unsafe impl Sync for Reserve {}

impl Reserve {
    const fn new() -> Self {
        Self {
            memory: Memory(UnsafeCell::new([0; SIZE])),
            used: [const { AtomicU64::new(0) }; WORDS],
            in_use: AtomicUsize::new(0),
        }
    }

    fn start(&self) -> *mut u8 {
        self.memory.0.get().cast()
    }

    #[inline]
    fn contains(&self, block: *const u8) -> bool {
        block.addr().wrapping_sub(self.start().addr()) < SIZE
    }

    /// Returns a block; null: the block would be too large, or the reserve is used up.
    #[cold]
    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST || layout.align() > UNIT {
            return ptr::null_mut();
        }
        let units = units(layout.size());
        for (number, word) in self.used.iter().enumerate() {
            let with = |used: u64| free_run(used, units).map(|at| used | run(at, units));
            if let Ok(before) = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, with)
                && let Some(at) = free_run(before, units)
            {
                self.in_use.fetch_add(units * UNIT, Ordering::Relaxed);
                return self.start().wrapping_add((number * WORD + at) * UNIT);
            }
        }
        ptr::null_mut()
    }

    #[cold]
    fn take_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = self.take(layout);
        if !block.is_null() {
            // SAFETY: the block has this size, and nothing else uses it.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
        }
        block
    }

    /// Takes back a block of [`Reserve::take`].
    #[cold]
    fn give_back(&self, block: *mut u8, layout: Layout) {
        self.free((block.addr() - self.start().addr()) / UNIT, units(layout.size()));
    }

    /// Resizes a block in place. False: it would need more units.
    fn resize(&self, block: *mut u8, layout: Layout, size: usize) -> bool {
        let (before, after) = (units(layout.size()), units(size));
        if after < before {
            self.free((block.addr() - self.start().addr()) / UNIT + after, before - after);
        }
        after <= before
    }

    fn free(&self, first: usize, units: usize) {
        self.used[first / WORD].fetch_and(!run(first % WORD, units), Ordering::Release);
        self.in_use.fetch_sub(units * UNIT, Ordering::Relaxed);
    }
}

fn units(size: usize) -> usize {
    size.div_ceil(UNIT).max(1)
}

/// The bits of `units` units from this one on.
fn run(at: usize, units: usize) -> u64 {
    u64::MAX >> (WORD - units) << at
}

/// The first of `units` consecutive units whose bits are not set.
fn free_run(used: u64, units: usize) -> Option<usize> {
    (0..=WORD - units).find(|&at| used & run(at, units) == 0)
}

/// Makes the allocator return free memory to the operating system. It walks the whole heap.
#[cfg(target_env = "gnu")]
pub fn trim() {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    // SAFETY: a function of glibc that any thread may call at any time.
    unsafe { malloc_trim(0) };
}

/// Allocators other than that of glibc do this automatically, or not at all.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::{LARGEST, RESERVE, Reserve, SIZE, UNIT, WithReserve, free_run, run};

    /// The C library's allocator, which has no memory while the flag is set.
    struct Failing(AtomicBool);

    // SAFETY: null, or what the allocator of the C library does.
    unsafe impl GlobalAlloc for Failing {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if self.0.load(Ordering::Relaxed) {
                return std::ptr::null_mut();
            }
            // SAFETY: as required of the caller.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: as required of the caller.
            unsafe { System.dealloc(block, layout) }
        }
    }

    fn of(size: usize) -> Layout {
        Layout::from_size_align(size, 16).unwrap()
    }

    #[test]
    fn a_run_is_within_its_word() {
        assert_eq!((run(0, 64), run(63, 1), run(2, 3)), (u64::MAX, 1 << 63, 0b1_1100));
        assert_eq!((free_run(0, 64), free_run(1, 64), free_run(1, 63)), (Some(0), None, Some(1)));
        assert_eq!((free_run(0b101, 1), free_run(0b101, 2), free_run(u64::MAX, 1)), (Some(1), Some(3), None));
    }

    #[test]
    fn without_memory_blocks_are_those_of_the_reserve_and_return_to_it() {
        let allocator = WithReserve(Failing(AtomicBool::new(false)));
        let fails = |fails| allocator.0.0.store(fails, Ordering::Relaxed);
        // SAFETY: each block is used as its layout says, and returned once.
        unsafe {
            let before = allocator.alloc(of(100));
            assert!(!RESERVE.contains(before));
            before.write_bytes(7, 100);
            fails(true);
            let moved = allocator.realloc(before, of(100), 5_000);
            assert!(RESERVE.contains(moved));
            assert_eq!(std::slice::from_raw_parts(moved, 100), [7; 100]);
            let zeroed = allocator.alloc_zeroed(of(1_000));
            assert_eq!(std::slice::from_raw_parts(zeroed, 1_000), [0; 1_000]);
            assert!(allocator.alloc(of(LARGEST + 1)).is_null());
            // A block that cannot become larger stays.
            assert!(allocator.realloc(moved, of(5_000), LARGEST + 1).is_null());
            assert_eq!(std::slice::from_raw_parts(moved, 100), [7; 100]);
            assert_eq!(RESERVE.in_use.load(Ordering::Relaxed), 5_120 + 1_024);
            assert_eq!(allocator.realloc(zeroed, of(1_000), 1_024), zeroed);
            assert_eq!(allocator.realloc(zeroed, of(1_024), 100), zeroed);
            assert_eq!(RESERVE.in_use.load(Ordering::Relaxed), 5_120 + 512);
            fails(false);
            let back = allocator.realloc(moved, of(5_000), 6_000);
            assert!(!RESERVE.contains(back));
            assert_eq!(std::slice::from_raw_parts(back, 100), [7; 100]);
            allocator.dealloc(back, of(6_000));
            allocator.dealloc(zeroed, of(100));
        }
        assert_eq!(RESERVE.in_use.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn threads_share_the_reserve_until_it_is_used_up() {
        // It would be too large for the stack.
        // SAFETY: the layout is not empty, and all zeros are what `new` makes.
        let reserve: Box<Reserve> = unsafe { Box::from_raw(System.alloc_zeroed(Layout::new::<Reserve>()).cast()) };
        let take = |size: usize| {
            std::iter::from_fn(|| Some(reserve.take(of(size)).addr()).filter(|at| *at != 0)).collect::<Vec<_>>()
        };
        let taken: Vec<Vec<usize>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| take(3 * UNIT))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let blocks: Vec<_> = taken.into_iter().flatten().collect();
        assert_eq!(blocks.len(), SIZE / LARGEST * 21);
        assert_eq!(blocks.iter().collect::<HashSet<_>>().len(), blocks.len());
        let rest = take(UNIT);
        assert_eq!(rest.len(), SIZE / LARGEST);
        assert_eq!(reserve.in_use.load(Ordering::Relaxed), SIZE);
        for (size, at) in blocks.iter().map(|at| (3 * UNIT, at)).chain(rest.iter().map(|at| (UNIT, at))) {
            reserve.give_back(reserve.start().with_addr(*at), of(size));
        }
        assert_eq!(reserve.in_use.load(Ordering::Relaxed), 0);
        assert!(reserve.used.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
}
