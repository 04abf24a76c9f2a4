//! Tells the crate which CPython it is built for (`Py_3_12`, `Py_GIL_DISABLED`, ...), and lets its unit tests find
//! the interpreter they are linked with.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
    pyo3_build_config::add_libpython_rpath_link_args();
}
