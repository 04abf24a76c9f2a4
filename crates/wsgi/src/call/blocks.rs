//! The iterable that the application returns: its shape, and how each shape is delivered.
//!
//! If all blocks are known, they are sent in one write, with `Content-Length`; otherwise each block is sent as it
//! comes. The head is sent with the first block that is not empty. Runs attached, on the thread that runs the request.
//! `application.rs` calls `close()`.

use pyo3::exceptions::{PyException, PyMemoryError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyIterator, PyList, PyMemoryView, PyString, PyTuple};
use tailrace_server::{Position, Sent};

use crate::call::fair_yield::FairYield;
use crate::call::file_source;
use crate::call::file_wrapper::{FileWrapper, Shape, deliver_file};
use crate::call::kept_block::KeptBlock;
use crate::call::response::{ResponseState, as_block, keeps_interpreter};
use crate::call::rest::IterableRest;
use crate::ffi::bytes::Slices;
use crate::ffi::sequences::{list_of, tuple_of};
use crate::ffi::thread;
use crate::ffi::types::{has_length, is_generator, is_list_or_tuple_iterator};
use crate::python::calls;
use crate::python::type_name::type_name;

/// How the iterable was delivered.
pub(crate) enum Delivered<'py> {
    /// As PEP 3333 requires.
    Well,
    /// Likewise, but the response was complete before the iterable ended.
    Early(IterableRest<'py>),
    /// The application returned `bytes` instead of an iterable of them.
    Bare,
}

/// Delivers the blocks of `iterable`. The response still has to be finished.
pub(crate) fn deliver<'py>(
    py: Python<'py>,
    state: &ResponseState,
    iterable: &Bound<'py, PyAny>,
) -> PyResult<Delivered<'py>> {
    if state.is_delegated(py) {
        return Ok(Delivered::Well);
    }
    let rest = if let Ok(list) = iterable.cast_exact::<PyList>() {
        deliver_known(py, state, &KnownBlocks::List(list))?;
        None
    } else if let Ok(tuple) = iterable.cast_exact::<PyTuple>() {
        deliver_known(py, state, &KnownBlocks::Tuple(tuple))?;
        None
    } else if iterable.is_instance_of::<PyBytes>()
        || iterable.is_instance_of::<PyByteArray>()
        || iterable.is_instance_of::<PyMemoryView>()
    {
        // Iterating it would yield integers. The application means one block.
        let block = as_block(iterable)?;
        if !block.as_bytes().is_empty() {
            state.send(&block, Position::Last)?;
        }
        return Ok(Delivered::Bare);
    } else if is_generator(iterable) {
        deliver_each(py, state, iterable.try_iter()?, false)?
    } else if let Ok(wrapper) = iterable.cast_exact::<FileWrapper>() {
        deliver_file(py, state, &file_source::wrapped(wrapper.get().filelike(py))?, Shape::Wrapped)?
    } else {
        deliver_other(py, state, iterable)?
    };
    Ok(rest.map_or(Delivered::Well, Delivered::Early))
}

fn deliver_other<'py>(
    py: Python<'py>,
    state: &ResponseState,
    iterable: &Bound<'py, PyAny>,
) -> PyResult<Option<IterableRest<'py>>> {
    if iterable.is_none() || iterable.is_instance_of::<PyString>() || iterable.is_instance_of::<PyDict>() {
        return Err(not_an_iterable(iterable));
    }
    if let Some(source) = file_source::bare(iterable)? {
        return deliver_file(py, state, &source, Shape::Bare);
    }
    let blocks = iterable.try_iter().map_err(|error| {
        if error.is_instance_of::<PyTypeError>(py) && iterable.getattr_opt("__iter__").is_ok_and(|iter| iter.is_none())
        {
            not_an_iterable(iterable)
        } else {
            error
        }
    })?;
    if is_list_or_tuple_iterator(&blocks) {
        // All blocks are known: no application code runs between two of them. Django's responses have such an iterator.
        return deliver_known(py, state, &KnownBlocks::List(&list_of(&blocks)?)).map(|()| None);
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
        "the application must return an iterable of bytes, not {}{hint} (PEP 3333)",
        type_name(object)
    ))
}

