//! The allocator of the C library.
#![cfg_attr(target_env = "gnu", allow(unsafe_code))]

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
