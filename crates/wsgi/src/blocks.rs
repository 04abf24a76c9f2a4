//! The iterable that the application answers: which shape it is, and how each shape is delivered.
//!
//! Whenever all blocks are known they leave in one send, with `Content-Length`; else each block leaves as it comes. The
//! head leaves with the first block that is not empty. Runs attached, on the thread that carries the request; calling
//! `close()` is the business of `app.rs`.

use std::ptr;
use std::sync::Arc;

use penstock_server::exchange::{Position, Sent};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyIterator, PyList, PyMemoryView, PyString, PyTuple};

use crate::breath::Breath;
use crate::calls;
use crate::file_wrapper::{FileWrapper, deliver_file, is_file};
use crate::payload::Borrowed;
use crate::response::{LARGE, StartResponse, as_block};
use crate::text::type_name;

/// Blocks that are laid out on the stack.
const FEW: usize = 16;

/// What delivering found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// As PEP 3333 wants it.
    Well,
    /// The application answered `bytes` instead of an iterable of them.
    Bare,
}

/// Delivers the blocks of `iterable`. The response still has to be finished.
pub(crate) fn deliver(py: Python<'_>, state: &StartResponse, iterable: &Bound<'_, PyAny>) -> PyResult<Delivered> {
    if let Ok(list) = iterable.cast_exact::<PyList>() {
        deliver_known(py, state, &Known::List(list))?;
    } else if let Ok(tuple) = iterable.cast_exact::<PyTuple>() {
        deliver_known(py, state, &Known::Tuple(tuple))?;
    } else if iterable.is_instance_of::<PyBytes>()
        || iterable.is_instance_of::<PyByteArray>()
        || iterable.is_instance_of::<PyMemoryView>()
    {
        // Iterating it gives integers; what was meant is clear.
        let block = as_block(iterable)?;
        if !block.as_bytes().is_empty() {
            state.send(&block, Position::Last)?;
        }
        return Ok(Delivered::Bare);
    } else if is_generator(iterable) {
        deliver_each(py, state, iterable.try_iter()?, false)?;
    } else if let Ok(wrapper) = iterable.cast_exact::<FileWrapper>() {
        deliver_file(py, state, wrapper.get().filelike(py))?;
    } else {
        deliver_other(py, state, iterable)?;
    }
    Ok(Delivered::Well)
}

fn is_generator(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a check of a live object's type.
    unsafe { ffi::PyGen_CheckExact(object.as_ptr()) != 0 }
}

fn deliver_other(py: Python<'_>, state: &StartResponse, iterable: &Bound<'_, PyAny>) -> PyResult<()> {
    if iterable.is_none() || iterable.is_instance_of::<PyString>() || iterable.is_instance_of::<PyDict>() {
        return Err(not_an_iterable(iterable));
    }
    if is_file(iterable)? {
        return deliver_file(py, state, iterable);
    }
    let blocks = iterable.try_iter().map_err(|error| {
        if error.is_instance_of::<PyTypeError>(py) && iterable.getattr_opt("__iter__").is_ok_and(|iter| iter.is_none())
        {
            not_an_iterable(iterable)
        } else {
            error
        }
    })?;
    if is_builtin_iterator(&blocks) {
        // No code of the application's runs between two blocks of these: all are known.
        // SAFETY: the argument is a live object; the result is a new list or null with an exception set.
        let list = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PySequence_List(blocks.as_ptr()))? };
        return deliver_known(py, state, &Known::List(list.cast::<PyList>()?));
    }
    deliver_each(py, state, blocks, has_one_block(iterable)?)
}

fn not_an_iterable(object: &Bound<'_, PyAny>) -> PyErr {
    let hint = if object.is_none() {
        " (is a return statement missing?)"
    } else if object.is_instance_of::<PyString>() {
        "; encode it and put it in a list: [text.encode(\"utf-8\")]"
    } else {
        ""
    };
    PyTypeError::new_err(format!(
        "the application must answer an iterable of bytes, not {}{hint} (PEP 3333)",
        type_name(object)
    ))
}

/// An iterator over a list or a tuple; such are what `__iter__` of Django's responses answers.
fn is_builtin_iterator(blocks: &Bound<'_, PyIterator>) -> bool {
    let kind = blocks.get_type_ptr();
    ptr::eq(kind, &raw const ffi::PyListIter_Type) || ptr::eq(kind, &raw const ffi::PyTupleIter_Type)
}

/// PEP 3333 "Handling the Content-Length Header": `len(iterable) == 1` says that the first block is all.
fn has_one_block(iterable: &Bound<'_, PyAny>) -> PyResult<bool> {
    let kind = iterable.get_type_ptr();
    // SAFETY: a live object's type has these tables or null in their place; they live as long as the type.
    let has_length = unsafe {
        let sequence = (*kind).tp_as_sequence;
        let mapping = (*kind).tp_as_mapping;
        (!sequence.is_null() && (*sequence).sq_length.is_some())
            || (!mapping.is_null() && (*mapping).mp_length.is_some())
    };
    if !has_length {
        return Ok(false);
    }
    match iterable.len() {
        Ok(length) => Ok(length == 1),
        // A length that cannot be told says nothing; what is no error but wants out gets out.
        Err(error) if error.is_instance_of::<PyException>(iterable.py()) => Ok(false),
        Err(error) => Err(error),
    }
}