/// PEP 3333 "Handling the Content-Length Header": `len(iterable) == 1` says that the first block is all.
fn has_one_block(iterable: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !has_length(iterable) {
        return Ok(false);
    }
    match iterable.len() {
        Ok(length) => Ok(length == 1),
        // An object whose `len()` fails has an unknown number of blocks. SystemExit and similar exceptions propagate.
        Err(error) if error.is_instance_of::<PyException>(iterable.py()) => Ok(false),
        Err(error) => Err(error),
    }
}

enum KnownBlocks<'a, 'py> {
    List(&'a Bound<'py, PyList>),
    Tuple(&'a Bound<'py, PyTuple>),
}

impl<'py> KnownBlocks<'_, 'py> {
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

    /// The blocks in a tuple, which cannot change while the interpreter is released.
    fn frozen(&self) -> PyResult<Bound<'py, PyTuple>> {
        match self {
            Self::List(list) => tuple_of(list),
            Self::Tuple(tuple) => Ok((*tuple).clone()),
        }
    }
}

fn deliver_known(py: Python<'_>, state: &ResponseState, blocks: &KnownBlocks<'_, '_>) -> PyResult<()> {
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
        let mut copies = Vec::new();
        copies
            .try_reserve_exact(count)
            .map_err(|_| PyMemoryError::new_err("not enough memory for the blocks of the response"))?;
        for index in 0..count {
            copies.push(as_block(&blocks.get(py, index)?)?);
        }
        return send_tuple(py, state, &PyTuple::new(py, copies)?, usize::MAX);
    }
    if total == 0 {
        return Ok(());
    }
    send_tuple(py, state, &blocks.frozen()?, total)
}

/// Sends a tuple of `bytes` objects as the whole body.
fn send_tuple(py: Python<'_>, state: &ResponseState, blocks: &Bound<'_, PyTuple>, total: usize) -> PyResult<()> {
    Slices::lend(blocks, |slices| {
        if slices.all().iter().all(|slice| slice.is_empty()) {
            return Ok(());
        }
        let mut response = state.take_started(py)?;
        let exchange = &mut response.exchange;
        let sent = if keeps_interpreter(exchange, total) {
            exchange
                .response_mut()
                .push(slices.all(), Position::Last, &mut |index| KeptBlock::boxed(slices.owner().share(index)))
        } else {
            let owner = slices.owner();
            let blocks = slices.all();
            thread::release(py, || {
                exchange.response_mut().push(blocks, Position::Last, &mut |index| KeptBlock::boxed(owner.share(index)))
            })
        };
        let sent = response.await_room(py, state, sent);
        state.put(py, response);
        sent.map(drop)
    })
}

/// Sends each block as it comes. Returns the rest of the iterable when the response was complete before its end.
fn deliver_each<'py>(
    py: Python<'py>,
    state: &ResponseState,
    blocks: Bound<'py, PyIterator>,
    one_block: bool,
) -> PyResult<Option<IterableRest<'py>>> {
    let mut first = true;
    let mut fair_yield = FairYield::new();
    while let Some(block) = calls::next(&blocks)? {
        fair_yield.before_block(py, state)?;
        if let Ok(block) = block.cast_exact::<PyBytes>()
            && let Some(sent) = state.coalesce(py, block.as_bytes())
        {
            match sent {
                Sent::Taken => continue,
                Sent::BodyComplete => return Ok(Some(IterableRest::Blocks(blocks))),
                Sent::Full | Sent::Gone | Sent::NoMemory => match state.await_room(py, sent)? {
                    Sent::Taken | Sent::Full => continue,
                    Sent::BodyComplete => return Ok(Some(IterableRest::Blocks(blocks))),
                    Sent::Gone | Sent::NoMemory => break,
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
            Sent::Taken | Sent::Full if last => return Ok(Some(IterableRest::Blocks(blocks))),
            Sent::Taken | Sent::Full => {}
            Sent::BodyComplete => return Ok(Some(IterableRest::Blocks(blocks))),
            Sent::Gone | Sent::NoMemory => break,
        }
    }
    Ok(None)
}
