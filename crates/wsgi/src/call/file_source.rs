//! Where the bytes of a file-like object come from: its descriptor, memory, or calls of its `read()`.
//!
//! The source must yield the bytes that the application would see. PEP 3333 ("Optional Platform-Specific File
//! Handling") defines a file wrapper by calls of `read()`, and a bare file object is an iterable like any other, whose
//! blocks are what iterating it yields. The `fileno()` of many objects refers to different bytes: `gzip.GzipFile`
//! returns that of the compressed file; others decrypt or count. So a descriptor is used only if reading the object is
//! proven to yield its bytes: the method belongs to exactly one of the types that `open()` returns, and no attribute of
//! the instance hides it.
//!
//! Runs attached, on the thread that runs the request.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyType};

use crate::ffi::types::{is_builtin_function, is_function};
use crate::python::names::{Names, names};
use crate::python::type_name::type_name;

/// Where the bytes come from.
pub(crate) enum BytesSource<'py> {
    /// Reading this object yields what its descriptor yields, from its position on.
    Descriptor(Bound<'py, PyAny>),
    /// A `BytesIO`, from its position on.
    Memory(Bound<'py, PyAny>),
    /// The results of this callable, called with a number of bytes, until it returns none.
    Calls(Bound<'py, PyAny>),
}

/// The types of `io` and `tempfile` that are distinguished.
struct FileTypes {
    raw: Py<PyType>,
    readers: [Py<PyType>; 2],
    memory: Py<PyType>,
    text: Py<PyType>,
    base: Py<PyType>,
    /// The classes that the types above are made of, and the one of them whose `readline()` calls `read()`.
    builtin: Vec<Py<PyAny>>,
    lines: Py<PyAny>,
    temporary: Py<PyType>,
    /// The code of the functions that `tempfile` puts around a file's methods.
    temporary_method: Option<Py<PyAny>>,
}

static FILE_TYPES: PyOnceLock<FileTypes> = PyOnceLock::new();

fn file_types(py: Python<'_>) -> PyResult<&'static FileTypes> {
    FILE_TYPES.get_or_try_init(py, || FileTypes::find(py))
}

/// Looks the types up now instead of later.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    file_types(py).map(drop)
}

/// What `wsgi.file_wrapper` makes of this object: what its `read()` gives.
///
/// # Errors
/// `TypeError` for a file in text mode.
pub(crate) fn wrapped<'py>(filelike: &Bound<'py, PyAny>) -> PyResult<BytesSource<'py>> {
    let py = filelike.py();
    let (types, names) = (file_types(py)?, names(py));
    types.refuse_text(filelike, names)?;
    if let Some(source) = types.of_io(filelike, names)? {
        return Ok(source);
    }
    let read = filelike.getattr(&names.read)?;
    if let Some(owner) = types.owner(&read, names)? {
        return Ok(types.of_io(&owner, names)?.unwrap_or(BytesSource::Calls(read)));
    }
    by_calls(filelike, read, names)
}

/// What an iterable gives that is a file: an object of `io` or `tempfile`, if reading it gives the same bytes as
/// iterating it. `None`: it is to be iterated.
///
/// # Errors
/// `TypeError` for a file in text mode.
pub(crate) fn bare<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<BytesSource<'py>>> {
    let py = object.py();
    let (types, names) = (file_types(py)?, names(py));
    let is_temporary = object.get_type().is(&types.temporary);
    if !is_temporary && !object.is_instance(types.base.bind(py))? {
        return Ok(None);
    }
    types.refuse_text(object, names)?;
    if is_temporary {
        // Its `__iter__` iterates the file inside, whatever attributes it has.
        return types.of_io(&object.getattr(&names.file)?, names);
    }
    if let Some(source) = types.of_io(object, names)? {
        return Ok(Some(source));
    }
    if !types.iterates_by_reading(object, names)? {
        return Ok(None);
    }
    by_calls(object, object.getattr(&names.read)?, names).map(Some)
}