enum Known<'a, 'py> {
    List(&'a Bound<'py, PyList>),
    Tuple(&'a Bound<'py, PyTuple>),
}

impl<'py> Known<'_, 'py> {
    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Tuple(tuple) => tuple.len(),
        }
    }

    /// The block at an index below the length.
    fn get(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let _ = py;
        match self {
            Self::List(list) => list.get_item(index),
            Self::Tuple(tuple) => tuple.get_item(index),
        }
    }

    /// The same blocks in a tuple, which nobody can change while the interpreter is released.
    fn frozen(&self) -> Bound<'py, PyTuple> {
        match self {
            Self::List(list) => list.to_tuple(),
            Self::Tuple(tuple) => (*tuple).clone(),
        }
    }
}

fn deliver_known(py: Python<'_>, state: &StartResponse, blocks: &Known<'_, '_>) -> PyResult<()> {
    let count = blocks.len();
    if count == 1 {
        let first = blocks.get(py, 0)?;
        let block = as_block(&first)?;
        if !block.as_bytes().is_empty() {
            state.send(&block, Position::Last)?;
        }
        return Ok(());
    }
    let mut total = 0;
    let mut all_bytes = true;
    for index in 0..count {
        let block = blocks.get(py, index)?;
        match block.cast::<PyBytes>() {
            Ok(block) => total += block.as_bytes().len(),
            Err(_) => {
                all_bytes = false;
                as_block(&block)?;
            }
        }
    }
    if !all_bytes {
        let mut copies = Vec::with_capacity(count);
        for index in 0..count {
            copies.push(as_block(&blocks.get(py, index)?)?);
        }
        return send_tuple(py, state, &PyTuple::new(py, copies)?, LARGE);
    }
    if total == 0 {
        return Ok(());
    }
    send_tuple(py, state, &blocks.frozen(), total)
}

/// Sends a tuple of `bytes` objects as the whole body.
fn send_tuple(py: Python<'_>, state: &StartResponse, blocks: &Bound<'_, PyTuple>, total: usize) -> PyResult<()> {
    let mut few: [&[u8]; FEW] = [&[]; FEW];
    let mut many = Vec::new();
    let slices: &[&[u8]] = if blocks.len() <= FEW {
        for (slice, block) in few.iter_mut().zip(blocks.iter_borrowed()) {
            *slice = bytes_of(blocks, &block)?;
        }
        &few[..blocks.len()]
    } else {
        many.reserve_exact(blocks.len());
        for block in blocks.iter_borrowed() {
            many.push(bytes_of(blocks, &block)?);
        }
        &many
    };
    if slices.iter().all(|slice| slice.is_empty()) {
        return Ok(());
    }
    let mut response = state.take_started(py)?;
    let exchange = &mut response.exchange;
    let sent = if total < LARGE || exchange.is_on_its_hub() {
        exchange.send(slices, Position::Last, &mut |index| {
            let owner = Arc::new(blocks.clone().into_any().unbind());
            // SAFETY: the slice is the data of an item of the tuple `owner`.
            Box::new(unsafe { Borrowed::new(owner, slices[index]) })
        })
    } else {
        let owner = Arc::new(blocks.clone().into_any().unbind());
        py.detach(|| {
            exchange.send(slices, Position::Last, &mut |index| {
                // SAFETY: the slice is the data of an item of the tuple `owner`.
                Box::new(unsafe { Borrowed::new(Arc::clone(&owner), slices[index]) })
            })
        })
    };
    let settled = response.settle(py, state, sent);
    state.put(py, response);
    settled.map(drop)
}

/// The data of an item of `blocks`.
fn bytes_of<'a>(blocks: &'a Bound<'_, PyTuple>, item: &Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    let _ = blocks;
    let bytes: *const [u8] = item.cast::<PyBytes>()?.as_bytes();
    // SAFETY: the tuple keeps its items, and a `bytes` object keeps its data, as long as the tuple is borrowed.
    Ok(unsafe { &*bytes })
}

/// Sends each block as it comes.
fn deliver_each(py: Python<'_>, state: &StartResponse, blocks: Bound<'_, PyIterator>, one_block: bool) -> PyResult<()> {
    let mut first = true;
    let mut breath = Breath::new(py, state);
    while let Some(block) = calls::next(&blocks)? {
        breath.before_block(py, state)?;
        if let Ok(block) = block.cast_exact::<PyBytes>()
            && let Some(sent) = state.gather(py, block.as_bytes())
        {
            match sent {
                Sent::Taken => continue,
                Sent::Enough => break,
                Sent::Full | Sent::Gone => match state.settle(py, sent)? {
                    Sent::Taken | Sent::Full => continue,
                    Sent::Enough | Sent::Gone => break,
                },
            }
        }
        let block = as_block(&block)?;
        let length = block.as_bytes().len();
        if length == 0 {
            continue;
        }
        // A first block that is as long as Content-Length promises is the last one, too.
        let last = first && (one_block || state.declared_length(py) == Some(length as u64));
        first = false;
        match state.send(&block, if last { Position::Last } else { Position::More })? {
            Sent::Taken | Sent::Full if last => break,
            Sent::Taken | Sent::Full => {}
            Sent::Enough | Sent::Gone => break,
        }
    }
    Ok(())
}
