//! The host plant on the machine that runs the tests, with real apps.

mod child;
mod conformance;
mod exchange;
mod faults;
mod gate;
mod knobs;
mod nobody;
mod observing;
mod owners;
mod scene;
