//! The seams between policies and plants.