impl FileTypes {
    fn find(py: Python<'_>) -> PyResult<Self> {
        let io = py.import("io")?;
        let of = |module: &Bound<'_, PyModule>, name: &str| -> PyResult<Py<PyType>> {
            Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind())
        };
        let raw = of(&io, "FileIO")?;
        let readers = [of(&io, "BufferedReader")?, of(&io, "BufferedRandom")?];
        let memory = of(&io, "BytesIO")?;
        let mut builtin = Vec::new();
        for kind in [&raw, &readers[0], &readers[1], &memory] {
            builtin.extend(kind.bind(py).mro().iter().map(Bound::unbind));
        }
        let lines = provider(raw.bind(py), &names(py).readline)?.map_or_else(|| py.None(), Bound::unbind);
        let temporary = of(&py.import("tempfile")?, "_TemporaryFileWrapper")?;
        let temporary_method = temporary_method(temporary.bind(py), memory.bind(py)).ok();
        // Checked once per request. The check of an abstract class such as `io.IOBase` runs Python code, so the check
        // uses the class below it, from which all classes of `io` inherit and which is not abstract.
        let base = io.getattr("IOBase")?.getattr("__base__")?.cast_into::<PyType>()?.unbind();
        let text = of(&io, "TextIOBase")?;
        Ok(Self { raw, readers, memory, text, base, builtin, lines, temporary, temporary_method })
    }

    /// The source of an object whose type is exactly one of `io`'s, if its reading methods have not been replaced.
    fn of_io<'py>(&self, object: &Bound<'py, PyAny>, names: &Names) -> PyResult<Option<BytesSource<'py>>> {
        let kind = object.get_type();
        let is_memory = kind.is(&self.memory);
        let is_raw = kind.is(&self.raw);
        let is_reader = self.readers.iter().any(|reader| kind.is(reader));
        if !(is_memory || is_raw || is_reader) || !is_untouched(object, names)? {
            return Ok(None);
        }
        if is_memory {
            return Ok(Some(BytesSource::Memory(object.clone())));
        }
        if is_reader {
            // A buffer may have any object below it, not only a file.
            let raw = object.getattr(&names.raw)?;
            if !raw.get_type().is(&self.raw) || !is_untouched(&raw, names)? {
                return Ok(Some(BytesSource::Calls(object.getattr(&names.read1)?)));
            }
        }
        Ok(Some(BytesSource::Descriptor(object.clone())))
    }

    /// The object of one of `io`'s types to which this `read` method belongs, even inside one of `tempfile`'s
    /// functions.
    fn owner<'py>(&self, read: &Bound<'py, PyAny>, names: &Names) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut read = read.clone();
        if let Some(method) = &self.temporary_method
            && is_function(&read)
            && read.getattr(&names.code)?.is(method)
        {
            match read.getattr_opt(&names.wrapped)? {
                Some(inner) => read = inner,
                None => return Ok(None),
            }
        }
        if !is_builtin_function(&read) {
            return Ok(None);
        }
        let owner = read.getattr(&names.self_)?;
        let kind = owner.get_type();
        let is_of_io = kind.is(&self.raw) || kind.is(&self.memory) || self.readers.iter().any(|each| kind.is(each));
        // Two methods are equal if object and function are; comparing these runs no application code.
        let is_its_own = is_of_io && is_untouched(&owner, names)? && owner.getattr(&names.read)?.eq(&read)?;
        Ok(is_its_own.then_some(owner))
    }

    /// True when an object of a class that inherits from `io.IOBase` is iterated by the code of `io`, and its lines are
    /// read from where `read()` reads.
    fn iterates_by_reading(&self, object: &Bound<'_, PyAny>, names: &Names) -> PyResult<bool> {
        let kind = object.get_type();
        if has_attribute(object, names, &names.readline)? || has_attribute(object, names, &names.read)? {
            return Ok(false);
        }
        for name in [&names.iter, &names.next] {
            if !provider(&kind, name)?.is_some_and(|class| self.is_builtin(&class)) {
                return Ok(false);
            }
        }
        let Some(lines) = provider(&kind, &names.readline)? else { return Ok(false) };
        // `IOBase.readline()` calls `read()`. A class with a `readline()` of its own brings the `read()` that goes with
        // it.
        Ok(lines.is(&self.lines) || provider(&kind, &names.read)?.is_some_and(|reads| reads.is(&lines)))
    }

    fn is_builtin(&self, class: &Bound<'_, PyAny>) -> bool {
        self.builtin.iter().any(|each| each.is(class))
    }

    fn refuse_text(&self, filelike: &Bound<'_, PyAny>, names: &Names) -> PyResult<()> {
        let text = self.text.bind(filelike.py());
        let is_text = filelike.is_instance(text)?
            || (filelike.get_type().is(&self.temporary) && filelike.getattr(&names.file)?.is_instance(text)?);
        if !is_text {
            return Ok(());
        }
        let name = filelike.getattr("name").map_or_else(
            |_| type_name(filelike),
            |name| {
                name.cast::<PyString>().map_or_else(|_| type_name(filelike), |name| name.to_string_lossy().into_owned())
            },
        );
        Err(PyTypeError::new_err(format!(
            "the response is a file in text mode ({name}); open it in binary mode, open(path, \"rb\")"
        )))
    }
}

