//! The names of types in messages.

use pyo3::prelude::*;

/// The name of an object's type, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| String::from("object"), |name| name.to_string())
}
