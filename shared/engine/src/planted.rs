//! Faults that a test plants into a thread, to see that its checks find them.
//!
//! Without the cargo feature `failpoints` there are none: nothing can be planted, and what looks for one is nothing at all.
//! Release builds do not have the feature.

/// What publishing does not look at before it commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blind {
    /// Nothing that changed on `main` since the units looked.
    Everything,
    /// Rows that went: only those that came.
    Removals,
}

/// Can faults be planted in this build?
pub const POSSIBLE: bool = cfg!(feature = "failpoints");

#[cfg(feature = "failpoints")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Blind>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault into everything that this thread does.
pub fn plant(fault: Option<Blind>) {
    #[cfg(feature = "failpoints")]
    PLANTED.set(fault);
    #[cfg(not(feature = "failpoints"))]
    let _ = fault;
}

/// What the overlap check sees of what went and what came.
#[inline]
pub(crate) fn seen<T>(gone: Vec<T>, come: Vec<T>) -> (Vec<T>, Vec<T>) {
    #[cfg(feature = "failpoints")]
    return match PLANTED.get() {
        None => (gone, come),
        Some(Blind::Everything) => (vec![], vec![]),
        Some(Blind::Removals) => (vec![], come),
    };
    #[cfg(not(feature = "failpoints"))]
    (gone, come)
}
