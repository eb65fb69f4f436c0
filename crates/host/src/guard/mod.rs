//! The restore guard: old values saved durably, and put back whatever happens.