/// The code of the function that `tempfile` makes for a method of the file inside; the method is its `__wrapped__`.
fn temporary_method(temporary: &Bound<'_, PyType>, memory: &Bound<'_, PyType>) -> PyResult<Py<PyAny>> {
    let py = temporary.py();
    let options = PyDict::new(py);
    options.set_item("delete", false)?;
    let file = temporary.call((memory.call0()?, ""), Some(&options))?;
    Ok(file.getattr(&names(py).read)?.getattr(&names(py).code)?.unbind())
}

/// Calls of `read()`, or of `read1()` if it is known to belong to the same object: `read1()` returns what a pipe or a
/// socket has now, whereas `read()` would wait for the requested size.
fn by_calls<'py>(filelike: &Bound<'py, PyAny>, read: Bound<'py, PyAny>, names: &Names) -> PyResult<BytesSource<'py>> {
    let belongs = match (has_attribute(filelike, names, &names.read)?, has_attribute(filelike, names, &names.read1)?) {
        (true, true) => true,
        (false, false) => {
            let kind = filelike.get_type();
            match (provider(&kind, &names.read)?, provider(&kind, &names.read1)?) {
                (Some(reads), Some(reads1)) => reads.is(&reads1),
                _ => false,
            }
        }
        _ => false,
    };
    let read1 = if belongs { filelike.getattr_opt(&names.read1)? } else { None };
    Ok(BytesSource::Calls(read1.unwrap_or(read)))
}

/// True if no attribute of the instance hides one of its type. `close` may: it is called in any case, and frameworks
/// set their own (Django's `WSGIHandler` does).
fn is_untouched(object: &Bound<'_, PyAny>, names: &Names) -> PyResult<bool> {
    let Some(attributes) = attributes_of(object, names)? else { return Ok(true) };
    // A file that `open()` has made has its name there, and nothing else.
    if attributes.is_empty() || (attributes.len() == 1 && attributes.contains(&names.file_name)?) {
        return Ok(true);
    }
    let kind = object.get_type();
    for name in attributes.keys() {
        let Ok(name) = name.cast_exact::<PyString>() else { return Ok(false) };
        if *name != *"close" && kind.hasattr(name)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has_attribute(object: &Bound<'_, PyAny>, names: &Names, name: &Py<PyString>) -> PyResult<bool> {
    attributes_of(object, names)?.map_or(Ok(false), |attributes| attributes.contains(name))
}

/// The attributes of the instance itself, if it can have any.
fn attributes_of<'py>(object: &Bound<'py, PyAny>, names: &Names) -> PyResult<Option<Bound<'py, PyDict>>> {
    Ok(object.getattr_opt(&names.dict)?.and_then(|attributes| attributes.cast_into::<PyDict>().ok()))
}

/// The class that an attribute of a type comes from.
fn provider<'py>(kind: &Bound<'py, PyType>, name: &Py<PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
    for class in kind.mro() {
        if class.getattr(&names(kind.py()).dict)?.contains(name)? {
            return Ok(Some(class));
        }
    }
    Ok(None)
}
